"""Systems and a tiny model on small tasks through MTEB, and the cosines that the model must have found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.mteb_tasks import loaded
from support.tiny_models import tiny_base

from unimoe.config import MTEBConfig, PromptConfig
from unimoe.data.collection import Collection
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.embedding_eval import evaluate_task
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.evaluate import Driver
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.spec import Outcome
from unimoe.evaluation.systems.system import System
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import EvalResult, Task

PROMPT = PromptConfig(query_prefix="Query: ", document_prefix="Document: ")
PLAIN, INSTRUCTED = TaskPrompts(MTEBConfig(task_instruction=None)), TaskPrompts(MTEBConfig())


def make_model(seed: int = 0, prompt: PromptConfig = PROMPT, max_length: int = 256) -> UnimodelForExp1:
    """A random model whose roles have prefixes."""
    return UnimodelForExp1(tiny_base(seed=seed), prompt, max_length)


class Suite:
    """Evaluates a system on tasks of MTEB, as ``evaluate --mteb`` does.

    Attributes:
        reasons: why there is no score of some.
    """

    def __init__(self, output_dir: Path, system: System, wanted: Sequence[Task] = ("reranking", "embedding")) -> None:
        self._system, self.reasons = replace(system, tasks=tuple(wanted), output_dir=output_dir), list[str]()

    def run(self, tasks: Sequence[Any]) -> list[EvalResult]:
        """Return the results."""
        driver = Driver([self._system], ChosenData(mteb=tasks), Engine())
        found = [result for _, result in driver.on_mteb()]
        self.reasons += driver.failures.reasons
        return found


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
