"""Classifiers that rerank: converted from causal rerankers, with labels by name, and without room or padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from support import tiny_models
from support.classifiers import GPT2, change, converted, save_decoder_classifier
from support.tiny_models import PAIRS
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from unimoe.config import ModelConfig, PromptConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.models.base import load_base
from unimoe.models.folder import ModelFolder, read_folder
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.rerankers.classifiers import reads_prompt
from unimoe.models.rerankers.cross_encoder import (
    CrossEncoderReranker,
    load_cross_encoder,
    pairs_at_once,
    refuse_no_cross_encoder,
)
from unimoe.models.rerankers.mono_t5 import load_mono_t5
from unimoe.models.rerankers.score_head import load_score_head
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, FLOAT = torch.device("cpu"), torch.float32
RAW = torch.nn.Identity()
CLASSIFIER: Any = AutoModelForSequenceClassification


def of(folder: Path) -> ModelFolder:
    """What a folder says."""
    return read_folder("--model", str(folder), folder)


def assert_close(found: Any, expected: Any) -> None:
    """Equal to some 1e-6 of the scores' size, which float32 sums in another order leave."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * max(1.0, float(np.abs(expected).max())))


class TestConverted:
    """The reference is the causal model, asked by the same prompt: ours, and a plain loop of transformers."""

    @pytest.mark.parametrize(
        ("kind", "prompt", "labels"),
        [
            ("qwen3", PromptConfig(template="qwen3"), 1),
            ("qwen3", PromptConfig(template="chat", order="document_first"), 2),
            ("llama", PromptConfig(template="plain", instruction=""), 1),
            ("gemma", PromptConfig(template="bge", answers=["yes"]), 1),
            ("gpt2", PromptConfig(template="qwen3"), 1),
        ],
    )
    def test_the_head_on_the_last_token_of_a_prompt_scores_as_the_causal_model(
        self, kind: str, prompt: PromptConfig, labels: int, tmp_path: Path
    ) -> None:
        sizes: dict[str, Any] = {"head_dim": 16} if kind != "gpt2" else GPT2 | {"n_positions": 400}
        model = tiny_models.tiny_model(kind, **sizes)
        causal = tiny_models.saved(tmp_path / "causal", model, tiny_models.tiny_tokenizer())
        answers = ("yes",) if prompt.answers else ("yes", "no")
        folder = converted(causal, tmp_path / "converted", answers, labels)
        assert reads_prompt(of(folder), prompt)
        ours = load_score_head(folder, 300, CPU, FLOAT, prompt=prompt)
        found = PairModelReranker(ours).score(PairModelReranker(ours).prepare(PAIRS))
        base = load_base(ModelConfig(base=str(causal)), CPU, FLOAT)
        asked = UnimodelForExp1(base, prompt, 300)
        assert ours.pair_ids(PAIRS) == asked.pair_ids(PAIRS)
        assert_close(found, asked.rerank(PAIRS, output="margin"))
        classifier, plain = CLASSIFIER.from_pretrained(folder, dtype=FLOAT).eval(), []
        for ids in asked.pair_ids(PAIRS):
            with torch.inference_mode():
                logits = classifier(input_ids=torch.tensor([ids])).logits[0]
            plain.append(float(logits[-1] - logits[0] if labels == 2 else logits[0]))
        assert_close(found, plain)

    def test_without_a_prompt_one_line_says_that_it_is_missing(self, tmp_path: Path) -> None:
        folder = converted(tiny_models.save_tiny_model(tmp_path / "causal", "qwen3"), tmp_path / "converted")
        for prompt in (PromptConfig(), PromptConfig(instruction="other")):
            with pytest.raises(UsageError, match=r"Qwen3ForSequenceClassification.*--set prompt\.template=qwen3"):
                reads_prompt(of(folder), prompt)

    def test_what_sentence_transformers_saved_is_read_as_it_reads_it(self, tmp_path: Path) -> None:
        """A cross-encoder that it trained from a decoder, asked by a chat template of its own."""
        folder = converted(tiny_models.save_tiny_model(tmp_path / "causal", "qwen3"), tmp_path / "converted")
        library = CrossEncoder(str(folder), device="cpu")
        library.save_pretrained(str(tmp_path / "saved"))
        assert not reads_prompt(of(tmp_path / "saved"), PromptConfig(template="qwen3"))
        expected = [float(library.predict([pair], activation_fn=RAW)[0]) for pair in PAIRS]
        loaded = load_cross_encoder(tmp_path / "saved", CPU, FLOAT, 300)
        assert_close(CrossEncoderReranker(loaded, pairs_at_once(loaded, 4)).score(PAIRS), expected)

    def test_an_encoder_has_no_prompt_whatever_is_set(self, tmp_path: Path) -> None:
        folder = tiny_models.save_tiny_cross_encoder(tmp_path)
        assert not reads_prompt(of(folder), PromptConfig(template="qwen3"))


