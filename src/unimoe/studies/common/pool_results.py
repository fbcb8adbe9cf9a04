"""Reranked candidate pools of a test split as ordinary results, which the analysis reads like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from unimoe.checks import Check, lines
from unimoe.checks.texts import concerned
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.catalog import result_name
from unimoe.data.collection import Collection
from unimoe.evaluation.spec import Evaluation, Outcome, model_hashes
from unimoe.metrics import DEFAULT_METRICS, score_run
from unimoe.results import About, Identity


@dataclass(frozen=True)
class RerankingPools:
    """The candidates of a split, which every arm of a comparison reranks, and what makes results of them."""

    name: str  # of the collection in the catalogue
    collection: Collection
    candidates: Run
    metric: str  # the main one
    first_stage: str  # the source of the candidates, with its parameters
    depth: int
    max_queries: int | None = None  # queries scored, where they were cut

    @cached_property
    def dataset(self) -> str:
        """The collection's name in results."""
        return result_name(self.name)

    @property
    def pairs(self) -> int:
        """Pairs of query and document."""
        return sum(map(len, self.candidates.values()))

    def first(self, queries: int) -> RerankingPools:
        """Return the pools of a sample of so many queries."""
        few = self.collection.sample_queries(queries)
        return replace(self, collection=few, candidates={query: self.candidates[query] for query in few.qrels})

    def with_checks(self, checks: Sequence[Check]) -> RerankingPools:
        """Return the same pools, with results that carry the caveats of further checks."""
        return replace(self, collection=replace(self.collection, checks=(*self.collection.checks, *checks)))

    @cached_property
    def content_hash(self) -> str:
        """Content hash of collection and candidates."""
        return hash_json([self.collection.content_hash, self.candidates])

    def spec(
        self,
        system: str,
        seed: int | None,
        *,
        experiment: str,
        encoder: str | None = None,
        prompt: str | None = None,
        trained_hash: str | None = None,
        checkpoint: Literal["best", "last"] = "best",
        caveats: Sequence[str] = (),
        **known: Any,
    ) -> Evaluation:
        """Return the spec of an arm that reranks the pools; ``known`` is what else its results are ``About``.

        ``encoder`` and ``prompt`` are identities as results have them, None for the order of the pools' source;
        ``trained_hash`` is that of what was trained, a head or a whole cross-encoder, None without a training.
        """
        hashes = {"collection": self.collection.content_hash, "candidates": hash_json(self.candidates)}
        checks = concerned(self.collection.checks, by_words="bm25" in self.first_stage)
        about = About(
            config_name=system,
            seed=seed,
            task="reranking",
            dataset=self.dataset,
            identity=Identity(
                experiment=experiment,
                base_model=encoder,
                checkpoint=checkpoint if trained_hash else "none",
                split=self.collection.split,
                first_stage=self.first_stage,
                depth=self.depth,
                pool=None,
                prompt=prompt,
                max_queries=self.max_queries,
            ),
            caveats=[*caveats, *lines(checks, "caveat")],
            **known,
        )
        hashes |= model_hashes(encoder, prompt, trained_hash)
        return Evaluation(about, hashes, self.metric, "float32" if encoder else None)

    def outcome(self, run: Run, **found: Any) -> Outcome:
        """Score the pools in the order of a run, with the order of their source; ``found`` is what else is known."""
        collection = self.collection
        metrics = tuple(dict.fromkeys((self.metric, *DEFAULT_METRICS)))
        return Outcome.of_run(
            collection,
            run,
            self.metric,
            metrics,
            first_stage=score_run(collection.qrels, self.candidates, metrics, collection.relevance_level),
            queries_without_candidates=sorted(q for q in collection.qrels if not self.candidates.get(q)),
            **found,
        )
