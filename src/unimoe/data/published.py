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

_BRIGHT = (
    "biology", "earth_science", "economics", "psychology", "robotics", "stackoverflow", "sustainable_living", "pony",
    "leetcode", "aops", "theoremqa_theorems", "theoremqa_questions",
)  # fmt: skip
_BRIGHT_TASKS = {name: f"Bright{name.title().replace('_', '').replace('qa', 'QA')}{{}}Retrieval" for name in _BRIGHT}
_MIRACL_LANGUAGES = (
    "ar", "bn", "de", "en", "es", "fa", "fi", "fr", "hi", "id", "ja", "ko", "ru", "sw", "te", "th", "yo", "zh",
)  # fmt: skip
_NANO_LANGUAGES = ("ar", "de", "en", "es", "fr", "it", "ja", "ko", "no", "pt", "sv")
NANO_SPELLED = {"ClimateFEVER": "ClimateFever", "QuoraRetrieval": "Quora"}  # by MTEB's tasks of NanoBEIR

FAMILIES = {
    "bright": {name: task.format("") for name, task in _BRIGHT_TASKS.items()}
    | {f"{name}-long": _BRIGHT_TASKS[name].format("Long") for name in _BRIGHT[:8]},
    "miracl": {code: f"MIRACLRetrieval:{code}" for code in _MIRACL_LANGUAGES}
    | {f"{code}-hard": f"MIRACLRetrievalHardNegatives:{code}" for code in _MIRACL_LANGUAGES},
    "nanobeir": {
        f"{code}/{name}": f"MultilingualNano{NANO_SPELLED.get(name, name)}Retrieval:{code}"
        for code in _NANO_LANGUAGES
        for name in NANO_SETS
    },
}
"""Sets that MTEB reads: the short names of each family, with MTEB's task and subset.

BRIGHT's domains, ``-long`` with whole web pages; MIRACL's languages, ``-hard`` over the pooled documents alone;
NanoBEIR in other languages.
"""

FAMILY_NAMES = tuple(f"{word}:{name}" for word, names in FAMILIES.items() for name in names)
"""The same, as the catalogue names them."""

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


MS_MARCO_LISTS = "ms_marco_v1.1"
"""``microsoft/ms_marco`` on the hub, configuration v1.1: about eight passages per query, one of them selected."""

_SOURCES = ("mteb", "ir_datasets", "nanobeir", *FAMILIES)


def is_published(name: str) -> bool:
    """Return whether a collection's name is that of a published set, and not of a folder or file of the user's."""
    if ":" in name:
        return name.partition(":")[0] in _SOURCES
    return canonical_name(name) in (APIDOCS, MS_MARCO_LISTS, *SHORT_NAMES)


def canonical_name(name: str) -> str:
    """Return the published spelling of a short name, in lower case."""
    return _ALIASES.get(name.lower(), name.lower())
