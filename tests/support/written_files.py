"""One small artefact of each kind that a run writes and reads back, by its real writer, with its real reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.reranking import invented
from support.results import make_result
from support.written_trainings import OF_TRAININGS, Make, Read, state_in

from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.registration import register
from unimoe.analysis.parity import read_scored
from unimoe.cluster.units import UnitStore
from unimoe.core.io import append_jsonl, read_json, write_sealed
from unimoe.data.collection import Document
from unimoe.data.sources.beir_layout import read_beir
from unimoe.evaluation.reranking.shards import ShardScores, read_shard, write_shard
from unimoe.evaluation.spec import EvaluationSpec, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.experiment.run_record import RunRecord
from unimoe.metrics import score_run
from unimoe.models.served.answers import KeptVectors
from unimoe.results import read_result, run_beside, run_path
from unimoe.results.details import drilldown_path, read_drilldown, read_query_details
from unimoe.results.logs import read_conflict_logs, read_logs
from unimoe.retrieval.run_cache import cached_run, read_cached
from unimoe.retrieval.vector_store import encode_corpus, read_store
from unimoe.studies.biencoder.labels.labelling import _kept, _write_labels

RUN = {"q1": {"d1": 1 / 3, "d2": 0.25}, "q2": {"d2": -1.5}}
QRELS = {"q1": {"d1": 1}, "q2": {"d1": 2, "d2": 1}}


def evaluated(folder: Path) -> tuple[ResultStore, EvaluationSpec]:
    """A result that an evaluation has written, with all files beside it."""
    identity, store = make_result("joint_r8", 0, [0.5, 0.5], dataset="toy").identity, ResultStore(folder)
    spec = EvaluationSpec("joint_r8", 0, "reranking", "toy", identity, hashes={"collection": "c0ffee"}, config={})
    scores = score_run(QRELS, RUN, ("ndcg@10", "mrr"))
    store.write(
        spec,
        Outcome(
            "ndcg@10", RUN, QRELS, {"q1": "what?", "q2": "né"}, scores, mteb_json={"scores": 0.25}, relevance_level=2
        ),
    )
    return store, spec


def result(folder: Path) -> tuple[Path, Read]:
    store, spec = evaluated(folder)
    path = store.path(spec)
    return path, lambda: read_result(path)


def drilldown(folder: Path) -> tuple[Path, Read]:
    store, spec = evaluated(folder)
    path = store.path(spec)
    return drilldown_path(path), lambda: (read_drilldown(path), read_query_details(path, ["q1", "q2"]))


def mteb_result(folder: Path) -> tuple[Path, Read]:
    store, spec = evaluated(folder)
    path = store.path(spec).with_suffix(".mteb.json")
    return path, lambda: read_json(path)


def card_of_judgments(folder: Path) -> tuple[Path, Read]:
    from unimoe.data.collection_card import describe_qrels

    evaluated(folder)
    qrels = folder / "qrels" / "toy-test.qrels"
    return qrels.with_name("toy-test.qrels.json"), lambda: describe_qrels(qrels)


def run_of_a_result(folder: Path) -> tuple[Path, Read]:
    store, spec = evaluated(folder)
    path = run_path(folder, "joint_r8", 0, "reranking", "toy")
    return path, lambda: read_scored(store.path(spec)).run


def done(place: Callable[[Path], Path]) -> Make:
    """A file beside the result at a place, whose damage an evaluation must find before it counts as done."""

    def make(folder: Path) -> tuple[Path, Read]:
        store, spec = evaluated(folder)
        return place(store.path(spec)), lambda: store.is_done(spec) or None

    return make


def cached_candidates(folder: Path) -> tuple[Path, Read]:
    collection, path = invented(documents=4, queries=2, words=20), folder / "key.trec"
    cached_run(path, collection, "bm25", lambda: RUN)
    return path, lambda: read_cached(path)


def record_of_candidates(folder: Path) -> tuple[Path, Read]:
    path, read = cached_candidates(folder)
    return path.with_suffix(".json"), read


def logs(name: str, damaged: str = "") -> Make:
    """As an unfinished training leaves them; or a finished one, one of whose files is damaged."""

    def make(folder: Path) -> tuple[Path, Read]:
        path, numbers = folder / "joint_r8" / "seed_0" / "logs" / name, ("cosine", "norm_rank", "norm_embed")
        others = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "magnitude_similarity")
        for step in range(1, 9):
            append_jsonl(path, {"step": step, "layer": 0, "loss": 1 / step, **dict.fromkeys((*numbers, *others), 0.5)})
        if damaged:
            state_in(folder / "joint_r8" / "seed_0").end_logs()
        read = read_logs if name == "train.jsonl" else read_conflict_logs
        return path.with_name(damaged or name), lambda: [dict(r) for r in read(folder).get(("joint_r8", 0), ())]

    return make


def vectors(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        corpus = {f"d{number}": Document("", "word " * (number + 1)) for number in range(6)}
        rng = np.random.default_rng(0)

        def encode(texts: Sequence[str]) -> NDArray[np.float32]:
            return rng.normal(size=(len(texts), 4)).astype(np.float32)

        encode_corpus(encode, corpus, folder, fingerprint="model", characters=40)

        def read() -> Any:
            store = read_store(folder)
            return store.ids, np.array(store.vectors).tolist()

        return folder / name, read

    return make


def shard(folder: Path) -> tuple[Path, Read]:
    path, pairs = folder / "key.json", [("q1", "d1"), ("q1", "d2")]
    write_shard(path, pairs, ShardScores([1 / 3, -2.5], 0.25, usage={"requests": 2.0}))
    return path, lambda: read_shard(path, pairs)


def shard_of_labels(folder: Path) -> tuple[Path, Read]:
    path = folder / "key.json"
    write_sealed(path, {"scores": RUN}, indent=None)
    return path, lambda: _kept(path, ["q1", "q2"], RUN)


def labels(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        collection = invented(documents=4, queries=2, words=20)
        queries = dict(collection.queries)
        grades = {key: dict.fromkeys(sorted(collection.corpus)[:2], 1) for key in queries}
        _write_labels(folder / "labels", collection, queries, grades, None, "fingerprint")

        def read() -> Any:
            found = read_beir(folder / "labels", "train")
            return found.corpus, found.queries, found.qrels

        return folder / "labels" / name, read

    return make


def registered_gates(folder: Path) -> tuple[Path, Read]:
    given = folder / "given.yaml"
    given.write_text(
        "registered: 2026-01-01\ngates:\n  kill: {kind: interference, task: reranking, datasets: [apidocs],\n"
        "    metric: ndcg@10, specialist: rank_only_r8, joint: joint_r8, pass_at: 0.02, fail_below: 0.01}\n",
        encoding="utf-8",
    )
    register(load_gates(given), folder)
    path = folder / "gates.yaml"

    def read() -> Any:
        found = load_gates(path)
        return found.registered, found.gates

    assert load_gates(path).content_hash == load_gates(given).content_hash
    return path, read


def record_of_a_run(folder: Path) -> tuple[Path, Read]:
    record = RunRecord(folder, lambda: 0, 0.0)
    record.note({"threads": 1, "estimate_seconds": [1.5, 3.25]})
    return folder / "run.json", lambda: record.elapsed and read_json(folder / "run.json")


def small_json(folder: Path) -> tuple[Path, Read]:
    """As ``experiment.json``, notes of trainings, comparisons, votes, negatives and a server's first answers are."""
    path = folder / "some.json"
    write_sealed(path, {"fingerprint": "0123", "test": 1 / 3, "gaps": [1.0, -2.5e-7], "text": "né\ud800"})
    return path, lambda: read_json(path)


