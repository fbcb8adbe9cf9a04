"""Writes the results of one arm as MTEB's results repository wants them, from which its leaderboard is made.

MTEB's own loader and writer do it: ``results/{model}/{revision}/{task}.json``, and ``model_meta.json`` next to them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unimoe.config import ModelConfig
from unimoe.config.base import EncoderConfig, without_authority
from unimoe.config.files import parse_config
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json, read_bytes
from unimoe.data.mteb_names import find_tasks, random_state_kept
from unimoe.evaluation.model_wrappers import model_meta
from unimoe.models.base import base_sizes
from unimoe.models.encoder import POOLINGS, encoder_sizes
from unimoe.results import EvalResult, Task, arm_dir, read_result, result_files
from unimoe.results.comparability import caveats_of

if TYPE_CHECKING:
    from mteb import AbsTask, TaskResult

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Export:
    """What was written into the folder of a model's revision.

    ``missing`` has the reason for each task that was asked for and could not be written, by its name, ``notes`` what to
    know before the folder is handed in, in sentences.
    """

    folder: Path
    tasks: list[str]
    missing: dict[str, str]
    notes: list[str] = field(default_factory=list)


def export_results(
    output_dir: Path,
    arm: str,
    seed: int | None,
    task: Task,
    names: Sequence[str],
    *,
    model: str,
    revision: str | None,
    target: Path,
) -> Export:
    """Write the results of one arm and seed for MTEB's results repository, into ``results/`` of the folder ``target``.

    ``task`` is ``embedding``, or ``reranking`` for what the arm scores as a cross-encoder. ``names`` are tasks and
    benchmarks of MTEB, none for all that there are results of. ``model`` is ``org/name``; without a ``revision`` it
    has a content hash of all that its scores depend on.
    """
    part = r"\w[\w.-]*"  # no "..": it would be another folder
    if not re.fullmatch(f"{part}/{part}", model):
        raise UsageError(f"--model-name {model}: MTEB files models by organisation and name; write org/name")
    if revision is not None and not re.fullmatch(part, revision):
        raise UsageError(
            f"--revision {revision}: it names a folder; use letters, digits, '_', '.' and '-', "
            "and begin with none of the last two"
        )
    wanted = find_tasks(names) if names else []
    folder = arm_dir(output_dir, arm, seed) / "results" / task
    found = {path: read_result(path) for path in result_files(output_dir) if path.parent == folder}
    there = {one.dataset: path for path, one in found.items() if one.task_type and _mteb_json(path).is_file()}
    tasks = {task.metadata.name: task for task in wanted or find_tasks(there)} if there or wanted else {}
    reasons = {name: _unfit(found.get(there.get(name, folder)), task) for name, task in tasks.items()}
    unfit = {name: reason for name, reason in reasons.items() if reason}
    lines = [f"{name}: {reason}" for name, reason in unfit.items()]
    chosen = {name: there[name] for name in tasks if name not in unfit}
    if not chosen:
        reason = f" ({lines[0]})" if lines else ""
        raise DataError(f"{folder}: no result of a whole task of MTEB{reason}; evaluate with --mteb")
    first, *others = chosen.values()
    own, identity = found[first], _identity(found[first])
    for path in others:
        for name, value in _identity(found[path]).items():
            if value != identity[name]:
                raise DataError(f"{path}: another {name} than in {first}; evaluate one of them again")
    facts, notes = _facts(own)
    notes += [f"caveat: {name}: {line}" for name, path in chosen.items() for line in caveats_of(found[path])]
    # All are read first: a damaged one is refused before any is written.
    theirs = {name: _theirs(_mteb_json(path)) for name, path in chosen.items()}
    with random_state_kept():
        from mteb import ResultCache

        kind: Literal["dense", "cross-encoder"] = "dense" if task == "embedding" else "cross-encoder"
        revision = revision or hash_json([task, identity])
        card = model_meta(model, revision, kind, facts)
        cache = ResultCache(target)
        for one in theirs.values():
            cache.save_to_cache(one, card)
        written = cache.get_task_result_path("x", card).parent
    notes += [
        f"{name} was read from a folder, whose content hash is its dataset_revision; the repository takes scores on "
        "MTEB's own data: evaluate without UNIMOE_DATA"
        for name, one in theirs.items()
        if one.dataset_revision != tasks[name].metadata.revision
    ]
    if not wanted:  # nobody asked for what is unfit
        notes += [f"left out: {line}" for line in lines]
    return Export(written, list(theirs), unfit if wanted else {}, notes)


def seed_of(output_dir: Path, arm: str, seed: int | None) -> int | None:
    """Return the seed of an arm's results: the one given, else the only one that there is."""
    places = [path.relative_to(output_dir).parts for path in result_files(output_dir)]
    names = sorted({place[1].removeprefix("seed_") for place in places if place[0] == arm})
    if not names:
        arms = sorted({place[0] for place in places})
        raise DataError(f"{output_dir}: no results of {arm!r}; there are {', '.join(arms) or 'none'}")
    if seed is not None or names == ["none"]:
        return seed
    if len(names) > 1:
        raise UsageError(f"{output_dir}: {arm} has the seeds {', '.join(names)}; choose one by --seed")
    return int(names[0])


