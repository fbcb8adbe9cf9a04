"""What workers of a cluster get of a model: the settings that make it here, and which of them were set."""

from __future__ import annotations

import json

from unimoe.config import Experiment
from unimoe.evaluation.system import model_recipe
from unimoe.models.named import default_experiment


def test_a_worker_knows_which_template_was_set() -> None:
    for overrides in ((), ("prompt.template=qwen3",), ("prompt.instruction=find",)):
        experiment = default_experiment("cross-encoder:folder", overrides)
        recipe = json.loads(json.dumps(model_recipe("named", experiment, name="x")))
        there = Experiment.model_validate(recipe["experiment"])
        assert there.prompt == experiment.prompt
        assert there.prompt.model_fields_set == experiment.prompt.model_fields_set
