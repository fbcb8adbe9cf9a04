"""The settings in an encoder's folder: weights, pooling, length and prompts.

In sentence-transformers' layout ``modules.json`` lists the modules (Transformer, Pooling, then Dense and Normalize in
any order) with their folders; ``sentence_bert_config.json`` and ``config_sentence_transformers.json`` hold length and
prompts. A folder without ``modules.json`` is a bare model of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError
from unimoe.core.io import hash_file, hash_parts, read_json
from unimoe.core.limits import shortened
from unimoe.models.base import BaseSizes, sizes_of
from unimoe.models.bundled import bundled_encoder_folder, folder_named
from unimoe.models.prompts.tokenizers import well_formed
from unimoe.models.quiet import first_line

Pooling = Literal["mean", "cls", "last"]

_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_LEGACY_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_LONGEST = 10**7
"""Tokens of a text; more are a mistake."""

_UNSUPPORTED = ("query_length", "document_length", "query_expansion")
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model",
)  # fmt: skip
_FROM_HUB = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
NOT_FROM_HUB = ["onnx/*", "openvino/*", "flax/*", "coreml/*"]


@dataclass(frozen=True)
class EncoderFiles:
    """The settings of an encoder, read before its weights.

    Attributes:
        transformer: folder of the transformers model and its tokenizer.
        identity: logical id and content hash of the weights, or the hub's commit: ``id@hash``.
        tokenizer_hash: content hash of the tokenizer's files.
        pooling: how token states become one vector.
        after: the modules that follow the pooling: the folder of a Dense, None for Normalize.
        max_length: tokens of one text; None where the tokenizer sets it.
        lower_case: whether texts are lower-cased, whatever the tokenizer does.
        prefixes: of a query, a document and a plain text.
        similarity: what compares vectors: the cosine, or the dot product of vectors of any length.
    """

    transformer: Path
    identity: str
    tokenizer_hash: str
    pooling: Pooling
    after: list[Path | None]
    max_length: int | None
    lower_case: bool
    prefixes: dict[str, str]
    similarity: Literal["cosine", "dot"]

    @property
    def compared(self) -> list[str]:
        """What hashes of an encoder's settings add for its similarity: nothing for the cosine, which most have."""
        return [] if self.similarity == "cosine" else [self.similarity]


def read_encoder_files(config: EncoderConfig) -> EncoderFiles:
    """Find an encoder and read the settings in its folder.

    Raises:
        DataError: it is not available, has no safetensors, or has an unknown module.
    """
    folder, commit = _locate(config)
    listed = folder / "modules.json"
    modules = [_module(listed, entry) for entry in _entries(listed)] if listed.is_file() else [("Transformer", "")]
    kinds = [kind for kind, _ in modules]
    if kinds[0] != "Transformer" or kinds.count("Transformer") > 1 or kinds[1:].count("Pooling") > 1:
        raise DataError(f"{listed}: {', '.join(kinds)}; an encoder is one Transformer, one Pooling, and what follows")
    if "Pooling" in kinds[2:]:
        raise DataError(f"{listed}: {', '.join(kinds)}; Pooling must come right after Transformer")
    transformer = folder / modules[0][1]
    after = [folder / path if kind == "Dense" else None for kind, path in modules if kind in ("Dense", "Normalize")]
    stated = folder / dict(modules)["Pooling"] / "config.json" if "Pooling" in kinds else None
    weights = [file for part in (transformer, *filter(None, after)) for file in _weights(part)]
    own = folder / "config_sentence_transformers.json"
    length, lower_case = _read_transformer(transformer / "sentence_bert_config.json")
    return EncoderFiles(
        transformer=transformer,
        identity=commit or f"{_logical_id(config, folder)}@{hash_parts(hash_file(file) for file in weights)}",
        tokenizer_hash=_tokenizer_hash(transformer),
        pooling=_pooling(config, stated),
        after=after,
        max_length=length,
        lower_case=lower_case,
        prefixes=_prefixes(config, own),
        similarity=_similarity(own),
    )


