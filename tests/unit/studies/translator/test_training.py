"""Training a translator: it starts at the closed form, unfreezes what it says, and keeps the best epoch."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support.caption_pairs import small_config, small_split
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.core.errors import DataError
from unimoe.results.logs import read_logs
from unimoe.studies.translator import config as configs
from unimoe.studies.translator.evaluation import evaluate
from unimoe.studies.translator.models.translators import make_network
from unimoe.studies.translator.training import trainer as training
from unimoe.studies.translator.training.closed_forms import linear_map
from unimoe.studies.translator.training.objective import ImageQueue, Objective, PredictionQueue, contrastive_loss
from unimoe.studies.translator.training.trainer import TranslatorTrainer, epoch_batches

pytestmark = pytest.mark.usefixtures("one_thread")


CPU = torch.device("cpu")
TRAIN, VALIDATION = small_split()


def trainer(folder: Path, **changes: Any) -> TranslatorTrainer:
    return TranslatorTrainer(small_config(folder, **changes), TRAIN, VALIDATION)


def logged(done: TranslatorTrainer, name: str) -> list[Any]:
    return [json.loads(line)[name] for line in done.state.log_path.read_text().splitlines()]


@pytest.mark.parametrize(("model", "base"), [("bigjump", "geometry"), ("ridge_adapter", "ridge")])
@pytest.mark.parametrize("centre", [True, False])
def test_an_adapter_starts_at_its_closed_form(model: str, base: str, centre: bool, tmp_path: Path) -> None:
    fitted = linear_map(base, TRAIN, small_config(tmp_path, model=model, centre=centre))
    start = make_network(model, TRAIN, 16, 0, fitted, centred=centre)
    for name in ("predict", "translate"):
        found, expected = (getattr(one, name)(VALIDATION.captions) for one in (start, fitted))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(start.gallery(VALIDATION.images), fitted.gallery(VALIDATION.images))


def test_shuffled_batches_hold_every_caption_once_and_those_by_image_k_captions_of_p_images() -> None:
    first, again, other = (
        [b.tolist() for b in epoch_batches(configs.SamplerConfig(batch=16), TRAIN.image_of, 0, epoch)]
        for epoch in (0, 0, 1)
    )
    assert sorted(chain.from_iterable(first)) == [*range(len(TRAIN))]
    assert first == again != other
    image_of = np.repeat(np.arange(20), [1, 2, 3, 4, 5] * 4)
    batches = epoch_batches(configs.SamplerConfig(by_image=True, images=8, captions=3), image_of, 0, 0)
    for batch in batches:
        images, counts = np.unique(image_of[batch], return_counts=True)
        assert len(images) <= 8
        assert len(np.unique(batch)) == len(batch)
        assert counts.tolist() == [min(3, int((image_of == image).sum())) for image in images]
    assert set(image_of[np.concatenate(batches)]) == set(range(20))
    twice = epoch_batches(configs.SamplerConfig(by_image=True, images=6, captions=2), np.repeat(np.arange(6), 4), 0, 0)
    assert sorted(np.concatenate(twice).tolist()) == [*range(24)], "a visit goes on where the last one ended"


def test_a_kill_while_the_checkpoint_is_written_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trainer(tmp_path / "whole")
    whole.fit()
    with monkeypatch.context() as patched:
        patched.setattr(training, "save_translator", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer(tmp_path / "killed").fit()
    again = trainer(tmp_path / "killed")
    again.fit()
    ours, theirs = again.translator(), whole.translator()
    np.testing.assert_array_equal(ours.translate(VALIDATION.captions), theirs.translate(VALIDATION.captions))


def test_the_epoch_that_is_kept_is_the_best_on_validation_images(tmp_path: Path) -> None:
    done = trainer(tmp_path, model="mlp1", epochs=8, learning_rate=0.02)
    facts = done.fit()
    seen = [facts["start"], *logged(done, "val/mrr")]
    assert facts["val"] == max(seen) > 2 * facts["start"]
    assert facts["best_epoch"] == seen.index(max(seen))
    assert evaluate(done.translator(), VALIDATION, CPU)["mrr"] == facts["val"]
    fired = [line["fired"].get("mined_negatives", 0) for line in read_logs(tmp_path)["mlp1", 0]]
    assert facts["fired"]["mined_negatives"] == sum(fired) > fired[0] == 0


@pytest.mark.parametrize("freeze_bias", [True, False])
def test_the_closed_form_moves_from_its_epoch_on_at_its_own_rate(freeze_bias: bool, tmp_path: Path) -> None:
    made = trainer(tmp_path, geometry={"unfreeze_epoch": 2, "freeze_bias": freeze_bias}, epochs=3)
    start = linear_map("geometry", TRAIN, made.config)
    bases: list[dict[str, np.ndarray]] = []

    def keep(step: int, facts: Any) -> None:
        if made.is_scored_after(step):
            bases.append({n: t.clone().numpy() for n, t in made._network.base.state_dict().items()})  # type: ignore[union-attr]

    made.fit(keep)
    np.testing.assert_array_equal(bases[0]["weight"], start.weight.astype(np.float32))
    assert not np.array_equal(bases[1]["weight"], bases[0]["weight"])
    assert np.array_equal(bases[2]["bias"], bases[0]["bias"]) is freeze_bias
    assert logged(made, "closed_form_trained") == [False, True, True]
    assert made._optimizer.param_groups[-1]["lr"] == pytest.approx(0.05 * made.config.learning_rate)


def test_a_loss_that_is_not_finite_ends_it_with_the_best_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = trainer(tmp_path / "good", model="mlp1"), trainer(tmp_path / "bad", model="mlp1")
    good.fit()
    terms, taken = Objective.__call__, []

    def breaking(self: Objective, *arguments: Any) -> dict[str, torch.Tensor]:
        taken.append(1)
        spoilt = len(taken) == 3 * (bad.steps // 5) + 2
        return {"infonce": torch.tensor(float("nan"))} if spoilt else terms(self, *arguments)

    monkeypatch.setattr(Objective, "__call__", breaking)
    with pytest.raises(DataError, match=r"mlp1, seed 0, epoch 4, batch 2: the loss is not finite; lower .* keeps"):
        bad.fit()
    assert not bad.is_finished()
    assert evaluate(bad.translator(), VALIDATION, CPU)["mrr"] == max(logged(good, "val/mrr")[:3])


def test_the_queue_has_each_image_once_at_its_newest_place() -> None:
    queue = ImageQueue(5, CPU)
    queue.push(torch.tensor([1, 2, 3, 3]))
    queue.push(torch.tensor([2, 4]))
    assert queue.ids.tolist() == [1, 3, 2, 4]
    assert queue.recent(3, without=torch.tensor([4, 1])).tolist() == [3, 2]
    assert queue.recent(0, without=torch.tensor([5])).tolist() == []
    assert queue.recent(99, without=torch.tensor([9])).tolist() == [1, 3, 2, 4]
    queue.push(torch.tensor([7, 8]))
    assert queue.ids.tolist() == [3, 2, 4, 7, 8], "the oldest is dropped"


def test_further_positives_are_of_the_same_image_and_another_caption() -> None:
    """Captions 0 to 5, two of each of the images 0, 1, 2; the prediction of caption c is (c, c)."""
    queue = PredictionQueue(8, 2, CPU)
    for captions in (torch.tensor([0, 2, 4]), torch.tensor([1, 3, 5])):
        queue.push(captions[:, None].expand(-1, 2).float(), captions // 2, captions)
    vectors, valid = queue.positives(torch.tensor([0, 2, 7]), torch.tensor([0, 9, 3]), per_image=3)
    assert [sorted(row[own][:, 0].tolist()) for row, own in zip(vectors, valid, strict=True)] == [[1.0], [4.0, 5.0], []]
    vectors, valid = queue.positives(torch.tensor([1]), torch.tensor([8]), per_image=1)
    assert vectors[valid].tolist() == [[3.0, 3.0]], "the newest come first"
    queue.push(torch.full((1, 2), 9.0, requires_grad=True), torch.tensor([0]), torch.tensor([0]))
    vectors, valid = queue.positives(torch.tensor([0]), torch.tensor([1]), per_image=4)
    assert vectors[valid].tolist() == [[9.0, 9.0]], "a newer prediction takes the place of the older of its caption"
    assert not vectors.requires_grad


@pytest.mark.parametrize("copies", [0, 5])
@pytest.mark.parametrize("start", [0, 10])
def test_an_anchors_own_image_is_never_mined_though_it_is_nearest(copies: int, start: int) -> None:
    bank = normalize(torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    ids, bank_ids = torch.arange(5), torch.cat([torch.arange(40), torch.arange(copies)])
    bank = bank[bank_ids]
    anchors = bank[:5].clone()
    scores = anchors @ bank.T / 0.1
    own = ids[:, None] == bank_ids
    others = scores.masked_fill(own, -torch.inf)
    kept = [scores.masked_fill(~own, -torch.inf), others[:, :start], others[:, start:].topk(3, dim=1).values]
    expected = (torch.cat(kept, dim=1).logsumexp(1) - 10.0).mean()
    found = contrastive_loss(anchors, ids, bank, bank_ids, 0.1, hardest=3, start=start)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    plain = contrastive_loss(anchors, ids, bank, bank_ids, 0.1)
    for all_of_them in (39 + copies, 99):
        mined = contrastive_loss(anchors, ids, bank, bank_ids, 0.1, hardest=all_of_them)
        assert mined.item() == pytest.approx(plain.item(), rel=1e-12)


def run(
    config: configs.TranslatorLossConfig, rounds: int = 3, recent: int = 40, whole: bool = False
) -> tuple[dict[str, Tensor], Any]:
    """Return the terms of the last of some batches of 8 captions of 4 images, and the counts of all.

    With ``whole``, the queue holds every image at the beginning.
    """
    generator = torch.Generator().manual_seed(0)
    objective = Objective(config, normalize(torch.randn(30, 6, generator=generator), dim=1), 60)
    if whole:
        objective.load_state(objective.state() | {"images.ids": torch.arange(30)})
    terms: dict[str, Tensor] = {}
    for number in range(rounds):
        captions = torch.arange(8) + 8 * number
        predicted = torch.randn(8, 6, generator=generator).requires_grad_()
        terms = objective(predicted, captions, captions // 2, 0.1, recent)
    return terms, dict(objective.counts)


def test_components_count_how_often_they_are_active_and_a_queue_of_everything_is_the_full_bank() -> None:
    bank = configs.BankConfig(kind="queue", hardest=3, queue=40, recent=[40])
    terms, fired = run(configs.TranslatorLossConfig(bank=bank, predictions=True, cosine=0.1))
    assert set(terms) == {"infonce", "predictions", "cosine", "moment", "agreement"}
    assert fired == {
        "queue_negatives": 8 * (0 + 4 + 8),
        "mined_negatives": 8 * (0 + 3 + 3),
        "extra_positives": 0,  # a batch holds both captions of its images, and no image comes again
        "past_predictions": 4 * (0 + 8 + 16),
        "same_image_pairs": 3 * 4,
    }
    terms, fired = run(
        configs.TranslatorLossConfig(positives=configs.PositivesConfig(per_image=0), moment=0.0, agreement=0.0)
    )
    assert (set(terms), fired) == ({"infonce"}, {})
    assert (
        "queue_negatives" not in run(configs.TranslatorLossConfig(bank=configs.BankConfig(kind="queue")), recent=0)[1]
    )
    full, _ = run(configs.TranslatorLossConfig(), rounds=1)
    queued, _ = run(configs.TranslatorLossConfig(bank=configs.BankConfig(kind="queue")), rounds=1, whole=True)
    assert queued["infonce"].item() == pytest.approx(full["infonce"].item(), rel=1e-6)


def test_temperature_falls_and_the_queue_grows_after_its_warm_up_within_its_limits() -> None:
    falling = [configs.TemperatureConfig().at(epoch, 25) for epoch in range(25)]
    assert (falling[0], falling[12], falling[-1]) == pytest.approx((0.10, 0.08, 0.06))
    assert falling == sorted(falling, reverse=True)
    assert configs.TemperatureConfig(fixed=0.07).at(3, 25) == 0.07
    bank = configs.BankConfig(kind="queue")
    assert [bank.recent_at(epoch) for epoch in range(6)] == [0, 0, 16_000, 32_000, 65_536, 65_536]
    for raw, words in (
        ({"kind": "batch", "hardest": 3}, "larger than the batch"),
        ({"kind": "queue", "queue": 10}, "more than the queue holds"),
    ):
        with pytest.raises(ValidationError, match=words):
            configs.TranslatorConfig.model_validate({"loss": {"bank": raw}})
