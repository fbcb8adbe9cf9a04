"""Cross-encoders in a study: the same lists, the same seeds, one reranking of each test set, and the first stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from unimoe.analysis.arms import FIRST_STAGE
from unimoe.checks import report
from unimoe.core.console import Steps, stderr
from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json
from unimoe.data.catalog import result_name
from unimoe.models.embedder import Advance
from unimoe.results import Task
from unimoe.studies.common.family import Family, Sample
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.data import CrossEncoderData, load_cross_encoder_data
from unimoe.studies.cross_encoder.evaluation import report_first_stage, report_trained
from unimoe.studies.cross_encoder.trainer import CrossEncoderTraining

_QUERIES = 8  # of each dev set, in a plan


class CrossEncoderFamily(Family[CrossEncoderConfig, CrossEncoderTraining]):
    """Cross-encoders, each trained with a listwise loss."""

    config_type = CrossEncoderConfig
    dtype_key = "dtype"
    task: ClassVar[Task] = "reranking"
    metrics = ("ndcg@10", "map", "mrr@10")

    @cached_property
    def data(self) -> CrossEncoderData:
        """Lists, dev and test sets."""
        return load_cross_encoder_data(self.base)

    def load(self) -> None:
        """Make the lists; refuse a study in which nothing is tested."""
        with Steps(1).step(f"{self.base.lists.source}: lists made", None) as step:
            data = self.data
            step.outcome = f"{len(data.lists.lists):,} lists, {len(data.test)} test sets"
        report(data.checks)
        for note in data.lists.notes:
            stderr.print(f"note: {note}", soft_wrap=True)
        if self.study.seeds and not data.test:
            raise UsageError("evaluation.test is empty, and the lists' source has no test split; name a collection")

    @property
    def datasets(self) -> list[str]:
        """Names of the test sets."""
        return [one.dataset for one in self.data.test]

    @property
    def collection(self) -> str:
        """The source of the lists."""
        return result_name(self.base.lists.source)

    def training(self, config: CrossEncoderConfig, arm: str) -> CrossEncoderTraining:
        """Return a training on the lists that its loss can learn from."""
        return CrossEncoderTraining(self._named(config, arm), self.data, self.device)

    def sample(self, config: CrossEncoderConfig, arm: str) -> Sample:
        """Return a training that reranks a few queries of dev."""
        whole = self.training(config, arm)
        few = replace(self.data, dev=tuple(one.first(_QUERIES) for one in self.data.dev))
        part = CrossEncoderTraining(self._named(config, arm), few, self.device)
        pairs = [sum(one.pairs for one in data.dev) for data in (self.data, few)]
        test = self.test_to_dev(whole)
        return Sample(part, whole.steps, whole.evaluations, test, dev=pairs[0] / max(1, pairs[1]))

    def decides_time(self, config: CrossEncoderConfig) -> dict[str, Any]:
        """Return what decides the time: not the loss, since the model takes nearly all of it."""
        return super().decides_time(config) | {"loss": None}

    def _named(self, config: CrossEncoderConfig, arm: str) -> CrossEncoderConfig:
        return config.model_copy(update={"arm": arm, "name": self.study.name})

    def dev(self, training: CrossEncoderTraining) -> dict[str, float]:
        """Return the mean nDCG@10 on dev before training and at its best step."""
        found = training.fit()
        return {"val": found.dev, "start": found.start, "best": found.best_step, "seconds": found.seconds}

    def test(self, training: CrossEncoderTraining, arm: str, advance: Advance) -> float:
        """Rerank the test sets."""
        manifest, draws = training.fit(), self._draws(training)
        found = [report_trained(training, manifest, one, self.given, advance, draws=draws) for one in self.data.test]
        return sum(one.aggregate["ndcg@10"] for one in found) / len(found)

    def test_to_dev(self, training: CrossEncoderTraining) -> float:
        """Return pairs of the test sets per pair of dev."""
        return sum(one.pairs for one in self.data.test) / max(1, sum(one.pairs for one in self.data.dev))

    def untrained(self) -> dict[str, Callable[[CrossEncoderConfig], None]]:
        """Return the first stage, in the order of its scores."""
        return {FIRST_STAGE: self._report_first_stage}

    def _report_first_stage(self, config: CrossEncoderConfig) -> None:
        config = self._named(config, FIRST_STAGE)
        for one in self.data.test:
            report_first_stage(config, one, self.given, self.study.model_dump())

    def identity(self, training: CrossEncoderTraining) -> list[str]:
        """Return hashes of the training and of the test sets."""
        return [training.state.fingerprint, *(one.content_hash for one in self.data.test)]

    def notes(self) -> Sequence[str]:
        """Say which seeds pair."""
        return (
            "Seeds pair between losses that train on the same lists, in the same order, from the same first weights.",
        )

    def _draws(self, training: CrossEncoderTraining) -> str:
        """Return a hash of what a seed draws: a loss that cannot use some lists has other batches from the start."""
        config = training.config
        return hash_json([training.lists.content_hash, config.batch_size, config.model.model_dump()])
