"""A GPU that is not there: its tensors have a shape, a dtype and the device ``cuda``, and no data.

Operations on two devices raise, as on a GPU. Each wait for the device is counted under the function of unimoe that
asked for it, and gets a made-up value, so that a whole batch can be followed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unimoe

CUDA = torch.device("cuda", 0)
_SOURCE = str(Path(unimoe.__file__).parent)
_aten = torch.ops.aten
_is_composite = torch._C._dispatch_has_kernel_for_dispatch_key


class FakeGPU(TorchDispatchMode):
    """Counts waits.

    Attributes:
        waits: how often each function waited, by ``module.function``: it read a value of the device, asked for places
            whose number depends on values, or copied from pageable memory without ``non_blocking``.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func.namespace == "aten" and _is_composite(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode they come whole, and would hide what they are made of
                return func.decompose(*args, **options)
        tensors = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, Tensor)]
        on_gpu = [tensor.device.type == "cuda" for tensor in tensors]
        if func is _aten._local_scalar_dense.default:
            self._note(any(on_gpu))
            if args[0].dtype == torch.bool:  # all is well, and nothing is wrong
                return not getattr(args[0], "says_any", False)
            return 1.0 if args[0].is_floating_point() else 1
        if func is _aten.equal.default:
            self._note(any(on_gpu))
            return False
        if func is _aten.nonzero.default:
            self._note(any(on_gpu))
            return args[0].new_empty(0, args[0].dim(), dtype=torch.int64)
        if func in {_aten._to_copy.default, _aten.copy_.default}:
            target = torch.device(options.get("device") or args[0].device).type == "cuda"
            # copy_(to, from, non_blocking): a copy to the CPU waits, and one from unpinned memory too.
            source = args[1] if func is _aten.copy_.default else args[0]
            blocks = not (options.get("non_blocking") or (func is _aten.copy_.default and args[2:3] == (True,)))
            crosses = target != (source.device.type == "cuda") and source.dim() > 0
            self._note(crosses and (blocks or not target))
        elif func in {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default} and any(on_gpu):
            indices = [index for index in args[1] if index is not None]
            # A bool index has as many places as values say; one on the CPU is copied first.
            self._note(any(index.device.type != "cuda" or index.dtype == torch.bool for index in indices))
            args = (args[0], [place for index in args[1] for place in _places(index)], *args[2:])
        found = func(*args, **options)
        if func is _aten.any.default:
            found.says_any = True
        return found

    def _note(self, waits: bool) -> None:
        if not waits:
            return
        frame: Any = sys._getframe(2)
        while frame and not (frame.f_code.co_filename.startswith(_SOURCE) and frame.f_code.co_name[0] != "<"):
            frame = frame.f_back
        name = f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}" if frame else "a test"
        self.waits[name] += 1


def _places(index: Tensor | None) -> list[Tensor | None]:
    """An index as places; none of a bool one is known."""
    if index is None or index.dtype != torch.bool:
        return [index]
    return [index.new_empty(0, dtype=torch.int64)] * index.dim()


@contextmanager
def fake_gpu() -> Iterator[FakeGPU]:
    """Make tensors fake while the block runs, ``cuda`` among their devices."""
    gpu = FakeGPU()
    with pytest.MonkeyPatch.context() as patch:
        # What asks for a driver.
        patch.setattr(torch.cuda, "device", nullcontext)
        patch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
        patch.setattr(Tensor, "numpy", _numpy)
        patch.setattr(Tensor, "backward", _backward)
        patch.setattr(torch.autograd, "grad", lambda outputs, leaf, *_: (torch.zeros_like(leaf),))
        with FakeTensorMode(allow_non_fake_inputs=True), gpu:
            yield gpu


def to_fake_gpu(module: nn.Module) -> None:
    """Move a module whose weights were made on the CPU, whatever has wrapped it."""
    moved: dict[int, Any] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in moved:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=CUDA)
            is_weight = isinstance(tensor, nn.Parameter)
            moved[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_weight else empty
        found: Tensor = moved[id(tensor)]
        return found

    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    cast(dict[str, Any], held)[name] = fake(tensor)


def _numpy(tensor: Tensor, **_: Any) -> Any:
    if tensor.device.type != "cpu":
        raise TypeError("can't convert a tensor of a GPU to numpy; call .cpu() first")
    dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
    return np.ones(tuple(tensor.shape), dtype)


def _backward(loss: Tensor, gradient: Tensor | None = None) -> None:
    """Give every leaf of a graph a gradient: autograd's own engine asks for the device."""
    assert isinstance(loss, FakeTensor)
    pending, seen = [loss.grad_fn], set[Any]()
    assert loss.grad_fn is not None
    while pending:
        node: Any = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaf.grad = torch.zeros_like(leaf)
        pending += [before for before, _ in node.next_functions]
