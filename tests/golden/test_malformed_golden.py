"""Every malformed input is answered with one line that names the place and the remedy; ``malformed.txt`` lists them.

``python tests/golden/test_malformed_golden.py > tests/golden/malformed.txt`` writes the list again, for a person to
read.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.caption_pairs import seed_arrays
from support.results import write_experiment
from support.scripts import call_unimoe, read_plain, write_plain
from support.tiny_models import save_sentence_transformer, save_tiny_encoder

from unimoe.config.files import config_root

RUN = "q1 Q0 d1 1 2 t\nq1 Q0 d2 2 1 t\nq2 Q0 d1 1 3 t\n"
QRELS = "q1 0 d1 1\nq2 0 d2 1\n"
GATES = """registered: 2026-01-01
gates:
  kill: {kind: interference, task: reranking, datasets: [apidocs], metric: ndcg@10,
         specialist: rank_only_r8, joint: joint_r8}
"""
RESULT = "outputs/joint_r8/seed_1/results/reranking/apidocs.json"
LOG = "outputs/joint_r8/seed_1/logs/train.jsonl"
LONG = "x" * 300

SCORE = ("evaluate-run", "r.trec", "q.qrels")
COMPARE = ("compare", "--qrels", "q.qrels", "--specialist", "r.trec", "--joint", "s.trec", "--joint-name")
JUDGE = ("analyze", "verdicts", "--output-dir", "outputs", "--gates", "gates.yaml")
ANALYZE = ("analyze", "tables", "--output-dir", "outputs")
TRAIN = ("train", "--arm", "joint_r8", "--seed", "1", "--output-dir", "trained", "--config")
RETRIEVE = (
    "retrieve", "--output-dir", "found", "--device", "cpu", "--set", "retrieval.depth=2", "--set",
    "retrieval.cutoffs=[1]", "--set", "encoder.base=encoder", "--dataset",
)  # fmt: skip
TRANSLATE = ("train-translator", "--train", "pairs.npz", "--output-dir", "trained", "--device", "cpu")

Change = Callable[[Path], object]


class Case(NamedTuple):
    """A malformed input: its name, the command that reads it, and what to change in a sound folder."""

    name: str
    command: tuple[str, ...]
    change: Change = lambda folder: None


def file(name: str, content: str | bytes) -> Change:
    """Put this content in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def keys(name: str, **changed: Any) -> Change:
    """Set keys of a JSON file."""
    return lambda folder: write_plain(folder / name, read_plain(folder / name) | changed)


def edited(name: str, edit: Callable[[bytes], bytes]) -> Change:
    """Put what ``edit`` makes of a file's bytes in its place."""
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def arrays(**changed: Any) -> Change:
    """Change arrays of the NPZ file; ``_`` in a key stands for ``/``."""
    renamed = {key.replace("_", "/", 1): value for key, value in changed.items()}
    return lambda folder: np.savez(folder / "pairs.npz", **{**seed_arrays(), **renamed})


def cases(kind: str, command: tuple[str, ...], name: str, of: Mapping[str, Change | str | bytes]) -> Iterator[Case]:
    """Yield a case for each change of the folder, or content of the file of this name."""
    for what, change in of.items():
        yield Case(f"{kind}: {what}", command, change if callable(change) else file(name, change))


def values(kind: str, command: tuple[str, ...], *texts: str) -> Iterator[Case]:
    """Yield a case for each value that ends a command."""
    return (Case(f"{kind} {ascii(text)[1:40]}", (*command, text)) for text in texts)


