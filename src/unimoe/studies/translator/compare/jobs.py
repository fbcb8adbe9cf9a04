"""What the commands ``train-translator`` and ``compare-translators`` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.loading import load_all_results
from unimoe.analysis.tables import Table
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.console import Steps, stderr, stdout
from unimoe.errors import DataError, InputError
from unimoe.models.device import describe_device
from unimoe.results import safe_name
from unimoe.studies.common.gate import verdict
from unimoe.studies.translator.compare import Part
from unimoe.studies.translator.compare.arms import TranslatorComparison
from unimoe.studies.translator.compare.data import load_source
from unimoe.studies.translator.compare.runs import TranslatorRun
from unimoe.studies.translator.compare.speed import BATCH, milliseconds_per_query
from unimoe.studies.translator.compare.table import ablation_table, model_table
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_npz import load_captions
from unimoe.studies.translator.data.caption_pairs import split_by_image
from unimoe.studies.translator.models.interface import LinearMap
from unimoe.studies.translator.models.networks import NetworkTranslator
from unimoe.studies.translator.submission import read_submission, write_submission
from unimoe.studies.translator.training.checkpoints import evaluate, load_translator
from unimoe.studies.translator.training.trainer import TranslatorTrainer

ANALYSIS = "analysis"
SUBMISSION = "submission.csv"


@dataclass(frozen=True)
class Request:
    """What ``compare-translators`` was asked for; see its options."""

    data: str
    captions: Path | None
    encoder: str | None
    models: list[str] | None
    epochs: int
    seeds: int
    settings: int
    margin: float
    device: str | None
    output_dir: Path | None
    override: tuple[str, ...]
    given: tuple[str, ...]


def translator_config(path: Path, keys: Mapping[str, Any], overrides: Sequence[str] = ()) -> TranslatorConfig:
    """A YAML file with keys given as options, nulls left out, and ``key=value`` overrides.

    Raises:
        UsageError: no such file, an unknown key or an impossible value; names it.
    """
    file = find_config(path)
    given = [f"{key}={_as_yaml(value)}" for key, value in keys.items() if value is not None]
    return parse_config(TranslatorConfig, overridden(read_yaml(file), [*given, *overrides]), source=str(file))


def train_one(
    path: Path, keys: Mapping[str, Any], overrides: Sequence[str], data: str, captions: Path | None, test: Path | None
) -> None:
    """Train one translator, print how good, large and quick it is, and translate test captions.

    Args:
        path: the YAML file.
        keys: options by configuration key.
        overrides: ``key=value``.
        data: an NPZ file, or a source by name.
        captions: captions.txt of the file.
        test: captions to translate.
    """
    config = translator_config(path, keys, overrides)
    source = load_source(data, captions)
    # Read before hours of training, so that what is wrong with it is known then.
    asked = None if test is None else load_captions(test, source.pairs.captions.shape[1])
    train, validation = split_by_image(source.pairs, config.validation, config.seed)
    trainer = TranslatorTrainer(config, train, validation)
    with Steps(1).step(f"{config.model} on {source.name}", trainer.batches or None) as step:
        facts = trainer.fit(lambda number, loss: step.advance(1))
        step.outcome = f"best after epoch {facts['best_epoch']}" if facts["epochs"] else "computed"
    translator = trainer.translator()
    for note in translator.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    for name, value in evaluate(translator, validation, trainer.device).items():
        stdout.print(f"{'val/' + name:<18}{value:.4f}" if value < 1 else f"{'val/' + name:<18}{value:g}")
    stdout.print(f"{'parameters':<18}{facts['parameters']:,} ({facts['weight_bytes'] / 1e6:.2f} MB)")
    for device in dict.fromkeys((torch.device("cpu"), trainer.device)):
        speed = milliseconds_per_query(load_translator(trainer.checkpoint, device))
        stdout.print(f"{'ms/query':<18}{speed:.5f} (batches of {BATCH}, {describe_device(device)})", soft_wrap=True)
    stdout.print(f"{'checkpoint':<18}{trainer.checkpoint}", soft_wrap=True)
    if asked is not None and test is not None:
        if not isinstance(translator, LinearMap | NetworkTranslator):
            raise DataError(f"{config.model}: translates into a space of its own, not that of the images; use another")
        target = trainer.checkpoint.parent / SUBMISSION
        try:
            write_submission(target, asked[0], translator.predict(asked[1]))
        except InputError as error:
            raise DataError(f"{test}: caption {asked[0][error.index]!r}: {error.reason}") from None
        ids, _ = read_submission(target, source.pairs.images.shape[1])
        stdout.print(f"{'submission':<18}{target} ({len(ids):,} captions)", soft_wrap=True)


def compare(part: Part, request: Request) -> None:
    """Compare models, or components of the objective; what is done already is skipped."""
    source = load_source(request.data, request.captions, request.encoder)
    suffix = "-ablation" if part is Part.ABLATION else ""
    folder = request.output_dir or Path("outputs") / f"translator-{safe_name(source.name)}{suffix}"
    keys = {"epochs": request.epochs, "device": request.device, "output_dir": str(folder)}
    shared = {key: value for key, value in keys.items() if value is not None}
    base = parse_config(TranslatorConfig, overridden(shared, request.override), source="compare-translators")
    raw: dict[str, Any] = {
        "dataset": source.name,
        "base": base.model_dump(),
        "seeds": [*range(request.seeds)],
        "tuning_seed": request.seeds + 100,
        "settings": request.settings,
        "margin": request.margin,
    }
    raw |= {"models": request.models} if request.models else {}
    compared = parse_config(TranslatorComparison, raw, source="compare-translators")
    run = TranslatorRun(compared, source, request.given)
    if part is Part.ABLATION:
        names = run.ablate()
        _print_table(ablation_table(run, load_all_results(folder), names), folder)
        return
    chosen = run.compare()
    results = load_all_results(folder)
    _print_table(model_table(run, results, chosen), folder)
    analysis = Analysis(results)
    if analysis.registration is not None:
        stdout.print(f"\n{verdict(analysis)}", soft_wrap=True)
    stdout.print(f"\nMore:   unimoe analyze --output-dir {folder}", soft_wrap=True)


def _print_table(table: Table, folder: Path) -> None:
    table.write(folder / ANALYSIS)
    stdout.print(table.to_rich(), crop=False)
    stdout.print(f"\nTable:  {folder / ANALYSIS / table.name}.md, .tex and .csv", soft_wrap=True)


def _as_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
