"""Results and vectors of ``retrieve`` by compiled layers never mix with those of uncompiled ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.embedders import WordEmbedder
from support.reranking import write_invented

from unimoe.config.dense import DenseConfig, DenseExperiment
from unimoe.data.collection import Document, assemble
from unimoe.evaluation.retrieval_eval import dense_collection
from unimoe.evaluation.retrieve import DatasetArms
from unimoe.evaluation.systems.retriever import Retriever
from unimoe.evaluation.systems.system import BM25
from unimoe.evaluation.tiers.datasets import chosen_datasets

COLLECTION = assemble(
    "toy",
    "test",
    [("a", Document("", "heron tide")), ("b", Document("", "moon")), ("c", Document("", "rain"))],
    [("q1", "heron"), ("q2", "moon")],
    {"q1": {"a": 1}, "q2": {"b": 1}},
)


def test_compiled_layers_share_neither_results_nor_vectors_with_others(tmp_path: Path) -> None:
    write_invented(tmp_path / "toy", COLLECTION)
    config = DenseConfig(depth=3, cutoffs=[1, 3], fuse_depth=3)
    experiment = DenseExperiment(output_dir=str(tmp_path / "outputs"), retrieval=config)
    (dataset,) = chosen_datasets(experiment, [f"path:{tmp_path / 'toy'}"])
    model = WordEmbedder(("heron", "tide", "moon", "rain"))
    plain = Retriever("words", lambda: model, model.base_identity, model.prompt_name, "cpu", "float32")
    specs = []
    for retriever in (plain, plain, replace(plain, compiled=True)):
        arms = list(DatasetArms(experiment, dataset, dense_collection(COLLECTION, config, None), retriever))
        specs.append([arm.spec for arm in arms])
        arms[1].run(None)
    for one, again, compiled in zip(*specs, strict=True):
        assert one.hashes == again.hashes
        assert compiled.hashes == one.hashes | ({} if one.system == BM25 else {"compile": "layers"})
    assert model.embedded["document"] == 2 * len(COLLECTION.corpus)
