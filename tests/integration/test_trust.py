"""What travels has no authority: files of others run no code, reach no server, and write nowhere but where they may.

Each test makes the evil file, and does with it what a user would.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base.modules import Dense, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from support.experiments import tiny_experiment_dict
from support.results import make_result
from support.scripts import Done, assert_refused, call_unimoe, read_plain, successful, write_plain
from support.tiny_models import (
    save_sentence_transformer,
    save_tiny_colbert,
    save_tiny_cross_encoder,
    save_tiny_encoder,
    save_tiny_model,
    save_word_encoder,
)
from support.toy_collections import invented, write_invented

import unimoe
from unimoe.config.base import EncoderConfig, without_authority
from unimoe.core.errors import DataError
from unimoe.evaluation.leaderboard import _facts
from unimoe.models.checkpoint import MANIFEST, read_checkpoint
from unimoe.models.encoder import load_encoder
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.results import read_result, result_files
from unimoe.studies.cross_encoder.config import CrossEncoderModelConfig
from unimoe.studies.cross_encoder.trainer import find_cross_encoder

pytestmark = pytest.mark.usefixtures("tmp_cache")

ARM = "rank_only_r8"
OWN_CODE = """
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

Path({mark!r}).touch()


class OwnConfig(LlamaConfig):
    model_type = "own_llama"


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def with_own_code(folder: Path, mark: Path) -> Path:
    """A tiny model that needs code from its folder, which leaves a mark where it runs."""
    save_tiny_model(folder, layers=2)
    names = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    own = {"model_type": "own_llama", "auto_map": names, "architectures": ["OwnModel"]}
    write_plain(folder / "config.json", read_plain(folder / "config.json") | own)
    (folder / "own_code.py").write_text(OWN_CODE.format(mark=str(mark)))
    return folder


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment whose author trusts the base model's code, and has trained one arm on it."""
    folder = tmp_path_factory.mktemp("trusting")
    base = with_own_code(folder / "own-model", folder / "ran")
    raw = tiny_experiment_dict(folder)
    raw["model"] |= {"base": str(base), "trust_remote_code": True}
    raw["lora"] = {"first_layer": 1}
    raw["training"] |= {"steps": 2, "save_every": 1}
    (folder / "own.yaml").write_text(yaml.safe_dump(raw))
    successful(call_unimoe("train", "--config", folder / "own.yaml", "--arm", ARM, "--seed", "0", "--device", "cpu"))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what transformers copies of a model's code out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield


def checkpoint_of(trusting: Path) -> Path:
    return trusting / "outputs" / ARM / "seed_0" / "checkpoint"


def changed_checkpoint(trusting: Path, target: Path, **changes: Any) -> Path:
    """A checkpoint as somebody else may send it: with other settings in its manifest."""
    shutil.copytree(checkpoint_of(trusting), target)
    manifest = read_plain(target / MANIFEST)
    write_plain(target / MANIFEST, manifest | {"config": manifest["config"] | changes})
    return target


def evaluated(*options: str | Path) -> Done:
    return call_unimoe("evaluate", *options, "--device", "cpu", "--eval-tier", "bundled")


def test_a_checkpoint_runs_no_code_of_its_base_unless_this_user_says_so(trusting: Path, tmp_path: Path) -> None:
    checkpoint, ran = changed_checkpoint(trusting, tmp_path / "sent"), trusting / "ran"
    assert read_plain(checkpoint / MANIFEST)["config"]["model"]["trust_remote_code"] is True
    ran.unlink()
    out = ("--output-dir", tmp_path / "out")
    for options in [("--checkpoint", checkpoint), ("--checkpoint", checkpoint, "--set", "evaluation.depth=3")]:
        assert_refused(
            evaluated(*options, *out),
            3,
            *("own-model", "needs code of its own", "model.trust_remote_code=true"),
        )
    assert_refused(evaluated("--model", checkpoint, *out), 3, "model.trust_remote_code=true")
    assert not (tmp_path / "out").exists(), "nothing is evaluated before"
    searching: tuple[str | Path, ...] = (
        "retrieve",
        "--checkpoint",
        emb_only(checkpoint, tmp_path / "embeds"),
        "--device",
        "cpu",
    )
    searching += (
        "--output-dir",
        tmp_path / "found",
        "--dataset",
        f"path:{write_invented(tmp_path / 'toy', invented())}",
    )
    assert_refused(call_unimoe(*searching), 3, "encoder.trust_remote_code=true")
    with pytest.raises(DataError, match=r"model\.trust_remote_code=true"):
        unimoe.load_model(checkpoint)
    assert not ran.exists(), "its code ran"

    successful(evaluated("--checkpoint", checkpoint, "--set", "model.trust_remote_code=true", *out))
    successful(call_unimoe(*searching, "--set", "encoder.trust_remote_code=true"))


