"""A study as one YAML file: arms, the settings of each that are tried on dev, seeds, and gates.

    name: losses
    family: cross_encoder
    base: {lists: {source: "path:my-data"}}
    arms:
      softmax: {set: {loss.name: softmax}}
      listnet: {set: {loss.name: listnet}}
    grid: {learning_rate: [1e-5, 3e-5, 1e-4]}
    seeds: 4
    gates:
      listnet-beats-softmax: {system: listnet, baseline: softmax, margin: 0.0}

Each arm tries its settings on dev with a seed that is not reported. The best setting is trained with every seed, and
each training is tested once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from unimoe.config.base import Count, Fraction, Name, Section
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.results import safe_name

Changes = Mapping[str, Any]
"""Keys of a configuration with other values; ``section.key`` reaches into a section."""

SeedNumber = Annotated[int, Field(ge=0, lt=2**31)]
Grid = dict[str, Annotated[list[Any], Field(min_length=1)]]

_FIRST_TUNING_SEED = 100


def _counted(value: Any) -> Any:
    """Return the seeds that a number of them means: 3 is 0, 1, 2."""
    return [*range(value)] if isinstance(value, int) and 0 <= value < 1000 else value


class StudyArm(Section):
    """One arm of a study.

    Attributes:
        set: what it changes in the base, in every setting.
        grid: values of some keys; every combination is a setting. The middle of several keys is tried first, the values
            of one in their order; of equals on dev the first wins. By default the study's; ``{}`` for none.
        variants: settings by name, in place of a grid; the first are tried first.
        description: for the notes of the table.
    """

    set: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    grid: Grid | None = None
    variants: dict[Name, dict[str, Any]] = {}  # noqa: RUF012
    description: str = ""

    @model_validator(mode="after")
    def _one_kind(self) -> StudyArm:
        if self.grid and self.variants:
            raise ValueError("grid and variants both list settings; leave one of them out")
        return self


class Study(Section):
    """A study.

    Attributes:
        name: the experiment in every result.
        extends: another study, by file or shipped name. Keys of ``base``, ``data``, ``arms`` and ``gates`` are added to
            its own; other keys replace its.
        family: the kind of model: arms, heads, biencoder, cross_encoder, translator, or one that a package adds.
        output_dir: folder of everything; one study has one folder; null for ``outputs/NAME-COLLECTION``, and
            ``outputs/NAME`` where arms are studied.
        config: a config of the family that ``base`` changes, by file or shipped name; null for the family's defaults.
        base: keys of the family's configuration that all arms share.
        data: of families with data that are no part of a training's configuration.
        arms: by name.
        grid: the settings of arms without their own.
        settings: at most so many of each arm are tried; null for all.
        give_up: what a setting that is chosen by a second objective may lose on dev against the best setting.
        seeds: the reported ones, or how many; none for a study of settings on dev alone.
        tuning_seed: of the trainings that choose; null for the folder's, else one beyond the reported seeds.
        baselines: arms that the table compares the others with: those of the study, and the family's untrained ones.
        gates: registered before the first training; each compares two arms. Task, datasets, metric and seeds are the
            study's unless a gate names its own, and its kind is superiority.
        looks: numbers of seeds at which all gates are judged; the study ends once each has its label.
        caveats: reasons why results are unfit for decisions, copied into every result.
    """

    name: Name
    extends: str | None = None
    family: str
    output_dir: str | None = None
    config: str | None = None
    base: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    data: dict[str, Any] = {}  # noqa: RUF012
    arms: Annotated[dict[Name, StudyArm], Field(min_length=1)]
    grid: Grid = {}  # noqa: RUF012
    settings: Count | None = None
    give_up: Fraction = 0.01
    seeds: Annotated[list[SeedNumber], BeforeValidator(_counted)] = [0, 1, 2, 3, 4]  # noqa: RUF012
    tuning_seed: SeedNumber | None = None
    baselines: list[Name] = []  # noqa: RUF012
    gates: dict[Name, dict[str, Any]] = {}  # noqa: RUF012
    looks: list[int] | None = None
    caveats: list[str] = []  # noqa: RUF012

    @model_validator(mode="after")
    def _possible(self) -> Study:
        seeds = self.seeds
        if len(set(seeds)) != len(seeds) or self.seed_of_tuning in seeds:
            raise ValueError("seeds: give each once, and not the tuning_seed, which chooses the settings")
        if self.looks and not self.gates:
            raise ValueError("looks: there are no gates to judge; add gates, or leave looks out")
        return self

    @property
    def seed_of_tuning(self) -> int:
        """The seed of the trainings that choose a setting."""
        return len(self.seeds) + _FIRST_TUNING_SEED if self.tuning_seed is None else self.tuning_seed

    def settings_of(self, arm: str) -> list[Setting]:
        """Return the settings of an arm in the order in which they are tried; one without changes where it has none."""
        own = self.arms[arm]
        if own.variants:
            found = [Setting(name, changes) for name, changes in own.variants.items()]
        else:
            grid = self.grid if own.grid is None else own.grid
            found = [Setting(in_words(changes), changes) for changes in _combinations(grid)]
        return found[: self.settings]

    def gates_for(self, shared: Mapping[str, Any], untrained: Sequence[str]) -> dict[str, dict[str, object]]:
        """Return the gates as plain data, with what they share: task, datasets and metric.

        ``untrained`` are the systems besides the arms. A gate, or a baseline, that is another one is a ``UsageError``.
        """
        known = [*self.arms, *untrained]
        for name in self.baselines:
            _refuse_unknown("baselines", system_called(name, untrained), known)
        common = {"kind": "superiority", **shared, "seeds": sorted(self.seeds)}
        common |= {"looks": self.looks} if self.looks else {}
        found = {}
        for name, given in self.gates.items():
            between = ("specialist", "joint") if given.get("kind") == "interference" else ("system", "baseline")
            roles = {role: system_called(given.get(role), untrained) for role in between}
            for role, arm in roles.items():
                if role not in given:
                    close = did_you_mean(name, [other for other in self.gates if other != name])
                    raise UsageError(f"gates.{name}.{role}: this key is required{close}; name an arm")
                _refuse_unknown(f"gates.{name}.{role}", arm, known)
            found[name] = {**common, **given, **roles}
        return found

    def of_arms(self, names: Sequence[str] | None) -> Study:
        """Return the study of some arms, in its own order, with the gates between them.

        ``ARM:VARIANT`` names an arm of which only this variant is tried, and others named so.
        """
        if names is None:
            return self
        kept: dict[str, StudyArm] = {}
        for arm, own in self.arms.items():
            variants = {name: keys for name, keys in own.variants.items() if f"{arm}:{name}" in names}
            if arm in names or variants:
                kept[arm] = own if arm in names else own.model_copy(update={"variants": variants})
        known = [*self.arms, *(f"{arm}:{name}" for arm, own in self.arms.items() for name in own.variants)]
        for name in names:
            if name not in known:
                among = [one for one in known if (":" in one) == (":" in name)] or [*self.arms]
                raise UsageError(f"unknown arm {name!r}{did_you_mean(name, known)}; there are {', '.join(among)}")
        left_out = {*self.arms} - {*kept}
        roles = ("system", "baseline", "specialist", "joint")
        gates = {name: gate for name, gate in self.gates.items() if not left_out & {gate.get(role) for role in roles}}
        looks = self.looks if gates else None
        baselines = [name for name in self.baselines if name not in left_out]
        return self.model_copy(update={"arms": kept, "gates": gates, "looks": looks, "baselines": baselines})


def _refuse_unknown(key: str, arm: Any, known: Sequence[str]) -> None:
    if arm not in known:
        wanted = did_you_mean(str(arm), known)
        raise UsageError(f"{key}: {arm!r} is no arm of the study{wanted}; there are {', '.join(known)}")


def system_called(name: Any, untrained: Sequence[str]) -> Any:
    """Return the system that a study's file calls so: the first one without a training is ``untrained`` there."""
    return untrained[0] if name == "untrained" and untrained else name


