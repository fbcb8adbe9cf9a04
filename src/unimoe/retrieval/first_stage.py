"""The first stage, which finds the candidates that models rerank.

bm25s           Lucene's BM25
rank_bm25       rank_bm25's BM25Okapi, over the same tokens
dense           an encoder's exact search of the corpus; the encoder is that of ``fusion``
sparse          a sparse encoder's, such as SPLADE's
late            a late interaction model's, such as ColBERT's: exact MaxSim with every document
fusion          bm25s fused with an encoder's search by reciprocal rank; the user's cache keeps both rankings
official        MS MARCO's top1000.dev: in no order, so it can only be taken whole
run:PATH        a TREC run; ``{dataset}`` in the path becomes the collection's name in the names of result files
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unimoe.checks import Check
from unimoe.checks.ids import best_change
from unimoe.config import DENSE, FUSION, SEARCHES, EvaluationConfig, FirstStageModel
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_file
from unimoe.core.trec import Run, head, is_unordered, ranked
from unimoe.data.catalog import available, result_name
from unimoe.data.collection import Collection
from unimoe.data.sources.msmarco import TOP1000, msmarco_files, read_top1000
from unimoe.formats.runs import read_run
from unimoe.results import result_beside, safe_name
from unimoe.results.comparability import caveats_of_run
from unimoe.retrieval.bm25 import bm25_path, bm25_run, engine_of, first_stage_name, kept_run
from unimoe.retrieval.passages import Passages

if TYPE_CHECKING:
    import torch

    from unimoe.retrieval.model_search import ModelSearch

RECALL_DEPTH = 100
"""Recall@100 is reported of every first stage, however few of its candidates are reranked."""


def cut_run(run: Run, depth: int) -> Run:
    """Keep the first ``depth`` documents of each query."""
    return {query_id: head(scores, depth) for query_id, scores in run.items()}


def fitting_candidates(run: Run, scored: Collection, depth: int, where: str) -> tuple[Run, bool]:
    """Return the scored queries' part of a run, without what is left out, and whether its scores give an order.

    A DataError, which begins with ``where``, tells of documents of another corpus, and of candidates in no order that
    the ``depth`` would cut.
    """
    fitting: Run = {}
    for query_id in scored.queries:
        left_out = scored.left_out(query_id)
        scores = {key: score for key, score in run.get(query_id, {}).items() if key not in left_out}
        if unknown := next((key for key in scores if key not in scored.corpus), None):
            how, added = best_change([(scores.keys() - scored.corpus.keys(), scored.corpus.keys() - scores.keys())])
            hint = f": the ids of {added:,} candidates differ in {how} alone" if added else ""
            raise DataError(
                f"{where}: candidate {unknown!r} of query {query_id!r} is no document of {scored.name}; "
                f"give a run made on this corpus{hint}"
            )
        if len(scores) > depth and is_unordered(scores):
            raise DataError(
                f"{where}: the {len(scores)} candidates of query {query_id!r} all have one score, so a depth of "
                f"{depth} would choose them by id; ask for a depth of at least {len(scores)}, or give a ranked run"
            )
        fitting[query_id] = scores
    several = [scores for scores in fitting.values() if len(scores) > 1]
    return fitting, not several or not all(map(is_unordered, several))


def caveats_of_candidates(run: object) -> list[Check]:
    """Return what an evaluation said of the model that found candidates, where these are a run that it wrote."""
    result = result_beside(Path(run)) if isinstance(run, str | Path) else None
    return [replace(check, line=f"first stage: {check.line}") for check in caveats_of_run(result)] if result else []


def reciprocal_rank_fusion(runs: Sequence[Mapping[str, Mapping[str, float]]], *, depth: int, k: int = 60) -> Run:
    """Fuse runs by reciprocal rank: a document's score is the sum of ``1 / (k + rank)`` over the runs that found it.

    Ranks count from 1, in trec_eval's order; runs are read whole, in any order. From Cormack, Clarke and Buettcher,
    "Reciprocal Rank Fusion outperforms Condorcet and individual rank learning methods", SIGIR 2009, whose k is 60.
    """
    fused: Run = {}
    for query_id in dict.fromkeys(query_id for run in runs for query_id in run):
        shares: dict[str, list[float]] = {}
        for run in runs:
            for rank, document_id in enumerate(ranked(run.get(query_id, {})), start=1):
                shares.setdefault(document_id, []).append(1 / (k + rank))
        # fsum rounds once, so that the order of the runs cannot change the last bit.
        fused[query_id] = head({document_id: math.fsum(parts) for document_id, parts in shares.items()}, depth)
    return fused


@dataclass(frozen=True)
class FirstStageRun:
    """What a first stage found for some queries, best first; a query has no documents where nothing was found.

    ``source`` is the first stage's name in results, with its parameters or the content hash of its file. Where scores
    are all equal, it gives no order to compare with: it is not ``ordered``.
    """

    source: str
    run: Run
    ordered: bool


@dataclass(frozen=True)
class FirstStage:
    """A way to find candidates for the queries of one collection of the catalogue.

    ``settings`` say which; see the head of this module. Models that search compute on ``device``; None for the best
    device of this machine.
    """

    settings: EvaluationConfig
    dataset: str
    device: torch.device | None = None

    @cached_property
    def search(self) -> ModelSearch | None:
        """The search by a model, alone or as a part of ``fusion``; None where there is no model."""
        setting, encoder, key = self.settings.first_stage, self.settings.fusion.encoder, f"{FUSION}.encoder"
        if setting not in (FUSION, *SEARCHES):
            return None
        from unimoe.retrieval.model_search import ModelSearch  # torch takes seconds to import

        if setting not in (FUSION, DENSE):
            model: FirstStageModel = getattr(self.settings, setting)
            encoder, key = model.model_copy(update={"base": f"{setting}:{model.base}"}), setting
        return ModelSearch(encoder, f"evaluation.{key}", self.device, Passages.of(self.settings))

    def checks(self, collection: Collection) -> list[Check]:
        """Return caveats of the model that searches, such as queries that trained it: its candidates favour them.

        Those of a run that an evaluation wrote are in the result beside it.
        """
        if self.file:
            return caveats_of_candidates(self.file)
        found = [*self.search.caveats, *self.search.seen.caveats(collection.judged_queries)] if self.search else []
        return [Check("first stage", "caveat", f"first stage: {line}") for line in found]

    @property
    def by_words(self) -> bool:
        """Whether BM25 searches, alone or as a part of ``fusion``."""
        return self.file is None and (self.search is None or self.settings.first_stage == FUSION)

    @property
    def source(self) -> str:
        """The name of a search in results, with its parameters."""
        settings = self.settings
        words = first_stage_name(settings.bm25, engine_of(settings))
        if self.search is None:
            return words
        if settings.first_stage != FUSION:
            return f"{settings.first_stage}({self.search.name})"
        return f"{FUSION}({words},{self.search.name},depth={self._searched},k={settings.fusion.k})"

    @property
    def file(self) -> Path | None:
        """The file that holds the candidates; None where a search finds them."""
        source, _, path = self.settings.first_stage.partition(":")
        if path:
            return Path(path.replace("{dataset}", safe_name(result_name(self.dataset))))
        if source != "official":
            return None
        folder = available(self.dataset)
        file = msmarco_files(folder).get(TOP1000) if folder else None
        if file is None:
            raise UsageError(
                f"{self.dataset}: evaluation.first_stage=official reads {TOP1000}, which this collection does not "
                "have; use bm25s, or put the file beside the collection's others"
            )
        return file

    def refuse_impossible(self, collection: Collection) -> None:
        """Refuse, before any work is done, a setting that can give no candidates."""
        file, setting = self.file, self.settings.first_stage
        if file and not file.is_file():
            raise DataError(f"{file}: no such run file; correct evaluation.first_stage={setting}")
        if file is None and collection.candidates_only:
            raise UsageError(
                f"{self.dataset}: its corpus is no more than the candidates of {TOP1000}, so {setting} would search "
                "what was found already; set evaluation.first_stage=official and evaluation.depth=1000, "
                "or add the whole corpus"
            )
        _ = self.source  # which finds the model

    def texts_to_embed(self, whole: Collection) -> list[str]:
        """Return the texts that ``candidates`` has to embed before it can search, those of queries first."""
        return self.search.left_to_encode(whole, self._searched) if self.search else []

    def searches_by_words(self, whole: Collection) -> bool:
        """Return whether ``candidates`` has to search with BM25, because no ranking is kept."""
        path = bm25_path(whole, self.settings.bm25, engine_of(self.settings))
        return self.by_words and kept_run(path, self._searched) is None

    def candidates(self, whole: Collection, scored: Collection) -> FirstStageRun:
        """Find the candidates of the scored queries, at least 100 each where there are as many.

        ``whole`` is the collection with all its queries: one cached run serves every sample of them.
        """
        if self.file:
            return self._from_file(self.file, scored)
        settings, depth, runs = self.settings, self._searched, list[Run]()
        if self.by_words:
            runs.append(bm25_run(whole, depth, settings.bm25, engine=engine_of(settings), cached=True))
        if self.search:
            runs.append(self.search.run(whole, depth))
        found = reciprocal_rank_fusion(runs, depth=self._kept, k=settings.fusion.k) if len(runs) > 1 else runs[0]
        return FirstStageRun(self.source, {query_id: found[query_id] for query_id in scored.queries}, ordered=True)

    @property
    def _kept(self) -> int:
        return max(self.settings.depth, RECALL_DEPTH)

    @property
    def _searched(self) -> int:
        """How deep a ranking is, of a fusion each of the two."""
        return max(self._kept, self.settings.fusion.depth if self.settings.first_stage == FUSION else 0)

    def _from_file(self, file: Path, scored: Collection) -> FirstStageRun:
        """Read the scored queries' part of a run without self-matches; refuse a run of another collection."""
        if self.settings.first_stage == "official":
            source = f"official({TOP1000})"
            run = {query_id: dict.fromkeys(ids, 0.0) for query_id, ids in read_top1000(file).items()}
        else:
            source, run = f"run:{file.name}@{hash_file(file)}", read_run(file)
        lacking = [query_id for query_id in scored.qrels if query_id not in run]
        if lacking:  # no model could score above 0 there
            more = f" nor for {len(lacking) - 1} more" if len(lacking) > 1 else ""
            raise DataError(
                f"{file}: no candidates for query {lacking[0]!r}{more}, judged in {self.dataset}, split "
                f"{scored.split}; give a run of this collection and split, over all its queries"
            )
        named = replace(scored, name=self.dataset)  # as a command takes it
        run, ordered = fitting_candidates(run, named, self.settings.depth, str(file))
        return FirstStageRun(source, cut_run(run, self._kept), ordered)
