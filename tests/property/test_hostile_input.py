"""Whatever the bytes of an input, a reader returns what it holds or refuses it in words; it never fails otherwise."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.caption_pairs import seed_arrays
from support.results import make_result

from unimoe.config import Experiment
from unimoe.config.files import MOST_VALUES, YamlError, load_experiment, overridden, parse_config, parse_yaml
from unimoe.core.errors import UnimoeError
from unimoe.core.limits import HIGHEST_GRADE, HIGHEST_SCORE
from unimoe.core.trec import read_qrels, read_run
from unimoe.data.collection_card import describe_qrels
from unimoe.data.sources.beir_layout import read_beir
from unimoe.metrics import canonical_metric
from unimoe.results import read_result, result_path, write_result
from unimoe.results.logs import read_conflict_logs, read_logs
from unimoe.results.runs.scoring import score_run_file
from unimoe.studies.translator.data.caption_npz import load_pairs

YAML_PIECES = [
    *"a []{}-'\"|>#?~\n\t\0é\x85", ": ", "  ", "&x ", "*x", "<<", "!!bool ", "!x ", "\\ud800", "%YAML 1.2", "---",
    "1e400", "0" * 30, ".nan", "null",
]  # fmt: skip
LINE_PIECES = [
    *"01 \t\n\0\x1b\ufeff٣t", "\r\n", "q1", "d1", "Q0", "-1", "1e30", "1e308", "nan", "1_0",
    "query-id", "corpus-id", "score",
]  # fmt: skip
JSON_PIECES = [
    *"{}[]1\n\\é", ": ", ", ", '"_id"', '"text"', '"step"', '"loss"', '"x"', "1e400", "-0", "NaN", "null", "true",
    '"\\ud800"', '"\\u0000"', "9" * 30,
]  # fmt: skip


def glued(pieces: list[str]) -> st.SearchStrategy[bytes]:
    """Texts of such pieces, and any bytes."""
    return st.one_of(
        st.lists(st.sampled_from(pieces), max_size=40).map("".join).map(str.encode), st.binary(max_size=80)
    )


def read_or_refuse(read: Callable[[Path], Any], name: str, content: bytes) -> Any:
    """What a reader returns of a file of this content; None where it refuses it in one line."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with suppress(UnimoeError):
            return read(path)
        return None


@given(glued(YAML_PIECES))
def test_yaml(content: bytes) -> None:
    with suppress(YamlError):
        json.dumps(parse_yaml(content.decode("utf-8", "replace"))).encode("utf-8")  # plain data, without circles


@given(st.integers(2, 12), st.integers(3, 12))
def test_yaml_whose_aliases_multiply(each: int, levels: int) -> None:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * each)}]" for level in range(1, levels)]
    if sum(each**level for level in range(levels)) > MOST_VALUES:
        with pytest.raises(YamlError, match="aliases spelled out"):
            parse_yaml("\n".join(lines))


@given(glued(YAML_PIECES))
def test_configs(content: bytes) -> None:
    read_or_refuse(load_experiment, "some.yaml", content)


@given(st.text(max_size=30), st.text(max_size=30))
def test_overrides(key: str, value: str) -> None:
    with suppress(UnimoeError):
        parse_config(Experiment, overridden({"name": "x"}, [f"{key}={value}"]), source="some")


@given(glued(LINE_PIECES))
def test_runs(content: bytes) -> None:
    run = read_or_refuse(read_run, "some.trec", content) or {}
    assert all(abs(score) <= HIGHEST_SCORE for scores in run.values() for score in scores.values())


@given(glued(LINE_PIECES))
def test_qrels(content: bytes) -> None:
    qrels = read_or_refuse(read_qrels, "some.qrels", content) or {}
    assert all(abs(grade) <= HIGHEST_GRADE for grades in qrels.values() for grade in grades.values())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.floats(), st.integers()), max_size=6))
def test_what_is_read_can_be_scored(lines: list[tuple[str, str, float, int]]) -> None:
    with TemporaryDirectory() as folder:
        run, qrels = Path(folder, "r.trec"), Path(folder, "q.qrels")
        run.write_text("".join(f"{q} Q0 {d} 1 {score!r} t\n" for q, d, score, _ in lines))
        qrels.write_text("".join(f"{q} 0 {d} {grade % 9}\n" for q, d, _, grade in lines))
        with suppress(UnimoeError):
            assert all(0.0 <= mean <= 1.0 for mean in score_run_file(run, qrels).aggregate.values())


@given(glued(JSON_PIECES))
def test_cards(content: bytes) -> None:
    read_or_refuse(lambda path: describe_qrels(path.with_name("q")), "q.json", content)


@given(glued(JSON_PIECES), st.sampled_from(["train", "gradient_conflicts"]))
def test_logs(content: bytes, name: str) -> None:
    read = read_logs if name == "train" else read_conflict_logs
    read_or_refuse(lambda path: read(path.parents[3]), f"arm/seed_0/logs/{name}.jsonl", content)


@given(glued(JSON_PIECES), st.sampled_from(["corpus.jsonl", "queries.jsonl"]))
def test_collections(content: bytes, part: str) -> None:
    def read(path: Path) -> Any:
        sound = {"corpus.jsonl": '{"_id": "x", "text": "x"}', "queries.jsonl": '{"_id": "x", "text": "x"}'}
        (path.parent / "qrels").mkdir()
        (path.parent / "qrels/test.tsv").write_text("x\tx\t1\n")
        for name in sound.keys() - {path.name}:
            (path.parent / name).write_text(sound[name])
        return read_beir(path.parent, "test")

    read_or_refuse(read, part, content)


@given(st.data())
def test_results_with_a_part_replaced(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        result = make_result("joint_r8", 0, [0.25, 0.5])
        content = write_result(Path(folder), result).read_bytes()
        begin = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(begin, min(len(content), begin + 30)))
        path = result_path(Path(folder), "joint_r8", 0, "reranking", "apidocs")
        path.write_bytes(content[:begin] + data.draw(glued(JSON_PIECES)) + content[end:])
        with suppress(UnimoeError):
            assert read_result(path).per_query


@given(st.data())
def test_archives_with_bytes_replaced(data: st.DataObject) -> None:
    packed = io.BytesIO()
    np.savez(packed, **seed_arrays())  # type: ignore[arg-type]
    content = bytearray(packed.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(load_pairs, "pairs.npz", bytes(content))


@given(st.text(max_size=20))
def test_names_of_metrics(name: str) -> None:
    with suppress(UnimoeError):
        assert canonical_metric(canonical_metric(name)) == canonical_metric(name)
