"""Translators from the embedding of a caption to that of its image: the two results of a closed form, and networks.

``translate`` maps captions ``(n, Dx)`` and ``gallery`` maps images ``(m, Dy)`` into one space, as float32 of unit
length, and the cosine ranks images there. It is the images' own space, except for canonical correlations. Both raise
``DataError`` for vectors of other dimensions, and ``InputError`` with the index of one that ends up zero or not finite.
``notes`` are sentences about how a translator was made.

On disk: a folder with one safetensors file and a manifest that describes it; and their submissions.
"""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from unimoe.core.errors import DataError, InputError
from unimoe.core.io import atomic_dir, atomic_path, hash_file, read_json, write_json
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Floats

Doubles = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]

TIMED_BATCH = 512
_WARMUP, _ROUNDS = 3, 15
_BLOCK = 16_384  # captions that a network translates at once
_HIDDEN_LAYERS = {"linear": 0, "mlp1": 1, "mlp2": 2}
TENSORS_FILE, MANIFEST_FILE = "translator.safetensors", "translator.json"
_NETWORK = "network"


@dataclass(frozen=True)
class LinearMap:
    """A translator into the space of the images, ``y = weight x + bias``.

    Attributes:
        weight: ``(Dy, Dx)`` float64.
        bias: ``(Dy,)`` float64.
        centre: ``(Dy,)`` subtracted from translations and images before the cosine; None for the plain cosine.
    """

    weight: Doubles
    bias: Doubles
    centre: Doubles | None = None
    notes: tuple[str, ...] = ()

    @property
    def input_dim(self) -> int:
        """Dimensions of a caption's embedding."""
        return int(self.weight.shape[1])

    def predict(self, captions: Numbers) -> Floats:
        """Predict the images' embeddings, ``(n, Dy)`` float32, neither centred nor normalised."""
        return _affine(captions, self.weight, self.bias, "captions")

    def translate(self, captions: Numbers) -> Floats:
        """Map captions; see the module."""
        bias = self.bias if self.centre is None else self.bias - self.centre
        return unit(_affine(captions, self.weight, bias, "captions"))

    def gallery(self, images: Numbers) -> Floats:
        """Map images; see the module."""
        _refuse_width(images, len(self.bias), "images")
        return unit(images if self.centre is None else images - self.centre)


@dataclass(frozen=True)
class ProjectionPair:
    """A translator into a separate space of ``k`` dimensions, with an affine map of each side.

    Attributes:
        caption_weight, caption_bias: ``(k, Dx)`` and ``(k,)`` float64.
        image_weight, image_bias: ``(k, Dy)`` and ``(k,)`` float64.
        correlations: ``(k,)`` canonical correlations, descending.
    """

    caption_weight: Doubles
    caption_bias: Doubles
    image_weight: Doubles
    image_bias: Doubles
    correlations: Doubles
    notes: tuple[str, ...] = ()

    @property
    def input_dim(self) -> int:
        """Dimensions of a caption's embedding."""
        return int(self.caption_weight.shape[1])

    def translate(self, captions: Numbers) -> Floats:
        """Map captions; see the module."""
        return unit(_affine(captions, self.caption_weight, self.caption_bias, "captions"))

    def gallery(self, images: Numbers) -> Floats:
        """Map images; see the module."""
        return unit(_affine(images, self.image_weight, self.image_bias, "images"))


