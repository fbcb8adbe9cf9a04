"""Malformed inputs for every reader, each with the command that meets it.

``python tests/support/malformed.py`` prints what each is answered: the golden list, for a person to read.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.caption_pairs import seed_arrays
from support.results import write_experiment
from support.scripts import Done, call_script
from support.tiny_encoders import save_sentence_transformer, save_tiny_encoder

import unimoe
from unimoe.config.files import config_root

Change = Callable[[Path], object]

RUN = "q1 Q0 d1 1 2 t\nq1 Q0 d2 2 1 t\nq2 Q0 d1 1 3 t\n"
QRELS = "q1 0 d1 1\nq2 0 d2 1\n"
GATES = """registered: 2026-01-01
gates:
  kill: {kind: interference, task: reranking, datasets: [apidocs], metric: ndcg@10,
         specialist: rank_only_r8, joint: joint_r8}
"""
RESULT = "outputs/joint_r8/seed_1/results/reranking/apidocs.json"
LOG = "outputs/joint_r8/seed_1/logs/train.jsonl"
CONFLICTS = "outputs/joint_r8/seed_1/logs/gradient_conflicts.jsonl"
LONG = "x" * 300
DEEP = "[" * 100_000

SCORE = ("evaluate-run", "r.trec", "q.qrels")
JUDGE = ("analyze", "verdicts", "--output-dir", "outputs", "--gates", "gates.yaml")
ANALYZE = ("analyze", "tables", "--output-dir", "outputs")
TRAIN = ("train", "--arm", "joint_r8", "--seed", "1", "--output-dir", "trained", "--config")
RETRIEVE = (
    "retrieve", "--output-dir", "found", "--device", "cpu", "--set", "retrieval.depth=2", "--set",
    "retrieval.cutoffs=[1]",
)  # fmt: skip
TRANSLATE = ("train-translator", "--train", "pairs.npz", "--output-dir", "trained", "--device", "cpu")


@dataclass(frozen=True)
class Case:
    """A malformed input: what to change in a sound folder, and the command that then reads it."""

    command: tuple[str, ...]
    change: Change = lambda folder: None


def file(name: str, content: str | bytes) -> Change:
    """Put this content in the place of a file."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return change


def keys(name: str, **changed: Any) -> Change:
    """Set keys of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")

    return change


def edited(name: str, edit: Callable[[bytes], bytes]) -> Change:
    """Put what ``edit`` makes of a file's bytes in its place."""
    return lambda folder: (folder / name).write_bytes(edit((folder / name).read_bytes()))


def arrays(**changed: Any) -> Change:
    """Change arrays of the NPZ file; ``_`` in a key stands for ``/``."""
    renamed = {key.replace("_", "/", 1): value for key, value in changed.items()}

    def change(folder: Path) -> None:
        np.savez(folder / "pairs.npz", **{**seed_arrays(), **renamed})

    return change


def cases() -> dict[str, Case]:
    """Return every malformed input by name."""
    found: dict[str, Case] = {}
    for name, case in [*_runs(), *_yaml(), *_results(), *_collections(), *_encoders(), *_npz()]:
        if found.setdefault(name, case) is not case:
            raise ValueError(f"two malformed inputs are named {name!r}")
    return found


