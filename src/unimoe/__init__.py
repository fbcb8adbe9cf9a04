"""unimoe: is it worth going on? Trains, evaluates and judges retrieval models.

The names below are the public Python API, with examples in ``docs/python.md``. Each is imported when it is first used,
so that ``import unimoe`` loads no library.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from unimoe.core.errors import missing_extra

if TYPE_CHECKING:
    __version__: str
    from unimoe.analysis.compare import compare, compare_statistic, judge, load_all_results, tir
    from unimoe.analysis.parity import parity
    from unimoe.api import (
        bm25_candidates,
        evaluate_encoder,
        evaluate_reranker,
        load_collection,
        load_encoder,
        load_model,
    )
    from unimoe.config.files import load_experiment
    from unimoe.core.trec import read_qrels, read_run
    from unimoe.evaluation.reranking_eval import evaluate_beir
    from unimoe.experiment.running import run_experiment
    from unimoe.metrics import score_run
    from unimoe.results.runs.scoring import score_run_file

__all__ = [
    "bm25_candidates",
    "compare",
    "compare_statistic",
    "evaluate_beir",
    "evaluate_encoder",
    "evaluate_reranker",
    "judge",
    "load_all_results",
    "load_collection",
    "load_encoder",
    "load_experiment",
    "load_model",
    "parity",
    "read_qrels",
    "read_run",
    "run_experiment",
    "score_run",
    "score_run_file",
    "tir",
]

_NAMES_OF = {
    "analysis.compare": ("compare", "compare_statistic", "judge", "load_all_results", "tir"),
    "analysis.parity": ("parity",),
    "api": (
        "bm25_candidates",
        "evaluate_encoder",
        "evaluate_reranker",
        "load_collection",
        "load_encoder",
        "load_model",
    ),
    "config.files": ("load_experiment",),
    "core.trec": ("read_qrels", "read_run"),
    "evaluation.reranking_eval": ("evaluate_beir",),
    "experiment.running": ("run_experiment",),
    "metrics": ("score_run",),
    "results.runs.scoring": ("score_run_file",),
}
_DEFINED_IN = {name: module for module, names in _NAMES_OF.items() for name in names}

if not TYPE_CHECKING:  # a type checker shall refuse a misspelt name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return version("unimoe")
        if name not in _DEFINED_IN:
            raise AttributeError(f"module 'unimoe' has no attribute {name!r}; it offers {', '.join(__all__)}")
        try:
            return getattr(import_module(f"unimoe.{_DEFINED_IN[name]}"), name)
        except ModuleNotFoundError as error:
            if (needs := missing_extra(error)) is None:
                raise
            raise ModuleNotFoundError(f"unimoe.{name}: {needs}", name=error.name) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
