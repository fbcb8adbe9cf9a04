"""Several processes find to the bit what one finds, fail as one fails, and end when the leader ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import mteb_tasks
from support.mteb_runs import make_model
from support.mteb_tasks import ALL_TYPES, loaded
from support.ports import free_port
from support.reranking import invented
from support.threads import threads

from unimoe.cluster.processes import Processes
from unimoe.cluster.torchrun import serve
from unimoe.cluster.work import ALONE, Part, Progress, Workers
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.trec import Run
from unimoe.data.collection import Document
from unimoe.evaluation import sharing
from unimoe.evaluation.jobs import model_jobs
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb import search  # before its constant's origin is changed
from unimoe.evaluation.mteb.run import evaluate_task
from unimoe.evaluation.reranking.rerankers import PairModelReranker
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.evaluation.sharing import encode_texts, shared
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.retrieval.embeddings import encode_corpus

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = (2, 3)


class OwnError(Exception):
    """Known to one module alone."""


def square(part: Part) -> NDArray[Any]:
    """The job of most tests; some numbers fail, each in its way."""
    number = part["number"]
    failures: dict[int, Exception] = {
        90: InputError(3, "too long"),
        91: DataError("no such file"),
        92: UsageError("no such key"),
        93: torch.OutOfMemoryError("no room"),
        94: ValueError("no number"),
        95: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"),
        96: OwnError("nobody knows"),
    }
    if number in failures:
        raise failures[number]
    return np.array([number, number**2], dtype=np.float32)


def squares(workers: Workers, numbers: list[int]) -> Iterator[list[float]]:
    parts = ({"number": number} for number in numbers)
    return (found.tolist() for found in workers.compute("square", parts, square))


serve_squares = partial(serve, jobs={"square": square})


class TestParts:
    @pytest.mark.parametrize("size", [1, *SIZES])
    @pytest.mark.parametrize("count", [0, 1, 3, 7])
    def test_results_are_those_of_the_parts_in_order(self, size: int, count: int) -> None:
        with threads(size, serve_squares) as workers:
            assert list(squares(workers, [*range(count)])) == [[n, n**2] for n in range(count)]

    def test_no_bit_changes_on_the_way(self) -> None:
        values = np.array([[-0.0, np.nan, np.inf], [1e-45, 0.1, -1.0]], dtype=np.float32)
        jobs = {"values": lambda part: values * np.float32(1)}
        with threads(2, partial(serve, jobs=jobs)) as workers:
            found = list(workers.compute("values", [{}, {}], jobs["values"]))
        assert [own.tobytes() for own in found] == [values.tobytes()] * 2
        found[1][0, 0] = 1  # as MTEB may do with embeddings

    @pytest.mark.parametrize(
        "text", ["", "ein Stück", "日本語 \U0001f600", "half of a pair: \ud83d", 'a "b" \\ \n\x00']
    )
    def test_texts_arrive_unchanged(self, text: str) -> None:
        def points(part: Part) -> NDArray[Any]:
            return np.array([*map(ord, part["text"])], dtype=np.float64)

        with threads(2, partial(serve, jobs={"points": points})) as workers:
            found = workers.compute("points", [{"text": ""}, {"text": text}], points)
            assert ["".join(map(chr, own.astype(int))) for own in found] == ["", text]


class TestErrors:
    @pytest.mark.parametrize("size", [1, *SIZES])
    @pytest.mark.parametrize(
        ("number", "kind", "message"),
        [
            (90, InputError, "input 3: too long"),
            (91, DataError, "no such file"),
            (92, UsageError, "no such key"),
            (93, torch.OutOfMemoryError, "no room"),
            (94, ValueError, "no number"),
        ],
    )
    def test_a_part_that_fails_fails_as_in_one_process(
        self, size: int, number: int, kind: type[Exception], message: str
    ) -> None:
        with threads(size, serve_squares) as workers:
            found: list[list[float]] = []
            with pytest.raises(kind) as raised:
                found.extend(squares(workers, [1, 2, 3, 4, number, 5]))
            assert found == [[n, n**2] for n in (1, 2, 3, 4)]
            assert (type(raised.value), str(raised.value)) == (kind, message)
            assert list(squares(workers, [6, 7, 8])) == [[6, 36], [7, 49], [8, 64]]  # the others are still there

    @pytest.mark.parametrize(("number", "name"), [(95, "UnicodeDecodeError"), (96, "OwnError")])
    def test_an_error_that_cannot_be_made_again_keeps_its_name(self, number: int, name: str) -> None:
        with threads(2, serve_squares) as workers, pytest.raises(RuntimeError, match=name) as raised:
            list(squares(workers, [1, number]))
        assert "in process 1:" in raised.value.__notes__[0]

    def test_the_first_part_that_fails_is_the_one_that_is_named(self) -> None:
        with threads(3, serve_squares) as workers, pytest.raises(DataError, match="no such file"):
            list(squares(workers, [1, 91, 92]))

    def test_an_error_of_the_leader_ends_the_others(self) -> None:
        def fails() -> None:
            with threads(3, serve_squares) as workers:
                next(squares(workers, [1, 2, 3, 4, 5]))
                raise KeyError("of the leader")

        with pytest.raises(KeyError):
            fails()


# Three real processes, as torchrun would start them; forked, so that torch is imported once. Each prints how it ended.
TOGETHER = """
import json, os, numpy as np
from unimoe.core.errors import DataError
from unimoe.cluster.torchrun import Torchrun, leading, serve
from unimoe.cluster.processes import joined_processes

