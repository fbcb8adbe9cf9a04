"""How texts become the words that BM25 counts, and which documents of a corpus hold each: its postings.

Text is title, a space, text; lower case; words by the language of the settings or else of the collection. Words of
English are Lucene's: runs of word characters, single ones included, without its 33 stop words, by Snowball's stemmer.
Other languages have the stop words of bm25s and the stemmer of Snowball, where there are any. Chinese, Japanese,
Korean, Thai, Lao, Khmer and Burmese become pairs of neighbouring characters, as by Lucene's CJKAnalyzer; words of other
scripts in them stay whole. Outside English compatible characters are made equal (NFKC), and vowel signs are letters.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unimoe.config import BM25Config
from unimoe.core.errors import DataError
from unimoe.core.io import checked_json, write_line
from unimoe.data.languages import BIGRAMS, ENGLISH, SNOWBALL

_PART = 2**20
"""Words of documents that are counted at a time."""

_MERGED = 2**20
"""Postings that are merged at a time."""


@dataclass(frozen=True)
class Postings:
    """The documents that hold each word of a corpus, and how often: BM25 with any k1 and b needs no more.

    Attributes:
        folder: where they are written.
        words: the words by number.
        starts: the first posting of each word, and the end of the last one.
        documents: the number of each posting's document, ascending for one word.
        counts: how often the document holds the word.
        lengths: how many words each document has.
    """

    folder: Path
    words: list[str]
    starts: NDArray[np.int64]
    documents: NDArray[np.uint32]
    counts: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path) -> Postings:
        """Open what ``write_postings`` wrote; documents and counts are mapped: a search reads those of its words."""
        try:
            words = checked_json((folder / "words.json").read_bytes(), list[str])
            starts, lengths = np.load(folder / "starts.npy"), np.load(folder / "lengths.npy")
            mapped = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("documents", "counts"))
            documents, counts = map(np.asarray, mapped)  # a slice of a memmap takes longer
            kinds = "".join(one.dtype.kind for one in (starts, lengths, documents, counts) if one.ndim == 1)
            ends = (int(starts[-1]), len(words) + 1) if kinds == "iiuu" and len(starts) else None
            if ends != (len(documents), len(starts)) or len(counts) != len(documents) or np.any(np.diff(starts) < 1):
                raise ValueError("its files do not fit together")
        except (OSError, ValueError, EOFError) as error:
            raise damaged(folder, str(error)) from None
        return cls(folder, words, starts, documents, counts, lengths)


def damaged(folder: Path, why: str) -> DataError:
    """Return the refusal of kept postings that cannot be read."""
    return DataError(f"{folder}: is damaged or of another version ({why}); delete it, and run again")


class _Part(NamedTuple):
    """The postings of some documents by word; ``sizes`` has how many each of the ascending ``words`` has."""

    words: NDArray[np.int64]
    sizes: NDArray[np.int64]
    documents: NDArray[np.uint32]
    counts: NDArray[np.unsignedinteger]


def write_postings(folder: Path, texts: Iterable[str], words: Words) -> None:
    """Write the postings of a corpus into a folder, with the numbers that new ``words`` give."""
    lengths = array("q")
    parts = list(_counted(texts, words, lengths))
    starts = np.zeros(len(words.stems) + 1, dtype=np.int64)
    for part in parts:
        starts[part.words + 1] += part.sizes
    np.cumsum(starts, out=starts)
    np.save(folder / "starts.npy", starts)
    np.save(folder / "lengths.npy", np.asarray(lengths))
    write_line(folder / "words.json", list(words.stems))
    counts = np.min_scalar_type(max((part.counts.max(initial=0) for part in parts), default=0))
    with (folder / "documents.npy").open("wb") as first, (folder / "counts.npy").open("wb") as second:
        for file, dtype in ((first, np.dtype(np.uint32)), (second, counts)):
            shape = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (int(starts[-1]),)}
            np.lib.format.write_array_header_1_0(file, shape)
        for documents, many in _merged(parts, starts):
            documents.tofile(first)
            many.astype(counts).tofile(second)


def _counted(texts: Iterable[str], words: Words, lengths: array[int]) -> Iterator[_Part]:
    """Yield the postings of a corpus part by part, and append the documents' lengths."""
    numbers, begin = array("i"), 0

    def part() -> _Part:
        documents = np.repeat(np.arange(begin, len(lengths)), lengths[begin:])
        pairs, counts = np.unique(np.asarray(numbers, np.int64) << 32 | documents, return_counts=True)
        held, sizes = np.unique(pairs >> 32, return_counts=True)
        return _Part(held, sizes, pairs.astype(np.uint32), counts.astype(np.min_scalar_type(counts.max(initial=0))))

    for found in map(words.of, texts):
        numbers.extend(found)
        lengths.append(len(found))
        if len(numbers) >= _PART:
            yield part()
            numbers, begin = array("i"), len(lengths)
    yield part()


