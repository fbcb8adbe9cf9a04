"""BM25, and where else candidates come from: run files, MS MARCO's candidates, fusions; and what is refused."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_models import save_tiny_encoder
from support.toy_collections import SMALL, invented, write_msmarco

from unimoe.config import BM25Config, EvaluationConfig, FusionConfig, FusionEncoder
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.io import cache_dir, hash_file, write_text
from unimoe.core.trec import Run, head, write_run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.formats.runs import read_run
from unimoe.results import package_versions
from unimoe.retrieval import bm25, postings
from unimoe.retrieval.bm25 import BM25Engine, bm25_run, first_stage_name
from unimoe.retrieval.first_stage import FirstStage, FirstStageRun, reciprocal_rank_fusion

PARAMS = BM25Config()
both_engines = pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])
pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")  # no run of another test is served


_SEARCHES = """
import os, sys
{host}
before = dict(os.environ)
from unimoe.config import BM25Config
from unimoe.retrieval.postings import Words
Words(BM25Config())
jax = sys.modules.get("jax")
changed = {{name for name in os.environ if os.environ[name] != before.get(name)}}
print(jax and jax.backend, "bm25s" in sys.modules, "jax" in sys.modules, changed or None)
import jax
"""


@pytest.mark.parametrize(("host", "found"), [("", "None True False None"), ("import jax", "not begun True True None")])
def test_words_leave_jax_and_the_environment_as_they_were(tmp_path: Path, host: str, found: str) -> None:
    """bm25s tries JAX out, which would take a GPU's memory; JAX kept to the CPU for that would stay there."""
    write_text(tmp_path / "jax" / "__init__.py", "backend = 'not begun'\n")
    begins = "import jax, numpy\n\ndef top_k(x, k):\n    jax.backend = 'begun'\n    return x[:k], numpy.arange(k)\n"
    write_text(tmp_path / "jax" / "lax.py", begins)
    command = [sys.executable, "-c", _SEARCHES.format(host=host)]
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (found, 0), done.stderr


def toy(texts: dict[str, str], queries: dict[str, str]) -> Collection:
    documents = [(key, Document("", text)) for key, text in texts.items()]
    return assemble("toy", "test", documents, queries.items(), {key: {"x": 1} for key, text in queries.items() if text})


@both_engines
def test_only_documents_that_share_a_word_are_ranked(engine: BM25Engine) -> None:
    texts = {"a": "red fox", "b": "blue whale", "c": "red", "d": "whale", "e": "", "f": "the"}
    run = bm25_run(toy(texts, {"q": "red deer", "r": "", "s": "the of", "t": "zebra"}), 10, PARAMS, engine=engine)
    assert {key: list(found) for key, found in run.items()} == {"q": ["c", "a"], "r": [], "s": [], "t": []}
    assert all(type(score) is float and score > 0 for score in run["q"].values())


@both_engines
def test_ties_break_by_id_descending_also_at_the_cut(engine: BM25Engine) -> None:
    texts = dict.fromkeys(("d1", "d10", "d2", "d9"), "red")
    collection = toy(texts, {"q": "red"})
    assert list(bm25_run(collection, 10, PARAMS, engine=engine)["q"]) == ["d9", "d2", "d10", "d1"]
    assert list(bm25_run(collection, 2, PARAMS, engine=engine)["q"]) == ["d9", "d2"]
    reordered = toy(dict(reversed(texts.items())), {"q": "red"})
    assert bm25_run(reordered, 2, PARAMS, engine=engine) == bm25_run(collection, 2, PARAMS, engine=engine)


@both_engines
def test_self_matches_go_before_the_cut(engine: BM25Engine) -> None:
    texts = {"q": "red fox", "b": "red fox runs", "c": "red fox runs far", "d": "whale", "e": "owl"}
    texts |= {f"z{i}": "other" for i in range(5)}  # a word of half the corpus has no weight in rank_bm25
    collection = toy(texts, {"q": "red fox", "unknown": "red fox"})
    assert list(bm25_run(collection, 2, PARAMS, engine=engine)["q"]) == ["q", "b"]
    without = bm25_run(replace(collection, excludes_self=True), 2, PARAMS, engine=engine)
    assert {key: list(found) for key, found in without.items()} == {"q": ["b", "c"], "unknown": ["q", "b"]}


