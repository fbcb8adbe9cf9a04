"""The commands ``train-translator`` and ``compare-translators``; light to import, so functions import the rest."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.options import Config, Device, EngineSettings, Override, comma_separated, given_options, with_engine
from unimoe.core.errors import UsageError
from unimoe.studies.common.command import Plan, run_study

if TYPE_CHECKING:
    from unimoe.studies.translator.data.caption_pairs import CaptionPairs
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
TrainingsPerModel = Annotated[int, typer.Option(min=1, help="Trainings of each model that are reported.")]

MODELS, ABLATION = Path("studies/translators"), Path("studies/translator_ablation")


def train_translator(
    train: Annotated[str, typer.Option(help="An NPZ file of captions and images, or a data set's name as in --data.")],
    captions: Captions = None,
    dims: ExpectedDims = None,
    test: Annotated[Path | None, typer.Option(help="An NPZ file of captions to translate into submission.csv.")] = None,
    config: Config = Path("translator"),
    model: Annotated[
        str | None,
        typer.Option("--model", "--arch", help="linear, mlp1, mlp2, ridge, cca, geometry, bigjump or ridge_adapter."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs; the best one on the validation images is kept.")] = None,
    batch: Annotated[int | None, typer.Option(help="Captions of a shuffled batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate.")] = None,
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

    keys: dict[str, Any] = {
        "model": model,
        "epochs": epochs,
        "sampler.batch": batch,
        "learning_rate": lr,
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
    as_yaml = {key: str(value).lower() if isinstance(value, bool) else repr(value) for key, value in keys.items()}
    given = [f"{key}={as_yaml[key]}" for key, value in keys.items() if value is not None]
    file = find_config(config)
    parsed = parse_config(TranslatorConfig, overridden(read_yaml(file), [*given, *(override or ())]), str(file))
    source = load_source(train, captions, dims=dims)
    # Read before hours of training, so that errors in it show at once.
    tested = None if test is None else load_captions(test, source.pairs.captions.shape[1])
    trainer = TranslatorTrainer(parsed, *split_by_image(source.pairs, parsed.validation, parsed.seed))
    with Steps(1).step(f"{parsed.model} on {source.name}", trainer.steps or None) as step:
        facts = trainer.fit(lambda number, loss: step.advance(1))
        step.outcome = f"best after epoch {facts['best_epoch']}" if facts["epochs"] else "computed"
    _report(trainer, facts, test, tested)


def _report(trainer: TranslatorTrainer, facts: dict[str, Any], test: Path | None, tested: Any) -> None:
    """Print how well the translator ranks, its size and speed; write submission.csv for the captions of ``test``."""
    import torch

    from unimoe.core.console import stderr, stdout
    from unimoe.core.errors import DataError, named_inputs
    from unimoe.models.device import describe_device
    from unimoe.studies.translator.evaluation import evaluate
    from unimoe.studies.translator.models.translators import (
        TIMED_BATCH,
        ProjectionPair,
        load_translator,
        milliseconds_per_query,
        write_submission,
    )

    translator, rows = trainer.translator(), list[tuple[str, str]]()
    for note in translator.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    for name, value in evaluate(translator, trainer.validation, trainer.device).items():
        rows.append((f"val/{name}", f"{value:.4f}" if value < 1 else f"{value:g}"))
    rows.append(("parameters", f"{facts['parameters']:,} ({facts['weight_bytes'] / 1e6:.2f} MB)"))
    for device in dict.fromkeys((torch.device("cpu"), trainer.device)):
        speed = milliseconds_per_query(load_translator(trainer.checkpoint, device))
        rows.append(("ms/query", f"{speed:.5f} (batches of {TIMED_BATCH}, {describe_device(device)})"))
    rows.append(("checkpoint", str(trainer.checkpoint)))
    for name, text in rows:
        stdout.print(f"{name:<18}{text}", soft_wrap=True)
    if tested is None:
        return
    if isinstance(translator, ProjectionPair):
        raise DataError(
            f"{trainer.config.model}: translates into a separate space, not that of the images; use another model"
        )
    ids, vectors = tested
    path = trainer.checkpoint.parent / "submission.csv"
    with named_inputs(lambda index: f"{test}: caption {ids[index]!r}"):
        write_submission(path, ids, translator.predict(vectors))
    stdout.print(f"{'submission':<18}{path} ({len(ids):,} captions)", soft_wrap=True)


class TranslatorComparison(StrEnum):
    """The two comparisons: of all models, or of the components of one."""

    MODELS = "models"
    ABLATION = "ablation"


@with_engine
def compare_translators(
    part: Annotated[
        TranslatorComparison, typer.Argument(help="All models, or the components of one.")
    ] = TranslatorComparison.MODELS,
    data: Data = "flickr8k",
    captions: Captions = None,
    dims: ExpectedDims = None,
    encoder: Annotated[str | None, typer.Option(help="Of Flickr8k's captions; by default the bundled one.")] = None,
    models: Annotated[str | None, typer.Option(help="Models separated by commas; by default all.")] = None,
    epochs: Epochs = 25,
    seeds: TrainingsPerModel = 5,
    settings: Annotated[int, typer.Option(min=1, max=6, help="Settings of each network tried on dev.")] = 6,
    margin: Annotated[float, typer.Option(help="The MRR by which an adapter must beat ridge: .01 is a point.")] = 0.01,
    output_dir: Annotated[
        Path | None, typer.Option(help="By default outputs/translator-DATA; -ablation for parts.")
    ] = None,
    override: Override = None,
    plan: Plan = False,
    *,
    where: EngineSettings,
) -> None:
    """Compare translators over several splits by image: settings chosen on dev, one test, gates registered beforehand.

    Started again, an interrupted comparison resumes. ``analyze`` reads the folder too.
    """
    from unimoe.results import safe_name
    from unimoe.studies.common.study import load_study
    from unimoe.studies.translator.family import TranslatorData

    source = {"source": str(Path(data).resolve()) if Path(data).exists() else data, "encoder": encoder, "dims": dims}
    source["captions"] = None if captions is None else str(captions.resolve())
    held, ablation = TranslatorData.model_validate(source).load(), part is TranslatorComparison.ABLATION
    folder = output_dir or Path("outputs") / f"translator-{safe_name(held.name)}{'-ablation' * ablation}"
    sizes = batch_of(held.pairs, epochs) if ablation else []
    named = [f"base.epochs={epochs}", *sizes, *(override or ())]
    study = load_study(ABLATION if ablation else MODELS, named, {"seeds": seeds, "output_dir": str(folder)})
    changes: dict[str, Any] = {"data": {**study.data, **source}}
    if not ablation:
        changes |= {"settings": settings, "gates": {n: {**gate, "margin": margin} for n, gate in study.gates.items()}}
    study = study.model_copy(update=changes).of_arms(comma_separated(models))
    given = given_options(
        None,
        override,
        data=data,
        captions=captions,
        encoder=encoder,
        models=models,
        epochs=epochs,
        seeds=seeds,
        settings=settings,
    )
    run_study(study, where, given, plan=plan)


def batch_of(pairs: CaptionPairs, epochs: int) -> list[str]:
    """Return overrides that make every component of an ablation active: batches of at most a quarter of the images."""
    images = round(len(pairs.image_ids) * 0.6)  # without dev and test
    batch = min(64, images // 4)
    if batch < 2 or epochs < 3:
        raise UsageError(
            f"an ablation of {images} training images and {epochs} epochs would leave the queue unused; "
            "give 8 images and 3 epochs at least"
        )
    bank = {"hardest": batch // 2, "recent": [4 * batch, 8 * batch, 16 * batch], "queue": 16 * batch}
    return [
        f"base.sampler.images={batch}",
        f"base.sampler.batch={2 * batch}",
        *(f"base.loss.bank.{key}={value}" for key, value in bank.items()),
    ]


COMMANDS = {"train-translator": train_translator, "compare-translators": compare_translators}
