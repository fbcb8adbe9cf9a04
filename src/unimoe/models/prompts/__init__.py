"""Prompts: how a pair becomes the text of a yes/no judgement, and a text the tokens to embed.

A template of your own is a class with the methods of ``Template``::

    from unimoe.models.prompts import register_prompt

    register_prompt("mine", MyTemplate)  # then prompt.template: mine

Inside unimoe it is one file in this folder. Results record its name and the ``prompt`` section of the config, not its
code: give a changed template another name.
"""

from unimoe.config import TEMPLATES, PromptConfig
from unimoe.models.prompts.tokenizers import (
    PairTokenizer,
    Template,
    TextTokenizer,
    answer_ids,
    own_answers,
    prompt_name,
    well_formed,
)

__all__ = [
    "PairTokenizer",
    "Template",
    "TextTokenizer",
    "answer_ids",
    "default_prompt",
    "own_answers",
    "prompt_name",
    "register_prompt",
    "well_formed",
]

register_prompt = TEMPLATES.add


def default_prompt(model_type: str) -> PromptConfig:
    """Return the prompt of a model of which nothing else is known: Qwen3's own, else the model's chat template."""
    return PromptConfig() if model_type == "qwen3" else PromptConfig(template="chat", query_prefix="")