def _runs() -> Iterator[tuple[str, Case]]:
    runs: dict[str, str | bytes] = {
        "NUL in a query id": RUN.replace("q1", "q\0"),
        "NUL in a document id": RUN.replace("d1", "d\0"),
        "terminal escape in an id": RUN.replace("d1", "d\x1b[31m"),
        "C1 control in an id": RUN.replace("d1", "d\x9b31m"),
        "score 1e308": RUN.replace(" 2 t", " 1e308 t"),
        "score -1e39": RUN.replace(" 2 t", " -1e39 t"),
        "score 1e400": RUN.replace(" 2 t", " 1e400 t"),
        "score nan": RUN.replace(" 2 t", " nan t"),
        "score inf": RUN.replace(" 2 t", " -inf t"),
        "score with an underscore": RUN.replace(" 2 t", " 1_0 t"),
        "score in Arabic digits": RUN.replace(" 2 t", " ٣ t"),
        "score in hexadecimals": RUN.replace(" 2 t", " 0x1p3 t"),
        "a word for a score": RUN.replace(" 2 t", " two t"),
        "five fields": RUN.replace(" t\n", "\n"),
        "an id with a blank": RUN.replace("d1", "d 1"),
        "a million columns": "q1 " * 10**6,
        "a line of ten million characters": "q" * 10**7,
        "a document twice": RUN + RUN,
        "nothing": b"",
        "blank lines": b"\n \n\t\n",
        "Latin-1": RUN.encode() + "q3 Q0 é 1 1 t\n".encode("latin-1"),
        "UTF-16": RUN.encode("utf-16"),
        "old Mac line ends": RUN.replace("\n", "\r"),
        "binary": bytes(range(256)),
        "other queries": RUN.replace("q1", "x1").replace("q2", "x2"),
    }
    for name, content in runs.items():
        yield f"run: {name}", Case(SCORE, file("r.trec", content))
    packed = gzip.compress(RUN.encode())
    for name, data in {
        "cut short": packed[:-9],
        "no gzip": RUN.encode(),
        "a byte flipped": packed[:12] + b"\0" + packed[13:],
    }.items():
        yield f"run.gz: {name}", Case(("evaluate-run", "r.trec.gz", "q.qrels"), file("r.trec.gz", data))
    grades = (
        "9223372036854775808",
        "1e30",
        "2147483648",
        "100001",
        "-100001",
        "1.5",
        "nan",
        "inf",
        "x",
        "1_0",
        "٣",
        "1e400",
    )
    for grade in grades:
        yield f"qrels: grade {grade}", Case(SCORE, file("q.qrels", QRELS.replace("d1 1", f"d1 {grade}")))
    qrels: dict[str, str | bytes] = {
        "two grades": QRELS + "q1 0 d1 2\n",
        "two fields": "q1 d1\n",
        "seven fields": "q1 0 d1 1 1 1 1\n",
        "NUL": QRELS.replace("q1", "q\0"),
        "UTF-16": QRELS.encode("utf-16"),
        "nothing": "",
        "header only": "query-id\tcorpus-id\tscore\n",
    }
    for name, content in qrels.items():
        yield f"qrels: {name}", Case(SCORE, file("q.qrels", content))
    cards = {"level too high": '{"relevance_level": 9999999}', "level 0": '{"relevance_level": 0}', "deep": DEEP,
        "list": "[]",
             "half a surrogate pair": '{"name": "\\ud800"}', "unknown key": '{"nmae": "x"}',
             "NaN": '{"relevance_level": NaN}'}  # fmt: skip
    for name, text in cards.items():
        yield f"qrels card: {name}", Case(SCORE, file("q.qrels.json", text))
    metrics = ("ndcg@1٣", "ndcg@１０", "RBP(p=1e400)", "RBP(rel=1e30)", "ERR@9999999999999999999", "P@0",
        "nDCG@10\x1b[31m", "",
               "x" * 3000, "\ud800", "RBP(__import__('os'))", "BPM")  # fmt: skip
    for metric in metrics:
        yield f"metric: {ascii(metric)[1:60]}", Case((*SCORE, "--metric", metric))
    for option, values in {
        "--relevance-level": ("0", "-1", "2147483648", "9" * 30, "x"),
        "--depth": ("0", "-5", "x"),
    }.items():
        for value in values:
            yield f"{option} {value}", Case((*SCORE, option, value))
    for name, path in {
        "300 characters": LONG,
        "a folder": "outputs",
        "none": "nowhere",
        "not UTF-8": "\udcff",
        "NUL": "\0",
    }.items():
        yield f"path of a run: {name}", Case(("evaluate-run", path, "q.qrels"))
        yield f"path of qrels: {name}", Case(("evaluate-run", "r.trec", path))
    systems = ("compare", "--qrels", "q.qrels", "--specialist", "r.trec", "--joint", "s.trec", "--joint-name")
    for name in (
        " ",
        "a/b",
        "..",
        ".hidden",
        "x" * 3000,
        "a\x1b[31mb",
        "a\0b",
        "a\nb",
        "\udcff",
        "analysis",
        "a\\b",
    ):
        yield f"name of a system: {ascii(name)[1:40]}", Case((*systems, name))
    for name in ("x" * 3000, "a\x1bb", "../x", " x"):
        yield f"name of a dataset: {ascii(name)[1:40]}", Case((*systems, "joint", "--dataset", name))


