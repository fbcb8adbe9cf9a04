"""``evaluate --plan``: what an evaluation would take, and nothing written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.reranking import invented, write_invented
from support.scripts import Done, call_script, successful

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "first", invented(documents=30, queries=5))
    write_invented(folder / "second", invented(documents=20, queries=3))
    write_tiny_experiment(folder)
    return folder


def plan(data: Path, *more: str) -> Done:
    """Plan the zero-shot evaluation of the config in a folder, whose outputs would be there too."""
    return call_script(
        "evaluate.py", "--zero-shot", "--config", data / "tiny.yaml", "--plan", *more, UNIMOE_DATA=str(data)
    )


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.name.endswith(".lock")}


def test_it_prints_every_part_and_writes_nothing(data: Path, tmp_path: Path) -> None:
    before = files(data)
    done = successful(plan(data, "--dataset", "first,second", "--output-dir", str(tmp_path / "outputs")))
    header, *lines, total = done.stdout.splitlines()
    assert header.split() == ["task", "dataset", "queries", "pairs/texts", "tokens", "disk"]
    assert [line.split()[:3] for line in lines] == [
        ["reranking", "first", "5"],
        ["embedding", "first", "5"],
        ["reranking", "second", "3"],
        ["embedding", "second", "3"],
    ]
    assert all(int(line.split()[4].replace(",", "")) > 0 for line in lines)
    assert re.fullmatch(r"total: [\d,]+ tokens, \d+ MiB, [\d.,]+ minutes \(probe: [\d,]+ tokens a second\)", total)
    assert files(data) == before
    assert not (tmp_path / "outputs").exists()


def test_one_task_fewer_queries_and_a_price(data: Path) -> None:
    done = successful(
        plan(data, "--dataset", "first", "--task", "reranking", "--max-queries", "2", "--price-per-hour", "3.5")
    )
    _, line, total = done.stdout.splitlines()
    assert line.split()[:3] == ["reranking", "first", "2"]
    assert re.search(r"minutes, \d+\.\d\d at 3\.5 an hour \(probe", total)


def test_a_missing_collection_is_named_and_the_others_planned(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "beir.util", None)
    done = plan(data, "--dataset", "fiqa,second", "--task", "reranking")
    assert done.returncode == 4
    assert "not available: collection 'fiqa'" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: done, without 1 collection (fiqa);")
    assert [line.split()[1] for line in done.stdout.splitlines()[1:-1]] == ["second"]


def test_a_price_below_nothing_is_refused(data: Path) -> None:
    done = plan(data, "--price-per-hour", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--price-per-hour" in done.stderr
