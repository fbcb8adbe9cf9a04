"""Encoders against sentence-transformers in float32: dense ones, sparse ones and late interaction."""

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
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from support.tiny_models import (
    POSITIONS,
    load,
    save_sentence_transformer,
    save_static_encoder,
    save_tiny_colbert,
    save_tiny_decoder,
    save_tiny_encoder,
    save_tiny_inference_free,
    save_tiny_mlm,
    save_tiny_splade,
    save_word_encoder,
)
from support.toy_collections import invented
from transformers import AutoModel, AutoTokenizer

from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.core.errors import DataError
from unimoe.core.trec import Run, ranked
from unimoe.data.collection import Collection, Document
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.matcher import LateModel, Matcher, MatcherReranker, SparseModel, find_matcher, load_matcher
from unimoe.retrieval.model_search import matcher_run

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "the cat sat on the mat",
    "",
    " ",
    "a",
    "a dog ran over the roof of the old house and sat on the mat",
    "ein Haus, une maison, 집, 家, бабушка, \u00e9\u0301 e\u0301",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 and symbols \u2211\u222b \u00b5g/mL",
    "[CLS] [MASK] tokens [SEP] in a text [PAD]",
    "UPPER lower MiXeD 1234.5e-6 snake_case",
    "rain " * 1000,
    "word" * 300,
    "line one\nline two\tand a tab",
]
SHORT = [text for text in TEXTS if len(text) < 60]
KNOWN = ["the cat sat on the mat", "a dog", "rain " * 30, "an old house and a roof of it"]
"""Texts with a word that every tokenizer knows."""


def sentence_transformer(folder: Path) -> Any:
    return SentenceTransformer(str(folder), device="cpu")


def expected(folder: Path, texts: list[str]) -> Any:
    vectors = sentence_transformer(folder).encode(texts)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.shape == theirs.shape
    assert (ours * theirs).sum(axis=1).min() > 0.99999
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_bundled_model_has_the_vectors_of_sentence_transformers_at_both_lengths() -> None:
    encoder, peer = load(BUNDLED_ENCODER), sentence_transformer(bundled_encoder_folder(BUNDLED_ENCODER))
    assert encoder.max_length == 256
    assert_same(encoder.encode(TEXTS), peer.encode(TEXTS))
    peer.max_seq_length = 16
    assert_same(load(BUNDLED_ENCODER, max_length=16).encode(TEXTS), peer.encode(TEXTS))


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "mean"), ("xlm-roberta", "cls"), ("mpnet", "last"), ("modernbert", "mean")]
)
def test_pooling_is_the_mean_the_first_or_the_last_state_of_one_text_at_a_time(
    tmp_path: Path, kind: str, pooling: str
) -> None:
    folder = save_tiny_encoder(tmp_path / kind, kind)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    by_hand = []
    for text in SHORT:
        with torch.no_grad():
            states = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        vector = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling].numpy()
        by_hand.append(vector / np.linalg.norm(vector))
    np.testing.assert_allclose(load(folder, pooling=pooling).encode(SHORT), np.stack(by_hand), atol=1e-5)


def dense(folder: Path) -> Path:
    torch.manual_seed(0)
    modules = [Dense(64, 24), Normalize(), Dense(24, 8, bias=False, activation_function=torch.nn.Identity())]
    return save_sentence_transformer(save_tiny_encoder(folder / "bare"), folder / "st", *modules)


def pooled(pooling: Any, kind: str) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        # Room for the positions that RoBERTa and MPNet reserve, which sentence-transformers does not see.
        bare = save_tiny_encoder(folder / "bare", kind, max_position_embeddings=POSITIONS + 2)
        return save_sentence_transformer(bare, folder / "st", pooling=pooling)

    return save


FOLDERS: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    **{
        f"bert {pooling}": (pooled(pooling, "bert"), TEXTS)
        for pooling in ("lasttoken", "weightedmean", ("cls", "mean_sqrt_len_tokens", "max"))
    },
    "mpnet mean": (pooled("mean", "mpnet"), TEXTS),
    "dense and normalize": (dense, TEXTS),
    "cut to truncate_dim": (
        lambda at: save_sentence_transformer(save_tiny_encoder(at / "bare"), at / "st", truncate_dim=20),
        TEXTS,
    ),
    "static": (save_static_encoder, KNOWN),
    "words": (save_word_encoder, KNOWN),
    "causal": (
        lambda at: save_sentence_transformer(save_tiny_decoder(at / "bare"), at / "st", pooling="lasttoken"),
        SHORT,
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_sentence_transformers_has_its_vectors(tmp_path: Path, name: str) -> None:
    save, texts = FOLDERS[name]
    folder = save(tmp_path)
    vectors = load(folder).encode(texts)
    assert_same(vectors, expected(folder, texts))
    if name == "cut to truncate_dim":
        assert vectors.shape == (len(texts), 20)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_are_those_of_encode_query_and_encode_document_and_may_be_left_out_of_the_pooling(
    tmp_path: Path, include_prompt: bool
) -> None:
    prompts = {"query": "query: a ", "document": "passage ", "other": "list "}
    bare = save_tiny_encoder(tmp_path / "bare")
    folder = save_sentence_transformer(bare, tmp_path / "st", prompts=prompts, default_prompt_name="other")
    pooling = folder / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": include_prompt}))
    ours, peer = load(folder), sentence_transformer(folder)
    texts = TEXTS[3:]
    for kind, theirs in (("query", peer.encode_query), ("document", peer.encode_document), ("plain", peer.encode)):
        assert_same(ours.encode(texts, kind=kind), theirs(texts, normalize_embeddings=True))  # type: ignore[arg-type]


def test_a_model_of_dot_products_ranks_by_them_and_one_of_distances_is_refused(tmp_path: Path) -> None:
    """As TAS-B, Contriever and multi-qa-mpnet-base-dot do: vectors keep their lengths."""
    bare = save_tiny_encoder(tmp_path / "bare")
    folder = save_sentence_transformer(bare, tmp_path / "st", similarity_fn_name="dot")
    ours, theirs = load(folder), sentence_transformer(folder)
    vectors = ours.encode(TEXTS)
    np.testing.assert_allclose(vectors, theirs.encode(TEXTS), atol=5e-5)
    assert np.ptp(np.linalg.norm(vectors, axis=1)) > 1e-3
    scores = MTEBEncoderWrapper(ours).similarity(vectors[:4], vectors[4:])
    torch.testing.assert_close(scores, theirs.similarity(vectors[:4], vectors[4:]))
    assert ours.prompt_name != load(bare).prompt_name
    folder = save_sentence_transformer(bare, tmp_path / "euclidean", similarity_fn_name="euclidean")
    with pytest.raises(DataError, match="similarity_fn_name is euclidean, and dense search compares by cosine"):
        load(folder)


def test_routes_of_queries_and_documents(tmp_path: Path) -> None:
    whole = sentence_transformer(save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "st"))
    static = sentence_transformer(save_static_encoder(tmp_path / "static"))
    router = Router.for_query_document([static[0], Dense(24, 64)], [whole[0], whole[1]])
    SentenceTransformer(modules=[router], device="cpu").save_pretrained(str(tmp_path / "router"))
    ours, peer = load(tmp_path / "router"), sentence_transformer(tmp_path / "router")
    assert_same(ours.encode(KNOWN, kind="query"), peer.encode_query(KNOWN, normalize_embeddings=True))
    assert_same(ours.encode(KNOWN, kind="document"), peer.encode_document(KNOWN, normalize_embeddings=True))


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


