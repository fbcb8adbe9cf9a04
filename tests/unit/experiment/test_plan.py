"""What an evaluation will count and take, and its fingerprint; what an experiment will take, and has cost."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment_dict, zero_shot
from support.scripts import read_plain
from support.tiny_models import HIDDEN, save_tiny_model, tiny_base
from support.toy_collections import invented, write_invented
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from unimoe.config import Experiment
from unimoe.config.files import load_experiment, parse_config
from unimoe.config.training import LoraConfig
from unimoe.core.io import write_json, write_text
from unimoe.core.planning import Job
from unimoe.data.mteb_names import find_tasks, task_size
from unimoe.evaluation import plan
from unimoe.evaluation.datasets import LoadedDataset, chosen_datasets
from unimoe.evaluation.plan import PlannedDataset, print_plan
from unimoe.evaluation.system import System
from unimoe.evaluation.tasks import embed, rerank
from unimoe.experiment.job import RECORD, ExperimentRun, RunRecord
from unimoe.experiment.plan import Pace, Paces, RunPlan, plan_run, seconds_left
from unimoe.experiment.running import ProductCounter, counted_products
from unimoe.models.adapter import add_lora
from unimoe.models.checkpoint import ADAPTER_FILE, Checkpoint, folder_name
from unimoe.models.embedder import Embedder
from unimoe.models.loader import ModelLoader
from unimoe.models.model import Model
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.token_tree import tree_tokens
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget, arm_dir, result_path

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def bundled(tmp_path: Path) -> Experiment:
    return load_experiment(Path("experiments/bundled")).model_copy(update={"output_dir": str(tmp_path)})


def paces(*, kept: bool = True) -> Paces:
    """A machine on which a training query takes 300 ms, its pair of texts 100, a pair to rerank 60, a text 80."""
    seconds = {"rank_only": 0.3, "emb_only": 0.1, "rerank": 0.06, "embed": 0.08}
    of = {name: Pace(one, one) if kept else Pace(2 * one) for name, one in seconds.items()}
    train = {"rank_only": of["rank_only"], "emb_only": of["emb_only"]}
    return Paces(train, of["rerank"], of["embed"], load=2.0, pairs=1000, texts=700, documents=4000)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", [True, False])
def test_one_arm_by_hand(bundled: Experiment, kept: bool) -> None:
    """States of the frozen layers that do not fit memory are computed in every step and evaluation."""
    one = bundled.model_copy(update={"arms": {"rank_only_r8": bundled.arms["rank_only_r8"]}, "seeds": [0]})
    steps, pairs, texts = 36 * 8 * 0.3, 1000 * 0.06, 700 * 0.08
    shared = 288 * 0.3 + pairs + texts if kept else steps + 2 * pairs + texts
    evaluation = 2 * pairs + texts  # zero-shot and the arm; zero-shot
    assert seconds_left(one, paces(kept=kept)) == pytest.approx(steps + shared + evaluation + 8 + 4 * 2.0 + 3 * 0.5)


def test_what_is_done_costs_nothing(bundled: Experiment) -> None:
    folder, fresh = Path(bundled.output_dir), seconds_left(bundled, paces())
    write_text(arm_dir(folder, "joint_r8", 1) / folder_name("last") / ADAPTER_FILE, "")
    trained = seconds_left(bundled, paces())
    assert trained < fresh - 2 * 2.0 - 36 * (8 * 0.3 + 16 * 0.1)
    write_json(result_path(folder, "joint_r8", 1, "reranking", "apidocs"), {})
    assert trained - seconds_left(bundled, paces()) == pytest.approx(1000 * 0.06 + 0.5)


def test_a_time_is_said_as_a_range_of_seconds_or_of_minutes() -> None:
    assert str(RunPlan(8.2, 12.4, {})) == "8 to 12 seconds"
    assert str(RunPlan(100.0, 150.0, {})) == "1 to 3 minutes"


def own_model(tmp_path: Path, **changes: Any) -> Experiment:
    return parse_config(Experiment, {**tiny_experiment_dict(tmp_path), "seeds": [0], **changes}, source="tiny")


class Steady:
    """A clock that goes on by the work of the model, a second for each 1e8 operations, and by nothing else."""

    def __init__(self) -> None:
        self.counted = ProductCounter()

    def __call__(self) -> float:
        return self.counted.flop / 1e8


@pytest.mark.parametrize("first_layer", [0, 2])
def test_the_time_of_a_whole_job_is_foretold(tmp_path: Path, first_layer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is no oracle, the work that is done is: on the same texts, within a quarter."""
    joint = {"joint_r8": tiny_experiment_dict(tmp_path)["arms"]["joint_r8"]}
    experiment = own_model(tmp_path, lora={"first_layer": first_layer}, arms=joint)
    run, clock = ExperimentRun(experiment, CPU), Steady()
    with counted_products() as clock.counted, monkeypatch.context() as patch:
        patch.setattr("unimoe.core.planning.time.perf_counter", clock)
        before = clock()
        expected = plan_run(experiment, run.loader, clock(), run.training_data)
        probed, begin = clock() - before, clock()
        run.train_and_evaluate(RunRecord(tmp_path, lambda: 0, clock()))
        taken = clock() - begin
    fixed = 8.0 + 4 * 0.5  # analysis and files, for which the clock stands still
    assert (expected.low + expected.high) / 2 - fixed - probed == pytest.approx(taken, rel=0.25)
    assert expected.low < expected.high
    assert expected.units.keys() >= {"train joint", "rerank", "embed"}


