"""The state of a training: its content, the refusal of another training's, and the cut of the logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.training.run_state import Progress, RunState

SETTINGS = {"training": {"steps": 6, "ranking": {"loss": "softmax"}}, "arms": {"a": {"learning_rate": 0.1}}, "seed": 0}


def state_in(folder: Path, settings: dict[str, object]) -> RunState:
    return RunState(folder, settings, hash_json(settings))


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
        state, progress = state_in(tmp_path, SETTINGS), Progress(3, 1 / 7, None, 1 / 3, 2, 1, {"tokens": 77})
        state.save(progress, {"model": {"w": torch.tensor([1 / 3])}, "optimizer": {}})
        loaded = state.load()
        assert loaded is not None
        assert loaded[0] == progress
        assert loaded[1].keys() == {"model"}
        assert torch.equal(loaded[1]["model"]["w"], torch.tensor([1 / 3]))

    def test_there_is_none_before_it_is_saved_and_after_it_is_deleted(self, tmp_path: Path) -> None:
        state = state_in(tmp_path, SETTINGS)
        assert state.load() is None
        state.save(Progress(), {})
        state.delete()
        assert state.load() is None

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

    @pytest.mark.parametrize("place", [-1, -6, 200])
    def test_one_with_a_changed_byte_is_damaged(self, tmp_path: Path, place: int) -> None:
        state = state_in(tmp_path, SETTINGS)
        state.save(
            Progress(step=3),
            {"model": {"w": torch.tensor([1 / 3, 2 / 3], dtype=torch.bfloat16), "n": torch.tensor(7)}},
        )
        content = bytearray(state.path.read_bytes())
        content[place] ^= 1
        state.path.write_bytes(content)
        with pytest.raises(DataError, match="damaged training state"):
            state.load()

    def test_one_of_an_older_version_has_no_checksum(self, tmp_path: Path) -> None:
        state = state_in(tmp_path, SETTINGS)
        state.save(Progress(step=3), {"model": {"w": torch.ones(2)}})
        with safe_open(state.path, "pt") as file:
            texts = {name: text for name, text in file.metadata().items() if name != "checksum"}
        save_file({"model:w": torch.ones(2)}, state.path, texts)
        assert state.load() is not None

    def test_one_without_its_facts_is_damaged(self, tmp_path: Path) -> None:
        import safetensors.torch

        state = state_in(tmp_path, SETTINGS)
        safetensors.torch.save_file({"w": torch.zeros(1)}, state.path, {"step": "3"})
        with pytest.raises(DataError, match="damaged training state"):
            state.load()


class TestLog:
    def test_lines_after_the_state_go_and_so_does_one_without_an_end(self, tmp_path: Path) -> None:
        state = state_in(tmp_path, SETTINGS)
        records = [{"step": step, "layer": layer} for step in (1, 2, 3) for layer in (0, 1)]
        for record in records:
            state.log(record)
            state.log(record, "dev")
        with state.log_path.open("a", encoding="utf-8") as file:
            file.write('{"step": 4, "la')
        state.cut_logs(2)
        for name in ("train", "dev"):
            lines = (tmp_path / "logs" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
            assert [json.loads(line) for line in lines] == records[:4]

    def test_a_line_that_is_no_record_is_named_and_nothing_touched(self, tmp_path: Path) -> None:
        state = state_in(tmp_path, SETTINGS)
        state.log_path.parent.mkdir()
        state.log_path.write_text('{"step": 1}\n[2]\n{"step": 3}\n', encoding="utf-8")
        before = state.log_path.read_bytes()
        with pytest.raises(DataError, match=r"train\.jsonl:2: not a record of a step; remove the line"):
            state.cut_logs(1)
        assert state.log_path.read_bytes() == before

    def test_without_a_log_none_is_made(self, tmp_path: Path) -> None:
        state_in(tmp_path, SETTINGS).cut_logs(2)
        assert not (tmp_path / "logs").exists()
