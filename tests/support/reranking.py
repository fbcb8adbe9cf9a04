"""Collections to rerank, of invented text, and what a command writes about them without its times."""

from __future__ import annotations

import random
import re
from pathlib import Path

from unimoe.config import Experiment
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.sources.beir_layout import write_parts

_TIMES = re.compile(r'"(created|wall_time_s|items_per_s|checksum)": ("[^"]*"|[\d.e-]+|null)')
"""What may differ between the result files of two runs of one measurement: times, and checksums of all the rest."""

_SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "so", "ti")
_WORDS = [first + second for first in _SYLLABLES for second in _SYLLABLES]


def invented(
    documents: int = 12, queries: int = 4, *, words: int = 20, unjudged: int = 0, name: str = "invented"
) -> Collection:
    """A collection whose documents all match every query a little; equal arguments, equal content.

    Args:
        documents: how many.
        queries: judged ones; each has one relevant document, and another of grade 2.
        words: of each document, give or take a few.
        unjudged: queries without judgments.
        name: the collection's.
    """
    rng = random.Random(0)
    ids = [f"d{number:02d}" for number in range(documents)]
    texts = [Document("", " ".join(rng.choices(_WORDS, k=words + rng.randrange(5)))) for _ in ids]
    asked = [(f"q{number}", " ".join(rng.sample(_WORDS, 3))) for number in range(queries + unjudged)]
    qrels = {query_id: dict(zip(rng.sample(ids, 2), (1, 2), strict=True)) for query_id, _ in asked[:queries]}
    return assemble(name, "test", zip(ids, texts, strict=True), asked, qrels)


def write_invented(folder: Path, collection: Collection) -> Path:
    """A collection as a folder in BEIR layout."""
    folder.mkdir(parents=True)
    write_parts(folder, collection.corpus, collection.queries, {collection.split: collection.qrels})
    return folder


def with_evaluation(experiment: Experiment, **settings: object) -> Experiment:
    """An experiment with other evaluation settings."""
    return experiment.model_copy(update={"evaluation": experiment.evaluation.model_copy(update=settings)})


def written(output_dir: Path) -> dict[str, str]:
    """Everything in an output folder to the last byte, except times in results; without locks and MTEB's own files."""
    files = (
        path for path in output_dir.rglob("*") if path.is_file() and not path.name.endswith((".lock", ".mteb.json"))
    )
    return {str(path.relative_to(output_dir)): _TIMES.sub(r'"\1": 0', path.read_text("utf-8")) for path in files}
