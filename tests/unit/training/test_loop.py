"""The one loop around a training that counts, its optimizer, and the card of what it leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from support.experiments import KilledError, kill_after, tiny_experiment_dict
from support.tiny_models import tiny_base
from torch import Tensor, nn

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.config.training import Schedule
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json, write_json
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget
from unimoe.training.loop import StepFacts, Training
from unimoe.training.model_card import model_card
from unimoe.training.run_state import Parts, Progress, RunState
from unimoe.training.steps import MasterAdamW, learning_rates


class Counting(Training):
    """Adds 1 in every step; its scores on dev are given."""

    def __init__(self, folder: Path, scores: Sequence[float] = (), seed: int = 0, **options: Any) -> None:
        super().__init__(state_in(folder, {"seed": seed}), 6, **{"dev_every": None, "save_every": 2, **options})
        self.scores, self.value, self.best, self.prepared = scores, torch.zeros(1), 0.0, False

    @property
    def outputs(self) -> Sequence[Path]:
        return (self.state.folder / "out" / "done.json",)

    def is_finished(self) -> bool:
        return self.outputs[0].exists()

    def prepare(self) -> None:
        self.prepared = True

    def step(self, number: int) -> StepFacts:
        self.value = self.value + 1
        return {"loss": float(self.value)}

    def score_on_dev(self) -> tuple[float, StepFacts]:
        score = self.scores[int(self.value)]
        return score, {"val": score}

    def keep_best(self) -> None:
        self.best = float(self.value)

    def parts(self) -> Parts:
        return {"value": {"now": self.value, "best": torch.tensor(self.best)}}

    def load_parts(self, parts: Parts) -> None:
        self.value, self.best = parts["value"]["now"], float(parts["value"]["best"])

    def finish(self) -> None:
        write_json(self.outputs[0], {"value": float(self.value), "best": self.best})


class Apart(Counting):
    """The scores have a log of their own."""

    dev_log = "dev"


def test_training_leaves_the_attention_of_the_process_as_it_was(tmp_path: Path) -> None:
    flags: Any = torch.backends.cuda
    seen = [flags.cudnn_sdp_enabled()]
    Counting(tmp_path / "whole").run(lambda *_: seen.append(flags.cudnn_sdp_enabled()))
    assert seen == [True, *[False] * 6]
    with pytest.raises(KilledError):
        Counting(tmp_path / "killed").run(kill_after(2))
    assert flags.cudnn_sdp_enabled()


def state_in(folder: Path, settings: Mapping[str, Any]) -> RunState:
    return RunState(folder, settings, hash_json(dict(settings)))


def lines(training: Training, log: str = "train") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (training.state.logs / f"{log}.jsonl").read_text("utf-8").splitlines()]


def written(training: Counting) -> dict[str, float]:
    found: dict[str, float] = json.loads(training.outputs[0].read_text("utf-8"))
    return found


def test_a_finished_training_takes_no_step_and_leaves_no_state(tmp_path: Path) -> None:
    Counting(tmp_path).run()
    finished = Counting(tmp_path)
    finished.state.save(finished.progress, finished.parts())  # as a kill may leave it
    finished.run(kill_after(1))
    assert not finished.prepared
    assert not finished.state.path.exists()
    assert written(finished)["value"] == 6


def test_the_last_step_is_scored_too_and_the_first_of_the_best_is_kept(tmp_path: Path) -> None:
    training = Counting(tmp_path, [0.1, 0, 0, 0, 0.3, 0, 0.3], dev_every=4, scores_start=True)
    training.run()
    assert written(training) == {"value": 6, "best": 4}
    assert (training.progress.start, training.progress.best_score, training.progress.best_step) == (0.1, 0.3, 4)
    assert [line.get("val") for line in lines(training)] == [None, None, None, 0.3, None, 0.3]


@pytest.mark.parametrize("killed", [1, 2, 3])
def test_a_start_that_no_step_beats_is_kept_and_has_one_line_whenever_the_training_is_killed(
    tmp_path: Path, killed: int
) -> None:
    options: dict[str, Any] = {"dev_every": 3, "save_every": 2, "scores_start": True}
    scores = [0.4, 0, 0, 0.3, 0, 0, 0.4]
    with pytest.raises(KilledError):
        Apart(tmp_path, scores, **options).run(kill_after(killed))
    training = Apart(tmp_path, scores, **options)
    training.run()
    assert written(training) == {"value": 6, "best": 0}
    assert [(line["step"], line["val"]) for line in lines(training, "dev")] == [(0, 0.4), (3, 0.3), (6, 0.4)]
    assert (training.progress.start, training.progress.best_step, training.progress.waited) == (0.4, 0, 2)


@pytest.mark.parametrize("killed", [None, 2, 3])
def test_patience_ends_it_and_is_not_forgotten_by_a_kill(tmp_path: Path, killed: int | None) -> None:
    options: dict[str, Any] = {"dev_every": 1, "patience": 2, "save_every": 1}
    scores = [0.0, 0.1, 0.3, 0.3, 0.2, 0.9, 0.9]
    if killed:
        with pytest.raises(KilledError):
            Counting(tmp_path, scores, **options).run(kill_after(killed))
    training = Counting(tmp_path, scores, **options)
    training.run()
    assert written(training) == {"value": 4, "best": 2}


def test_a_second_process_and_another_training_are_refused(tmp_path: Path) -> None:
    def second(step: int, _: StepFacts) -> None:
        with pytest.raises(UsageError, match="another process works in this folder"):
            Counting(tmp_path).run()
        kill_after(3)(step, _)

    with pytest.raises(KilledError):
        Counting(tmp_path).run(second)
    other = Counting(tmp_path, seed=1)
    for refused in (other.run, other.make_room):
        with pytest.raises(DataError, match="is of another training: seed was 0 there and is 1 here"):
            refused()
    with pytest.raises(DataError, match="is of another training: its data or base model is another one"):
        other.state.refuse_other(tmp_path, "another", {"seed": 1})


@pytest.mark.parametrize(
    "damage", [lambda content: content[:100], lambda content: b"{}" + content, lambda content: content[:-1] + b"\x01"]
)
def test_a_damaged_state_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    state = state_in(tmp_path, {})
    state.save(Progress(), {"model": {"w": torch.zeros(100)}})
    state.path.write_bytes(damage(state.path.read_bytes()))
    with pytest.raises(DataError, match=r"state\.safetensors: damaged training state .* delete it to start over"):
        state.load()


def test_lines_after_the_state_go_and_so_does_one_without_an_end(tmp_path: Path) -> None:
    state = state_in(tmp_path, {})
    records = [{"step": step, "layer": layer} for step in (1, 2, 3) for layer in (0, 1)]
    for record in records:
        state.log(record)
    with state.log_path.open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "la')
    state.cut_logs(2)
    assert [json.loads(line) for line in state.log_path.read_text(encoding="utf-8").splitlines()] == records[:4]


def test_text_from_outside_stays_text_in_a_card(tmp_path: Path) -> None:
    hostile = 'a|b</td> [x](http://y) `z`\n---\n# "quoted"\n```\nrm'
    raw = tiny_experiment_dict(tmp_path) | {"caveats": [hostile]}
    raw["model"]["base"] = "o/m"
    raw["prompt"] |= {"instruction": hostile, "query_prefix": hostile}
    experiment = parse_config(Experiment, raw, source="test")
    budget = TrainingBudget(steps=40, ranking_examples=320, embedding_examples=640, tokens=12345)
    checkpoint = Checkpoint(
        arm="joint_r8", seed=3, which="last", base_model="o/m@abc", dtype="bfloat16", fingerprint="f",
        adapter_hash="a", training=budget, config=experiment.model_dump(),
    )  # fmt: skip
    card: Any = ModelCard(model_card(checkpoint, UnimodelForExp1(tiny_base("llama"), experiment.prompt, 500)))
    assert yaml.safe_load(card.data.to_yaml())["base_model"] == "o/m"
    assert '> a\\|b\\</td\\> \\[x\\](http://y) \\`z\\` --- \\# "quoted"' in card.text
    assert not any(line.strip() in ("---", '# "quoted"', "rm") for line in card.text.splitlines())
    blocks = card.text.split("\n```python\n")[1:]
    assert len(blocks) == 2
    for block in blocks:
        compile(block.partition("\n```\n")[0], "card", "exec")


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape).to(dtype)) for name, shape in [("a", (3, 4)), ("b", (5,))]}


def gradients(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: 3 * torch.randn(shape, generator=generator) for name, shape in [("a", (3, 4)), ("b", (5,))]}


def take(optimizer: MasterAdamW, weights: dict[str, nn.Parameter], steps: int) -> None:
    for step in range(steps):
        for name, gradient in gradients(step).items():
            weights[name].grad = gradient.to(weights[name].dtype)
        optimizer.step(1e-2 / (step + 1), max_grad_norm=1.0)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "onecycle"])
@pytest.mark.parametrize("warmup", [0, 3, 10])
def test_schedules_are_those_of_transformers_and_torch(schedule: Schedule, warmup: int) -> None:
    found = learning_rates(20, warmup, 2.0, schedule)
    fall: dict[str, Callable[[float], float]] = {
        "linear": lambda share: 1 - share,
        "cosine": lambda share: (1 + math.cos(math.pi * share)) / 2,
        "constant": lambda share: 1.0,
    }
    if schedule == "onecycle":
        adamw = torch.optim.AdamW(parameters().values())
        peer = torch.optim.lr_scheduler.OneCycleLR(adamw, max_lr=2.0, total_steps=20, pct_start=warmup / 20)
        expected = list[float]()
        for _ in range(20):
            expected.append(float(peer.get_last_lr()[0]))
            adamw.step()
            peer.step()
    else:
        rise = [2.0 * (step + 1) / (warmup + 1) for step in range(warmup)]  # from above 0
        left = 20 - warmup
        expected = rise + [2.0 * fall[schedule](step / left) for step in range(left)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_equals_torchs_adamw_to_the_bit(weight_decay: float) -> None:
    ours, theirs = parameters(), parameters()
    adamw = torch.optim.AdamW(theirs.values(), lr=0.0, weight_decay=weight_decay)
    take(MasterAdamW(ours, weight_decay), ours, 5)
    for step in range(5):
        for name, gradient in gradients(step).items():
            theirs[name].grad = gradient
        nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        adamw.param_groups[0]["lr"] = 1e-2 / (step + 1)
        adamw.step()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not torch.equal(ours["a"], parameters()["a"])


def test_weights_in_bfloat16_are_the_rounded_masters_which_a_gradient_that_is_not_finite_leaves() -> None:
    weights = parameters(torch.bfloat16)
    optimizer = MasterAdamW(weights, 0.0)
    take(optimizer, weights, 3)
    for name, master in optimizer.masters.items():
        assert master.dtype == torch.float32
        assert torch.equal(weights[name], master.bfloat16())
        assert not torch.equal(master, master.bfloat16().float())
    weights = parameters()
    optimizer = MasterAdamW(weights, 0.1)
    take(optimizer, weights, 2)
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    for bad in (torch.nan, torch.inf):
        weights["a"].grad = torch.full((3, 4), bad)
        assert not torch.tensor(optimizer.step(0.1, 1.0)).isfinite()
        assert all(torch.equal(weights[name], state[f"master.{name}"]) for name in weights)
        assert all(torch.equal(tensor, state[name]) for name, tensor in optimizer.state().items())