def vectors_of_a_server(folder: Path) -> tuple[Path, Read]:
    kept, texts = KeptVectors(folder), ["one", "two"]
    kept.write(texts, np.array([[1 / 3, 0.5], [2.0, -1.0]], dtype=np.float32))
    (path,) = folder.glob("*.npy")

    def read() -> Any:
        found = kept.read(texts)
        return None if found is None else found.tolist()

    return path, read


def unit_of_a_cluster(folder: Path) -> tuple[Path, Read]:
    store = UnitStore(str(folder))
    store.write_json("scope", "key", {"scores": [1 / 3]})
    return folder / "scope" / "key", lambda: store.read_json("scope", "key")


ARTEFACTS: dict[str, Make] = OF_TRAININGS | {
    "result": result,
    "drill-down": drilldown,
    "MTEB's result": mteb_result,
    "card of judgments": card_of_judgments,
    "run of a result": run_of_a_result,
    "run of a done evaluation": done(run_beside),
    "drill-down of a done evaluation": done(drilldown_path),
    "MTEB's result of a done evaluation": done(lambda path: path.with_suffix(".mteb.json")),
    "cached candidates": cached_candidates,
    "record of candidates": record_of_candidates,
    "training log": logs("train.jsonl"),
    "log of conflicts": logs("gradient_conflicts.jsonl"),
    "finished training's steps": logs("train.jsonl", "train.jsonl"),
    "finished training's conflicts": logs("gradient_conflicts.jsonl", "gradient_conflicts.jsonl"),
    "numbers of lines": logs("train.jsonl", "lines.json"),
    "vectors": vectors("vectors.npy"),
    "record of vectors": vectors("store.json"),
    "ids of vectors": vectors("ids.json"),
    "shard": shard,
    "shard of labels": shard_of_labels,
    "labels": labels("qrels/train.tsv"),
    "labelled corpus": labels("corpus.jsonl"),
    "manifest of labels": labels("labels.json"),
    "registered gates": registered_gates,
    "record of a run": record_of_a_run,
    "other JSON": small_json,
    "a server's vectors": vectors_of_a_server,
    "unit of a cluster": unit_of_a_cluster,
}
