"""Compares losses on a classic cross-encoder: the same lists, the same seeds, one test, and the first stage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.arms import FIRST_STAGE
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes, marked
from unimoe.config.files import parse_config
from unimoe.config.training import Activation, LossConfig
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.evaluation.engines import Engine
from unimoe.results.folder import Results, load_all_results
from unimoe.studies.common.differences import NO_DIFFERENCE, TESTED, Arms, differences, of_seeds, pair_up
from unimoe.studies.common.registered_gates import register_gates, verdict
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.distant import train_by_workers, with_dtype_of_workers
from unimoe.studies.cross_encoder.evaluation import report
from unimoe.studies.cross_encoder.jobs import training_of
from unimoe.studies.cross_encoder.rates import chosen_rates
from unimoe.studies.cross_encoder.training.data import CrossEncoderData, load_cross_encoder_data
from unimoe.studies.cross_encoder.training.lists import fit_for

REFERENCE = "plistmle_sum_identity"
"""The default that was merged upstream; the others are compared with it too."""

METRICS = ("map", "mrr@10", "ndcg@10")
_TESTED_METRIC = "ndcg@10"

_Scores = NDArray[np.float64]


def _losses() -> dict[str, dict[str, Any]]:
    normalizations: dict[str, dict[str, Any]] = {
        name: {"normalization_method": name} for name in ("none", "sum", "softmax", "minmax", "log")
    }
    normalizations |= {
        f"temperature{value:g}": {"normalization_method": "temperature", "temperature": value} for value in (0.5, 2.0)
    }
    activations: tuple[Activation, ...] = get_args(Activation)
    weighted = {
        f"plistmle_{name}_{activation.lower()}": {"name": "plistmle", "activation": activation, **options}
        for name, options in normalizations.items()
        for activation in activations
    }
    return {
        "listmle": {"name": "listmle"},
        **weighted,
        "plistmle_log1p": {"name": "plistmle", "rank_discount": "log1p"},
        "listnet": {"name": "listnet"},
        "lambdaloss": {"name": "lambdaloss"},
        "softmax": {"name": "softmax"},
        "score_es": {"name": "score_es"},
        "pg_rank": {"name": "pg_rank"},
    }


LOSSES: dict[str, dict[str, Any]] = _losses()
"""The losses to compare, by the name of their arm."""

OF_THE_MEASURE, STAND_INS = ("score_es", "pg_rank"), ("softmax", "lambdaloss", REFERENCE)
"""The losses that raise nDCG itself, and those that the registered gates want them to beat."""


def chosen_losses(names: Sequence[str] | None) -> list[str]:
    """Return the chosen arms, in the order of ``LOSSES``; all of them by default.

    Raises:
        UsageError: a name is unknown; names the closest.
    """
    for name in names or ():
        if name not in LOSSES:
            raise UsageError(f"unknown loss {name!r}{did_you_mean(name, LOSSES)}; there are {', '.join(LOSSES)}")
    return [name for name in LOSSES if names is None or name in names]


def configured(base: CrossEncoderConfig, arm: str, seed: int) -> CrossEncoderConfig:
    """Return the training of one arm with one seed: the base's, with another loss."""
    loss = {**LOSSES[arm], "mini_batch_size": base.loss.mini_batch_size}
    made = parse_config(LossConfig, loss, source="compare_losses")
    return base.model_copy(update={"arm": arm, "seed": seed, "loss": made})


def compare_losses(
    base: CrossEncoderConfig,
    names: Sequence[str] | None,
    seeds: Sequence[int],
    device: torch.device,
    given: Sequence[str] = (),
    rates: Sequence[float] = (),
    engine: Engine | None = None,
) -> None:
    """Train every loss with every seed, rerank the test sets, print a table per set; finished parts are skipped.

    Args:
        base: shared by all losses.
        names: of the losses; None for all.
        seeds: of the reported trainings.
        device: of trainings and reranking.
        given: command-line options, for provenance.
        rates: learning rates, of which each loss gets its best on dev; empty for the base's.
        engine: lets workers of a cluster do the trainings; by default this process does.
    """
    arms = chosen_losses(names)
    base = with_dtype_of_workers(base, engine)
    with Steps(1).step(f"{base.lists.source}: lists made", None) as step:
        data = load_cross_encoder_data(base)
        step.outcome = f"{len(data.lists.lists):,} lists, {len(data.test)} test sets"
    for note in data.lists.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    if not data.test:
        raise UsageError("evaluation.test is empty, and the lists' source has no test split; name a collection")
    gates = wanted_gates(arms, seeds, [one.dataset for one in data.test])
    if gates and not rates:  # the shared rate suits some losses better than others
        stderr.print(
            "note: no gate is registered, since all losses share one rate; give --rates, so that each has its own",
            soft_wrap=True,
        )
    elif gates:
        register_gates(gates, Path(base.output_dir))
    tuning_seed = max(seeds) + 100
    own = (
        chosen_rates(base, arms, rates, lambda arm: configured(base, arm, tuning_seed), data, device, engine)
        if rates
        else {}
    )
    alike = _trained_alike(base, arms, data)
    configs = [  # seed by seed: a killed comparison has whole seeds to show
        configured(base, arm, seed).model_copy(update={"learning_rate": own.get(arm, base.learning_rate)})
        for seed in seeds
        for arm in arms
    ]
    train_by_workers(engine, base, configs, data, given, alike, tested=True)
    steps = Steps(len(configs))
    for config in configs:
        training, paired = training_of(config, data, device), config.arm in alike
        size = training.steps + sum(one.pairs for one in data.test)
        with steps.step(f"{config.arm}, seed {config.seed}", size) as step:
            training.run_with_bar(step)
            manifest = training.fit()
            found = [report(training, manifest, one, given, step, paired=paired)[1] for one in data.test]
            step.outcome = ", ".join(f"{one.dataset} {100 * one.aggregate['ndcg@10']:.2f}" for one in found)
    results = load_all_results(Path(base.output_dir))
    for one in data.test:
        table = losses_table(of_seeds(results, seeds), f"reranking/{one.dataset}", arms)
        table.write(results.output_dir / "analysis")
        stdout.print(table.to_rich(), crop=False)
    analysis = Analysis(results)
    if analysis.registration is not None:
        stdout.print(f"\n{verdict(analysis)}", soft_wrap=True)
    stdout.print(f"\nTables: {results.output_dir / 'analysis'}", soft_wrap=True)


