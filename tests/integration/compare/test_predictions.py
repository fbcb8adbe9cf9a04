"""``unimoe compare --predictions``: what mteb kept of models, judged by each task's own data and main measure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import pytest
from support.mteb_tasks import RANKED, InventedReranking, InventedRetrieval, InventedSTS, loaded
from support.runs import compare, words_of
from support.scripts import assert_refused, successful
from support.tiny_models import save_static_encoder

from unimoe.checks import Check
from unimoe.core.trec import write_qrels
from unimoe.data.catalog import load_collection

MODELS = ("org/first", "org/second")
KINDS = (InventedRetrieval, InventedReranking)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, str], float]]:
    """Folders of predictions of two models, as mteb writes them, and the main scores that it gives."""
    folder, scores = tmp_path_factory.mktemp("predictions"), {}
    for seed, name in enumerate(MODELS):
        path = str(save_static_encoder(folder / f"model{seed}", seed=seed))
        model: Any = mteb.SentenceTransformerEncoderWrapper(path, device="cpu")
        model.mteb_model_meta = model.mteb_model_meta.model_copy(update={"name": name})
        for kind in KINDS:
            done = mteb.evaluate(
                *(model, loaded(kind)),
                cache=None,
                co2_tracker=False,
                show_progress_bar=False,
                prediction_folder=folder / name.replace("/", "-"),
            )
            (result,) = done.task_results
            scores[name, result.task_name] = result.scores["test"][0]["main_score"]
    return folder, scores


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mteb know the invented tasks, whose data it loads."""
    tasks = {kind.metadata.name: kind for kind in (*KINDS, InventedSTS)}
    monkeypatch.setattr(mteb, "get_task", lambda name, **_: tasks[name]())


def folders(folder: Path) -> list[Path]:
    return [folder / name.replace("/", "-") for name in MODELS]


@pytest.mark.usefixtures("known")
def test_every_model_on_every_task_has_mtebs_own_main_score(
    said: tuple[Path, dict[tuple[str, str], float]], tmp_path: Path
) -> None:
    folder, scores = said
    done = successful(compare("--predictions", *folders(folder), "--json"))
    found = json.loads(done.stdout)
    metrics = {key: about["metric"] for key, about in found["datasets"].items()}
    assert metrics == {"retrieval/InventedReranking": "map", "retrieval/InventedRetrieval": "ndcg@10"}
    means = {(row["system"], row["dataset"]): row["mean"] for row in found["scores"]}
    assert means == {
        (name.partition("/")[2], task): pytest.approx(mean, abs=1e-5) for (name, task), mean in scores.items()
    }
    assert {run["seed"] for run in found["runs"]} == {None}
    table = successful(
        compare("--predictions", *folders(folder), "--baseline", "first", "--output-dir", tmp_path / "out")
    )
    assert "first" in words_of(table)
    assert (tmp_path / "out" / "first" / "seed_none").is_dir()


def test_a_task_that_mteb_lacks_takes_judgments_by_hand(
    said: tuple[Path, dict[tuple[str, str], float]], tmp_path: Path
) -> None:
    folder, scores = said
    write_qrels(tmp_path / "q", RANKED.qrels)
    given = ("--dataset", f"InventedRetrieval={tmp_path / 'q'}")
    done = compare("--predictions", *folders(folder), *given, "--json")
    assert done.returncode == 4, done.stderr
    assert "give its judgments by --dataset InventedReranking=QRELS" in done.stderr
    assert "done, without 1 part (InventedReranking)" in done.stderr
    means = {row["system"]: row["mean"] for row in json.loads(done.stdout)["scores"]}
    assert means["first"] == pytest.approx(scores["org/first", "InventedRetrieval"], abs=1e-5)
    both = [*given, f"InventedReranking={tmp_path / 'q'}"]
    assert compare("--predictions", *folders(folder), *both).returncode == 0


@pytest.mark.usefixtures("known")
def test_what_is_no_prediction_is_refused_in_one_line(
    said: tuple[Path, dict[tuple[str, str], float]], tmp_path: Path
) -> None:
    folder, _ = said
    assert_refused(compare("--predictions", tmp_path / "none"), 3, "no such folder")
    assert_refused(compare("--predictions", tmp_path), 3, "no file TASK_predictions.json")
    assert_refused(compare("--predictions", *folders(folder), "--systems", "a.trec"), 2, "--systems")
    assert_refused(compare("--predictions", *folders(folder), "--baseline", "frist"), 2, "first")
    assert_refused(compare("--predictions", folders(folder)[0]), 2, "only first")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "InventedRetrieval_predictions.json").write_text("{}")
    done = compare("--predictions", tmp_path / "broken")
    assert_refused(done, 3, "no predictions that can be judged", silent=False)
    assert "no predictions of mteb" in done.stderr


@pytest.mark.usefixtures("known")
def test_what_was_found_of_a_tasks_data_is_a_caveat_of_the_comparison(
    said: tuple[Path, dict[tuple[str, str], float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Check("empty documents", "caveat", "ranked: empty documents: 9 of 18")
    with_check = lambda *name: replace(load_collection(*name), checks=(found,))  # noqa: E731
    monkeypatch.setattr("unimoe.evaluation.predictions.load_collection", with_check)
    done = successful(compare("--predictions", *folders(said[0]), "--json"))
    assert json.loads(done.stdout)["caveats"][0] == found.line
