"""Systems of a comparison that are models or folders of results, as the run files that their evaluation wrote."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from unimoe.analysis.analysis import in_order
from unimoe.cli.models import ModelOptions, reranked
from unimoe.cli.run_files import PLACE, WILDCARD, Pattern
from unimoe.core.errors import DataError, UsageError
from unimoe.results import arm_dir, is_result, qrels_path, read_result, result_paths, run_beside, seed_name
from unimoe.results.comparability import refuse_other_data

_MODEL = re.compile(r"[a-z][a-z0-9\-]+:")  # such as cross-encoder:FOLDER


def is_scored(path: str) -> bool:
    """Return whether a text names a model, a folder of results or a result: their runs are in known places."""
    if Path(path).is_file():
        return is_result(Path(path))
    if WILDCARD.search(path) or PLACE in path:
        return False
    return Path(path).is_dir() or _MODEL.match(path) is not None


def as_run_files(
    given: Sequence[Pattern], datasets: Sequence[str], options: ModelOptions
) -> tuple[list[Pattern], list[str]]:
    """Evaluate the systems that are models; return the run files of all, and datasets as ``NAME=QRELS``.

    A system is run files, a model by name, a folder of results, or the first stage that the models rerank. ``datasets``
    are collections that models are evaluated on, by name; those of the tier where there are none. An UnimoeError says
    that a model or collection cannot be used, or that the systems were not evaluated on the same data.
    """
    for text in datasets:
        if Path(text.partition("=")[2]).is_file() or Path(text).is_file():
            raise UsageError(
                f"--dataset {text}: models are evaluated on collections, which have their judgments; name one, such as "
                "scifact or path:DIR"
            )
    in_order([pattern.path for pattern in given], None)  # refuses one alone before it is evaluated
    for pattern in given:
        path = pattern.path
        known = is_scored(path) or _is_first_stage(path) or WILDCARD.search(path) or PLACE in path
        if not known and not Path(path).is_file():
            raise DataError(
                f"{pattern.option} {path}: no such run file or folder; write yes-no:{path} if it is a model of the hub"
            )
    scored = _scored([pattern.path for pattern in given if is_scored(pattern.path)], datasets, options)
    first, *others = scored.values()
    keys = [key for key in first if all(key in paths for paths in others)]
    if not keys:
        held = "; ".join(f"{name} has {', '.join(paths) or 'none'}" for name, paths in scored.items())
        raise DataError(f"no dataset that all systems were reranked on ({held}); name it with --dataset")
    for key in keys:
        refuse_other_data(key, [read_result(paths[key]) for paths in scored.values()])
    patterns = []
    for pattern in given:
        if pattern.path in scored:
            result = scored[pattern.path][keys[0]]
        elif _is_first_stage(pattern.path):
            result, *_ = [_first_stage(first[key], pattern.path) for key in keys]
        else:
            patterns.append(pattern)
            continue
        name = pattern.name or read_result(result).config_name
        patterns.append(replace(pattern, name=name, path=_runs(result, options.shuffles or 0)))
    judged = [(first[key], read_result(first[key])) for key in keys]
    names = [(path.stem, qrels_path(path.parents[4], held.dataset, held.identity.split)) for path, held in judged]
    return patterns, [f"{name}={qrels}" for name, qrels in names]


def _scored(paths: Sequence[str], datasets: Sequence[str], options: ModelOptions) -> dict[str, dict[str, Path]]:
    """Return the results of systems by ``task/dataset``: those that are there, and those of models, evaluated now."""
    scored = {path: result_paths(Path(path)) for path in paths}
    models = [path for path in scored if not scored[path]]
    try:
        options = replace(options, datasets=",".join(datasets) or None)
        return scored | dict(zip(models, reranked(models, options, "compare"), strict=True))
    except DataError as error:  # an evaluation advises as if it were a command; --output-dir is of comparisons here
        raise DataError(str(error).replace("--output-dir", "--models-dir")) from None


def _runs(result: Path, shuffles: int) -> str:
    """Return the run beside a result with ``{dataset}`` in its name, or the pattern of those in all orders."""
    run = run_beside(result).parent / f"{PLACE}.trec"
    place = result.parents[2]
    if not shuffles or place.name == seed_name(None):
        return str(run)
    return f"{glob.escape(str(place.parent))}/seed_[0-{shuffles}]/{run.relative_to(place)}"


def _is_first_stage(path: str) -> bool:
    return path in ("bm25", "first_stage") and not Path(path).exists()


def _first_stage(result: Path, name: str) -> Path:
    """Return the result of the first stage that found a model's candidates."""
    path = arm_dir(result.parents[4], name, None) / "results" / "reranking" / result.name
    if not path.is_file():
        raise DataError(f"{name}: no results at {path}; name the first stage of the model's evaluation, or a run file")
    return path
