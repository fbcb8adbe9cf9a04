"""Sparse encoders and late interaction against sentence-transformers' own ``similarity``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from safetensors.torch import load_file, save_file
from support.reranking import invented
from support.tiny_encoders import save_tiny_colbert, save_tiny_inference_free, save_tiny_mlm, save_tiny_splade

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError
from unimoe.core.trec import Run, ranked
from unimoe.evaluation.reranking.rerankers import MatcherReranker
from unimoe.models.matcher import LateModel, Matcher, SparseModel, find_matcher, load_matcher
from unimoe.retrieval.model_search import matcher_run

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES = ["the cat sat on the mat", "quick sort of a list", "rain", "", "où est le chat? 🐈"]
DOCUMENTS = ["a dog, in the house.", "rain " * 60, "the cat sat on the roof", "", "x", "the cat sat on the roof"]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]

Save = Callable[[Path], Path]
KINDS: dict[str, tuple[type[Matcher], Save]] = {
    "splade": (SparseModel, lambda at: save_tiny_splade(at / "splade", at / "bare")),
    "splade-bare": (SparseModel, lambda at: save_tiny_mlm(at / "bare")),
    "splade-cosine": (SparseModel, lambda at: save_tiny_splade(at / "c", at / "bare", similarity_fn_name="cosine")),
    "splade-cut": (SparseModel, lambda at: save_tiny_splade(at / "cut", at / "bare", max_active_dims=7)),
    "inference-free": (SparseModel, lambda at: save_tiny_inference_free(at / "free", at / "bare")),
    "colbert": (LateModel, lambda at: save_tiny_colbert(at / "colbert", at / "bare")),
    "colbert-expanded": (LateModel, lambda at: save_tiny_colbert(at / "e", at / "bare", expand=12)),
    "colbert-mean": (LateModel, lambda at: save_tiny_colbert(at / "m", at / "bare", similarity_fn_name="meanmaxsim")),
}


def load(matcher: type[Matcher], folder: Path, **settings: Any) -> Matcher:
    config = EncoderConfig(base=str(folder), **settings)
    return load_matcher(matcher, "--model", config, torch.device("cpu"), torch.float32)


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[type[Matcher], Path]:
    matcher, save = KINDS[request.param]
    return matcher, save(tmp_path)


def expected(matcher: type[Matcher], folder: Path, documents: list[str] = DOCUMENTS) -> Any:
    theirs = getattr(sentence_transformers, matcher.stated[0])(str(folder), device="cpu")
    scores = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(documents))
    scores = (scores.to_dense() if scores.is_sparse else scores).numpy()
    assert np.ptp(scores) > 0.01
    return scores


def test_scores_are_the_librarys_whatever_the_batches_and_the_order(case: tuple[type[Matcher], Path]) -> None:
    matcher, folder = case
    scores, model = pytest.approx(expected(*case), rel=1e-6, abs=1e-6), load(matcher, folder)
    assert model.similarity(model.encode(QUERIES, kind="query"), model.encode(DOCUMENTS)) == scores
    for batches in ({}, {"batch_size": 1}, {"token_budget": 16}):
        reranker = MatcherReranker(model, **batches)
        assert np.reshape(reranker.score(PAIRS), (len(QUERIES), -1)) == scores
        assert np.reshape(reranker.score(PAIRS[::-1])[::-1], (len(QUERIES), -1)) == scores
    assert MatcherReranker(model).score([]) == []


@pytest.mark.parametrize("case", ["splade", "inference-free", "colbert-expanded"], indirect=True)
def test_a_search_finds_the_best_of_all_documents_and_goes_on_where_it_was(
    case: tuple[type[Matcher], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal documents are in different units; of equal scores the higher id comes first."""
    matcher, folder = case
    texts = [*DOCUMENTS[:3], *(document.full_text for document in invented(documents=20).corpus.values())] * 2
    collection = invented(documents=len(texts), queries=len(QUERIES))
    ids = sorted(collection.corpus)
    for key, text in zip(ids, texts, strict=True):
        collection.corpus[key] = collection.corpus[key]._replace(title="", text=text)
    keys = list(collection.queries)
    collection.queries.update(zip(keys, QUERIES, strict=True))
    monkeypatch.setattr("unimoe.retrieval.model_search.UNIT_CHARACTERS", 400)
    scores, model, file = expected(matcher, folder, texts), load(matcher, folder), tmp_path / "best.safetensors"

    def find(**how: Any) -> Run:
        return matcher_run(model, collection, 10, file, **how)

    whole = find()
    for query, row in zip(keys, scores, strict=True):
        counted = row[row > 0] if matcher is SparseModel else row  # 0 is no shared word
        best = sorted(map(float, counted), reverse=True)[:10]
        assert list(whole[query].values()) == pytest.approx(best, rel=1e-6, abs=1e-6)
        assert list(whole[query]) == ranked(whole[query])
        assert whole[query] == pytest.approx({key: float(row[ids.index(key)]) for key in whole[query]}, rel=1e-6)
    file.unlink()
    first = list(whole[keys[0]])
    fewer = matcher_run(model, replace(collection, excluded={keys[0]: frozenset(first[:2])}), 8, file)
    assert [list(fewer[key]) for key in keys[:2]] == [first[2:], list(whole[keys[1]])[:8]]
    file.unlink()
    encode, calls = model.encode, list[int]()

    def dying(texts: Any, **how: Any) -> Any:
        calls.append(len(texts))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return encode(texts, **how)

    monkeypatch.setattr(model, "encode", dying)
    with pytest.raises(KeyboardInterrupt):
        find()
    done, calls[:] = calls[1:3], [0] * 9
    assert find() == whole
    assert sum(calls[9:]) == len(QUERIES) + len(ids) - sum(done)


