"""Configs are read strictly, and every mistake is one line that names the key and the remedy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from unimoe.config import DenseExperiment, Experiment, PromptConfig
from unimoe.config.files import config_root, find_config, load_config, load_experiment, read_yaml
from unimoe.config.served import ServedConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import UsageError
from unimoe.models.served.client import Client

EXPERIMENT = """
name: tiny
seeds: [0, 1]
model: {base: some/model}
training:
  collection: apidocs
  steps: 70
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


def mistake(config: Path, *overrides: str) -> str:
    """The message after the file's name, which every message starts with."""
    kind = DenseExperiment if "retrieval" in config.parts else Experiment
    with pytest.raises(UsageError) as caught:
        load_config(kind, config, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{find_config(config)}: ")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("+1e3", 1000.0), ("1.", 1.0), ("-.5", -0.5), ("-5", -5), ("017", 17), ("0x1F", 31),
        ("1_000", 1000), ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        *((word, word) for word in ("yes", "no", "on", "y", "1:30", "2024-01-01", "=", "e5", ".", "1e")),
    ],
)  # fmt: skip
def test_numbers_and_words(tmp_path: Path, text: str, value: object) -> None:
    (tmp_path / "some.yaml").write_text(f"\ufeffkey: {text}", encoding="utf-8")
    read = read_yaml(tmp_path / "some.yaml")
    assert read == {"key": value}
    assert type(read["key"]) is type(value)


def test_merge_keys_are_followed_and_may_be_overridden(tmp_path: Path) -> None:
    text = "base: &base {a: 1, b: 2}\nderived: &derived {<<: *base, b: 3}\nagain: {<<: *derived, b: 4}"
    (tmp_path / "some.yaml").write_text(text, encoding="utf-8")
    read = read_yaml(tmp_path / "some.yaml")
    assert (read["derived"], read["again"]) == ({"a": 1, "b": 3}, {"a": 1, "b": 4})