def runs_and_judgments() -> Iterator[Case]:
    """What people bring to be scored."""
    packed = gzip.compress(RUN.encode())
    yield from cases("run", SCORE, "r.trec", {
        "NUL in a query id": RUN.replace("q1", "q\0"),
        "score 1e308": RUN.replace(" 2 t", " 1e308 t"),
        "score nan": RUN.replace(" 2 t", " nan t"),
        "a word for a score": RUN.replace(" 2 t", " two t"),
        "five fields": RUN.replace(" t\n", "\n").replace(" 2\n", " two\n"),
        "another number of fields": RUN + "q3 Q0 d1 1 2\n",
        "judgments": QRELS,
        "an id with a blank": RUN.replace("d1", "d 1"),
        "a document twice": RUN + RUN,
        "nothing": b"",
        "Latin-1": RUN.encode() + "q3 Q0 é 1 1 t\n".encode("latin-1"),
        "other queries": RUN.replace("q1", "x1").replace("q2", "x2"),
    })  # fmt: skip
    yield from cases("run.gz", ("evaluate-run", "r.trec.gz", "q.qrels"), "r.trec.gz", {
        "cut short": packed[:-9], "no gzip": RUN.encode(), "a byte flipped": packed[:12] + b"\0" + packed[13:],
        "Latin-1": gzip.compress("q1 Q0 é 1 1 t\n".encode("latin-1")),
    })  # fmt: skip
    grades = ("1e30", "100001", "-100001", "nan", "x", "1_0")
    yield from cases("qrels", SCORE, "q.qrels", {
        **{f"grade {grade}": QRELS.replace("d1 1", f"d1 {grade}") for grade in grades},
        "two grades": QRELS + "q1 0 d1 2\n",
        "two fields": "q1 d1\n",
        "a run": RUN,
        "unknown names": "topic_number\tpassage\tvalue\nq1\td1\t1\n",
        "packed, and not named so": gzip.compress(QRELS.encode(), mtime=0),
        "tabs and spaces": "q1 0\td1\t1\n",
        "nothing": "",
    })  # fmt: skip
    yield from cases("qrels card", SCORE, "q.qrels.json", {
        "level too high": '{"relevance_level": 9999999}', "level 0": '{"relevance_level": 0}', "list": "[]",
        "unknown key": '{"nmae": "x"}', "NaN": '{"relevance_level": NaN}', "language": '{"language": "de"}',
    })  # fmt: skip
    yield from values("metric:", (*SCORE, "--metric"), "ndgc@10", "RBP(p=2)", "P@0", "", "BPM")
    yield from values("--relevance-level", (*SCORE, "--relevance-level"), "0", "-1", "x")
    yield from values("--depth", (*SCORE, "--depth"), "0", "x")
    for path in (LONG, "outputs", "nowhere"):
        yield from values("path of qrels:", SCORE[:2], path)
        yield Case(f"path of a run: {path[:40]}", ("evaluate-run", path, "q.qrels"))
    yield from values("name of a system:", COMPARE, " ", "a/b", "..", "x" * 3000, "a\x1b[31mb", "analysis")
    yield from values("name of a dataset:", (*COMPARE, "joint", "--dataset"), "x" * 3000, "../x")


def settings() -> Iterator[Case]:
    """YAML files and values of ``--set``."""
    texts: dict[str, str | bytes] = {
        "!!bool maybe": "a: !!bool maybe",
        "a tab": "a:\n\tb: 1",
        "a key twice": "a: 1\na: 2",
        "an alias without anchor": "a: *b",
        "a control character": "name: \x07",
        "two documents": "a: 1\n---\nb: 2",
        "nothing": "",
        "a list": "[1]",
        "Latin-1": "name: é".encode("latin-1"),
        "a quote that never ends": 'a: "x',
    }
    yield from cases("config", (*TRAIN, "c.yaml"), "c.yaml", texts)
    yield from cases("gates", JUDGE, "gates.yaml", {
        "a key twice": texts["a key twice"],
        "pass_at below fail_below": GATES.replace("joint: joint_r8", "joint: joint_r8, pass_at: 0.001"),
        "no such kind": GATES.replace("interference", "interferenze"),
        "no datasets": GATES.replace("[apidocs]", "[]"),
        "a dataset twice": GATES.replace("[apidocs]", "[apidocs, apidocs]"),
        "a date that is none": GATES.replace("2026-01-01", "2026-13-01"),
        "equal arms": GATES.replace("rank_only_r8", "joint_r8"),
        "an unknown key": GATES.replace("joint:", "jiont:"),
    })  # fmt: skip
    yield from values("--set", (*TRAIN, "experiments/bundled", "--set"), "a=[[", f"name={LONG}", "lora.r=100000000000")
    losses = ("softmx", "{name: listmle, discount: log1p}", "{name: plistmle, discount: 1/log10}", "{k: 3}")
    key = "training.ranking.loss="
    yield from values("--set", (*TRAIN, "experiments/bundled", "--set"), *(f"{key}{loss}" for loss in losses))
    yield from values("path of a config:", TRAIN, LONG, "nowhere.yaml", "outputs")
    for command, text in {
        "train-head": "head_output_size=100000000000", "train-biencoder": "out_dim=100000000000",
        "train-cross-encoder": "batch_size=100000000000", "label": "characters=-1",
    }.items():  # fmt: skip
        yield Case(f"{command}: {text}", (command, "--set", text, "--output-dir", "trained"))
    yield Case("train-translator: a layer of 10^11", (*TRANSLATE, "--set", "hidden=100000000000"))


