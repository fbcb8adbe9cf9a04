"""Bad input to ``evaluate``, each answered with one line and the right exit code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, call_script, successful
from transformers import AutoTokenizer

from unimoe.core.trec import Run, write_run

pytestmark = pytest.mark.usefixtures("one_thread")

COLLECTION = invented(documents=8, queries=3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "toy", COLLECTION)
    write_tiny_experiment(folder)
    return folder


def evaluate(data: Path, output_dir: Path, *more: str) -> Done:
    """Rerank ``toy`` with the untrained model, unless options that follow say otherwise."""
    chosen = [] if "--eval-tier" in more else ["--dataset", "toy"]
    return call_script(
        "evaluate.py", "--zero-shot", "--config", data / "tiny.yaml", *chosen, "--task", "reranking",
        "--output-dir", output_dir, *more, UNIMOE_DATA=str(data),
    )  # fmt: skip


class TestNames:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--dataset", "scifct"], ["unknown collection 'scifct'", "did you mean 'scifact'?"]),
            (["--dataset", "nanobeir:ArguAnna"], ["'nanobeir:ArguAnna'", "did you mean 'arguana'?"]),
            (["--dataset", "toy@tset"], ["no split 'tset'", "did you mean 'test'?"]),
            (["--dataset", "toy,toy@dev"], ["toy is named with the splits test and dev"]),
            (["--eval-tier", "fasst"], ["unknown tier 'fasst'", "did you mean 'fast'?"]),
            (["--dataset", " , "], ["--dataset names nothing"]),
            (["--task", "rerank"], ["--task rerank", "did you mean 'reranking'?"]),
            (["--set", "evaluation.first_stage=bm25"], ["did you mean 'bm25s'?"]),
            (["--set", "evaluation.first_stage=official"], ["toy", "top1000.dev", "use bm25s"]),
        ],
        ids=["dataset", "nanobeir", "split", "two splits", "tier", "nothing", "task", "first stage", "official"],
    )
    def test_a_name_that_means_nothing(self, data: Path, tmp_path: Path, options: list[str], words: list[str]) -> None:
        done = evaluate(data, tmp_path / "outputs", *options)
        assert_refused(done, 2, *words)
        assert not (tmp_path / "outputs").exists()


ALL: Run = {q: {d: float(rank) for rank, d in enumerate(COLLECTION.corpus)} for q in COLLECTION.queries}


class TestRunFiles:
    @pytest.mark.parametrize(
        ("run", "words"),
        [
            ({**ALL, "q1": {**ALL["q1"], "d99": 1.0}}, ["candidate 'd99' of query 'q1' is no document of toy"]),
            ({**ALL, "q2": {}}, ["no candidates for query 'q2', judged in toy, split test"]),
            (
                {f"x{query}": ALL[query] for query in ALL},
                ["no candidates for query 'q0' nor for 2 more, judged"],
            ),
            (
                {**ALL, "q0": dict.fromkeys(ALL["q0"], 1.0)},
                ["the 8 candidates of query 'q0' all have one score", "a depth of 5"],
            ),
        ],
        ids=["unknown document", "no candidates", "other queries", "equal scores"],
    )
    def test_a_run_that_does_not_fit(self, data: Path, tmp_path: Path, run: Run, words: list[str]) -> None:
        file = tmp_path / "some.trec"
        write_run(file, run, "some")
        stage = ("--set", f"evaluation.first_stage=run:{file}", "--set", "evaluation.depth=5")
        assert_refused(evaluate(data, tmp_path / "outputs", *stage), 3, str(file), *words)
        assert not (tmp_path / "outputs").exists()

    def test_a_run_that_is_not_there_and_one_that_fits(self, data: Path, tmp_path: Path) -> None:
        done = evaluate(data, tmp_path / "outputs", "--set", "evaluation.first_stage=run:nowhere/{dataset}.trec")
        assert_refused(done, 3, "nowhere/toy.trec: no such run file", silent=False)
        write_run(tmp_path / "toy.trec", ALL, "some")
        stage = f"evaluation.first_stage=run:{tmp_path}/{{dataset}}.trec"
        done = successful(evaluate(data, tmp_path / "outputs", "--set", stage, "--set", "evaluation.depth=5"))
        assert "(first stage 0." in done.stdout


class TestCollections:
    def test_one_bad_collection_does_not_stop_the_others(self, data: Path, tmp_path: Path) -> None:
        queries = {key: text for key, text in COLLECTION.queries.items() if key != "q1"}
        folder = write_invented(tmp_path / "lacking", COLLECTION)
        lines = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if json.loads(line)["_id"] in queries]
        (folder / "queries.jsonl").write_text("\n".join(kept), encoding="utf-8")
        done = evaluate(data, tmp_path / "outputs", "--dataset", f"path:{folder},toy")
        assert_refused(done, 4, "done, without 1 collection (lacking); the reasons are above", silent=False)
        assert "failed: lacking: " in done.stderr
        assert "query 'q1' is judged in split 'test' but is not among the queries" in done.stderr
        assert "reranking/toy zero_shot: ndcg@10" in done.stdout
        assert not list((tmp_path / "outputs").rglob("*lacking*"))


class TestModels:
    @pytest.fixture
    def model(self, data: Path, tmp_path: Path) -> Path:
        """A copy of the tiny model, to be spoilt."""
        return shutil.copytree(data / "tiny-model", tmp_path / "model")

    def test_a_tokenizer_that_writes_yes_in_several_tokens(self, data: Path, tmp_path: Path, model: Path) -> None:
        content = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
        content["model"]["merges"] = [merge for merge in content["model"]["merges"] if "s" not in merge]
        (model / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        done = evaluate(data, tmp_path / "outputs", "--set", f"model.base={model}")
        assert_refused(done, 3, "writes 'yes' as", "tokens", silent=False)

    def test_a_tokenizer_without_a_padding_token_will_do(self, data: Path, tmp_path: Path, model: Path) -> None:
        plain = evaluate(data, tmp_path / "plain")
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (model / name).is_file():
                content = json.loads((model / name).read_text(encoding="utf-8"))
                content.pop("pad_token", None)
                (model / name).write_text(json.dumps(content), encoding="utf-8")
        assert AutoTokenizer.from_pretrained(model).pad_token is None
        done = successful(evaluate(data, tmp_path / "outputs", "--set", f"model.base={model}"))
        assert done.stdout.replace("outputs", "plain") == plain.stdout
