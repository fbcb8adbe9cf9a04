"""Encoders named on the command line: by a hub id that mteb's registry knows, and a decoder with a stated pooling."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import scripts
from support.hub import Hub
from support.tiny_models import (
    load,
    save_sentence_transformer,
    save_tiny_cross_encoder,
    save_tiny_decoder,
    save_tiny_encoder,
    save_tiny_splade,
)
from support.toy_collections import invented, write_invented

from unimoe.core.trec import Run

TOY = invented(documents=12, queries=4, words=6)
EXACT = ("--set", "model.dtype=float32")  # some processors are probed to be faster in bfloat16
SEARCH = ("--set", "encoder.dtype=float32")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a command; the hub's cache holds one model."""
    write_invented(tmp_path / "data" / "toy", TOY)
    folder = save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "st")
    Hub(tmp_path / "hub", monkeypatch).publish("intfloat/e5-small-v2", folder)
    return {"UNIMOE_DATA": str(tmp_path / "data"), "UNIMOE_CACHE": str(tmp_path / "cache")}


def cosines(folder: Path, query: str, document: str) -> Run:
    """Of every query with every document, with what is read before each."""
    encoder = load(folder)
    documents = encoder.encode([document + found.full_text for found in TOY.corpus.values()])
    asked = encoder.encode([query + text for text in TOY.queries.values()])
    return {
        key: dict(zip(TOY.corpus, map(float, documents @ vector), strict=True))
        for key, vector in zip(TOY.queries, asked, strict=True)
    }


def assert_run(found: Run, expected: Run) -> None:
    assert found.keys() == expected.keys()
    for query, scores in found.items():
        assert scores == pytest.approx({key: expected[query][key] for key in scores}, abs=1e-5)


def test_a_hub_id_is_read_with_the_registrys_prompts_by_both_commands(places: dict[str, str], tmp_path: Path) -> None:
    expected = cosines(tmp_path / "st", "query: ", "passage: ")
    assert cosines(tmp_path / "st", "", "")["q0"] != pytest.approx(expected["q0"], abs=1e-3)
    out = ("--dataset", "toy", "--output-dir", str(tmp_path / "out"))
    said = 'prompts query "query: ", document "passage: " of mteb\'s registry; mean pooling; 64 tokens'
    named = ("evaluate", "--model", "encoder:intfloat/e5-small-v2", "--task", "embedding", *EXACT)
    assert said in scripts.successful(scripts.call_unimoe(*named, *out, **places)).stderr
    assert said in scripts.result_of(tmp_path / "out", "e5-small-v2", task="embedding").read_as
    assert_run(scripts.run_of(tmp_path / "out", "e5-small-v2", task="embedding"), expected)
    searched = (
        "retrieve",
        "--encoder",
        "intfloat/e5-small-v2",
        "--dataset",
        "toy",
        "--output-dir",
        tmp_path / "r",
        *SEARCH,
    )
    assert said in scripts.successful(scripts.call_unimoe(*searched, **places)).stderr
    assert_run(scripts.run_of(tmp_path / "r", "e5-small-v2", task="retrieval"), expected)
    shutil.copytree(tmp_path / "st", tmp_path / "e5-small-v2")
    local = (
        "evaluate",
        "--model",
        f"encoder:{tmp_path / 'e5-small-v2'}",
        "--task",
        "embedding",
        "--name",
        "local",
        *EXACT,
    )
    scripts.successful(scripts.call_unimoe(*local, *out, **places))
    prompts = {
        scripts.result_of(tmp_path / "out", name, task="embedding").identity.prompt for name in ("e5-small-v2", "local")
    }
    assert len(prompts) == 2


def test_a_decoder_embeds_with_the_pooling_that_is_stated(places: dict[str, str], tmp_path: Path) -> None:
    folder = save_tiny_decoder(tmp_path / "decoder")
    named = ("evaluate", "--model", f"encoder:{folder}", "--dataset", "toy", "--task", "embedding", *EXACT)
    command = (*named, "--output-dir", str(tmp_path / "out"))
    refused = scripts.call_unimoe(*command, **places)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "a Qwen3Model is a decoder" in refused.stderr
    assert "set model.pooling=last, or mean" in refused.stderr
    scripts.successful(scripts.call_unimoe(*command, "--set", "model.pooling=last", **places))
    encoder = load(folder, pooling="last")
    for query, scores in scripts.run_of(tmp_path / "out", "decoder", task="embedding").items():
        document = next(iter(scores))
        own = encoder.encode([TOY.queries[query], TOY.corpus[document].full_text])
        assert scores[document] == pytest.approx(float(own[0] @ own[1]), abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "remedy"), [("sparse", "; write sparse:{folder} to search with that"), ("cross-encoder", "")]
)
def test_a_folder_of_another_kind_is_no_encoder_in_silence(
    places: dict[str, str], tmp_path: Path, kind: str, remedy: str
) -> None:
    folder = tmp_path / "model"
    if kind == "sparse":
        save_tiny_splade(folder, tmp_path / "masked")
    else:
        save_tiny_cross_encoder(folder)
    command = ("retrieve", "--encoder", str(folder), "--dataset", "toy", "--output-dir", str(tmp_path / "out"))
    done = scripts.successful(scripts.call_unimoe(*command, **places))
    line = f"{folder}: read as encoder, and its files say {kind}{remedy.format(folder=folder)}"
    assert done.stderr.splitlines()[:2] == [line, f"{folder}: no prompts; mean pooling; 64 tokens"]
    assert line in scripts.result_of(tmp_path / "out", "model", task="retrieval").caveats
    named = ("evaluate", "--model", f"encoder:{folder}", "--dataset", "toy", "--task", "embedding", *EXACT)
    done = scripts.successful(scripts.call_unimoe(*named, "--output-dir", str(tmp_path / "named"), **places))
    (line,) = [line for line in done.stderr.splitlines() if "read as encoder" in line]
    assert f"and its files say {kind}; encoder: " in line


@pytest.mark.parametrize(
    ("prompts", "read", "said"),
    [
        (
            {"query": "query: ", "passage": "passage: "},
            ("query: ", "passage: "),
            'prompts query "query: ", document "passage: " (its prompt \'passage\') of its folder; mean',
        ),
        (
            {"web_search_query": "Instruct: ", "sts_query": "alike: ", "STS": "same: "},
            ("", ""),
            "no role and no task of MTEB has such a name: sts_query, web_search_query); mean",
        ),
        ({"query": "q: ", "document": "d: ", "passage": "p: "}, ("q: ", "d: "), 'document "d: " of its folder'),
    ],
)
def test_which_of_a_folders_prompts_are_read_and_which_not_is_said(
    places: dict[str, str], tmp_path: Path, prompts: dict[str, str], read: tuple[str, str], said: str
) -> None:
    expected = cosines(tmp_path / "st", *read)
    folder = save_sentence_transformer(tmp_path / "bare", tmp_path / "model", prompts=prompts)
    searched = (
        "retrieve",
        "--encoder",
        str(folder),
        "--dataset",
        "toy",
        "--output-dir",
        str(tmp_path / "out"),
        *SEARCH,
    )
    assert said in scripts.successful(scripts.call_unimoe(*searched, **places)).stderr
    assert_run(scripts.run_of(tmp_path / "out", "model", task="retrieval"), expected)
