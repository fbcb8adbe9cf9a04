"""Collections: the bundled one, folders of one's own, and MTEB's names."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.toy_collections import SMALL, content, write_msmarco

from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.mteb_names import FULL_BENCHMARK, beir_name, find_tasks, mteb_name, split_names
from unimoe.data.published import BEIR_NAMES, CQADUPSTACK
from unimoe.data.sources.beir_layout import is_beir_folder, read_beir
from unimoe.data.sources.msmarco import is_msmarco_folder, read_msmarco, read_top1000

DOCUMENTS = [(f"d{i}", Document("", f"text {i}")) for i in range(20)]
QUERIES = [(f"q{i}", f"query {i}") for i in range(10)]
QRELS = {f"q{i}": {f"d{i}": 1, "d19": 0} for i in range(10)}


@pytest.fixture
def collection() -> Collection:
    return assemble("toy", "test", DOCUMENTS, QUERIES, QRELS)


@pytest.fixture
def reordered() -> Collection:
    return assemble("other name", "test", DOCUMENTS[::-1], QUERIES[::-1], dict(reversed(QRELS.items())))


def test_oddities_are_counted_and_of_duplicates_the_first_is_kept() -> None:
    documents = [("d", Document("", "one")), ("d", Document("", "one")), ("d", Document("", "two"))]
    found = assemble("toy", "test", documents, [("q", "a"), ("q", "b")], {"q": {"d": 1}})
    assert (found.corpus, found.queries) == ({"d": Document("", "one")}, {"q": "a"})
    kinds = ("duplicate documents", "conflicting documents", "duplicate queries", "conflicting queries")
    assert {c.name: c.data["ids"] for c in found.checks} == dict(
        zip(kinds, (["d", "d"], ["d"], ["q"], ["q"]), strict=True)
    )
    documents = [("d", Document("only a title", " ")), ("e", Document("", ""))]
    found = assemble("toy", "test", documents, [("q", "a"), ("u", " ")], {"q": {"d": 1, "gone": 2}})
    assert found.corpus["d"].full_text == "only a title"
    assert found.qrels == {"q": {"d": 1, "gone": 2}}
    assert found.unjudged_queries == ["u"]
    assert [(check.weight, check.line) for check in found.checks] == [
        ("note", "toy: empty documents: 2 (d, e)"),
        ("note", "toy: empty queries: 1 (u)"),
        ("note", "toy: unjudged queries: 1 (u)"),
        ("note", "toy: judgments of unknown documents: 1 of 2 (gone)"),
    ]


def test_hashes_ignore_order_and_see_every_change(collection: Collection, reordered: Collection) -> None:
    assert reordered.content_hash == collection.content_hash
    changed = [
        assemble("toy", "dev", DOCUMENTS, QUERIES, QRELS),
        assemble("toy", "test", [*DOCUMENTS[:-1], ("d19", Document("", "new"))], QUERIES, QRELS),
        assemble("toy", "test", DOCUMENTS, [*QUERIES[:-1], ("q9", "new")], QRELS),
        assemble("toy", "test", DOCUMENTS, QUERIES, {**QRELS, "q9": {"d9": 2, "d19": 0}}),
    ]
    assert len({collection.content_hash, *(other.content_hash for other in changed)}) == 5


def test_a_larger_sample_keeps_the_smaller(collection: Collection) -> None:
    samples = [collection.sample_queries(n, seed=3) for n in range(1, 11)]
    for small, large in pairwise(samples):
        assert small.qrels.keys() < large.qrels.keys()
    assert [len(sample.queries) for sample in samples] == list(range(1, 11))
    assert samples[0].corpus == collection.corpus
    assert collection.sample_queries(99).qrels == collection.qrels


def test_a_pool_holds_every_relevant_document_and_grows(collection: Collection) -> None:
    small, large = collection.pool(12, seed=1), collection.pool(15, seed=1)
    assert {f"d{i}" for i in range(10)} < small.corpus.keys() < large.corpus.keys()
    assert (len(small.corpus), len(large.corpus)) == (12, 15)
    assert collection.pool(99).corpus == collection.corpus
    assert small.qrels == collection.qrels


def test_a_split_by_query_loses_none_and_depends_on_the_seed_alone(
    collection: Collection, reordered: Collection
) -> None:
    train, test = collection.split_queries(0.3, seed=42)
    assert (len(train.qrels), len(test.qrels)) == (7, 3)
    assert not train.qrels.keys() & test.qrels.keys()
    assert train.qrels | test.qrels == collection.qrels
    assert train.queries.keys() == train.qrels.keys()
    assert train.corpus == test.corpus == collection.corpus
    assert reordered.split_queries(0.3, seed=42)[1].qrels == test.qrels
    assert len({frozenset(collection.split_queries(0.3, seed)[1].qrels) for seed in range(8)}) > 1


@pytest.mark.parametrize(
    ("grade", "words"), [(0.5, "grade 0.5 is not a whole"), (2e5, r"grade 200000 is beyond 100,000")]
)
def test_a_collection_holds_whole_grades(grade: float, words: str) -> None:
    with pytest.raises(DataError, match=f"toy: query 'q0', document 'd0': {words}.*; collections hold whole grades"):
        assemble("toy", "test", DOCUMENTS, QUERIES, {"q0": {"d0": grade}})


def test_a_part_that_cannot_be_is_refused(collection: Collection) -> None:
    cut: Any
    for cut, size, words in (
        *((collection.split_queries, size, "choose between 0 and 1") for size in (0.0, 1.0, -0.5)),
        (collection.split_queries, 0.95, r"of 10 judged queries, 0\.95 for testing leaves none to train on"),
        (collection.pool, 9, r"pool of 9 documents cannot hold the 10 relevant ones; ask for at least 10"),
        (collection.sample_queries, 0, "at least 1"),
        (collection.pool, 2.5, r"a sample of 2\.5 documents was asked for; ask for a whole number"),
    ):
        with pytest.raises(UsageError, match=words):
            cut(size)


CONTENT = {"train": "7a8499bc6d7030c9", "dev": "d6704531a94c7a4b", "test": "916674d27906eb6b"}
BUILT_FROM = {"numpy": "2.4.6", "scipy": "1.17.1", "pandas": "3.1.1"}
SCRIPT = Path(__file__).parents[3] / "scripts" / "build_apidocs.py"


def flat(text: str) -> str:
    return " ".join(text.casefold().split())


def test_content_is_the_same_for_ever_and_no_document_holds_its_query() -> None:
    splits = {split: load_collection("apidocs", split) for split in CONTENT}
    assert {split: found.content_hash for split, found in splits.items()} == CONTENT
    for found in splits.values():
        assert (found.relevance_level, found.level_stated) == (1, True)
        assert not any(document.title for document in found.corpus.values())
        for query_id, grades in found.qrels.items():
            own = found.corpus[max(grades, key=grades.__getitem__)]
            assert flat(found.queries[query_id]).rstrip(".") not in flat(own.text)
    folder = available("apidocs")
    assert folder is not None
    for package in ("numpy", "scipy", "pandas"):  # whose texts they are
        assert "Redistributions in binary form" in (folder / f"LICENSE-{package}.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(
    sys.version_info >= (3, 13) or {package: version(package) for package in BUILT_FROM} != BUILT_FROM,
    reason="another version has other documentation",
)
def test_the_script_builds_the_same(tmp_path: Path) -> None:
    shipped = available("apidocs")
    assert shipped is not None
    # SciPy writes sets into its docstrings, in the order of the process's hash seed.
    command = [sys.executable, str(SCRIPT), "--output", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = sorted(file.relative_to(shipped) for file in shipped.rglob("*.gz"))
    assert len(files) == 5
    for file in files:
        assert gzip.decompress((tmp_path / file).read_bytes()) == gzip.decompress((shipped / file).read_bytes())


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    (root / "qrels").mkdir(parents=True)
    (root / "corpus.jsonl").write_text(
        '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": 2, "title": null, "text": "two", "metadata": {"x": 1}}\n'
    )
    (root / "queries.jsonl").write_text("".join(f'{{"_id": "q{i}", "text": "query {i}"}}\n' for i in (1, 2, 3)))
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\t2\t0\n")
    (root / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq2\t2\t1\n")
    return root


def test_beir_s_split_is_read_and_what_no_split_judges_is_reported(beir: Path) -> None:
    found = read_beir(beir, "test")
    assert (found.name, found.split) == ("toy", "test")
    assert found.corpus == {"d1": Document("T", "one"), "2": Document("", "two")}
    assert found.queries == {"q1": "query 1", "q3": "query 3"}
    assert found.qrels == {"q1": {"d1": 2, "2": 0}}
    assert found.unjudged_queries == ["q3"]


def test_crlf_byte_order_mark_blank_lines_and_gzip_are_read_alike(beir: Path) -> None:
    plain = read_beir(beir, "test").content_hash
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        file = beir / name
        windows = b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n\r\n")
        file.write_bytes(windows)
        assert read_beir(beir, "test").content_hash == plain
        file.unlink()
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(windows))
        assert read_beir(beir, "test").content_hash == plain


def test_a_missing_part_of_beir_is_named(beir: Path) -> None:
    with pytest.raises(UsageError, match=r"toy: no split 'tset' \(did you mean 'test'\?\); there is dev, test"):
        read_beir(beir, "tset")
    with pytest.raises(DataError, match=r"absent: corpus\.jsonl is missing; a collection needs"):
        read_beir(beir / "absent", "test")
    (beir / "queries.jsonl").unlink()
    assert not is_beir_folder(beir)
    with pytest.raises(DataError, match=r"toy: queries\.jsonl is missing; a collection needs corpus\.jsonl, qu"):
        read_beir(beir, "test")


def test_a_grade_of_a_collection_is_a_whole_number(beir: Path) -> None:
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\t2\t0.5\n")
    with pytest.raises(DataError, match=r"toy: query 'q1', document '2': grade 0.5 is not a whole number"):
        read_beir(beir, "test")


@pytest.fixture
def msmarco(tmp_path: Path) -> Path:
    return write_msmarco(tmp_path / "msmarco", SMALL)


def remove(folder: Path, *names: str) -> None:
    for path in (path for name in names for path in folder.glob(f"{name}*")):
        path.unlink()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("absent", [("collection.tsv",), ("collection.tsv", "queries.dev.small.tsv")])
def test_candidates_stand_in_for_the_corpus_and_the_collection_says_so(
    tmp_path: Path, absent: tuple[str, ...], compress: bool
) -> None:
    folder = write_msmarco(tmp_path / "msmarco", SMALL, compress=compress)
    (top1000,) = folder.glob("top1000.dev*")
    assert read_top1000(top1000) == {"101": ["9", "12", "7"], "205": ["9", "12", "7"]}
    remove(folder, *absent)
    assert is_msmarco_folder(folder)
    found = read_msmarco(folder, "dev")
    assert content(found) == content(SMALL)
    assert found.sample_queries(1).candidates_only
    assert found.checks == ()


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        (["qrels.dev.small.tsv"], r"no qrels\.dev\.small\.tsv; MS MARCO needs .* or with top1000\.dev"),
        (["top1000.dev", "collection.tsv"], r"no collection\.tsv; MS MARCO needs"),
        (["top1000.dev", "queries", "qrels"], r"no qrels\.dev\.small\.tsv and no queries\.dev\.small\.tsv"),
    ],
)
def test_what_ms_marco_lacks_is_named(msmarco: Path, absent: list[str], message: str) -> None:
    with pytest.raises(UsageError, match="msmarco: no split 'train'; there is dev"):
        read_msmarco(msmarco, "train")
    remove(msmarco, *absent)
    assert not is_msmarco_folder(msmarco)
    with pytest.raises(DataError, match=message):
        read_msmarco(msmarco, "dev")


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("collection.tsv", "77", r"collection\.tsv:4: a line has 2 fields .* \(pid, passage\), this one 1; fix it"),
        ("queries.dev.small.tsv", "77 a query", r"queries\.dev\.small\.tsv:3: a line has 2 fields"),
        ("qrels.dev.small.tsv", "101\t0\t7\tyes", r"qrels\.dev\.small\.tsv:4: grade 'yes' is not a number"),
        ("qrels.dev.small.tsv", "300\t0\t7\t1", "query '300' is judged in split 'dev' but is not among the q"),
        ("collection.tsv", "7 7\ttext", "id '7 7' is empty or holds white space"),
    ],
)
def test_a_bad_line_of_ms_marco_is_named(msmarco: Path, file: str, line: str, message: str) -> None:
    with (msmarco / file).open("a") as stream:
        stream.write(f"{line}\n")
    with pytest.raises(DataError, match=message):
        read_msmarco(msmarco, "dev")


def test_real_passages_survive_the_published_files(unimoe_data: Path, tmp_path: Path) -> None:
    real = read_beir(unimoe_data / "msmarco-dev-positives", "test")
    assert any("\x85" in document.text for document in real.corpus.values())
    folder = write_msmarco(tmp_path / "real", real.sample_queries(2))
    judged = "".join(f"{q}\t0\t{d}\t{g}\n" for q, grades in real.qrels.items() for d, g in grades.items())
    (folder / "qrels.dev.small.tsv").write_text(judged)
    (folder / "queries.dev.small.tsv").write_text("".join(f"{q}\t{t}\n" for q, t in real.queries.items()))
    assert content(read_msmarco(folder, "dev")) == content(real)


def names(*wanted: str) -> list[str]:
    return [task.metadata.name for task in find_tasks(wanted)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" STS12 , MTEB(eng, v2) ,,MTEB(Multilingual, v2),", ["STS12", "MTEB(eng, v2)", "MTEB(Multilingual, v2)"]),
        ("cqadupstack/tex,path:a b/c@dev", ["cqadupstack/tex", "path:a b/c@dev"]),
        ("", []),
    ],
)
def test_commas_part_names_but_not_inside_brackets(text: str, expected: list[str]) -> None:
    assert split_names(text) == expected


def test_every_published_set_is_a_task_of_retrieval_on_the_split_that_is_scored() -> None:
    for name in (*BEIR_NAMES, *CQADUPSTACK):
        (task,) = find_tasks([mteb_name(name) or ""])
        assert task.metadata.type == "Retrieval", name
        assert list(task.eval_splits) == (["dev"] if name == "msmarco" else ["test"]), name
        assert task.hf_subsets == ["default"], name
        assert beir_name(task.metadata.name) == name
    assert (mteb_name("fiqa2018"), mteb_name("apidocs"), mteb_name("nanobeir:SciFact")) == ("FiQA2018", None, None)


def test_a_benchmark_is_its_tasks() -> None:
    benchmark = list(find_tasks([FULL_BENCHMARK]))
    found = [task.metadata.name for task in benchmark]
    assert len(set(found)) == 41
    assert names("full") == found
    assert not any(task.data_loaded for task in benchmark)
    assert names("CQADupstackRetrieval") == [mteb_name(name) for name in CQADUPSTACK], "a mean is its tasks"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SciFcat", "mteb has no task or benchmark 'SciFcat' (did you mean 'SciFact'?)"),
        ("scifact", "(did you mean 'SciFact'?)"),
        ("MTEB(eng,v2)", "(did you mean 'MTEB(eng, v2)'?)"),
        ("ful", "(did you mean 'full'?)"),
        ("CIFAR10ZeroShot", "CIFAR10ZeroShot is a task about image; the models here read text"),
    ],
)
def test_what_cannot_be_found_is_answered_with_the_closest(name: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        find_tasks(["STS12", name])
    assert words in str(refused.value)
