"""Languages by their ISO 639 codes, and what is known of the words of each."""

from __future__ import annotations

from unimoe.checks.texts import ENGLISH as ENGLISH
from unimoe.checks.texts import UNKNOWN
from unimoe.core.errors import did_you_mean

SNOWBALL = frozenset(
    (
        "ar", "ca", "cs", "da", "de", "el", "en", "eo", "es", "et", "eu", "fa", "fi", "fr", "ga", "hi", "hu", "hy",
        "id", "it", "lt", "ne", "nl", "no", "pl", "pt", "ro", "ru", "sr", "sv", "ta", "tr", "yi",
    )
)  # fmt: skip
"""Languages that Snowball has a stemmer for, by the codes that PyStemmer knows too."""

BIGRAMS = frozenset(("ja", "km", "ko", "lo", "my", "th", "zh"))
"""Languages without spaces between words, or with compounds that no rule here parts: Korean."""

LANGUAGES = tuple(sorted((*SNOWBALL, *BIGRAMS, "bn", "sw", "te", "yo", UNKNOWN)))
"""The codes that a collection or BM25 can have: of two letters, and ``und`` for any other language."""

_THREE_LETTERS = (
    "ara=ar arb=ar ben=bn cat=ca ces=cs dan=da deu=de ell=el eng=en epo=eo spa=es est=et ekk=et eus=eu fas=fa pes=fa "
    "fin=fi fra=fr gle=ga hin=hi hun=hu hye=hy ind=id ita=it jpn=ja khm=km kor=ko lao=lo lit=lt mya=my nep=ne npi=ne "
    "nld=nl nor=no nob=no pol=pl por=pt ron=ro rus=ru srp=sr swe=sv swa=sw swh=sw tam=ta tel=te tha=th tur=tr yid=yi "
    "yor=yo zho=zh cmn=zh"
)
_TWO_LETTERS = dict(pair.split("=") for pair in _THREE_LETTERS.split())


def checked_language(code: str) -> str:
    """Return a code that is known; a ValueError names those there are."""
    if code not in LANGUAGES:
        raise ValueError(
            f"there is no language {code!r}{did_you_mean(code, LANGUAGES)}; write one of {', '.join(LANGUAGES)}, the "
            "last of which is any other"
        )
    return code


def language_of(codes: list[str]) -> str | None:
    """Return the language that MTEB's codes such as ``deu-Latn`` name; None where they name several or code."""
    found = {_TWO_LETTERS.get(code.partition("-")[0], UNKNOWN) for code in codes if not code.endswith("-Code")}
    return found.pop() if len(found) == 1 else None
