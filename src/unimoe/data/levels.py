"""From which grade on documents are relevant, by what is known of published collections."""

from __future__ import annotations

import re

from unimoe.data.names import set_name
from unimoe.data.sources.beir_sets import SHORT_NAMES, canonical_name
from unimoe.description import GRADED_FROM_1

TREC_DL = 2
"""The passage task of TREC Deep Learning counts "highly relevant" and "perfectly relevant", not "related"."""

_CONVENTIONAL = GRADED_FROM_1 | {"cqadupstack", *SHORT_NAMES}


def known_level(collection: str, split: str) -> int | None:
    """Return the relevance level of a published collection.

    Args:
        collection: its name in the catalogue.
        split: the split that is loaded.

    Returns:
        2 for passages judged by TREC Deep Learning, among them the split that BEIR calls MS MARCO's test; 1 for other
        sets of BEIR, MTEB, NanoBEIR and for TREC DL's documents, graded ones among them; None where nothing is known.
    """
    if re.search(r"trec-dl-(20\d\d|hard)", collection) and collection.startswith("ir_datasets:"):
        return 1 if "document" in collection else TREC_DL
    if collection.startswith("nanobeir:"):
        return 1
    behind = canonical_name(set_name(collection))
    if behind == "msmarco":
        return TREC_DL if "test" in (split, collection.rpartition("/")[2]) else 1
    return 1 if behind in _CONVENTIONAL or collection.startswith("mteb:") else None
