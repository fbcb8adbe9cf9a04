"""Settings chosen on dev, several seeds, one table of all: also that the shipped settings can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.biencoders import toy_keys
from support.comparisons import assert_same_comparison
from support.engine import ThreadActors
from support.scripts import Done, assert_refused, call_script

import unimoe
from unimoe.config.files import load_config
from unimoe.core.errors import DataError
from unimoe.core.trec import ranked, read_qrels, read_run
from unimoe.results.folder import load_all_results
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.family import BiEncoderFamily
from unimoe.studies.biencoder.training.checkpoint import read_biencoder
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study
from unimoe.studies.common.table import study_table

UNIMOE = str(Path(unimoe.__file__).with_name("__main__.py"))
pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


def test_the_seed_s_recipe() -> None:
    recipe = load_config(BiEncoderConfig, Path("biencoder/seed002"))
    assert (recipe.encoder.base, recipe.encoder.pooling, recipe.out_dim) == ("microsoft/deberta-v3-small", "mean", 256)
    assert (recipe.batch_size, recipe.accumulation, recipe.epochs, recipe.schedule) == (32, 4, 3, "constant")
    assert (recipe.loss.margin, recipe.loss.temperature, recipe.loss.symmetric) == (0.1, 0.05, True)
    assert (recipe.learning_rate, recipe.weight_decay, recipe.max_grad_norm) == (2e-5, 0.01, 1.0)
    assert (recipe.query_length, recipe.document_length, recipe.corpus_sample) == (32, 128, 150_000)


def study_file(folder: Path, base: dict[str, Any], variants: dict[str, Any]) -> Path:
    """The shipped study with other settings, on a toy collection."""
    shipped = load_study(Path("studies/biencoder")).model_dump(mode="json", exclude={"config"})
    base = {key: value for key, value in base.items() if key != "output_dir"}
    file = folder / "study.yaml"
    file.write_text(json.dumps(shipped | {"base": base, "arms": {"biencoder": {"variants": variants}}}))
    return file


def test_workers_of_a_cluster_choose_and_score_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, hire: ThreadActors(hire.store, 2))
    settings = {
        "layer": {"freeze_base": True, "learning_rate": 3e-2},
        "all": {"out_dim": None, "learning_rate": 1e-9, "negatives": {"per_query": 1, "depth": 5}},
    }
    base = toy_keys(tmp_path) | {"encoder": {"base": str(tmp_path / "encoder"), "dtype": "float32"}}
    file = study_file(tmp_path, base, settings)

    def tuned(folder: Path, *more: str) -> Done:
        given = ("study", file, "--seeds", "2", "--device", "cpu", "--threads", "1", "--output-dir", folder)
        done = call_script(UNIMOE, *given, *more)
        assert done.returncode == 0, done.stderr
        return done

    alone, together = tmp_path / "alone", tmp_path / "together"
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"))
    tuned(alone)
    assert tuned(together, *cluster).stderr.count("trainings by workers: 2:") == 2
    assert_same_comparison(alone, together)
    assert "by workers" not in tuned(together, *cluster).stderr, "what is there is not done again"
    (together / "biencoder" / "seed_1" / "checkpoint" / "unimoe.json").unlink()
    assert "trainings by workers: 1:" in tuned(together, *cluster).stderr
    assert_same_comparison(alone, together)


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
    file = study_file(tmp_path, toy_keys(tmp_path) | {"relevance_threshold": 2}, settings)
    out = tmp_path / "out"
    study = load_study(file, [], {"seeds": 2, "output_dir": str(out)})
    runner = StudyRunner(BiEncoderFamily(study, torch.device("cpu")))
    chosen = runner.run()
    assert chosen["biencoder"].setting.name == "layer"
    tried = chosen["biencoder"].tried
    assert tried["layer"]["val"] > max(tried["layer"]["start"], tried["still"]["val"])
    results = load_all_results(out, allow=runner.family.allow)
    table = study_table(runner.family, results, chosen, runner.family.datasets[0])
    rows: dict[str, dict[str, Any]] = {
        row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.groups[0].rows
    }
    before = rows[runner.family.aliases["untrained"]]
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


def test_settings_are_named_on_the_command_line(tmp_path: Path) -> None:
    done = call_script("tune_biencoder.py", "--only", "layers", "--output-dir", tmp_path)
    assert_refused(done, 2, "configuration 'layers': unknown", "did you mean 'layer'")


def test_the_script_runs_the_shipped_study(tmp_path: Path) -> None:
    base = toy_keys(tmp_path) | {"encoder": {"base": str(tmp_path / "encoder"), "dtype": "float32"}}
    config = tmp_path / "base.yaml"
    config.write_text(json.dumps(base), encoding="utf-8")
    given = ("--config", config, "--only", "all-layers,all-layers-hard", "--seeds", "1", "--device", "cpu")
    done = call_script("tune_biencoder.py", *given, "--output-dir", tmp_path / "tuned")
    assert done.returncode == 0, done.stderr
    assert "all-layers-hard" in done.stdout
    assert "biencoder beats encoder" in " ".join(done.stdout.split())
