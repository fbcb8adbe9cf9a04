"""The arms of a comparison of heads: their settings, and comparisons that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from unimoe.core.errors import UsageError
from unimoe.studies.heads.compare.arms import ARMS, LARGEST_GRID, Comparison, changed
from unimoe.studies.heads.config import TrainConfig, original_recipe


class TestArms:
    @pytest.mark.parametrize("name", [name for name in ARMS if name != "zero_shot"])
    def test_every_method_may_try_as_many_settings(self, name: str) -> None:
        settings = ARMS[name].settings(TrainConfig(num_steps=40), LARGEST_GRID)
        assert len({json.dumps(config.model_dump(), sort_keys=True) for _, config in settings}) == LARGEST_GRID
        middle = [values[1] for values in ARMS[name].grid.values()]
        assert [*settings[0][0].values()] == middle
        assert ARMS[name].settings(TrainConfig(num_steps=40), 4) == settings[:4]

    def test_what_is_shared_stays_shared(self) -> None:
        base = TrainConfig(num_steps=40, batch_size=8, ndcg_k=5, head_output_size=64)
        for name, arm in ARMS.items():
            for _, config in arm.settings(base, LARGEST_GRID):
                assert (config.num_steps, config.batch_size, config.ndcg_k, config.pools) == (40, 8, 5, base.pools)
                if name != "seed_recipe":
                    assert (config.head_output_size, config.scoring, config.init) == (64, "cosine", "pca")

    def test_the_recipe_is_the_originals(self) -> None:
        setting, config = ARMS["seed_recipe"].settings(TrainConfig(), 1)[0]
        recipe = original_recipe()
        assert setting == {"learning_rate": recipe.learning_rate, "sigma": recipe.sigma}
        assert config == recipe.model_copy(update={"ndcg_k": 10})

    def test_a_key_within_a_section_leaves_its_siblings(self) -> None:
        config = changed(TrainConfig(), {"genetic.mutation": 0.2, "objectives.diversity": 0.5, "method": "genetic"})
        assert config.genetic.mutation == 0.2
        assert config.genetic.individuals == TrainConfig().genetic.individuals
        assert config.objectives == {"relevance": 1.0, "diversity": 0.5}
        assert changed(TrainConfig(num_steps=200), {"handoff": 0.25}).handoff == 50

    @pytest.mark.parametrize(
        ("facts", "words"),
        [
            ({"methods": ["infonse"]}, "unknown method 'infonse' .did you mean 'infonce'"),
            ({"seeds": [1, 1]}, "each once"),
            ({"seeds": [100]}, "none the tuning_seed"),
            ({"settings": 10}, "less than or equal to 9"),
            ({"margin": 0.0}, "greater than 0"),
        ],
    )
    def test_impossible_comparisons(self, facts: dict[str, Any], words: str) -> None:
        with pytest.raises(ValidationError, match=words):
            Comparison.model_validate(facts)

    @pytest.mark.parametrize(
        ("facts", "words"),
        [
            ({"base": {"num_steps": 1}}, "compare-heads, hybrid: handoff 1 must be below num_steps 1"),
            (
                {"base": {"objectives": {"diversity": 1}}},
                "compare-heads, zero_shot: objectives: zero_shot optimises",
            ),
            ({"base": {"noise_rank": 2}}, "compare-heads, eggroll: grid: its directions have rank 1"),
            ({"base": {"adaptive_sigma": True}}, "compare-heads, score_es: adaptive_sigma: score_es has"),
        ],
    )
    def test_an_arm_that_cannot_be_trained_is_refused_before_the_others_are(
        self, facts: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(UsageError, match=words):
            Comparison.model_validate(facts)
