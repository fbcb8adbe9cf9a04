"""The commands of the studies of heads and translators as a user starts them, on small files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.caption_pairs import read_submission, small_pairs, write_npz
from support.scripts import Done, assert_refused, call_script, call_unimoe, read_plain, successful, write_plain
from support.studies import topics_folder

from unimoe.analysis.gates.definitions import load_gates
from unimoe.results import read_drilldown, read_result, result_path
from unimoe.results.folder import load_all_results
from unimoe.studies.common.study import load_study
from unimoe.studies.heads.family import HeadFamily
from unimoe.studies.translator.config import MODELS, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import split_by_image
from unimoe.studies.translator.family import TranslatorFamily
from unimoe.studies.translator.models.translators import NetworkTranslator, load_translator, read_manifest

pytestmark = pytest.mark.usefixtures("one_thread")


METHODS = "zero_shot,infonce,eggroll,eggroll_soft_labels"
SMALL = ("--set", "population_size=16", "--set", "eval_every=4", "--set", "batch_size=12", "--set", "pools.depth=20")
FAST = ("--num_steps", "8", "--settings", "2", "--seeds", "2", "--device", "cpu", *SMALL)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A collection, with a cache for all tests of this file."""
    root = tmp_path_factory.mktemp("heads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIMOE_CACHE", str(root / "cache"))
        yield topics_folder(root / "topics")


def compare_heads(topics: Path, out: Path, *arguments: str) -> Done:
    return call_script("compare_methods.py", "--task", f"path:{topics}", "--output-dir", out, *FAST, *arguments)


def test_every_arm_is_an_ordinary_result_and_an_older_gate_gives_its_verdict(topics: Path, tmp_path: Path) -> None:
    done = successful(compare_heads(topics, tmp_path, "--methods", METHODS))
    assert "already done" not in done.stderr
    assert all(name in done.stdout for name in (*METHODS.split(","), "eggroll-beats-infonce"))
    assert {".csv", ".tex", ".md"} <= {path.suffix for path in (tmp_path / "analysis").glob("arms.*")}
    results, gates = load_all_results(tmp_path), load_gates(tmp_path / "gates.yaml")
    assert gates.registered is not None
    assert all(gates.registered.isoformat() <= result.provenance.created for result in results.everything)
    assert gates.gates["eggroll-beats-infonce"].arms == ("eggroll", "infonce")
    assert set(results) == {"bm25", *METHODS.split(",")}
    key = f"reranking/{topics.name}"
    assert (results.seeds("infonce", key), results.seeds("zero_shot", key)) == ((0, 1), ())
    path = result_path(tmp_path, "eggroll", 1, "reranking", topics.name)
    result = read_result(path)
    identity, training = result.identity, result.training
    assert (identity.checkpoint, identity.split, identity.depth) == ("best", "test", 20)
    assert "minilm" in str(identity.base_model).lower()
    assert training is not None
    assert (training.steps, training.ranking_examples) == (8, 96)
    assert set(result.provenance.hashes) == {"collection", "candidates", "base_model", "prompt", "checkpoint"}
    assert set(read_drilldown(path).queries) == set(result.per_query)


