"""``evaluate --model FOLDER``: what the folder of a reranker says, what has to be said about it, and what cannot be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import scripts, tiny_models
from support.classifiers import change, converted, save_decoder_classifier
from support.toy_collections import invented, write_invented
from transformers import AutoTokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A collection, and the folders of models, made once."""
    folder = tmp_path_factory.mktemp("rerankers")
    write_invented(folder / "toy", invented(documents=8, queries=2))
    converted(tiny_models.save_tiny_model(folder / "causal", "qwen3"), folder / "seq-cls")
    save_decoder_classifier(folder / "gpt2", "gpt2")
    ce = tiny_models.save_tiny_cross_encoder(folder / "ce", labels=2)
    change(shutil.copytree(ce, folder / "named"), id2label={"0": "cat", "1": "dog"})
    roberta = tiny_models.save_tiny_encoder(
        folder / "roberta", "roberta", "AutoModelForSequenceClassification", num_labels=1, pad_token_id=1
    )
    change(roberta, "tokenizer_config.json", model_max_length=None)
    jina = shutil.copytree(folder / "causal", folder / "jina")
    change(jina, architectures=["JinaForRanking"], auto_map={"AutoModel": "modeling.JinaForRanking"})
    layerwise = shutil.copytree(folder / "causal", folder / "layerwise")
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.LayerWiseMiniCPMForCausalLM"}
    change(layerwise, architectures=["LayerWiseMiniCPMForCausalLM"], auto_map=own, model_type="layerwise_minicpm")
    change(shutil.copytree(folder / "causal", folder / "own-causal"), architectures=["MineForCausalLM"], auto_map=own)
    for name, kind in (("own-ce", "MineForSequenceClassification"), ("own-t5", "MineForConditionalGeneration")):
        change(shutil.copytree(ce, folder / name), architectures=[kind], auto_map={"AutoModel": f"own.{kind}"})
    change(shutil.copytree(ce, folder / "reversed"), id2label={"0": "Relevance", "1": "irrelevance"}, label2id=None)
    tiny_models.save_tiny_t5(folder / "t5")
    embedding = tiny_models.save_tiny_decoder(folder / "decoder")
    tiny_models.save_sentence_transformer(embedding, folder / "embedding", pooling="lasttoken")
    change(folder / "embedding", architectures=["Qwen3ForCausalLM"])
    tokenizer = tiny_models.tiny_t5_tokenizer()  # which puts no end after a pair
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "eos_token_id": 1}
    sizes |= {"num_labels": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
    endless = tiny_models.random_model("AutoModelForSequenceClassification", "t5", len(tokenizer), **sizes)
    tiny_models.saved(folder / "endless", endless, tokenizer)
    bare = shutil.copytree(folder / "causal", folder / "untemplated")
    (bare / "chat_template.jinja").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder / "causal")
    tokenizer.add_tokens(
        [json.loads(next((folder / "toy").glob("queries.jsonl")).open().readline())["text"].split()[0]]
    )
    tokenizer.save_pretrained(shutil.copytree(folder / "causal", folder / "rowless"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # models are named by relative paths
        yield folder


def evaluate(data: Path, model: str, output_dir: Path, *settings: str) -> scripts.Done:
    options = [word for setting in ("model.dtype=float32", *settings) for word in ("--set", setting)]
    chosen: list[str | Path] = ["--dataset", "toy", "--task", "reranking", "--name", "it", "--output-dir", output_dir]
    return scripts.evaluate(data, "--model", model, *chosen, *options)


def scores(output_dir: Path) -> list[float]:
    return [score for row in scripts.run_of(output_dir, "it").values() for _, score in sorted(row.items())]


def test_a_converted_reranker_scores_as_the_causal_one_it_was(data: Path, tmp_path: Path) -> None:
    done = scripts.successful(evaluate(data, "cross-encoder:seq-cls", tmp_path / "a", "prompt.template=qwen3"))
    assert "pairs are put to it by prompt.template qwen3" in " ".join(done.stderr.split())
    assert scripts.result_of(tmp_path / "a", "it").caveats == []
    scripts.successful(evaluate(data, "causal", tmp_path / "b"))
    scripts.successful(evaluate(data, "seq-cls", tmp_path / "c", "prompt.template=qwen3"))
    assert scores(tmp_path / "c") == scores(tmp_path / "a")
    assert scores(tmp_path / "a") == pytest.approx(scores(tmp_path / "b"), abs=1e-5)
    identity = scripts.result_of(tmp_path / "a", "it").identity
    assert str(identity.base_model).startswith("cross-encoder:seq-cls@")
    assert str(identity.prompt).startswith("qwen3/query_first(max_length=512)@")
    other = evaluate(data, "cross-encoder:seq-cls", tmp_path / "a", "prompt.template=plain")
    scripts.assert_refused(other, 3, "holds another evaluation (prompt", silent=False)


def test_a_classifier_that_cannot_pad_is_scored_and_a_line_says_how(data: Path, tmp_path: Path) -> None:
    done = scripts.successful(evaluate(data, "cross-encoder:gpt2", tmp_path, "model.max_length=1024"))
    assert "gpt2: has no token for padding, so pairs are scored one by one" in " ".join(done.stderr.split())
    assert "gpt2: reads 256 tokens of a pair, and no 1024" in " ".join(done.stderr.split())
    (caveat,) = scripts.result_of(tmp_path, "it").caveats
    assert caveat == "gpt2: pairs were put to it bare; if it was made of a causal reranker, set prompt.template"


def test_a_length_beyond_the_positions_is_cut_and_a_line_says_so(data: Path, tmp_path: Path) -> None:
    done = scripts.successful(evaluate(data, "cross-encoder:roberta", tmp_path, "model.max_length=1024"))
    assert "roberta: reads 62 tokens of a pair, and no 1024" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        ("causal", [], "yes-no: config.json: a Qwen3ForCausalLM; prompt.template qwen3, answers 'yes' and 'no'"),
        ("causal", ["prompt.template=plain", "prompt.answers=[yes]"], "prompt.template plain, answers 'yes'"),
        ("rankllama:seq-cls", [], "; reads 'query: ...' and 'document: ...'"),
        ("reversed", [], "BertForSequenceClassification; scores are turned around, since label 0 is 'Relevance'"),
        ("t5", ["prompt.answers=[yes,no]"], "an encoder and decoder that answers; answers 'yes' and 'no'"),
    ],
)
def test_how_pairs_are_put_to_a_reranker_and_read_from_it_is_said_and_kept(
    data: Path, tmp_path: Path, model: str, settings: list[str], words: str
) -> None:
    done = scripts.successful(evaluate(data, model, tmp_path, *settings))
    assert scripts.result_of(tmp_path, "it").read_as.endswith(words)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(f"{model}: ")]
    assert line.endswith(words)
    assert words not in done.stdout


