"""The change that a training, or another encoder, made to a folder of results: checked first, printed at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from unimoe.analysis.comparisons import before_after, unknown_arm
from unimoe.analysis.loading import load_all_results
from unimoe.analysis.tables.comparisons import before_after_table
from unimoe.console import stderr, stdout
from unimoe.errors import UsageError
from unimoe.io import find_files


def refuse_unknown_arm(output_dir: Path, arm: str, coming: Iterable[str]) -> None:
    """Refuse, before any work is done, an arm that has no result in a folder and is none of those to come.

    Raises:
        UsageError: there is none; names the closest.
    """
    there = find_files(output_dir, "*/seed_*/results/*/*.json") if output_dir.exists() else []
    known = sorted({*coming, *(path.parents[3].name for path in there)})
    if arm not in known:
        raise UsageError(unknown_arm(arm, known))


def print_before_after(output_dir: Path, before: str, after: Sequence[str], keys: Sequence[str]) -> None:
    """Print a table of how some arms differ from an earlier one on some ``task/dataset`` keys of a folder.

    Nothing is printed without keys; a key on which the earlier arm was not measured is named on stderr.
    """
    after = [arm for arm in after if arm != before]
    if not keys or not after:
        return
    results = load_all_results(output_dir, only={(arm, key) for arm in (before, *after) for key in keys})
    compared = [key for key in keys if results.measured(key, before)]
    for key in keys:
        if key not in compared:
            stderr.print(f"{key}: no result of {before} to compare with", style="yellow", soft_wrap=True)
    if compared:
        stdout.print()
        stdout.print(before_after_table(results, before_after(results, before, after, keys=compared)).to_rich())
