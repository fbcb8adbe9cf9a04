"""The translator's commands as a user starts them, on small files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.scripts import Done, assert_refused, call_script, successful
from support.translators import read_submission, small_pairs, write_npz
from typer.testing import CliRunner

from unimoe.analysis.gates.definitions import load_gates
from unimoe.cli.app import app
from unimoe.config.files import overridden
from unimoe.core.errors import UsageError
from unimoe.results import read_result, result_path
from unimoe.results.folder import load_all_results
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study
from unimoe.studies.translator.command import batch_of
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import split_by_image
from unimoe.studies.translator.family import TranslatorFamily
from unimoe.studies.translator.models.files import load_translator
from unimoe.studies.translator.models.networks import NetworkTranslator

COMPONENTS = [*load_study(Path("studies/translator_ablation")).arms]
pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ("--device", "cpu", "--set", "hidden=8", "--set", "epochs=3", "--P", "8", "--mine_H", "4")
FAST = ("--epochs", "3", "--seeds", "2", "--settings", "2", "--device", "cpu", "--set", "hidden=8")
BATCH = ("--set", "sampler.batch=32", "--set", "learning_rate=0.003")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images with three captions each."""
    return write_npz(tmp_path_factory.mktemp("pairs") / "pairs.npz", small_pairs())


