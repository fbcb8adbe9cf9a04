"""What an experiment will cost, what it has cost, and its smoke version."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment, tiny_experiment_dict
from support.json_files import read_plain

from unimoe.config import Experiment
from unimoe.config.files import load_experiment, parse_config
from unimoe.core.io import write_json, write_text
from unimoe.evaluation.tiers.datasets import LoadedDataset, tier_datasets
from unimoe.experiment.estimate import Cost, Speeds, estimate, job_cost, measure, shorter_ways
from unimoe.experiment.job import ExperimentRun, smoke_version
from unimoe.experiment.run_record import RECORD, RunRecord
from unimoe.models.checkpoint import ADAPTER_FILE, folder_name
from unimoe.models.loader import ModelLoader
from unimoe.models.work import counted_products
from unimoe.results import arm_dir, result_path
from unimoe.training.examples import load_training_data

CPU, ONE = torch.device("cpu"), Cost(1e-3, 1e9)


@pytest.fixture
def bundled(tmp_path: Path) -> Experiment:
    return load_experiment(Path("experiments/bundled")).model_copy(update={"output_dir": str(tmp_path)})


def speeds(**changes: Any) -> Speeds:
    """A machine on which every token costs a millisecond."""
    costs: dict[str, Any] = dict.fromkeys(("lower", "ranking", "embedding", "reranking", "encoding"), ONE)
    sizes = {"ranking_query": 300.0, "embedding_query": 100.0, "prompt": 60.0, "document": 80.0, "query": 20.0}
    counts = {"pairs": 10.0, "queries": 100, "documents": 4000, "state_bytes": 1152}
    return Speeds(**{**costs, "load": Cost(2.0), **sizes, **counts, **changes})


def with_training(experiment: Experiment, **changes: Any) -> Experiment:
    return experiment.model_copy(update={"training": experiment.training.model_copy(update=changes)})


def test_one_arm_by_hand(bundled: Experiment) -> None:
    arms = {"rank_only_r8": bundled.arms["rank_only_r8"]}
    one = bundled.model_copy(update={"arms": arms, "seeds": [0]})
    steps = 36 * 8 * 300
    shared = 288 * 300 + 100 * 10 * 60 + (600 * 80 + 100 * 20)  # the training set, the prompts, the texts
    evaluation = 2 * 100 * 10 * 60 + (600 * 80 + 100 * 20)  # zero-shot and the arm; zero-shot
    assert job_cost(one, speeds()).flop == pytest.approx((steps + shared + evaluation) * 1e9)
    fixed = job_cost(one, speeds()).seconds - (steps + shared + evaluation) * 1e-3
    assert fixed == pytest.approx(8 + 4 * 2.0 + 3 * 0.5)


@pytest.mark.parametrize(
    "larger",
    [
        lambda e: with_training(e, steps=80),
        lambda e: with_training(e, accumulation_steps=2),
        lambda e: with_training(e, evaluate_every=10),
        lambda e: e.model_copy(update={"seeds": [0, 1, 2, 3]}),
    ],
)
def test_a_larger_experiment_costs_more(bundled: Experiment, larger: Callable[[Experiment], Experiment]) -> None:
    assert job_cost(larger(bundled), speeds()).seconds > job_cost(bundled, speeds()).seconds
    assert job_cost(larger(bundled), speeds()).flop > job_cost(bundled, speeds()).flop


def test_what_is_done_costs_nothing(bundled: Experiment) -> None:
    folder, fresh = Path(bundled.output_dir), job_cost(bundled, speeds())
    write_text(arm_dir(folder, "joint_r8", 1) / folder_name("last") / ADAPTER_FILE, "")
    trained = job_cost(bundled, speeds())
    assert trained.seconds < fresh.seconds
    write_json(result_path(folder, "joint_r8", 1, "reranking", "apidocs"), {})
    evaluated = job_cost(bundled, speeds())
    assert trained.flop - evaluated.flop == pytest.approx(100 * 10 * 60 * 1e9)
    assert job_cost(bundled, speeds(), fresh=True) == fresh


def test_a_long_wait_comes_with_shorter_ways(bundled: Experiment) -> None:
    slow = speeds(ranking=Cost(20e-3, 1e9), reranking=Cost(5e-3, 1e9))
    ways = list(shorter_ways(bundled, slow, job_cost(bundled, slow)))
    assert [way.partition(", ")[0] for way in ways] == [
        "shorter: --smoke",
        "shorter: --set seeds='[0]' --set gates=null",
        "shorter: --set evaluation.bundled.queries=50",
    ]
    assert all("minutes" in way for way in ways)
    assert list(shorter_ways(bundled, slow, Cost(29 * 60))) == []


def own_model(tmp_path: Path, **lora: Any) -> Experiment:
    return parse_config(Experiment, {**tiny_experiment_dict(tmp_path), "seeds": [0], "lora": lora}, source="tiny")


@pytest.mark.parametrize("first_layer", [0, 2])
def test_the_work_of_a_whole_job_is_foretold(tmp_path: Path, first_layer: int) -> None:
    """The clock is no oracle here, the count of products is: on the same texts, within a fifth."""
    experiment = own_model(tmp_path, first_layer=first_layer)
    run = ExperimentRun(experiment, CPU)
    expected = estimate(experiment, run.loader, time.perf_counter(), run.training_data)
    assert expected.cost.seconds > 0
    assert expected.shorter == []
    with counted_products() as counted:
        run.train_and_evaluate(RunRecord(tmp_path, lambda: counted.flop, time.perf_counter()))
    assert expected.cost.flop == pytest.approx(counted.flop, rel=0.2)
    again = estimate(experiment, run.loader, time.perf_counter(), run.training_data)
    assert again.cost.flop == 0


def test_activations_that_are_computed_again_cost_work(tmp_path: Path) -> None:
    kept = own_model(tmp_path)
    again = kept.model_copy(update={"training": kept.training.model_copy(update={"activation_checkpointing": True})})
    loader, data = ModelLoader(kept, CPU, torch.float32), LoadedDataset(tier_datasets(kept, "bundled")[0], CPU)
    costs = [measure(loader, one, data, load_training_data(one)).ranking.flop for one in (kept, again)]
    assert costs[1] > 1.2 * costs[0]


def test_the_random_numbers_of_a_training_are_its_own(tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path)
    loader = ModelLoader(experiment, CPU, torch.float32)
    before = {name: weight.clone() for name, weight in loader.fresh_base().model.state_dict().items()}
    estimate(experiment, loader, time.perf_counter())
    assert all(torch.equal(before[name], weight) for name, weight in loader.fresh_base().model.state_dict().items())
    assert loader.frozen_layers is not None
    assert not loader.frozen_layers._kept
    assert not Path(experiment.output_dir).exists()


def content(folder: Path) -> Any:
    return read_plain(folder / RECORD)


def test_phases_add_up_over_runs(tmp_path: Path) -> None:
    flop = 0
    record = RunRecord(tmp_path, lambda: flop, time.perf_counter() - 5)
    with record.phase("loading"):
        flop += 2 * 10**12
    with record.phase("reranking"):
        flop += 10**12
    again = RunRecord(tmp_path, lambda: 10**12, time.perf_counter() - 7)
    with again.phase("reranking"):
        pass
    found = content(tmp_path)
    assert {name: phase["matmul_tflop"] for name, phase in found["phases"].items()} == {"loading": 2, "reranking": 2}
    assert found["matmul_tflop"] == 4
    assert 5 <= found["phases"]["loading"]["seconds"] < 65
    assert 7 <= found["phases"]["reranking"]["seconds"] < 67
    assert found["seconds"] == pytest.approx(sum(phase["seconds"] for phase in found["phases"].values()), abs=1e-4)
    assert again.elapsed == found["seconds"]


def test_facts_of_the_first_run_are_kept_where_asked(tmp_path: Path) -> None:
    for threads in (1, 2):
        record = RunRecord(tmp_path, lambda: 0, time.perf_counter())
        record.note({"threads": threads})
        record.note({"estimate_seconds": threads}, keep=True)
    assert (content(tmp_path)["threads"], content(tmp_path)["estimate_seconds"]) == (2, 1)


def smoke(*override: str) -> Experiment:
    return smoke_version(load_experiment(Path("experiments/bundled"), list(override)))


def test_a_step_has_the_examples_that_it_takes() -> None:
    training = smoke("training.ranking.queries_per_step=32", "training.embedding.pairs_per_step=64").training
    assert (training.ranking.queries, training.embedding.queries) == (32, 64)
    assert (smoke().training.ranking.queries, smoke().training.embedding.queries) == (24, 48)


def test_it_is_never_larger_than_the_experiment() -> None:
    few = ("evaluation.bundled.queries=6", "evaluation.bundled.depth=3", "evaluation.bundled.pool=40")
    experiment = smoke(*few, "training.dev.queries=7", "training.dev.depth=2")
    tier, dev = experiment.evaluation.bundled, experiment.training.dev
    assert (tier.queries, tier.depth, tier.pool) == (6, 3, 40)
    assert (dev.queries, dev.depth) == (7, 2)
