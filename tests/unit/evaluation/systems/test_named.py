"""Names of systems: what a model is called in results, and kinds that a program adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment

from unimoe.config import Experiment
from unimoe.evaluation.reranking.rerankers import FunctionReranker, device_of, reranker_of
from unimoe.evaluation.systems.named import MODELS, Naming, named_system, register_model, stated_system


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("named"))


def naming(experiment: Experiment, arm: str | None = None) -> Naming:
    return Naming(experiment, torch.device("cpu"), torch.float32, arm)


@pytest.mark.parametrize(
    ("model", "arm"),
    [
        ("BAAI/bge-reranker-v2-m3", "bge-reranker-v2-m3"),
        ("models/mine/", "mine"),
        ("C:\\models\\mine", "mine"),
        ("my_module:score", "score"),
        ("outputs/ce/cross_encoder/seed_12/checkpoint", "cross_encoder"),
        ("outputs/ce/joint/seed_12/checkpoint-best", "joint"),
        ("checkpoint", "checkpoint"),
        ("name with spaces", "name-with-spaces"),
    ],
)
def test_a_model_is_called_by_the_part_of_its_path_that_names_it(experiment: Experiment, model: str, arm: str) -> None:
    assert naming(experiment).arm_of(model) == arm
    assert naming(experiment, "given").arm_of(model) == "given"


def test_a_program_adds_a_kind(experiment: Experiment) -> None:
    class Served(FunctionReranker):
        name, identity = "served", "http://here@rev"

        def __init__(self, text: str) -> None:
            super().__init__(lambda pairs: [float(len(text))] * len(pairs))

    register_model("served", lambda text, given: stated_system(Served(text), given))
    try:
        system = named_system("served:abc", naming(experiment))
    finally:
        MODELS._things.pop("served")
    assert (system.name, system.base_identity, system.tasks) == ("served", "http://here@rev", ("reranking",))
    reranker: Any = reranker_of(system.model(), token_budget=7, batch_size=3)
    assert reranker.score([("a", "b"), ("c", "d")]) == [3.0, 3.0]
    assert device_of(system.model()) == "not known"


def test_a_folder_with_a_colon_is_a_folder(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "served:abc").mkdir()
    with pytest.raises(Exception, match="its configuration cannot be read") as raised:
        named_system(str(tmp_path / "served:abc"), naming(experiment))
    assert "no kind of model" not in str(raised.value)