def encoder_sizes(config: EncoderConfig) -> BaseSizes:
    """Return the sizes of an encoder by its files, without its weights.

    Raises:
        DataError: it is not available, or its configuration cannot be read.
    """
    from transformers import AutoConfig, AutoModel

    files, trust = read_encoder_files(config), {"trust_remote_code": config.trust_remote_code}
    try:
        found: Any = AutoConfig.from_pretrained(files.transformer, **trust)
        sizes = sizes_of(AutoModel, found)
    except Exception as error:  # damaged files raise errors of many kinds
        raise DataError(f"{files.transformer}: its configuration cannot be read ({first_line(error)})") from None
    for folder in filter(None, files.after):
        dense = read_settings(folder / "config.json")
        inputs, width = (setting(folder, dense, f"{side}_features", int) or sizes.width for side in ("in", "out"))
        own = (inputs + bool(dense.get("bias", True))) * width
        sizes = BaseSizes(sizes.parameters + own, sizes.embedding_parameters, width)
    return sizes


def _locate(config: EncoderConfig) -> tuple[Path, str | None]:
    """Return the folder and, for a hub id, its identity with the commit."""
    if config.base.startswith("bundled:"):
        return bundled_encoder_folder(config.base), None
    named = folder_named("encoder.base", config.base)
    if named is not None:
        return named, None
    from huggingface_hub import snapshot_download

    patterns = _FROM_HUB + ["*.py"] * config.trust_remote_code
    try:
        folder = snapshot_download(
            config.base, revision=config.revision, allow_patterns=patterns, ignore_patterns=NOT_FROM_HUB
        )
    except Exception as error:  # the hub's client raises errors of many kinds: offline, no such id, gated, malformed
        raise DataError(
            f"encoder.base {config.base!r} cannot be found or downloaded ({first_line(error)}); "
            "check the id or folder, or connect to the hub"
        ) from None
    return Path(folder), f"{config.base}@{Path(folder).name[:16]}"


def _logical_id(config: EncoderConfig, folder: Path) -> str:
    return config.base if config.base.startswith("bundled:") else folder.resolve().name


def _entries(path: Path) -> list[Any]:
    entries = read_json(path, list[Any], "save the model with SentenceTransformer.save_pretrained()")
    if not entries:
        raise DataError(f"{path}: lists no modules; save the model with SentenceTransformer.save_pretrained()")
    return entries


def _module(path: Path, entry: Any) -> tuple[str, str]:
    """Return kind and folder of one module."""
    try:
        name, place = str(entry["type"]), str(entry["path"])
    except (KeyError, TypeError):
        raise DataError(f"{path}: each module needs type and path; this one is {str(entry)[:60]}") from None
    kind = name.rpartition(".")[2]
    if not name.startswith("sentence_transformers.") or kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
        raise DataError(
            f"{path}: module {name} is not known; use an encoder of Transformer, Pooling, Dense and Normalize"
        )
    return kind, inside(path, place)


def inside(listed: Path, place: str) -> str:
    """Return the place of a module within the folder of its list; raise ``DataError`` for one outside."""
    if Path(place).is_absolute() or ".." in Path(place).parts or "\0" in place:
        raise DataError(f"{listed}: module path {shortened(place)!r} leads out of the folder; save the model again")
    return place


