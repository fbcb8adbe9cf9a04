"""Gates that a comparison registers before there are scores, and their verdict afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import load_gates, sealed
from unimoe.analysis.gates.output import gate_lines
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.config.files import dump_yaml
from unimoe.core.console import stderr
from unimoe.core.errors import DataError
from unimoe.core.io import find_files, write_bytes


def register_gates(wanted: Mapping[str, Mapping[str, object]], output_dir: Path) -> None:
    """Write ``gates.yaml`` into an output folder, unless the folder holds results already.

    Args:
        wanted: gates as plain data, without default values.
        output_dir: the comparison's folder.

    Raises:
        DataError: another gate is registered there.
    """
    path = output_dir / REGISTERED
    if path.exists():
        there = load_gates(path).gates
        if {name: gate.model_dump(exclude_defaults=True) for name, gate in there.items()} != wanted:
            raise DataError(
                f"{path} registers another gate (collection, metric, seeds or margin differ); a gate stays "
                "unchanged during a comparison, choose another --output-dir"
            )
    elif output_dir.exists() and find_files(output_dir, "*/seed_*/results/*/*.json"):
        stderr.print(f"{output_dir} has results and no {REGISTERED}: too late to register a gate", soft_wrap=True)
    else:
        write_bytes(path, sealed(_as_yaml(wanted).encode()))


def verdict(analysis: Analysis) -> str:
    """Return the verdict of the registered gate, in lines."""
    return gate_lines(analysis.registration, analysis.outcomes)


def _as_yaml(gates: Mapping[str, Mapping[str, object]]) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return dump_yaml({"registered": now, "gates": dict(gates)})