class NetworkTranslator(nn.Module):
    """Computes ``y = base(x) + image_scale * layers((x - caption_mean) / caption_scale)``.

    Standardised inputs and the images' scale let one learning rate fit encoders of any scale. Both are measured on the
    training data and kept with the weights. Without a base, the mean image takes its place.

    Args:
        dims: of captions and images.
        hidden: width of the hidden layers.
        layers: number of hidden layers.
        has_base: whether a closed form lies under the layers, frozen until training unfreezes it.

    Attributes:
        centre: ``(Dy,)`` subtracted from translations and images before the cosine; None for the plain cosine.
    """

    caption_mean: Tensor
    caption_scale: Tensor
    image_mean: Tensor
    image_scale: Tensor

    def __init__(self, dims: tuple[int, int], hidden: int, layers: int, *, has_base: bool) -> None:
        super().__init__()
        self.centre: Doubles | None = None
        self.notes: tuple[str, ...] = ()
        for side, size in zip(("caption", "image"), dims, strict=True):
            self.register_buffer(f"{side}_mean", torch.zeros(size))
            self.register_buffer(f"{side}_scale", torch.ones(()))
        self.layers = nn.Sequential()
        for width, after in pairwise([dims[0], *[hidden] * layers, dims[1]]):
            if len(self.layers):
                self.layers.append(nn.GELU())
            self.layers.append(nn.Linear(width, after))
        self.base = nn.Linear(*dims).requires_grad_(False) if has_base else None

    def forward(self, captions: Tensor) -> Tensor:
        """Predict images ``(n, Dy)`` for captions ``(n, Dx)``, neither centred nor normalised."""
        learnt: Tensor = self.image_scale * self.layers((captions - self.caption_mean) / self.caption_scale)
        return learnt + (self.image_mean if self.base is None else self.base(captions))

    @property
    def input_dim(self) -> int:
        """Dimensions of a caption's embedding."""
        return self.caption_mean.numel()

    def predict(self, captions: Numbers) -> Floats:
        """Predict the images' embeddings, ``(n, Dy)`` float32, neither centred nor normalised."""
        _refuse_width(captions, self.input_dim, "captions")
        blocks = torch.split(torch.from_numpy(np.ascontiguousarray(captions, dtype=np.float32)), _BLOCK)
        with torch.inference_mode():
            found: Floats = torch.cat([self(block.to(self.caption_mean.device)).cpu() for block in blocks]).numpy()
        return found

    def translate(self, captions: Numbers) -> Floats:
        """Map captions; see the module."""
        predicted = self.predict(captions)
        return unit(predicted if self.centre is None else predicted - self.centre.astype(np.float32))

    def gallery(self, images: Numbers) -> Floats:
        """Map images; see the module."""
        _refuse_width(images, self.image_mean.numel(), "images")
        return unit(images if self.centre is None else images - self.centre)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return weights and centre, for a file."""
        found = {name: tensor.detach().cpu().numpy() for name, tensor in self.state_dict().items()}
        return found if self.centre is None else found | {"centre": self.centre}


Translator: TypeAlias = LinearMap | ProjectionPair | NetworkTranslator


@torch.no_grad()
def make_network(
    model: str, pairs: CaptionPairs, hidden: int, seed: int, base: LinearMap | None = None, *, centred: bool = False
) -> NetworkTranslator:
    """Make an untrained network for training pairs: ``linear``, ``mlp1``, ``mlp2``, or else an adapter on ``base``.

    An adapter has one hidden layer, and its last layer starts at zero: the first predictions are the closed form's.
    """
    dims, generator = (pairs.captions.shape[1], pairs.images.shape[1]), torch.Generator().manual_seed(seed)
    network = NetworkTranslator(dims, hidden, _HIDDEN_LAYERS.get(model, 1), has_base=base is not None)
    for side, vectors in (("caption", pairs.captions), ("image", pairs.images)):
        mean = vectors.mean(axis=0, dtype=np.float64)
        spread = float(np.sqrt(vectors.var(axis=0, dtype=np.float64).mean())) or 1.0  # of the centred entries
        getattr(network, f"{side}_mean").copy_(torch.from_numpy(mean))
        getattr(network, f"{side}_scale").fill_(spread)
        network.centre = mean if centred else None  # the images', which come last
    *inner, last = [layer for layer in network.layers if isinstance(layer, nn.Linear)]
    for layer in inner:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    nn.init.xavier_uniform_(last.weight, generator=generator)
    for layer in (*inner, last):
        nn.init.zeros_(layer.bias)
    if base is not None and network.base is not None:
        network.notes = base.notes
        network.base.weight.copy_(torch.from_numpy(base.weight))
        network.base.bias.copy_(torch.from_numpy(base.bias))
        nn.init.zeros_(last.weight)
    return network


def network_from(tensors: Mapping[str, NDArray[Any]]) -> NetworkTranslator:
    """Rebuild a network from ``NetworkTranslator.tensors``; their shapes give its layers."""
    weights = [name for name in tensors if name.startswith("layers.") and name.endswith(".weight")]
    dims, hidden = (len(tensors["caption_mean"]), len(tensors["image_mean"])), len(tensors["layers.0.weight"])
    network = NetworkTranslator(dims, hidden, len(weights) - 1, has_base="base.weight" in tensors)
    network.load_state_dict({n: torch.from_numpy(np.array(t)) for n, t in tensors.items() if n != "centre"})
    network.centre = tensors.get("centre")
    return network.eval()


def unit(vectors: Numbers) -> Floats:
    """Return vectors as float32 of unit length.

    Raises:
        InputError: one is zero or not finite; carries its index.
    """
    floats = np.array(vectors, dtype=np.float32)
    norms = np.sqrt(np.einsum("nd,nd->n", floats, floats, dtype=np.float64))
    bad = ~(np.isfinite(norms) & (norms > 0))
    if bad.any():
        row = int(bad.argmax())
        why = "zero" if norms[row] == 0 else "not finite"
        raise InputError(row, f"the vector is {why}, so it has no direction; check its embedding")
    floats /= norms[:, None].astype(np.float32)
    return floats


def milliseconds_per_query(translator: Translator) -> float:
    """Time the translation of random captions in batches of ``TIMED_BATCH``: milliseconds per caption, the median.

    Time runs from vectors in memory to unit vectors in memory, so a GPU's transfers count.
    """
    captions = np.random.default_rng(0).standard_normal((TIMED_BATCH, translator.input_dim)).astype(np.float32)
    times = []
    for _ in range(_WARMUP + _ROUNDS):
        start = time.perf_counter()
        translator.translate(captions)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[_WARMUP:]) / TIMED_BATCH


def _affine(vectors: Numbers, weight: Doubles, bias: Doubles, what: str) -> Floats:
    _refuse_width(vectors, weight.shape[1], what)
    mapped: Floats = np.asarray(vectors, dtype=np.float32) @ weight.T.astype(np.float32)
    return mapped + bias.astype(np.float32)


def _refuse_width(vectors: Numbers, width: int, what: str) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise DataError(
            f"{what} of shape {vectors.shape}, but the translator was made for {width} dimensions; "
            "use the encoder it was made with, or make it again"
        )


_CLOSED_FORMS: dict[str, type[LinearMap] | type[ProjectionPair]] = {
    "linear_map": LinearMap,
    "projection_pair": ProjectionPair,
}


class Manifest(BaseModel):
    """What a translator's folder says about it.

    Attributes:
        kind: ``network``, ``linear_map`` or ``projection_pair``.
        settings: JSON that its maker wrote about it.
        notes: how it was made.
        tensors_hash: content hash of the tensors' file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    translator_version: Literal[1] = 1
    kind: str
    settings: dict[str, Any]
    notes: list[str]
    tensors_hash: str


