"""Writes the model card of an arm: its training, its losses, and how to load it without unimoe.

The cards of the studies share the front matter, the escaping and the citation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import ModelCardData

from unimoe.config import Experiment
from unimoe.models.base import decoder_layers, decoder_of, per_layer_settings
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.unimodel import UnimodelForExp1

_BUNDLED_ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_QUERY, _DOCUMENT = "\u2063QUERY\u2063", "\u2063DOCUMENT\u2063"

_RERANK = """import torch
from peft import PeftModel
from transformers import {auto}

BASE, ADAPTER = {base!r}, "."  # this folder
tokenizer = AutoTokenizer.from_pretrained(BASE)
{cut}model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE, {options}), ADAPTER).eval()


def ids(text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def score(query, document):
    \"\"\"Logit of yes minus logit of no; its sigmoid is P(yes).\"\"\"
{body}
    prompt = {prefix} + body + {suffix}
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1].float()
    return float(logits[ids("yes")[0]] - logits[ids("no")[0]])
"""

_CUT = """config = AutoConfig.from_pretrained(BASE)
config.num_hidden_layers = {layers}  # the adapter was trained on the first {layers} layers alone
{lists}"""

_EMBED = """from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

merged = model.merge_and_unload()
tokenizer.chat_template = None  # with one, every text would be wrapped in a conversation
merged.save_pretrained("merged")
tokenizer.save_pretrained("merged")
reader = Transformer("merged", max_seq_length={length})
pooling = Pooling(merged.config.hidden_size, pooling_mode="lasttoken")
encoder = SentenceTransformer(modules=[reader, pooling, Normalize()])


def embed(text, prefix={query_prefix!r}):  # documents: prefix={document_prefix!r}
    return encoder.encode(prefix + text + {suffix!r})
