"""Fused rankings: ranks by hand, what names a fused first stage, and that no text is embedded twice."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import pytest
import torch
from support.embedders import WordEmbedder
from support.reranking import invented
from support.tiny_encoders import save_tiny_encoder

from unimoe.config import BM25Config, EvaluationConfig, FusionConfig, FusionEncoder
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import cache_dir
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.retrieval.embeddings import UNIT_CHARACTERS
from unimoe.retrieval.first_stage import FirstStage
from unimoe.retrieval.fusion import reciprocal_rank_fusion
from unimoe.retrieval.model_search import ModelSearch

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("models") / "encoder")


def hybrid(
    base: Path, cut: int = 20, *, depth: int = 100, k: int = 60, k1: float = 0.9, **encoder: object
) -> FirstStage:
    config = FusionConfig(encoder=FusionEncoder.model_validate({"base": str(base), **encoder}), depth=depth, k=k)
    settings = EvaluationConfig(first_stage="fusion", depth=cut, bm25=BM25Config(k1=k1), fusion=config)
    return FirstStage(settings, "toy", device=torch.device("cpu"))


def found(stage: FirstStage, collection: Collection) -> Run:
    return stage.candidates(collection, collection).run


def test_scores_by_hand() -> None:
    first = {"q": {"a": 9.0, "b": 8.0, "c": 7.0}}
    second = {"q": {"c": 0.5, "a": 0.4, "d": 0.3}}
    fused = reciprocal_rank_fusion([first, second], depth=10)
    by_hand = {
        "a": Fraction(1, 61) + Fraction(1, 62),
        "c": Fraction(1, 63) + Fraction(1, 61),
        "b": Fraction(1, 62),
        "d": Fraction(1, 63),
    }
    assert list(fused["q"]) == list(by_hand)
    assert fused["q"] == pytest.approx({key: float(value) for key, value in by_hand.items()}, rel=1e-15)
    with_small_k = reciprocal_rank_fusion([first, second], depth=10, k=1)["q"]
    assert with_small_k["a"] == pytest.approx(1 / 2 + 1 / 3, rel=1e-15)


def test_ranks_follow_trec_eval_whatever_the_order_in_the_run() -> None:
    """Equal scores, also those equal only as float32, rank by id descending."""
    run = {"q": {"a": 1.0, "b": 1.0 + 1e-9, "z": 0.5, "c": 2.0}}
    assert reciprocal_rank_fusion([run], depth=4)["q"] == {"c": 1 / 61, "b": 1 / 62, "a": 1 / 63, "z": 1 / 64}


def test_the_order_of_the_runs_does_not_show() -> None:
    runs = [{"q": {d: float((i * step) % 7) for i, d in enumerate("abcdefg")}} for step in (1, 2, 3, 5)]
    results = [list(reciprocal_rank_fusion(order, depth=7)["q"].items()) for order in permutations(runs)]
    assert all(result == results[0] for result in results)


class TestName:
    def test_it_states_both_rankings_and_how_they_are_fused(self, folder: Path) -> None:
        parts = r"bm25s\(k1=0\.9,b=0\.4,stemmer=english\),encoder@[0-9a-f]{16},float32,depth=100,k=60"
        assert re.fullmatch(rf"fusion\({parts}\)", hybrid(folder).source)

    def test_whatever_changes_candidates_changes_it(self, folder: Path, tmp_path: Path) -> None:
        other = save_tiny_encoder(tmp_path / "encoder", num_hidden_layers=1)
        names = [
            hybrid(folder).source,
            hybrid(other).source,
            hybrid(folder, query_prefix="query: ").source,
            hybrid(folder, pooling="cls").source,
            hybrid(folder, max_length=16).source,
            hybrid(folder, dtype="bfloat16").source,
            hybrid(folder, k=10).source,
            hybrid(folder, k1=1.2).source,
            hybrid(folder, depth=150).source,
            hybrid(folder, 101).source,
        ]
        assert len(set(names)) == len(names)
        assert hybrid(folder, 100).source == names[0], "the depth of the rankings counts, not that of the cut"

    @pytest.mark.parametrize(("kind", "positions"), [("bert", 64), ("xlm-roberta", 63)])
    def test_a_length_beyond_the_positions_is_refused_before_any_work(
        self, tmp_path: Path, kind: str, positions: int
    ) -> None:
        base = save_tiny_encoder(tmp_path / kind, kind)
        with pytest.raises(UsageError, match=rf"^evaluation\.fusion\.encoder\.max_length .* {positions} positions"):
            hybrid(base, max_length=positions + 1).refuse_impossible(invented())
        assert not [*cache_dir("bm25").rglob("*.trec")]
        _ = hybrid(base, max_length=positions).source
        with pytest.raises(DataError, match=r"^evaluation\.fusion\.encoder\.base .*nowhere"):
            hybrid(Path("/nowhere")).refuse_impossible(invented())


class TestCache:
    @pytest.fixture
    def embedder(self, monkeypatch: pytest.MonkeyPatch) -> WordEmbedder:
        words = {word for document in invented().corpus.values() for word in document.full_text.split()}
        embedder = WordEmbedder([*sorted(words), "big"])
        monkeypatch.setattr(ModelSearch, "load", lambda _: embedder)
        return embedder

    def test_texts_are_embedded_once_for_every_fusion_of_the_rankings(
        self, folder: Path, embedder: WordEmbedder
    ) -> None:
        collection = invented()
        search = hybrid(folder).search
        assert search
        assert not search.path(collection, 100, exclude_self=False).exists()
        first = found(hybrid(folder), collection)
        assert search.path(collection, 100, exclude_self=False).exists()
        done = dict(embedder.embedded)
        assert (done["query"], done["document"]) == (len(collection.queries), len(collection.corpus))
        assert found(hybrid(folder), collection) == first
        assert found(hybrid(folder, k=1), collection) != first
        assert embedder.embedded == done
        (run,) = cache_dir("dense").glob("*.trec")
        assert {path.suffix for path in run.parent.iterdir() if not path.name.startswith(".")} == {".trec"}

    def test_a_killed_run_goes_on_where_it_was(self, folder: Path, embedder: WordEmbedder) -> None:
        """Each document is a unit of its own."""
        filling = "x" * UNIT_CHARACTERS
        documents = [(f"d{number}", Document("", f"big {filling}")) for number in range(4)]
        collection = assemble("big", "test", documents, [("q", "big")], {"q": {"d1": 1}})
        embedder.fail_after = 2
        with pytest.raises(KeyboardInterrupt):
            found(hybrid(folder), collection)
        assert embedder.embedded["document"] == 2
        embedder.fail_after = None
        assert list(found(hybrid(folder), collection)["q"]) == ["d3", "d2", "d1", "d0"]
        assert embedder.embedded["document"] == 4