def load_kind(matcher: type[Matcher], folder: Path, **settings: Any) -> Matcher:
    config = EncoderConfig(base=str(folder), **settings)
    return load_matcher(matcher, "--model", config, torch.device("cpu"), torch.float32)


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[type[Matcher], Path]:
    matcher, save = KINDS[request.param]
    return matcher, save(tmp_path)


def their_scores(matcher: type[Matcher], folder: Path, documents: list[str] = DOCUMENTS) -> Any:
    theirs = getattr(sentence_transformers, matcher.stated[0])(str(folder), device="cpu")
    scores = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(documents))
    scores = (scores.to_dense() if scores.is_sparse else scores).numpy()
    assert np.ptp(scores) > 0.01
    return scores


def test_scores_are_the_librarys_whatever_the_batches_and_the_order(case: tuple[type[Matcher], Path]) -> None:
    matcher, folder = case
    scores, model = pytest.approx(their_scores(*case), rel=1e-5, abs=1e-5), load_kind(matcher, folder)
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
    corpus = {f"d{number:02}": Document("", text) for number, text in enumerate(texts)}
    collection = Collection("toy", "test", corpus, {f"q{n}": query for n, query in enumerate(QUERIES)}, {})
    ids, keys = list(corpus), list(collection.queries)
    monkeypatch.setattr("unimoe.retrieval.model_search.UNIT_CHARACTERS", 400)
    scores, model, file = (
        their_scores(matcher, folder, texts),
        load_kind(matcher, folder),
        tmp_path / "best.safetensors",
    )

    def find(**how: Any) -> Run:
        return matcher_run(model, collection, 10, file, **how)

    whole = find()
    for query, row in zip(keys, scores, strict=True):
        counted = row[row > 0] if matcher is SparseModel else row  # 0 is no shared word
        best = sorted(map(float, counted), reverse=True)[:10]
        assert list(whole[query].values()) == pytest.approx(best, rel=1e-5, abs=1e-5)
        assert list(whole[query]) == ranked(whole[query])
        assert whole[query] == pytest.approx({key: float(row[ids.index(key)]) for key in whole[query]}, rel=1e-5)
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
        model = load_kind(matcher, folder, query_prefix="passage ", max_length=5)
        found = model.similarity(model.encode(["rain"], kind="query"), model.encode(["rain " * 40]))
        same = same.to_dense() if same.is_sparse else same
        assert found.shape == (1, 1)
        if matcher is SparseModel:  # the documents are cut to "rain rain rain"
            assert found == pytest.approx(same.numpy(), rel=1e-5)
        else:
            assert len(model.encode(["rain " * 40])[0]) == 5
    matcher, save = KINDS["colbert-expanded"]  # documents of 40 tokens, and queries of 12
    model = load_kind(matcher, save(tmp_path), max_length=60)
    assert len(model.encode(["rain " * 80])[0]) == 60
    assert len(model.encode(["rain"], kind="query")[0]) == 12


def test_colbert_of_pylate_before_models_had_a_type_is_read_as_the_library_does(tmp_path: Path) -> None:
    folder = KINDS["colbert"][1](tmp_path)
    settings = folder / "config_sentence_transformers.json"
    older = {key: value for key, value in json.loads(settings.read_text()).items() if key != "model_type"}
    settings.write_text(json.dumps(older | {"query_prefix": "query ", "document_prefix": "passage "}))
    wanted = their_scores(LateModel, folder).ravel()
    assert MatcherReranker(load_kind(LateModel, folder)).score(PAIRS) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_a_route_without_weights_is_refused(tmp_path: Path) -> None:
    """The library would fill it up with random ones."""
    folder = KINDS["inference-free"][1](tmp_path)
    (weights,) = folder.glob("document_0_*/model.safetensors")
    tensors = load_file(weights)
    tensors.pop(next(name for name in tensors if "attention" in name))
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(DataError, match=r"no weights for .*attention"):
        load_kind(SparseModel, folder)


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
