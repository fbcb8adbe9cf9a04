"""``unimoe export-mteb``: what it writes is what mteb's own loader reads, and the scores are those of the results."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from mteb import ResultCache
from mteb.models.model_meta import ModelMeta
from support import mteb_tasks
from support.experiments import tiny_experiment, zero_shot
from support.mteb_tasks import Suite
from support.scripts import Done, assert_refused, call_unimoe, read_plain, successful, write_plain
from support.toy_collections import invented, with_evaluation, write_invented

from unimoe.config import Experiment, MTEBConfig
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.system import System
from unimoe.results import SIDECARS, Task, read_result

pytestmark = pytest.mark.usefixtures("one_thread")

TASKS: dict[str, type[Any]] = {
    "STSBenchmark": mteb_tasks.InventedSTS,
    "AskUbuntuDupQuestions": mteb_tasks.InventedReranking,
}
RESULTS = Path("zero_shot", "seed_none", "results", "embedding")


def evaluate(system: System, output_dir: Path, wanted: tuple[Task, ...], *names: str) -> None:
    """Evaluate MTEB's tasks on invented data, as if the hub held it."""
    tasks: list[Any] = find_tasks(names)
    for task in tasks:
        if task.metadata.name in TASKS:
            data: Any = mteb_tasks.loaded(TASKS[task.metadata.name])
            task.dataset, task.data_loaded = data.dataset, True
    suite = Suite(output_dir, system, wanted)
    suite.run(tasks)
    assert suite.reasons == []


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("experiment"))


