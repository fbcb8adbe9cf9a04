"""Runs and qrels that are written come back as they were."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from unimoe.core.limits import HIGHEST_SCORE
from unimoe.core.trec import ranked, read_qrels, read_run, write_qrels, write_run
from unimoe.metrics import score_run

# Any character but white space, lone surrogates, and the byte order mark, which is no part of the file's first id.
ids = st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"], exclude_characters="\ufeff"), min_size=1)
finite = st.floats(-HIGHEST_SCORE, HIGHEST_SCORE)  # what float32 holds: others are refused
runs = st.dictionaries(ids, st.dictionaries(ids, finite, min_size=1, max_size=8), max_size=4)


def round_trip(run: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "some.trec")
        write_run(path, run, tag="tag")
        return read_run(path)


@given(runs)
def test_ids_and_scores_survive_to_the_last_bit(run: dict[str, dict[str, float]]) -> None:
    assert round_trip(run) == run


@given(runs)
def test_lines_stand_in_rank_order(run: dict[str, dict[str, float]]) -> None:
    assert {q: list(scores) for q, scores in round_trip(run).items()} == {q: ranked(run[q]) for q in run}


@given(runs, st.integers(1, 3))
def test_metrics_survive(run: dict[str, dict[str, float]], grade: int) -> None:
    qrels = {q: {max(scores): grade} for q, scores in run.items()} | {"judged only": {"d": 1}}
    assert score_run(qrels, round_trip(run)) == score_run(qrels, run)


@given(st.dictionaries(ids, st.dictionaries(ids, st.integers(-2, 4), min_size=1, max_size=8), max_size=4))
def test_qrels_in_both_layouts_read_the_same(qrels: dict[str, dict[str, int]]) -> None:
    beir = [f"{q}\t{d}\t{grade}" for q, grades in qrels.items() for d, grade in grades.items()]
    with TemporaryDirectory() as folder:
        Path(folder, "beir.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(beir), encoding="utf-8")
        write_qrels(Path(folder, "trec.txt"), qrels)
        assert read_qrels(Path(folder, "beir.tsv")) == read_qrels(Path(folder, "trec.txt")) == qrels