COLLECTION = toy({"a": "red fox", "b": "red"}, {"q": "red", "none": "zebra"})


@both_engines
def test_the_cache_serves_the_same_run_and_a_damaged_file_is_named(tmp_cache: Path, engine: BM25Engine) -> None:
    queries: list[int] = []
    for _ in range(3):
        run = bm25_run(COLLECTION, 5, PARAMS, engine=engine, cached=True, advance=queries.append)
        assert run == bm25_run(COLLECTION, 5, PARAMS, engine=engine)
    assert run["none"] == {}
    assert queries == [1, 1]
    (path,) = tmp_cache.rglob("*.trec")
    assert read_run(path)["q"] == run["q"]
    path.write_text("not a run")
    with pytest.raises(DataError, match=r"\.trec:1: .*; delete it, and run again"):
        bm25_run(COLLECTION, 5, PARAMS, engine=engine, cached=True)


def test_another_setting_or_collection_has_another_cache_file(tmp_cache: Path) -> None:
    bm25_run(COLLECTION, 5, PARAMS, cached=True)
    bm25_run(COLLECTION, 6, PARAMS, cached=True)
    bm25_run(COLLECTION, 5, BM25Config(b=0.5), cached=True)
    bm25_run(COLLECTION, 5, BM25Config(stemmer="none"), cached=True)
    bm25_run(replace(COLLECTION, excludes_self=True), 5, PARAMS, cached=True)
    bm25_run(COLLECTION, 5, PARAMS, engine="rank_bm25", cached=True)
    bm25_run(toy({"a": "red fox", "b": "blue"}, dict(COLLECTION.queries)), 5, PARAMS, cached=True)
    bm25_run(toy({"a": "red fox", "b": "red"}, {"q": "red", "none": "zebras"}), 5, PARAMS, cached=True)
    assert len([*tmp_cache.rglob("*.trec")]) == 8


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The documents of each corpus that is read for an index from here on."""
    read, write = list[int](), postings.write_postings

    def counted(folder: Path, texts: Iterable[str], words: postings.Words) -> None:
        texts = list(texts)
        read.append(len(texts))
        write(folder, texts, words)

    monkeypatch.setattr(bm25, "write_postings", counted)
    return read


def test_other_depths_parameters_and_queries_find_the_kept_index(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = invented()
    few = whole.with_queries([*whole.queries][:3])
    asked = [(whole, 10, PARAMS), (whole, 20, PARAMS), (whole, 10, BM25Config(k1=1.5, b=0.75)), (few, 30, PARAMS)]
    expected = [bm25_run(*one) for one in asked]
    read = counting(monkeypatch)
    found = [bm25_run(*one, cached=True) for one in asked]
    assert [*map(in_order, found)] == [*map(in_order, expected)]
    assert read == [len(whole.corpus)]
    bm25_run(whole, 10, BM25Config(stemmer="none"), cached=True)
    bm25_run(whole, 10, BM25Config(language="de"), cached=True)
    assert len(read) == 3, "words of another analyzer are others"


@pytest.mark.parametrize("other", ["unimoe", "bm25s", "PyStemmer", "Unicode"])
@both_engines
def test_what_another_version_kept_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_cache: Path, engine: BM25Engine, other: str
) -> None:
    """Words that a newer version splits otherwise were not found in the postings of an older one, in silence."""
    bm25_run(COLLECTION, 5, PARAMS, engine=engine, cached=True)
    if other == "Unicode":
        monkeypatch.setattr(bm25, "unidata_version", "99.0.0")
    else:
        monkeypatch.setattr(bm25, "package_versions", lambda names: package_versions(names) | {other: "99.0"})
    bm25_run(COLLECTION, 5, PARAMS, engine=engine, cached=True)
    assert len([*tmp_cache.glob("bm25/*.trec")]) == 2
    assert len([*tmp_cache.glob("index/[!.]*")]) == (2 if engine == "bm25s" else 0)


def in_order(run: Run) -> list[tuple[str, list[tuple[str, float]]]]:
    return [(query, [*scores.items()]) for query, scores in run.items()]


@both_engines
def test_a_kept_run_serves_every_smaller_depth(monkeypatch: pytest.MonkeyPatch, engine: BM25Engine) -> None:
    texts = {f"d{number}": "red" if number % 3 else "red fox" for number in range(40)} | {"z": "whale"}
    collection = toy(texts, {"q": "red fox", "r": "whale", "s": "owl"})
    expected = {depth: bm25_run(collection, depth, PARAMS, engine=engine) for depth in (1, 7, 20, 30)}
    queries = list[int]()

    def kept(depth: int) -> Run:
        return bm25_run(collection, depth, PARAMS, engine=engine, cached=True, advance=queries.append)

    kept(20)
    kept(30)
    assert len(queries) == 6, "a smaller depth serves no larger one"
    for depth in (30, 20, 7, 1):
        assert in_order(kept(depth)) == in_order(expected[depth])
    assert len(queries) == 6


def damages() -> dict[str, Callable[[Path], object]]:
    def cut(name: str) -> Callable[[Path], object]:
        return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 3)

    return {
        "cut.json": cut("words.json"),
        "cut.npy": cut("documents.npy"),
        "no file": lambda folder: (folder / "starts.npy").unlink(),
        "another dtype": lambda folder: np.save(folder / "counts.npy", np.ones(3)),
        "another corpus": lambda folder: np.save(folder / "lengths.npy", np.ones(9, np.int64)),
        "other words": lambda folder: (folder / "words.json").write_text('["red"]'),
        "no document of that number": lambda folder: np.save(
            folder / "documents.npy", np.load(folder / "documents.npy") + np.uint32(2**31)
        ),
    }


@pytest.mark.parametrize("damage", [*damages()])
def test_a_damaged_index_is_named_with_the_remedy(tmp_cache: Path, damage: str) -> None:
    bm25_run(COLLECTION, 5, PARAMS, cached=True)
    (folder,) = (tmp_cache / "index").glob("[!.]*")
    damages()[damage](folder)
    problem = rf"^{folder}: is damaged or of another version \(.+\); delete it, and run again$"
    with pytest.raises(DataError, match=problem):
        bm25_run(COLLECTION, 6, PARAMS, cached=True)
    shutil.rmtree(folder)
    assert list(bm25_run(COLLECTION, 6, PARAMS, cached=True)["q"]) == ["b", "a"]


def test_an_index_that_cannot_be_written_leaves_nothing(tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        bm25_run(COLLECTION, 5, PARAMS, cached=True)
    monkeypatch.undo()
    assert not [*(tmp_cache / "index").glob("[!.]*")]
    assert not [*tmp_cache.rglob("*.tmp")]


def test_corpora_of_any_size_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = invented()
    expected = bm25_run(whole, 30, PARAMS)
    monkeypatch.setattr(postings, "_PART", 7)
    monkeypatch.setattr(postings, "_MERGED", 5)
    assert in_order(bm25_run(whole, 30, PARAMS)) == in_order(expected)
    many_times = toy({"a": "red " * 70_000, "b": "red fox", "c": ""}, {"q": "red"})
    assert list(bm25_run(many_times, 3, PARAMS)["q"]) == ["a", "b"]


TEXTS = {"a": "red fox", "b": "red", "c": "blue whale", "d": "whale", "e": "owl", "q1": "red fox"}
TOY = assemble(
    "toy",
    "test",
    [(key, Document("", text)) for key, text in TEXTS.items()],
    [("q1", "red fox"), ("q2", "whale"), ("q3", "zebra"), ("q4", "owl")],
    {"q1": {"a": 1}, "q2": {"d": 1}, "q3": {"e": 1}},
)
FOUND = {"q1": {"a": 3.0, "q1": 2.0, "b": 1.0}, "q2": {"d": 0.5, "c": 0.25}, "q3": {"e": 0.1}}


def many(documents: int) -> Collection:
    """Documents that all match the one query."""
    texts = [(f"d{i:03}", Document("", "red")) for i in range(documents)]
    return assemble("many", "test", texts, [("q", "red")], {"q": {"d000": 1}})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.trec"
    write_run(path, FOUND, "someone")
    return path


def stage(setting: str, depth: int = 10, *, dataset: str = "toy") -> FirstStage:
    settings = EvaluationConfig(first_stage=setting, depth=depth, bm25=PARAMS)
    return FirstStage(settings, dataset)


def find(setting: str, depth: int = 10, collection: Collection = TOY) -> FirstStageRun:
    return stage(setting, depth).candidates(collection, collection)


@both_engines
def test_bm25_gives_its_ranking_and_names_itself(engine: BM25Engine) -> None:
    run = bm25_run(TOY, 100, PARAMS, engine=engine)
    assert find(engine) == FirstStageRun(first_stage_name(PARAMS, engine), run, ordered=True)
    assert run["q3"] == {}
    stage(engine).refuse_impossible(TOY)
    with pytest.raises(UsageError, match=f"so {engine} would search what was found already; set evaluation.first"):
        stage(engine).refuse_impossible(replace(TOY, candidates_only=True))


def test_bm25_finds_a_hundred_for_recall_however_few_are_reranked() -> None:
    sizes = [len(find("bm25s", depth, many(1200)).run["q"]) for depth in (1, 100, 1000, 2000)]
    assert sizes == [100, 100, 1000, 1200]


class TestRunFile:
    def test_is_taken_without_self_matches_and_named_by_its_content(self, file: Path, tmp_path: Path) -> None:
        found = find(f"run:{file}")
        assert found == FirstStageRun(f"run:toy.trec@{hash_file(file)}", {**FOUND, "q4": {}}, ordered=True)
        assert [list(found.run[key]) for key in FOUND] == [["a", "q1", "b"], ["d", "c"], ["e"]]
        write_run(file, {**FOUND, "q1": {"q1": 9.0} | {"a": 1.0, "b": 1.0}}, "x")
        assert list(find(f"run:{file}", 2, replace(TOY, excludes_self=True)).run["q1"]) == ["b", "a"]
        write_run(tmp_path / "cqadupstack-tex.trec", FOUND, "x")  # as result files are named
        tex = stage(f"run:{tmp_path}/{{dataset}}.trec", dataset="cqadupstack/tex")
        assert tex.candidates(TOY, TOY).run["q2"] == FOUND["q2"]

    def test_is_cut_to_its_best_but_not_below_a_hundred(self, file: Path) -> None:
        scores = {f"d{i:03}": float(-i) for i in range(300)}
        write_run(file, {"q": scores}, "x")
        for depth, kept in ((3, 100), (100, 100), (250, 250), (1000, 300)):
            assert list(find(f"run:{file}", depth, many(300)).run["q"].items()) == list(head(scores, kept).items())

    def test_without_any_order_is_taken_whole_and_said_to_be_unordered(self, file: Path) -> None:
        write_run(file, {key: dict.fromkeys(scores, 0.0) for key, scores in FOUND.items()}, "x")
        found = find(f"run:{file}", 3)
        assert not found.ordered
        assert {key: found.run[key].keys() for key in FOUND} == {key: FOUND[key].keys() for key in FOUND}

    @pytest.mark.parametrize(
        ("run", "words"),
        [
            ({**FOUND, "q2": {"d": 1.0, "D": 0.5}}, "candidate 'D' of query 'q2' is no document of toy; give a run"),
            ({"q1": FOUND["q1"], "q2": FOUND["q2"]}, "no candidates for query 'q3', judged in toy, split test; give"),
            ({"q2": FOUND["q2"]}, "no candidates for query 'q1' nor for 1 more, judged in toy, split test; give"),
            (
                {**FOUND, "q1": {"a": 1.0, "b": 1.0 + 1e-9, "c": 1.0}},  # equal in float32
                "the 3 candidates of query 'q1' all have one score, so a depth of 2 would choose them by id; ask for a"
                " depth of at least 3, or give a ranked run",
            ),
        ],
    )
    def test_that_does_not_fit_is_named_with_the_remedy(
        self, file: Path, run: dict[str, dict[str, float]], words: str
    ) -> None:
        write_run(file, run, "x")
        with pytest.raises(DataError) as caught:
            find(f"run:{file}", 2)
        assert str(caught.value).startswith(f"{file}: {words}")

    def test_that_is_not_there_is_refused_before_any_work(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"toy\.trec: no such run file; correct evaluation\.first_stage=run:"):
            stage(f"run:{tmp_path}/{{dataset}}.trec").refuse_impossible(TOY)


def test_the_official_candidates_are_taken_whole_and_are_no_ranking(tmp_path: Path) -> None:
    """MS MARCO's top1000.dev; the published files are made from a small collection."""
    official = stage("official", 1000, dataset=f"path:{write_msmarco(tmp_path / 'msmarco', SMALL)}")
    official.refuse_impossible(replace(SMALL, candidates_only=True))
    found = official.candidates(SMALL, SMALL)
    assert (found.source, found.ordered) == ("official(top1000.dev)", False)
    assert {key: set(scores.values()) for key, scores in found.run.items()} == {"101": {0.0}, "205": {0.0}}
    assert all(SMALL.qrels[key].keys() <= scores.keys() for key, scores in found.run.items())


