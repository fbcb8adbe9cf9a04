"""The commands ``train-translator`` and ``compare-translators``; light to import, so functions import the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.engine import (
    Address,
    Allow,
    EngineName,
    EngineSettings,
    StoreUrl,
    TrainingThreads,
    WorkerCount,
    opened_engine,
)
from unimoe.cli.options import Config, Device, Override, comma_separated, refuse_torchrun
from unimoe.core.errors import UsageError
from unimoe.studies.translator.compare import Part

if TYPE_CHECKING:
    from unimoe.analysis.tables import Table
    from unimoe.studies.translator.models.interface import Translator
    from unimoe.studies.translator.training.trainer import TranslatorTrainer

Data = Annotated[str, typer.Option(help="flickr8k under UNIMOE_DATA, generated, generated-curved, or an NPZ file.")]
Captions = Annotated[Path | None, typer.Option(help="captions.txt: the image of each caption of an NPZ file.")]
ExpectedDims = Annotated[
    tuple[int, int] | None,
    typer.Option(
        "--dims", metavar="<int> <int>", help="Dimensions that captions and images must have, as in 1024 1536."
    ),
]
Epochs = Annotated[int, typer.Option(min=1, help="Epochs of every training.")]
Seeds = Annotated[int, typer.Option(min=1, help="Trainings of each model that are reported.")]


_TODAY = {
    "arch": "--model {}",
    "epochs": "--set epochs={}",
    "batch": "--set sampler.batch={}",
    "lr": "--set learning_rate={}",
}
"""What to type for the original's options."""


def _refuse_old_name(parameter: typer.CallbackParam, value: str | None) -> None:
    if value is not None:
        others = ", ".join(
            f"--{name}: {typed.format('...')}" for name, typed in _TODAY.items() if name != parameter.name
        )
        raise UsageError(f"--{parameter.name} {value}: type {_TODAY[str(parameter.name)].format(value)} ({others})")


OldName = Annotated[str | None, typer.Option(hidden=True, is_eager=True, callback=_refuse_old_name)]


def train_translator(
    train: Annotated[str, typer.Option(help="An NPZ file of captions and images, or a data set's name as in --data.")],
    captions: Captions = None,
    dims: ExpectedDims = None,
    test: Annotated[Path | None, typer.Option(help="An NPZ file of captions to translate into submission.csv.")] = None,
    config: Config = Path("translator"),
    model: Annotated[
        str | None, typer.Option(help="linear, mlp1, mlp2, ridge, cca, geometry, bigjump or ridge_adapter.")
    ] = None,
    tau: Annotated[float | None, typer.Option(help="A fixed temperature instead of the schedule.")] = None,
    use_pk: Annotated[bool | None, typer.Option("--use_pk/--no_pk", help="Batches of P images x K captions.")] = None,
    pk_images: Annotated[int | None, typer.Option("--P", help="Images of such a batch.")] = None,
    pk_captions: Annotated[int | None, typer.Option("--K_pk", help="Captions of each of them.")] = None,
    use_dcl: Annotated[bool | None, typer.Option("--use_dcl/--no_dcl", help="The debiased loss.")] = None,
    queue_pred: Annotated[
        bool | None, typer.Option("--queue_pred/--no_queue_pred", help="Also find captions for images.")
    ] = None,
    mine: Annotated[int | None, typer.Option("--mine_H", help="Hardest negatives that count; 0 for all.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of split, first weights and batches.")] = None,
    device: Device = None,
    output_dir: Annotated[Path | None, typer.Option(help="Folder of checkpoint, log and submission.")] = None,
    override: Override = None,
    arch: OldName = None,
    epochs: OldName = None,
    batch: OldName = None,
    lr: OldName = None,
) -> None:
    """Train a translator from caption vectors to image vectors; print how well it ranks images for held-out captions.

    Started again, an interrupted training resumes, and a finished one is not repeated.
    """
    from unimoe.config.files import find_config, overridden, parse_config, read_yaml
    from unimoe.core.console import Steps
    from unimoe.studies.translator.config import TranslatorConfig
    from unimoe.studies.translator.data.caption_npz import load_captions
    from unimoe.studies.translator.data.caption_pairs import split_by_image
    from unimoe.studies.translator.data.sources import load_source
    from unimoe.studies.translator.training.trainer import TranslatorTrainer

    keys = {
        "model": model,
        "temperature.fixed": tau,
        "sampler.by_image": use_pk,
        "sampler.images": pk_images,
        "sampler.captions": pk_captions,
        "loss.debiased.enabled": use_dcl,
        "loss.predictions": queue_pred,
        "loss.bank.hardest": mine,
        "seed": seed,
        "device": device,
        "output_dir": None if output_dir is None else str(output_dir),
    }
    given = [f"{key}={_as_yaml(value)}" for key, value in keys.items() if value is not None]
    file = find_config(config)
    parsed = parse_config(TranslatorConfig, overridden(read_yaml(file), [*given, *(override or ())]), str(file))
    source = load_source(train, captions, dims=dims)
    # Read before hours of training, so that errors in it show at once.
    tested = None if test is None else load_captions(test, source.pairs.captions.shape[1])
    trainer = TranslatorTrainer(parsed, *split_by_image(source.pairs, parsed.validation, parsed.seed))
    with Steps(1).step(f"{parsed.model} on {source.name}", trainer.batches or None) as step:
        facts = trainer.fit(lambda number, loss: step.advance(1))
        step.outcome = f"best after epoch {facts['best_epoch']}" if facts["epochs"] else "computed"
    translator = trainer.translator()
    _print_training(trainer, translator, facts)
    if tested is not None:
        _submit(trainer, translator, test, *tested)


