"""``rankllama:NAME``: a decoder with a head of one output on its last token, or an adapter of one."""

from __future__ import annotations

from unimoe.evaluation.systems.named import OPTION, Naming, register_model
from unimoe.evaluation.systems.system import System
from unimoe.models.model_files import find_model
from unimoe.models.rerankers.score_head import KIND, load_score_head, score_head_identity, score_head_prompt


def rank_llama_system(name: str, naming: Naming) -> System:
    """Return a RankLLaMA from a folder or the hub.

    Raises:
        DataError: it is not there, or no decoder with a score head.
    """
    naming.refuse_layers(KIND)
    config = naming.experiment.model
    root, commit = find_model(OPTION, name, config.revision)
    identity = score_head_identity(OPTION, name, root, commit)
    return naming.reranker(
        name,
        lambda: load_score_head(root, identity, config.max_length, naming.device, naming.dtype, OPTION),
        identity,
        score_head_prompt(root, config.max_length),
    )


register_model(KIND, rank_llama_system)
