"""The fingerprint of finished shards: it follows all that changes a score's bits, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment_dict
from support.reranking import invented, write_invented
from support.tiny_models import save_tiny_model

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.evaluation.runner import describe
from unimoe.evaluation.systems.system import zero_shot_system
from unimoe.evaluation.tiers.datasets import LoadedDataset, chosen_datasets
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.results import TrainingBudget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spec")
    write_invented(folder / "toy", invented())
    save_tiny_model(folder / "other", seed=5)
    return folder


def fingerprint(folder: Path, dtype: torch.dtype = torch.float32, adapter: str | None = None, **changes: Any) -> str:
    """Of the reranking that a config describes, with sections changed."""
    config = tiny_experiment_dict(folder)
    for section, values in changes.items():
        config[section] = {**config[section], **values}
    experiment = parse_config(Experiment, config, source="tiny")
    system = zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), dtype))
    if adapter is not None:
        budget = TrainingBudget(steps=1, ranking_examples=1, embedding_examples=1, tokens=1)
        trained = Checkpoint(
            arm="joint_r8", seed=0, which="last", base_model="x", dtype="float32", fingerprint="y",
            adapter_hash=adapter, training=budget, config={},
        )  # fmt: skip
        system = replace(system, name="joint_r8", checkpoint=trained)
    (dataset,) = chosen_datasets(experiment, [f"path:{folder / 'toy'}"])
    return describe(system, "reranking", LoadedDataset(dataset)).fingerprint


def test_a_published_set_has_its_prefixes_in_its_identity_whatever_folder_it_is_read_from(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    for parent in (tmp_path, tmp_path / "mine"):
        write_invented(parent / "scifact", invented(name="scifact"))
    experiment = parse_config(Experiment, tiny_experiment_dict(folder), source="tiny")
    system = zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), torch.float32))
    names = ("scifact", f"path:{tmp_path / 'mine' / 'scifact'}", f"path:{folder / 'toy'}")
    one, same, other = (
        describe(system, "embedding", LoadedDataset(dataset)).identity.prompt
        for name in names
        for dataset in chosen_datasets(experiment, [name])
    )
    assert one == same != other == system.prompt


def test_what_changes_a_score_changes_it(folder: Path) -> None:
    found = [
        fingerprint(folder),
        fingerprint(folder, model={"base": str(folder / "other")}),
        fingerprint(folder, torch.bfloat16),
        fingerprint(folder, model={"max_length": 200}),
        fingerprint(folder, prompt={"instruction": "Think."}),
        fingerprint(folder, prompt={"order": "query_first"}),
        fingerprint(folder, adapter="one"),
        fingerprint(folder, adapter="two"),
        fingerprint(folder, adapter="two", evaluation={"merge_adapters": True}),
    ]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "changes", [{"depth": 7}, {"first_stage": "rank_bm25"}, {"token_budget": 999}, {"batch_size": 3}, {"compile": True}]
)
def test_what_only_chooses_the_pairs_or_rounds_does_not(folder: Path, changes: dict[str, Any]) -> None:
    assert fingerprint(folder, evaluation=changes) == fingerprint(folder)
