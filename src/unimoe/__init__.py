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
    from unimoe.analysis.compare import compare as compare
    from unimoe.analysis.compare import compare_statistic as compare_statistic
    from unimoe.analysis.compare import judge as judge
    from unimoe.analysis.compare import load_all_results as load_all_results
    from unimoe.analysis.compare import tir as tir
    from unimoe.analysis.parity import parity as parity
    from unimoe.api import bm25_candidates as bm25_candidates
    from unimoe.api import evaluate_encoder as evaluate_encoder
    from unimoe.api import evaluate_reranker as evaluate_reranker
    from unimoe.api import load_collection as load_collection
    from unimoe.api import load_encoder as load_encoder
    from unimoe.api import load_model as load_model
    from unimoe.config.files import load_experiment as load_experiment
    from unimoe.evaluation.reranking_eval import evaluate_beir as evaluate_beir
    from unimoe.experiment.running import run_experiment as run_experiment
    from unimoe.formats.qrels import read_qrels as read_qrels
    from unimoe.formats.runs import read_run as read_run
    from unimoe.results.runs.scoring import score_run as score_run
    from unimoe.results.runs.scoring import score_run_file as score_run_file

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
    "evaluation.reranking_eval": ("evaluate_beir",),
    "experiment.running": ("run_experiment",),
    "formats.qrels": ("read_qrels",),
    "formats.runs": ("read_run",),
    "results.runs.scoring": ("score_run", "score_run_file"),
}
_DEFINED_IN = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = list(_DEFINED_IN)

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
            raise needs from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
