"""``evaluate --model``: any reranker or embedder by name, or a function; its plan, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.experiments import write_tiny_experiment
from support.reranking import invented, long_collection, write_invented, written
from support.scripts import Done, assert_refused, call_script, successful
from support.tiny_encoders import save_tiny_encoder
from support.tiny_models import save_tiny_model
from support.tiny_rerankers import save_tiny_cross_encoder, save_tiny_score_adapter, save_tiny_score_head, save_tiny_t5

from unimoe.core.trec import read_run
from unimoe.data.catalog import load_collection
from unimoe.results import EvalResult, read_result

FUNCTIONS = """
from unimoe.evaluation.reranking.shards import Reranker

def longest(pairs):
    return [float(len(document)) for query, document in pairs]

def named(pairs):
    return longest(pairs)
named.identity = "longest, version 1"

def raising(pairs):
    return pairs[0][2]

def wide(pairs):
    return [[1.0, 2.0] for pair in pairs]

def short(pairs):
    return [1.0]

def words(pairs):
    return ["a"] * len(pairs)

def imaginary(pairs):
    return [1j] * len(pairs)

def nan(pairs):
    return [float("nan")] * len(pairs)

def leaving(pairs):
    raise SystemExit(0)

def of_one_query(pairs):
    assert len({query for query, _ in pairs}) == 1
    return longest(pairs)

def unnamed(pairs):
    return longest(pairs)
unnamed.identity = 7

class Own:
    # It lacks all but the method.

    def score(self, pairs):
        return longest(pairs)

class Broken(Own):
    def score(self, pairs):
        raise RuntimeError("no such luck")

class Losing(Reranker):
    def score(self, prepared, advance=None):
        return longest(prepared)

    def cut(self, collection, candidates):
        return super().cut(collection, candidates)[1:]

own, broken, losing = Own(), Broken(), Losing()
number = 3
"""


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collections, and a folder for each kind of model, made once."""
    folder = tmp_path_factory.mktemp("models")
    write_invented(folder / "toy", invented(documents=10, queries=3))
    write_invented(folder / "wide", invented(documents=120, queries=6, words=40))
    write_invented(folder / "long", long_collection())
    save_tiny_cross_encoder(folder / "ce")
    save_tiny_cross_encoder(folder / "two", labels=2)
    save_tiny_cross_encoder(folder / "nli", labels=3)
    save_tiny_t5(folder / "t5")
    save_tiny_score_head(folder / "llama")
    save_tiny_score_head(folder / "grades", labels=3)
    save_tiny_score_adapter(folder / "base", folder / "adapter")
    save_tiny_model(folder / "causal", "qwen3")
    save_tiny_encoder(folder / "encoder")
    damaged = shutil.copytree(folder / "ce", folder / "damaged") / "model.safetensors"
    save_file({name: torch.full_like(w, torch.nan) for name, w in load_file(damaged).items()}, damaged)
    headless = shutil.copytree(folder / "ce", folder / "headless") / "model.safetensors"
    save_file({name: w for name, w in load_file(headless).items() if "classifier" not in name}, headless)
    (folder / "my_functions.py").write_text(FUNCTIONS, "utf-8")
    (folder / "my_leaving.py").write_text("raise SystemExit(0)\n", "utf-8")
    (folder / "my_broken.py").write_text("import json\njson.loads('{')\n", "utf-8")
    write_tiny_experiment(folder)
    return folder


