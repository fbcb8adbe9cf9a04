"""What the system refuses a command is one line and exit code 3, also while figures are drawn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support.results import write_experiment
from support.scripts import assert_refused, call_script

resource = pytest.importorskip("resource")


@contextmanager
def limit(name: str, value: int) -> Iterator[None]:
    """Lower a limit of this process while the block runs."""
    kind = getattr(resource, name)
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def no_more_files() -> int:
    """Return the limit of open files with which none can be opened."""
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    return lowest


LIMITS: dict[str, tuple[Callable[[], int], str]] = {
    "RLIMIT_FSIZE": (lambda: 1024, "a file would be larger than this process may write"),
    "RLIMIT_NOFILE": (no_more_files, "this process may open no more files"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_the_system_refuses_a_figure_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment(tmp_path, logs=False)
    print_png = FigureCanvasAgg.print_png

    @wraps(print_png)  # matplotlib reads its signature
    def limited(*arguments: Any, **options: Any) -> None:
        with limit(name, LIMITS[name][0]()):
            print_png(*arguments, **options)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(FigureCanvasAgg, "print_png", limited)
    done = call_script("analyze_results.py", "figures", "--output-dir", tmp_path, "--iterations", "100")
    assert_refused(done, 3, f"error: {LIMITS[name][1]}")
    assert not list(tmp_path.rglob(".*.tmp"))


def test_a_folder_without_rights_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(tmp_path, logs=False)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "analysis"))

    monkeypatch.setattr(FigureCanvasAgg, "print_png", refuse)
    done = call_script("analyze_results.py", "figures", "--output-dir", tmp_path, "--iterations", "100")
    assert_refused(done, 3, f"{tmp_path / 'analysis'}: Permission denied")