@pytest.fixture(scope="module")
def compared(file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """A comparison's folder, and what was printed."""
    folder = tmp_path_factory.mktemp("compared") / "out"
    return folder, compare(file, folder)


def compare(file: Path, folder: Path, *arguments: str) -> Done:
    given = ["compare-translators", "--data", str(file), "--output-dir", str(folder), *FAST, *BATCH, *arguments]
    done = CliRunner().invoke(app, given)
    return Done(done.exit_code, done.stdout, done.stderr)


def compared_badly(file: Path, folder: Path, *arguments: str) -> BaseException | None:
    given = ["compare-translators", "--data", str(file), "--output-dir", str(folder), *arguments]
    return CliRunner().invoke(app, given).exception


def train(file: Path | str, folder: Path, *arguments: str | Path) -> Done:
    return call_script("train_translator.py", "--train", file, "--output-dir", folder, *SMALL, *arguments)


class TestTrain:
    def test_it_says_how_good_large_and_quick_the_model_is(self, file: Path, tmp_path: Path) -> None:
        done = successful(train(file, tmp_path))
        words = [line.split()[0] for line in done.stdout.splitlines()]
        assert words[0] == "val/mrr"
        assert {"val/recall@1", "val/median_rank", "val/gallery_size", "parameters", "ms/query", "checkpoint"} <= set(
            words
        )
        assert "batches of 512" in done.stdout
        log = (tmp_path / "bigjump" / "seed_0" / "logs" / "train.jsonl").read_text().splitlines()
        assert json.loads(log[-1])["fired"]["mined_negatives"] > 0

    def test_test_captions_become_a_submission(self, file: Path, tmp_path: Path) -> None:
        pairs = small_pairs(7, seed=3)
        test = write_npz(tmp_path / "test.npz", pairs, images=None, image_ids=None, caption_image=None)
        successful(train(file, tmp_path, "--test", test))
        ids, vectors = read_submission(tmp_path / "bigjump" / "seed_0" / "submission.csv")
        translator = load_translator(tmp_path / "bigjump" / "seed_0" / "checkpoint")
        assert isinstance(translator, NetworkTranslator)
        assert ids == pairs.caption_ids
        predicted = translator.predict(pairs.captions).astype(np.float64)
        np.testing.assert_allclose(vectors, predicted / np.linalg.norm(predicted, axis=1, keepdims=True), atol=1e-7)

    def test_other_dimensions_than_expected_are_refused(self, file: Path, tmp_path: Path) -> None:
        pairs = small_pairs()
        sizes = pairs.captions.shape[1], pairs.images.shape[1]
        refused = train(file, tmp_path, "--dims", "1024", str(sizes[1]))
        assert_refused(refused, 3, f"captions: {sizes[0]} dimensions", "1024 (as roberta-large", "by --dims")
        refused = train(file, tmp_path, "--dims", str(sizes[0]), "1536")
        assert_refused(refused, 3, f"images: {sizes[1]} dimensions", "1536 (as DINOv2 giant) by --dims")
        refused = train("generated", tmp_path, "--dims", "1024", "1536")
        assert_refused(refused, 3, "generated: captions and images have 64 and 96", "--dims expects 1024 and 1536")
        assert not any(tmp_path.iterdir())
        assert train(file, tmp_path, "--dims", *map(str, sizes)).returncode == 0

    def test_options_reach_the_configuration(self, file: Path, tmp_path: Path) -> None:
        options = ("--tau", "0.2", "--no_pk", "--use_dcl", "--queue_pred", "--K_pk", "3", "--seed", "4")
        assert train(file, tmp_path, *options).returncode == 0
        manifest = json.loads((tmp_path / "bigjump" / "seed_4" / "checkpoint" / "translator.json").read_text())
        config = TranslatorConfig.model_validate(manifest["settings"]["config"])
        assert config.temperature.fixed == 0.2
        assert (config.sampler.by_image, config.sampler.captions, config.sampler.images) == (False, 3, 8)
        assert (config.loss.debiased.enabled, config.loss.predictions, config.loss.bank.hardest) == (True, True, 4)

    @pytest.mark.parametrize("model", ["ridge", "geometry", "linear"])
    def test_models_by_name(self, model: str, file: Path, tmp_path: Path) -> None:
        assert train(file, tmp_path, "--model", model).returncode == 0
        assert (tmp_path / model / "seed_0" / "checkpoint" / "translator.json").exists()

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (("--config", "nowhere.yaml"), 2, ("nowhere.yaml", "no such config file")),
            (("--model", "bigjum"), 2, ("model", "bigjump")),
            (("--set", "loss.bnk.hardest=3"), 2, ("loss.bnk", "bank")),
            (("--tau", "0"), 2, ("temperature.fixed",)),
            (("--set", "validation=0.001"), 2, ("leaves a part of the split empty",)),
            (("--test", "nowhere.npz"), 3, ("nowhere.npz",)),
            (("--model", "cca", "--set", "cca.components=99"), 2, ("99 canonical components",)),
        ],
    )
    def test_bad_options_are_one_line(
        self, arguments: tuple[str, ...], code: int, words: tuple[str, ...], file: Path, tmp_path: Path
    ) -> None:
        assert_refused(train(file, tmp_path, *arguments), code, *words)
        assert not [*tmp_path.rglob("translator.json")]

    @pytest.mark.parametrize(
        ("given", "today"),
        [
            ("--arch bigjump --epochs 25 --batch 512 --lr 2e-4", "--arch bigjump: type --model bigjump"),
            ("--epochs=25", "--epochs 25: type --set epochs=25"),
            ("--batch=512", "--batch 512: type --set sampler.batch=512"),
            ("--lr 2e-4", "--lr 2e-4: type --set learning_rate=2e-4"),
        ],
    )
    def test_the_originals_options_have_todays_names_in_one_line(self, given: str, today: str) -> None:
        done = call_script("train_translator.py", *given.split())
        assert_refused(done, 2, f"error: {today} (")
        assert len(done.stderr.splitlines()) == 1

    def test_a_test_file_of_another_encoder_is_refused_before_training(self, file: Path, tmp_path: Path) -> None:
        test = tmp_path / "test.npz"
        np.savez(test, captions=np.ones((2, 384), dtype=np.float32), caption_ids=np.array(["a", "b"]))
        assert_refused(train(file, tmp_path, "--test", test), 3, "384 dimensions", "expected 12")
        assert not [*tmp_path.rglob("*.jsonl")]

    def test_cca_has_no_submission(self, file: Path, tmp_path: Path) -> None:
        test = write_npz(tmp_path / "test.npz", small_pairs(5), images=None, image_ids=None, caption_image=None)
        done = train(file, tmp_path, "--model", "cca", "--test", test)
        assert_refused(done, 3, "a separate space", silent=False)


