"""Heads in a study: choice, gate, tables, memory, pairs of seeds, the front of two objectives, the grid's map."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.heads import topics_folder, toy_config, toy_data
from torch import Tensor

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
from unimoe.studies.heads.front import chosen_on_front, front_of, mean_diversity
from unimoe.studies.heads.grid import heat_map
from unimoe.studies.heads.memory import step_peak_bytes
from unimoe.studies.heads.model import evaluate_head
from unimoe.studies.heads.pools import Batch

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


def family_of(finished: Finished) -> HeadFamily:
    assert isinstance(finished[0].family, HeadFamily)
    return finished[0].family


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


class TestGate:
    def test_it_is_the_one_that_the_analysis_judges(self, finished: Finished) -> None:
        results = load_all_results(finished[0].family.root)
        registration = Analysis(results).registration
        assert registration is not None
        (outcome,) = judge_all(results, registration)
        key = results.dataset_keys[0]
        arms = [results.scores(arm, key, [0, 1]).mean() for arm in ("eggroll", "infonce")]
        assert outcome.found.value == pytest.approx(arms[0] - arms[1])  # type: ignore[union-attr]
        # No result is older than the gate. Neither head leaves its start, so that the seeds of each are one run.
        assert all("they are one run" in note for note in outcome.notes)  # type: ignore[union-attr]

    def test_it_comes_too_late_where_there_are_results(
        self, base: TrainConfig, data: HeadData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        own = base.model_copy(update={"output_dir": str(tmp_path)})
        result = tmp_path / "other" / "seed_0" / "results" / "reranking" / "x.json"
        result.parent.mkdir(parents=True)
        result.write_text("{}")
        runner_of(own, data, ["infonce", "eggroll"], settings=1, seeds=1).run()
        assert not (tmp_path / "gates.yaml").exists()
        assert "too late to register" in capsys.readouterr().err

    def test_a_caveat_that_comes_later_reaches_finished_results(
        self, base: TrainConfig, data: HeadData, tmp_path: Path
    ) -> None:
        own = base.model_copy(update={"output_dir": str(tmp_path)})
        for caveats in ([], ["unfit"]):
            runner_of(own, data, ["zero_shot", "infonce"], settings=1, seeds=1, caveats=caveats).run()
            assert {tuple(r.caveats) for r in load_all_results(tmp_path).results} == {tuple(caveats)}


class TestTable:
    def test_numbers_are_those_of_the_results(self, finished: Finished) -> None:
        runner, chosen = finished
        results = with_noise(load_all_results(runner.family.root))
        key = results.dataset_keys[0]
        table = study_table(runner.family, results, chosen, key.partition("/")[2])
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

    def test_seeds_of_a_longer_study_are_left_out(self, finished: Finished, base: TrainConfig, data: HeadData) -> None:
        runner, chosen = finished
        results = with_noise(load_all_results(runner.family.root))
        shorter = runner_of(base, data, METHODS, seeds=[1])
        cell = rows_of(study_table(shorter.family, results, chosen, shorter.family.datasets[0]))["infonce"]["nDCG@10"]
        assert cell.value == pytest.approx(100 * results.scores("infonce", results.dataset_keys[0], [1]).mean())
        assert "±" not in cell.text + cell.spread

    def test_train_and_gap(self, finished: Finished, data: HeadData) -> None:
        runner, chosen = finished
        table = study_table(runner.family, load_all_results(runner.family.root), chosen, runner.family.datasets[0])
        cells, train = rows_of(table)["infonce"], []
        for seed in (0, 1):
            trainer: Any = runner.trained("infonce", chosen["infonce"].config, seed)
            train.append(100 * evaluate_head(trainer.head()[0], data.train, trainer.config).aggregate["ndcg@10"])
        assert cells["train"].value == pytest.approx(np.mean(train))
        assert cells["gap"].value == pytest.approx(float(np.mean(train)) - cells["nDCG@10"].value)

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
    def test_work_is_counted_in_forward_passes(self, base: TrainConfig, settings: dict[str, Any], passes: int) -> None:
        assert forward_passes(TrainConfig.model_validate(base.model_dump() | settings)) == passes


class TestChoice:
    def test_it_is_the_best_on_dev_with_a_seed_that_is_not_reported(self, finished: Finished) -> None:
        for name in ("infonce", "eggroll"):
            choice = finished[1][name]
            assert choice.dev == max(facts["val"] for facts in choice.tried.values())
            assert choice.tried[choice.setting.name]["val"] == choice.dev
        assert {p.parent.parent.name for p in (finished[0].family.root / "tuning").rglob("head.*")} == {"seed_105"}

    def test_no_tuning_leaves_a_test_score_anywhere(self, finished: Finished) -> None:
        files = [*(finished[0].family.root / "tuning").rglob("*")]
        assert not [path for path in files if path.suffix == ".trec" or "results" in path.parts]

    def test_an_arm_with_diversity_is_chosen_on_the_front(self, finished: Finished) -> None:
        runner, choice = finished[0], finished[1]["eggroll_objectives"]
        points = [(one["val"], one["diversity"]) for one in choice.tried.values()]
        place = chosen_on_front(points, runner.study.give_up)
        assert [*choice.tried][place] == choice.setting.name
        configs = [config for _, config in runner.tuned["eggroll_objectives"]]
        near = [{"val": 0.5, "diversity": 0.1}, {"val": 0.495, "diversity": 0.9}]
        assert runner.family.choose(configs, near) == 1
        assert runner.family.choose([finished[1]["eggroll"].config] * 2, near) == 0


class TestOverlap:
    def test_scores_are_means_over_each_part(self, finished: Finished, data: HeadData) -> None:
        """Training queries of half the topics only: the rest of the test queries looks for new documents."""
        some = {q: g for q, g in data.splits.train.qrels.items() if int(q[-2:]) % 2}
        splits = data.splits._replace(train=replace(data.splits.train, qrels=some))
        results = load_all_results(finished[0].family.root)
        known = known_queries(splits)
        trained = {d for grades in some.values() for d, g in grades.items() if g > 0}
        assert known == sorted(q for q, grades in data.splits.test.qrels.items() if trained & set(grades))
        assert 0 < len(known) < len(splits.test.qrels)
        cells = rows_of(overlap_table(family_of(finished), results, splits, METHODS))["infonce"]
        scores = [results.result("infonce", s, results.dataset_keys[0]).per_query for s in (0, 1)]  # type: ignore[union-attr]
        for column, inside in (("known", True), ("new", False)):
            mean = np.mean([[v for q, v in s.items() if (q in known) == inside] for s in scores])
            assert cells[column].value == pytest.approx(100 * mean)

    def test_without_any_new_document_there_is_nothing_to_say(self, finished: Finished, data: HeadData) -> None:
        results = load_all_results(finished[0].family.root)
        table = overlap_table(family_of(finished), results, data.splits, METHODS)
        assert {cell.text for row in table.groups[0].rows for cell in row[5:]} == {"–"}
        assert overlap_table(family_of(finished), results, data.splits, METHODS[1:]).columns == ("arm", "known", "new")


class TestMemory:
    def test_a_known_allocation_is_measured(self) -> None:
        class Allocates:
            kept: Tensor | None = None

            def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
                if self.kept is None:
                    self.kept = torch.ones(250_000)  # a megabyte that stays
                temporary = torch.ones(1_000_000)
                return weight + temporary.sum() * 0, {"loss": 0.0}

            def state(self) -> dict[str, Tensor]:
                return {}

            def load_state(self, state: dict[str, Tensor]) -> None: ...

        one = torch.ones(1)
        empty = Batch(places=[], queries=one, documents=one, valid=one, grades=one, ranks=one)
        peak = step_peak_bytes(Allocates(), torch.ones(2, 2), empty)
        assert 4.9e6 <= peak <= 5.1e6  # small tensors of before may be freed meanwhile

    def test_memory_that_is_older_than_the_step_is_no_warning(self) -> None:
        """What torch's profiler says of it on stderr would come between the lines of a comparison."""
        done = subprocess.run([sys.executable, "-c", _FREES_OLD_MEMORY], capture_output=True, text=True, check=True)
        assert done.stderr == ""


