"""What one evaluation is of: a subject, a task and a dataset, and everything its scores depend on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from unimoe.evaluation.subjects import Subject
from unimoe.evaluation.tiers import LoadedDataset
from unimoe.io import hash_json
from unimoe.models.batching import default_token_budget
from unimoe.models.device import describe_device
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.provenance import package_versions
from unimoe.results import DrillDown, Identity, QueryDetail, Task
from unimoe.trec import Run, ranked


@dataclass(frozen=True)
class Measurement:
    """One subject's task on one dataset."""

    subject: Subject
    task: Task
    data: LoadedDataset

    @cached_property
    def identity(self) -> Identity:
        """What is measured: a result is never overwritten by one of another identity."""
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
            prompt=subject.prompt,
            max_queries=dataset.max_queries,
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Content hashes of what scores depend on, by name."""
        part = "pool" if self.task == "embedding" else "candidates"
        hashes = {name: self.data.hashes[name] for name in ("collection", part)}
        subject = self.subject
        if subject.base_identity and subject.prompt:
            hashes["base_model"] = subject.base_identity.rpartition("@")[2]
            hashes["prompt"] = subject.prompt.rpartition("@")[2]
        if subject.checkpoint:
            hashes["checkpoint"] = subject.checkpoint.adapter_hash
        return hashes

    @property
    def caveats(self) -> list[str]:
        """Why the result is unfit for decisions; empty when it is fit."""
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

    def token_budget(self, model: UnimodelForExp1, reduced: int | None) -> int | None:
        """Tokens of one forward pass; null where the config counts sequences instead, as long as memory suffices.

        Args:
            model: what was scored with.
            reduced: the budget after memory ran out; null where it did not.
        """
        evaluation = self.subject.experiment.evaluation
        if reduced or evaluation.batch_size:
            return reduced
        return evaluation.token_budget or default_token_budget(model.device)

    def drilldown(self, run: Run) -> DrillDown:
        """The judged queries with their texts and the ranks of their relevant documents in a run."""
        details = {}
        for query_id, grades in self.data.collection.qrels.items():
            places = {document_id: place for place, document_id in enumerate(ranked(run.get(query_id, {})), start=1)}
            relevant = {document_id: grade for document_id, grade in grades.items() if grade > 0}
            details[query_id] = QueryDetail(
                text=self.data.collection.queries[query_id],
                relevant=relevant,
                ranks={document_id: places.get(document_id) for document_id in relevant},
            )
        return DrillDown(queries=details)
