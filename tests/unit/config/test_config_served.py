"""The section ``served``: what is refused, and that a key given by mistake is not repeated."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from typing import Any

import pytest
from support.experiments import tiny_experiment_dict

from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.config.served import ServedConfig
from unimoe.core.errors import UsageError
from unimoe.models.served.client import Client

ASKED = ["served.api=tei", "served.model=org/tiny"]


def test_it_is_set_key_by_key(tmp_path: Path) -> None:
    found = parse_config(
        Experiment, overridden(tiny_experiment_dict(tmp_path), [*ASKED, "served.requests_per_minute=90"]), "tiny"
    ).served
    assert found == ServedConfig(api="tei", model="org/tiny", requests_per_minute=90)
    assert parse_config(Experiment, overridden(tiny_experiment_dict(tmp_path), []), "tiny").served is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("served.api=vlm", r"there is no served API 'vlm' \(did you mean 'vllm'\?\); use cohere, jina"),
        ("served.requests_in_flight=0", "served.requests_in_flight: must be at least 1"),
        ("served.key=abc", "served.key: unknown key"),
        ("served.timeout=0", "served.timeout: must be above 0"),
    ],
)
def test_a_mistake_is_named(override: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        parse_config(Experiment, overridden(tiny_experiment_dict(tmp_path), [*ASKED, override]), "tiny")


@pytest.mark.parametrize("key", ["sk-0123456789", "0123456789abcdef", "hf_aBcDeF"])
def test_a_key_in_place_of_a_name_is_not_repeated(key: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be the NAME of an environment variable") as caught:
        parse_config(
            Experiment, overridden(tiny_experiment_dict(tmp_path), [*ASKED, f"served.key_variable='{key}'"]), "tiny"
        )
    assert key not in str(caught.value)


@pytest.mark.parametrize("package", ["openai", "aiolimiter"])
def test_without_its_packages_one_line_says_how_to_get_them(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **options)

    monkeypatch.delitem(sys.modules, "unimoe.models.served.connection", raising=False)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=f"needs the package {package}; run: uv sync --extra served") as caught:
        Client("https://host/v1", ServedConfig(api="tei", model="tiny"))
    assert caught.value.exit_code == 2
