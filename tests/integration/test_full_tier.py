"""``evaluate --eval-tier full`` on its fifteen sets in miniature and MTEB's mock tasks: whole, and with some broken."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from mteb.mocks import MOCK_TASK_TEST_GRID
from support.comparisons import assert_same_results
from support.engine import ThreadActors
from support.experiments import write_tiny_experiment
from support.full_tier import ASKED_FOR, write_full_tier
from support.scripts import Done, call_script, successful

from unimoe.data.published import BEIR_NAMES, CQADUPSTACK
from unimoe.results import EvalResult, read_result, safe_name

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:Conversations are a list")]

SETS = (*BEIR_NAMES, *CQADUPSTACK)
MOCKS = [type(task) for task in MOCK_TASK_TEST_GRID if task.metadata.modalities == ["text"]]
RERANKED = [kind for kind in MOCKS if kind.metadata.type in ("Reranking", "InstructionReranking")]


class Unloadable(MOCKS[0]):  # type: ignore[misc,valid-type]
    """A task whose data cannot be had."""

    def load_data(self, **_: Any) -> None:
        raise ConnectionError("no route to the hub")


def evaluate(
    config: Path,
    data: Path,
    output_dir: Path,
    kinds: list[type[Any]],
    *more: str,
    chosen: tuple[str, ...] = ("--eval-tier", "full"),
) -> Done:
    """Run the full tier, or what is chosen, with mock tasks in place of MTEB's benchmark, which only the hub has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "beir.util", None)  # nothing to download with
        patch.setattr("unimoe.evaluation.chosen.find_tasks", lambda names: [kind() for kind in kinds])
        return call_script(
            "evaluate.py", "--zero-shot", "--config", config, *chosen, "--output-dir", output_dir, *more,
            UNIMOE_DATA=str(data),
        )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_full_tier(tmp_path_factory.mktemp("beir"))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def whole(config: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    output_dir = tmp_path_factory.mktemp("whole")
    return output_dir, evaluate(config, data, output_dir, MOCKS)


def result(output_dir: Path, task: str, dataset: str, arm: str = "zero_shot") -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / task / f"{safe_name(dataset)}.json")


class TestWhole:
    def test_it_ends_well_with_every_result_and_averages_that_name_their_sets(self, whole: tuple[Path, Done]) -> None:
        output_dir, done = whole
        assert done.returncode == 0, done.stderr
        assert "failed:" not in done.stderr
        for name in SETS:
            for arm in ("zero_shot", "bm25"):
                assert result(output_dir, "reranking", name, arm).per_query
        for kind in MOCKS:
            assert result(output_dir, "embedding", kind.metadata.name).aggregate
        for kind in RERANKED:
            assert result(output_dir, "reranking", kind.metadata.name).per_query
        for words in (
            "reranking average of 14: ndcg@10 ",
            "reranking average of 1: mrr@10 ",
            "reranking average of 15, msmarco included: ndcg@10 ",
            f" of {len(MOCKS)} tasks, Mean (TaskType) ",
        ):
            assert done.stdout.count(words) == 1, words

    def test_long_queries_are_cut_and_named(self, whole: tuple[Path, Done]) -> None:
        output_dir, done = whole
        assert result(output_dir, "reranking", "arguana").truncated_queries == ["test-1a", "test-2a", "test-3a"]
        assert "arguana: queries that fill the whole prompt" in done.stderr
        assert result(output_dir, "reranking", "quora").truncated_queries == []

    def test_the_document_with_the_querys_id_is_left_out_where_mteb_leaves_it_out(
        self, whole: tuple[Path, Done]
    ) -> None:
        output_dir, _ = whole
        for name in ("arguana", "quora", "fiqa"):
            run = (output_dir / f"zero_shot/seed_none/runs/reranking/{name}.trec").read_text(encoding="utf-8")
            rows = [line.split() for line in run.splitlines()]
            assert rows
            assert not [row for row in rows if row[0] == row[2]]

    def test_queries_that_find_nothing_count_0(self, whole: tuple[Path, Done]) -> None:
        output_dir, _ = whole
        lacking = result(output_dir, "reranking", "hotpotqa")
        assert lacking.first_stage is not None
        (query,) = lacking.first_stage.queries_without_candidates
        assert lacking.per_query[query] == 0
        assert len(lacking.per_query) == 3
        assert 0 in result(output_dir, "reranking", "dbpedia-entity").per_query.values()


