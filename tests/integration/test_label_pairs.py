"""Pseudo-judgments: which queries, which grades, how they agree, and that a killed run loses one shard at most."""

from __future__ import annotations

import importlib
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sentence_transformers import CrossEncoder
from support.heads import topics_folder
from support.scripts import Done, assert_refused, call_unimoe, successful
from support.tiny_encoders import save_tiny_encoder
from support.tiny_models import save_tiny_model
from support.tiny_rerankers import save_tiny_cross_encoder

import unimoe
from unimoe.config import ModelConfig
from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection
from unimoe.evaluation import engines
from unimoe.evaluation.engines import LocalEngine
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.studies.biencoder.config import LabelConfig, SamplingConfig
from unimoe.studies.biencoder.labels.graders import Grader, load_grader
from unimoe.studies.biencoder.labels.labelling import agreement, candidates_of, grades_of, probabilities, sample_queries

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


class TestQueries:
    def test_what_is_no_query_is_left_out_by_reason(self) -> None:
        queries = {
            "a": "good question here", "b": "GOOD  question here", "c": "one", "d": "word " * 40, "e": "?! ... ## !!",
            "f": "bad \x00 control", "g": "什么是 检索 模型",
        }  # fmt: skip
        found = sample_queries(queries, SamplingConfig(queries=None))
        assert list(found.queries) == ["a", "g"]
        assert found.rejected == {
            "a duplicate": 1, "too few words": 1, "too long": 1, "too few letters": 1,
            "characters that cannot be printed": 1,
        }  # fmt: skip

    def test_a_larger_sample_keeps_the_smaller_and_the_seed_decides(self) -> None:
        queries = {f"q{number}": f"question number {number}" for number in range(50)}
        few, more, other = (
            sample_queries(queries, SamplingConfig(queries=count, seed=seed)).queries
            for count, seed in ((5, 0), (9, 0), (5, 1))
        )
        assert len(few) == 5
        assert few.keys() < more.keys()
        assert few.keys() != other.keys()

    def test_none_that_passes_is_an_error(self) -> None:
        with pytest.raises(DataError, match=r"none of 1 queries passes \(too few words 1\)"):
            sample_queries({"a": "one"}, SamplingConfig())


class TestGrades:
    def test_a_grade_is_the_number_of_thresholds_reached(self) -> None:
        scores = {"q": {"a": 0.9, "b": 0.8, "c": 0.5, "d": 0.49}}
        assert grades_of(scores, [0.5, 0.8]) == {"q": {"a": 2, "b": 2, "c": 1, "d": 0}}
        with pytest.raises(DataError, match=r"no pair reaches the threshold 0\.95, the highest P.yes. is 0\.900"):
            grades_of(scores, [0.95])

    def test_agreement_by_hand(self) -> None:
        pseudo = {"q": {"a": 2, "b": 1, "c": 0}, "r": {"a": 1}, "alone": {"z": 1}}
        real = {"q": {"a": 1, "c": 1, "x": 2, "b": 0}, "r": {"b": 1}, "other": {"a": 1}}
        found = agreement(pseudo, real)
        assert found is not None
        assert (found.queries, found.pseudo, found.real, found.found, found.both) == (2, 3, 4, 2, 1)
        assert (found.precision, found.recall) == (1 / 3, 1 / 4)
        assert agreement({"q": {"a": 1}}, {"other": {"a": 1}}) is None


class Killed(Grader):
    """A grader that dies after some shards."""

    def __init__(self, grader: Grader, shards: int) -> None:
        self.grader, self.left, self.identity = grader, shards, grader.identity

    def probabilities(self, collection: Collection, candidates: Run, store: ShardStore | None = None) -> Run:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.grader.probabilities(collection, candidates, store)


