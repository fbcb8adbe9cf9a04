from __future__ import annotations

from pathlib import Path

import pytest

from unimoe.cli.run_experiment import _next_command
from unimoe.config.files import load_experiment


@pytest.mark.parametrize(
    ("override", "folder"), [([], "checkpoint"), (["training.evaluate_every=9"], "checkpoint-best")]
)
def test_the_next_command_evaluates_the_checkpoint_that_the_job_has_evaluated(override: list[str], folder: str) -> None:
    experiment = load_experiment(Path("experiments/bundled"), [*override, "output_dir=here", "seeds=[3,4]"])
    assert _next_command(experiment).endswith(f"--checkpoint here/joint_r8/seed_3/{folder} --eval-tier fast")