@dataclass(frozen=True)
class Setting:
    """One setting of an arm: its name for progress and tables, and what it changes."""

    name: str
    changes: Changes

    @property
    def folder(self) -> str:
        """Name of the folder of the training that tries it: a setting that is added later moves no other."""
        return safe_name(self.name.replace(", ", "-").replace(" ", "_") or "base")


@dataclass(frozen=True)
class ChosenSetting:
    """The setting of an arm that was best on dev, with the whole configuration.

    ``tried`` is what each setting of the arm was like on dev, empty where there was nothing to choose. ``reported`` is
    what the trainings of the chosen one were like there, as they are finished.
    """

    setting: Setting
    config: Any
    tried: dict[str, dict[str, float]]
    reported: list[dict[str, float]] = field(default_factory=list)

    @property
    def on_dev(self) -> list[dict[str, float]]:
        """What the table shows of dev: the run that chose the setting, or all trainings where nothing was chosen."""
        return [self.tried[self.setting.name]] if self.tried else self.reported


def load_study(path: Path, overrides: Sequence[str] = (), options: Mapping[str, Any] | None = None) -> Study:
    """Read a study by its file or shipped name, and change it by options and ``key=value`` overrides.

    Of the options, keys of the study, those that are None were not given. An override of no key of a study is one of
    its ``base``.
    """
    file = find_config(path)
    raw = _read(file)
    if raw.get("extends") is not None:
        other = find_config(Path(str(raw["extends"])))
        extended = _read(other)
        if extended.get("extends") is not None:
            raise UsageError(f"{file}: extends: {other} extends another study itself; name that one")
        for key in ("base", "data", "arms", "gates"):
            own, others = raw.get(key), extended.get(key)
            if isinstance(own, dict) and isinstance(others, dict):
                raw[key] = others | own
        raw = extended | raw
    raw |= {key: value for key, value in (options or {}).items() if value is not None}
    own = tuple(Study.model_fields)
    keys = [text if re.split(r"[.=]", text)[0].strip() in own else f"base.{text}" for text in overrides]
    read = parse_config(Study, overridden(raw, keys), source=str(file))
    if read.extends != raw.get("extends"):
        raise UsageError(f"--set extends={read.extends}: a file says what it extends; write one, or run {read.extends}")
    return read


