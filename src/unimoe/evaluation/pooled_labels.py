"""Judgments of what runs have found, by a model: a TREC qrels file, and next to it what made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import Field

import unimoe
from unimoe.config.labels import LabelConfig
from unimoe.core.console import Steps, in_hours, stderr, stdout
from unimoe.core.errors import DataError, MissingPartError, UsageError, did_you_mean, some_ids
from unimoe.core.io import hash_file, hash_json, read_json, write_json
from unimoe.core.planning import spread
from unimoe.core.trec import Qrels, Run, write_qrels
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, sidecar_path
from unimoe.evaluation.datasets import Dataset, collections_of
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.labels import Graded, Grader, kept_shards, load_grader
from unimoe.evaluation.plan import rerank_job
from unimoe.formats.qrels import read_qrels
from unimoe.formats.runs import read_run
from unimoe.models.device import warn_of_other_work
from unimoe.models.reranker import cut_pairs, pair_texts
from unimoe.models.rerankers.grading import HIGHEST
from unimoe.results.runs.sources import LabelsMade, labels_path, refuse_empty
from unimoe.retrieval.first_stage import cut_run, fitting_candidates


class _Made(LabelsMade):
    """What is read of ``FILE.labels.json``, which says what made a qrels file; without runs there is none yet."""

    fingerprint: str
    runs: dict[str, int] = Field(default_factory=dict)
    usage: dict[str, float] = Field(default_factory=dict)


def label_pool(
    config: LabelConfig, runs: Sequence[Path], output: Path, device: torch.device, engine: Engine, *, plan: bool = False
) -> None:
    """Pool the first documents of runs, let a model grade them, write qrels, and print how many have each grade.

    Pairs that the file has already, by the same model, are not graded again. ``plan`` only counts.

    Raises:
        MissingPartError: some pairs have no grade; the others are written.
    """
    if output.suffix == ".gz" or output.is_dir():
        raise UsageError(f"--output {output}: name a file without .gz at its end; judgments are written as plain text")
    collection = _collection(config.collection)
    pool = pooled(collection, runs, config.depth)
    grader = load_grader(config, device, engine)
    if grader.model.reads_order:
        raise UsageError(
            f"--model {config.reranker}: orders lists, which says nothing of one document; give a model that scores "
            "pairs, or label data to train on, without --runs"
        )
    texts = [collection.corpus_hash, collection.queries_hash]
    made = _made_before(output, hash_json([grader.identity, grader.thresholds, *texts]))
    judged = read_qrels(output) if made.runs and output.stat().st_size else {}  # else no pair has got a grade
    graded = {query: {key: int(grade) for key, grade in row.items()} for query, row in judged.items()}
    rest = {query: {key: 0.0 for key in row if key not in graded.get(query, {})} for query, row in pool.items()}
    left = {query: row for query, row in rest.items() if row}
    pairs, every = sum(map(len, left.values())), sum(map(len, pool.values()))
    kept = f", {every - pairs:,} are graded already" if every > pairs else ""
    asked = replace(collection, queries={key: collection.queries[key] for key in left})
    cost = _cost(grader, asked, left, device if plan else None)
    (stdout if plan else stderr).print(f"{every:,} pairs of {len(pool):,} queries{kept}{cost}", soft_wrap=True)
    if plan:
        return
    new = Graded({}, [], {})
    with Steps(1).step(f"{config.reranker}: pairs graded", pairs) as step, kept_shards(output) as shards:
        step.outcome = "done" if pairs else "already done"
        if pairs:
            new = grader.grade(collection, left, shards, step.advance, zeros=True)
            merged = {key: graded.get(key, {}) | new.qrels.get(key, {}) for key in sorted({*graded, *new.qrels})}
            graded = {key: dict(sorted(row.items())) for key, row in merged.items() if row}
            sources = {f"{path.name}@{hash_file(path)}": config.depth for path in runs}
            facts = {"collection": f"{collection.name}@{collection.split}", "runs": made.runs | sources}
            caveats = grader.caveats_on({key: collection.queries[key] for key in graded})
            _write(output, graded, grader, made, new, facts | {"caveats": caveats})
    for grade, count in reversed(_counts(graded, grader.highest).items()):
        stdout.print(f"{f'grade {grade}':<16}{count:,} pairs")
    stdout.print(f"{'queries':<16}{len(graded):,}\n{'qrels':<16}{output}", soft_wrap=True)
    grader.say_caveats({key: collection.queries[key] for key in graded})
    if new.ungraded:
        lacking = f"without a grade for {some_ids(new.ungraded)}, which {output} does not judge"
        raise MissingPartError(f"done, {lacking}; run again to ask about them once more")


def _collection(name: str) -> Collection:
    """Return the one collection that a name means, with the rule about queries' own documents."""
    (first, split), *others = collections_of(name)
    if others:
        raise UsageError(f"--dataset {name}: is {len(others) + 1} collections; label the runs of one at a time")
    collection = Dataset(first, split).with_rule(load_collection(first, split))
    return replace(collection, name=first)  # as a command takes it


