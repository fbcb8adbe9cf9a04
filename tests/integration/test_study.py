"""Studies as one YAML file: settings chosen on dev, the runs of an experiment, what a study says and refuses."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.experiments import tiny_experiment_dict
from support.scripts import Done, assert_refused, call_script, call_unimoe, read_plain, successful, write_plain
from support.studies import arms_study, encoder_study, loss_study, toy_keys
from support.tiny_models import save_tiny_cross_encoder

from unimoe.analysis.gates.definitions import load_gates
from unimoe.core.io import sole_use
from unimoe.core.trec import ranked
from unimoe.formats.qrels import read_qrels
from unimoe.formats.runs import read_run
from unimoe.results import read_result, result_path
from unimoe.results.folder import load_all_results
from unimoe.studies.biencoder.family import BiEncoderFamily
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study
from unimoe.studies.common.table import study_table
from unimoe.studies.cross_encoder.family import CrossEncoderFamily

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


CPU = torch.device("cpu")
LISTNET = {"system": "listnet", "baseline": "bm25"}


def run(file: Path, *more: str | Path) -> Done:
    return call_unimoe("study", file, "--device", "cpu", "--threads", "1", *more)


def test_a_study_ends_when_every_gate_has_its_label(tmp_path: Path) -> None:
    """Nothing is trained so well in four steps that it beats BM25 by .9, so the first look decides."""
    gate = LISTNET | {"margin": 0.9}
    gates = {"shared": gate, "own": gate | {"looks": [3, 5]}}
    file = loss_study(tmp_path, seeds=5, grid={"learning_rate": [1e-3]}, looks=[3, 5], gates=gates)
    done = successful(run(file))
    assert "Every gate has its label: seeds 3, 4 would change nothing" in done.stderr
    assert load_all_results(tmp_path / "out").seeds("softmax", "reranking/topics") == (0, 1, 2)
    assert "gate: " in done.stdout
    assert [gate.looks for gate in load_gates(tmp_path / "out" / "gates.yaml").gates.values()] == [[3, 5]] * 2
    assert run(file).stdout == done.stdout


def test_the_folder_of_another_study_is_refused_before_anything_is_trained_in_it(tmp_path: Path) -> None:
    out, arms = tmp_path / "out", {"softmax": {"set": {"loss.name": "softmax"}}}
    successful(run(loss_study(tmp_path, grid={}, seeds=1, arms=arms)))
    here = sorted(out.rglob("*"))
    head = {"task": f"path:{tmp_path / 'topics'}", "encoder": {"base": str(tmp_path / "encoder")}}
    of_heads = {"family": "heads", "base": head, "grid": {}, "arms": {"infonce": {}}, "baselines": []}
    renamed = {"name": "other", "arms": {"listnet": {"set": {"loss.name": "listnet"}}}, "baselines": ["listnet"]}
    for words, changes in (("(family 'cross_encoder' there, 'heads' here)", of_heads), ("(name 'mine' there", renamed)):
        file = loss_study(tmp_path, **changes)
        assert_refused(run(file), 3, f"{out} holds another study or experiment {words}", silent=False)
        assert_refused(run(file, "--plan"), 3, words, silent=False)
    assert sorted(out.rglob("*")) == here
    (out / "study.json").unlink()  # the results tell too
    assert_refused(run(loss_study(tmp_path, **renamed)), 3, "(name 'mine' there, 'other' here)", silent=False)


def test_an_experiment_and_a_study_refuse_each_others_folder(tmp_path: Path) -> None:
    out, experiment = tmp_path / "out", tmp_path / "tiny.yaml"
    arms = {"softmax": {"set": {"loss.name": "softmax"}}}
    write_plain(experiment, tiny_experiment_dict(tmp_path) | {"output_dir": str(out)})
    file = loss_study(tmp_path, grid={}, seeds=1, arms=arms)
    successful(run(file))
    asked = ("run", "--config", experiment, "--device", "cpu")
    for more in ((), ("--plan",)):
        assert_refused(call_unimoe(*asked, *more), 3, f"{out} holds the study 'mine', and no experiment")
    (out / "study.json").unlink()
    assert_refused(call_unimoe(*asked), 3, "holds results of another experiment ('mine' there, 'tiny' here)")
    shutil.rmtree(out)
    out.mkdir()
    kept = {"config": read_plain(experiment), "dtype": "float32"}
    write_plain(out / "experiment.json", kept)  # of one that was killed before it had a result
    assert_refused(run(file), 3, f"{out} holds another study or experiment (name 'tiny' there", silent=False)


def test_seeds_that_all_keep_a_trained_start_are_one_run(tmp_path: Path) -> None:
    file = loss_study(tmp_path)
    keys = read_plain(file)["base"] | {
        "model": {"base": str(save_tiny_cross_encoder(tmp_path / "ce")), "max_length": 48}
    }
    done = successful(run(loss_study(tmp_path, base=keys, grid={"learning_rate": [1e-30]})))
    assert "softmax seed 0, softmax seed 1 are one checkpoint" in " ".join(done.stdout.split())
    with (tmp_path / "out" / "analysis" / "arms.csv").open(encoding="utf-8") as lines:
        rows = {row["arm"]: row for row in csv.DictReader(lines)}
    assert float(rows["softmax"]["gain"]) == 0
    assert rows["softmax"]["start"] == rows["softmax"]["dev"]


def test_the_result_says_which_study_it_is_of(tmp_path: Path) -> None:
    file = loss_study(tmp_path, caveats=["toy"])
    done = successful(run(file, "--plan"))
    assert "softmax: 2 trainings on dev and 2 that are tested" in done.stdout
    assert "In all about" in done.stdout
    assert not (tmp_path / "out").exists(), "a plan trains nothing"
    successful(run(file, "--seeds", "1"))
    (path,) = (tmp_path / "out" / "listnet" / "seed_0" / "results" / "reranking").glob("topics.json")
    result = read_result(path)
    assert (result.identity.experiment, result.caveats) == ("mine", ["toy"])
    family = CrossEncoderFamily(load_study(file))
    assert family.configured(family.base, {"caveats": ["own"]}).caveats == ["own", "toy"]
    with (tmp_path / "out" / "analysis" / "arms.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["vs bm25"]]
    assert [row["arm"] for row in rows] == ["softmax", "listnet"]
    assert {row["setting"] for row in rows} <= {"learning_rate 1e-05", "learning_rate 0.001"}


FIRST_LINE = """
import sys
from unimoe.cli import main
from unimoe.core.console import stderr

