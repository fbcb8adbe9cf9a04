"""Main scores through our adapters, against mteb's own wrappers given to ``mteb.evaluate``: equal to 1e-6.

Encoders: all-MiniLM-L6-v2 by sentence-transformers, bare and with mteb's instructions of Qwen3-Embedding, also on real
collections cut to seeded pools; slow tests search two whole, without the peer. Rerankers: a small random Qwen3 by
mteb's own code for Qwen3-Reranker, and by sentence-transformers' CrossEncoder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from mteb.abstasks import AbsTaskRetrieval
from mteb.mocks import MOCK_TASK_TEST_GRID
from mteb.models.instruct_wrapper import InstructSentenceTransformerModel
from mteb.models.model_implementations.qwen3_models import instruction_template
from mteb.models.model_implementations.qwen3_reranker import Qwen3RerankerWrapper
from mteb.models.sentence_transformer_wrapper import CrossEncoderWrapper
from support import mteb_tasks
from support.mteb_tasks import by_mteb, loaded, split_data
from support.tiny_models import save_tiny_model

from unimoe.config import ModelConfig, MTEBConfig, PromptConfig
from unimoe.config.base import EncoderConfig
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper, model_meta
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.mteb.tasks import CollectionTask, Rankings
from unimoe.evaluation.tasks.embed import evaluate_embedding_collection
from unimoe.evaluation.tasks.mteb import evaluate_task
from unimoe.models.base import load_base
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.encoder import SentenceEncoder, load_encoder
from unimoe.models.unimodel import UnimodelForExp1

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from sentence_transformers import SentenceTransformer

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension` method:FutureWarning"),  # MTEB's
    pytest.mark.filterwarnings("ignore:Prompt type 'document' not found", "ignore:Conversations are a list"),
]

INSTRUCTED = TaskPrompts(MTEBConfig())
TOKENS = 64
"""Of a text, that encoders read: enough to tell texts apart, and a quarter of the time."""
TASKS = dict.fromkeys(type(task) for task in MOCK_TASK_TEST_GRID if task.metadata.modalities == ["text"])
RERANKED = [kind for kind in TASKS if kind.metadata.type in ("Reranking", "InstructionReranking")]
REAL = {
    "scifact": ("SciFact", 10),
    "nfcorpus": ("NFCorpus", 2),
    "cisi": ("SCIDOCS", 1),
    "belebele-ko": ("ClimateFEVERHardNegatives", 10),  # which has the instruction of its type
    "msmarco-dev-positives": ("MSMARCO", 10),
}
"""Real collections, the task of MTEB whose instruction each is read with, and how many queries."""


def kinds_named(kinds: Sequence[type[Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.__name__)


class Raw(AbsTaskRetrieval):
    """A collection as MTEB would load it itself: every query, titles apart, judgments as they are."""

    def __init__(self, collection: Collection, metadata: TaskMetadata) -> None:
        self.metadata = metadata.model_copy(update={"eval_splits": [collection.split]})
        super().__init__()
        self.dataset = {"default": {collection.split: split_data(collection)}}
        self.data_loaded = True


class TestEncoder:
    @pytest.fixture(scope="class")
    def folder(self) -> str:
        return str(bundled_encoder_folder(EncoderConfig().base))

    @pytest.fixture(scope="class")
    def ours(self) -> SentenceEncoder:
        return load_encoder(EncoderConfig(max_length=TOKENS), torch.device("cpu"), torch.float32)

    @pytest.fixture(scope="class")
    def plain(self, folder: str) -> SentenceTransformer:
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(folder, device="cpu")
        peer.max_seq_length = TOKENS
        return peer

    @pytest.fixture(scope="class")
    def instructed(self, folder: str) -> InstructSentenceTransformerModel:
        options: dict[str, Any] = {"revision": None, "device": "cpu", "apply_instruction_to_passages": False}
        peer = InstructSentenceTransformerModel(folder, instruction_template=instruction_template, **options)
        peer.model.max_seq_length = TOKENS
        return peer

    @kinds_named([*TASKS, *mteb_tasks.INVENTED])
    def test_every_type_of_task_scores_the_same(
        self, ours: SentenceEncoder, plain: Any, instructed: Any, kind: type[Any]
    ) -> None:
        """Most types come twice: in several languages, which are read bare, and in one, which is instructed."""
        bare = kind.metadata.is_multilingual
        peer, prompts = (plain, None) if bare else (instructed, INSTRUCTED)
        found = evaluate_task(MTEBEncoderWrapper(ours, prompts=prompts), loaded(kind)).main_score
        assert found == pytest.approx(by_mteb(peer, loaded(kind)).get_score(), abs=1e-6)

    @pytest.mark.usefixtures("unimoe_data")
    @pytest.mark.parametrize("name", REAL)
    def test_real_collections_score_alike(self, ours: SentenceEncoder, plain: Any, instructed: Any, name: str) -> None:
        sample = load_collection(name, "test").sample_queries(REAL[name][1], seed=3)
        pool = sample.pool(len(sample.relevant_documents()) + 15)
        metadata, scores = find_tasks([REAL[name][0]])[0].metadata, []
        for peer, prompts in ((plain, None), (instructed, INSTRUCTED)):
            task = CollectionTask(pool, published=metadata)
            found = evaluate_task(MTEBEncoderWrapper(ours, prompts=prompts), task)
            raw = Raw(pool, metadata)
            rankings = Rankings(raw)
            (expected,) = by_mteb(peer, raw).scores[pool.split]
            assert 0.05 < expected["main_score"] <= 1
            assert found.main_score == pytest.approx(expected["main_score"], abs=1e-6)
            for metric, key in (("ndcg@10", "ndcg_at_10"), ("map", "map_at_1000"), ("recall@100", "recall_at_100")):
                assert found.scores.aggregate[metric] == pytest.approx(expected[key], abs=1e-5)  # they round theirs
            assert found.run.keys() == rankings.run.keys()
            for query, ranked in rankings.run.items():
                assert found.run[query] == pytest.approx(ranked, abs=1e-5)
            scores.append(found.run)
        assert scores[0] != scores[1]

    @pytest.mark.slow
    @pytest.mark.usefixtures("unimoe_data")
    @pytest.mark.parametrize(("name", "ndcg"), [("scifact", 0.64508), ("nfcorpus", 0.31594)])
    def test_two_whole_collections_score_what_is_published(self, name: str, ndcg: float) -> None:
        torch.set_num_threads(os.cpu_count() or 1)  # minutes of work; the module's fixture sets it back
        whole = load_encoder(EncoderConfig(), torch.device("cpu"), torch.float32)
        found = evaluate_embedding_collection(MTEBEncoderWrapper(whole), load_collection(name, "test"))
        assert found.main_score == pytest.approx(ndcg, abs=5e-6)


class TestReranker:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return save_tiny_model(tmp_path_factory.mktemp("qwen3"), "qwen3")

    @pytest.fixture(scope="class")
    def ours(self, folder: Path) -> UnimodelForExp1:
        base = load_base(ModelConfig(base=str(folder)), torch.device("cpu"), torch.float32)
        return UnimodelForExp1(base, PromptConfig(), max_length=900)

    @pytest.fixture(scope="class")
    def qwen3(self, folder: Path) -> Qwen3RerankerWrapper:
        peer: Any = Qwen3RerankerWrapper(str(folder), device="cpu", max_length=900, dtype=torch.float32)
        peer.mteb_model_meta = model_meta("tiny/qwen3", "1", "cross-encoder")
        typed: Qwen3RerankerWrapper = peer
        return typed

    @kinds_named([*RERANKED, mteb_tasks.InventedReranking])
    def test_every_task_with_candidates_scores_the_same(
        self, ours: UnimodelForExp1, qwen3: Qwen3RerankerWrapper, kind: type[Any]
    ) -> None:
        """Queries without an instruction of their own are read with that of mteb's code."""
        default = qwen3.format_instruction(None, "", "").removeprefix("<Instruct>: ").partition("\n")[0]
        prompts = TaskPrompts(MTEBConfig(prompts={"Reranking": default}))
        found = evaluate_task(MTEBCrossEncoderWrapper(ours, prompts=prompts), loaded(kind)).main_score
        assert found == pytest.approx(by_mteb(qwen3, loaded(kind)).get_score(), abs=1e-6)

    @kinds_named([*RERANKED, mteb_tasks.InventedReranking])
    def test_sentence_transformers_cross_encoder_scores_the_same(
        self, ours: UnimodelForExp1, folder: Path, kind: type[Any]
    ) -> None:
        from sentence_transformers import CrossEncoder

        peer = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
        setattr(peer, "predict", partial(self.of_same_ids, peer, ours))  # noqa: B010 - on this object
        found = evaluate_task(MTEBCrossEncoderWrapper(ours), loaded(kind)).main_score
        assert found == pytest.approx(by_mteb(CrossEncoderWrapper(peer), loaded(kind)).get_score(), abs=1e-6)

    @torch.inference_mode()
    def of_same_ids(self, peer: Any, ours: UnimodelForExp1, pairs: Any, **options: Any) -> Any:
        """Their scores of our token ids: they would apply a chat template and a truncation of their own."""
        rows = peer.tokenizer.pad({"input_ids": ours.pair_ids(pairs)}, return_tensors="pt")
        return np.asarray(peer(dict(rows))["scores"].squeeze(1))
