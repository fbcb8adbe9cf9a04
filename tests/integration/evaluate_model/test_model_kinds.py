"""``evaluate --model``: any reranker or embedder by name, or a function of the user's; and its plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.named_models import evaluate, result_of
from support.reranking import written
from support.scripts import assert_refused, call_script, successful
from support.tiny_encoders import POSITIONS

from unimoe.core.trec import read_run
from unimoe.data.catalog import load_collection


class TestKinds:
    @pytest.mark.parametrize(
        ("name", "arm", "identity", "prompt"),
        [
            ("cross-encoder:ce", "ce", "cross-encoder:ce@", "cross_encoder(max_length=512)@"),
            ("cross-encoder:causal", "causal", "cross-encoder:causal@", "cross_encoder(max_length=512)@"),
            ("monot5:t5", "t5", "monot5:t5@", "monot5(max_length=512)@"),
            ("rankllama:llama", "llama", "rankllama:llama@", "rankllama(max_length=512)@"),
            ("rankllama:adapter", "adapter", "rankllama:adapter@", "rankllama(max_length=512)@"),
            ("causal", "causal", "causal@", "qwen3/query_first@"),
            ("yes-no:./causal", "causal", "causal@", "qwen3/query_first@"),
        ],
    )
    def test_a_result_says_what_was_evaluated(
        self, data: Path, tmp_path: Path, name: str, arm: str, identity: str, prompt: str
    ) -> None:
        done = successful(evaluate(data, name, tmp_path, "--task", "reranking"))
        result = result_of(tmp_path, arm)
        assert str(result.identity.base_model).startswith(identity)
        assert str(result.identity.prompt).startswith(prompt)
        assert (result.seed, result.identity.checkpoint, result.provenance.dtype) == (None, "none", "float32")
        assert result.first_stage is not None
        assert result.config.keys().isdisjoint({"training", "lora", "arms", "seeds", "gates"})
        assert {"base_model", "prompt", "candidates", "collection"} <= result.provenance.hashes.keys()
        before = written(tmp_path)
        again = evaluate(data, name, tmp_path, "--task", "reranking")
        assert (again.returncode, again.stdout) == (0, done.stdout)
        assert written(tmp_path) == before

    def test_the_run_of_a_cross_encoder_has_the_librarys_scores(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from sentence_transformers import CrossEncoder

        monkeypatch.chdir(tmp_path)  # where results without a place have a folder for each model
        assert evaluate(data, f"cross-encoder:{data / 'ce'}", None, "--name", "mine").returncode == 0
        run = read_run(tmp_path / "outputs/models/mine/mine/seed_none/runs/reranking/toy.trec")
        collection = load_collection(f"path:{data / 'toy'}", "test")
        theirs = CrossEncoder(str(data / "ce"), device="cpu", activation_fn=torch.nn.Identity())
        assert run.keys() == collection.queries.keys()
        for query, scores in run.items():
            for document, score in scores.items():
                pair = (collection.queries[query], collection.corpus[document].full_text)
                assert score == pytest.approx(float(theirs.predict([pair])[0]), abs=1e-5)

    def test_a_causal_model_by_name_scores_as_the_base_of_a_config(self, data: Path, tmp_path: Path) -> None:
        options = ["--config", "tiny.yaml", "--dataset", "toy"]
        successful(
            call_script(
                "evaluate.py", "--zero-shot", *options, "--output-dir", tmp_path / "zero", UNIMOE_DATA=str(data)
            )
        )
        successful(evaluate(data, "tiny-model", tmp_path / "named", *options, "--name", "mine"))
        for task in ("reranking", "embedding"):
            one, other = result_of(tmp_path / "zero", "zero_shot", task), result_of(tmp_path / "named", "mine", task)
            assert (one.per_query, one.identity) == (other.per_query, other.identity)
        runs = [
            place / "seed_none/runs/reranking/toy.trec"
            for place in (tmp_path / "zero/zero_shot", tmp_path / "named/mine")
        ]
        assert read_run(runs[0]) == read_run(runs[1])

    def test_an_encoder_embeds_and_does_not_rerank(self, data: Path, tmp_path: Path) -> None:
        successful(evaluate(data, "encoder:encoder", tmp_path))
        result = result_of(tmp_path, "encoder", "embedding")
        assert str(result.identity.base_model).startswith("encoder@")
        assert str(result.identity.prompt).startswith("mean@")
        assert not (tmp_path / "encoder/seed_none/results/reranking").exists()
        refused = evaluate(data, "encoder:encoder", tmp_path, "--task", "reranking")
        assert_refused(refused, 2, "--task reranking: encoder does embedding only")

    def test_the_length_of_an_encoder_is_its_own_or_the_one_that_is_set_and_the_one_recorded(
        self, data: Path, tmp_path: Path
    ) -> None:
        assert evaluate(data, "encoder:encoder", tmp_path / "own").returncode == 0
        assert evaluate(data, "encoder:encoder", tmp_path / "set", "--set", "model.max_length=16").returncode == 0
        own, cut = (result_of(tmp_path / place, "encoder", "embedding") for place in ("own", "set"))
        assert (own.config["model"]["max_length"], cut.config["model"]["max_length"]) == (POSITIONS, 16)
        runs = [read_run(tmp_path / place / "encoder/seed_none/runs/embedding/toy.trec") for place in ("own", "set")]
        assert runs[0] != runs[1]
        refused = evaluate(data, "encoder:encoder", tmp_path / "long", "--set", f"model.max_length={POSITIONS + 1}")
        assert_refused(refused, 2, f"model.max_length {POSITIONS + 1}: ", f"has {POSITIONS} positions; lower it")

    def test_other_answers_are_other_scores_and_another_identity(self, data: Path, tmp_path: Path) -> None:
        for place, more in (("one", []), ("other", ["--set", "prompt.yes=yes", "--set", "prompt.no=no"])):
            assert evaluate(data, "monot5:t5", tmp_path / place, *more).returncode == 0
        one, other = (read_run(tmp_path / place / "t5/seed_none/runs/reranking/toy.trec") for place in ("one", "other"))
        assert one != other
        assert result_of(tmp_path / "one", "t5").identity.prompt != result_of(tmp_path / "other", "t5").identity.prompt


class TestEqualScores:
    """Only pairs that read the same may have the same score, whatever the dtype."""

    @pytest.mark.parametrize(
        "name",
        ["cross-encoder:ce", "cross-encoder:two", "cross-encoder:causal", "monot5:t5", "rankllama:llama", "causal"],
    )
    def test_candidates_of_a_model_in_bfloat16_have_scores_of_their_own(
        self, data: Path, tmp_path: Path, name: str
    ) -> None:
        options = ["--dataset", "wide", "--task", "reranking", "--max-queries", "1", "--name", "low"]
        done = successful(evaluate(data, name, tmp_path, *options, "--set", "model.dtype=bfloat16"))
        assert "equal scores" not in done.stderr
        assert result_of(tmp_path, "low", dataset="wide").provenance.dtype == "bfloat16"
        for query, scores in read_run(tmp_path / "low/seed_none/runs/reranking/wide.trec").items():
            assert len(scores) > 90, query
            assert len(set(scores.values())) == len(scores), query

    def test_a_run_with_many_of_them_is_named(self, data: Path, tmp_path: Path) -> None:
        done = successful(evaluate(data, "python:my_functions:longest", tmp_path))
        assert "toy: queries with equal scores among the first 10 places" in done.stderr.replace("\n", " ")


class TestPlan:
    @pytest.mark.parametrize(
        ("name", "unit"), [("cross-encoder:ce", "pairs"), ("monot5:t5", "tokens"), ("encoder:encoder", "texts")]
    )
    def test_what_is_counted_is_what_the_model_reads(self, data: Path, tmp_path: Path, name: str, unit: str) -> None:
        mteb = ["--mteb", "AskUbuntuDupQuestions"] if unit == "pairs" else []
        done = successful(evaluate(data, name, tmp_path / "outputs", "--plan", "--price-per-hour", "2", *mteb))
        line, total = done.stdout.splitlines()[1], done.stdout.splitlines()[-1]
        assert (line.split()[4] == "-") is (unit != "tokens")
        assert " at 2 an hour (probe: " in total
        assert total.endswith(f" {unit} a second)")
        assert not (tmp_path / "outputs").exists()


class TestPython:
    def run_of(self, output_dir: Path, arm: str) -> Any:
        return read_run(output_dir / arm / "seed_none/runs/reranking/toy.trec")

    def test_a_function_of_the_current_folder(self, data: Path, tmp_path: Path) -> None:
        assert evaluate(data, "python:my_functions:longest", tmp_path).returncode == 0
        corpus = load_collection(f"path:{data / 'toy'}", "test").corpus
        for scores in self.run_of(tmp_path, "longest").values():
            assert scores == {document: len(corpus[document].full_text) for document in scores}

    def test_a_function_that_changes_the_folder_moves_no_results(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(data)
        successful(evaluate(data, "python:my_functions:moving", Path("outputs")))
        assert result_of(tmp_path / "outputs", "moving").aggregate
        assert not [*(tmp_path / "elsewhere").iterdir()]

    def test_a_reranker_with_the_methods_alone(self, data: Path, tmp_path: Path) -> None:
        for name in ("own", "of_one_query"):
            done = successful(evaluate(data, f"python:my_functions:{name}", tmp_path / name))
            done = evaluate(data, f"python:my_functions:{name}", None, "--plan")
            assert "pairs a second" in done.stdout, done.stderr
        assert self.run_of(tmp_path / "own", "own") == self.run_of(tmp_path / "of_one_query", "of_one_query")

    def test_without_an_identity_it_is_always_evaluated_again(self, data: Path, tmp_path: Path) -> None:
        for name, kept in (("named", True), ("longest", False)):
            lines = [evaluate(data, f"python:my_functions:{name}", tmp_path / name).stderr for _ in range(2)]
            assert (f"reranking toy: {name}: already done" in lines[1]) is kept, lines[1]
        identity = str(result_of(tmp_path / "named", "named").identity.base_model)
        assert identity.startswith("python:my_functions:named@")
