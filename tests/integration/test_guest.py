"""A library call leaves the host process as it found it: ``import unimoe``, and each public function, on small data."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.experiments import write_tiny_experiment
from support.tiny_models import save_sentence_transformer, save_tiny_encoder
from support.toy_collections import invented, write_beir

import unimoe

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each call changed in a process of its own, and how it ended."""
    folder = tmp_path_factory.mktemp("guest")
    write_tiny_experiment(folder)
    save_sentence_transformer(save_tiny_encoder(folder / "bare"), folder / "encoder")
    write_beir(invented(documents=20, queries=6), folder / "toy")
    unset = ("MTEB_CACHE", "KINETO_LOG_LEVEL", "TOKENIZERS_PARALLELISM", "JAX_PLATFORMS")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"UNIMOE_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(TESTS)}
    command = [sys.executable, str(TESTS / "support" / "host_process.py"), str(folder)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_every_public_function_is_called(found: dict[str, Any]) -> None:
    assert set(unimoe.__all__) <= found["ended"].keys()
    ended = {name: how for name, how in found["ended"].items() if name != "a name of mteb"}
    assert ended == dict.fromkeys(ended, "")


def test_nothing_of_the_host_process_is_changed(found: dict[str, Any]) -> None:
    assert {name: what for name, what in found["changed"].items() if what} == {}


def test_a_first_call_draws_no_random_number_and_sets_no_variable() -> None:
    """rich draws one where it is imported, threadpoolctl sets KMP_DUPLICATE_LIB_OK, ruamel.yaml filters warnings."""
    code = (
        "import os, random, sys, warnings\nimport scipy.sparse, scipy.stats, pandas\n"
        "def state(): return random.getstate(), dict(os.environ), [*warnings.filters]\n"
        "assert not {'rich.style', 'threadpoolctl', 'ruamel.yaml'} & sys.modules.keys()\n"
        "before = state()\nimport unimoe\n"
        "run = {f'q{n}': {'d1': 2.0 - n % 3, 'd2': 1.0} for n in range(8)}\n"
        "other, qrels = {q: {'d1': 1.0, 'd2': 2.0} for q in run}, {q: {'d1': 1} for q in run}\n"
        "found = unimoe.compare({'a': run, 'b': other}, qrels)\n"
        "found.table().to_latex()\n"
        "assert {'rich.style', 'threadpoolctl', 'ruamel.yaml'} <= sys.modules.keys()\n"
        "print([a == b for a, b in zip(before, state())])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "KMP_DUPLICATE_LIB_OK"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[True, True, True]\n", done.stderr


def test_a_setting_of_the_c_library_would_be_seen() -> None:
    code = (
        "import ctypes\nfrom support import host_process as host\nfrom unimoe.core.memory import keep_freed_memory\n"
        "ctypes.CDLL = host._Library\nbefore = host.snapshot()\nkeep_freed_memory()\n"
        "print(host.differing(before, host.snapshot()))"
    )
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "['settings of the C library: 0 -> 1']\n" or platform.libc_ver()[0] != "glibc", done.stderr
