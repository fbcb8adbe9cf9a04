from __future__ import annotations

import platform
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from unimoe.config.base import Dtype
from unimoe.core.errors import UsageError
from unimoe.models import device as device_module
from unimoe.models.device import choose_device, choose_dtype, describe_device, probe_speed
from unimoe.results.provenance import processor_name

CPU = torch.device("cpu")


def only_cpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr(torch.backends.mps, "is_available", lambda: False)


class TestDevice:
    def test_the_cpu_is_always_there(self) -> None:
        assert choose_device("cpu") == CPU

    def test_the_best_there_is_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        only_cpu(monkeypatch)
        assert choose_device() == CPU
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert choose_device() == torch.device("mps")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert choose_device() == torch.device("cuda")

    @pytest.mark.parametrize("name", ["gpu", "cuda:0", "CPU", ""])
    def test_an_unknown_device_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError, match=rf"--device {name}: unknown; use cpu, cuda or mps"):
            choose_device(name)

    @pytest.mark.parametrize("name", ["cuda", "mps"])
    def test_an_absent_device_is_refused(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        only_cpu(monkeypatch)
        with pytest.raises(UsageError, match=rf"--device {name}: not found on this machine, which has cpu"):
            choose_device(name)

    def test_the_description_names_processor_and_threads(self) -> None:
        assert processor_name() in describe_device(CPU)
        assert f"{torch.get_num_threads()} thread" in describe_device(CPU)


class TestDtype:
    @pytest.mark.parametrize(
        ("setting", "dtype"),
        [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)],
    )
    def test_a_setting_is_honoured_unmeasured(
        self, monkeypatch: pytest.MonkeyPatch, setting: Dtype, dtype: torch.dtype
    ) -> None:
        monkeypatch.setattr(device_module, "probe_speed", None)
        assert choose_dtype(CPU, setting) == dtype

    @pytest.mark.parametrize(
        ("gain", "dtype"), [(0.5, torch.float32), (1.2, torch.float32), (3.0, torch.bfloat16)], ids=str
    )
    def test_auto_takes_bfloat16_only_where_it_is_clearly_faster(
        self, monkeypatch: pytest.MonkeyPatch, gain: float, dtype: torch.dtype
    ) -> None:
        monkeypatch.setattr(device_module, "probe_speed", lambda _: {"float32": 1.0, "bfloat16": gain})
        assert choose_dtype(CPU) == dtype

    @pytest.mark.parametrize(
        ("emulated", "scores", "trains"), [(True, "float16", "float32"), (False, *["bfloat16"] * 2)]
    )
    def test_a_gpu_without_bfloat16_scores_in_float16(
        self, monkeypatch: pytest.MonkeyPatch, emulated: bool, scores: str, trains: str
    ) -> None:
        """The time of a product is made up: there is no GPU here."""
        seconds = iter([0.0, 0.0, 0.0, 4.0, 4.0, 5.0, 9.0])  # float32 takes four times as long
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: not emulated)
        monkeypatch.setattr(device_module, "_product", lambda *_: lambda: None)
        monkeypatch.setattr(device_module, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
        probe_speed.cache_clear()
        try:
            assert str(choose_dtype(torch.device("cuda"))) == f"torch.{scores}"
            assert str(choose_dtype(torch.device("cuda"), trains=True)) == f"torch.{trains}"
        finally:
            probe_speed.cache_clear()

    def test_the_probe_measures_both_once(self) -> None:
        speeds = probe_speed("cpu")
        assert set(speeds) == {"float32", "bfloat16"}
        assert all(speed > 0 for speed in speeds.values())
        assert probe_speed("cpu") is speeds


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_the_pages_of_freed_tensors_are_kept() -> None:
    code = """
import resource, torch
from unimoe.models.device import keep_freed_memory
keep_freed_memory()
for round in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        layer = [torch.zeros(2**21) for _ in range(8)]
        del layer
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    pages = 20 * 8 * 2**23 / resource.getpagesize()  # 8 MiB each
    assert int(run.stdout) < pages / 100
