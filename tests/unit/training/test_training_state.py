"""The state of a training: what it says, whose it is, and what it makes of the logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from unimoe.errors import DataError
from unimoe.training.state import Progress, cut_log, load_state, save_state

CPU = torch.device("cpu")
SETTINGS = {"training": {"steps": 6, "ranking": {"loss": "softmax"}}, "arms": {"a": {"learning_rate": 0.1}}, "seed": 0}


class TestProgress:
    def test_the_first_of_equal_scores_is_the_best(self) -> None:
        progress = Progress()
        noted = []
        for step, score in enumerate([0.2, 0.5, 0.5, 0.4, 0.6], start=1):
            progress.step = step
            noted.append((progress.note(score), progress.best_step, progress.waited))
        assert noted == [(True, 1, 0), (True, 2, 0), (False, 2, 1), (False, 2, 2), (True, 5, 0)]

    def test_a_score_of_zero_is_one(self) -> None:
        progress = Progress(step=1)
        assert progress.note(0.0)
        assert not progress.note(0.0)


class TestState:
    def test_it_comes_back_to_the_bit(self, tmp_path: Path) -> None:
        path, progress = tmp_path / "state.safetensors", Progress(3, 77, 1 / 3, 2, 1)
        save_state(path, SETTINGS, progress, {"w": torch.tensor([1 / 3])})
        found, tensors = load_state(path, SETTINGS, CPU)
        assert found == progress
        assert torch.equal(tensors["w"], torch.tensor([1 / 3]))

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
        path = tmp_path / "state.safetensors"
        save_state(path, SETTINGS, Progress(), {"w": torch.zeros(1)})
        with pytest.raises(DataError, match=f"is of another training: {words}"):
            load_state(path, other, CPU)

    def test_one_without_its_facts_is_damaged(self, tmp_path: Path) -> None:
        import safetensors.torch

        path = tmp_path / "state.safetensors"
        safetensors.torch.save_file({"w": torch.zeros(1)}, path, {"step": "3"})
        with pytest.raises(DataError, match="damaged training state"):
            load_state(path, SETTINGS, CPU)


class TestLog:
    def test_lines_after_the_state_go_and_so_does_one_without_an_end(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        lines = [json.dumps({"step": step, "layer": layer}) for step in (1, 2, 3) for layer in (0, 1)]
        path.write_text("\n".join(lines) + '\n{"step": 4, "la', encoding="utf-8")
        cut_log(path, 2)
        assert path.read_text(encoding="utf-8").splitlines() == lines[:4]

    def test_a_line_that_is_no_record_is_named_and_nothing_touched(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        path.write_text('{"step": 1}\n[2]\n{"step": 3}\n', encoding="utf-8")
        before = path.read_bytes()
        with pytest.raises(DataError, match=r"log\.jsonl:2: not a record of a step; remove the line"):
            cut_log(path, 1)
        assert path.read_bytes() == before

    def test_no_log_is_none(self, tmp_path: Path) -> None:
        cut_log(tmp_path / "log.jsonl", 2)
        assert not (tmp_path / "log.jsonl").exists()
