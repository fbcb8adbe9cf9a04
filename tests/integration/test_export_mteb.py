"""``unimoe export-mteb``: what it writes is what mteb's own loader reads, and the scores are those of the results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from mteb import ResultCache
from mteb.models.model_meta import ModelMeta
from sentence_transformers import SentenceTransformer
from support import mteb_tasks
from support.experiments import tiny_experiment
from support.json_files import read_plain, write_plain
from support.mteb_runs import Suite
from support.reranking import invented, with_evaluation, write_invented
from support.scripts import Done, assert_refused, call_unimoe, successful
from support.tiny_encoders import save_sentence_transformer, save_tiny_encoder
from support.tiny_models import HIDDEN

from unimoe.config import Experiment, MTEBConfig
from unimoe.core.io import hash_file
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.systems.named import Naming, default_experiment, named_system
from unimoe.evaluation.systems.system import zero_shot_system
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.loader import ModelLoader
from unimoe.results import Task, TrainingBudget, read_result

pytestmark = pytest.mark.usefixtures("one_thread")

TASKS: dict[str, type[Any]] = {
    "STSBenchmark": mteb_tasks.InventedSTS,
    "AskUbuntuDupQuestions": mteb_tasks.InventedReranking,
}


def evaluate(experiment: Experiment, output_dir: Path, wanted: tuple[Task, ...], *names: str) -> None:
    """Evaluate MTEB's tasks on invented data, as if the hub held it."""
    system = zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), torch.float32))
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
        evaluate(experiment, folder / "tiny", ("embedding", "reranking"), "SciFact", *TASKS)
    return folder / "tiny"


def export(output_dir: Path, *more: str | Path) -> Done:
    return call_unimoe("export-mteb", "--output-dir", output_dir, *more)


def written(done: Done) -> Path:
    return Path(done.stdout.split("tasks", 1)[1].strip())