def pooled(collection: Collection, runs: Sequence[Path], depth: int) -> Run:
    """Return the union of the first ``depth`` documents of each query in runs; queries without judgments count too.

    A DataError names the file and the query or document that the collection lacks.
    """
    pool: dict[str, set[str]] = {}
    for path in runs:
        run = read_run(path)
        refuse_empty(str(path), run)
        lacking = [query for query in run if not collection.queries.get(query, "").strip()]
        if lacking:
            more = f" nor have {len(lacking) - 1:,} more" if len(lacking) > 1 else ""
            raise DataError(
                f"{path}: query {lacking[0]!r} has no text in {collection.name}, split {collection.split}{more}"
                f"{did_you_mean(lacking[0], collection.queries)}; name the collection of the run and its split, as in "
                "--dataset NAME@dev, or add the text to the queries"
            )
        fitting, _ = fitting_candidates(run, collection, depth, str(path))
        for query, scores in cut_run(fitting, depth).items():
            pool.setdefault(query, set()).update(scores)
    return {query: dict.fromkeys(sorted(pool[query]), 0.0) for query in sorted(pool) if pool[query]}


def _made_before(output: Path, fingerprint: str) -> _Made:
    """Return what made the output, where the same model graded the same texts; refuse any other file."""
    if not output.exists():
        return _Made(fingerprint=fingerprint)
    made = read_json(labels_path(output), _Made) if labels_path(output).is_file() else _Made(fingerprint="")
    if made.fingerprint != fingerprint:
        what = f"judgments by {made.model} or of other texts" if made.model else "judgments of somebody else"
        raise UsageError(f"{output}: holds {what}; choose another --output, or remove it first")
    return made


def _cost(grader: Grader, asked: Collection, left: Run, timed_on: torch.device | None) -> str:
    """Return what a server will be asked, or in a plan how long another model will take, by a moment of its work."""
    pairs = sum(map(len, left.values()))
    if not pairs or not (timed_on or grader.system.recipe is None):  # which a server has not
        return ""
    reranker = grader.model.reranker()
    if request := reranker.asked(asked, left):
        return f"; {request}"
    if timed_on is None:
        return ""
    groups = [pair_texts(asked, group) for group in spread(cut_pairs(asked, left, ("query_first", 0)), 4)]
    seconds = pairs * rerank_job(reranker, groups, pairs).seconds_each()
    warn_of_other_work(timed_on.type)
    return f"; {in_hours(seconds)} (probe: {pairs / seconds:,.0f} pairs a second)"


def _write(output: Path, qrels: Qrels, grader: Grader, made: _Made, new: Graded, facts: Mapping[str, object]) -> None:
    """Write judgments, and first what made them: a file of which nothing is known is refused."""
    model = grader.model
    known = {
        "fingerprint": made.fingerprint, "unimoe": unimoe.__version__, "model": model.identity, "prompt": model.prompt,
        "dtype": model.dtype, "said": model.said, "thresholds": grader.thresholds,
        "grades": _counts(qrels, grader.highest), "ungraded": new.ungraded,
        "usage": dict(Counter(made.usage) + Counter(new.usage)), **facts,
    }  # fmt: skip
    write_json(labels_path(output), known)
    if grader.highest == HIGHEST and not sidecar_path(output).exists():  # TREC counts from 2 of these grades
        write_json(sidecar_path(output), {"relevance_level": 2})
    write_qrels(output, qrels)


def _counts(qrels: Qrels, highest: int) -> dict[str, int]:
    """Return how many pairs have each grade, the lowest first."""
    counts = Counter(grade for grades in qrels.values() for grade in grades.values())
    return {str(grade): counts[grade] for grade in range(highest + 1)}
