"""The one loop around a training that counts: what it logs, saves, keeps, skips and refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json, write_json
from unimoe.training.loop import Facts, OnStep, Training
from unimoe.training.run_state import Parts, RunState


class KilledError(Exception):
    """What ends a training between two steps."""


class Counting(Training):
    """Adds 1 in every step; its scores on dev are given."""

    def __init__(self, folder: Path, scores: Sequence[float] = (), seed: int = 0, **options: Any) -> None:
        settings = {"seed": seed}
        options = {"dev_every": None, "save_every": 2, **options}
        super().__init__(RunState(folder, settings, hash_json(settings)), 6, **options)
        self.scores, self.value, self.best, self.prepared = scores, torch.zeros(1), 0.0, False

    @property
    def outputs(self) -> Sequence[Path]:
        return (self.state.folder / "out" / "done.json",)

    def is_finished(self) -> bool:
        return self.outputs[0].exists()

    def prepare(self) -> None:
        self.prepared = True

    def step(self, number: int) -> Facts:
        self.value = self.value + 1
        return {"loss": float(self.value)}

    def score_on_dev(self) -> tuple[float, Facts]:
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
    """Logs its scores in a file of their own."""

    dev_log = "dev"
    logs_seconds = True


def kill_after(moment: int) -> OnStep:
    def on_step(step: int, facts: Facts) -> None:
        if step == moment:
            raise KilledError

    return on_step


def lines(training: Training, name: str = "train") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (training.state.logs / f"{name}.jsonl").read_text("utf-8").splitlines()]


def written(training: Counting) -> dict[str, float]:
    found: dict[str, float] = json.loads(training.outputs[0].read_text("utf-8"))
    return found


def test_a_resumed_training_takes_only_the_steps_that_are_left(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        Counting(tmp_path).run(kill_after(5))
    taken: list[int] = []
    again = Counting(tmp_path)
    again.run(lambda step, _: taken.append(step))
    assert taken == [5, 6]
    assert written(again)["value"] == 6
    assert [line["step"] for line in lines(again)] == [1, 2, 3, 4, 5, 6]
    assert not again.state.path.exists()


def test_a_finished_training_takes_no_step_and_its_old_state_goes(tmp_path: Path) -> None:
    Counting(tmp_path).run()
    again = Counting(tmp_path)
    again.state.save(again.progress, again.parts())
    again.run(kill_after(1))
    assert not again.prepared
    assert not again.state.path.exists()


def test_the_first_of_the_best_is_kept_and_scores_are_in_the_lines_of_steps(tmp_path: Path) -> None:
    training = Counting(tmp_path, [0.1, 0, 0.3, 0, 0.3, 0, 0.2], dev_every=2, scores_start=True)
    training.run()
    assert written(training) == {"value": 6, "best": 2}
    assert (training.progress.start, training.progress.best_score, training.progress.best_step) == (0.1, 0.3, 2)
    assert [line.get("val") for line in lines(training)] == [None, 0.3, None, 0.3, None, 0.2]


def test_the_last_step_is_scored_too_in_a_log_of_its_own_where_that_is_wanted(tmp_path: Path) -> None:
    training = Apart(tmp_path, [0.0] * 7, dev_every=4)
    training.run()
    assert lines(training, "dev") == [{"step": 4, "val": 0.0}, {"step": 6, "val": 0.0}]
    assert all("val" not in line and line["seconds"] >= 0 for line in lines(training))


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
    def second(step: int, _: Facts) -> None:
        with pytest.raises(UsageError, match="another process works in this folder"):
            Counting(tmp_path).run()
        if step == 3:
            raise KilledError

    with pytest.raises(KilledError):
        Counting(tmp_path).run(second)
    for refused in (Counting(tmp_path, seed=1).run, Counting(tmp_path, seed=1).make_room):
        with pytest.raises(DataError, match="is of another training: seed was 0 there and is 1 here"):
            refused()