def _read(file: Path) -> dict[str, Any]:
    raw = read_yaml(file)
    if not isinstance(raw, dict):
        raise UsageError(f"{file}: holds no keys; write key: value lines")
    return raw


def merged(raw: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return plain data with changes: ``section.key`` and nested sections both leave a section's other keys alone.

    A section with another ``name`` is another loss: none of the keys stay.
    """
    found = dict(raw)
    for path, value in sorted(changes.items(), key=lambda change: not change[0].endswith(".name")):
        key, _, inner = path.partition(".")
        change, held = {inner: value} if inner else value, found.get(key)
        if isinstance(held, dict) and isinstance(change, dict):
            renamed = {"name"} <= held.keys() & change.keys() and held["name"] != change["name"]
            change = change if renamed else merged(held, change)
        found[key] = change
    return found


def in_words(changes: Changes) -> str:
    """Return keys and values as text, for tables and progress."""
    shown = {key: f"({in_words(value)})" if isinstance(value, dict) else value for key, value in changes.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items())


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterable[dict[str, Any]]:
    """Yield every combination of a grid's values, those near the middle of several keys first: a few may do."""
    values = list(grid.values())

    def distance(places: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        from_middle = (abs(place - (len(own) - 1) / 2) for place, own in zip(places, values, strict=True))
        return sum(from_middle) if len(grid) > 1 else 0.0, places

    for places in sorted(product(*(range(len(own)) for own in values)), key=distance):
        yield {key: own[place] for (key, own), place in zip(grid.items(), places, strict=True)}