def test_a_probe_leaves_no_trace_in_model_or_folder(tmp_path: Path) -> None:
    experiment = own_model(tmp_path)
    loader = ModelLoader(experiment, CPU, torch.float32)
    before = {name: weight.clone() for name, weight in loader.fresh_base().model.state_dict().items()}
    plan_run(experiment, loader, time.perf_counter())
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


COLLECTION = invented(documents=40, queries=6, unjudged=1)


@pytest.fixture(scope="module")
def system(experiment: Experiment) -> System:
    return zero_shot(experiment)


@pytest.fixture
def data(experiment: Experiment, tmp_path: Path, tmp_cache: Path) -> PlannedDataset:
    folder = write_invented(tmp_path / "toy", COLLECTION)
    return PlannedDataset(chosen_datasets(experiment, [f"path:{folder}"])[0])


def unimodel_of(system: System) -> UnimodelForExp1:
    assert system.model is not None
    model = system.model.embedder()
    assert isinstance(model, UnimodelForExp1)
    return model


def tokens_of(line: str) -> int:
    return int(line.split()[4].replace(",", ""))


def test_tokens_are_exact_where_the_sample_is_all_and_close_elsewhere(
    capsys: pytest.CaptureFixture[str], system: System, data: PlannedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "seconds_each", lambda *arguments: 10.0)  # for a pair or text
    monkeypatch.setattr(plan, "_LINE_BYTES", 2**20)
    model, corpus, queries = unimodel_of(system), COLLECTION.corpus, COLLECTION.queries
    asked = model.pair_ids([(queries[q], corpus[d].full_text) for q, found in data.candidates.items() for d in found])
    tokens = tree_tokens(asked)
    assert tokens < sum(map(len, asked))
    print_plan(system, [data], ("reranking", "embedding"), 30)
    _, words, reranking, embedding, searched, total = capsys.readouterr().out.splitlines()
    assert words.split()[:4] == ["bm25s", data.dataset.name, "7", str(len(COLLECTION.corpus) + 7)]
    assert searched.startswith(f"bm25s: {len(COLLECTION.corpus) + 7} texts, ")
    assert reranking.split()[:5] == ["reranking", data.dataset.name, "7", str(len(asked)), f"{tokens:,}"]
    texts = len(COLLECTION.corpus) + len(COLLECTION.queries)
    assert embedding.split()[3] == str(texts)
    assert [line.split()[5] for line in (reranking, embedding)] == [f"{2 * len(asked)}", f"{7 * len(corpus)}"]  # MiB
    hours = 10 * (len(asked) + texts) / 3600
    found = re.search(r"MiB, ([\d.]+) minutes, ([\d.,]+) at 30 an hour \(probe: [\d,]+ tokens a second\)$", total)
    assert found is not None
    assert total.startswith(f"total: {tokens_of(reranking) + tokens_of(embedding):,} tokens, ")
    assert float(found[1]) == pytest.approx(60 * hours, abs=0.5)
    assert float(found[2].replace(",", "")) == pytest.approx(30 * hours, abs=0.005)
    monkeypatch.setattr(plan, "_PLACE_CHARACTERS", 300)
    assert sum(map(len, plan.sampled_pairs(data, PairModelReranker(model)))) < len(asked) / 2
    print_plan(system, [data], ("reranking",), None)
    assert tokens_of(capsys.readouterr().out.splitlines()[2]) == pytest.approx(tokens, rel=0.1)


