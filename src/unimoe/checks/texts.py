"""What the texts of a collection say of it: its language by script, queries that are documents, and what is odd.

BM25 reads words by the language of the documents. Where a collection states none, the script of a sample tells it.
Cyrillic, Arabic and Devanagari are those of several languages that BM25 knows: letters that only one of them has tell
the first two apart, and what they do not tell is a caveat.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple, TypeVar

from unimoe.checks import Check, Weight
from unimoe.core.errors import first_few

T = TypeVar("T")

ENGLISH, UNKNOWN = "en", "und"
"""The language where nothing says otherwise, and the code of those that BM25 has no stemmer and no rule for."""

LANGUAGE, OWN = "language", "own documents"
"""The names of the checks of BM25's words, which concern no other search, and of queries that are documents."""

_SAMPLE, _CHARACTERS, _QUERIES = 256, 500, 2_000  # documents, characters of each, and queries that are looked at

_LATIN, _HAN, _FIRST_KANA, _LAST_KANA = "LATIN", "CJK", "\u3040", "\u30ff"
_LANGUAGES = {
    "HANGUL": "ko", "THAI": "th", "LAO": "lo", "KHMER": "km", "MYANMAR": "my", "GREEK": "el", "ARMENIAN": "hy",
    "TAMIL": "ta", "TELUGU": "te", "BENGALI": "bn",
}  # fmt: skip
"""Languages by the first word of their letters' names in Unicode; Han is Chinese unless there are kana."""

_SHOWN = {_HAN: "Han or kana"}
_SHARED = {"CYRILLIC": '"ru" or "sr"', "ARABIC": '"ar" or "fa"', "DEVANAGARI": '"hi" or "ne"'}
"""Scripts of several languages that BM25 knows, and of many more."""

_DENSE = {"HANGUL", _HAN}  # scripts a character of which says what three letters do, next to technical words in Latin
_KANA = 0.05  # share of kana from which Han and kana are Japanese; Chinese quotes a few
_FOREIGN = 0.2  # share of letters that are not Latin from which a text is not: technical ones hold many names
_OTHERS = 0.1  # share of documents in another script than most, from which a collection is mixed
_ALIKE = 0.1  # share of queries that are documents, from which something has to be stated


class _Alphabet(NamedTuple):
    """How texts of one language of a shared script look: all of its letters, and some that others lack."""

    language: str
    letters: frozenset[str]
    own: frozenset[str]

    def fits(self, counts: Mapping[str, int]) -> bool:
        total = sum(counts.values())
        inside, own = (sum(n for key, n in counts.items() if key in some) for some in (self.letters, self.own))
        return inside >= 0.99 * total and own >= 0.003 * total


_ALPHABETS = tuple(
    _Alphabet(language, frozenset(letters + own), frozenset(own))
    for language, letters, own in (
        ("ru", "абвгдеёжзийклмнопрстуфхцчшщъьюя", "ыэ"),
        ("sr", "абвгдежзијклљмнњопрстуфхцчџш", "ђћ"),
        ("ar", "ءآؤئابتثجحخدذرزسشصضطظعغفقكلمنهويـٱ", "ةىأإ"),
        ("fa", "ءآأؤئابةتثجحخدذرزژسشصضطظعغفقكکلمنهويیىـ", "پچگ"),
        ("yi", "אבגדהוזחטיכךלמםנןסעפףצץקרשת", "װױײ"),
    )
)


def language_by_script(name: str, documents: Mapping[str, tuple[str, str]]) -> tuple[str, Check | None]:
    """Return the language of documents that state none, and the check that says so; Latin script is English."""
    scripts, letters = Counter[str](), Counter[str]()
    for title, text in _spread(documents.values(), _SAMPLE):
        found = _letters(f"{title} {text}"[:_CHARACTERS])
        if found.total():
            scripts[_script_of_text(found)] += 1
            letters.update(found)
    ((script, most),) = scripts.most_common(1) or [(_LATIN, 0)]
    total = scripts.total()
    mixed = total - most >= _OTHERS * total > 0
    if script == _LATIN and not mixed:
        return ENGLISH, None
    language = _language(script, Counter({key: n for key, n in letters.items() if _script(key) == script}))
    shares = {key: number / total for key, number in scripts.most_common(3)}
    parts = [f"{share:.0%} of its documents are in {_SHOWN.get(key, key.title())}" for key, share in shares.items()]
    written = ", ".join(parts) if len(parts) > 1 else f"its documents are in {_SHOWN.get(script, script.title())}"
    said, data = f"{name}: states no language; {written}", {"language": language, "scripts": shares}
    if mixed:
        remedy = 'state "language" in its collection.json, or make a collection of each language'
        return language, Check(LANGUAGE, "caveat", f'{said}, and BM25 reads all as "{language}"; {remedy}', data)
    if language == UNKNOWN and script in _SHARED:
        doubt = f'as several languages are, and BM25 reads them as "{UNKNOWN}", without stemmer and stop words'
        remedy = f'state "language" in its collection.json: {_SHARED[script]}, or "{UNKNOWN}" for any other'
        return language, Check(LANGUAGE, "caveat", f"{said}, {doubt}; {remedy}", data)
    return language, Check(LANGUAGE, "note", f'{said}, so BM25 reads them as "{language}"', data)


