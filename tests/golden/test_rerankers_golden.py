"""Every family of rerankers against its reference: the code by which its authors, or its library, score a pair.

And long documents by their best passage (MaxP): cuts and scores by hand.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from support import tiny_models
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    T5ForConditionalGeneration,
)

from unimoe.config import EvaluationConfig, PromptConfig
from unimoe.core.errors import DataError
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.tasks.rerank import rerank_collection
from unimoe.models.folder import find_folder
from unimoe.models.functions import FunctionReranker
from unimoe.models.pair_model import PairModelReranker, TokenReranker
from unimoe.models.rerankers.cross_encoder import CrossEncoderReranker, load_cross_encoder, refuse_no_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5
from unimoe.models.rerankers.score_head import load_score_head
from unimoe.retrieval.passages import Passages, best_passages

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, FLOAT = torch.device("cpu"), torch.float32


def classifier(folder: Path, dtype: torch.dtype = FLOAT) -> tuple[Any, Any]:
    """The model of a folder as transformers loads it, and its tokenizer."""
    auto: Any = AutoModelForSequenceClassification
    return auto.from_pretrained(folder, dtype=dtype).eval(), AutoTokenizer.from_pretrained(folder)


class TestCrossEncoder:
    """The reference is ``CrossEncoder.predict``, one pair at a time."""

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tiny_models.save_tiny_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))

    @pytest.mark.parametrize(("batch_size", "max_length"), [(1, 512), (32, 512), (4, 16)])
    def test_scores_are_those_of_the_library(self, folder: Path, batch_size: int, max_length: int) -> None:
        identity = torch.nn.Identity()
        theirs = CrossEncoder(
            str(folder), device="cpu", activation_fn=identity, max_length=min(max_length, tiny_models.POSITIONS)
        )
        expected = [float(theirs.predict([pair])[0]) for pair in tiny_models.PAIRS]
        ours = CrossEncoderReranker(load_cross_encoder(folder, CPU, FLOAT, max_length), batch_size)
        assert np.ptp(expected) > 0.1
        assert ours.score(tiny_models.PAIRS) == pytest.approx(expected, abs=1e-4)

    @pytest.mark.parametrize("labels", [1, 2])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_head_is_in_float32_and_of_two_labels_the_difference_counts(
        self, tmp_path: Path, labels: int, dtype: torch.dtype
    ) -> None:
        """As monoBERT's is: the order of P(label 1)."""
        folder = tiny_models.save_tiny_cross_encoder(tmp_path, labels=labels)
        refuse_no_cross_encoder(find_folder("--model", str(folder)))
        low, tokenizer = classifier(folder, dtype)
        head = copy.deepcopy(low).float()
        expected = []
        for query, document in tiny_models.PAIRS:
            inputs = tokenizer([query], [document], return_tensors="pt")
            with torch.no_grad():
                states = low.bert(**inputs).last_hidden_state
                logits = head.classifier(head.bert.pooler(states.float()))[0]
            expected.append(float(logits[0] if labels == 1 else logits[1] - logits[0]))
        found = CrossEncoderReranker(load_cross_encoder(folder, CPU, dtype, 512), 1).score(tiny_models.PAIRS)
        assert np.ptp(expected) > 0.1
        assert found == pytest.approx(expected, abs=3e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_dense_head_is_the_librarys(self, tmp_path: Path, dtype: torch.dtype) -> None:
        """A pooled encoder and a linear layer, which sentence-transformers keeps in a folder of its own."""
        folder = tiny_models.save_tiny_dense_cross_encoder(
            tmp_path / "dense", tiny_models.save_tiny_encoder(tmp_path / "bare")
        )
        encoder = SentenceTransformer(modules=list(CrossEncoder(str(folder), device="cpu"))[:2], device="cpu")
        head = load_file(folder / "2_Dense" / "model.safetensors")
        expected = torch.from_numpy(encoder.encode(tiny_models.PAIRS)) @ head["linear.weight"][0] + head["linear.bias"]
        found = CrossEncoderReranker(load_cross_encoder(folder, CPU, dtype, 512), 4).score(tiny_models.PAIRS)
        assert np.ptp(expected.numpy()) > 0.1
        assert found == pytest.approx(expected.tolist(), abs=1e-5 if dtype is FLOAT else 0.08)
        before = find_folder("--model", str(folder)).identity
        save_file({name: 2 * weight for name, weight in head.items()}, folder / "2_Dense" / "model.safetensors")
        assert find_folder("--model", str(folder)).identity != before
        several = tiny_models.save_tiny_dense_cross_encoder(tmp_path / "several", tmp_path / "bare", labels=3)
        with pytest.raises(DataError, match="several: a model of 3 labels; ranking needs one score per pair"):
            refuse_no_cross_encoder(find_folder("--model", str(several)))

    def test_logit_score_is_yes_minus_no_after_the_librarys_own_prompt(self, tmp_path: Path) -> None:
        """A causal language model in sentence-transformers is asked by the model's chat template."""
        folder = tiny_models.save_tiny_model(tmp_path / "causal", "qwen3")
        CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "saved"))
        loaded = load_cross_encoder(tmp_path / "saved", CPU, FLOAT, 300)
        assert type(loaded[1]).__name__ == "LogitScore"
        auto: Any = AutoModelForCausalLM
        causal = auto.from_pretrained(folder, dtype=FLOAT)
        expected = []
        for pair in tiny_models.PAIRS:
            ids = loaded.preprocess([pair])["input_ids"]
            with torch.inference_mode():
                logits = causal(input_ids=ids).logits[0, -1]
            yes, no = loaded.tokenizer.convert_tokens_to_ids(["yes", "no"])
            expected.append(float(logits[yes] - logits[no]))
        assert np.ptp(expected) > 0.1
        assert CrossEncoderReranker(loaded, 4).score(tiny_models.PAIRS) == pytest.approx(expected, abs=1e-4)


