"""Networks that translate captions into the space of the images, and such a network as a ``Translator``.

Inputs are standardised and the learnt part of the output is scaled to the spread of the images, so one learning rate
fits encoders of any scale. The scales come from the training data and are stored with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.studies.translator.data.caption_pairs import Floats
from unimoe.studies.translator.models.interface import Doubles, LinearMap, Numbers, refuse_width, unit

_HIDDEN_LAYERS = {"linear": 0, "mlp1": 1, "mlp2": 2}
_BLOCK = 16_384
"""Captions translated at once."""


@dataclass(frozen=True)
class Scales:
    """Means ``(Dx,)`` and ``(Dy,)`` of the training data, and root mean squares of the centred entries."""

    caption_mean: Doubles
    caption_scale: float
    image_mean: Doubles
    image_scale: float

    @classmethod
    def of(cls, captions: Numbers, images: Numbers) -> Scales:
        """Measure captions ``(N, Dx)`` and unique images ``(M, Dy)``."""
        return cls(*_spread(captions), *_spread(images))


class NetworkTranslator(nn.Module):
    """Computes ``y = base(x) + image_scale * layers((x - caption_mean) / caption_scale)``; see also ``Translator``.

    Without a base, the mean image takes its place.

    Args:
        scales: of the training data.
        hidden: width of the hidden layers.
        layers: number of hidden layers.
        base: a closed form under a residual adapter, frozen until training unfreezes it. The adapter's last layer
            starts at zero, so the first predictions are the closed form's.
        generator: of the first weights; by default torch's.

    Attributes:
        base: the closed form as a layer, in float32, or None.
        layers: the layers learnt from random weights.
        centre: ``(Dy,)`` subtracted from translations and images before the cosine; None for the plain cosine.
        notes: how it was made.
    """

    caption_mean: Tensor
    caption_scale: Tensor
    image_mean: Tensor
    image_scale: Tensor

    def __init__(
        self,
        scales: Scales,
        hidden: int,
        layers: int,
        base: LinearMap | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.centre: Doubles | None = None
        self.notes = () if base is None else base.notes
        for name, value in vars(scales).items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        widths = [len(scales.caption_mean), *[hidden] * layers, len(scales.image_mean)]
        self.layers = nn.Sequential()
        for place, (width, after) in enumerate(pairwise(widths)):
            if place:
                self.layers.append(nn.GELU())
            layer = nn.Linear(width, after)
            if place == layers:
                nn.init.xavier_uniform_(layer.weight, generator=generator)
            else:
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
            self.layers.append(layer)
        self.base: nn.Linear | None = None
        if base is not None:
            self.base = nn.Linear(widths[0], widths[-1]).requires_grad_(False)
            self.base.weight.copy_(torch.from_numpy(base.weight))
            self.base.bias.copy_(torch.from_numpy(base.bias))
            nn.init.zeros_(cast(nn.Linear, self.layers[-1]).weight)

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
        refuse_width(captions, self.input_dim, "captions")
        vectors = torch.from_numpy(np.ascontiguousarray(captions, dtype=np.float32))
        blocks = (vectors[begin : begin + _BLOCK] for begin in range(0, len(vectors), _BLOCK))
        with torch.inference_mode():
            parts = [self(block.to(self.caption_mean.device)).cpu() for block in blocks]
        found: Floats = torch.cat(parts).numpy()
        return found

    def translate(self, captions: Numbers) -> Floats:
        """See ``Translator``."""
        predicted = self.predict(captions)
        return unit(predicted if self.centre is None else predicted - self.centre.astype(np.float32))

    def gallery(self, images: Numbers) -> Floats:
        """See ``Translator``."""
        refuse_width(images, self.image_mean.numel(), "images")
        return unit(images if self.centre is None else images - self.centre)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return weights and centre, for a file."""
        found = {name: tensor.detach().cpu().numpy() for name, tensor in self.state_dict().items()}
        return found if self.centre is None else found | {"centre": self.centre}


def make_network(
    model: str, scales: Scales, hidden: int, seed: int, base: LinearMap | None = None, *, centred: bool = False
) -> NetworkTranslator:
    """Make an untrained network: ``linear``, ``mlp1``, ``mlp2``, or else an adapter of one hidden layer on ``base``."""
    generator = torch.Generator().manual_seed(seed)
    network = NetworkTranslator(scales, hidden, _HIDDEN_LAYERS.get(model, 1), base, generator)
    network.centre = scales.image_mean if centred else None
    return network


def network_from(tensors: dict[str, NDArray[Any]], notes: tuple[str, ...] = ()) -> NetworkTranslator:
    """Rebuild a network from ``NetworkTranslator.tensors``; their shapes give its layers."""
    kept = {name: np.array(tensor) for name, tensor in tensors.items()}
    centre = kept.pop("centre", None)
    weights = [name for name in kept if name.startswith("layers.") and name.endswith(".weight")]
    scales = Scales(kept["caption_mean"], 1.0, kept["image_mean"], 1.0)
    base = LinearMap(kept["base.weight"], kept["base.bias"]) if "base.weight" in kept else None
    network = NetworkTranslator(scales, len(kept["layers.0.weight"]), len(weights) - 1, base)
    network.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in kept.items()})
    network.centre, network.notes = centre, notes
    return network.eval()


def _spread(vectors: Numbers) -> tuple[Doubles, float]:
    """Return the mean, and the root mean square of the centred entries; 1 where nothing varies."""
    deviation = float(np.sqrt(vectors.var(axis=0, dtype=np.float64).mean()))
    return vectors.mean(axis=0, dtype=np.float64), deviation or 1.0
