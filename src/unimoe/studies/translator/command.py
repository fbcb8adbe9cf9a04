"""The commands ``train-translator`` and ``compare-translators``; light to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unimoe.cli.options import Device, Override, comma_separated
from unimoe.studies.translator.compare import Part


def train_translator(
    train: Annotated[
        str, typer.Option(help="An NPZ file of captions and images; or flickr8k, generated, generated-curved.")
    ],
    captions: Annotated[
        Path | None, typer.Option(help="captions.txt: which image each caption of the file belongs to.")
    ] = None,
    test: Annotated[Path | None, typer.Option(help="An NPZ file of captions to translate into submission.csv.")] = None,
    config: Annotated[Path, typer.Option(help="A YAML file, or the name of a shipped one.")] = Path("translator"),
    model: Annotated[
        str | None, typer.Option(help="linear, mlp1, mlp2, ridge, cca, geometry, bigjump or ridge_adapter.")
    ] = None,
    tau: Annotated[float | None, typer.Option(help="One temperature in place of the curriculum.")] = None,
    use_pk: Annotated[bool | None, typer.Option("--use_pk/--no_pk", help="Batches of P images x K captions.")] = None,
    pk_images: Annotated[int | None, typer.Option("--P", help="Images of such a batch.")] = None,
    pk_captions: Annotated[int | None, typer.Option("--K_pk", help="Captions of each of them.")] = None,
    use_dcl: Annotated[bool | None, typer.Option("--use_dcl/--no_dcl", help="The debiased loss.")] = None,
    queue_pred: Annotated[
        bool | None, typer.Option("--queue_pred/--no_queue_pred", help="Images look for captions too.")
    ] = None,
    mine: Annotated[int | None, typer.Option("--mine_H", help="Hardest negatives that count; 0 for all.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of split, first weights and batches.")] = None,
    device: Device = None,
    output_dir: Annotated[Path | None, typer.Option(help="Where checkpoint, log and submission go.")] = None,
    override: Override = None,
) -> None:
    """Train a translator from caption vectors to image vectors; print how its validation captions find their images.

    A killed training goes on when it is started again; one that is done is found.
    """
    from unimoe.studies.translator.compare import jobs as translator_jobs

    keys: dict[str, Any] = {
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
    translator_jobs.train_one(config, keys, override or (), train, captions, test)


def compare_translators(
    part: Annotated[Part, typer.Argument(help="All models; or one with its components switched.")] = Part.MODELS,
    data: Annotated[
        str, typer.Option(help="flickr8k under UNIMOE_DATA, generated, generated-curved, or an NPZ file.")
    ] = "flickr8k",
    captions: Annotated[Path | None, typer.Option(help="captions.txt of an NPZ file.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Of Flickr8k's captions; by default the bundled one.")] = None,
    models: Annotated[str | None, typer.Option(help="Some of the models, with commas; by default all.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of every training.")] = 25,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each model that are reported.")] = 5,
    settings: Annotated[int, typer.Option(min=1, max=6, help="Settings of each network tried on dev.")] = 6,
    margin: Annotated[float, typer.Option(help="By how much an adapter must beat ridge: .01 is a point.")] = 0.01,
    device: Device = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default outputs/translator-DATA.")] = None,
    override: Override = None,
) -> None:
    """Compare translators over several splits by image: settings chosen on dev, one test, gates registered beforehand.

    What is done is skipped, so a killed comparison goes on when it is started again. ``analyze`` reads the folder too.
    """
    from unimoe.studies.translator.compare import jobs as translator_jobs

    options = {"data": data, "epochs": epochs, "seeds": seeds, "settings": settings, "models": models}
    given = [f"--{name} {value}" for name, value in options.items() if value is not None]
    translator_jobs.compare(
        part,
        translator_jobs.Request(
            data=data,
            captions=captions,
            encoder=encoder,
            models=comma_separated(models),
            epochs=epochs,
            seeds=seeds,
            settings=settings,
            margin=margin,
            device=device,
            output_dir=output_dir,
            override=tuple(override or ()),
            given=(*given, *(f"--set {text}" for text in override or ())),
        ),
    )


def ablate_translator(
    data: Annotated[str, typer.Option(help="As in compare-translators.")] = "flickr8k",
    captions: Annotated[Path | None, typer.Option(help="captions.txt of an NPZ file.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of every training.")] = 25,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each row.")] = 5,
    device: Device = None,
    output_dir: Annotated[Path | None, typer.Option(help="By default outputs/translator-DATA-ablation.")] = None,
    override: Override = None,
) -> None:
    """Switch each component of the objective off and on: a table with paired intervals, and how often each fired."""
    compare_translators(
        Part.ABLATION, data=data, captions=captions, epochs=epochs, seeds=seeds, device=device, output_dir=output_dir,
        override=override,
    )  # fmt: skip


COMMANDS = {"train-translator": train_translator, "compare-translators": compare_translators}