def test_length_and_prefixes_are_the_configs_and_expanded_queries_are_filled_up_as_before(tmp_path: Path) -> None:
    for matcher, save in (KINDS["splade"], KINDS["inference-free"], KINDS["colbert"]):
        folder = save(tmp_path / matcher.kind)
        theirs = getattr(sentence_transformers, matcher.stated[0])(str(folder), device="cpu")
        prompted = theirs.encode_query(["rain"], prompt="passage ")
        same = theirs.similarity(prompted, theirs.encode_document(["rain rain rain"]))
        model = load(matcher, folder, query_prefix="passage ", max_length=5)
        found = model.similarity(model.encode(["rain"], kind="query"), model.encode(["rain " * 40]))
        same = same.to_dense() if same.is_sparse else same
        assert found.shape == (1, 1)
        if matcher is SparseModel:  # the documents are cut to "rain rain rain"
            assert found == pytest.approx(same.numpy(), rel=1e-6)
        else:
            assert len(model.encode(["rain " * 40])[0]) == 5
    matcher, save = KINDS["colbert-expanded"]  # documents of 40 tokens, and queries of 12
    model = load(matcher, save(tmp_path), max_length=60)
    assert len(model.encode(["rain " * 80])[0]) == 60
    assert len(model.encode(["rain"], kind="query")[0]) == 12


def test_colbert_of_pylate_before_models_had_a_type_is_read_as_the_library_does(tmp_path: Path) -> None:
    folder = KINDS["colbert"][1](tmp_path)
    settings = folder / "config_sentence_transformers.json"
    older = {key: value for key, value in json.loads(settings.read_text()).items() if key != "model_type"}
    settings.write_text(json.dumps(older | {"query_prefix": "query ", "document_prefix": "passage "}))
    wanted = expected(LateModel, folder).ravel()
    assert MatcherReranker(load(LateModel, folder)).score(PAIRS) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_a_route_without_weights_is_refused(tmp_path: Path) -> None:
    """The library would fill it up with random ones."""
    folder = KINDS["inference-free"][1](tmp_path)
    (weights,) = folder.glob("document_0_*/model.safetensors")
    tensors = load_file(weights)
    tensors.pop(next(name for name in tensors if "attention" in name))
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(DataError, match=r"no weights for .*attention"):
        load(SparseModel, folder)


def test_whatever_changes_scores_changes_the_identity(tmp_path: Path) -> None:
    for matcher, save in (KINDS["splade"], KINDS["colbert"]):
        folder = save(tmp_path / matcher.kind)

        def names(folder: Path = folder, matcher: type[Matcher] = matcher, **settings: Any) -> tuple[str, str]:
            return find_matcher(matcher, "--model", EncoderConfig(base=str(folder), **settings))[1:]

        before = names()
        assert before[0].startswith(f"{matcher.kind}:")
        assert len({before, names(max_length=8), names(query_prefix="a "), names(document_prefix="a ")}) == 4
        weights = next(folder.glob("*.safetensors"))
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(bytes(content))
        assert names()[0] != before[0]
        assert names()[1] == before[1]
