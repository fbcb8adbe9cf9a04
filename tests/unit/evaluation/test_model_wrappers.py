"""The adapters to MTEB hand texts to the model and its numbers back, under a revision no other model has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_base
from torch.utils.data import DataLoader

from unimoe.config import MTEBConfig, PromptConfig
from unimoe.core.errors import DataError
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.models.unimodel import UnimodelForExp1

TEXTS = ["the cat sat on the mat", "a quick sort", "", "rain on the roof", "yes"]
QUERIES = ["cat", "sort", "nothing", "weather", "no"]
IDENTITY = {"checkpoint": "c0ffee", "which": "last"}
PROMPT = PromptConfig(query_prefix="Query: ", document_prefix="Document: ")


def make_model(seed: int = 0, prompt: PromptConfig = PROMPT, max_length: int = 256) -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(seed=seed), prompt, max_length)


def broken() -> UnimodelForExp1:
    """A model whose numbers are none."""
    model = make_model()
    with torch.no_grad():
        model.model.model.norm.weight[0] = torch.nan
    return model


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

    def test_a_prefix_for_the_task_goes_before_queries_and_texts_without_role_only(
        self, model: UnimodelForExp1, task: dict[str, Any]
    ) -> None:
        from mteb.types import PromptType

        wrapped = encoder(model, prompts=by_hand(SciFact="Claim: ", NFCorpus="Question: "))
        as_claims = model.encode(TEXTS, prefix="Claim: ")
        for role in (PromptType.query, None):
            np.testing.assert_array_equal(wrapped.encode(loader(TEXTS), **task, prompt_type=role), as_claims)
        documents = wrapped.encode(loader(TEXTS), **task, prompt_type=PromptType.document)
        np.testing.assert_array_equal(documents, model.encode(TEXTS, kind="document"))

    def test_an_error_names_task_role_and_id(self, task: dict[str, Any]) -> None:
        from mteb.types import PromptType

        with pytest.raises(DataError, match=r"^SciFact, document '0': the score is not finite; try"):
            encoder(broken()).encode(loader(TEXTS), **task, prompt_type=PromptType.document)
        with pytest.raises(DataError, match=r"^SciFact, text '0': the score is not finite"):
            encoder(broken()).encode(loader(TEXTS), **task)

    def test_similarity_is_the_cosine(self, model: UnimodelForExp1) -> None:
        left, right = model.encode(TEXTS), model.encode(QUERIES)
        expected = np.array([[float(np.dot(a, b)) for b in right] for a in left])
        wrapped = encoder(model)
        np.testing.assert_allclose(wrapped.similarity(left, torch.from_numpy(right)), expected, atol=1e-6)
        np.testing.assert_allclose(wrapped.similarity_pairwise(left, right), np.diag(expected), atol=1e-6)
        np.testing.assert_allclose(wrapped.similarity(left[0], right[1]), expected[:1, 1:2], atol=1e-6)


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
        rows = [
            {"id": str(n), "text": query, "instruction": own}
            for n, (query, own) in enumerate(zip(QUERIES, given, strict=True))
        ]
        asked: Any = DataLoader(rows, batch_size=2)  # type: ignore[arg-type]
        expected = [
            model.rerank([pair], output="margin", instruction=own)[0]
            for pair, own in zip(zip(QUERIES, TEXTS, strict=True), given, strict=True)
        ]
        scores = MTEBCrossEncoderWrapper(model, prompts=TaskPrompts(MTEBConfig())).predict(asked, loader(TEXTS), **task)
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        assert len(set(expected)) == len(expected)
        overridden = MTEBCrossEncoderWrapper(model, prompts=by_hand(SciFact="Weigh.")).predict(
            asked, loader(TEXTS), **task
        )
        assert not np.allclose(overridden, expected)

    def test_an_error_about_one_of_several_instructions_names_the_right_query(self, task: dict[str, Any]) -> None:
        rows = [{"id": str(n), "text": query, "instruction": f"{n % 2}"} for n, query in enumerate(QUERIES)]
        asked: Any = DataLoader(rows, batch_size=2)  # type: ignore[arg-type]
        wrapped = MTEBCrossEncoderWrapper(broken(), prompts=TaskPrompts(MTEBConfig()))
        with pytest.raises(DataError, match=r"^SciFact, query '0' with document '0'"):
            wrapped.predict(asked, loader(TEXTS), **task)


class TestMeta:
    def test_mteb_knows_the_arm_by_name_and_revision(self, model: UnimodelForExp1) -> None:
        meta = encoder(model).mteb_model_meta
        assert meta.name == "unimoe/emb_only_r8"
        assert meta.similarity_fn_name == "cosine"
        assert isinstance(meta.revision, str)
        assert len(meta.revision) == 16

    def test_the_revision_is_the_same_for_the_same_model(self, model: UnimodelForExp1) -> None:
        again = encoder(make_model(), identity=dict(reversed(IDENTITY.items())), token_budget=7, batch_size=1)
        assert again.mteb_model_meta.revision == encoder(model).mteb_model_meta.revision

    def test_so_does_what_the_model_itself_tells(self, model: UnimodelForExp1) -> None:
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