@pytest.fixture(scope="module")
def outputs(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of three tasks of MTEB; SciFact's data is from a folder."""
    folder = tmp_path_factory.mktemp("outputs")
    write_invented(folder / "data" / "scifact", invented(name="scifact"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIMOE_DATA", str(folder / "data"))
        evaluate(zero_shot(experiment), folder / "tiny", ("embedding", "reranking"), "SciFact", *TASKS)
    return folder / "tiny"


@pytest.fixture
def copy(outputs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(outputs, tmp_path / "copy")


def export(output_dir: Path, *more: str | Path, arm: str = "zero_shot") -> Done:
    return call_unimoe("export-mteb", "--output-dir", output_dir, "--arm", arm, *more)


def written(done: Done) -> Path:
    return Path(done.stdout.split("tasks", 1)[1].strip())


def change_identity(folder: Path, **identity: Any) -> None:
    path = folder / RESULTS / "SciFact.json"
    result = read_plain(path)
    write_plain(path, result | {"identity": result["identity"] | identity})


def test_mtebs_own_loader_reads_the_scores_of_the_results_and_the_card(outputs: Path, tmp_path: Path) -> None:
    done = successful(export(outputs, "--model-name", "me/tiny", "--to", tmp_path))
    folder, names = written(done), {"SciFact", *TASKS}
    assert folder.parent == tmp_path / "results" / "me__tiny"
    files = {f"{name}.json" for name in names} | {"model_meta.json", "run_settings.jsonl"}
    assert {path.name for path in folder.iterdir()} == files
    cache = ResultCache(tmp_path)
    for name in names:
        loaded = cache.load_task_result(name, "me/tiny", folder.name, raise_if_not_found=True)
        assert loaded is not None
        ours = read_result(outputs / RESULTS / f"{name}.json")
        score = ours.aggregate["main_score"] if ours.per_query else ours.aggregate[ours.main_metric]
        assert loaded.get_score() == pytest.approx(score, abs=1e-6)
        assert loaded.task_name == name
    (model,) = cache.load_results(models=["me/tiny"]).model_results
    assert (model.model_name, model.model_revision) == ("me/tiny", folder.name)
    assert {result.task_name for result in model.task_results} == names
    card = ModelMeta.model_validate_json_resolved((folder / "model_meta.json").read_text(encoding="utf-8"))
    assert (card.name, card.revision, card.model_type) == ("me/tiny", folder.name, ["dense"])
    assert (card.embed_dim, card.max_tokens, card.use_instructions) == (64, 256, True)
    assert card.n_parameters is not None
    assert card.n_embedding_parameters is not None
    assert 0 < card.n_embedding_parameters < card.n_parameters
    assert card.memory_usage_mb == pytest.approx(card.n_parameters * 4 / 2**20)
    assert all((card.similarity_fn_name, card.adapted_from, card.release_date))


def test_a_task_asked_for_and_missing_is_named(outputs: Path, tmp_path: Path) -> None:
    done = export(outputs, "--mteb", "SciFact,STS12", "--to", tmp_path, "--revision", "v1")
    assert done.returncode == 4
    assert "missing: STS12: no result" in done.stderr
    assert done.stderr.splitlines()[-1] == "error: done, without 1 MTEB task (STS12); the reasons are above"
    assert written(done) == tmp_path / "results" / "unimoe__zero_shot" / "v1"
    assert [path.stem for path in sorted(written(done).glob("S*.json"))] == ["SciFact"]


def test_bad_input_is_one_line(outputs: Path, tmp_path: Path) -> None:
    for options, code, words in (
        (["--model-name", "tiny"], 2, ["--model-name tiny", "write org/name"]),
        (["--model-name", "../x"], 2, ["--model-name ../x:", "write org/name"]),
        (["--revision", "a/b"], 2, ["--revision a/b"]),
        (["--revision", ".."], 2, ["--revision ..:", "names a folder"]),
        (["--mteb", "STS12"], 3, ["no result of a whole task of MTEB (STS12: no result)"]),
        (["--arm", "joint_r8"], 3, ["no results of 'joint_r8'; there are zero_shot"]),
        (["--checkpoint", "x"], 2, ["--arm", "--checkpoint"]),
    ):
        assert_refused(export(outputs, *options, "--to", tmp_path), code, *words)
    assert not (tmp_path / "results").exists()


def test_a_part_of_a_task_is_left_out(copy: Path) -> None:
    sample = "a sample of its queries or documents was scored"
    for identity, reason in (
        ({"pool": 600}, sample),
        ({"pool": None, "max_queries": 3}, sample),
        ({"max_queries": None, "split": "dev"}, "the split dev was scored, MTEB's is test"),
    ):
        change_identity(copy, **identity)
        done = successful(export(copy))
        assert f"left out: SciFact: {reason}" in done.stderr
        assert not (written(done) / "SciFact.json").exists()
    assert export(copy, "--mteb", "SciFact,STSBenchmark").returncode == 4


def test_results_of_two_models_or_settings(copy: Path, experiment: Experiment) -> None:
    base_model = read_result(copy / RESULTS / "SciFact.json").identity.base_model
    change_identity(copy, base_model="another@0123456789abcdef")
    assert_refused(export(copy), 3, "another base model than in", "evaluate one of them again")
    change_identity(copy, base_model=base_model)
    (copy / RESULTS / "STSBenchmark.json").unlink()
    other = with_evaluation(experiment, mteb=MTEBConfig(prompts={"STS12": "Text: "}))
    evaluate(zero_shot(other), copy, ("embedding",), "STSBenchmark")
    assert_refused(export(copy), 3, "another evaluation.mteb than in")


def test_the_only_seed_needs_no_name_and_several_do(copy: Path) -> None:
    for seed in (0, 1):  # the same results as those of two seeds of a trained arm
        place = shutil.copytree(copy / "zero_shot" / "seed_none", copy / "joint_r8" / f"seed_{seed}")
        for path in place.glob("results/*/*.json"):
            if not path.name.endswith(SIDECARS):
                write_plain(path, read_plain(path) | {"config_name": "joint_r8", "seed": seed})
    assert_refused(export(copy, arm="joint_r8"), 2, "joint_r8 has the seeds 0, 1; choose one by --seed")
    successful(export(copy, "--seed", "1", arm="joint_r8"))
    assert_refused(export(copy, "--seed", "5", arm="joint_r8"), 3, "seed_5", "no result of a whole task")
    shutil.rmtree(copy / "joint_r8" / "seed_1")
    successful(export(copy, arm="joint_r8"))


def test_what_to_read_a_score_with_is_said_before_it_is_handed_in(copy: Path, tmp_path: Path) -> None:
    path = copy / RESULTS / "SciFact.json"
    write_plain(path, read_plain(path) | {"caveats": ["these queries trained the checkpoint"]})
    done = successful(export(copy, "--to", tmp_path / "to"))
    assert "caveat: SciFact: these queries trained the checkpoint" in done.stderr