class TestMonoT5:
    """The reference is pygaggle's: log P(true) of true and false, the first token of a greedy answer."""

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tiny_models.save_tiny_t5(tmp_path_factory.mktemp("t5"))

    def load(self, folder: Path, max_length: int = 300, **prompt: Any) -> TokenReranker:
        return load_mono_t5(folder, PromptConfig(**prompt), max_length, CPU, FLOAT)

    def reference(self, folder: Path, true: str, false: str) -> list[float]:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = T5ForConditionalGeneration.from_pretrained(folder)
        answers = [tokenizer.convert_tokens_to_ids(f"▁{word}") for word in (false, true)]
        assert tokenizer.unk_token_id not in answers
        scores = []
        for query, document in tiny_models.PAIRS:
            ids = tokenizer(f"Query: {query} Document: {document} Relevant:", return_tensors="pt")["input_ids"]
            found = model.generate(ids, max_new_tokens=1, output_logits=True, return_dict_in_generate=True)
            scores.append(float(found.logits[0][0, answers].log_softmax(0)[1]))
        return scores

    @pytest.mark.parametrize(
        ("given", "batching"), [({}, {"batch_size": 1}), ({"answers": ["yes", "no"]}, {"token_budget": 90})]
    )
    def test_the_margin_has_the_published_score(self, folder: Path, given: dict[str, Any], batching: Any) -> None:
        ours = PairModelReranker(self.load(folder, **given), **batching)
        margins = ours.score(ours.prepare(tiny_models.PAIRS))
        expected = self.reference(folder, *given.get("answers", ("true", "false")))
        assert np.ptp(expected) > 0.05
        assert torch.nn.functional.logsigmoid(torch.tensor(margins)).tolist() == pytest.approx(expected, abs=1e-4)

    def test_what_is_too_long_loses_the_document_and_keeps_the_prompt(self, folder: Path) -> None:
        model = self.load(folder, max_length=40)
        short, long = model.pair_ids([("what sorts a list", "rain"), ("what sorts a list", "rain " * 99)])
        assert len(long) == 40
        end = len(model.pair_ids.suffix)
        assert long[-end:] == short[-end:] == model.pair_ids.suffix
        assert model.pair_ids.too_long(["what sorts a list", "a list " * 99]) == [False, True]


