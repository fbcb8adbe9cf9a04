"""Effectiveness measures by name: trec_eval's through pytrec_eval, all others through ir_measures.

A metric has a short name (``ndcg@10``, ``mrr@10``, ``map``, ``recall@100``), or the name that ir_measures gives it
(``RBP(rel=2)``, ``ERR@20``, ``Judged@10``). The spellings of trec_eval, mteb, sentence-transformers and ndeval mean the
same metrics: ``names`` has the list. Semantics are those of ``trec_eval -c``: a judged query that the run lacks
counts 0, as does one without a relevant document; a query without judgments counts nowhere and is listed. Documents
rank as trec_eval ranks them, whatever library computes the measure.

A relevance level is the lowest grade that binary measures count as relevant: 1 by default, 2 in TREC Deep Learning. A
measure that fixes its own in its name (``AP(rel=2)``) keeps it; nDCG, ERR and other graded measures have none.

Grades may be real numbers: nDCG takes them as they are, and what a relevance level decides takes a document as relevant
where its grade reaches the level. Other measures (ERR, nDCG with other gains) refuse them.

Per query, ``gm_map`` is trec_eval's logarithm of average precision, 1e-5 at least; of a run it is the geometric mean.
``Accuracy`` counts every judged query: where ir_measures gives none, since all that was ranked is relevant, or nothing
is, it is 1 or 0.

Two measures are of neither library. Both divide the number of relevant documents among a query's first K by the most
that could be there, so that 1 can be reached where more than K documents are relevant:

- ``recall_cap@K`` divides by ``min(relevant, K)``, as BEIR and MTEB do.
- ``recall_of_retrieved@K`` divides by ``min(relevant, retrieved)``, where ``retrieved`` counts the documents among the
  first K of the run. Where a run holds fewer than K documents, what it does not hold is not counted as missed.
"""

from unimoe.metrics.names import MetricLike, canonical_metric, canonical_metrics, parse_metric, register_measure
from unimoe.metrics.scoring import DEFAULT_METRICS, Scores, score_run

__all__ = [
    "DEFAULT_METRICS",
    "MetricLike",
    "Scores",
    "canonical_metric",
    "canonical_metrics",
    "parse_metric",
    "register_measure",
    "score_run",
]
