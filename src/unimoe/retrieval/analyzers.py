"""How BM25 splits texts into words and stems them, by language.

English is Lucene's: runs of word characters, single ones included, without its 33 stop words, by Snowball's stemmer.
Other languages have the stop words of bm25s and the stemmer of Snowball, where there are any. Chinese, Japanese,
Korean, Thai, Lao, Khmer and Burmese become pairs of neighbouring characters, as by Lucene's CJKAnalyzer; words of other
scripts in them stay whole. Outside English compatible characters are made equal (NFKC), and vowel signs are letters.
"""

from __future__ import annotations

import logging
import os
import re
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

from unimoe.config import BM25Config
from unimoe.data.languages import BIGRAMS, ENGLISH, SNOWBALL

# bm25s imports JAX where it is installed, which takes three quarters of a GPU's memory for nothing we use.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces, for a regular expression: Thai, Lao, Burmese, Khmer, kana and Han."""

_HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
_STOP_WORDS = ("da", "de", "en", "es", "fr", "it", "nl", "no", "pt", "ru", "sv", "tr")  # that bm25s has, no bigrams


def make_tokenizer(params: BM25Config) -> Any:
    """Return what splits texts of the language of ``params``, by default English, into numbered words."""
    import bm25s
    import Stemmer

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
