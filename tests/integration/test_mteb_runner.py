"""Tasks of MTEB: what is written of each type of task, what counts as done, and what fails beside what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import mteb_tasks
from support.experiments import tiny_experiment
from support.mteb_runs import Suite
from support.mteb_tasks import RANKED, SYMMETRIC
from support.reranking import with_evaluation

from unimoe.config import Experiment, MTEBConfig
from unimoe.core.console import Steps
from unimoe.core.errors import DataError
from unimoe.core.trec import read_qrels, read_run
from unimoe.evaluation.reranking.rerankers import FunctionReranker
from unimoe.evaluation.runner import Evaluator
from unimoe.evaluation.spec import mteb_evaluation
from unimoe.evaluation.systems.named import Naming, stated_system
from unimoe.evaluation.systems.system import System, zero_shot_system
from unimoe.metrics import score_run
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
        kinds = (mteb_tasks.InventedSTS, mteb_tasks.InventedReranking, mteb_tasks.InventedParts)
        return output_dir, one, one.run([kind() for kind in kinds])

    def test_it_measures_what_each_task_allows(self, done: tuple[Path, Suite, list[EvalResult]]) -> None:
        _, one, measurements = done
        assert one.reasons == []
        assert [(m.task, m.dataset) for m in measurements] == [
            ("embedding", "InventedSTS"),
            ("reranking", "InventedReranking"),
            ("embedding", "InventedReranking"),
            ("embedding", "InventedParts"),
        ]

    def test_a_task_without_queries_has_a_result_without_queries(
        self, done: tuple[Path, Suite, list[EvalResult]]
    ) -> None:
        output_dir, _, _ = done
        found = result(output_dir, "InventedSTS")
        assert (found.task_type, found.main_metric) == ("STS", "cosine_spearman")
        assert (found.per_query, found.per_query_metrics, found.unjudged_queries) == ({}, {}, [])
        assert found.aggregate.keys() == {"cosine_spearman"}
        assert not (output_dir / "zero_shot/seed_none/runs/embedding/InventedSTS.trec").exists()
        assert not (output_dir / "qrels/InventedSTS-test.qrels").exists()
        assert (output_dir / "zero_shot/seed_none/results/embedding/InventedSTS.mteb.json").exists()

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

    def test_parts_are_told_apart(self, done: tuple[Path, Suite, list[EvalResult]]) -> None:
        output_dir, _, _ = done
        found = result(output_dir, "InventedParts")
        assert found.identity.split == "dev+test"
        assert len(found.per_query) == 3 + 4 + 2 + 5
        run = read_run(output_dir / "zero_shot/seed_none/runs/embedding/InventedParts.trec")
        qrels = read_qrels(output_dir / "qrels/InventedParts-dev-test.qrels")
        assert score_run(qrels, run).aggregate["ndcg@10"] == pytest.approx(found.aggregate["ndcg@10"])
        assert found.aggregate["ndcg@10"] == pytest.approx(np.mean([*found.per_query.values()]))
        assert found.aggregate["main_score"] != pytest.approx(found.aggregate["ndcg@10"], abs=1e-9)

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

        again = Suite(done[0], system)
        assert len(again.run([NowhereToBeHad()])) == 1
        assert again.reasons == []

    def test_the_data_of_a_task_is_let_go(self, system: System, tmp_path: Path) -> None:
        ours, given = mteb_tasks.InventedSTS(), mteb_tasks.loaded(mteb_tasks.InventedPairs)
        Suite(tmp_path, system).run([ours, given])
        assert (ours.data_loaded, given.data_loaded) == (False, True)

    @pytest.mark.parametrize("kind", SYMMETRIC, ids=lambda kind: kind.__name__)
    def test_every_type_without_queries_is_written_and_read_back(
        self, system: System, tmp_path: Path, kind: type[Any]
    ) -> None:
        one = Suite(tmp_path, system)
        one.run([kind()])
        assert one.reasons == []
        found = result(tmp_path, kind.__name__)
        assert (found.task_type, found.per_query) == (str(kind.metadata.type), {})
        assert 0 < abs(found.aggregate[found.main_metric]) <= 1


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
        return Evaluator(outputs).store.is_done(mteb_evaluation(system, task, mteb_task))

    def test_the_same_is_done(self, outputs: Path, experiment: Experiment) -> None:
        assert self.is_done(outputs, system_of(experiment))
        assert self.is_done(outputs, system_of(experiment), "reranking")

    @pytest.mark.parametrize(
        ("mteb", "done"),
        [
            ({"prompts": {"STS": "Text: "}}, False),
            ({"prompts": {"InventedSTS": ""}}, False),
            ({"task_instruction": None}, False),
            ({"task_instruction": "{instruction}: "}, False),
            ({"prompts": {"SciFact": "Claim: ", "Retrieval": "Query: "}}, True),
        ],
        ids=str,
    )
    def test_other_prefixes_are_not(
        self, outputs: Path, experiment: Experiment, mteb: dict[str, Any], done: bool
    ) -> None:
        system = system_of(with_evaluation(experiment, mteb=MTEBConfig(**mteb)))
        assert self.is_done(outputs, system) is done
        instructed = (
            mteb.get("task_instruction", "") is not None
        )  # a reranker reads the instruction without its template
        assert self.is_done(outputs, system, "reranking") is instructed

    @pytest.mark.parametrize("key", ["InventedReranking", "Reranking-query", "query"])
    def test_nor_another_instruction_of_a_reranker(self, outputs: Path, experiment: Experiment, key: str) -> None:
        mteb = MTEBConfig(prompts={key: "Instruct: Judge.\nQuery:"})
        assert not self.is_done(outputs, system_of(with_evaluation(experiment, mteb=mteb)), "reranking")

    def test_a_result_is_never_overwritten_by_one_with_other_prefixes(
        self, outputs: Path, experiment: Experiment
    ) -> None:
        other = system_of(with_evaluation(experiment, mteb=MTEBConfig(task_instruction=None)))
        evaluator = Evaluator(outputs)
        evaluation = evaluator.on_mteb_task(other, "embedding", mteb_tasks.loaded(mteb_tasks.InventedSTS))
        with pytest.raises(DataError, match="holds another evaluation"):
            evaluator.take(evaluation, Steps(1))

    def test_nor_another_length_dtype_or_data(self, outputs: Path, experiment: Experiment) -> None:
        longer = experiment.model_copy(update={"model": experiment.model.model_copy(update={"max_length": 300})})
        assert not self.is_done(outputs, system_of(longer))
        assert not self.is_done(outputs, system_of(experiment, torch.bfloat16))
        newer = {"path": "invented/InventedSTS", "revision": "2"}
        assert not self.is_done(outputs, system_of(experiment), dataset=newer)


class Lengths(FunctionReranker):
    """A reranker without weights: what it states itself is all that is known of it."""

    name, identity = "lengths", "lengths@1"

    def __init__(self) -> None:
        super().__init__(lambda pairs: [float(len(document)) for _, document in pairs])


def test_a_reranker_without_weights_reranks_a_task(experiment: Experiment, tmp_path: Path) -> None:
    naming = Naming(experiment, torch.device("cpu"), torch.float32)
    one = Suite(tmp_path, stated_system(Lengths(), naming), ("reranking",))
    (found,) = one.run([mteb_tasks.InventedReranking()])
    assert (found.identity.base_model, found.identity.prompt) == ("lengths@1", None)
    assert found.provenance.token_budget is None
    for scores in read_run(tmp_path / "lengths/seed_none/runs/reranking/InventedReranking.trec").values():
        assert {d: len(RANKED.corpus[d].full_text) for d in scores} == scores


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
        one = Suite(tmp_path, system)
        done = one.run([Broken(), mteb_tasks.InventedSTS()])
        assert [m.dataset for m in done] == ["InventedSTS"]
        (line,) = one.reasons
        assert line.startswith("failed: Broken: KeyError: 'corpus'")
        assert line in capsys.readouterr().err
        assert not [name for name in files(tmp_path) if "Broken" in name]

    def test_a_task_without_queries_is_named(self, system: System, tmp_path: Path) -> None:
        task: Any = mteb_tasks.loaded(mteb_tasks.InventedRetrieval)
        part = task.dataset["default"]["test"]
        part["queries"] = part["queries"].select([])
        one = Suite(tmp_path, system)
        assert one.run([task]) == []
        assert one.reasons == ["failed: InventedRetrieval: a split has no queries; leave the task out"]

    def test_a_damaged_result_is_that_tasks_failure_alone(self, system: System, tmp_path: Path) -> None:
        Suite(tmp_path, system).run([mteb_tasks.InventedSTS()])
        path = tmp_path / "zero_shot/seed_none/results/embedding/InventedSTS.json"
        path.write_text("{", encoding="utf-8")
        one = Suite(tmp_path, system)
        done = one.run([mteb_tasks.InventedSTS(), mteb_tasks.InventedPairs()])
        assert [m.dataset for m in done] == ["InventedPairs"]
        assert "InventedSTS.json" in one.reasons[0]
