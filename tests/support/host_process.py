"""What a process that imports unimoe has of its own, and a program that calls each public function and looks again.

``python host_process.py FOLDER`` prints, as JSON, what each call changed; ``FOLDER`` holds a tiny model and encoder.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import locale
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

RUN = {f"q{n}": {"d1": 2.0 - n % 3, "d2": 1.0, "d3": 0.5} for n in range(8)}
OTHER = {query: {"d1": 1.0, "d2": 2.0, "d3": 0.1 * len(query)} for query in RUN}
QRELS = {query: {"d1": 1, "d2": 0} for query in RUN}


_mallopt: list[int] = []


class _Library(ctypes.CDLL):
    """The C library, which notes each setting of its memory."""

    def __getattr__(self, name: str) -> Any:
        if name == "mallopt":
            _mallopt.append(1)
        return super().__getattr__(name)


def snapshot() -> dict[str, Any]:
    """Return the state of this process that a library might change, by name; values compare by ``==``."""
    cuda: Any = torch.backends.cuda
    return {
        "environment": dict(os.environ),
        "sdp": [cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled(),
                cuda.mem_efficient_sdp_enabled()],
        "tf32": [cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()],
        "cudnn": [torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled],
        "threads of torch": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch": [torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype(), torch.is_grad_enabled(),
                  torch.is_inference_mode_enabled(), torch.is_anomaly_enabled(), str(torch.get_default_device())],
        "signals": {name: signal.getsignal(name) for name in signal.valid_signals()},
        "warnings": [*warnings.filters],
        "showwarning": warnings.showwarning,
        "matplotlib": [dict(mpl.rcParams), mpl.get_backend(auto_select=False)],
        "numpy": [np.geterr(), np.get_printoptions()],
        "logging": [logging.root.level, [*logging.root.handlers], logging.root.manager.disable, logging.lastResort],
        "locale": locale.setlocale(locale.LC_ALL),
        "folder": str(Path.cwd()),
        "sys.path": [*sys.path],
        "meta path": [*sys.meta_path],
        "hooks": [sys.excepthook, threading.excepthook, sys.displayhook, sys.unraisablehook],
        "streams": [sys.stdin, sys.stdout, sys.stderr],
        "recursion": sys.getrecursionlimit(),
        "random": random.getstate(),
        "random of numpy": [str(part) for part in np.random.get_state()],
        "random of torch": torch.get_rng_state().tolist(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "settings of the C library": len(_mallopt),
        "children": [child.pid for child in multiprocessing.active_children()],
    }  # fmt: skip


def by_length(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(document)) for _, document in pairs]


def calls(folder: Path) -> dict[str, Callable[[], object]]:
    """Return a call of each public function, on data that is small."""
    import unimoe

    compared = {"a": RUN, "b": OTHER}
    files = {"run": folder / "r.trec", "qrels": folder / "q.qrels"}
    files["run"].write_text("".join(f"{q} Q0 {d} 1 {s} t\n" for q, ds in RUN.items() for d, s in ds.items()))
    files["qrels"].write_text("".join(f"{q} 0 {d} {g}\n" for q, ds in QRELS.items() for d, g in ds.items()))
    toy, encoder, outputs = f"path:{folder / 'toy'}", folder / "encoder", folder / "outputs"
    arms = [outputs / arm / "seed_0" for arm in ("rank_only_r8", "joint_r8")]
    config = unimoe.load_experiment(folder / "tiny.yaml")
    return {
        "read_run": lambda: unimoe.read_run(files["run"]),
        "read_qrels": lambda: unimoe.read_qrels(files["qrels"]),
        "score_run": lambda: unimoe.score_run(QRELS, RUN).plot(),
        "score_run_file": lambda: unimoe.score_run_file(files["run"], files["qrels"]),
        "compare": lambda: unimoe.compare(compared, QRELS).plot(),
        "compare_statistic": lambda: unimoe.compare_statistic(unimoe.compare(compared, QRELS), np.median, "a", "b"),
        "tir": lambda: unimoe.tir(unimoe.compare(compared, QRELS), "a", "b"),
        "judge": lambda: unimoe.judge(unimoe.compare(compared, QRELS)),
        "load_collection": lambda: [unimoe.load_collection(name) for name in (toy, "apidocs")],
        "bm25_candidates": lambda: unimoe.bm25_candidates(toy),
        "evaluate_reranker": lambda: unimoe.evaluate_reranker(by_length, toy).plot(),
        "load_encoder": lambda: unimoe.load_encoder(str(encoder), device="cpu").encode(["a heron"]),
        "evaluate_encoder": lambda: unimoe.evaluate_encoder(unimoe.load_encoder(str(encoder), device="cpu"), toy),
        "load_model": lambda: unimoe.load_model(config.model, device="cpu").rerank([("a heron", "it waits")]),
        "load_experiment": lambda: unimoe.load_experiment("experiments/bundled"),
        "evaluate_beir": lambda: unimoe.evaluate_beir(by_length, None, config, toy),
        "run_experiment": lambda: unimoe.run_experiment(folder / "tiny.yaml", {"seeds": [0]}, device="cpu"),
        "load_all_results": lambda: unimoe.load_all_results(outputs),
        "parity": lambda: unimoe.parity(*arms),
        "a name of mteb": lambda: unimoe.load_collection("mteb:NoSuchTask"),
    }


def main() -> None:
    """Print what the import and each call changed, and how calls ended."""
    folder = Path(sys.argv[1])
    for library in (
        "pandas",
        "scipy.stats",
        "sklearn",
        "transformers",
        "peft",
        "sentence_transformers",
        "matplotlib.pyplot",
    ):
        importlib.import_module(library)  # what other libraries' imports do is theirs
    ctypes.CDLL = _Library  # type: ignore[misc]
    before = snapshot()
    changed: dict[str, list[str]] = {}
    ended: dict[str, str] = {}
    importlib.import_module("unimoe")
    changed["import"] = differing(before, snapshot())
    for name, call in calls(folder).items():
        before = snapshot()
        try:
            call()
            ended[name] = ""
        except Exception as error:
            ended[name] = f"{type(error).__name__}: {error}"
        changed[name] = differing(before, snapshot())
    json.dump({"changed": changed, "ended": ended}, sys.stdout)


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what differs, with both values where they are short."""
    names = [name for name in before if before[name] != after[name]]
    return [f"{name}: {_shown(before[name], after[name])}" for name in names]


def _shown(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        keys = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        return ", ".join(f"{key} {before.get(key)!r} -> {after.get(key)!r}" for key in sorted(map(str, keys)))
    return f"{str(before)[:200]} -> {str(after)[:200]}"


if __name__ == "__main__":
    main()
