"""Models that commands are given by name: the results of their reranking, which are compared with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unimoe.cli.options import chosen_device, given_options, quiet_libraries, refuse_shuffles, refuse_torchrun
from unimoe.core.console import stdout
from unimoe.core.errors import DataError

_MODEL_FILES = ("config.json", "modules.json", "adapter_config.json")  # one of them is in the folder of any model


@dataclass(frozen=True)
class ModelOptions:
    """How a command evaluates the models that it is given by name, by reranking.

    Attributes:
        output_dir: where models' results go, a folder each.
        datasets: collections by name, with commas between them; None for the tier.
        shuffles: random orders of the candidates for models that read them in an order; None for none.
    """

    output_dir: Path
    eval_tier: str | None = None
    datasets: str | None = None
    config: Path | None = None
    override: list[str] | None = None
    max_queries: int | None = None
    device: str | None = None
    threads: int | None = None
    shuffles: int | None = None

    def given(self) -> list[str]:
        """Return the options that say what models are evaluated on and how, where they are set."""
        named = {
            "--dataset": self.datasets,
            "--eval-tier": self.eval_tier,
            "--config": self.config,
            "--set": self.override,
            "--max-queries": self.max_queries,
            "--shuffles": self.shuffles,
            "--device": self.device,
            "--threads": self.threads,
        }
        return [name for name, value in named.items() if value is not None]


def reranked(names: Sequence[str], options: ModelOptions, command: str) -> list[dict[str, Path]]:
    """Evaluate models by reranking, without printing their scores; return the results of each by ``task/dataset``.

    Results that are up to date are kept. Before the first model scores, all are checked for what they need.

    Raises:
        UnimoeError: a model or a collection cannot be used; ``command`` was started by torchrun.
    """
    from unimoe.config.files import load_experiment
    from unimoe.data.mteb_names import split_names
    from unimoe.evaluation.chosen import chosen_data, chosen_systems
    from unimoe.evaluation.engines import Engine
    from unimoe.evaluation.evaluate import run_evaluation
    from unimoe.models.device import use_threads
    from unimoe.results import safe_name

    if not names:
        return []
    refuse_torchrun(command)
    for name in names:
        if Path(name).is_dir() and not any(Path(name, file).is_file() for file in _MODEL_FILES):
            raise DataError(f"{name}: holds neither reranking results nor a model; run `unimoe evaluate` first")
    quiet_libraries()
    override, tier = options.override or [], options.eval_tier or "bundled"
    config = load_experiment(options.config, override) if options.config else None
    device, engine, work = chosen_device(options.device), Engine(), []
    for name in names:
        systems = chosen_systems(
            (),
            name,
            config=config,
            overrides=override,
            output_dir=options.output_dir / safe_name(name),
            device=device,
            engine=engine,
            shuffles=options.shuffles or 0,
        )
        datasets = split_names(options.datasets or "")
        data = chosen_data(systems, tier=tier, datasets=datasets, task="reranking", max_queries=options.max_queries)
        given = given_options(
            options.config, override, model=name, eval_tier=tier, datasets=options.datasets, task="reranking",
            max_queries=options.max_queries, shuffles=options.shuffles,
        )  # fmt: skip
        work.append((systems, data, given))
    refuse_shuffles(options.shuffles or 0, [system for systems, _, _ in work for system in systems])
    use_threads(options.threads)
    stdout.quiet, before = True, stdout.quiet
    try:
        return [run_evaluation(systems, data, device, engine, given) for systems, data, given in work]
    finally:
        stdout.quiet = before
