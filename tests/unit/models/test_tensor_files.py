"""Files of tensors: a file is whole or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unimoe.models.tensor_files import read_tensors, save_tensors

_KILLED_WHILE_WRITING = """
import os, pathlib, sys
import torch
from unimoe.models.tensor_files import save_tensors

def killed(path, content):
    path.open("wb").write(content[:9])
    os.kill(os.getpid(), 9)

pathlib.Path.write_bytes = killed
save_tensors(pathlib.Path(sys.argv[1]), {"a": torch.ones(2)}, {})
"""


def test_what_a_killed_write_left_goes_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    subprocess.run([sys.executable, "-c", _KILLED_WHILE_WRITING, path], check=False)
    assert not path.exists()
    save_tensors(path, {"a": torch.ones(2)}, {"step": "3"})
    assert list(tmp_path.iterdir()) == [path]
    tensors, texts = read_tensors(path)
    assert (tensors["a"].tolist(), texts) == ([1.0, 1.0], {"step": "3"})


def test_a_changed_byte_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_tensors(path, {"a": torch.ones(2)}, {})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        read_tensors(path)
