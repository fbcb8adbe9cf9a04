"""``evaluate --model``: any reranker or embedder by name, with plan, resumption, several processes and bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.experiments import write_tiny_experiment
from support.reranking import invented, long_collection, write_invented, written
from support.scripts import SCRIPTS, Done, assert_refused, call_script
from support.tiny_encoders import save_tiny_encoder
from support.tiny_models import save_tiny_model
from support.tiny_rerankers import (
    save_tiny_cross_encoder,
    save_tiny_score_adapter,
    save_tiny_score_head,
    save_tiny_t5,
)

import unimoe
from unimoe.data.catalog import load_collection
from unimoe.models.rerankers.cross_encoder import score_pairs
from unimoe.results import EvalResult, read_result
from unimoe.trec import read_run

pytestmark = pytest.mark.usefixtures("one_thread")

FUNCTIONS = """
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
    # It lacks all but the methods.

    def cut(self, collection, candidates):
        return [[(query, document) for document in found] for query, found in candidates.items()]

    def prepare(self, pairs):
        return pairs

    def truncated_queries(self, queries):
        return []

    def score(self, prepared, advance=None):
        return longest(prepared)

class Broken(Own):
    def score(self, prepared, advance=None):
        raise RuntimeError("no such luck")

class Losing(Own):
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
def _here(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is that of the models, as for a user who names them by relative paths."""
    monkeypatch.chdir(data)


def evaluate(data: Path, model: str, output_dir: Path | None, *more: str) -> Done:
    chosen = [] if "--datasets" in more else ["--datasets", "toy"]
    place = [] if output_dir is None else ["--output-dir", str(output_dir)]
    exact = ["--set", "model.dtype=float32"] if "--config" not in more else []
    return call_script(
        "evaluate.py", "--model", model, *chosen, *place, *exact, *more,
        UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / "cache"),
    )  # fmt: skip


def result_of(output_dir: Path, arm: str, task: str = "reranking") -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / task / "toy.json")


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
        done = evaluate(data, name, tmp_path, "--task", "reranking")
        assert done.returncode == 0, done.stderr
        result = result_of(tmp_path, arm)
        assert str(result.identity.base_model).startswith(identity)
        assert str(result.identity.prompt).startswith(prompt)
        assert (result.seed, result.identity.checkpoint, result.provenance.dtype) == (None, "none", "float32")
        assert result.first_stage is not None
        assert {"base_model", "prompt", "candidates", "collection"} <= result.provenance.hashes.keys()
        before = written(tmp_path)
        again = evaluate(data, name, tmp_path, "--task", "reranking")
        assert (again.returncode, again.stdout) == (0, done.stdout)
        assert written(tmp_path) == before

    def test_the_run_of_a_cross_encoder_has_the_librarys_scores(self, data: Path, tmp_path: Path) -> None:
        from sentence_transformers import CrossEncoder

        assert evaluate(data, "cross-encoder:ce", tmp_path).returncode == 0
        run = read_run(tmp_path / "ce/seed_none/runs/reranking/toy.trec")
        collection = load_collection(f"path:{data / 'toy'}", "test")
        theirs = CrossEncoder("ce", device="cpu", activation_fn=torch.nn.Identity())
        assert run.keys() == collection.queries.keys()
        for query, scores in run.items():
            for document, score in scores.items():
                pair = (collection.queries[query], collection.corpus[document].full_text)
                assert score == pytest.approx(float(theirs.predict([pair])[0]), abs=1e-5)

    def test_a_causal_model_by_name_scores_as_the_base_of_a_config(self, data: Path, tmp_path: Path) -> None:
        options = ["--config", "tiny.yaml", "--datasets", "toy"]
        zero = call_script(
            "evaluate.py", "--zero-shot", *options, "--output-dir", tmp_path / "zero", UNIMOE_DATA=str(data)
        )
        assert zero.returncode == 0, zero.stderr
        named = evaluate(data, "tiny-model", tmp_path / "named", *options, "--name", "mine")
        assert named.returncode == 0, named.stderr
        for task in ("reranking", "embedding"):
            one, other = result_of(tmp_path / "zero", "zero_shot", task), result_of(tmp_path / "named", "mine", task)
            assert (one.per_query, one.identity) == (other.per_query, other.identity)
        runs = [
            place / "seed_none/runs/reranking/toy.trec"
            for place in (tmp_path / "zero/zero_shot", tmp_path / "named/mine")
        ]
        assert read_run(runs[0]) == read_run(runs[1])

    def test_an_encoder_embeds_and_does_not_rerank(self, data: Path, tmp_path: Path) -> None:
        done = evaluate(data, "encoder:encoder", tmp_path)
        assert done.returncode == 0, done.stderr
        result = result_of(tmp_path, "encoder", "embedding")
        assert str(result.identity.base_model).startswith("encoder@")
        assert str(result.identity.prompt).startswith("mean@")
        assert not (tmp_path / "encoder/seed_none/results/reranking").exists()
        refused = evaluate(data, "encoder:encoder", tmp_path, "--task", "reranking")
        assert_refused(refused, 2, "--task reranking: encoder does embedding only")

    def test_without_a_place_results_have_a_folder_for_each_model(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert evaluate(data, f"cross-encoder:{data / 'ce'}", None, "--name", "mine").returncode == 0
        assert result_of(tmp_path / "outputs/models/mine", "mine").config_name == "mine"

    def test_other_answers_are_other_scores_and_another_identity(self, data: Path, tmp_path: Path) -> None:
        for place, more in (("one", []), ("other", ["--set", "prompt.yes=yes", "--set", "prompt.no=no"])):
            assert evaluate(data, "monot5:t5", tmp_path / place, *more).returncode == 0
        one, other = (read_run(tmp_path / place / "t5/seed_none/runs/reranking/toy.trec") for place in ("one", "other"))
        assert one != other
        assert result_of(tmp_path / "one", "t5").identity.prompt != result_of(tmp_path / "other", "t5").identity.prompt

    def test_a_task_of_mteb_is_planned(self, data: Path, tmp_path: Path) -> None:
        done = evaluate(data, "cross-encoder:ce", tmp_path, "--mteb", "AskUbuntuDupQuestions", "--plan")
        assert done.returncode == 0, done.stderr
        assert "AskUbuntuDupQuestions" in done.stdout


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
            done = evaluate(data, f"python:my_functions:{name}", tmp_path / name)
            assert done.returncode == 0, done.stderr
            done = evaluate(data, f"python:my_functions:{name}", None, "--plan")
            assert "pairs a second" in done.stdout, done.stderr
        assert self.run_of(tmp_path / "own", "own") == self.run_of(tmp_path / "of_one_query", "of_one_query")

    def test_without_an_identity_it_is_always_evaluated_again(self, data: Path, tmp_path: Path) -> None:
        for name, kept in (("named", True), ("longest", False)):
            lines = [evaluate(data, f"python:my_functions:{name}", tmp_path / name).stderr for _ in range(2)]
            assert (f"reranking toy: {name}: already done" in lines[1]) is kept, lines[1]
        identity = str(result_of(tmp_path / "named", "named").identity.base_model)
        assert identity.startswith("python:my_functions:named@")


class TestPlan:
    def test_pairs_are_counted_and_timed_and_nothing_is_written(self, data: Path, tmp_path: Path) -> None:
        done = evaluate(data, "cross-encoder:ce", tmp_path / "outputs", "--plan", "--price-per-hour", "2")
        assert done.returncode == 0, done.stderr
        header, line, total = done.stdout.splitlines()
        assert header.split() == ["task", "dataset", "queries", "pairs/texts", "tokens", "disk"]
        task, dataset, queries, pairs, tokens, *_ = line.split()
        assert (task, dataset, queries, tokens) == ("reranking", "toy", "3", "-")
        assert total.startswith(f"total: {pairs} pairs, ")
        assert "0.00 at 2 an hour (probe: " in total
        assert total.endswith(" pairs a second)")
        assert not (tmp_path / "outputs").exists()

    @pytest.mark.parametrize(
        ("name", "unit"), [("monot5:t5", "tokens"), ("rankllama:llama", "tokens"), ("encoder:encoder", "texts")]
    )
    def test_what_is_counted_is_what_the_model_reads(self, data: Path, tmp_path: Path, name: str, unit: str) -> None:
        done = evaluate(data, name, tmp_path, "--plan")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].endswith(f" {unit} a second)")


def many_shards(output_dir: Path, model: str = "cross-encoder:ce", dataset: str = "wide") -> list[str]:
    """The options of a reranking in shards: of 64 pairs by cross-encoders, and by models of token ids of long texts."""
    exact = ["--set", "model.dtype=float32", "--set", "model.max_length=64", "--set", "evaluation.batch_size=1"]
    return ["--model", model, "--datasets", dataset, *exact, "--output-dir", str(output_dir)]


def environment(data: Path) -> dict[str, str]:
    source = str(Path(unimoe.__file__).parents[1])  # wherever the process starts
    own = {"UNIMOE_DATA": str(data), "UNIMOE_CACHE": str(data / "cache")}
    return own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}


class TestResumption:
    @pytest.fixture(scope="class")
    def undisturbed(self, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        output_dir = tmp_path_factory.mktemp("undisturbed")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(data)
            done = call_script("evaluate.py", *many_shards(output_dir), **environment(data))
        assert done.returncode == 0, done.stderr
        return output_dir

    def test_killed_between_shards_it_goes_on_and_ends_the_same(
        self, data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command = [sys.executable, str(SCRIPTS / "evaluate.py"), *many_shards(tmp_path)]
        quiet = subprocess.DEVNULL

        def shards() -> list[Path]:
            return [*tmp_path.glob("ce/seed_none/shards/*/*.json")]

        with subprocess.Popen(command, env=os.environ | environment(data), stdout=quiet, stderr=quiet) as process:
            deadline = time.monotonic() + 300
            while len(shards()) < 2:
                assert process.poll() is None, "the run ended before the moment came"
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        finished, scored = len(shards()), list[int]()

        def counted(model: Any, pairs: Any, *more: Any) -> list[float]:
            scored.append(len(pairs))
            return score_pairs(model, pairs, *more)

        monkeypatch.setattr("unimoe.evaluation.rerankers.score_pairs", counted)
        again = call_script("evaluate.py", *many_shards(tmp_path), **environment(data))
        assert again.returncode == 0, again.stderr
        total = -(-100 * 6 // 64)
        assert len(scored) == total - finished
        assert written(tmp_path) == written(undisturbed)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "dataset"),
        [("cross-encoder:ce", "wide"), ("python:my_functions:longest", "wide"), ("monot5:t5", "long")],
    )
    def test_several_processes_find_what_one_finds(self, data: Path, tmp_path: Path, name: str, dataset: str) -> None:
        found = []
        for place, launcher in (
            ("one", []), ("two", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
        ):  # fmt: skip
            options = many_shards(tmp_path / place, name, dataset)
            command = [sys.executable, *launcher, str(SCRIPTS / "evaluate.py"), *options]
            env = os.environ | environment(data)
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            found.append((done.stdout.replace(str(tmp_path / place), ""), written(tmp_path / place)))
        assert found[0] == found[1]


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
            ("cross-encoder:headless", 3, ["headless: no weights for classifier.weight"]),
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
            ("python:my_leaving:score", 3, ["importing it raised SystemExit: 0 (my_leaving.py, line 1); mend it"]),
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
            ("python:my_functions:nan", 3, ["toy, query 'q", "the score is nan; a reranker returns finite numbers"]),
        ],
    )
    def test_it_is_one_line_that_names_the_mend(
        self, data: Path, tmp_path: Path, name: str, code: int, words: list[str]
    ) -> None:
        done = evaluate(data, name, tmp_path / "outputs", "--task", "reranking")
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        last = done.stderr.strip().splitlines()[-1]
        for word in words:
            assert word in last
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
