"""The systems of ``unimoe compare`` as run files: those given, and the runs of models and of folders of results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unimoe.analysis.systems import in_order
from unimoe.cli.models import ModelOptions, reranked
from unimoe.cli.run_files import PLACE, Pattern
from unimoe.core.errors import DataError, UsageError
from unimoe.results import arm_dir, qrels_path, read_result, run_beside
from unimoe.results.comparability import refuse_other_data
from unimoe.results.folder import result_paths

_FIRST_STAGE = ("bm25", "first_stage")
"""What names the first stage whose candidates the models rerank."""

_KIND = re.compile(r"[a-z][a-z0-9\-]+:")
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Runs:
    """What a comparison of run files takes.

    Attributes:
        baseline: as ``NAME=PATTERN``; None without one.
        systems: the same of the others.
        datasets: as ``NAME=QRELS``.
    """

    baseline: str | None
    systems: list[str]
    datasets: list[str]


def names_models(baseline: str | None, systems: Sequence[str]) -> bool:
    """Return whether one of the systems is no run file but a model's name or a folder of results."""
    return any(
        _is_scored(Pattern.parse("--systems", text).path) for text in [*([baseline] if baseline else []), *systems]
    )


def as_runs(baseline: str | None, systems: Sequence[str], datasets: Sequence[str], options: ModelOptions) -> Runs:
    """Evaluate the systems that are models, and return the run files of all.

    Args:
        baseline: ``[NAME=]SYSTEM``: a run file or pattern, a model's name, a folder of results, or ``bm25``.
        systems: the same of the others.
        datasets: collections that models are evaluated on, by name; those of the tier where there are none.
        options: how models are evaluated; the collections are added.

    Raises:
        UnimoeError: a model or collection cannot be used, or the systems were not evaluated on the same data.
    """
    for text in datasets:
        if Path(text.partition("=")[2]).is_file() or Path(text).is_file():
            raise UsageError(
                f"--dataset {text}: models are evaluated on collections, which have their judgments; name one, such as "
                "scifact or path:DIR"
            )
    given = [Pattern.parse("--baseline", baseline)] if baseline else []
    given += [Pattern.parse("--systems", text) for text in systems]
    in_order([pattern.path for pattern in given], None)  # refuses one alone before it is evaluated
    for pattern in given:
        _refuse_missing(pattern)
    options = replace(options, datasets=",".join(datasets) or None)
    scored = {
        index: result_paths(Path(pattern.path)) for index, pattern in enumerate(given) if _is_scored(pattern.path)
    }
    models = [index for index, paths in scored.items() if not paths]
    scored |= zip(models, _reranked([given[index].path for index in models], options), strict=True)
    results = _shared(list(scored.values()), [given[index].path for index in scored])
    first = next(iter(scored.values()))
    patterns = []
    for index, pattern in enumerate(given):
        if index in scored:
            patterns.append(_pattern(pattern, [scored[index][key] for key in results]))
        elif _is_first_stage(pattern.path):
            patterns.append(_pattern(pattern, [_first_stage(first[key], pattern.path) for key in results]))
        else:
            patterns.append(f"{pattern.name}={pattern.path}" if pattern.name else pattern.path)
    judged = [f"{first[key].stem}={_judgments(first[key])}" for key in results]
    return Runs(patterns.pop(0) if baseline else None, patterns, judged)


def _reranked(names: Sequence[str], options: ModelOptions) -> list[dict[str, Path]]:
    try:
        return reranked(names, options, "compare")
    except DataError as error:  # an evaluation advises as if it were a command; --output-dir is of comparisons here
        raise DataError(str(error).replace("--output-dir", "--models-dir")) from None


def _is_scored(path: str) -> bool:
    """Return whether a text names a model, a folder of results or a result, whose runs are in known places."""
    if Path(path).is_file():
        return path.endswith(".json")
    if _WILDCARD.search(path) or PLACE in path:
        return False
    return Path(path).is_dir() or _KIND.match(path) is not None


def _is_first_stage(path: str) -> bool:
    return path in _FIRST_STAGE and not Path(path).exists()


def _refuse_missing(pattern: Pattern) -> None:
    path = pattern.path
    known = _is_scored(path) or _is_first_stage(path) or _WILDCARD.search(path) or PLACE in path
    if not known and not Path(path).is_file():
        raise DataError(
            f"{pattern.option} {path}: no such run file or folder; write yes-no:{path} if it is a model of the hub"
        )


def _shared(scored: Sequence[Mapping[str, Path]], names: Sequence[str]) -> list[str]:
    """Return the ``task/dataset`` keys that all systems have; refuse those of other data."""
    keys = [key for key in scored[0] if all(key in others for others in scored)]
    if not keys:
        held = "; ".join(f"{name} has {', '.join(paths) or 'none'}" for name, paths in zip(names, scored, strict=True))
        raise DataError(f"no dataset that all systems were reranked on ({held}); name it with --dataset")
    for key in keys:
        refuse_other_data(key, [read_result(paths[key]) for paths in scored])
    return keys


def _pattern(pattern: Pattern, results: Sequence[Path]) -> str:
    """Return the run files beside a system's results as one pattern, under the arm's name where none is given."""
    name = pattern.name or read_result(results[0]).config_name
    return f"{name}={run_beside(results[0]).parent / f'{PLACE}.trec'}"


def _first_stage(result: Path, name: str) -> Path:
    """Return the result of the first stage whose candidates a model reranked."""
    path = arm_dir(result.parents[4], name, None) / "results" / "reranking" / result.name
    if not path.is_file():
        raise DataError(f"{name}: no results at {path}; name the first stage of the model's evaluation, or a run file")
    return path


def _judgments(result: Path) -> Path:
    held = read_result(result)
    return qrels_path(result.parents[4], held.dataset, held.identity.split)
