"""A trained head as an arm: its test scores as an ordinary result, which the analysis reads like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from unimoe.data.collection import Collection
from unimoe.evaluation.measuring import Found
from unimoe.evaluation.writing import result_of, write_found
from unimoe.io import hash_json
from unimoe.metrics import DEFAULT_METRICS, score_run
from unimoe.results import (
    EvalResult,
    FirstStageScores,
    Identity,
    TrainingBudget,
    read_result,
    refuse_other_identity,
    result_path,
    run_path,
)
from unimoe.trec import Run


@dataclass(frozen=True)
class HeadMeasurement:
    """A head's reranking of the test pools, or the order of the pools' source itself.

    Attributes:
        arm: its name.
        seed: of the training; null where there was none.
        experiment: what results call the comparison.
        dataset: what they call the collection.
        collection: queries, judgments and corpus of the test split.
        candidates: the pools, as a run of their source.
        run: the pools in the order of the head.
        metric: the main metric, such as ``ndcg@10``.
        first_stage: where the pools come from, with its parameters.
        depth: candidates of a query.
        config: the whole configuration.
        device: what computed, in words.
        seconds: time of scoring.
        encoder: identity of the frozen encoder; null for the source's own order.
        prompt: name and hash of the encoder's prefixes and lengths; likewise.
        head_hash: content hash of what was trained, a head or a whole cross-encoder; null where nothing is.
        checkpoint: which one, where something was trained.
        training: what the training took; likewise.
        max_queries: queries scored, where they were cut.
        caveats: why the result is unfit for decisions.
    """

    arm: str
    seed: int | None
    experiment: str
    dataset: str
    collection: Collection
    candidates: Run
    run: Run
    metric: str
    first_stage: str
    depth: int
    config: dict[str, Any]
    device: str
    seconds: float
    encoder: str | None = None
    prompt: str | None = None
    head_hash: str | None = None
    checkpoint: Literal["best", "last"] = "best"
    training: TrainingBudget | None = None
    max_queries: int | None = None
    caveats: Sequence[str] = field(default_factory=tuple)

    @property
    def identity(self) -> Identity:
        """What is measured."""
        return Identity(
            experiment=self.experiment,
            base_model=self.encoder,
            checkpoint=self.checkpoint if self.head_hash else "none",
            split=self.collection.split,
            first_stage=self.first_stage,
            depth=self.depth,
            pool=None,
            prompt=self.prompt,
            max_queries=self.max_queries,
        )

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Content hashes of what scores depend on, by name."""
        hashes = {"collection": self.collection.content_hash, "candidates": hash_json(self.candidates)}
        if self.encoder and self.prompt:
            hashes |= {"base_model": self.encoder.rpartition("@")[2], "prompt": self.prompt.rpartition("@")[2]}
        return hashes | ({"checkpoint": self.head_hash} if self.head_hash else {})


def write_head_result(output_dir: Path, measurement: HeadMeasurement, given: Sequence[str] = ()) -> EvalResult:
    """Write result, TREC run, judgments and drill-down, unless they are there and of the same content.

    Args:
        output_dir: the experiment's folder.
        measurement: what was measured.
        given: options given by hand, for provenance.

    Raises:
        DataError: the place of the result is taken by another measurement.
    """
    there = result_there(output_dir, measurement)
    if there is not None:
        return there
    found = _found(measurement)
    result = result_of(
        found,
        arm=measurement.arm,
        seed=measurement.seed,
        task="reranking",
        dataset=measurement.dataset,
        identity=measurement.identity,
        hashes=measurement.hashes,
        config=measurement.config,
        device=measurement.device,
        dtype="float32" if measurement.encoder else None,
        given=given,
        caveats=measurement.caveats,
        training=measurement.training,
    )
    return write_found(output_dir, result, found)


def result_there(output_dir: Path, measurement: HeadMeasurement) -> EvalResult | None:
    """The result on disk, where it is of this very measurement; its ``run`` is not looked at.

    Raises:
        DataError: the place of the result is taken by another measurement.
    """
    place = (output_dir, measurement.arm, measurement.seed, "reranking", measurement.dataset)
    path = result_path(*place)
    if not path.exists():
        return None
    refuse_other_identity(path, measurement.identity, measurement.dataset)
    there = read_result(path)
    same = (measurement.hashes, measurement.metric, list(measurement.caveats))
    if (there.provenance.hashes, there.main_metric, there.caveats) == same and run_path(*place).exists():
        return there
    return None


def _found(measurement: HeadMeasurement) -> Found:
    collection, run, level = measurement.collection, measurement.run, measurement.collection.relevance_level
    metrics = tuple(dict.fromkeys((measurement.metric, *DEFAULT_METRICS)))
    scores, before = (score_run(collection.qrels, scored, metrics, level) for scored in (run, measurement.candidates))
    return Found(
        main_metric=measurement.metric,
        aggregate=scores.aggregate,
        qrels=collection.qrels,
        queries=collection.queries,
        run=run,
        scores=scores,
        items=sum(map(len, run.values())) if measurement.encoder else None,
        seconds=measurement.seconds,
        first_stage=FirstStageScores(
            aggregate=before.aggregate,
            delta={metric: value - before.aggregate[metric] for metric, value in scores.aggregate.items()},
            queries_without_candidates=sorted(q for q in collection.qrels if not measurement.candidates.get(q)),
        ),
        relevance_level=level,
    )