def _weights(folder: Path) -> Iterator[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files and any(folder.glob("*.bin")):
        raise DataError(
            f"{folder}: weights only as .bin, which can run code when read; load them elsewhere and "
            "save_pretrained() them as safetensors, or name a revision that has them"
        )
    if not files:
        raise DataError(f"{folder}: no .safetensors file; save the model with save_pretrained()")
    yield from files


def _read_transformer(path: Path) -> tuple[int | None, bool]:
    """Return length and lower case; refuse settings that would change vectors and are not supported."""
    settings = read_settings(path)
    strange = [key for key in _UNSUPPORTED if settings.get(key) is not None]
    if settings.get("transformer_task", "feature-extraction") != "feature-extraction":
        strange.append("transformer_task")
    if "message" in (setting(path, settings, "modality_config", dict) or {}):  # it would go through the chat template
        strange.append("modality_config")
    if strange:
        raise DataError(
            f"{path}: {strange[0]} {shortened(repr(settings[strange[0]]))} is not supported; use another encoder"
        )
    length = setting(path, settings, "max_seq_length", int)
    if length is not None and not 1 <= length <= _LONGEST:
        raise DataError(f"{path}: max_seq_length {length!r} is no length; set encoder.max_length and fix it")
    return length, bool(setting(path, settings, "do_lower_case", bool))


def _pooling(config: EncoderConfig, stated: Path | None) -> Pooling:
    if config.pooling != "auto":
        return config.pooling
    if stated is None:
        return "mean"
    settings = read_settings(stated)
    modes = setting(stated, settings, "pooling_mode", str, list) or [
        mode for key, mode in _LEGACY_POOLING.items() if settings.get(key)
    ]
    names = [modes] if isinstance(modes, str) else list(modes) or ["mean"]
    if len(names) > 1 or str(names[0]) not in _POOLINGS:
        raise DataError(f"{stated}: pooling {'+'.join(map(str, names))} is not known; known are {', '.join(_POOLINGS)}")
    if settings.get("include_prompt") is False:
        raise DataError(f"{stated}: include_prompt false is not supported; set encoder.pooling to pool prefixes too")
    pooling = _POOLINGS[str(names[0])]
    assert pooling in get_args(Pooling)  # noqa: S101
    return cast(Pooling, pooling)


def _prefixes(config: EncoderConfig, path: Path) -> dict[str, str]:
    """Return the config's prefixes; where it has none, the model's, chosen as ``encode_query`` and its siblings do.

    One difference: an empty ``document`` is replaced by ``passage``, which models older than ``encode_document`` have.
    """
    settings = read_settings(path)
    prompts = setting(path, settings, "prompts", dict) or {}
    if not all(isinstance(prompt, str) or prompt is None for prompt in prompts.values()):
        raise DataError(f"{path}: prompts must map names to texts; fix it, or set encoder.query_prefix")
    default = setting(path, settings, "default_prompt_name", str)
    own = {
        "query": prompts.get("query"),
        "document": next(filter(None, (prompts.get(name) for name in ("document", "passage", "corpus"))), None),
        "plain": prompts.get(default),
    }
    set_by_hand = {"query": config.query_prefix, "document": config.document_prefix, "plain": None}
    return {kind: well_formed(own[kind] or "") if prefix is None else prefix for kind, prefix in set_by_hand.items()}


def _similarity(path: Path) -> Literal["cosine", "dot"]:
    name = setting(path, read_settings(path), "similarity_fn_name", str) or "cosine"
    if name not in ("cosine", "dot"):
        raise DataError(f"{path}: similarity_fn_name {shortened(name)} is not known; known are cosine and dot")
    return cast('Literal["cosine", "dot"]', name)


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no file."""
    return read_json(path, dict[str, Any], "correct it, or save the model again") if path.is_file() else {}


_KINDS = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def setting(path: Path, settings: dict[str, Any], key: str, *kinds: type) -> Any:
    """Return a key's value, None where it is absent or null.

    Raises:
        DataError: it is of another kind than these.
    """
    value = settings.get(key)
    if value is not None and type(value) not in kinds:
        wanted = " or ".join(_KINDS[kind] for kind in kinds)
        raise DataError(
            f"{path}: {key} must be {wanted}, and is {shortened(str(value))}; fix it, or save the model again"
        )
    return value


def _tokenizer_hash(folder: Path) -> str:
    files = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    return hash_parts(part for file in files for part in (file.name, hash_file(file)))