def shown(text, **_):
    print(text, "torch" in sys.modules, "pandas" in sys.modules)
    sys.exit(0)

stderr.print = shown
sys.argv = ["unimoe", "study", "studies/joint_methods", "--plan"]
main.main()
"""


def test_the_first_line_comes_before_seconds_of_imports() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_LINE], capture_output=True, text=True, check=False)
    assert done.stdout == "joint_methods: arms 10, settings 30, seeds 3 False False\n", done.stderr


def hits_of_grade_2(folder: Path, seed: str, arm: str = "encoder*") -> float:
    """The share of test queries that have their one document of grade 2 among the first ten."""
    runs = (folder / "out").glob(f"{arm}/{seed}/runs/retrieval/*.trec")
    (path,) = (path for path in runs if "+bm25" not in str(path))
    judged = read_qrels(folder / "collection" / "qrels" / "test.tsv")
    best = {query: next(d for d, grade in grades.items() if grade == 2) for query, grades in judged.items()}
    run = read_run(path)
    return float(np.mean([best[query] in ranked(run[query])[:10] for query in best]))


def test_the_best_on_dev_is_trained_with_every_seed_and_compared_with_the_encoder_before(tmp_path: Path) -> None:
    small = {"freeze_base": True, "epochs": 1}
    settings = {"still": small | {"learning_rate": 1e-9}, "layer": small | {"learning_rate": 3e-2, "epochs": 4}}
    file = encoder_study(tmp_path, toy_keys(tmp_path) | {"relevance_threshold": 2}, settings)
    study = load_study(file, [], {"seeds": 2, "output_dir": str(tmp_path / "out")})
    runner = StudyRunner(BiEncoderFamily(study, CPU))
    chosen = runner.run()
    assert chosen["biencoder"].setting.name == "layer"
    tried = chosen["biencoder"].tried
    assert tried["layer"]["val"] > max(tried["layer"]["start"], tried["still"]["val"])
    results = load_all_results(tmp_path / "out", allow=("duplicates",))
    table = study_table(runner.family, results, chosen, runner.family.keys[0])
    rows: dict[str, dict[str, Any]] = {
        row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.groups[0].rows
    }
    assert {"bm25", "biencoder"} < {*rows}
    after, before = rows["biencoder"], rows["encoder"]
    assert after["recall_of_retrieved@10"].value > before["recall_of_retrieved@10"].value
    assert before["Recall@10"].value == pytest.approx(100 * hits_of_grade_2(tmp_path, "seed_none"))
    found = [hits_of_grade_2(tmp_path, f"seed_{seed}", "biencoder") for seed in (0, 1)]
    assert after["Recall@10"].value == pytest.approx(100 * np.mean(found))
    assert results.seeds_pair(["biencoder", "biencoder+bm25"], runner.family.keys)


def test_the_script_runs_the_shipped_study(tmp_path: Path) -> None:
    done = call_script("tune_biencoder.py", "--only", "layers", "--output-dir", tmp_path)
    assert_refused(done, 2, "unknown arm 'biencoder:layers'", "did you mean 'biencoder:layer'")
    base = toy_keys(tmp_path) | {"encoder": {"base": str(tmp_path / "encoder"), "dtype": "float32"}}
    write_plain(tmp_path / "base.yaml", base)
    options = ("--only", "all-layers,all-layers-hard", "--seeds", "1", "--device", "cpu")
    given = ("--config", tmp_path / "base.yaml", "--output-dir", tmp_path / "tuned", *options)
    done = successful(call_script("tune_biencoder.py", *given))
    assert "all-layers-hard" in done.stdout
    assert "biencoder beats encoder" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("write", "changes", "words"),
    [
        (loss_study, {"family": "crossencoder"}, ("there is no 'crossencoder'", "did you mean 'cross_encoder'")),
        (loss_study, {"famly": "heads"}, ("did you mean 'family'",)),
        (loss_study, {"extends": "studies/heads_korean"}, ("heads_korean.yaml extends another study itself",)),
        (
            loss_study,
            {"extends": "studies/heads_comp"},
            ("no such config file", "did you mean 'studies/heads_compare'"),
        ),
        (loss_study, {"gates": {"a-beats-b": {"margin": 0}}}, ("gates.a-beats-b.system: this key is required",)),
        (loss_study, {"arms": {"a": {"set": {"loss.name": "sofmax"}}}}, ("sofmax", "did you mean 'softmax'")),
        (loss_study, {"gates": {"g": LISTNET | {"baseline": "bm52", "margin": 0}}}, ("gates.g.baseline", "'bm25'")),
        (loss_study, {"gates": {"g": LISTNET}}, ("gates.g.margin", "required")),
        (loss_study, {"baselines": ["bm52"]}, ("baselines: 'bm52'", "did you mean 'bm25'")),
        (loss_study, {"grid": {"learning_rate": []}}, ("grid.learning_rate", "must not be empty")),
        (loss_study, {"data": {"source": "x"}}, ("data", "cross_encoder")),
        (loss_study, {"grid": {"lerning_rate": [1]}}, ("arms.softmax", "did you mean 'learning_rate'")),
        (arms_study, {"arms": {"a": {}}, "grid": {}, "gates": {}}, ("arms.a", "arm.task", "arm.learning_rate")),
        (arms_study, {"gates": {"g": {"kind": "interference", "specialist": "emb"}}}, ("g.specialist", "'emb'")),
    ],
)
def test_mistakes_are_one_line_before_anything_is_trained(
    write: Callable[..., Path], changes: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    for more in ((), ("--plan",)):
        assert_refused(run(write(tmp_path, **changes), *more), 2, *words)
    assert not [*tmp_path.rglob("*.safetensors.json")]
    assert not [*tmp_path.rglob("tuning")]


@pytest.mark.usefixtures("without_report")
def test_the_chosen_setting_scores_what_an_experiment_of_it_scores(tmp_path: Path) -> None:
    dev = {"queries": 4, "depth": 3, "pool": 20}
    study = arms_study(tmp_path, base={"training.dev": dev, "training.steps": 2})
    done = successful(run(study))
    assert "kill (gate: " in done.stdout
    tables = {path.stem for path in (tmp_path / "study/analysis").glob("*.md")}
    assert tables == {"settings", "arms-reranking", "arms-embedding"}
    with (tmp_path / "study/analysis/arms-embedding.csv").open(encoding="utf-8") as lines:
        rows = {row["arm"]: row for row in csv.DictReader(lines)}
    assert not rows["zero_shot"]["start"]
    for arm in ("emb_only_r8", "joint_r8"):  # the first has one setting, whose reported trainings are shown
        start, best, gain = (float(rows[arm][column]) for column in ("start", "dev", "gain"))
        assert gain == pytest.approx(best - start)
        assert gain >= 0
    best = max(read_plain(tmp_path / "study/tuning/joint_r8.json"), key=lambda one: one["val"])
    experiment = tiny_experiment_dict(tmp_path)
    experiment["arms"] = {"joint_r8": experiment["arms"]["joint_r8"] | {"learning_rate": best["arm.learning_rate"]}}
    experiment["training"] |= {"steps": 2, "evaluate_every": 2, "dev": dev}
    experiment["seeds"] = [1]
    write_plain(tmp_path / "plain.yaml", experiment)
    successful(call_unimoe("run", "--config", tmp_path / "plain.yaml", "--device", "cpu", "--threads", "1"))
    for task in ("reranking", "embedding"):
        place = ("joint_r8", 1, task, "apidocs")
        one, other = (read_result(result_path(tmp_path / root, *place)) for root in ("study", "outputs"))
        assert one.per_query == pytest.approx(other.per_query, abs=1e-6)
        assert one.identity.experiment == "mine"
    (tmp_path / "study/joint_r8/seed_1/results/embedding/apidocs.json").unlink()
    again = successful(run(study))
    assert again.stdout == done.stdout, "a study that has lost a result scores it again, and trains nothing"
    with sole_use(tmp_path / "study"):
        assert_refused(run(study), 2, "study: another process works in this folder")
