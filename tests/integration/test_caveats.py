"""What is known of a model, a collection or judgments is said by every command and function that shows their scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import mteb_tasks
from support.experiments import tiny_experiment, zero_shot
from support.mteb_tasks import RANKED, Suite
from support.scripts import Done, call_unimoe, evaluate, result_of, successful
from support.tiny_models import (
    save_tiny_cross_encoder,
    save_tiny_encoder,
    save_tiny_lora,
    save_tiny_mlm,
    save_tiny_model,
    save_tiny_splade,
)
from support.toy_collections import invented, write_invented

import unimoe
from unimoe.analysis.parity import parity
from unimoe.core.trec import write_qrels
from unimoe.evaluation.reranking_eval import evaluate_beir
from unimoe.models.seen_queries import SeenQueries
from unimoe.results import run_path

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

TOY = invented(documents=15, queries=8, name="toy")
TRAINED = "these queries trained the checkpoint"
FLOAT32 = ("--set", "model.dtype=float32")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection, and models that have seen its queries."""
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "toy", TOY)
    save_tiny_splade(folder / "sparse", save_tiny_mlm(folder / "mlm"))
    seen = SeenQueries.of([*TOY.queries.values(), *RANKED.queries.values()])
    for model in (save_tiny_cross_encoder(folder / "ce"), save_tiny_encoder(folder / "dense"), folder / "sparse"):
        seen.write(model)
    return folder


