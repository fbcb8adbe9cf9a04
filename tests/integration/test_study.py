"""Studies as one YAML file: of a family's settings chosen on dev, and of the arms of an experiment."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.experiments import tiny_experiment_dict, write_tiny_experiment
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful
from support.studies import encoder_study, loss_study, toy_keys

from unimoe.analysis.gates.definitions import load_gates
from unimoe.config.files import load_config
from unimoe.core.errors import DataError
from unimoe.core.trec import ranked, read_qrels, read_run
from unimoe.results import read_result, result_path
from unimoe.results.folder import load_all_results
from unimoe.studies.biencoder.checkpoint import read_biencoder
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.family import BiEncoderFamily
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study
from unimoe.studies.common.table import study_table

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


def run(file: Path, *more: str | Path) -> Done:
    return call_unimoe("study", file, "--device", "cpu", "--threads", "1", *more)


@pytest.mark.parametrize("shared", [True, False])
def test_a_gate_that_has_its_label_ends_the_study(shared: bool, tmp_path: Path) -> None:
    """Nothing is trained so well in four steps that it beats BM25 by .9, so the first look decides."""
    gate = {"system": "listnet", "baseline": "bm25", "margin": 0.9}
    of_study, own = {"looks": [3, 5], "gates": {"g": gate}}, {"gates": {"g": {**gate, "looks": [3, 5]}}}
    done = successful(
        run(loss_study(tmp_path, seeds=5, grid={"learning_rate": [1e-3]}, **(of_study if shared else own)))
    )
    assert "Every gate has its label: seeds 3, 4 would change nothing" in done.stderr
    assert load_all_results(tmp_path / "out").seeds("softmax", "reranking/topics") == (0, 1, 2)
    assert "gate: " in done.stdout
    assert load_gates(tmp_path / "out" / "gates.yaml").gates["g"].looks == [3, 5]
    again = run(tmp_path / "study.yaml")
    assert again.stdout == done.stdout


def test_the_result_says_which_study_it_is_of(tmp_path: Path) -> None:
    file = loss_study(tmp_path, caveats=["toy"])
    done = successful(run(file, "--plan"))
    assert "softmax: 2 trainings on dev and 2 that are tested" in done.stdout
    assert "In all about" in done.stdout
    assert not (tmp_path / "out").exists(), "a plan trains nothing"
    successful(run(file, "--seeds", "1"))
    (path,) = (tmp_path / "out" / "listnet" / "seed_0" / "results" / "reranking").glob("topics.json")
    result = read_result(path)
    assert (result.identity.experiment, result.caveats) == ("mine", ["toy"])
    with (tmp_path / "out" / "analysis" / "arms.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["vs bm25"]]
    assert [row["arm"] for row in rows] == ["softmax", "listnet"]
    assert {row["setting"] for row in rows} <= {"learning_rate 1e-05", "learning_rate 0.001"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"family": "crossencoder"}, 2, ("there is no 'crossencoder'", "did you mean 'cross_encoder'")),
        ({"arms": {"a": {"set": {"loss.name": "sofmax"}}}}, 2, ("sofmax", "did you mean 'softmax'")),
        ({"gates": {"g": {"system": "listnet", "baseline": "bm52", "margin": 0}}}, 2, ("gates.g.baseline", "'bm25'")),
        ({"gates": {"g": {"system": "listnet", "baseline": "bm25"}}}, 2, ("gates.g.margin", "required")),
        ({"grid": {"learning_rate": []}}, 2, ("grid.learning_rate", "must not be empty")),
        ({"data": {"source": "x"}}, 2, ("data", "cross_encoder")),
        ({"grid": {"lerning_rate": [1]}}, 2, ("arms.softmax", "did you mean 'learning_rate'")),
    ],
)
def test_mistakes_are_one_line_before_anything_is_trained(
    changes: dict[str, Any], code: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    for more in ((), ("--plan",)):
        assert_refused(run(loss_study(tmp_path, **changes), *more), code, *words)
    assert not [*tmp_path.rglob("*.safetensors.json")]
    assert not (tmp_path / "out" / "tuning").exists()


def test_the_original_s_recipe() -> None:
    recipe = load_config(BiEncoderConfig, Path("biencoder/seed002"))
    assert (recipe.encoder.base, recipe.encoder.pooling, recipe.out_dim) == ("microsoft/deberta-v3-small", "mean", 256)
    assert (recipe.batch_size, recipe.accumulation, recipe.epochs, recipe.schedule) == (32, 4, 3, "constant")
    assert (recipe.loss.margin, recipe.loss.temperature, recipe.loss.symmetric) == (0.1, 0.05, True)
    assert (recipe.learning_rate, recipe.query_length, recipe.document_length) == (2e-5, 32, 128)


def hits_of_grade_2(folder: Path, seed: str, arm: str = "encoder*") -> float:
    """The share of test queries that have their one document of grade 2 among the first ten."""
    runs = (folder / "out").glob(f"{arm}/{seed}/runs/retrieval/*.trec")
    (path,) = (path for path in runs if "+bm25" not in str(path))
    judged = read_qrels(folder / "collection" / "qrels" / "test.tsv")
    best = {query: next(d for d, grade in grades.items() if grade == 2) for query, grades in judged.items()}
    run = read_run(path)
    return float(np.mean([best[query] in ranked(run[query])[:10] for query in best]))


def test_the_best_on_dev_is_trained_with_every_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"freeze_base": True, "epochs": 1}
    settings = {"still": small | {"learning_rate": 1e-9}, "layer": small | {"learning_rate": 3e-2, "epochs": 4}}
    file = encoder_study(tmp_path, toy_keys(tmp_path) | {"relevance_threshold": 2}, settings)
    out = tmp_path / "out"
    study = load_study(file, [], {"seeds": 2, "output_dir": str(out)})
    runner = StudyRunner(BiEncoderFamily(study, torch.device("cpu")))
    chosen = runner.run()
    assert chosen["biencoder"].setting.name == "layer"
    tried = chosen["biencoder"].tried
    assert tried["layer"]["val"] > max(tried["layer"]["start"], tried["still"]["val"])
    results = load_all_results(out, allow=runner.family.allow)
    table = study_table(runner.family, results, chosen, runner.family.keys[0])
    rows: dict[str, dict[str, Any]] = {
        row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.groups[0].rows
    }
    before = rows["encoder"]
    assert {"bm25", "biencoder"} < {*rows}
    main = "recall_of_retrieved@10"
    assert rows["biencoder"][main].value > before[main].value
    for seed in (0, 1):
        assert read_biencoder(out / "biencoder" / f"seed_{seed}" / "checkpoint").seed == seed
    assert before["Recall@10"].value == pytest.approx(100 * hits_of_grade_2(tmp_path, "seed_none"))
    found = [hits_of_grade_2(tmp_path, f"seed_{seed}", "biencoder") for seed in (0, 1)]
    assert rows["biencoder"]["Recall@10"].value == pytest.approx(100 * np.mean(found))
    runner.report(chosen)
    assert "biencoder beats encoder" in " ".join(capsys.readouterr().out.split())
    longer = StudyRunner(BiEncoderFamily(load_study(file, [], {"seeds": 3, "output_dir": str(out)})))
    with pytest.raises(DataError, match="registers another gate"):
        longer.run()


def test_the_script_runs_the_shipped_study(tmp_path: Path) -> None:
    done = call_script("tune_biencoder.py", "--only", "layers", "--output-dir", tmp_path)
    assert_refused(done, 2, "configuration 'layers': unknown", "did you mean 'layer'")
    base = toy_keys(tmp_path) | {"encoder": {"base": str(tmp_path / "encoder"), "dtype": "float32"}}
    config = tmp_path / "base.yaml"
    config.write_text(json.dumps(base), encoding="utf-8")
    given = ("--config", config, "--only", "all-layers,all-layers-hard", "--seeds", "1", "--device", "cpu")
    done = successful(call_script("tune_biencoder.py", *given, "--output-dir", tmp_path / "tuned"))
    assert "all-layers-hard" in done.stdout
    assert "biencoder beats encoder" in " ".join(done.stdout.split())


RATES = [1e-4, 1e-2]


def write_study(folder: Path, **changes: Any) -> Path:
    raw: dict[str, Any] = {
        "name": "mine",
        "family": "arms",
        "config": str(write_tiny_experiment(folder)),
        "output_dir": str(folder / "study"),
        "base": {"training.dev": {"queries": 6, "depth": 4, "pool": 40}},
        "arms": {
            "emb_only_r8": {"set": {"arm.task": "emb_only"}},
            "joint_r8": {"set": {"arm": {"task": "joint", "ranking_weight": 0.5}}},
        },
        "grid": {"arm.learning_rate": RATES},
        "seeds": 2,
        "baselines": ["zero_shot"],
        "gates": {
            "kill": {"kind": "interference", "task": "embedding", "specialist": "emb_only_r8", "joint": "joint_r8"}
        },
    }
    file = folder / "study.yaml"
    file.write_text(json.dumps(raw | changes), encoding="utf-8")
    return file


def test_the_chosen_setting_scores_what_an_experiment_of_it_scores(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    done = successful(call_unimoe("study", study, "--device", "cpu", "--threads", "1"))
    assert "kill (gate: " in done.stdout
    assert {path.name for path in (tmp_path / "study/analysis").glob("*.md")} == {
        "settings.md",
        "arms-reranking.md",
        "arms-embedding.md",
    }

    tried = json.loads((tmp_path / "study/tuning/joint_r8.json").read_text())
    best = max(tried, key=lambda one: one["val"])
    experiment = tiny_experiment_dict(tmp_path)
    experiment["arms"] = {"joint_r8": experiment["arms"]["joint_r8"] | {"learning_rate": best["arm.learning_rate"]}}
    (tmp_path / "plain.yaml").write_text(json.dumps(experiment), encoding="utf-8")
    successful(call_unimoe("run", "--config", tmp_path / "plain.yaml", "--device", "cpu", "--threads", "1"))
    for task in ("reranking", "embedding"):
        one, other = (
            read_result(result_path(tmp_path / root, "joint_r8", 1, task, "apidocs")) for root in ("study", "outputs")
        )
        assert one.per_query == pytest.approx(other.per_query, abs=1e-6)
        assert one.identity.experiment == "mine"

    (tmp_path / "study/joint_r8/seed_1/results/embedding/apidocs.json").unlink()
    again = successful(call_unimoe("study", study, "--device", "cpu", "--threads", "1"))
    assert again.stdout == done.stdout, "a study that has lost a result scores it again, and trains nothing"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": {}}, ("arms.emb_only_r8", "arm.learning_rate", "required")),
        ({"arms": {"a": {}}, "grid": {}, "gates": {}}, ("arms.a", "arm.task", "arm.learning_rate")),
        ({"grid": {"arm.lerning_rate": [1]}}, ("arms.emb_only_r8", "did you mean 'learning_rate'")),
        (
            {"gates": {"g": {"kind": "interference", "specialist": "emb", "joint": "joint_r8"}}},
            ("g.specialist", "'emb'"),
        ),
    ],
)
def test_mistakes_in_arms_are_one_line(changes: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    assert_refused(call_unimoe("study", write_study(tmp_path, **changes)), 2, *words)
    assert not (tmp_path / "study").exists()
