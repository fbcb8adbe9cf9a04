"""Before and after: arms refused before any work, the change printed at the end, and a gate on the same numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result

from unimoe.analysis.tables.comparisons import print_before_after
from unimoe.cli.retrieve import refuse_unknown_arm
from unimoe.core.errors import UsageError
from unimoe.results import EvalResult, by_query_id, write_result


def measured(arm: str, scores: list[float], seed: int | None = None, dataset: str = "toy") -> EvalResult:
    identity = {"checkpoint": "none" if seed is None else "last"}
    result = make_result(arm, seed, scores, task="retrieval", dataset=dataset, identity=identity)
    recall = {query_id: min(1.0, 2 * score) for query_id, score in result.per_query.items()}
    mean = math.fsum(recall.values()) / len(recall)
    metrics = {
        "per_query_metrics": result.per_query_metrics | {"recall_of_retrieved@10": by_query_id(recall)},
        "aggregate": result.aggregate | {"recall_of_retrieved@10": mean},
    }
    return EvalResult.model_validate(result.model_dump() | metrics)


def test_prints_what_was_measured_and_names_what_was_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_result(tmp_path, measured("bm25", [0.2, 0.4], dataset="one"))
    for dataset in ("one", "two"):
        write_result(tmp_path, measured("minilm", [0.3, 0.4], dataset=dataset))
    print_before_after(tmp_path, "bm25", ["minilm"], ["retrieval/one", "retrieval/two"])
    printed = capsys.readouterr()
    assert "retrieval/one: minilm (after) against bm25 (before), 2 queries" in printed.out
    assert "retrieval/two:" not in printed.out
    assert "retrieval/two: no result of bm25 to compare with" in printed.err
    print_before_after(tmp_path, "minilm", ["minilm"], ["retrieval/one"])
    print_before_after(tmp_path, "bm25", ["minilm"], [])
    assert capsys.readouterr().out == ""


def test_two_later_arms_are_one_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for arm in ("bm25", "minilm", "minilm+bm25"):
        write_result(tmp_path, measured(arm, rng.uniform(size=30).tolist()))
    print_before_after(tmp_path, "bm25", ["minilm", "minilm+bm25"], ["retrieval/toy"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "; corrected by Holm for all 6 tests." in printed
    assert "All tests hold for other queries." in printed


def test_an_arm_is_looked_for_before_any_work(tmp_path: Path) -> None:
    refuse_unknown_arm(tmp_path / "absent", "bm25", ["bm25"])
    with pytest.raises(UsageError, match=r"unknown arm 'bm52' \(did you mean 'bm25'\?\); there is bm25"):
        refuse_unknown_arm(tmp_path / "absent", "bm52", ["bm25"])
    write_result(tmp_path, measured("minilm-frozen", [0.2]))
    refuse_unknown_arm(tmp_path, "minilm-frozen", ["bm25"])
    with pytest.raises(UsageError, match=r"did you mean 'minilm-frozen'\?\); there is bm25, minilm-frozen"):
        refuse_unknown_arm(tmp_path, "minilm-frozn", ["bm25"])
