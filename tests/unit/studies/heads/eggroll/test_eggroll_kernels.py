from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch

from unimoe.studies.heads.eggroll.kernels import machine_code, takes_machine_code


def test_without_a_place_for_the_cache_it_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = numba.njit

    def refuse(*arguments: Any, **options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return compiled(*arguments, **options)

    def twice(values: np.ndarray[Any, Any]) -> Any:
        return 2 * values

    monkeypatch.setattr(numba, "njit", refuse)
    assert machine_code(twice)(np.arange(3)).tolist() == [0, 2, 4]


def test_only_numbers_of_numpy_on_the_cpu_are_taken() -> None:
    assert takes_machine_code(torch.zeros(1))
    assert takes_machine_code(torch.zeros(1, dtype=torch.float64))
    assert not takes_machine_code(torch.zeros(1, dtype=torch.bfloat16))
    assert not takes_machine_code(torch.zeros(1, device="meta"))
