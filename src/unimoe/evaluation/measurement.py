"""What one evaluation is of: a subject, a task and a dataset, and everything its scores depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch

from unimoe.evaluation.mteb.names import find_tasks, mteb_name
from unimoe.evaluation.mteb.prompts import TaskCard, TaskPrompts
from unimoe.evaluation.mteb.run import random_state_kept
from unimoe.evaluation.subjects import Subject
from unimoe.evaluation.tiers import LoadedDataset
from unimoe.io import hash_json
from unimoe.models.batching import default_token_budget
from unimoe.models.device import describe_device
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.provenance import package_versions
from unimoe.results import DrillDown, Identity, QueryDetail, Task
from unimoe.trec import Qrels, Run, ranked

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata


class Measured(Protocol):
    """What a result file says of any measurement."""

    @property
    def subject(self) -> Subject:
        """What is evaluated."""

    @property
    def task(self) -> Task:
        """On which of our tasks."""

    @property
    def dataset(self) -> str:
        """What results call the dataset."""

    @property
    def task_type(self) -> str | None:
        """MTEB's type of the task; null outside MTEB."""

    @property
    def identity(self) -> Identity:
        """What is measured: a result is never overwritten by one of another identity."""

    @property
    def hashes(self) -> dict[str, str]:
        """Content hashes of what scores depend on, by name."""

    @property
    def caveats(self) -> list[str]:
        """Why the result is unfit for decisions; empty when it is fit."""


@dataclass(frozen=True)
class Measurement:
    """One subject's task on one collection; its properties are those of ``Measured``."""

    subject: Subject
    task: Task
    data: LoadedDataset

    @property
    def dataset(self) -> str:
        """The collection's name; in embedding the name that MTEB has for it, where it has one."""
        return self._published.name if self._published else self.data.dataset.name

    @property
    def task_type(self) -> str | None:
        """Retrieval where MTEB has the collection as a task."""
        return str(self._published.type) if self._published else None

    @cached_property
    def identity(self) -> Identity:
        """What is measured."""
        subject, data, dataset = self.subject, self.data, self.data.dataset
        pooled = self.task == "embedding" and len(data.pooled.corpus) < data.whole_size
        return Identity(
            experiment=subject.experiment.name,
            base_model=subject.base_identity,
            checkpoint=subject.checkpoint.which if subject.checkpoint else "none",
            split=dataset.split,
            first_stage=None if self.task == "embedding" else data.first_stage,
            depth=dataset.depth if self.task == "reranking" else None,
            pool=len(data.pooled.corpus) if pooled else None,
            prompt=self._prompt,
            max_queries=dataset.max_queries,
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Those of the collection, of what is ranked, and of the model."""
        part = "pool" if self.task == "embedding" else "candidates"
        hashes = {name: self.data.hashes[name] for name in ("collection", part)}
        return hashes | model_hashes(self.subject, self._prompt)

    @property
    def caveats(self) -> list[str]:
        """The experiment's, and those of a cut dataset."""
        return [*self.subject.experiment.caveats, *self.data.caveats]

    def fingerprint(self, model: UnimodelForExp1) -> str:
        """Of all that a pair's score depends on besides its tokens, to the last bit."""
        evaluation, versions, subject = self.subject.experiment.evaluation, package_versions(), self.subject
        return hash_json(
            [
                [subject.base_identity, subject.prompt, self.hashes.get("checkpoint"), subject.dtype],
                [describe_device(model.device), evaluation.token_budget, evaluation.batch_size],
                [versions[package] for package in ("unimoe", "torch", "transformers", "peft")],
            ]
        )

    @cached_property
    def _published(self) -> TaskMetadata | None:
        """MTEB's card of the task that the collection is, where embeddings are measured on it."""
        name = mteb_name(self.data.dataset.collection) if self.task == "embedding" else None
        if name is None:
            return None
        with random_state_kept():
            return find_tasks([name])[0].metadata

    @cached_property
    def _prompt(self) -> str | None:
        if self.task != "embedding":
            return self.subject.prompt
        return prompt_on_task(self.subject, self._published or _CollectionCard(self.data.dataset.name))


@dataclass(frozen=True)
class _CollectionCard:
    """A collection that MTEB has no task of, as far as prefixes are concerned."""

    name: str
    type: str = "Retrieval"
    prompt: None = None


def prompt_on_task(subject: Subject, card: TaskCard) -> str | None:
    """Name and hash of a subject's prompt, and of the prefixes that a task has for itself."""
    own = TaskPrompts(subject.experiment.evaluation.mteb).of_task(card)
    if subject.prompt is None or own == [None] * len(own):
        return subject.prompt
    return f"{subject.prompt.rpartition('@')[0]}@{hash_json([subject.prompt, own])}"


def model_hashes(subject: Subject, prompt: str | None) -> dict[str, str]:
    """Content hashes of a subject's model and of the prompt it was asked with, by name."""
    hashes = {}
    if subject.base_identity and prompt:
        hashes["base_model"] = subject.base_identity.rpartition("@")[2]
        hashes["prompt"] = prompt.rpartition("@")[2]
    if subject.checkpoint:
        hashes["checkpoint"] = subject.checkpoint.adapter_hash
    return hashes


def used_budget(subject: Subject, device: torch.device, reduced: int | None) -> int | None:
    """Tokens of one forward pass; null where the config counts sequences instead, as long as memory suffices.

    Args:
        subject: what was scored.
        device: where.
        reduced: the budget after memory ran out; null where it did not.
    """
    evaluation = subject.experiment.evaluation
    if reduced or evaluation.batch_size:
        return reduced
    return evaluation.token_budget or default_token_budget(device)


def drilldown(queries: Mapping[str, str], qrels: Qrels, run: Run) -> DrillDown:
    """The judged queries with their texts and the ranks of their relevant documents in a run."""
    details = {}
    for query_id, grades in qrels.items():
        places = {document_id: place for place, document_id in enumerate(ranked(run.get(query_id, {})), start=1)}
        relevant = {document_id: grade for document_id, grade in grades.items() if grade > 0}
        ranks = {document_id: places.get(document_id) for document_id in relevant}
        details[query_id] = QueryDetail(text=queries[query_id], relevant=relevant, ranks=ranks)
    return DrillDown(queries=details)
