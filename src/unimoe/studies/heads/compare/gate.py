"""The gate of a comparison of heads: evolution beats InfoNCE by more than a margin."""

from __future__ import annotations

from pathlib import Path

from unimoe.data.catalog import result_name
from unimoe.studies.common.gate import register_gates
from unimoe.studies.heads.compare.arms import Comparison

SYSTEM, BASELINE = "eggroll", "infonce"


def register_gate(comparison: Comparison, output_dir: Path) -> None:
    """Write ``gates.yaml`` into an output folder without results; in others it stays as it is, or stays away.

    Raises:
        DataError: another gate is registered there.
    """
    if {SYSTEM, BASELINE} <= set(comparison.methods):
        register_gates(_gate(comparison), output_dir)


def _gate(comparison: Comparison) -> dict[str, dict[str, object]]:
    """The gate as plain data, without what is default."""
    base = comparison.base
    return {
        f"{SYSTEM}-beats-{BASELINE}": {
            "kind": "superiority",
            "task": "reranking",
            "datasets": [result_name(base.task)],
            "metric": f"ndcg@{base.ndcg_k}",
            "system": SYSTEM,
            "baseline": BASELINE,
            "margin": comparison.margin,
            "seeds": sorted(comparison.seeds),
        }
    }
