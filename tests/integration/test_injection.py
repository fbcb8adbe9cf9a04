"""Names, texts, archives and models of others stay data: nothing in them is run, and nothing leaves its folder.

Reports in a real browser and tables in LaTeX are in test_report_readers.py, Markdown among the properties.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from support.results import make_result
from support.scripts import assert_refused, call_unimoe
from support.tiny_models import save_tiny_encoder
from support.toy_collections import invented, write_beir

from unimoe.analysis.tables.cells import Cell, RowGroup
from unimoe.analysis.tables.table import Table
from unimoe.config.base import EncoderConfig
from unimoe.config.files import read_yaml
from unimoe.core import console
from unimoe.core.errors import DataError
from unimoe.core.trec import text_blocks
from unimoe.data.catalog import load_collection
from unimoe.models.encoder import load_encoder
from unimoe.results import write_result

FORMULAS = ["=cmd|'/C calc'!A0", "+SUM(1)", "-1+cmd|'/C calc'!A0", "@SUM(1)", "=1+1"]
ESCAPES = ["\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "a\rb", "\u202eabc", "\x08\x08"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_a_spreadsheet_is_a_formula(text: str) -> None:
    row = (Cell(text), Cell("0.50", value=0.5), Cell("-0.25", value=-0.25))
    table = Table("x", "X", ("Name", text, "Δ"), (RowGroup(text, (row,)),), (text,))
    head, first, note = csv.reader(io.StringIO(table.to_csv()))
    assert [head[2], first[0], first[1]] == [f"'{text}"] * 3
    assert first[2:] == ["0.5", "-0.25"]
    assert note == [f"# {text}"]
    intervals = (Cell("-38.4 to +66.3"), Cell("-0.1 (-0.2, +0.3)"))
    table = Table("x", "X", ("Name", "Interval"), (RowGroup("", (intervals,)),))
    assert table.to_csv().splitlines()[1] == ',-38.4 to +66.3,"-0.1 (-0.2, +0.3)"', "numbers stay as they are"


@pytest.mark.parametrize("text", ESCAPES)
def test_a_message_or_table_steers_no_terminal(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with console.stderr.capture() as captured:
        console.stderr.print(f"path:one: {text}\nnext\tline")
        console.stderr.out(text)
    shown = io.StringIO(captured.get())
    shown.seek(0, io.SEEK_END)
    plain = Console(file=shown, color_system=None)
    plain.print(Table("x", text, (text, text), (RowGroup(text, ((Cell(text), Cell(text)),)),), (text,)).to_rich())
    assert not set(shown.getvalue()) & set("\x1b\x9b\x07\x08\r\u202e")
    assert "\nnext" in shown.getvalue()
    assert "path:one:" in shown.getvalue(), "no emoji in place of a name"
    console.stdout.out("\x9b31m")
    assert capsys.readouterr().out == "\x9b31m\n", "what goes into a pipe is not changed"


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "..\\outside", ".."])
def test_no_result_is_written_outside_its_folder(tmp_path: Path, name: str) -> None:
    for arm, dataset in ((name, "apidocs"), ("joint_r8", name)):
        with pytest.raises(ValueError, match="leads out of its folder"):
            write_result(tmp_path / "here", make_result(arm, 0, [0.5], dataset=dataset))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize("name", ["../evil", "/evil", "scifact/../../evil", "..\\evil"])
def test_an_archive_writes_nothing_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "scifact.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, "x")
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"scifact\.zip: "):
        load_collection("scifact", "test")
    assert all("zips" in path.parts for path in tmp_path.rglob("*evil*")), "nothing leaves the folder of the archive"


@pytest.mark.usefixtures("tmp_cache")
def test_an_archive_that_unpacks_to_far_more_than_texts_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "scifact.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("scifact/corpus.jsonl", " " * 2**22)
    archive = tmp_path / "data" / "scifact.zip"
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"scifact\.zip: unpacks to 4,194,304 bytes or more, over 50 times its size"):
        load_collection("scifact", "test")
    archive.write_bytes(archive.read_bytes().replace((2**22).to_bytes(4, "little"), (99).to_bytes(4, "little")))
    with pytest.raises(DataError, match=r"scifact\.zip: cannot be unpacked \(Bad CRC-32"):
        load_collection("scifact", "test")
    assert not [*tmp_path.rglob("corpus.jsonl")]


@pytest.mark.parametrize("name", ["corpus.jsonl.gz", "corpus.jsonl"])
def test_one_endless_line_is_refused_before_it_fills_the_memory(tmp_path: Path, name: str) -> None:
    opened: Any = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wb") as file:
        for _ in range(66):
            file.write(b" " * 2**20)
    with pytest.raises(DataError, match=rf"{name}: a line of more than 67,108,864 bytes"):
        [*text_blocks(tmp_path / name)]


@pytest.mark.parametrize("name", ["run.trec.gz", "run.json.gz", "blank.gz", "run.parquet"])
def test_a_file_that_unpacks_to_far_more_than_runs_do_is_refused(tmp_path: Path, name: str) -> None:
    """Nor is its one long text, repeated in each row of a table, read before its length is known."""
    file, qrels = tmp_path / name, tmp_path / "q.qrels"
    qrels.write_text("q 0 d 1\n")
    if file.suffix == ".parquet":
        rows = {"query_id": "q", "doc_id": pd.Categorical(["d" * 2**21] * 5), "score": 1.0}
        pd.DataFrame(rows).to_parquet(file, compression="zstd")
    else:
        first = {"run.trec.gz": b"q Q0 d 1 1 t\n", "run.json.gz": b'{"q": {"d": 1}\n'}.get(name, b"")
        file.write_bytes(gzip.compress(first + b"\n" * 66 * 2**20))
    done = call_unimoe("evaluate-run", file, qrels)
    assert_refused(done, 3, f"{name}: unpacks to ", "over 50 times its size")


@pytest.mark.parametrize(
    ("said", "packed"),
    [
        ("packed by bzip2; unpack it first", bz2.compress(b"q Q0 d 1 1 t\n")),
        ("packed by xz; unpack it first", lzma.compress(b"q Q0 d 1 1 t\n")),
        ("packed by gzip; end its name in .gz", gzip.compress(b"q Q0 d 1 1 t\n")),
        ("not UTF-8 text; convert it first", "q Q0 café 1 1 t\n".encode("latin-1")),
    ],
)
def test_a_run_that_is_no_text_says_what_it_is(tmp_path: Path, said: str, packed: bytes) -> None:
    (tmp_path / "r.trec").write_bytes(packed)
    (tmp_path / "q.qrels").write_text("q 0 d 1\n")
    assert_refused(call_unimoe("evaluate-run", tmp_path / "r.trec", tmp_path / "q.qrels"), 3, f"r.trec: {said}")


LONG = "d" * 2_000_000
RUN, QRELS = "q Q0 d1 1 2 t\nq Q0 {} 2 1 t\n", "q 0 d1 1\nq 0 {} 0\n"


@pytest.mark.parametrize("kind", ["run", "qrels", "parquet", "collection"])
def test_an_id_that_is_longer_than_any_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "r.trec").write_text(RUN.format(LONG if kind == "run" else "d2"))
    (tmp_path / "q.qrels").write_text(QRELS.format(LONG if kind == "qrels" else "d2"))
    arguments: list[str | Path] = ["evaluate-run", tmp_path / "r.trec", tmp_path / "q.qrels"]
    if kind == "parquet":
        frame = pd.DataFrame({"query_id": ["q", "q"], "doc_id": ["d1", LONG], "score": [2.0, 1.0]})
        frame.to_parquet(tmp_path / "r.parquet")
        arguments[1] = tmp_path / "r.parquet"
    if kind == "collection":
        folder = write_beir(invented(documents=3, queries=1), tmp_path / "toy")
        with (folder / "corpus.jsonl").open("a") as file:
            file.write(json.dumps({"_id": LONG, "text": "heron"}) + "\n")
        arguments = ["import", folder, "--output-dir", tmp_path / "imported"]
    done = call_unimoe(*arguments)
    assert_refused(done, 3, "2,000,000 characters, and an id may have 4,096")
    assert len(done.stderr) < 1000


def doubled(link: str) -> str:
    """YAML of some lines, each of which holds the one before ten times."""
    first = "x0: &x0 {k0: v, k1: v}\n"
    return first + "".join(f"x{n}: &x{n} {link.format(', '.join([f'*x{n - 1}'] * 10))}\n" for n in range(1, 10))


@pytest.mark.parametrize("link", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merges"])
def test_aliases_of_yaml_that_multiply_are_refused(link: str, tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text(doubled(link))
    train = call_unimoe("train", "--config", tmp_path / "evil.yaml", "--arm", "joint_r8", "--seed", "0")
    assert_refused(train, 2, "evil.yaml: not valid YAML: its aliases, written out, hold more than 200,000 values")
    judge = call_unimoe("compare", "--example", "--gates", tmp_path / "evil.yaml")
    assert_refused(judge, 3, "evil.yaml: not valid YAML: its aliases, written out, hold more than 200,000 values")


def test_yaml_is_read_no_further_than_any_config_is_long(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text("# x\n" * 50_001)
    for command, code in (("train", 2), ("compare", 3)):
        options = ("--arm", "joint_r8", "--seed", "0", "--config") if command == "train" else ("--example", "--gates")
        done = call_unimoe(command, *options, tmp_path / "long.yaml")
        assert_refused(done, code, "long.yaml: more than 200,000 characters, which no config has; give another file")


@pytest.mark.parametrize("tag", ["python/object/apply:os.mkdir", "python/object/new:os.mkdir", "python/name:os.mkdir"])
def test_yaml_makes_no_objects(tag: str, tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text(f"name: !!{tag} [{str(tmp_path / 'made')!r}]\n")
    done = call_unimoe("train", "--config", tmp_path / "evil.yaml", "--arm", "joint_r8", "--seed", "0")
    assert_refused(done, 2, "evil.yaml:1: not valid YAML: ")
    judge = call_unimoe("compare", "--example", "--gates", tmp_path / "evil.yaml")
    assert_refused(judge, 3, "evil.yaml:1: not valid YAML: ")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("address", ["https://me:secret@host/v1", "http://secret@127.0.0.1:9/v1"])
def test_a_password_in_an_address_reaches_no_message(address: str, tmp_path: Path) -> None:
    done = call_unimoe("evaluate", "--model", address, "--dataset", "apidocs", "--output-dir", tmp_path / "out")
    assert_refused(done, 2)
    assert "secret" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_aliases_that_do_not_multiply_are_read(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("a: &a [1, 2]\nb: [*a, *a]\nc: {<<: &c {x: 1}, y: *a}\nd: *c\n")
    assert read_yaml(tmp_path / "own.yaml") == {
        "a": [1, 2], "b": [[1, 2], [1, 2]], "c": {"x": 1, "y": [1, 2]}, "d": {"x": 1}
    }  # fmt: skip


class Evil:
    """What opens a file to write where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.marker), "w")


def with_own_code(folder: Path, marker: Path) -> None:
    own = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoTokenizer": ["evil.Tokenizer", None]}
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((folder / name).read_text()) | {"auto_map": own, "model_type": "evil"}
        (folder / name).write_text(json.dumps(settings))
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n")


def with_pickle(folder: Path, marker: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Evil(marker)}, folder / "pytorch_model.bin")


@pytest.mark.parametrize("spoil", [with_own_code, with_pickle])
def test_code_in_a_model_s_folder_is_not_run(tmp_path: Path, spoil: Callable[[Path, Path], None]) -> None:
    folder, marker = save_tiny_encoder(tmp_path / "encoder"), tmp_path / "it-ran"
    spoil(folder, marker)
    with pytest.raises(DataError):
        load_encoder(EncoderConfig(base=str(folder)), torch.device("cpu"), torch.float32)
    assert not marker.exists()


def test_objects_in_an_archive_are_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "pairs.npz", captions=np.array([Evil(tmp_path / "it-ran")], dtype=object))
    done = call_unimoe("train-translator", "--train", tmp_path / "pairs.npz", "--output-dir", tmp_path / "o")
    assert_refused(done, 3, "pairs.npz")
    assert not (tmp_path / "it-ran").exists()
