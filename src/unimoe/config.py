"""What an experiment is: one YAML file, validated before anything runs.

``load_experiment`` reads the file, applies ``--set key=value`` overrides and refuses unknown keys, wrong types and
impossible values with the key's path and what to write instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from unimoe.errors import UsageError, did_you_mean

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
ArmTask = Literal["rank_only", "emb_only", "joint"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]

QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class Section(BaseModel):
    """A part of the config: unknown keys are refused, types are taken strictly, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelConfig(Section):
    """The base model.

    Attributes:
        base: a hub id, a folder, or ``bundled:smollm2-135m-instruct``.
        revision: the hub revision; null for the newest.
        dtype: ``auto`` probes the device for the faster of bfloat16 and float32.
        max_length: tokens of one sequence, prompt included; only documents are truncated to meet it.
        trust_remote_code: runs code from the model's repository; leave it off unless you have read that code.
    """

    base: str
    revision: str | None = None
    dtype: Dtype = "auto"
    max_length: Annotated[int, Field(ge=16)] = 512
    trust_remote_code: bool = False


class PromptConfig(Section):
    r"""How a pair becomes text for the yes/no judgement, and a text for the embedding.

    Attributes:
        template: ``qwen3`` is the Qwen3-Reranker format to the letter; ``chat`` uses the model's own chat template.
        order: which side comes first. Recorded in every result.
        instruction: the task in one sentence, for reranking.
        field_separator: between instruction, query and document: one line end in Qwen3's README, two in its code.
        query_prefix: put before a query to be embedded; Qwen3 writes ``Instruct: {task}\nQuery:``.
        document_prefix: put before a document to be embedded.
        embedding_suffix: a token of the vocabulary, or text, whose last token carries the embedding.
    """

    template: Literal["qwen3", "chat"] = "qwen3"
    order: Literal["query_first", "document_first"] = "query_first"
    instruction: str = QWEN3_INSTRUCTION
    field_separator: Literal["\n", "\n\n"] = "\n"
    query_prefix: str = f"Instruct: {QWEN3_INSTRUCTION}\nQuery:"
    document_prefix: str = ""
    embedding_suffix: Annotated[str, Field(min_length=1)] = "<|endoftext|>"


