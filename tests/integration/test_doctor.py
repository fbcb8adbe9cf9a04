"""``unimoe doctor``: every finding is there, and says what is true here."""

from __future__ import annotations

import re
from pathlib import Path

from support.compare_command import MAIN
from support.experiments import write_tiny_experiment
from support.scripts import call_script


def doctor(*options: str, **environment: str) -> dict[str, str]:
    done = call_script(MAIN, "doctor", *options, **environment)
    assert done.returncode == 0, done.stderr
    return {line.split()[0]: line for line in done.stdout.splitlines()}


def test_findings(tmp_path: Path) -> None:
    (tmp_path / "scifact" / "qrels").mkdir(parents=True)
    (tmp_path / "scifact" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
    for part in ("corpus", "queries"):
        (tmp_path / "scifact" / f"{part}.jsonl").write_text('{"_id": "1", "text": "x"}\n', encoding="utf-8")
    found = doctor(
        "--config",
        str(write_tiny_experiment(tmp_path)),
        UNIMOE_DATA=str(tmp_path),
        UNIMOE_CACHE=str(tmp_path / "cache"),
    )
    assert found.keys() >= {"python", "packages", "device", "dtype", "cache", "disk", "collections", "main"}
    assert "scifact" in found["collections"]
    assert "nfcorpus" not in found["collections"]
    assert "GFLOP/s" in found["dtype"]
    assert str(tmp_path / "cache") in found["cache"]
    assert re.search(r"\d+ to \d+ (minutes|seconds), [.\d]+ TFLOP for tiny", found["main"])
