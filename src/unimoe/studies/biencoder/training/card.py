"""The model card of a bi-encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_CITATION = """```bibtex
@article{oord2018representation,
  title={Representation Learning with Contrastive Predictive Coding},
  author={van den Oord, Aaron and Li, Yazhe and Vinyals, Oriol},
  journal={arXiv preprint arXiv:1807.03748},
  year={2018}
}
```"""


def model_card(manifest: Mapping[str, Any], width: int) -> str:
    """Markdown with the front matter that the hub reads.

    Args:
        manifest: of the checkpoint, as plain data.
        width: dimensions of a vector.
    """
    config, facts, seen = manifest["config"], manifest["facts"], manifest["training"]
    base = manifest["base_model"].rpartition("@")[0]
    front = ["library_name: sentence-transformers", "pipeline_tag: sentence-similarity"]
    if "/" in base and not base.startswith("bundled:"):
        front.append(f"base_model: {json.dumps(base)}")
    front.append("tags: [sentence-transformers, sentence-similarity, feature-extraction, unimoe]")
    lines = [
        "---",
        *front,
        "---",
        "",
        f"# {_escaped(manifest['arm'])}, seed {manifest['seed']}",
        "",
        f"A bi-encoder for dense retrieval: {_escaped(base)} trained by contrast on {_escaped(config['collection'])} "
        f"({width} dimensions, unit length). It is the {manifest['which']} epoch.",
        "",
        f"- {config['dev']['metric']} on dev: {facts['start']:.4f} before training, {facts['val']:.4f} here "
        f"(epoch {facts['epoch']:g})",
        f"- {seen['embedding_examples']:,} training pairs, {seen['steps']:,} steps, {seen['tokens']:,} tokens",
        f"- queries are cut to {_length(config['query_length'])} tokens, documents to "
        f"{_length(config['document_length'])}",
        "- licence: that of the base model and of the training data",
        "",
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer("FOLDER")',
        "```",
        "",
        "## Settings",
        "",
        "```json",
        json.dumps(config, indent=2, ensure_ascii=False).replace("`", "\\u0060"),
        "```",
        "",
        "## Loss",
        "",
        "InfoNCE over the documents of a batch, with an additive margin before the temperature.",
        "",
        _CITATION,
        "",
    ]
    return "\n".join(lines)


def _length(tokens: int | None) -> str:
    return "the model's limit of" if tokens is None else str(tokens)


def _escaped(text: str) -> str:
    """Without what Markdown would take for markup."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>#|" else character for character in text)