def square(part):
    if part["number"] == 91:
        raise DataError("no such file")
    return np.array([part["number"] ** 2.0])

def squares(here, numbers):
    return [found.tolist() for found in Torchrun(here).compute("square", ({"number": n} for n in numbers), square)]

os.environ["RANK"] = "0"
for rank in ("1", "2"):
    if os.environ["RANK"] == "0" and os.fork() == 0:
        os.environ["RANK"] = rank
found = []
try:
    with joined_processes() as here, leading(here):
        if here.leads:
            found.append(squares(here, range(7)))
            try:
                squares(here, [1, 91, 2])
            except DataError as error:
                found.append(str(error))
            found.append(squares(here, [8, 9]))
            raise KeyError("of the leader")
        serve(here, {"square": square})
except KeyError as error:
    found.append(repr(error))
os.write(1, f"{json.dumps([here.rank, found])}\\n".encode())
"""


def test_real_processes_end_with_their_leader_and_never_wait_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": 3, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=600, check=True)
    squared = [[float(n**2)] for n in range(10)]
    assert sorted(map(json.loads, done.stdout.splitlines())) == [
        [0, [squared[:7], "no such file", squared[8:], "KeyError('of the leader')"]],
        [1, []],
        [2, []],
    ]


class Encoder:
    """Deterministic vectors that depend on the unit's size, as batches change last bits; ``bad`` cannot be embedded."""

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        for index, text in enumerate(texts):
            if text.startswith("bad"):
                raise InputError(index, "cannot be embedded")
        rows = [np.random.default_rng(sum(map(ord, text)) + 1).standard_normal(5) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(-1, 5) + np.float32(1e-3 * len(texts))


def serve_texts(processes: Processes) -> None:
    serve(processes, {"encode": lambda part: Encoder()(part["texts"])})


TEXTS = ["word " * (7 * n % 23) + str(n) for n in range(40)]


class TestTexts:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sharing, "ENCODED_CHARACTERS", 150)

    def encoded(self, workers: Workers, texts: list[str], done: list[int] | None = None) -> NDArray[np.float32]:
        advance = None if done is None else done.append
        return encode_texts(Encoder(), texts, shared(workers), Progress(advance))

    @pytest.mark.parametrize("size", SIZES)
    def test_all_sizes_give_the_same_bits(self, size: int) -> None:
        alone, done = self.encoded(ALONE, TEXTS), list[int]()
        with threads(size, serve_texts) as workers:
            together = self.encoded(workers, TEXTS, done)
        assert together.tobytes() == alone.tobytes()
        assert sum(done) == len(TEXTS)
        for row, text in zip(together, TEXTS, strict=True):
            np.testing.assert_allclose(row, Encoder()([text])[0], atol=0.1)

    def test_texts_of_one_part_keep_their_order(self) -> None:
        few = ["a", "a longer one", "b"]
        assert self.encoded(ALONE, few).tobytes() == Encoder()(few).tobytes()
        assert self.encoded(ALONE, []).shape == (0, 5)

    @pytest.mark.parametrize("size", [1, *SIZES])
    @pytest.mark.parametrize("place", [0, 17, 39])
    def test_a_text_that_fails_is_named_by_its_place(self, size: int, place: int) -> None:
        texts = [*TEXTS[:place], "bad " + "x" * 40, *TEXTS[place + 1 :]]
        with threads(size, serve_texts) as workers, pytest.raises(InputError) as raised:
            self.encoded(workers, texts)
        assert (raised.value.index, raised.value.reason) == (place, "cannot be embedded")


CORPUS = {f"d{n:02d}": Document("", text) for n, text in enumerate(TEXTS)}