def wanted_gates(arms: Sequence[str], seeds: Sequence[int], datasets: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return a gate for each loss of the measure and each loss that stands in for it, of those that are compared."""
    return {
        f"{system}-beats-{baseline}": {
            "kind": "superiority",
            "task": "reranking",
            "datasets": [*datasets],
            "metric": _TESTED_METRIC,
            "system": system,
            "baseline": baseline,
            "margin": 0.0,
            "seeds": sorted(seeds),
        }
        for system in OF_THE_MEASURE
        for baseline in STAND_INS
        if {system, baseline} <= {*arms}
    }


def losses_table(results: Results, key: str, arms: Sequence[str]) -> Table:
    """Return one row per loss: three metrics with deltas to the first stage, and paired tests on nDCG@10.

    Args:
        results: those of the comparison's folder.
        key: ``reranking/DATASET``.
        arms: the losses.
    """
    runs = {arm: results.seeds(arm, key) for arm in arms}
    before = {metric: results.scores(FIRST_STAGE, key, [None], metric) for metric in METRICS}
    scores = {metric: {arm: results.scores(arm, key, runs[arm], metric) for arm in arms} for metric in METRICS}
    means = {metric: marked([_mean(rows) for rows in scores[metric].values()]) for metric in METRICS}
    tested = scores[_TESTED_METRIC] | {FIRST_STAGE: before[_TESTED_METRIC]}
    found = differences(
        {
            (arm, other): Arms(tested[arm], tested[other], pair_up(results, key, arm, other))
            for other in (FIRST_STAGE, REFERENCE)
            for arm in arms
            if other in tested and arm != other
        }
    )
    rows = []
    for place, arm in enumerate(arms):
        cells = [Cell(arm), Cell(str(len(runs[arm])))]
        for metric in METRICS:
            delta = float(scores[metric][arm].mean() - before[metric].mean())
            cells += [means[metric][place], Cell.signed(100.0 * delta)]
        cells += found[arm, FIRST_STAGE].cells[1:]
        cells += found[arm, REFERENCE].cells if (arm, REFERENCE) in found else NO_DIFFERENCE
        rows.append(tuple(cells))
    first = [Cell(FIRST_STAGE), Cell(ABSENT)]
    for metric in METRICS:
        first += [_mean(before[metric]), Cell(ABSENT)]
    rows.append((*first, *[Cell(ABSENT)] * 5))
    seeds = max(map(len, runs.values()))
    return Table(
        name=f"losses-{key.partition('/')[2].replace(':', '-').replace('/', '-')}",
        caption=f"Losses of a cross-encoder on {key}: {before[_TESTED_METRIC].shape[1]:,} test queries, {seeds} seeds.",
        columns=(
            "loss", "seeds", "MAP", "Δ", "MRR@10", "Δ ", "nDCG@10", "Δ  ", "interval", "p", f"vs {REFERENCE}",
            "interval ", "p ",
        ),
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            "Scores x 100, mean over seeds ± SD; Δ: difference to the first stage (BM25). Intervals and p are of "
            "nDCG@10, against the first stage and against the reference.",
            f"{TESTED}Seeds pair between losses that train on the same lists, in the same order, from the same first "
            "weights.",
            *caveat_notes(results),
        ),
        title="Losses",
    )  # fmt: skip


def _trained_alike(base: CrossEncoderConfig, arms: Sequence[str], data: CrossEncoderData) -> set[str]:
    """Return the arms that learn from the same lists as the reference.

    With one seed these share the first weights and the order of lists. A loss that cannot use some lists has other
    batches from the first step on.
    """

    def content(arm: str) -> str:
        return fit_for(configured(base, arm, 0).loss, data.lists).content_hash

    reference = content(REFERENCE)
    return {arm for arm in arms if content(arm) == reference}


def _mean(scores: _Scores) -> Cell:
    """Return the mean over seeds of scores by seed and query."""
    return Cell.mean((100.0 * scores.mean(axis=1)).tolist())