def results() -> Iterator[Case]:
    """A folder of results in which somebody or something changed a file."""
    yield from cases("result", ANALYZE, RESULT, {
        "cut short": edited(RESULT, lambda data: data[:-40]),
        "a list": "[]",
        "nested without end": b"[" * 100_000,
        "not UTF-8": b'{"config_name": "\xff"}',
        "schema 2": keys(RESULT, schema_version=2),
        "NaN": edited(RESULT, lambda data: re.sub(rb'"q003": [0-9.e-]+', b'"q003": NaN', data)),
        "a wrong mean": keys(RESULT, aggregate={"ndcg@10": 0.9, "mrr@10": 0.2}),
        "a text for a score": keys(RESULT, per_query={"q1": "0.5"}),
        "an arm that leads out": keys(RESULT, config_name="../x"),
        "a dataset elsewhere": keys(RESULT, dataset="other"),
        "identity missing": keys(RESULT, identity={}),
    })  # fmt: skip
    yield from cases("log", ANALYZE, LOG, {"loss NaN": '{"step": 1, "loss": NaN}\n', "a number": "5\n"})
    for name in ("x" * 200, " x"):
        log = file(f"outputs/{name}/seed_0/logs/train.jsonl", '{"step": 1, "loss": 1}\n')
        yield Case(f"folder of an arm: {name[:40]}", ANALYZE, log)
    yield Case("output folder of 300 characters", ("analyze", "--output-dir", LONG))


def collections() -> Iterator[Case]:
    """A collection of one's own, and names of collections."""
    header = "query-id\tcorpus-id\tscore\n"
    parts: dict[str, dict[str, str | bytes]] = {
        "corpus.jsonl": {
            "half a surrogate pair in an id": '{"_id": "d\\ud800", "text": "x"}\n',
            "a blank in an id": '{"_id": "d 1", "text": "x"}\n',
            "no id": '{"text": "x"}\n',
            "a number for a text": '{"_id": "d1", "text": 5}\n',
            "a line cut short": '{"_id": "d1", "te',
            "Latin-1": b'{"_id": "d1", "text": "\xe9"}\n',
            "no corpus": "",
        },
        "queries.jsonl": {
            "an empty query": '{"_id": "q1", "text": " "}\n',
            "no such query": '{"_id": "q9", "text": "x"}\n',
        },
        "qrels/test.tsv": {"a grade of 1e30": f"{header}q1\td1\t1e30\n", "no judgments": header},
        "collection.json": {"a name of 300 characters": json.dumps({"name": LONG})},
    }
    for part, contents in parts.items():
        yield from cases("collection", (*RETRIEVE, "path:toy"), f"toy/{part}", contents)
    yield from values("--dataset", RETRIEVE,
        LONG, "../x", f"path:{LONG}", "path:nowhere", "path:toy@../x", "path:", ":", "nanobeir:../x", "paht:toy", "",
    )  # fmt: skip
    name = "t" * 200
    yield Case("folder of a collection: ttt", (*RETRIEVE, f"path:{name}"), lambda at: (at / "toy").rename(at / name))


