from __future__ import annotations

from pathlib import Path

import pytest

from unimoe.core.errors import DataError
from unimoe.models.bundled import folder_named


def test_a_folder_is_itself_and_an_id_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert folder_named("model.base", "mine") == Path("mine")
    assert folder_named("model.base", str(tmp_path / "mine")) == tmp_path / "mine"
    assert folder_named("model.base", "Qwen/Qwen3-0.6B-Base") is None
    assert folder_named("model.base", "gpt2") is None


@pytest.mark.parametrize("path", ["outputs/mine/checkpoint", "/no/where", "./mine", "~/mine"])
def test_a_path_to_nothing_is_no_id(path: str) -> None:
    with pytest.raises(DataError, match=rf"^encoder\.base '{path}': no such folder; check the path"):
        folder_named("encoder.base", path)