class TestFront:
    def test_diversity_by_hand(self, data: HeadData, base: TrainConfig) -> None:
        """The mean over pairs of the first ten of one minus the cosine of what the encoder made of them."""
        dev, weight = data.dev, torch.eye(data.dev.queries.shape[1])
        values = []
        for place in range(len(dev)):
            documents = dev.documents[dev.rows[place]]
            order = (documents @ dev.queries[place]).argsort(descending=True)[:10]
            cosines = (documents[order] @ documents[order].T)[torch.triu(torch.ones(10, 10), 1) > 0]
            values.append(float(1 - cosines.mean()))
        assert mean_diversity(weight, dev, base) == pytest.approx(np.mean(values), abs=1e-5)

    def test_the_most_diverse_that_gives_up_little_is_chosen(self) -> None:
        points = [(0.50, 0.1), (0.495, 0.3), (0.494, 0.2), (0.40, 0.9), (0.495, 0.3)]
        assert chosen_on_front(points, 0.01) == 1  # the third is behind it, the fourth too far down
        assert chosen_on_front(points, 0.0) == 0
        assert chosen_on_front(points, 1.0) == 3

    def test_table_and_figure(self, finished: Finished, tmp_path: Path) -> None:
        chosen = {name: finished[1][name] for name in ("eggroll", "eggroll_objectives")}
        table, figure = front_of(chosen, "c", 10, tmp_path)
        rows = table.groups[0].rows
        assert len(rows) == 4
        front = [(row[1].value, row[2].value) for row in rows if row[3].text == "yes"]
        others = [(row[1].value, row[2].value) for row in rows if row[3].text == ""]
        assert front
        assert all(any(f[0] >= o[0] and f[1] >= o[1] for f in front) for o in others)  # type: ignore[operator]
        assert figure.exists()

    def test_the_map_of_a_grid_has_a_panel_per_size_and_population(self) -> None:
        scores: dict[tuple[float, ...], float] = {
            (s, p, r, n): s * p * r * n for s in (8, 16) for p in (4, 8) for r in (0.1, 0.2) for n in (0.1, 0.3)
        }
        panels = heat_map(scores, "x").axes
        assert [axes.get_title(loc="left") for axes in panels[:4]] == [
            f"head {size}, population {population}" for size in (8, 16) for population in (4, 8)
        ]


