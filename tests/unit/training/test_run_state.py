"""The state of a training: its content, the refusal of another training's, and the cut of the logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.training.run_state import Progress, RunState

SETTINGS = {"training": {"steps": 6, "ranking": {"loss": "softmax"}}, "arms": {"a": {"learning_rate": 0.1}}, "seed": 0}


def state_in(folder: Path, settings: dict[str, object]) -> RunState:
    return RunState(folder, settings, hash_json(settings))


class TestState:
    @pytest.mark.parametrize(
        ("other", "words"),
        [
            (SETTINGS | {"seed": 1}, "seed was 0 there and is 1 here"),
            (
                SETTINGS | {"training": {"steps": 6, "ranking": {"loss": "yes_no"}}},
                "training.ranking.loss was 'softmax' there and is 'yes_no' here",
            ),
            (SETTINGS | {"arms": {"b": {"learning_rate": 0.1}}}, "arms.a was"),
        ],
        ids=["seed", "loss", "arm"],
    )
    def test_that_of_another_training_names_the_setting(
        self, tmp_path: Path, other: dict[str, object], words: str
    ) -> None:
        state_in(tmp_path, SETTINGS).save(Progress(), {"model": {"w": torch.zeros(1)}})
        with pytest.raises(DataError, match=f"is of another training: {words}"):
            state_in(tmp_path, other).load()

    def test_without_a_known_difference_data_or_base_model_are_named(self, tmp_path: Path) -> None:
        state = state_in(tmp_path, SETTINGS)
        state.refuse_other(tmp_path, state.fingerprint, {"seed": 1})
        with pytest.raises(DataError, match="is of another training: its data or base model is another one"):
            state.refuse_other(tmp_path, "another", {"seed": 0})

    @pytest.mark.parametrize("damage", [lambda content: content[:100], lambda content: b"{}" + content])
    def test_a_damaged_one_is_named(self, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
        state = state_in(tmp_path, SETTINGS)
        state.save(Progress(), {"model": {"w": torch.zeros(100)}})
        state.path.write_bytes(damage(state.path.read_bytes()))
        with pytest.raises(DataError, match=r"state\.safetensors: damaged training state .* delete it to start over"):
            state.load()


class TestLog:
    def test_lines_after_the_state_go_and_so_does_one_without_an_end(self, tmp_path: Path) -> None:
        state = state_in(tmp_path, SETTINGS)
        records = [{"step": step, "layer": layer} for step in (1, 2, 3) for layer in (0, 1)]
        for record in records:
            state.log(record)
            state.log(record, "dev")
        with (state.logs / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"step": 4, "la')
        state.cut_logs(2)
        for name in ("train", "dev"):
            lines = (tmp_path / "logs" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            assert [json.loads(line) for line in lines] == records[:4]
