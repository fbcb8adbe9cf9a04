"""What a user meets first: the names of ``import unimoe``, the ``unimoe`` command, and the run files that it finds."""

from __future__ import annotations

import json
import math
import re
import string
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from support.results import INTERFERENCE, gate_file, write_experiment
from support.runs import write_systems
from support.tiny_models import save_tiny_model
from support.toy_collections import invented, write_invented
from typer.testing import CliRunner

import unimoe
from unimoe.analysis.compare import compute_interference_metrics
from unimoe.cli.app import FIRST_OPTIONS, app
from unimoe.cli.run_files import Pattern, name_systems, read_queries, select_runs
from unimoe.config import ModelConfig
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.io import hash_file, hash_json
from unimoe.core.trec import write_run
from unimoe.data.collection import Collection, Document
from unimoe.models.rerankers.python_function import function_identity, python_attribute
from unimoe.results.runs.sources import judgments

pytestmark = pytest.mark.usefixtures("tmp_cache")  # BM25 runs of invented collections do not go to the user's
Pairs = list[tuple[str, str]]


def by_length(pairs: Pairs) -> list[float]:
    return [float(len(document)) for _, document in pairs]


def test_every_public_name_is_documented_and_an_unknown_one_lists_them() -> None:
    for name in unimoe.__all__:
        assert getattr(unimoe, name).__doc__, name
        assert name in dir(unimoe)
    page = Path(unimoe.__file__).parents[2] / "docs" / "python.md"
    assert [name for name in unimoe.__all__ if f"unimoe.{name}(" not in page.read_text("utf-8")] == []
    with pytest.raises(AttributeError, match=r"no attribute 'load_results'; it offers .*load_all_results"):
        getattr(unimoe, "load_results")  # noqa: B009 - mypy would refuse the attribute


def test_qwen3_models_get_their_own_prompt(tmp_path: Path) -> None:
    config = ModelConfig(base=str(save_tiny_model(tmp_path, "qwen3")), dtype="float32", max_length=400)
    assert unimoe.load_model(config, device="cpu").prompt_name.startswith("qwen3/query_first@")


