"""Heads in a study: any method that trains a projection over a frozen encoder, on one set of candidate pools.

And the memory that a step of theirs takes.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from unimoe.analysis.arms import FIRST_STAGE, ZERO_SHOT
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes
from unimoe.core.console import Steps, stderr
from unimoe.core.io import hash_file, read_json, write_json
from unimoe.data.catalog import result_name
from unimoe.evaluation.spec import Evaluation, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance
from unimoe.results import Task, TrainingBudget, arm_dir
from unimoe.results.folder import Results
from unimoe.studies.common.family import Family, Sample
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.common.splits import Splits
from unimoe.studies.common.study import Changes, ChosenSetting, Study, in_words
from unimoe.studies.common.table import NO_DIFFERENCE, TESTED, differences, mean_of, of_seeds, pair_up
from unimoe.studies.heads.config import TrainConfig, collection_at_hand, forward_passes
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.eggroll.objectives import diversity, first_documents, pareto_front
from unimoe.studies.heads.methods import Method
from unimoe.studies.heads.model import evaluate_head, main_metric, pool_scores
from unimoe.studies.heads.pools import PoolBatch, PoolSet
from unimoe.studies.heads.trainer import HeadTrainer, load_data, make_method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAINING_FILE = "training.json"
"""Next to an arm's checkpoint: scores on train and dev, time and memory of the training."""


