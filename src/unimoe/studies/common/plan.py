"""What a study will take: steps of a training of each kind and an evaluation on dev are timed, and multiplied.

Nothing is written, and no corpus is embedded: vectors that are not kept are made up, and their time is added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from unimoe.core.console import in_hours, stderr, stdout
from unimoe.core.io import hash_json
from unimoe.core.planning import SECONDS, Job
from unimoe.data.collection import Document
from unimoe.evaluation.plan import embed_job
from unimoe.models.embedder import Embedder, TextKind
from unimoe.retrieval.embeddings import Embedded, cached_embeddings, is_kept, kept_folder
from unimoe.studies.common.family import Family
from unimoe.studies.common.study import Setting

_ALL_SECONDS = 12.0
"""For how long the steps of all kinds of trainings are timed together; each has ``SECONDS`` at most."""


class StandIns:
    """Vectors for a plan: those that are kept, else hashed words of each text, beside the work that this leaves out."""

    def __init__(self) -> None:
        self.left_out: list[Job[Any]] = []
        self._made: dict[Path, Embedded] = {}

    def __call__(
        self,
        embedder: Embedder,
        texts: Mapping[str, str],
        kind: TextKind,
        *,
        max_length: int | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> Embedded:
        """Return vectors as ``cached_embeddings`` does, in the user's cache or made up."""
        corpus = {key: Document("", text) for key, text in texts.items()}
        if is_kept(embedder, corpus, kind=kind, max_length=max_length):
            return cached_embeddings(embedder, texts, kind, max_length=max_length, advance=advance)
        place = kept_folder(embedder, corpus, kind, max_length=max_length)
        if place not in self._made:
            self._made[place] = self._make_up(embedder, texts, kind)
        return self._made[place]

    def _make_up(self, embedder: Embedder, texts: Mapping[str, str], kind: TextKind) -> Embedded:
        ids = sorted(texts)
        self.left_out.append(embed_job(embedder, [texts[key] for key in ids], len(ids)))
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
    """Print what a study takes whose arms have these settings; it may end at the first of some looks of its gates."""
    stderr.print(f"{family.study.name}: a few steps of each arm are timed", soft_wrap=True)
    stand_ins = StandIns()
    family.load_sample(stand_ins)
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
    embedded = sum(job.size * job.seconds_each(limit) for job in stand_ins.left_out)
    if embedded:
        texts = sum(job.size for job in stand_ins.left_out)
        stdout.print(f"{texts:,.0f} texts to embed, once: {embedded:,.0f} s", soft_wrap=True)
    total, fewest = total + embedded, fewest + embedded
    early = f"{in_hours(fewest)} to " if in_hours(fewest) != in_hours(total) else ""
    stdout.print(f"In all about {early}{in_hours(total)} in this process", soft_wrap=True)


def _timed(family: Family[Any, Any], arm: str, config: Any, limit: float) -> Expected:
    """Return the seconds of a training and its test, by some of its steps and an evaluation on a part of dev."""
    with TemporaryDirectory(prefix="unimoe-") as name:
        begin = time.perf_counter()
        sample = family.sample(config.model_copy(update={"output_dir": name}), arm)
        training = sample.training
        training.check()
        training.prepare()
        made = time.perf_counter() - begin
        step = sample.step * training.steps_to_time().seconds_each(limit) if training.steps else 0.0
        job = Job("dev", sample.dev, [training], lambda one: one.score_on_dev(), weigh=lambda _: 1.0)
        dev = sample.dev * job.seconds_first_and_again(limit)[1]  # the first time, states are computed for all
        return Expected(made + sample.steps * step + sample.evaluations * dev, sample.test * dev)
