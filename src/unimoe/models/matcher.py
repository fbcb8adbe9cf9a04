"""Sparse encoders and late interaction: models of sentence-transformers without one dense vector for a text.

The library loads them and encodes each batch: prompts, routes, masks and the expansion of queries are its own. What is
added here: batches of a budget, smaller ones where memory runs out, the identity of a model, and errors in one line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from unimoe.config import Batches
from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json
from unimoe.models.batching import FittingBatches, default_token_budget
from unimoe.models.embedder import Advance, TextKind
from unimoe.models.encoder import load_modules, text_length
from unimoe.models.folder import ModelFolder, find_folder, section_of
from unimoe.models.identity import read_settings, settings_hash
from unimoe.models.model_files import loading
from unimoe.models.prompts import well_formed
from unimoe.models.reranker import Cut, Reranker, TextPair, shard_characters
from unimoe.models.token_ids import embedding_rows, refuse_tokens_without_rows

Similarities = NDArray[np.float32]

_CHARACTERS = 4
"""Of a token, about: batches are planned by characters, since some models do little more than tokenise."""


class Matcher(ABC):
    """Encodes texts, and compares queries with documents as the library's ``similarity`` does.

    Attributes:
        kind: what ``--model`` and configs call such models.
        stated: the ``model_type`` of such a model in the library's files, and in those of other libraries.
        bare: the ends of the classes of transformers that the library reads as such a model, without random weights.
        model: the library's encoder, in eval mode, on its device.
    """

    kind: ClassVar[str]
    stated: ClassVar[tuple[str, ...]]
    bare: ClassVar[tuple[str, ...]]

    def __init__(self, model: Any, config: EncoderConfig, key: str) -> None:
        self.model, self.device = model, torch.device(model.device)
        self._fitting = FittingBatches("a text", "max_length", "characters")
        self._prompts = {"query": config.query_prefix, "document": config.document_prefix}
        longest = text_length(config, model, key)
        self._longest = _CHARACTERS * longest
        if config.max_length is not None:
            _cut(model, longest)

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "document",
        advance: Advance | None = None,
        token_budget: int | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """Encode texts, in their order; arguments are those of ``Embedder.encode``."""
        fine = [well_formed(text) for text in texts]
        method = self.model.encode_query if kind == "query" else self.model.encode_document
        self._refuse_tokens_without_rows(fine)
        order, made = list[int](), list[Any]()

        def compute(batch: list[int]) -> Any:
            encode = partial(method, [fine[index] for index in batch], prompt=self._prompts.get(kind))
            return self._compute(partial(encode, batch_size=len(batch), show_progress_bar=False))

        budget = _CHARACTERS * (token_budget or default_token_budget(self.device))
        sized = [text[: self._longest] for text in fine]
        for batch, part in self._fitting.run(sized, compute, budget, batch_size):
            order += batch
            made.append(part)
            if advance:
                advance(len(batch))
        return self._joined(made, np.argsort(order))

    def _refuse_tokens_without_rows(self, texts: Sequence[str]) -> None:
        part, tokenizer = self.model.transformers_model, self.model.tokenizer
        rows = None if part is None else embedding_rows(part)
        if rows is not None and len(tokenizer) > rows and texts:  # else they are not tokenized twice
            ids = tokenizer(list(texts), truncation=True, max_length=self._longest // _CHARACTERS, verbose=False)
            refuse_tokens_without_rows(ids["input_ids"], rows, tokenizer)

    @abstractmethod
    def similarity(self, queries: Any, documents: Any) -> Similarities:
        """Return the scores of Q encoded queries and N documents, ``(Q, N)``."""

    @abstractmethod
    def pairwise(self, queries: Any, first: list[int], documents: Any, second: list[int]) -> Similarities:
        """Return the scores of pairs: the places of their queries, and of their documents."""

    @abstractmethod
    def _compute(self, encode: Callable[..., Any]) -> Any:
        """Return the encodings of a batch, which the library's ``encode`` makes."""

    @abstractmethod
    def _joined(self, parts: Sequence[Any], order: NDArray[np.int64]) -> Any:
        """Return the encodings of all batches in the order of these places."""


class SparseModel(Matcher):
    """A ``SparseEncoder``, such as SPLADE: texts become weights of words, rows of a float32 ``csr_array`` on the CPU.

    They are compared by dot product or cosine.
    """

    kind, stated, bare = "sparse", ("SparseEncoder",), ("ForMaskedLM",)

    def __init__(self, model: Any, config: EncoderConfig, key: str) -> None:
        super().__init__(model, config, key)
        if model.similarity_fn_name not in ("cosine", "dot"):
            raise DataError(
                f"{config.base!r}: its similarity_fn_name is {model.similarity_fn_name}, and a sparse search compares "
                "by cosine or dot product; use another encoder"
            )

    def similarity(self, queries: Any, documents: Any) -> Similarities:
        """Return the products of all queries and documents; see ``Matcher``."""
        return np.asarray((queries @ documents.T).toarray(), dtype=np.float32)

    def pairwise(self, queries: Any, first: list[int], documents: Any, second: list[int]) -> Similarities:
        """Return the product of each pair; see ``Matcher``."""
        return np.asarray(queries[first].multiply(documents[second]).sum(axis=1), dtype=np.float32)

    def _compute(self, encode: Callable[..., Any]) -> Any:
        found = encode(convert_to_sparse_tensor=False).float().to_sparse().cpu()
        rows, columns = found.indices().numpy().astype(np.int32)
        starts = np.searchsorted(rows, np.arange(len(found) + 1))
        encoded = sparse.csr_array((found.values().numpy(), columns, starts), shape=tuple(found.shape))
        if self.model.similarity_fn_name == "cosine":
            lengths = np.sqrt(encoded.multiply(encoded).sum(axis=1))
            encoded.data /= np.maximum(np.repeat(lengths, np.diff(starts)), 1e-12)
        return encoded

    def _joined(self, parts: Sequence[Any], order: NDArray[np.int64]) -> Any:
        return sparse.vstack(parts, format="csr")[order]


