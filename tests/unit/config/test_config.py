"""Experiments are read strictly, and every mistake is one line that names the key and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from unimoe.config import Experiment
from unimoe.config.files import config_root, find_config, load_experiment, read_yaml
from unimoe.core.errors import UsageError

EXPERIMENT = """
name: tiny
seeds: [0, 1]
model: {base: some/model}
training:
  collection: apidocs
  steps: 10
arms:
  rank_only_r8: {task: rank_only, learning_rate: 1e-3}
  joint_r8: {task: joint, learning_rate: 1e-3, ranking_weight: 0.5}
"""

SHIPPED = sorted(config_root().rglob("*.yaml"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def yaml_of(tmp_path: Path, text: str) -> object:
    path = tmp_path / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path)


def mistake(config: Path, *overrides: str) -> str:
    """The message after the file's name, which every message starts with."""
    with pytest.raises(UsageError) as caught:
        load_experiment(config, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{config}: ")


class TestYaml:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-3", 0.001),
            ("1E-3", 0.001),
            ("+1e3", 1000.0),
            ("1.", 1.0),
            ("-.5", -0.5),
            ("5", 5),
            ("-5", -5),
            ("017", 17),
            ("0x1F", 31),
            ("1_000", 1000),
            ("true", True),
            ("False", False),
            ("null", None),
            ("~", None),
            ("", None),
        ],
    )
    def test_numbers_booleans_and_null(self, tmp_path: Path, text: str, value: object) -> None:
        read = yaml_of(tmp_path, f"key: {text}")
        assert read == {"key": value}
        assert isinstance(read, dict)
        assert type(read["key"]) is type(value)

    @pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "n", "1:30", "2024-01-01", "=", "e5", ".", "1e"])
    def test_words_stay_words(self, tmp_path: Path, word: str) -> None:
        assert yaml_of(tmp_path, f"key: {word}") == {"key": word}

    def test_a_byte_order_mark_is_no_part_of_the_first_key(self, tmp_path: Path) -> None:
        assert yaml_of(tmp_path, "\ufeffname: x") == {"name": "x"}

    def test_merge_keys_are_followed_and_may_be_overridden(self, tmp_path: Path) -> None:
        text = "base: &base {a: 1, b: 2}\nderived: &derived {<<: *base, b: 3}\nagain: {<<: *derived, b: 4}"
        assert yaml_of(tmp_path, text) == {
            "base": {"a": 1, "b": 2},
            "derived": {"a": 1, "b": 3},
            "again": {"a": 1, "b": 4},
        }


class TestLoad:
    def test_defaults_and_given_values(self, config: Path) -> None:
        experiment = load_experiment(config)
        assert experiment.seeds == [0, 1]
        assert experiment.arms["joint_r8"].learning_rate == 0.001
        assert experiment.lora.r == 8
        assert experiment.prompt.template == "qwen3"

    def test_a_missing_file_lists_what_is_shipped(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"no such config file.*shipped: "):
            load_experiment(tmp_path / "absent.yaml")

    def test_arm_by_name(self, config: Path) -> None:
        experiment = load_experiment(config)
        assert experiment.arm("joint_r8").task == "joint"
        with pytest.raises(UsageError, match=r"unknown arm 'joint_r9' \(did you mean 'joint_r8'\?\)"):
            experiment.arm("joint_r9")

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(config_root())))
    def test_every_shipped_config_is_valid(self, path: Path) -> None:
        room = path.relative_to(config_root()).parts[0]
        if room == "experiments":
            assert isinstance(load_experiment(path), Experiment)
        else:
            assert isinstance(read_yaml(path), dict)

    @pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(config_root())))
    def test_every_shipped_config_is_found_by_name(self, path: Path) -> None:
        name = path.relative_to(config_root())
        assert find_config(name) == find_config(name.with_suffix("")) == path


class TestOverrides:
    def test_numbers_lists_and_nulls(self, config: Path) -> None:
        given = ["training.steps=50", "seeds=[3, 4]", "training.batch_size=null", "arms.joint_r8.learning_rate=2e-4"]
        experiment = load_experiment(config, given)
        assert experiment.training.steps == 50
        assert experiment.seeds == [3, 4]
        assert experiment.training.batch_size is None
        assert experiment.arms["joint_r8"].learning_rate == 2e-4

    def test_text_may_hold_an_equals_sign_and_escapes(self, config: Path) -> None:
        experiment = load_experiment(config, ["model.base=a=b", 'prompt.field_separator="\\n\\n"'])
        assert experiment.model.base == "a=b"
        assert experiment.prompt.field_separator == "\n\n"

    @pytest.mark.parametrize("override", ["training.steps", "=5", "training.=5", ".steps=5", "training..steps=5"])
    def test_a_bad_form_shows_a_good_one(self, config: Path, override: str) -> None:
        expected = f"--set {override!r}: write it as key.path=value, for example --set training.steps=50"
        assert mistake(config, override) == expected

    def test_a_key_below_a_value_names_the_value(self, config: Path) -> None:
        message = "is not a section; set it as a whole"
        assert mistake(config, "seeds.0=3") == f"--set 'seeds.0=3': seeds {message}"
        assert mistake(config, "model.base.x.y=3") == f"--set 'model.base.x.y=3': model.base {message}"


