"""Effectiveness measures by name: trec_eval's through pytrec_eval, all others through ir_measures.

A metric has a short name (``ndcg@10``, ``mrr@10``, ``map``, ``recall@100``), or the name that ir_measures gives it
(``RBP(rel=2)``, ``ERR@20``, ``Judged@10``). Semantics are those of ``trec_eval -c``: a judged query that the run lacks
counts 0, as does one without a relevant document; a query without judgments counts nowhere and is listed. Documents
rank as trec_eval ranks them, whatever library computes the measure.

A relevance level is the lowest grade that binary measures count as relevant: 1 by default, 2 in TREC Deep Learning. A
measure whose name fixes its own (``AP(rel=2)``) keeps it; nDCG, ERR and other graded measures have none.

``recall_cap@K`` is of neither library: the relevant documents among a query's first K, over the most that could be
there, ``min(relevant, retrieved)``, where retrieved are the documents the run holds among its first K. So 1 can be
reached where more than K documents are relevant. BEIR's capped recall divides by ``min(relevant, K)``, which
differs for queries with fewer than K documents in the run: there BEIR counts what was not retrieved as missed.
"""

from unimoe.metrics.averages import dataset_group, suite_averages
from unimoe.metrics.levels import from_grade, level_note
from unimoe.metrics.names import canonical_metric, is_binary, metric_cutoff
from unimoe.metrics.scoring import DEFAULT_METRICS, Scores, computable_metrics, score_run, whole_grades

__all__ = [
    "DEFAULT_METRICS",
    "Scores",
    "canonical_metric",
    "computable_metrics",
    "dataset_group",
    "from_grade",
    "is_binary",
    "level_note",
    "metric_cutoff",
    "score_run",
    "suite_averages",
    "whole_grades",
]
