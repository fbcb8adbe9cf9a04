"""Models that commands evaluate: the request, and the results of a reranking that is compared with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from unimoe.cli.options import chosen_device, given_options, quiet_libraries, refuse_torchrun
from unimoe.core.console import stdout
from unimoe.core.errors import DataError

if TYPE_CHECKING:
    from unimoe.evaluation.request import EvaluationRequest
    from unimoe.results import Task

_MODEL_FILES = ("config.json", "modules.json", "adapter_config.json")


def evaluation_request(
    *,
    checkpoints: tuple[Path, ...] = (),
    model: str | None = None,
    name: str | None = None,
    config: Path | None = None,
    override: list[str] | None = None,
    eval_tier: str = "bundled",
    datasets: str | None = None,
    mteb: str | None = None,
    task: str | None = None,
    max_queries: int | None = None,
    output_dir: Path | None = None,
    threads: int | None = None,
) -> EvaluationRequest:
    """Return what options of a command ask to evaluate; they are those of ``unimoe evaluate``."""
    from unimoe.config.files import load_experiment
    from unimoe.data.mteb_names import split_names
    from unimoe.evaluation.request import EvaluationRequest

    return EvaluationRequest(
        checkpoints=checkpoints,
        model=model,
        name=name,
        config=load_experiment(config, override or []) if config else None,
        overrides=tuple(override or ()),
        tier=eval_tier,
        datasets=tuple(split_names(datasets or "")),
        mteb=tuple(split_names(mteb or "")),
        task=cast("Task | None", task),
        max_queries=max_queries,
        output_dir=output_dir,
        threads=threads,
        given=given_options(
            config,
            override,
            model=model,
            name=name,
            eval_tier=eval_tier,
            datasets=datasets,
            mteb=mteb,
            task=task,
            max_queries=max_queries,
        ),
    )


@dataclass(frozen=True)
class ModelOptions:
    """How a command evaluates the models that it is given by name, by reranking.

    Attributes:
        output_dir: where models' results go, a folder each.
        datasets: collections by name, with commas between them; None for the tier.
    """

    output_dir: Path
    eval_tier: str | None = None
    datasets: str | None = None
    config: Path | None = None
    override: list[str] | None = None
    max_queries: int | None = None
    device: str | None = None
    threads: int | None = None

    def given(self) -> list[str]:
        """Return the options that say what models are evaluated on and how, where they are set."""
        named = {
            "--datasets": self.datasets,
            "--eval-tier": self.eval_tier,
            "--config": self.config,
            "--set": self.override,
            "--max-queries": self.max_queries,
        }
        return [name for name, value in named.items() if value is not None]


def reranked(names: Sequence[str], options: ModelOptions, command: str) -> list[dict[str, Path]]:
    """Evaluate models by reranking, without printing their scores; return the results of each by ``task/dataset``.

    Results that are up to date are kept. Before the first model scores, all are checked for what they need.

    Raises:
        UnimoeError: a model or a collection cannot be used; ``command`` was started by torchrun.
    """
    from unimoe.evaluation.engines import LocalEngine
    from unimoe.evaluation.evaluate import run_evaluation
    from unimoe.evaluation.request import asked, refuse_untrained_task, targets

    if not names:
        return []
    refuse_torchrun(command)
    for name in names:
        if Path(name).is_dir() and not _holds_model(name):
            raise DataError(f"{name}: holds neither reranking results nor a model; run `unimoe evaluate` first")
    quiet_libraries()
    requests, device, engine = [_request(name, options) for name in names], chosen_device(options.device), LocalEngine()
    for request in requests:
        for target in targets(request, device, engine):
            asked(request, target.experiment)
            refuse_untrained_task(target.load(), request.task)
    stdout.quiet, before = True, stdout.quiet
    try:
        return [run_evaluation(request, device, engine) for request in requests]
    finally:
        stdout.quiet = before


def _request(name: str, options: ModelOptions) -> EvaluationRequest:
    from unimoe.results import safe_name

    return evaluation_request(
        model=name,
        config=options.config,
        override=options.override,
        eval_tier=options.eval_tier or "bundled",
        datasets=options.datasets,
        task="reranking",
        max_queries=options.max_queries,
        output_dir=options.output_dir / safe_name(name),
        threads=options.threads,
    )


def _holds_model(name: str) -> bool:
    """Return whether a folder holds a model or an adapter."""
    return any(Path(name, file).is_file() for file in _MODEL_FILES)