def translator_tensors(translator: Translator) -> dict[str, NDArray[Any]]:
    """Return the arrays of a translator by name, as a file holds them."""
    if isinstance(translator, NetworkTranslator):
        return translator.tensors()
    return {name: array for name, array in vars(translator).items() if isinstance(array, np.ndarray)}


def save_translator(folder: Path, translator: Translator, settings: Mapping[str, Any]) -> None:
    """Write a translator with JSON about it.

    The folder is replaced as a whole: a crash leaves the old one, none or the new one.
    """
    kind = next((kind for kind, made in _CLOSED_FORMS.items() if isinstance(translator, made)), _NETWORK)
    with atomic_dir(folder) as temporary:
        file = temporary / TENSORS_FILE
        tensors = translator_tensors(translator)
        safetensors.numpy.save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, file)
        notes = list(translator.notes)
        manifest = Manifest(kind=kind, settings=dict(settings), notes=notes, tensors_hash=hash_file(file))
        write_json(temporary / MANIFEST_FILE, manifest.model_dump())


def read_manifest(folder: Path) -> Manifest:
    """Read a translator's manifest, and verify its tensors."""
    file, path = folder / TENSORS_FILE, folder / MANIFEST_FILE
    for part in (folder, file, path):
        if not part.exists():
            raise DataError(f"{folder}: not a whole translator, {part.name} is missing; train it")
    manifest = read_json(path, Manifest, "train it again with this unimoe")
    if hash_file(file) != manifest.tensors_hash:
        raise DataError(f"{file}: content differs from its manifest (damaged or replaced); train it again")
    return manifest


def load_translator(folder: Path, device: torch.device | None = None) -> Translator:
    """Load a translator of any kind; a network computes on ``device``, by default the CPU."""
    manifest, tensors = read_manifest(folder), safetensors.numpy.load_file(folder / TENSORS_FILE)
    try:
        if manifest.kind != _NETWORK:
            return _CLOSED_FORMS[manifest.kind](**tensors, notes=tuple(manifest.notes))
        network = network_from(tensors)
    except (KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{folder}: no {manifest.kind} that this unimoe makes ({error}); train it again") from None
    network.notes = tuple(manifest.notes)
    return network.to(device or torch.device("cpu"))


def write_submission(path: Path, ids: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
    """Write translated captions ``(N, D)`` as a CSV of two columns, ``id,embedding``, in the order of their ids.

    An embedding, of unit length, is a list of numbers with 17 significant digits in one quoted field, as JSON writes
    lists, so every float64 is read back exactly.

    Raises:
        DataError: an id is empty.
        InputError: a vector is zero or not finite; carries its index.
    """
    if "" in ids:
        raise DataError(f"{path}: an id is empty; give every caption its own id")
    doubles = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(doubles, axis=1, keepdims=True)
    bad = ~(np.isfinite(norms) & (norms > 0))[:, 0]
    if bad.any():
        raise InputError(int(bad.argmax()), "the vector is zero or not finite, so that it has no direction")
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "embedding"])
        for key, vector in zip(ids, doubles / norms, strict=True):
            writer.writerow([key, f"[{', '.join(f'{value:.17g}' for value in vector.tolist())}]"])