def _print_training(trainer: TranslatorTrainer, translator: Translator, facts: dict[str, Any]) -> None:
    import torch

    from unimoe.core.console import stderr, stdout
    from unimoe.models.device import describe_device
    from unimoe.studies.translator.evaluation import evaluate
    from unimoe.studies.translator.models.files import load_translator
    from unimoe.studies.translator.models.interface import TIMED_BATCH, milliseconds_per_query

    for note in translator.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    for name, value in evaluate(translator, trainer.validation, trainer.device).items():
        stdout.print(f"{'val/' + name:<18}{value:.4f}" if value < 1 else f"{'val/' + name:<18}{value:g}")
    stdout.print(f"{'parameters':<18}{facts['parameters']:,} ({facts['weight_bytes'] / 1e6:.2f} MB)")
    for device in dict.fromkeys((torch.device("cpu"), trainer.device)):
        speed = milliseconds_per_query(load_translator(trainer.checkpoint, device))
        where = f"batches of {TIMED_BATCH}, {describe_device(device)}"
        stdout.print(f"{'ms/query':<18}{speed:.5f} ({where})", soft_wrap=True)
    stdout.print(f"{'checkpoint':<18}{trainer.checkpoint}", soft_wrap=True)


def _submit(
    trainer: TranslatorTrainer, translator: Translator, test: Path | None, ids: list[str], vectors: Any
) -> None:
    """Write submission.csv for the captions of ``test``."""
    from unimoe.core.console import stdout
    from unimoe.core.errors import DataError, named_inputs
    from unimoe.studies.translator.models.interface import LinearMap
    from unimoe.studies.translator.models.networks import NetworkTranslator
    from unimoe.studies.translator.submission import write_submission

    if not isinstance(translator, LinearMap | NetworkTranslator):
        raise DataError(
            f"{trainer.config.model}: translates into a separate space, not that of the images; use another model"
        )
    path = trainer.checkpoint.parent / "submission.csv"
    with named_inputs(lambda index: f"{test}: caption {ids[index]!r}"):
        write_submission(path, ids, translator.predict(vectors))
    stdout.print(f"{'submission':<18}{path} ({len(ids):,} captions)", soft_wrap=True)


