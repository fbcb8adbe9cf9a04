"""BM25's words by language: Snowball's stems of whole words, or pairs of characters; English as it ever was."""

from __future__ import annotations

import bm25s
import pytest
import Stemmer
from bm25s.stopwords import STOPWORDS_GERMAN

from unimoe.config import BM25Config
from unimoe.data.collection import Document, assemble
from unimoe.data.languages import BIGRAMS, LANGUAGES, SNOWBALL
from unimoe.retrieval.analyzers import make_tokenizer
from unimoe.retrieval.bm25 import bm25_run, first_stage_name

NAMES = {"de": "german", "ru": "russian", "hi": "hindi", "ar": "arabic", "fi": "finnish", "fa": "persian"}


def words(language: str | None, text: str, stemmer: str = "snowball") -> list[str]:
    tokenizer = make_tokenizer(BM25Config.model_validate({"language": language, "stemmer": stemmer}))
    (found,) = tokenizer.tokenize([text], return_as="string", show_progress=False, allow_empty=False)
    return list(found)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", "Häuser kaufen Bäume"),
        ("ru", "красивые города читали"),
        ("hi", "लड़कियों किताबें हिन्दी"),
        ("ar", "المكتبات كتابها"),
        ("fi", "taloissamme kirjoittaminen"),
        ("fa", "کتابها رفته‌بودند"),
    ],
)
def test_words_of_a_language_are_snowballs_stems(language: str, text: str) -> None:
    plain = words(language, text, "none")
    assert "".join(plain) == "".join(text.lower().replace("\u200c", "").split()), "vowel signs stay in their words"
    assert words(language, text) == Stemmer.Stemmer(NAMES[language]).stemWords(plain) != plain


def test_stop_words_are_those_of_the_language() -> None:
    assert words("de", "das Haus und the Garten", "none") == ["haus", "the", "garten"]
    assert {"das", "und"} <= set(STOPWORDS_GERMAN)
    assert words("sw", "na the nyumba") == ["na", "the", "nyumba"], "neither stop words nor a stemmer"


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("ko", "서울대학교는 BM25", ["서울", "울대", "대학", "학교", "교는", "bm25"]),
        ("zh", "信息检索。我 ＡＩ模型", ["信息", "息检", "检索", "我", "ai", "模型"]),
        ("ja", "検索エンジン", ["検索", "索エ", "エン", "ンジ", "ジン"]),
        ("th", "ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]),
    ],
)
def test_scripts_without_spaces_become_pairs_of_characters(language: str, text: str, expected: list[str]) -> None:
    assert words(language, text) == expected


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("hi", "क्\u200dया", ["क्या"]),
        ("de", "Soft\u00adware 10℃", ["software", "10", "c"]),
    ],
)
def test_joiners_end_no_word_and_capitals_are_small(language: str, text: str, expected: list[str]) -> None:
    assert words(language, text, "none") == expected


def test_settings_without_a_language_are_written_as_before_there_were_any() -> None:
    """Trainings are known by a hash of these settings."""
    assert BM25Config().model_dump() == {"k1": 0.9, "b": 0.4, "stemmer": "english"}
    for params in (BM25Config(stemmer="none"), BM25Config(language="de")):
        assert BM25Config.model_validate(params.model_dump()) == params


def test_english_words_are_bm25s_own_with_and_without_a_language() -> None:
    text = "The libraries' naïve running of 3 models — une façade"
    theirs = bm25s.tokenization.Tokenizer(
        splitter=r"\w+", stopwords="english", stemmer=Stemmer.Stemmer("english")
    ).tokenize([text], return_as="string", show_progress=False, allow_empty=False)[0]
    assert words(None, text) == words("en", text) == words(None, text, "english") == theirs


def test_every_language_has_a_tokenizer_and_snowball_all_of_its_stemmers() -> None:
    assert all(words(language, "a b1") for language in LANGUAGES)
    missing = set(Stemmer.algorithms()) - {"porter", "dutch_porter", "sesotho"}
    assert len(missing) == len(SNOWBALL)
    assert not SNOWBALL & BIGRAMS


@pytest.mark.parametrize(
    ("own", "settings", "name"),
    [
        ("en", {}, "stemmer=english"),
        ("en", {"stemmer": "none"}, "stemmer=none"),
        ("de", {}, "language=de,stemmer=snowball"),
        ("de", {"stemmer": "none"}, "language=de,stemmer=none"),
        ("en", {"stemmer": "english"}, "stemmer=english"),
        ("de", {"language": "en"}, "stemmer=english"),
        ("ko", {}, "language=ko,bigrams"),
        ("en", {"language": "und"}, "language=und,stemmer=none"),
    ],
)
def test_the_first_stage_is_named_by_its_words(own: str, settings: dict[str, str], name: str) -> None:
    params = BM25Config.model_validate(settings).in_language(own)
    assert first_stage_name(params) == f"bm25s(k1=0.9,b=0.4,{name})"


def test_a_collections_own_language_finds_what_english_words_cannot() -> None:
    documents = [("a", Document("", "오늘 서울대학교에서 만나요")), ("b", Document("", "부산에서 봅시다"))]
    parts = ("toy", "test", documents, [("q", "서울대학교는 어디")], {"q": {"a": 1}})
    assert bm25_run(assemble(*parts), 5, BM25Config()) == {"q": {}}
    assert list(bm25_run(assemble(*parts, language="ko"), 5, BM25Config())["q"]) == ["a"]
