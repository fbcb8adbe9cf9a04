"""What encoders read before a text, against mteb's own wrappers on models of the same weights: equal to 1e-6.

The prompts are in a folder, as EmbeddingGemma's, or in mteb's registry, for models by their hub id, whose place a tiny
model takes in a cache of the hub.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from mteb.mocks import MOCK_TASK_TEST_GRID
from sentence_transformers import SentenceTransformer
from support import mteb_tasks
from support.mteb_tasks import by_mteb, loaded
from support.tiny_models import load, save_sentence_transformer, save_tiny_encoder

from unimoe.evaluation.embedding_eval import evaluate_task
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.models.encoder import SentenceEncoder
from unimoe.models.registry import find_registered

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension` method:FutureWarning"),  # MTEB's
    pytest.mark.filterwarnings("ignore::UserWarning"),  # MTEB's, about prompts that it replaces or does not know
]

GEMMA = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "BitextMining": "task: search | query: ",
    "Clustering": "task: clustering | query: ",
    "Classification": "task: classification | query: ",
    "InstructionRetrieval": "task: code retrieval | query: ",
    "MultilabelClassification": "task: many labels | query: ",
    "PairClassification": "task: sentence similarity | query: ",
    "Reranking": "task: search result of a few | query: ",
    "Retrieval-query": "task: a search | query: ",
    "Retrieval-document": "title: some | text: ",
    "STS": "task: sentence similarity of two | query: ",
    "Summarization": "task: summarization | query: ",
}
"""EmbeddingGemma's prompts, made to differ."""

KINDS = [kind for kind in dict.fromkeys(map(type, MOCK_TASK_TEST_GRID)) if kind.metadata.modalities == ["text"]]
TASKS = [*{kind.metadata.type: kind for kind in KINDS}.values(), *mteb_tasks.INVENTED]


def of_task(kind: type[Any]) -> str:
    return kind.__name__


def ours_and_mtebs(ours: SentenceEncoder, peer: Any, kind: type[Any]) -> tuple[float, float]:
    found = evaluate_task(MTEBEncoderWrapper(ours), loaded(kind)).main_score
    assert found is not None
    return found, by_mteb(peer, loaded(kind)).get_score()


class TestFolder:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        place = tmp_path_factory.mktemp("gemma")
        bare = save_tiny_encoder(place / "bare")
        return save_sentence_transformer(bare, place / "st", prompts=GEMMA)

    @pytest.mark.parametrize("kind", TASKS, ids=of_task)
    def test_every_type_of_task_is_read_with_its_prompt(self, folder: Path, kind: type[Any]) -> None:
        ours, theirs = ours_and_mtebs(load(folder), SentenceTransformer(str(folder), device="cpu"), kind)
        assert ours == pytest.approx(theirs, abs=1e-6)


