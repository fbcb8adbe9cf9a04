"""Writes the model card of an arm: its training, its losses, and how to load it without unimoe.

The text is ``model_card.md.j2``. The cards of the studies share how text is escaped and settings are shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from unimoe.config import Experiment
from unimoe.models.base import decoder_layers, decoder_of, per_layer_settings
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.losses.listwise import ListwiseLoss, bibtex

_BUNDLED_ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_QUERY, _DOCUMENT = "\u2063QUERY\u2063", "\u2063DOCUMENT\u2063"


def rendered(template: Path, data: ModelCardData, **values: Any) -> str:
    """Return a card from its template, which shows text from outside by ``plain``."""
    return str(ModelCard.from_template(data, str(template), plain=plain, json_block=json_block, repr=repr, **values))


def plain(text: str) -> str:
    """Return a text as one line in which Markdown finds no markup."""
    return re.sub(r"([\\`*{}\[\]<>|#])", r"\\\1", " ".join(text.split()))


def json_block(value: Mapping[str, Any]) -> str:
    """Return settings as a fenced block of JSON, which no setting can close."""
    content = json.dumps(value, indent=2, ensure_ascii=False).replace("`", "\\u0060")
    return f"```json\n{content}\n```"


def base_on_hub(experiment: Experiment) -> str:
    """Return the name under which others find the base model: a hub id, or the folder it came from."""
    return _BUNDLED_ON_HUB if experiment.model.base == BUNDLED_ID else experiment.model.base


def model_card(checkpoint: Checkpoint, model: UnimodelForExp1) -> str:
    """Return the text of a checkpoint's ``README.md``; the trained model knows its prompt in tokens."""
    config, ranks, embeds = checkpoint.experiment, checkpoint.ranks, checkpoint.embeds
    base, bundled = base_on_hub(config), config.model.base == BUNDLED_ID
    # A folder means nothing to the hub, so it is not named.
    known = {"base_model": base, "base_model_relation": "adapter"} if _HUB_ID.fullmatch(base) else {}
    if bundled:
        known["license"] = "apache-2.0"
    data = ModelCardData(
        library_name="peft",
        pipeline_tag="text-ranking" if ranks else "feature-extraction",
        tags=["unimoe", "lora", *["reranker"] * ranks, *["sentence-similarity"] * embeds],
        **dict[str, Any](known),
    )
    first, *second = (_expression(text) for text in model.pair_ids.body_texts(_QUERY, _DOCUMENT))
    losses = _losses(checkpoint)
    purposes = ["reranks documents by a yes/no judgement"] * ranks + ["embeds texts"] * embeds
    return rendered(
        Path(__file__).with_name("model_card.md.j2"),
        data,
        made=checkpoint,
        config=config,
        arm=config.arm_named(checkpoint.arm),
        training=config.training,
        lora=config.lora,
        prompt=config.prompt,
        layers=config.model.layers,
        per_layer=per_layer_settings(model.model.config),
        first_layer=config.lora.first_of(len(decoder_layers(decoder_of(model.model)))),
        purpose=" and ".join(purposes),
        losses={task: settings for task, settings, _ in losses},
        citations=[citation for *_, citation in losses if citation],
        base=base,
        bundled=bundled,
        pairs=model.pair_ids,
        first=first,
        second=second[0] if second else "",
    )


def _losses(checkpoint: Checkpoint) -> list[tuple[str, dict[str, Any], str]]:
    """Return task, settings and citation of each loss."""
    experiment, losses = checkpoint.experiment, []
    if checkpoint.ranks:
        loss = ListwiseLoss(experiment.arm_named(checkpoint.arm).ranking_loss(experiment.training.ranking))
        losses.append(("Ranking", loss.get_config_dict(), loss.citation))
    if checkpoint.embeds:
        settings = {"name": "InfoNCE", **experiment.training.embedding.model_dump()}
        losses.append(("Embedding", settings, bibtex("oord2018representation")))
    return losses


def _expression(text: str) -> str:
    """Return a Python expression that builds a text around the variables ``query`` and ``document``."""
    names = {_QUERY: "query", _DOCUMENT: "document"}
    parts = re.split(f"({'|'.join(names)})", text)
    return " + ".join(names.get(part) or repr(part) for part in parts if part)
