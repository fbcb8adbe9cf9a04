"""The comparison of methods as its commands run it, on a tiny collection with the bundled encoder."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from support.engine import ThreadActors
from support.heads import topics_folder
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful

from unimoe.analysis.gates.definitions import load_gates
from unimoe.results import read_drilldown, read_result, result_path
from unimoe.results.folder import load_all_results
from unimoe.studies.common.study import load_study

METHODS = "zero_shot,infonce,eggroll,eggroll_soft_labels"
SMALL = ("--set", "population_size=16", "--set", "eval_every=4", "--set", "batch_size=12", "--set", "pools.depth=20")
FAST = ("--num_steps", "8", "--settings", "2", "--seeds", "2", "--device", "cpu", *SMALL)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Collection, output folder and cache, shared by the tests of this file."""
    root = tmp_path_factory.mktemp("heads")
    return topics_folder(root / "topics"), root / "out", root / "cache"


@pytest.fixture(scope="module")
def comparison(places: tuple[Path, Path, Path]) -> Done:
    """How the script ended."""
    folder, out, cache = places
    return successful(call_script(
        "compare_methods.py", "--task", f"path:{folder}", "--methods", METHODS, "--output-dir", out, *FAST,
        UNIMOE_CACHE=str(cache),
    ))  # fmt: skip


@pytest.fixture(scope="module")
def compared(comparison: Done) -> str:
    """What the script printed."""
    return comparison.stdout


def test_a_first_run_says_nothing_of_done_work(comparison: Done) -> None:
    assert "already done" not in comparison.stderr
    assert "embedded" not in comparison.stderr, "nobody knows yet whether vectors come from the cache"


def test_work_stands_beside_equal_steps(places: tuple[Path, Path, Path], compared: str) -> None:
    """Eight steps of 16 perturbed heads are 128 forward passes, those of a gradient 8."""
    with (places[1] / "analysis" / "arms.csv").open(encoding="utf-8") as lines:
        passes = {row["arm"]: row["passes"] for row in csv.DictReader(lines) if row["passes"]}
    assert passes == {"zero_shot": "0", "infonce": "8", "eggroll": "128", "eggroll_soft_labels": "128"}


def source(places: tuple[Path, Path, Path]) -> str:
    return f"path:{places[0]}"


def dataset(places: tuple[Path, Path, Path]) -> str:
    """What results call the collection."""
    return places[0].name


def test_table_and_verdict_are_printed_and_written(places: tuple[Path, Path, Path], compared: str) -> None:
    for name in METHODS.split(","):
        assert name in compared
    assert "eggroll-beats-infonce" in compared
    text = (places[1] / "analysis" / "arms.csv").read_text(encoding="utf-8")
    rows = [line.split(",") for line in text.splitlines() if line and not line.startswith("#")]
    names = [row[1] if row[0] == "" else row[0] for row in rows]
    assert {"zero_shot", "infonce", "eggroll"} <= set(names)
    assert (places[1] / "analysis" / "arms.tex").exists()
    assert (places[1] / "analysis" / "arms.md").exists()


def test_the_gate_was_registered_before_the_first_result(places: tuple[Path, Path, Path], compared: str) -> None:
    gates = load_gates(places[1] / "gates.yaml")
    assert gates.registered is not None
    results = load_all_results(places[1])
    assert all(gates.registered.isoformat() <= r.provenance.created for r in results.everything)
    assert gates.gates["eggroll-beats-infonce"].arms == ("eggroll", "infonce")


def test_every_arm_is_an_ordinary_result(places: tuple[Path, Path, Path], compared: str) -> None:
    results = load_all_results(places[1])
    assert set(results) == {"bm25", *METHODS.split(",")}
    key = f"reranking/{dataset(places)}"
    assert results.seeds("infonce", key) == (0, 1)
    assert results.seeds("zero_shot", key) == ()
    path = result_path(places[1], "eggroll", 1, "reranking", dataset(places))
    result = read_result(path)
    assert result.identity.checkpoint == "best"
    assert result.identity.split == "test"
    assert result.identity.depth == 20
    assert result.identity.base_model is not None
    assert "minilm" in result.identity.base_model.lower()
    assert result.training is not None
    assert result.training.steps == 8
    assert result.training.ranking_examples == 96
    assert set(result.provenance.hashes) == {"collection", "candidates", "base_model", "prompt", "checkpoint"}
    assert set(read_drilldown(path).queries) == set(result.per_query)


