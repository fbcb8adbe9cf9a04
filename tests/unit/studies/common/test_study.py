"""A study's file: settings in their order, arms that are left out, gates, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from pydantic import ValidationError
from support.heads import topics_folder
from support.results import make_result, simulate

from unimoe.analysis.statistics.estimates import holm
from unimoe.cli.options import given_options
from unimoe.config.files import config_root
from unimoe.core.errors import DataError, UsageError
from unimoe.results.folder import Results
from unimoe.studies.common.family import family_of
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.splits import SplitConfig, load_splits, task_collection
from unimoe.studies.common.study import Study, load_study, merged, system_called
from unimoe.studies.common.table import differences, pair_up
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.family import HeadFamily

SHIPPED = [path for path in sorted((config_root() / "studies").glob("*.yaml")) if "family:" in path.read_text()]
ARMS = {"a": {"set": {"method": "infonce"}}, "b": {"set": {"method": "listnet"}}}


def study(**changes: Any) -> Study:
    return Study.model_validate({"name": "s", "family": "heads", "arms": ARMS} | changes)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_arm_of_a_shipped_study_can_be_trained(path: Path) -> None:
    read = load_study(path)
    runner = StudyRunner(family_of(read.family)(read))
    for arm, settings in runner.tuned.items():
        different = {json.dumps(config.model_dump(mode="json"), sort_keys=True) for _, config in settings}
        assert len(different) == len(settings), arm
    known = [*read.arms, *runner.family.untrained()]
    assert {system_called(name, [*runner.family.untrained()]) for name in read.baselines} <= {*known}


def test_settings_are_tried_in_their_order() -> None:
    own = study(grid={"sigma": [1, 2, 3], "learning_rate": [4, 5, 6]}).settings_of("a")
    assert [tuple(one.changes.values()) for one in own[:5]] == [(2, 5), (1, 5), (2, 4), (2, 6), (3, 5)]
    assert len(own) == 9
    few = study(grid={"sigma": [1, 2, 3], "learning_rate": [4, 5, 6]}, settings=4)
    assert few.settings_of("a") == own[:4]
    one = study(grid={"sigma": [3, 1, 2]}).settings_of("a")
    assert [(each.name, each.folder) for each in one[:2]] == [("sigma 3", "sigma_3"), ("sigma 1", "sigma_1")]
    arms = {"own": {"grid": {"sigma": [1]}}, "none": {"grid": {}}, "named": {"variants": {"x": {"sigma": 2}, "y": {}}}}
    read = study(arms=arms, grid={"sigma": [7, 8]})
    names = {arm: [each.name for each in read.settings_of(arm)] for arm in arms}
    assert names == {"own": ["sigma 1"], "none": [""], "named": ["x", "y"]}


def test_a_study_without_seeds_says_so_in_its_results() -> None:
    given = given_options(Path("studies/losses"), ["seed=1"], seeds=0, only=None, smoke=False)
    assert given == ["--config studies/losses", "--seeds 0", "--set seed=1"]


def test_sections_keep_their_other_keys() -> None:
    raw = {"loss": {"name": "softmax", "k": None}, "seed": 1}
    for changes in ({"loss.k": 3}, {"loss": {"k": 3}}):
        assert merged(raw, changes) == {"loss": {"name": "softmax", "k": 3}, "seed": 1}
    assert raw["loss"] == {"name": "softmax", "k": None}


class TestGates:
    SHARED = {"task": "reranking", "datasets": ["d"], "metric": "ndcg@10"}  # noqa: RUF012

    def test_they_share_what_the_study_says(self) -> None:
        read = study(seeds=5, looks=[3, 5], gates={"g": {"system": "b", "baseline": "untrained", "margin": 0.01}})
        (gate,) = read.gates_for(self.SHARED, ["base", "bm25"]).values()
        assert gate == {
            "kind": "superiority", **self.SHARED, "seeds": [0, 1, 2, 3, 4], "looks": [3, 5], "system": "b",
            "baseline": "base", "margin": 0.01,
        }  # fmt: skip

    def test_those_of_an_arm_that_is_left_out_go_with_it(self) -> None:
        gates = {"g": {"system": "b", "baseline": "a"}, "h": {"system": "b", "baseline": "bm25"}}
        read = study(gates=gates, baselines=["a", "bm25"]).of_arms(["b"])
        assert ([*read.arms], [*read.gates], read.baselines) == (["b"], ["h"], ["bm25"])

    def test_an_arm_that_there_is_not_is_named(self) -> None:
        read = study(gates={"g": {"system": "b", "baseline": "bm52"}})
        with pytest.raises(UsageError, match=r"gates.g.baseline: 'bm52' is no arm of the study .did you mean 'bm25'"):
            read.gates_for(self.SHARED, ["bm25"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": [102, 7]}, "not the tuning_seed"),
        ({"looks": [3]}, "no gates to judge"),
        ({"arms": {}}, "must not be empty"),
        ({"arms": {"a": {"grid": {"x": [1]}, "variants": {"y": {}}}}}, "leave one of them out"),
        ({"arms": {"a/b": {}}}, "may hold only letters"),
        ({"famly": "heads"}, "did you mean 'family'"),
    ],
)
def test_impossible_studies_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps({"name": "s", "family": "heads", "arms": ARMS} | changes), encoding="utf-8")
    with pytest.raises(UsageError, match=words) as raised:
        load_study(file)
    assert str(file) in str(raised.value)


def test_an_unknown_family_or_arm_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'heads'"):
        family_of("head")
    with pytest.raises(UsageError, match="unknown arm 'c'"):
        study().of_arms(["c"])


def heads(**base: Any) -> StudyRunner:
    return StudyRunner(HeadFamily(load_study(Path("studies/heads_compare"), [], {"base": base})))


class TestHeads:
    def test_the_recipe_is_the_originals(self) -> None:
        setting, config = heads().tuned["seed_recipe"][0]
        assert setting.changes == {"learning_rate": 0.05, "sigma": 0.02}
        assert (config.population_size, config.head_output_size, config.sigma_is) == (256, 256, "absolute")
        assert (config.optimizer, config.max_norm, config.adaptive_sigma, config.seed_scale) == ("sgd", 1.0, True, True)
        assert (config.shaping_method, config.scoring, config.init) == ("rank", "dot", "normal")

    def test_a_handoff_may_be_a_fraction_and_an_arm_has_its_own_votes(self) -> None:
        family = HeadFamily(study(base={"num_steps": 200, "soft_labels": {"top_k": 3}}))
        found = family.configured(family.base, {"method": "hybrid", "handoff": 0.25, "objectives.diversity": 0.5})
        assert found.handoff == 50
        assert found.objectives == {"relevance": 1.0, "diversity": 0.5}
        own = family.configured(family.base, {"soft_labels": {}}).soft_labels
        assert own is not None
        assert (own.top_k, own.voters) == (20, ["bm25", TrainConfig().encoder.base])

    @pytest.mark.parametrize(
        ("base", "words"),
        [
            ({"num_steps": 1}, "arms.hybrid: heads: handoff 1 must be below num_steps 1"),
            ({"noise_rank": 2}, "arms.eggroll_products: heads: grid: its directions have rank 1"),
            ({"adaptive_sigma": True}, "arms.score_es: heads: adaptive_sigma: score_es has"),
        ],
    )
    def test_an_arm_that_cannot_be_trained_is_refused_before_the_others_are(
        self, base: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(UsageError, match=words):
            heads(**base)


def test_all_differences_are_one_family() -> None:
    rng = np.random.default_rng(1)
    baseline = rng.uniform(size=(1, 30))
    systems = {name: np.clip(baseline + rng.normal(0.05, 0.1, (1, 30)), 0, 1) for name in "abc"}
    found = differences({name: (system, baseline, False) for name, system in systems.items()})
    plain = [scipy.stats.ttest_rel(system[0], baseline[0]) for system in systems.values()]
    assert [p.value for _, _, p in found.values()] == pytest.approx(holm([test.pvalue for test in plain]))
    for name, test in zip(systems, plain, strict=True):
        delta, interval, _ = found[name]
        assert delta.value == pytest.approx(100 * (systems[name] - baseline).mean())
        ends = [100 * end for end in test.confidence_interval(0.95)]
        assert [float(text) for text in interval.text.split(" to ")] == pytest.approx(ends, abs=0.05)


@pytest.mark.parametrize("declared", [True, False])
def test_seeds_pair_where_they_are_the_same_and_declared_to(declared: bool) -> None:
    rows = simulate(3, 20, 0.0, rng=np.random.default_rng(0))
    arms = {"a": rows[0], "b": rows[1], "short": rows[1][:2]}
    results = Results(
        Path("out"),
        [make_result(arm, s, row, paired_seeds=declared) for arm, of in arms.items() for s, row in enumerate(of)],
    )
    assert pair_up(results, "reranking/apidocs", "a", "b") is declared
    assert not pair_up(results, "reranking/apidocs", "a", "short")


@pytest.mark.parametrize(
    ("queries", "sizes"),
    [
        (None, [36, 18, 18]),  # the published splits
        ({"train": 40, "test": 10}, [32, 8, 10]),  # a fifth of the training queries chooses
        ({"test": 50}, [20, 10, 20]),  # a test split alone is cut in three
    ],
)
def test_no_query_is_in_two_parts(tmp_path: Path, queries: dict[str, int] | None, sizes: list[int]) -> None:
    folder = topics_folder(tmp_path / "c") if queries is None else topics_folder(tmp_path / "c", queries)
    splits = load_splits(f"path:{folder}", None)
    train, dev, test = (set(part.qrels) for part in splits)
    assert [len(train), len(dev), len(test)] == sizes
    assert not train & dev
    assert not (train | dev) & test
    assert splits == load_splits(f"path:{folder}", None)


def test_splits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    task = f"path:{topics_folder(tmp_path / 'c')}"
    with pytest.raises(DataError, match="is in two of train, dev and test; choose splits that differ"):
        load_splits(task, SplitConfig(dev="test"))
    with pytest.raises(DataError, match="no query is left for"):
        load_splits(f"path:{topics_folder(tmp_path / 'few', {'test': 2})}", None)
    with pytest.raises(UsageError, match="did you mean 'scifact'"):
        load_splits("scifakt", None)
    with pytest.raises(ValidationError, match="leave no query to train on"):
        SplitConfig(train=None, dev_fraction=0.5, test_fraction=0.5)


def test_a_damaged_training_split_is_no_missing_one(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c")
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\ntrain00\td000\thigh\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.tsv"):
        load_splits(f"path:{folder}", None)


@pytest.mark.parametrize(
    ("task", "collection"),
    [("NanoMSMARCO", "nanobeir:MSMARCO"), ("nanoscifact", "nanobeir:SciFact"), ("scifact", "scifact")],
)
def test_the_names_of_nanobeir(task: str, collection: str) -> None:
    assert task_collection(task) == collection
