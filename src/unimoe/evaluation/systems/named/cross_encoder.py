"""``cross-encoder:NAME``: a cross-encoder that sentence-transformers loads, such as MiniLM's, BGE's, or our own."""

from __future__ import annotations

from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.evaluation.systems.named import OPTION, Naming, register_model
from unimoe.evaluation.systems.system import System
from unimoe.models.model_files import find_model, model_identity
from unimoe.models.rerankers.cross_encoder import cross_encoder_prompt, load_cross_encoder, refuse_no_cross_encoder

KIND = "cross-encoder"
_BATCH_SIZE = 32


def cross_encoder_system(name: str, naming: Naming) -> System:
    """Return a cross-encoder from a folder or the hub.

    Raises:
        DataError: it is not there, or no cross-encoder of one label.
    """
    naming.refuse_layers(KIND)
    model, evaluation = naming.experiment.model, naming.experiment.evaluation
    root, commit = find_model(OPTION, name, model.revision, trust_remote_code=model.trust_remote_code)
    refuse_no_cross_encoder(root)

    def load() -> CrossEncoderReranker:
        loaded = load_cross_encoder(
            root, naming.device, naming.dtype, model.max_length, trust_remote_code=model.trust_remote_code
        )
        return CrossEncoderReranker(loaded, evaluation.batch_size or _BATCH_SIZE)

    return naming.reranker(
        name, load, model_identity(KIND, name, root, commit), cross_encoder_prompt(root, model.max_length)
    )


register_model(KIND, cross_encoder_system)
