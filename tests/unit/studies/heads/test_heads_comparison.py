"""The parts of the comparison: settings, gate, table, memory, noise on weights, grid, Pareto front."""

from __future__ import annotations

import math
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
from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import DataError
from unimoe.results.folder import Results, load_all_results
from unimoe.studies.heads.compare import search
from unimoe.studies.heads.compare.arms import ARMS, Comparison, changed
from unimoe.studies.heads.compare.flatness import disturbed, flatness_table, robustness
from unimoe.studies.heads.compare.front import chosen_on_front, mean_diversity
from unimoe.studies.heads.compare.memory import step_peak_bytes
from unimoe.studies.heads.compare.methods import Chosen, MethodComparison, register_gate
from unimoe.studies.heads.compare.pareto import pareto
from unimoe.studies.heads.compare.table import known_queries, method_table, overlap_table
from unimoe.studies.heads.compare.testing import shares_seeds
from unimoe.studies.heads.config import SoftLabelConfig, TrainConfig, forward_passes
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.eggroll.soft_labels import soften
from unimoe.studies.heads.model import evaluate_head
from unimoe.studies.heads.pools import Batch
from unimoe.studies.heads.trainer import HeadTrainer

VOTES = SoftLabelConfig(voters=["bm25", BUNDLED_ENCODER], top_k=3)
METHODS = ["zero_shot", "infonce", "eggroll", "eggroll_objectives"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("comparison")
    topics_folder(root / "c")
    return root


@pytest.fixture(scope="module")
def base(place: Path) -> TrainConfig:
    return toy_config(place / "c", place / "out", num_steps=6, eval_every=3, population_size=8)


@pytest.fixture(scope="module")
def data(place: Path, base: TrainConfig) -> HeadData:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIMOE_CACHE", str(place / "cache"))
        return toy_data(base)


@pytest.fixture(scope="module")
def finished(base: TrainConfig, data: HeadData) -> tuple[MethodComparison, dict[str, Chosen]]:
    comparison = Comparison(base=base, methods=METHODS, settings=2, seeds=[0, 1])
    compared = MethodComparison(comparison, data)
    return compared, compared.run()


Finished = tuple[MethodComparison, dict[str, Chosen]]


class TestSoftLabels:
    def test_those_of_the_base_count_once(self, base: TrainConfig, data: HeadData, tmp_path: Path) -> None:
        """Each arm has its own votes, on the judgments of the collection."""
        own = base.model_copy(update={"output_dir": str(tmp_path), "soft_labels": VOTES})
        compared = MethodComparison(Comparison(base=own, methods=["eggroll", "eggroll_soft_labels"], settings=1), data)
        for name, top_k in (("eggroll", 3), ("eggroll_soft_labels", 20)):
            found = compared.tuned(name)[0][1].data
            settings = VOTES.model_copy(update={"top_k": top_k})
            pools, changed = soften(data.train, data.splits, base.model_copy(update={"soft_labels": settings}))
            assert found.soft_labels == changed > 0
            assert torch.equal(found.train.grades, pools.grades)
            assert [grades.tolist() for grades in found.train.judged] == [grades.tolist() for grades in pools.judged]


class TestGate:
    def test_it_is_the_one_that_the_analysis_judges(self, finished: Finished) -> None:
        results = load_all_results(finished[0].output_dir)
        registration = Analysis(results).registration
        assert registration is not None
        assert registration.path == finished[0].output_dir / "gates.yaml"
        (outcome,) = judge_all(results, registration)
        key = results.dataset_keys[0]
        arms = [results.scores(arm, key, [0, 1]).mean() for arm in ("eggroll", "infonce")]
        assert outcome.found.value == pytest.approx(arms[0] - arms[1])  # type: ignore[union-attr]
        assert results.seeds_pair(("eggroll", "infonce"), [key])
        notes = outcome.notes  # type: ignore[union-attr]
        # No result is older than the gate. Neither head leaves its start, so that the seeds of each are one run.
        assert [note.partition(" seed ")[0] for note in notes] == ["eggroll", "infonce"]
        assert all("they are one run" in note for note in notes)

    def test_a_caveat_that_comes_later_reaches_finished_results(
        self, base: TrainConfig, data: HeadData, tmp_path: Path
    ) -> None:
        own = base.model_copy(update={"output_dir": str(tmp_path)})
        for caveats in ([], ["unfit"]):
            comparison = Comparison(base=own, methods=["zero_shot", "infonce"], settings=1, seeds=[0], caveats=caveats)
            MethodComparison(comparison, data).run()
            assert {tuple(r.caveats) for r in load_all_results(tmp_path).results} == {tuple(caveats)}

    def test_other_gates_are_refused(self, finished: Finished) -> None:
        other = finished[0].comparison.model_copy(update={"margin": 0.05})
        with pytest.raises(DataError, match="registers another gate"):
            register_gate(other, finished[0].output_dir)

    def test_it_comes_too_late_where_there_are_results(
        self, finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        place = tmp_path / "eggroll" / "seed_0" / "results" / "reranking"
        place.mkdir(parents=True)
        (place / "x.json").write_text("{}")
        register_gate(finished[0].comparison, tmp_path)
        assert not (tmp_path / "gates.yaml").exists()
        assert "too late to register" in capsys.readouterr().err


def with_noise(results: Results) -> Results:
    """The same with other scores by query."""
    rng = np.random.default_rng(0)
    changed = [
        r.model_copy(update={"per_query": {q: float(rng.uniform(0.2, 0.8)) for q in sorted(r.per_query)}})
        for r in results.results
    ]
    return Results(results.output_dir, changed)


class TestTable:
    def test_numbers_are_those_of_the_results(self, finished: Finished) -> None:
        compared, chosen = finished
        results = with_noise(load_all_results(compared.output_dir))  # so short a training changes no ranking
        table = method_table(results, compared.comparison, chosen, [])
        rows = {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.groups[0].rows}
        assert [*rows] == METHODS
        key = results.dataset_keys[0]
        scores = {name: results.scores(name, key, results.seeds(name, key) or [None]) for name in METHODS}
        for name in METHODS:
            assert rows[name]["test"].value == pytest.approx(100 * scores[name].mean())
        asked = [(n, b) for b in ("infonce", "zero_shot") for n in METHODS if n != b]
        found = {
            (name, other): difference(scores[name], scores[other], paired="zero_shot" not in (name, other))
            for name, other in asked
        }
        tested = [pair for pair in asked if not found[pair][1]]
        assert tested == asked
        p_values = holm([found[pair][0].p or 0.0 for pair in tested])
        for (name, other), p in zip(tested, p_values, strict=True):
            assert rows[name]["p" if other == "infonce" else "p "].value == pytest.approx(p)
            assert rows[name]["vs InfoNCE" if other == "infonce" else "vs zero-shot"].value == pytest.approx(
                100 * found[name, other][0].value
            )
        assert rows["infonce"]["p"].value is None
        assert "corrected by Holm over all differences of this table" in " ".join(table.notes)
        assert rows["zero_shot"]["s"].value is None
        assert rows["eggroll"]["weights kB"].value == round(4 * 16 * 24 / 1e3)

    def test_there_are_no_columns_against_an_arm_that_is_not_there(self, finished: Finished, data: HeadData) -> None:
        compared, chosen = finished
        results = load_all_results(compared.output_dir)
        for left_out in ("zero_shot", "infonce"):
            there = {name: one for name, one in chosen.items() if name != left_out}
            columns = " ".join(method_table(results, compared.comparison, there, []).columns)
            assert ("vs zero-shot" in columns) == (left_out == "infonce")
            assert ("vs InfoNCE" in columns) == (left_out == "zero_shot")
            assert columns.count("interval ") == 1 + 1
        trained = overlap_table(results, compared.comparison, data.splits, ["infonce", "eggroll"])
        assert trained.columns == ("method", "known", "new")
        assert {len(row) for row in trained.groups[0].rows} == {3}
        alone = method_table(results, compared.comparison, {"infonce": chosen["infonce"]}, [])
        assert "vs" not in " ".join(alone.columns)

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

    def test_train_and_gap(self, finished: Finished, data: HeadData) -> None:
        compared, chosen = finished
        table = method_table(load_all_results(compared.output_dir), compared.comparison, chosen, [])
        row = next(row for row in table.groups[0].rows if row[0].text == "infonce")
        cells = dict(zip(table.columns, row, strict=True))
        train = []
        for seed in (0, 1):
            trainer = compared.trainer("infonce", chosen["infonce"].config, seed)
            train.append(100 * evaluate_head(trainer.head()[0], data.train, trainer.config).aggregate["ndcg@10"])
        assert cells["train"].value == pytest.approx(np.mean(train))
        assert cells["gap"].value == pytest.approx(float(np.mean(train)) - (cells["test"].value or math.nan))

    def test_the_setting_is_the_best_on_dev(self, finished: Finished) -> None:
        for name, choice in finished[1].items():
            if choice.tried:
                best = max(choice.tried, key=lambda tried: tried["val"])
                assert {key: best[key] for key in choice.setting} == choice.setting, name

    def test_dev_is_the_score_of_the_chosen_setting(self, finished: Finished) -> None:
        """The setting that is chosen on the front is not always the most relevant one."""
        compared, chosen = finished
        less = replace(chosen["eggroll_objectives"], dev=0.25)
        table = method_table(
            load_all_results(compared.output_dir), compared.comparison, {"eggroll_objectives": less}, []
        )
        assert table.groups[0].rows[0][table.columns.index("dev")].value == 25.0
        assert compared._best([{"val": 0.5, "dev_diversity": 0.1}, {"val": 0.495, "dev_diversity": 0.9}]) == 1
        for choice in chosen.values():
            of_setting = [t["val"] for t in choice.tried if {**t, **choice.setting} == t]
            assert [choice.dev] == (of_setting or [None])

    def test_seeds_of_a_longer_comparison_are_left_out(self, finished: Finished, data: HeadData) -> None:
        compared, chosen = finished
        results = with_noise(load_all_results(compared.output_dir))
        shorter = compared.comparison.model_copy(update={"seeds": [1]})
        for table in (
            method_table(results, shorter, chosen, []),
            overlap_table(results, shorter, data.splits, METHODS),
        ):
            row = next(row for row in table.groups[0].rows if row[0].text == "infonce")
            cell = dict(zip(table.columns, row, strict=True))["test" if table.name == "methods" else "known"]
            assert cell.value == pytest.approx(100 * results.scores("infonce", results.dataset_keys[0], [1]).mean())
            assert "±" not in cell.text


class TestOverlap:
    def test_known_documents_by_hand(self, data: HeadData) -> None:
        known = known_queries(data.splits)
        trained = {d for grades in data.splits.train.qrels.values() for d, g in grades.items() if g > 0}
        assert known == sorted(q for q, grades in data.splits.test.qrels.items() if trained & set(grades))

    def test_scores_are_means_over_each_part(self, finished: Finished, data: HeadData) -> None:
        """Training queries of half the topics only: the rest of the test queries looks for new documents."""
        compared, _ = finished
        some = {q: g for q, g in data.splits.train.qrels.items() if int(q[-2:]) % 2}
        splits = data.splits._replace(train=replace(data.splits.train, qrels=some))
        results = load_all_results(compared.output_dir)
        table = overlap_table(results, compared.comparison, splits, METHODS)
        key, known = results.dataset_keys[0], set(known_queries(splits))
        assert 0 < len(known) < len(splits.test.qrels)
        scores = [results.result("infonce", seed, key).per_query for seed in (0, 1)]  # type: ignore[union-attr]
        row = next(row for row in table.groups[0].rows if row[0].text == "infonce")
        cells = dict(zip(table.columns, row, strict=True))
        for column, inside in (("known", True), ("new", False)):
            mean = np.mean([[v for q, v in s.items() if (q in known) == inside] for s in scores])
            assert cells[column].value == pytest.approx(100 * mean)

    def test_without_any_new_document_there_is_nothing_to_say(self, finished: Finished, data: HeadData) -> None:
        compared, _ = finished
        table = overlap_table(load_all_results(compared.output_dir), compared.comparison, data.splits, METHODS)
        assert {cell.text for row in table.groups[0].rows for cell in row[5:]} == {"–"}


def test_the_test_queries_are_scored_by_a_finished_training_alone(finished: Finished, data: HeadData) -> None:
    """No tuning leaves a test score anywhere."""
    files = [*(finished[0].output_dir / "tuning").rglob("*")]
    assert not [path for path in files if path.suffix in (".trec",) or "results" in path.parts]


class TestMemory:
    def test_a_known_allocation_is_measured(self) -> None:
        class Allocates:
            kept: Tensor | None = None

            def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
                if self.kept is None:
                    self.kept = torch.ones(250_000)  # a megabyte that stays
                temporary = torch.ones(1_000_000)  # four that go
                return weight + temporary.sum() * 0, {"loss": 0.0}

            def state(self) -> dict[str, Tensor]:
                return {}

            def load_state(self, state: dict[str, Tensor]) -> None: ...

        one = torch.ones(1)
        empty = Batch(places=[], queries=one, documents=one, valid=one, grades=one, ranks=one)
        peak = step_peak_bytes(Allocates(), torch.ones(2, 2), empty)
        assert 4.9e6 <= peak <= 5.1e6  # small tensors of before may be freed meanwhile


class TestFlatness:
    def test_noise_has_the_size_that_was_asked_for(self) -> None:
        weight = torch.randn(8, 16)
        for size in (0.01, 0.3):
            assert ((disturbed(weight, size, 0) - weight).norm() / weight.norm()).item() == pytest.approx(
                size, rel=1e-4
            )
        assert not torch.equal(disturbed(weight, 0.1, 0), disturbed(weight, 0.1, 1))

    def test_without_noise_it_is_the_head_and_with_more_it_is_less(
        self, data: HeadData, base: TrainConfig, tmp_path: Path
    ) -> None:
        changes = {"method": "infonce", "num_steps": 40, "learning_rate": 1e-2, "output_dir": str(tmp_path)}
        trainer = HeadTrainer(changed(base, changes), data)
        trainer.fit()
        weight, _ = trainer.head()
        found = robustness(weight, data.train, trainer.config, draws=2)
        expected = evaluate_head(weight, data.train, trainer.config).aggregate["ndcg@10"]
        assert found[0.0][0] == pytest.approx(expected, abs=1e-12)
        assert found[0.3][0] < found[0.0][0]
        assert found[0.3][1] > found[0.0][1]

    def test_table(self, finished: Finished) -> None:
        table = flatness_table(*finished)
        assert [group.heading for group in table.groups] == ["train queries", "test queries"]
        assert [row[0].text for row in table.groups[0].rows] == METHODS[1:]


def test_grid(base: TrainConfig, data: HeadData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, values in {"SIGMAS": (0.1, 0.3), "POPULATIONS": (4, 8), "RATES": (1e-3,), "SIZES": (8, 16)}.items():
        monkeypatch.setattr(search, name, values)
    table, figure = search.grid_search(Comparison(base=base.model_copy(update={"output_dir": str(tmp_path)})), data, 4)
    rows = table.groups[0].rows
    dev = [row[4].value or math.nan for row in rows]
    assert len(rows) == 8
    assert dev == sorted(dev, reverse=True)
    assert figure.exists()
    assert figure.with_suffix(".pdf").exists()
    settings = {tuple(cell.value for cell in row[:4]) for row in rows}
    assert len(settings) == 8


class TestPareto:
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

    def test_an_arm_with_diversity_is_chosen_on_the_front(self, finished: Finished) -> None:
        tried = finished[1]["eggroll_objectives"].tried
        points = [(one["val"], one["dev_diversity"]) for one in tried]
        chosen = tried[chosen_on_front(points, finished[0].comparison.give_up)]
        assert all(chosen[key] == value for key, value in finished[1]["eggroll_objectives"].setting.items())

    def test_table_and_figure(self, finished: Finished) -> None:
        table, figure = pareto(finished[0], ["eggroll", "eggroll_objectives"])
        rows = table.groups[0].rows
        assert len(rows) == 4
        front = [(row[1].value, row[2].value) for row in rows if row[3].text == "yes"]
        others = [(row[1].value, row[2].value) for row in rows if row[3].text == ""]
        assert front
        assert all(any(f[0] >= o[0] and f[1] >= o[1] for f in front) for o in others)  # type: ignore[operator]
        assert figure.exists()


def test_results_of_another_comparison_are_refused(finished: Finished) -> None:
    results = load_all_results(finished[0].output_dir)
    other = results.results[0].model_copy(
        update={"identity": results.results[0].identity.model_copy(update={"experiment": "other"}), "seed": 7}
    )
    with pytest.raises(DataError, match="experiment differs"):
        Results(finished[0].output_dir, [*results.results, other])


class TestPairing:
    """Seeds pair where a seed gives two methods the same first weights and the same order of queries."""

    def test_trainings_of_one_seed_share_both(self, finished: Finished) -> None:
        compared, chosen = finished
        first, second = (compared.trainer(name, chosen[name].config, 1) for name in ("infonce", "eggroll"))
        assert torch.equal(first.initial(), second.initial())
        assert [first.batch(step) for step in range(5)] == [second.batch(step) for step in range(5)]

    def test_results_declare_it_but_for_the_recipe_with_other_first_weights(
        self, finished: Finished, base: TrainConfig
    ) -> None:
        results = load_all_results(finished[0].output_dir)
        assert results.seeds_pair(("eggroll", "infonce"), results.dataset_keys)
        pairs = {name: shares_seeds(arm.settings(base, 1)[0][1], base) for name, arm in ARMS.items()}
        assert [name for name, shared in pairs.items() if not shared] == ["seed_recipe"]

    def test_memory_that_is_older_than_the_step_is_no_warning(self) -> None:
        """What torch's profiler says of it on stderr would come between the lines of a comparison."""
        done = subprocess.run([sys.executable, "-c", _FREES_OLD_MEMORY], capture_output=True, text=True, check=True)
        assert done.stderr == ""


_FREES_OLD_MEMORY = """
from unimoe.cli.options import quiet_libraries
quiet_libraries()
import torch
from unimoe.studies.heads.compare.memory import step_peak_bytes
old = [torch.ones(1000)]

class Frees:
    def step(self, weight, batch, step):
        old.clear()
        return weight, {"loss": 0.0}

step_peak_bytes(Frees(), torch.ones(2, 2), None)
"""
