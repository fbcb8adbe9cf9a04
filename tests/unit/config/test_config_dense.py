"""An evaluation of dense retrieval is read as strictly as an experiment, and mistakes name their key."""

from __future__ import annotations

from pathlib import Path

import pytest

from unimoe.config import DenseExperiment
from unimoe.config.files import load_config
from unimoe.core.errors import UsageError


def test_the_shipped_seed_config_holds_its_values() -> None:
    found = load_config(DenseExperiment, Path("retrieval/seed002")).retrieval
    assert (found.query_length, found.document_length) == (32, 128)
    assert (found.cutoffs, found.relevance_threshold) == ([1, 5, 10, 50], 1)
    assert (found.corpus_sample, found.test_size, found.split_seed) == (150_000, 0.2, 42)
    assert (found.use_small_eval_set, found.subset_size) == (False, 500)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["retrieval.dept=5"], ["retrieval.dept: unknown key", "did you mean 'depth'?"]),
        (["evaluation.bm25.k2=1"], ["evaluation.bm25.k2: unknown key", "k1, b, stemmer"]),
        (["seeds=[1]"], ["seeds: unknown key", "known here: name, output_dir, encoder"]),
        (["retrieval.depth=20"], ["retrieval: cutoffs go to 50, depth only to 20; raise depth"]),
        (["retrieval.backend=fais"], ["retrieval.backend: must be 'torch' or 'faiss'"]),
        (["retrieval.test_size=1"], ["retrieval.test_size: must be below 1"]),
        (["retrieval.cutoffs=[]"], ["retrieval.cutoffs: must not be empty"]),
        (["retrieval.cutoffs=[0]"], ["retrieval.cutoffs[0]: must be at least 1"]),
        (["retrieval.relevance_threshold=0"], ["retrieval.relevance_threshold: must be at least 1"]),
        (["encoder.pooling=max"], ["encoder.pooling: must be 'auto', 'mean', 'cls' or 'last'"]),
    ],
)
def test_a_mistake_names_its_key_and_the_mend(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(DenseExperiment, Path("retrieval/default"), overrides)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_experiment_that_trains_is_no_evaluation_of_retrieval() -> None:
    with pytest.raises(UsageError, match=r"bundled\.yaml: seeds: unknown key"):
        load_config(DenseExperiment, Path("experiments/bundled"))
