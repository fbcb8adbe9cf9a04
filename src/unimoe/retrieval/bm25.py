"""BM25 candidates, and how texts become the words that BM25 counts.

Text is title, a space, text; lower case; words by the language of the settings or else of the collection. Scores are
Lucene's BM25 in float32. With k1 0.9 and b 0.4 nDCG@10 is .680 on SciFact (published .679) and .320 on NFCorpus (.322).

Words of English are Lucene's: runs of word characters, single ones included, without its 33 stop words, by Snowball's
stemmer. Other languages have the stop words of bm25s and the stemmer of Snowball, where there are any. Chinese,
Japanese, Korean, Thai, Lao, Khmer and Burmese become pairs of neighbouring characters, as by Lucene's CJKAnalyzer;
words of other scripts in them stay whole. Outside English compatible characters are made equal (NFKC), and vowel signs
are letters.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
import unicodedata
from array import array
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unimoe.config import BM25Config, EvaluationConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import cache_dir, hash_parts, lock
from unimoe.core.trec import Run, write_run
from unimoe.data.collection import Collection
from unimoe.data.languages import BIGRAMS, ENGLISH, SNOWBALL
from unimoe.formats.runs import read_run
from unimoe.results import safe_name

BM25Engine = Literal["bm25s", "rank_bm25"]
"""Lucene's BM25 as bm25s computes it, or rank_bm25's BM25Okapi."""


@cache
def _bm25s() -> Any:
    """Import bm25s as where JAX is not installed: it tries that out, which would take three quarters of a GPU's memory.

    To let JAX see the CPU alone meanwhile would keep the process from the GPU for good.
    """
    modules: Any = sys.modules
    given = {name: modules[name] for name in ("jax",) if name in modules}
    modules["jax"] = None
    try:
        return importlib.import_module("bm25s")
    finally:
        del modules["jax"]
        modules.update(given)


def engine_of(settings: EvaluationConfig) -> BM25Engine:
    """Return whose BM25 searches, wherever one does."""
    return "rank_bm25" if settings.first_stage == "rank_bm25" else "bm25s"


class BM25Index:
    """The words of one corpus, held in memory: bm25s scores every posting when the corpus is indexed.

    BM25Okapi reads the same words, to compare with numbers that were made with rank_bm25. Its idf differs from Lucene's
    and is floored where it would be negative. It visits all documents in Python, which suits some ten thousand.
    """

    def __init__(self, collection: Collection, params: BM25Config, engine: BM25Engine = "bm25s") -> None:
        bm25s = _bm25s()

        self._engine, self._tokenizer = engine, make_tokenizer(params.in_language(collection.language))
        # By ascending id: of two equal scores the document of the higher number comes first.
        self._ids = np.array(sorted(collection.corpus), dtype=object)
        texts = (collection.corpus[key].full_text for key in self._ids)
        # Arrays take a quarter of the memory of lists. An empty query would match documents that are empty too.
        documents = [array("i", words) for words in self._tokenizer.streaming_tokenize(texts, allow_empty=False)]
        vocabulary = self._tokenizer.get_vocab_dict()
        self._index: Any = None
        if engine == "rank_bm25" and vocabulary:
            from rank_bm25 import BM25Okapi

            self._index = BM25Okapi(documents, k1=params.k1, b=params.b)
        elif vocabulary:
            self._index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene", csc_backend="scipy")
            tokenized = bm25s.tokenization.Tokenized(ids=documents, vocab=vocabulary)
            self._index.index(tokenized, create_empty_token=False, show_progress=False)

    def search(self, text: str, depth: int) -> dict[str, float]:
        """Return the best ``depth`` documents that share a word with a query, best first."""
        words: list[int] = next(self._tokenizer.streaming_tokenize([text], update_vocab=False, allow_empty=False))
        if not words:
            return {}
        if self._engine == "rank_bm25":  # where a word of half the corpus has idf 0, so that 0 is a score too
            scores = self._index.get_scores(words).astype(np.float32)
            found = np.flatnonzero([any(word in counts for word in words) for counts in self._index.doc_freqs])
        else:
            scores = self._index.get_scores_from_ids(words)
            found = np.flatnonzero(scores)
        if len(found) > depth:  # all that tie with the last one stay, so that their ids decide
            held = scores[found]
            found = found[held >= np.partition(held, -depth)[-depth]]
        found = found[::-1]
        order = found[np.argsort(-scores[found], kind="stable")[:depth]]
        return dict(zip(self._ids[order].tolist(), scores[order].tolist(), strict=True))


def first_stage_name(params: BM25Config, engine: BM25Engine = "bm25s") -> str:
    """Return the name in results, such as ``bm25s(k1=0.9,b=0.4,stemmer=english)``; ``params`` have the language."""
    variant = "BM25Okapi," if engine == "rank_bm25" else ""
    return f"{engine}({variant}k1={params.k1:g},b={params.b:g},{analyzer_name(params)})"


def bm25_run(
    collection: Collection,
    depth: int,
    params: BM25Config,
    *,
    engine: BM25Engine = "bm25s",
    cached: bool = False,
    advance: Callable[[int], None] | None = None,
    indexes: dict[str, BM25Index] | None = None,
) -> Run:
    """Rank the documents that share a word with a query, for every query of a collection; keep ``depth``, best first.

    What the collection leaves out goes before the cut. Ties, also those at the cut, break by document id descending, as
    in trec_eval. A ``cached`` run is kept in the user's cache. ``advance`` is called with 1 after each query.
    ``indexes`` holds those made before, which splits of one corpus share.
    """
    if depth < 1:
        raise UsageError(f"BM25 depth {depth} leaves no candidates; use at least 1")
    params = params.in_language(collection.language)

    def compute() -> Run:
        held = {} if indexes is None else indexes
        same = "" if indexes is None else f"{collection.corpus_hash} {first_stage_name(params, engine)}"
        index = held[same] = held.get(same) or BM25Index(collection, params, engine)
        run: Run = {}
        for query_id, text in collection.queries.items():
            left_out = collection.left_out(query_id)
            found = index.search(text, depth + len(left_out)).items()
            run[query_id] = dict(islice(((key, score) for key, score in found if key not in left_out), depth))
            if advance is not None:
                advance(1)
        return run

    if not cached:
        return compute()
    libraries = ("bm25s", "PyStemmer", *(["rank-bm25"] if engine == "rank_bm25" else []))
    name = first_stage_name(params, engine)
    settings = (name, repr(params.k1), repr(params.b), str(depth), str(bool(collection.excludes_self)))
    versions = (f"{library} {version(library)}" for library in libraries)
    key = hash_parts([collection.corpus_hash, collection.queries_hash, *settings, *versions])
    return cached_run(cache_dir("bm25") / f"{key}.trec", collection, name, compute)


def cached_run(path: Path, collection: Collection, tag: str, compute: Callable[[], Run]) -> Run:
    """Read a run over a collection's queries from a file, or compute it and write it there under a tag."""
    with lock(path):
        if path.exists():
            try:
                run = read_run(path)
            except DataError as error:
                raise DataError(f"{error}: the file is damaged; delete it, and run again") from None
            path.touch()  # the last use
        else:
            run = compute()
            write_run(path, run, f"{tag}#{safe_name(collection.name)}")  # which ``unimoe cache`` shows
    # A TREC file has no line for a query without candidates.
    return {query_id: run.get(query_id, {}) for query_id in collection.queries}


SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces, for a regular expression: Thai, Lao, Burmese, Khmer, kana and Han."""

_HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
_STOP_WORDS = ("da", "de", "en", "es", "fr", "it", "nl", "no", "pt", "ru", "sv", "tr")  # that bm25s has, no bigrams


def make_tokenizer(params: BM25Config) -> Any:
    """Return what splits texts of the language of ``params``, by default English, into numbered words."""
    import Stemmer

    bm25s = _bm25s()

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG on import
    language = params.language or ENGLISH
    stemmer = Stemmer.Stemmer(language) if _stems(params) else None
    stop_words = language if language in _STOP_WORDS else None
    return bm25s.tokenization.Tokenizer(splitter=_splitter(language), stopwords=stop_words, stemmer=stemmer)


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


def _splitter(language: str) -> str | Callable[[str], list[str]]:
    """Return what finds the words of a text: for bm25s a regular expression or a function."""
    if language == ENGLISH:
        return r"\w+"
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