class HeadFamily(Family[TrainConfig, HeadTrainer]):
    """Heads over one frozen encoder."""

    config_type = TrainConfig
    task: ClassVar[Task] = "reranking"

    def __init__(self, study: Study, device: torch.device | None = None, given: Sequence[str] = ()) -> None:
        super().__init__(study, device, given)
        self.metrics = (main_metric(self.base),)
        self._advance: Advance | None = None  # moves the progress bar by the texts embedded

    @cached_property
    def data(self) -> HeadData:
        """The pools with their vectors; a cluster's worker embeds them as the driver does."""
        return load_data(self.base, self._advance)

    def at_hand(self) -> dict[str, Any]:
        """Return the collection of a study that names none."""
        return {"task": collection_at_hand()}

    def load(self) -> None:
        """Embed the texts, and say what is particular about the pools."""
        with Steps(1).step(f"{self.base.task}: vectors and pools", None) as step:
            self._advance = step.advance
            step.outcome = self.data.sizes
        for note in self.data.notes:
            stderr.print(f"note: {note}", soft_wrap=True)
        for caveat in self.study.caveats:
            stderr.print(f"caveat: {caveat}", soft_wrap=True)

    def sample(self, config: TrainConfig, arm: str) -> Sample:
        """Return a training without votes on its labels, which cost no step anything."""
        return super().sample(config.model_copy(update={"soft_labels": None}), arm)

    @property
    def datasets(self) -> list[str]:
        """The collection's name."""
        return [result_name(self.base.task)]

    @property
    def collection(self) -> str:
        """The collection's name."""
        return self.datasets[0]

    def configured(self, base: TrainConfig, changes: Changes) -> TrainConfig:
        """Return a configuration with changes; ``handoff`` may be a fraction of the steps.

        Soft labels have BM25 and the head's own encoder as voters unless the changes name others.
        """
        changes = dict(changes)
        if isinstance(handoff := changes.get("handoff"), float):
            changes["handoff"] = max(1, min(base.num_steps - 1, round(handoff * base.num_steps)))
        if isinstance(labels := changes.get("soft_labels"), dict):
            changes["soft_labels"] = {"voters": ["bm25", base.encoder.base], **labels}
            base = base.model_copy(update={"soft_labels": None})  # an arm has its own votes
        found = super().configured(base, changes)
        found.refuse_unread(changes, f"arm of method {found.method}")
        return found

    def trains(self, config: TrainConfig) -> bool:
        """Return whether the method is not the encoder alone."""
        return config.method != ZERO_SHOT

    def training(self, config: TrainConfig, arm: str) -> HeadTrainer:
        """Return a training on the study's pools."""
        return HeadTrainer(config, self.data, arm)

    def dev(self, training: HeadTrainer) -> dict[str, float]:
        """Return the main metric on dev, and the diversity of the first documents."""
        facts = training.fit()
        found = {"val": facts["val"], "start": facts["start"], "best": facts["best_step"], "seconds": facts["seconds"]}
        return {**found, "diversity": mean_diversity(training.head()[0], self.data.dev, training.config)}

    def choose(self, configs: Sequence[TrainConfig], found: Sequence[dict[str, float]]) -> int:
        """Return the best setting by relevance.

        Where diversity is an objective, it is the most diverse on the front of both that gives up little relevance; of
        equals the first.
        """
        if not all("diversity" in config.objectives for config in configs):
            return super().choose(configs, found)
        points = [(one["val"], one["diversity"]) for one in found]
        least = max(relevance for relevance, _ in points) - self.study.give_up
        eligible = [place for place in pareto_front(points) if points[place][0] >= least]
        return max(eligible, key=lambda place: (points[place][1], -place))

    def test(self, training: HeadTrainer, arm: str, advance: Advance) -> float:
        """Score the test pools, and write down what the training cost."""
        metric, path = self.metrics[0], arm_dir(self.root, arm, training.seed) / TRAINING_FILE
        store = ResultStore(self.root, self.given)
        result = store.evaluated(self._spec(training), lambda: self._outcome(training))
        if not path.exists() or read_json(path, dict[str, Any])["fingerprint"] != training.state.fingerprint:
            facts, (weight, _) = training.fit(), training.head()
            train = evaluate_head(weight.to(training.device), training.train_pools, training.config).aggregate[metric]
            costs = {"train": train, "test": result.aggregate[metric], "peak_bytes": _peak_bytes(training)}
            write_json(path, {"fingerprint": training.state.fingerprint, **costs, **facts})
        return result.aggregate[metric]

    def test_to_dev(self, training: HeadTrainer) -> float:
        """Return test queries per dev query."""
        return len(self.data.test) / max(1, len(self.data.dev))

    def is_tested(self, training: HeadTrainer, arm: str, seed: int | None) -> bool:
        """Return whether the cost is written, which comes last."""
        return (arm_dir(self.root, arm, seed) / TRAINING_FILE).exists()

    def untrained(self) -> dict[str, Callable[[TrainConfig], None]]:
        """Return the pools in the order of BM25; the encoder's own order is that of zero-shot."""
        return {FIRST_STAGE: self._write_first_stage} if self.base.pools.source == "bm25" else {}

    def columns(self, results: Results, arm: str, key: str, config: TrainConfig | None) -> dict[str, Cell]:
        """Return scores on the training queries, and what a training costs."""
        if config is None:
            return {}
        seeds = results.seeds(arm, key) or (None,)
        records = [read_json(arm_dir(self.root, arm, seed) / TRAINING_FILE, dict[str, Any]) for seed in seeds]
        train = [100.0 * record["train"] for record in records]
        test = 100.0 * float(np.mean([record["test"] for record in records]))
        found = {
            "train": Cell.mean(train),
            "gap": Cell.signed(float(np.mean(train)) - test),
            "passes": Cell.count(forward_passes(config)),
        }
        peaks = [record["peak_bytes"] for record in records if record["peak_bytes"] is not None]
        if peaks:
            seconds = float(np.median([record["seconds"] for record in records]))
            found |= {"s": Cell.number(seconds, ".1f"), "peak MB": Cell.number(max(peaks) / 1e6, ".1f")}
            found["weights kB"] = Cell.count(round(records[0]["weight_bytes"] / 1e3))
        return found

    def notes(self) -> Sequence[str]:
        """Say what pairs, what costs mean, and what is particular about the pools."""
        return (
            "Seeds pair where two methods share the order of the training queries and the first weights, as all but "
            "seed_recipe do. train: on the training queries; gap: train minus test.",
            "passes: forward passes of a training, one for each head that scores a step's batch. A step of evolution "
            "takes one for each perturbation or individual, a step of gradients one and its backward pass: equal steps "
            "are not equal work.",
            "s: seconds of the training's steps, median over seeds. peak MB: memory of torch within a step beside "
            "weights and data. weights kB: memory of the weights between steps, without an optimizer's moments.",
            *self.data.notes,
        )

    def more_tables(self, results: Results | None, chosen: Mapping[str, ChosenSetting]) -> Sequence[Table]:
        """Return the front where diversity is an objective, and scores by whether training knew the documents."""
        tables = list[Table]()
        if _tried_for_diversity(chosen):
            from unimoe.studies.heads.figures import front_table  # as matplotlib takes seconds to import

            tables.append(front_table(chosen, self.base.ndcg_k, self.datasets[0]))
        if results is not None:
            own = of_seeds(results, self.study.seeds)
            tables.append(overlap_table(self, own, self.data.splits, [*chosen]))
        return tables

    def figures(self, chosen: Mapping[str, ChosenSetting]) -> Mapping[str, Figure]:
        """Return the heat map of an arm with a grid over its four keys, and the front of relevance and diversity."""
        from unimoe.studies.heads.figures import front_figure, grid_scores, heat_map

        label = f"nDCG@{self.base.ndcg_k} on dev x 100"
        scores = {arm: grid_scores(self.study, arm, own) for arm, own in chosen.items()}
        found = {f"grid-{arm}": heat_map(own, label) for arm, own in scores.items() if own}
        return found | ({"pareto": front_figure(chosen)} if _tried_for_diversity(chosen) else {})

    def _pools(self) -> RerankingPools:
        return RerankingPools(
            name=self.base.task,
            collection=self.data.splits.test,
            candidates=self.data.candidates,
            metric=self.metrics[0],
            first_stage=self.data.first_stage,
            depth=self.base.pools.depth,
        )

    def _write_first_stage(self, config: TrainConfig) -> None:
        pools, study = self._pools(), self.study
        spec = pools.spec(FIRST_STAGE, None, experiment=study.name, config=study.model_dump(), caveats=study.caveats)
        ResultStore(self.root, self.given).evaluated(spec, lambda: pools.outcome(self.data.candidates))

    def _spec(self, training: HeadTrainer) -> Evaluation:
        config, data, untrained = training.config, self.data, training.seed is None
        steps = int(training.fit()["steps"])
        seen = steps * min(config.batch_size, len(data.train))
        budget = TrainingBudget(steps=steps, ranking_examples=seen, embedding_examples=0, tokens=0)
        # Every epoch's order depends on the seed alone, and so do the first weights of one kind and size.
        draws = {key: getattr(config, key) for key in ("init", "head_output_size", "batch_size", "num_steps")}
        return self._pools().spec(
            training.arm,
            training.seed,
            experiment=self.study.name,
            config={"study": self.study.model_dump(), "training": config.model_dump(), "paired_seeds": in_words(draws)},
            encoder=data.encoder,
            prompt=data.prompt,
            trained_hash=None if untrained else hash_file(training.head_path),
            training=None if untrained else budget,
            caveats=self.study.caveats,
        )

    def _outcome(self, training: HeadTrainer) -> Outcome:
        test, start = self.data.test, time.perf_counter()
        run = test.run(pool_scores(training.head()[0], test, training.config))
        seconds, device = time.perf_counter() - start, describe_device(training.device)
        return self._pools().outcome(run, items=sum(map(len, run.values())), seconds=seconds, device=device)


