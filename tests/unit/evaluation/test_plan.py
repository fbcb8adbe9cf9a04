"""What a plan counts and measures, and the fingerprint of finished shards."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from unimoe.data.mteb_names import find_tasks, task_size
from unimoe.evaluation import plan
from unimoe.evaluation.plan import PlannedDataset, print_plan, seconds_each
from unimoe.evaluation.runner import describe
from unimoe.evaluation.systems.system import System, zero_shot_system
from unimoe.evaluation.tiers.datasets import LoadedDataset, chosen_datasets
from unimoe.models.batching import batches
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.models.token_tree import tree_tokens
from unimoe.results import TrainingBudget

pytestmark = pytest.mark.usefixtures("one_thread")


COLLECTION = invented(documents=40, queries=6, unjudged=1)


@pytest.fixture(scope="module")
def system(experiment: Experiment) -> System:
    return zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), torch.float32))


@pytest.fixture
def data(experiment: Experiment, tmp_path: Path, tmp_cache: Path) -> PlannedDataset:
    folder = write_invented(tmp_path / "toy", COLLECTION)
    return PlannedDataset(chosen_datasets(experiment, [f"path:{folder}"])[0])


def tokens_of(line: str) -> int:
    return int(line.split()[4].replace(",", ""))


def test_tokens_are_exact_where_the_sample_is_all_and_close_elsewhere(
    capsys: pytest.CaptureFixture[str], system: System, data: PlannedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "seconds_each", lambda *arguments: 10.0)  # for a pair or text
    model, corpus, queries = system.model(), COLLECTION.corpus, COLLECTION.queries
    asked = model.pair_ids([(queries[q], corpus[d].full_text) for q, found in data.candidates.items() for d in found])
    tokens = tree_tokens(asked)
    assert tokens < sum(map(len, asked))
    print_plan(system, [data], ("reranking", "embedding"), 30)
    _, reranking, embedding, total = capsys.readouterr().out.splitlines()
    assert reranking.split()[:5] == ["reranking", data.dataset.name, "7", str(len(asked)), f"{tokens:,}"]
    texts = len(COLLECTION.corpus) + len(COLLECTION.queries)
    assert embedding.split()[3] == str(texts)
    hours = 10 * (len(asked) + texts) / 3600
    found = re.search(r"MiB, ([\d.]+) minutes, ([\d.,]+) at 30 an hour \(probe: [\d,]+ tokens a second\)$", total)
    assert found is not None
    assert total.startswith(f"total: {tokens_of(reranking) + tokens_of(embedding):,} tokens, ")
    assert float(found[1]) == pytest.approx(60 * hours, abs=0.5)
    assert float(found[2].replace(",", "")) == pytest.approx(30 * hours, abs=0.005)
    monkeypatch.setattr(plan, "_PLACE_CHARACTERS", 300)
    assert len(plan.prompt_sample(data, model)) < len(asked) / 2
    print_plan(system, [data], ("reranking",), None)
    assert tokens_of(capsys.readouterr().out.splitlines()[1]) == pytest.approx(tokens, rel=0.1)


def test_embedding_counts_once_whatever_the_first_stages(
    capsys: pytest.CaptureFixture[str], system: System, data: PlannedDataset
) -> None:
    stages = [data, PlannedDataset(data.dataset.on("rank_bm25"))]
    print_plan(system, stages, ("reranking", "embedding"), None)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["reranking", "embedding", "reranking", "total:"]


@pytest.mark.parametrize("seconds", [0.01, 1.5], ids=["quick", "slow"])
def test_no_part_is_timed_twice_and_of_a_slow_model_not_all_are(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    clock, asked = [0.0], list[int]()

    def run(part: Sequence[int]) -> None:
        asked.extend(part)
        clock[0] += seconds

    monkeypatch.setattr("unimoe.evaluation.plan.time.perf_counter", lambda: clock[0])
    each = seconds_each(run, list(batches(range(600), 32)))
    assert len(set(asked)) == len(asked)
    assert (len(asked) == 600) is (seconds < 1)
    timed = len(asked) - 600 % 32  # after a warm-up by the last part
    assert each == pytest.approx(seconds * (timed / 32) / timed)


class Typist:
    """An encoder that takes a millisecond for every character."""

    base_identity, prompt_name, device, dtype = "typist@1", "plain@1", torch.device("cpu"), torch.float32

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def encode(self, texts: Sequence[str], **options: Any) -> None:
        """Take the time."""
        self._clock[0] += sum(map(len, texts)) / 1000


def test_the_time_for_texts_follows_the_length_that_mteb_states(
    capsys: pytest.CaptureFixture[str], system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STS12's sentences are short and SciFact's documents long."""
    clock = [0.0]
    monkeypatch.setattr("unimoe.evaluation.plan.time.perf_counter", lambda: clock[0])
    encoder = replace(system, load=lambda: Typist(clock), tasks=("embedding",))
    for names in (["SciFact"], ["STS12", "SciFact"], ["SciFact", "STS12"]):
        tasks = find_tasks(names)
        sizes = [size for task in tasks if (size := task_size(task))]
        characters = sum(size.query_characters + size.document_characters for size in sizes)
        print_plan(encoder, [], ["embedding"], None, [("embedding", task) for task in tasks])
        total = capsys.readouterr().out.splitlines()[-1]
        ((amount, unit),) = re.findall(r"([\d,.]+) (hours|minutes)", total)
        hours = float(amount.replace(",", "")) / (1 if unit == "hours" else 60)
        assert hours == pytest.approx(characters / 1000 / 3600, rel=0.1)
        count = sum(size.queries + size.documents for size in sizes)
        assert f"{count:,} texts, " in total
        assert total.endswith(" texts a second)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection and another model."""
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


def test_a_published_set_has_its_prefixes_in_its_identity(
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


def test_what_changes_a_score_changes_the_fingerprint(folder: Path) -> None:
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
def test_what_only_chooses_the_pairs_or_rounds_does_not_change_it(folder: Path, changes: dict[str, Any]) -> None:
    assert fingerprint(folder, evaluation=changes) == fingerprint(folder)
