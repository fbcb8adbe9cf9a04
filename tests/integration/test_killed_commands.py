"""Commands killed between two files that they write: run again, they leave what an undisturbed run does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.compare_command import MAIN
from support.comparisons import assert_same_files
from support.heads import topics_folder
from support.reranking import invented, write_invented
from support.results import write_experiment
from support.scripts import Done, call_script
from support.tiny_encoders import save_tiny_encoder
from support.tiny_rerankers import save_tiny_cross_encoder
from support.translators import small_pairs, write_npz

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

Prepare = Callable[[Path], str]
"""Writes what a command reads into a folder, and returns its command line."""


class KilledError(BaseException):
    """Stands for the end of the process, which no command can catch."""


def retrieve(data: Path) -> str:
    for name in ("one", "two"):
        write_invented(data / name, invented(documents=30, queries=4, name=name))
    return (
        f"retrieve --dataset path:{data}/one,path:{data}/two --set encoder.base={save_tiny_encoder(data / 'encoder')}"
    )


def label_pairs(data: Path) -> str:
    topics_folder(data / "topics")
    grader = save_tiny_cross_encoder(data / "grader")
    return (
        f"label-pairs --dataset path:{data}/topics --model cross-encoder:{grader} --set thresholds=[0.000001] "
        "--set sampling.queries=6 --set shard_queries=2 --set depth=6"
    )


def compare_heads(data: Path) -> str:
    topics_folder(data / "topics")
    encoder = save_tiny_encoder(data / "encoder")
    return (
        f"compare-heads --task path:{data}/topics --set encoder.base={encoder} --set batch_size=12 "
        "--set pools.depth=20 --methods zero_shot,infonce --num-steps 4 --settings 2 --seeds 2 --set eval_every=2"
    )


def compare_translators(data: Path) -> str:
    pairs = write_npz(data / "pairs.npz", small_pairs())
    return f"compare-translators --data {pairs} --epochs 2 --seeds 2 --settings 2 --set hidden=8 --set sampler.batch=32"


COMMANDS: dict[str, Prepare] = {
    "retrieve": retrieve,
    "label-pairs": label_pairs,
    "compare-heads": compare_heads,
    "compare-translators": compare_translators,
    "analyze": lambda _: "analyze --iterations 50",
}


def run(line: str, out: Path, kill_at: int | None = None) -> tuple[Done | None, int]:
    """Run a command until it puts a file of this number into its place; return its end, and how many it has put."""
    replace, done, written = os.replace, None, 0

    def counted(source: str | Path, target: str | Path) -> None:
        nonlocal written
        if written == kill_at:
            raise KilledError
        replace(source, target)
        written += 1

    device = [] if line.startswith("analyze") else ["--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", counted)
        try:
            done = call_script(MAIN, *line.split(), *device, "--output-dir", out)
        except KilledError:
            assert kill_at is not None
    return done, written


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_between_two_files_it_goes_on_and_ends_the_same(name: str, tmp_path: Path) -> None:
    line = COMMANDS[name](tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for out in (whole, killed) if name == "analyze" else ():
        write_experiment(out, seeds=(0, 1), queries=10)
    undisturbed, files = run(line, whole)
    assert undisturbed is not None
    assert undisturbed.returncode == 0, undisturbed.stderr
    for share in (0.2, 0.5, 0.9):
        assert run(line, killed, kill_at=int(share * files))[0] is None or share > 0.2
    done, _ = run(line, killed)
    assert done is not None
    assert done.returncode == 0, done.stderr
    assert_same_files(whole, killed)
