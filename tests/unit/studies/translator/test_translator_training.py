"""Training a translator: it starts at the closed form, unfreezes what it says, and a kill changes no bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support.translators import small_config, small_split
from torch.nn.functional import normalize

from unimoe.config.files import load_config
from unimoe.core.errors import DataError
from unimoe.results.logs import read_logs
from unimoe.studies.translator.config import (
    CLOSED_FORMS,
    BankConfig,
    GeometryConfig,
    LossConfig,
    PositivesConfig,
    RidgeConfig,
    SamplerConfig,
    TemperatureConfig,
    TranslatorConfig,
)
from unimoe.studies.translator.data.sources import generated_pairs
from unimoe.studies.translator.evaluation import evaluate
from unimoe.studies.translator.models.files import load_translator, save_translator
from unimoe.studies.translator.models.networks import NetworkTranslator, Scales, make_network, network_from
from unimoe.studies.translator.training import trainer as training
from unimoe.studies.translator.training.closed_forms import linear_map
from unimoe.studies.translator.training.objective import Batch, Objective
from unimoe.studies.translator.training.schedule import (
    epoch_batches,
    make_optimizer,
    recent_of,
    temperature_of,
    unfreeze,
)
from unimoe.studies.translator.training.trainer import TranslatorTrainer

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
TRAIN, VALIDATION = small_split()


class KilledError(Exception):
    """What ends a training in the middle."""


def trainer(config: TranslatorConfig) -> TranslatorTrainer:
    return TranslatorTrainer(config, TRAIN, VALIDATION)


def tensors(folder: Path) -> dict[str, Any]:
    translator = load_translator(folder)
    assert isinstance(translator, NetworkTranslator)
    return translator.tensors()


class TestNetworks:
    @pytest.mark.parametrize(("model", "base"), [("bigjump", "geometry"), ("ridge_adapter", "ridge")])
    @pytest.mark.parametrize("centre", [True, False])
    def test_an_adapter_starts_at_its_closed_form(self, model: str, base: str, centre: bool, tmp_path: Path) -> None:
        config = small_config(tmp_path, model=model, centre=centre)
        fitted = linear_map(base, TRAIN, config)
        start = make_network(model, Scales.of(TRAIN.captions, TRAIN.images), 16, 0, fitted, centred=centre)
        np.testing.assert_allclose(start.predict(VALIDATION.captions), fitted.predict(VALIDATION.captions), atol=2e-6)
        np.testing.assert_allclose(
            start.translate(VALIDATION.captions), fitted.translate(VALIDATION.captions), atol=2e-6
        )
        np.testing.assert_array_equal(start.gallery(VALIDATION.images), fitted.gallery(VALIDATION.images))

    @pytest.mark.parametrize(("model", "layers"), [("linear", 1), ("mlp1", 2), ("mlp2", 3)])
    def test_random_networks_hang_on_the_seed_alone(self, model: str, layers: int) -> None:
        scales = Scales.of(TRAIN.captions, TRAIN.images)
        one, same, other = (make_network(model, scales, 8, seed).state_dict() for seed in (0, 0, 1))
        assert sum(name.endswith("weight") for name in one) == layers
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not torch.equal(one["layers.0.weight"], other["layers.0.weight"])

    def test_the_scale_of_captions_does_not_matter_to_the_learnt_part(self) -> None:
        large = Scales.of(1000 * TRAIN.captions + 50, TRAIN.images)
        small = make_network("mlp1", Scales.of(TRAIN.captions, TRAIN.images), 8, 0)
        one = small.predict(TRAIN.captions)
        other = make_network("mlp1", large, 8, 0).predict(1000 * TRAIN.captions + 50)
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("model", ["linear", "mlp2", "bigjump"])
    def test_tensors_bring_a_network_back(self, model: str, tmp_path: Path) -> None:
        base = linear_map("geometry", TRAIN, small_config(tmp_path)) if model == "bigjump" else None
        before = make_network(model, Scales.of(TRAIN.captions, TRAIN.images), 8, 3, base, centred=True)
        after = network_from(before.tensors())
        np.testing.assert_array_equal(after.translate(TRAIN.captions), before.translate(TRAIN.captions))
        np.testing.assert_array_equal(after.gallery(TRAIN.images), before.gallery(TRAIN.images))


class TestSchedule:
    def test_temperature_falls_from_start_to_end_unless_it_is_fixed(self) -> None:
        falling = [temperature_of(TemperatureConfig(), epoch, 25) for epoch in range(25)]
        assert (falling[0], falling[12], falling[-1]) == pytest.approx((0.10, 0.08, 0.06))
        assert falling == sorted(falling, reverse=True)
        assert {temperature_of(TemperatureConfig(fixed=0.07), epoch, 25) for epoch in range(25)} == {0.07}

    def test_the_queue_waits_and_then_grows(self) -> None:
        config = BankConfig(kind="queue")
        assert [recent_of(config, epoch) for epoch in range(6)] == [0, 0, 16_000, 32_000, 65_536, 65_536]

    @pytest.mark.parametrize("freeze_bias", [True, False])
    def test_unfreezing_trains_the_closed_form_at_its_own_rate(self, freeze_bias: bool, tmp_path: Path) -> None:
        config = small_config(tmp_path, geometry={"freeze_bias": freeze_bias})
        network = make_network(
            "bigjump", Scales.of(TRAIN.captions, TRAIN.images), 8, 0, linear_map("geometry", TRAIN, config)
        )
        optimizer = make_optimizer(network, config)
        assert network.base is not None
        start = {name: value.clone() for name, value in network.base.state_dict().items()}
        for unfrozen in (False, True):
            if unfrozen:
                unfreeze(network.base, optimizer, config)
            network(torch.from_numpy(TRAIN.captions)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(network.base.weight, start["weight"]) is not unfrozen
        assert torch.equal(network.base.bias, start["bias"]) is freeze_bias
        assert optimizer.param_groups[-1]["lr"] == pytest.approx(0.05 * config.learning_rate)


class TestBatches:
    def test_shuffled_batches_hold_every_caption_once(self) -> None:
        batches = epoch_batches(SamplerConfig(batch=16), TRAIN.image_of, 0, 0)
        assert sorted(np.concatenate(batches).tolist()) == [*range(len(TRAIN))]
        other = epoch_batches(SamplerConfig(batch=16), TRAIN.image_of, 0, 1)
        assert [b.tolist() for b in batches] != [b.tolist() for b in other]
        again = epoch_batches(SamplerConfig(batch=16), TRAIN.image_of, 0, 0)
        assert [b.tolist() for b in batches] == [b.tolist() for b in again]

    def test_batches_by_image_hold_k_different_captions_of_p_images(self) -> None:
        image_of = np.repeat(np.arange(20), [1, 2, 3, 4, 5] * 4)
        batches = epoch_batches(SamplerConfig(by_image=True, images=8, captions=3), image_of, 0, 0)
        for batch in batches:
            images, counts = np.unique(image_of[batch], return_counts=True)
            assert len(images) <= 8
            assert len(np.unique(batch)) == len(batch)
            assert counts.tolist() == [min(3, int((image_of == image).sum())) for image in images]
        assert set(image_of[np.concatenate(batches)]) == set(range(20))

    @pytest.mark.parametrize(
        "sampler", [{"batch": 16}, {"batch": 4096}, {"by_image": True, "images": 7, "captions": 3}, {"batch": 59}]
    )
    def test_captions_seen_are_those_of_the_batches(self, sampler: dict[str, Any], tmp_path: Path) -> None:
        raw = {"model": "linear", "epochs": 2, "sampler": sampler, "output_dir": str(tmp_path)}
        training = trainer(TranslatorConfig.model_validate(raw))
        batches = [b for epoch in (0, 1) for b in epoch_batches(training.config.sampler, TRAIN.image_of, 0, epoch)]
        assert training.steps == len(batches)
        assert training.captions_seen == len(np.concatenate(batches))
        assert trainer(training.config.model_copy(update={"model": "ridge"})).captions_seen == 0

    def test_visits_go_on_where_the_last_one_ended(self) -> None:
        image_of = np.repeat(np.arange(6), 4)
        batches = epoch_batches(SamplerConfig(by_image=True, images=6, captions=2), image_of, 0, 0)
        assert sorted(np.concatenate(batches).tolist()) == [*range(24)]


class TestObjective:
    def batch(
        self, config: LossConfig, rounds: int = 3, recent: int = 40
    ) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        generator = torch.Generator().manual_seed(0)
        bank = normalize(torch.randn(30, 6, generator=generator), dim=1)
        objective = Objective(config, bank, 60)
        terms: dict[str, torch.Tensor] = {}
        for number in range(rounds):
            captions = torch.arange(8) + 8 * number
            predicted = torch.randn(8, 6, generator=generator).requires_grad_()
            terms = objective(predicted, Batch(captions, captions // 2), 0.1, recent)
        return terms, objective.take_counts()

    def test_components_count_how_often_they_fire(self) -> None:
        config = LossConfig(
            bank=BankConfig(kind="queue", hardest=3, queue=40, recent=[40]),
            predictions=True,
            cosine=0.1,
        )
        terms, fired = self.batch(config)
        assert set(terms) == {"infonce", "predictions", "cosine", "moment", "agreement"}
        assert fired == {
            "queue_negatives": 8 * (0 + 4 + 8),
            "mined_negatives": 8 * (0 + 3 + 3),
            "extra_positives": 0,  # a batch holds both captions of its images, and no image comes again
            "past_predictions": 4 * (0 + 8 + 16),
            "same_image_pairs": 3 * 4,
        }  # fmt: skip

    def test_what_is_off_neither_counts_nor_fires(self) -> None:
        off = LossConfig(positives=PositivesConfig(per_image=0), moment=0.0, agreement=0.0)
        terms, fired = self.batch(off)
        assert (set(terms), fired) == ({"infonce"}, {})

    def test_the_queue_counts_only_after_the_warm_up(self) -> None:
        _, fired = self.batch(LossConfig(bank=BankConfig(kind="queue")), recent=0)
        assert "queue_negatives" not in fired

    def test_a_queue_of_everything_is_the_full_bank(self) -> None:
        full, _ = self.batch(LossConfig(), rounds=1)
        generator = torch.Generator().manual_seed(0)
        bank = normalize(torch.randn(30, 6, generator=generator), dim=1)
        objective = Objective(LossConfig(bank=BankConfig(kind="queue")), bank, 60)
        objective.load_state(
            {"images.ids": torch.arange(30)}
            | {name: value for name, value in objective.state().items() if not name.startswith("images.")}
        )
        captions = torch.arange(8)
        queued = objective(torch.randn(8, 6, generator=generator), Batch(captions, captions // 2), 0.1, 40)
        assert queued["infonce"].item() == pytest.approx(full["infonce"].item(), rel=1e-6)


class TestTraining:
    @pytest.mark.parametrize("written", [0, 1])
    def test_a_kill_while_the_checkpoints_are_written_loses_neither(
        self, tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = trainer(small_config(tmp_path / "whole"))
        whole.fit()
        killed, save, done = trainer(small_config(tmp_path / "killed")), save_translator, list[Path]()

        def save_or_die(folder: Path, *args: Any) -> None:
            if len(done) == written:
                raise KilledError
            save(folder, *args)
            done.append(folder)

        with monkeypatch.context() as patched:
            patched.setattr(training, "save_translator", save_or_die)
            with pytest.raises(KilledError):
                killed.fit()
        again = trainer(small_config(tmp_path / "killed"))
        again.fit()
        for folder, other in ((whole.checkpoint, again.checkpoint), (whole.last, again.last)):
            ours, theirs = tensors(folder), tensors(other)
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)

    def test_the_epoch_that_is_kept_is_the_best_on_validation_images(self, tmp_path: Path) -> None:
        done = trainer(small_config(tmp_path, model="mlp1", epochs=8, learning_rate=0.02))
        facts = done.fit()
        seen = [
            facts["start"],
            *(json.loads(line)["val/mrr"] for line in done.state.log_path.read_text().splitlines()),
        ]
        assert facts["val"] == max(seen)
        assert facts["best_epoch"] == seen.index(max(seen))
        assert evaluate(done.translator(), VALIDATION, CPU)["mrr"] == facts["val"]
        assert facts["val"] > 2 * facts["start"]
        assert read_logs(tmp_path)["mlp1", 0][-1]["fired"]["mined_negatives"] > 0

    def test_the_closed_form_moves_from_its_epoch_on(self, tmp_path: Path) -> None:
        frozen = trainer(small_config(tmp_path / "a", geometry={"unfreeze_epoch": None}))
        early = trainer(small_config(tmp_path / "b", geometry={"unfreeze_epoch": 2}, epochs=2))
        for each in (frozen, early):
            each.fit()
        start = linear_map("geometry", TRAIN, frozen.config)
        np.testing.assert_array_equal(tensors(frozen.last)["base.weight"], start.weight.astype(np.float32))
        assert not np.array_equal(tensors(early.last)["base.weight"], start.weight.astype(np.float32))
        flags = [json.loads(line)["closed_form_trained"] for line in early.state.log_path.read_text().splitlines()]
        assert flags == [False, True]

    @pytest.mark.parametrize("model", CLOSED_FORMS)
    def test_closed_forms_are_computed_once(self, model: str, tmp_path: Path) -> None:
        done = trainer(small_config(tmp_path, model=model))
        facts = done.fit()
        assert (facts["steps"], done.steps) == (0, 0)
        assert evaluate(done.translator(), VALIDATION, CPU)["mrr"] == pytest.approx(facts["val"])
        before = done.checkpoint.stat().st_mtime_ns
        assert done.fit() == facts
        assert done.checkpoint.stat().st_mtime_ns == before

    def test_a_loss_that_is_not_finite_ends_it_and_keeps_the_best_epoch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good = trainer(small_config(tmp_path / "good", model="mlp1", epochs=5))
        bad = trainer(small_config(tmp_path / "bad", model="mlp1", epochs=5))
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
        kept = evaluate(bad.translator(), VALIDATION, CPU)["mrr"]
        first = [json.loads(line)["val/mrr"] for line in good.state.log_path.read_text().splitlines()][:3]
        assert kept == max(first)

    def test_a_diverging_training_says_so_in_one_line(self, tmp_path: Path) -> None:
        config = small_config(tmp_path, model="mlp2", learning_rate=1e30)
        with pytest.raises(DataError, match=r"(the loss is not finite|validation, caption ).*learning_rate"):
            trainer(config).fit()

    def test_another_config_in_the_folder_is_refused(self, tmp_path: Path) -> None:
        trainer(small_config(tmp_path, epochs=1)).fit()
        with pytest.raises(DataError, match="of another training"):
            trainer(small_config(tmp_path, epochs=2)).fit()


def test_the_known_map_is_recovered() -> None:
    pairs, matrix = generated_pairs(200, 2, dims=(8, 12), noise=0.0, seed=1)
    config = TranslatorConfig(ridge=RidgeConfig(alphas=[0.0]), geometry=GeometryConfig(power=1.0))
    np.testing.assert_allclose(linear_map("ridge", pairs, config).weight, matrix, atol=1e-5)
    assert evaluate(linear_map("geometry", pairs, config), pairs, CPU)["mrr"] == 1.0


def test_the_shipped_config_has_the_seeds_values() -> None:
    config = load_config(TranslatorConfig, Path("translator"))
    bank = config.loss.bank
    assert (config.epochs, config.learning_rate, config.weight_decay, config.validation) == (25, 2e-4, 1e-4, 0.1)
    assert (config.sampler.batch, config.sampler.images, config.sampler.captions) == (512, 256, 2)
    assert (bank.kind, bank.queue, bank.warmup_epochs, bank.hardest) == ("queue", 65_536, 2, 64)
    assert bank.recent == [16_000, 32_000, 65_536]
    assert (config.loss.agreement, config.loss.moment, config.loss.debiased.prior) == (0.05, 0.02, 0.01)
    assert (config.geometry.lr_scale, config.geometry.unfreeze_epoch) == (0.05, 3)


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
