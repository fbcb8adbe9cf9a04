"""Sections of a configuration: training, dense retrieval, served models; mistakes name their key."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
from support.experiments import tiny_experiment_dict

from unimoe.config import DenseExperiment, Experiment
from unimoe.config.files import load_config, overridden, parse_config
from unimoe.config.served import ServedConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import UsageError
from unimoe.models.served.client import Client


def experiment(arm: dict[str, Any] | None = None, **training: Any) -> Experiment:
    raw = {
        "name": "tiny",
        "seeds": [0],
        "model": {"base": "some/model"},
        "training": {"collection": "apidocs", "steps": 70, **training},
        "arms": {"rank": {"task": "rank_only", "learning_rate": 1e-3} | (arm or {})},
    }
    return parse_config(Experiment, raw, source="tiny")


def mistake(arm: dict[str, Any] | None = None, **training: Any) -> str:
    with pytest.raises(UsageError) as caught:
        experiment(arm, **training)
    return str(caught.value)


class TestWarmUp:
    @pytest.mark.parametrize(("ratio", "steps"), [(0.0, 0), (0.1, 7), (0.11, 8), (0.98, 69)])
    def test_a_ratio_is_rounded_up_to_steps(self, ratio: float, steps: int) -> None:
        assert experiment(warmup_ratio=ratio).training.warmup == steps

    def test_both_are_refused(self) -> None:
        assert "give one of them" in mistake(warmup_steps=5, warmup_ratio=0.1)

    def test_a_ratio_that_leaves_no_step_is_refused(self) -> None:
        assert "must be below steps 70" in mistake(warmup_ratio=0.99)


class TestFirstLayer:
    @pytest.mark.parametrize(
        ("first_layer", "layers", "first"),
        [
            (0, 30, 0), (15, 30, 15), (29, 30, 29),
            (0.5, 30, 15), (0.5, 16, 8), (0.5, 3, 2), (0.5, 5, 3), (0.5, 2, 1),
            (0.01, 30, 0), (0.7, 16, 11), (0.99, 30, 29), (0.99, 1, 0),
        ],
    )  # fmt: skip
    def test_a_share_is_rounded_to_the_nearest_layer(self, first_layer: float, layers: int, first: int) -> None:
        assert LoraConfig(first_layer=first_layer).first_of(layers) == first

    @pytest.mark.parametrize("layers", [2, 15])
    def test_a_layer_that_the_model_lacks_is_refused(self, layers: int) -> None:
        words = (
            rf"lora\.first_layer 15: this model has layers 0 to {layers - 1}, {layers} in all; give .* share .* 0\.5$"
        )
        with pytest.raises(UsageError, match=words):
            LoraConfig(first_layer=15).first_of(layers)

    @pytest.mark.parametrize(("text", "value"), [("15", 15), ("0", 0), ("0.5", 0.5), ("5e-1", 0.5)])
    def test_a_layer_stays_a_layer_and_a_share_a_share(self, text: str, value: float) -> None:
        found = parse_config(
            Experiment, overridden(experiment().model_dump(), [f"lora.first_layer={text}"]), "tiny"
        ).lora.first_layer
        assert (found, type(found)) == (value, type(value))
        assert (
            parse_config(
                Experiment, {**experiment().model_dump(), "lora": {"first_layer": found}}, "x"
            ).lora.first_layer
            == value
        )

    @pytest.mark.parametrize("text", ["1.0", "0.0", "-1", "-0.5", "1.5", "true", ".nan", "half", "null", "[1]", '"3"'])
    def test_anything_else_is_refused_in_one_line(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_config(Experiment, overridden(experiment().model_dump(), [f"lora.first_layer={text}"]), "tiny")
        line = str(caught.value)
        assert line.startswith("tiny: lora.first_layer: give a layer, counted from 0, or a share of the layers")
        assert "\n" not in line
        assert ";" not in line  # one mistake, not one for each type


class TestMistakes:
    def test_patience_needs_evaluations(self) -> None:
        assert "evaluate_every is not set" in mistake(patience=2)
        assert experiment(patience=2, evaluate_every=5).training.patience == 2

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"schedule": "step"}, "training.schedule: must be 'linear', 'cosine', 'constant' or 'onecycle'"),
            ({"accumulation_steps": 0}, "training.accumulation_steps: must be at least 1"),
            ({"tracking": ["mlflow"]}, "training.tracking[0]: must be 'tensorboard' or 'wandb'"),
            ({"dev": {"querys": 5}}, "training.dev.querys: unknown key (did you mean 'queries'?)"),
            ({"ranking": {"hard_negatives": 0}}, "a ranking example needs a negative"),
        ],
        ids=str,
    )
    def test_others_name_key_and_mend(self, settings: dict[str, Any], words: str) -> None:
        assert words in mistake(**settings)


def test_the_shipped_seed_config_holds_its_values() -> None:
    found = load_config(DenseExperiment, Path("retrieval/seed002")).retrieval
    assert (found.query_length, found.document_length) == (32, 128)
    assert (found.cutoffs, found.relevance_threshold) == ([1, 5, 10, 50], 1)
    assert (found.corpus_sample, found.test_size, found.split_seed) == (150_000, 0.2, 42)
    assert (found.use_small_eval_set, found.subset_size) == (False, 500)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["retrieval.dept=5"], ["retrieval.dept: unknown key", "did you mean 'depth'?"]),
        (["evaluation.bm25.k2=1"], ["evaluation.bm25.k2: unknown key", "k1, b, stemmer"]),
        (["seeds=[1]"], ["seeds: unknown key", "known here: name, output_dir, encoder"]),
        (["retrieval.depth=20"], ["retrieval: cutoffs go to 50, depth only to 20; raise depth"]),
        (["retrieval.backend=fais"], ["retrieval.backend: must be 'torch' or 'faiss'"]),
        (["retrieval.test_size=1"], ["retrieval.test_size: must be below 1"]),
        (["retrieval.cutoffs=[]"], ["retrieval.cutoffs: must not be empty"]),
        (["retrieval.cutoffs=[0]"], ["retrieval.cutoffs[0]: must be at least 1"]),
        (["retrieval.relevance_threshold=0"], ["retrieval.relevance_threshold: must be at least 1"]),
        (["encoder.pooling=max"], ["encoder.pooling: must be 'auto', 'mean', 'cls' or 'last'"]),
    ],
)
def test_a_mistake_names_its_key_and_the_mend(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(DenseExperiment, Path("retrieval/default"), overrides)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_that_trains_is_no_evaluation_of_retrieval() -> None:
    with pytest.raises(UsageError, match=r"bundled\.yaml: seeds: unknown key"):
        load_config(DenseExperiment, Path("experiments/bundled"))


ASKED = ["served.api=tei", "served.model=org/tiny"]


def test_it_is_set_key_by_key(tmp_path: Path) -> None:
    found = parse_config(
        Experiment, overridden(tiny_experiment_dict(tmp_path), [*ASKED, "served.requests_per_minute=90"]), "tiny"
    ).served
    assert found == ServedConfig(api="tei", model="org/tiny", requests_per_minute=90)
    assert parse_config(Experiment, overridden(tiny_experiment_dict(tmp_path), []), "tiny").served is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("served.api=vlm", r"there is no served API 'vlm' \(did you mean 'vllm'\?\); use cohere, jina"),
        ("served.requests_in_flight=0", "served.requests_in_flight: must be at least 1"),
        ("served.key=abc", "served.key: unknown key"),
        ("served.timeout=0", "served.timeout: must be above 0"),
    ],
)
def test_a_mistake_is_named(override: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        parse_config(Experiment, overridden(tiny_experiment_dict(tmp_path), [*ASKED, override]), "tiny")


@pytest.mark.parametrize("key", ["sk-0123456789", "0123456789abcdef", "hf_aBcDeF"])
def test_a_key_in_place_of_a_name_is_not_repeated(key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be the NAME of an environment variable") as caught:
        parse_config(
            Experiment, overridden(tiny_experiment_dict(tmp_path), [*ASKED, f"served.key_variable='{key}'"]), "tiny"
        )
    assert key not in str(caught.value)


@pytest.mark.parametrize("package", ["openai", "aiolimiter"])
def test_without_its_packages_one_line_says_how_to_get_them(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "unimoe.models.served.connection", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=f"needs the package {package}; run: uv sync --extra served") as caught:
        Client("https://host/v1", ServedConfig(api="tei", model="tiny"))
    assert caught.value.exit_code == 2
