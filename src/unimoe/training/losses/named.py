"""The built-in losses by name: what computes each, the options that it reads, and the paper it comes from.

A function is given as ``module:name``, because its module imports torch and a config is checked without it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from unimoe.config.training import LOSSES, Loss


def bibtex(key: str) -> str:
    """Return the entry of a paper in ``papers.bib``."""
    entries = Path(__file__).with_name("papers.bib").read_text(encoding="utf-8").split("\n\n")
    return next(entry.strip() for entry in entries if f"{{{key}," in entry)


def _citation(source: str) -> str:
    """Return a paper's BibTeX by its key, or the one that a class of sentence-transformers cites, by its name."""
    if not source.endswith("Loss"):
        return bibtex(source)
    from sentence_transformers.cross_encoder import losses

    return str(vars(getattr(losses, source))["citation"].fget(None))  # a loss itself would need a model


def _add(name: str, function: str, source: str, *options: str, **kind: Any) -> None:
    LOSSES.add(name, Loss(f"{__package__}.{function}", options, partial(_citation, source), **kind))


_add(
    "yes_no", "built_in:yes_no", "nogueira2019passage",
    labels="probabilities", takes_activation=False, mean_of="documents",
)  # fmt: skip
_add("softmax", "built_in:softmax", "ListNetLoss", mean_of="lists")
_add("marginmse", "built_in:margin_mse", "MarginMSELoss", labels="graded")
_add("infonce", "built_in:infonce", "oord2018representation")
_add("supcon", "built_in:supcon", "khosla2020supervised")
_add("approxndcg", "built_in:approx_ndcg", "qin2010general", "temperature")

_THEIRS = "from_sentence_transformers"
_WEIGHTS = ("rank_discount", "normalize_weights", "normalization_method", "temperature")
_add("listmle", f"{_THEIRS}:listmle", "ListMLELoss", in_order=True, mean_of="lists")
_add("plistmle", f"{_THEIRS}:plistmle", "PListMLELoss", *_WEIGHTS, in_order=True, mean_of="lists")
_add("lambdaloss", f"{_THEIRS}:lambdaloss", "LambdaLoss", "k", "sigma", "weighting")
_add("listnet", f"{_THEIRS}:listnet", "ListNetLoss", "label_temperature", mean_of="lists")
_add("ranknet", f"{_THEIRS}:ranknet", "RankNetLoss", "k", "sigma")
_add("adrmse", f"{_THEIRS}:adrmse", "ADRMSELoss", "alpha")

_ES = ("measure", "directions", "sigma", "sigma_end", "baseline")
_add("score_es", "sampled:score_es", "salimans2017evolution", *_ES, samples=True)
_add("pg_rank", "sampled:pg_rank", "gao2023policy", "measure", "directions", "baseline", samples=True)
