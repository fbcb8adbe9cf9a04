from __future__ import annotations

import pytest
import torch

from unimoe.core.errors import UsageError
from unimoe.models import device as device_module
from unimoe.models.device import choose_device, choose_dtype, describe_device
from unimoe.results.provenance import processor_name

CPU = torch.device("cpu")


def only_cpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr(torch.backends.mps, "is_available", lambda: False)


class TestDevice:
    def test_the_best_there_is_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        only_cpu(monkeypatch)
        assert choose_device() == CPU
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert choose_device() == torch.device("mps")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert choose_device() == torch.device("cuda")

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("gpu", "unknown; use cpu, cuda or mps"),
            ("cuda:0", "unknown; use cpu, cuda or mps"),
            ("", "unknown; use cpu, cuda or mps"),
            ("cuda", "not found on this machine, which has cpu"),
            ("mps", "not found on this machine, which has cpu"),
        ],
    )
    def test_what_is_not_there_is_refused(self, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
        only_cpu(monkeypatch)
        with pytest.raises(UsageError, match=rf"--device {name}: {words}"):
            choose_device(name)

    def test_the_description_names_processor_and_threads(self) -> None:
        assert processor_name() in describe_device(CPU)
        assert f"{torch.get_num_threads()} thread" in describe_device(CPU)


class TestDtype:
    def test_a_setting_is_honoured_unmeasured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_module, "probe_speed", None)
        assert choose_dtype(CPU, "float16") == torch.float16

    @pytest.mark.parametrize(
        ("gain", "dtype"), [(0.5, torch.float32), (1.2, torch.float32), (3.0, torch.bfloat16)], ids=str
    )
    def test_auto_takes_bfloat16_only_where_it_is_clearly_faster(
        self, monkeypatch: pytest.MonkeyPatch, gain: float, dtype: torch.dtype
    ) -> None:
        monkeypatch.setattr(device_module, "probe_speed", lambda _: {"float32": 1.0, "bfloat16": gain})
        assert choose_dtype(CPU) == dtype

    @pytest.mark.parametrize(("emulated", "trained"), [(True, "float32"), (False, "bfloat16")])
    def test_a_gpu_without_bfloat16_scores_in_float16_and_trains_in_float32(
        self, monkeypatch: pytest.MonkeyPatch, emulated: bool, trained: str
    ) -> None:
        """The speed is made up: there is no GPU here."""
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: not emulated)
        half = device_module._half("cuda")
        assert half == ("float16" if emulated else "bfloat16")
        monkeypatch.setattr(device_module, "probe_speed", lambda _: {"float32": 1.0, half: 4.0})
        assert choose_dtype(torch.device("cuda")) == getattr(torch, half)
        assert choose_dtype(torch.device("cuda"), trains=True) == getattr(torch, trained)
