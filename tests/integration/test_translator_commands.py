"""The translator's commands as a user starts them, on small files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful
from support.studies import read_submission, small_pairs, write_npz

from unimoe.analysis.gates.definitions import load_gates
from unimoe.results import read_result, result_path
from unimoe.results.folder import load_all_results
from unimoe.studies.common.study import load_study
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import split_by_image
from unimoe.studies.translator.models.files import load_translator
from unimoe.studies.translator.models.translators import NetworkTranslator

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = ("--device", "cpu", "--set", "hidden=8", "--epochs", "3", "--P", "8", "--mine_H", "4")
FAST = ("--epochs", "3", "--seeds", "2", "--device", "cpu", "--set", "hidden=8")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images with three captions each."""
    return write_npz(tmp_path_factory.mktemp("pairs") / "pairs.npz", small_pairs())


def compare(file: Path | str, folder: Path, *arguments: str) -> Done:
    given = ("--settings", "2", *FAST, "--set", "sampler.batch=32", "--set", "learning_rate=0.003", *arguments)
    return call_unimoe("compare-translators", "--data", file, "--output-dir", folder, *given)


def train(file: Path | str, folder: Path, *arguments: str | Path) -> Done:
    return call_script("train_translator.py", "--train", file, "--output-dir", folder, *SMALL, *arguments)


def test_training_prints_how_good_large_and_quick_the_model_is_and_writes_a_submission(
    file: Path, tmp_path: Path
) -> None:
    pairs, folder = small_pairs(7, seed=3), tmp_path / "bigjump" / "seed_0"
    test = write_npz(tmp_path / "test.npz", pairs, images=None, image_ids=None, caption_image=None)
    done = successful(train(file, tmp_path, "--test", test))
    words = [line.split()[0] for line in done.stdout.splitlines()]
    assert words[0] == "val/mrr"
    assert {"val/recall@1", "val/median_rank", "val/gallery_size", "parameters", "ms/query", "checkpoint"} <= {*words}
    assert "batches of 512" in done.stdout
    log = (folder / "logs" / "train.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["fired"]["mined_negatives"] > 0
    ids, vectors = read_submission(folder / "submission.csv")
    translator = load_translator(folder / "checkpoint")
    assert isinstance(translator, NetworkTranslator)
    assert ids == pairs.caption_ids
    predicted = translator.predict(pairs.captions).astype(np.float64)
    np.testing.assert_allclose(vectors, predicted / np.linalg.norm(predicted, axis=1, keepdims=True), atol=1e-7)


def test_options_reach_the_configuration(file: Path, tmp_path: Path) -> None:
    options = ("--tau", "0.2", "--no_pk", "--use_dcl", "--queue_pred", "--K_pk", "3", "--seed", "4")
    originals = ("--arch", "mlp1", "--epochs", "2", "--batch", "32", "--lr", "2e-3", "--dims", "12", "16")
    successful(train(file, tmp_path, *options, *originals))
    manifest = json.loads((tmp_path / "mlp1" / "seed_4" / "checkpoint" / "translator.json").read_text())
    config = TranslatorConfig.model_validate(manifest["settings"]["config"])
    assert (config.temperature.fixed, config.epochs, config.learning_rate) == (0.2, 2, 2e-3)
    sampler = config.sampler
    assert (sampler.by_image, sampler.captions, sampler.images, sampler.batch) == (False, 3, 8, 32)
    assert (config.loss.debiased.enabled, config.loss.predictions, config.loss.bank.hardest) == (True, True, 4)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("--config nowhere.yaml", 2, ("nowhere.yaml", "no such config file")),
        ("--model bigjum", 2, ("model", "bigjump")),
        ("--set loss.bnk.hardest=3", 2, ("loss.bnk", "bank")),
        ("--tau 0", 2, ("temperature.fixed",)),
        ("--set validation=0.001", 2, ("leaves a part of the split empty",)),
        ("--test nowhere.npz", 3, ("nowhere.npz",)),
        ("--test {other}", 3, ("384 dimensions", "expected 12")),
        ("--model cca --set cca.components=99", 2, ("99 canonical components",)),
        ("--dims 1024 16", 3, ("captions: 12 dimensions", "1024 (as roberta-large", "by --dims")),
        ("--dims 12 1536", 3, ("images: 16 dimensions", "1536 (as DINOv2 giant) by --dims")),
        ("--train generated --dims 64 1536", 3, ("generated: images: 96 dimensions", "by --dims")),
    ],
)
def test_bad_options_are_one_line(
    arguments: str, code: int, words: tuple[str, ...], file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, captions=np.ones((2, 384), dtype=np.float32), caption_ids=np.array(["a", "b"]))
    assert_refused(train(file, tmp_path / "out", *arguments.format(other=other).split()), code, *words)
    assert not [*(tmp_path / "out").rglob("*.json*")]


def test_cca_has_no_submission(file: Path, tmp_path: Path) -> None:
    test = write_npz(tmp_path / "test.npz", small_pairs(5), images=None, image_ids=None, caption_image=None)
    assert_refused(train(file, tmp_path, "--model", "cca", "--test", test), 3, "a separate space", silent=False)


def test_a_comparison_registers_gates_and_tests_images_that_no_training_saw(file: Path, tmp_path: Path) -> None:
    done = successful(compare(file, tmp_path))
    gates = load_gates(tmp_path / "gates.yaml")
    assert set(gates.gates) == {"bigjump-beats-ridge", "ridge_adapter-beats-ridge"}
    results = load_all_results(tmp_path)
    assert gates.registered is not None
    assert all(gates.registered.isoformat() <= result.provenance.created for result in results.everything)
    for model in ("ridge", "cca", "geometry", "linear", "mlp1", "mlp2", "bigjump", "ridge_adapter"):
        assert results.seeds(model, "crossmodal/pairs") == (0, 1)
    assert "bigjump-beats-ridge" in done.stdout
    assert "gallery of 15 images" in " ".join(done.stdout.split())
    result = read_result(result_path(tmp_path, "mlp1", 1, "crossmodal", "pairs"))
    rest, test = split_by_image(small_pairs(), 0.25, 0)
    tested = {key.partition("#")[0] for key in result.per_query}
    assert tested == set(test.image_ids)
    assert not tested & set(rest.image_ids)


def test_unknown_names_are_refused(file: Path, tmp_path: Path) -> None:
    assert_refused(compare(file, tmp_path, "--models", "rigde"), 2, "did you mean 'ridge'")
    assert_refused(compare("flicker8k", tmp_path), 2, "did you mean 'flickr8k'")


def test_every_row_of_the_ablation_has_its_component_at_work(file: Path, tmp_path: Path) -> None:
    successful(call_script("ablate_translator.py", "--data", file, *FAST, "--output-dir", tmp_path))
    components = [*load_study(Path("studies/translator_ablation")).arms]
    fired = {
        name: json.loads((tmp_path / name / "seed_1" / "training.json").read_text())["fired"] for name in components
    }
    everything = {"queue_negatives", "mined_negatives", "extra_positives", "same_image_pairs"}
    assert all(fired["all_on"].get(name, 0) > 0 for name in everything)
    assert "mined_negatives" not in fired["no_mining"]
    assert "queue_negatives" not in fired["no_queue"]
    assert "extra_positives" not in fired["no_further_positives"]
    assert "same_image_pairs" not in fired["no_agreement"]
    assert fired["with_predictions"]["past_predictions"] > 0
    table = (tmp_path / "analysis" / "arms.csv").read_text(encoding="utf-8")
    assert all(name in table for name in components)
