from __future__ import annotations

import gzip
import json
from datetime import date
from pathlib import Path

import pytest
from support.heads import topics_folder, toy_config, toy_data

from unimoe.core.errors import DataError
from unimoe.studies.heads.data import document_dates
from unimoe.studies.heads.trainer import HeadTrainer

OBJECTIVES = {"relevance": 1.0, "freshness": 0.5}


def give_dates(folder: Path, dates: dict[str, object]) -> None:
    corpus = folder / "corpus.jsonl"
    records = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    for record in records:
        if record["_id"] in dates:
            record["metadata"] = {"date": dates[record["_id"]], "source": "x"}
    corpus.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def all_ids(folder: Path) -> list[str]:
    return [json.loads(line)["_id"] for line in (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]


def test_years_months_and_times_are_dates(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c")
    give_dates(
        folder, {"d000": "2020-05-31", "d001": "2020-05-31T10:00:00Z", "d002": "2020-05", "d003": 1999, "d004": ""}
    )
    expected = {
        "d000": date(2020, 5, 31),
        "d001": date(2020, 5, 31),
        "d002": date(2020, 5, 1),
        "d003": date(1999, 1, 1),
    }
    assert document_dates(f"path:{folder}") == expected
    corpus = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    assert document_dates(f"path:{folder}") == expected


@pytest.mark.parametrize("wrong", ["yesterday", "2020-13-01", "2020-02-30", "2020-5-1"])
def test_what_is_no_date_is_named(tmp_path: Path, wrong: str) -> None:
    folder = topics_folder(tmp_path / "c")
    give_dates(folder, {"d002": wrong})
    with pytest.raises(DataError, match=rf"corpus.jsonl:3: date '{wrong}' is no date"):
        document_dates(f"path:{folder}")


@pytest.mark.usefixtures("tmp_cache")
def test_freshness_asks_for_dates_and_trains_with_them(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c")
    config = toy_config(folder, tmp_path / "out", method="eggroll", objectives=OBJECTIVES, num_steps=2)
    data = toy_data(config)
    with pytest.raises(DataError, match=r"objectives.freshness needs dates, and no document has one"):
        HeadTrainer(config, data)

    ids = all_ids(folder)
    give_dates(folder, {key: f"{2000 + number % 20}" for number, key in enumerate(ids[1:])})
    pooled = HeadTrainer(config, data)
    with pytest.raises(DataError, match="document 'd000' has no date"):
        pooled.fit()
    give_dates(folder, {ids[0]: "2001"})
    trainer = HeadTrainer(config, data)
    assert trainer.state.fingerprint != pooled.state.fingerprint
    trainer.fit()
    logged = [json.loads(line) for line in trainer.state.log_path.read_text(encoding="utf-8").splitlines()]
    assert all(0 < line["freshness"] < 1 for line in logged)