def test_settings_were_chosen_on_dev_with_another_seed(places: tuple[Path, Path, Path], compared: str) -> None:
    for name in ("infonce", "eggroll"):
        tried = json.loads((places[1] / "tuning" / f"{name}.json").read_text(encoding="utf-8"))
        assert len(tried) == 2
        assert all("val" in setting for setting in tried)
        best = max(tried, key=lambda setting: setting["val"])
        config = read_result(result_path(places[1], name, 0, "reranking", dataset(places))).config["training"]
        assert config["learning_rate"] == best["learning_rate"]
        assert config["seed"] == 0
    assert {path.name for path in (places[1] / "tuning").glob("*/*/seed_*")} == {"seed_105"}


def test_again_nothing_is_trained(places: tuple[Path, Path, Path], compared: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in places[1].rglob("*.safetensors")}
    results = {path: path.read_bytes() for path in places[1].glob("*/seed_*/results/*/*.json")}
    done = call_script(
        "compare_methods.py", "--task", source(places), "--methods", METHODS, "--output-dir", places[1], *FAST,
        UNIMOE_CACHE=str(places[2]),
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == compared
    assert before == {path: path.stat().st_mtime_ns for path in places[1].rglob("*.safetensors")}
    assert results == {path: path.read_bytes() for path in places[1].glob("*/seed_*/results/*/*.json")}


def test_other_settings_are_refused_in_the_same_folder(places: tuple[Path, Path, Path], compared: str) -> None:
    done = call_script(
        "compare_methods.py", "--task", source(places), "--methods", METHODS, "--output-dir", places[1], *FAST,
        "--set", "head_output_size=8", UNIMOE_CACHE=str(places[2]),
    )  # fmt: skip
    assert_refused(done, 3, "is of another training", "choose another output_dir")


def test_another_margin_is_another_gate(places: tuple[Path, Path, Path], compared: str) -> None:
    done = call_script(
        "compare_methods.py", "--task", source(places), "--methods", METHODS, "--output-dir", places[1], *FAST,
        "--margin", "0.02", UNIMOE_CACHE=str(places[2]),
    )  # fmt: skip
    assert_refused(done, 3, "gates.yaml registers another gate")


def test_the_analysis_takes_the_folder(places: tuple[Path, Path, Path], compared: str) -> None:
    done = successful(call_script("analyze_results.py", "--output-dir", places[1], "--iterations", "200"))
    assert "eggroll" in done.stdout
    assert (places[1] / "analysis" / "report.html").exists()


def test_a_file_says_what_options_would(places: tuple[Path, Path, Path], compared: str, tmp_path: Path) -> None:
    """The comparison of above as a study of its own: nothing is trained again, and the tables are the same."""
    shipped = load_study(Path("studies/heads_compare"))
    keys = {"task": source(places), "num_steps": 8, **dict(text.split("=", 1) for text in SMALL[1::2])}
    written = shipped.model_dump(mode="json") | {"base": {}, "settings": 2, "seeds": 2, "output_dir": str(places[1])}
    file = tmp_path / "heads.yaml"
    file.write_text(json.dumps(written), encoding="utf-8")  # JSON is YAML
    overrides = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    given: tuple[str | Path, ...] = ("study", file, "--only", METHODS, "--device", "cpu", *overrides)
    done = successful(call_unimoe(*given, UNIMOE_CACHE=str(places[2])))
    assert done.stdout == compared


def test_a_head_is_trained_by_a_file(places: tuple[Path, Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "head.yaml"
    lines = ["method: pg_rank", f"task: {source(places)}", "num_steps: 300", f"output_dir: {tmp_path / 'out'}"]
    file.write_text("\n".join(lines), encoding="utf-8")
    given = ("--config", file, "--num-steps", "3", "--device", "cpu", *SMALL)
    done = successful(call_unimoe("train-head", *given, UNIMOE_CACHE=str(places[2])))
    assert (tmp_path / "out" / "pg_rank" / "seed_0" / "checkpoint").is_dir()
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["val/ndcg@10", "train/ndcg@10", "head"]
    tested = call_unimoe("train-head", *given, "--test", UNIMOE_CACHE=str(places[2]))
    assert "test/ndcg@10" in tested.stdout, "test scores are shown where they are asked for"
    assert set(done.stdout.splitlines()) < set(tested.stdout.splitlines())
    file.write_text("metod: eggroll", encoding="utf-8")
    assert_refused(call_unimoe("train-head", "--config", file), 2, "head.yaml", "metod", "did you mean 'method'?")


class TestCluster:
    """Workers of a cluster do the trainings."""

    @pytest.fixture(autouse=True)
    def _workers(self, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, hire: ThreadActors(hire.store, 2))

    def both(self, places: tuple[Path, Path, Path], folder: Path, *arguments: str) -> tuple[Done, Done]:
        """Compare in this process and by workers."""
        cluster = ("--engine", "ray", "--store", str(folder / "store"))
        given = (*arguments, "--task", source(places), *FAST, "--threads", "1")
        alone, together = (
            call_script(
                "compare_methods.py", *given, "--output-dir", folder / name, *more, UNIMOE_CACHE=str(places[2])
            )
            for name, more in (("alone", ()), ("together", cluster))
        )  # fmt: skip
        assert alone.returncode == 0, alone.stderr
        assert together.returncode == 0, together.stderr
        return alone, together

    def test_a_grid_and_a_front_are_the_same(self, places: tuple[Path, Path, Path], tmp_path: Path) -> None:
        grid = {"sigma": [0.1, 0.3], "population_size": [4, 8], "learning_rate": [1e-3], "head_output_size": [8]}
        small = ("--methods", "eggroll", "--set", f"arms.eggroll.grid={json.dumps(grid)}", "--settings", "9")
        for part, table, more in (("grid", "settings", small), ("pareto", "pareto", ())):
            alone, together = self.both(places, tmp_path, part, *more)
            assert "trainings by workers: 4:" in together.stderr
            ours, theirs = (
                (tmp_path / name / "analysis" / f"{table}.md").read_text() for name in ("alone", "together")
            )
            times = re.compile(r"[\d.]+ \|$", re.M) if part == "grid" else re.compile("$^")
            assert times.sub("", theirs) == times.sub("", ours)
            assert len(alone.stdout.splitlines()) == len(together.stdout.splitlines())
            figures = {path.name for path in (tmp_path / "together" / "analysis").glob("*.png")}
            assert f"{part}.png" in figures


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--task", "scifakt"), 2, ("unknown collection", "scifact")),
        (("--methods", "infonse"), 2, ("unknown arm 'infonse'", "infonce")),
        (("--set", "sigmma=1"), 2, ("sigmma", "did you mean 'sigma'?")),
        (("--set", "population_size=7"), 2, ("population_size 7 is odd",)),
        (("--margin", "-1"), 2, ("eggroll-beats-infonce.margin", "at least 0")),
        (
            ("--methods", "eggroll,hybrid", "--num_steps", "1"),
            2,
            ("arms.hybrid", "handoff 1 must be below num_steps 1"),
        ),
        (("pareto", "--methods", "infonce,zero_shot"), 2, ("pareto: shows eggroll", "--methods")),
        (("--device", "tpu"), 2, ("device",)),
    ],
)
def test_bad_input_is_one_line(
    places: tuple[Path, Path, Path], tmp_path: Path, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    given: list[str | Path] = ["--task", source(places), "--output-dir", tmp_path, *arguments]
    assert_refused(call_script("compare_methods.py", *given, UNIMOE_CACHE=str(places[2])), code, *words)
    assert not [*tmp_path.rglob("*.json")]


def test_korean_without_its_folder_says_what_to_do(tmp_path: Path) -> None:
    nowhere = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path)}
    done = call_script("compare_korean.py", "--offline", "--output-dir", tmp_path, **nowhere)
    assert_refused(done, 2, "belebele-ko")


def test_korean_offline_says_that_the_encoder_is_english(unimoe_data: Path, tmp_path: Path) -> None:
    done = successful(call_script(
        "compare_korean.py", "--offline", "--methods", "zero_shot", "--output-dir", tmp_path / "out", *FAST,
        UNIMOE_DATA=str(unimoe_data), UNIMOE_CACHE=str(tmp_path / "cache"),
    ))  # fmt: skip
    assert "made for English, and the texts are Korean" in " ".join(done.stdout.split())
    path = result_path(tmp_path / "out", "zero_shot", None, "reranking", "belebele-ko")
    assert read_result(path).caveats