class LateModel(Matcher):
    """A ``MultiVectorEncoder``, such as ColBERT: texts become a vector for each token, which stay on its device.

    They are compared by MaxSim, the sum of each query token's best match.
    """

    kind, stated, bare = "late", ("MultiVectorEncoder", "ColBERT"), ("HF_ColBERT", "ForRetrieval")

    def similarity(self, queries: Any, documents: Any) -> Similarities:
        """Return MaxSim of all queries and documents, which the library computes in blocks; see ``Matcher``."""
        order = sorted(range(len(documents)), key=lambda place: len(documents[place]))  # so that little is padded
        scores = np.empty((len(queries), len(documents)), dtype=np.float32)
        scores[:, order] = self.model.similarity(queries, [documents[place] for place in order]).cpu().numpy()
        return scores

    def pairwise(self, queries: Any, first: list[int], documents: Any, second: list[int]) -> Similarities:
        """Return MaxSim of each pair; see ``Matcher``."""
        sides = [queries[place] for place in first], [documents[place] for place in second]
        scores: Similarities = self.model.similarity_pairwise(*sides).cpu().numpy()
        return scores

    def _compute(self, encode: Callable[..., Any]) -> Any:
        return [vectors.float() for vectors in encode()]

    def _joined(self, parts: Sequence[Any], order: NDArray[np.int64]) -> Any:
        together = [vectors for part in parts for vectors in part]
        return [together[place] for place in order]


MATCHERS: dict[str, type[Matcher]] = {matcher.kind: matcher for matcher in (SparseModel, LateModel)}


def find_matcher(matcher: type[Matcher], key: str, config: EncoderConfig) -> tuple[ModelFolder, str, str]:
    """Return the folder of a model, and the names by which results know it and its settings.

    Another kind of model is refused, as the library would add random weights. Errors name ``key``.
    """
    folder = find_folder(key, config.base, config.revision, trust_remote_code=config.trust_remote_code)
    root = folder.root
    if config.pooling != "auto":
        raise UsageError(f"{key}: {matcher.kind} models have no pooling to replace; leave pooling at auto")
    if listed := (root / "modules.json").is_file():
        stated = read_settings(root / "config_sentence_transformers.json")
        older = "ColBERT" if "query_prefix" in stated else "SentenceTransformer"  # of PyLate, before there were types
        name = stated.get("model_type", older)
    else:
        name = folder.architecture
    if not (name in matcher.stated if listed else name.endswith(matcher.bare)):
        raise DataError(
            f"{key} {config.base!r}: a {name or 'model of no known architecture'}, and {matcher.kind} needs a "
            f"{matcher.stated[0]} of sentence-transformers; give one, or name this model as another kind"
        )
    read = [config.query_prefix, config.document_prefix, config.max_length, folder.commit or settings_hash(root)]
    prompt = f"{matcher.kind}(max_length={config.max_length})@{hash_json(read)}"
    return folder, f"{matcher.kind}:{folder.identity}", prompt


def load_matcher(
    matcher: type[Matcher], key: str, config: EncoderConfig, device: torch.device, dtype: torch.dtype
) -> Matcher:
    """Load a model; errors name ``key``."""
    folder, _, _ = find_matcher(matcher, key, config)
    with loading(f"{key} {config.base!r} cannot be loaded", f"check the files in {folder.root}", section_of(key)):
        model = load_modules(matcher.stated[0], config, folder, device, dtype)
    return matcher(model, config, section_of(key))


def _cut(model: Any, length: int) -> None:
    """Let a model read so many tokens of a text at most."""
    for module in model.modules():
        for name in ("max_seq_length", "document_length", "query_length"):
            own = getattr(module, name, None)
            if isinstance(own, int) and (own > length or name != "query_length"):  # to which queries are filled up
                setattr(module, name, length)
        if type(module).__name__ == "SparseStaticEmbedding":  # which asks its tokenizer alone
            module.tokenizer.model_max_length = length


class MatcherReranker(Reranker):
    """Scores pairs by a sparse encoder or late interaction, which encodes each text of a shard once."""

    def __init__(self, model: Matcher, **batches: Unpack[Batches]) -> None:
        self._model, self._batches, self.place = model, batches, model.device

    @property
    def cut_by(self) -> Cut:
        """By documents, which are longer than queries."""
        return "document_first", shard_characters(self._model.device)

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return the similarity of each pair."""
        kinds: tuple[TextKind, TextKind] = ("query", "document")
        sides = []
        for texts, kind in zip(zip(*prepared, strict=True), kinds, strict=False):  # no pairs have no sides
            place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            sides += [self._model.encode(list(place), kind=kind, **self._batches), [place[text] for text in texts]]
        scores: list[float] = self._model.pairwise(*sides).tolist() if sides else []
        if advance:
            advance(len(prepared))
        return scores
