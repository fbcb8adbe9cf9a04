"""What the arms saw in training."""

from __future__ import annotations

from unimoe.analysis.loading import Results
from unimoe.analysis.summaries.arms import arm_order, caveat_notes, count_cell
from unimoe.analysis.tables import Cell, RowGroup, Table


def training_table(results: Results) -> Table:
    """What each trained arm saw: the budgets that must agree for TIR to measure interference."""
    seen = {(r.config_name, r.seed): r for r in results.everything if r.training is not None}
    rows = [
        (
            Cell(f"{name} seed {seed}"),
            *map(count_cell, (t.steps, t.ranking_examples, t.embedding_examples, t.tokens)),
        )
        for (name, seed), result in sorted(seen.items(), key=lambda item: (arm_order(item[0][0]), item[0][1] or 0))
        if (t := result.training) is not None
    ]
    return Table(
        name="training",
        title="Training budgets",
        caption="What each arm saw in training; TIR measures interference only where budgets agree",
        columns=("Arm", "Steps", "Ranking examples", "Embedding examples", "Tokens"),
        groups=(RowGroup("", tuple(rows)),) if rows else (),
        notes=caveat_notes(results),
    )
