"""Tasks of MTEB: what is written of each type, what counts as done, what fails, and main metrics with MTEB's values."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import mteb
import pytest
import pytrec_eval
from mteb._evaluators.retrieval_metrics import (
    evaluate_p_mrr_change,
    max_over_subqueries,
    paired_accuracy,
    robustness_at_10,
)
from mteb.abstasks import AbsTaskRetrieval
from support import mteb_tasks
from support.experiments import tiny_experiment, zero_shot
from support.mteb_tasks import RANKED, Suite, split_data
from support.toy_collections import invented, with_evaluation

from unimoe.config import Experiment, MTEBConfig
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.system import System
from unimoe.evaluation.tasks.mteb import describe
from unimoe.formats.qrels import read_qrels
from unimoe.formats.runs import read_run
from unimoe.metrics.scoring import whole_grades
from unimoe.models.functions import FunctionReranker
from unimoe.models.model import stated_model
from unimoe.results import EvalResult, Task, read_query_details, read_result, result_path

pytestmark = pytest.mark.usefixtures("one_thread")

Evaluated = tuple[Path, Suite, list[EvalResult]]


def result(output_dir: Path, name: str, task: Task = "embedding") -> EvalResult:
    return read_result(output_dir / "zero_shot" / "seed_none" / "results" / task / f"{name}.json")


@pytest.fixture(scope="module")
def system(experiment: Experiment) -> System:
    return zero_shot(experiment)


@pytest.fixture(scope="module")
def suite(system: System, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """Two tasks that are done."""
    output_dir = tmp_path_factory.mktemp("outputs")
    one = Suite(output_dir, system)
    return output_dir, one, one.run([mteb_tasks.InventedSTS(), mteb_tasks.InventedReranking()])


def test_each_task_is_evaluated_by_what_it_allows(suite: Evaluated) -> None:
    output_dir, one, results = suite
    assert one.reasons == []
    done = [("embedding", "InventedSTS"), ("reranking", "InventedReranking"), ("embedding", "InventedReranking")]
    assert [(result.task, result.dataset) for result in results] == done
    found = result(output_dir, "InventedSTS")
    assert (found.task_type, found.main_metric) == ("STS", "cosine_spearman")
    assert (found.per_query, found.per_query_metrics, found.unjudged_queries) == ({}, {}, [])
    assert found.aggregate.keys() == {"cosine_spearman"}
    written = {path.name for path in output_dir.rglob("InventedSTS*")}
    assert written == {"InventedSTS.json", "InventedSTS.mteb.json"}, "neither a run nor judgments"


def test_a_cross_encoders_result_has_the_tasks_candidates_and_instruction(suite: Evaluated, system: System) -> None:
    reranked, embedded = (result(suite[0], "InventedReranking", task) for task in ("reranking", "embedding"))
    own = (system.model and system.model.prompt) or ""
    assert (reranked.task_type, reranked.main_metric, reranked.identity.first_stage) == ("Reranking", "map", "mteb")
    assert reranked.first_stage is not None
    assert reranked.first_stage.aggregate == {}
    assert embedded.first_stage is None
    assert reranked.per_query.keys() == embedded.per_query.keys() == RANKED.qrels.keys()
    assert reranked.per_query != embedded.per_query
    assert len({reranked.identity.prompt, embedded.identity.prompt, own}) == 3
    assert (embedded.identity.prompt or "").partition("@")[0] == own.partition("@")[0]


def test_what_is_done_is_skipped_without_loading_its_data(suite: Evaluated, system: System) -> None:
    class NowhereToBeHad(mteb_tasks.InventedSTS):
        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            raise ConnectionError("no network")

    again, given = Suite(suite[0], system), mteb_tasks.loaded(mteb_tasks.InventedRetrieval)
    assert len(again.run([NowhereToBeHad(), given])) == 2
    assert (again.reasons, given.data_loaded) == ([], True)


@pytest.mark.parametrize(
    ("mteb", "embedded", "reranked"),
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
def test_a_result_is_done_for_its_own_prompts_alone(
    suite: Evaluated, experiment: Experiment, mteb: dict[str, Any], embedded: bool, reranked: bool
) -> None:
    system, store = zero_shot(with_evaluation(experiment, mteb=MTEBConfig(**mteb))), ResultStore(suite[0])
    assert store.is_done(describe(system, "embedding", mteb_tasks.InventedSTS())) is embedded
    assert store.is_done(describe(system, "reranking", mteb_tasks.InventedReranking())) is reranked


COLLECTION = invented(documents=18, queries=6)

TREC_EVAL = {
    "ndcg_at_5": ("ndcg@5", "ndcg_cut_5"),
    "ndcg_at_100": ("ndcg@100", "ndcg_cut_100"),
    "map_at_10": ("map@10", "map_cut_10"),
    "map_at_1000": ("map", "map_cut_1000"),
    "mrr_at_5": ("mrr@5", None),
    "recall_at_1": ("recall@1", "recall_1"),
    "accuracy": ("recall@1", "recall_1"),
    "precision_at_1": ("p@1", "P_1"),
    "hit_rate_at_5": ("Success@5", "success_5"),
}
"""MTEB's main scores that are means over queries, the name that results give each, and trec_eval's."""


class Chances(FunctionReranker):
    """A reranker whose scores depend on nothing that is relevant."""

    name, identity = "chances", "chances@1"

    def __init__(self) -> None:
        super().__init__(lambda pairs: [zlib.crc32("|".join(pair).encode()) / 2**24 for pair in pairs])


def task_of(main_score: str, ids: list[str], own: Callable[..., dict[str, Any]] | None = None) -> Any:
    """A reranking task whose queries have these ids, and which computes scores of its own."""
    names = dict(zip(COLLECTION.queries, ids, strict=True))
    named = replace(
        COLLECTION,
        queries={names[query]: text for query, text in COLLECTION.queries.items()},
        qrels={names[query]: grades for query, grades in COLLECTION.qrels.items()},
    )

    class Invented(mteb_tasks.InventedReranking):
        metadata = mteb_tasks.card("InventedScores", "Reranking", main_score)

        def held(self) -> dict[str, Any]:
            return {"default": {"test": split_data(named, dict.fromkeys(ids, dict.fromkeys(named.corpus, 0.0)))}}

        def task_specific_scores(self, scores: Any, qrels: Any, results: Any, *places: Any, **named: Any) -> Any:
            return own(self, scores, qrels, results) if own else {}

    return Invented()


def evaluated_by_chance(folder: Path, task: Any) -> EvalResult:
    suite = Suite(folder, System("chances", tiny_experiment(folder), stated_model(Chances())), ("reranking",))
    (found,) = suite.run([task])
    assert suite.reasons == []
    return found


@pytest.mark.parametrize("main_score", TREC_EVAL)
def test_the_main_metric_is_the_main_score_with_the_values_of_trec_eval(main_score: str, tmp_path: Path) -> None:
    found = evaluated_by_chance(tmp_path, task_of(main_score, list(COLLECTION.queries)))
    name, theirs = TREC_EVAL[main_score]
    assert found.main_metric == name
    assert found.aggregate[name] == fmean(found.per_query.values())
    assert round(found.aggregate[name], 5) == round(found.aggregate["main_score"], 5)
    assert len({*found.per_query.values()}) > 1
    if theirs:
        measure = theirs if theirs == "map" else ".".join(theirs.rsplit("_", 1))
        run = read_run(tmp_path / "chances/seed_none/runs/reranking/InventedScores.trec")
        qrels = whole_grades(read_qrels(tmp_path / "qrels/InventedScores-test.qrels"))
        values = pytrec_eval.RelevanceEvaluator(qrels, {measure}).evaluate(run)
        assert found.per_query == {query: one[theirs] for query, one in values.items()}
    assert {"ndcg@10", "mrr@10", "map", "recall@100"} <= {name, *found.per_query_metrics}


def merged(self: Any, scores: Any, qrels: Any, results: Any) -> Any:
    return max_over_subqueries(qrels, results, self.k_values)


def pairs(self: Any, scores: Any, qrels: Any, results: Any) -> Any:
    changed = {query: list(qrels[f"{query}-og"]) for query in ("a", "b", "c") if f"{query}-og" in qrels}
    return evaluate_p_mrr_change(qrels, results, changed, self.k_values)


GROUPED: Mapping[str, tuple[list[str], Callable[..., Any]]] = {
    "max_over_subqueries_map_at_1000": ([f"u_{one}_{part}" for one in "abc" for part in "01"], merged),
    "paired_accuracy": (
        [f"{one}_q{part}" for one in "abc" for part in "12"],
        lambda _, scores, qrels, results: {"paired_accuracy": paired_accuracy(qrels, results, scores)},
    ),
    "robustness_at_10": (
        [f"{one}_{part}" for one in "abc" for part in "01"],
        lambda _, scores, qrels, results: {"robustness_at_10": robustness_at_10(qrels, results, scores)},
    ),
    "p-MRR": ([f"{one}-{part}" for one in "abc" for part in ("og", "changed")], pairs),
}
"""Main scores over groups of queries, with ids of three groups and what MTEB's task computes."""


