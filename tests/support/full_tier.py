"""The full tier in miniature: a folder for each BEIR set, with the trouble that sets are known for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.toy_collections import invented

from unimoe.data.published import CQADUPSTACK


class Parts:
    """The content of a folder in BEIR layout, before it is written."""

    def __init__(self, name: str) -> None:
        self.name, made = name, invented(documents=12, queries=3)
        self.corpus: dict[str, dict[str, Any]] = {
            key: {"_id": key, "title": f"Title {key}", "text": document.text} for key, document in made.corpus.items()
        }
        self.queries = dict(made.queries)
        self.qrels: list[tuple[str, str, int]] = [
            (query, document, grade) for query, grades in made.qrels.items() for document, grade in grades.items()
        ]
        self.split, self.line_end = "test", "\n"

    def renamed(self, documents: str, queries: str) -> None:
        """Give other ids, in which ``{}`` becomes a number from 1."""
        new = {old: documents.format(number) for number, old in enumerate(self.corpus, start=1)}
        asked = {old: queries.format(number) for number, old in enumerate(self.queries, start=1)}
        self.corpus = {new[old]: {**row, "_id": new[old]} for old, row in self.corpus.items()}
        self.queries = {asked[old]: text for old, text in self.queries.items()}
        self.qrels = [(asked[query], new[document], grade) for query, document, grade in self.qrels]

    def write(self, folder: Path) -> None:
        (folder / "qrels").mkdir(parents=True)
        rows = [{"_id": key, "text": text, "excluded_ids": ["N/A"]} for key, text in self.queries.items()]
        judgments = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in self.qrels)]
        for name, lines in {
            "corpus.jsonl": map(json.dumps, self.corpus.values()),
            "queries.jsonl": map(json.dumps, rows),
            f"qrels/{self.split}.tsv": judgments,
        }.items():
            (folder / name).write_bytes("".join(line + self.line_end for line in lines).encode())


def _queries_are_documents(parts: Parts) -> None:
    """ArguAna's queries of 5,500 characters, and Quora's short ones, are documents too, under one id."""
    parts.renamed("test-{}a", "test-{}a")
    for key, text in parts.queries.items():
        long = (text + " and so it goes on. ") * (5500 // len(text))
        parts.queries[key] = text[:20] if parts.name == "quora" else long
        parts.corpus[key] |= {"title": "", "text": parts.queries[key]}
    parts.qrels = [(query, document, 1) for query, document, _ in parts.qrels if query != document]


def _odd_texts(parts: Parts) -> None:
    """Several spellings of nothing, one very long word, many lines, other scripts, half a surrogate pair, copies."""
    odd = ("", " ", "\n", "\u200b", "\x00", "a" * 9000, "line\n\n" * 900, "שלום עולם 🦜 \ud83d", "one text", "one text")
    for key, text in zip(parts.corpus, odd, strict=False):
        parts.corpus[key] |= {"title": " " if text.isspace() else f"Some_{key}_-LRB-film-RRB-", "text": text}
    parts.queries[next(iter(parts.queries))] = "what is the"  # stop words alone


def _numbers_as_ids(parts: Parts) -> None:
    """FiQA's, without titles."""
    parts.renamed("{}", "{}")
    for row in parts.corpus.values():
        row["title"] = ""


def _nothing_is_found(parts: Parts) -> None:
    """A query asks for what no document holds."""
    parts.queries[next(iter(parts.queries))] = "xylophone?"


def _msmarco(parts: Parts) -> None:
    """A dev split, no titles at all, and lines that end as on Windows."""
    parts.split, parts.line_end = "dev", "\r\n"
    for row in parts.corpus.values():
        del row["title"]
    parts.qrels = [row for row in parts.qrels if row[2] == 1]


def _odd_judgments(parts: Parts) -> None:
    """Of grades 0, -1 and -2, twice, of no document; a query with grades of 0 alone, another without any."""
    first = next(iter(parts.queries))
    parts.qrels = [(query, document, 0 if query == first else grade) for query, document, grade in parts.qrels]
    judged = {row[:2] for row in parts.qrels}
    for document, grade in (("d06", -2), ("d08", -1), ("d09", 0), ("MED-9999", 1)):
        asked = [query for query in parts.queries if query != first and (query, document) not in judged]
        parts.qrels += [(query, document, grade) for query in asked]
    parts.qrels.append(parts.qrels[0])
    parts.queries["unjudged"] = "mo ba"


def _long_documents(parts: Parts) -> None:
    """Longer than any prompt."""
    for row in parts.corpus.values():
        row["text"] = row["text"] * 40


def _bright(parts: Parts) -> None:
    """Long documents without titles, and a long query."""
    _long_documents(parts)
    parts.split = "long" if parts.name.endswith("long") else "standard"
    for row in parts.corpus.values():
        del row["title"]
    parts.queries[next(iter(parts.queries))] += " because it reasons" * 40


_SENTENCES = {
    "ko": ("서울대학교에서 공부했다", "서울대학교는 어디인가?"),
    "de": ("Die Häuser der Städte", "Haus einer Stadt"),
    "th": ("ภาษาไทยเป็นภาษา", "ภาษาอะไร"),
    "yo": ("Ilé àwọn ọmọ", "ilé ọmọ"),
}


def _in_a_language(parts: Parts) -> None:
    """Words of a language, with ids as MIRACL has them."""
    sentence, question = _SENTENCES[parts.name.partition(":")[2][:2]]
    parts.renamed("{}#0", "{}")
    parts.split = "dev" if parts.name.startswith("miracl") else "test"
    for key, row in parts.corpus.items():
        row["text"] = f"{sentence} {row['text']} {key}"
    parts.queries = dict.fromkeys(parts.queries, question)


_BEIR: dict[Callable[[Parts], None], tuple[str, ...]] = {
    _queries_are_documents: ("arguana", "quora"),
    _odd_texts: ("climate-fever", "fever", "nq", "scidocs", *CQADUPSTACK),
    _numbers_as_ids: ("fiqa",),
    _nothing_is_found: ("hotpotqa",),
    _msmarco: ("msmarco",),
    _odd_judgments: ("dbpedia-entity", "nfcorpus", "scifact", "trec-covid"),
    _long_documents: ("webis-touche2020",),
}
_OTHERS = {
    _bright: ("bright:biology", "bright:biology-long"),
    _in_a_language: ("miracl:ko", "miracl:th", "miracl:yo-hard", "nanobeir:de/SciFact"),
}
ASKED_FOR = [name for names in _OTHERS.values() for name in names]
"""Sets that MTEB reads, in no tier."""


def write_full_tier(folder: Path) -> Path:
    """Write every set of the full tier, and of ``ASKED_FOR``, and return the folder, a value for UNIMOE_DATA."""
    for trouble, names in (_BEIR | _OTHERS).items():
        for name in names:
            parts = Parts(name)
            trouble(parts)
            parts.write(folder / name.replace(":", "/"))
    return folder
