"""all-MiniLM-L6-v2 through our adapter, against sentence-transformers' own model given to ``mteb.evaluate`` itself.

Pools of the real collections, seeded, because all of their documents take minutes. There both gave, in float32, nDCG@10
0.64508 on SciFact and 0.31594 on NFCorpus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import mteb_tasks
from support.mteb_tasks import loaded

from unimoe.config.dense import EncoderConfig
from unimoe.data.catalog import load_collection
from unimoe.evaluation.embedding_eval import evaluate_embedding_collection
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.evaluation.mteb.names import find_tasks, mteb_name
from unimoe.evaluation.mteb.run import evaluate_task
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.encoder import SentenceEncoder, load_encoder

if TYPE_CHECKING:
    from mteb import AbsTask, TaskResult
    from sentence_transformers import SentenceTransformer

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension` method:FutureWarning"),  # MTEB's
]


@pytest.fixture(scope="module")
def ours() -> SentenceEncoder:
    return load_encoder(EncoderConfig(), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def theirs() -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(bundled_encoder_folder(EncoderConfig().base)), device="cpu")


def evaluated(theirs: SentenceTransformer, task: AbsTask) -> TaskResult:
    import mteb

    quiet: Any = {"batch_size": 32, "show_progress_bar": False}
    results = mteb.evaluate(theirs, task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=quiet)
    return results.task_results[0]


@pytest.mark.usefixtures("unimoe_data")
@pytest.mark.parametrize(("name", "queries", "documents"), [("scifact", 25, 70), ("nfcorpus", 5, 70)])
def test_real_collections_score_the_same(
    ours: SentenceEncoder, theirs: SentenceTransformer, name: str, queries: int, documents: int
) -> None:
    from unimoe.evaluation.mteb.tasks import CollectionTask, Rankings

    pool = load_collection(name, "test").sample_queries(queries, seed=3).pool(documents)
    found = evaluate_embedding_collection(ours, pool, name="minilm", identity={})

    task = CollectionTask(pool, published=find_tasks([mteb_name(name) or ""])[0].metadata)
    rankings = Rankings(task)
    (expected,) = evaluated(theirs, task).scores["test"]
    assert 0.1 < expected["main_score"] < 1
    assert found.main_score == pytest.approx(expected["main_score"], abs=1e-3)
    for metric, key in (("ndcg@10", "ndcg_at_10"), ("map", "map_at_1000"), ("recall@100", "recall_at_100")):
        assert found.scores.aggregate[metric] == pytest.approx(expected[key], abs=1e-3)
    assert found.run.keys() == rankings.run.keys()
    for query, scores in rankings.run.items():
        assert found.run[query] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("kind", mteb_tasks.ALL_TYPES, ids=lambda kind: kind.__name__)
def test_every_type_of_task_scores_the_same(
    ours: SentenceEncoder, theirs: SentenceTransformer, kind: type[Any]
) -> None:
    found = evaluate_task(MTEBEncoderWrapper(ours), loaded(kind))
    assert found.main_score == pytest.approx(evaluated(theirs, loaded(kind)).get_score(), abs=1e-3)
