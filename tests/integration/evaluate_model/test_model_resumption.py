"""``evaluate --model``: a killed run, and several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.named_models import environment, many_shards
from support.reranking import written
from support.scripts import SCRIPTS, call_script

from unimoe.models.rerankers.cross_encoder import score_pairs


class TestResumption:
    @pytest.fixture(scope="class")
    def undisturbed(self, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        output_dir = tmp_path_factory.mktemp("undisturbed")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(data)
            done = call_script("evaluate.py", *many_shards(output_dir), **environment(data))
        assert done.returncode == 0, done.stderr
        return output_dir

    def test_killed_between_shards_it_goes_on_and_ends_the_same(
        self, data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command = [sys.executable, str(SCRIPTS / "evaluate.py"), *many_shards(tmp_path)]
        quiet = subprocess.DEVNULL

        def shards() -> list[Path]:
            return [*tmp_path.glob("ce/seed_none/shards/*/*.json")]

        with subprocess.Popen(command, env=os.environ | environment(data), stdout=quiet, stderr=quiet) as process:
            deadline = time.monotonic() + 300
            while len(shards()) < 2:
                assert process.poll() is None, "the run ended before the moment came"
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        finished, scored = len(shards()), list[int]()

        def counted(model: Any, pairs: Any, *more: Any) -> list[float]:
            scored.append(len(pairs))
            return score_pairs(model, pairs, *more)

        monkeypatch.setattr("unimoe.evaluation.reranking.rerankers.score_pairs", counted)
        again = call_script("evaluate.py", *many_shards(tmp_path), **environment(data))
        assert again.returncode == 0, again.stderr
        total = -(-100 * 6 // 64)
        assert len(scored) == total - finished
        assert written(tmp_path) == written(undisturbed)
