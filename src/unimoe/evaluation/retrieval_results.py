"""What retrieval leaves behind: for every arm a result, the ranks behind it, a TREC run, and the judgments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unimoe.data.collection import Collection
from unimoe.errors import DataError
from unimoe.evaluation.measuring import Found
from unimoe.evaluation.retrieval_eval import RetrievalOutcome
from unimoe.evaluation.writing import result_of, write_found
from unimoe.io import find_files
from unimoe.results import (
    EvalResult,
    Identity,
    Task,
    TrainingBudget,
    read_result,
    refuse_other_identity,
    result_path,
    run_path,
)

TASK: Task = "retrieval"

_SIDECARS = (".queries.json", ".mteb.json")


@dataclass(frozen=True)
class ArmOnDataset:
    """One arm on one collection: what is measured, and everything its scores depend on.

    Attributes:
        arm: its name.
        seed: the training seed; null where it has none.
        dataset: the collection's name.
        main_metric: the metric that counts.
        identity: what is measured.
        hashes: content hashes by name.
        device: in words.
        dtype: what the model computes in; null without a model.
        token_budget: tokens of one forward pass; null without a model, or where sequences are counted.
        caveats: why the result is unfit for decisions.
        training: what a trained arm saw.
        config: as it was resolved.
    """

    arm: str
    seed: int | None
    dataset: str
    main_metric: str
    identity: Identity
    hashes: dict[str, str]
    device: str
    dtype: str | None
    token_budget: int | None
    caveats: list[str]
    training: TrainingBudget | None
    config: dict[str, Any]


class RetrievalResults:
    """The results of one output folder.

    Args:
        output_dir: the experiment's folder.
        given: options and config keys given by hand, for provenance.
    """

    def __init__(self, output_dir: Path, given: Sequence[str] = ()) -> None:
        self.output_dir = output_dir
        self._given = list(given)

    def refuse_strangers(self, experiment: str, base_model: str, prompt: str) -> None:
        """Refuse, before any work is done, a folder whose results these could not stand beside.

        Raises:
            DataError: it holds results of another experiment or base model, or retrieval with another prompt.
        """
        found = find_files(self.output_dir, "*/seed_*/results/*/*.json") if self.output_dir.exists() else []
        for path in found:
            if path.name.endswith(_SIDECARS):
                continue
            result = read_result(path)
            own_prompt = prompt if result.task == TASK and result.task_type is None else result.identity.prompt
            here = {"experiment": experiment, "base_model": base_model, "prompt": own_prompt}
            for name, value in here.items():
                there = getattr(result.identity, name)
                if there not in (None, value):
                    raise DataError(
                        f"{path}: {name} {there!r} there, {value!r} here; one folder holds one experiment and one "
                        "base model, choose another --output-dir"
                    )

    def path(self, measured: ArmOnDataset) -> Path:
        """Where a result lives."""
        return result_path(self.output_dir, measured.arm, measured.seed, TASK, measured.dataset)

    def is_done(self, measured: ArmOnDataset) -> bool:
        """Whether the result on disk is of this very measurement: same identity, content hashes, dtype and caveats.

        Raises:
            DataError: the place is taken by another measurement, or the file is damaged.
        """
        path = self.path(measured)
        if not path.exists():
            return False
        refuse_other_identity(path, measured.identity, measured.dataset)
        there = read_result(path)
        same = (there.provenance.hashes, there.provenance.dtype, there.caveats) == (
            measured.hashes,
            measured.dtype,
            measured.caveats,
        )
        return same and self._run_path(measured).exists()

    def write(self, measured: ArmOnDataset, collection: Collection, outcome: RetrievalOutcome) -> EvalResult:
        """Write what was found; the result file comes last, so that its presence means completeness.

        Raises:
            DataError: the place is taken by another measurement.
        """
        found = Found(
            main_metric=measured.main_metric,
            aggregate=outcome.scores.aggregate,
            qrels=collection.qrels,
            queries=collection.queries,
            run=outcome.run,
            scores=outcome.scores,
            items=outcome.texts,
            seconds=outcome.seconds,
            token_budget=measured.token_budget,
            relevance_level=collection.relevance_level,
        )
        result = result_of(
            found,
            arm=measured.arm,
            seed=measured.seed,
            task=TASK,
            dataset=measured.dataset,
            identity=measured.identity,
            hashes=measured.hashes,
            config=measured.config,
            device=measured.device,
            dtype=measured.dtype,
            given=self._given,
            caveats=measured.caveats,
            training=measured.training,
        )
        return write_found(self.output_dir, result, found)

    def _run_path(self, measured: ArmOnDataset) -> Path:
        return run_path(self.output_dir, measured.arm, measured.seed, TASK, measured.dataset)
