from __future__ import annotations

import gzip
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from unimoe.config import BM25Config
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Collection
from unimoe.metrics import score_run
from unimoe.retrieval.bm25 import bm25_run

SPLITS = {"train": 60, "dev": 15, "test": 25}
BUILT_FROM = {"numpy": "2.4.6", "scipy": "1.17.1", "pandas": "3.1.1"}
SCRIPT = Path(__file__).parents[3] / "scripts" / "build_apidocs.py"


@pytest.fixture(scope="module")
def splits() -> dict[str, Collection]:
    return {split: load_collection("apidocs", split) for split in SPLITS}


def flat(text: str) -> str:
    return " ".join(text.casefold().split())


def test_no_document_holds_its_query_or_a_title(splits: dict[str, Collection]) -> None:
    for found in splits.values():
        for query_id, grades in found.qrels.items():
            own = found.corpus[max(grades, key=grades.__getitem__)]
            assert flat(found.queries[query_id]).rstrip(".") not in flat(own.text)
        assert not any(document.title for document in found.corpus.values())


def test_judgments_of_a_known_object(splits: dict[str, Collection]) -> None:
    found = splits["test"]
    assert found.queries["q:numpy.flipud"] == "Reverse the order of elements along axis 0 (up/down)."
    assert found.qrels["q:numpy.flipud"] == {"numpy.flipud": 2, "numpy.flip": 1, "numpy.fliplr": 1, "numpy.rot90": 1}
    # Found under seven classes of arrays; called by the one that defines it.
    assert "numpy.ndarray.T" in found.corpus
    assert "numpy.memmap.T" not in found.corpus


def test_content_is_the_same_for_ever(splits: dict[str, Collection]) -> None:
    assert {split: found.content_hash for split, found in splits.items()} == {
        "train": "7a8499bc6d7030c9",
        "dev": "d6704531a94c7a4b",
        "test": "916674d27906eb6b",
    }
    assert {(found.relevance_level, found.level_stated) for found in splits.values()} == {(1, True)}


def test_bm25_finds_it_neither_trivial_nor_hopeless(splits: dict[str, Collection]) -> None:
    found = splits["test"]
    run = bm25_run(found, 100, BM25Config())
    assert 0.45 < score_run(found.qrels, run, ["ndcg@10"]).aggregate["ndcg@10"] < 0.60


@pytest.mark.skipif(
    {package: version(package) for package in BUILT_FROM} != BUILT_FROM,
    reason="another version has other documentation",
)
def test_the_script_builds_the_same(tmp_path: Path) -> None:
    # SciPy writes sets into its docstrings, in the order of the process's hash seed.
    command = [sys.executable, str(SCRIPT), "--output", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    shipped = available("apidocs")
    assert shipped is not None
    files = sorted(file.relative_to(shipped) for file in shipped.rglob("*.gz"))
    assert len(files) == 5
    for file in files:
        assert gzip.decompress((tmp_path / file).read_bytes()) == gzip.decompress((shipped / file).read_bytes())


def test_the_licences_of_the_texts_are_beside_it() -> None:
    folder = available("apidocs")
    assert folder is not None
    for package in BUILT_FROM:
        assert "Redistributions in binary form" in (folder / f"LICENSE-{package}.txt").read_text(encoding="utf-8")
