"""``unimoe evaluate-run``: a run file scored against qrels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unimoe.cli.options import Depth, RelevanceLevel
from unimoe.core.console import stderr, stdout
from unimoe.core.errors import first_few

if TYPE_CHECKING:
    from unimoe.results.runs.scoring import RunScores


def evaluate_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Lines of qid Q0 docid rank score tag; may be .gz.")],
    qrels: Annotated[Path, typer.Argument(metavar="QRELS", help="Judgments in TREC or BEIR layout; may be .gz.")],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="ndcg@K, mrr, mrr@K, map, recall@K, recall_cap@K, recall_of_retrieved@K, p@K, or any measure of "
            "ir_measures such as RBP(rel=2), ERR@20 or Judged@10; repeat the option for several. By default ndcg@10, "
            "mrr@10, map and recall@100."
        ),
    ] = None,
    depth: Depth = None,
    relevance_level: RelevanceLevel = None,
    per_query: Annotated[bool, typer.Option("--per-query", help="Also print a line per metric and query.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the scores of every query, in place of lines.")
    ] = False,
) -> None:
    """Score a run file against qrels, as trec_eval -c does.

    Judged queries that the run lacks count 0; queries without judgments are left out. Warnings name both. Documents
    rank by score, equal scores by document id, descending; the ranks in the file are not used.
    """
    from unimoe.metrics import DEFAULT_METRICS
    from unimoe.results.runs.scoring import score_run_file

    scores = score_run_file(run, qrels, metric or DEFAULT_METRICS, depth, relevance_level)
    _print_scores(scores, per_query=per_query, as_json=as_json)


def _print_scores(scores: RunScores, *, per_query: bool = False, as_json: bool = False) -> None:
    for warning in _warnings(scores):
        stderr.out(f"warning: {warning}", style="yellow")
    lines = [json.dumps(asdict(scores), ensure_ascii=False)] if as_json else _lines(scores, per_query)
    stdout.out("\n".join(lines))


def _lines(scores: RunScores, per_query: bool) -> Iterator[str]:
    width = max(map(len, [*scores.aggregate, "relevance level"]))
    yield from (f"{metric:<{width}}  {mean:.4f}" for metric, mean in scores.aggregate.items())
    yield f"{'queries':<{width}}  {scores.queries}"
    yield f"{'relevance level':<{width}}  {scores.relevance_level}"
    if per_query:
        for metric, values in scores.per_query.items():
            yield from (f"{metric} {query_id} {value:.4f}" for query_id, value in values.items())


def _warnings(scores: RunScores) -> Iterator[str]:
    yield from scores.notes
    for finding, ids in (
        ("judged queries missing from the run, counted as 0", scores.missing_queries),
        ("queries without judgments, left out", scores.unjudged_queries),
        ("queries whose documents all have one score, ordered by id alone", scores.unordered_queries),
    ):
        if ids:
            yield f"{finding}: {len(ids):,} ({first_few(ids, 5)})"
