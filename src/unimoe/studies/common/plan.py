"""What a study will take: steps of a training of each kind and an evaluation on dev are timed, and multiplied.

Nothing is written, and no corpus is embedded: vectors that are not kept are made up, and their time is added.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from unimoe.core.console import in_hours, stderr, stdout
from unimoe.core.io import hash_json
from unimoe.core.planning import SECONDS, Job
from unimoe.evaluation.plan import embed_job
from unimoe.models.device import warn_of_other_work
from unimoe.models.embedder import Embedder, TextKind
from unimoe.retrieval.embeddings import Embedded, made_up
from unimoe.studies.common.family import Family
from unimoe.studies.common.study import Setting

_ALL_SECONDS = 6.0
"""For how long the steps of all kinds of trainings are timed together; each has ``SECONDS`` at most."""


class StandIns:
    """Vectors for a plan, of the hashed words of each text, and the work that this leaves out."""

    def __init__(self) -> None:
        self.left_out: dict[str, Job[Any]] = {}

    def __call__(
        self, embedder: Embedder, texts: Mapping[str, str], kind: TextKind, max_length: int | None
    ) -> Embedded:
        """Make up the vectors of texts by id."""
        ids = sorted(texts)
        same = hash_json([embedder.base_identity, kind, max_length, texts])  # several trainings read them
        job = embed_job(embedder, [texts[key] for key in ids], len(ids))
        encode = partial(embedder.encode, kind=kind, max_length=max_length)
        self.left_out.setdefault(same, replace(job, do=encode))
        width = embedder.dimension or embedder.encode([texts[ids[0]]], kind=kind).shape[1]
        vectors = np.zeros((len(ids), width), dtype=np.float32)
        for row, key in enumerate(ids):
            words = [crc32(word.encode()) % width for word in texts[key].lower().split()] or [0]
            np.add.at(vectors[row], words, 1.0)
        return Embedded(ids, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class Expected(NamedTuple):
    """Seconds of a training with its evaluations on dev, and of its test."""

    training: float
    test: float


def plan_study(
    family: Family[Any, Any], tuned: Mapping[str, Sequence[tuple[Setting, Any]]], looks: Sequence[Sequence[int]]
) -> None:
    """Print what a study of arms with these settings takes; it may end at the first of some looks of its gates."""
    stderr.print(f"{family.study.name}: a few steps of each arm are timed", soft_wrap=True)
    stand_ins = StandIns()
    with made_up(stand_ins):
        family.load()
        _print_plan(family, tuned, looks, stand_ins)


def _print_plan(
    family: Family[Any, Any],
    tuned: Mapping[str, Sequence[tuple[Setting, Any]]],
    looks: Sequence[Sequence[int]],
    stand_ins: StandIns,
) -> None:
    seeds, found = family.study.seeds, dict[str, Expected]()
    known = {arm: [hash_json(family.decides_time(one)) for _, one in settings] for arm, settings in tuned.items()}
    limit = min(SECONDS, _ALL_SECONDS / len({key for keys in known.values() for key in keys}))
    total = fewest = 0.0
    for arm, settings in tuned.items():
        for key, (_, config) in zip(known[arm], settings, strict=True):
            if key not in found:
                found[key] = _timed(family, arm, config, limit)
        expected = [found[key] for key in known[arm]]
        training, test = (sum(parts) / len(expected) for parts in zip(*expected, strict=True))  # any may be chosen
        tunings = len(settings) if len(settings) > 1 or not seeds else 0
        reported = len(seeds) if family.trains(settings[0][1]) else min(1, len(seeds))
        total += tunings * training + reported * (training + test)
        fewest += tunings * training + min(reported, len(looks[0]) if looks else 0) * (training + test)
        stdout.print(
            f"{arm}: {tunings} trainings on dev and {reported} that are tested, {training:,.1f} s each, and "
            f"{test:,.1f} s a test",
            soft_wrap=True,
        )
    embedded = sum(job.size * job.seconds_each(limit) for job in stand_ins.left_out.values())
    if embedded:
        texts = sum(job.size for job in stand_ins.left_out.values())
        stdout.print(f"{texts:,.0f} texts to embed, once: {embedded:,.0f} s", soft_wrap=True)
    total, fewest = total + embedded, fewest + embedded
    early = f"{in_hours(fewest)} to " if in_hours(fewest) != in_hours(total) else ""
    stdout.print(f"In all about {early}{in_hours(total)} in this process", soft_wrap=True)
    warn_of_other_work(family.device.type)


def _timed(family: Family[Any, Any], arm: str, config: Any, limit: float) -> Expected:
    """Return the seconds of a training and its test, by some of its steps and an evaluation on a part of dev."""
    with TemporaryDirectory(prefix="unimoe-") as name:
        begin = time.perf_counter()
        sample = family.sample(config.model_copy(update={"output_dir": name}), arm)
        training = sample.training
        training.check()
        training.prepare()
        if training.steps:
            training.begin_step(0)  # draws an epoch, and mines its negatives
        made = time.perf_counter() - begin
        step = sample.step * training.steps_to_time().seconds_each(limit) if training.steps else 0.0
        job = Job("dev", sample.dev, [training], lambda one: one.score_on_dev(), weigh=lambda _: 1.0)
        dev = sample.dev * job.seconds_first_and_again(limit)[1]  # the first time, states are computed for all
        return Expected(made + sample.steps * step + sample.evaluations * dev, sample.test * dev)
