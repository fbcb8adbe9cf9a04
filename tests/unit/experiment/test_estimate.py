"""What an experiment will cost, what it has cost, and its smoke version."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment_dict
from support.json_files import read_plain
from support.tiny_models import HIDDEN, tiny_base
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from unimoe.config import Experiment
from unimoe.config.files import load_experiment, parse_config
from unimoe.config.training import LoraConfig
from unimoe.core.io import write_json, write_text
from unimoe.experiment.estimate import Cost, Item, Speeds, estimate, job_cost, shorter_ways
from unimoe.experiment.job import ExperimentRun, smoke_version
from unimoe.experiment.run_record import RECORD, RunRecord
from unimoe.models.adapter import add_lora
from unimoe.models.checkpoint import ADAPTER_FILE, folder_name
from unimoe.models.loader import ModelLoader
from unimoe.models.work import counted_products
from unimoe.results import arm_dir, result_path

CPU = torch.device("cpu")


@pytest.fixture
def bundled(tmp_path: Path) -> Experiment:
    return load_experiment(Path("experiments/bundled")).model_copy(update={"output_dir": str(tmp_path)})


def speeds(milliseconds: float = 1.0, state_bytes: float = 1152.0) -> Speeds:
    """A machine on which a training query has 300 tokens, a pair of texts 60, and each token costs a GFLOP."""
    tokens = {"rank_only": 300, "emb_only": 100, "rerank": 60, "embed": 80}
    one = Cost(milliseconds / 1000, 1e9)
    items = {name: Item(one * count, one * count, state_bytes * count) for name, count in tokens.items()}
    return Speeds(items, Cost(2.0), pairs=10.0, queries=100, documents=4000)


@pytest.mark.parametrize(("state_bytes", "passes"), [(1152.0, 1), (2.0**30, 36)])
def test_one_arm_by_hand(bundled: Experiment, state_bytes: float, passes: int) -> None:
    """States of the frozen layers that do not fit memory are computed in every step and evaluation."""
    one = bundled.model_copy(update={"arms": {"rank_only_r8": bundled.arms["rank_only_r8"]}, "seeds": [0]})
    steps, pairs, texts = 36 * 8 * 300, 100 * 10 * 60, 700 * 80
    shared = 288 * 300 + pairs + texts if passes == 1 else steps + 2 * pairs + texts
    evaluation = 2 * pairs + texts  # zero-shot and the arm; zero-shot
    cost = job_cost(one, speeds(state_bytes=state_bytes))
    assert cost.flop == pytest.approx((steps + shared + evaluation) * 1e9)
    assert cost.seconds - cost.flop / 1e12 == pytest.approx(8 + 4 * 2.0 + 3 * 0.5)


def test_what_is_done_costs_nothing(bundled: Experiment) -> None:
    folder, fresh = Path(bundled.output_dir), job_cost(bundled, speeds())
    write_text(arm_dir(folder, "joint_r8", 1) / folder_name("last") / ADAPTER_FILE, "")
    trained = job_cost(bundled, speeds())
    assert trained.seconds < fresh.seconds
    write_json(result_path(folder, "joint_r8", 1, "reranking", "apidocs"), {})
    assert trained.flop - job_cost(bundled, speeds()).flop == pytest.approx(100 * 10 * 60 * 1e9)
    assert job_cost(bundled, speeds(), fresh=True) == fresh


def test_a_long_wait_comes_with_shorter_ways(bundled: Experiment) -> None:
    slow = speeds(milliseconds=10)
    ways = list(shorter_ways(bundled, slow, job_cost(bundled, slow)))
    assert [way.partition(", ")[0] for way in ways] == [
        "shorter: --smoke",
        "shorter: --set seeds='[0]' --set gates=null",
        "shorter: --set evaluation.bundled.queries=50",
    ]
    assert all("minutes" in way for way in ways)
    assert list(shorter_ways(bundled, slow, Cost(29 * 60))) == []


def own_model(tmp_path: Path, **changes: Any) -> Experiment:
    return parse_config(Experiment, {**tiny_experiment_dict(tmp_path), "seeds": [0], **changes}, source="tiny")


@pytest.mark.parametrize("first_layer", [0, 2])
def test_the_work_of_a_whole_job_is_foretold(tmp_path: Path, first_layer: int) -> None:
    """The clock is no oracle here, the count of products is: on the same texts, within a fifth."""
    joint = {"joint_r8": tiny_experiment_dict(tmp_path)["arms"]["joint_r8"]}
    experiment = own_model(tmp_path, lora={"first_layer": first_layer}, arms=joint)
    run = ExperimentRun(experiment, CPU)
    expected = estimate(experiment, run.loader, time.perf_counter(), run.training_data)
    assert expected.cost.seconds > 0
    assert expected.shorter == []
    with counted_products() as counted:
        run.train_and_evaluate(RunRecord(tmp_path, lambda: counted.flop, time.perf_counter()))
    assert expected.cost.flop == pytest.approx(counted.flop, rel=0.2)
    again = estimate(experiment, run.loader, time.perf_counter(), run.training_data)
    assert again.cost.flop == 0


def test_a_probe_leaves_no_trace_in_model_or_folder(tmp_path: Path) -> None:
    experiment = own_model(tmp_path)
    loader = ModelLoader(experiment, CPU, torch.float32)
    before = {name: weight.clone() for name, weight in loader.fresh_base().model.state_dict().items()}
    estimate(experiment, loader, time.perf_counter())
    assert all(torch.equal(before[name], weight) for name, weight in loader.fresh_base().model.state_dict().items())
    assert loader.frozen_layers is not None
    assert not loader.frozen_layers._kept
    assert not Path(experiment.output_dir).exists()


def test_the_record_adds_up_over_runs_and_keeps_facts_where_asked(tmp_path: Path) -> None:
    flop = 0
    record = RunRecord(tmp_path, lambda: flop, time.perf_counter() - 5)
    record.note({"threads": 1})
    record.note({"estimate_seconds": 1}, keep=True)
    with record.phase("loading"):
        flop += 2 * 10**12
    with record.phase("reranking"):
        flop += 10**12
    again = RunRecord(tmp_path, lambda: 10**12, time.perf_counter() - 7)
    again.note({"threads": 2})
    again.note({"estimate_seconds": 2}, keep=True)
    with again.phase("reranking"):
        pass
    found = read_plain(tmp_path / RECORD)
    assert {name: phase["matmul_tflop"] for name, phase in found["phases"].items()} == {"loading": 2, "reranking": 2}
    assert (found["matmul_tflop"], found["threads"], found["estimate_seconds"]) == (4, 2, 1)
    assert 5 <= found["phases"]["loading"]["seconds"] < 65
    assert 7 <= found["phases"]["reranking"]["seconds"] < 67
    assert found["seconds"] == pytest.approx(sum(phase["seconds"] for phase in found["phases"].values()), abs=1e-4)
    assert again.elapsed == found["seconds"]


def test_a_smoke_version_has_examples_enough_and_is_never_larger() -> None:
    def smoke(*overrides: str) -> Experiment:
        return smoke_version(load_experiment(Path("experiments/bundled"), overrides))

    training = smoke().training
    assert (training.steps, training.ranking.queries, training.embedding.queries) == (4, 24, 48)
    ratio = ("training.warmup_steps=0", "training.warmup_ratio=.9")  # of four steps, it would leave none
    assert smoke("training.ranking.queries_per_step=32", *ratio).training.ranking.queries == 32
    few = ("evaluation.bundled.queries=6", "evaluation.bundled.depth=3", "evaluation.bundled.pool=40")
    small = smoke(*few, "training.dev.queries=7", "training.dev.depth=2")
    tier, dev = small.evaluation.bundled, small.training.dev
    assert (tier.queries, tier.depth, tier.pool, dev.queries, dev.depth) == (6, 3, 40, 7, 2)
    assert small.caveats == ["smoke run: a few steps, one seed"]


@pytest.mark.parametrize("first_layer", [0, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_decoder_with_adapters_against_pytorch(first_layer: int, recompute: bool) -> None:
    """PyTorch counts the products of attention, which are batched, apart."""
    base = tiny_base(layers=4)
    base.model.set_attn_implementation("eager")
    decoder = add_lora(base, LoraConfig(r=4, first_layer=first_layer), seed=0).base_model.model.model
    if recompute:
        base.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    decoder.train()
    states = torch.randn(3, 11, HIDDEN, requires_grad=True)  # rows, so that each product is one of two dimensions
    with counted_products() as counted, FlopCounterMode(display=False) as peer:
        found: Tensor = decoder(inputs_embeds=states, use_cache=False).last_hidden_state
        found.sum().backward()  # type: ignore[no-untyped-call]
    counts = peer.get_flop_counts()["Global"]
    linear = sum(count for operation, count in counts.items() if str(operation) in {"aten.mm", "aten.addmm"})
    assert counted.flop == linear > 0
