"""The translator's closed forms, ranking, and the loss of its training.

    uv run benchmarks/translator.py

closed_form_rows_per_s  captions a second of ridge from 1,024 to 1,536 dimensions over 120,000 random captions of 24,000
                        images: the moments in float64, then the map of one penalty
rank_vs_naive           5,000 captions ranked among 5,000 images of 1,536 dimensions, by counting float64 scores in
                        blocks, with exact ties, as a speed-up over the whole float32 matrix of scores sorted by
                        argsort; alternating pairs, median
infonce_vs_floor        InfoNCE of 512 captions over a bank of 30,000 images of 1,536 dimensions, forward and backward,
                        over the time of the two matrix products that it cannot do without (smaller is better);
                        alternating, median
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from timing import in_turn, seconds
from unimoe.models.device import describe_device
from unimoe.studies.translator.data.caption_pairs import CaptionPairs
from unimoe.studies.translator.evaluation import image_ranks
from unimoe.studies.translator.training.closed_forms import PairMoments, fit_ridge
from unimoe.studies.translator.training.objective import contrastive_loss

Floats = NDArray[np.float32]

CAPTIONS, EACH, INPUTS, OUTPUTS = 120_000, 5, 1024, 1536
RANKED, PAIRS = 5_000, 5
STEP_CAPTIONS, BANK, TEMPERATURE = 512, 30_000, 0.07


def unit_vectors(rows: int, width: int, seed: int) -> Floats:
    """Random directions, ``(rows, width)``."""
    vectors = np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def closed_form(captions: int) -> dict[str, float]:
    """The moments, and ridge from them."""
    pairs = CaptionPairs(
        captions=unit_vectors(captions, INPUTS, 0),
        caption_ids=[],
        images=unit_vectors(captions // EACH, OUTPUTS, 1),
        image_ids=[],
        image_of=np.repeat(np.arange(captions // EACH), EACH),
    )
    moments: list[PairMoments] = []
    gathering = seconds(lambda: moments.append(PairMoments(pairs)))
    fitting = seconds(lambda: fit_ridge(moments[0], 1.0))
    print(
        f"closed form, {captions:,} x {INPUTS} -> {OUTPUTS}: moments {gathering:.1f} s, the captions' eigenbasis and "
        f"the first penalty {fitting:.1f} s, every further one {seconds(lambda: fit_ridge(moments[0], 2.0)):.1f} s",
        flush=True,
    )
    return {"closed_form_rows_per_s": round(captions / (gathering + fitting))}


def naive_ranks(captions: Floats, images: Floats, image_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every score at once, every row sorted."""
    scores = torch.from_numpy(captions) @ torch.from_numpy(images).T
    order = scores.argsort(dim=1, descending=True)
    return 1 + (order == torch.from_numpy(image_of)[:, None]).int().argmax(1).numpy()


def ranking(rows: int) -> dict[str, float]:
    """Ranks counted block by block against ranks from one sorted matrix."""
    images, image_of = unit_vectors(rows, OUTPUTS, 2), np.arange(rows)
    captions = images + 2 * unit_vectors(rows, OUTPUTS, 3)
    captions /= np.linalg.norm(captions, axis=1, keepdims=True)
    same = (image_ranks(captions, images, image_of) == naive_ranks(captions, images, image_of)).mean()
    taken = in_turn(
        f"ranks of {rows:,} among as many, against sorting, equal for {same:.2%} (rounding moves the rest)",
        lambda: image_ranks(captions, images, image_of),
        lambda: naive_ranks(captions, images, image_of),
        PAIRS,
    )
    return {"rank_vs_naive": round(taken.ratio, 3)}


def contrastive_step(bank_rows: int) -> dict[str, float]:
    """One InfoNCE step against its two matrix products."""
    bank = torch.from_numpy(unit_vectors(bank_rows, OUTPUTS, 4))
    captions = torch.from_numpy(unit_vectors(STEP_CAPTIONS, OUTPUTS, 5)).requires_grad_()
    ids = torch.from_numpy(np.random.default_rng(6).integers(0, bank_rows, STEP_CAPTIONS))
    scores, gradient = torch.empty(STEP_CAPTIONS, bank_rows), torch.empty(STEP_CAPTIONS, OUTPUTS)

    def products() -> None:
        torch.mm(captions.detach(), bank.T, out=scores)
        torch.mm(scores, bank, out=gradient)

    def own() -> None:
        captions.grad = None
        contrastive_loss(captions, ids, bank, None, TEMPERATURE).backward()  # type: ignore[no-untyped-call]

    name = f"the two products of InfoNCE, {STEP_CAPTIONS} x {bank_rows:,} of {OUTPUTS}, against ours"
    return {"infonce_vs_floor": round(in_turn(name, products, own, PAIRS).ratio, 3)}


def main() -> None:
    """Measure and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--captions", type=int, default=CAPTIONS, help="captions of the closed form")
    parser.add_argument("--ranked", type=int, default=RANKED, help="captions, and images, that are ranked")
    parser.add_argument("--bank", type=int, default=BANK, help="images of the loss's bank")
    given = parser.parse_args()
    print(f"{describe_device(torch.device('cpu'))}, torch {torch.__version__}, numpy {np.__version__}", flush=True)
    found: dict[str, Any] = {}
    measures: tuple[Callable[[], dict[str, float]], ...] = (
        lambda: closed_form(given.captions),
        lambda: ranking(given.ranked),
        lambda: contrastive_step(given.bank),
    )
    for measure in measures:
        found |= measure()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