def _mteb_json(path: Path) -> Path:
    return path.with_suffix(".mteb.json")


def _unfit(result: EvalResult | None, task: AbsTask) -> str | None:
    """Return why a result is none of the whole task."""
    if result is None:
        return "no result"
    identity, splits = result.identity, "+".join(task.eval_splits)
    if identity.max_queries is not None or identity.pool is not None:
        return "a sample of its queries or documents was scored"
    return None if identity.split == splits else f"the split {identity.split} was scored, MTEB's is {splits}"


def _identity(result: EvalResult) -> dict[str, Any]:
    """Return what the scores of a model depend on, besides the task."""
    config, hashes = result.config, result.provenance.hashes
    return {
        "base model": result.identity.base_model,
        "checkpoint": [result.identity.checkpoint, hashes.get("checkpoint")],
        "dtype": result.provenance.dtype,
        "prompt": config["prompt"],
        "max_length": config["model"]["max_length"],
        "evaluation.mteb": {key: config["evaluation"]["mteb"][key] for key in ("task_instruction", "prompts")},
    }


def _theirs(sidecar: Path) -> TaskResult:
    """Read what MTEB found, which has to be a result of its own."""
    from mteb import TaskResult

    try:
        return TaskResult.model_validate_json(read_bytes(sidecar))
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{sidecar}: no result of MTEB ({reason}); evaluate again") from None


def _facts(result: EvalResult) -> tuple[dict[str, Any], list[str]]:
    """Return what is known of a model for its card, by the card's names, and notes; what nobody knows stays empty."""
    config, dtype = without_authority(result.config), result.provenance.dtype
    model = parse_config(ModelConfig, config["model"], source="the results' config, model")
    base = (result.identity.base_model or "").rpartition("@")[0]
    facts: dict[str, Any] = {
        "framework": ["PyTorch", "Transformers"],
        "max_tokens": model.max_length,
        "use_instructions": config["evaluation"]["mteb"]["task_instruction"] is not None,
        "adapted_from": base.removesuffix(f":{model.layers}") or None,
        "release_date": result.provenance.created[:10],
        "output_dtypes": dtype if dtype != "float32" and dtype in _BYTES else None,
    }
    try:
        if set((result.identity.prompt or "").partition("@")[0].split("+")) <= set(POOLINGS):  # an encoder's
            sizes = encoder_sizes(EncoderConfig(base=model.base, revision=model.revision))
        else:
            sizes = base_sizes(model)
    except DataError as error:
        return facts, [f"model_meta.json has no numbers of parameters: {error}"]
    facts |= {"n_parameters": sizes.parameters, "n_embedding_parameters": sizes.embedding_parameters}
    if dtype in _BYTES:  # a server does not say what it computes in
        facts["memory_usage_mb"] = sizes.parameters * _BYTES[dtype] / 2**20
    if result.task == "embedding":
        facts["embed_dim"] = sizes.width
    return facts, []
