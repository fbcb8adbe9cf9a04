"""Names, texts, archives and models of others stay data: nothing in them is run, and nothing leaves its folder.

Reports in a real browser and tables in LaTeX are in test_report_readers.py, Markdown among the properties.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from support.results import make_result
from support.scripts import assert_refused, call_unimoe
from support.tiny_models import save_tiny_encoder

from unimoe.analysis.tables.cells import Cell, RowGroup
from unimoe.analysis.tables.table import Table
from unimoe.config.base import EncoderConfig
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
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"scifact\.zip: would unpack to 4,194,304 bytes, more than 50 times its size"):
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
