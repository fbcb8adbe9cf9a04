"""What a model of its own accord reads before a text: by the text's role, and by the task of MTEB that it is from.

A folder of sentence-transformers names prompts in its settings; MTEB's registry has those of models by their hub id.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

from unimoe.core.errors import first_few
from unimoe.data.mteb_names import random_state_kept, task_names, task_types
from unimoe.data.sources.from_mteb import import_mteb

TextKind = Literal["query", "document", "plain"]
"""The role of a text: retrieval has queries and documents, symmetric tasks (STS, clustering) have neither."""

KINDS: Mapping[str | None, TextKind] = {"query": "query", "document": "document", None: "plain"}
"""The kinds of texts by their role in a task of MTEB."""

Instruct = Callable[[Any, str | None], str | None]
"""From the card of a task, and the role of a text in it, to what the text is read with; None for no instruction."""

DOCUMENTS = ("document", "passage", "corpus")
"""The names that a prompt of documents may have, the best first."""


@dataclass(frozen=True)
class OwnPrompts:
    """The prompts of one model.

    Attributes:
        by_kind: what a text is read with that no task says more about, as ``encode_query`` and its siblings do.
        named: prompts by the names of MTEB's tasks and types, and of those with a role.
        instruct: what makes the prompt of a task where the model reads instructions; None where it reads none.
        stated: the kinds of texts for which a config states a prompt, whatever the task.
    """

    by_kind: dict[TextKind, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    instruct: Instruct | None = None
    stated: frozenset[TextKind] = frozenset()

    def of(self, task: Any, role: str | None) -> str | None:
        """Return the prompt of a text by its task and role; None where that of its kind counts.

        A task is MTEB's card, or what has its ``name``, ``type`` and ``prompt``. The order is MTEB's. An empty
        ``prompt`` says that the task is none of MTEB's: its name then chooses nothing.
        """
        if KINDS[role] in self.stated:
            return None
        named_by_mteb = task.prompt != ""
        if self.instruct and named_by_mteb:
            prompt = self.instruct(task, role)
            return self.by_kind["plain"] if prompt is None else prompt
        for head in (task.name, task.type) if named_by_mteb else (task.type,):
            for key in ([f"{head}-{role}"] if role else []) + [head]:
                if key in self.named:
                    return self.named[key]
        return None


BARE = OwnPrompts()
"""Those of a model that has none, or reads all by its kind."""


def prompts_by_kind(prompts: Mapping[str, str | None], default: str | None) -> dict[TextKind, str]:
    """Return what queries, documents and other texts are read with, of prompts by name and the default's name.

    They are chosen as by ``encode_query``, ``encode_document`` and ``encode``, with one difference: an empty
    ``document`` is replaced by ``passage``, which models older than ``encode_document`` have.
    """
    own = {name: prompt or "" for name, prompt in prompts.items()}
    plain = own.get(default or "", "")
    documents = [own[name] for name in DOCUMENTS if name in own] or [plain]
    return {
        "query": own.get("query", plain),
        "document": next(filter(None, documents), documents[0]),
        "plain": plain,
    }


REGISTRY = "mteb's registry"

_BY_NAME = {
    "SentenceTransformerEncoderWrapper",
    "sentence_transformers_loader",
    "BekkoEncoderWrapper",  # which normalises, as a cosine does
    "NomicWrapper",
}
_INSTRUCTED = {"InstructSentenceTransformerModel", "q3e_instruct_loader", "instruct_loader"}
_NOMIC_WITH_A_NORM = "nomic-ai/nomic-embed-text-v1.5"


@dataclass(frozen=True)
class Registered:
    """What the registry says about a model.

    Attributes:
        prompts: by name, in place of the folder's; None where those of the folder count.
        default: the name of the prompt of texts that no other one fits; None for the folder's default.
        template: the instruction's, a text or MTEB's function; None without instructions.
        instruct: makes the prompt of a task.
        settings: of tokenizer, pooling and vectors, those that are set.
        own_code: the loader that is not followed, by name; empty otherwise.
    """

    name: str
    prompts: Mapping[str, str] | None = None
    default: str | None = None
    template: Any = None
    instruct: Instruct | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    own_code: str = ""

    @property
    def reads(self) -> bool:
        """Whether it says what is read before a text."""
        return self.prompts is not None or self.instruct is not None

    def own_prompts(self, folders: Mapping[str, str | None], default: str | None) -> OwnPrompts:
        """Return the prompts of the model, of whose folder those by name and the default's name are given.

        A search without a task of MTEB is read with the folder's instruction of queries, where it has one; else with
        that of all tasks of retrieval.
        """
        if self.instruct is None:
            named = dict(folders if self.prompts is None else self.prompts)
            return OwnPrompts(prompts_by_kind(named, self.default or default), _texts(named))
        by_kind = prompts_by_kind(folders, default)
        if not by_kind["query"]:
            any_search = SimpleNamespace(name="", type="Retrieval", prompt=_instruction_of_retrieval())
            sides: tuple[Literal["query", "document"], ...] = ("query", "document")
            found = {side: self.instruct(any_search, side) for side in sides}
            by_kind |= {side: by_kind["plain"] if prompt is None else prompt for side, prompt in found.items()}
        return OwnPrompts(by_kind, instruct=self.instruct)


@cache
def find_registered(name: str) -> Registered | None:
    """Return what the registry says about a hub id, in any case of letters; None where it does not know it."""
    with random_state_kept():
        import_mteb()
        from mteb.models.model_implementations import MODEL_REGISTRY

    metas = {known.lower(): meta for known, meta in MODEL_REGISTRY.items()}
    meta: Any = metas.get(name.lower())
    if meta is None or meta.loader is None:
        return None
    loader, options = meta.loader.__name__, dict(meta.loader_kwargs)
    if "text" not in meta.modalities or "dense" not in (meta.model_type or []):
        return None
    if loader in _BY_NAME:
        prompts = options.get("model_prompts")
        nomic = loader == "NomicWrapper"
        named = None if prompts is None else _texts({str(key): text for key, text in prompts.items()})
        settings = {"layer_norm": True} if meta.name == _NOMIC_WITH_A_NORM else {}
        return Registered(meta.name, named, "document" if nomic else None, settings=settings | _settings(options))
    if loader in _INSTRUCTED:
        if loader == "q3e_instruct_loader":
            from mteb.models.model_implementations.qwen3_models import instruction_template

            options = {"instruction_template": instruction_template, "apply_instruction_to_passages": False}
        template, instruct = options.get("instruction_template"), _Instructions(options)
        return Registered(meta.name, template=template, instruct=instruct, settings=_settings(options))
    return Registered(meta.name, own_code=meta.loader.__qualname__.partition(".")[0])


def find_served(name: str) -> Registered | None:
    """Return what the registry says about the name that a server has for a model, where that is a hub id."""
    return find_registered(name) if re.fullmatch(r"[\w.\-]+/[\w.\-]+", name) else None


def prompts_said(own: OwnPrompts, registered: Registered | None, otherwise: str) -> str:
    """Return in words what texts are read with, and who states that: the registry's, or those ``otherwise``."""
    shown = [_shown(own, kind, prompt) for kind, prompt in own.by_kind.items() if prompt]
    by_task, unread = _other_names(own)
    shown += [f"{len(by_task)} by task"] * bool(by_task) + ["instructions by task"] * bool(own.instruct)
    source = f"of {REGISTRY}" if registered and registered.reads else otherwise
    if own.stated:
        all_stated = own.stated >= {"query", "document"} and not (by_task or own.instruct)
        source = "of the config" if all_stated else f"{source} and the config ({', '.join(sorted(own.stated))})"
    found = f"prompts {', '.join(shown)} {source}" if shown else "no prompts"
    if unread:
        found += f" (not read, as no role and no task of MTEB has such a name: {first_few(unread)})"
    if registered and registered.own_code:
        found += f" ({REGISTRY} has code of its own for it, {registered.own_code}, which is not followed)"
    return found


