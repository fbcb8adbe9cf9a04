"""Commands as scripts: what they write and print, the cache, bad input in one line, signals, torchrun's processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import filelock
import pytest
from support.embedders import WordEmbedder
from support.experiments import tiny_experiment_dict, write_tiny_experiment
from support.scripts import SCRIPTS, assert_refused, call_script, call_unimoe, evaluate, result_of, successful
from support.tiny_models import save_tiny_model
from support.toy_collections import SMALL, invented, write_beir, write_invented

from unimoe.config import BM25Config, DenseConfig
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import dense_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="module")
def checkpoint(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("trained") / "outputs"
    done = successful(
        call_script("train.py", "--config", config, "--arm", "joint_r8", "--seed", "1", "--output-dir", output_dir)
    )
    return Path(done.stdout.strip())


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("train.py --config {config} --arm joint_r9", 2, ["did you mean 'joint_r8'?"]),
        # The originals' options.
        ("train.py --task NanoMSMARCO --num_steps 5000 --device cuda", 2, ["unimoe train-head --task NanoMSMARCO"]),
        ("train.py --arm joint_r8 --num_steps 5000", 2, ["--num_steps 5000: type --set training.steps=5000"]),
        ("train.py --config {config} --arm rank_only_r8 --set model.layers=9", 2, ["has 4 layers; give 4 at most"]),
        ("train.py --config {config} --arm rank_only_r8 --set lora.first_layer=15", 2, ["has layers 0 to 3, 4 in all"]),
        ("evaluate.py --checkpoint {checkpoint} --config experiments/bundled", 3, ["--config: its model section diff"]),
    ],
)
def test_bad_input_is_one_line(config: Path, checkpoint: Path, command: str, code: int, words: list[str]) -> None:
    done = call_script(*command.format(config=config, checkpoint=checkpoint).split())
    assert_refused(done, code, *words)
    assert len(done.stderr.splitlines()) == 1


def test_an_evaluation_writes_beside_the_checkpoint(checkpoint: Path, unimoe_data: Path, tmp_path: Path) -> None:
    assert checkpoint.parts[-3:] == ("joint_r8", "seed_1", "checkpoint")
    done = successful(call_script("evaluate.py", "--checkpoint", checkpoint, "--task", "embedding"))
    paths = [Path(line.rpartition("  ")[2]) for line in done.stdout.splitlines()]
    assert checkpoint.parent / "results" / "embedding" / "apidocs.json" in [path for path in paths if path.is_file()]
    options = ("--eval-tier", "fast", "--max-queries", "2", "--task", "reranking", "--set", "evaluation.depth=3")
    done = evaluate(unimoe_data, "--checkpoint", checkpoint, *options, "--output-dir", tmp_path, cache=tmp_path)
    assert_refused(done, 4, "fiqa", silent=False)
    for dataset in ("scifact", "nfcorpus"):
        found = result_of(tmp_path, "joint_r8", dataset, seed=1)
        assert (len(found.per_query), found.identity.max_queries, len(found.caveats)) == (2, 2, 1)
        assert all("--max-queries 2" in place for place in (found.provenance.given, found.caveats[0]))
    where = ("--dataset", "apidocs@train", "--max-queries", "2", "--output-dir", tmp_path / "train")
    successful(call_script("evaluate.py", "--checkpoint", checkpoint, *where))
    found = result_of(tmp_path / "train", "joint_r8", "apidocs", seed=1)
    assert found.caveats[1:] == ["these queries trained the checkpoint"]


def test_a_checkpoint_of_another_base_model_is_refused(config: Path, checkpoint: Path, tmp_path: Path) -> None:
    model = Path(tiny_experiment_dict(config.parent)["model"]["base"])
    kept = shutil.copytree(model, tmp_path / "kept")
    try:
        save_tiny_model(model, seed=5)
        assert_refused(call_script("evaluate.py", "--checkpoint", checkpoint), 3, "was trained on tiny-model@")
    finally:
        shutil.rmtree(model)
        shutil.copytree(kept, model)


def test_doctor_shows_machine_collections_and_the_time_of_the_main_job(tmp_path: Path) -> None:
    write_beir(SMALL, tmp_path / "scifact")
    places = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path / "cache")}
    done = successful(call_unimoe("doctor", "--config", write_tiny_experiment(tmp_path), **places))
    found = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert found.keys() >= {"python", "packages", "device", "dtype", "cache", "disk", "collections", "main"}
    assert "scifact" in found["collections"]
    assert "nfcorpus" not in found["collections"]
    assert "GFLOP/s" in found["dtype"]
    assert str(tmp_path / "cache") in found["cache"]
    assert re.search(r"\d+ to \d+ (minutes|seconds) for tiny", found["main"])


DAY = 24 * 3600


def use_vectors() -> None:
    """Search by vectors, which are kept."""
    collection = invented()
    words = sorted({word for document in collection.corpus.values() for word in document.full_text.split()})
    dense_run(WordEmbedder(words), collection, DenseConfig(depth=5, cutoffs=[1]))


@pytest.fixture
def cache(tmp_cache: Path) -> Path:
    """Vectors of a week ago, a run and an index of today, and a download."""
    use_vectors()
    bm25_run(invented(), 10, BM25Config(), cached=True)
    week_ago = time.time() - 7 * DAY
    for path in (tmp_cache / "vectors").rglob("*"):
        os.utime(path, (week_ago, week_ago))
    unpacked = tmp_cache / "collections" / "zips" / "scifact-0123456789abcdef" / "scifact"
    unpacked.mkdir(parents=True)
    (unpacked / "corpus.jsonl").write_bytes(bytes(2**20))
    return tmp_cache


def kinds(*arguments: str) -> list[str]:
    """What the cache holds, as its command lists it."""
    listed = json.loads(successful(call_unimoe("cache", *arguments, "--json")).stdout)
    return [one["kind"] for one in listed["entries"]]


def test_a_line_says_what_is_kept_of_which_model_and_collection_and_how_large(cache: Path) -> None:
    found = json.loads(successful(call_unimoe("cache", "--json")).stdout)
    assert found["folder"] == str(cache)
    runs, download, index, vectors = found["entries"]
    assert (runs["model"], runs["collection"]) == ("bm25s(k1=0.9,b=0.4,stemmer=english)", "invented")
    assert (index["model"], index["collection"]) == ("bm25s(stemmer=english)", "invented")
    assert (vectors["model"], vectors["collection"]) == (WordEmbedder.base_identity, "invented")
    assert vectors["bytes"] == sum(path.stat().st_size for path in (cache / "vectors").rglob("*") if path.is_file())
    assert vectors["last_use"] == pytest.approx(time.time() - 7 * DAY, abs=60)
    assert (download["kind"], download["bytes"]) == ("collections", 2**20)
    lines = successful(call_unimoe("cache")).stdout.splitlines()
    assert lines[0].split() == ["kind", "name", "model", "collection", "MiB", "last", "use"]
    assert lines[4].startswith(f"vectors      {vectors['name']}")
    assert lines[5] == "4 entries, 1.0 MiB"


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ([], ["collections"]),
        (["--older-than", "6.5"], ["bm25", "collections", "index"]),
        (["--older-than", "7.5"], ["bm25", "collections", "index", "vectors"]),
        (["invented", "--kind", "bm25"], ["collections", "index", "vectors"]),
        (["bm25s(stemmer=english)"], ["bm25", "collections", "vectors"]),
        (["words@0123456789abcdef"], ["bm25", "collections", "index"]),
        (["--kind", "collections", "--kind", "bm25"], ["index", "vectors"]),
    ],
)
def test_clear_removes_what_is_chosen_and_says_how_much(cache: Path, chosen: list[str], left: list[str]) -> None:
    done = successful(call_unimoe("cache", "clear", *chosen))
    assert kinds() == left
    removed = 4 - len(left)
    assert f"removing {removed} entr" in done.stderr
    assert done.stdout.startswith(f"removed {removed} entr")


def test_what_a_server_was_paid_for_goes_only_where_its_kind_is_named(cache: Path) -> None:
    answers = cache / "served" / "vectors" / f"{0:016x}"
    answers.mkdir(parents=True)
    (answers / f"{1:016x}.npy").write_bytes(b"paid")
    (made_from,) = (cache / "vectors").glob("*/made_from.json")
    made_from.write_text(json.dumps({"model": "served:openai:host:big@0123", "collection": "invented"}))
    assert call_unimoe("cache", "clear", "vectors").returncode == 2
    successful(call_unimoe("cache", "clear"))
    assert kinds() == ["collections", "served", "vectors"]
    successful(call_unimoe("cache", "clear", "--kind", "vectors", "served:openai:host:big"))
    assert kinds() == ["collections", "served"]


THESIS = (
    "embeddings/my_thesis/e.npy",
    f"vectors/{0:016x}-{1:016x}/notes/e.npy",  # as unimoe names them, and more in it
    "bm25/mine.trec",
    f"index/{1:016x}/thesis.npy",
    "dense/0123456789abcdef/vectors.npy",
    "collections/zips/mine/corpus.jsonl",
    "collections/beir/mine/corpus.jsonl",
    "served/vectors/mine.npy",
    "models/my-model/model.safetensors",
    "thesis/vectors.npy",
    "thesis.npy",
)
OWN = (
    f"embeddings/{0:016x}-{1:016x}/vectors.npy",  # of an earlier version
    f"bm25/{0:016x}.trec",
    f"bm25/{0:016x}-100.trec",
    f"index/{0:016x}/starts.npy",
    f"dense/{0:016x}.safetensors",
    f"vectors/{1:016x}-{1:016x}/.vectors.npy.host-1-1.tmp",
)


def place(cache: Path, *names: str) -> None:
    for name in names:
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(b"12345678")


def everything(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_what_unimoe_has_not_made_is_named_and_stays(tmp_cache: Path, tmp_path: Path) -> None:
    place(tmp_cache, *THESIS, *OWN)
    place(tmp_path, "elsewhere/vectors.npy")
    (tmp_cache / "vectors" / f"{2:016x}-{2:016x}").symlink_to(tmp_path / "elsewhere")
    assert len(kinds()) == len(OWN)
    before, listed = everything(tmp_cache), json.loads(successful(call_unimoe("cache", "--json")).stdout)["entries"]
    done = successful(call_unimoe("cache", "clear"))
    assert call_unimoe("cache", "clear", "--kind", "collections").returncode == 2
    assert "left alone, as unimoe has not made it: " in done.stderr
    for name in THESIS:
        assert (tmp_cache / name).read_bytes() == b"12345678", name
    assert (tmp_path / "elsewhere" / "vectors.npy").exists()
    assert not any((tmp_cache / name).exists() for name in OWN)
    assert before - everything(tmp_cache) == sum(one["bytes"] for one in listed) == 8 * len(OWN)
    assert "left alone" in call_unimoe("cache").stderr


def test_what_mteb_keeps_is_cleared_where_its_kind_is_named(tmp_cache: Path) -> None:
    (tmp_cache / "mteb").mkdir(parents=True)
    assert call_unimoe("cache").stderr == ""
    place(tmp_cache, "mteb/results/model/1/SciFact.json", "mteb/leaderboard/table.parquet", "mteb/mine/thesis.npy")
    assert kinds() == ["mteb", "mteb"]
    successful(call_unimoe("cache", "clear"))
    assert kinds() == ["mteb", "mteb"], "what was downloaded stays"
    done = successful(call_unimoe("cache", "clear", "--kind", "mteb"))
    assert "left alone, as unimoe has not made it: mteb/mine" in done.stderr
    assert [path.name for path in (tmp_cache / "mteb").iterdir() if not path.name.startswith(".")] == ["mine"]


def test_what_a_running_evaluation_writes_is_kept_and_age_counts_from_the_last_use(cache: Path) -> None:
    (folder,) = (path for path in (cache / "vectors").iterdir() if path.is_dir())
    with filelock.FileLock(folder.parent / f".{folder.name}.lock"):
        done = call_unimoe("cache", "clear")
    assert_refused(done, 4, f"kept, since it is in use: {folder.name}", silent=False)
    assert kinds() == ["collections", "vectors"]
    assert kinds("--older-than", "1") == ["vectors"]
    use_vectors()
    assert kinds("--older-than", "1") == []


@pytest.mark.usefixtures("cache")
def test_what_the_cache_cannot_clear_is_refused() -> None:
    for arguments, words in (
        (["clear", "invenetd"], "invenetd: "),
        (["clear", "--kind", "vector"], "did you mean 'vectors'?"),
        (["clear", "--older-than", "-1"], "older-than"),
        (["remove"], "remove"),
    ):
        done = call_unimoe("cache", *arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert len(kinds()) == 4


LINE = "error: stopped; run the same command again to go on from what is done\n"

COMMAND = """
import sys, threading, time
from pathlib import Path
import typer
from unimoe.core import stopping
from unimoe.core.console import run
from unimoe.core.errors import DataError
from unimoe.core.io import atomic_path