class TestExport:
    @pytest.fixture(scope="class")
    def done(self, outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
        target = tmp_path_factory.mktemp("repository")
        return target, export(outputs, "--arm", "zero_shot", "--model-name", "me/tiny", "--to", target)

    def test_the_files_have_their_places(self, done: tuple[Path, Done]) -> None:
        target, exported = done
        assert exported.returncode == 0, exported.stderr
        folder = written(exported)
        assert folder.parent == target / "results" / "me__tiny"
        assert {path.name for path in folder.iterdir()} == {
            "SciFact.json", "STSBenchmark.json", "AskUbuntuDupQuestions.json", "model_meta.json", "run_settings.jsonl",
        }  # fmt: skip

    def test_mtebs_own_loader_reads_the_scores_of_the_results(self, done: tuple[Path, Done], outputs: Path) -> None:
        target, exported = done
        cache, revision = ResultCache(target), written(exported).name
        for name in ("SciFact", *TASKS):
            loaded = cache.load_task_result(name, "me/tiny", revision, raise_if_not_found=True)
            assert loaded is not None
            ours = read_result(outputs / "zero_shot" / "seed_none" / "results" / "embedding" / f"{name}.json")
            score = ours.aggregate["main_score"] if ours.per_query else ours.aggregate[ours.main_metric]
            assert loaded.get_score() == pytest.approx(score, abs=1e-6)
            assert loaded.task_name == name
        (model,) = cache.load_results(models=["me/tiny"]).model_results
        assert (model.model_name, model.model_revision) == ("me/tiny", revision)
        assert {result.task_name for result in model.task_results} == {"SciFact", *TASKS}

    def test_the_card_is_filled_with_what_is_known(self, done: tuple[Path, Done]) -> None:
        text = (written(done[1]) / "model_meta.json").read_text(encoding="utf-8")
        card = ModelMeta.model_validate_json_resolved(text)
        assert (card.name, card.revision, card.model_type) == ("me/tiny", written(done[1]).name, ["dense"])
        assert (card.embed_dim, card.max_tokens, card.use_instructions) == (64, 256, True)
        assert card.similarity_fn_name is not None
        assert card.n_parameters is not None
        assert card.n_embedding_parameters is not None
        assert 0 < card.n_embedding_parameters < card.n_parameters
        assert card.memory_usage_mb == pytest.approx(card.n_parameters * 4 / 2**20)
        assert card.adapted_from
        assert card.release_date


def test_a_task_asked_for_and_missing_is_named(outputs: Path, tmp_path: Path) -> None:
    done = export(outputs, "--arm", "zero_shot", "--mteb", "SciFact,STS12", "--to", tmp_path, "--revision", "v1")
    assert done.returncode == 4
    assert "missing: STS12: no result" in done.stderr
    assert done.stderr.splitlines()[-1] == "error: done, without 1 MTEB task (STS12); the reasons are above"
    assert written(done) == tmp_path / "results" / "unimoe__zero_shot" / "v1"
    assert [path.stem for path in sorted(written(done).glob("S*.json"))] == ["SciFact"]


@pytest.mark.parametrize("dtype", [None, "unknown"])
def test_a_model_whose_dtype_is_not_known_is_exported_without_it(
    outputs: Path, tmp_path: Path, dtype: str | None
) -> None:
    shutil.copytree(outputs, tmp_path / "served")
    for path in (tmp_path / "served" / "zero_shot" / "seed_none" / "results" / "reranking").glob("*Questions.json"):
        result = read_plain(path)
        result["provenance"]["dtype"] = dtype
        write_plain(path, result)
    done = successful(export(tmp_path / "served", "--arm", "zero_shot", "--task", "reranking", "--to", tmp_path))
    card = json.loads((written(done) / "model_meta.json").read_text(encoding="utf-8"))
    assert (card["output_dtypes"], card["memory_usage_mb"]) == (None, None)
    assert card["n_parameters"] > 0


def changed(outputs: Path, folder: Path, name: str, **identity: object) -> Path:
    """A copy of the results, one of them with another identity."""
    shutil.copytree(outputs, folder)
    path = folder / "zero_shot" / "seed_none" / "results" / "embedding" / f"{name}.json"
    result = read_plain(path)
    result["identity"] |= identity
    write_plain(path, result)
    return folder


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "code", "words"),
        [
            (["--arm", "zero_shot", "--model-name", "tiny"], 2, ["--model-name tiny", "write org/name"]),
            (["--arm", "zero_shot", "--revision", "a/b"], 2, ["--revision a/b"]),
            (["--arm", "zero_shot", "--revision", ".."], 2, ["--revision ..:", "names a folder"]),
            (["--arm", "zero_shot", "--model-name", "../x"], 2, ["--model-name ../x:", "write org/name"]),
            (["--arm", "zero_shot", "--mteb", "SciFcat"], 2, ["SciFcat", "did you mean 'SciFact'"]),
            (["--arm", "zero_shot", "--mteb", "STS12"], 3, ["no result of a whole task of MTEB (STS12: no result)"]),
            (["--arm", "joint_r8"], 3, ["no results of 'joint_r8'; there are zero_shot"]),
            ([], 2, ["--arm", "--checkpoint"]),
        ],
        ids=str,
    )
    def test_bad_input_is_one_line(
        self, outputs: Path, tmp_path: Path, options: list[str], code: int, words: list[str]
    ) -> None:
        assert_refused(export(outputs, *options, "--to", tmp_path), code, *words)
        assert not (tmp_path / "results").exists()

    @pytest.mark.parametrize(
        ("identity", "reason"),
        [
            ({"pool": 600}, "a sample of its queries or documents was scored"),
            ({"max_queries": 3}, "a sample of its queries or documents was scored"),
            ({"split": "dev"}, "the split dev was scored, MTEB's is test"),
        ],
        ids=str,
    )
    def test_a_part_of_a_task_is_left_out(
        self, outputs: Path, tmp_path: Path, identity: dict[str, object], reason: str
    ) -> None:
        copy = changed(outputs, tmp_path / "copy", "SciFact", **identity)
        done = export(copy, "--arm", "zero_shot")
        assert done.returncode == 0
        assert f"left out: SciFact: {reason}" in done.stderr
        assert not (written(done) / "SciFact.json").exists()
        assert export(copy, "--arm", "zero_shot", "--mteb", "SciFact,STSBenchmark").returncode == 4

    def test_results_of_two_models_are_refused(self, outputs: Path, experiment: Experiment, tmp_path: Path) -> None:
        copy = changed(outputs, tmp_path / "copy", "SciFact", base_model="another@0123456789abcdef")
        assert_refused(
            export(copy, "--arm", "zero_shot"), 3, "another base model than in", "evaluate one of them again"
        )
        shutil.copytree(outputs, tmp_path / "mixed")
        other = with_evaluation(experiment, mteb=MTEBConfig(prompts={"STS12": "Text: "}))
        (tmp_path / "mixed/zero_shot/seed_none/results/embedding/STSBenchmark.json").unlink()
        evaluate(other, tmp_path / "mixed", ("embedding",), "STSBenchmark")
        assert_refused(export(tmp_path / "mixed", "--arm", "zero_shot"), 3, "another evaluation.mteb than in")

    def test_a_damaged_file_of_mtebs_is_named(self, outputs: Path, tmp_path: Path) -> None:
        shutil.copytree(outputs, tmp_path / "copy")
        broken = tmp_path / "copy" / "zero_shot" / "seed_none" / "results" / "embedding" / "SciFact.mteb.json"
        broken.write_text('{"task_name": "SciFact", "dataset_revision": "x"}', encoding="utf-8")
        done = export(tmp_path / "copy", "--arm", "zero_shot", "--to", tmp_path / "to")
        assert_refused(done, 3, "SciFact.mteb.json: no result of MTEB")
        assert not list((tmp_path / "to").rglob("*.json"))  # nor any of the results before it


