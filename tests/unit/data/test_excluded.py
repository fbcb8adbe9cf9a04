"""Documents that a collection excludes for a query, as BRIGHT does: in no candidates, before any cut; in the hash."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.embedders import WordEmbedder
from support.sources import SMALL, MtebTask

import unimoe
from unimoe.config import BM25Config, DenseConfig, EvaluationConfig
from unimoe.core.errors import DataError
from unimoe.core.trec import Run, write_run
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.languages import language_of
from unimoe.data.published import FAMILIES
from unimoe.data.source import SOURCES
from unimoe.evaluation.embedding_eval import evaluate_embedding_collection
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import Backend, dense_run, embed_collection, search
from unimoe.retrieval.first_stage import FirstStage
from unimoe.retrieval.sizes import Size, search_size

TEXTS = {"a": "red fox", "b": "red red owl", "c": "red red red", "d": "red owl owl", "e": "owl"}
EXCLUDED = {"q": ["c", "a", "N/A"], "r": ["N/A"], "x": ["a"]}


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
    assert found.oddities == "judgments of excluded documents: 1 (c)"
    assert found.left_out("q", exclude_self=True) == {"a", "c", "q"}
    assert found.left_out("r") == frozenset()


def by_words(collection: Collection, folder: Path) -> Run:
    return bm25_run(collection, 2, BM25Config())


def by_vectors(collection: Collection, folder: Path) -> Run:
    config = DenseConfig(depth=2, cutoffs=[1])
    return dense_run(WordEmbedder(["red", "fox", "owl"]), collection, config, store_dir=folder / "vectors")


def by_bits(collection: Collection, folder: Path) -> Run:
    config = DenseConfig(depth=2, cutoffs=[1], rescore_multiplier=1)
    embedded = embed_collection(WordEmbedder(["red", "fox", "owl"]), collection, config, store_dir=folder / "vectors")
    run, _ = search_size(Size(precision="binary"), embedded, config)
    return run


def by_mteb(collection: Collection, folder: Path) -> Run:
    wrapped = MTEBEncoderWrapper(WordEmbedder(["red", "fox", "owl"]))
    found = evaluate_embedding_collection(wrapped, collection).run
    return {query: dict(list(scores.items())[:2]) for query, scores in found.items()}


def by_file(collection: Collection, folder: Path) -> Run:
    write_run(folder / "x.trec", {"q": {"c": 5.0, "b": 3.0, "a": 2.0, "d": 1.0}, "r": {"e": 2.0, "d": 1.0}}, "x")
    stage = FirstStage(EvaluationConfig(first_stage=f"run:{folder / 'x.trec'}", depth=2), "toy")
    return stage.candidates(collection, collection).run


def from_python(collection: Collection, folder: Path) -> Run:
    given = {"q": {"c": 5.0, "b": 3.0, "a": 2.0, "d": 1.0}, "r": {"e": 2.0, "d": 1.0}}
    by_count = unimoe.evaluate_reranker(
        lambda pairs: [document.count(query) for query, document in pairs], collection, candidates=given, depth=2
    )
    return by_count.run


@pytest.mark.parametrize("find", [by_words, by_vectors, by_bits, by_mteb, by_file, from_python])
def test_it_leaves_every_list_of_candidates_before_the_cut(find: object, tmp_path: Path, tmp_cache: Path) -> None:
    assert callable(find)
    found = find(toy(EXCLUDED), tmp_path)
    assert {query: set(scores) for query, scores in found.items()} == {"q": {"b", "d"}, "r": {"e", "d"}}


@pytest.mark.parametrize("backend", ["torch", "faiss"])
def test_a_search_leaves_out_what_each_query_excludes(backend: Backend) -> None:
    if backend == "faiss":
        pytest.importorskip("faiss")
    vectors, ids = np.eye(8, dtype=np.float32), [f"d{row}" for row in range(8)]
    queries = np.array([np.linspace(0.9, 0.1, 8)] * 2, dtype=np.float32)
    run = search(
        queries, ["d0", "q"], vectors, ids, 3, backend=backend, excluded={"q": ["d0", "d2"]}, exclude_self=True
    )
    assert {query: list(found) for query, found in run.items()} == {"d0": ["d1", "d2", "d3"], "q": ["d1", "d3", "d4"]}


def write_folder(folder: Path, *, excluded: object = None, card: dict[str, str] | None = None) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": k, "text": v}) + "\n" for k, v in TEXTS.items()))
    record = {"_id": "q", "text": "red"} | ({} if excluded is None else {"excluded_ids": excluded})
    (folder / "queries.jsonl").write_text(json.dumps(record) + "\n")
    (folder / "qrels" / "standard.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    if card:
        (folder / "collection.json").write_text(json.dumps(card))
    return folder


class TestFolders:
    @pytest.mark.parametrize("nothing", [None, [], ["N/A"]])
    def test_a_query_lists_them_or_says_that_there_are_none(self, nothing: object, tmp_path: Path) -> None:
        write_folder(tmp_path / "x", excluded=["c", "N/A"], card={"language": "de"})
        found = load_collection(f"path:{tmp_path / 'x'}", "test")
        assert (found.excluded, found.language) == ({"q": frozenset("c")}, "de")
        plain = load_collection(f"path:{write_folder(tmp_path / 'y', excluded=nothing)}", "test")
        assert (plain.excluded, plain.language) == ({}, "en")

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
    def test_what_is_written_wrongly_is_named(self, options: dict[str, object], words: str, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "x", **options)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=words):
            load_collection(f"path:{folder}", "test")

    @pytest.mark.parametrize(
        ("name", "split", "language"),
        [("bright:pony", "standard", "en"), ("miracl:ko", "dev", "ko"), ("nanobeir:de/SciFact", "test", "de")],
    )
    def test_a_familys_set_is_read_from_the_users_folder(
        self, name: str, split: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
        write_folder(tmp_path / name.replace(":", "/"), excluded=["c"])
        found = load_collection(name, split)
        assert (found.name, found.language, found.relevance_level) == (name, language, 1)
        assert found.excluded == {"q": {"c"}}


class TestMteb:
    @pytest.fixture
    def task(self, monkeypatch: pytest.MonkeyPatch) -> MtebTask:
        import mteb

        rows = {
            "corpus": [{"id": key, "text": text} for key, text in TEXTS.items()],
            "queries": [{"id": "q", "text": "red"}, {"id": "r", "text": "owl"}],
            "relevant_docs": {"q": {"b": 1}, "r": {"e": 1}},
            "top_ranked": {"q": ["b", "d", "e"], "r": list(TEXTS)},
        }
        made = MtebTask(rows, ("standard", "long"))
        made.eval_splits = ("standard",)
        made.hf_subsets, made.metadata.hf_subsets = ["default"], ["default"]
        made.metadata.hf_subsets_to_langscripts = {"default": ["eng-Latn"]}
        monkeypatch.setattr(mteb, "get_task", lambda name: made)
        return made

    def test_what_a_list_of_all_candidates_lacks_is_excluded(self, task: MtebTask) -> None:
        found = load_collection("bright:pony", "standard")
        assert (found.name, found.excluded, found.level_stated) == ("bright:pony", {"q": frozenset("ac")}, True)

    def test_the_candidates_of_a_reranking_task_exclude_nothing(self, task: MtebTask) -> None:
        task.metadata.type = "Reranking"
        assert load_collection("mteb:Toy", "standard").excluded == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_short_names_are_tasks_subsets_and_languages_of_mteb(family: str) -> None:
    import mteb

    source = SOURCES[family]
    for name, written in FAMILIES[family].items():
        task, _, subset = written.partition(":")
        card = mteb.get_task(task).metadata
        assert language_of(card.hf_subsets_to_langscripts[subset or "default"]) == (subset or "en")
        assert source.default_split(name) in card.eval_splits
        assert source.mteb_task(name) == task
