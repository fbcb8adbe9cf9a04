"""What studies are tested on: topics that a head can learn, an embedder without a model, pools, small settings."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from support.experiments import write_tiny_experiment
from support.tiny_models import save_tiny_encoder
from torch import Tensor

from unimoe.config.files import parse_config
from unimoe.core.trec import Qrels
from unimoe.data.collection import Collection, Document
from unimoe.data.sources.beir_layout import write_parts
from unimoe.models.embedder import Advance, Embedder, Vectors
from unimoe.retrieval.embeddings import Embedded
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.trainer import BiEncoderTrainer
from unimoe.studies.common.study import load_study
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData, load_head_data
from unimoe.studies.heads.eggroll.noise import Perturbations
from unimoe.studies.heads.pools import PoolSet, pool_set

TOPICS, NOISE, DIMENSIONS = 12, 8, 24
SPLITS = {"train": 36, "dev": 18, "test": 18}


class WordEmbedder(Embedder):
    """The normalised sum of a fixed random vector for each word; noise words are four times as long as others.

    A head that drops the few directions of the noise words ranks by topic.
    """

    prompt_name = "words@0"
    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, seed: int = 0) -> None:
        self.base_identity = f"words@{seed}"
        self._seed = seed

    def encode(self, texts: Sequence[str], *, advance: Advance | None = None, **_: Any) -> Vectors:
        vectors = np.array([sum(map(self._word, text.split()), np.zeros(DIMENSIONS)) for text in texts])
        if advance:
            advance(len(texts))
        unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return unit

    def _word(self, word: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        rng = np.random.default_rng([self._seed, *word.encode()])
        return rng.standard_normal(DIMENSIONS) * (4.0 if word.startswith("noise") else 1.0)


def topics_folder(folder: Path, splits: dict[str, int] | None = None) -> Path:
    """A collection in BEIR layout: a document is relevant to the queries of its topic; noise words mislead.

    No two queries have one text, unless a topic has more queries than there are texts.
    """
    rng = np.random.default_rng(7)

    def text(topic: int) -> str:
        noise = " ".join(f"noise{i}" for i in rng.integers(0, NOISE, size=2))
        return f"topic{topic} all {noise}"

    documents = {f"d{i:03d}": Document("", text(i % TOPICS)) for i in range(5 * TOPICS)}
    queries: dict[str, str] = {}
    qrels: dict[str, Qrels] = {}
    for split, count in (splits or SPLITS).items():
        qrels[split] = {}
        for number in range(count):
            key, topic = f"{split}{number:02d}", number % TOPICS
            asked = (text(topic) for _ in range(100))
            queries[key] = next((one for one in asked if one not in queries.values()), text(topic))
            relevant = [d for i, d in enumerate(documents) if i % TOPICS == topic]
            qrels[split][key] = {document_id: 2 if i == 0 else 1 for i, document_id in enumerate(relevant[:3])}
    folder.mkdir(parents=True)
    write_parts(folder, documents, queries, qrels)
    return folder


def toy_config(folder: Path, output_dir: Path, **changes: Any) -> TrainConfig:
    """A training of seconds on ``topics_folder``."""
    settings: dict[str, Any] = {
        "task": f"path:{folder}",
        "pools": {"source": "dense", "depth": 20},
        "head_output_size": 16,
        "num_steps": 12,
        "batch_size": 12,
        "population_size": 32,
        "eval_every": 4,
        "save_every": 4,
        "device": "cpu",
        "output_dir": str(output_dir),
    }
    return TrainConfig.model_validate(settings | changes)


def toy_data(config: TrainConfig, embedder: WordEmbedder | None = None) -> HeadData:
    """Its pools."""
    return load_head_data(config, embedder or WordEmbedder())


SIGNALS, INPUTS = 4, 24
P = TypeVar("P", bound=Perturbations)


def toy_pools(
    queries: int = 16, size: int = 12, *, seed: int = 0, padded: bool = True, noise: float = 1.5, relevant: int = 1
) -> PoolSet:
    """Pools in which the first documents of a shuffled order share the query's signal.

    With ``padded``, every third pool is two documents shorter. ``noise`` is the deviation of the inputs that say
    nothing; the signal's is 1.
    """
    generator = torch.Generator().manual_seed(seed)
    asked = torch.randn(queries, INPUTS, generator=generator)
    documents = torch.randn(queries, size, INPUTS, generator=generator)
    qrels: dict[str, dict[str, int]] = {}
    run: dict[str, dict[str, float]] = {}
    vectors: dict[str, Tensor] = {}
    for place in range(queries):
        length = size - 2 if padded and place % 3 == 0 else size
        order, ranks = (torch.randperm(length, generator=generator) for _ in range(2))
        blur = 0.3 * torch.randn(relevant, SIGNALS, generator=generator)
        documents[place, order[:relevant], :SIGNALS] = asked[place, :SIGNALS] + blur
        ids = [f"d{place:03}-{size - number:03}" for number in range(length)]
        qrels[f"q{place:03}"] = {ids[number]: 1 for number in order[:relevant].tolist()}
        run[f"q{place:03}"] = dict(zip(ids, (-ranks.float()).tolist(), strict=True))
        vectors |= zip(ids, documents[place], strict=False)
    for part in (asked, documents):
        part[..., SIGNALS:] *= noise
    collection = Collection("toy", "train", {}, dict.fromkeys(run, ""), qrels)
    of_queries, of_documents = (
        Embedded([*ids], torch.nn.functional.normalize(torch.stack([*ids.values()]), dim=1).numpy())
        for ids in (dict(zip(run, asked, strict=True)), dict(sorted(vectors.items())))
    )
    return pool_set("train", collection, run, of_queries, of_documents, training=True)


def random_head(outputs: int = 8, seed: int = 0) -> Tensor:
    """A head that knows nothing, ``(outputs, INPUTS)``."""
    return torch.randn(outputs, INPUTS, generator=torch.Generator().manual_seed(seed)) / math.sqrt(INPUTS)


def doubled(noise: P) -> P:
    """The same directions in float64."""
    return replace(noise, a=noise.a.double(), b=noise.b.double())


def cross_encoder_keys(encoder: Path, topics: Path) -> dict[str, Any]:
    """Steps of four lists, an evaluation and a saved state after every second."""
    return {
        "model": {"base": str(encoder), "max_length": 48},
        "loss": "plistmle",
        "mini_batch_size": 8,
        "lists": {"source": f"path:{topics}", "max_docs": 4},
        "evaluation": {"depth": 6},
        "batch_size": 4,
        "max_steps": 4,
        "eval_every": 2,
    }


def cross_encoder_config(encoder: Path, topics: Path, output_dir: Path, **changes: Any) -> CrossEncoderConfig:
    """Six of these steps."""
    own = {"output_dir": str(output_dir), "max_steps": 6, "learning_rate": 1e-3, "seed": 3}
    return parse_config(CrossEncoderConfig, cross_encoder_keys(encoder, topics) | own | changes, source="test")


def loss_study(folder: Path, **changes: Any) -> Path:
    """Write a study of two losses at two rates."""
    topics = folder / "topics"
    if not topics.exists():
        save_tiny_encoder(folder / "encoder")
        topics_folder(topics, {"train": 24, "dev": 6, "test": 12})
    raw: dict[str, Any] = {
        "name": "mine",
        "family": "cross_encoder",
        "output_dir": str(folder / "out"),
        "base": cross_encoder_keys(folder / "encoder", topics),
        "arms": {"softmax": {"set": {"loss.name": "softmax"}}, "listnet": {"set": {"loss.name": "listnet"}}},
        "grid": {"learning_rate": [1e-5, 1e-3]},
        "seeds": 2,
        "baselines": ["bm25", "softmax"],
    }
    file = folder / "study.yaml"
    file.write_text(json.dumps(raw | changes), encoding="utf-8")
    return file


def arms_study(folder: Path, **changes: Any) -> Path:
    """Write a study of two arms of an experiment at two rates."""
    raw: dict[str, Any] = {
        "name": "mine",
        "family": "arms",
        "config": str(write_tiny_experiment(folder)),
        "output_dir": str(folder / "study"),
        "arms": {
            "emb_only_r8": {"set": {"arm.task": "emb_only", "arm.learning_rate": 1e-2}, "grid": {}},
            "joint_r8": {"set": {"arm": {"task": "joint", "ranking_weight": 0.5}}},
        },
        "grid": {"arm.learning_rate": [1e-4, 1e-2]},
        "seeds": 2,
        "baselines": ["zero_shot"],
        "gates": {
            "kill": {"kind": "interference", "task": "embedding", "specialist": "emb_only_r8", "joint": "joint_r8"}
        },
    }
    (folder / "study.yaml").write_text(json.dumps(raw | changes), encoding="utf-8")
    return folder / "study.yaml"


def encoder_study(folder: Path, base: dict[str, Any], variants: dict[str, Any]) -> Path:
    """Write the shipped study of bi-encoders with other settings, on the collection of ``base``."""
    shipped = load_study(Path("studies/biencoder")).model_dump(mode="json", exclude={"config"})
    base = {key: value for key, value in base.items() if key != "output_dir"}
    file = folder / "study.yaml"
    file.write_text(json.dumps(shipped | {"base": base, "arms": {"biencoder": {"variants": variants}}}))
    return file


def toy_keys(folder: Path) -> dict[str, Any]:
    """A collection and a random encoder below a folder, made where they are missing, and a training on them."""
    collection, encoder = folder / "collection", folder / "encoder"
    if not collection.exists():
        topics_folder(collection)
        save_tiny_encoder(encoder)
    return {
        "collection": f"path:{collection}",
        "encoder": {"base": str(encoder)},
        "out_dim": 16,
        "query_length": 16,
        "document_length": 24,
        "batch_size": 8,
        "epochs": 2,
        "learning_rate": 1e-3,
        "precision": "float32",
        "output_dir": str(folder / "out"),
    }


def toy_training(folder: Path, **changes: Any) -> BiEncoderTrainer:
    """``toy_keys`` with other keys, ready to ``fit``."""
    config = BiEncoderConfig.model_validate(toy_keys(folder) | changes)
    return BiEncoderTrainer(config, torch.device("cpu"))
