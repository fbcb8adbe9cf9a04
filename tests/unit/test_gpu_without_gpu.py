"""What a user runs on a GPU, followed without one: no operation on two devices, and no hidden wait for the device.

Tensors of the fake GPU have a shape, a dtype and the device ``cuda``, and no data. Operations on two devices raise, as
on a GPU. Each wait for the device is counted under the function of unimoe that asked for it, and gets a made-up value,
so that a whole batch can be followed. One wait a batch is allowed where its result is needed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from support.experiments import tiny_examples
from support.studies import INPUTS, toy_pools
from support.tiny_models import HIDDEN, PAIRS, SCORERS, Scorer, tiny_base
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unimoe
from unimoe.config import PromptConfig
from unimoe.config.losses import LOSSES
from unimoe.config.training import LoraConfig
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.retrieval.dense import search
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import to_device
from unimoe.studies.heads.eggroll.method import evolution
from unimoe.training.examples import EmbeddingSet, RankingSet
from unimoe.training.steps import Budget, MasterAdamW, embedding_backward, ranking_backward

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


POOLS = toy_pools(8, 6)
PROMPT = PromptConfig(template="chat", instruction="find")
TEXTS = ["the cat sat on the mat", "", "rain " * 80, "a quick sort"]


@pytest.fixture
def gpu() -> Iterator[FakeGPU]:
    with fake_gpu() as found:
        yield found


def test_the_fake_gpu_refuses_a_mix_of_devices_and_counts_waits(gpu: FakeGPU) -> None:
    with pytest.raises(RuntimeError, match="two devices"):
        torch.ones(2) + torch.ones(2, device="cuda")
    x = torch.ones(2, device="cuda")
    x.sum().item()
    x.nonzero()
    x.cpu()
    x[[0, 1]]
    torch.tensor([1.0, 2.0], device=x.device)
    assert gpu.waits == {"a test": 5}


@pytest.mark.parametrize(
    ("packs", "first_layer", "varlen"), [(True, 0, False), (True, 1, False), (True, 1, True), (False, 0, False)]
)
def test_what_many_batches_give_is_fetched_together(packs: bool, first_layer: int, varlen: bool) -> None:
    base = tiny_base(layers=2)  # made before the device is fake, so that its weights are data
    if varlen:
        base.model.bfloat16()
    base.model.set_attn_implementation("sdpa")
    base.model._supports_attention_backend = packs
    with fake_gpu() as gpu:
        to_fake_gpu(base.model)
        model = UnimodelForExp1(base, PROMPT, 128, first_layer, varlen=varlen)
        gpu.waits.clear()
        assert model.rerank(PAIRS, output="margin", token_budget=300).shape == (len(PAIRS),)
        assert model.encode(TEXTS, batch_size=2).shape == (len(TEXTS), HIDDEN)
        assert gpu.waits == {"batching.fetch": 2}


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS)
def test_a_model_of_another_family_waits_once(scorer: Scorer, tmp_path: Path) -> None:
    score, whole = scorer(tmp_path)
    with fake_gpu() as gpu:
        to_fake_gpu(whole)
        gpu.waits.clear()
        assert len(score()) == 2 * len(PAIRS)
        del gpu.waits["cross_encoder.logits"]  # sentence-transformers copies three features of each batch
        assert gpu.waits == {"batching.fetch": 1}


class Training(NamedTuple):
    """A model in training on the GPU, with the examples of both tasks."""

    model: UnimodelForExp1
    ranking: RankingSet
    embedding: EmbeddingSet
    optimizer: MasterAdamW
    waits: Counter[str]


@contextmanager
def training(first_layer: int) -> Iterator[Training]:
    base = tiny_base(layers=2)
    peft = add_lora(base, LoraConfig(first_layer=first_layer), seed=0)
    with fake_gpu() as gpu:
        to_fake_gpu(peft)
        model = UnimodelForExp1(base, PROMPT, 128, first_layer).train()
        ranking, embedding = tiny_examples(model)
        optimizer = MasterAdamW(adapter_parameters(peft), 0.01)
        gpu.waits.clear()
        yield Training(model, ranking, embedding, optimizer, gpu.waits)


WHOLE, PARTS = Budget(tokens=100_000), Budget(tokens=40)


@pytest.mark.parametrize(("first_layer", "budget"), [(0, WHOLE), (1, PARTS)], ids=["whole", "parts"])
def test_a_step_of_a_joint_arm(first_layer: int, budget: Budget) -> None:
    with training(first_layer) as arm:
        ranking_backward(arm.model, arm.ranking, [0, 1], 1.0, LOSSES["softmax"](), budget, 0.5)
        embedding_backward(arm.model, arm.embedding, [0, 1], 1.0, 0.1, budget)
        arm.optimizer.step(1e-3, 1.0)
        # The loss of each task, and the gradient's norm: both are logged, and stop the training if they are not finite.
        assert arm.waits == {"steps.backward_in_parts": 2, "steps.step": 1}


def test_a_ranking_loss_waits_once() -> None:
    """Those of sentence-transformers wait by themselves, and those that sample read what they drew."""
    with training(first_layer=1) as arm:
        for loss in ("approxndcg", "infonce", "marginmse", "supcon", "yes_no"):
            arm.waits.clear()
            ranking_backward(arm.model, arm.ranking, [0, 1], 1.0, LOSSES[loss](), WHOLE, 0.5)
            waits = "steps._pointwise_backward" if loss == "yes_no" else "steps.backward_in_parts"
            assert arm.waits == {waits: 1}, loss


@pytest.mark.parametrize(
    "settings",
    [{}, {"scoring": "dot"}, {"precision": "bfloat16"}, {"adaptive_sigma": True}, {"method": "score_es"}],
    ids=str,
)
def test_a_step_of_evolution_waits_as_often_however_large_its_batch(gpu: FakeGPU, settings: dict[str, Any]) -> None:
    config = TrainConfig.model_validate({"head_output_size": 8, "population_size": 16, **settings})
    pools = to_device(POOLS, CUDA)
    weight = torch.empty(8, INPUTS, device=CUDA)
    method = evolution(config, weight, pools)
    gpu.waits.clear()
    moved, _ = method.step(weight, pools.batch([0]), 0)
    assert moved.device == CUDA
    of_one = gpu.waits.copy()
    gpu.waits.clear()
    method.step(weight, pools.batch(range(len(POOLS))), 0)
    assert gpu.waits == of_one
    assert gpu.waits.total() <= 14  # the batch and the noise go there; what is logged and judged finite comes back


def test_a_dense_search(gpu: FakeGPU) -> None:
    vectors = np.ones((40, 8), dtype=np.float32) / np.sqrt(8, dtype=np.float32)
    ids = [f"d{row}" for row in range(40)]
    search(vectors[:3], ["a", "b", "c"], vectors, ids, 5, device=CUDA, block_bytes=4 * 8 * 20)
    # The queries, each block, and of each block: its longest vector, the k-th scores, how many are good, and which.
    assert gpu.waits <= Counter({"dense._find_by_torch": 1 + 6 * 2})


def test_similarities_are_on_the_cpu_where_mteb_reads_them(gpu: FakeGPU) -> None:
    wrapper, vectors = MTEBEncoderWrapper(cast(Any, SimpleNamespace(device=CUDA))), np.ones((2, 3), dtype=np.float32)
    assert {f(vectors, vectors).device.type for f in (wrapper.similarity, wrapper.similarity_pairwise)} == {"cpu"}