def test_tir_is_the_judgment_of_the_analysis_in_numbers(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    results = unimoe.load_all_results(tmp_path)
    judgments, rows = compute_interference_metrics(results), unimoe.tir(tmp_path)
    assert [(row.task, row.value, row.label, (row.low, row.high)) for row in rows] == [
        (one.gate.task, one.found.value, one.label, one.found.estimate.interval) for one in judgments
    ]
    (named,) = unimoe.tir(results, "rank_only_r8", "joint_r8")
    assert named == rows[0]
    assert [row.task for row in unimoe.tir(results, "joint_r8", "zero_shot")] == ["reranking", "embedding"]


def test_a_tir_of_unfit_scores_is_advisory_in_its_row_its_line_and_its_file(tmp_path: Path) -> None:
    write_experiment(tmp_path, caveats=["these queries trained the checkpoint"])
    rows = unimoe.tir(tmp_path)
    assert all("these queries trained the checkpoint" in row.advisory for row in rows)
    assert f"ADVISORY {rows[0].label} (these queries trained the checkpoint" in " ".join(str(rows).split())
    rows.save(tmp_path / "kept")
    kept = json.loads((tmp_path / "kept" / "tir.json").read_text())
    assert [row["advisory"] for row in kept] == [row.advisory for row in rows]


def test_arms_without_a_tir_are_refused(tmp_path: Path) -> None:
    write_experiment(tmp_path, logs=False)
    for arms, words in (
        (["rank_only_r8"], "give the specialist and the joint arm, or neither"),
        (["joint_r8", "joint_r8"], "specialist and joint are both 'joint_r8'; name two arms"),
        (["rank_only_r8", "joint_r9"], r"unknown arm 'joint_r9' \(did you mean 'joint_r8'\?\)"),
        (["rank_only_r8", "emb_only_r8"], "rank_only_r8 and emb_only_r8 have no dataset in common"),
    ):
        with pytest.raises(UnimoeError, match=words):
            unimoe.tir(tmp_path, *arms)


def test_tir_of_a_pair_with_a_registered_gate_is_judged_by_that_gate(tmp_path: Path) -> None:
    write_experiment(tmp_path, tir=0.2, queries=200)
    (default,) = unimoe.tir(tmp_path, "rank_only_r8", "joint_r8")
    gate_file(tmp_path, own=INTERFERENCE | {"pass_at": 0.6, "fail_below": 0.5})
    (row,) = unimoe.tir(tmp_path, "rank_only_r8", "joint_r8")
    assert (default.label, row.label) == ("PASS", "FAIL")
    assert row == unimoe.tir(tmp_path)[0]


def test_a_reranker_takes_candidates_by_a_dict_or_a_file_and_scores_both_orders(tmp_path: Path) -> None:
    collection, metrics = invented(), ["ndcg@10", "P@1"]
    every = {query_id: {"d00": 1.0, "d01": 2.0, "d02": 3.0} for query_id in collection.queries}
    given = unimoe.evaluate_reranker(by_length, collection, candidates=every, metrics=metrics)
    lengths = {key: float(len(collection.corpus[key].full_text)) for key in ("d00", "d01", "d02")}
    assert given.run == dict.fromkeys(every, lengths)
    assert given.scores == unimoe.score_run(collection.qrels, given.run, metrics)
    assert given.first_stage == unimoe.score_run(collection.qrels, every, metrics)
    assert given.candidates == f"run@{hash_json(every)}"
    path = tmp_path / "mine.trec"
    write_run(path, every, "mine")
    read = unimoe.evaluate_reranker(by_length, collection, candidates=str(path), metrics=metrics)
    assert (read.run, read.scores, read.first_stage) == (given.run, given.scores, given.first_stage)
    assert read.candidates == f"run:mine.trec@{hash_file(path)}"
    folder = write_invented(tmp_path / "mine", collection)
    few = unimoe.evaluate_reranker(by_length, f"path:{folder}", candidates=every, depth=2, max_queries=2)
    assert [set(scores) for scores in few.run.values()] == [{"d01", "d02"}] * 2
    with pytest.raises(DataError, match=r"none\.trec: no such file"):
        unimoe.evaluate_reranker(by_length, collection, candidates=tmp_path / "none.trec")


def typed(*cells: str, name: str = "f") -> list[str]:
    """Identities of what each cell, typed one after the other, leaves by a name."""
    space: dict[str, Any] = {"__name__": "__notebook__"}
    return [exec(cell, space) or function_identity(space[name]) for cell in cells]  # type: ignore[func-returns-value]


SUM = "class Sum:\n    def __init__(self, by): self.by = by\n    def __call__(self, pairs): return self.by\n"


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("def f(pairs): return [1.0]", "def f(pairs): return [2.0]"),
        ("def f(pairs): return sorted(pairs)", "def f(pairs): return reversed(pairs)"),
        ("def f(pairs, by=1): return by", "def f(pairs, by=2): return by"),
        ("def f(pairs, *, by=1): return by", "def f(pairs, *, by=2): return by"),
        ("f = lambda pairs: [1]", "f = lambda pairs: [2]"),
        ("f = (lambda by: lambda pairs: by)(1)", "f = (lambda by: lambda pairs: by)('1')"),
        ("def f(pairs): return [len(p) for p in pairs]", "def f(pairs): return [len(p) + 1 for p in pairs]"),
        ("K = 1\ndef f(pairs): return K", "K = 2\ndef f(pairs): return K"),
        ("def g(): return 1\ndef f(pairs): return g()", "def g(): return 2\ndef f(pairs): return g()"),
        ("from functools import partial\nf = partial(max, 1)", "f = partial(max, 2)"),
        (f"{SUM}f = Sum(1)", "f = Sum(2)"),
        (f"{SUM}f = Sum(1).__call__", "f = Sum(2).__call__"),
        (f"{SUM}f = Sum({{1: [2]}})", "f = Sum({1: [3]})"),
        (f"import numpy as np\n{SUM}f = Sum(np.zeros(9))", "f = Sum(np.ones(9))"),
    ],
)
def test_two_functions_of_one_name_typed_into_a_notebook_are_two(first: str, other: str) -> None:
    before, again, after = typed(first, first, other)
    assert before == again != after
    assert before.partition("@")[0].startswith("python:")


def test_a_function_that_calls_itself_or_holds_what_nothing_is_known_of_has_an_identity() -> None:
    nested = "it = []\nfor _ in range(3000): it = [it, it]\nf = (lambda it: lambda pairs: it)(it)"
    cells = ["def f(pairs): return f(pairs)", "f = (lambda it: lambda pairs: it)(object())", "f = len", nested]
    assert len(set(typed(*cells))) == 4
    assert typed(*cells) == typed(*cells)


