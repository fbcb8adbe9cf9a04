"""Adapters that give our models MTEB's two interfaces, encoder and cross-encoder.

They are two classes on purpose: MTEB uses an object that can both encode and predict as an encoder, even in reranking
tasks, without a warning. For the search of a corpus and the reranking of given candidates, ``evaluation.mteb.search``
makes of each what MTEB calls a search model, because MTEB's own one keeps everything in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from unimoe.config import Batches, MTEBConfig
from unimoe.core.errors import InputError, named_inputs
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_json
from unimoe.data.sources.from_mteb import import_mteb
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.models.embedder import Advance, Embedder, Encode, Spread, Vectors
from unimoe.models.model import Model, as_embedder, as_reranker
from unimoe.models.own_prompts import KINDS
from unimoe.models.pair_model import PairModel, TokenReranker
from unimoe.models.reranker import Reranker
from unimoe.models.tensor_files import tensors_hash
from unimoe.retrieval.embeddings import UNIT_CHARACTERS, cut_units

if TYPE_CHECKING:
    from typing import Unpack

    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta
    from mteb.types import Array, BatchedInput, EncodeKwargs, PromptType
    from torch.utils.data import DataLoader

Adapted = TypeVar("Adapted", bound=Embedder | PairModel | Reranker | Model)


class MTEBWrapper(Generic[Adapted]):
    """What both adapters are made of; ``done`` is the number of texts or pairs that were scored so far.

    Args:
        model: the model.
        name: the arm; MTEB knows the model as ``unimoe/{name}``.
        identity: what changes scores besides base weights, prompt, length and dtype, above all the content hash of the
            checkpoint. MTEB reuses stored scores of the same revision, so without it the weights in memory are hashed.
        prompts: prefixes or instructions by task; by default the model's own for all.
        advance: called with the number of texts or pairs done.
        batches: the size of a forward pass; by default what suits the device.
    """

    kind: ClassVar[Literal["dense", "cross-encoder"]]

    def __init__(
        self,
        model: Adapted,
        *,
        name: str = "model",
        identity: Mapping[str, str] | None = None,
        prompts: TaskPrompts | None = None,
        advance: Advance | None = None,
        **batches: Unpack[Batches],
    ) -> None:
        self.model, self.name, self.done = model, name, 0
        self.prompts, self._advance = prompts or TaskPrompts(MTEBConfig(task_instruction=None)), advance
        self.batches: Batches = {"token_budget": None, "batch_size": None, **batches}  # both: fingerprints hash them
        # The revision hashes all that changes scores: the kind too, as both score a reranking task, and differently.
        own: list[str | None] = [None] * 3  # a reranker's are in ``identity`` alone
        if isinstance(model, Embedder):
            own = [model.base_identity, model.prompt_name, str(model.dtype)]
        elif isinstance(model, Model):
            own = [model.identity, model.prompt, model.dtype]
        if identity is None:  # other models than PyTorch's are known by their own identity alone
            weights = model.model if isinstance(model, TokenReranker) else model
            identity = {"weights": tensors_hash(weights.state_dict()) if isinstance(weights, nn.Module) else "as named"}
        revision = hash_json([self.kind, own, dict(identity), self.prompts.settings])
        self.mteb_model_meta = model_meta(f"unimoe/{name}", revision, self.kind)

    def advance(self, items: int) -> None:
        """Count items that are done, and report them."""
        self.done += items
        if self._advance:
            self._advance(items)


class MTEBEncoderWrapper(MTEBWrapper[Embedder]):
    """Embeds texts for MTEB, which compares them by products; arguments as in ``MTEBWrapper``.

    A text gets the prefix that ``prompts`` has for its task and role, else the model's own: that for the task or its
    type, in MTEB's order, else that of queries, documents, or texts of symmetric tasks (STS, clustering).
    """

    kind, kept = "dense", False
    """``kept``: whether the vectors of a corpus stay in the user's cache, as those of an arm's checkpoint do not."""

    def __init__(self, model: Embedder, **options: Any) -> None:
        super().__init__(as_embedder(model) or model, **options)

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
        """Embed all texts of a data loader, ``(N, D)`` float32 in the loader's order, regardless of its batches."""
        texts, ids, _ = _texts(inputs)
        role = None if prompt_type is None else str(prompt_type.value)
        options = self.options(task_metadata, role)
        encode = partial(self.model.encode, **options)
        with named_inputs(lambda index: f"{task_metadata.name}, {role or 'text'} {ids[index]}"):
            return _encode_texts(encode, texts, self.model.spread(**options), self.advance)

    def options(self, task: TaskMetadata, role: str | None) -> dict[str, Any]:
        """Return the arguments of ``Embedder.encode`` for the texts of a task, as JSON values."""
        prefix = self.prompts.prefix(task, role, self.model.own_prompts)
        return {"kind": KINDS[role], "prefix": prefix, **self.batches}

    def similarity(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Return products of all pairs of ``(N, D)`` and ``(M, D)`` vectors, ``(N, M)``, on the CPU."""
        return (self._vectors(embeddings1) @ self._vectors(embeddings2).T).cpu()

    def similarity_pairwise(self, embeddings1: Array, embeddings2: Array) -> Tensor:
        """Return products of corresponding pairs of ``(N, D)`` and ``(N, D)`` vectors, ``(N,)``, on the CPU."""
        return (self._vectors(embeddings1) * self._vectors(embeddings2)).sum(dim=-1).cpu()

    def _vectors(self, embeddings: Array) -> Tensor:
        vectors = torch.as_tensor(embeddings, dtype=torch.float32, device=self.model.device)
        return vectors.reshape(-1, vectors.shape[-1])


class MTEBCrossEncoderWrapper(MTEBWrapper[PairModel | Reranker | Model]):
    """Scores query-document pairs for MTEB's reranking tasks, as by the margin between the logits of yes and no.

    The margin and not P(yes), which float32 rounds to 1 from a margin of 18 on: ties are broken by document id.
    Arguments are those of ``MTEBWrapper``.
    """

    kind = "cross-encoder"

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
        """Score the pairs of two data loaders of equal length, queries and documents: ``(N,)`` float32, in order."""
        queries, query_ids, given = _texts(inputs1)
        documents, document_ids, _ = _texts(inputs2)
        pairs = list(zip(queries, documents, strict=True))
        rows = gathered((self.prompts.instruction(task_metadata, own), row) for row, own in enumerate(given))
        scores = np.empty(len(pairs), dtype=np.float32)
        for instruction, chosen in rows.items():
            reranker = self.reranker(instruction)
            names = [f"query {query_ids[row]} with document {document_ids[row]}" for row in chosen]
            with named_inputs([f"{task_metadata.name}, {name}" for name in names].__getitem__):
                scores[chosen] = reranker.score(reranker.prepare([pairs[row] for row in chosen]), self.advance)
        return scores

    def reranker(self, instruction: str | None) -> Reranker:
        """Return what scores pairs with an instruction in shards."""
        make = self.model.reranker if isinstance(self.model, Model) else partial(as_reranker, self.model)
        return make(instruction=instruction, **self.batches)


def model_meta(
    name: str, revision: str, kind: Literal["dense", "cross-encoder"], known: Mapping[str, Any] | None = None
) -> ModelMeta:
    """Return the card that MTEB files a model's results under.

    ``name`` has a ``/`` in it, ``revision`` is a hash of all that changes scores, ``known`` has other fields.
    """
    import_mteb()  # before anything of it is imported by name
    from mteb.models.model_meta import ModelMeta, ScoringFunction

    facts: dict[str, Any] = {
        "name": name,
        "revision": revision,
        "model_type": [kind],
        "modalities": ["text"],
        "similarity_fn_name": ScoringFunction.COSINE if kind == "dense" else None,
    }
    empty = ModelMeta.create_empty(overwrites=facts)
    return empty.model_validate({**dict(empty), **known}) if known else empty


def _encode_texts(encode: Encode, texts: Sequence[str], spread: Spread, advance: Advance) -> Vectors:
    """Embed N texts in memory, ``(N, D)``, in units that depend on the texts alone; report every unit.

    An ``InputError`` carries the index in ``texts`` of one that cannot be embedded.
    """
    units = [np.sort(unit) for unit in cut_units([len(text) for text in texts], UNIT_CHARACTERS)]
    found: list[Vectors] = []
    try:
        for vectors in spread(encode, ([texts[row] for row in unit] for unit in units)):
            advance(len(vectors))
            found.append(vectors)
    except InputError as error:
        raise InputError(int(units[len(found)][error.index]), error.reason) from None
    if len(found) < 2:
        return found[0] if found else encode([])
    whole = np.empty((len(texts), found[0].shape[1]), dtype=np.float32)
    whole[np.concatenate(units)] = np.concatenate(found)
    return whole


def _texts(inputs: DataLoader[BatchedInput]) -> tuple[list[str], list[str], list[str | None]]:
    """Return all texts, their ids, and the instruction of each, None where MTEB gives none.

    Ids are MTEB's in retrieval, else positions in the list, from 1.
    """
    texts: list[str] = []
    ids: list[str] = []
    instructions: list[str | None] = []
    for batch in inputs:
        places = range(len(texts) + 1, len(texts) + len(batch["text"]) + 1)
        ids.extend(map(repr, batch["id"]) if "id" in batch else (f"{place:,}" for place in places))
        texts.extend(batch["text"])
        instructions.extend(batch.get("instruction") or [None] * len(places))
    return texts, ids, instructions
