"""Run files and judgments to compare, and ``unimoe compare`` called on them in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from support.scripts import Done, call_unimoe

from unimoe.core.trec import Qrels, Run, write_qrels, write_run


def run_with_ranks(ranks: Mapping[str, int | None], depth: int = 10, tail: float = 0.0) -> Run:
    """A run that places the document ``rel`` of each query at a rank, or nowhere; the others are ``d1``, ``d2`` ...

    Args:
        ranks: by query.
        depth: documents of each query.
        tail: taken from the score of each query's last document: no two files hold the same, and no metric sees it.
    """
    run: Run = {}
    for query_id, rank in ranks.items():
        order = [f"d{place}" for place in range(1, depth + 1)]
        if rank is not None:
            order[rank - 1] = "rel"
        run[query_id] = {document_id: float(depth - place) for place, document_id in enumerate(order)}
        run[query_id][order[-1]] -= tail
    return run


def one_relevant(*query_ids: str) -> Qrels:
    """Qrels of runs made by ``run_with_ranks``: ``rel`` is relevant, ``d1`` is not."""
    return {query_id: {"rel": 1, "d1": 0} for query_id in query_ids}


def random_qrels(queries: int, rng: np.random.Generator, name: str = "q") -> Qrels:
    """Graded judgments of documents ``d0`` to ``d29``, at least one of them relevant for every query."""
    return {f"{name}{q}": {f"d{d}": int(rng.integers(0, 4)) for d in range(30)} | {"d0": 1} for q in range(queries)}


def random_run(qrels: Qrels, noise: float, rng: np.random.Generator) -> Run:
    """A hundred documents by grade plus noise: the less noise, the better the run."""
    return {
        query_id: {f"d{d}": grades.get(f"d{d}", 0) + float(rng.normal(0.0, noise)) for d in range(100)}
        for query_id, grades in qrels.items()
    }


def write_arms(
    folder: Path, qrels: Qrels, specialist: list[Run], joint: list[Run]
) -> tuple[list[Path], list[Path], Path]:
    """Write ``a1.trec``, ``a2.trec`` ..., ``b1.trec`` ... and ``q.tsv``; their paths in that order."""
    paths: list[list[Path]] = []
    for letter, runs in (("a", specialist), ("b", joint)):
        paths.append([folder / f"{letter}{number}.trec" for number in range(1, len(runs) + 1)])
        for path, run in zip(paths[-1], runs, strict=True):
            write_run(path, run, tag=path.stem)
    write_qrels(folder / "q.tsv", qrels)
    return paths[0], paths[1], folder / "q.tsv"


SYSTEMS = {"bm25": (2.0, 1), "splade": (1.6, 1), "colbert": (1.3, 3), "mono": (0.9, 3)}
"""Four systems: the noise of their rankings, and their number of runs."""


def write_systems(
    folder: Path, datasets: Mapping[str, int], systems: Mapping[str, tuple[float, int]] = SYSTEMS
) -> None:
    """Write ``{dataset}.qrels``, and ``{dataset}/{system}.trec`` or ``{dataset}/{system}-seed1.trec`` and so on.

    Args:
        folder: where.
        datasets: number of queries by name.
        systems: noise and number of runs by name.
    """
    rng = np.random.default_rng(3)
    for dataset, queries in datasets.items():
        qrels = random_qrels(queries, rng, f"{dataset}-")
        write_qrels(folder / f"{dataset}.qrels", qrels)
        for system, (noise, runs) in systems.items():
            stems = [system] if runs == 1 else [f"{system}-seed{number}" for number in range(1, runs + 1)]
            for stem in stems:
                write_run(folder / dataset / f"{stem}.trec", random_run(qrels, noise, rng), tag=system)


def dataset_options(folder: Path, datasets: Sequence[str]) -> list[str]:
    """The options of a comparison of what ``write_systems`` wrote."""
    return ["--dataset", *(f"{dataset}={folder / f'{dataset}.qrels'}" for dataset in datasets)]


Arms = tuple[list[Path], list[Path], Path]
DATASETS = {"dl19": 24, "dl20": 30, "cran": 36}
"""Queries of each dataset of the systems."""


def compare(*arguments: str | Path) -> Done:
    return call_unimoe("compare", *arguments)


def compare_arms(arms: Arms, *more: str | Path) -> Done:
    return compare("--specialist", *arms[0], "--joint", *arms[1], "--qrels", arms[2], *more)


def words_of(done: Done) -> str:
    return " ".join(done.stdout.split())
