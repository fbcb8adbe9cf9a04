"""Judgments by a model: which one grades, and how its scores become grades."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from unimoe.config.labels import LabelConfig
from unimoe.config.served import APIS
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, UsageError, some_ids
from unimoe.core.io import hash_json, sole_use
from unimoe.core.trec import Qrels, Run, ranked
from unimoe.data.collection import Collection
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.system import System, arm_name, checkpoint_loader, named_system, trained_system
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.embedder import Advance
from unimoe.models.kinds import CROSS_ENCODER, REASONING, WRITING
from unimoe.models.loader import weights_hash
from unimoe.models.model import Model
from unimoe.models.named import OPTION, ModelSettings, default_experiment, is_checkpoint, is_served
from unimoe.models.reranker import Candidates, Reranker, ShardStore, rerank_run
from unimoe.models.rerankers.grading import HIGHEST, UNGRADED, chat_model
from unimoe.models.served.client import usage_text

_AT_ONCE = 32  # shards under way together on a cluster


class Graded(NamedTuple):
    """The grades of pairs, the names of those that have none, and what a server was paid."""

    qrels: Qrels
    ungraded: list[str]
    usage: Mapping[str, float]


@dataclass(frozen=True)
class Grader:
    """The model that a config names, loaded when it is needed.

    Attributes:
        thresholds: make grades of P(relevant); None where the model gives grades itself.
        identity: the content hash of everything that the grades depend on besides the texts and ``thresholds``.
    """

    system: System
    model: Model
    engine: Engine
    thresholds: list[float] | None
    shard_queries: int
    identity: str

    @property
    def highest(self) -> int:
        """The best grade that a pair can get; 0 where the model orders lists, which differ in length."""
        if self.model.reads_order:
            return 0
        return HIGHEST if self.thresholds is None else len(self.thresholds)

    def caveats_on(self, queries: Mapping[str, str]) -> list[str]:
        """Return the caveats of the grades of queries, id to text, such as that the model was trained on them."""
        return [*self.model.caveats, *self.model.seen.caveats(queries)]

    def say_caveats(self, queries: Mapping[str, str]) -> None:
        """Print the same on stderr."""
        for line in self.caveats_on(queries):
            stderr.print(f"caveat: {self.system.name}: {line}", style="yellow", soft_wrap=True)

    def grade(
        self, collection: Collection, candidates: Candidates, shards: Path, advance: Advance, *, zeros: bool = False
    ) -> Graded:
        """Grade the candidates of each query; a killed run does not repeat what the folder of shards has.

        What to know about the grades, and what they cost, is said on stderr. A DataError tells that all grades are 0,
        unless ``zeros`` may be all there is.
        """
        reranker = self.engine.model(self.system, f"label by {self.system.name}", self.identity).reranker()
        queries, scores, usage = sorted(candidates), Run(), Counter[str]()
        store = ShardStore(shards, self.identity)

        def grade(begin: int) -> None:
            part = {key: collection.queries[key] for key in queries[begin : begin + self.shard_queries]}
            asked = replace(collection, queries=part)
            found, cost = rerank_run(reranker, asked, candidates, store=store, advance=advance)
            scores.update(found)
            usage.update(cost.usage)

        self.engine.run((partial(grade, at) for at in range(0, len(queries), self.shard_queries)), _AT_ONCE)
        none: list[str] = []
        if self.model.reads_order:
            qrels = grades_of_ranks(scores)
        elif self.thresholds is None:
            none = [f"{query}/{key}" for query, row in scores.items() for key, one in row.items() if one == UNGRADED]
            qrels = {q: {key: int(one) for key, one in row.items() if one != UNGRADED} for q, row in scores.items()}
        else:
            graded = _probabilities(reranker, self.system.name, scores)
            qrels = grades_of(graded, self.thresholds, zeros=zeros)
        lacking = [f"pairs without a grade: {some_ids(none)}"] if none else []
        for note in [*reranker.notes(scores, usage), *([usage_text(usage)] if usage else []), *lacking]:
            stderr.print(note, style="dim", soft_wrap=True)
        return Graded(qrels, none, usage)


def load_grader(config: LabelConfig, device: torch.device, engine: Engine) -> Grader:
    """Return the model that a config names; one that does not rerank is a UsageError."""
    name, served, adapter = config.reranker, config.served, None
    thresholds: list[float] | None = list(config.thresholds)
    if is_checkpoint(name):
        checkpoint = read_checkpoint(Path(name))
        experiment = checkpoint.experiment
        system = trained_system(experiment, checkpoint_loader(experiment, checkpoint, device), Path(name))
        adapter = weights_hash(checkpoint, experiment.evaluation)
    else:
        experiment = default_experiment(name)
        model = experiment.model.model_copy(update={"max_length": config.max_length})
        model.model_fields_set.discard("max_length")  # that of pairs: an encoder, which grades none, has its own
        served = served if is_served(name) else None
        if served:
            engine.refuse_server()
            model = model.model_copy(update={"base": served.model})  # of the tokenizer, where the prompt is ours
        given = {"model": model, "prompt": config.prompt or experiment.prompt, "served": served}
        experiment = experiment.model_copy(update={**given, "listwise": config.listwise})
        kind = name.partition(":")[0]
        if served and APIS[served.api].chat and kind not in WRITING:
            chat, thresholds = chat_model(name, served), None
            system = System(arm_name(str(chat.name)), experiment, chat, chat.tasks)
        else:
            # Cross-encoders are small, and their grades stay the same on every machine.
            dtype = torch.float32 if name.startswith(f"{CROSS_ENCODER}:") else engine.dtype(device, model.dtype)
            system = named_system(name, ModelSettings(experiment, device, dtype))
            thresholds = None if kind == REASONING and config.listwise.answer == "grade" else thresholds
    if system.model is None or "reranking" not in system.tasks:
        raise UsageError(f"{OPTION} {name}: embeds and does not rerank; name a reranker")
    own = system.model
    known = [own.identity, own.prompt, f"torch.{own.dtype}", adapter]
    # Where nothing tells the model from every other it is another one each time, so that no grade is used again.
    identity = hash_json(known if own.reusable else [*known, secrets.token_hex()])
    return Grader(system, own, engine, thresholds, config.shard_queries, identity)


@contextmanager
def kept_shards(output: Path) -> Iterator[Path]:
    """Yield the folder next to an output that keeps finished shards, and remove it if the block raises no error.

    Raises:
        UsageError: another process works on this output.
    """
    folder = output.with_name(f".{output.name}.shards")
    with sole_use(folder):
        yield folder
        for file in folder.glob("*.json"):
            file.unlink()


def _probabilities(reranker: Reranker, name: str, found: Run) -> Run:
    """Return P(relevant) of scores, which are logits where the reranker says so, and else must be probabilities."""
    if reranker.logits:
        return {
            query_id: dict(zip(scores, torch.tensor([*scores.values()]).float().sigmoid().tolist(), strict=True))
            for query_id, scores in found.items()
        }
    for query_id, scores in found.items():
        for document_id, score in scores.items():
            if not 0 <= score <= 1:
                raise DataError(
                    f"query {query_id!r}, document {document_id!r}: {name} returned {score:g}; "
                    "return P(relevant), from 0 to 1"
                )
    return found


def grades_of_ranks(scores: Run) -> Qrels:
    """Grade each document by the number of those that are ranked after it: 0 for the last one of a list."""
    return {
        query: {key: after for after, key in enumerate(reversed(ranked(found)))}
        for query, found in scores.items()
        if found
    }


def grades_of(scores: Run, thresholds: Sequence[float], *, zeros: bool = False) -> Qrels:
    """Grade each pair by the number of thresholds that it reaches; refuse zeros alone, unless ``zeros``."""
    qrels = {
        query_id: {key: sum(value >= threshold for threshold in thresholds) for key, value in found.items()}
        for query_id, found in scores.items()
        if found
    }
    if not zeros and not any(grade for grades in qrels.values() for grade in grades.values()):
        best = max((value for found in scores.values() for value in found.values()), default=0.0)
        raise DataError(
            f"no pair reaches the threshold {thresholds[0]:g}, the highest P(yes) is {best:.3f}; lower thresholds, or "
            "take another reranker"
        )
    return qrels