"""


INFO_NCE_CITATION = """@article{oord2018representation,
  title={Representation learning with contrastive predictive coding},
  author={van den Oord, Aaron and Li, Yazhe and Vinyals, Oriol},
  journal={arXiv preprint arXiv:1807.03748},
  year={2018}
}"""


def front_matter(**data: Any) -> str:
    """Return the YAML head that the hub reads."""
    return f"---\n{ModelCardData(**data)}\n---\n\n"


def plain(text: str) -> str:
    """Return a text as one line in which Markdown finds no markup."""
    return re.sub(r"([\\`*{}\[\]<>|#])", r"\\\1", " ".join(text.split()))


def code_block(language: str, content: str) -> str:
    """Return a fenced block of Markdown."""
    return f"```{language}\n{content.strip()}\n```"


def json_block(value: Mapping[str, Any]) -> str:
    """Return settings as a fenced block of JSON, which no setting can close."""
    return code_block("json", json.dumps(value, indent=2, ensure_ascii=False).replace("`", "\\u0060"))


def base_on_hub(experiment: Experiment) -> str:
    """Return the name under which others find the base model: a hub id, or the folder it came from."""
    return _BUNDLED_ON_HUB if experiment.model.base == BUNDLED_ID else experiment.model.base


def model_card(checkpoint: Checkpoint, model: UnimodelForExp1) -> str:
    """Return the text of a checkpoint's ``README.md``.

    Args:
        checkpoint: the manifest.
        model: the trained model, for its prompt in tokens.
    """
    experiment = checkpoint.experiment
    ranks, embeds = checkpoint.ranks, checkpoint.embeds
    losses = _losses(experiment, checkpoint.arm, ranks, embeds)
    sections = [
        f"# {plain(checkpoint.arm)}, seed {checkpoint.seed}",
        f"A LoRA adapter on `{plain(checkpoint.base_model)}` that {_purpose(ranks, embeds)}, trained by unimoe in the "
        f"experiment {plain(experiment.name)}. This is the {checkpoint.which} checkpoint{_of_what(checkpoint)}.",
        *(f"> {plain(caveat)}" for caveat in experiment.caveats),
        "## Training",
        _table(_training(checkpoint, model)),
        "## Losses",
        *(f"{name}:\n\n{json_block(config)}" for name, config, _ in losses),
        "## Use",
        "Reranking with plain PEFT:" if ranks or not embeds else "Loading with plain PEFT:",
        code_block("python", _rerank_code(experiment, model)),
    ]
    if embeds:
        sections += [
            "Embedding with sentence-transformers 6, after the above. The last token carries the embedding: cut texts "
            f"of more than {experiment.model.max_length} tokens yourself, before the suffix is added.",
            code_block("python", _embed_code(experiment)),
        ]
    sections += ["## Licence", _licence(experiment)]
    citations = [citation for *_, citation in losses if citation]
    if citations:
        sections += ["## Citation", *(code_block("bibtex", citation) for citation in citations)]
    return _front_matter(checkpoint, experiment) + "\n\n".join(sections) + "\n"


def _front_matter(checkpoint: Checkpoint, experiment: Experiment) -> str:
    base = base_on_hub(experiment)
    # A folder means nothing to the hub, so it is not named.
    named = {"base_model": base, "base_model_relation": "adapter"} if _HUB_ID.fullmatch(base) else {}
    licence = {"license": "apache-2.0"} if experiment.model.base == BUNDLED_ID else {}
    return front_matter(
        library_name="peft",
        pipeline_tag="text-ranking" if checkpoint.ranks else "feature-extraction",
        tags=["unimoe", "lora", *["reranker"] * checkpoint.ranks, *["sentence-similarity"] * checkpoint.embeds],
        **named,
        **licence,
    )


def _training(checkpoint: Checkpoint, model: UnimodelForExp1) -> Mapping[str, object]:
    experiment, budget = checkpoint.experiment, checkpoint.training
    training, lora, arm = experiment.training, experiment.lora, experiment.arm(checkpoint.arm)
    warmup = f"{training.warmup} steps of warm-up"
    first_layer = lora.first_of(len(decoder_layers(decoder_of(model.model))))
    return {
        "collection": f"{training.collection}, split {training.split}",
        "optimizer steps": budget.steps,
        "ranking examples": budget.ranking_examples,
        "embedding examples": budget.embedding_examples,
        "tokens": budget.tokens,
        "optimizer": f"AdamW, weight decay {training.weight_decay}, gradient norm cut at {training.max_grad_norm}",
        "learning rate": f"{arm.learning_rate}, {training.schedule}, {warmup}",
        "batches per step": training.accumulation_steps,
        "adapter": f"r {lora.r}, alpha {lora.alpha}, dropout {lora.dropout}, layers from {first_layer}",
        "adapted modules": ", ".join(lora.target_modules),
        "prompt": f"{experiment.prompt.template}, {experiment.prompt.order}",
        "layers of the base model": "all"
        if experiment.model.layers is None
        else f"the first {experiment.model.layers}",
        "longest sequence": f"{experiment.model.max_length} tokens",
        "computed in": f"{checkpoint.dtype}, adapters kept in float32",
        "aggregation of the two losses": f"{arm.aggregation}, ranking weight {arm.ranking_weight}"
        if arm.task == "joint"
        else "one loss",
    }


def _losses(experiment: Experiment, arm: str, ranks: bool, embeds: bool) -> list[tuple[str, dict[str, Any], str]]:
    """Return name, configuration and citation of each loss."""
    from unimoe.training.losses.listwise import loss_card

    losses: list[tuple[str, dict[str, Any], str]] = []
    if ranks:
        card = loss_card(experiment.arm(arm).ranking_loss(experiment.training.ranking))
        losses.append(("Ranking", card["config"], card["citation"]))
    if embeds:
        losses.append(
            ("Embedding", {"name": "InfoNCE", **experiment.training.embedding.model_dump()}, INFO_NCE_CITATION)
        )
    return losses


def _rerank_code(experiment: Experiment, model: UnimodelForExp1) -> str:
    pairs = model.pair_ids
    first, *second = (_expression(text) for text in pairs.body_texts(_QUERY, _DOCUMENT))
    if second:
        body = [
            f"end = ids({second[0]})",
            f"start = ids({first})[: max({len(pairs.opening)}, {pairs.room} - len(end))]",
            f"body = (start + end)[: {pairs.room}]",
        ]
    else:
        body = [f"body = ids({first})[:{pairs.room}]"]
    layers = experiment.model.layers
    return _RERANK.format(
        auto="AutoModelForCausalLM, AutoTokenizer"
        if layers is None
        else "AutoConfig, AutoModelForCausalLM, AutoTokenizer",
        base=base_on_hub(experiment),
        cut="" if layers is None else _cut_code(layers, model),
        options="dtype=torch.float32" if layers is None else "config=config, dtype=torch.float32",
        body="\n".join(f"    {line}" for line in body),
        prefix=pairs.prefix,
        suffix=pairs.suffix,
    )


def _cut_code(layers: int, model: UnimodelForExp1) -> str:
    """Return the code that cuts the base model's configuration, with what it has for each layer."""
    per_layer = per_layer_settings(model.model.config)
    lists = "".join(f"config.{name} = config.{name}[:{layers}]\n" for name in per_layer)
    return _CUT.format(layers=layers, lists=lists)


def _embed_code(experiment: Experiment) -> str:
    prompt = experiment.prompt
    return _EMBED.format(
        length=experiment.model.max_length,
        query_prefix=prompt.query_prefix,
        document_prefix=prompt.document_prefix,
        suffix=prompt.embedding_suffix,
    )


def _expression(text: str) -> str:
    """Return a Python expression that builds a text around the variables ``query`` and ``document``."""
    names = {_QUERY: "query", _DOCUMENT: "document"}
    parts = re.split(f"({'|'.join(names)})", text)
    return " + ".join(names.get(part) or repr(part) for part in parts if part)


def _purpose(ranks: bool, embeds: bool) -> str:
    return " and ".join(["reranks documents by a yes/no judgement"] * ranks + ["embeds texts"] * embeds)


def _of_what(checkpoint: Checkpoint) -> str:
    if checkpoint.which == "last":
        return ""
    dev = checkpoint.experiment.training.dev
    return f": the one that scored highest on {dev.queries} queries of the split {plain(dev.split)}"


def _licence(experiment: Experiment) -> str:
    if experiment.model.base == BUNDLED_ID:
        return "The base model is under the Apache License 2.0; the training texts have their collection's licence."
    return (
        "No licence is stated here. The adapter needs its base model, whose licence applies; see also that of the "
        f"collection {plain(experiment.training.collection)}."
    )


def _table(rows: Mapping[str, object]) -> str:
    lines = [f"| {name} | {plain(str(value))} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])
