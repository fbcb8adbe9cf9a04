"""``http://...`` and ``https://...``: a server's address; the section ``served`` says what it speaks and serves."""

from __future__ import annotations

from functools import partial

from unimoe.config.served import APIS
from unimoe.core.errors import UsageError
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.systems.named import ADDRESSES, OPTION, Naming, register_model, stated_system
from unimoe.evaluation.systems.system import System
from unimoe.models.served.embedder import ServedEmbedder


def served_system(scheme: str, rest: str, naming: Naming) -> System:
    """Return the model behind a server, which is asked about fixed texts at once.

    Raises:
        UsageError: the section ``served`` or, for prompts of ours, ``model.base`` is missing.
        DataError: the server does not answer, or another model answers than before.
    """
    naming.refuse_layers(scheme)
    url, settings = f"{scheme}:{rest}", naming.experiment.served
    if settings is None:
        raise UsageError(
            f"{OPTION} {url}: say what it speaks and what it serves with --set served.api=API --set served.model=NAME; "
            f"APIs are {', '.join(APIS.names())}"
        )
    if APIS[settings.api].embed:
        return stated_system(ServedEmbedder(url, settings), naming.with_own_prefixes(), ("embedding",))
    if APIS[settings.api].prompts and naming.experiment.model.base == rest:
        raise UsageError(
            f"{OPTION} {url}: served.api {settings.api} sends token ids; name the model whose tokenizer makes them "
            "with --set model.base=HUB_ID_OR_FOLDER"
        )
    return stated_system(ServedReranker(url, settings, naming.experiment), naming)


for _scheme in ADDRESSES:
    register_model(_scheme, partial(served_system, _scheme))
