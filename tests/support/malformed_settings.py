"""Malformed runs, judgments, options and YAML."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

from support.malformed_changes import DEEP, GATES, JUDGE, LONG, QRELS, RUN, SCORE, TRAIN, TRANSLATE, Case, file


def runs() -> Iterator[tuple[str, Case]]:
    runs: dict[str, str | bytes] = {
        "NUL in a query id": RUN.replace("q1", "q\0"),
        "NUL in a document id": RUN.replace("d1", "d\0"),
        "terminal escape in an id": RUN.replace("d1", "d\x1b[31m"),
        "score 1e308": RUN.replace(" 2 t", " 1e308 t"),
        "score nan": RUN.replace(" 2 t", " nan t"),
        "score inf": RUN.replace(" 2 t", " -inf t"),
        "score in Arabic digits": RUN.replace(" 2 t", " ٣ t"),
        "a word for a score": RUN.replace(" 2 t", " two t"),
        "five fields": RUN.replace(" t\n", "\n"),
        "an id with a blank": RUN.replace("d1", "d 1"),
        "a million columns": "q1 " * 10**6,
        "a line of ten million characters": "q" * 10**7,
        "a document twice": RUN + RUN,
        "nothing": b"",
        "Latin-1": RUN.encode() + "q3 Q0 é 1 1 t\n".encode("latin-1"),
        "UTF-16": RUN.encode("utf-16"),
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
    grades = ("9223372036854775808", "1e30", "100001", "-100001", "1.5", "nan", "x", "1_0")
    for grade in grades:
        yield f"qrels: grade {grade}", Case(SCORE, file("q.qrels", QRELS.replace("d1 1", f"d1 {grade}")))
    qrels: dict[str, str | bytes] = {
        "two grades": QRELS + "q1 0 d1 2\n",
        "two fields": "q1 d1\n",
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
    for name in (" ", "a/b", "..", "x" * 3000, "a\x1b[31mb", "\udcff", "analysis"):
        yield f"name of a system: {ascii(name)[1:40]}", Case((*systems, name))
    for name in ("x" * 3000, "../x"):
        yield f"name of a dataset: {ascii(name)[1:40]}", Case((*systems, "joint", "--dataset", name))


def settings() -> Iterator[tuple[str, Case]]:
    laugh = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{now}: &{now} [{', '.join([f'*{before}'] * 10)}]\n"
        for before, now in zip("abcdefgh", "bcdefghi", strict=True)
    )
    texts: dict[str, str | bytes] = {
        "a thousand lists deep": "a: " + "[" * 1000 + "]" * 1000,
        "!!bool maybe": "a: !!bool maybe",
        "!!binary": "a: !!binary '%'",
        "!!python": "a: !!python/object/apply:os.system [id]",
        "a tag of one's own": "a: !own x",
        "a tab": "a:\n\tb: 1",
        "a key twice": "a: 1\na: 2",
        "a list for a key": "? [a, b]\n: 1",
        "aliases that multiply": laugh,
        "an alias without anchor": "a: *b",
        "a merge of a number": "a: {<<: 1}",
        "NUL": b"name: \0",
        "a control character": "name: \x07",
        "a number beyond 64 bits": "a: 9223372036854775808",
        "three megabytes": "a: " + "x" * 3_000_000,
        "two documents": "a: 1\n---\nb: 2",
        "nothing": "",
        "a list": "[1]",
        "Latin-1": "name: é".encode("latin-1"),
        "UTF-16": "name: x".encode("utf-16"),
        "a quote that never ends": 'a: "x',
    }
    for name, text in texts.items():
        yield f"config: {name}", Case((*TRAIN, "c.yaml"), file("c.yaml", text))
    for name in ("a key twice", "a tag of one's own", "nothing", "a list", "Latin-1", "a quote that never ends"):
        yield f"gates: {name}", Case(JUDGE, file("gates.yaml", texts[name]))
    gates = {
        "pass_at below fail_below": GATES.replace("joint: joint_r8", "joint: joint_r8, pass_at: 0.001"),
        "no such kind": GATES.replace("interference", "interferenze"),
        "no datasets": GATES.replace("[apidocs]", "[]"),
        "a dataset twice": GATES.replace("[apidocs]", "[apidocs, apidocs]"),
        "a date that is none": GATES.replace("2026-01-01", "2026-13-01"),
        "equal arms": GATES.replace("rank_only_r8", "joint_r8"),
        "an unknown key": GATES.replace("joint:", "jiont:"),
    }
    for name, text in gates.items():
        yield f"gates: {name}", Case(JUDGE, file("gates.yaml", text))
    sets = (
        "a", "=1", "..=1", "a=" + "[" * 1000, f"name={LONG}", "name=a/b", "name=\x1b[31m", "seeds=[-1]", "seeds=[]",
        "seeds=[1, 1]", "training.steps=0", "training.steps=1e3", "lora.r=100000000000", "lora.alpha=.inf", "model=1",
        "arms={}", "a.b={c: 1, c: 2}", "evaluation.bundled.queries=true", "modle.base=x",
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
