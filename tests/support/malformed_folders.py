"""Malformed results, collections, encoders and arrays of captions."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from support.malformed_changes import (
    ANALYZE,
    DEEP,
    LOG,
    LONG,
    RESULT,
    RETRIEVE,
    TRANSLATE,
    Case,
    Change,
    arrays,
    edited,
    file,
    keys,
)


def results() -> Iterator[tuple[str, Case]]:
    changes: dict[str, Change] = {
        "cut short": edited(RESULT, lambda data: data[:-40]),
        "a list": file(RESULT, "[]"),
        "not UTF-8": file(RESULT, b'{"config_name": "\xff"}'),
        "schema 2": keys(RESULT, schema_version=2),
        "NaN": edited(RESULT, lambda data: re.sub(rb'"q003": [0-9.e-]+', b'"q003": NaN', data)),
        "a wrong mean": keys(RESULT, aggregate={"ndcg@10": 0.9, "mrr@10": 0.2}),
        "a text for a score": keys(RESULT, per_query={"q1": "0.5"}),
        "an arm that leads out": keys(RESULT, config_name="../x"),
        "an arm with a terminal escape": keys(RESULT, config_name="a\x1b[31m"),
        "a dataset elsewhere": keys(RESULT, dataset="other"),
        "identity missing": keys(RESULT, identity={}),
    }
    for name, change in changes.items():
        yield f"result: {name}", Case(ANALYZE, change)
    logs = {"loss NaN": '{"step": 1, "loss": NaN}\n', "deep": f"{DEEP}\n", "a number": "5\n"}
    for name, content in logs.items():
        yield f"log: {name}", Case(ANALYZE, file(LOG, content))
    for name in ("a\x1b[31mb", "x" * 200, " x", "\udcff"):
        log = file(f"outputs/{name}/seed_0/logs/train.jsonl", '{"step": 1, "loss": 1}\n')
        yield f"folder of an arm: {ascii(name)[1:40]}", Case(ANALYZE, log)
    yield "output folder of 300 characters", Case(("analyze", "--output-dir", LONG))


def collections() -> Iterator[tuple[str, Case]]:
    here = (*RETRIEVE, "--set", "encoder.base=encoder", "--dataset", "path:toy")
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
        yield f"--dataset {ascii(text)[1:40]}", Case((*RETRIEVE, "--set", "encoder.base=encoder", "--dataset", text))
    for text in ("t" * 200, "to\x1b[31my", "to\udcff"):
        folder: Change = lambda at, name=text: shutil.copytree(at / "toy", at / name)  # type: ignore[misc]  # noqa: E731
        yield f"folder of a collection: {ascii(text)[1:40]}", Case((*here[:-1], f"path:{text}"), folder)


def encoders() -> Iterator[tuple[str, Case]]:
    def vocabulary(words: dict[str, int]) -> Change:
        def change(folder: Path) -> None:
            path = folder / "encoder/tokenizer.json"
            content = json.loads(path.read_text(encoding="utf-8"))
            content |= {"model": content["model"] | {"vocab": words}, "added_tokens": [], "post_processor": None}
            path.write_text(json.dumps(content), encoding="utf-8")

        return change

    pooling, length = "1_Pooling/config.json", "sentence_bert_config.json"
    special = {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    listed = [{"type": "sentence_transformers.models.Transformer", "path": "../toy"}]
    own_code = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    changes: dict[str, Change] = {
        "pooling is a number": keys(f"encoder/{pooling}", pooling_mode=5),
        "modules are a text": file("encoder/modules.json", '"x"'),
        "a module that leads out": file("encoder/modules.json", json.dumps(listed)),
        "length is text": keys(f"encoder/{length}", max_seq_length="x"),
        "config is a list": file("encoder/config.json", "[]"),
        "other shapes": keys("encoder/config.json", vocab_size=3),
        "code of its own": keys("encoder/config.json", model_type="evil", auto_map=own_code),
        "no vocabulary": vocabulary({}),
        "token ids beyond the embedding": vocabulary(special | {"the": 5, "cat": 900_000}),
        "weights cut short": edited("encoder/model.safetensors", lambda data: data[:1000]),
        "no weights": lambda folder: (folder / "encoder/model.safetensors").unlink(),
        "a pickle for weights": file("encoder/model.safetensors", b"\x80\x04cos\nsystem\n(S'id'\ntR."),
    }
    for name, change in changes.items():
        case = Case((*RETRIEVE, "--set", "encoder.base=encoder", "--dataset", "path:toy"), change)
        yield f"encoder: {name}", case


def archives() -> Iterator[tuple[str, Case]]:
    changes: dict[str, Change] = {
        "metadata text": arrays(metadata_embedding_dim_text=np.array(["six"])),
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
    }  # fmt: skip
    for name, change in changes.items():
        yield f"npz: {name}", Case(TRANSLATE, change)