def test_a_killed_run_grades_no_shard_twice(tmp_path: Path) -> None:
    topics_folder(tmp_path / "collection")
    config = LabelConfig(
        collection=f"path:{tmp_path / 'collection'}", reranker=str(save_tiny_model(tmp_path / "model")), depth=10
    )
    collection = load_collection(config.collection, "train")
    queries = dict(list(collection.queries.items())[:7])
    grader, run = load_grader(config, torch.device("cpu"), LocalEngine()), candidates_of(collection, queries, config)
    whole = probabilities(grader, collection, queries, run, tmp_path / "whole", 3, LocalEngine())
    with pytest.raises(KeyboardInterrupt):
        probabilities(Killed(grader, 2), collection, queries, run, tmp_path / "shards", 3, LocalEngine())
    written = {file: file.stat().st_mtime_ns for file in (tmp_path / "shards").iterdir()}
    assert len(written) == 2
    assert probabilities(grader, collection, queries, run, tmp_path / "shards", 3, LocalEngine()) == whole
    assert {file: file.stat().st_mtime_ns for file in written} == written
    assert all(0.0 < value < 1.0 for scores in whole.values() for value in scores.values())


class Command:
    """The command on a small collection."""

    def label(self, folder: Path, output: Path, *more: str) -> Done:
        return call_unimoe(
            "label-pairs", "--device", "cpu",
            "--dataset", f"path:{folder / 'collection'}", "--output-dir", output, "--set", "depth=10",
            "--set", "sampling.queries=6", "--set", "prompt.template=qwen3", "--set", "max_length=256", *more,
        )  # fmt: skip

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        topics_folder(tmp_path / "collection")
        save_tiny_model(tmp_path / "model")
        return tmp_path


class TestCommand(Command):
    def test_a_collection_comes_out_that_can_be_trained_on(self, folder: Path) -> None:
        options = ("--reranker", str(folder / "model"), "--set", "thresholds=[0.0001, 0.5]")
        done = successful(self.label(folder, folder / "labelled", *options))
        assert "precision" in done.stdout
        assert "6 of " in done.stderr
        labelled = load_collection(f"path:{folder / 'labelled'}", "train")
        real = load_collection(f"path:{folder / 'collection'}", "test")
        assert len(labelled.qrels) == 6
        assert all(len(grades) == 10 for grades in labelled.qrels.values())
        assert load_collection(f"path:{folder / 'labelled'}", "test").qrels == real.qrels
        assert labelled.corpus_hash == real.corpus_hash
        assert not (folder / ".labelled.shards").exists()
        again = self.label(folder, folder / "labelled", *options)
        assert again.stdout == done.stdout
        assert "already done" in again.stderr
        other = self.label(folder, folder / "labelled", *options, "--set", "sampling.seed=1")
        assert_refused(other, 2, "holds other labels")

    def test_bad_input_is_one_line(self, folder: Path) -> None:
        model = ("--reranker", str(folder / "model"))
        assert_refused(self.label(folder, folder / "x", *model, "--set", "thresholds=[1.0]"), 3, "no pair reaches")
        assert_refused(self.label(folder, folder / "x", *model, "--set", "thresholds=[2.0]"), 2, "at most 1")
        assert_refused(self.label(folder, folder / "x", "--reranker", "cross-encoder:/nowhere"), 3, "no such folder")
        assert not (folder / "x").exists()


FUNCTIONS = """
calls = []

def overlap(pairs):
    calls.append({query for query, _ in pairs})
    words = [(set(query.split()), set(document.split())) for query, document in pairs]
    return [len(query & document) / len(query) for query, document in words]

def stated(pairs):
    return overlap(pairs)
stated.identity = "overlap, version 1"

def counted(pairs):
    return [1.0 + len(document) for _, document in pairs]
"""