def test_defaults_and_given_values(config: Path) -> None:
    given = [
        "training.batch_size=null", "arms.joint_r8.learning_rate=2e-4", "model.base=a=b",
        'prompt.field_separator="\\n\\n"', "served.api=tei", "served.model=org/tiny",
    ]  # fmt: skip
    experiment = load_experiment(config, given)
    assert experiment.seeds == [0, 1]
    assert (experiment.lora.r, experiment.prompt.template) == (8, "qwen3")
    assert experiment.arms["joint_r8"].learning_rate == 2e-4
    assert experiment.model.base == "a=b"
    assert experiment.prompt.field_separator == "\n\n"
    assert experiment.served == ServedConfig(api="tei", model="org/tiny")
    assert load_experiment(config).served is None
    with pytest.raises(UsageError, match=r"unknown arm 'joint_r9' \(did you mean 'joint_r8'\?\)"):
        experiment.arm_named("joint_r9")
    with pytest.raises(UsageError, match=r"no such config file.*shipped are "):
        load_experiment(config.with_name("absent.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(config_root())))
def test_every_shipped_config_is_valid_and_found_by_name(path: Path) -> None:
    name = path.relative_to(config_root())
    assert find_config(name) == find_config(name.with_suffix("")) == path
    assert isinstance(load_experiment(path), Experiment) if name.parts[0] == "experiments" else read_yaml(path)


TEXT = "must be text, in quotes where it looks like something else"
LAYER = "lora.first_layer: give a layer, counted from 0, or a share of the layers between 0 and 1, such as 0.5"
ANSWER = "must be a word of one token, or the id of a token"

MISTAKES = [
    ("training.steps", "--set 'training.steps': write it as key.path=value, for example --set training.steps=50"),
    ("seeds.0=3", "--set 'seeds.0=3': seeds is not a section; set it as a whole"),
    ("name=[", "--set 'name=[': not valid YAML: while parsing a flow node, expected the node content, but found"),
    ("training.steps=5.5", "training.steps: must be a whole number (it is 5.5)"),
    ("training.max_grad_norm=.inf", "training.max_grad_norm: must be a finite number (it is Infinity)"),
    ("training.max_grad_norm=0", "training.max_grad_norm: must be above 0.0 (it is 0)"),
    ("evaluation.bm25.b=3", "evaluation.bm25.b: must be at most 1.0 (it is 3)"),
    ("model.trust_remote_code=yes", 'model.trust_remote_code: must be true or false (it is "yes")'),
    ("model.revision=1e5", f"model.revision: {TEXT} (it is 100000.0)"),
    ("name=a/b", "name: may hold only letters, digits, '_', '.' and '-', and starts with a letter or digit"),
    ("arms.joint_r8=null", "arms.joint_r8: must be a section, keys with values (it is null)"),
    ("arms={1: {task: emb_only, learning_rate: 1}}", "arms[1]: a key must be text; put it in quotes"),
    ("seeds=3", "seeds: must be a list, as in [a, b] (it is 3)"),
    ("seeds=[0, a]", 'seeds[1]: must be a whole number (it is "a")'),
    ("seeds=[1, 1]", "seeds: a seed is listed twice"),
    ("evaluation.systems={joint_m: x}", "evaluation.systems.joint_m: this is the name of an arm or a baseline"),
    ("evaluation.first_stage=bm25", "evaluation.first_stage: there is no first stage 'bm25' (did you mean 'bm25s'?)"),
    ("evaluation.first_stage=runs/x.trec", "evaluation.first_stage: there is no first stage 'runs/x.trec'; write bm25"),
    ("evaluation.first_stage='run: '", "evaluation.first_stage: there is no first stage 'run: '; write bm25s, rank_b"),
    (
        "training.ranking.loss=hinge",
        "training.ranking.loss: there is no loss 'hinge'; use adrmse, approxndcg, infonce, lambdaloss, listmle, "
        "listnet, marginmse, pg_rank, plistmle, ranknet, score_es, softmax, supcon, yes_no, or --import the module",
    ),
    (
        "training.ranking.loss.temperature=2",
        "training.ranking.loss: must be the name of a loss, or a section with its name and keys, such as {name: l",
    ),
    (
        "arms.joint_r8.loss={name: plistmle, discunt: log1p}",
        "arms.joint_r8.loss.discunt: unknown key (did you mean 'discount'?); plistmle takes activation, respect_inp",
    ),
    ("training.ranking.loss_options={}", "training.ranking.loss_options: unknown key; known here: queries, loss, "),
    ("prompt.template=qwen", "prompt.template: there is no prompt template 'qwen' (did you mean 'qwen3'?); use bge, c"),
    *((f"prompt.answers=[yes, {text}]", f"prompt.answers[1]: {ANSWER}") for text in ("-1", "2.5", "''")),
    ("prompt.answers={yes: no}", f"prompt.answers[0]: {ANSWER}"),
    ("prompt.answers=[]", "prompt.answers: must not be empty"),
    ("prompt.answers=[a, b, c]", "prompt.answers: must have at most 2"),
    ("prompt={yes: a, answers: [b]}", "prompt: yes and no are in answers now; write answers: [YES, NO] alone"),
    *((f"lora.first_layer={text}", LAYER) for text in ("1.0", "-1", "true", ".nan", "half")),
    ("arms.joint_r8.ranking_weight=null", "arms.joint_r8: a joint arm needs ranking_weight, for example 0.5"),
    ("arms.rank_only_r8.ranking_weight=0.5", "arms.rank_only_r8: ranking_weight belongs to joint arms, not to rank_o"),
    ("training.warmup_steps=70", "training: warmup_steps 70 must be below steps 70"),
    ("training={collection: x, steps: 9, warmup_steps: 5, warmup_ratio: .1}", "training: warmup_steps and warmup_rat"),
    ("training.patience=2", "training: patience counts evaluations on dev, but evaluate_every is not set; set it too"),
    ("training.ranking.hard_negatives=0", "training.ranking: hard_negatives and random_negatives are both 0; a rank"),
    ("training.schedule=step", "training.schedule: must be 'linear', 'cosine', 'constant' or 'onecycle'"),
    ("sedes=[1]", "sedes: unknown key (did you mean 'seeds'?); known here: name, output_dir, seeds,"),
    ("evaluation.bm25.language=jp", "evaluation.bm25.language: there is no language 'jp'"),
    ("evaluation.passage_words=0", "evaluation.passage_words: must be "),
    ("evaluation.passage_stride=5", "evaluation: passage_stride is more than passage_words, and skips words; lower"),
    ("evaluation={passage_words: 3, passage_stride: 4}", "evaluation: passage_stride is more than passage_words, and"),
    ("arms.joint_r8.ranking_weigth=0.5", "arms.joint_r8.ranking_weigth: unknown key (did you mean 'ranking_weight'?)"),
    ("served={api: vlm, model: x}", "served.api: there is no served API 'vlm' (did you mean 'vllm'?); use chat, c"),
    ("served={api: tei, model: x, key_variable: sk-01}", "served.key_variable: must be the NAME of an environment va"),
]
OF_RETRIEVAL = [
    ("retrieval.dept=5", "retrieval.dept: unknown key (did you mean 'depth'?)"),
    ("seeds=[1]", "seeds: unknown key (did you mean 'served'?); known here: name, output_dir, encoder"),
    ("retrieval.depth=20", "retrieval: cutoffs go to 50, depth only to 20; raise depth"),
    ("retrieval.cutoffs=[0]", "retrieval.cutoffs[0]: must be at least 1"),
]


def test_a_loss_that_a_config_names_alone_takes_its_keys_from_the_command_line(config: Path) -> None:
    named = ("arms.joint_r8.loss=lambdaloss", "arms.joint_r8.loss.k=3")
    section = load_experiment(config, ["arms.joint_r8.loss={name: lambdaloss, k: 3}"])
    assert load_experiment(config, named) == section
    found = mistake(config, *named, "arms.joint_r8.loss.kk=3")
    assert found.startswith("arms.joint_r8.loss.kk: unknown key (did you mean 'k'?); lambdaloss takes activation, k")


@pytest.mark.parametrize(("override", "message"), [*MISTAKES, *OF_RETRIEVAL])
def test_a_mistake_is_named_with_its_key_and_the_remedy(config: Path, override: str, message: str) -> None:
    of_retrieval = (override, message) in OF_RETRIEVAL
    found = mistake(Path("retrieval/default") if of_retrieval else config, override)
    assert found.startswith(message)
    assert "sk-01" not in found  # what may be a key is not repeated


def test_seeds_that_pair_are_not_pooled_too(config: Path) -> None:
    said = mistake(config, "paired_seeds=true", "pool_runs=true")
    assert said.startswith("pool_runs is for seeds that do not pair")


def test_a_file_without_keys_is_refused_also_with_overrides(config: Path) -> None:
    for text, shown in (("- a", "a list"), ("abc", '"abc"')):
        config.write_text(text, encoding="utf-8")
        assert mistake(config, "training.steps=5") == f"must be a section, keys with values (it is {shown})"


def test_three_mistakes_are_listed_and_the_others_counted(config: Path) -> None:
    config.write_text("caveats: []", encoding="utf-8")
    assert mistake(config) == (
        "name: this key is required; add it; seeds: this key is required; add it; "
        "model: this key is required; add it; and 2 more"
    )


def test_a_ratio_of_warm_up_is_rounded_up_to_steps(config: Path) -> None:
    steps = {0.0: 0, 0.1: 7, 0.11: 8, 0.98: 69}
    found = {ratio: load_experiment(config, [f"training.warmup_ratio={ratio}"]).training.warmup for ratio in steps}
    assert found == steps


def test_a_share_is_rounded_to_the_nearest_layer() -> None:
    first = {(0, 30): 0, (29, 30): 29, (0.5, 16): 8, (0.5, 3): 2, (0.01, 30): 0, (0.7, 16): 11, (0.99, 1): 0}
    assert {(share, layers): LoraConfig(first_layer=share).first_of(layers) for share, layers in first} == first
    words = r"lora\.first_layer 30: this model has layers 0 to 29, 30 in all; give one of them, or a share of them"
    with pytest.raises(UsageError, match=words):
        LoraConfig(first_layer=30).first_of(30)


def test_words_numbers_and_shares_stay_what_they_are(config: Path) -> None:
    words: dict[str, list[Any] | None] = {
        "[true, no]": ["true", "no"], "[1176]": [1176], '["1", 1]': ["1", 1], "null": None, "Yes": ["Yes"],
    }  # fmt: skip
    for setting, value in words.items():
        experiment = load_experiment(config, [f"prompt.answers={setting}"])
        for read in (experiment, Experiment.model_validate(experiment.model_dump())):
            assert (read.prompt.answers, list(map(type, read.prompt.answers or ()))) == (
                value,
                list(map(type, value or ())),
            )
    for layer in (15, 0, 0.5):
        found = load_experiment(config, [f"lora.first_layer={layer}"]).lora.first_layer
        assert (found, type(found)) == (layer, type(layer))


def test_answers_with_a_key_each_as_older_configs_and_checkpoints_have_them_are_read() -> None:
    given: dict[tuple[Any, Any], list[Any] | None] = {
        (None, None): None, (True, False): ["true", "false"], ("Yes", None): ["Yes", "no"], (None, 7): ["yes", 7],
    }  # fmt: skip
    for (yes, no), answers in given.items():
        assert PromptConfig.model_validate({"template": "chat", "yes": yes, "no": no}).answers == answers


def test_without_a_package_of_a_server_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "unimoe.models.served.connection", raising=False)
    monkeypatch.setitem(sys.modules, "aiolimiter", None)
    with pytest.raises(UsageError, match="needs the package aiolimiter; run: uv sync --extra served"):
        Client("https://host/v1", ServedConfig(api="tei", model="tiny"))
