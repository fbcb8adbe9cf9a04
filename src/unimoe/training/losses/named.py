"""The built-in losses by name: what computes each, the options that it reads, and the paper it comes from.

A function is given as ``module:name``, because its module imports torch and a config is checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from unimoe.config.training import LOSSES, Loss


def bibtex(key: str) -> str:
    """Return the entry of a paper in ``papers.bib``."""
    entries = Path(__file__).with_name("papers.bib").read_text(encoding="utf-8").split("\n\n")
    return next(entry.strip() for entry in entries if f"{{{key}," in entry)


def _upstream(name: str) -> str:
    """Return the entry that a class of sentence-transformers cites; the library takes seconds to import."""
    from unimoe.training.losses.from_sentence_transformers import citation_of

    return citation_of(name)


def _add(name: str, function: str, *options: str, cites: Callable[[], str], **kind: Any) -> None:
    LOSSES.add(name, Loss(f"{__package__}.{function}", options, cites, **kind))


_OURS, _THEIRS, _SAMPLED = "built_in", "from_sentence_transformers", "sampled"
_LISTNET = partial(_upstream, "ListNetLoss")

_add(
    "yes_no",
    f"{_OURS}:yes_no",
    cites=partial(bibtex, "nogueira2019passage"),
    labels="probabilities",
    takes_activation=False,
    mean_of="documents",
)
_add("softmax", f"{_OURS}:softmax", cites=_LISTNET, mean_of="lists")
_add("marginmse", f"{_OURS}:margin_mse", cites=partial(_upstream, "MarginMSELoss"), labels="graded")
_add("infonce", f"{_OURS}:infonce", cites=partial(bibtex, "oord2018representation"))
_add("supcon", f"{_OURS}:supcon", cites=partial(bibtex, "khosla2020supervised"))
_add("approxndcg", f"{_OURS}:approx_ndcg", "temperature", cites=partial(bibtex, "qin2010general"))

_add("listmle", f"{_THEIRS}:listmle", cites=partial(_upstream, "ListMLELoss"), in_order=True, mean_of="lists")
_add(
    "plistmle",
    f"{_THEIRS}:plistmle",
    "rank_discount",
    "normalize_weights",
    "normalization_method",
    "temperature",
    cites=partial(_upstream, "PListMLELoss"),
    in_order=True,
    mean_of="lists",
)
_add("lambdaloss", f"{_THEIRS}:lambdaloss", "k", "sigma", "weighting", cites=partial(_upstream, "LambdaLoss"))
_add("listnet", f"{_THEIRS}:listnet", "label_temperature", cites=_LISTNET, mean_of="lists")
_add("ranknet", f"{_THEIRS}:ranknet", "k", "sigma", cites=partial(_upstream, "RankNetLoss"))
_add("adrmse", f"{_THEIRS}:adrmse", "alpha", cites=partial(_upstream, "ADRMSELoss"))

_add(
    "score_es",
    f"{_SAMPLED}:score_es",
    "measure",
    "directions",
    "sigma",
    "sigma_end",
    "baseline",
    cites=partial(bibtex, "salimans2017evolution"),
    samples=True,
)
_add(
    "pg_rank",
    f"{_SAMPLED}:pg_rank",
    "measure",
    "directions",
    "baseline",
    cites=partial(bibtex, "gao2023policy"),
    samples=True,
)
