"""What a study will take: it is said for every family, without an embedded corpus and without a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.scripts import call_unimoe, successful
from support.studies import (
    WordEmbedder,
    arms_study,
    encoder_study,
    loss_study,
    topics_folder,
    toy_config,
    toy_keys,
)
from support.tiny_models import save_tiny_cross_encoder, save_tiny_encoder

from unimoe.core.trec import write_run
from unimoe.models import device as device_module
from unimoe.models.embedder import Vectors
from unimoe.retrieval.embeddings import cached_embeddings, made_up
from unimoe.studies.common.family import family_of
from unimoe.studies.common.plan import StandIns
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


def heads_study(folder: Path) -> Path:
    """Gradients, evolution at several rates, and votes on the labels; the pools are those of the encoder."""
    save_tiny_encoder(folder / "encoder")
    base = toy_config(topics_folder(folder / "topics"), folder / "out").model_dump(
        mode="json", exclude={"output_dir", "method"}
    )
    base["encoder"] |= {"base": str(folder / "encoder")}
    arms = {
        "zero_shot": {"set": {"method": "zero_shot"}, "grid": {}},
        "infonce": {"set": {"method": "infonce"}},
        "eggroll": {"set": {"method": "eggroll"}, "grid": {"sigma": [0.05, 0.5], "population_size": [16, 32]}},
        "votes": {"set": {"method": "eggroll", "soft_labels": {}}},
    }
    raw = {"name": "mine", "family": "heads", "base": base, "arms": arms, "seeds": 2}
    (folder / "study.yaml").write_text(json.dumps(raw | {"grid": {"learning_rate": [1e-3, 1e-2]}}), encoding="utf-8")
    return folder / "study.yaml"


def translators_study(folder: Path) -> Path:
    arms = {"ridge": {"set": {"model": "ridge"}}, "linear": {"set": {"model": "linear"}}}
    raw = {"name": "mine", "family": "translator", "data": {"source": "generated"}, "base": {"epochs": 2}}
    (folder / "study.yaml").write_text(json.dumps(raw | {"arms": arms, "seeds": 2}), encoding="utf-8")
    return folder / "study.yaml"


def biencoder_study(folder: Path) -> Path:
    hard = {"negatives": {"per_query": 1, "depth": 10, "source": "model", "refresh_every": 1}}
    frozen = {"freeze_base": True, "out_dim": 8}
    variants = {"layer": frozen, "layer-hard": frozen | hard, "all": {}, "all-hard": hard}
    return encoder_study(folder, toy_keys(folder), variants)


@pytest.mark.parametrize(
    ("write", "arms"),
    [
        (loss_study, ["softmax: 2 trainings on dev and 2 that", "listnet: 2 trainings on dev and 2 that"]),
        (arms_study, ["emb_only_r8: 0 trainings on dev and 2 that", "joint_r8: 2 trainings on dev and 2 that"]),
        (
            heads_study,
            [
                "zero_shot: 0 trainings on dev and 1 that",
                "infonce: 2 trainings on dev and 2 that",
                "eggroll: 4 trainings on dev and 2 that",
                "votes: 2 trainings on dev and 2 that",
            ],
        ),
        (translators_study, ["ridge: 0 trainings on dev and 2 that", "linear: 0 trainings on dev and 2 that"]),
        (biencoder_study, ["biencoder: 4 trainings on dev and 3 that"]),
    ],
)
def test_a_plan_says_what_every_arm_takes_and_writes_nothing(
    write: Callable[[Path], Path], arms: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_study(write(tmp_path), [], {"output_dir": str(tmp_path / "out")})
    StudyRunner(family_of(study.family)(study, torch.device("cpu"))).plan()
    *lines, total = capsys.readouterr().out.splitlines()
    told = [line for line in lines if "to embed" not in line]
    assert [line.partition(" are tested, ")[0] for line in told] == arms
    assert all(re.search(r"[\d.]+ s each, and [\d.]+ s a test$", line) for line in told)
    assert re.match(r"In all about .*(minutes|hours) in this process$", total)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "study").exists()
    assert not [*(tmp_path / "cache").glob("vectors/*")], "a corpus was embedded"


@pytest.mark.parametrize("what", ["study", "evaluate", "label"])
@pytest.mark.parametrize("share", [0.4, 0.95])
def test_a_plan_on_a_busy_machine_says_so(
    what: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours that other work had stretched were printed as if the machine were idle."""
    monkeypatch.setattr(device_module, "_probe", lambda _: ({"float32": 2e9, "bfloat16": 1e9}, share))
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0), raising=False)
    if what == "study":
        given = ["study", str(loss_study(tmp_path))]
    else:
        data, model = topics_folder(tmp_path / "data"), save_tiny_cross_encoder(tmp_path / "ce")
        write_run(tmp_path / "run.trec", {"test00": {"d000": 2.0, "d001": 1.0}}, "run")
        given = [what, "--model", f"cross-encoder:{model}", "--dataset", f"path:{data}"]
        given += ["--runs", str(tmp_path / "run.trec")] if what == "label" else []
        given += ["--output" if what == "label" else "--output-dir", str(tmp_path / "out")]
    done = successful(call_unimoe(*given, "--plan", "--device", "cpu"))
    said = "measured on a busy machine: other work left 40% of the processors' time, load average 1000.0"
    assert done.stderr.count(said) == (share < 0.5)


class CountingEmbedder(WordEmbedder):
    """Counts the texts that it embeds."""

    embedded = 0

    def encode(self, texts: Sequence[str], **options: Any) -> Vectors:
        self.embedded += len(texts)
        return super().encode(texts)


def test_a_plan_embeds_a_sample_of_a_corpus_and_no_text_whose_vector_is_kept(tmp_cache: Path) -> None:
    texts = {f"d{number:04}": f"topic{number % 7} all noise{number % 5}" for number in range(2000)}
    embedder, stand_ins = CountingEmbedder(), StandIns()
    with made_up(stand_ins):
        found, again = (cached_embeddings(embedder, texts, "document") for _ in range(2))
    assert embedder.embedded == 2, "a text tells how wide a vector is"
    assert np.allclose(np.linalg.norm(found.of([*texts]), axis=1), 1.0)
    assert np.array_equal(found.of(["d0001"]), again.of(["d0001"]))
    (job,) = stand_ins.left_out.values()
    assert job.size == 2000
    job.seconds_each()
    assert 2 < embedder.embedded <= 300
    assert not [*tmp_cache.glob("vectors/*")]
    kept = cached_embeddings(embedder, texts, "document")
    done, stand_ins = embedder.embedded, StandIns()
    with made_up(stand_ins):
        assert np.array_equal(cached_embeddings(embedder, texts, "document").vectors, kept.vectors)
    assert (embedder.embedded, stand_ins.left_out) == (done, {})