stopping._PATIENCE = 1.0
app = typer.Typer()
begun = Path("begun").touch

@app.command()
def main() -> None:
{work}

run(app)
"""

SWALLOWED = "try:\n    begun()\n    time.sleep(60)\nexcept BaseException:\n    {}"
NEVER_ENDS = "while True:\n    try:\n        begun()\n        time.sleep(0.01)\n    except BaseException:\n        pass"

WORK = {
    "between two steps": "with atomic_path(Path('some.json')):\n    begun()\n    time.sleep(60)",
    "in what swallows every exception": NEVER_ENDS,
    "beside a thread that does not end": "threading.Timer(60, print).start()\nbegun()\ntime.sleep(60)",
    "swallowed": SWALLOWED.format("pass"),
    "another error in its place": SWALLOWED.format("raise ValueError"),
    "an error of the user's in its place": SWALLOWED.format("raise DataError('of what did not happen')"),
}

FUNCTIONS = """
import time
from pathlib import Path
from unimoe.core import stopping

stopping._PATIENCE = 1.0
begun = Path('begun').touch

def stubborn(pairs):
"""


def indented(code: str) -> str:
    return textwrap.indent(code, "    ")


def stopped(folder: Path, *command: str, number: int = signal.SIGTERM) -> tuple[int, str, str]:
    """How a command of Python ends that gets a signal once it has made the file ``begun``."""
    environment = {**os.environ, "UNIMOE_DATA": str(folder), "UNIMOE_CACHE": str(folder / "cache")}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, **pipes)
    while not (folder / "begun").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=40)
        return process.returncode, out, err
    finally:
        process.kill()


@pytest.mark.parametrize("work", WORK)
def test_a_signal_ends_a_command_with_a_line_and_no_temporary_file(tmp_path: Path, work: str) -> None:
    number = signal.SIGINT if work == "between two steps" else signal.SIGTERM
    command = COMMAND.format(work=indented(WORK[work]))
    assert stopped(tmp_path, "-c", command, number=number) == (130, "", LINE)
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


def test_a_signal_within_a_users_function_is_not_the_functions_error(tmp_path: Path) -> None:
    write_invented(tmp_path / "toy", invented(documents=15, queries=8))
    (tmp_path / "functions.py").write_text(FUNCTIONS + indented(NEVER_ENDS), "utf-8")
    evaluate = ("evaluate", "--model", "python:functions:stubborn", "--dataset", "toy", "--output-dir", "out")
    code, _, said = stopped(tmp_path, "-m", "unimoe", *evaluate)
    assert code == 130, said
    assert said.endswith(LINE)
    assert "raised" not in said


@pytest.mark.parametrize("command", ["--help", "compare --example"])  # printed by click, and by rich
def test_nobody_reads_on(command: str) -> None:
    shell = f"{sys.executable} -m unimoe {command} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert (done.returncode, "rror" in done.stderr) == (141, False)


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# What accelerate calls several GPUs is torchrun with its own settings; there is none in this test.
ACCELERATE = [
    "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
]  # fmt: skip


@pytest.mark.parametrize(
    ("launcher", "settings"),
    [
        pytest.param(TORCHRUN, ["training.evaluate_every=3", "training.patience=1"], id="torchrun"),
        pytest.param(
            ACCELERATE,
            ["training.ranking.loss=softmax", "training.token_budget=300", "arms.joint_r8.aggregation=pcgrad"],
            id="accelerate",
        ),
        pytest.param(
            TORCHRUN, ["training.ranking.loss=score_es", "arms.joint_r8.aggregation=ortho_lora"], id="sampled loss"
        ),
    ],
)
@pytest.mark.slow
def test_two_processes_train_as_one(config: Path, tmp_path: Path, launcher: list[str], settings: list[str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    common = ["training.dev={queries: 4, depth: 3, pool: 30}", "training.conflicts.interval=3", *settings]
    overrides = [word for setting in common for word in ("--set", setting)]
    options = ["--config", str(config), "--arm", "joint_r8", *overrides]
    alone = successful(call_script("train.py", *options, "--output-dir", str(one)))
    command = [sys.executable, "-m", *launcher, str(SCRIPTS / "train.py"), *options, "--output-dir", str(two)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    together = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert together.returncode == 0, together.stderr
    assert together.stdout.strip() == alone.stdout.strip().replace(str(one), str(two))
    files, others = (
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}
        for folder in (one, two)
    )
    assert others == files
    logs = {
        path.name: [[json.loads(line) for line in (folder / path).open(encoding="utf-8")] for folder in (two, one)]
        for path in files
        if path.suffix == ".jsonl"
    }
    assert all(len(lines) == len(expected) for lines, expected in logs.values())
    for line, expected in zip(*logs["train.jsonl"], strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
        assert line["tokens"] == expected["tokens"]


def test_all_but_training_is_refused(config: Path) -> None:
    for script, words in (
        ("run_experiment.py", ["an exp"]),
        ("evaluate.py --zero-shot", ["an eval", "; --engine ray"]),
    ):
        done = call_script(*script.split(), "--config", config, WORLD_SIZE="2", RANK="0")
        assert_refused(done, 2, "runs in one process; start it without torchrun", *words)


@pytest.mark.slow
def test_every_module_and_every_name_that_one_imports_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # CI's own run has these too; the developers' environment lacks the extra ``collections``.
    for name in ("beir", "beir.util", "ir_datasets"):  # these alone: no library may be imported twice by one process
        monkeypatch.setitem(sys.modules, name, MagicMock())
    done = successful(call_script("import_everything.py"))
    assert re.match(r"\d{3} modules of unimoe and \d+ names import", done.stdout)


def test_every_script_is_run_by_a_test() -> None:
    tests = "".join(path.read_text("utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [path.name for path in SCRIPTS.iterdir() if path.is_file() and path.name not in tests] == []
