"""The command ``train-translator``; light to import, so functions import the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.options import Config, Device, Override

if TYPE_CHECKING:
    from unimoe.studies.translator.training.trainer import TranslatorTrainer


def train_translator(
    train: Annotated[
        str,
        typer.Option(
            help="An NPZ file of captions and images; or flickr8k under UNIMOE_DATA, generated, generated-curved."
        ),
    ],
    captions: Annotated[
        Path | None, typer.Option(help="captions.txt: the image of each caption of an NPZ file.")
    ] = None,
    dims: Annotated[
        tuple[int, int] | None,
        typer.Option(metavar="<int> <int>", help="Dimensions that captions and images must have, as in 1024 1536."),
    ] = None,
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
    from unimoe.studies.translator.data.caption_pairs import equal_captions
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
    for caveat in equal_captions(trainer.train, trainer.validation, "trains"):
        stdout.print(f"caveat: {caveat}", soft_wrap=True)
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


COMMANDS = {"train-translator": train_translator}
