"""The full tier in miniature: a folder for each BEIR set, with the trouble that the set is known for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.reranking import invented

from unimoe.data.published import BEIR_NAMES, CQADUPSTACK


class Parts:
    """The content of a folder in BEIR layout, before it is written."""

    def __init__(self, documents: int, queries: int) -> None:
        made = invented(documents, queries)
        self.corpus: dict[str, dict[str, Any]] = {
            key: {"_id": key, "title": f"Title {key}", "text": document.text} for key, document in made.corpus.items()
        }
        self.queries = dict(made.queries)
        self.qrels: list[tuple[str, str, int]] = [
            (query, document, grade) for query, grades in made.qrels.items() for document, grade in grades.items()
        ]
        self.split, self.line_end = "test", "\n"
        self.excluded: dict[str, list[str]] = {}

    def renamed(self, documents: str, queries: str) -> None:
        """Give other ids, in which ``{}`` becomes a number from 1."""
        new = {old: documents.format(number) for number, old in enumerate(self.corpus, start=1)}
        asked = {old: queries.format(number) for number, old in enumerate(self.queries, start=1)}
        self.corpus = {new[old]: {**row, "_id": new[old]} for old, row in self.corpus.items()}
        self.queries = {asked[old]: text for old, text in self.queries.items()}
        self.qrels = [(asked[query], new[document], grade) for query, document, grade in self.qrels]

    def write(self, folder: Path) -> None:
        (folder / "qrels").mkdir(parents=True)
        lines = {
            "corpus.jsonl": [json.dumps(row) for row in self.corpus.values()],
            "queries.jsonl": [
                json.dumps({"_id": key, "text": text, "excluded_ids": self.excluded.get(key, ["N/A"])})
                for key, text in self.queries.items()
            ],
            f"qrels/{self.split}.tsv": [
                "query-id\tcorpus-id\tscore",
                *("\t".join(map(str, row)) for row in self.qrels),
            ],
        }
        for name, content in lines.items():
            text = "".join(line + self.line_end for line in content)
            (folder / name).write_bytes(text.encode())


def _arguana(parts: Parts) -> None:
    """Queries of 5,500 characters that are documents too."""
    parts.renamed("test-{}a", "test-{}a")
    for key, text in parts.queries.items():
        parts.queries[key] = (text + " and so it goes on. ") * (5500 // len(text))
        parts.corpus[key]["text"] = parts.queries[key]
    parts.qrels = [(query, document, 1) for query, document, _ in parts.qrels if query != document]


def _climate_fever(parts: Parts) -> None:
    """Documents of one text under several ids."""
    for key in list(parts.corpus)[:4]:
        parts.corpus[key] |= {"title": "The same", "text": "the same words of all of them"}


def _dbpedia(parts: Parts) -> None:
    """Judgments of grade 0, and a query that has no others."""
    first = next(iter(parts.queries))
    parts.qrels = [(query, document, 0 if query == first else grade) for query, document, grade in parts.qrels]
    parts.qrels += [(query, "d09", 0) for query in parts.queries]


def _fever(parts: Parts) -> None:
    """Titles with underscores and no text."""
    for key in list(parts.corpus)[:5]:
        parts.corpus[key] |= {"title": f"Some_{key}_-LRB-film-RRB-", "text": ""}


def _fiqa(parts: Parts) -> None:
    """Numbers as ids of queries and documents, no titles, and an empty document."""
    parts.renamed("{}", "{}")
    for row in parts.corpus.values():
        row["title"] = ""
    parts.corpus["7"]["text"] = ""


def _hotpotqa(parts: Parts) -> None:
    """A query that asks for what no document holds, so that BM25 finds nothing."""
    parts.queries[next(iter(parts.queries))] = "xylophone?"


def _msmarco(parts: Parts) -> None:
    """A dev split, no titles at all, and lines that end as on Windows."""
    parts.split, parts.line_end = "dev", "\r\n"
    for row in parts.corpus.values():
        del row["title"]
    parts.qrels = [row for row in parts.qrels if row[2] == 1]


def _nfcorpus(parts: Parts) -> None:
    """Judgments of documents that are not in the corpus."""
    parts.renamed("MED-{}", "PLAIN-{}")
    parts.qrels += [(query, "MED-9999", 1) for query in parts.queries]


def _nq(parts: Parts) -> None:
    """A document of one very long word, and another of many lines."""
    parts.corpus["d03"]["text"] = "a" * 9000
    parts.corpus["d04"]["text"] = "line\n\n" * 900


def _quora(parts: Parts) -> None:
    """Short questions that are documents too, under one id."""
    _arguana(parts)
    for key, text in parts.queries.items():
        parts.queries[key] = text[:20]
        parts.corpus[key] |= {"title": "", "text": text[:20]}


def _scidocs(parts: Parts) -> None:
    """Several spellings of nothing as text."""
    for key, text in zip(parts.corpus, ("", " ", "\n", "\u200b", "\x00"), strict=False):
        parts.corpus[key] |= {"title": " ", "text": text}


def _scifact(parts: Parts) -> None:
    """A judgment that stands twice, and queries without judgments."""
    parts.qrels.append(parts.qrels[0])
    parts.queries["unjudged"] = "mo ba"


def _trec_covid(parts: Parts) -> None:
    """Judgments of -1."""
    judged = {row[:2] for row in parts.qrels}
    parts.qrels += [(query, "d08", -1) for query in parts.queries if (query, "d08") not in judged]


def _touche(parts: Parts) -> None:
    """Judgments of -2, and documents longer than any prompt."""
    parts.qrels = [(query, document, grade if grade == 2 else -2) for query, document, grade in parts.qrels]
    for row in parts.corpus.values():
        row["text"] = row["text"] * 40


def _cqadupstack(parts: Parts) -> None:
    """Letters of other scripts, halves of surrogate pairs, and a query of stop words."""
    parts.corpus["d01"]["text"] = "שלום עולם 🦜 \ud83d"
    parts.queries[next(iter(parts.queries))] = "what is the"


def _bright(parts: Parts) -> None:
    """Long queries, documents far longer than a prompt, and documents that are excluded for a query or for none."""
    parts.split = "standard"
    for row in parts.corpus.values():
        del row["title"]
        row["text"] = row["text"] * 30
    first, *_ = parts.queries
    relevant = [document for query, document, _ in parts.qrels if query == first]
    parts.excluded[first] = [key for key in parts.corpus if key not in relevant][:8]
    parts.queries[first] += " because it reasons" * 40


def _bright_long(parts: Parts) -> None:
    """The same, in another split."""
    _bright(parts)
    parts.split = "long"


def _in(language: str) -> Callable[[Parts], None]:
    def written(parts: Parts) -> None:
        """Words of a language, with ids as MIRACL has them."""
        parts.renamed("{}#0", "{}")
        parts.split = "dev"
        for key, row in parts.corpus.items():
            row["text"] = f"{_SENTENCES[language]} {row['text']} {key}"
        for key in parts.queries:
            parts.queries[key] = _QUESTIONS[language]

    return written


def _nano(parts: Parts) -> None:
    """German words without titles, under English ids."""
    _in("de")(parts)
    parts.split = "test"


_SENTENCES = {
    "ko": "서울대학교에서 공부했다",
    "de": "Die Häuser der Städte",
    "th": "ภาษาไทยเป็นภาษา",
    "yo": "Ilé àwọn ọmọ",
}
_QUESTIONS = {"ko": "서울대학교는 어디인가?", "de": "Haus einer Stadt", "th": "ภาษาอะไร", "yo": "ilé ọmọ"}

ASKED_FOR: dict[str, Callable[[Parts], None]] = {
    "bright:biology": _bright,
    "bright:biology-long": _bright_long,
    "miracl:ko": _in("ko"),
    "miracl:th": _in("th"),
    "miracl:yo-hard": _in("yo"),
    "nanobeir:de/SciFact": _nano,
}
"""Sets that MTEB reads, in no tier."""

_TROUBLE: dict[str, Callable[[Parts], None]] = {
    "arguana": _arguana,
    "climate-fever": _climate_fever,
    "dbpedia-entity": _dbpedia,
    "fever": _fever,
    "fiqa": _fiqa,
    "hotpotqa": _hotpotqa,
    "msmarco": _msmarco,
    "nfcorpus": _nfcorpus,
    "nq": _nq,
    "quora": _quora,
    "scidocs": _scidocs,
    "scifact": _scifact,
    "trec-covid": _trec_covid,
    "webis-touche2020": _touche,
    **dict.fromkeys(CQADUPSTACK, _cqadupstack),
}


def write_full_tier(folder: Path, documents: int = 12, queries: int = 3) -> Path:
    """Write every set of the full tier, and of ``ASKED_FOR``, and return the folder, a value for UNIMOE_DATA."""
    for name in (*BEIR_NAMES, *CQADUPSTACK):
        parts = Parts(documents, queries)
        _TROUBLE[name](parts)
        parts.write(folder / name)
    for name, trouble in ASKED_FOR.items():
        parts = Parts(documents, queries)
        trouble(parts)
        parts.write(folder / name.replace(":", "/"))
    return folder