def emb_only(checkpoint: Path, target: Path) -> Path:
    """The same checkpoint, whose manifest says that it embeds."""
    shutil.copytree(checkpoint, target)
    manifest = read_plain(target / MANIFEST)
    manifest["config"]["arms"][ARM]["task"] = "emb_only"
    manifest["config"]["arms"][ARM].pop("ranking_weight", None)
    write_plain(target / MANIFEST, manifest)
    return target


def test_a_user_who_trusts_in_the_own_config_resumes_and_evaluates_as_before(trusting: Path, tmp_path: Path) -> None:
    config, checkpoint = trusting / "own.yaml", checkpoint_of(trusting)
    before = (checkpoint / MANIFEST).read_bytes()
    train = ("train", "--config", config, "--arm", ARM, "--seed", "0", "--device", "cpu")
    successful(call_unimoe(*train))
    assert (checkpoint / MANIFEST).read_bytes() == before
    done = successful(evaluated("--checkpoint", checkpoint, "--config", config, "--output-dir", tmp_path / "out"))
    assert done.stdout
    (result,) = (read_result(path) for path in result_files(tmp_path / "out") if ARM in path.parts)
    assert result.config["model"]["trust_remote_code"] is True
    other = yaml.safe_load(config.read_text())
    other["training"]["steps"] = 3
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    refused = call_unimoe("train", "--config", tmp_path / "other.yaml", *train[3:])
    assert_refused(refused, 3, "training.steps was 2 there and is 3 here")


def test_a_checkpoint_chooses_neither_folder_nor_server_nor_other_models(trusting: Path, tmp_path: Path) -> None:
    served = {"api": "openai", "model": "x", "key_variable": "AWS_SECRET_ACCESS_KEY"}
    evil = {"output_dir": str(tmp_path / "elsewhere"), "served": served}
    sent = changed_checkpoint(trusting, tmp_path / "sent", **evil)
    (tmp_path / "mine.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    manifest = read_plain(sent / MANIFEST)
    manifest["config"]["evaluation"]["systems"] = {"mine": f"python:{tmp_path / 'mine.py'}:score"}
    write_plain(sent / MANIFEST, manifest)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        successful(evaluated("--checkpoint", sent, "--set", "model.trust_remote_code=true"))
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "ran").exists()
    assert result_files(tmp_path / "outputs")
    experiment = read_checkpoint(sent).experiment
    assert (experiment.served, experiment.evaluation.systems) == (None, {})


def test_no_section_of_a_config_that_travels_grants_trust() -> None:
    trusted = {"base": "x", "trust_remote_code": True}
    config: dict[str, Any] = {
        "model": trusted,
        "encoder": trusted,
        "evaluation": {"fusion": {"encoder": trusted}, "sparse": trusted, "systems": {"a": "python:x:y"}},
        "others": [trusted],
        "arms": {"trust_remote_code": {"task": "joint"}},
        "output_dir": "/",
    }
    kept = without_authority(config)
    assert '"trust_remote_code": true' not in json.dumps(kept)
    assert kept["arms"] == config["arms"], "an arm may be called so"
    assert kept["evaluation"].keys() == {"fusion", "sparse"}
    assert config["model"]["trust_remote_code"], "the config itself is as it was"