@pytest.mark.parametrize("main_score", GROUPED)
def test_a_main_score_over_groups_of_queries_has_a_value_for_each_group(main_score: str, tmp_path: Path) -> None:
    ids, own = GROUPED[main_score]
    found = evaluated_by_chance(tmp_path, task_of(main_score, ids, own))
    assert found.main_metric == main_score
    assert len(found.per_query) == 3
    assert found.aggregate[main_score] == pytest.approx(fmean(found.per_query.values()), abs=1e-15)
    rounded = 5 if main_score.startswith("max") else 15  # MTEB rounds the mean
    assert round(found.aggregate[main_score], rounded) == round(found.aggregate["main_score"], rounded)
    assert found.aggregate["ndcg@10"] > 0  # of all queries, beside it
    path = result_path(tmp_path, "chances", None, "reranking", "InventedScores")
    details = read_query_details(path, found.per_query)
    assert all(" | " in detail.text and detail.ranks.keys() == detail.relevant.keys() for detail in details.values())


def test_every_main_score_of_mtebs_tasks_of_text_is_known() -> None:
    from unimoe.evaluation.mteb.main_scores import main_metric

    ranking = (task for task in mteb.get_tasks() if isinstance(task, AbsTaskRetrieval))
    text = [task for task in ranking if list(task.metadata.modalities) == ["text"]]
    names = {task.metadata.main_score: main_metric(task) for task in text}
    assert [main for main, name in names.items() if name == "ndcg@10"] == ["ndcg_at_10"]
    assert names["max_over_subqueries_map_at_1000"] == "max_over_subqueries_map_at_1000"
