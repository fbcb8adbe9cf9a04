"""``evaluate --model``: what it refuses, in one line each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.named_models import evaluate, result_of
from support.scripts import assert_refused, call_script, successful


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

    def test_a_prefix_that_no_text_would_get_is_refused_on_collections_too(self, data: Path, tmp_path: Path) -> None:
        done = evaluate(data, "encoder:encoder", tmp_path, "--set", "evaluation.mteb.prompts.quer=x")
        assert_refused(done, 2, "evaluation.mteb.prompts: 'quer' is no task, type of tasks or role of MTEB")
        successful(evaluate(data, "encoder:encoder", tmp_path, "--set", "evaluation.mteb.prompts.toy-query=x"))

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
