"""``evaluate --model``: a function or an object of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.named_models import evaluate, result_of

from unimoe.core.trec import read_run
from unimoe.data.catalog import load_collection


class TestPython:
    def run_of(self, output_dir: Path, arm: str) -> Any:
        return read_run(output_dir / arm / "seed_none/runs/reranking/toy.trec")

    def test_a_function_of_the_current_folder(self, data: Path, tmp_path: Path) -> None:
        assert evaluate(data, "python:my_functions:longest", tmp_path).returncode == 0
        corpus = load_collection(f"path:{data / 'toy'}", "test").corpus
        for scores in self.run_of(tmp_path, "longest").values():
            assert scores == {document: len(corpus[document].full_text) for document in scores}

    def test_a_function_that_changes_the_folder_moves_no_results(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(data)
        done = evaluate(data, "python:my_functions:moving", Path("outputs"))
        assert done.returncode == 0, done.stderr
        assert result_of(tmp_path / "outputs", "moving").aggregate
        assert not [*(tmp_path / "elsewhere").iterdir()]

    def test_a_reranker_with_the_methods_alone(self, data: Path, tmp_path: Path) -> None:
        for name in ("own", "of_one_query"):
            done = evaluate(data, f"python:my_functions:{name}", tmp_path / name)
            assert done.returncode == 0, done.stderr
            done = evaluate(data, f"python:my_functions:{name}", None, "--plan")
            assert "pairs a second" in done.stdout, done.stderr
        assert self.run_of(tmp_path / "own", "own") == self.run_of(tmp_path / "of_one_query", "of_one_query")

    def test_without_an_identity_it_is_always_evaluated_again(self, data: Path, tmp_path: Path) -> None:
        for name, kept in (("named", True), ("longest", False)):
            lines = [evaluate(data, f"python:my_functions:{name}", tmp_path / name).stderr for _ in range(2)]
            assert (f"reranking toy: {name}: already done" in lines[1]) is kept, lines[1]
        identity = str(result_of(tmp_path / "named", "named").identity.base_model)
        assert identity.startswith("python:my_functions:named@")