class TestLabels:
    @pytest.mark.parametrize(
        ("names", "sign"),
        [
            ({"0": "relevant", "1": "not_relevant"}, -1),
            ({"0": "Irrelevant", "1": "Relevant"}, 1),
            ({"0": "YES", "1": "no"}, -1),
            ({"0": "False", "1": "True"}, 1),
            ({"0": "entailment", "1": "not_entailment"}, -1),
            ({"0": "non-relevant", "1": "is relevant"}, 1),
            ({"0": "LABEL_1", "1": "LABEL_0"}, -1),
            ({"0": "LABEL_0", "1": "LABEL_1"}, 1),
            (None, 1),
        ],
    )
    def test_of_two_labels_the_one_that_says_relevant_counts(self, tmp_path: Path, names: Any, sign: int) -> None:
        folder = tiny_models.save_tiny_cross_encoder(tmp_path / "ce", labels=2)
        logits = CrossEncoder(str(folder), device="cpu").predict(PAIRS, activation_fn=RAW)
        turned = names and {name: int(index) for index, name in names.items()}
        change(folder, id2label=names, label2id=turned, num_labels=None if names else 2)
        refuse_no_cross_encoder(of(folder))
        found = CrossEncoderReranker(load_cross_encoder(folder, CPU, FLOAT, 64), 4).score(PAIRS)
        assert_close(found, sign * (logits[:, 1] - logits[:, 0]))

    @pytest.mark.parametrize(
        ("name", "sign"), [("relevance", 1), ("LABEL_0", 1), ("not-relevant", -1), ("NEGATIVE", -1)]
    )
    def test_a_single_label_that_says_not_relevant_counts_against(self, tmp_path: Path, name: str, sign: int) -> None:
        folder = tiny_models.save_tiny_cross_encoder(tmp_path)
        expected = CrossEncoder(str(folder), device="cpu").predict(PAIRS, activation_fn=RAW)
        change(folder, id2label={"0": name}, label2id={name: 0})
        found = CrossEncoderReranker(load_cross_encoder(folder, CPU, FLOAT, 64), 4).score(PAIRS)
        assert_close(found, sign * expected)

    def test_two_outputs_of_a_dense_module_have_the_names_of_the_settings(self, tmp_path: Path) -> None:
        bare = tiny_models.save_tiny_encoder(tmp_path / "bare")
        folder = tiny_models.save_tiny_dense_cross_encoder(tmp_path / "dense", bare, labels=2)
        logits = CrossEncoder(str(folder), device="cpu").predict(PAIRS, activation_fn=RAW)
        for names, sign in ((None, 1), ({"0": "relevant", "1": "irrelevant"}, -1)):
            change(folder, id2label=names, label2id=names and {"relevant": 0, "irrelevant": 1})
            found = CrossEncoderReranker(load_cross_encoder(folder, CPU, FLOAT, 64), 4).score(PAIRS)
            assert_close(found, sign * (logits[:, 1] - logits[:, 0]))

    def test_a_score_head_counts_by_its_labels_too(self, tmp_path: Path) -> None:
        folder = tiny_models.save_tiny_score_head(tmp_path)
        before = load_score_head(folder, 300, CPU, FLOAT)
        expected = before.rerank_ids(before.pair_ids(PAIRS))
        change(folder, id2label={"0": "irrelevant"}, label2id={"irrelevant": 0})
        after = load_score_head(folder, 300, CPU, FLOAT)
        assert_close(after.rerank_ids(after.pair_ids(PAIRS)), -expected)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"id2label": {"0": "cat", "1": "dog"}}, r"config\.json: its labels 'cat' and 'dog' do not tell"),
            ({"id2label": {"0": "relevant", "1": "highly relevant"}}, "do not tell which one says relevant; name them"),
            ({"id2label": {"0": "positive", "1": "relevant"}}, "do not tell"),
            (
                {"id2label": {"0": "no", "1": "yes"}, "label2id": {"yes": 0, "no": 1}},
                r"config\.json: id2label says .* and label2id .*; correct the one that is wrong",
            ),
        ],
    )
    def test_labels_that_do_not_tell_are_refused(self, tmp_path: Path, settings: Any, words: str) -> None:
        folder = change(tiny_models.save_tiny_cross_encoder(tmp_path, labels=2), **({"label2id": None} | settings))
        with pytest.raises(DataError, match=words):
            refuse_no_cross_encoder(of(folder))

    def test_names_of_ours_in_one_of_the_two_tables_say_nothing(self, tmp_path: Path) -> None:
        """Who changes ``id2label`` by hand leaves ``label2id`` as transformers wrote it."""
        folder = tiny_models.save_tiny_cross_encoder(tmp_path, labels=2)
        logits = CrossEncoder(str(folder), device="cpu").predict(PAIRS, activation_fn=RAW)
        change(folder, id2label={"0": "relevant", "1": "not_relevant"})
        found = CrossEncoderReranker(load_cross_encoder(folder, CPU, FLOAT, 64), 4).score(PAIRS)
        assert_close(found, logits[:, 0] - logits[:, 1])


