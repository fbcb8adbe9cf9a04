"""``unimoe evaluate-run``: a run file scored against qrels."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import Depth, RelevanceLevel
from unimoe.core.console import stderr, stdout


def evaluate_run(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run: TREC, JSON, CSV, parquet, or predictions; may be .gz.")
    ],
    qrels: Annotated[
        Path, typer.Argument(metavar="QRELS", help="Judgments: TREC, BEIR, CSV, JSON or parquet; may be .gz.")
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="ndcg@K, mrr, mrr@K, map, recall@K, recall_cap@K, recall_of_retrieved@K, p@K, success@K, or any "
            "measure of trec_eval or ir_measures such as gm_map, RBP(rel=2), ERR@20 or Judged@10; repeat the option "
            "for several. By default ndcg@10, mrr@10, map and recall@100."
        ),
    ] = None,
    depth: Depth = None,
    relevance_level: RelevanceLevel = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="ranks: score a run whose ranks contradict its scores, which is refused otherwise."),
    ] = None,
    per_query: Annotated[bool, typer.Option("--per-query", help="Also print a line per metric and query.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the scores of every query, in place of lines.")
    ] = False,
) -> None:
    """Score a run file against qrels, as trec_eval -c does.

    Judged queries that the run lacks count 0; queries without judgments are left out. Lines on stderr say what was
    found of both. Documents rank by score, equal scores by document id, descending. unjudged@K is the share of the
    first K documents that nobody judged.
    """
    from unimoe.metrics import DEFAULT_METRICS
    from unimoe.results.runs.scoring import score_run

    scores = score_run(qrels, run, metric or DEFAULT_METRICS, relevance_level, depth, allow or ())
    for check in scores.checks:
        if check.name != "unjudged":  # a line of its own below
            stderr.out(f"warning: {check.line}", style="yellow")
    if as_json:
        stdout.out(json.dumps(asdict(scores) | {"notes": scores.notes}, ensure_ascii=False))
        return
    unjudged = f"unjudged@{scores.unjudged_cutoff}"
    width = max(map(len, [*scores.aggregate, unjudged, "relevance level"]))
    lines = [f"{name:<{width}}  {mean:.4f}" for name, mean in scores.aggregate.items()]
    lines += [f"{unjudged:<{width}}  {scores.unjudged_share:.4f}", f"{'queries':<{width}}  {scores.queries}"]
    lines += [f"{'relevance level':<{width}}  {scores.relevance_level}"]
    if per_query:
        for name, values in scores.per_query.items():
            lines += (f"{name} {query_id} {value:.4f}" for query_id, value in values.items())
    stdout.out("\n".join(lines))
