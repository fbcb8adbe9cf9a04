"""Where gates come from: a file that was in the output folder before the scores, else default gates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unimoe.analysis.arms import ZERO_SHOT, ArmPair, pairs
from unimoe.analysis.gates.definitions import Gate, InterferenceGate, Registration, load_gates, sealed, unsealed
from unimoe.config.files import dump_yaml
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.grouping import gathered
from unimoe.core.io import find_files, write_bytes
from unimoe.results import Task
from unimoe.results.folder import Results

REGISTERED = "gates.yaml"  # its presence in an output folder means that it was there before the first result


def register(registration: Registration, output_dir: Path) -> bool:
    """Put gates into an output folder that holds no results yet, and return whether it has registered gates now.

    Gates that come from a file are copied to the byte, below a checksum; others are written with the present time.
    Where the folder has registered gates and these come from no file, the registered ones stay. Where it has results
    and no registered gates, it is too late to register any.

    Raises:
        DataError: other gates are registered there.
    """
    path = output_dir / REGISTERED
    if path.exists():
        there = load_gates(path).content_hash
        if registration.path is not None and there != registration.content_hash:
            raise DataError(
                f"{path} registers other gates (hash {there}) than {registration.path} "
                f"(hash {registration.content_hash}); gates are not changed under way: keep them with "
                f"--set gates={path}, or choose another --output-dir"
            )
        return True
    if output_dir.exists() and find_files(output_dir, "*/seed_*/results/*/*.json"):  # sidecars tell of scores too
        return False
    if registration.path is not None:
        content = unsealed(registration.path)  # to the byte: it is known by its hash
    else:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        plain = {name: gate.model_dump(exclude_none=True) for name, gate in registration.gates.items()}
        content = dump_yaml({"registered": now, "gates": plain}).encode()
    write_bytes(path, sealed(content))
    return True


def unmet(
    registration: Registration, arms: Collection[str], seeds: Collection[int], datasets: Mapping[Task, Collection[str]]
) -> Iterator[str]:
    """Yield each thing that gates lack in an experiment of some arms, training seeds and datasets, and its remedy."""
    for name, gate in registration.gates.items():
        where = f"{registration.path}: gate {name!r}"
        for arm in gate.needed:
            if arm not in arms:
                yield f"{where} names arm {arm!r}, which this experiment does not have{did_you_mean(arm, arms)}"
        if gate.looks and len(seeds) < gate.looks[0]:
            yield (
                f"{where} has its first look at {gate.looks[0]} seeds, and this experiment trains {len(seeds)}; train "
                "more, or set gates=null for default gates"
            )
        absent = [str(seed) for seed in gate.seeds or () if seed not in seeds and not gate.looks]
        if absent:
            yield f"{where} registers seed {', '.join(absent)}, which this experiment does not train"
        held = datasets.get(gate.task, ())
        for dataset in gate.datasets:
            if dataset not in held:
                yield (
                    f"{where} names {gate.task}/{dataset}, on which this experiment is not evaluated"
                    f"{did_you_mean(dataset, held)}; write its own dataset, or leave 'gates' out of the config for "
                    "default gates"
                )


def registered_in(output_dir: Path) -> Registration | None:
    """Return the gates registered in an output folder, None where none are; a DataError where the file is malformed."""
    path = output_dir / REGISTERED
    return load_gates(path) if path.exists() else None


def own_gates(arms: Iterable[str], datasets: Sequence[str], metric: str, seeds: Sequence[int]) -> Registration:
    """Return default gates for an experiment that names none: one for each pair of its arms.

    All arms are evaluated on the datasets, which share their main metric.
    """
    held, looks = set(arms), default_looks(len(seeds))
    given = {"metric": metric, "datasets": list(datasets), "seeds": list(seeds), "looks": looks}
    whole = (pair for pair in pairs(held) if held.issuperset(pair.arms))
    return Registration({f"{p.task}.{p.joint}": gate_of(p, **given, specialist_must_beat=ZERO_SHOT) for p in whole})


def default_looks(seeds: int) -> list[int] | None:
    """Return the looks of an experiment that names no gates: at 3 and 5 seeds and at the end; None below five seeds."""
    return [*(look for look in (3, 5) if look <= seeds - 2), seeds] if seeds >= 5 else None


def look_stages(gates: Iterable[Gate], seeds: Sequence[int]) -> list[list[int]]:
    """Return the seeds in parts, each up to the next look of a gate; all are in one part, as given, without looks."""
    ends = {look for gate in gates for look in gate.looks or () if look < len(seeds)} | {len(seeds)}
    if len(ends) == 1:
        return [[*seeds]]
    ordered = sorted(seeds)  # in the order in which looks take them
    return [ordered[start:end] for start, end in pairwise([0, *sorted(ends)])]


def default_gates(
    results: Results, registered: Registration | None = None, asked: Iterable[ArmPair] | None = None
) -> Registration:
    """Return default gates for what no registered gate judges: one for each pair of arms and main metric.

    The pairs are those asked for, by default those that the names of the arms make.

    MRR@10 and nDCG@10 are never averaged; CQADupStack's forums count once. Cutoffs, confidence and the rest are those
    of a registered gate on the same task, so that one analysis has one set of cutoffs for a task; else the defaults.
    """
    held = tuple(registered.gates.values()) if registered else ()
    gates: dict[str, Gate] = {}
    found = suites(results, pairs(results) if asked is None else asked, held)
    for (pair, metric), datasets in found.items():
        alike = [(p, m) for p, m in found if (p.task, p.joint) == (pair.task, pair.joint)]
        name = f"{pair.task}.{pair.joint}"
        name += f"-{pair.specialist}" if len({p for p, _ in alike}) > 1 else ""
        name += f"-{metric}" if len({m for _, m in alike}) > 1 else ""
        alike_gates = (g for g in held if isinstance(g, InterferenceGate) and g.task == pair.task)
        settings: dict[str, Any] = next((g.model_dump(exclude_unset=True) for g in alike_gates), {})
        beaten = settings.get("specialist_must_beat")
        if beaten and not all(results.measured(f"{pair.task}/{dataset}", beaten) for dataset in datasets):
            del settings["specialist_must_beat"]  # what nobody required here must not keep it from being judged
        settings |= {"datasets": datasets, "metric": metric, "seeds": None, "looks": None}
        settings |= {"pool_runs": True} if results.pools_runs else {}
        try:
            gates[name] = gate_of(pair, **settings)
        except UsageError as error:  # results hold metrics that a module registered when they were made
            raise DataError(f"{results.output_dir}: {error}; if a module registers it, give --import MODULE") from None
    return Registration(gates)


def gate_of(pair: ArmPair, **settings: Any) -> Gate:
    """Return the interference gate of a pair of arms; what is not set has its default, a mistake is a UsageError."""
    own = {"kind": "interference", "task": pair.task, "specialist": pair.specialist, "joint": pair.joint}
    try:
        return InterferenceGate.model_validate(settings | own)
    except ValidationError as error:
        raise UsageError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None


def suites(
    results: Results, asked: Iterable[ArmPair], held: Sequence[Gate] = ()
) -> dict[tuple[ArmPair, str], list[str]]:
    """Return the datasets with results of both arms of a pair that no gate held judges, by pair and main metric."""
    judged = {(gate.arms, key) for gate in held for key in gate.keys}
    found = (
        ((pair, measured[0][0].main_metric), key.partition("/")[2])
        for pair in asked
        for key in results.dataset_keys
        if key.startswith(f"{pair.task}/") and (pair.arms, key) not in judged
        if all(measured := [results.measured(key, arm) for arm in pair.arms])
    )
    return gathered(found)
