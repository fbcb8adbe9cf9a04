"""Heads in a study: choice, gate, tables, memory, pairs of seeds, the grid's map."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.heads import topics_folder, toy_config, toy_data

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.comparisons import difference
from unimoe.analysis.gates.judging import judge_all
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.tables import Table
from unimoe.results.folder import Results, load_all_results
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import Chosen, load_study
from unimoe.studies.common.table import study_table
from unimoe.studies.heads.config import TrainConfig, forward_passes
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.family import HeadFamily, known_queries, overlap_table

METHODS = ["zero_shot", "infonce", "eggroll", "eggroll_objectives"]
Finished = tuple[StudyRunner, dict[str, Chosen]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    root = tmp_path_factory.mktemp("comparison")
    return toy_config(topics_folder(root / "c"), root / "out", num_steps=6, eval_every=3, population_size=8)


@pytest.fixture(scope="module")
def data(base: TrainConfig) -> HeadData:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIMOE_CACHE", str(Path(base.output_dir).with_name("cache")))
        return toy_data(base)


def runner_of(base: TrainConfig, data: HeadData, methods: list[str], **changes: Any) -> StudyRunner:
    keys = base.model_dump(mode="json", exclude={"output_dir"})
    options = {"base": keys, "output_dir": base.output_dir, "settings": 2, "seeds": 2, **changes}
    family = HeadFamily(load_study(Path("studies/heads_compare"), [], options).of_arms(methods), torch.device("cpu"))
    family.__dict__["data"] = data
    return StudyRunner(family)


@pytest.fixture(scope="module")
def finished(base: TrainConfig, data: HeadData) -> Finished:
    runner = runner_of(base, data, METHODS)
    return runner, runner.run()


def with_noise(results: Results) -> Results:
    """The same with other scores by query: so short a training changes no ranking."""
    rng = np.random.default_rng(0)
    changed = [
        r.model_copy(update={"per_query": {q: float(rng.uniform(0.2, 0.8)) for q in sorted(r.per_query)}})
        for r in results.results
    ]
    return Results(results.output_dir, changed)


def rows_of(table: Table) -> dict[str, dict[str, Any]]:
    return {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.groups[0].rows}


def test_the_gate_is_the_one_that_the_analysis_judges(finished: Finished) -> None:
    results = load_all_results(finished[0].family.root)
    registration = Analysis(results).registration
    assert registration is not None
    (outcome,) = judge_all(results, registration)
    key = results.dataset_keys[0]
    arms = [results.scores(arm, key, [0, 1]).mean() for arm in ("eggroll", "infonce")]
    assert outcome.found.value == pytest.approx(arms[0] - arms[1])  # type: ignore[union-attr]


def test_a_gate_comes_too_late_where_there_are_results_and_a_later_caveat_reaches_them(
    base: TrainConfig, data: HeadData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = base.model_copy(update={"output_dir": str(tmp_path)})
    for caveats, arms in (([], ["infonce"]), (["unfit"], ["infonce", "eggroll"])):
        runner_of(own, data, arms, settings=1, seeds=1, caveats=caveats).run()
        assert {tuple(result.caveats) for result in load_all_results(tmp_path).results} == {tuple(caveats)}
    assert not (tmp_path / "gates.yaml").exists()
    assert "too late to register" in capsys.readouterr().err


def test_numbers_of_the_table_are_those_of_the_results(finished: Finished, base: TrainConfig, data: HeadData) -> None:
    runner, chosen = finished
    results = with_noise(load_all_results(runner.family.root))
    key = results.dataset_keys[0]
    table = study_table(runner.family, results, chosen, key)
    rows, scores = rows_of(table), {}
    assert [*rows] == METHODS, "the pools are the encoder's own, so that there is no first stage"
    for name in METHODS:
        scores[name] = results.scores(name, key, results.seeds(name, key) or [None])
        assert rows[name]["nDCG@10"].value == pytest.approx(100 * scores[name].mean())
    asked = [(n, b) for b in ("infonce", "zero_shot") for n in METHODS if n != b]
    found = [difference(scores[n], scores[b], paired="zero_shot" not in (n, b)) for n, b in asked]
    assert not any(unfit for _, unfit in found)
    for (name, other), (each, _), p in zip(asked, found, holm([one.p or 0.0 for one, _ in found]), strict=True):
        assert rows[name]["p" if other == "infonce" else "p "].value == pytest.approx(p)
        assert rows[name][f"vs {other}"].value == pytest.approx(100 * each.value)
    assert rows["infonce"]["p"].value is None
    assert "corrected by Holm over all differences of this table" in " ".join(table.notes)
    assert rows["zero_shot"]["s"].value is None
    assert rows["eggroll"]["weights kB"].value == round(4 * 16 * 24 / 1e3)
    assert rows["eggroll"]["passes"].value == 6 * 8
    shorter = runner_of(base, data, METHODS, seeds=[1])  # the other seed's results are left out
    cell = rows_of(study_table(shorter.family, results, chosen, shorter.family.keys[0]))["infonce"]["nDCG@10"]
    assert cell.value == pytest.approx(100 * results.scores("infonce", key, [1]).mean())
    assert "±" not in cell.text + cell.spread


def test_the_choice_is_the_best_on_dev_with_a_seed_that_is_not_reported(finished: Finished) -> None:
    for name in ("infonce", "eggroll"):
        choice = finished[1][name]
        assert choice.tried[choice.setting.name]["val"] == max(facts["val"] for facts in choice.tried.values())
    files = [*(finished[0].family.root / "tuning").rglob("*")]
    assert {path.parent.parent.name for path in files if path.name.startswith("head.")} == {"seed_105"}
    assert not [path for path in files if path.suffix == ".trec" or "results" in path.parts], "no score on test"


def test_an_arm_with_diversity_is_chosen_on_the_front(finished: Finished) -> None:
    """The most diverse that gives up little: the third is behind the second, the fourth too far down."""
    runner = finished[0]
    configs = [runner.tuned["eggroll_objectives"][0][1]] * 5
    points = [(0.50, 0.1), (0.495, 0.3), (0.494, 0.2), (0.40, 0.9), (0.495, 0.3)]
    found = [{"val": relevance, "diversity": diversity} for relevance, diversity in points]
    assert runner.family.choose(configs, found) == 1
    for give_up, place in ((0.0, 0), (1.0, 3)):
        family = HeadFamily(runner.study.model_copy(update={"give_up": give_up}), torch.device("cpu"))
        assert family.choose(configs, found) == place
    assert runner.family.choose([finished[1]["eggroll"].config] * 5, found) == 0


def test_scores_on_known_and_new_documents_are_means_over_each_part(finished: Finished, data: HeadData) -> None:
    """Training queries of half the topics only: the rest of the test queries looks for new documents."""
    some = {q: g for q, g in data.splits.train.qrels.items() if int(q[-2:]) % 2}
    splits = data.splits._replace(train=replace(data.splits.train, qrels=some))
    family, results = finished[0].family, load_all_results(finished[0].family.root)
    assert isinstance(family, HeadFamily)
    known = known_queries(splits)
    trained = {d for grades in some.values() for d, g in grades.items() if g > 0}
    assert known == sorted(q for q, grades in data.splits.test.qrels.items() if trained & set(grades))
    assert 0 < len(known) < len(splits.test.qrels)
    cells = rows_of(overlap_table(family, results, splits, METHODS))["infonce"]
    scores = [results.result("infonce", s, results.dataset_keys[0]).per_query for s in (0, 1)]  # type: ignore[union-attr]
    for column, inside in (("known", True), ("new", False)):
        mean = np.mean([[v for q, v in s.items() if (q in known) == inside] for s in scores])
        assert cells[column].value == pytest.approx(100 * mean)
    table = overlap_table(family, results, data.splits, METHODS)  # no new document: nothing to say
    assert {cell.text for row in table.groups[0].rows for cell in row[5:]} == {"–"}
    assert overlap_table(family, results, data.splits, METHODS[1:]).columns == ("arm", "known", "new")


def test_seeds_pair_where_methods_share_first_weights_and_the_order_of_queries(
    finished: Finished, base: TrainConfig, data: HeadData, tmp_path: Path
) -> None:
    runner, chosen = finished
    first, second = (runner.trained(name, chosen[name].config, 1) for name in ("infonce", "eggroll"))
    assert torch.equal(first.initial(), second.initial())  # type: ignore[attr-defined]
    assert [first.batch(s) for s in range(5)] == [second.batch(s) for s in range(5)]  # type: ignore[attr-defined]
    own = base.model_copy(update={"output_dir": str(tmp_path), "head_output_size": 8})
    runner_of(own, data, ["infonce", "seed_recipe"], settings=1, seeds=1).run()
    results = load_all_results(tmp_path)
    assert results.seeds_pair(("infonce",), results.dataset_keys)
    assert not results.seeds_pair(("infonce", "seed_recipe"), results.dataset_keys), "it has its own first weights"


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({"method": "zero_shot"}, 0),
        ({"method": "infonce"}, 6),
        ({"method": "score_es"}, 6),
        ({"method": "eggroll", "population_size": 4096}, 6 * 4096),
        ({"method": "genetic", "genetic": {"individuals": 16, "elites": 2}}, 6 * 16),
        ({"method": "hybrid", "handoff": 2, "population_size": 8}, 2 * 8 + 4),
    ],
)
def test_work_is_counted_in_forward_passes(base: TrainConfig, settings: dict[str, Any], passes: int) -> None:
    assert forward_passes(TrainConfig.model_validate(base.model_dump() | settings)) == passes
