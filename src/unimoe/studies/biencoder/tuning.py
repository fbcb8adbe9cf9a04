"""Chooses a bi-encoder's settings on dev, trains the best with several seeds, and scores them on test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.statistics.variance import Array
from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes
from unimoe.config.files import parse_config
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.trec import read_run
from unimoe.data.catalog import result_name
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.retrieval_eval import TASK
from unimoe.metrics import score_run
from unimoe.metrics.scoring import from_grade
from unimoe.results import run_path
from unimoe.results.folder import Results, load_all_results
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.distant import train_by_workers, with_dtype_of_workers
from unimoe.studies.biencoder.evaluation import UNTRAINED_SEEDS, base_retriever, evaluate, trained_retriever
from unimoe.studies.biencoder.jobs import train
from unimoe.studies.biencoder.training.pairs import biencoder_splits
from unimoe.studies.common.differences import TESTED, Arms, Difference, differences
from unimoe.studies.common.registered_gates import register_gates, verdict
from unimoe.studies.common.splits import Splits

TUNING_SEED = 100
"""Seed of the trainings that choose; the reported ones have other seeds."""

_LAYER: dict[str, Any] = {
    "freeze_base": True,
    "out_dim": 384,
    "query_length": None,
    "document_length": None,
    "batch_size": 256,
    "epochs": 20,
    "learning_rate": 1e-3,
    "dev": {"patience": 4},
}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "layer": _LAYER,
    "layer-slow": _LAYER | {"learning_rate": 2e-4},
    "layer-warm": _LAYER | {"loss": {"margin": 0.0, "temperature": 0.1}},
    "layer-positives": _LAYER | {"loss": {"margin": 0.0, "known_positives": "positive"}},
    "layer-hard": _LAYER | {"negatives": {"per_query": 4, "source": "model", "depth": 100, "refresh_every": 5}},
    "top-layers": {"frozen_layers": 4, "epochs": 1, "learning_rate": 1e-4},
    "all-layers": {"epochs": 1, "learning_rate": 5e-5},
    "all-layers-hard": {"epochs": 1, "learning_rate": 5e-5, "negatives": {"per_query": 1, "depth": 50}},
}
"""Trainings of a linear layer over the frozen encoder, of its upper layers, and of all layers."""

Tried = Mapping[str, Mapping[str, float]]

_MAIN = "recall_of_retrieved@10"


class Tuned(NamedTuple):
    """What a tuning finds."""

    dev: Table  # all configurations
    test: Table  # the best against the base
    verdict: str | None  # in lines; None in a folder that had results before gates were registered


def tune(
    base: BiEncoderConfig,
    names: Sequence[str] | None,
    seeds: int,
    device: torch.device,
    given: list[str],
    engine: Engine | None = None,
) -> Tuned:
    """Try configurations on dev, train the best with every seed, and score it on test; finished parts are skipped.

    A gate that asks whether training helps is registered before the best is trained with the first of these seeds.

    Args:
        base: the config that the configurations change; its ``output_dir`` holds everything.
        names: some of ``CONFIGURATIONS``; None for all.
        seeds: number of reported trainings, from seed 0 on.
        device: of the computation.
        given: command-line options, for provenance.
        engine: lets workers of a cluster do the trainings; by default this process does.

    Raises:
        UsageError: a name is unknown.
        DataError: the gate that is registered for the best configuration has other seeds.
    """
    chosen = list(CONFIGURATIONS) if names is None else list(names)
    for name in chosen:
        if name not in CONFIGURATIONS:
            known = ", ".join(CONFIGURATIONS)
            raise UsageError(f"configuration {name!r}: unknown{did_you_mean(name, CONFIGURATIONS)}; there is {known}")
    base = with_dtype_of_workers(base, engine)
    splits, tuned = biencoder_splits(base), str(Path(base.output_dir, "tuning"))
    configs = {name: configuration(base, name, seed=TUNING_SEED, arm=name, output_dir=tuned) for name in chosen}
    train_by_workers(engine, base, [*configs.values()], splits, tested=False)
    tried = {name: train(config, device, splits).fit() for name, config in configs.items()}
    best = max(tried, key=lambda name: tried[name]["val"])  # the first of equals, which is the cheapest
    # Its own folder: a later tuning may choose another configuration, with other text lengths.
    config = configuration(base, best, output_dir=str(Path(base.output_dir, best)))
    reported = [config.model_copy(update={"seed": seed}) for seed in range(seeds)]
    before = base_retriever(config, splits, device)
    register_gates(wanted_gate(config, before.name, seeds), Path(config.output_dir))
    train_by_workers(engine, base, reported, splits, given, tested=True)
    trainings = [train(own, device, splits) for own in reported]
    after = [trained_retriever(training.best_dir, before, splits, device) for training in trainings]
    key = evaluate(config, splits, [before, *after], given)
    results = load_all_results(Path(config.output_dir), allow=UNTRAINED_SEEDS)
    tables = dev_table(base, tried, best), _test_table(results, config, splits, key, before.name, seeds)
    for table in tables:
        table.write(Path(base.output_dir) / "analysis")
    analysis = Analysis(results)
    return Tuned(*tables, verdict(analysis) if analysis.registration else None)


def wanted_gate(config: BiEncoderConfig, before: str, seeds: int) -> dict[str, dict[str, object]]:
    """Return the gate that asks whether the trained bi-encoder finds more on test than the base does."""
    gate: dict[str, object] = {
        "kind": "superiority",
        "task": TASK,
        "datasets": [result_name(config.collection)],
        "metric": _MAIN,
        "system": config.arm,
        "baseline": before,
        "margin": 0.0,
        "seeds": [*range(seeds)],
    }
    return {f"{config.arm}-beats-{before}": gate}


def configuration(base: BiEncoderConfig, name: str, **changes: Any) -> BiEncoderConfig:
    """Return the base with the keys of a configuration and further changes; sections are merged."""
    raw = base.model_dump()
    for key, value in (CONFIGURATIONS[name] | changes).items():
        raw[key] = raw[key] | value if isinstance(value, dict) else value
    return parse_config(BiEncoderConfig, raw, source=f"configuration {name}")


def dev_table(base: BiEncoderConfig, tried: Tried, best: str) -> Table:
    """Return a table with one row for each configuration."""
    rows = tuple(
        (
            Cell(f"{name} (chosen)" if name == best else name),
            Cell.mean([100 * facts["start"]]),
            Cell.mean([100 * facts["val"]]),
            Cell.signed(100 * (facts["val"] - facts["start"])),
            Cell(f"{facts['epoch']:g}", value=facts["epoch"]),
            Cell(f"{facts['seconds']:.0f}", value=facts["seconds"]),
        )
        for name, facts in tried.items()
    )
    return Table(
        name="configurations",
        caption=f"{base.dev.metric} × 100 on the dev queries of {result_name(base.collection)}, before training and "
        "at its best",
        columns=("configuration", "before", "after", "delta", "epoch", "s"),
        groups=(RowGroup("configurations", rows),),
        notes=(f"Tuned with seed {TUNING_SEED}. Epoch 0: training helped nowhere. s: of the steps alone.",),
    )


def _test_table(results: Results, config: BiEncoderConfig, splits: Splits, key: str, before: str, seeds: int) -> Table:
    def held(metric: str) -> tuple[Array, Array]:
        first = results.scores(before, key, [None], metric)
        return first, results.scores(config.arm, key, range(seeds), metric)

    scores = {
        _MAIN: held(_MAIN),
        "recall@10": _recall(config, splits, before, seeds),
    }
    scores |= {metric: held(metric) for metric in ("ndcg@10", "mrr@10", "recall@100")}
    compared = differences({metric: Arms(second, first, paired=False) for metric, (first, second) in scores.items()})
    rows = [_row(metric, first, second, compared[metric]) for metric, (first, second) in scores.items()]
    queries = scores["recall@10"][0].shape[1]
    return Table(
        name="test",
        caption=f"Scores × 100 on the test queries of {result_name(config.collection)} before and after, "
        f"mean over {seeds} seeds",
        columns=("metric", "before", "after", "delta", "interval", "p"),
        groups=(RowGroup(f"{before} → {config.arm} ({queries:,} queries)", tuple(rows)),),
        notes=(f"{TESTED}{before} has no seeds.", *caveat_notes(results)),
    )


def _row(metric: str, first: Array, second: Array, found: Difference) -> tuple[Cell, ...]:
    means = (Cell.mean([100 * float(rows.mean())]) for rows in (first, second))
    return Cell(metric), *means, *found.cells


def _recall(config: BiEncoderConfig, splits: Splits, before: str, seeds: int) -> tuple[Array, Array]:
    """Return trec_eval's recall@10, ``(seeds, queries)`` each, from the runs: results do not hold it."""
    folder, metric = Path(config.output_dir), "recall@10"
    qrels = from_grade(splits.test.qrels, config.relevance_threshold)

    def scores(arm: str, seed: int | None) -> list[float]:
        path = run_path(folder, arm, seed, "retrieval", result_name(config.collection))
        found = score_run(qrels, read_run(path), [metric], splits.test.relevance_level).per_query[metric]
        return [found[query_id] for query_id in sorted(found)]

    return np.array([scores(before, None)]), np.array([scores(config.arm, seed) for seed in range(seeds)])