def _tried_for_diversity(chosen: Mapping[str, ChosenSetting]) -> bool:
    return any("diversity" in own.config.objectives for own in chosen.values() if own.tried)


def mean_diversity(weight: Tensor, pools: PoolSet, config: TrainConfig) -> float:
    """Return the mean diversity of each query's first documents, in a head's order."""
    scores = pool_scores(weight, pools, config).masked_fill(~pools.valid, -torch.inf).unsqueeze(2)
    top = first_documents(scores, pools.valid, config.ndcg_k)
    return float(diversity(top, pools.documents[pools.rows]).mean())


def _peak_bytes(training: HeadTrainer) -> int | None:
    """Measure the peak of one step, without weights and data; return None where nothing is trained."""
    if not training.steps:
        return None
    weight, batch = training.initial(), training.train_pools.batch(training.batch(0))
    return step_peak_bytes(make_method(training.config, weight, training.train_pools), weight, batch)


def known_queries(splits: Splits) -> list[str]:
    """Return the test queries with a relevant document that is relevant to a training query too, sorted."""
    known = splits.train.relevant_documents()
    return sorted(
        query_id
        for query_id, grades in splits.test.qrels.items()
        if any(grade > 0 and document_id in known for document_id, grade in grades.items())
    )


def overlap_table(family: HeadFamily, results: Results, splits: Splits, names: Sequence[str]) -> Table:
    """Return each arm's scores on test queries with and without a relevant document known from training.

    They show whether a head has learnt the task or the documents. A head that pulls the relevant documents of the
    training queries to where queries lie gains on every test query that looks for one of them, and may lose on all
    others. A mean over both says nothing of new documents.
    """
    (key,), metric, seeds = family.keys, family.metrics[0], family.study.seeds
    scores = {name: family.scores(results, name, key, seeds, metric) for name in names}
    known = np.isin(sorted(splits.test.qrels), known_queries(splits))
    parts = {part: places for part, places in {"known": known, "new": ~known}.items() if places.any()}
    others = [name for name in names if name != ZERO_SHOT] if ZERO_SHOT in names else []
    found = differences(
        {
            (name, part): (
                scores[name][:, places],
                scores[ZERO_SHOT][:, places],
                pair_up(results, key, name, ZERO_SHOT),
            )
            for part, places in parts.items()
            for name in others
        }
    )

    def cells(name: str, part: str) -> tuple[Cell, ...]:
        mean = mean_of(scores[name][:, parts[part]]) if part in parts else Cell(ABSENT)
        difference = found.get((name, part), NO_DIFFERENCE)
        return (mean, *difference) if others else (mean,)

    against = ("vs zero-shot", "interval", "p") if others else ()
    return Table(
        name="documents",
        caption=f"{metric} on {family.datasets[0]} by whether training knew a document that the test query looks for.",
        columns=("arm", "known", *against, "new", *(f"{column} " for column in against)),
        groups=(RowGroup("", tuple((Cell(n), *cells(n, "known"), *cells(n, "new")) for n in names)),),
        notes=(
            f"known: the {known.sum():,} test queries with a relevant document that is relevant to a training query "
            f"too; new: the other {(~known).sum():,}. Scores x 100, mean over seeds ± SD.",
            *([f"{TESTED}Zero-shot has no seeds."] if others else []),
            *caveat_notes(results),
        ),
        title="Known and new documents",
    )


def step_peak_bytes(method: Method, weight: Tensor, batch: PoolBatch) -> int:
    """Return the most that torch holds at any moment of a step beyond what it held before.

    The second step of a fresh method is measured; its state is changed. What the first step leaves (work buffers, an
    optimizer's moments) exists when the second begins, and is added. Memory that NumPy takes is not seen.
    """
    gc.collect()  # what is freed during a step would hide what the step takes
    with _profiled(weight.device) as first:
        weight, _ = method.step(weight, batch, 0)
    kept, _ = _held(first)
    with _profiled(weight.device) as second:
        method.step(weight, batch, 1)
    return kept + _held(second)[1]


def _profiled(device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler warns about its own internals
        return profile(activities=activities, profile_memory=True, acc_events=True)


def _held(profiled: profile) -> tuple[int, int]:
    """Return the bytes held at the end and the most held at any moment, both beyond the beginning."""
    recorded: Any = profiled.profiler
    events = recorded.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return max(0, held), most