class TestCorpus:
    def encode(self, folder: Path, workers: Workers, encoder: Any = None, **changes: Any) -> bytes:
        settings: dict[str, Any] = {"corpus": CORPUS, "fingerprint": "one", "characters": 150}
        settings["spread"] = shared(workers)
        return encode_corpus(encoder or Encoder(), folder=folder, **settings | changes).vectors.tobytes()

    @pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
    def test_killed_and_resumed_with_another_number_of_processes(self, tmp_path: Path, before: int, after: int) -> None:
        units: list[int] = []

        def killed(done: int) -> None:
            units.append(done)
            if len(units) == 6:
                raise DataError("killed")

        alone = self.encode(tmp_path / "alone", ALONE)
        with pytest.raises(DataError, match="killed"), threads(before, serve_texts) as workers:
            self.encode(tmp_path / "killed", workers, advance=killed)
        seen: list[int] = []
        with threads(after, serve_texts) as workers:
            assert self.encode(tmp_path / "killed", workers, advance=seen.append) == alone
        assert seen[0] == sum(units)
        for name in ("vectors.npy", "ids.json", "store.json"):
            assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()

    @pytest.mark.parametrize("size", [1, *SIZES])
    def test_what_was_done_before_a_bad_document_is_kept(self, tmp_path: Path, size: int) -> None:
        corpus = CORPUS | {"d07": Document("", "bad " + "x" * 40)}
        with threads(size, serve_texts) as workers:
            for _ in range(2):
                with pytest.raises(DataError, match=r"^text 'd07': cannot be embedded"):
                    self.encode(tmp_path, workers, corpus=corpus, label="text")
        seen: list[int] = []
        with pytest.raises(DataError):
            self.encode(tmp_path, ALONE, corpus=corpus, advance=seen.append)
        assert seen[0] > 0


def serve_tiny_model(processes: Processes) -> None:
    serve(processes, model_jobs(make_model))


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


COLLECTION = invented(documents=12, queries=4, unjudged=1)
CANDIDATES: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}


class TestReranking:
    @pytest.fixture(autouse=True)
    def small_shards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("unimoe.evaluation.reranking.rerankers.SHARD_CHARACTERS", 900)

    @pytest.mark.parametrize("size", SIZES)
    def test_run_and_counts_are_those_of_one_process(self, model: UnimodelForExp1, tmp_path: Path, size: int) -> None:
        reranker, done = PairModelReranker(model, token_budget=500), list[int]()
        store = ShardStore(tmp_path, "one")
        alone = rerank_collection(reranker, COLLECTION, CANDIDATES)
        with threads(size, serve_tiny_model) as workers:
            together = rerank_collection(
                reranker, COLLECTION, CANDIDATES, store=store, workers=workers, advance=done.append
            )
        assert (together.run, together.items, together.token_budget) == (alone.run, alone.items, 500)
        assert sum(done) == alone.items == 5 * 12
        assert len(list(tmp_path.iterdir())) == len(reranker.cut(COLLECTION, CANDIDATES)) > size
        for path in list(tmp_path.iterdir())[:2]:
            path.unlink()
        resumed = rerank_collection(reranker, COLLECTION, CANDIDATES, store=store)
        assert resumed.run == alone.run

    def test_a_pair_that_cannot_be_scored_is_named(
        self, model: UnimodelForExp1, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepare = PairModelReranker.prepare

        def refusing(reranker: PairModelReranker, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
            for index, (query, _) in enumerate(pairs):
                if query.startswith("word"):
                    raise InputError(index, "query 'word' is refused")
            return prepare(reranker, pairs)

        monkeypatch.setattr(PairModelReranker, "prepare", refusing)
        queries = {**COLLECTION.queries, "q2": "word " * 900}
        wordy = type(COLLECTION)("wordy", "test", COLLECTION.corpus, queries, COLLECTION.qrels)
        with threads(2, serve_tiny_model) as workers:
            with pytest.raises(DataError, match=r"^wordy, query 'q2', document 'd\d\d': query 'word"):
                rerank_collection(PairModelReranker(model), wordy, CANDIDATES, workers=workers)
            again = rerank_collection(PairModelReranker(model), COLLECTION, CANDIDATES, workers=workers)
        assert again.run == rerank_collection(PairModelReranker(model), COLLECTION, CANDIDATES).run


class TestMTEB:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sharing, "ENCODED_CHARACTERS", 300)
        monkeypatch.setattr(search, "ENCODED_CHARACTERS", 300)
        monkeypatch.setattr("unimoe.evaluation.reranking.rerankers.SHARD_CHARACTERS", 900)

    @pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
    def test_tasks_of_every_type_score_the_same_to_the_bit(self, model: UnimodelForExp1, kind: type[Any]) -> None:
        alone = evaluate_task(MTEBEncoderWrapper(model), loaded(kind))
        for size in SIZES:
            with threads(size, serve_tiny_model) as workers:
                together = evaluate_task(MTEBEncoderWrapper(model, workers=workers), loaded(kind))
            assert (together.main_score, together.run) == (alone.main_score, alone.run)
            assert together.mteb_json["scores"] == alone.mteb_json["scores"]

    def test_a_cross_encoder_too(self, model: UnimodelForExp1) -> None:
        kind = mteb_tasks.InventedReranking
        alone = evaluate_task(MTEBCrossEncoderWrapper(model), loaded(kind))
        for size in SIZES:
            with threads(size, serve_tiny_model) as workers:
                together = evaluate_task(MTEBCrossEncoderWrapper(model, workers=workers), loaded(kind))
            assert (together.main_score, together.run) == (alone.main_score, alone.run)