class TestAskedFor:
    """BRIGHT, MIRACL and NanoBEIR in languages, with documents read by passages."""

    PASSAGES = ("--set", "evaluation.passage_words=40")

    @pytest.fixture(scope="class")
    def found(self, config: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
        output_dir = tmp_path_factory.mktemp("asked")
        return output_dir, successful(self.evaluate(config, data, output_dir, *self.PASSAGES))

    def evaluate(self, config: Path, data: Path, output_dir: Path, *more: str) -> Done:
        chosen = ("--dataset", ",".join(ASKED_FOR))
        return evaluate(config, data, output_dir, [], "--task", "reranking", *more, chosen=chosen)

    def test_every_set_has_results_whose_first_stage_names_its_words(self, found: tuple[Path, Done]) -> None:
        words = {
            "bright:biology": "stemmer=english",
            "bright:biology-long": "stemmer=english",
            "miracl:ko": "language=ko,bigrams",
            "miracl:th": "language=th,bigrams",
            "miracl:yo-hard": "language=yo,stemmer=none",
            "nanobeir:de/SciFact": "language=de,stemmer=snowball",
        }
        for name in ASKED_FOR:
            for arm in ("zero_shot", "bm25"):
                one = result(found[0], "reranking", name, arm)
                assert one.identity.first_stage == f"bm25s(k1=0.9,b=0.4,{words[name]})"
                assert one.identity.passages == "40 words, stride 20"
                assert len(one.per_query) == 3
            assert one.aggregate["recall@100"] > 0, name

    def test_what_bright_excludes_is_in_no_run(self, data: Path, found: tuple[Path, Done]) -> None:
        for name in ("bright:biology", "bright:biology-long"):
            for arm in ("zero_shot", "bm25"):
                run = found[0] / arm / "seed_none/runs/reranking" / f"{safe_name(name)}.trec"
                ranked: dict[str, list[str]] = {}
                for line in run.read_text(encoding="utf-8").splitlines():
                    ranked.setdefault(line.split()[0], []).append(line.split()[2])
                asked = (data / name.replace(":", "/") / "queries.jsonl").read_text(encoding="utf-8").splitlines()
                first, *others = ranked.values()
                excluded = set(json.loads(asked[0])["excluded_ids"])
                assert (len(first), excluded & set(first)) == (4, set()), "of twelve, eight are excluded"
                assert all(excluded & set(documents) for documents in others)

    def test_a_plan_counts_passages_and_another_setting_is_refused(
        self, found: tuple[Path, Done], config: Path, data: Path, tmp_path: Path
    ) -> None:
        rows = {}
        for more in ((), self.PASSAGES):
            plan = successful(self.evaluate(config, data, tmp_path / "plan", "--plan", *more))
            lines = [line.split() for line in plan.stdout.splitlines() if line.startswith("reranking ")]
            rows[more] = {name: int(pairs.replace(",", "")) for _, name, _, pairs, *_ in lines}
        assert rows[self.PASSAGES]["bright:biology"] > 20 * rows[()]["bright:biology"] > 0
        assert rows[self.PASSAGES]["miracl:ko"] == rows[()]["miracl:ko"], "short documents are one passage"
        scored = result(found[0], "reranking", "bright:biology").provenance
        again = self.evaluate(config, data, found[0], *self.PASSAGES)
        assert "already done" in again.stderr
        other = self.evaluate(config, data, found[0], "--set", "evaluation.passage_words=30")
        assert other.returncode != 0
        assert "passages" in other.stderr
        assert result(found[0], "reranking", "bright:biology").provenance == scored


def test_workers_of_a_cluster_find_the_same_to_the_bit(
    config: Path, data: Path, whole: tuple[Path, Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = {kind.metadata.name: kind for kind in MOCKS}
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, store, *_: ThreadActors(store, 2))
    monkeypatch.setattr("unimoe.evaluation.engines.find_tasks", lambda names: [by_name[name]() for name in names])
    options = ("--engine", "ray", "--store", str(tmp_path / "store"))
    successful(evaluate(config, data, tmp_path / "out", MOCKS, *options))
    assert_same_results(whole[0], tmp_path / "out")


def test_what_is_broken_is_named_and_the_rest_is_the_same_to_the_bit(
    config: Path, data: Path, whole: tuple[Path, Done], tmp_path: Path
) -> None:
    broken = write_full_tier(tmp_path / "beir")
    with (broken / "fever" / "corpus.jsonl").open("a", encoding="utf-8") as corpus:
        corpus.write("{\n")
    with (broken / "trec-covid" / "qrels" / "test.tsv").open("a", encoding="utf-8") as qrels:
        qrels.write("nobody\td01\t1\n")
    out, chosen = tmp_path / "out", ("--dataset", "arguana,fever,scifact,trec-covid", "--mteb", "any")
    done = evaluate(config, broken, out, [Unloadable, *MOCKS[1:3]], chosen=chosen)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    name = MOCKS[0].metadata.name
    failed = [line for line in done.stderr.splitlines() if line.startswith(("failed: ", "not available: "))]
    assert [any(word in line for line in failed) for word in ("fever", "trec-covid", name)] == [True] * 3
    assert len(failed) == 3
    assert done.stderr.splitlines()[-1] == (
        f"error: done, without 2 collections (fever, trec-covid) and 1 MTEB task ({name}); the reasons are above"
    )
    assert not [path for path in out.rglob("*.*") if path.stem.startswith(("fever", "trec-covid", name))]
    rest = [("reranking", sound) for sound in ("arguana", "scifact")]
    for task, dataset in [*rest, *(("embedding", kind.metadata.name) for kind in MOCKS[1:3])]:
        found, expected = (result(folder, task, dataset) for folder in (out, whole[0]))
        assert (found.aggregate, found.per_query) == (expected.aggregate, expected.per_query)