@pytest.fixture(autouse=True)
def _here(data: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is that of the models, as for a user who names them by relative paths."""
    monkeypatch.chdir(data)


def evaluate(data: Path, model: str, output_dir: Path | None, *more: str) -> Done:
    chosen = [] if "--dataset" in more else ["--dataset", "toy"]
    place = [] if output_dir is None else ["--output-dir", str(output_dir)]
    exact = ["--set", "model.dtype=float32"] if "--config" not in more else []
    return call_script(
        "evaluate.py", "--model", model, *chosen, *place, *exact, *more,
        UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / "cache"),
    )  # fmt: skip


def result_of(output_dir: Path, arm: str, task: str = "reranking", dataset: str = "toy") -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / task / f"{dataset}.json")


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


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "code", "words"),
        [
            (" ", 2, ["--model names nothing"]),
            ("crossencoder:ce", 2, ["no kind of model 'crossencoder' (did you mean 'cross-encoder'?)", "monot5:..."]),
            ("cross-encoder:", 2, ["names no model; write one after the colon"]),
            ("cross-encoder:./nowhere", 3, ["'./nowhere': no such folder; check the path"]),
            ("cross-encoder:nobody/nothing", 3, ["'nobody/nothing' cannot be loaded", "check the id or folder"]),
            ("./nowhere", 3, ["'./nowhere': no such folder; check the path"]),
            ("nobody/nothing", 3, ["'nobody/nothing'", "check the id or folder, or connect to the hub"]),
            ("cross-encoder:nli", 3, ["nli: a model of 3 labels; ranking needs one score per pair"]),
            ("cross-encoder:encoder", 3, ["encoder: a BertModel, which has no head that scores pairs"]),
            ("cross-encoder:headless", 3, ["headless: no weights for classifier.bias"]),
            ("cross-encoder:toy", 3, ["toy: no config.json; give the folder of a model"]),
            ("cross-encoder:damaged", 3, ["toy, query 'q", "its score is not finite; the weights are damaged"]),
            ("ce", 2, ["a BertForSequenceClassification, no causal language model", "write --model cross-encoder:ce"]),
            ("adapter", 2, ["adapter: an adapter alone", "write --model rankllama:adapter if it has a score head"]),
            ("t5", 2, ["a T5ForConditionalGeneration, no causal language model", "write --model monot5:t5"]),
            ("encoder", 2, ["a BertModel, no causal language model", "write --model encoder:encoder"]),
            ("monot5:ce", 3, ["ce: a BertForSequenceClassification, no T5 that answers"]),
            ("rankllama:ce", 3, ["ce: a BertForSequenceClassification, no decoder with a score head"]),
            ("rankllama:grades", 3, ["grades: a model of 3 labels; ranking needs one score per pair"]),
            ("rankllama:causal", 3, ["causal: no weights for score.weight"]),
            ("bundled:minilm", 2, ["bundled:minilm: no bundled model", "bundled:all-minilm-l6-v2"]),
            ("bundled:smollm2", 2, ["no bundled model (did you mean 'bundled:smollm2-135m-instruct'?)"]),
            ("python:my_functions", 2, ["write python:MODULE:FUNCTION"]),
            ("python:my_function:longest", 2, ["no module 'my_function'; run the command in its folder"]),
            ("python:my_functions:longst", 2, ["my_functions has no longst (did you mean 'longest'?)"]),
            ("python:my_functions:number", 2, ["number is an int; name a function from (query, document) pairs"]),
            ("python:my_broken:score", 3, ["importing it raised JSONDecodeError: Expecting property name"]),
            ("python:my_leaving:score", 3, ["importing it raised SystemExit: 0 (my_leaving.py, line 1); fix it"]),
            ("python:my_functions:leaving", 3, ["python:my_functions:leaving raised SystemExit: 0 (my_functions.py"]),
            ("python:my_functions:broken", 3, ["python:my_functions:broken raised RuntimeError: no such luck (my_"]),
            ("python:my_functions:losing", 3, ["query 'q0', document", "in no shard of the reranker's cut()"]),
            ("python:my_functions:unnamed", 2, ["unnamed: its identity is an int; make it a text"]),
            ("python:my_functions:raising", 3, ["raised IndexError: tuple index out of range (my_functions.py, line"]),
            ("python:my_functions:wide", 3, ["the reranker returned scores of shape", "a number for each pair"]),
            (
                "python:my_functions:short",
                3,
                ["query 'q0'", "the reranker returned 1 scores for", "return one for each"],
            ),
            ("python:my_functions:words", 3, ["the reranker returned list; return a number for each pair"]),
            ("python:my_functions:imaginary", 3, ["the reranker returned list; return a number for each pair"]),
            ("python:my_functions:nan", 3, ["toy, query 'q", "the score is nan; a reranker returns finite numbers"]),
        ],
    )
    def test_it_is_one_line_that_names_the_mend(
        self, data: Path, tmp_path: Path, name: str, code: int, words: list[str]
    ) -> None:
        done = evaluate(data, name, tmp_path / "outputs", "--task", "reranking")
        assert_refused(done, code, *words, silent=False)
        assert not [*tmp_path.glob("outputs/*/seed_none/results/reranking/toy.json")] or code == 3

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ([], "give one of --checkpoint FOLDER, --zero-shot and --model NAME"),
            (["--model", "ce", "--zero-shot"], "give one of --checkpoint FOLDER, --zero-shot and --model NAME"),
            (["--model", "ce", "--checkpoint", "x"], "give one of --checkpoint FOLDER, --zero-shot and --model NAME"),
            (["--zero-shot", "--config", "tiny.yaml", "--name", "x"], "--name belongs to --model"),
            (["--model", "cross-encoder:ce", "--name", "a b"], "--name a b: no name for this arm"),
            (["--model", "cross-encoder:ce", "--set", "model.layers=1"], "model.layers cuts causal language models"),
            (["--model", "cross-encoder:ce", "--set", "modle.layers=1"], "modle: unknown key"),
        ],
    )
    def test_options_that_do_not_go_together(self, options: list[str], words: str) -> None:
        assert_refused(call_script("evaluate.py", *options), 2, words)

    def test_a_length_beyond_an_encoders_positions_is_refused(self, data: Path, tmp_path: Path) -> None:
        refused = evaluate(data, "encoder:encoder", tmp_path, "--set", "model.max_length=65")
        assert_refused(refused, 2, "model.max_length 65: ", "positions; lower it")

    def test_another_model_of_the_same_name_is_refused(self, data: Path, tmp_path: Path) -> None:
        assert evaluate(data, "cross-encoder:ce", tmp_path).returncode == 0
        done = evaluate(data, "rankllama:llama", tmp_path, "--name", "ce")
        assert done.returncode == 3
        assert "holds another evaluation (base_model 'cross-encoder:ce@" in done.stderr
        assert "choose another --output-dir" in done.stderr.splitlines()[-1]

    def test_settings_of_the_tokenizer_are_part_of_the_identity(self, data: Path, tmp_path: Path) -> None:
        prompts = []
        for changed in (False, True):
            folder = shutil.copytree(data / "ce", tmp_path / str(changed) / "ce")
            if changed:
                path = folder / "tokenizer_config.json"
                path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"model_max_length": 20}), "utf-8")
            assert evaluate(data, f"cross-encoder:{folder}", tmp_path / f"out-{changed}").returncode == 0
            prompts.append(result_of(tmp_path / f"out-{changed}", "ce").identity.prompt)
        assert prompts[0] != prompts[1]
