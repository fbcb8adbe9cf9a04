"""Reranking from Python, of one collection or a suite: any causal language model, or a function of your own.

Nothing is written; ``scripts/evaluate.py`` does the same for checkpoints and writes result files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from unimoe.checks import lines, report
from unimoe.config import Experiment
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.data.source import UnavailableError
from unimoe.evaluation.datasets import Dataset, chosen_datasets, failure_line, load_reporting, tier_datasets
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.tasks.rerank import rerank_dataset
from unimoe.metrics.scoring import suite_averages
from unimoe.models.model import checks_of_model, given_reranker
from unimoe.models.reranker import Reranker


@dataclass(frozen=True)
class SuiteOutcome:
    """What reranking found on several collections, and a line for each that could not be evaluated.

    ``averages`` are, by metric, the means over the sets with that main metric; CQADupStack counts once.
    """

    datasets: dict[str, Outcome]
    averages: dict[str, float]
    first_stage_averages: dict[str, float]
    missing: list[str]


def evaluate_beir(
    model: Any, tokenizer: Any, config: Experiment, dataset_name: str, *, max_queries: int | None = None
) -> Outcome:
    """Rerank the first stage's candidates of one BEIR set, or of any collection the catalogue knows.

    Args:
        model: a causal language model of transformers, with or without adapters, a ``UnimodelForExp1``, a ``Reranker``,
            or a function that takes a list of (query, document) pairs of texts and returns a score for each.
        tokenizer: the causal language model's; not read for the others.
        config: its ``evaluation`` section is used, and for a language model ``prompt`` and ``model.max_length``.
        dataset_name: such as ``scifact``, ``cqadupstack/android``, ``path:DIR``; ``@dev`` at the end chooses a split.
        max_queries: score at most this many queries, a fixed sample.

    Raises:
        UsageError: no such collection; names the closest. ``cqadupstack`` is twelve: evaluate it as a suite.
        UnavailableError: it is not available here.
        DataError: collection, candidates or scores are unfit.
    """
    if not isinstance(config, Experiment):
        raise UsageError(f"the config is a {type(config).__name__}; give what load_experiment returns")
    datasets = chosen_datasets(config, [dataset_name], max_queries)
    if len(datasets) > 1:
        raise UsageError(f"{dataset_name} is {len(datasets)} collections; use evaluate_reranking_suite, or name one")
    return _reranked(model, given_reranker(model, tokenizer, config), datasets[0])


def _reranked(model: Any, reranker: Reranker, dataset: Dataset) -> Outcome:
    """Rerank a dataset; the outcome's notes begin with the caveats, which stderr shows too."""
    data = load_reporting(dataset)
    of_model = checks_of_model(model, data.collection.judged_queries)
    report(of_model)
    outcome, found = rerank_dataset(reranker, data), [*data.checks, *of_model]
    return replace(outcome, found=found, notes=[*lines(found, "caveat"), *outcome.notes])


def evaluate_msmarco_dev(
    model: Any, tokenizer: Any, config: Experiment, *, collection: str = "msmarco", max_queries: int | None = None
) -> Outcome:
    """Rerank MS MARCO passage dev (small): 6,980 queries, MRR@10.

    Candidates are BM25's top-100 of the 8.84 M passages, or those of ``evaluation.first_stage``: a run file, or
    ``official`` for top1000.dev, which has no order and is reranked whole (``evaluation.depth`` 1000).

    ``collection`` is where the passages are: ``msmarco``, ``ir_datasets:msmarco-passage/dev/small``, or ``path:DIR``
    with the official files or in BEIR layout. The other arguments are those of ``evaluate_beir``.
    """
    return evaluate_beir(model, tokenizer, config, collection, max_queries=max_queries)


def evaluate_reranking_suite(
    model: Any,
    tokenizer: Any,
    config: Experiment,
    tier: str | Sequence[str] = "fast",
    *,
    max_queries: int | None = None,
) -> SuiteOutcome:
    """Rerank every collection of a tier, one after the other; one that fails does not stop the others.

    The tier is ``bundled``, ``fast``, ``nano`` or ``full``, or names of collections. The other arguments are those of
    ``evaluate_beir``. A DataError says that none of the collections could be evaluated.
    """
    if isinstance(tier, str):
        chosen = tier_datasets(config, tier, max_queries)
    else:
        chosen = chosen_datasets(config, tier, max_queries)
        if not chosen:
            raise UsageError("no collection is named; name some, or a tier")
    reranker = given_reranker(model, tokenizer, config)
    outcomes: dict[str, Outcome] = {}
    missing: list[str] = []
    for dataset in chosen:
        try:
            outcomes[dataset.name] = _reranked(model, reranker, dataset)
        except UnimoeError as error:  # the others are still worth having
            if len(chosen) == 1 and not isinstance(error, UnavailableError):
                raise
            missing.append(failure_line(dataset.name, error))
    if not outcomes:
        raise DataError(f"none of the {len(chosen)} collections could be evaluated; {missing[0]}")
    main = {dataset.name: dataset.main_metric for dataset in chosen if dataset.name in outcomes}
    after = {name: outcomes[name].aggregate for name in main}
    before = {name: first.aggregate for name in main if (first := outcomes[name].first_stage)}
    return SuiteOutcome(outcomes, suite_averages(main, after), suite_averages(main, before), missing)
