"""Names of systems, kinds that a program adds, and the models that an experiment names beside its arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment, tiny_experiment_dict
from support.model_server import serve
from support.reranking import invented, write_invented
from support.tiny_rerankers import save_tiny_cross_encoder

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.core.errors import DataError, UsageError
from unimoe.evaluation.chosen import load_extra_systems, planned_extra_systems
from unimoe.evaluation.reranking.rerankers import FunctionReranker, device_of, reranker_of
from unimoe.evaluation.systems.named import MODELS, Naming, named_system, register_model, stated_system
from unimoe.evaluation.tiers.datasets import LoadedDataset, chosen_datasets


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("named"))


def naming(experiment: Experiment, arm: str | None = None) -> Naming:
    return Naming(experiment, torch.device("cpu"), torch.float32, arm)


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


CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path / "cache"))


def experiment_with(folder: Path, systems: dict[str, str], **sections: Any) -> Experiment:
    config = tiny_experiment_dict(folder) | sections
    config["evaluation"] = config["evaluation"] | {"systems": systems}
    return parse_config(Experiment, config, source="tiny")


def test_a_model_behind_a_server_is_asked_about_the_probe_alone_and_planned_with_its_price(tmp_path: Path) -> None:
    write_invented(tmp_path / "toy", invented(documents=20, queries=5))
    save_tiny_cross_encoder(tmp_path / "ce")
    asked = {"api": "tei", "model": "org/tiny", "batch": 8, "price_per_million_tokens": 2.0}
    with serve() as server:
        names = {"remote": server.base("tei"), "local": f"cross-encoder:{tmp_path / 'ce'}"}
        found = experiment_with(tmp_path, names, served=asked)
        systems = load_extra_systems(found, CPU, torch.float32)
        probed = server.pairs
        (dataset,) = chosen_datasets(found, [f"path:{tmp_path / 'toy'}"])
        data = LoadedDataset(dataset)
        remote, local = planned_extra_systems(systems, data)
        assert server.pairs == probed > 0
    pairs = sum(map(len, data.candidates.values()))
    assert remote.startswith("beside the arms: remote (served:tei:")
    assert f", {pairs} pairs to rerank, " in remote
    assert ", price about " in remote
    assert local.endswith(f"), {pairs} pairs to rerank")
    assert [system.name for system in systems] == ["remote", "local"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("crossencoder:ce", UsageError, r"^evaluation\.systems\.other: crossencoder:ce: no kind of model"),
        ("cross-encoder:./nowhere", DataError, r"^evaluation\.systems\.other: '\./nowhere': no such folder"),
        ("http://127.0.0.1:9", UsageError, r"^evaluation\.systems\.other: http://127\.0\.0\.1:9: say what it speaks"),
    ],
)
def test_what_is_no_model_is_named_with_its_key(tmp_path: Path, name: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        load_extra_systems(experiment_with(tmp_path, {"other": name}), CPU, torch.float32)