class TestPairing:
    """Seeds pair where a seed gives two methods the same first weights and the same order of queries."""

    def test_trainings_of_one_seed_share_both(self, finished: Finished) -> None:
        runner, chosen = finished
        first, second = (runner.trained(name, chosen[name].config, 1) for name in ("infonce", "eggroll"))
        assert torch.equal(first.initial(), second.initial())  # type: ignore[attr-defined]
        assert [first.batch(s) for s in range(5)] == [second.batch(s) for s in range(5)]  # type: ignore[attr-defined]

    def test_results_declare_it_but_for_the_recipe_with_other_first_weights(
        self, base: TrainConfig, data: HeadData, tmp_path: Path
    ) -> None:
        own = base.model_copy(update={"output_dir": str(tmp_path), "head_output_size": 8})
        runner = runner_of(own, data, ["infonce", "seed_recipe"], settings=1, seeds=1)
        runner.run()
        results = load_all_results(tmp_path)
        key = results.dataset_keys
        assert results.seeds_pair(("infonce",), key)
        assert not results.seeds_pair(("infonce", "seed_recipe"), key)


_FREES_OLD_MEMORY = """
from unimoe.cli.options import quiet_libraries
quiet_libraries()
import torch
from unimoe.studies.heads.memory import step_peak_bytes
old = [torch.ones(1000)]

class Frees:
    def step(self, weight, batch, step):
        old.clear()
        return weight, {"loss": 0.0}

step_peak_bytes(Frees(), torch.ones(2, 2), None)
"""