class TestAnswers:
    @pytest.mark.parametrize(
        ("text", "value"), [("true", "true"), ("no", "no"), ("1176", 1176), ('"1"', "1"), ("null", None)]
    )
    def test_words_and_token_ids(self, config: Path, text: str, value: object) -> None:
        assert load_experiment(config, [f"prompt.yes={text}"]).prompt.yes == value

    @pytest.mark.parametrize("text", ["-1", "''", "2.5", "[yes]"])
    def test_what_is_neither_is_refused(self, config: Path, text: str) -> None:
        with pytest.raises(UsageError, match=r"prompt\.no: must be a word of one token, or the id of a token$"):
            load_experiment(config, [f"prompt.no={text}"])


class TestMistakes:
    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("training.steps=5.5", "training.steps: must be a whole number (it is 5.5)"),
            ("training.steps='5'", 'training.steps: must be a whole number (it is "5")'),
            ("training.steps=true", "training.steps: must be a whole number (it is true)"),
            ("training.steps=null", "training.steps: must be a whole number (it is null)"),
            ("training.max_grad_norm=big", 'training.max_grad_norm: must be a number (it is "big")'),
            ("training.max_grad_norm=.inf", "training.max_grad_norm: must be finite (it is Infinity)"),
            ("training.max_grad_norm=.nan", "training.max_grad_norm: must be finite (it is NaN)"),
            ("training.max_grad_norm=0", "training.max_grad_norm: must be above 0.0 (it is 0)"),
            ("lora.dropout=1", "lora.dropout: must be below 1.0 (it is 1)"),
            ("evaluation.bm25.b=3", "evaluation.bm25.b: must be at most 1.0 (it is 3)"),
            ("model.trust_remote_code=yes", 'model.trust_remote_code: must be true or false (it is "yes")'),
            ("model.revision=1e5", "model.revision: must be text, in quotes where it looks like something else"),
            ("model.base=20260101", "model.base: must be text, in quotes where it looks like something"),
            ("arms=[a]", "arms: must be a section, keys with values (it is a list)"),
            ("arms.joint_r8=null", "arms.joint_r8: must be a section, keys with values (it is null)"),
            ("seeds=3", "seeds: must be a list, as in [a, b] (it is 3)"),
            ("seeds=[0, a]", 'seeds[1]: must be a whole number (it is "a")'),
            (
                "evaluation.systems={joint_minilm: cross-encoder:ce}",
                "evaluation.systems.joint_minilm: this is the name of an arm or a baseline; choose one that is neither",
            ),
            ("evaluation.systems={bm25: cross-encoder:ce}", "evaluation.systems.bm25: this is the name of an arm"),
            (
                "prompt.template=qwen",
                "prompt.template: there is no prompt template 'qwen' (did you mean 'qwen3'?); use chat, plain, qwen3",
            ),
            ("arms.joint_r8.ranking_weight=2", "arms.joint_r8.ranking_weight: must be below 1.0 (it is 2)"),
            ("arms.joint_r8.ranking_weight=null", "arms.joint_r8: a joint arm needs ranking_weight, for example 0.5"),
            (
                "arms.rank_only_r8.ranking_weight=0.5",
                "arms.rank_only_r8: ranking_weight belongs to joint arms, not to rank_only; remove it",
            ),
            ("training.warmup_steps=10", "training: warmup_steps 10 must be below steps 10"),
            (
                "training.ranking.hard_negatives=0",
                "training.ranking: hard_negatives and random_negatives are both 0; a ranking example needs a negative",
            ),
        ],
    )
    def test_a_wrong_value_is_named_with_its_key_and_the_mend(self, config: Path, override: str, message: str) -> None:
        assert mistake(config, override).startswith(message)

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("sedes=[1]", "sedes: unknown key (did you mean 'seeds'?); known here: name, output_dir, seeds,"),
            ("training.stepz=5", "training.stepz: unknown key (did you mean 'steps'?); known here: collection,"),
            ("evaluation.bm25.k=1", "evaluation.bm25.k: unknown key (did you mean 'k1'?); known here: k1, b, stemmer"),
            ("zzz=1", "zzz: unknown key; known here: name,"),
            (
                "arms.joint_r8.ranking_weigth=0.5",
                "arms.joint_r8.ranking_weigth: unknown key (did you mean 'ranking_weight'?); "
                "known here: task, learning_rate, ranking_weight",
            ),
        ],
    )
    def test_an_unknown_key_is_named_with_its_path_and_the_closest_match(
        self, config: Path, override: str, message: str
    ) -> None:
        assert mistake(config, override).startswith(message)

    @pytest.mark.parametrize(
        ("text", "shown"), [("", "null"), ("- a", "a list"), ("abc", '"abc"'), ("# nothing yet", "null")]
    )
    def test_a_file_without_keys(self, config: Path, text: str, shown: str) -> None:
        config.write_text(text, encoding="utf-8")
        assert mistake(config) == f"must be a section, keys with values (it is {shown})"
        assert mistake(config, "training.steps=5") == f"must be a section, keys with values (it is {shown})"

    def test_three_mistakes_are_told_and_the_others_counted(self, config: Path) -> None:
        config.write_text("caveats: []", encoding="utf-8")
        assert mistake(config) == (
            "name: this key is required; add it; seeds: this key is required; add it; "
            "model: this key is required; add it; and 2 more"
        )