class TestModels(Command):
    """What ``evaluate --model`` takes, graded."""

    @pytest.fixture
    def here(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        module = f"my_graders_{folder.parent.name}_{folder.name}".replace("-", "_")
        (folder / f"{module}.py").write_text(FUNCTIONS, encoding="utf-8")
        save_tiny_cross_encoder(folder / "ce")
        save_tiny_encoder(folder / "encoder")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("MODULE", module)
        return folder

    def texts(self, folder: Path, output: str) -> dict[tuple[str, str], tuple[str, str]]:
        """The labelled pairs, relevant or not, and their texts."""
        labelled = load_collection(f"path:{folder / output}", "train")
        config = LabelConfig(collection=f"path:{folder / 'collection'}", depth=10)
        found = candidates_of(labelled, {key: labelled.queries[key] for key in labelled.qrels}, config)
        return {
            (query_id, document_id): (labelled.queries[query_id], labelled.corpus[document_id].full_text)
            for query_id, scores in found.items()
            for document_id in scores
        }

    def check(self, here: Path, model: str, grade: Callable[[list[tuple[str, str]]], Sequence[float]]) -> None:
        """Label twice, the second time at a threshold that separates what ``grade`` gives to the pairs."""
        given = ("--model", model, "--set")
        successful(self.label(here, here / "all", *given, "thresholds=[0.000001]"))
        pairs = self.texts(here, "all")
        expected = dict(zip(pairs, grade(list(pairs.values())), strict=True))
        middle = statistics.median(expected.values()) + 1e-5
        successful(self.label(here, here / "labelled", *given, f"thresholds=[{middle}]"))
        graded = {
            (query_id, document_id)
            for query_id, grades in load_collection(f"path:{here / 'labelled'}", "train").qrels.items()
            for document_id, grade_there in grades.items()
            if grade_there == 1
        }
        assert graded == {pair for pair, value in expected.items() if value >= middle}
        assert 0 < len(graded) < len(expected), "a threshold that separates"

    def test_a_cross_encoder_grades_by_the_sigmoid_of_its_logit(self, here: Path) -> None:
        theirs = CrossEncoder("ce", device="cpu", activation_fn=torch.nn.Sigmoid())
        self.check(here, "cross-encoder:ce", lambda pairs: theirs.predict(pairs).tolist())

    def test_a_causal_model_grades_by_its_probability_of_yes(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engines, "choose_dtype", lambda *_, **__: torch.float32)
        config = LabelConfig(collection="any", reranker=str(here / "model"), max_length=256)
        collection = load_collection(f"path:{here / 'collection'}", "train")
        some = replace(collection, queries=dict(list(collection.queries.items())[:2]))
        run = candidates_of(collection, some.queries, config)
        grader = load_grader(config, torch.device("cpu"), LocalEngine())
        found = grader.probabilities(some, run)
        model = unimoe.load_model(
            ModelConfig(base=str(here / "model"), max_length=256, dtype="float32"), prompt=config.prompt, device="cpu"
        )
        known = [model.base_identity, model.prompt_name, str(model.dtype), None]
        assert grader.identity == hash_json(known), "as it was, so that labels stay what they are"
        for query_id, scores in found.items():
            pairs = [(some.queries[query_id], some.corpus[key].full_text) for key in scores]
            assert list(scores.values()) == pytest.approx(model.rerank(pairs).tolist(), abs=1e-5)

    def test_a_function_returns_probabilities_for_one_query_at_a_time(self, here: Path) -> None:
        module = os.environ["MODULE"]
        self.check(here, f"python:{module}:stated", lambda pairs: importlib.import_module(module).overlap(pairs))
        asked = [len(queries) for queries in importlib.import_module(module).calls]
        assert sorted(asked) == [1] * 12 + [6], "six queries twice, and all of them by this test"
        again = self.label(here, here / "all", "--model", f"python:{module}:stated", "--set", "thresholds=[0.000001]")
        assert "already done" in again.stderr

    def test_a_function_without_an_identity_is_never_taken_for_what_is_there(self, here: Path) -> None:
        options = ("--model", f"python:{os.environ['MODULE']}:overlap", "--set", "thresholds=[0.000001]")
        assert self.label(here, here / "labelled", *options).returncode == 0
        assert_refused(self.label(here, here / "labelled", *options), 2, "holds other labels", "--output-dir")

    def test_queries_of_the_test_split_are_refused_before_anything_is_graded(self, here: Path) -> None:
        module = os.environ["MODULE"]
        same = ("--set", "split=train", "--set", "test_split=train")
        done = self.label(here, here / "x", "--model", f"python:{module}:stated", *same)
        assert_refused(done, 3, "is to be labelled and in test_split too; label another split")
        assert module not in sys.modules

    def test_what_grades_no_pair_is_refused_in_one_line(self, here: Path) -> None:
        for name, code, *words in (
            ("encoder:encoder", 2, "encoder:encoder: embeds and does not rerank"),
            ("cross-encodr:ce", 2, "did you mean 'cross-encoder'?"),
            (f"python:{os.environ['MODULE']}:overlaps", 2, "did you mean 'overlap'?"),
            (f"python:{os.environ['MODULE']}:counted", 3, "query '", "counted returned ", "from 0 to 1"),
        ):
            assert_refused(self.label(here, here / "x", "--model", name), code, *words)
        assert not (here / "x").exists()
