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
from support.translators import small_config, small_split

from unimoe.core.errors import DataError
from unimoe.results.logs import read_logs
from unimoe.studies.translator.config import (
    CLOSED_FORMS,
    BankConfig,
    SamplerConfig,
    TemperatureConfig,
    TranslatorConfig,
)
from unimoe.studies.translator.evaluation import evaluate
from unimoe.studies.translator.models.translators import make_network, network_from
from unimoe.studies.translator.training import trainer as training
from unimoe.studies.translator.training.closed_forms import linear_map
from unimoe.studies.translator.training.objective import Objective
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
    np.testing.assert_allclose(start.predict(VALIDATION.captions), fitted.predict(VALIDATION.captions), atol=2e-6)
    np.testing.assert_allclose(start.translate(VALIDATION.captions), fitted.translate(VALIDATION.captions), atol=2e-6)
    np.testing.assert_array_equal(start.gallery(VALIDATION.images), fitted.gallery(VALIDATION.images))


@pytest.mark.parametrize(("model", "layers"), [("linear", 1), ("mlp1", 2), ("mlp2", 3), ("bigjump", 2)])
def test_networks_depend_on_the_seed_alone_and_come_back_from_their_tensors(
    model: str, layers: int, tmp_path: Path
) -> None:
    base = linear_map("geometry", TRAIN, small_config(tmp_path)) if model == "bigjump" else None
    one, same, other = (make_network(model, TRAIN, 8, seed, base, centred=True) for seed in (0, 0, 1))
    tensors = one.tensors()
    assert sum(name.startswith("layers") and name.endswith("weight") for name in tensors) == layers
    assert all(np.array_equal(tensor, same.tensors()[name]) for name, tensor in tensors.items())
    assert not np.array_equal(tensors["layers.0.weight"], other.tensors()["layers.0.weight"])
    again = network_from(tensors)
    np.testing.assert_array_equal(again.translate(TRAIN.captions), one.translate(TRAIN.captions))
    np.testing.assert_array_equal(again.gallery(TRAIN.images), one.gallery(TRAIN.images))


def test_the_scale_of_captions_does_not_matter_to_the_learnt_part() -> None:
    large = TRAIN.subset(range(len(TRAIN.images)))
    large.captions[:] = 1000 * large.captions + 50
    one = make_network("mlp1", TRAIN, 8, 0).predict(TRAIN.captions)
    np.testing.assert_allclose(one, make_network("mlp1", large, 8, 0).predict(large.captions), rtol=1e-3, atol=1e-3)


def test_temperature_falls_and_the_queue_grows_after_its_warm_up() -> None:
    falling = [TemperatureConfig().at(epoch, 25) for epoch in range(25)]
    assert (falling[0], falling[12], falling[-1]) == pytest.approx((0.10, 0.08, 0.06))
    assert falling == sorted(falling, reverse=True)
    assert TemperatureConfig(fixed=0.07).at(3, 25) == 0.07
    bank = BankConfig(kind="queue")
    assert [bank.recent_at(epoch) for epoch in range(6)] == [0, 0, 16_000, 32_000, 65_536, 65_536]


def test_shuffled_batches_hold_every_caption_once() -> None:
    first, again, other = (
        [b.tolist() for b in epoch_batches(SamplerConfig(batch=16), TRAIN.image_of, 0, epoch)] for epoch in (0, 0, 1)
    )
    assert sorted(chain.from_iterable(first)) == [*range(len(TRAIN))]
    assert first == again
    assert first != other


def test_batches_by_image_hold_k_different_captions_of_p_images() -> None:
    image_of = np.repeat(np.arange(20), [1, 2, 3, 4, 5] * 4)
    batches = epoch_batches(SamplerConfig(by_image=True, images=8, captions=3), image_of, 0, 0)
    for batch in batches:
        images, counts = np.unique(image_of[batch], return_counts=True)
        assert len(images) <= 8
        assert len(np.unique(batch)) == len(batch)
        assert counts.tolist() == [min(3, int((image_of == image).sum())) for image in images]
    assert set(image_of[np.concatenate(batches)]) == set(range(20))
    twice = epoch_batches(SamplerConfig(by_image=True, images=6, captions=2), np.repeat(np.arange(6), 4), 0, 0)
    assert sorted(np.concatenate(twice).tolist()) == [*range(24)], "a visit goes on where the last one ended"


@pytest.mark.parametrize("sampler", [{"batch": 4096}, {"by_image": True, "images": 7, "captions": 3}, {"batch": 59}])
def test_captions_seen_are_those_of_the_batches(sampler: dict[str, Any], tmp_path: Path) -> None:
    made = trainer(tmp_path, model="linear", epochs=2, sampler=sampler)
    batches = [b for epoch in (0, 1) for b in epoch_batches(made.config.sampler, TRAIN.image_of, 0, epoch)]
    assert (made.steps, made.captions_seen) == (len(batches), len(np.concatenate(batches)))


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


@pytest.mark.parametrize("model", CLOSED_FORMS)
def test_closed_forms_are_computed_once(model: str, tmp_path: Path) -> None:
    done = trainer(tmp_path, model=model)
    facts = done.fit()
    assert (facts["steps"], done.steps, done.captions_seen) == (0, 0, 0)
    assert evaluate(done.translator(), VALIDATION, CPU)["mrr"] == pytest.approx(facts["val"])
    before = done.checkpoint.stat().st_mtime_ns
    assert done.fit() == facts
    assert done.checkpoint.stat().st_mtime_ns == before


def test_a_loss_that_is_not_finite_ends_it_and_keeps_the_best_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_diverging_training_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(the loss is not finite|validation, caption ).*learning_rate"):
        trainer(tmp_path, model="mlp2", learning_rate=1e30).fit()


def test_another_config_in_the_folder_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, epochs=1).fit()
    with pytest.raises(DataError, match="of another training"):
        trainer(tmp_path, epochs=2).fit()


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"loss": {"bank": {"kind": "batch", "hardest": 3}}}, "larger than the batch"),
        ({"loss": {"bank": {"kind": "queue", "queue": 10}}}, "more than the queue holds"),
        ({"sampler": {"images": 1}}, "greater than or equal to 2"),
        ({"model": "bigjum"}, "bigjump"),
    ],
)
def test_impossible_settings_are_refused(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TranslatorConfig.model_validate(raw)
