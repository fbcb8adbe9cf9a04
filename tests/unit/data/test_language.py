"""What texts say of a collection: its language by script, queries that are documents, and where its caveats go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.scripts import call_unimoe, successful
from support.toy_collections import invented, write_beir

import unimoe
from unimoe.checks import Check
from unimoe.config import BM25Config, EvaluationConfig
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.datasets import Dataset, LoadedDataset
from unimoe.results import Task, read_result

TEXTS = {
    "ko": "모든 인간은 태어날 때부터 자유로우며 동등하다. Python의 list.append",
    "zh": "人人生而自由,在尊严和权利上一律平等。",
    "ja": "すべての人間は、生まれながらにして自由であり、平等である。",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι.",
    "hy": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար։",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве, и мы это знаем.",
    "sr": "Сва људска бића рађају се слободна и једнака у достојанству и правима, па треба поступати у духу браће.",
    "ar": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق، وقد وهبوا عقلاً وضميراً.",
    "fa": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند، چنان که گفته‌اند.",
    "yi": "יעדער מענטש װערט געבױרן פֿרײַ און גלײַך.",
    "bn": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা নিয়ে জন্মগ্রহণ করে।",
    "und": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი.",  # Georgian: no caveat, since no code would fit better
}
SHARED = {
    "Cyrillic": ("Всички хора се раждат свободни и равни по достойнство и права.", '"ru" or "sr"'),
    "Arabic": ("تمام انسان آزاد اور حقوق و عزت کے اعتبار سے برابر پیدا ہوئے ہیں۔", '"ar" or "fa"'),
    "Devanagari": ("सभी मनुष्यों को गौरव और अधिकारों के मामले में समानता प्राप्त है।", '"hi" or "ne"'),
}
LATIN = (
    "All human beings are born free.",
    "Tất cả mọi người sinh ra đều được tự do.",
    "Let α ∈ ℝ and 𝑥 = 2 µm.",
    "1, 2!",
    "",
)


def of(*texts: str, **stated: Any) -> Collection:
    documents = [(f"d{n}", Document("", text)) for n, text in enumerate(texts)]
    return assemble("toy", "test", documents, [("q", "free")], {"q": {"d0": 1}}, **stated)


def found(collection: Collection, name: str = "language") -> list[Check]:
    return [check for check in collection.checks if check.name == name]


@pytest.mark.parametrize("language", TEXTS)
def test_a_plain_script_tells_the_language_and_a_note_says_so(language: str) -> None:
    collection = of(*[TEXTS[language]] * 9, LATIN[-2])
    assert collection.language == language
    (check,) = found(collection)
    assert (check.weight, f'so BM25 reads them as "{language}"' in check.line) == ("note", True)
    assert of(TEXTS[language], language="en").language == "en"
    assert not found(of(TEXTS[language], language="en"))


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Kubernetes Pod 재시작 및 Deployment rollout 설정 kubectl get pods -n default", "ko"),
        ("Error: ECONNREFUSED at TCPConnectWrap.afterConnect 连接被拒绝", "zh"),
        ("Mao Zedong (毛泽东) was a revolutionary who founded the republic and led it for decades", "en"),
    ],
)
def test_a_syllable_says_more_than_a_letter_of_technical_words(text: str, language: str) -> None:
    assert of(text).language == language


@pytest.mark.parametrize("script", SHARED)
def test_a_script_of_several_languages_is_a_caveat_that_names_what_to_state(script: str) -> None:
    text, codes = SHARED[script]
    collection = of(text, text)
    (check,) = found(collection)
    assert (collection.language, check.weight) == ("und", "caveat")
    assert f"its documents are in {script}" in check.line
    assert f'state "language" in its collection.json: {codes}, or "und"' in check.line


@pytest.mark.parametrize("text", LATIN)
def test_latin_script_and_none_are_english_in_silence_under_the_hash_they_had(text: str) -> None:
    collection = of(text)
    assert (collection.language, found(collection)) == ("en", [])
    assert collection.content_hash == of(text, language="en").content_hash


@pytest.mark.parametrize(("english", "language"), [(8, "en"), (2, "zh")])
def test_documents_in_several_scripts_are_a_caveat(english: int, language: str) -> None:
    collection = of(*[LATIN[0]] * english, *[TEXTS["zh"]] * (10 - english))
    (check,) = found(collection)
    assert (collection.language, check.weight) == (language, "caveat")
    for share, script in ((english, "Latin"), (10 - english, "Han or kana")):
        assert f"{share}0% of its documents are in {script}" in check.line
    assert not found(of(*[LATIN[0]] * 19, TEXTS["zh"])), "a document in twenty says nothing"


ARGUMENTS = {f"test-{n}": f"argument {n} says that {word} is right" for n, word in enumerate(["a", "b", "c", "d"])}


def arguments(documents: Mapping[str, str] = ARGUMENTS, **stated: Any) -> Collection:
    qrels = {key: {"counter": 1} for key in ARGUMENTS}
    corpus = [
        *((key, Document("A title", text)) for key, text in documents.items()),
        ("counter", Document("", "argument")),
    ]
    return assemble("toy", "test", corpus, ARGUMENTS.items(), qrels, **stated)


@pytest.mark.parametrize(
    ("documents", "doubtful"),
    [
        (ARGUMENTS, True),
        ({key: text.upper() + "!" for key, text in ARGUMENTS.items()}, True),
        ({key: f"{key} is a text about something else" for key in ARGUMENTS}, False),  # ids are equal by chance
        ({f"x-{key}": text for key, text in ARGUMENTS.items()}, False),
    ],
)
def test_queries_that_are_documents_are_a_caveat_unless_it_is_stated_whether_they_count(
    documents: dict[str, str], doubtful: bool
) -> None:
    checks = found(arguments(documents), "own documents")
    assert [check.weight for check in checks] == ["caveat"] * doubtful
    assert all('state "excludes_self" in its collection.json' in check.line for check in checks)
    for stated in (True, False):
        assert not found(arguments(documents, excludes_self=stated), "own documents")


def folder(tmp_path: Path, collection: Collection, name: str = "toy", **card: object) -> str:
    path = write_beir(collection, tmp_path / name)
    if card:
        (path / "collection.json").write_text(json.dumps(card))
    return f"path:{path}"


@pytest.mark.usefixtures("models_extra", "tmp_cache")
def test_a_folder_states_whether_queries_are_documents_whatever_its_name_says(tmp_path: Path) -> None:
    for number, (name, stated, left_out) in enumerate(
        [("mine", True, True), ("mine", None, False), ("arguana", None, True), ("arguana", False, False)]
    ):
        card = {} if stated is None else {"excludes_self": stated}
        collection = folder(tmp_path / str(number), arguments(), name, **card)
        found = unimoe.bm25_candidates(collection)
        assert all((key in scores) is not left_out for key, scores in found.items())
        checks = load_collection(collection, "test").checks
        assert len(checks) == (name == "mine" and stated is None), "a task of MTEB has a rule of its own"


@pytest.mark.usefixtures("models_extra", "tmp_cache")
def test_caveats_are_in_results_and_on_stderr_where_they_concern_the_search(tmp_path: Path) -> None:
    text, _ = SHARED["Cyrillic"]
    documents = {key: Document("", f"{text} {one.text}") for key, one in invented().corpus.items()}
    whole = replace(invented(), corpus=documents)
    done = successful(call_unimoe("retrieve", "--dataset", folder(tmp_path, whole), "--output-dir", tmp_path / "out"))
    assert "caveat: toy: states no language; its documents are in Cyrillic" in done.stderr
    assert "states no language" in done.stdout, "the table carries it"
    for arm, doubtful in (("bm25", True), ("all-minilm-l6-v2", False), ("all-minilm-l6-v2+bm25", True)):
        (path,) = (tmp_path / "out" / arm).glob("**/results/retrieval/toy.json")
        assert any("states no language" in caveat for caveat in read_result(path).caveats) is doubtful


@pytest.mark.usefixtures("models_extra", "tmp_cache")
def test_a_stated_language_of_bm25_and_a_task_without_candidates_have_no_doubt(tmp_path: Path) -> None:
    text, _ = SHARED["Cyrillic"]
    place = folder(tmp_path, of(text, text))
    cases: list[tuple[EvaluationConfig, Task, bool]] = [
        (EvaluationConfig(), "reranking", True),
        (EvaluationConfig(), "embedding", False),
        (EvaluationConfig(bm25=BM25Config(language="ru")), "reranking", False),
    ]
    for settings, task, doubtful in cases:
        caveats = LoadedDataset(Dataset(place, "test", settings)).caveats(task)
        assert any("states no language" in caveat for caveat in caveats) is doubtful
        assert any("without any candidate" in caveat for caveat in caveats) is (task == "reranking")


@pytest.mark.usefixtures("models_extra", "tmp_cache")
def test_python_functions_return_what_was_found_and_print_the_caveats(capfd: pytest.CaptureFixture[str]) -> None:
    mixed = assemble(
        "toy", "test", [("d", Document("", "red fish")), ("e", Document("", TEXTS["zh"]))],
        [("q", "red"), ("r", "自由")], {"q": {"d": 1}, "r": {"e": 1}}, language=None,
    )  # fmt: skip
    foreign = replace(mixed, language="en")
    scored = unimoe.evaluate_reranker(lambda pairs: [float(len(text)) for _, text in pairs], foreign)
    assert [check.weight for check in scored.checks] == ["caveat", "caveat"]
    assert scored.checks[1].line == "toy: judged queries without any candidate, which count 0: 1 of 2 (r)"
    assert capfd.readouterr().err.count("caveat: toy: ") == 2
    unimoe.bm25_candidates(foreign)
    assert capfd.readouterr().err.count("caveat: toy: ") == 2
    embedded = unimoe.evaluate_encoder(lambda texts: [[float(len(text)), 1.0] for text in texts], foreign)
    assert (embedded.checks, capfd.readouterr().err) == ((), ""), "an encoder reads no words of a language"


@pytest.mark.usefixtures("models_extra")
def test_real_korean_is_read_as_korean_and_real_english_as_before(unimoe_data: Path, tmp_cache: Path) -> None:
    for name, language, score in (("belebele-ko", "ko", 0.8773), ("scifact", "en", 0.6804), ("nfcorpus", "en", 0.3204)):
        collection = unimoe.load_collection(f"path:{unimoe_data / name}")
        scores = unimoe.score_run(collection.qrels, unimoe.bm25_candidates(collection), ["ndcg@10"])
        assert (collection.language, round(scores.aggregate["ndcg@10"], 4)) == (language, score)
        assert [check.weight for check in found(collection)] == ["note"] * (language == "ko")
