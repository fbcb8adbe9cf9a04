"""``sparse:NAME`` and ``late:NAME``: a sparse encoder, or a late interaction model, as a reranker."""

from __future__ import annotations

from collections.abc import Callable

from unimoe.evaluation.reranking.rerankers import MatcherReranker
from unimoe.evaluation.systems.named import OPTION, Naming, encoder_settings, register_model
from unimoe.evaluation.systems.system import System
from unimoe.models.matcher import Matcher, find_matcher, load_matcher
from unimoe.retrieval.model_search import MATCHERS


def matcher_system(matcher: type[Matcher]) -> Callable[[str, Naming], System]:
    """Return the maker of the systems of a kind; their own prefixes and length count, as those of encoders do."""

    def make(name: str, naming: Naming) -> System:
        naming.refuse_layers(matcher.kind)
        config, batches = encoder_settings(name, naming), naming.experiment.evaluation.batches
        _, identity, prompt = find_matcher(matcher, OPTION, config)
        return naming.reranker(
            name,
            lambda: MatcherReranker(load_matcher(matcher, OPTION, config, naming.device, naming.dtype), **batches),
            identity,
            prompt,
        )

    return make


for _kind, _matcher in MATCHERS.items():
    register_model(_kind, matcher_system(_matcher))
