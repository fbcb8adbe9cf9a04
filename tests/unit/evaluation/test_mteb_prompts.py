"""Which prefix a text gets in a task of MTEB."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from mteb import AbsTask
from mteb.abstasks import AbsTaskRetrieval
from mteb.types import PromptType
from torch.utils.data import DataLoader

from unimoe.config import MTEBConfig
from unimoe.core.errors import UsageError
from unimoe.evaluation.mteb.prompts import TaskPrompts


@pytest.fixture(scope="module")
def scifact() -> Any:
    import mteb

    return mteb.get_task("SciFact").metadata


@pytest.fixture(scope="module")
def sts() -> Any:
    import mteb

    return mteb.get_task("STSBenchmark").metadata


def by_hand(**prompts: str) -> TaskPrompts:
    return TaskPrompts(MTEBConfig(task_instruction=None, prompts=prompts))


class TestByHand:
    @pytest.mark.parametrize(
        ("role", "order"),
        [
            ("query", ["SciFact-query", "SciFact", "Retrieval-query", "Retrieval", "query"]),
            ("document", ["SciFact-document", "Retrieval-document", "document"]),
            (None, ["SciFact", "Retrieval"]),
        ],
        ids=str,
    )
    def test_the_first_key_that_fits_counts(self, scifact: Any, role: str | None, order: list[str]) -> None:
        for first, second in pairwise(order):
            both = by_hand(**{second: "two", first: "one"})
            assert both.prefix(scifact, role) == "one"
            assert by_hand(**{second: "two"}).prefix(scifact, role) == "two"
        everything = {f"{head}{role}" for head in ("SciFact", "Retrieval") for role in ("", "-query", "-document")}
        others = {*everything, "query", "document", "NFCorpus", "STS"} - set(order)
        assert by_hand(**dict.fromkeys(others, "never")).prefix(scifact, role) is None

    def test_an_empty_prefix_is_a_prefix_and_goes_before_the_instruction(self, scifact: Any, sts: Any) -> None:
        prompts = TaskPrompts(MTEBConfig(prompts={"SciFact": "", "document": "Passage: "}))
        assert prompts.of_task(scifact) == ["", "Passage: ", ""]
        assert prompts.prefix(sts, None) == "Instruct: Retrieve semantically similar text.\nQuery:"


class TestInstruction:
    SCIFACT = "Given a scientific claim, retrieve documents that support or refute the claim"

    def test_none_and_collections_that_are_no_tasks_are_left_to_the_model(self, scifact: Any, sts: Any) -> None:
        assert TaskPrompts(MTEBConfig()).of_task(scifact)[:2] == [f"Instruct: {self.SCIFACT}\nQuery:", None]
        assert TaskPrompts(MTEBConfig()).of_task(scifact.model_copy(update={"prompt": ""})) == [None] * 3
        prompts = TaskPrompts(MTEBConfig(task_instruction=None))
        assert prompts.of_task(scifact) == prompts.of_task(sts) == [None] * 3


class TestOfRerankers:
    def test_the_order_of_choice(self, scifact: Any) -> None:
        claim = TestInstruction.SCIFACT
        untold = scifact.model_copy(update={"prompt": None})
        prompts = TaskPrompts(MTEBConfig())
        assert prompts.instruction(scifact) == claim
        assert prompts.instruction(scifact, "mine") == "mine"
        assert prompts.instruction(untold) == "Retrieve text based on user query."
        assert by_hand().instruction(scifact, "mine") is None
        assert by_hand(Retrieval="Weigh. ").instruction(scifact, "mine") == "Weigh."
        assert by_hand(SciFact="", Retrieval="Weigh.").instruction(scifact, "mine") is None

    @pytest.mark.parametrize("template", ["Instruct: {instruction}\nQuery:", "{instruction}: ", "{instruction}"])
    def test_a_prefix_in_the_template_is_the_instruction_in_it(self, scifact: Any, template: str) -> None:
        config = MTEBConfig(task_instruction=template, prompts={"query": template.replace("{instruction}", "Weigh.")})
        assert TaskPrompts(config).instruction(scifact) == "Weigh."


@pytest.mark.filterwarnings("ignore:Prompt type 'document' not found", "ignore:No prompt found on the abstask class")
class TestAsMTEB:
    """What mteb's own wrapper of Qwen3-Embedding gives the model, without the model."""

    @pytest.fixture(scope="class")
    def wrapper(self) -> Any:
        from mteb.models.instruct_wrapper import InstructSentenceTransformerModel
        from mteb.models.model_implementations.qwen3_models import instruction_template

        wrapper: Any = InstructSentenceTransformerModel.__new__(InstructSentenceTransformerModel)
        wrapper.instruction_template, wrapper.apply_instruction_to_passages = instruction_template, False
        wrapper.model = SimpleNamespace(encode=lambda texts, prompt: prompt)
        return wrapper

    def sent(self, wrapper: Any, task: AbsTask, role: str | None) -> str | None:
        loader = DataLoader(Dataset.from_dict({"text": ["a text"]}))
        facts: dict[str, Any] = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
        prompt: str | None = wrapper.encode(loader, prompt_type=PromptType(role) if role else None, **facts)
        return prompt

    def test_every_text_task_reads_what_mtebs_own_wrapper_writes(self, wrapper: Any) -> None:
        from mteb.get_tasks import TASK_LIST

        prompts, compared = TaskPrompts(MTEBConfig()), 0
        for kind in TASK_LIST:
            if kind.metadata.modalities == ["text"]:
                task = kind.__new__(kind)
                role = "query" if issubclass(kind, AbsTaskRetrieval) else None
                assert (prompts.prefix(kind.metadata, role) or "") == self.sent(wrapper, task, role), kind
                compared += 1
        assert compared > 1000


class TestUnknownKeys:
    def test_known_ones_and_collections_that_are_evaluated_pass(self) -> None:
        known = [
            "SciFact",
            "SciFact-query",
            "STS",
            "Retrieval-document",
            "query",
            "document",
            "toy",
            "toy-query",
        ]
        by_hand(**dict.fromkeys(known, "x")).refuse_unknown_keys(["toy"])

    @pytest.mark.parametrize(
        ("key", "near"),
        [("SciFcat", "SciFact"), ("SciFcat-query", "SciFact"), ("Retreival", "Retrieval"), ("SciFact-passage", "Sci")],
    )
    def test_others_are_refused_with_the_closest(self, key: str, near: str) -> None:
        with pytest.raises(UsageError) as refused:
            by_hand(query="x", **{key: "x"}).refuse_unknown_keys()
        assert f"evaluation.mteb.prompts: {key!r} is no task, type of tasks or role" in str(refused.value)
        assert f"did you mean '{near}" in str(refused.value)