def test_a_model_name_in_results_of_others_runs_no_code(trusting: Path, tmp_path: Path) -> None:
    """The card of an export asks for a model's sizes, by the config that results hold."""
    found = make_result("arm", 0, {"q1": 1.0})
    model = {"base": str(trusting / "own-model"), "trust_remote_code": True}
    (trusting / "ran").unlink(missing_ok=True)
    evaluation: dict[str, Any] = {"mteb": {"task_instruction": None, "prompts": {}}}
    facts, notes = _facts(found.model_copy(update={"config": {"model": model, "evaluation": evaluation}}))
    assert "trust_remote_code=true" in notes[0]
    assert "n_parameters" not in facts
    assert not (trusting / "ran").exists()


EVIL = "torch.utils.collect_env.main"


def setting(file: Path, *keys: str, value: Any = EVIL) -> Path:
    """Write a value at a place in a JSON file, and return the folder."""
    content = read_plain(file)
    node = content
    for key in keys[:-1]:
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[int(key)]
    node[keys[-1]] = value
    write_plain(file, content)
    return file.parent


def _cross_encoder(folder: Path, *keys: str) -> tuple[str, Path]:
    return "cross-encoder", setting(save_tiny_cross_encoder(folder) / "config.json", *keys)


def _dense(folder: Path, name: str = EVIL) -> Path:
    save_sentence_transformer(save_tiny_encoder(folder / "bare"), folder / "model", Dense(64, 8))
    return setting(folder / "model" / "2_Dense" / "config.json", "activation_function", value=name).parent


def _linked(folder: Path) -> tuple[str, Path]:
    """A module's folder that is a link to another."""
    model = _dense(folder)
    (model / "2_Dense").rename(folder / "aside")
    (model / "2_Dense").symlink_to(folder / "aside")
    return "encoder", model


def _routed(folder: Path) -> tuple[str, Path]:
    """A module in a route of a Router."""
    bare = save_tiny_encoder(folder / "bare")
    routes = [Transformer(str(bare)), Pooling(64, pooling_mode="mean"), Dense(64, 8)]
    router = Router.for_query_document(query_modules=routes, document_modules=routes)
    SentenceTransformer(modules=[router], device="cpu").save_pretrained(str(folder / "model"))
    inner = next((folder / "model").rglob("*Dense/config.json"))
    setting(inner, "activation_function")
    return "encoder", folder / "model"


def _typed(folder: Path) -> tuple[str, Path]:
    model = save_tiny_colbert(folder / "model", save_tiny_encoder(folder / "bare"))
    return "late", setting(model / "modules.json", "1", "type", value="antigravity.Fly")


def _worded(folder: Path) -> tuple[str, Path]:
    model = save_word_encoder(folder / "model")
    file = next(model.rglob("wordembedding_config.json"))
    setting(file, "tokenizer_class", value="sentence_transformers.util.file_io.os")
    return "encoder", model


def _library(folder: Path) -> tuple[str, Path]:
    """A name in the library's namespace that is none of its modules."""
    model = _dense(folder, "torch.nn.modules.linear.Identity")
    return "encoder", setting(model / "modules.json", "2", "type", value="sentence_transformers.base.model.torch")


NAMED: dict[str, Callable[[Path], tuple[str, Path]]] = {
    "cross-encoder": lambda folder: _cross_encoder(folder, "sentence_transformers", "activation_fn"),
    "older cross-encoder": lambda folder: _cross_encoder(folder, "sbert_ce_default_activation_function"),
    "dense": lambda folder: ("encoder", _dense(folder)),
    "a function of torch.nn": lambda folder: ("encoder", _dense(folder, "torch.nn.functional.relu")),
    "below torch.nn": lambda folder: (
        "encoder",
        _dense(folder, "torch.nn.modules.module.torch.utils.collect_env.main"),
    ),
    "a link": _linked,
    "a route": _routed,
    "a type": _typed,
    "a tokenizer": _worded,
    "of the library": _library,
}