def _merged(parts: Sequence[_Part], starts: NDArray[np.int64]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield documents and counts of the whole corpus by ascending word, a few words at a time: memory holds it once."""
    ends = [np.concatenate([[0], np.cumsum(part.sizes)]) for part in parts]
    low = 0
    while low < len(starts) - 1:
        high = max(low + 1, int(np.searchsorted(starts, starts[low] + _MERGED, side="right")) - 1)
        words, documents, counts = list[Any](), list[Any](), list[Any]()
        for part, end in zip(parts, ends, strict=True):
            first, last = np.searchsorted(part.words, [low, high])
            words.append(np.repeat(part.words[first:last], part.sizes[first:last]))
            documents.append(part.documents[end[first] : end[last]])
            counts.append(part.counts[end[first] : end[last]])
        order = np.argsort(np.concatenate(words), kind="stable")  # parts have ascending documents
        yield np.concatenate(documents)[order], np.concatenate(counts)[order]
        low = high


@cache
def _stop_words(language: str) -> frozenset[str]:
    """Return the stop words that bm25s has of a language.

    It is imported as where JAX is not installed: it tries that out, which would take three quarters of a GPU's memory.
    To let JAX see the CPU alone meanwhile would keep the process from the GPU for good.
    """
    modules: Any = sys.modules
    given = {name: modules[name] for name in ("jax",) if name in modules}
    modules["jax"] = None
    try:
        tokenization = importlib.import_module("bm25s.tokenization")
    finally:
        del modules["jax"]
        modules.update(given)
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG on import
    return frozenset(tokenization.Tokenizer(stopwords=language).stopwords if language in _STOP_WORDS else ())


SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces, for a regular expression: Thai, Lao, Burmese, Khmer, kana and Han."""

_HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
_STOP_WORDS = ("da", "de", "en", "es", "fr", "it", "nl", "no", "pt", "ru", "sv", "tr")  # that bm25s has, no bigrams


class Words(dict[str, int]):
    """Numbers the words of texts by stem, in the order in which they come; those of bm25s' tokenizer, in less time.

    As a dictionary it has the number of each form of a word that was met, and -1 for one that does not count. Where
    ``stems`` are given, no others do: those of a corpus, for its queries.
    """

    def __init__(self, params: BM25Config, stems: Iterable[str] | None = None) -> None:
        import Stemmer

        super().__init__()
        language = params.language or ENGLISH
        self.stems = {stem: number for number, stem in enumerate(stems or ())}
        self._grows, self._split = stems is None, _splitter(language)
        self._stem = Stemmer.Stemmer(language).stemWord if _stems(params) else str
        self._stop_words = _stop_words(language)

    def of(self, text: str) -> list[int]:
        """Return the numbers of a text's words that count."""
        return [number for number in map(self.__getitem__, self._split(text.lower())) if number >= 0]

    def __missing__(self, form: str) -> int:
        if form in self._stop_words:
            self[form] = -1
        elif self._grows:
            self[form] = self.stems.setdefault(self._stem(form), len(self.stems))
        else:
            self[form] = self.stems.get(self._stem(form), -1)
        return self[form]


def analyzer_name(params: BM25Config) -> str:
    """Return what results call the words, such as ``language=ko,bigrams``; in English ``stemmer=english`` alone."""
    if params.language in (None, ENGLISH):
        return f"stemmer={'english' if _stems(params) else 'none'}"
    words = "bigrams" if params.language in BIGRAMS else f"stemmer={'snowball' if _stems(params) else 'none'}"
    return f"language={params.language},{words}"


_JOINERS = dict.fromkeys(map(ord, "\u00ad\u200d"))
"""A soft hyphen and a joiner, which lie within words."""


def _stems(params: BM25Config) -> bool:
    return params.stemmer != "none" and (params.language or ENGLISH) in SNOWBALL


def _splitter(language: str) -> Callable[[str], list[str]]:
    """Return what finds the words of a text."""
    if language == ENGLISH:
        return re.compile(r"\w+").findall
    words, scripts = re.compile(rf"[\w{_marks()}]+"), re.compile(rf"([{SPACELESS}{_HANGUL}]+)")
    characters = re.compile(f".[{_marks()}]*", re.DOTALL)

    def plain(text: str) -> list[str]:
        return words.findall(unicodedata.normalize("NFKC", text).lower().translate(_JOINERS))

    def bigrams(text: str) -> list[str]:
        found: list[str] = []
        for part in (part for word in plain(text) for part in scripts.split(word) if part):
            single = characters.findall(part) if scripts.match(part) else [part]
            found += single if len(single) == 1 else map("".join, pairwise(single))
        return found

    return bigrams if language in BIGRAMS else plain


@cache
def _marks() -> str:
    """Return the characters that combine with one before them, such as vowel signs: no word characters of ``re``."""
    return "".join(one for one in map(chr, range(0x20000)) if unicodedata.category(one).startswith("M"))
