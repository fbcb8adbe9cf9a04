"""A study's file: settings in their order, arms that are left out, gates, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from pydantic import ValidationError
from support.results import make_result, simulate
from support.studies import SPLITS, topics_folder

from unimoe.analysis.statistics.estimates import holm
from unimoe.cli.options import given_options
from unimoe.config.files import config_root, load_config
from unimoe.config.labels import LabelConfig, TrainingLabelConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.results.folder import Results
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.common.family import family_of
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.splits import SplitConfig, load_splits, task_collection
from unimoe.studies.common.study import Study, load_study, merged, system_called
from unimoe.studies.common.table import differences, pair_up
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
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


def test_shipped_configs_are_read() -> None:
    for path in (config_root() / "cross_encoder").glob("*.yaml"):
        load_config(CrossEncoderConfig, path)
    for name in ("default", "seed002"):
        load_config(BiEncoderConfig, Path("biencoder") / name)
    load_config(TrainingLabelConfig, "biencoder/labels")
    load_config(LabelConfig, "labels")


def test_settings_are_tried_in_their_order_and_sections_keep_their_other_keys() -> None:
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
    raw = {"loss": {"name": "softmax", "k": None}, "seed": 1}
    for changes in ({"loss.k": 3}, {"loss": {"k": 3}}):
        assert merged(raw, changes) == {"loss": {"name": "softmax", "k": 3}, "seed": 1}
    assert raw["loss"] == {"name": "softmax", "k": None}


def test_an_arm_with_another_loss_has_none_of_the_keys_of_the_first() -> None:
    raw = {"loss": {"name": "lambdaloss", "k": 3}, "seed": 1}
    assert merged(raw, {"loss.name": "softmax"}) == {"loss": {"name": "softmax"}, "seed": 1}
    for changes in ({"loss.sigma": 2.0, "loss.name": "ranknet"}, {"loss": {"sigma": 2.0, "name": "ranknet"}}):
        assert merged(raw, changes)["loss"] == {"name": "ranknet", "sigma": 2.0}
    assert merged({"loss": {"sigma": 2.0}}, {"loss.name": "ranknet"})["loss"] == {"name": "ranknet", "sigma": 2.0}


def test_a_study_without_seeds_says_so_in_its_results() -> None:
    given = given_options(Path("studies/losses"), ["seed=1"], seeds=0, only=None, smoke=False)
    assert given == ["--config studies/losses", "--seeds 0", "--set seed=1"]


def test_gates_share_what_the_study_says_and_go_with_an_arm_that_is_left_out() -> None:
    shared = {"task": "reranking", "datasets": ["d"], "metric": "ndcg@10"}
    gates = {"g": {"system": "b", "baseline": "untrained", "margin": 0.01}, "h": {"system": "b", "baseline": "a"}}
    read = study(seeds=5, looks=[3, 5], gates=gates, baselines=["a", "bm25"]).of_arms(["b"])
    assert ([*read.arms], [*read.gates], read.baselines) == (["b"], ["g"], ["bm25"])
    (gate,) = read.gates_for(shared, ["base", "bm25"]).values()
    assert gate == shared | {
        "kind": "superiority", "seeds": [0, 1, 2, 3, 4], "looks": [3, 5], "system": "b", "baseline": "base",
        "margin": 0.01,
    }  # fmt: skip


def test_a_study_may_be_of_some_variants_of_an_arm() -> None:
    arms = ARMS | {"a.b": {"variants": {"x": {"sigma": 1}, "y": {"sigma": 2}, "z": {}}}}
    read = study(arms=arms)
    assert [one.name for one in read.of_arms(["a.b:z", "a.b:x"]).settings_of("a.b")] == ["x", "z"]
    assert [*read.of_arms(["a", "a.b:x"]).arms] == ["a", "a.b"]
    assert read.of_arms(["a.b:x", "a.b"]).arms["a.b"] == read.arms["a.b"]
    with pytest.raises(UsageError, match=r"unknown arm 'a.b:xx' \(did you mean 'a.b:x'\?\); there are a.b:x, a.b:y"):
        read.of_arms(["a.b:xx"])
    with pytest.raises(UsageError, match=r"unknown arm 'b:x'.*; there are a.b:x"):
        read.of_arms(["b:x"])


def test_a_study_adds_to_the_one_that_it_extends(tmp_path: Path) -> None:
    own, other = tmp_path / "own.yaml", tmp_path / "other.yaml"
    gates = {"g": {"system": "a", "baseline": "b", "margin": 0.1}}
    base = {"base": {"num_steps": 9, "sigma": 1}, "gates": gates, "caveats": ["toy"], "seeds": 4}
    other.write_text(json.dumps({"name": "other", "family": "heads", "arms": ARMS} | base), encoding="utf-8")
    changes = {"base": {"sigma": 2}, "arms": {"c": {}}, "caveats": ["own"]}
    own.write_text(json.dumps({"name": "own", "extends": str(other)} | changes), encoding="utf-8")
    read = load_study(own, ["gates.g.margin=0.2", "arms.a.set={method: genetic}"])
    assert (read.name, read.base, [*read.arms]) == ("own", {"num_steps": 9, "sigma": 2}, ["a", "b", "c"])
    assert (read.caveats, len(read.seeds), read.gates["g"]["margin"]) == (["own"], 4, 0.2)
    assert read.arms["a"].set == {"method": "genetic"}
    shipped = [load_study(Path("studies") / name) for name in ("heads_korean", "heads_korean_offline")]
    assert all({*one.arms} == {*load_study(Path("studies/heads_compare")).arms} for one in shipped)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": [102, 7]}, "not the tuning_seed"),
        ({"looks": [3]}, "no gates to judge"),
        ({"arms": {"a": {"grid": {"x": [1]}, "variants": {"y": {}}}}}, "leave one of them out"),
        ({"arms": {"a/b": {}}}, "may hold only letters"),
    ],
)
def test_impossible_studies_are_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps({"name": "s", "family": "heads", "arms": ARMS} | changes), encoding="utf-8")
    with pytest.raises(UsageError, match=words) as raised:
        load_study(file)
    assert str(file) in str(raised.value)


def test_more_seeds_keep_the_seed_that_chose_the_settings(tmp_path: Path) -> None:
    for begun, seed in ((False, 103), (True, 102)):
        assert StudyRunner(HeadFamily(study(output_dir=str(tmp_path), seeds=3))).study.seed_of_tuning == seed, begun
        (tmp_path / "tuning" / "a-x_1" / "a" / "seed_102").mkdir(parents=True, exist_ok=True)


def test_a_handoff_may_be_a_fraction_and_an_arm_has_its_own_votes() -> None:
    family = HeadFamily(study(base={"num_steps": 200, "soft_labels": {"top_k": 3}}))
    found = family.configured(family.base, {"method": "hybrid", "handoff": 0.25, "objectives.diversity": 0.5})
    assert found.handoff == 50
    assert found.objectives == {"relevance": 1.0, "diversity": 0.5}
    own = family.configured(family.base, {"soft_labels": {}}).soft_labels
    assert own is not None
    assert (own.top_k, own.voters) == (20, ["bm25", TrainConfig().encoder.base])


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


@pytest.mark.parametrize(
    ("of_a", "of_b", "pair"), [(True, True, True), (False, False, False), ("x", "x", True), ("x", "y", False)]
)
def test_seeds_pair_where_they_are_the_same_and_declare_the_same(of_a: Any, of_b: Any, pair: bool) -> None:
    rows = simulate(3, 20, 0.0, rng=np.random.default_rng(0))
    arms = {"a": (rows[0], of_a), "b": (rows[1], of_b), "short": (rows[1][:2], of_b)}
    results = Results(
        Path("out"),
        [make_result(arm, s, row, paired_seeds=said) for arm, (of, said) in arms.items() for s, row in enumerate(of)],
    )
    assert pair_up(results, "reranking/apidocs", "a", "b") is pair
    assert not pair_up(results, "reranking/apidocs", "a", "short")


@pytest.mark.parametrize(
    ("queries", "sizes"),
    [
        (SPLITS, [36, 18, 18]),  # the published splits
        ({"train": 40, "test": 10}, [32, 8, 10]),  # a fifth of the training queries chooses
        ({"test": 50}, [20, 10, 20]),  # a test split alone is cut in three
    ],
)
def test_no_query_is_in_two_parts(tmp_path: Path, queries: dict[str, int], sizes: list[int]) -> None:
    task = f"path:{topics_folder(tmp_path / 'c', queries)}"
    splits = load_splits(task, None)
    parts = [set(part.qrels) for part in splits]
    assert [len(part) for part in parts] == sizes
    assert len(set.union(*parts)) == sum(sizes)
    assert splits == load_splits(task, None)


def test_splits_that_cannot_be_are_refused_and_nanobeir_may_be_named_in_one_word(tmp_path: Path) -> None:
    task = f"path:{topics_folder(tmp_path / 'c')}"
    with pytest.raises(
        DataError, match=r"query 'test00' \(one of 18\) is in dev and in test; choose splits that differ"
    ):
        load_splits(task, SplitConfig(dev="test"))
    with pytest.raises(DataError, match="no query is left for"):
        load_splits(f"path:{topics_folder(tmp_path / 'few', {'test': 2})}", None)
    (tmp_path / "c" / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\ntrain00\td000\thigh\n", "utf-8")
    with pytest.raises(DataError, match=r"train\.tsv"):
        load_splits(task, None)  # which is damaged, and not missing
    with pytest.raises(ValidationError, match="leave no query to train on"):
        SplitConfig(train=None, dev_fraction=0.5, test_fraction=0.5)
    names = [task_collection(task) for task in ("NanoMSMARCO", "nanoscifact", "scifact")]
    assert names == ["nanobeir:MSMARCO", "nanobeir:SciFact", "scifact"]