def test_embedding_counts_once_whatever_the_first_stages(
    capsys: pytest.CaptureFixture[str], system: System, data: PlannedDataset
) -> None:
    stages = [data, PlannedDataset(data.dataset.on("rank_bm25"))]
    print_plan(system, stages, ("reranking", "embedding"), None)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == [
        "bm25s",
        "reranking",
        "embedding",
        "rank_bm25",
        "reranking",
        "first",
        "total:",
    ]


class Typist(Embedder):
    """An encoder that takes a millisecond for every character."""

    base_identity, prompt_name, device, dtype = "typist@1", "plain@1", CPU, torch.float32

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def encode(self, texts: Sequence[str], **options: Any) -> Any:
        """Take the time."""
        self._clock[0] += sum(map(len, texts)) / 1000


def test_the_time_for_texts_follows_the_length_that_mteb_states(
    capsys: pytest.CaptureFixture[str], system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STS12's sentences are short and SciFact's documents long."""
    clock = [0.0]
    monkeypatch.setattr("unimoe.core.planning.time.perf_counter", lambda: clock[0])
    encoder = replace(system, model=Model("typist@1", embed=lambda: Typist(clock)), tasks=("embedding",))
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
    system = zero_shot(experiment, dtype)
    if adapter is not None:
        budget = TrainingBudget(steps=1, ranking_examples=1, embedding_examples=1, tokens=1)
        trained = Checkpoint(
            arm="joint_r8", seed=0, which="last", base_model="x", dtype="float32", fingerprint="y",
            adapter_hash=adapter, training=budget, config={},
        )  # fmt: skip
        system = replace(system, name="joint_r8", checkpoint=trained)
    (dataset,) = chosen_datasets(experiment, [f"path:{folder / 'toy'}"])
    return rerank.describe(system, "reranking", LoadedDataset(dataset)).fingerprint


def test_a_published_set_has_its_prefixes_in_its_identity(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    for parent in (tmp_path, tmp_path / "mine"):
        write_invented(parent / "scifact", invented(name="scifact"))
    experiment = parse_config(Experiment, tiny_experiment_dict(folder), source="tiny")
    system = zero_shot(experiment)
    names = ("scifact", f"path:{tmp_path / 'mine' / 'scifact'}", f"path:{folder / 'toy'}")
    one, same, other = (
        embed.describe(system, "embedding", LoadedDataset(dataset)).about.identity.prompt
        for name in names
        for dataset in chosen_datasets(experiment, [name])
    )
    assert one == same != other == (system.model and system.model.prompt)


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
    rounding = {"depth": 7, "first_stage": "rank_bm25", "token_budget": 999, "batch_size": 3, "compile": True}
    for key, value in rounding.items():  # or the choice of pairs
        assert fingerprint(folder, evaluation={key: value}) == found[0], key