def models_and_arrays() -> Iterator[Case]:
    """Folders of encoders, and arrays of captions."""

    def vocabulary(words: dict[str, int]) -> Change:
        def change(folder: Path) -> None:
            path = folder / "encoder/tokenizer.json"
            content = read_plain(path)
            content |= {"model": content["model"] | {"vocab": words}, "added_tokens": [], "post_processor": None}
            write_plain(path, content)

        return change

    special = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    own_code = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    yield from cases("encoder", (*RETRIEVE, "path:toy"), "encoder/config.json", {
        "pooling is a number": keys("encoder/1_Pooling/config.json", pooling_mode=5),
        "modules are a text": file("encoder/modules.json", '"x"'),
        "length is text": keys("encoder/sentence_bert_config.json", max_seq_length="x"),
        "config is a list": "[]",
        "other shapes": keys("encoder/config.json", vocab_size=3),
        "code of its own": keys("encoder/config.json", model_type="evil", auto_map=own_code),
        "no vocabulary": vocabulary({}),
        "token ids beyond the embedding": vocabulary(special | {"the": 5, "cat": 900_000}),
        "weights cut short": edited("encoder/model.safetensors", lambda data: data[:1000]),
        "no weights": lambda folder: (folder / "encoder/model.safetensors").unlink(),
    })  # fmt: skip
    yield from cases("npz", TRANSLATE, "pairs.npz", {
        "metadata text": arrays(metadata_embedding_dim_text=np.array(["six"])),
        "metadata of another encoder": arrays(metadata_embedding_dim_text=np.array([768])),
        "objects": arrays(captions_ids=np.array([{}] * 8, dtype=object)),
        "ids not UTF-8": arrays(captions_ids=np.array([b"\xff%d" % row for row in range(8)])),
        "ids twice": arrays(captions_ids=np.array(["0"] * 8)),
        "vectors NaN": arrays(captions_embeddings=np.full((8, 6), np.nan)),
        "vectors of text": arrays(captions_embeddings=np.full((8, 6), "x")),
        "vectors of one dimension": arrays(captions_embeddings=np.ones(8)),
        "no arrays": lambda folder: np.savez(folder / "pairs.npz"),
        "cut short": edited("pairs.npz", lambda data: data[: len(data) // 2]),
        "no archive": "x" * 100,
    })  # fmt: skip


def write_sound(folder: Path) -> None:
    """Write a folder whose files are all sound."""
    for name, content in {
        "r.trec": RUN,
        "s.trec": RUN.replace(" 3 t", " 4 t"),
        "q.qrels": QRELS,
        "gates.yaml": GATES,
        "toy/corpus.jsonl": '{"_id": "d1", "text": "a cat"}\n{"_id": "d2", "text": "a dog"}\n',
        "toy/queries.jsonl": '{"_id": "q1", "text": "the cat"}\n',
        "toy/qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    }.items():
        file(name, content)(folder)
    arrays()(folder)
    write_experiment(folder / "outputs", arms=("rank_only_r8", "joint_r8"), seeds=(0, 1), queries=5)
    save_tiny_encoder(folder / "bare")
    save_sentence_transformer(folder / "bare", folder / "encoder")
    shutil.rmtree(folder / "bare")


def answer(case: Case, sound: Path, folder: Path) -> str:
    """Run a case in a new copy of the sound folder; return its input, exit code and message, and files that it left."""
    shutil.copytree(sound, folder)
    case.change(folder)
    before = set(folder.rglob("*"))
    with chdir(folder):
        done = call_unimoe(*case.command)
    left = [str(path.relative_to(folder)) for path in sorted(set(folder.rglob("*")) - before) if path.is_file()]
    message = re.sub(r"shipped are .*", "shipped are ...", (done.stderr.strip().splitlines() or [""])[-1])
    message = re.sub(r"/\S*/(encoder)\b", r"\1", message.replace(f"{config_root()}{os.sep}", ""))
    line = f"{case.name} -> {done.returncode} {message if len(message) < 500 else f'{message[:400]} ...'}"
    return " ".join([line.encode("ascii", "backslashreplace").decode(), *(["LEAVES", *left] if left else [])])


def answers() -> Iterator[str]:
    """Yield the lines of the golden list."""
    inputs = (*runs_and_judgments(), *settings(), *results(), *collections(), *models_and_arrays())
    with TemporaryDirectory() as root, patch.dict("os.environ"), patch("unimoe.metrics.names._registered", {}):
        os.environ.pop("UNIMOE_DATA", None)  # a message names that folder
        sound = Path(root, "sound")
        sound.mkdir()
        write_sound(sound)
        for number, case in enumerate(inputs):
            yield answer(case, sound, Path(root, str(number)))
            shutil.rmtree(Path(root, str(number)))


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return list(answers())


def test_each_ends_with_one_line_and_leaves_nothing(lines: list[str]) -> None:
    assert len(lines) >= 140
    assert [line for line in lines if not re.search(r" -> [23] [eE]rror: \S", line) or " LEAVES " in line] == []


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python word json's errors otherwise")
def test_the_messages_are_those_of_the_list(lines: list[str]) -> None:
    assert lines == Path(__file__).with_name("malformed.txt").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    for line in answers():
        sys.stdout.write(f"{line}\n")
