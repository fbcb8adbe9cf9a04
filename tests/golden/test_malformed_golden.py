"""Every malformed input is answered with one line that names the place and the remedy; ``malformed.txt`` lists them.

``python tests/support/malformed.py > tests/golden/malformed.txt`` writes the list again, for a person to read.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).with_name("malformed.txt")
MAKER = Path(__file__).parents[1] / "support" / "malformed.py"


@pytest.fixture(scope="module")
def answers() -> tuple[list[str], int]:
    """The answers to all inputs, and the MiB they took, in a process of their own."""
    done = subprocess.run([sys.executable, MAKER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines(), int(done.stderr.splitlines()[-1])


def test_each_ends_with_one_line_and_leaves_nothing(answers: tuple[list[str], int]) -> None:
    lines, _ = answers
    assert len(lines) >= 150
    assert [line for line in lines if not re.search(r" -> [23] [eE]rror: \S", line) or " LEAVES " in line] == []


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python word json's errors otherwise")
def test_the_messages_are_those_of_the_list(answers: tuple[list[str], int]) -> None:
    assert answers[0] == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_none_takes_a_gibibyte(answers: tuple[list[str], int]) -> None:
    assert answers[1] < 1024