def _yaml() -> Iterator[tuple[str, Case]]:
    laugh = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{now}: &{now} [{', '.join([f'*{before}'] * 10)}]\n"
        for before, now in zip("abcdefgh", "bcdefghi", strict=True)
    )
    texts: dict[str, str | bytes] = {
        "a thousand lists deep": "a: " + "[" * 1000 + "]" * 1000,
        "a thousand sections deep": "\n".join(f"{' ' * level}a:" for level in range(1000)),
        "!!bool maybe": "a: !!bool maybe",
        "!!timestamp x": "a: !!timestamp x",
        "!!int x": "a: !!int x",
        "!!binary": "a: !!binary '%'",
        "!!python": "a: !!python/object/apply:os.system [id]",
        "a tag of one's own": "a: !own x",
        "a tab": "a:\n\tb: 1",
        "a key twice": "a: 1\na: 2",
        "a key twice, quoted": "'a': 1\n\"a\": 2",
        "a list for a key": "? [a, b]\n: 1",
        "aliases that multiply": laugh,
        "an alias within its anchor": "a: &a [*a]",
        "an alias without anchor": "a: *b",
        "a merge of a number": "a: {<<: 1}",
        "half a surrogate pair": 'name: "\\ud800"',
        "NUL, escaped": 'name: "\\0"',
        "NUL": b"name: \0",
        "a control character": "name: \x07",
        "a number of 5,000 digits": "a: 1" + "0" * 5000,
        "a number beyond 64 bits": "a: 9223372036854775808",
        "three megabytes": "a: " + "x" * 3_000_000,
        "twenty thousand keys": "".join(f"k{number}: 1\n" for number in range(20_000)),
        "two documents": "a: 1\n---\nb: 2",
        "nothing": "",
        "a list": "[1]",
        "a word": "x",
        "Latin-1": "name: é".encode("latin-1"),
        "UTF-16": "name: x".encode("utf-16"),
        "a quote that never ends": 'a: "x',
        "another version": "%YAML 9.9\n---\na: 1",
    }
    for name, text in texts.items():
        yield f"gates: {name}", Case(JUDGE, file("gates.yaml", text))
        yield f"config: {name}", Case((*TRAIN, "c.yaml"), file("c.yaml", text))
    gates = {
        "confidence NaN": GATES.replace("joint: joint_r8", "joint: joint_r8, confidence: .nan"),
        "pass_at 1e400": GATES.replace("joint: joint_r8", "joint: joint_r8, pass_at: 1e400"),
        "pass_at below fail_below": GATES.replace("joint: joint_r8", "joint: joint_r8, pass_at: 0.001"),
        "no such kind": GATES.replace("interference", "interferenze"),
        "no datasets": GATES.replace("[apidocs]", "[]"),
        "a dataset twice": GATES.replace("[apidocs]", "[apidocs, apidocs]"),
        "a date that is none": GATES.replace("2026-01-01", "2026-13-01"),
        "equal arms": GATES.replace("rank_only_r8", "joint_r8"),
        "a metric with another digit": GATES.replace("ndcg@10", "ndcg@1٣"),
        "a name of 300 characters": GATES.replace("kill:", f"{LONG}:"),
        "an unknown key": GATES.replace("joint:", "jiont:"),
        "seed -1": GATES.replace("joint: joint_r8", "joint: joint_r8, seeds: [-1]"),
    }
    for name, text in gates.items():
        yield f"gates: {name}", Case(JUDGE, file("gates.yaml", text))
    sets = (
        "a", "=1", "..=1", "a=!!bool maybe", "a=!!timestamp x", "a=" + "[" * 1000, f"name={LONG}", "name=..",
        "name=a/b",
        'name="\\ud800"', "name=\udcff", "name=\x1b[31m", "seeds=[-1]", "seeds=[]", "seeds=[9" + "9" * 5000 + "]",
        "seeds=[1, 1]", "training.steps=0", "training.steps=1e3", "training.steps=10000000000000",
        "lora.r=100000000000",
        "lora.alpha=.inf", "lora.dropout=.nan", "model.max_length=-1", 'model.base="a\\0b"', "model=1", "arms={}",
        "a.b={c: 1, c: 2}", "training.max_grad_norm=1e400", "evaluation.bundled.queries=true", "modle.base=x",
    )  # fmt: skip
    for text in sets:
        yield f"--set {ascii(text)[1:60]}", Case((*TRAIN, "experiments/bundled", "--set", text))
    for name, path in {
        "300 characters": LONG,
        "none": "nowhere.yaml",
        "not UTF-8": "\udcff.yaml",
        "a folder": "outputs",
    }.items():
        yield f"path of a config: {name}", Case((*TRAIN, path))
    studies = {
        "train-head": "head_output_size=100000000000", "train-biencoder": "out_dim=100000000000",
        "train-cross-encoder": "batch_size=100000000000", "label-pairs": "characters=-1",
    }  # fmt: skip
    for command, text in studies.items():
        yield f"{command}: {text}", Case((command, "--set", text, "--output-dir", "trained"))
    yield "train-translator: a layer of 10^11", Case((*TRANSLATE, "--set", "hidden=100000000000"))


