"""Our model behind MTEB's two interfaces.

Two adapters on purpose: MTEB silently takes one object that can both encode and predict for an encoder, also in
reranking tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from unimoe.io import hash_json
from unimoe.models.prompts import TextKind
from unimoe.models.unimodel import Advance, UnimodelForExp1, Vectors

if TYPE_CHECKING:
    from typing import Unpack

    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta
    from mteb.types import Array, BatchedInput, EncodeKwargs, PromptType
    from torch.utils.data import DataLoader

_KINDS: Mapping[str | None, TextKind] = {"query": "query", "document": "document", None: "plain"}


class MTEBEncoderWrapper:
    r"""Embeds texts for MTEB; cosine similarity.

    Queries and documents of retrieval tasks get the prefixes of the model's prompt. The texts of symmetric tasks (STS,
    classification, clustering), which have no such roles, get none.

    Args:
        model: the model.
        name: the arm; MTEB knows the model as ``unimoe/{name}``.
        identity: what changes scores beyond what the model itself tells (base weights, prompt, length, dtype): above
            all the content hash of the checkpoint. MTEB serves stored scores to whatever has the same revision.
        prompts: task name to a prefix that takes the place of the configured one, before queries and before the texts
            of symmetric tasks; Qwen3 writes ``Instruct: {task}\nQuery:``. Documents keep theirs.
        token_budget: padded tokens of one forward pass; by default what suits the device.
        batch_size: texts of one forward pass, instead of the budget.
        advance: called with the number of texts done, after each batch.
    """

    def __init__(
        self,
        model: UnimodelForExp1,
        *,
        name: str,
        identity: Mapping[str, str],
        prompts: Mapping[str, str] | None = None,
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> None:
        self._model = model
        self._prompts = dict(prompts or {})
        self._options: dict[str, Any] = {"token_budget": token_budget, "batch_size": batch_size, "advance": advance}
        self.mteb_model_meta = _meta(model, "dense", name, identity, self._prompts)

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Unpack[EncodeKwargs],
    ) -> Vectors:
        """Embed the texts of a data loader, all in one call of the model, whatever the loader's batches.

        Returns:
            ``(N, D)`` float32 of unit length, in the loader's order.

        Raises:
            DataError: an embedding is not finite.
        """
        prefix = None if prompt_type == "document" else self._prompts.get(task_metadata.name)
        return self._model.encode(_texts(inputs), kind=_KINDS[prompt_type], prefix=prefix, **self._options)

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Cosines of all pairs of ``(N, D)`` and ``(M, D)`` unit vectors, ``(N, M)``, on the model's device."""
        return self._vectors(embeddings1) @ self._vectors(embeddings2).T

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Cosines of corresponding pairs of ``(N, D)`` and ``(N, D)`` unit vectors, ``(N,)``, on the CPU."""
        return (self._vectors(embeddings1) * self._vectors(embeddings2)).sum(dim=-1).cpu()

    def _vectors(self, embeddings: Array) -> Tensor:
        vectors = torch.as_tensor(embeddings, dtype=torch.float32, device=self._model.device)
        return vectors.reshape(-1, vectors.shape[-1])


class MTEBCrossEncoderWrapper:
    """Scores query-document pairs for MTEB's reranking tasks by the gap between the logits of yes and no.

    The gap, not P(yes): float32 rounds P(yes) to 1 from a gap of 18 on, and ties are broken by document id.

    Args:
        model: the model.
        name: the arm; MTEB knows the model as ``unimoe/{name}``.
        identity: as for ``MTEBEncoderWrapper``.
        token_budget: padded tokens of one forward pass; by default what suits the device.
        batch_size: pairs of one forward pass, instead of the budget.
        advance: called with the number of pairs done, after each batch.
    """

    def __init__(
        self,
        model: UnimodelForExp1,
        *,
        name: str,
        identity: Mapping[str, str],
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> None:
        self._model = model
        self._options: dict[str, Any] = {"token_budget": token_budget, "batch_size": batch_size, "advance": advance}
        self.mteb_model_meta = _meta(model, "cross-encoder", name, identity, {})

    def predict(
        self,
        inputs1: DataLoader[BatchedInput],
        inputs2: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Unpack[EncodeKwargs],
    ) -> Vectors:
        """Score the pairs of two data loaders of equal length, queries and documents.

        Returns:
            Logit gaps ``(N,)``, float32, in the loaders' order.

        Raises:
            DataError: a query fills the whole length, or a score is not finite.
        """
        pairs = list(zip(_texts(inputs1), _texts(inputs2), strict=True))
        return self._model.rerank(pairs, output="gap", **self._options)


def _texts(inputs: DataLoader[BatchedInput]) -> list[str]:
    return [text for batch in inputs for text in batch["text"]]


def _meta(
    model: UnimodelForExp1,
    kind: Literal["dense", "cross-encoder"],
    name: str,
    identity: Mapping[str, str],
    prompts: Mapping[str, str],
) -> ModelMeta:
    """The model's card for MTEB, whose revision is the content hash of everything that changes scores.

    The kind is part of it: an encoder and a cross-encoder of the same weights score a reranking task differently.
    """
    from unimoe.evaluation.mteb_tasks import model_meta

    own = [model.base_identity, model.prompt_name, str(model.dtype)]
    revision = hash_json([kind, own, dict(identity), dict(prompts)])
    return model_meta(f"unimoe/{name}", revision, kind)
