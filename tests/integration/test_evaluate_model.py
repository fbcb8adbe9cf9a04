"""``evaluate --model``: any reranker or embedder by name, a function, or a server's model; bad input in one line."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import scripts, tiny_models
from support.experiments import write_tiny_experiment
from support.model_server import ModelServer, serve
from support.toy_collections import invented, write_invented, written
from transformers import AutoTokenizer

from unimoe.data.catalog import load_collection
from unimoe.models.served.probe import PROBE_PAIRS

pytestmark = pytest.mark.usefixtures("one_thread")

FUNCTIONS = """
from dataclasses import dataclass
from unimoe.models.reranker import Reranker

def longest(pairs):
    return [float(len(document)) for query, document in pairs]

def named(pairs):
    return longest(pairs)
named.identity = "longest, version 1"

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

@dataclass(frozen=True)
class Frozen(Reranker):
    def score(self, prepared, advance=None):
        return longest(prepared)

class Placed(Frozen):
    @property
    def place(self):
        return "beside the lake"

class Slots(Own):
    __slots__ = ("device", "usage")

    def __init__(self):
        self.device, self.usage = None, {"requests": 0.0}

    def score(self, pairs):
        self.usage["requests"] += 1
        return longest(pairs)

own, broken, frozen, placed, slots = Own(), Broken(), Frozen(), Placed(), Slots()
number = 3
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Collections, and a folder for each kind of model, made once."""
    folder = tmp_path_factory.mktemp("models")
    write_invented(folder / "toy", invented(documents=10, queries=3))
    write_invented(folder / "wide", invented(documents=120, queries=6, words=40))
    tiny_models.save_tiny_cross_encoder(folder / "ce")
    tiny_models.save_tiny_cross_encoder(folder / "two", labels=2)
    tiny_models.save_tiny_cross_encoder(folder / "nli", labels=3)
    tiny_models.save_tiny_t5(folder / "t5")
    tiny_models.save_tiny_score_head(folder / "llama")
    tiny_models.save_tiny_score_adapter(folder / "base", folder / "adapter")
    tiny_models.save_tiny_model(folder / "causal", "qwen3")
    tiny_models.save_sentence_transformer(tiny_models.save_tiny_encoder(folder / "encoder"), folder / "st")
    tiny_models.save_tiny_splade(folder / "splade", folder / "mlm")
    damaged = shutil.copytree(folder / "ce", folder / "damaged") / "model.safetensors"
    save_file({name: torch.full_like(w, torch.nan) for name, w in load_file(damaged).items()}, damaged)
    headless = shutil.copytree(folder / "ce", folder / "headless") / "model.safetensors"
    save_file({name: w for name, w in load_file(headless).items() if "classifier" not in name}, headless)
    (folder / "my_functions.py").write_text(FUNCTIONS, "utf-8")
    (folder / "my_leaving.py").write_text("raise SystemExit(0)\n", "utf-8")
    write_tiny_experiment(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # models are named by relative paths
        yield folder


def called(data: Path, output_dir: Path, options: str) -> scripts.Done:
    return scripts.evaluate(data, *shlex.split(options), "--output-dir", output_dir)


def evaluate_model(data: Path, model: str, output_dir: Path, *more: str) -> scripts.Done:
    chosen = [] if "--dataset" in more else ["--dataset", "toy"]
    exact = ["--set", "model.dtype=float32"] if "--config" not in more else []
    return scripts.evaluate(data, "--model", model, "--output-dir", output_dir, *chosen, *exact, *more)


@pytest.mark.parametrize(
    ("name", "arm", "identity", "prompt"),
    [
        ("cross-encoder:ce", "ce", "cross-encoder:ce@", "cross_encoder(max_length=512)@"),
        ("cross-encoder:causal", "causal", "cross-encoder:causal@", "cross_encoder(max_length=512)@"),
        ("monot5:t5", "t5", "monot5:t5@", "monot5(max_length=512)@"),
        ("rankllama:llama", "llama", "rankllama:llama@", "rankllama(max_length=512)@"),
        ("rankllama:adapter", "adapter", "rankllama:adapter@", "rankllama(max_length=512)@"),
        ("yes-no:./causal", "causal", "causal@", "qwen3/query_first@"),
    ],
)
def test_a_result_says_what_was_evaluated_and_is_kept(
    data: Path, tmp_path: Path, name: str, arm: str, identity: str, prompt: str
) -> None:
    done = scripts.successful(evaluate_model(data, name, tmp_path, "--task", "reranking"))
    result = scripts.result_of(tmp_path, arm)
    assert str(result.identity.base_model).startswith(identity)
    assert str(result.identity.prompt).startswith(prompt)
    assert (result.seed, result.identity.checkpoint, result.provenance.dtype) == (None, "none", "float32")
    assert result.first_stage is not None
    assert result.config.keys().isdisjoint({"training", "lora", "arms", "seeds", "gates"})
    assert {"base_model", "prompt", "candidates", "collection"} <= result.provenance.hashes.keys()
    before = written(tmp_path)
    again = evaluate_model(data, name, tmp_path, "--task", "reranking")
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert written(tmp_path) == before


def test_a_causal_model_by_name_scores_as_the_base_of_a_config(data: Path, tmp_path: Path) -> None:
    options = ("--config", "tiny.yaml", "--dataset", "toy")
    scripts.successful(scripts.evaluate(data, "--zero-shot", *options, "--output-dir", tmp_path))
    scripts.successful(evaluate_model(data, "tiny-model", tmp_path, *options, "--name", "mine"))
    for task in ("reranking", "embedding"):
        one, other = (scripts.result_of(tmp_path, arm, task=task) for arm in ("zero_shot", "mine"))
        assert (one.per_query, one.identity) == (other.per_query, other.identity)
    assert scripts.run_of(tmp_path, "zero_shot") == scripts.run_of(tmp_path, "mine")


@pytest.mark.parametrize(
    "name",
    ["cross-encoder:two", "cross-encoder:causal", "monot5:t5", "rankllama:llama", "causal"],
)
def test_pairs_that_read_otherwise_have_scores_of_their_own_in_bfloat16(data: Path, tmp_path: Path, name: str) -> None:
    options = ["--dataset", "wide", "--task", "reranking", "--max-queries", "1", "--name", "low"]
    done = scripts.successful(evaluate_model(data, name, tmp_path, *options, "--set", "model.dtype=bfloat16"))
    assert "equal scores" not in done.stderr
    assert scripts.result_of(tmp_path, "low", "wide").provenance.dtype == "bfloat16"
    for query, scores in scripts.run_of(tmp_path, "low", "wide").items():
        assert len(scores) > 90, query
        assert len(set(scores.values())) == len(scores), query


class TestPython:
    def test_a_function_gives_the_scores_and_many_equal_ones_are_named(self, data: Path, tmp_path: Path) -> None:
        done = scripts.successful(evaluate_model(data, "python:my_functions:longest", tmp_path))
        corpus = load_collection(f"path:{data / 'toy'}", "test").corpus
        for scores in scripts.run_of(tmp_path, "longest").values():
            assert scores == {document: len(corpus[document].full_text) for document in scores}
        assert "queries have documents with equal scores, ordered by their ids" in done.stderr.replace("\n", " ")

    def test_a_reranker_gets_the_pairs_of_one_query_at_a_time(self, data: Path, tmp_path: Path) -> None:
        for name in ("own", "of_one_query"):
            scripts.successful(evaluate_model(data, f"python:my_functions:{name}", tmp_path))
            plan = evaluate_model(data, f"python:my_functions:{name}", tmp_path, "--plan")
            assert "pairs a second" in plan.stdout, plan.stderr
        assert scripts.run_of(tmp_path, "own") == scripts.run_of(tmp_path, "of_one_query")

    @pytest.mark.parametrize("name", ["frozen", "placed", "slots"])
    def test_objects_of_every_make_score_and_say_where(self, data: Path, tmp_path: Path, name: str) -> None:
        scripts.successful(evaluate_model(data, f"python:my_functions:{name}", tmp_path))
        scripts.successful(evaluate_model(data, "python:my_functions:longest", tmp_path))
        assert scripts.run_of(tmp_path, name) == scripts.run_of(tmp_path, "longest")
        told = scripts.result_of(tmp_path, name).provenance
        assert told.device == ("beside the lake" if name == "placed" else "as the function chooses")
        assert told.usage == ({"requests": 3.0} if name == "slots" else {})

    def test_without_an_identity_it_is_always_evaluated_again(self, data: Path, tmp_path: Path) -> None:
        for name, kept in (("named", True), ("longest", False)):
            lines = [evaluate_model(data, f"python:my_functions:{name}", tmp_path / name).stderr for _ in range(2)]
            assert (f"reranking toy: {name}: already done" in lines[1]) is kept, lines[1]
        identity = str(scripts.result_of(tmp_path / "named", "named").identity.base_model)
        assert identity.startswith("python:my_functions:named@")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (" ", 2, ["--model names nothing"]),
        ("crossencoder:ce", 2, ["no kind of model 'crossencoder' (did you mean 'cross-encoder'?)", "monot5:..."]),
        ("cross-encoder:", 2, ["names no model; write one after the colon"]),
        ("cross-encoder:./nowhere", 3, ["'./nowhere': no such folder; check the path"]),
        ("nobody/nothing", 3, ["'nobody/nothing'", "check the id or folder, connect to the hub"]),
        ("cross-encoder:nli", 3, ["nli: a model of 3 labels; ranking needs one score per pair"]),
        ("cross-encoder:encoder", 3, ["encoder: a BertModel, which has no head that scores pairs"]),
        ("cross-encoder:headless", 3, ["headless: no weights for classifier.bias"]),
        ("cross-encoder:toy", 3, ["toy: no config.json; give the folder of a model"]),
        ("cross-encoder:damaged", 3, ["toy, query 'q", "its score is not finite; the weights are damaged"]),
        ("encoder", 2, ["--task reranking: encoder does embedding only"]),
        ("monot5:ce", 3, ["ce: a BertForSequenceClassification, no T5 that answers"]),
        ("rankllama:ce", 3, ["ce: a BertForSequenceClassification, no decoder with a score head"]),
        ("rankllama:causal", 3, ["causal: no weights for score.weight"]),
        ("bundled:minilm", 2, ["bundled:minilm: no bundled model", "bundled:all-minilm-l6-v2"]),
        ("bundled:smollm2", 2, ["no bundled model (did you mean 'bundled:smollm2-135m-instruct'?)"]),
        ("python:my_functions", 2, ["write python:MODULE:FUNCTION"]),
        ("python:my_function:longest", 2, ["no module 'my_function'; run the command in its folder"]),
        ("python:my_functions:longst", 2, ["my_functions has no longst (did you mean 'longest'?)"]),
        ("python:my_functions:number", 2, ["number is an int; name a function from (query, document) pairs"]),
        ("python:my_leaving:score", 3, ["importing it raised SystemExit: 0 (my_leaving.py, line 1); fix it"]),
        ("python:my_functions:broken", 3, ["python:my_functions:broken raised RuntimeError: no such luck (my_"]),
        ("python:my_functions:unnamed", 2, ["unnamed: its identity is an int; make it a text"]),
    ],
)
def test_a_wrong_model_is_one_line_that_names_the_mend(
    data: Path, tmp_path: Path, name: str, code: int, words: list[str]
) -> None:
    done = evaluate_model(data, name, tmp_path / "outputs", "--task", "reranking")
    scripts.assert_refused(done, code, *words, silent=False)
    assert not [*tmp_path.glob("outputs/*/seed_none/results/reranking/toy.json")] or code == 3


@pytest.mark.parametrize(("name", "kind"), [("ce", "cross-encoder"), ("t5", "monot5")])
def test_a_bare_name_is_read_as_its_folder_says_and_the_result_holds_how(
    data: Path, tmp_path: Path, name: str, kind: str
) -> None:
    bare = scripts.successful(evaluate_model(data, name, tmp_path / "bare"))
    scripts.successful(evaluate_model(data, f"{kind}:{name}", tmp_path / "named"))
    assert scripts.run_of(tmp_path / "bare", name) == scripts.run_of(tmp_path / "named", name)
    found = scripts.result_of(tmp_path / "bare", name)
    assert found.read_as.startswith(f"{kind}: config.json: a ")
    assert found.read_as in bare.stderr.replace("\n", " ")
    assert not found.caveats


def test_a_kind_that_overrules_the_folder_is_a_caveat(data: Path, tmp_path: Path) -> None:
    done = scripts.successful(evaluate_model(data, "encoder:ce", tmp_path))
    (caveat,) = scripts.result_of(tmp_path, "ce", task="embedding").caveats
    assert caveat == "encoder:ce: read as encoder, and its files say cross-encoder"
    assert "read as encoder, and its files say cross-encoder" in done.stderr


def test_another_model_or_tokenizer_of_the_same_name_is_refused(data: Path, tmp_path: Path) -> None:
    scripts.successful(evaluate_model(data, "cross-encoder:ce", tmp_path))
    done = evaluate_model(data, "rankllama:llama", tmp_path, "--name", "ce")
    assert done.returncode == 3
    assert "holds another evaluation (base_model 'cross-encoder:ce@" in done.stderr
    assert "choose another --output-dir" in done.stderr.splitlines()[-1]
    path = shutil.copytree(data / "ce", tmp_path / "changed" / "ce") / "tokenizer_config.json"
    scripts.write_plain(path, scripts.read_plain(path) | {"model_max_length": 20})
    done = evaluate_model(data, f"cross-encoder:{path.parent}", tmp_path)
    scripts.assert_refused(done, 3, "holds another evaluation (base_model", silent=False)


ZERO_SHOT = "--zero-shot --config tiny.yaml --dataset toy --task reranking"
ONE_OF = "give one of --checkpoint FOLDER, --zero-shot and --model NAME"
MTEB = "--zero-shot --config tiny.yaml --mteb"
FUSION = "--model cross-encoder:ce --dataset toy --set evaluation.first_stage=fusion --set evaluation.fusion."
TABLE = """--config tables/first_stages --device cpu --set evaluation.datasets=[toy]
    --set evaluation.first_stages=[sparse] --set "evaluation.sparse.base=''" --set evaluation.late.base=splade
    --set 'evaluation.systems={ce: cross-encoder:ce}' --set evaluation."""


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("", 2, [ONE_OF]),
        ("--model ce --zero-shot", 2, [ONE_OF]),
        ("--zero-shot --config tiny.yaml --name x", 2, ["--name belongs to --model"]),
        ("--model cross-encoder:ce --name 'a b'", 2, ["--name a b: no name for this arm"]),
        ("--model cross-encoder:ce --set model.layers=1", 2, ["model.layers cuts causal language models"]),
        ("--model cross-encoder:ce --set modle.layers=1", 2, ["modle: unknown key"]),
        ("--model encoder:encoder --task reranking", 2, ["--task reranking: encoder does embedding only"]),
        (f"{ZERO_SHOT} --dataset scifct", 2, ["unknown collection 'scifct'", "did you mean 'scifact'?"]),
        (f"{ZERO_SHOT} --dataset apidocs,bright:biolgy", 2, ["'bright:biolgy'", "did you mean 'biology'?"]),
        (f"{ZERO_SHOT} --dataset toy,toy@dev", 2, ["toy is named with the splits test and dev"]),
        (f"{ZERO_SHOT} --dataset ' , '", 2, ["--dataset names nothing"]),
        (f"{ZERO_SHOT} --task rerank", 2, ["--task rerank", "did you mean 'reranking'?"]),
        ("--zero-shot --config tiny.yaml --eval-tier fasst", 2, ["unknown tier 'fasst'", "did you mean 'fast'?"]),
        (f"{MTEB} SciFact --max-queries 3", 2, ["--max-queries cuts collections, not tasks of MTEB"]),
        (f"{MTEB} SciFact --set 'evaluation.mteb.prompts={{SciFcat: x}}'", 2, ["'SciFcat'", "did you mean 'SciFact'?"]),
        (f"{MTEB} SciFact --set evaluation.mteb.task_instruction=Instruct", 2, ["must hold {instruction}"]),
        (f"{MTEB} SciFact --task reranking", 2, ["none of these tasks gives candidates to rerank"]),
        (f"{MTEB} SciFact --task reranking --plan", 2, ["none of these tasks gives candidates to rerank"]),
        (f"{MTEB} MindSmallReranking --task reranking", 2, ["raise evaluation.mteb.max_pairs"]),
        (f"{ZERO_SHOT} --set evaluation.first_stage=run:nowhere.trec", 3, ["nowhere.trec: no such run file"]),
        (f"{FUSION}encoder.base=./nowhere", 3, ["evaluation.fusion.encoder.base", "./nowhere"]),
        (f"{FUSION}kk=1", 2, ["evaluation.fusion.kk", "did you mean 'k'?"]),
        (f"{TABLE}systems={{}}", 2, ["evaluation.systems names no models"]),
        (f"{TABLE}first_stages=[spares]", 2, ["evaluation.first_stages[0]", "'sparse'"]),
        (f"{TABLE}first_stages=[sparse]", 2, ["evaluation.sparse.base: names no model"]),
        (f"{TABLE}first_stages=[late]", 3, ["evaluation.late.base", "a SparseEncoder, and late needs a Multi"]),
        (f"{TABLE}systems.ce=sparse:st", 3, ["evaluation.systems.ce", "a SentenceTransformer, and sparse needs"]),
        (f"{TABLE}systems.ce=late:mlm", 3, ["evaluation.systems.ce", "a BertForMaskedLM, and late needs"]),
        ("--model http://host/v1", 2, ["say what it speaks and what it serves with --set served.api=API"]),
        ("--model http://me:pw-secret@host/v1", 2, ["put the key into the environment variable"]),
        ("--model http://h/v1 --set served.api=vllm --set served.model=x", 2, ["name the model whose tokenizer"]),
    ],
)
def test_a_wrong_option_is_one_line_that_names_the_mend(
    data: Path, tmp_path: Path, options: str, code: int, words: list[str]
) -> None:
    done = called(data, tmp_path / "outputs", options)
    scripts.assert_refused(done, code, *words, silent=code == 2)
    assert "pw-secret" not in done.stderr
    assert not (tmp_path / "outputs").exists()


def test_a_tokenizer_must_write_yes_in_one_token_and_needs_no_padding_token(data: Path, tmp_path: Path) -> None:
    plain, model = called(data, tmp_path / "plain", ZERO_SHOT), shutil.copytree("tiny-model", tmp_path / "model")
    settings = scripts.read_plain(model / "tokenizer_config.json")
    del settings["pad_token"]
    scripts.write_plain(model / "tokenizer_config.json", settings)
    assert AutoTokenizer.from_pretrained(model).pad_token is None
    done = scripts.successful(called(data, tmp_path / "outputs", f"{ZERO_SHOT} --set model.base={model}"))
    assert done.stdout.replace("outputs", "plain") == plain.stdout
    content = scripts.read_plain(model / "tokenizer.json")
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "s" not in merge]
    scripts.write_plain(model / "tokenizer.json", content)
    done = called(data, tmp_path / "other", f"{ZERO_SHOT} --set model.base={model}")
    scripts.assert_refused(done, 3, "writes 'yes' as", "tokens", silent=False)


SERVED = invented(documents=20, queries=5)
PROBES = len(PROBE_PAIRS)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve() as running:
        yield running


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """The environment of a command."""
    write_invented(tmp_path / "data" / "toy", SERVED)
    return {"UNIMOE_DATA": str(tmp_path / "data"), "UNIMOE_CACHE": str(tmp_path / "cache")}


def test_a_killed_run_asks_again_for_what_was_in_flight_alone(
    server: ModelServer, places: dict[str, str], tmp_path: Path
) -> None:
    server.latency = 0.2
    settings = ["served.requests_in_flight=2", "served.batch=2", "served.api=tei", "served.model=org/tiny"]
    words = [word for setting in (*settings, "evaluation.depth=10") for word in ("--set", setting)]
    command = ["evaluate", "--model", server.base("tei"), "--dataset", "toy", *words, "--output-dir", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "unimoe", *command], env={**os.environ, **places}, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 600
        while server.pairs < PROBES + 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert server.pairs < PROBES + 50
    time.sleep(0.5)  # what was in flight is answered to nobody
    before, server.latency = server.pairs, 0.0
    scripts.successful(scripts.call_unimoe(*command, **places))
    asked_twice = server.pairs - 2 * PROBES - 50
    assert 0 <= asked_twice <= 2 * 2
    assert before - PROBES >= 20
    assert scripts.result_of(tmp_path, "tiny.tei").provenance.usage["requests"] == 25


def test_an_embedder_searches_a_collection(server: ModelServer, places: dict[str, str], tmp_path: Path) -> None:
    settings = ["served.api=openai", "served.model=org/tiny", 'encoder.query_prefix="the "']
    options = ["--encoder", server.base("openai"), *(word for setting in settings for word in ("--set", setting))]
    retrieve = ("retrieve", "--dataset", "toy", "--output-dir", str(tmp_path), *options)
    scripts.successful(scripts.call_unimoe(*retrieve, **places))
    found = scripts.result_of(tmp_path, "tiny.openai", task="retrieval")
    assert str(found.identity.base_model).startswith("served:openai:")
    sent = [text for _, body in server.asked for text in body["input"]]
    assert {f"the {query}" for query in SERVED.queries.values()} < set(sent)
    for query, scores in scripts.run_of(tmp_path, "tiny.openai", task="retrieval").items():
        document = next(iter(scores))
        own = server.model.encode([f"the {SERVED.queries[query]}", SERVED.corpus[document].full_text])
        assert scores[document] == pytest.approx(float(own[0] @ own[1]), abs=1e-5)
    scripts.successful(scripts.call_unimoe(*retrieve, **places))
    assert len(server.asked) == len({json.dumps(body) for _, body in server.asked}) + 1  # the probe texts alone
