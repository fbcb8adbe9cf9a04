"""Tasks of MTEB: what is written of each type of task, what counts as done, and what fails beside what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import mteb_tasks
from support.experiments import tiny_experiment
from support.mteb_runs import Suite
from support.mteb_tasks import RANKED
from support.reranking import with_evaluation

from unimoe.config import Experiment, MTEBConfig
from unimoe.core.console import Steps
from unimoe.core.errors import DataError
from unimoe.evaluation.runner import Evaluator, describe
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.systems.system import System, zero_shot_system
from unimoe.models.loader import ModelLoader
from unimoe.results import EvalResult, Task, read_result

pytestmark = pytest.mark.usefixtures("one_thread")


def result(output_dir: Path, name: str, task: Task = "embedding") -> EvalResult:
    return read_result(output_dir / "zero_shot" / "seed_none" / "results" / task / f"{name}.json")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("experiment"))


def system_of(experiment: Experiment, dtype: torch.dtype = torch.float32) -> System:
    return zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), dtype))


@pytest.fixture(scope="module")
def system(experiment: Experiment) -> System:
    return system_of(experiment)


class TestSuite:
    @pytest.fixture(scope="class")
    def done(self, system: System, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Suite, list[EvalResult]]:
        output_dir = tmp_path_factory.mktemp("outputs")
        one = Suite(output_dir, system)
        kinds = (mteb_tasks.InventedSTS, mteb_tasks.InventedReranking)
        return output_dir, one, one.run([kind() for kind in kinds])

    def test_each_task_is_evaluated_by_what_it_allows_and_one_without_queries_has_none_in_its_result(
        self, done: tuple[Path, Suite, list[EvalResult]]
    ) -> None:
        output_dir, one, measurements = done
        assert one.reasons == []
        assert [(m.task, m.dataset) for m in measurements] == [
            ("embedding", "InventedSTS"),
            ("reranking", "InventedReranking"),
            ("embedding", "InventedReranking"),
        ]
        found = result(output_dir, "InventedSTS")
        assert (found.task_type, found.main_metric) == ("STS", "cosine_spearman")
        assert (found.per_query, found.per_query_metrics, found.unjudged_queries) == ({}, {}, [])
        assert found.aggregate.keys() == {"cosine_spearman"}
        written = files(output_dir)
        assert not [name for name in written if "InventedSTS" in name and name.endswith((".trec", ".qrels"))]
        assert "zero_shot/seed_none/results/embedding/InventedSTS.mteb.json" in written

    def test_a_cross_encoders_result_has_the_candidates_as_first_stage(
        self, done: tuple[Path, Suite, list[EvalResult]], system: System
    ) -> None:
        output_dir, _, _ = done
        reranked = result(output_dir, "InventedReranking", "reranking")
        embedded = result(output_dir, "InventedReranking")
        assert (reranked.task_type, reranked.main_metric, reranked.identity.first_stage) == ("Reranking", "map", "mteb")
        assert reranked.first_stage is not None
        assert reranked.first_stage.aggregate == {}
        assert embedded.first_stage is None
        assert reranked.per_query.keys() == embedded.per_query.keys() == RANKED.qrels.keys()
        assert reranked.per_query != embedded.per_query
        assert reranked.identity.prompt != system.prompt  # the instruction is the task's
        assert embedded.identity.prompt != reranked.identity.prompt
        assert (embedded.identity.prompt or "").partition("@")[0] == (system.prompt or "").partition("@")[0]

    def test_a_reranker_names_the_queries_that_it_sees_only_the_beginning_of(
        self, system: System, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class LongQuery(mteb_tasks.InventedReranking):
            metadata = mteb_tasks.card("LongQuery", "Reranking", "map_at_1000")

            def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
                super().load_data()
                part: Any = self.dataset["default"]["test"]
                part["queries"] = part["queries"].map(
                    lambda row: {"text": row["text"] * (400 if row["id"] == "q3" else 1)}
                )

        (found,) = Suite(tmp_path, system, ("reranking",)).run([LongQuery()])
        assert found.truncated_queries == ["q3"]
        assert "LongQuery: queries that fill the whole prompt" in capsys.readouterr().err

    def test_judgments_of_a_query_that_nobody_asks_count_nothing_as_in_mteb(
        self, system: System, tmp_path: Path
    ) -> None:
        class JudgedTooMuch(mteb_tasks.InventedRetrieval):
            def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
                super().load_data()
                judgments: Any = self.dataset["default"]["test"]["relevant_docs"]
                judgments["nobody"] = {"d00": 1}

        one = Suite(tmp_path, system, ("embedding",))
        (found,) = one.run([JudgedTooMuch()])
        assert one.reasons == []
        (plain,) = Suite(tmp_path / "plain", system, ("embedding",)).run([mteb_tasks.InventedRetrieval()])
        assert found.aggregate == plain.aggregate
        assert "nobody" not in found.per_query

    def test_what_is_done_is_skipped_without_loading_its_data(
        self, done: tuple[Path, Suite, list[EvalResult]], system: System
    ) -> None:
        class NowhereToBeHad(mteb_tasks.InventedSTS):
            def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
                raise ConnectionError("no network")

        again, given = Suite(done[0], system), mteb_tasks.loaded(mteb_tasks.InventedPairs)
        assert len(again.run([NowhereToBeHad(), given])) == 2
        assert (again.reasons, given.data_loaded) == ([], True)


class TestIsDone:
    """A result on disk counts only for the measurement it was made by."""

    @pytest.fixture(scope="class")
    def outputs(self, system: System, tmp_path_factory: pytest.TempPathFactory) -> Path:
        output_dir = tmp_path_factory.mktemp("outputs")
        Suite(output_dir, system).run([mteb_tasks.InventedSTS(), mteb_tasks.InventedReranking()])
        return output_dir

    def is_done(self, outputs: Path, system: System, task: Task = "embedding", **card: Any) -> bool:
        mteb_task = mteb_tasks.InventedReranking() if task == "reranking" else mteb_tasks.InventedSTS()
        if card:
            mteb_task.metadata = mteb_task.metadata.model_copy(update=card)
        return ResultStore(outputs).is_done(describe(system, task, mteb_task))

    @pytest.mark.parametrize(
        ("mteb", "done", "reranked"),
        [
            ({}, True, True),
            ({"prompts": {"STS": "Text: "}}, False, True),
            ({"task_instruction": None}, False, False),
            ({"task_instruction": "{instruction}: "}, False, True),  # a reranker reads no template
            ({"prompts": {"SciFact": "Claim: ", "Retrieval": "Query: "}}, True, True),
            ({"prompts": {"Reranking-query": "Instruct: Judge.\nQuery:"}}, True, False),
            ({"prompts": {"query": "Instruct: Judge.\nQuery:"}}, False, False),
        ],
        ids=str,
    )
    def test_other_prefixes_and_instructions_are_not(
        self, outputs: Path, experiment: Experiment, mteb: dict[str, Any], done: bool, reranked: bool
    ) -> None:
        system = system_of(with_evaluation(experiment, mteb=MTEBConfig(**mteb)))
        assert self.is_done(outputs, system) is done
        assert self.is_done(outputs, system, "reranking") is reranked

    def test_a_result_is_never_overwritten_by_one_with_other_prefixes(
        self, outputs: Path, experiment: Experiment
    ) -> None:
        other = system_of(with_evaluation(experiment, mteb=MTEBConfig(task_instruction=None)))
        there = replace(other, output_dir=outputs)
        with pytest.raises(DataError, match="holds another evaluation"):
            Evaluator().take(describe(there, "embedding", mteb_tasks.loaded(mteb_tasks.InventedSTS)), Steps(1))

    def test_nor_another_length_dtype_or_data(self, outputs: Path, experiment: Experiment) -> None:
        longer = experiment.model_copy(update={"model": experiment.model.model_copy(update={"max_length": 300})})
        assert not self.is_done(outputs, system_of(longer))
        assert not self.is_done(outputs, system_of(experiment, torch.bfloat16))
        newer = {"path": "invented/InventedSTS", "revision": "2"}
        assert not self.is_done(outputs, system_of(experiment), dataset=newer)


class Broken(mteb_tasks.InventedRetrieval):
    """A task whose data MTEB cannot evaluate."""

    metadata = mteb_tasks.card("Broken", "Retrieval", "ndcg_at_10")

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """Without a corpus."""
        super().load_data()
        data: Any = self.dataset
        del data["default"]["test"]["corpus"]


class TestFailures:
    def test_one_bad_task_is_named_and_the_others_go_on(
        self, system: System, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        unasked: Any = mteb_tasks.loaded(mteb_tasks.InventedRetrieval)
        part = unasked.dataset["default"]["test"]
        part["queries"] = part["queries"].select([])
        one = Suite(tmp_path, system)
        done = one.run([Broken(), unasked, mteb_tasks.InventedSTS()])
        assert [m.dataset for m in done] == ["InventedSTS"]
        assert one.reasons[0].startswith("failed: Broken: KeyError: 'corpus'")
        assert one.reasons[1:] == ["failed: InventedRetrieval: a split has no queries; leave the task out"]
        assert one.reasons[0] in capsys.readouterr().err
        assert not [name for name in files(tmp_path) if "Broken" in name]

    def test_a_damaged_result_is_that_tasks_failure_alone(self, system: System, tmp_path: Path) -> None:
        Suite(tmp_path, system).run([mteb_tasks.InventedSTS()])
        path = tmp_path / "zero_shot/seed_none/results/embedding/InventedSTS.json"
        path.write_text("{", encoding="utf-8")
        one = Suite(tmp_path, system)
        done = one.run([mteb_tasks.InventedSTS(), mteb_tasks.InventedPairs()])
        assert [m.dataset for m in done] == ["InventedPairs"]
        assert "InventedSTS.json" in one.reasons[0]
