"""What a message tells a user to type fits the installation: a clone with uv, a clone without it, or a wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unimoe
from unimoe.core import advice

PACKAGE = Path(unimoe.__file__).parent
SAID = re.compile(r"uv (run|sync|add)\b|pip install|'unimoe\[|(?<!``)\bscripts/\w+\.py")
"""What only ``core/advice.py`` may say to a user."""

MESSAGES = """
import sys
sys.modules["pyarrow"] = None
from unimoe.core.advice import install_extra, install_packages, run_command
from unimoe.core.errors import UnimoeError
from unimoe.data.wrapped_tables import of_stream
print(install_extra("models"), install_packages("a==1"), run_command("train-head"), sep="|")
try:
    of_stream("x.arrow")
except UnimoeError as error:
    print(error)
"""


def literals(text: str) -> str:
    """A module without its docstrings and comments, which no user of a wheel is shown."""
    text = re.sub(r'"""[\s\S]*?"""', "", text)
    return re.sub(r"(^|\s)#.*", "", text)


def test_no_other_module_says_how_to_install_or_start_anything() -> None:
    found = {
        str(path.relative_to(PACKAGE)): match[0]
        for path in PACKAGE.rglob("*.py")
        if path != Path(advice.__file__) and (match := SAID.search(literals(path.read_text("utf-8"))))
    }
    assert found == {}


def said(root: Path) -> list[str]:
    """What messages of the package below this folder say, in a process of their own."""
    (root / "x.arrow").touch()
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r})\n{MESSAGES}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_message_of_a_wheel_knows_no_clone(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "unimoe", ignore=shutil.ignore_patterns("__pycache__"))
    whole, arrow = said(tmp_path)
    assert whole == "pip install '.[models]' in a clone of unimoe|pip install a==1|unimoe train-head"
    assert arrow == "x.arrow: reading Arrow needs pyarrow: pip install '.[frames]' in a clone of unimoe"
    assert "uv" not in whole + arrow


@pytest.mark.parametrize(
    ("version", "extra"),
    [
        ("0.1.0", "'unimoe[models]'"),
        ("0.2.0.dev3+g62d41c6", "'.[models]' in a clone of unimoe"),
        ("0.1.0.dev0", "'.[models]' in a clone of unimoe"),
    ],
)
def test_a_wheel_of_a_tag_names_the_package_index_which_has_it(tmp_path: Path, version: str, extra: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "unimoe", ignore=shutil.ignore_patterns("__pycache__"))
    metadata = tmp_path / f"unimoe-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: unimoe\nVersion: {version}\n", "utf-8")
    assert said(tmp_path)[0].startswith(f"pip install {extra}|")


def test_a_message_of_a_clone_names_what_works_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "_by_uv", lambda: True)
    assert advice.install_extra("models") == "uv sync --extra models"
    assert advice.install_packages("a==1") == "uv sync"
    assert advice.run_command("train-head") == "uv run unimoe train-head"
    monkeypatch.setattr(advice, "_by_uv", lambda: False)
    monkeypatch.setattr(advice, "clone", lambda: tmp_path)
    assert advice.install_extra("models") == "pip install -e '.[models]'"
    assert advice.install_packages("b", without_dependencies="a==1") == "pip install --no-deps a==1 && pip install b"
