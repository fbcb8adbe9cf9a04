"""``evaluate_mteb``: any model on tasks of MTEB, from Python; ``scripts/evaluate.py`` writes result files."""

from unimoe.evaluation.tasks.mteb import MTEBOutcome, evaluate_mteb

__all__ = ["MTEBOutcome", "evaluate_mteb"]