class TestSeeds:
    def seeded(self, outputs: Path, folder: Path, *seeds: int) -> Path:
        """The same results as those of a trained arm."""
        for seed in seeds:
            place = folder / "joint_r8" / f"seed_{seed}"
            shutil.copytree(outputs / "zero_shot" / "seed_none", place)
            for path in place.glob("results/*/*.json"):
                if not path.name.endswith((".mteb.json", ".queries.json")):
                    write_plain(path, read_plain(path) | {"config_name": "joint_r8", "seed": seed})
        return folder

    def test_the_only_one_needs_no_name_and_several_do(self, outputs: Path, tmp_path: Path) -> None:
        one = self.seeded(outputs, tmp_path / "one", 7)
        assert export(one, "--arm", "joint_r8").returncode == 0
        two = self.seeded(outputs, tmp_path / "two", 0, 1)
        assert_refused(export(two, "--arm", "joint_r8"), 2, "joint_r8 has the seeds 0, 1; choose one by --seed")
        assert export(two, "--arm", "joint_r8", "--seed", "1").returncode == 0
        assert_refused(export(two, "--arm", "joint_r8", "--seed", "5"), 3, "seed_5", "no result of a whole task")

    def test_a_checkpoint_names_arm_seed_and_folder(self, outputs: Path, tmp_path: Path) -> None:
        two = self.seeded(outputs, tmp_path / "two", 0, 1)
        folder = two / "joint_r8" / "seed_1" / "checkpoint"
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"weights")
        manifest = Checkpoint(
            arm="joint_r8", seed=1, which="last", base_model="x", dtype="float32", fingerprint="y",
            adapter_hash=hash_file(folder / "adapter_model.safetensors"),
            training=TrainingBudget(steps=1, ranking_examples=1, embedding_examples=1, tokens=1), config={},
        )  # fmt: skip
        (folder / "unimoe.json").write_text(manifest.model_dump_json(), encoding="utf-8")
        done = successful(call_unimoe("export-mteb", "--checkpoint", folder))
        assert written(done).parent == two / "mteb" / "results" / "unimoe__joint_r8"
        assert_refused(call_unimoe("export-mteb", "--checkpoint", folder, "--seed", "0"), 2, "or --checkpoint")


def evaluate_named(name: str, output_dir: Path, task: Task, mteb_task: str, *settings: str) -> None:
    """Evaluate a model by name, as ``unimoe evaluate --model`` does."""
    naming = Naming(default_experiment(name, settings), torch.device("cpu"), torch.float32, "mine")
    (asked,) = find_tasks([mteb_task])
    data: Any = mteb_tasks.loaded(TASKS[mteb_task])
    asked.dataset, asked.data_loaded = data.dataset, True
    suite = Suite(output_dir, named_system(name, naming), (task,))
    suite.run([asked])
    assert suite.reasons == []


class TestModelsByName:
    def test_a_dense_module_counts_and_gives_the_width(self, tmp_path: Path) -> None:
        from sentence_transformers.models import Dense

        bare, folder = save_tiny_encoder(tmp_path / "bare"), tmp_path / "dense"
        save_sentence_transformer(bare, folder, Dense(HIDDEN, 24))
        model = SentenceTransformer(str(folder), device="cpu")
        evaluate_named(f"encoder:{folder}", tmp_path / "out", "embedding", "STSBenchmark")
        card = json.loads(
            (written(export(tmp_path / "out", "--arm", "mine")) / "model_meta.json").read_text(encoding="utf-8")
        )
        assert (card["embed_dim"], card["n_parameters"]) == (24, sum(weight.numel() for weight in model.parameters()))
