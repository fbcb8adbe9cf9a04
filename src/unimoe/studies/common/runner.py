"""The one runner of studies: it registers gates, chooses settings on dev, trains all seeds, tests once, and judges.

Finished work is skipped, so that a killed study continues when it is started again.

Workers of a cluster train into folders, which the study takes over: it then runs as it does in one process, and finds
these trainings done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import Gate, Registration, given_gates, load_gates
from unimoe.analysis.gates.judging import all_decided
from unimoe.analysis.gates.output import gate_lines
from unimoe.analysis.gates.registration import REGISTERED, look_stages, register
from unimoe.cluster.folder_job import Tick, done_by_worker, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Recipe
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json, read_json, write_json
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.folder_settings import STUDY, names_in
from unimoe.results.folder import Results, load_all_results
from unimoe.studies.common.family import UNTRAINED_SEEDS, Family, family_of
from unimoe.studies.common.plan import plan_study
from unimoe.studies.common.study import ChosenSetting, Setting, Study, merged
from unimoe.studies.common.table import settings_table, study_table
from unimoe.training.loop import Training

ANALYSIS, TUNING = "analysis", "tuning"


class StudyRunner:
    """A study in its folder. An arm that cannot be trained as configured, or a gate that cannot be, is a UsageError.

    Args:
        family: of its arms, which has the study.
        engine: lets workers of a cluster do the trainings; by default this process does.

    Attributes:
        tuned: the settings of each arm, with their configurations.
    """

    def __init__(self, family: Family[Any, Any], engine: Engine | None = None) -> None:
        self.family, self._engine = family, engine
        _refuse_other_study(family)
        self.study = family.study = _as_tuned(family.study, family.root / TUNING)
        self.tuned = {arm: self._settings(arm) for arm in self.study.arms}  # refused before the others are trained
        self._gates([family.study.name])  # refused before data are loaded, which name the datasets

    def run(self) -> dict[str, ChosenSetting]:
        """Do everything that is not done yet; return the setting chosen for each arm.

        A ``DataError`` says that the folder holds other gates or another training.
        """
        study, family = self.study, self.family
        family.load()
        gates = self._gates(family.datasets)
        self._register(gates)
        write_json(family.root / STUDY, {"name": study.name, "family": study.family})
        chosen = self._choose_all()
        if not study.seeds:
            return chosen
        first = next(iter(chosen.values())).config
        for write in family.untrained().values():
            write(self._reported(first, study.seeds[0]))
        stages = look_stages(gates.values(), study.seeds)
        for number, seeds in enumerate(stages):
            self._train(chosen, seeds)
            later = [str(seed) for stage in stages[number + 1 :] for seed in stage]
            if later and self._decided():
                stderr.print(f"Every gate has its label: seeds {', '.join(later)} would change nothing", soft_wrap=True)
                break
        return chosen

    def trained(self, arm: str, config: Any, seed: int) -> Training:
        """Return the reported training of an arm."""
        return self.family.training(self._reported(config, seed), arm)  # type: ignore[no-any-return]

    def report(self, chosen: Mapping[str, ChosenSetting]) -> None:
        """Print the tables and the verdict, and write the tables."""
        family, folder = self.family, self.family.root / ANALYSIS
        tables = [settings_table(family, chosen)] if any(one.tried for one in chosen.values()) else []
        results = self._results() if self.study.seeds else None
        if results is not None:
            tables += [study_table(family, results, chosen, key) for key in family.keys]
        tables += family.more_tables(results, chosen)
        for table in tables:
            table.write(folder)
            stdout.print(table.to_rich())
            stdout.print(f"\nTable:  {folder / table.name}.md, .tex and .csv\n", soft_wrap=True)
        for name, figure in family.figures(chosen).items():
            from unimoe.analysis.figures.style import save  # seconds of imports, which few studies need

            stdout.print(f"Figure: {save(figure, folder / name)}\n", soft_wrap=True)
        if results is None:
            return
        analysis = Analysis(results)
        if analysis.registration is not None:
            stdout.print(f"{gate_lines(analysis.registration, analysis.outcomes)}\n", soft_wrap=True)
        stdout.print(f"More:   unimoe analyze --output-dir {family.root}", soft_wrap=True)

    def plan(self) -> None:
        """Print what the study would take; train and write nothing."""
        gates = self._gates(self.family.datasets).values()
        plan_study(self.family, self.tuned, look_stages(gates, self.study.seeds))

    # Gates.

    def _gates(self, datasets: Sequence[str]) -> Mapping[str, Gate]:
        """Return the gates of the study on some datasets; none where nothing is tested."""
        family = self.family
        if not self.study.seeds:
            return {}
        shared = {"task": family.task, "datasets": [*datasets], "metric": family.metrics[0]}
        wanted = self.study.gates_for(shared, [*family.untrained()])
        return given_gates(wanted).gates if wanted else {}

    def _register(self, gates: Mapping[str, Gate]) -> None:
        """Register gates in the study's folder, unless it holds results already."""
        path = self.family.root / REGISTERED
        if not gates:
            return
        if path.exists() and load_gates(path).gates != gates:
            raise DataError(
                f"{path} registers another gate (collection, metric, seeds or margin differ); a gate stays "
                "unchanged during a study, choose another --output-dir"
            )
        if not register(Registration(gates), self.family.root):
            stderr.print(f"{path.parent} has results and no {REGISTERED}: too late to register a gate", soft_wrap=True)

    def _decided(self) -> bool:
        path = self.family.root / REGISTERED
        return path.exists() and all_decided(self._results(), load_gates(path))

    def _results(self) -> Results:
        return load_all_results(self.family.root, allow=UNTRAINED_SEEDS)

    # Settings and trainings.

    def _settings(self, arm: str) -> list[tuple[Setting, Any]]:
        own, family = self.study.arms[arm].set, self.family
        try:
            return [
                (setting, family.configured(family.base, merged(own, setting.changes)))
                for setting in self.study.settings_of(arm)
            ]
        except UsageError as error:
            raise UsageError(f"arms.{arm}: {error}") from None

    def _choose_all(self) -> dict[str, ChosenSetting]:
        """Train every setting of every arm with the seed of the tuning, and return the best of each on dev."""
        folder, seed = self.family.root / TUNING, self.study.seed_of_tuning
        tried = {
            arm: [
                config.model_copy(update={"seed": seed, "output_dir": str(folder / f"{arm}-{setting.folder}")})
                for setting, config in settings
                if len(settings) > 1 or not self.study.seeds  # else there is nothing to choose
            ]
            for arm, settings in self.tuned.items()
        }
        trainings = ((arm, config) for arm, configs in tried.items() for config in configs)
        done_by_workers(self._engine, self.family, trainings, tested=False)
        steps = Steps(len(tried))
        return {arm: self._choose(arm, configs, steps) for arm, configs in tried.items()}

    def _choose(self, arm: str, configs: Sequence[Any], steps: Steps) -> ChosenSetting:
        settings, family = self.tuned[arm], self.family
        if not configs:
            return ChosenSetting(*settings[0], {})
        with steps.step(f"{arm}: {len(configs)} setting{'s' * (len(configs) > 1)} on dev", None) as step:
            found = []
            for config in configs:
                training = family.training(config, arm)
                training.run_with_bar(step)
                found.append(family.dev(training))
            best = family.choose(configs, found)
            step.outcome = f"best {100 * found[best]['val']:.2f} with {settings[best][0].name or 'the base'}"
        tried = {setting.name: facts for (setting, _), facts in zip(settings, found, strict=True)}
        listed = [{**setting.changes, **tried[setting.name]} for setting, _ in settings]
        write_json(family.root / TUNING / f"{arm}.json", listed)
        return ChosenSetting(*settings[best], tried)

    def _reported(self, config: Any, seed: int) -> Any:
        return config.model_copy(update={"seed": seed, "output_dir": str(self.family.root)})

    def _train(self, chosen: Mapping[str, ChosenSetting], seeds: Sequence[int]) -> None:
        """Train every arm with some seeds, and test each training once."""
        configs = {
            arm: [self._reported(one.config, seed) for seed in (seeds if self.family.trains(one.config) else seeds[:1])]
            for arm, one in chosen.items()
        }
        trainings = ((arm, config) for arm, own in configs.items() for config in own)
        done_by_workers(self._engine, self.family, trainings, tested=True)
        steps = Steps(len(configs))
        for arm, own in configs.items():
            with steps.step(f"{arm}: {len(own)} seed{'s' * (len(own) > 1)}", None) as step:
                values = []
                for config in own:
                    training = self.family.training(config, arm)
                    training.run_with_bar(step)
                    values.append(self.family.test(training, arm, step.advance))
                    if not chosen[arm].tried:
                        chosen[arm].reported.append(self.family.dev(training))
                step.outcome = f"test {100 * sum(values) / len(values):.2f}"


