"""``unimoe doctor``: every finding is there, and says what is true here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from unimoe.cli.app import app


def doctor(**environment: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "unimoe", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return {line.split()[0]: line for line in done.stdout.splitlines()}


def test_findings(tmp_path: Path) -> None:
    (tmp_path / "scifact" / "qrels").mkdir(parents=True)
    (tmp_path / "scifact" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
    for part in ("corpus", "queries"):
        (tmp_path / "scifact" / f"{part}.jsonl").write_text('{"_id": "1", "text": "x"}\n', encoding="utf-8")
    found = doctor(UNIMOE_DATA=str(tmp_path), UNIMOE_CACHE=str(tmp_path / "cache"))
    assert found.keys() >= {"python", "packages", "device", "dtype", "cache", "disk", "collections", "main"}
    assert "scifact" in found["collections"]
    assert "nfcorpus" not in found["collections"]
    assert "GFLOP/s" in found["dtype"]
    assert str(tmp_path / "cache") in found["cache"]
    assert re.search(r"\d+ to \d+ (minutes|seconds), \d[\d.,]* TFLOP for bundled", found["main"])


def test_every_command_is_registered() -> None:
    assert {command.name for command in app.registered_commands} == {
        "run", "train", "evaluate", "evaluate-run", "export-mteb", "analyze", "compare", "doctor", "parity",
        "retrieve", "status", "train-head", "compare-heads", "train-cross-encoder", "train-biencoder", "label-pairs",
        "train-translator", "compare-translators",
    }  # fmt: skip
