"""The tables of the analysis: scores of every arm, TIR, paired comparisons, training budgets, MTEB."""

from unimoe.analysis.summaries.arms import arm_order, caveat_notes
from unimoe.analysis.summaries.comparisons import significance_by_seed_table, significance_table
from unimoe.analysis.summaries.interference import interference_table, tir_table, tir_without_queries_table
from unimoe.analysis.summaries.mteb import mteb_table, mteb_tasks_table
from unimoe.analysis.summaries.overview import overview_table
from unimoe.analysis.summaries.scores import generate_comparison_table
from unimoe.analysis.summaries.training import training_table

__all__ = [
    "arm_order",
    "caveat_notes",
    "generate_comparison_table",
    "interference_table",
    "mteb_table",
    "mteb_tasks_table",
    "overview_table",
    "significance_by_seed_table",
    "significance_table",
    "tir_table",
    "tir_without_queries_table",
    "training_table",
]