def compare_translators(
    part: Annotated[Part, typer.Argument(help="All models, or the components of one.")] = Part.MODELS,
    data: Data = "flickr8k",
    captions: Captions = None,
    dims: ExpectedDims = None,
    encoder: Annotated[str | None, typer.Option(help="Of Flickr8k's captions; by default the bundled one.")] = None,
    models: Annotated[str | None, typer.Option(help="Models separated by commas; by default all.")] = None,
    epochs: Epochs = 25,
    seeds: Seeds = 5,
    settings: Annotated[int, typer.Option(min=1, max=6, help="Settings of each network tried on dev.")] = 6,
    margin: Annotated[float, typer.Option(help="The MRR by which an adapter must beat ridge: .01 is a point.")] = 0.01,
    device: Device = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default outputs/translator-DATA.")] = None,
    override: Override = None,
    threads: TrainingThreads = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: WorkerCount = None,
    store: StoreUrl = None,
    allow: Allow = None,
) -> None:
    """Compare translators over several splits by image: settings chosen on dev, one test, gates registered beforehand.

    Started again, an interrupted comparison resumes. ``analyze`` reads the folder too.
    """
    from unimoe.analysis.analysis import Analysis
    from unimoe.config.files import overridden, parse_config
    from unimoe.core.console import stdout
    from unimoe.results import safe_name
    from unimoe.results.folder import load_all_results
    from unimoe.studies.common.registered_gates import verdict
    from unimoe.studies.translator.compare.arms import TranslatorComparison
    from unimoe.studies.translator.compare.runs import TranslatorRun
    from unimoe.studies.translator.compare.table import ablation_table, model_table
    from unimoe.studies.translator.config import TranslatorConfig
    from unimoe.studies.translator.data.sources import load_source

    refuse_torchrun("training translators")
    options = {"data": data, "epochs": epochs, "seeds": seeds, "settings": settings, "models": models}
    options |= {"captions": captions, "encoder": encoder}
    given = [f"--{name} {value}" for name, value in options.items() if value is not None]
    where = EngineSettings(engine, address, workers, store, allow, device, threads)
    where.use_threads()
    source = load_source(data, captions, encoder, dims)
    suffix = "-ablation" if part is Part.ABLATION else ""
    folder = output_dir or Path("outputs") / f"translator-{safe_name(source.name)}{suffix}"
    shared = {"epochs": epochs, "output_dir": str(folder)} | ({"device": where.here} if where.here else {})
    base = parse_config(TranslatorConfig, overridden(shared, override or ()), "compare-translators")
    raw: dict[str, Any] = {
        "dataset": source.name,
        "base": base.model_dump(),
        "seeds": [*range(seeds)],
        "tuning_seed": seeds + 100,
        "settings": settings,
        "margin": margin,
    }
    if names := comma_separated(models):
        raw["models"] = names
    comparison = parse_config(TranslatorComparison, raw, "compare-translators")
    with opened_engine(where) as opened:
        run = TranslatorRun(comparison, source, (*given, *(f"--set {text}" for text in override or ())), opened)
        if part is Part.ABLATION:
            rows = run.ablate()
        else:
            chosen = run.compare()
    results = load_all_results(folder)
    if part is Part.ABLATION:
        _print_table(ablation_table(run, results, rows), folder)
        return
    _print_table(model_table(run, results, chosen), folder)
    analysis = Analysis(results)
    if analysis.registration is not None:
        stdout.print(f"\n{verdict(analysis)}", soft_wrap=True)
    stdout.print(f"\nMore:   unimoe analyze --output-dir {folder}", soft_wrap=True)


def ablate_translator(
    data: Data = "flickr8k",
    captions: Captions = None,
    dims: ExpectedDims = None,
    epochs: Epochs = 25,
    seeds: Seeds = 5,
    device: Device = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default outputs/translator-DATA-ablation.")] = None,
    override: Override = None,
    threads: TrainingThreads = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: WorkerCount = None,
    store: StoreUrl = None,
    allow: Allow = None,
) -> None:
    """Switch each component of the objective off and on: differences with intervals, and counts of its activity."""
    compare_translators(
        Part.ABLATION, data=data, captions=captions, dims=dims, epochs=epochs, seeds=seeds, device=device,
        output_dir=output_dir, override=override, threads=threads, engine=engine, address=address, workers=workers,
        store=store, allow=allow,
    )  # fmt: skip


def _print_table(table: Table, folder: Path) -> None:
    from unimoe.core.console import stdout

    table.write(folder / "analysis")
    stdout.print(table.to_rich(), crop=False)
    stdout.print(f"\nTable:  {folder / 'analysis' / table.name}.md, .tex and .csv", soft_wrap=True)


def _as_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


COMMANDS = {"train-translator": train_translator, "compare-translators": compare_translators}