class TestRankLLaMA:
    """The reference is the code of its model card: transformers' classifier on the tokenizer's pair."""

    @pytest.fixture(scope="class", params=["llama", "qwen3"])
    def folder(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tiny_models.save_tiny_score_head(tmp_path_factory.mktemp(request.param), request.param)

    def load(self, folder: Path, max_length: int = 300) -> TokenReranker:
        return load_score_head(folder, max_length, CPU, FLOAT)

    def reference(self, model: Any, tokenizer: Any, **cut: Any) -> list[float]:
        scores = []
        for query, document in tiny_models.PAIRS:
            inputs = tokenizer(f"query: {query}", f"document: {document}", return_tensors="pt", **cut)
            with torch.no_grad():
                scores.append(float(model(input_ids=inputs["input_ids"]).logits[0][0]))
        return scores

    @pytest.mark.parametrize("batching", [{}, {"batch_size": 1}, {"token_budget": 90}])
    def test_scores_are_those_of_its_card_and_the_end_of_a_long_document_is_lost(
        self, folder: Path, batching: Any
    ) -> None:
        for length in (300, 50):
            expected = self.reference(*classifier(folder), truncation="only_second", max_length=length)
            ours = PairModelReranker(self.load(folder, length), **batching)
            assert np.ptp(expected) > 0.1
            assert ours.score(ours.prepare(tiny_models.PAIRS)) == pytest.approx(expected, abs=1e-4)

    def test_an_adapter_is_merged_into_its_base(self, tmp_path: Path) -> None:
        folder = tiny_models.save_tiny_score_adapter(tmp_path / "base", tmp_path / "adapter")
        auto: Any = AutoModelForSequenceClassification
        base = auto.from_pretrained(tmp_path / "base", num_labels=1)
        merged: Any = PeftModel.from_pretrained(base, str(folder)).merge_and_unload().eval()
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base")
        ours = PairModelReranker(self.load(folder))
        assert ours.score(ours.prepare(tiny_models.PAIRS)) == pytest.approx(self.reference(merged, tokenizer), abs=1e-4)


TEXTS = {
    "long": "cat cat dog dog dog rain",  # three passages of two words: cat cat, dog dog, dog rain
    "mixed": "cat dog cat dog",
    "rain": "rain rain rain cat",
    "cat#1": "dog rain",
}


def toy() -> Collection:
    documents = [(key, Document("", text)) for key, text in TEXTS.items()]
    queries = [("q", "cat"), ("long", "rain")]
    return assemble("toy", "test", documents, queries, {"q": {"long": 1}, "long": {"rain": 1}})


@pytest.mark.parametrize(
    ("text", "words", "stride", "expected"),
    [
        ("a b c d e", 2, 2, ["a b", "c d", "e"]),
        ("a b c d e", 3, 1, ["a b c", "b c d", "c d e"]),
        ("a b c d e", 4, 2, ["a b c d", "c d e"]),
        ("a b c d", 4, 2, ["a b c d"]),
        ("  a\n b  c", 2, 1, ["a\n b", "b  c"]),
        ("", 2, 1, [""]),
        ("東京は広いBM25", 3, 2, ["東京は", "は広い", "いBM25"]),
        ("서울은 아주 넓다", 2, 1, ["서울은 아주", "아주 넓다"]),
    ],
)
def test_a_text_is_cut_by_words_and_the_last_passage_ends_with_it(
    text: str, words: int, stride: int, expected: list[str]
) -> None:
    assert Passages(words, stride).cut(text) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, None), ({"passage_words": 150}, (150, 75)), ({"passage_words": 1}, (1, 1)),
     ({"passage_words": 9, "passage_stride": 9}, (9, 9))],
)  # fmt: skip
def test_half_a_passage_is_the_stride_unless_set(settings: dict[str, int], expected: tuple[int, int] | None) -> None:
    assert Passages.of(EvaluationConfig.model_validate(settings)) == expected


def share(pairs: list[tuple[str, str]]) -> list[float]:
    """The share of a passage's words that are the query."""
    return [document.split().count(query) / len(document.split()) for query, document in pairs]


def test_a_document_has_the_score_of_its_best_passage() -> None:
    candidates = {"q": {"mixed": 2.0, "long": 1.0}, "long": {"rain": 2.0, "cat#1": 1.0}}
    read: list[str] = []

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        read.extend(document for _, document in pairs)
        return share(pairs)

    found = rerank_collection(
        FunctionReranker(scorer), toy(), candidates, passages=Passages(2, 2).of_candidates(toy(), candidates)
    )
    # Of "long" the three passages have 1, 0 and 0: whole it has 1/3, and "mixed" 1/2.
    assert found.run == {"q": {"mixed": 0.5, "long": 1.0}, "long": {"rain": 1.0, "cat#1": 0.5}}
    assert read == ["cat dog", "cat dog", "cat cat", "dog dog", "dog rain", "rain rain", "rain cat", "dog rain"]
    assert (found.items, found.aggregate["ndcg@10"]) == (8, 1.0)
    whole = rerank_collection(FunctionReranker(share), toy(), candidates)
    assert whole.run["q"] == {"mixed": 0.5, "long": 1 / 3}


def test_the_title_stands_before_every_passage() -> None:
    titled = assemble("t", "test", [("d", Document("Title", "a b c"))], [("q", "a")], {"q": {"d": 1}})
    collection, candidates = Passages(2, 1).of_candidates(titled, {"q": {"d": 1.0}})
    assert [document.full_text for document in collection.corpus.values()] == ["Title a b", "Title b c"]
    assert candidates == {"q": {"d": 0.0, "d 2": 0.0}}
    assert best_passages({"q": {"d": -3.0, "d 2": -2.0}, "r": {}}) == {"q": {"d": -2.0}, "r": {}}