def _refuse_other_study(family: Family[Any, Any]) -> None:
    """Refuse the folder of another study or experiment, before anything is trained in it."""
    root, path, own = family.root, family.root / STUDY, {"name": family.study.name, "family": family.study.family}
    if path.exists():
        there = read_json(path, dict[str, str])
    else:
        known = {family.study.name, family.base.model_dump().get("name")}  # a base has a name where it is an experiment
        there = own | {"name": next((name for name in names_in(root) if name not in known), own["name"])}
    for key, value in own.items():
        if there.get(key) != value:
            raise DataError(
                f"{root} holds another study or experiment ({key} {there.get(key)!r} there, {value!r} here); "
                "choose another --output-dir"
            )


def _as_tuned(study: Study, folder: Path) -> Study:
    """Return a study with the seed by which its settings were chosen in this folder: seeds may be added later."""
    seeds = {int(path.name.removeprefix("seed_")) for path in folder.glob("*/*/seed_[0-9]*")} - {*study.seeds}
    if study.tuning_seed is None:
        study = study.model_copy(update={"tuning_seed": min(seeds, default=study.seed_of_tuning)})
    return study


def done_by_workers(
    engine: Engine | None, family: Family[Any, Any], trainings: Iterable[tuple[str, Any]], *, tested: bool
) -> None:
    """Let workers do the trainings, given by arm and configuration, that are not done, and copy what they write.

    Where they are reported, workers test them too. Without a cluster nothing is done, and no training is made. The
    error of the first training that failed is raised when the others have ended.
    """
    if engine is None or engine.cluster is None:
        return
    cluster, study = engine.cluster, family.study.model_dump(mode="json", exclude={"output_dir"})
    recipe = {"maker": f"{__name__}:jobs_of", "study": study, "given": [*family.given]}
    tasks = []
    for arm, config in trainings:
        training = family.training(config, arm)
        reported = config.seed if family.trains(config) else None
        training.make_room()
        if training.is_finished() and (not tested or family.is_tested(training, arm, reported)):
            continue
        settings = config.model_dump(mode="json", exclude={"device", "output_dir"})
        folder = Path(config.output_dir).relative_to(family.root).as_posix()
        part = {"config": settings, "folder": folder, "arm": arm, "tested": tested}
        part["data"] = family.identity(training)
        part["key"] = hash_json([study, part])
        what = f"train {arm}, seed {config.seed}" + ("" if tested else f", {Path(folder).name}")
        steps = max(1, training.steps)
        tasks.append(partial(done_by_worker, cluster, what, recipe, part, family.root, object, items=steps))
    if not tasks:
        return
    with Steps(1).step(f"trainings by workers: {len(tasks)}", len(tasks)) as step:

        def do(task: partial[Any]) -> None:
            task()
            step.advance(1)

        engine.run([partial(do, task) for task in tasks], at_once=len(tasks))


def dtype_of_gpus(engine: Engine | None) -> str | None:
    """Return the dtype that ``auto`` means on the GPUs of a cluster, as the driver may have none; else None."""
    if engine is None or engine.cluster is None:
        return None
    facts = engine.cluster.facts()
    return str(facts["dtype"]) if facts["device"].startswith("cuda") else None


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that does a training of a study, and its test."""
    study = Study.model_validate({**recipe["study"], "output_dir": "outputs"})
    opened = cache(lambda: family_of(study.family)(study, device, recipe["given"]))

    def train(part: Part, folder: Path, tick: Tick) -> None:
        family = opened()
        family.move_to(folder)
        own = {"output_dir": str(folder / part["folder"]), "device": device.type}
        known = {key: value for key, value in own.items() if key in family.config_type.model_fields}
        config = family.config_type.model_validate(part["config"] | known)
        training = family.training(config, part["arm"])
        if family.identity(training) != part["data"]:
            raise DataError(
                f"{study.name}: other texts, vectors or base model on this machine than on the driver's; give all "
                "machines the same UNIMOE_DATA and one kind of processor"
            )
        training.run(lambda *_: tick())
        if part["tested"]:
            family.test(training, part["arm"], lambda _: tick())

    return folder_jobs(train, store)
