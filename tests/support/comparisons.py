"""Two comparisons that must be the same: one in this process, and one by workers of a cluster."""

from __future__ import annotations

from pathlib import Path

from support.scripts import Done

from unimoe.analysis.loading import load_all_results


def same_comparison(first: Done, second: Done, here: Path, there: Path) -> bool:
    """Whether two folders hold the same weights, runs, choices, tables and scores, and the same was printed."""
    assert _printed(second, there) == _printed(first, here)
    files = {path.relative_to(here) for path in here.rglob("*.*") if not path.name.startswith(".")}
    assert {path.relative_to(there) for path in there.rglob("*.*") if not path.name.startswith(".")} == files
    exact = {".safetensors", ".trec", ".qrels", ".csv", ".tex"}
    compared = [path for path in files if path.suffix in exact or (path.parts[0] == "tuning" and len(path.parts) == 2)]
    assert {path.suffix for path in compared} >= {".safetensors", ".json"}
    for path in sorted(compared):
        assert (there / path).read_bytes() == (here / path).read_bytes(), path
    ours, theirs = map(_scores, (here, there))
    assert ours == theirs
    return bool(ours)


def _scores(folder: Path) -> dict[tuple[str, int | None, str, str], dict[str, float]]:
    return {
        (one.config_name, one.seed, one.task, one.dataset): one.per_query for one in load_all_results(folder).everything
    }


def _printed(done: Done, folder: Path) -> list[str]:
    """Return the lines without the folder, and without the time at which gates were registered."""
    lines = done.stdout.replace(str(folder), "FOLDER").splitlines()
    return [line for line in lines if not line.startswith("  registered ")]