def pickled(folder: Path, copy: Path) -> Path:
    """A copy whose weights are in the format of before safetensors."""
    shutil.copytree(folder, copy)
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    return copy


@pytest.mark.parametrize("model", ["causal", "t5", "rankllama:seq-cls", "cross-encoder:ce"])
def test_weights_of_before_safetensors_score_alike(data: Path, tmp_path: Path, model: str) -> None:
    kind, _, name = model.rpartition(":")
    scripts.successful(evaluate(data, model, tmp_path / "new"))
    older = pickled(data / name, tmp_path / name)
    scripts.successful(evaluate(data, f"{kind}:{older}" if kind else str(older), tmp_path / "old"))
    assert scores(tmp_path / "old") == scores(tmp_path / "new")


def test_first_layers_and_one_answer_go_together(data: Path, tmp_path: Path) -> None:
    scripts.successful(evaluate(data, "causal", tmp_path / "cut", "model.layers=2", "prompt.answers=[yes]"))
    scripts.successful(evaluate(data, "causal", tmp_path / "whole", "prompt.answers=[yes]"))
    assert scores(tmp_path / "cut") != pytest.approx(scores(tmp_path / "whole"), abs=1e-3)
    assert ":2@" in str(scripts.result_of(tmp_path / "cut", "it").identity.base_model)


OWN_CODE = ["a class that transformers does not have", "model.trust_remote_code", "python:MODULE:FUNCTION"]
JINA = ["a JinaForRanking", *OWN_CODE]


@pytest.mark.parametrize(
    ("model", "settings", "code", "words"),
    [
        ("cross-encoder:seq-cls", [], 2, ["seq-cls: a Qwen3ForSequenceClassification", "--set prompt.template=qwen3"]),
        ("seq-cls", [], 2, ["seq-cls: a Qwen3ForSequenceClassification", "--set prompt.template=qwen3"]),
        ("cross-encoder:named", [], 3, ["named/config.json: its labels 'cat' and 'dog' do not tell"]),
        ("jina", [], 3, JINA),
        ("cross-encoder:jina", [], 3, JINA),
        ("jina", ["model.trust_remote_code=true"], 3, ["jina: cannot be loaded as a JinaForRanking", "modeling.py"]),
        ("own-causal", [], 3, ["own-causal", "a MineForCausalLM", *OWN_CODE]),
        ("layerwise", [], 3, ["layerwise", "model.trust_remote_code"]),
        ("cross-encoder:own-ce", [], 3, ["own-ce: a MineForSequenceClassification", *OWN_CODE]),
        ("rankllama:own-ce", [], 3, ["own-ce: a MineForSequenceClassification", *OWN_CODE]),
        ("monot5:own-t5", [], 3, ["own-t5: a MineForConditionalGeneration", *OWN_CODE]),
        ("cross-encoder:embedding", [], 3, ["embedding: no weights for lm_head.weight"]),
        ("endless", [], 3, ["endless: cannot score a pair (Each example must contain at least one <eos> token.)"]),
        ("cross-encoder:untemplated", [], 3, ["untemplated: a causal language model without a chat template"]),
        ("rowless", [], 3, ["toy, query 'q", "document '", "and the model has embeddings for"]),
    ],
)
def test_what_a_folder_does_not_say_is_one_line(
    data: Path, tmp_path: Path, model: str, settings: list[str], code: int, words: list[Any]
) -> None:
    done = evaluate(data, model, tmp_path / "outputs", *settings)
    scripts.assert_refused(done, code, *words, silent=False)
    assert "encoder:jina" not in done.stderr.replace("cross-encoder:jina", "")
