"""A family: what a study must know of a kind of model to train, choose and test it.

A family is one class in one file, found by its name; another package adds its own under the entry points
``unimoe.families``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import torch

from unimoe.analysis.statistics.variance import Array
from unimoe.analysis.tables import Cell, Table
from unimoe.config.base import Section
from unimoe.config.files import load_config, parse_config
from unimoe.core.errors import UsageError
from unimoe.core.registry import load_plugin
from unimoe.models.device import choose_device
from unimoe.models.embedder import Advance
from unimoe.results import Task, result_path, run_path, safe_name
from unimoe.results.folder import Results
from unimoe.studies.common.study import Changes, ChosenSetting, Study, merged
from unimoe.training.loop import Training

if TYPE_CHECKING:
    from matplotlib.figure import Figure

C = TypeVar("C", bound=Section)
T = TypeVar("T", bound=Training)

UNTRAINED_SEEDS = ("duplicates",)
"""What ``load_all_results`` is to allow: seeds that helped nowhere on dev may keep one model, the start."""


class Sample(NamedTuple):
    """A training on a part of the data, for a plan, and how much more there is of everything.

    ``steps`` and ``evaluations`` are those of the whole training, whose step is ``step`` times that of the sample and
    whose evaluation on dev ``dev`` times; a test is ``test`` times an evaluation on dev.
    """

    training: Training
    steps: int
    evaluations: int
    test: float
    step: float = 1.0
    dev: float = 1.0


class Family(ABC, Generic[C, T]):
    """One kind of model in one study. Data are loaded when they are first needed.

    ``device`` is that of trainings and tests; None for that of the configuration, or the best there is. ``given`` are
    the command-line options, for provenance. ``base`` is the configuration that all arms share.
    """

    config_type: ClassVar[type[Any]]
    """The configuration of a training; it has ``seed`` and ``output_dir``."""
    dtype_key: ClassVar[str | None] = None
    """Its key for the dtype, where trainings are known by what ``auto`` means to the machine."""
    takes_data: ClassVar[bool] = False
    """Whether a study's ``data`` names them: they are no part of a training's configuration."""
    task: ClassVar[Task]
    metrics: tuple[str, ...]
    """The metrics of the table; the first is tested and is that of the gates."""

    def __init__(self, study: Study, device: torch.device | None = None, given: Sequence[str] = ()) -> None:
        self.study, self.device, self.given = study, device or choose_device(None), given
        if study.data and not self.takes_data:
            raise UsageError(f"{study.name}: data: {study.family} names its data in base; leave data out")
        named = None if study.config is None else load_config(self.config_type, study.config)
        shared = {} if named is None else named.model_dump()
        shared |= {k: v for k, v in self.at_hand().items() if named is None or k not in named.model_fields_set}
        raw = merged(shared, study.base)
        if device is not None and "device" in self.config_type.model_fields:
            raw["device"] = device.type
        base: C = parse_config(self.config_type, raw, f"{study.name}: base")
        self.base = self._with_caveats(base, study.caveats)
        if study.output_dir is None:
            self.move_to(Path("outputs", safe_name(f"{study.name}-{self.collection}")))
        self.base = self.base.model_copy(update={"output_dir": str(self.root)})

    @property
    def root(self) -> Path:
        """The study's folder."""
        return Path(self.study.output_dir or "outputs")

    def move_to(self, folder: Path) -> None:
        """Write to another folder from now on, with the data that are loaded."""
        self.study = self.study.model_copy(update={"output_dir": str(folder)})

    # What a family says.

    @property
    def collection(self) -> str:
        """Name of the data that the study names, for its folder; empty where the study's own name is enough."""
        return ""

    def at_hand(self) -> dict[str, Any]:
        """Return keys of a base that names none, which depend on what this machine has."""
        return {}

    @property
    @abstractmethod
    def datasets(self) -> list[str]:
        """Names of the tested datasets in results."""

    @property
    def keys(self) -> list[str]:
        """``task/dataset`` of the tests; each has a table."""
        return [f"{self.task}/{dataset}" for dataset in self.datasets]

    @abstractmethod
    def training(self, config: C, arm: str) -> T:
        """Return the training of an arm with a configuration, of its seed and in its folder."""

    @abstractmethod
    def dev(self, training: T) -> dict[str, float]:
        """Return what a finished training was like on dev: ``val``, and ``seconds``, ``start``, ... where known."""

    @abstractmethod
    def test(self, training: T, arm: str, advance: Advance) -> float:
        """Write the results of a finished training, unless they exist; return the main metric, for progress."""

    @abstractmethod
    def test_to_dev(self, training: T) -> float:
        """Return how much more a test costs than an evaluation on dev, for a plan."""

    def load(self) -> None:
        """Load the data, with notes about them on stderr."""

    def sample(self, config: C, arm: str) -> Sample:
        """Return a training for a plan: by default the whole one, of which it takes a few steps."""
        training = self.training(config, arm)
        return Sample(training, training.steps, training.evaluations, self.test_to_dev(training))

    def decides_time(self, config: C) -> dict[str, Any]:
        """Return what of a configuration decides the time of a training: all but rates, which are fractions."""
        found: dict[str, Any] = _without_fractions(config.model_dump(mode="json", exclude={"seed", "output_dir"}))
        return found

    def untrained(self) -> dict[str, Callable[[C], None]]:
        """Return the systems that are compared without a training, each with what writes its results.

        That is called with the configuration that was chosen for the first arm, in the study's folder. A study may
        call the first of them ``untrained``.
        """
        return {}

    def trains(self, config: C) -> bool:
        """Return whether there is anything to train; else the arm has one result and no seed."""
        return True

    def configured(self, base: C, changes: Changes) -> C:
        """Return a configuration with changes; a UsageError where the keys do not go together."""
        found: C = parse_config(self.config_type, merged(base.model_dump(), changes), self.study.name)
        return self._with_caveats(found, getattr(base, "caveats", ()))

    def _with_caveats(self, config: C, shared: Sequence[str]) -> C:
        """Return a configuration with caveats of all arms added to its own, where its kind has any."""
        if "caveats" not in self.config_type.model_fields:
            return config
        own = attrgetter("caveats")(config)
        return config.model_copy(update={"caveats": [*dict.fromkeys((*own, *shared))]})

    def with_dtype(self, dtype: str | None) -> None:
        """Take the dtype that ``auto`` means to the workers of a cluster."""
        if dtype and self.dtype_key and attrgetter(self.dtype_key)(self.base) == "auto":
            raw = merged(self.base.model_dump(), {self.dtype_key: dtype})
            self.base = parse_config(self.config_type, raw, self.study.name)

    def is_tested(self, training: T, arm: str, seed: int | None) -> bool:
        """Return whether the last files of an arm's test are there."""
        places = [(self.root, arm, seed, self.task, dataset) for dataset in self.datasets]
        return all(path(*place).exists() for place in places for path in (result_path, run_path))

    def identity(self, training: T) -> list[str]:
        """Return hashes of the data, which must be those of the driver on every machine of a cluster."""
        return [training.state.fingerprint]

    def choose(self, configs: Sequence[C], found: Sequence[dict[str, float]]) -> int:
        """Return the place of the best setting on dev; of equals the one tried first."""
        return max(range(len(found)), key=lambda place: (found[place]["val"], -place))

    # What the tables show.

    def scores(self, results: Results, arm: str, key: str, seeds: Sequence[int], metric: str) -> Array:
        """Return scores ``(seeds, queries)`` of an arm on a ``task/dataset``; one row for an arm without seeds."""
        held = [seed for seed in results.seeds(arm, key) if seed in seeds]
        return results.scores(arm, key, held or [None], metric)

    def columns(self, results: Results, arm: str, key: str, config: C | None) -> Mapping[str, Cell]:
        """Return further cells of an arm's row, by column: costs, counts."""
        return {}

    def notes(self) -> Sequence[str]:
        """Return the notes of the table."""
        return ()

    def more_tables(self, results: Results | None, chosen: Mapping[str, ChosenSetting]) -> Sequence[Table]:
        """Return tables in addition to that of all arms; there are no results where nothing is tested."""
        return ()

    def figures(self, chosen: Mapping[str, ChosenSetting]) -> Mapping[str, Figure]:
        """Return figures of the settings that were tried, by the name of the file."""
        return {}


def _without_fractions(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_fractions(one) for key, one in value.items() if not isinstance(one, float)}
    return value


def family_of(name: str) -> type[Family[Any, Any]]:
    """Return a family by its name; a UsageError where there is none, or it cannot be loaded."""
    found: type[Family[Any, Any]] = load_plugin("unimoe.families", name)
    return found