def _results() -> Iterator[tuple[str, Case]]:
    nested = edited(RESULT, lambda data: data.replace(b'"caveats": []', b'"caveats": ' + b"[" * 5000 + b"]" * 5000))
    changes: dict[str, Change] = {
        "cut short": edited(RESULT, lambda data: data[:-40]),
        "nothing": file(RESULT, ""),
        "a list": file(RESULT, "[]"),
        "deep": file(RESULT, DEEP),
        "deep caveats": nested,
        "not UTF-8": file(RESULT, b'{"config_name": "\xff"}'),
        "half a surrogate pair": edited(RESULT, lambda data: data.replace(b'"joint_r8"', b'"\\ud800"')),
        "schema 0": keys(RESULT, schema_version=0),
        "schema 2": keys(RESULT, schema_version=2),
        "an unknown key": keys(RESULT, extra=1),
        "scores of 1e308": keys(RESULT, per_query={"q1": 1e308, "q2": 1e308}),
        "NaN": edited(RESULT, lambda data: re.sub(rb'"q003": [0-9.e-]+', b'"q003": NaN', data)),
        "1e400": edited(RESULT, lambda data: re.sub(rb'"q003": [0-9.e-]+', b'"q003": 1e400', data)),
        "a wrong mean": keys(RESULT, aggregate={"ndcg@10": 0.9, "mrr@10": 0.2}),
        "a text for a score": keys(RESULT, per_query={"q1": "0.5"}),
        "seed -1": keys(RESULT, seed=-1),
        "seed 2^64": keys(RESULT, seed=2**64),
        "another task": keys(RESULT, task="rerank"),
        "an arm that leads out": keys(RESULT, config_name="../x"),
        "an arm of 300 characters": keys(RESULT, config_name=LONG),
        "an arm with a terminal escape": keys(RESULT, config_name="a\x1b[31m"),
        "a dataset of 3,000 characters": keys(RESULT, dataset="x" * 3000),
        "a dataset elsewhere": keys(RESULT, dataset="other"),
        "relevance level 10^9": keys(RESULT, relevance_level=10**9),
        "identity missing": keys(RESULT, identity={}),
    }
    for name, change in changes.items():
        yield f"result: {name}", Case(ANALYZE, change)
    logs: dict[str, str | bytes] = {
        "loss 1e400": '{"step": 1, "loss": 1e400}\n',
        "loss 1e308": '{"step": 1, "loss": 1e308}\n',
        "loss NaN": '{"step": 1, "loss": NaN}\n',
        "step 1e400": '{"step": 1e400, "loss": 1}\n',
        "step 10^30": '{"step": 1' + "0" * 30 + ', "loss": 1}\n',
        "step -1": '{"step": -1, "loss": 1}\n',
        "deep": f"{DEEP}\n",
        "a number": "5\n",
        "no loss": '{"step": 1}\n',
        "not UTF-8": b'{"step": 1, "loss": 1, "task": "\xff"}\n',
        "NUL": "\0\n",
        "a part of the loss that is text": '{"step": 1, "loss": 1, "ranking_loss": "x"}\n',
    }
    for name, content in logs.items():
        yield f"log: {name}", Case(ANALYZE, file(LOG, content))
    absent = dict.fromkeys(("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "magnitude_similarity"))
    sound = {"step": 1, "layer": 0, "cosine": 0.1, "norm_rank": 1.0, "norm_embed": 1.0}
    conflicts: dict[str, dict[str, Any]] = {
        "norm 1e308": {"norm_rank": 1e308},
        "a layer of 3,000 characters": {"layer": "x" * 3000},
        "text": {"cosine": "x"},
    }
    for name, changed in conflicts.items():
        line = json.dumps({**absent, **sound, **changed}) + "\n"
        yield f"conflicts: {name}", Case(("analyze", "figures", "--output-dir", "outputs"), file(CONFLICTS, line))
    for name in ("a\x1b[31mb", "x" * 200, " x", "\udcff"):
        log = file(f"outputs/{name}/seed_0/logs/train.jsonl", '{"step": 1, "loss": 1}\n')
        yield f"folder of an arm: {ascii(name)[1:40]}", Case(ANALYZE, log)
    yield "output folder of 300 characters", Case(("analyze", "--output-dir", LONG))


def _collections() -> Iterator[tuple[str, Case]]:
    here = (*RETRIEVE, "--set", "encoder.base=encoder", "--datasets", "path:toy")
    lines: dict[str, tuple[str, str | bytes]] = {
        "half a surrogate pair in an id": ("corpus.jsonl", '{"_id": "d\\ud800", "text": "x"}\n'),
        "NUL in an id": ("corpus.jsonl", '{"_id": "d\\u0000", "text": "x"}\n'),
        "a terminal escape in an id": ("corpus.jsonl", '{"_id": "d\\u001b[31m", "text": "x"}\n'),
        "a blank in an id": ("corpus.jsonl", '{"_id": "d 1", "text": "x"}\n'),
        "deep": ("corpus.jsonl", f'{{"_id": {DEEP}\n'),
        "an id that is NaN": ("corpus.jsonl", '{"_id": NaN, "text": "x"}\n'),
        "an id of 5,000 digits": ("corpus.jsonl", '{"_id": 1' + "0" * 5000 + ', "text": "x"}\n'),
        "no id": ("corpus.jsonl", '{"text": "x"}\n'),
        "a number for a text": ("corpus.jsonl", '{"_id": "d1", "text": 5}\n'),
        "a list for a title": ("corpus.jsonl", '{"_id": "d1", "text": "x", "title": []}\n'),
        "a line cut short": ("corpus.jsonl", '{"_id": "d1", "te'),
        "Latin-1": ("corpus.jsonl", b'{"_id": "d1", "text": "\xe9"}\n'),
        "UTF-16": ("queries.jsonl", '{"_id": "q1", "text": "x"}\n'.encode("utf-16")),
        "no corpus": ("corpus.jsonl", ""),
        "an empty query": ("queries.jsonl", '{"_id": "q1", "text": " "}\n'),
        "no such query": ("queries.jsonl", '{"_id": "q9", "text": "x"}\n'),
        "a grade of 1e30": ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1e30\n"),
        "a word for a grade": ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\tx\n"),
        "no judgments": ("qrels/test.tsv", "query-id\tcorpus-id\tscore\n"),
        "a name of 300 characters": ("collection.json", json.dumps({"name": LONG})),
        "a name that leads out": ("collection.json", '{"name": "../../x"}'),
        "a name with a terminal escape": ("collection.json", '{"name": "\\u001b[31m"}'),
    }  # fmt: skip
    for name, (part, content) in lines.items():
        yield f"collection: {name}", Case(here, file(f"toy/{part}", content))
    names = (LONG, "../x", "a/../b", f"path:{LONG}", "path:\udcff", "path:nowhere", "path:toy@../x",
        f"path:toy@{LONG}", "path:",
             ":", "nanobeir:../x", "paht:toy", "", "toy\x1b[31m")  # fmt: skip
    for text in names:
        yield f"--datasets {ascii(text)[1:40]}", Case((*RETRIEVE, "--set", "encoder.base=encoder", "--datasets", text))
    for text in ("t" * 200, "to\x1b[31my", "to\udcff"):
        folder: Change = lambda at, name=text: shutil.copytree(at / "toy", at / name)  # type: ignore[misc]  # noqa: E731
        yield f"folder of a collection: {ascii(text)[1:40]}", Case((*here[:-1], f"path:{text}"), folder)


def _encoders() -> Iterator[tuple[str, Case]]:
    def vocabulary(words: dict[str, int]) -> Change:
        def change(folder: Path) -> None:
            path = folder / "encoder/tokenizer.json"
            content = json.loads(path.read_text(encoding="utf-8"))
            content |= {"model": content["model"] | {"vocab": words}, "added_tokens": [], "post_processor": None}
            path.write_text(json.dumps(content), encoding="utf-8")

        return change

    pooling, prompts, length = "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"
    special = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    listed = [{"type": "sentence_transformers.models.Transformer", "path": "../toy"}]
    own_code = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    changes: dict[str, Change] = {
        "pooling is a number": keys(f"encoder/{pooling}", pooling_mode=5),
        "pooling is a list of objects": keys(f"encoder/{pooling}", pooling_mode=[{}]),
        "prompts are numbers": keys(f"encoder/{prompts}", prompts={"query": 5}),
        "prompts are a number": keys(f"encoder/{prompts}", prompts=5),
        "the default prompt is a list": keys(f"encoder/{prompts}", default_prompt_name=[1]),
        "prompts deep": file(f"encoder/{prompts}", DEEP),
        "modules deep": file("encoder/modules.json", DEEP),
        "modules are a text": file("encoder/modules.json", '"x"'),
        "modules are numbers": file("encoder/modules.json", "[1]"),
        "a module that leads out": file("encoder/modules.json", json.dumps(listed)),
        "length 10^30": keys(f"encoder/{length}", max_seq_length=10**30),
        "length is text": keys(f"encoder/{length}", max_seq_length="x"),
        "modality is a number": keys(f"encoder/{length}", modality_config=7),
        "lower case is text": keys(f"encoder/{length}", do_lower_case="x"),
        "config is a list": file("encoder/config.json", "[]"),
        "config deep": file("encoder/config.json", DEEP),
        "layers are text": keys("encoder/config.json", num_hidden_layers="x"),
        "a layer of 10^11 units": keys("encoder/config.json", hidden_size=10**11),
        "no attention heads": keys("encoder/config.json", num_attention_heads=0),
        "other shapes": keys("encoder/config.json", vocab_size=3),
        "a model type that is a number": keys("encoder/config.json", model_type=5),
        "code of its own": keys("encoder/config.json", model_type="evil", auto_map=own_code),
        "tokenizer deep": file("encoder/tokenizer.json", DEEP),
        "tokenizer empty": file("encoder/tokenizer.json", "{}"),
        "no vocabulary": vocabulary({}),
        "token ids beyond the embedding": vocabulary(special | {"the": 5, "cat": 900_000}),
        "the tokenizer's length is text": lambda folder: (
            keys("encoder/tokenizer_config.json", model_max_length="x")(folder),
            keys(f"encoder/{length}", max_seq_length=None)(folder),
        ),
        "weights cut short": edited("encoder/model.safetensors", lambda data: data[:1000]),
        "no weights": lambda folder: (folder / "encoder/model.safetensors").unlink(),
        "a pickle for weights": file("encoder/model.safetensors", b"\x80\x04cos\nsystem\n(S'id'\ntR."),
        "a header of a petabyte": file("encoder/model.safetensors", (10**15).to_bytes(8, "little") + b"{}"),
        "weights of nothing": file("encoder/model.safetensors", b""),
    }
    for name, change in changes.items():
        case = Case((*RETRIEVE, "--set", "encoder.base=encoder", "--datasets", "path:toy"), change)
        yield f"encoder: {name}", case


def _npz() -> Iterator[tuple[str, Case]]:
    changes: dict[str, Change] = {
        "metadata empty": arrays(metadata_embedding_dim_text=np.array([])),
        "metadata NaN": arrays(metadata_embedding_dim_text=np.array([np.nan])),
        "metadata text": arrays(metadata_embedding_dim_text=np.array(["six"])),
        "metadata a date": arrays(metadata_embedding_dim_text=np.array(["2026-01-01"], dtype="datetime64[D]")),
        "metadata of another encoder": arrays(metadata_embedding_dim_text=np.array([768])),
        "objects": arrays(captions_ids=np.array([{}] * 8, dtype=object)),
        "ids not UTF-8": arrays(captions_ids=np.array([b"\xff%d" % row for row in range(8)])),
        "ids twice": arrays(captions_ids=np.array(["0"] * 8)),
        "vectors NaN": arrays(captions_embeddings=np.full((8, 6), np.nan)),
        "vectors of text": arrays(captions_embeddings=np.full((8, 6), "x")),
        "vectors of one dimension": arrays(captions_embeddings=np.ones(8)),
        "complex vectors": arrays(captions_embeddings=np.ones((8, 6), dtype=complex)),
        "no arrays": lambda folder: np.savez(folder / "pairs.npz"),
        "cut short": edited("pairs.npz", lambda data: data[: len(data) // 2]),
        "no archive": file("pairs.npz", "x" * 100),
        "nothing": file("pairs.npz", b""),
        "a header of a petabyte": _with_header((2**45, 6)),
        "a header of negative size": _with_header((-1, 6)),
        "a broken header": _with_member(b"\x93NUMPY\x01\x00\x10\x00{'descr': [[]], "),
        "an unhashable header": _with_member(_npy("{{}: 1}")),
        "another version": _with_member(b"\x93NUMPY\x09\x00" + b" " * 100),
        "encrypted": edited("pairs.npz", _encrypted),
        "an unknown compression": edited("pairs.npz", lambda data: _patched(data, method=99)),
    }  # fmt: skip
    for name, change in changes.items():
        yield f"npz: {name}", Case(TRANSLATE, change)


def _npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def _with_header(shape: tuple[int, ...]) -> Change:
    return _with_member(_npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n") + bytes(48))


def _with_member(content: bytes) -> Change:
    """Put these bytes in the place of the captions' vectors."""

    def change(folder: Path) -> None:
        kept = seed_arrays()
        del kept["captions/embeddings"]
        np.savez(folder / "pairs.npz", **kept)  # type: ignore[arg-type]
        with zipfile.ZipFile(folder / "pairs.npz", "a") as packed:
            packed.writestr("captions/embeddings.npy", content)

    return change


def _encrypted(data: bytes) -> bytes:
    return _patched(data, flags=1)


def _patched(data: bytes, *, flags: int | None = None, method: int | None = None) -> bytes:
    """Change flags or compression in every header of an archive."""
    patched = bytearray(data)
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(signature), data):
            if flags is not None:
                patched[found.start() + at] |= flags
            if method is not None:
                patched[found.start() + at + 2] = method
    return bytes(patched)


def write_sound(folder: Path) -> None:
    """Write a folder whose files are all sound."""
    file("r.trec", RUN)(folder)
    file("s.trec", RUN.replace(" 3 t", " 4 t"))(folder)
    file("q.qrels", QRELS)(folder)
    file("gates.yaml", GATES)(folder)
    file("toy/corpus.jsonl", '{"_id": "d1", "text": "a cat"}\n{"_id": "d2", "text": "a dog"}\n')(folder)
    file("toy/queries.jsonl", '{"_id": "q1", "text": "the cat"}\n')(folder)
    file("toy/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")(folder)
    arrays()(folder)
    write_experiment(folder / "outputs", arms=("rank_only_r8", "joint_r8"), seeds=(0, 1), queries=5)
    save_tiny_encoder(folder / "bare")
    save_sentence_transformer(folder / "bare", folder / "encoder")
    shutil.rmtree(folder / "bare")


def answer(case: Case, sound: Path, folder: Path) -> tuple[Done, list[str]]:
    """Run a case in a new copy of the sound folder; return how it ended and the files that it left."""
    shutil.copytree(sound, folder)
    case.change(folder)
    before, here = set(folder.rglob("*")), Path.cwd()
    os.chdir(folder)
    try:
        done = call_script(str(Path(unimoe.__file__).with_name("__main__.py")), *case.command)
    finally:
        os.chdir(here)
    left = [str(path.relative_to(folder)) for path in sorted(set(folder.rglob("*")) - before) if path.is_file()]
    return done, left


def golden_line(name: str, done: Done) -> str:
    """Return the line of the golden list: the input, the exit code and the message."""
    last = (done.stderr.strip().splitlines() or [""])[-1]
    message = re.sub(r"shipped: .*", "shipped: ...", last).replace(f"{config_root()}{os.sep}", "")
    message = re.sub(r"/\S*/(encoder)\b", r"\1", message)
    line = f"{name} -> {done.returncode} {message if len(message) < 500 else f'{message[:400]} ...'}"
    return line.encode("ascii", "backslashreplace").decode()


def main() -> None:
    """Print the golden list, and on stderr as JSON what the slowest case and all of them took."""
    os.environ.pop("UNIMOE_DATA", None)  # a message names that folder
    with TemporaryDirectory() as root:
        sound = Path(root, "sound")
        sound.mkdir()
        write_sound(sound)
        load_fails_once = answer(cases()["encoder: no weights"], sound, Path(root, "first"))  # pays for the imports
        assert load_fails_once[0].returncode == 3
        before, slowest = getrusage(RUSAGE_SELF).ru_maxrss, (0.0, "")
        for number, (name, case) in enumerate(cases().items()):
            folder, begin = Path(root, str(number)), time.process_time()
            done, left = answer(case, sound, folder)
            slowest = max(slowest, (time.process_time() - begin, name))
            sys.stdout.write(" ".join([golden_line(name, done), *(["LEAVES", *left] if left else [])]) + "\n")
            shutil.rmtree(folder)
        grown = (getrusage(RUSAGE_SELF).ru_maxrss - before) / 1024
    facts = {"cases": len(cases()), "grown_mib": round(grown), "slowest_s": round(slowest[0], 2), "slowest": slowest[1]}
    sys.stderr.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main()
