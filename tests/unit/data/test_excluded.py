"""Documents that a collection excludes for a query, as BRIGHT does: in no candidates, before any cut; in the hash."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import pytest
from support.embedders import WordEmbedder
from support.toy_collections import SMALL, MtebTask

import unimoe
from unimoe.config import BM25Config, DenseConfig, EvaluationConfig
from unimoe.core.errors import DataError
from unimoe.core.trec import Run, write_run
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.languages import language_of
from unimoe.data.published import FAMILIES
from unimoe.data.source import SOURCES
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.tasks.embed import evaluate_embedding_collection
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import dense_run, embed_collection
from unimoe.retrieval.first_stage import FirstStage
from unimoe.retrieval.sizes import Size, search_size

TEXTS = {"a": "red fox", "b": "red red owl", "c": "red red red", "d": "red owl owl", "e": "owl"}
EXCLUDED = {"q": ["c", "a", "N/A"], "r": ["N/A"], "x": ["a"]}
GIVEN = {"q": {"c": 5.0, "b": 3.0, "a": 2.0, "d": 1.0}, "r": {"e": 2.0, "d": 1.0}}


def toy(excluded: dict[str, list[str]] | None = None) -> Collection:
    documents = [(key, Document("", text)) for key, text in TEXTS.items()]
    qrels = {"q": {"b": 1, "c": 1}, "r": {"e": 1}}
    return assemble("toy", "test", documents, [("q", "red"), ("r", "owl")], qrels, excluded=excluded)


def test_hashes_of_collections_that_exclude_nothing_are_as_before() -> None:
    assert (SMALL.content_hash, SMALL.queries_hash) == ("8da584bd1edd70f0", "5b09bd2ca3fe05ac")
    assert toy({"r": ["N/A"], "x": ["a"]}).content_hash == toy().content_hash
    several = [toy(), toy({"q": ["a"]}), toy({"q": ["d"]}), toy({"q": ["a", "d"]}), toy({"r": ["a"]})]
    assert len({one.content_hash for one in several}) == len(several)
    assert len({one.queries_hash for one in several}) == len(several), "by which runs are kept"
    assert replace(toy(), language="de").content_hash != toy().content_hash


def test_an_excluded_document_is_never_relevant_and_nothing_else_is_dropped() -> None:
    found = toy(EXCLUDED)
    assert found.excluded == {"q": {"a", "c"}}
    assert found.qrels == {"q": {"b": 1}, "r": {"e": 1}}
    assert [check.line for check in found.checks] == ["toy: judgments of excluded documents: 1 (c)"]
    assert replace(found, excludes_self=True).left_out("q") == {"a", "c", "q"}
    assert found.left_out("r") == frozenset()


def embedder() -> WordEmbedder:
    return WordEmbedder(["red", "fox", "owl"])


def by_words(collection: Collection, folder: Path) -> Run:
    return bm25_run(collection, 2, BM25Config())


def by_vectors(collection: Collection, folder: Path) -> Run:
    return dense_run(embedder(), collection, DenseConfig(depth=2, cutoffs=[1]), store_dir=folder / "vectors")


def by_bits(collection: Collection, folder: Path) -> Run:
    config = DenseConfig(depth=2, cutoffs=[1], rescore_multiplier=1)
    embedded = embed_collection(embedder(), collection, config, store_dir=folder / "vectors")
    return search_size(Size(precision="binary"), embedded, config)[0]


def by_mteb(collection: Collection, folder: Path) -> Run:
    found = evaluate_embedding_collection(MTEBEncoderWrapper(embedder()), collection).run
    return {query: dict(list(scores.items())[:2]) for query, scores in found.items()}


def by_file(collection: Collection, folder: Path) -> Run:
    write_run(folder / "x.trec", GIVEN, "x")
    stage = FirstStage(EvaluationConfig(first_stage=f"run:{folder / 'x.trec'}", depth=2), "toy")
    return stage.candidates(collection, collection).run


def from_python(collection: Collection, folder: Path) -> Run:
    def by_count(pairs: list[tuple[str, str]]) -> list[float]:
        return [document.count(query) for query, document in pairs]

    return unimoe.evaluate_reranker(by_count, collection, candidates=GIVEN, depth=2).run


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize("find", [by_words, by_vectors, by_bits, by_mteb, by_file, from_python])
def test_it_leaves_every_list_of_candidates_before_the_cut(
    find: Callable[[Collection, Path], Run], tmp_path: Path
) -> None:
    found = find(toy(EXCLUDED), tmp_path)
    assert {query: set(scores) for query, scores in found.items()} == {"q": {"b", "d"}, "r": {"e", "d"}}


def write_folder(folder: Path, *, excluded: object = None, card: dict[str, str] | None = None) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": k, "text": v}) + "\n" for k, v in TEXTS.items()))
    record = {"_id": "q", "text": "red"} | ({} if excluded is None else {"excluded_ids": excluded})
    (folder / "queries.jsonl").write_text(json.dumps(record) + "\n")
    for split in ("standard", "dev", "test"):
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    if card:
        (folder / "collection.json").write_text(json.dumps(card))
    return folder


@pytest.mark.parametrize(
    ("given", "excluded"), [(["c", "N/A"], {"q": frozenset("c")}), (None, {}), ([], {}), (["N/A"], {})]
)
@pytest.mark.parametrize("language", ["en", "de"])
def test_a_query_lists_them_or_says_that_there_are_none_and_a_card_states_the_language(
    given: object, excluded: object, language: str, tmp_path: Path
) -> None:
    card = None if language == "en" else {"language": language}
    found = load_collection(f"path:{write_folder(tmp_path / 'x', excluded=given, card=card)}", "test")
    assert (found.excluded, found.language) == (excluded, language)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"excluded": "c"}, r"queries.jsonl:1: excluded_ids is 'c'; write a list such as \[\"d1\", \"d2\"\]"),
        ({"excluded": ["c", None]}, r"queries.jsonl:1: excluded_ids is \['c', None\]; write a list"),
        ({"excluded": {"c": 1}}, "excluded_ids is"),
        ({"card": {"language": "jp"}}, r"collection.json.*language.*no language 'jp'.*; write one of ar, bn"),
        ({"card": {"language": "german"}}, "no language 'german'"),
    ],
)
def test_what_is_written_wrongly_in_a_folder_is_named(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "x", **options)
    with pytest.raises(DataError, match=words):
        load_collection(f"path:{folder}", "test")


@pytest.mark.parametrize(
    ("name", "split", "language"),
    [("bright:pony", "standard", "en"), ("miracl:ko", "dev", "ko"), ("nanobeir:de/SciFact", "test", "de")],
)
def test_a_familys_set_is_read_from_the_users_folder(
    name: str, split: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    write_folder(tmp_path / name.replace(":", "/"), excluded=["c"])
    found = load_collection(name, split)
    assert (found.name, found.language, found.relevance_level) == (name, language, 1)
    assert found.excluded == {"q": {"c"}}


def test_of_mtebs_sets_what_a_list_of_all_candidates_lacks_is_excluded_unless_they_are_to_be_reranked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {
        "corpus": [{"id": key, "text": text} for key, text in TEXTS.items()],
        "queries": [{"id": "q", "text": "red"}, {"id": "r", "text": "owl"}],
        "relevant_docs": {"q": {"b": 1}, "r": {"e": 1}},
        "top_ranked": {"q": ["b", "d", "e"], "r": list(TEXTS)},
    }
    task = MtebTask(rows, ("standard", "long"))
    task.eval_splits = ("standard",)
    task.hf_subsets, task.metadata.hf_subsets = ["default"], ["default"]
    task.metadata.hf_subsets_to_langscripts = {"default": ["eng-Latn"]}
    monkeypatch.setattr(mteb, "get_task", lambda name: task)
    found = load_collection("bright:pony", "standard")
    assert (found.name, found.excluded, found.level_stated) == ("bright:pony", {"q": frozenset("ac")}, True)
    task.metadata.type = "Reranking"
    assert load_collection("mteb:Toy", "standard").excluded == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_short_names_are_tasks_subsets_and_languages_of_mteb(family: str) -> None:
    source = SOURCES[family]
    for name, written in FAMILIES[family].items():
        task, _, subset = written.partition(":")
        card = mteb.get_task(task).metadata
        assert language_of(card.hf_subsets_to_langscripts[subset or "default"]) == (subset or "en")
        assert source.default_split(name) in card.eval_splits
        assert source.mteb_task(name) == task