class TestCompare:
    def test_table_gates_and_results(self, compared: tuple[Path, Done]) -> None:
        folder, done = compared
        assert done.returncode == 0, done.stderr
        gates = load_gates(folder / "gates.yaml")
        assert set(gates.gates) == {"bigjump-beats-ridge", "ridge_adapter-beats-ridge"}
        results = load_all_results(folder)
        assert gates.registered is not None
        assert all(gates.registered.isoformat() <= r.provenance.created for r in results.everything)
        for model in ("ridge", "cca", "geometry", "linear", "mlp1", "mlp2", "bigjump", "ridge_adapter"):
            assert results.seeds(model, "crossmodal/pairs") == (0, 1)
        assert "bigjump-beats-ridge" in done.stdout
        assert "gallery of 15 images" in " ".join(done.stdout.split())

    def test_there_are_no_columns_against_a_model_that_is_not_there(self, file: Path, tmp_path: Path) -> None:
        done = successful(compare(file, tmp_path, "--models", "cca,geometry"))
        assert "vs ridge" not in done.stdout
        assert "geometry" in done.stdout

    def test_no_image_of_the_test_part_was_seen(self, compared: tuple[Path, Done]) -> None:
        folder, _ = compared
        tested = {
            key.partition("#")[0]
            for key in read_result(result_path(folder, "mlp1", 1, "crossmodal", "pairs")).per_query
        }
        rest, test = split_by_image(small_pairs(), 0.25, 0)
        assert tested == set(test.image_ids)
        assert not tested & set(rest.image_ids)

    def test_unknown_names_are_refused(self, file: Path, tmp_path: Path) -> None:
        for arguments, words in (
            (("--models", "rigde"), "did you mean 'ridge'"),
            (("--data", "flicker8k"), "did you mean 'flickr8k'"),
        ):
            assert words in str(compared_badly(file, tmp_path, *arguments))


class TestAblation:
    def test_every_row_has_its_component_at_work(self, file: Path, tmp_path: Path) -> None:
        arguments = ("--epochs", "3", "--seeds", "2", "--device", "cpu", "--set", "hidden=8", "--output-dir", tmp_path)
        successful(call_script("ablate_translator.py", "--data", file, *arguments))
        fired = {
            name: json.loads((tmp_path / name / "seed_1" / "training.json").read_text())["fired"] for name in COMPONENTS
        }
        everything = {"queue_negatives", "mined_negatives", "extra_positives", "same_image_pairs"}
        assert all(fired["all_on"].get(name, 0) > 0 for name in everything)
        assert "mined_negatives" not in fired["no_mining"]
        assert "queue_negatives" not in fired["no_queue"]
        assert "extra_positives" not in fired["no_further_positives"]
        assert "same_image_pairs" not in fired["no_agreement"]
        assert fired["with_predictions"]["past_predictions"] > 0
        assert (tmp_path / "analysis" / "arms.md").exists()
        for name in COMPONENTS:
            assert name in (tmp_path / "analysis" / "arms.csv").read_text(encoding="utf-8")

    def test_rows_differ_from_all_on_in_what_they_say(self) -> None:
        study = load_study(Path("studies/translator_ablation"))
        configs = {arm: own[0][1] for arm, own in StudyRunner(TranslatorFamily(study)).tuned.items()}
        assert all(config != configs["all_on"] for name, config in configs.items() if name != "all_on")
        full = configs["all_on"]
        assert full.sampler.by_image
        assert full.loss.bank.recent[0] > full.sampler.images
        of_flickr = overridden(study.model_dump(), batch_of(small_pairs(8000), 25))["base"]
        assert of_flickr["sampler"] == study.base["sampler"], "the file has the numbers of a large data set"
        assert of_flickr["loss"]["bank"] == study.base["loss"]["bank"]

    @pytest.mark.parametrize(("images", "epochs"), [(10, 25), (600, 2)])
    def test_what_would_leave_the_queue_unused_is_refused(self, images: int, epochs: int) -> None:
        with pytest.raises(UsageError, match="would leave the queue unused"):
            batch_of(small_pairs(images), epochs)
