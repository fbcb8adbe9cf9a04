"""The adapters to MTEB hand texts to the model and its numbers back, under a revision no other model has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_base
from torch.utils.data import DataLoader

from unimoe.config import MTEBConfig, PromptConfig
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.models.unimodel import UnimodelForExp1

TEXTS = ["the cat sat on the mat", "a quick sort", "", "rain on the roof", "yes"]
QUERIES = ["cat", "sort", "nothing", "weather", "no"]
IDENTITY = {"checkpoint": "c0ffee", "which": "last"}
PROMPT = PromptConfig(query_prefix="Query: ", document_prefix="Document: ")


def make_model(seed: int = 0, prompt: PromptConfig = PROMPT, max_length: int = 256) -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(seed=seed), prompt, max_length)


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


def loader(texts: list[str]) -> Any:
    return DataLoader([{"id": str(n), "text": text} for n, text in enumerate(texts)], batch_size=2)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def task() -> dict[str, Any]:
    """The keyword arguments that MTEB gives beside the texts."""
    import mteb

    metadata = mteb.get_task("SciFact").metadata
    return {"task_metadata": metadata, "hf_split": "test", "hf_subset": "default"}


def by_hand(**prompts: str) -> TaskPrompts:
    """Prefixes by hand alone."""
    return TaskPrompts(MTEBConfig(task_instruction=None, prompts=prompts))


def encoder(model: UnimodelForExp1, **settings: Any) -> MTEBEncoderWrapper:
    return MTEBEncoderWrapper(model, **({"name": "emb_only_r8", "identity": IDENTITY} | settings))


class TestProtocols:
    def test_each_adapter_is_one_kind_of_model_and_not_the_other(self, model: UnimodelForExp1) -> None:
        from mteb.models import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

        one, other = encoder(model), MTEBCrossEncoderWrapper(model, name="rank_only_r8", identity=IDENTITY)
        assert isinstance(one, EncoderProtocol)
        assert isinstance(other, CrossEncoderProtocol)
        assert not isinstance(one, CrossEncoderProtocol | SearchProtocol)
        assert not isinstance(other, EncoderProtocol | SearchProtocol)


class TestEncoder:
    @pytest.mark.parametrize(
        ("prompt_type", "kind"), [("query", "query"), ("document", "document"), (None, "plain")], ids=str
    )
    def test_it_embeds_each_text_with_the_prefix_of_its_role(
        self, model: UnimodelForExp1, task: dict[str, Any], prompt_type: Any, kind: Any
    ) -> None:
        from mteb.types import PromptType

        asked = None if prompt_type is None else PromptType(prompt_type)
        vectors = encoder(model).encode(loader(TEXTS), **task, prompt_type=asked)
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, model.encode(TEXTS, kind=kind))
        claimed = encoder(model, prompts=by_hand(SciFact="Claim: ")).encode(loader(TEXTS), **task, prompt_type=asked)
        expected = model.encode(TEXTS, kind="document") if kind == "document" else model.encode(TEXTS, prefix="Claim: ")
        np.testing.assert_array_equal(claimed, expected)


class TestCrossEncoder:
    def test_a_pair_scores_its_logit_gap(self, model: UnimodelForExp1, task: dict[str, Any]) -> None:
        wrapped = MTEBCrossEncoderWrapper(model, name="rank_only_r8", identity=IDENTITY)
        scores = wrapped.predict(loader(QUERIES), loader(TEXTS), **task)
        pairs = list(zip(QUERIES, TEXTS, strict=True))
        np.testing.assert_array_equal(scores, model.rerank(pairs, output="margin"))

    @pytest.mark.parametrize("template", ["qwen3", "chat"])
    def test_the_instruction_of_the_task_is_in_the_prompt(self, task: dict[str, Any], template: str) -> None:
        model = make_model(prompt=PromptConfig(template=template, instruction="Judge."), max_length=400)
        pairs = list(zip(QUERIES, TEXTS, strict=True))
        own = task["task_metadata"].prompt["query"]
        for prompts, instruction in (
            (None, None),
            (TaskPrompts(MTEBConfig()), own),
            (by_hand(), None),
            (by_hand(SciFact="Weigh."), "Weigh."),
            (TaskPrompts(MTEBConfig(prompts={"query": "Instruct: Weigh.\nQuery:"})), "Weigh."),
        ):
            scores = MTEBCrossEncoderWrapper(model, prompts=prompts).predict(loader(QUERIES), loader(TEXTS), **task)
            np.testing.assert_array_equal(scores, model.rerank(pairs, output="margin", instruction=instruction))
        written = tiny_base().tokenizer.decode(model.pair_ids(pairs[:1], own)[0])
        assert own in written
        assert "Judge." not in written

    def test_a_query_may_have_an_instruction_of_its_own(self, model: UnimodelForExp1, task: dict[str, Any]) -> None:
        given = ["Weigh.", "Judge.", "Weigh.", "Judge.", "Think."]
        rows = [{"id": str(n), "text": query, "instruction": given[n]} for n, query in enumerate(QUERIES)]
        asked: Any = DataLoader(rows, batch_size=2)  # type: ignore[arg-type]
        pairs = zip(QUERIES, TEXTS, given, strict=True)
        expected = [model.rerank([(query, text)], output="margin", instruction=own)[0] for query, text, own in pairs]
        scores = MTEBCrossEncoderWrapper(model, prompts=TaskPrompts(MTEBConfig())).predict(asked, loader(TEXTS), **task)
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        assert len(set(expected)) == len(expected)


class TestMeta:
    def test_the_revision_is_the_same_for_the_same_model(self, model: UnimodelForExp1) -> None:
        meta = encoder(model).mteb_model_meta
        assert (meta.name, meta.similarity_fn_name) == ("unimoe/emb_only_r8", "cosine")
        again = encoder(make_model(), identity=dict(reversed(IDENTITY.items())), token_budget=7, batch_size=1)
        assert again.mteb_model_meta.revision == meta.revision

    def test_it_is_another_for_whatever_changes_scores(self, model: UnimodelForExp1) -> None:
        half = make_model()
        half.model.to(torch.bfloat16)
        others: list[MTEBEncoderWrapper | MTEBCrossEncoderWrapper] = [
            encoder(make_model(seed=1)),
            encoder(make_model(max_length=128)),
            encoder(make_model(prompt=PromptConfig())),
            encoder(half),
            encoder(model, prompts=by_hand(SciFact="Claim: ")),
            encoder(model, prompts=TaskPrompts(MTEBConfig())),
            MTEBCrossEncoderWrapper(model, name="emb_only_r8", identity=IDENTITY),
        ]
        revisions = {wrapped.mteb_model_meta.revision for wrapped in [encoder(model), *others]}
        assert len(revisions) == 1 + len(others)

    def test_without_an_identity_the_weights_in_memory_are_hashed(self) -> None:
        model = make_model()
        revisions = [encoder(model, identity=None).mteb_model_meta.revision for _ in range(2)]
        with torch.no_grad():
            model.model.model.layers[-1].mlp.down_proj.weight[0, 0] += 1e-6
        revisions.append(encoder(model, identity=None).mteb_model_meta.revision)
        assert revisions[0] == revisions[1] != revisions[2]