@pytest.mark.parametrize("dataset", ["apidocs", "scifact"])
def test_official_candidates_are_refused_elsewhere(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIMOE_DATA", raising=False)
    with pytest.raises(UnimoeError, match=f"{dataset}: evaluation.first_stage=official reads top1000.dev, which"):
        stage("official", dataset=dataset).refuse_impossible(TOY)


def hybrid(
    base: Path, cut: int = 20, *, depth: int = 100, k: int = 60, k1: float = 0.9, **encoder: object
) -> FirstStage:
    config = FusionConfig(encoder=FusionEncoder.model_validate({"base": str(base), **encoder}), depth=depth, k=k)
    settings = EvaluationConfig(first_stage="fusion", depth=cut, bm25=BM25Config(k1=k1), fusion=config)
    return FirstStage(settings, "toy", device=torch.device("cpu"))


class TestFusion:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return save_tiny_encoder(tmp_path_factory.mktemp("models") / "encoder")

    def test_ranks_follow_trec_eval_whatever_the_order_in_the_run(self) -> None:
        """Equal scores, also those equal only as float32, rank by id descending."""
        run = {"q": {"a": 1.0, "b": 1.0 + 1e-9, "z": 0.5, "c": 2.0}}
        assert reciprocal_rank_fusion([run], depth=4)["q"] == {"c": 1 / 61, "b": 1 / 62, "a": 1 / 63, "z": 1 / 64}

    def test_the_order_of_the_runs_does_not_show(self) -> None:
        runs = [{"q": {d: float((i * step) % 7) for i, d in enumerate("abcdefg")}} for step in (1, 2, 3, 5)]
        results = [list(reciprocal_rank_fusion(order, depth=7)["q"].items()) for order in permutations(runs)]
        assert all(result == results[0] for result in results)

    def test_the_name_states_both_rankings_and_changes_with_whatever_changes_candidates(
        self, folder: Path, tmp_path: Path
    ) -> None:
        other = save_tiny_encoder(tmp_path / "encoder", num_hidden_layers=1)
        names = [
            hybrid(folder).source,
            hybrid(other).source,
            hybrid(folder, query_prefix="query: ").source,
            hybrid(folder, pooling="cls").source,
            hybrid(folder, max_length=16).source,
            hybrid(folder, dtype="bfloat16").source,
            hybrid(folder, k=10).source,
            hybrid(folder, k1=1.2).source,
            hybrid(folder, depth=150).source,
            hybrid(folder, 101).source,
        ]
        parts = r"bm25s\(k1=0\.9,b=0\.4,stemmer=english\),encoder@[0-9a-f]{16},float32,depth=100,k=60"
        assert re.fullmatch(rf"fusion\({parts}\)", names[0])
        assert len(set(names)) == len(names)
        assert hybrid(folder, 100).source == names[0], "the depth of the rankings counts, not that of the cut"

    @pytest.mark.parametrize(("kind", "positions"), [("bert", 64), ("xlm-roberta", 63)])
    def test_a_length_beyond_the_positions_is_that_of_the_positions_and_no_model_is_refused_before_any_work(
        self, tmp_path: Path, kind: str, positions: int
    ) -> None:
        base = save_tiny_encoder(tmp_path / kind, kind)
        assert hybrid(base, max_length=1024).source == hybrid(base, max_length=positions).source
        with pytest.raises(DataError, match=r"^evaluation\.fusion\.encoder\.base .*nowhere"):
            hybrid(Path("/nowhere")).refuse_impossible(invented())
        assert not [*cache_dir("bm25").rglob("*.trec")]
