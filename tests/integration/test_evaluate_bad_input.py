"""Bad input to ``evaluate``, each answered with one line and the right exit code."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.evaluations import evaluate
from support.experiments import write_tiny_experiment
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, successful
from support.tiny_encoders import save_sentence_transformer, save_tiny_encoder, save_tiny_splade
from support.tiny_rerankers import save_tiny_cross_encoder
from transformers import AutoTokenizer

from unimoe.core.trec import write_run

pytestmark = pytest.mark.usefixtures("one_thread")

COLLECTION = invented(documents=8, queries=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "toy", COLLECTION)
    write_tiny_experiment(folder)
    save_sentence_transformer(save_tiny_encoder(folder / "encoder"), folder / "st")
    save_tiny_cross_encoder(folder / "ce")
    save_tiny_splade(folder / "splade", folder / "mlm")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # models are named by relative paths
        yield folder


def called(data: Path, output_dir: Path, options: str) -> Done:
    return evaluate(data, *shlex.split(options), "--output-dir", output_dir)


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
        ("--model ce --checkpoint x", 2, [ONE_OF]),
        ("--zero-shot --config tiny.yaml --name x", 2, ["--name belongs to --model"]),
        ("--model cross-encoder:ce --name 'a b'", 2, ["--name a b: no name for this arm"]),
        ("--model cross-encoder:ce --set model.layers=1", 2, ["model.layers cuts causal language models"]),
        ("--model cross-encoder:ce --set modle.layers=1", 2, ["modle: unknown key"]),
        ("--model encoder:encoder --task reranking", 2, ["--task reranking: encoder does embedding only"]),
        ("--model encoder:encoder --set model.max_length=65", 2, ["model.max_length 65: ", "positions; lower it"]),
        (f"{ZERO_SHOT} --dataset scifct", 2, ["unknown collection 'scifct'", "did you mean 'scifact'?"]),
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
        (f"{FUSION}encoder.base=./nowhere", 3, ["evaluation.fusion.encoder.base", "./nowhere"]),
        (f"{FUSION}encoder='{{base: encoder, max_length: 4000}}'", 2, ["evaluation.fusion.encoder.max_length", "4000"]),
        (f"{FUSION}kk=1", 2, ["evaluation.fusion.kk", "did you mean 'k'?"]),
        (f"{TABLE}systems={{}}", 2, ["evaluation.systems names no models"]),
        (f"{TABLE}first_stages=[spares]", 2, ["evaluation.first_stages[0]", "'sparse'"]),
        (f"{TABLE}first_stages=[sparse]", 2, ["evaluation.sparse.base: names no model"]),
        (
            f"{TABLE}first_stages=[late]",
            3,
            ["evaluation.late.base", "a SparseEncoder, and late needs a MultiVectorEnc"],
        ),
        (
            f"{TABLE}sparse='{{base: splade, max_length: 4000}}'",
            2,
            ["evaluation.sparse.max_length 4000", "64 positions"],
        ),
        (f"{TABLE}systems.ce=sparse:st", 3, ["evaluation.systems.ce", "a SentenceTransformer, and sparse needs"]),
        (f"{TABLE}systems.ce=late:mlm", 3, ["evaluation.systems.ce", "a BertForMaskedLM, and late needs"]),
        ("--model http://host/v1", 2, ["say what it speaks and what it serves with --set served.api=API"]),
        ("--model http://me:pw-secret@host/v1", 2, ["put the key into the environment variable"]),
        (
            "--model http://host/v1 --set served.api=vllm --set served.model=tiny",
            2,
            ["name the model whose tokenizer makes them with --set model.base="],
        ),
    ],
)
def test_it_is_one_line_that_names_the_mend(
    data: Path, tmp_path: Path, options: str, code: int, words: list[str]
) -> None:
    done = called(data, tmp_path / "outputs", options)
    assert_refused(done, code, *words, silent=code == 2)
    assert "pw-secret" not in done.stderr
    assert not (tmp_path / "outputs").exists()


def test_a_run_file_must_be_there_and_fit_the_collection(data: Path, tmp_path: Path) -> None:
    run = {query: {d: float(rank) for rank, d in enumerate(COLLECTION.corpus)} for query in COLLECTION.queries}
    stage = f"{ZERO_SHOT} --set evaluation.depth=5 --set 'evaluation.first_stage=run:{tmp_path}/{{dataset}}.trec'"
    assert_refused(called(data, tmp_path / "out", stage), 3, "/toy.trec: no such run file", silent=False)
    write_run(tmp_path / "toy.trec", {**run, "q1": {**run["q1"], "d99": 1.0}}, "some")
    done = called(data, tmp_path / "out", stage)
    assert_refused(done, 3, f"{tmp_path}/toy.trec", "candidate 'd99' of query 'q1' is no document of toy")
    assert not (tmp_path / "out").exists()
    write_run(tmp_path / "toy.trec", run, "some")
    assert "(first stage 0." in successful(called(data, tmp_path / "out", stage)).stdout


def test_a_tokenizer_must_write_yes_in_one_token_and_needs_no_padding_token(data: Path, tmp_path: Path) -> None:
    plain, model = called(data, tmp_path / "plain", ZERO_SHOT), shutil.copytree("tiny-model", tmp_path / "model")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (model / name).is_file():
            content = json.loads((model / name).read_text(encoding="utf-8"))
            content.pop("pad_token", None)
            (model / name).write_text(json.dumps(content), encoding="utf-8")
    assert AutoTokenizer.from_pretrained(model).pad_token is None
    done = successful(called(data, tmp_path / "outputs", f"{ZERO_SHOT} --set model.base={model}"))
    assert done.stdout.replace("outputs", "plain") == plain.stdout
    content = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "s" not in merge]
    (model / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    done = called(data, tmp_path / "other", f"{ZERO_SHOT} --set model.base={model}")
    assert_refused(done, 3, "writes 'yes' as", "tokens", silent=False)
