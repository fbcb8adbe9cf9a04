"""Choosing the number of threads: what the user has set is kept, and the faster number wins."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from support.tiny_models import tiny_base

from unimoe.models import threads
from unimoe.models.threads import faster_threads, settle_threads, threads_are_free

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture
def model() -> Any:
    return tiny_base(layers=2).model


def let_it_be_slow_with(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the layer that is probed take longer with this many threads."""

    def layer(**_: Any) -> None:
        time.sleep(0.1 if torch.get_num_threads() == count else 0.002)

    monkeypatch.setattr(threads, "_first_layer", lambda _: (layer, None))


@pytest.mark.parametrize(("slow", "faster"), [(1, 2), (2, 1)])
def test_the_faster_number_is_taken(slow: int, faster: int, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_be_slow_with(slow, monkeypatch)
    assert faster_threads(model) == faster
    assert torch.get_num_threads() == 2
    settle_threads(model)
    assert torch.get_num_threads() == faster


def test_a_model_is_probed_by_one_of_its_layers_and_stays_as_it_is(model: Any) -> None:
    model.model.layers[1].register_forward_pre_hook(lambda *_: pytest.fail("one layer is enough"))
    assert faster_threads(model) in {1, 2}
    assert len(model.model.layers) == 2


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "WORLD_SIZE"])
def test_the_environment_is_kept(name: str, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "2")
    let_it_be_slow_with(2, monkeypatch)
    settle_threads(model)
    assert torch.get_num_threads() == 2


def test_what_a_program_has_set_is_kept(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    let_it_be_slow_with(3, monkeypatch)
    settle_threads(model)
    assert torch.get_num_threads() == 3


def test_the_option_beats_the_environment(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    settle_threads(model, asked=1)
    assert torch.get_num_threads() == 1


def test_only_a_cpu_has_threads_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads_are_free(CPU)
    assert not threads_are_free(torch.device("cuda"))
    monkeypatch.setattr(threads, "_AT_START", 1)
    torch.set_num_threads(1)
    assert not threads_are_free(CPU)