@pytest.mark.parametrize("kind", NAMED)
def test_a_models_folder_names_no_code_but_modules(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name, folder = NAMED[kind](tmp_path)
    before = set(sys.modules)
    done = evaluated("--model", f"{name}:{folder}", "--output-dir", tmp_path / "out")
    assert_refused(done, 3, ".json", "names", "model.trust_remote_code=true")
    assert "antigravity" not in set(sys.modules) - before
    assert "Collecting environment" not in capfd.readouterr().out


class _Mark:
    """Makes a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def _pickled(folder: Path, mark: Path) -> Path:
    """A cross-encoder of the library, whose weights are a pickle that leaves a mark where it is read."""
    bare = save_tiny_cross_encoder(folder / "bare")
    CrossEncoder(str(bare), device="cpu").save_pretrained(str(folder / "model"))
    model = folder / "model"
    (model / "model.safetensors").unlink()
    torch.save({"weight": _Mark(mark)}, model / "pytorch_model.bin")
    config = read_plain(model / "config.json")
    config.pop("dtype", None)
    write_plain(model / "config.json", config)
    return model


@pytest.mark.parametrize("section", ["model_args", "model_kwargs"])
def test_a_models_folder_does_not_say_that_pickles_may_run(section: str, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    folder = _pickled(tmp_path, mark)
    unsafe = {"weights_only": False, "use_safetensors": False, "dtype": "auto"}
    setting(folder / "sentence_bert_config.json", section, value=unsafe)
    with pytest.raises(DataError, match=r"sentence_bert_config\.json: sets weights_only of a loader"):
        load_cross_encoder(folder, torch.device("cpu"))
    assert not mark.exists(), "its code ran"
    assert_refused(evaluated("--model", f"cross-encoder:{folder}"), 3, "sets weights_only of a loader")


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("model_args", "offload_folder"), "/tmp/elsewhere"),
        (("tokenizer_args", "vocab_file"), "/etc/hostname"),
        (("tokenizer_name_or_path",), "../bare"),
    ],
)
def test_a_models_folder_sends_no_loader_elsewhere(keys: tuple[str, ...], value: str, tmp_path: Path) -> None:
    folder = save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "model")
    setting(folder / "sentence_bert_config.json", *keys, value=value)
    assert_refused(evaluated("--model", f"encoder:{folder}"), 3, f"sets {keys[-1]} of a loader")


def test_harmless_arguments_of_loaders_load(tmp_path: Path) -> None:
    folder = save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "model")
    setting(folder / "sentence_bert_config.json", "tokenizer_args", value={"padding_side": "right"})
    load_encoder(EncoderConfig(base=str(folder)), torch.device("cpu"), torch.float32)


def test_the_base_of_a_cross_encoders_training_names_no_code_either(tmp_path: Path) -> None:
    _, folder = _cross_encoder(tmp_path / "base", "sentence_transformers", "activation_fn")
    config = CrossEncoderModelConfig(base=str(folder))
    with pytest.raises(DataError, match=r"config\.json: activation_fn names 'torch\.utils\.collect_env\.main'"):
        find_cross_encoder(config)


@pytest.mark.parametrize(
    "name", ["torch.nn.modules.activation.Sigmoid", "torch.nn.Identity", "torch.nn.modules.linear.Identity"]
)
def test_activations_of_torch_load(name: str, tmp_path: Path) -> None:
    folder = setting(
        save_tiny_cross_encoder(tmp_path / "x") / "config.json", "sentence_transformers", "activation_fn", value=name
    )
    load_cross_encoder(folder, torch.device("cpu"))
    load_encoder(EncoderConfig(base=str(_dense(tmp_path, name))), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("path", ["../bare", "/tmp", "..\\bare", "C:\\bare", "1_Pooling/../../bare"])
def test_a_list_of_modules_leads_nowhere_else(path: str, tmp_path: Path) -> None:
    folder = setting(_dense(tmp_path) / "modules.json", "1", "path", value=path)
    assert_refused(evaluated("--model", f"encoder:{folder}"), 3, "modules.json", "leads out of its folder")
