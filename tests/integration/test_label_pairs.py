"""Pseudo-judgments: which queries, which grades, how they agree, and that a killed run loses one shard at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.heads import topics_folder
from support.scripts import Done, assert_refused, call_script
from support.tiny_models import save_tiny_model

import unimoe
from unimoe.data.catalog import load_collection
from unimoe.errors import DataError
from unimoe.studies.biencoder.config import LabelConfig, SamplingConfig
from unimoe.studies.biencoder.labels.graders import load_grader
from unimoe.studies.biencoder.labels.labelling import agreement, candidates_of, grades_of, probabilities
from unimoe.studies.biencoder.labels.queries import sample_queries

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


class Killed:
    """A grader that dies after some shards."""

    def __init__(self, grader: Any, shards: int) -> None:
        self.grader, self.left, self.identity = grader, shards, grader.identity

    def probabilities(self, pairs: Any) -> Any:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.grader.probabilities(pairs)


def test_a_killed_run_grades_no_shard_twice(tmp_path: Path) -> None:
    topics_folder(tmp_path / "collection")
    config = LabelConfig(
        collection=f"path:{tmp_path / 'collection'}", reranker=str(save_tiny_model(tmp_path / "model")), depth=10
    )
    collection = load_collection(config.collection, "train")
    queries = dict(list(collection.queries.items())[:7])
    grader, run = load_grader(config, torch.device("cpu")), candidates_of(collection, queries, config)
    whole = probabilities(grader, collection, queries, run, tmp_path / "whole", 3)
    with pytest.raises(KeyboardInterrupt):
        probabilities(Killed(grader, 2), collection, queries, run, tmp_path / "shards", 3)
    assert len(list((tmp_path / "shards").iterdir())) == 2
    assert probabilities(Killed(grader, 1), collection, queries, run, tmp_path / "shards", 3) == whole
    texts = [("query", "document")]
    assert 0.0 < float(grader.probabilities(texts)[0]) < 1.0


class TestCommand:
    def label(self, folder: Path, output: Path, *more: str) -> Done:
        return call_script(
            str(Path(unimoe.__file__).with_name("__main__.py")), "label-pairs", "--device", "cpu",
            "--collection", f"path:{folder / 'collection'}", "--output-dir", output, "--set", "depth=10",
            "--set", "sampling.queries=6", "--set", "prompt.template=qwen3", "--set", "max_length=256", *more,
        )  # fmt: skip

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        topics_folder(tmp_path / "collection")
        save_tiny_model(tmp_path / "model")
        return tmp_path

    def test_a_collection_comes_out_that_can_be_trained_on(self, folder: Path) -> None:
        options = ("--reranker", str(folder / "model"), "--set", "thresholds=[0.0001, 0.5]")
        done = self.label(folder, folder / "labelled", *options)
        assert done.returncode == 0, done.stderr
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
        assert_refused(self.label(folder, folder / "x", "--reranker", "cross-encoder:/nowhere"), 3, "cannot be loaded")
        assert not (folder / "x").exists()
