"""One analysis answers every part of a command, and computes each answer once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.results import write_experiment

from unimoe.analysis import comparisons, drilldown
from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates import judging
from unimoe.analysis.gates.output import gate_lines
from unimoe.analysis.report import write_report
from unimoe.results.folder import Results, load_all_results


@pytest.mark.usefixtures("without_figures")
def test_the_parts_of_a_command_share_what_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs of arms on two datasets each: two gates, checks and drill-downs on four datasets."""
    write_experiment(tmp_path, queries=12)
    extra = load_all_results(tmp_path).results
    results = Results(tmp_path, [*extra, *(r.model_copy(update={"dataset": "other"}) for r in extra)])
    calls: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        work = getattr(module, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return work(*arguments, **named)

        monkeypatch.setattr(module, name, counting)

    counted(judging, "judge")
    counted(comparisons, "bootstrap_means")
    counted(drilldown, "drill_down")
    analysis = Analysis(results, iterations=50)
    write_report(analysis)
    assert "By dataset" in gate_lines(analysis.registration, analysis.outcomes)
    assert len(analysis.outcomes) == 2
    assert calls == {"judge": 2, "bootstrap_means": 4, "drill_down": 4}
