"""What MTEB's registry says about an encoder by its hub id: prompts or instructions, and how its tokenizer is set.

Many models are published without their prompts, which their authors wrote into MTEB's loader. Two of its loaders are
followed, with what is like them: that of prompts by name, and that of instructions in a template.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

from unimoe.data.mteb_names import random_state_kept
from unimoe.data.sources.from_mteb import import_mteb
from unimoe.models.own_prompts import DOCUMENTS, Instruct, OwnPrompts, prompts_by_kind

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
    """Return in words what texts are read with, and whose prompts these are: the registry's, or those ``otherwise``."""
    shown = [f"{kind} {json.dumps(prompt, ensure_ascii=False)}" for kind, prompt in own.by_kind.items() if prompt]
    by_task = [prompt for name, prompt in own.named.items() if prompt and name not in ("query", *DOCUMENTS)]
    shown += [f"{len(by_task)} by task"] * bool(by_task) + ["instructions by task"] * bool(own.instruct)
    source = f"of {REGISTRY}" if registered and registered.reads else otherwise
    if own.stated:
        all_stated = own.stated >= {"query", "document"} and not (by_task or own.instruct)
        source = "of the config" if all_stated else f"{source} and the config ({', '.join(sorted(own.stated))})"
    found = f"prompts {', '.join(shown)} {source}" if shown else "no prompts"
    if registered and registered.own_code:
        found += f" ({REGISTRY} has code of its own for it, {registered.own_code}, which is not followed)"
    return found


class _Instructions:
    """Makes the prompt of a task by MTEB's own code for models that read instructions."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from mteb.models.abs_encoder import AbsEncoder, PromptSource

        class Peer(AbsEncoder):
            def encode(self, *args: Any, **kwargs: Any) -> Any:
                raise NotImplementedError

        self._peer = Peer()
        self._peer.instruction_template = options.get("instruction_template")
        self._peer.prompts_dict = options.get("prompts_dict")
        if (order := options.get("prompt_priority")) is not None:
            self._peer.prompt_priority = [PromptSource.from_str(source) for source in order]
        self._documents = options.get("apply_instruction_to_passages", True)

    def __call__(self, task: Any, role: str | None) -> str | None:
        """Return the prompt; None for documents of a model that reads instructions before queries alone."""
        from mteb.types import PromptType

        if role == "document" and not self._documents:
            return None
        logger = logging.getLogger("mteb.models.abs_encoder")
        before, logger.disabled = logger.disabled, True
        try:
            with warnings.catch_warnings():  # about a task whose prompt has no word for documents
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
