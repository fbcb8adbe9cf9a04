"""A tiny model on a small task through MTEB, and the cosines that it must have found."""

from __future__ import annotations

from typing import Any

from support.mteb_tasks import loaded
from support.tiny_models import tiny_base

from unimoe.config import MTEBConfig, PromptConfig
from unimoe.data.collection import Collection
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.run import evaluate_task
from unimoe.evaluation.spec import Outcome
from unimoe.models.unimodel import UnimodelForExp1

PROMPT = PromptConfig(query_prefix="Query: ", document_prefix="Document: ")
PLAIN, INSTRUCTED = TaskPrompts(MTEBConfig(task_instruction=None)), TaskPrompts(MTEBConfig())


def make_model(seed: int = 0, prompt: PromptConfig = PROMPT, max_length: int = 256) -> UnimodelForExp1:
    """A random model whose roles have prefixes."""
    return UnimodelForExp1(tiny_base(seed=seed), prompt, max_length)


def evaluate(model: UnimodelForExp1, kind: type[Any], prompts: TaskPrompts = PLAIN) -> Outcome:
    """Embed one task of ``support.mteb_tasks``."""
    return evaluate_task(MTEBEncoderWrapper(model, prompts=prompts), loaded(kind))


def cosines(
    model: UnimodelForExp1, collection: Collection, query_prefix: str | None = None
) -> dict[str, dict[str, float]]:
    """Of every query with every document, by the model alone."""
    documents = model.encode([d.full_text for d in collection.corpus.values()], kind="document").astype(float)
    asked = model.encode([*collection.queries.values()], kind="query", prefix=query_prefix).astype(float)
    return {
        query: dict(zip(collection.corpus, map(float, documents @ vector), strict=True))
        for query, vector in zip(collection.queries, asked, strict=True)
    }
