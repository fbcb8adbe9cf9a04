"""The decision that is written down before there are scores: evolution beats InfoNCE by more than a margin."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.output import gate_lines
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.comparison.arms import Comparison
from unimoe.console import stderr
from unimoe.data.names import result_name
from unimoe.errors import DataError
from unimoe.io import find_files, write_text

SYSTEM, BASELINE = "eggroll", "infonce"


def register_gate(comparison: Comparison, output_dir: Path) -> None:
    """Write ``gates.yaml`` into an output folder without results; in others it stays as it is, or stays away.

    Raises:
        DataError: another gate is registered there.
    """
    if {SYSTEM, BASELINE} <= set(comparison.methods):
        register_gates(_gate(comparison), output_dir)


def register_gates(wanted: Mapping[str, Mapping[str, object]], output_dir: Path) -> None:
    """Write gates, given as plain data without what is default, as ``register_gate`` does; errors are those there."""
    path = output_dir / REGISTERED
    if path.exists():
        there = load_gates(path).gates
        if {name: gate.model_dump(exclude_defaults=True) for name, gate in there.items()} != wanted:
            raise DataError(
                f"{path} registers another gate (collection, metric, seeds or margin differ); gates are not changed "
                "under way, choose another --output-dir"
            )
    elif output_dir.exists() and find_files(output_dir, "*/seed_*/results/*/*.json"):
        stderr.print(f"{output_dir} has results and no {REGISTERED}: too late to register a gate", soft_wrap=True)
    else:
        write_text(path, _text(wanted))


def verdict(analysis: Analysis) -> str:
    """What the registered gate says, in lines."""
    return gate_lines(analysis.registration, analysis.outcomes)


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


def _text(gates: Mapping[str, Mapping[str, object]]) -> str:
    import yaml

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return yaml.safe_dump({"registered": now, "gates": dict(gates)}, sort_keys=False)