def _shown(own: OwnPrompts, kind: TextKind, prompt: str) -> str:
    text = f"{kind} {json.dumps(prompt, ensure_ascii=False)}"
    if kind != "document" or kind in own.stated or own.named.get("document"):
        return text
    # Where the libraries, which add an empty prompt for documents, read none.
    others = [name for name in DOCUMENTS if own.named.get(name) == prompt]
    return f"{text} (its prompt {others[0]!r})" if others else text


def _other_names(own: OwnPrompts) -> tuple[list[str], list[str]]:
    """Return the names of prompts that have no role: those of tasks of MTEB and their types, and what nothing reads."""
    names = [name for name, prompt in own.named.items() if prompt and name not in ("query", *DOCUMENTS)]
    if not names:  # else MTEB is imported
        return [], []
    with random_state_kept():
        heads = {*task_names(), *task_types()}
    by_task = [name for name in names if {name, name.removesuffix("-query"), name.removesuffix("-document")} & heads]
    read = {*by_task, *(name for name in names if own.named[name] in own.by_kind.values())}
    return by_task, [name for name in names if name not in read]


class _Instructions:
    """Makes the prompt of a task by MTEB's own code for models that read instructions."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from mteb.models.abs_encoder import AbsEncoder

        class Peer(AbsEncoder):
            def encode(self, *args: Any, **kwargs: Any) -> Any:
                raise NotImplementedError

        self._peer = Peer()
        self._peer.instruction_template = options.get("instruction_template")
        self._peer.prompts_dict = options.get("prompts_dict")
        if (order := options.get("prompt_priority")) is not None:
            named = type(self._peer.prompt_priority[0])  # not all versions of MTEB have its name
            self._peer.prompt_priority = [named.from_str(source) for source in order]
        self._documents = options.get("apply_instruction_to_passages", True)

    def __call__(self, task: Any, role: str | None) -> str | None:
        """Return the prompt; None for documents of a model that reads instructions before queries alone."""
        from mteb.types import PromptType

        if role == "document" and not self._documents:
            return None
        logger = logging.getLogger("mteb.models.abs_encoder")
        before, logger.disabled = logger.disabled, True
        try:
            with warnings.catch_warnings():  # about a task with a prompt that has no word for documents
                warnings.simplefilter("ignore")
                return self._peer.get_task_instruction(task, PromptType(role) if role else None)
        except TypeError:  # some templates take no prompt by roles, as tasks of retrieval have, for a text without one
            return ""
        finally:
            logger.disabled = before


def _instruction_of_retrieval() -> str:
    from mteb.abstasks import AbsTaskRetrieval

    return AbsTaskRetrieval.abstask_prompt


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a loader that change tokens or vectors, by MTEB's names."""
    names = ("max_seq_length", "padding_side", "add_eos_token", "include_prompt", "embed_dim")
    found = {name: options[name] for name in names if options.get(name) is not None}
    for source in ("tokenizer_kwargs", "processor_kwargs"):
        own = options.get(source) or {}
        found |= {name: own[name] for name in ("add_bos_token", "add_eos_token", "padding_side") if name in own}
        if "model_max_length" in own:
            found["max_seq_length"] = own["model_max_length"]
    return found


def _texts(prompts: Mapping[str, str | None]) -> dict[str, str]:
    return {name: prompt or "" for name, prompt in prompts.items()}
