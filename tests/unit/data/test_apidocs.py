"""The bundled collection: what it holds, and that its script makes the same again."""

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

CONTENT = {"train": "7a8499bc6d7030c9", "dev": "d6704531a94c7a4b", "test": "916674d27906eb6b"}
BUILT_FROM = {"numpy": "2.4.6", "scipy": "1.17.1", "pandas": "3.1.1"}
SCRIPT = Path(__file__).parents[3] / "scripts" / "build_apidocs.py"


@pytest.fixture(scope="module")
def splits() -> dict[str, Collection]:
    return {split: load_collection("apidocs", split) for split in CONTENT}


@pytest.fixture(scope="module")
def shipped() -> Path:
    folder = available("apidocs")
    assert folder is not None
    return folder


def flat(text: str) -> str:
    return " ".join(text.casefold().split())


def test_content_is_the_same_for_ever_and_no_document_holds_its_query(splits: dict[str, Collection]) -> None:
    assert {split: found.content_hash for split, found in splits.items()} == CONTENT
    for found in splits.values():
        assert (found.relevance_level, found.level_stated) == (1, True)
        assert not any(document.title for document in found.corpus.values())
        for query_id, grades in found.qrels.items():
            own = found.corpus[max(grades, key=grades.__getitem__)]
            assert flat(found.queries[query_id]).rstrip(".") not in flat(own.text)


def test_judgments_of_a_known_object(splits: dict[str, Collection]) -> None:
    found = splits["test"]
    assert found.queries["q:numpy.flipud"] == "Reverse the order of elements along axis 0 (up/down)."
    assert found.qrels["q:numpy.flipud"] == {"numpy.flipud": 2, "numpy.flip": 1, "numpy.fliplr": 1, "numpy.rot90": 1}
    # Found under seven classes of arrays; called by the one that defines it.
    assert "numpy.ndarray.T" in found.corpus
    assert "numpy.memmap.T" not in found.corpus


def test_bm25_finds_it_neither_trivial_nor_hopeless(splits: dict[str, Collection]) -> None:
    found = splits["test"]
    run = bm25_run(found, 100, BM25Config())
    assert 0.45 < score_run(found.qrels, run, ["ndcg@10"]).aggregate["ndcg@10"] < 0.60


@pytest.mark.skipif(
    {package: version(package) for package in BUILT_FROM} != BUILT_FROM,
    reason="another version has other documentation",
)
def test_the_script_builds_the_same(tmp_path: Path, shipped: Path) -> None:
    # SciPy writes sets into its docstrings, in the order of the process's hash seed.
    command = [sys.executable, str(SCRIPT), "--output", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = sorted(file.relative_to(shipped) for file in shipped.rglob("*.gz"))
    assert len(files) == 5
    for file in files:
        assert gzip.decompress((tmp_path / file).read_bytes()) == gzip.decompress((shipped / file).read_bytes())
    for package in BUILT_FROM:  # whose texts they are
        assert "Redistributions in binary form" in (shipped / f"LICENSE-{package}.txt").read_text(encoding="utf-8")
