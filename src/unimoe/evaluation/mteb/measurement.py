"""A task of MTEB, measured for one subject: by embedding, or by reranking its candidates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from unimoe.evaluation.measurement import model_hashes, prompt_on_task
from unimoe.evaluation.subjects import Subject
from unimoe.io import hash_json
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Identity, Task

if TYPE_CHECKING:
    from mteb import AbsTask

CANDIDATES = "mteb"
"""What results call the first stage of a reranking task, whose candidates are part of it."""


@dataclass(frozen=True)
class TaskMeasurement:
    """One subject on one task of MTEB; its properties are those of ``measurement.Measured``.

    Attributes:
        subject: what is evaluated.
        task: ``embedding``, or ``reranking`` by a cross-encoder.
        mteb_task: the task, with the data that is scored.
    """

    subject: Subject
    task: Task
    mteb_task: AbsTask

    @property
    def model(self) -> UnimodelForExp1:
        """The subject's model."""
        if self.subject.load is None:
            raise ValueError("the first stage alone has no part in MTEB")
        return self.subject.load()

    @property
    def dataset(self) -> str:
        """MTEB's name of the task."""
        return self.mteb_task.metadata.name

    @property
    def task_type(self) -> str:
        """MTEB's type of the task."""
        return str(self.mteb_task.metadata.type)

    @cached_property
    def identity(self) -> Identity:
        """What is measured."""
        subject = self.subject
        return Identity(
            experiment=subject.experiment.name,
            base_model=subject.base_identity,
            checkpoint=subject.checkpoint.which if subject.checkpoint else "none",
            split="+".join(self.mteb_task.eval_splits),
            first_stage=CANDIDATES if self.task == "reranking" else None,
            depth=None,
            pool=None,
            prompt=self._prompt,
            max_queries=None,
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """That of the task's data, which MTEB pins by a revision, and those of the model."""
        data = self.mteb_task.metadata.dataset
        subsets = sorted(self.mteb_task.hf_subsets)
        collection = hash_json([data["path"], data["revision"], subsets, sorted(self.mteb_task.eval_splits)])
        return {"collection": collection} | model_hashes(self.subject, self._prompt)

    @property
    def caveats(self) -> list[str]:
        """The experiment's."""
        return list(self.subject.experiment.caveats)

    @cached_property
    def _prompt(self) -> str | None:
        if self.task == "reranking":
            return self.subject.prompt
        return prompt_on_task(self.subject, self.mteb_task.metadata)
