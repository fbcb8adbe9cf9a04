"""The one training loop: it resumes, takes steps, scores on dev, keeps the best, logs, saves, and ends.

    class Mine(Training):
        def step(self, number): ...   # a backward pass, an update of evolution, a generation

    Mine(...).run(on_step)

A trainer says what a step, a score and its files are. All that it needs after a kill is in its ``state``; random
numbers depend on seed and step, so that a resumed training takes the steps of an undisturbed one.
"""

from __future__ import annotations

import math
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from unimoe.core.console import Step
from unimoe.core.errors import DataError
from unimoe.core.planning import Job
from unimoe.core.trec import Run
from unimoe.models.device import without_cudnn_attention
from unimoe.training.run_state import LogStep, Parts, Progress, RunState

StepFacts = dict[str, Any]
"""Facts about a step or a score by name, as JSON values."""

OnStep = Callable[[int, StepFacts], None]
"""Called with the number of steps taken and the facts about the last one."""


class Training(ABC):
    """One training in its folder.

    Args:
        state: of its folder.
        steps: of the whole training; 0 where there is nothing to train.
        dev_every: steps between evaluations on dev, with one after the last step too; None for none.
        save_every: steps between saved states; a killed run loses at most these.
        patience: evaluations without a better one that end the training; None for no end.
        scores_start: whether the untrained model is scored too, as the first best.
    """

    step_log: ClassVar[str | None] = "train"
    """The log of the facts about steps; None for none."""
    dev_log: ClassVar[str] = "train"
    """The log of the scores on dev; where it is that of the steps, they are part of the step's line."""
    logs_seconds: ClassVar[bool] = False
    """Whether the line of a step has the seconds of all steps up to it."""

    def __init__(
        self,
        state: RunState,
        steps: int,
        *,
        dev_every: int | None,
        save_every: int,
        patience: int | None = None,
        scores_start: bool = False,
    ) -> None:
        self.state, self.steps, self.progress = state, steps, Progress()
        self._dev_every, self._save_every = dev_every, save_every
        self._patience, self._scores_start = patience, scores_start

    # What a trainer says.

    @property
    @abstractmethod
    def outputs(self) -> Sequence[Path]:
        """Files that are there once the training is finished; their folders hold nothing else of worth."""

    @abstractmethod
    def is_finished(self) -> bool:
        """Return whether the training is finished; raise ``DataError`` where another one's files are in its place."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the model and all that the first step needs."""

    @abstractmethod
    def step(self, number: int) -> StepFacts:
        """Take the step of a number counted from 0, and return the facts about it."""

    @abstractmethod
    def score_on_dev(self) -> tuple[float, StepFacts]:
        """Return the score on dev that chooses the best, and the facts about it."""

    @abstractmethod
    def parts(self) -> Parts:
        """Return all tensors that the next step depends on, and the best model where no file has it."""

    @abstractmethod
    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned, to a prepared training with restored ``progress``."""

    @abstractmethod
    def keep_best(self) -> None:
        """Keep the model as it is: no earlier one is as good on dev."""

    @abstractmethod
    def finish(self) -> None:
        """Write what the training leaves; the last file says that it is finished."""

    def check(self) -> None:  # noqa: B027 - a hook
        """Refuse what cannot be trained, before anything is written."""

    def begin_step(self, number: int) -> None:  # noqa: B027 - a hook
        """Make what a step needs and what is no part of its time, such as the batches of an epoch."""

    def is_scored_after(self, step: int) -> bool:
        """Return whether the model is scored on dev after so many steps."""
        return self._dev_every is not None and (step % self._dev_every == 0 or step == self.steps)

    def is_saved_after(self, step: int) -> bool:
        """Return whether the state is saved after so many steps, unless they are all."""
        return step % self._save_every == 0

    # The loop.

    @property
    def is_over(self) -> bool:
        """Whether all steps are taken, or ``patience`` is exceeded."""
        return self.progress.step >= self.steps or (
            self._patience is not None and self.progress.waited >= self._patience
        )

    @without_cudnn_attention
    def run(self, on_step: OnStep | None = None) -> None:
        """Train to the end, from the saved state where there is one, unless that is done.

        A ``DataError`` says that a saved state or output is of another training, or that numbers are not finite, a
        ``UsageError`` that another process trains in the folder.
        """
        if self._is_done():
            return
        self.state.refuse_missing_trackers()
        self.check()
        with self.state.alone():
            if self._is_done():  # another process has trained it since
                return
            self.prepare()
            start = self._begin()
            with self.state.tracked(self.progress.step) as show:
                if start:
                    show(0, _numbers(start))
                while not self.is_over:
                    self._advance(show, on_step)
            self.finish()
            self.state.processes.wait()  # all processes wait for what the leader writes
            self.state.delete()

    def refuse_equal(self, run: Run) -> None:
        """Refuse scores on dev that training has made all equal, which the ids of documents would rank."""
        values = {score for scores in run.values() for score in scores.values()}
        if self.progress.step and len(values) == 1 and any(len(scores) > 1 for scores in run.values()):
            raise DataError(
                f"{self.state.folder}: after step {self.progress.step} all scores on dev are equal; lower learning_rate"
            )

    @property
    def choice(self) -> str:
        """When the model was best on dev, and how much better than before training; empty without evaluations."""
        found = self.progress
        if found.best_score is None:
            return ""
        start = "" if found.start is None else f"{100 * found.start:.2f} -> "
        return f"best on dev after step {found.best_step}: {start}{100 * found.best_score:.2f}"

    @property
    def evaluations(self) -> int:
        """How often a training of all steps is scored on dev."""
        return self._scores_start + sum(map(self.is_scored_after, range(1, self.steps + 1)))

    def steps_to_time(self) -> Job[int]:
        """Return the steps of a prepared training, for a plan; the first ones are a sample."""

        @without_cudnn_attention
        def take(number: int) -> None:
            self.begin_step(number)
            self.step(number)
            self.progress.step = number + 1

        return Job("train", self.steps, range(self.steps), take, weigh=lambda _: 1.0)

    def run_with_bar(self, step: Step) -> None:
        """Train as ``run`` does, and move a progress bar, past the steps that an earlier run has taken too."""
        taken = 0

        def on_step(number: int, _: StepFacts) -> None:
            nonlocal taken
            step.advance(number - taken)
            taken = number

        self.run(on_step)
        step.advance(self.steps - taken)

    def make_room(self) -> None:
        """Remove what an unfinished training left, so that a worker's files take its place.

        A ``DataError`` says that it is of another training.
        """
        with self.state.alone():
            for path in self.outputs:
                if not path.exists():  # one without its last file: a copy of a worker's was killed
                    shutil.rmtree(path.parent, ignore_errors=True)
            self.state.load()
            if not self.is_finished():
                for path in self.outputs:
                    shutil.rmtree(path.parent, ignore_errors=True)
            self.state.delete()

    def _is_done(self) -> bool:
        if not self.is_finished():
            return False
        self.state.delete()  # a kill may have left it next to the last output
        return True

    def _begin(self) -> StepFacts:
        """Restore the saved state, or score the untrained model where that is wanted; return the facts about it."""
        saved, start = self.state.load(), StepFacts()
        if saved is not None:
            self.progress, parts = saved
            self.load_parts(parts)
        elif self._scores_start:
            self.progress.start, start = self.score_on_dev()
            self.progress.note(self.progress.start)
            self.keep_best()
        self.state.processes.wait()  # all have read before the leader writes
        # Without a saved state a killed run may have left its line about the start, which is scored again.
        self.state.cut_logs(-1 if saved is None else self.progress.step)
        if start and self.dev_log != self.step_log:  # a line of the steps' log is about a step
            self.state.log({"step": 0, **start}, self.dev_log)
        return start

    def _refuse_not_finite(self, facts: StepFacts) -> None:
        """Refuse a step with a number that is none: its update is not what the settings say."""
        for name, value in facts.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise DataError(
                    f"{self.state.folder}: step {self.progress.step + 1}: {name} is {value}; lower the learning rate, "
                    "or raise the temperature where the loss has one"
                )

    def _advance(self, show: LogStep, on_step: OnStep | None) -> None:
        """Take a step, and do what is due after it."""
        progress, scores = self.progress, StepFacts()
        self.begin_step(progress.step)
        begin = time.perf_counter()
        facts = self.step(progress.step)
        self._refuse_not_finite(facts)
        progress.seconds += time.perf_counter() - begin
        progress.step += 1
        if self.is_scored_after(progress.step):
            value, scores = self.score_on_dev()
            if progress.note(value):
                self.keep_best()
        lines: dict[str, StepFacts] = {}
        if self.step_log is not None:
            lines[self.step_log] = facts | ({"seconds": progress.seconds} if self.logs_seconds else {})
        if scores:
            lines[self.dev_log] = lines.get(self.dev_log, {}) | scores
        for name, record in lines.items():
            self.state.log({"step": progress.step, **record}, name)
        show(progress.step, _numbers(facts | scores))
        if on_step:
            on_step(progress.step, facts | scores)
        if not self.is_over and self.is_saved_after(progress.step):
            self.state.save(progress, self.parts())


def _numbers(facts: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in facts.items() if isinstance(value, float)}
