"""What commands and experiments name: systems, and the collections and tasks of MTEB to evaluate them on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from unimoe.config import DenseExperiment, Experiment
from unimoe.config.base import without_authority
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.io import hash_json
from unimoe.data.mteb_names import find_tasks, pairs_above
from unimoe.evaluation.datasets import Dataset, LoadedDataset, chosen_datasets, tier_datasets
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.retriever import checkpoint_retriever, encoder_retriever, fused_system, served_settings
from unimoe.evaluation.system import (
    System,
    arm_name,
    checkpoint_loader,
    first_stage_system,
    in_orders,
    named_system,
    trained_system,
    zero_shot_system,
)
from unimoe.evaluation.tasks.mteb import RERANKING_TYPES
from unimoe.models.checkpoint import Checkpoint, folder_name, read_checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.models.named import (
    OPTION,
    ModelSettings,
    default_experiment,
    is_checkpoint,
    is_served,
    without_arms,
)
from unimoe.results import Task
from unimoe.retrieval.bm25 import engine_of
from unimoe.retrieval.sizes import sizes_of

if TYPE_CHECKING:
    from mteb import AbsTask


def chosen_systems(
    checkpoints: Sequence[Path],
    model: str | None,
    *,
    name: str | None = None,
    config: Experiment | None = None,
    overrides: Sequence[str] = (),
    output_dir: Path | None = None,
    device: torch.device,
    engine: Engine,
    shuffles: int = 0,
) -> list[System]:
    """Return the systems that a command names; their models are loaded when they are needed.

    There are checkpoints, or a ``model`` by name (``systems.named``) with its ``name`` in results, or none of both for
    the untrained base model of the ``config``. It counts in place of the checkpoint's or model's settings, which
    ``overrides``, ``key=value`` strings, change where no config is given. Results go next to each checkpoint unless an
    ``output_dir`` is given. A system that reads candidates in an order is there once for that of the first stage, and
    for as many random ones as ``shuffles``.
    """
    if model is not None and not is_checkpoint(model):
        experiment = config or default_experiment(model, tuple(overrides))
        if is_served(model):
            engine.refuse_server()
        system = named_system(
            model, ModelSettings(experiment, device, engine.dtype(device, experiment.model.dtype)), name
        )
        # One folder holds one base model.
        placed = replace(system, output_dir=output_dir or Path("outputs", "models", system.name))
        return in_orders([placed], shuffles)
    folders = checkpoints if model is None else (Path(model),)
    if not folders:
        if config is None:
            raise UsageError("--zero-shot needs --config, which names the base model")
        loader = ModelLoader(config, device, engine.dtype(device, config.model.dtype))
        return [replace(zero_shot_system(config, loader), output_dir=output_dir)]
    loaders: dict[str, ModelLoader] = {}  # checkpoints on one base share its weights
    systems = []
    for folder in folders:
        checkpoint, given = read_checkpoint(folder), config
        if given is None and overrides:
            own = without_authority(checkpoint.config)
            given = parse_config(Experiment, overridden(own, overrides), source="checkpoint's config")
        experiment = _evaluation_config(checkpoint, given)
        made = checkpoint_loader(experiment, checkpoint, device)
        alike = hash_json([experiment.model_dump(include={"model", "prompt", "lora", "evaluation"}), made.dtype_name])
        system = trained_system(experiment, loaders.setdefault(alike, made), folder)
        usual = (checkpoint.arm, f"seed_{checkpoint.seed}", folder_name(checkpoint.which))  # place in an experiment
        around = folder.resolve().parents[2] if folder.resolve().parts[-3:] == usual else None
        systems.append(replace(system, output_dir=output_dir or around))
        if experiment.evaluation != systems[0].experiment.evaluation:
            raise UsageError(
                f"{folder} was trained with other evaluation settings than {folders[0]}; give --config for all of them"
            )
    return systems


def _evaluation_config(checkpoint: Checkpoint, given: Experiment | None) -> Experiment:
    """Return the checkpoint's configuration, with the evaluation settings of another config where one is given.

    Model, prompt and adapter are the checkpoint's: a score under another prompt would measure something else. Whether
    the base model's code may run is this user's to say, in the other config alone.
    """
    trained = checkpoint.experiment
    if given is None:
        return trained
    trusting = trained.model.model_copy(update={"trust_remote_code": given.model.trust_remote_code})
    trained = trained.model_copy(update={"model": trusting})
    for section in ("model", "prompt", "lora"):
        if getattr(given, section) != getattr(trained, section):
            raise DataError(
                f"--config: its {section} section differs from what {checkpoint.arm}, seed {checkpoint.seed} was "
                f"trained with on {checkpoint.base_model}; only evaluation settings can be overridden"
            )
    return trained.model_copy(
        update={"evaluation": given.evaluation, "output_dir": given.output_dir, "caveats": given.caveats}
    )


def table_systems(
    config: Path,
    overrides: Sequence[str],
    output_dir: Path | None,
    device: torch.device,
    engine: Engine,
    shuffles: int = 0,
) -> list[System]:
    """Return the ``evaluation.systems`` of a config, which needs no arms: its other sections have defaults.

    ``shuffles`` are those of ``chosen_systems``.
    """
    file = find_config(config)
    raw = read_yaml(file)
    if isinstance(raw, dict):
        raw = without_arms({"name": file.stem, "output_dir": f"outputs/{file.stem}", "gates": None} | raw)
    experiment = parse_config(Experiment, overridden(raw, overrides), source=str(file))
    if not experiment.evaluation.systems:
        raise UsageError(
            f"{file}: evaluation.systems names no models; name some, or give --checkpoint FOLDER, --zero-shot or "
            "--model NAME"
        )
    if output_dir:
        experiment = experiment.model_copy(update={"output_dir": str(output_dir)})
    systems = load_extra_systems(experiment, device, engine.dtype(device, experiment.model.dtype))
    return in_orders(systems, shuffles)


def load_extra_systems(experiment: Experiment, device: torch.device, dtype: torch.dtype) -> list[System]:
    """Return the systems that an experiment names to be evaluated with its arms; models are loaded when needed."""
    model = experiment.model.model_copy(update={"revision": None, "layers": None})  # which are the base's alone
    model.model_fields_set.discard("max_length")  # set for the base: an encoder has a length of its own
    other = experiment.model_copy(update={"model": model})
    systems = []
    for arm, name in experiment.evaluation.systems.items():
        served = is_served(name)  # and reads the base's token ids
        try:
            settings = ModelSettings(experiment if served else other, device, dtype)
            systems.append(named_system(name, settings, arm))
        except UnimoeError as error:
            kind = UsageError if isinstance(error, UsageError) else DataError
            raise kind(f"evaluation.systems.{arm}: {str(error).removeprefix(OPTION).lstrip()}") from None
    return systems


def planned_extra_systems(systems: Sequence[System], data: LoadedDataset) -> Iterator[str]:
    """Yield a line for each system: what it is evaluated on, and the requests and price of one behind a server."""
    texts = [document.full_text for document in data.read.corpus.values()] + list(data.read.queries.values())
    for system in systems:
        model, work = system.model, []
        assert model is not None  # noqa: S101 - for the type checker
        asked = None
        if model.rerank:
            work.append(f"{sum(map(len, data.to_read[1].values())):,} pairs to rerank")
            asked = model.reranker().asked(*data.to_read) if model.dtype is None else None  # without weights to load
        if model.embed:
            work.append(f"{len(texts):,} texts to embed")
            asked = model.embedder().asked(len(texts), sum(map(len, texts))) if model.dtype is None else asked
        work += [str(asked)] if asked else []
        yield f"beside the arms: {system.name} ({model.identity}), {', '.join(work)}"


def retrieval_systems(
    experiment: DenseExperiment, name: str, checkpoint: Path | None, device: torch.device, engine: Engine
) -> list[System]:
    """Return BM25, the checkpoint's arm or else the experiment's encoder, and what is wanted of it: fusion, sizes."""
    stage = experiment.evaluation.first_stage
    if stage != engine_of(experiment.evaluation):
        raise UsageError(f"evaluation.first_stage={stage}: retrieval searches with BM25 itself; use bm25s or rank_bm25")
    if checkpoint is None:
        if served_settings(experiment):
            engine.refuse_server()
        retriever = encoder_retriever(experiment, name, device, engine.dtype(device, experiment.encoder.dtype))
        if retriever.model and retriever.model.said:
            stderr.print(f"{experiment.encoder.base}: {retriever.model.said}", style="dim", soft_wrap=True)
    else:
        retriever = checkpoint_retriever(experiment, checkpoint, name, device)
    fused = [fused_system(retriever)] if experiment.retrieval.fuse_depth is not None else []
    model = retriever.model
    width = model.embedder().dimension if model and model.embed and not checkpoint else None  # else by the first vector
    wanted = {arm_name(f"{retriever.name}-{size.name}"): size for size in sizes_of(experiment.retrieval, width)}
    sizes = [replace(retriever, name=name, size=size) for name, size in wanted.items()]
    return [first_stage_system(experiment), retriever, *fused, *sizes]


@dataclass(frozen=True)
class ChosenData:
    """What systems are evaluated on: ``datasets`` are collections, ``mteb`` tasks of MTEB.

    Attributes:
        task: the one task wanted; None for all that a system does.
        embeds: whether embeddings are evaluated on collections; in the full tier MTEB(eng, v2) is their evaluation.
    """

    datasets: Sequence[Dataset] = ()
    mteb: Sequence[AbsTask] = ()
    task: Task | None = None
    embeds: bool = True

    def tasks(self, system: System, mteb_task: AbsTask | None = None) -> list[Task]:
        """Return a system's tasks that are wanted on collections, or on a task of MTEB.

        Embeddings are compared with the first stage's retrieval, which does no task of MTEB. A task with more pairs
        than ``evaluation.mteb.max_pairs`` is not reranked.
        """
        own: list[Task] = [task for task in system.tasks if self._wants(task)]
        if mteb_task is None:
            return [task for task in own if self.embeds or task != "embedding"]
        limit = system.experiment.evaluation.mteb.max_pairs
        reranks = mteb_task.metadata.type in RERANKING_TYPES and pairs_above(mteb_task, limit) is None
        does = {"embedding"} | ({"reranking"} if reranks else set())
        return [task for task in own if task in does and system.model is not None]

    def _wants(self, task: Task) -> bool:
        return self.task in (None, task) or (task, self.task) == ("retrieval", "embedding")

    def report_left_out(self, system: System) -> None:
        """Print on stderr the tasks of MTEB that are too large for a system to rerank."""
        limit = system.experiment.evaluation.mteb.max_pairs
        for task in self.mteb if "reranking" in system.tasks and self._wants("reranking") else ():
            if pairs := pairs_above(task, limit):
                stderr.print(
                    f"left out: reranking {task.metadata.name}, {pairs:,} pairs, more than "
                    f"evaluation.mteb.max_pairs={limit:,}; set it to null to rerank them all",
                    style="yellow",
                    soft_wrap=True,
                )
        if not self.mteb or any(self.tasks(system, task) for task in self.mteb):
            return
        only = f"{system.name} is evaluated by reranking only"
        if all(task.metadata.type not in RERANKING_TYPES for task in self.mteb):
            raise UsageError(
                f"{only}, and none of these tasks gives candidates to rerank; name tasks of type Reranking, or name "
                "tasks like SciFact by --dataset"
            )
        if not self.datasets:
            raise UsageError(
                f"{only}, and the tasks with candidates are left out (named above); raise evaluation.mteb.max_pairs"
            )


def chosen_data(
    systems: Sequence[System],
    *,
    tier: str = "bundled",
    datasets: Sequence[str] = (),
    mteb: Sequence[str] = (),
    task: Task | None = None,
    max_queries: int | None = None,
) -> ChosenData:
    """Return the collections and the tasks of MTEB that the user names, or those of the tier."""
    experiment = systems[0].settings
    datasets = datasets or ([] if mteb or tier != "bundled" else experiment.evaluation.datasets)
    full = tier == "full" and not datasets and not mteb
    if datasets:
        collections = chosen_datasets(experiment, datasets, max_queries)
    else:
        collections = [] if mteb else tier_datasets(experiment, tier, max_queries)
    if stages := experiment.evaluation.first_stages:
        collections = [each.on(stage) for each in collections for stage in stages]
    if max_queries is not None and mteb:
        raise UsageError("--max-queries cuts collections, not tasks of MTEB; leave it out, or name --dataset")
    names = mteb or (("full",) if full and task != "reranking" else ())
    tasks = find_tasks(names) if names else []
    TaskPrompts(experiment.evaluation.mteb).refuse_unknown_keys(dataset.name for dataset in collections)
    for system in systems:
        if task is not None and task not in system.tasks:
            did = "was trained for" if system.checkpoint else "does"
            raise UsageError(f"--task {task}: {system.name} {did} {', '.join(system.tasks)} only; leave it out")
    return ChosenData(collections, tasks, task, embeds=not full)