class TestLimits:
    @pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
    @pytest.mark.parametrize("labels", [1, 2])
    def test_a_classifier_without_a_token_for_padding_scores_one_by_one(
        self, kind: str, labels: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = save_decoder_classifier(tmp_path, kind, labels)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer.pad_token is None or kind == "qwen2"  # whose class has one of its own
        model, expected = CLASSIFIER.from_pretrained(folder, dtype=FLOAT).eval(), []
        for query, document in PAIRS:
            ids = tokenizer(query, document, return_tensors="pt")["input_ids"]
            if not ids.numel():
                ids = torch.zeros(1, 1, dtype=torch.long)
            with torch.inference_mode():
                logits = model(input_ids=ids).logits[0]
            expected.append(float(logits[-1] - logits[0] if labels == 2 else logits[0]))
        assert not reads_prompt(of(folder), PromptConfig())
        loaded = load_cross_encoder(folder, CPU, FLOAT, 200)
        at_once = pairs_at_once(loaded, 32)
        assert "no token for padding, so pairs are scored one by one" in " ".join(capsys.readouterr().err.split())
        fit = [index for index, pair in enumerate(PAIRS) if any(pair)]
        found = CrossEncoderReranker(loaded, at_once).score([PAIRS[index] for index in fit])
        assert_close(found, [expected[index] for index in fit])

    def test_a_token_for_padding_that_has_no_embedding_is_none(self, tmp_path: Path) -> None:
        folder = save_decoder_classifier(tmp_path / "ce", "llama")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        rows = len(tokenizer)
        tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        tokenizer.save_pretrained(folder)
        assert tokenizer.pad_token_id == rows
        loaded = load_cross_encoder(folder, CPU, FLOAT, 200)
        at_once = pairs_at_once(loaded, 32)
        assert at_once == 1
        pairs = [pair for pair in PAIRS if any(pair)]
        assert len(set(CrossEncoderReranker(loaded, at_once).score(pairs))) > 3

    @pytest.mark.parametrize(
        ("kind", "usable"), [("roberta", 62), ("xlm-roberta", 62), ("bert", 64), ("mpnet", 62), ("electra", 64)]
    )
    def test_pairs_are_cut_to_the_positions_there_are(self, kind: str, usable: int, tmp_path: Path) -> None:
        folder = tiny_models.save_tiny_encoder(
            tmp_path, kind, "AutoModelForSequenceClassification", num_labels=1, pad_token_id=1
        )
        change(folder, "tokenizer_config.json", model_max_length=None)
        long = [("cat", "the cat sat on the mat " * 300), ("list of rain", "quick"), ("dog", "rain roof")]
        ours = load_cross_encoder(folder, CPU, FLOAT, 1024)
        assert ours.max_seq_length == usable
        theirs = CrossEncoder(str(folder), device="cpu", max_length=usable)
        assert_close(CrossEncoderReranker(ours, 2).score(long), theirs.predict(long, activation_fn=RAW))

    def test_positions_that_have_no_end_are_not_cut(self, tmp_path: Path) -> None:
        settings = {"position_biased_input": False, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
        folder = tiny_models.save_tiny_encoder(
            tmp_path, "deberta-v2", "AutoModelForSequenceClassification", num_labels=1, **settings
        )
        change(folder, "tokenizer_config.json", model_max_length=50)
        assert load_cross_encoder(folder, CPU, FLOAT, 1024).max_seq_length == 50

    def test_a_causal_model_of_fewer_positions_is_one_line(self, tmp_path: Path) -> None:
        folder = tiny_models.saved(tmp_path, tiny_models.tiny_model("gpt2", **GPT2), tiny_models.tiny_tokenizer())
        base = load_base(ModelConfig(base=str(folder)), CPU, FLOAT)
        UnimodelForExp1(base, PromptConfig(), 256)
        with pytest.raises(UsageError, match=r"model\.max_length 300: this model has 256 positions; lower it to 256"):
            UnimodelForExp1(base, PromptConfig(), 300)


SAVERS: dict[str, Callable[[Path], Path]] = {
    "causal": tiny_models.save_tiny_model,
    "score head": tiny_models.save_tiny_score_head,
    "t5": tiny_models.save_tiny_t5,
}


class TestRowless:
    """A query with an added token that the embedding has no row for."""

    PAIRS = (("what sorts", "a quick sort"), ("what <new> sorts", "a quick sort"), ("x", "y " * 500 + "<new>"))

    def test_a_cross_encoder_names_the_pair(self, tmp_path: Path) -> None:
        folder = tiny_models.save_tiny_cross_encoder(tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["<new>"])
        tokenizer.save_pretrained(folder)
        ours = CrossEncoderReranker(load_cross_encoder(folder, CPU, FLOAT, 60), 4)
        with pytest.raises(InputError, match="input 1: the text holds the token '<new>'"):
            ours.score(self.PAIRS)
        assert len(ours.score([self.PAIRS[0], self.PAIRS[2]])) == 2  # the token is cut off

    @pytest.mark.parametrize("kind", ["causal", "score head", "t5"])
    def test_models_of_token_ids_name_it_too(self, kind: str, tmp_path: Path) -> None:
        made = SAVERS[kind](tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(made)
        tokenizer.add_tokens(["<new>"])
        tokenizer.save_pretrained(made)
        model: Any
        if kind == "causal":
            model = UnimodelForExp1(load_base(ModelConfig(base=str(made)), CPU, FLOAT), PromptConfig(), 300)
        elif kind == "t5":
            model = load_mono_t5(made, PromptConfig(), 300, CPU, FLOAT)
        else:
            model = load_score_head(made, 300, CPU, FLOAT)
        ours = PairModelReranker(model)
        with pytest.raises(InputError, match="input 1: the text holds the token"):
            ours.score(ours.prepare(self.PAIRS[:2]))


class TestLogitScore:
    """Causal models in sentence-transformers, which asks them by the chat template of their folder."""

    @pytest.mark.parametrize("alone", [False, True])
    def test_scores_are_those_of_the_library(self, alone: bool, tmp_path: Path) -> None:
        causal = tiny_models.save_tiny_model(tmp_path / "causal", "qwen3")
        library = CrossEncoder(str(causal), device="cpu", model_kwargs={"dtype": FLOAT})
        yes, no = library.tokenizer.convert_tokens_to_ids(["yes", "no"])
        head = LogitScore(yes) if alone else LogitScore(yes, no)
        saved = tmp_path / "saved"
        CrossEncoder(modules=[library[0], head], device="cpu").save_pretrained(str(saved))
        assert (saved / "modules.json").is_file()
        library = CrossEncoder(str(saved), device="cpu", model_kwargs={"dtype": FLOAT})
        expected = [float(library.predict([pair], activation_fn=RAW)[0]) for pair in PAIRS]
        for batch_size in (1, 5):
            found = CrossEncoderReranker(load_cross_encoder(saved, CPU, FLOAT, 300), batch_size).score(PAIRS)
            assert_close(found, expected)

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            (None, "a causal language model without a chat template"),
            (
                "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
                "cannot read a pair",
            ),
        ],
    )
    def test_a_template_that_shows_no_pair_is_one_line(self, template: str | None, words: str, tmp_path: Path) -> None:
        base = tiny_models.tiny_base("qwen3")
        base.tokenizer.chat_template = template
        folder = tiny_models.saved(tmp_path, base.model, base.tokenizer)
        with pytest.raises(DataError, match=words) as caught:
            load_cross_encoder(folder, CPU, FLOAT, 300)
        assert "\n" not in str(caught.value)
