"""What encoders read before a text, against mteb's own wrappers on models of the same weights: equal to 1e-6.

The prompts are in a folder, as EmbeddingGemma's, or in mteb's registry, for models by their hub id, whose place a tiny
model takes in a cache of the hub.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mteb
import pytest
from mteb.mocks import MOCK_TASK_TEST_GRID
from mteb.models.model_meta import ModelMeta
from sentence_transformers import SentenceTransformer
from support import mteb_tasks
from support.hub import Hub
from support.mteb_tasks import by_mteb, loaded
from support.tiny_models import load, save_sentence_transformer, save_tiny_encoder

from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.tasks.mteb import evaluate_task
from unimoe.models.encoder import SentenceEncoder

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

KINDS: list[type[Any]] = [type(task) for task in MOCK_TASK_TEST_GRID if task.metadata.modalities == ["text"]]
KINDS_BY_TYPE = {str(kind.metadata.type): kind for kind in KINDS}
TASKS = [*KINDS_BY_TYPE.values(), *mteb_tasks.INVENTED]


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


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(tmp_path / "hub", monkeypatch)


def published(hub: Hub, name: str, folder: Path) -> str:
    """A model's folder under a name that mteb knows, of the revision that it loads."""
    meta = mteb.get_model_meta(name)
    assert meta.revision
    hub.publish(name, folder, meta.revision)
    return name


def saved(place: Path, **options: Any) -> Path:
    """A random encoder that reads texts with long instructions whole."""
    bare = save_tiny_encoder(place / "bare", max_position_embeddings=512)
    settings = bare / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_max_length": 512}))
    return save_sentence_transformer(bare, place / "st", **options)


NAMES = [
    "intfloat/e5-small-v2",
    "BAAI/bge-small-en-v1.5",
    "nomic-ai/nomic-embed-text-v1.5",
    "Snowflake/snowflake-arctic-embed-m",
    "Qwen/Qwen3-Embedding-0.6B",
    "intfloat/multilingual-e5-large-instruct",
    "GritLM/GritLM-7B",
    "NovaSearch/stella_en_400M_v5",
]
READ: list[type[Any]] = [
    *mteb_tasks.INVENTED,
    *(KINDS_BY_TYPE[kind] for kind in ("Classification", "PairClassification", "Clustering")),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_by_its_hub_id_is_read_as_the_registry_says(
    hub: Hub, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelMeta, "_check_requirements", lambda meta: None)  # of code that the real ones run
    published(hub, name, saved(tmp_path / "made", prompts={"query": "query of the folder: "}))
    ours, peer = load(name), mteb.get_model(name, device="cpu", model_kwargs={"dtype": "float32"})
    for kind in READ:
        found, expected = ours_and_mtebs(ours, peer, kind)
        assert found == pytest.approx(expected, abs=1e-6), kind.__name__


def test_what_is_read_is_said_and_other_prompts_are_other_results(hub: Hub, tmp_path: Path) -> None:
    folder = saved(tmp_path / "made")
    for name in ("intfloat/e5-small-v2", "INTFLOAT/E5-small-V2", "someone/e5-small-v2", "jinaai/jina-embeddings-v3"):
        hub.publish(name, folder)
    assert load("intfloat/e5-small-v2").said == (
        'prompts query "query: ", document "passage: " of mteb\'s registry; mean pooling; 512 tokens'
    )
    assert load("INTFLOAT/E5-small-V2").prefixes == {"query": "query: ", "document": "passage: ", "plain": ""}
    assert load("someone/e5-small-v2").said == "no prompts; mean pooling; 512 tokens"
    assert "code of its own for it, JinaWrapper, which is not followed" in load("jinaai/jina-embeddings-v3").said
    stated = load("intfloat/e5-small-v2", query_prefix="")
    assert stated.prefixes == {"query": "", "document": "passage: ", "plain": ""}
    assert stated.said.startswith('prompts document "passage: " of mteb\'s registry and the config (query)')
    names = {load(name).prompt_name for name in ("intfloat/e5-small-v2", "someone/e5-small-v2")}
    assert len(names | {stated.prompt_name}) == 3


def test_a_search_without_a_task_reads_the_folders_instruction_else_that_of_retrieval(hub: Hub, tmp_path: Path) -> None:
    """As ``unimoe retrieve`` does, and first stages."""
    own = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
    hub.publish("Qwen/Qwen3-Embedding-0.6B", saved(tmp_path / "prompted", prompts={"query": own}))
    hub.publish("Qwen/Qwen3-Embedding-4B", saved(tmp_path / "bare"))
    assert load("Qwen/Qwen3-Embedding-0.6B").prefixes == {"query": own, "document": "", "plain": ""}
    of_type = "Instruct: Retrieve text based on user query.\nQuery:"
    assert load("Qwen/Qwen3-Embedding-4B").prefixes == {"query": of_type, "document": "", "plain": ""}
