"""The adapters to MTEB, and which prefix a text gets in a task of MTEB."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval
from mteb.get_tasks import TASK_LIST
from mteb.models.instruct_wrapper import InstructSentenceTransformerModel
from mteb.models.model_implementations.qwen3_models import instruction_template
from mteb.types import PromptType
from support.mteb_tasks import INSTRUCTED, make_model
from support.tiny_models import save_tiny_score_head, save_tiny_t5
from torch.utils.data import DataLoader

from unimoe.config import MTEBConfig, PromptConfig
from unimoe.core.errors import UsageError
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.models.named import ModelSettings, default_experiment, named_model
from unimoe.models.unimodel import UnimodelForExp1

TEXTS = ["the cat sat on the mat", "a quick sort", "", "rain on the roof", "yes"]
QUERIES = ["cat", "sort", "nothing", "weather", "no"]
IDENTITY = {"checkpoint": "c0ffee", "which": "last"}


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


def loader(texts: list[str]) -> Any:
    return DataLoader([{"id": str(n), "text": text} for n, text in enumerate(texts)], batch_size=2)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def scifact() -> Any:
    return mteb.get_task("SciFact").metadata


@pytest.fixture(scope="module")
def task(scifact: Any) -> dict[str, Any]:
    """The keyword arguments that MTEB gives beside the texts."""
    return {"task_metadata": scifact, "hf_split": "test", "hf_subset": "default"}


def by_hand(**prompts: str) -> TaskPrompts:
    """Prefixes by hand alone."""
    return TaskPrompts(MTEBConfig(task_instruction=None, prompts=prompts))


def encoder(model: UnimodelForExp1, **settings: Any) -> MTEBEncoderWrapper:
    return MTEBEncoderWrapper(model, **({"name": "emb_only_r8", "identity": IDENTITY} | settings))


@pytest.mark.parametrize(
    ("role", "kind"), [(PromptType.query, "query"), (PromptType.document, "document"), (None, "plain")], ids=str
)
def test_an_encoder_embeds_each_text_with_the_prefix_of_its_role(
    model: UnimodelForExp1, task: dict[str, Any], role: Any, kind: Any
) -> None:
    vectors = encoder(model).encode(loader(TEXTS), **task, prompt_type=role)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, model.encode(TEXTS, kind=kind))
    claimed = encoder(model, prompts=by_hand(SciFact="Claim: ")).encode(loader(TEXTS), **task, prompt_type=role)
    expected = model.encode(TEXTS, kind="document") if kind == "document" else model.encode(TEXTS, prefix="Claim: ")
    np.testing.assert_array_equal(claimed, expected)


def test_a_query_is_scored_with_its_own_instruction_or_the_tasks(model: UnimodelForExp1, task: dict[str, Any]) -> None:
    given = ["Weigh.", "Judge.", "Weigh.", "Judge.", "Think."]
    rows = [{"id": str(n), "text": query, "instruction": given[n]} for n, query in enumerate(QUERIES)]
    asked: Any = DataLoader(rows, batch_size=2)  # type: ignore[arg-type]
    pairs = zip(QUERIES, TEXTS, given, strict=True)
    expected = [model.rerank([(query, text)], output="margin", instruction=own)[0] for query, text, own in pairs]
    wrapped = MTEBCrossEncoderWrapper(model, prompts=INSTRUCTED)
    np.testing.assert_allclose(wrapped.predict(asked, loader(TEXTS), **task), expected, atol=1e-4)
    assert len(set(expected)) == len(expected)
    plain = model.rerank(
        [*zip(QUERIES, TEXTS, strict=True)], output="margin", instruction=INSTRUCTED.instruction(task["task_metadata"])
    )
    np.testing.assert_array_equal(wrapped.predict(loader(QUERIES), loader(TEXTS), **task), plain)


def test_the_revision_is_another_for_whatever_changes_scores(model: UnimodelForExp1) -> None:
    meta = encoder(model).mteb_model_meta
    assert (meta.name, meta.similarity_fn_name) == ("unimoe/emb_only_r8", "cosine")
    again = encoder(make_model(), identity=dict(reversed(IDENTITY.items())), token_budget=7, batch_size=1)
    assert again.mteb_model_meta.revision == meta.revision
    unnamed = [encoder(make_model(), identity=None).mteb_model_meta.revision for _ in range(2)]
    assert unnamed[0] == unnamed[1]
    moved = make_model()
    with torch.no_grad():
        moved.model.model.layers[-1].mlp.down_proj.weight[0, 0] += 1e-6
    others: list[MTEBEncoderWrapper | MTEBCrossEncoderWrapper] = [
        encoder(make_model(seed=1)),
        encoder(make_model(max_length=200)),
        encoder(make_model(prompt=PromptConfig())),
        encoder(model, prompts=by_hand(SciFact="Claim: ")),
        encoder(model, prompts=INSTRUCTED),
        MTEBCrossEncoderWrapper(model, name="emb_only_r8", identity=IDENTITY),
        encoder(model, identity=None),  # of the weights in memory
        encoder(moved, identity=None),
    ]
    revisions = {wrapped.mteb_model_meta.revision for wrapped in [encoder(model), *others]}
    assert len(revisions) == 1 + len(others)


@pytest.mark.parametrize(
    ("role", "order"),
    [
        ("query", ["SciFact-query", "SciFact", "Retrieval-query", "Retrieval", "query"]),
        ("document", ["SciFact-document", "Retrieval-document", "document"]),
        (None, ["SciFact", "Retrieval"]),
    ],
    ids=str,
)
def test_of_prefixes_by_hand_the_first_key_that_fits_counts(scifact: Any, role: str | None, order: list[str]) -> None:
    for first, second in pairwise(order):
        both = by_hand(**{second: "two", first: "one"})
        assert both.prefix(scifact, role) == "one"
        assert by_hand(**{second: "two"}).prefix(scifact, role) == "two"
    everything = {f"{head}{role}" for head in ("SciFact", "Retrieval") for role in ("", "-query", "-document")}
    others = {*everything, "query", "document", "NFCorpus", "STS"} - set(order)
    assert by_hand(**dict.fromkeys(others, "never")).prefix(scifact, role) is None


def test_the_instruction_is_that_by_hand_else_the_querys_else_the_tasks(scifact: Any) -> None:
    claim = "Given a scientific claim, retrieve documents that support or refute the claim"
    assert INSTRUCTED.of_task(scifact)[:2] == [f"Instruct: {claim}\nQuery:", None]
    assert INSTRUCTED.of_task(scifact.model_copy(update={"prompt": ""})) == [None] * 3
    assert by_hand().of_task(scifact) == [None] * 3
    assert INSTRUCTED.instruction(scifact) == claim
    assert INSTRUCTED.instruction(scifact, "mine") == "mine"
    assert INSTRUCTED.instruction(scifact.model_copy(update={"prompt": None})) == "Retrieve text based on user query."
    assert by_hand().instruction(scifact, "mine") is None
    assert by_hand(Retrieval="Weigh. ").instruction(scifact, "mine") == "Weigh."
    assert by_hand(SciFact="", Retrieval="Weigh.").instruction(scifact, "mine") is None
    for template in ("Instruct: {instruction}\nQuery:", "{instruction}: ", "{instruction}"):
        config = MTEBConfig(task_instruction=template, prompts={"query": template.replace("{instruction}", "Weigh.")})
        assert TaskPrompts(config).instruction(scifact) == "Weigh."


@pytest.mark.filterwarnings("ignore:Prompt type 'document' not found", "ignore:No prompt found on the abstask class")
def test_every_text_task_reads_what_mtebs_own_wrapper_of_qwen3_embedding_writes() -> None:
    wrapper: Any = InstructSentenceTransformerModel.__new__(InstructSentenceTransformerModel)
    wrapper.instruction_template, wrapper.apply_instruction_to_passages = instruction_template, False
    wrapper.model = SimpleNamespace(encode=lambda texts, prompt: prompt)
    texts, compared = DataLoader(Dataset.from_dict({"text": ["a text"]})), 0
    for kind in TASK_LIST:
        if kind.metadata.modalities == ["text"]:
            facts: dict[str, Any] = {"task_metadata": kind.metadata, "hf_split": "test", "hf_subset": "default"}
            role = PromptType.query if issubclass(kind, AbsTaskRetrieval) else None
            sent = wrapper.encode(texts, prompt_type=role, **facts)
            assert (INSTRUCTED.prefix(kind.metadata, role and role.value) or "") == sent, kind
            compared += 1
    assert compared > 1000


@pytest.mark.parametrize(
    ("key", "near"),
    [("SciFcat", "SciFact"), ("SciFcat-query", "SciFact"), ("Retreival", "Retrieval"), ("SciFact-passage", "Sci")],
)
def test_keys_that_are_unknown_are_refused_with_the_closest(key: str, near: str) -> None:
    known = ("SciFact", "SciFact-query", "STS", "Retrieval-document", "query", "document", "toy", "toy-query")
    by_hand(**dict.fromkeys(known, "x")).refuse_unknown_keys(["toy"])
    with pytest.raises(UsageError) as refused:
        by_hand(query="x", **{key: "x"}).refuse_unknown_keys()
    assert f"evaluation.mteb.prompts: {key!r} is no task, type of tasks or role" in str(refused.value)
    assert f"did you mean '{near}" in str(refused.value)


def test_rerankers_of_other_weights_are_other_revisions(tmp_path: Path) -> None:
    """MTEB reuses stored scores of the same revision, and shards of a killed task are found by it."""
    revisions = set()
    for name in (f"monot5:{save_tiny_t5(tmp_path / 't5')}", f"rankllama:{save_tiny_score_head(tmp_path / 'head')}"):
        model, _ = named_model(name, ModelSettings(default_experiment(name), torch.device("cpu"), torch.float32))
        revisions.add(MTEBCrossEncoderWrapper(model).mteb_model_meta.revision)
    assert len(revisions) == 2
