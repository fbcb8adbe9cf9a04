"""One small artefact of each kind that a run writes and reads back, by its real writer, with its real reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from support.reranking import invented
from support.results import make_result

from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.registration import register
from unimoe.analysis.logs import read_conflict_logs, read_logs
from unimoe.analysis.parity import read_scored
from unimoe.checkpoint import ADAPTER_FILE, ADAPTER_SETTINGS, Checkpoint, read_checkpoint, write_manifest
from unimoe.data.collection import Document
from unimoe.data.sources.beir_layout import read_beir
from unimoe.engine.units import UnitStore
from unimoe.evaluation.shards import ShardScores, read_shard, write_shard
from unimoe.evaluation.spec import EvaluationSpec, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.io import append_jsonl, hash_file, hash_files, read_json, write_sealed
from unimoe.metrics import score_run
from unimoe.models import bundled
from unimoe.models.rerankers.files import weights_hash
from unimoe.models.served.answers import KeptVectors
from unimoe.results import TrainingBudget, drilldown_path, read_drilldown, read_query_details, read_result, run_path
from unimoe.retrieval.run_cache import cached_run, read_cached
from unimoe.retrieval.vector_store import encode_corpus, read_store
from unimoe.run_record import RunRecord
from unimoe.studies.biencoder.labels.labelling import _kept, _write_labels
from unimoe.studies.biencoder.training.checkpoint import BiEncoderManifest, read_biencoder
from unimoe.studies.cross_encoder.training import checkpoint as cross_encoder
from unimoe.studies.heads.model import load_head, save_head
from unimoe.studies.translator.models.files import read_translator, save_translator
from unimoe.training.run_state import RunState

RUN = {"q1": {"d1": 1 / 3, "d2": 0.25}, "q2": {"d2": -1.5}}
QRELS = {"q1": {"d1": 1}, "q2": {"d1": 2, "d2": 1}}
BUDGET = TrainingBudget(steps=10, ranking_examples=80, embedding_examples=0, tokens=1234)

Read = Callable[[], Any]
Make = Callable[[Path], tuple[Path, Read]]
"""Writes an artefact into a folder and returns one file of it, and its reader: None stands for absent."""


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
    from unimoe.collection_card import describe_qrels

    evaluated(folder)
    qrels = folder / "qrels" / "toy-test.qrels"
    return qrels.with_name("toy-test.qrels.json"), lambda: describe_qrels(qrels)


def run_of_a_result(folder: Path) -> tuple[Path, Read]:
    store, spec = evaluated(folder)
    path = run_path(folder, "joint_r8", 0, "reranking", "toy")
    return path, lambda: read_scored(store.path(spec)).run


def run_of_a_done_evaluation(folder: Path) -> tuple[Path, Read]:
    store, spec = evaluated(folder)
    return run_path(folder, "joint_r8", 0, "reranking", "toy"), lambda: store.is_done(spec) or None


def cached_candidates(folder: Path) -> tuple[Path, Read]:
    collection, path = invented(documents=4, queries=2, words=20), folder / "key.trec"
    cached_run(path, collection, "bm25", lambda: RUN)
    return path, lambda: read_cached(path)


def record_of_candidates(folder: Path) -> tuple[Path, Read]:
    path, read = cached_candidates(folder)
    return path.with_suffix(".json"), read


def logs(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        path, numbers = folder / "joint_r8" / "seed_0" / "logs" / name, ("cosine", "norm_rank", "norm_embed")
        others = ("cosine_self_rank", "cosine_self_embed", "cosine_corrected", "magnitude_similarity")
        for step in range(1, 9):
            append_jsonl(path, {"step": step, "layer": 0, "loss": 1 / step, **dict.fromkeys((*numbers, *others), 0.5)})
        read = read_logs if name == "train.jsonl" else read_conflict_logs
        return path, lambda: [dict(record) for record in read(folder).get(("joint_r8", 0), ())]

    return make


@dataclass
class Progress:
    """How far a training is."""

    step: int
    best: torch.Tensor


def state_in(folder: Path) -> RunState[Progress]:
    return RunState(folder, {"seed": 1}, "fingerprint", Progress)


def log_of_a_resumed_training(folder: Path) -> tuple[Path, Read]:
    state = state_in(folder)
    for step in range(1, 9):
        state.log({"step": step, "loss": 1 / step})
    whole = state.log_path.read_bytes()

    def read() -> list[bytes]:
        damaged = state.log_path.read_bytes()
        state.cut_logs(8)
        kept = state.log_path.read_bytes()
        state.log_path.write_bytes(damaged)
        assert whole.startswith(kept)
        return kept.splitlines()

    return state.log_path, read


def state_of_a_training(folder: Path) -> tuple[Path, Read]:
    state = state_in(folder)
    state.save(Progress(3, torch.arange(4.0)), model={"w": torch.tensor([1 / 3, 0.5], dtype=torch.bfloat16)})

    def read() -> Any:
        found = state.load()
        assert found is not None
        progress, parts = found
        return progress.step, progress.best.tolist(), parts["model"]["w"].tolist()

    return state.path, read


def head(folder: Path) -> tuple[Path, Read]:
    path = folder / "head.safetensors"
    save_head(path, torch.arange(6.0).reshape(2, 3) / 7, {"facts": '{"val": 0.25}', "fingerprint": "abc"})

    def read() -> Any:
        weight, texts = load_head(path)
        return weight.tolist(), texts

    return path, read


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


def checkpoint(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        (folder / ADAPTER_FILE).write_bytes(bytes(range(256)))
        (folder / ADAPTER_SETTINGS).write_text('{"r": 8}', encoding="utf-8")
        manifest = Checkpoint(
            arm="joint_r8",
            seed=1,
            which="last",
            base_model="some/model@abc",
            dtype="bfloat16",
            fingerprint="0123",
            adapter_hash=hash_file(folder / ADAPTER_FILE),
            settings_hash=hash_file(folder / ADAPTER_SETTINGS),
            training=BUDGET,
            config={"name": "toy"},
        )
        write_manifest(folder, manifest)
        return folder / name, lambda: read_checkpoint(folder)

    return make


def written_model(folder: Path) -> None:
    """What libraries write into the folder of a model."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', encoding="utf-8")
    (folder / "config.json").write_text('{"hidden_size": 32, "layer_norm_eps": 1e-12}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(bytes(range(256)))


def biencoder(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        from unimoe.studies.biencoder.training.checkpoint import MANIFEST, _weights_hash

        written_model(folder)
        manifest = BiEncoderManifest(
            arm="biencoder",
            seed=0,
            which="best",
            base_model="some/model@abc",
            dtype="float32",
            fingerprint="0123",
            weights_hash=_weights_hash(folder),
            files=hash_files(folder),
            facts={"val": 0.5},
            training=BUDGET,
            config={},
        )
        write_sealed(folder / MANIFEST, manifest.model_dump())
        return folder / name, lambda: read_biencoder(folder)

    return make


def trained_cross_encoder(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        written_model(folder)
        manifest = cross_encoder.CrossEncoderManifest(
            arm="softmax",
            seed=0,
            which="best",
            base_model="some/model@abc",
            fingerprint="0123",
            weights_hash=weights_hash(folder),
            files=hash_files(folder),
            dev=0.5,
            training=BUDGET,
            seconds=1.5,
            config={},
        )
        cross_encoder.write_manifest(folder, manifest)
        return folder / name, lambda: cross_encoder.read_manifest(folder)

    return make


def state_of_a_cross_encoder(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        files = {"trainer_state.json": b'{"global_step": 8}', "optimizer.pt": bytes(range(256))}

        def written(step: int) -> Path:
            state = folder / f"checkpoint-{step}"
            state.mkdir(exist_ok=True)
            for file, content in files.items():
                (state / file).write_bytes(content)
            cross_encoder.seal_state(state)
            return state

        written(4)
        newest = written(8)
        return newest / name, lambda: cross_encoder.last_state(folder)

    return make


def translator(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        save_translator(folder / "ridge", "ridge", {"matrix": np.arange(6.0).reshape(2, 3)}, {"ridge": 0.1}, ("note",))

        def read() -> Any:
            found = read_translator(folder / "ridge")
            return found.kind, found.settings, found.notes, found.tensors["matrix"].tolist()

        return folder / "ridge" / name, read

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


def prepared_model(name: str) -> Make:
    def make(folder: Path) -> tuple[Path, Read]:
        written_model(folder)
        bundled._write_manifest(folder)
        return folder / name, lambda: bundled._is_whole(folder) or None

    return make


ARTEFACTS: dict[str, Make] = {
    "result": result,
    "drill-down": drilldown,
    "MTEB's result": mteb_result,
    "card of judgments": card_of_judgments,
    "run of a result": run_of_a_result,
    "run of a done evaluation": run_of_a_done_evaluation,
    "cached candidates": cached_candidates,
    "record of candidates": record_of_candidates,
    "training log": logs("train.jsonl"),
    "log of conflicts": logs("gradient_conflicts.jsonl"),
    "log of a resumed training": log_of_a_resumed_training,
    "state": state_of_a_training,
    "head": head,
    "vectors": vectors("vectors.npy"),
    "record of vectors": vectors("store.json"),
    "ids of vectors": vectors("ids.json"),
    "shard": shard,
    "shard of labels": shard_of_labels,
    "labels": labels("qrels/train.tsv"),
    "labelled corpus": labels("corpus.jsonl"),
    "manifest of labels": labels("labels.json"),
    "adapter": checkpoint(ADAPTER_FILE),
    "adapter's settings": checkpoint(ADAPTER_SETTINGS),
    "adapter's manifest": checkpoint("unimoe.json"),
    "bi-encoder": biencoder("model.safetensors"),
    "bi-encoder's settings": biencoder("1_Pooling/config.json"),
    "bi-encoder's manifest": biencoder("unimoe.json"),
    "cross-encoder": trained_cross_encoder("model.safetensors"),
    "cross-encoder's settings": trained_cross_encoder("config.json"),
    "cross-encoder's manifest": trained_cross_encoder("unimoe.json"),
    "state of a cross-encoder": state_of_a_cross_encoder("optimizer.pt"),
    "progress of a cross-encoder": state_of_a_cross_encoder("trainer_state.json"),
    "hashes of a cross-encoder's state": state_of_a_cross_encoder("unimoe.json"),
    "translator": translator("translator.safetensors"),
    "translator's manifest": translator("translator.json"),
    "registered gates": registered_gates,
    "record of a run": record_of_a_run,
    "other JSON": small_json,
    "a server's vectors": vectors_of_a_server,
    "unit of a cluster": unit_of_a_cluster,
    "prepared model": prepared_model("model.safetensors"),
    "prepared model's tokenizer": prepared_model("config.json"),
    "prepared model's manifest": prepared_model("unimoe.json"),
}
