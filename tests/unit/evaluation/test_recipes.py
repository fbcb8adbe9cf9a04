"""What workers of a cluster get of a model: the settings that make it here, and which of them were set."""

from __future__ import annotations

import json

from unimoe.evaluation.system import model_recipe, recipes_experiment
from unimoe.models.named import default_experiment


def test_a_worker_knows_which_template_was_set() -> None:
    for overrides in ((), ("prompt.template=qwen3",), ("prompt.instruction=find",)):
        experiment = default_experiment("cross-encoder:folder", overrides)
        recipe = json.loads(json.dumps(model_recipe("named", experiment, name="x")))
        there = recipes_experiment(recipe)
        assert there.prompt == experiment.prompt
        assert there.prompt.model_fields_set == experiment.prompt.model_fields_set


def test_a_worker_knows_whether_a_length_was_set() -> None:
    for overrides in ((), ("model.max_length=100",), ("model.max_length=512",)):
        experiment = default_experiment("late:folder", overrides)
        recipe = json.loads(json.dumps(model_recipe("named", experiment, name="late:folder")))
        there = recipes_experiment(recipe)
        assert there.model == experiment.model
        assert there.model.model_fields_set == experiment.model.model_fields_set