def own_documents(name: str, queries: Mapping[str, str], documents: Mapping[str, tuple[str, str]]) -> Check | None:
    """Return a caveat where queries are documents of the same id and text, and nothing says whether these count.

    Args:
        name: of the collection.
        queries: the judged ones by id.
        documents: id to title and text.
    """
    asked = [*_spread(queries, _QUERIES)]
    alike = [key for key in asked if key in documents and _are_alike(queries[key], *documents[key])]
    if not alike or len(alike) < _ALIKE * len(asked):
        return None
    line = (
        f"{name}: {len(alike) / len(asked):.0%} of the judged queries are documents, with one id and text "
        f'({first_few(alike)}), which a search finds first; state "excludes_self" in its collection.json: true leaves '
        "each query's own document out, false keeps it"
    )
    return Check(OWN, "caveat", line, {"share": len(alike) / len(asked), "queries": alike[:5]})


def concerned(checks: Iterable[Check], *, by_words: bool) -> list[Check]:
    """Return the checks that concern an evaluation; only one that BM25 has a part in reads words by a language."""
    return [check for check in checks if by_words or check.name != LANGUAGE]


def counted(name: str, kind: str, ids: Sequence[str], of: int | None = None, share: float = math.inf) -> list[Check]:
    """Return a finding about documents, queries or judgments of one kind, such as ``empty documents``; none without.

    Args:
        name: of the collection.
        kind: what they are; the check's name.
        ids: all of them.
        of: how many there could be.
        share: from which on of these the finding is a caveat, else a note.
    """
    if not ids:
        return []
    line = f"{name}: {kind}: {len(ids):,}{f' of {of:,}' if of else ''} ({first_few(ids)})"
    weight: Weight = "caveat" if of and len(ids) >= share * of else "note"
    return [Check(kind, weight, line, {"count": len(ids), "of": of, "ids": [*ids[:5]]})]


def without_candidates(name: str, queries: Sequence[str], judged: int) -> list[Check]:
    """Return what is known of judged queries that a first stage found nothing for: a caveat from a tenth of them on."""
    return counted(name, "judged queries without any candidate, which count 0", queries, judged, 0.1)


def _spread(values: Collection[T], most: int) -> Iterator[T]:
    """Yield at most so many values, spread over all of them."""
    return islice(values, 0, None, -(-len(values) // most) or 1)


def _letters(text: str) -> Counter[str]:
    """Count the letters of a text; compatible characters are made equal, and Latin ones in ASCII are one."""
    if text.isascii():
        return Counter({"a": sum(map(str.isalpha, text))})
    return Counter({key: n for key, n in Counter(unicodedata.normalize("NFKC", text).lower()).items() if _script(key)})


@cache
def _script(character: str) -> str:
    """Return the script of a letter, such as ``HANGUL``; empty for what is none."""
    found = re.match(r"([A-Z]+).* (?:LETTER|SYLLABLE|IDEOGRAPH|CHARACTER|LIGATURE)\b", unicodedata.name(character, ""))
    if found is None or found[1] in {"MODIFIER", "COMBINING"} or not character.isalpha():
        return ""
    return _HAN if _FIRST_KANA <= character <= _LAST_KANA else found[1]


def _script_of_text(letters: Mapping[str, int]) -> str:
    counts = Counter[str]()
    for key, number in letters.items():
        counts[_script(key)] += number
    for script in counts.keys() & _DENSE:
        counts[script] *= 3
    whole, _ = counts.total(), counts.pop(_LATIN, 0)
    return counts.most_common(1)[0][0] if counts.total() >= _FOREIGN * whole else _LATIN


def _language(script: str, letters: Counter[str]) -> str:
    """Return the language that letters of a script are of, ``und`` where they do not tell."""
    if script == _LATIN:
        return ENGLISH
    if script == _HAN:
        kana = sum(number for key, number in letters.items() if _FIRST_KANA <= key <= _LAST_KANA)
        return "ja" if kana >= _KANA * letters.total() else "zh"
    return next((one.language for one in _ALPHABETS if one.fits(letters)), _LANGUAGES.get(script, UNKNOWN))


def _are_alike(query: str, title: str, text: str) -> bool:
    """Return whether a query has most words of a document, with its title or without, and few others."""
    asked = _words(query)
    return any(2 * len(asked & words) > len(asked | words) for words in map(_words, (text, f"{title} {text}")))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))
