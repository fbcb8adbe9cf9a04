"""Files of tensors: what a kill leaves of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from unimoe.models.tensor_files import read_tensors, save_tensors

_KILLED_WHILE_SAFETENSORS_WRITES = """
import os, pathlib, sys
import safetensors.torch, torch
from unimoe.models.tensor_files import save_tensors

def killed(tensors, filename, metadata):
    pathlib.Path(filename).with_name(".tmpAbCdEf").write_bytes(b"a part")  # as safetensors names its own
    os.kill(os.getpid(), 9)

safetensors.torch.save_file = killed
save_tensors(pathlib.Path(sys.argv[1]), {"a": torch.ones(2)}, {})
"""


def test_what_a_kill_within_safetensors_left_goes_with_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    subprocess.run([sys.executable, "-c", _KILLED_WHILE_SAFETENSORS_WRITES, path], check=False)
    assert not path.exists()
    assert list(tmp_path.rglob(".tmpAbCdEf"))
    save_tensors(path, {"a": torch.ones(2)}, {"step": "3"})
    assert list(tmp_path.iterdir()) == [path]
    tensors, texts = read_tensors(path)
    assert (tensors["a"].tolist(), texts) == ([1.0, 1.0], {"step": "3"})