class LoraConfig(Section):
    """The adapter.

    Attributes:
        first_layer: adapters sit on this layer (counted from 0) and all above. The layers below stay frozen, so their
            states are computed once for all arms and seeds and no gradient flows there.
    """

    r: Count = 8
    alpha: Count = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[list[str], Field(min_length=1)] = [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    first_layer: Annotated[int, Field(ge=0)] = 0


class RankingRecipe(Section):
    """One ranking batch: each query with one positive and its negatives, as yes/no judgements.

    Attributes:
        queries: size of the training set, a fixed sample of the split; null for all of it.
        negatives_from: hard negatives are drawn from the first this many BM25 candidates.
    """

    queries: Count | None = None
    queries_per_step: Count = 8
    hard_negatives: Annotated[int, Field(ge=0)] = 3
    random_negatives: Annotated[int, Field(ge=0)] = 0
    negatives_from: Count = 100

    @model_validator(mode="after")
    def _some_negative(self) -> RankingRecipe:
        if self.hard_negatives + self.random_negatives == 0:
            raise ValueError("hard_negatives and random_negatives are both 0; a ranking example needs a negative")
        return self


class EmbeddingRecipe(Section):
    """One embedding batch: InfoNCE over the batch's documents and the hard negatives of its queries.

    Attributes:
        queries: size of the training set, a fixed sample of the split; null for all of it.
        negatives_from: hard negatives are drawn from the first this many BM25 candidates.
        temperature: cosines are divided by it.
    """

    queries: Count | None = None
    pairs_per_step: Annotated[int, Field(ge=2)] = 32
    hard_negatives: Annotated[int, Field(ge=0)] = 1
    negatives_from: Count = 100
    temperature: Positive = 0.05


class TrainingConfig(Section):
    """What every arm of the experiment shares, so that the arms are fair.

    Every arm takes ``steps`` optimizer steps. In each, rank_only sees one ranking batch, emb_only one embedding batch,
    and joint both, the same batches in the same order.

    Attributes:
        collection: where training queries come from.
        token_budget: padded tokens of one forward pass.
        batch_size: sequences of one forward pass, instead of ``token_budget``.
        warmup_steps: steps of linear warm-up; a linear decay to 0 follows.
        save_every: steps between saved training states; a killed run loses at most these.
    """

    collection: str
    split: str = "train"
    steps: Count
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Positive = 1.0
    token_budget: Count = 8192
    batch_size: Count | None = None
    save_every: Count = 10
    ranking: RankingRecipe = RankingRecipe()
    embedding: EmbeddingRecipe = EmbeddingRecipe()

    @model_validator(mode="after")
    def _warmup_ends(self) -> TrainingConfig:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below steps {self.steps}")
        return self


class BM25Config(Section):
    """The first stage."""

    k1: Annotated[float, Field(ge=0)] = 0.9
    b: Fraction = 0.4
    stemmer: Literal["english", "none"] = "english"


class BundledTier(Section):
    """The offline tier, fixed here and printed in every table.

    Attributes:
        queries: test queries, a seeded sample of the split.
        depth: BM25 candidates reranked per query.
        pool: documents of dense retrieval: a seeded sample that holds every relevant one.
    """

    collection: str = "apidocs"
    split: Literal["dev", "test"] = "test"
    queries: Count = 60
    depth: Count = 10
    pool: Count = 600


class EvaluationConfig(Section):
    """How checkpoints are scored.

    Attributes:
        depth: BM25 candidates reranked per query, in the fast and full tiers.
        token_budget: padded tokens of one forward pass.
        batch_size: sequences of one forward pass, instead of ``token_budget``.
    """

    bundled: BundledTier = BundledTier()
    depth: Count = 100
    token_budget: Count = 16384
    batch_size: Count | None = None
    bm25: BM25Config = BM25Config()


class ArmConfig(Section):
    """One arm.

    Attributes:
        learning_rate: peak rate, to be chosen on the dev split.
        ranking_weight: weight of the ranking loss in a joint arm; the embedding loss has the rest.
    """

    task: ArmTask
    learning_rate: Positive
    ranking_weight: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _weight_where_joint(self) -> ArmConfig:
        if self.task == "joint" and self.ranking_weight is None:
            raise ValueError("a joint arm needs ranking_weight, for example 0.5")
        if self.task != "joint" and self.ranking_weight is not None:
            raise ValueError(f"ranking_weight belongs to joint arms, not to {self.task}; remove it")
        return self


class Experiment(Section):
    """An experiment: one base model, one training set, some arms and seeds, one way to evaluate.

    Attributes:
        name: stands in every result; ``output_dir`` holds one experiment.
        caveats: why results are unfit for decisions, copied into every one of them.
    """

    name: Name
    output_dir: str = "outputs"
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
    model: ModelConfig
    prompt: PromptConfig = PromptConfig()
    lora: LoraConfig = LoraConfig()
    training: TrainingConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    arms: Annotated[dict[Name, ArmConfig], Field(min_length=1)]
    caveats: list[str] = []

    @model_validator(mode="after")
    def _seeds_differ(self) -> Experiment:
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: a seed is listed twice")
        return self

    def arm(self, name: str) -> ArmConfig:
        """The arm called ``name``.

        Raises:
            UsageError: no such arm; the message names the closest.
        """
        if name not in self.arms:
            raise UsageError(
                f"unknown arm {name!r}{did_you_mean(name, self.arms)}; this config has {', '.join(self.arms)}"
            )
        return self.arms[name]


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment from YAML and apply ``a.b=value`` overrides, whose values are YAML too.

    Args:
        path: a file, or the name of a shipped config such as ``experiments/bundled``.
        overrides: ``key.path=value`` strings, applied in order.

    Raises:
        UsageError: the file is missing or malformed, a key unknown, a value of the wrong type or impossible.
    """
    file = find_config(path)
    raw = read_yaml(file)
    if isinstance(raw, dict):
        for override in overrides:
            _apply(raw, override)
    return parse_experiment(raw, source=str(file))


def parse_experiment(raw: Any, source: str) -> Experiment:
    """Validate an experiment given as plain data; ``source`` names it in errors."""
    try:
        return Experiment.model_validate(raw)
    except ValidationError as error:
        mistakes = [_explain(e) for e in error.errors()]
        more = f"; and {len(mistakes) - 3} more" if len(mistakes) > 3 else ""
        raise UsageError(f"{source}: {'; '.join(mistakes[:3])}{more}") from None


def find_config(path: Path) -> Path:
    """A config file: as given, or shipped with the package (with or without ``.yaml``)."""
    if path.is_file():
        return path
    shipped = config_root()
    for candidate in (shipped / path, shipped / f"{path}.yaml"):
        if not path.is_absolute() and candidate.is_file():
            return candidate
    names = sorted(str(p.relative_to(shipped).with_suffix("")) for p in shipped.rglob("*.yaml"))
    raise UsageError(f"{path}: no such config file{did_you_mean(str(path), names)}; shipped: {', '.join(names)}")


def config_root() -> Path:
    """The shipped configs: inside the installed package, or in the clone."""
    package = Path(__file__).parent / "configs"
    return package if package.is_dir() else Path(__file__).parents[2] / "configs"


def read_yaml(path: Path) -> Any:
    """Read YAML in which ``1e-3`` is a number, ``yes`` and ``no`` are words, and no key stands twice.

    Raises:
        UsageError: the file cannot be read or is no YAML; names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        said = [getattr(error, "context", None), getattr(error, "problem", None)]
        problem = ", ".join(filter(None, said)) or " ".join(str(error).split())
        raise UsageError(f"{where}: not valid YAML: {problem}") from None


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of numbers and booleans, and duplicate keys refused."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.composer.ComposerError(None, None, "a key must be one word", key.start_mark)
            if key.value in seen:
                raise yaml.composer.ComposerError(None, None, f"key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))


_SCALARS = {  # tag: what it looks like, how it can begin; all else is text
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?\d+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _apply(raw: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    *sections, last = key.strip().split(".")
    if not separator or not all([*sections, last]):
        raise UsageError(f"--set {override!r}: write it as key.path=value, for example --set training.steps=50")
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError):
        raise UsageError(f"--set {override!r}: the value is not valid YAML; put text in quotes") from None
    node = raw
    for depth, section in enumerate(sections, start=1):
        inner = node.get(section)
        if not isinstance(inner, dict | None):
            raise UsageError(f"--set {override!r}: {'.'.join(sections[:depth])} is not a section; set it as a whole")
        node[section] = dict(inner or {})  # a copy: YAML aliases share one object
        node = node[section]
    node[last] = value


_MENDS = {  # pydantic's error types, in the words of someone who edits YAML
    "missing": "this key is required; add it",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text, in quotes where it looks like something else",
    "list_type": "must be a list, as in [a, b]",
    "dict_type": "must be a section, keys with values",
    "model_type": "must be a section, keys with values",
    "finite_number": "must be finite",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "may hold only letters, digits, '_', '.' and '-', and starts with a letter or digit",
    "invalid_key": "a key must be text; put it in quotes",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
_SELF_EVIDENT = {"missing", "too_short", "string_too_short", "invalid_key", "value_error"}


def _explain(error: Any) -> str:
    """One mistake in one line: the key's path, what is wrong and what to write."""
    path, kind = _key_path(error["loc"]), error["type"]
    if kind == "extra_forbidden":
        known = _section_keys(error["loc"][:-1])
        return f"{path}: unknown key{did_you_mean(str(error['loc'][-1]), known)}; known here: {', '.join(known)}"
    if kind == "string_type" and error["loc"][-1] == "[key]":
        kind = "invalid_key"
    mend = _MENDS.get(kind)
    message = mend.format(**error.get("ctx", {})) if mend else error["msg"].removeprefix("Value error, ")
    shown = "" if kind in _SELF_EVIDENT else f" (it is {_shown(error['input'])})"
    return f"{path}: {message}{shown}" if path else f"{message}{shown}"


def _key_path(loc: Sequence[str | int]) -> str:
    """``arms.joint_r8.task`` or ``seeds[0]``."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc if part != "[key]"]
    return "".join(parts).removeprefix(".")


def _shown(value: Any) -> str:
    """A value as YAML writes it, cut where it is long."""
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _section_keys(loc: Sequence[Any]) -> list[str]:
    section: type[BaseModel] = Experiment
    for part in loc:
        if section is Experiment and part == "arms":
            return list(ArmConfig.model_fields)
        annotation = section.model_fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        section = annotation
    return list(section.model_fields)