def test_a_head_is_trained_by_a_file(topics: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "head.yaml", tmp_path / "out"
    write_plain(file, {"method": "pg_rank", "task": f"path:{topics}", "num_steps": 300, "output_dir": str(out)})
    given = ("train-head", "--config", file, "--num-steps", "3", "--device", "cpu", *SMALL[2:])
    done, tested = (call_unimoe(*given, *more) for more in ((), ("--test",)))
    shown = [line.split()[0] for line in successful(done).stdout.splitlines()]
    assert shown == ["val/ndcg@10", "train/ndcg@10", "head"]
    assert (out / "pg_rank" / "seed_0" / "checkpoint").is_dir()
    zero = (*given, "--set", "method=zero_shot", "--test")
    encoder = dict(line.split()[:2] for line in successful(call_unimoe(*zero)).stdout.splitlines())
    for line in tested.stdout.splitlines()[:3]:
        split, _, beside = line.partition("(")
        assert f"encoder {encoder[split.split()[0]]}" in beside, "the same score as of zero-shot"
        assert beside.startswith("start 0.")
        assert ("bm25 0." in beside) is not line.startswith("train/")
    assert "test/ndcg@10" in tested.stdout, "test scores are shown where they are asked for"
    assert set(done.stdout.splitlines()) < set(tested.stdout.splitlines())
    write_plain(file, {"metod": "eggroll"})
    assert_refused(call_unimoe("train-head", "--config", file), 2, "head.yaml", "metod", "did you mean 'method'?")


def study_of_heads(name: str, topics: Path, out: Path, *arguments: str) -> Done:
    small = ("--set", f"task=path:{topics}", "--set", "num_steps=8", "--device", "cpu", *SMALL)
    return call_unimoe("study", f"studies/{name}", "--output-dir", out, *small, *arguments)


def rows_of(table: Path) -> list[list[str]]:
    lines = [line for line in table.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines][2:]


def test_a_study_of_the_four_keys_of_evolution_ends_with_their_heat_map(topics: Path, tmp_path: Path) -> None:
    grid = {"sigma": [0.1, 0.3], "population_size": [4, 8], "learning_rate": [1e-3], "head_output_size": [8]}
    small = ("--set", f"arms.eggroll.grid={json.dumps(grid)}")
    for settings, folder in ((4, tmp_path / "whole"), (3, tmp_path / "holes")):
        done = successful(study_of_heads("heads_grid", topics, folder, *small, "--set", f"settings={settings}"))
        assert f"Figure: {folder / 'analysis' / 'grid-eggroll.png'}" in done.stdout
        assert (folder / "analysis" / "grid-eggroll.png").exists()
        assert len(rows_of(folder / "analysis" / "settings.md")) == settings
        assert not (folder / "analysis" / "pareto.png").exists()


def test_a_study_with_diversity_as_an_objective_ends_with_the_front(topics: Path, tmp_path: Path) -> None:
    done = successful(study_of_heads("heads_pareto", topics, tmp_path, "--set", "settings=2"))
    assert f"Figure: {tmp_path / 'analysis' / 'pareto.png'}" in done.stdout
    assert not (tmp_path / "gates.yaml").exists()
    front = [(float(row[1]), float(row[2])) for row in rows_of(tmp_path / "analysis" / "pareto.md")]
    arms = ("eggroll", "eggroll_objectives")
    tried = [
        (100 * one["val"], one["diversity"]) for arm in arms for one in read_plain(tmp_path / "tuning" / f"{arm}.json")
    ]
    assert len(tried) == 4
    close = 0.006, 6e-5  # what rounding leaves
    assert all(any(f[0] >= t[0] - close[0] and f[1] >= t[1] - close[1] for f in front) for t in tried)


def test_a_study_that_names_no_collection_or_folder_takes_what_is_at_hand(
    topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNIMOE_DATA", raising=False)
    study = load_study(Path("studies/heads_compare"))
    own = HeadFamily(study)
    assert (own.base.task, own.root) == ("apidocs", Path("outputs/heads-apidocs"))
    topics_folder(tmp_path / "data" / "scifact")
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path / "data"))
    assert HeadFamily(study).base.task == "scifact"
    file = tmp_path / "head.yaml"
    for keys, task in (({}, "scifact"), ({"task": f"path:{topics}"}, f"path:{topics}")):
        write_plain(file, keys)
        family = HeadFamily(load_study(Path("studies/heads_compare"), [f"config={file}"]))
        assert family.base.task == task
        assert family.root == Path(family.base.output_dir) == Path(f"outputs/heads-{Path(task).name[-7:].strip(':')}")
    pairs = load_study(Path("studies/translators"), ["data.source=some/pairs.npz"])
    assert TranslatorFamily(pairs).root == Path("outputs/translators-pairs")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--task", "scifakt"), ("unknown collection", "did you mean 'scifact'")),
        (("--methods", "infonse"), ("unknown arm 'infonse'", "infonce")),
        (("--set", "sigmma=1"), ("sigmma", "did you mean 'sigma'?")),
        (("--margin", "-1"), ("eggroll-beats-infonce.margin", "at least 0")),
        (("--methods", "eggroll,hybrid", "--num_steps", "1"), ("arms.hybrid", "handoff 1 must be below num_steps 1")),
        (("--set", "gates.eggroll-beat-infonce.margin=0"), ("eggroll-beat-infonce.system", "'eggroll-beats-infonce'")),
        (("--set", "arms.genetic.grid.sigma=[0.1,0.2]"), ("arms.genetic", "sigma: genetic does not read it, it is of")),
        (("--set", "arms.infonce.set.label_temperature=0.1"), ("arms.infonce", "label_temperature: infonce does not")),
        (("--set", "extends=studies/losses"), ("extends=studies/losses", "a file says what it extends")),
    ],
)
def test_bad_input_gets_a_line(
    topics: Path, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(compare_heads(topics, tmp_path, *arguments), 2, *words)
    assert not [*tmp_path.rglob("*.json")]


def test_korean_needs_its_folder_and_says_what_the_encoder_is_not(tmp_path: Path) -> None:
    options = ("--methods", "zero_shot,infonce", *FAST, "--num_steps", "2", "--seeds", "1", "--settings", "1")
    here = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path / "cache")}
    korean = partial(call_script, "compare_korean.py", "--offline", *options, "--output-dir", tmp_path / "out", **here)
    assert_refused(korean(), 2, "belebele-ko")
    topics_folder(tmp_path / "belebele-ko")
    done = successful(korean())
    assert "made for English, and the texts are Korean" in done.stderr
    assert {"bm25", "zero_shot", "infonce"} >= set(load_all_results(tmp_path / "out")) >= {"zero_shot", "infonce"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images with three captions each."""
    return write_npz(tmp_path_factory.mktemp("pairs") / "pairs.npz", small_pairs())


TRANSLATOR = ("--device", "cpu", "--set", "hidden=8", "--epochs", "3")


def compare(file: Path | str, folder: Path, *arguments: str) -> Done:
    keys = (f"data.source={file}", "settings=2", "hidden=8", "epochs=3", "sampler.batch=32", "learning_rate=0.003")
    given = ("--seeds", "2", "--device", "cpu", *(word for key in keys for word in ("--set", key)), *arguments)
    return call_unimoe("study", "studies/translators", "--output-dir", folder, *given)


def train(file: Path | str, folder: Path, *arguments: str | Path) -> Done:
    given = ("--train", file, "--output-dir", folder, *TRANSLATOR, "--P", "8", "--mine_H", "4", *arguments)
    return call_script("train_translator.py", *given)


def test_training_prints_how_good_large_and_quick_it_is_and_writes_a_submission(file: Path, tmp_path: Path) -> None:
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
    manifest = read_manifest(tmp_path / "mlp1" / "seed_4" / "checkpoint")
    config = TranslatorConfig.model_validate(manifest.settings["config"])
    assert (config.temperature.fixed, config.epochs, config.learning_rate) == (0.2, 2, 2e-3)
    sampler = config.sampler
    assert (sampler.by_image, sampler.captions, sampler.images, sampler.batch) == (False, 3, 8, 32)
    assert (config.loss.debiased.enabled, config.loss.predictions, config.loss.bank.hardest) == (True, True, 4)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("--tau 0", 2, ("temperature.fixed",)),
        ("--test nowhere.npz", 3, ("nowhere.npz",)),
        ("--test {other}", 3, ("384 dimensions", "expected 12")),
        ("--model cca --set cca.components=99", 2, ("99 canonical components",)),
        ("--dims 1024 16", 3, ("captions: 12 dimensions", "1024 (as roberta-large", "by --dims")),
        ("--train generated --dims 64 1536", 3, ("generated: images: 96 dimensions", "by --dims")),
    ],
)
def test_bad_options_get_a_line(arguments: str, code: int, words: tuple[str, ...], file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, captions=np.ones((2, 384), dtype=np.float32), caption_ids=np.array(["a", "b"]))
    assert_refused(train(file, tmp_path / "out", *arguments.format(other=other).split()), code, *words)
    assert not [*(tmp_path / "out").rglob("*.json*")]


def test_unknown_models_or_pairs_and_a_submission_by_cca_are_refused(file: Path, tmp_path: Path) -> None:
    test = write_npz(tmp_path / "test.npz", small_pairs(5), images=None, image_ids=None, caption_image=None)
    assert_refused(train(file, tmp_path, "--model", "cca", "--test", test), 3, "a separate space", silent=False)
    assert_refused(compare(file, tmp_path, "--only", "rigde"), 2, "did you mean 'ridge'")
    assert_refused(compare("flicker8k", tmp_path), 2, "did you mean 'flickr8k'")


def test_a_comparison_registers_gates_and_tests_images_that_no_training_saw(file: Path, tmp_path: Path) -> None:
    done = successful(compare(file, tmp_path))
    assert set(load_gates(tmp_path / "gates.yaml").gates) == {"bigjump-beats-ridge", "ridge_adapter-beats-ridge"}
    results = load_all_results(tmp_path)
    assert {results.seeds(model, "crossmodal/pairs") for model in MODELS} == {(0, 1)}
    assert "bigjump-beats-ridge" in done.stdout
    assert "gallery of 15 images" in " ".join(done.stdout.split())
    assert results.cluster_numbers == {"crossmodal/pairs": 15}, "the gates' queries are images, as in the table"
    result = read_result(result_path(tmp_path, "mlp1", 1, "crossmodal", "pairs"))
    _, test = split_by_image(small_pairs(), 0.25, 0)
    assert {key.partition("#")[0] for key in result.per_query} == set(test.image_ids)


def test_every_row_of_the_ablation_has_its_component_at_work(file: Path, tmp_path: Path) -> None:
    given = ("--data", file, "--output-dir", tmp_path, *TRANSLATOR, "--seeds", "2")
    successful(call_script("ablate_translator.py", *given))
    components = [*load_study(Path("studies/translator_ablation")).arms]
    fired = {name: read_plain(tmp_path / name / "seed_1" / "training.json")["fired"] for name in components}
    everything = {"queue_negatives", "mined_negatives", "extra_positives", "same_image_pairs"}
    assert all(fired["all_on"].get(name, 0) > 0 for name in everything)
    assert "mined_negatives" not in fired["no_mining"]
    assert "queue_negatives" not in fired["no_queue"]
    assert "extra_positives" not in fired["no_further_positives"]
    assert "same_image_pairs" not in fired["no_agreement"]
    assert fired["with_predictions"]["past_predictions"] > 0
    table = (tmp_path / "analysis" / "arms.csv").read_text(encoding="utf-8")
    assert all(name in table for name in components)
    config = read_result(result_path(tmp_path, "all_on", 1, "crossmodal", "pairs")).config["training"]
    assert (config["sampler"]["images"], config["sampler"]["batch"]) == (9, 18), "a quarter of 36 images"
    assert config["loss"]["bank"]["recent"] == [36, 72, 144]


def test_an_ablation_whose_queue_would_be_unused_is_refused(file: Path, tmp_path: Path) -> None:
    few = write_npz(tmp_path / "few.npz", small_pairs(10))
    for data, epochs, words in ((few, 3, "6 training images"), (file, 2, "2 epochs would leave the queue unused")):
        done = call_script("ablate_translator.py", "--data", data, "--epochs", str(epochs), "--output-dir", tmp_path)
        assert_refused(done, 2, words, "give 8 images and 3 epochs at least")


@pytest.mark.parametrize(
    ("method", "change", "key"),
    [
        ("genetic", "sigma=0.1", "sigma"),
        ("genetic", "learning_rate=1", "learning_rate"),
        ("infonce", "genetic.elites=3", "genetic"),
        ("score_es", "grid=true", "grid"),
        ("zero_shot", "temperature=0.1", "temperature"),
    ],
)
def test_a_key_that_the_method_of_a_head_does_not_read_is_refused(method: str, change: str, key: str) -> None:
    done = call_unimoe("train-head", "--method", method, "--set", change)
    assert_refused(done, 2, f"--set {change}: {key}: {method} does not read it, it is of ")
