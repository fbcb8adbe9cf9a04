"""``unimoe evaluate-run``: a run file scored against qrels."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import Depth, RelevanceLevel
from unimoe.core.console import stderr, stdout
from unimoe.core.errors import some_ids


def evaluate_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Lines of qid Q0 docid rank score tag; may be .gz.")],
    qrels: Annotated[Path, typer.Argument(metavar="QRELS", help="Judgments in TREC or BEIR layout; may be .gz.")],
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
    warnings = [*scores.notes]
    for finding, ids in (
        ("judged queries missing from the run, counted as 0", scores.missing_queries),
        ("queries without judgments, left out", scores.unjudged_queries),
        ("queries whose documents all have one score, ordered by id alone", scores.unordered_queries),
    ):
        if ids:
            warnings.append(f"{finding}: {some_ids(ids)}")
    for warning in warnings:
        stderr.out(f"warning: {warning}", style="yellow")
    if as_json:
        stdout.out(json.dumps(asdict(scores), ensure_ascii=False))
        return
    width = max(map(len, [*scores.aggregate, "relevance level"]))
    lines = [f"{name:<{width}}  {mean:.4f}" for name, mean in scores.aggregate.items()]
    lines += [f"{'queries':<{width}}  {scores.queries}", f"{'relevance level':<{width}}  {scores.relevance_level}"]
    if per_query:
        for name, values in scores.per_query.items():
            lines += (f"{name} {query_id} {value:.4f}" for query_id, value in values.items())
    stdout.out("\n".join(lines))