@pytest.fixture(autouse=True)
def _here(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    monkeypatch.setenv("UNIMOE_DATA", str(data))


def said(done: Done) -> list[str]:
    """The caveats on stderr, each once however often it is said."""
    return [line.removeprefix("caveat: ") for line in successful(done).stderr.splitlines() if line[:8] == "caveat: "]


def retrieve(folder: Path, base: str) -> Done:
    given = ("--dataset", "toy", "--output-dir", folder, "--set", "encoder.dtype=float32", "--set")
    return call_unimoe("retrieve", *given, "encoder.pooling=auto", "--encoder", base, "--before", "bm25")


def test_evaluate_says_what_a_model_has_seen_when_it_scores_and_when_it_is_asked_again(
    data: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        done = evaluate(data, "--model", "cross-encoder:ce", "--dataset", "toy", "--output-dir", tmp_path, *FLOAT32)
        assert said(done) == [f"ce on toy: {TRAINED}"]


def test_what_is_left_out_is_said_once_for_all_systems(data: Path, tmp_path: Path) -> None:
    given = ("--model", "cross-encoder:ce", "--dataset", "toy", "--output-dir", tmp_path, "--max-queries", "3")
    cut = "--max-queries 3: 8 queries are judged"
    assert said(evaluate(data, *given, *FLOAT32)) == [cut, f"ce on toy: {TRAINED}"]
    assert result_of(tmp_path, "bm25").caveats == [cut]
    assert result_of(tmp_path, "ce").caveats == [cut, TRAINED]


@pytest.mark.parametrize("base", ["sparse:sparse", "dense"])
def test_a_retriever_of_any_kind_says_what_it_has_seen(tmp_path: Path, base: str) -> None:
    done = retrieve(tmp_path, base)
    name = base.rpartition(":")[2]
    assert f"{name} on toy: {TRAINED}" in said(done)
    for arm in (name, f"{name}+bm25"):
        assert result_of(tmp_path, arm, task="retrieval").caveats == [TRAINED]
    assert f"Caveat: {name}, {name}+bm25: {TRAINED}" in " ".join(done.stdout.split())


@pytest.mark.parametrize("stage", ["sparse", "run"])
def test_candidates_of_a_model_that_has_seen_the_queries_are_a_caveat_of_their_reranking(
    data: Path, tmp_path: Path, stage: str
) -> None:
    settings = ["evaluation.first_stage=sparse", "evaluation.sparse.base=sparse"]
    if stage == "run":
        successful(retrieve(tmp_path / "found", "dense"))
        settings = [f"evaluation.first_stage=run:{run_path(tmp_path / 'found', 'dense', None, 'retrieval', 'toy')}"]
    save_tiny_cross_encoder(tmp_path / "fresh")
    given = [word for setting in settings for word in ("--set", setting)]
    model = ("--model", f"cross-encoder:{tmp_path / 'fresh'}", "--output-dir", tmp_path / "out")
    assert said(evaluate(data, *model, "--dataset", "toy", *given, *FLOAT32)) == [f"first stage: {TRAINED}"]
    assert result_of(tmp_path / "out", "fresh").caveats == [f"first stage: {TRAINED}"]
    if stage == "run":
        run = Path(settings[0].partition("run:")[2])
        found = unimoe.evaluate_reranker(lambda pairs: [1.0 * len(d) for _, d in pairs], TOY, candidates=run)
        assert [check.line for check in found.checks if check.weight == "caveat"] == [f"first stage: {TRAINED}"]


def test_tasks_of_mteb_are_like_any_other_collection(tmp_path: Path) -> None:
    system = zero_shot(tiny_experiment(tmp_path / "experiment"))
    assert system.model
    known = replace(system, model=replace(system.model, seen=SeenQueries.of(RANKED.queries.values())))
    for _ in range(2):  # the second reads what the first wrote
        results = Suite(tmp_path, known).run([mteb_tasks.InventedReranking(), mteb_tasks.InventedSTS()])
        found = {(r.task, r.dataset): r.caveats for r in results}
        line = f"zero_shot on InventedReranking: {TRAINED}"
        assert found.pop(("embedding", "InventedSTS")) == [], "it has no queries"
        assert [*found.values()] == [[line], [line]]
    assert unimoe.load_all_results(tmp_path).caveats == (line,)
    run = run_path(tmp_path, "zero_shot", None, "embedding", "InventedReranking")
    scores = unimoe.score_run(RANKED.qrels, run)
    assert [check.line for check in scores.checks if TRAINED in check.line] == [line], "once"


def test_functions_say_what_a_model_has_seen_on_stderr_and_in_what_they_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = unimoe.evaluate_encoder(unimoe.load_encoder("dense", device="cpu"), TOY, max_queries=3)
    lines = [TRAINED, "--max-queries 3: 8 queries are judged"]
    assert [check.line for check in found.checks if check.weight == "caveat"] == lines
    assert all(f"caveat: {line}" in stderr for stderr in [capsys.readouterr().err] for line in lines)
    assert f"Caveat: {TRAINED}" in str(found)
    found.save(tmp_path / "kept")
    kept = json.loads((tmp_path / "kept" / "scores.json").read_text())
    assert [check["line"] for check in kept["checks"] if check["weight"] == "caveat"] == lines
    assert f"Caveat: {TRAINED}" in found.table().to_markdown()


def test_a_language_model_with_an_adapter_says_what_the_adapter_has_seen(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "base")
    adapter = save_tiny_lora(base, tmp_path / "adapter")
    SeenQueries.of(dev=TOY.queries.values(), train=[]).write(adapter)
    model = unimoe.load_model(base, adapter=adapter, device="cpu")
    chose = "these queries chose the checkpoint"
    assert chose in [check.line for check in unimoe.evaluate_reranker(model, TOY, depth=2).checks]
    outcome = evaluate_beir(model, None, tiny_experiment(tmp_path / "experiment"), "toy", max_queries=2)
    assert outcome.notes[:2] == ["--max-queries 2: 8 queries are judged", chose]


def test_parity_says_it_of_each_side(data: Path, tmp_path: Path) -> None:
    save_tiny_cross_encoder(tmp_path / "fresh")
    done = call_unimoe(
        "parity", "cross-encoder:ce", f"cross-encoder:{tmp_path / 'fresh'}", "--dataset", "toy", "--output-dir",
        tmp_path / "out", *FLOAT32,
    )  # fmt: skip
    assert f"caveat         ce: {TRAINED}" in successful(done).stdout
    sides = sorted(path for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert [one.caveats for one in parity(*sides)] == [(f"ce: {TRAINED}",)]
    assert json.loads(successful(call_unimoe("parity", *sides, "--json")).stdout)["datasets"][0]["caveats"] == [
        f"ce: {TRAINED}"
    ]


def test_judgments_by_a_model_that_has_seen_the_queries_are_a_caveat_of_what_they_judge(
    data: Path, tmp_path: Path
) -> None:
    successful(retrieve(tmp_path / "found", "dense"))
    dense, bm25 = (run_path(tmp_path / "found", arm, None, "retrieval", "toy") for arm in ("dense", "bm25"))
    copies = [tmp_path / "dense.trec", tmp_path / "bm25.trec"]
    for run, copied in zip((dense, bm25), copies, strict=True):
        copied.write_text(run.read_text())
    qrels = tmp_path / "llm.qrels"
    done = call_unimoe("label", "--runs", *copies, "--dataset", "path:toy", "--model", "cross-encoder:ce",
                       "--output", qrels, "--set", "thresholds=[0.4]")  # fmt: skip
    assert said(done) == [f"ce: {TRAINED}"]
    line = f"llm.qrels, judged by cross-encoder:ce: {TRAINED}"
    assert line in successful(call_unimoe("evaluate-run", copies[0], qrels)).stderr
    compared = successful(call_unimoe("compare", "--systems", *copies, "--qrels", qrels, "--json"))
    assert line in json.loads(compared.stdout)["caveats"]
    few = dict([*TOY.qrels.items()][:4])
    write_qrels(tmp_path / "few.qrels", few)
    by_both = ("--qrels", tmp_path / "few.qrels", "--predicted-qrels", qrels, "--json")
    compared = successful(call_unimoe("compare", "--systems", *copies, *by_both))
    assert line in json.loads(compared.stdout)["caveats"]


def test_labels_to_train_on_leave_out_the_texts_of_the_test_split(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_invented(folder, TOY)
    queries = folder / "queries.jsonl"
    first, *_ = TOY.queries.values()
    queries.write_text(queries.read_text() + json.dumps({"_id": "again", "text": f" {first.upper()} "}) + "\n")
    lines = (folder / "qrels" / "test.tsv").read_text().splitlines(keepends=True)
    (folder / "qrels" / "dev.tsv").write_text(f"{lines[0]}again\td00\t1\nq1\td01\t1\nq2\td02\t1\n")
    (folder / "qrels" / "test.tsv").write_text("".join(line for line in lines if line[:3] not in ("q1\t", "q2\t")))
    given = (
        "--dataset",
        f"path:{folder}",
        "--set",
        "split=dev",
        "--set",
        "test_split=test",
        "--set",
        "thresholds=[0.1]",
    )
    done = call_unimoe("label", *given, "--model", "cross-encoder:ce", "--output-dir", tmp_path / "made", "--set",
                       "sampling.min_words=1")  # fmt: skip
    assert "1 queries left out, whose texts are in test_split under other ids" in done.stderr
    made: Any = unimoe.load_collection(f"path:{tmp_path / 'made'}", "train")
    assert made.qrels.keys() == {"q1", "q2"}