def test_what_one_file_makes_by_one_name_is_told_apart_and_all_else_is_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "def twice(pairs): return [1]\nfirst = twice\ndef twice(pairs): return [2]\n"
        "def once(pairs): return [1]\ndef made(by):\n    def inner(pairs): return by\n    return inner\n"
        "class Holds:\n    def __call__(self, pairs): return self.by\n"
        "class Slots:\n    __slots__ = ('by',)\n    def __call__(self, pairs): return self.by\n"
        "line = [lambda pairs: [1 for _ in pairs], lambda pairs: [2 for _ in pairs]]\n"
    )
    file = tmp_path / "own_scorers_1.py"
    file.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    own: Any = __import__("own_scorers_1")
    whole, held = hash_file(file), own.Holds()
    assert [function_identity(one).rpartition("@")[2] for one in (own.once, own.made, held)] == [whole] * 3
    held.by, other, slots = 2, own.Holds(), own.Slots()
    other.by = slots.by = 3
    several = [own.first, own.twice, own.made(1), own.made(2), held, held.__call__, partial(own.once, 1), *own.line]
    several += [slots, own.made(held), own.made(other), own.made(torch.zeros(2)), own.made(torch.ones(2))]
    assert len({whole, *(function_identity(one).rpartition("@")[2] for one in several)}) == 15
    assert python_attribute("--model python:", "own_scorers_1:twice", "")[1] == f"python:own_scorers_1:twice@{whole}"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda qrels, run: unimoe.score_run(qrels, run, []),
            "no metric is named; give one or more, such as 'ndcg@10'",
        ),
        (lambda qrels, run: unimoe.compare({"a": run, "b": run}, qrels, untrained=[""]), "untrained: unknown arm ''"),
        (lambda qrels, run: unimoe.compare({"a": run, "b": run}, qrels, untrained=[3]), "untrained: unknown arm '3'"),  # type: ignore[list-item]
    ],
)
def test_what_names_nothing_is_refused_in_one_line(call: Callable[[Any, Any], Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        call({"q": {"d": 1}}, {"q": {"d": 1.0}})


def test_a_collection_given_as_a_file_names_its_judgments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_invented(tmp_path / "mine", invented())
    monkeypatch.chdir(tmp_path)
    for given, words in (
        ("path:mine", "write mine/qrels/test.tsv"),
        (folder, "its judgments are .*mine/qrels/test.tsv"),
    ):
        with pytest.raises(DataError, match=words):
            unimoe.read_qrels(given)


@pytest.mark.parametrize("allow", [3, None, [["seeds"]]])
def test_what_is_no_allowance_is_refused_by_name(tmp_path: Path, allow: Any) -> None:
    write_experiment(tmp_path)
    with pytest.raises(UsageError, match=r"--allow .*: no such difference.*; known are queries, "):
        unimoe.load_all_results(tmp_path, allow)


@pytest.mark.parametrize("options", [["-"], ["-c", "import sys; exec(sys.stdin.read())"]])
def test_a_function_typed_into_stdin_is_a_system(tmp_path: Path, options: list[str]) -> None:
    code = """
import unimoe
def f(pairs): return [float(len(document)) for _, document in pairs]
first = unimoe.evaluate_reranker(f, "apidocs", depth=2, max_queries=1).identity
def f(pairs): return [-float(len(document)) for _, document in pairs]
print(first != unimoe.evaluate_reranker(f, "apidocs", depth=2, max_queries=1).identity)
def f(texts): return [[len(text), 1.0] for text in texts]
print(unimoe.evaluate_encoder(f, "apidocs", max_queries=1).identity)
"""
    done = subprocess.run([sys.executable, *options], input=code, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("True\npython:__main__:f@"), done.stderr


def test_the_identity_is_the_file_of_the_function_or_what_it_states() -> None:
    def stated(pairs: Pairs) -> list[float]:
        return by_length(pairs)

    stated.identity = "length v1"  # type: ignore[attr-defined]
    found = unimoe.evaluate_reranker(by_length, invented())
    assert found.identity == f"python:{__name__}:by_length@{hash_file(Path(__file__))}"
    assert found.candidates == "bm25s(k1=0.9,b=0.4,stemmer=english)"
    assert unimoe.evaluate_reranker(stated, invented()).identity.endswith(f"stated@{hash_json('length v1')}")


def letters(texts: list[str]) -> Any:
    """How often each letter occurs."""
    return np.array([[text.lower().count(letter) for letter in string.ascii_lowercase] for text in texts])


def test_an_encoder_finds_the_documents_of_highest_cosine() -> None:
    collection = invented(documents=30, queries=6)
    found = unimoe.evaluate_encoder(letters, collection, depth=5, metrics=["ndcg@10", "P@1"])
    documents = list(collection.corpus)
    counts = letters([document.full_text for document in collection.corpus.values()])
    asked = letters(list(collection.queries.values()))
    lengths = np.outer(*(np.linalg.norm(vectors, axis=1) for vectors in (asked, counts)))
    for query_id, cosines in zip(collection.queries, asked @ counts.T / lengths, strict=True):
        expected = {documents[place]: cosines[place] for place in np.argsort(-cosines)[:5]}
        assert found.run[query_id] == pytest.approx(expected, abs=1e-6)
    assert found.scores == unimoe.score_run(collection.qrels, found.run, ["ndcg@10", "P@1"])
    assert (found.candidates, found.first_stage) == (None, None)
    assert found.identity == f"python:{__name__}:letters@{hash_file(Path(__file__))}"


def test_a_collection_may_say_that_a_query_leaves_its_own_document_out_and_ids_with_spaces_stay() -> None:
    corpus = {"q": Document("", "abc"), "a b": Document("", "abd"), "c": Document("", "xyz")}
    whole = Collection("toy", "test", corpus, {"q": "abc"}, {"q": {"a b": 1}})
    assert [*unimoe.evaluate_encoder(letters, whole).run["q"]] == ["q", "a b", "c"]
    assert [*unimoe.evaluate_encoder(letters, replace(whole, excludes_self=True)).run["q"]] == ["a b", "c"]


def test_an_encoder_that_reads_the_kind_is_told_it() -> None:
    kinds = []

    def asymmetric(texts: list[str], kind: str) -> Any:
        kinds.append(kind)
        return torch.tensor(letters(texts), dtype=torch.bfloat16)

    assert len(unimoe.evaluate_encoder(asymmetric, invented(), max_queries=2).run) == 2
    assert kinds == ["query", "document"]


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (lambda texts: np.ones((1, 3)), r"returned ndarray \(1, 3\); return an array of numbers \(4, D\) for 4"),
        (lambda texts: ["a"] * len(texts), "returned list .*; return an array of numbers"),
        (lambda texts: np.zeros((len(texts), 3)), "invented, query 'q0': the embedding is zero"),
        (lambda texts: np.full((len(texts), 3), np.nan), "invented, query 'q0': the embedding is not finite"),
        (lambda texts: np.ones((len(texts), 1 + (len(texts) > 4))), r"ndarray \(12, 2\); return .* \(12, 1\)"),
    ],
)
def test_what_are_no_vectors_is_refused_by_id(encoder: Callable[..., Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        unimoe.evaluate_encoder(encoder, invented())


RUN = {"q": {"d": 1}}


def nan(pairs: Pairs) -> list[float]:
    return [math.nan] * len(pairs)


def two() -> Any:
    return unimoe.compare({"a": {"q": {"d": 2, "e": 1}}, "b": {"q": {"d": 1, "e": 2}}}, RUN)


def rerank(scorer: Any = by_length, collection: Any = None, **options: Any) -> Any:
    return unimoe.evaluate_reranker(scorer, collection or invented(), **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: unimoe.tir(None), "the results are a NoneType; give an output folder"),  # type: ignore[arg-type]
        (lambda: unimoe.load_all_results(3), "the output folder is a int; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.score_run_file(3, "q"), "the run is a int; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.score_run_file("r", []), "the qrels is a list; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.parity(None, "b"), "a system's results is a NoneType"),  # type: ignore[arg-type]
        (lambda: unimoe.load_experiment(3), "the config is a int; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.run_experiment([]), "the config is a list; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.evaluate_beir(None, None, "x", "apidocs"), "the config is a str; give what load_exp"),  # type: ignore[arg-type]
        (lambda: unimoe.load_model(["x"]), "the base model is a list; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.load_model(adapter=3), "the adapter is a int; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.load_model(prompt="x"), "the prompt is a str; give a PromptConfig"),  # type: ignore[arg-type]
        (lambda: unimoe.load_encoder(3), "the encoder is a int; give its path"),  # type: ignore[arg-type]
        (lambda: unimoe.tir(two(), ["a"], "b"), r"unknown arm \['a'\]; there is a, b"),  # type: ignore[arg-type]
        (lambda: unimoe.compare_statistic(two(), np.mean, "a", ["b"]), r"unknown arm \['b'\]"),  # type: ignore[arg-type]
        (lambda: unimoe.compare_statistic(two(), np.mean, "a", "b", metric={}), "metric is a dict"),  # type: ignore[arg-type]
        (lambda: unimoe.load_collection(3), "the collection is a int; give its name"),  # type: ignore[arg-type]
        (lambda: unimoe.bm25_candidates(invented(), 2.5), r"depth 2\.5 is no whole number"),  # type: ignore[arg-type]
        (lambda: unimoe.bm25_candidates(invented(), params=3), "params is a int"),  # type: ignore[arg-type]
        (lambda: unimoe.load_collection("apidocs", ["test"]), "split is a list"),  # type: ignore[arg-type]
        (lambda: unimoe.compare({"a": RUN, "b": RUN}, RUN, allow=3), "--allow 3: unknown; use"),  # type: ignore[arg-type]
        (lambda: unimoe.compare({"a": RUN, "b": RUN}, RUN, allow=[3]), "--allow 3: unk"),  # type: ignore[list-item]
        (lambda: unimoe.evaluate_encoder(letters, invented(), max_queries="9"), "of 9 qu"),  # type: ignore[arg-type]
        (lambda: unimoe.evaluate_encoder(letters, invented(), depth=True), "depth True: keeps nothing"),
        (lambda: rerank(max_queries=1.5), r"a sample of 1\.5 queries"),
        (lambda: rerank(depth=0), "depth 0: reranks nothing"),
        (lambda: rerank(7), "the scorer is a int"),
        (lambda: rerank(lambda pairs: []), r"query 'q0', document '\w+': the reranker returned 0 scores for \d+ pairs"),
        (lambda: rerank(nan), r"query 'q0', document 'd\d+': the score is nan"),
        (lambda: rerank(candidates=3), "the run: int is no table; give a path"),
        (lambda: rerank(candidates={"q0": {"other": 1.0}}), "'other' of query 'q0' is no document of invented"),
        (lambda: rerank(candidates={"x": {"d00": 1.0}}), "no scored query has candidates; give a run of this"),
        (lambda: rerank(candidates={"q0": {"d00": 1, "d01": 1}}, depth=1), "the 2 candidates of query 'q0' all have"),
        (lambda: unimoe.evaluate_encoder("bundled", invented()), "the encoder is a str"),  # type: ignore[arg-type]
        (lambda: unimoe.evaluate_encoder(letters, invented(), depth=0), "depth 0: keeps nothing"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(call: Callable[[], object], words: str) -> None:
    with pytest.raises((UsageError, DataError), match=words):
        call()


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def shown(*arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments)).stdout


def test_help_lists_each_command_in_a_group_with_its_whole_summary() -> None:
    text = shown("--help")
    groups = ["Compare and judge (light install):", "Train and evaluate:", "Practical:", "Studies:"]
    places = [text.index(group) for group in groups]
    assert places == sorted(places)
    assert "..." not in text[places[0] :]
    assert places[1] < text.index("\n  run ") < places[2]
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert shown("--version") == f"unimoe {unimoe.__version__}\n"


@pytest.mark.parametrize("command", FIRST_OPTIONS)
def test_help_lists_the_options_that_people_use_first(command: str) -> None:
    first, _, others = shown(command, "--help").partition("More options:")
    names = {param.name: param.opts[0] for param in COMMANDS[command].params}
    assert set(FIRST_OPTIONS[command]) < set(names)
    for name, option in names.items():
        assert (f"\n  {option} " in first) == (name in FIRST_OPTIONS[command])
        assert (f"\n  {option} " in others) == (name not in FIRST_OPTIONS[command])


def test_a_module_of_the_folder_registers_a_measure_for_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unimoe.metrics.names._registered", {})
    monkeypatch.chdir(tmp_path)
    code = "import unimoe.metrics as m; m.register_measure('answers', lambda grades, ids: float(len(ids)))"
    Path("own_measure_1.py").write_text(code, encoding="utf-8")
    Path("q.txt").write_text("q1 0 d1 1\n", encoding="utf-8")
    Path("r.trec").write_text("q1 Q0 d1 1 2.0 x\nq1 Q0 d2 2 1.0 x\n", encoding="utf-8")
    text = shown("--import", "own_measure_1", "evaluate-run", "r.trec", "q.txt", "--metric", "answers")
    assert ("answers" in text, "2.0" in text) == (True, True)


def test_status_shows_what_an_experiment_or_study_of_this_machine_has_done(tmp_path: Path) -> None:
    for name in ("low/a/seed_9/checkpoint/head", "high/a/seed_9/checkpoint/head", "high/a/seed_9/state.safetensors"):
        (tmp_path / "tuning" / name).mkdir(parents=True)
    settings = ["tuning/high, seed_9", "tuning/low, seed_9  trained"]
    assert shown("status", str(tmp_path)).splitlines() == settings
    write_experiment(tmp_path)
    log = tmp_path / "joint_r8" / "seed_7" / "logs" / "train.jsonl"
    log.parent.mkdir(parents=True)
    records = "".join(f'{{"step": {step}, "loss": 1.0}}\n' for step in (1, 2, 2))
    log.write_text(records + '{"step": 3, "lo', encoding="utf-8")  # of a killed training that was resumed once
    lines = shown("status", str(tmp_path)).splitlines()
    assert "joint_r8, seed_7  2 steps so far" in lines
    assert any(line.startswith("joint_r8, seed_0") and "reranking/apidocs ndcg@10 0." in line for line in lines)
    found = json.loads(shown("status", str(tmp_path), "--json"))
    assert found["joint_r8, seed_7"] == {"steps": 2, "trained": False, "results": {}, "caveats": {}}
    path = next((tmp_path / "joint_r8" / "seed_0" / "results" / "reranking").glob("*[a-z].json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"caveats": ["a smoke run"]}))
    assert shown("status", str(tmp_path)).splitlines()[-1] == "caveat: a smoke run (joint_r8, seed_0)"
    found = json.loads(shown("status", str(tmp_path), "--json"))
    assert found["joint_r8, seed_0"]["caveats"][f"reranking/{path.stem}"] == ["a smoke run"]


class TestPatterns:
    def test_name_their_system_with_folders_where_stems_are_equal(self) -> None:
        names = {
            "runs/bm25.trec": "bm25",
            "runs/{dataset}/colbert-*.trec.gz": "colbert",
            "d-seed*.trec": "d",
            "runs/{dataset}/mono/seed_*/run.trec": "run",
            "mono/seed_*.txt": "mono",
            "runs/splade/{dataset}.run": "splade",
            "splade-v3.{dataset}.trec": "splade-v3",
            "bm25-k0.9": "bm25-k0.9",
            "ours=runs/lr=0.1/x.trec": "ours",
            "runs/lr=0.1/x.trec": "x",
            **{f"{folder}/same.trec": f"{folder.replace('/', '-')}-same" for folder in ("a", "b", "x/c", "y/c")},
        }
        assert list(name_systems([Pattern.parse("--systems", pattern) for pattern in names])) == list(names.values())

    def test_without_a_name_before_the_equals_sign_are_refused(self) -> None:
        with pytest.raises(UsageError, match="write NAME=PATTERN"):
            Pattern.parse("--systems", "=a.trec")

    @pytest.mark.parametrize("in_order", [False, True])
    def test_a_training_that_a_dataset_lacks_moves_no_other(self, tmp_path: Path, in_order: bool) -> None:
        """The third training was seed 1 on the dataset without the second, and seed 2 on the other."""
        write_systems(tmp_path, {"a": 2, "b-1": 2}, {"mono": (1.0, 11)})
        (tmp_path / "a" / "mono-seed2.trec").unlink()
        datasets = [judgments(tmp_path / f"{name}.qrels", name) for name in ("a", "b-1")]
        pattern = Pattern.parse("--systems", f"{tmp_path}/./{{dataset}}/m?[n]o-seed*.trec")
        found = select_runs({"mono": [pattern]}, datasets, in_order=in_order)
        of_a, of_b = ({s.seed: Path(s.name).stem for s in found if s.judged.dataset == name} for name in ("a", "b-1"))
        assert of_b == {n - 1: f"mono-seed{n}" for n in range(1, 12)}
        assert of_a == {seed: stem for seed, stem in of_b.items() if seed != 1}
        for path in (tmp_path / "b-1").glob("mono-*"):  # without a name in common, each is a training of its own
            path.rename(path.with_name(path.name.replace("-seed", "-s")))
        pattern = Pattern.parse("--systems", f"{tmp_path}/{{dataset}}/mono-s*.trec")
        found = select_runs({"mono": [pattern]}, datasets, in_order=in_order)
        assert sorted(s.seed or 0 for s in found if s.judged.dataset == "b-1") == list(range(10, 21))


def test_a_file_of_queries_in_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queries.tsv"
    for text, words in (("q1 what\n", r":1: not a line"), ("q1\ta\nq1\tb\n", r":2: query 'q1' has two texts")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=words):
            read_queries(path)
