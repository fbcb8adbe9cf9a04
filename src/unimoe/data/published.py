"""The published sets of the field, by name."""

from __future__ import annotations

APIDOCS = "apidocs"
"""The bundled collection."""

_TASKS = {
    "arguana": "ArguAna",
    "climate-fever": "ClimateFEVER",
    "dbpedia-entity": "DBPedia",
    "fever": "FEVER",
    "fiqa": "FiQA2018",
    "hotpotqa": "HotpotQA",
    "msmarco": "MSMARCO",
    "nfcorpus": "NFCorpus",
    "nq": "NQ",
    "quora": "QuoraRetrieval",
    "scidocs": "SCIDOCS",
    "scifact": "SciFact",
    "trec-covid": "TRECCOVID",
    "webis-touche2020": "Touche2020",
}

BEIR_NAMES = tuple(_TASKS)
"""Short names that can be downloaded: BEIR's public sets that are one folder each."""

CQADUPSTACK = tuple(
    f"cqadupstack/{forum}"
    for forum in (
        "android", "english", "gaming", "gis", "mathematica", "physics", "programmers", "stats", "tex", "unix",
        "webmasters", "wordpress",
    )
)  # fmt: skip
"""BEIR's fifteenth public set: twelve collections, each with its own corpus, in one zip."""

SHORT_NAMES = (*BEIR_NAMES, *CQADUPSTACK)

MTEB_TASKS = _TASKS | {name: f"CQADupstack{name.partition('/')[2].capitalize()}Retrieval" for name in CQADUPSTACK}
"""MTEB's tasks of the sets, by short name."""

NANO_SETS = tuple(task for task in _TASKS.values() if task != "TRECCOVID")
"""The sets of NanoBEIR, by the name of MTEB's task of the whole set."""

GRADED_FROM_1 = frozenset(
    {APIDOCS, "dbpedia", "dbpedia-entity", "nfcorpus", "touche2020", "trec-covid", "treccovid", "webis-touche2020"}
)
"""Sets with several grades of which the field counts 1 as relevant, in lower case."""

TREC_DL = 2
"""The passage task of TREC Deep Learning counts "highly relevant" and "perfectly relevant", not "related"."""

_ALIASES = {
    "fiqa2018": "fiqa",
    "touche2020": "webis-touche2020",
    "dbpedia": "dbpedia-entity",
    "treccovid": "trec-covid",
}


def canonical_name(name: str) -> str:
    """Return the published spelling of a short name, in lower case."""
    return _ALIASES.get(name.lower(), name.lower())
