"""Settings chosen on dev, several seeds, one table of all: also that the shipped settings can be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.biencoders import toy_keys
from support.comparisons import assert_same_comparison
from support.engine import ThreadActors
from support.scripts import Done, call_script

from unimoe.config.files import load_config
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import ranked, read_qrels, read_run
from unimoe.studies.biencoder import tuning
from unimoe.studies.biencoder.config import BiEncoderConfig, LabelConfig
from unimoe.studies.biencoder.training.checkpoint import read_biencoder

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


def test_the_shipped_settings_can_be() -> None:
    base = load_config(BiEncoderConfig, Path("biencoder/default"))
    assert len(tuning.CONFIGURATIONS) <= 8
    layer = tuning.configuration(base, "layer", seed=3)
    assert (layer.freeze_base, layer.seed, layer.dev.metric, layer.loss.margin) == (
        True,
        3,
        "recall_of_retrieved@10",
        0.0,
    )
    for name in tuning.CONFIGURATIONS:
        tuning.configuration(base, name)
    assert load_config(LabelConfig, Path("biencoder/labels")).thresholds == [0.5, 0.8]


def test_the_seed_s_recipe() -> None:
    recipe = load_config(BiEncoderConfig, Path("biencoder/seed002"))
    assert (recipe.encoder.base, recipe.encoder.pooling, recipe.out_dim) == ("microsoft/deberta-v3-small", "mean", 256)
    assert (recipe.batch_size, recipe.accumulation, recipe.epochs, recipe.schedule) == (32, 4, 3, "constant")
    assert (recipe.loss.margin, recipe.loss.temperature, recipe.loss.symmetric) == (0.1, 0.05, True)
    assert (recipe.learning_rate, recipe.weight_decay, recipe.max_grad_norm) == (2e-5, 0.01, 1.0)
    assert (recipe.query_length, recipe.document_length, recipe.corpus_sample) == (32, 128, 150_000)


def test_workers_of_a_cluster_choose_and_score_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, hire: ThreadActors(hire.store, 2))
    settings: dict[str, dict[str, object]] = {
        "layer": {"freeze_base": True, "learning_rate": 3e-2},
        "all": {"out_dim": None, "learning_rate": 1e-9, "negatives": {"per_query": 1, "depth": 5}},
    }
    monkeypatch.setattr(tuning, "CONFIGURATIONS", settings)
    file = tmp_path / "base.yaml"
    file.write_text(
        json.dumps(toy_keys(tmp_path) | {"encoder": {"base": str(tmp_path / "encoder"), "dtype": "float32"}})
    )

    def tuned(folder: Path, *more: str) -> Done:
        given = ("--config", file, "--seeds", "2", "--device", "cpu", "--threads", "1", "--output-dir", folder)
        done = call_script("tune_biencoder.py", *given, *more)
        assert done.returncode == 0, done.stderr
        return done

    alone, together = tmp_path / "alone", tmp_path / "together"
    cluster = ("--engine", "ray", "--store", str(tmp_path / "store"))
    tuned(alone)
    assert tuned(together, *cluster).stderr.count("trainings by workers: 2:") == 2
    assert_same_comparison(alone, together, "layer")
    assert "by workers" not in tuned(together, *cluster).stderr, "what is there is not done again"
    (together / "layer" / "biencoder" / "seed_1" / "checkpoint" / "unimoe.json").unlink()
    assert "trainings by workers: 1:" in tuned(together, *cluster).stderr
    assert_same_comparison(alone, together, "layer")


def hits_of_grade_2(folder: Path, seed: str, arm: str = "encoder*") -> float:
    """The share of test queries that have their one document of grade 2 among the first ten."""
    runs = (folder / "out" / "layer").glob(f"{arm}/{seed}/runs/retrieval/*.trec")
    (path,) = (path for path in runs if "+bm25" not in str(path))
    judged = read_qrels(folder / "collection" / "qrels" / "test.tsv")
    best = {query: next(d for d, grade in grades.items() if grade == 2) for query, grades in judged.items()}
    run = read_run(path)
    return float(np.mean([best[query] in ranked(run[query])[:10] for query in best]))


def test_the_best_on_dev_is_trained_with_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"freeze_base": True, "epochs": 1}
    settings = {"still": small | {"learning_rate": 1e-9}, "layer": small | {"learning_rate": 3e-2, "epochs": 4}}
    monkeypatch.setattr(tuning, "CONFIGURATIONS", settings)
    base = BiEncoderConfig.model_validate(toy_keys(tmp_path) | {"relevance_threshold": 2})
    dev, test, verdict = tuning.tune(base, None, 2, torch.device("cpu"), [])
    names = [row[0].text for row in dev.groups[0].rows]
    assert names == ["still", "layer (chosen)"]
    deltas = [float(row[3].text) for row in dev.groups[0].rows]
    assert deltas[1] > max(deltas[0], 0.0)
    assert [row[0].text for row in test.groups[0].rows] == [
        "recall_of_retrieved@10", "recall@10", "ndcg@10", "mrr@10", "recall@100"
    ]  # fmt: skip
    before, after = (float(test.groups[0].rows[0][column].text) for column in (1, 2))
    assert after > before
    for seed in (0, 1):
        assert read_biencoder(tmp_path / "out" / "layer" / "biencoder" / f"seed_{seed}" / "checkpoint").seed == seed
    assert test.groups[0].rows[1][1].value == pytest.approx(100 * hits_of_grade_2(tmp_path, "seed_none"))
    found = [hits_of_grade_2(tmp_path, f"seed_{seed}", "biencoder") for seed in (0, 1)]
    assert test.groups[0].rows[1][2].value == pytest.approx(100 * np.mean(found))
    assert (tmp_path / "out" / "analysis" / "test.md").is_file()
    again = tuning.tune(base, ["layer"], 2, torch.device("cpu"), [])
    assert again.test.to_csv() == test.to_csv()
    assert verdict is not None
    assert "biencoder beats encoder" in " ".join(verdict.split())
    assert again.verdict == verdict
    with pytest.raises(DataError, match="registers another gate"):
        tuning.tune(base, ["layer"], 3, torch.device("cpu"), [])
    with pytest.raises(UsageError, match="did you mean 'layer'"):
        tuning.tune(base, ["layers"], 2, torch.device("cpu"), [])
