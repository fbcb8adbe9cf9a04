"""``reasoning:NAME``: a model that thinks about a pair before it scores it, here or behind a server.

Rank1 (Weller et al. 2025) writes a thought after ``<think>``, and the score is the margin of its answers after
``</think>``. A thought that runs out of tokens is closed as Rank1 closes it: after its last whole sentence. A model
behind a server states a grade after its thought.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from unimoe.config import TEMPLATES
from unimoe.config.listwise import ListwiseConfig
from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json
from unimoe.models.base import base_identity, load_base, refuse_own_code
from unimoe.models.embedder import Advance
from unimoe.models.kinds import REASONING
from unimoe.models.lists import ANSWERS, END_OF_THOUGHT, TRUNCATED, UNPARSABLE
from unimoe.models.model import Model, model_of_reranker
from unimoe.models.named import ModelSettings, is_served, register_model
from unimoe.models.prompts import PairTokenizer, prompt_name
from unimoe.models.prompts.lists import said
from unimoe.models.prompts.tokenizers import tokenize
from unimoe.models.reranker import Reranker, ShardScores, TextPair
from unimoe.models.rerankers.grading import GRADE_TOKENS, PROMPT, UNGRADED, PairGrader, question
from unimoe.models.rerankers.writing import Asking, WritingReranker
from unimoe.models.served.chat import ChatWriter
from unimoe.models.token_ids import embedding_rows
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.models.writer import Continued, LocalWriter

_THOUGHT = 1024
_SENTENCE = re.compile(r".*[.!?]", re.DOTALL)


class ThoughtGrader(PairGrader):
    """Scores a pair by the grade from 0 to 3 that the model states after its thought; without one it comes last."""

    kind = REASONING

    def asks(self, prepared: Sequence[Any], usage: Counter[str], *, again: bool) -> Asking:
        """Ask for the grade of a pair; an answer with other numbers than one grade has none, and is counted."""
        ((query, document),) = prepared
        answer = yield self.fitted(
            lambda texts: [said("user", question(query, *texts))], [document], GRADE_TOKENS, usage
        )
        found = re.fullmatch(r"\D*([0-3])\D*", answer or "", re.ASCII)
        usage.update([] if found else [UNPARSABLE])
        return [float(found[1]) if found else UNGRADED]


class ThoughtMargin(WritingReranker):
    """Scores a pair by the margin between the prompt's answers after a thought; a shard is a query."""

    logits = True
    writer: LocalWriter

    def __init__(
        self, writer: LocalWriter, settings: ListwiseConfig, model: UnimodelForExp1, pairs: PairTokenizer, **others: Any
    ) -> None:
        super().__init__(writer, settings, **others)
        self._model, self._pairs = model, pairs

    def prepare(self, pairs: Sequence[TextPair]) -> list[list[int]]:
        """Return the token ids of prompts, which end where the thought begins."""
        return self._pairs(pairs)

    def shard_scores(self, prepared: Sequence[Any], advance: Advance | None = None) -> ShardScores:
        """Return the margin of each prompt after its thought; cut thoughts are counted."""
        begun = time.perf_counter()
        thoughts = self.writer.follow(prepared, [self.thought] * len(prepared), END_OF_THOUGHT)
        sequences = [[*prompt, *self._closed(one)] for prompt, one in zip(prepared, thoughts, strict=True)]
        usage = Counter({ANSWERS: len(prepared), "tokens": sum(map(len, sequences))})
        usage.update([TRUNCATED for one in thoughts if one.cut])
        return self.counted(self._model.rerank_ids(sequences, advance=advance).tolist(), usage, begun)

    def tokens_of(self, shards: Sequence[Sequence[list[int]]]) -> int:
        """Return the tokens of all prompts with the longest thoughts."""
        return sum(len(prompt) + self.thought for shard in shards for prompt in shard)

    def _closed(self, one: Continued) -> list[int]:
        """Return a thought with its end, after the last whole sentence where the model has not written it."""
        tokenizer, after = self.writer.tokenizer, self._pairs.after_thought
        text = tokenizer.decode(one.ids)
        if END_OF_THOUGHT in text:
            return [*one.ids, *tokenize(tokenizer, [after])[0]] if after else one.ids
        whole = _SENTENCE.match(text)
        return tokenize(tokenizer, [f"\n{(whole[0] if whole else text).strip()}\n{END_OF_THOUGHT}{after}"])[0]


def reasoning_model(name: str, settings: ModelSettings) -> Model:
    """Return a model that thinks: behind a server's address, or a causal language model."""
    config, given, usage = settings.experiment.model, settings.experiment.listwise, Counter[str]()
    thought = _THOUGHT if given.thought is None else given.thought
    how = given.model_copy(update={"thought": thought})
    graded = f"grades@{hash_json([PROMPT, thought, how.words])}"
    if is_served(name):
        settings.refuse_layers(REASONING)
        if how.answer == "margin":
            raise UsageError(f"{REASONING}:{name}: a server shows no margin; set listwise.answer=grade")
        writer = ChatWriter.named(f"{REASONING}:", name, settings.experiment.served)
        return ThoughtGrader(writer, how, graded).served()
    refuse_own_code(config)
    prompt = settings.experiment.prompt
    if not hasattr(TEMPLATES[prompt.template], "after_thought"):  # it asks for an answer at once
        prompt = prompt.model_copy(update={"template": "rank1"})
    named = f"{prompt_name(prompt, config.max_length)}-{thought}" if how.answer == "margin" else graded

    def load() -> Reranker:
        base = load_base(config, settings.device, settings.dtype)
        if how.answer == "grade":
            return ThoughtGrader(LocalWriter(base, thinks=thought > 0), how, named, usage)
        model = UnimodelForExp1(base, prompt, config.max_length + thought + GRADE_TOKENS)  # refuses what is too long
        pairs = PairTokenizer(base.tokenizer, prompt, config.max_length, embedding_rows(base.model))
        return ThoughtMargin(LocalWriter(base), how, model, pairs, prompt_name=named, usage=usage)

    facts: dict[str, Any] = {"identity": f"{REASONING}:{base_identity(config)}", "prompt": named, "usage": usage}
    said = f"{how.answer} after a thought of at most {thought:,} tokens"
    return model_of_reranker(load, said=said, dtype=settings.dtype_name, name=f"{name}.{REASONING}", **facts)


register_model(REASONING, reasoning_model)
