"""What a folder says: kind and reason for every layout, the base of an adapter, and identities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Normalize
from support import tiny_models
from support.tiny_models import (
    CPU,
    FLOAT,
    save_library_lora,
    save_sentence_transformer,
    save_tiny_cross_encoder,
    save_tiny_encoder,
    save_tiny_lora,
    save_tiny_model,
    save_tiny_score_head,
    save_tiny_t5,
)

from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import DataError
from unimoe.models.base import load_base
from unimoe.models.folder import ModelFolder, find_folder
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5
from unimoe.models.rerankers.score_head import load_score_head

Make = Callable[[Path, Path], Any]
"""Writes a model into the first folder; the second is for what it is made from."""


def found(folder: Path | str, **options: Any) -> ModelFolder:
    return find_folder("--model", str(folder), **options)


def with_config(folder: Path, **changes: Any) -> Path:
    """Change settings of a ``config.json``."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def embedding_decoder(folder: Path, other: Path) -> None:
    """Qwen3-Embedding's layout: a causal language model's config, and modules of an encoder."""
    save_sentence_transformer(tiny_models.save_tiny_decoder(other), folder, Normalize(), pooling="lasttoken")
    with_config(folder, architectures=["Qwen3ForCausalLM"])


def of_older_library(folder: Path, other: Path) -> None:
    """An encoder saved before folders stated their class."""
    save_sentence_transformer(save_tiny_encoder(other), folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"__version__": {}}))


def logit_score(folder: Path, other: Path) -> None:
    CrossEncoder(str(save_tiny_model(other, "qwen3")), device="cpu").save_pretrained(str(folder))


def logit_score_unstated(folder: Path, other: Path) -> None:
    logit_score(folder, other)
    (folder / "config_sentence_transformers.json").unlink()


def bare(kind: str, auto: str, **settings: Any) -> Make:
    return lambda folder, other: save_tiny_encoder(folder, kind, auto, **settings)


def decoder_classifier(folder: Path, other: Path) -> None:
    save_tiny_score_head(folder, "qwen3")


def converted(folder: Path, other: Path) -> None:
    """A classifier with an entry of the library in its config, as a CrossEncoder was saved before modules."""
    with_config(save_tiny_score_head(folder, "qwen3"), sentence_transformers={"version": "4.1.0"})


def own_code(name: str) -> Make:
    return lambda folder, other: with_config(
        save_tiny_encoder(folder), architectures=[name], auto_map={"AutoModel": f"modeling.{name}"}
    )


def renamed(*names: str) -> Make:
    return lambda folder, other: with_config(save_tiny_encoder(folder), architectures=list(names))


KINDS: dict[str, tuple[Make, str, str]] = {
    "causal": (lambda f, _: save_tiny_model(f, "qwen3"), "yes-no", "config.json: a Qwen3ForCausalLM"),
    "llama": (lambda f, _: save_tiny_model(f), "yes-no", "config.json: a LlamaForCausalLM"),
    "encoder": (lambda f, o: save_sentence_transformer(save_tiny_encoder(o), f), "encoder", "a SentenceTransformer of"),
    "older": (of_older_library, "encoder", "modules.json: a SentenceTransformer of Transformer, Pooling"),
    "Qwen3-Embedding": (embedding_decoder, "encoder", "a SentenceTransformer of Transformer, Pooling, Normalize"),
    "static": (lambda f, _: tiny_models.save_static_encoder(f), "encoder", "of StaticEmbedding"),
    "logit score": (logit_score, "cross-encoder", "a CrossEncoder of Transformer, LogitScore"),
    "logit score, unstated": (logit_score_unstated, "cross-encoder", "modules.json: a CrossEncoder of"),
    "BGE reranker": (bare("xlm-roberta", "AutoModelForSequenceClassification", num_labels=1), "cross-encoder", "a XLM"),
    "monoBERT": (lambda f, _: save_tiny_cross_encoder(f, 2), "cross-encoder", "a BertForSequenceClassification"),
    "modernbert": (bare("modernbert", "AutoModelForSequenceClassification"), "cross-encoder", "a ModernBertFor"),
    "score head": (decoder_classifier, "cross-encoder", "a decoder with a score head; the folder names no prompt"),
    "converted": (converted, "cross-encoder", "with an entry of sentence-transformers"),
    "dense head": (
        lambda f, o: tiny_models.save_tiny_dense_cross_encoder(f, save_tiny_encoder(o)),
        "cross-encoder",
        "a CrossEncoder of Transformer, Pooling, Dense",
    ),
    "monoT5": (lambda f, _: save_tiny_t5(f), "monot5", "a T5ForConditionalGeneration, an encoder and decoder"),
    "T5 encoder": (
        lambda f, _: with_config(save_tiny_t5(f), architectures=["T5EncoderModel"]),
        "encoder",
        "a T5EncoderModel; no pooling is stated",
    ),
    "bare": (lambda f, _: save_tiny_encoder(f), "encoder", "a BertModel; no pooling is stated"),
    "bare decoder": (lambda f, _: tiny_models.save_tiny_decoder(f), "encoder", "Qwen3Model (a decoder); no pooling is"),
    "masked": (lambda f, _: tiny_models.save_tiny_mlm(f), "encoder", "no SparseEncoder (write sparse: for one)"),
    "SPLADE": (lambda f, o: tiny_models.save_tiny_splade(f, o), "sparse", "a SparseEncoder of Transformer, Splade"),
    "router": (lambda f, o: tiny_models.save_tiny_inference_free(f, o), "sparse", "a SparseEncoder of Router"),
    "ColBERT": (lambda f, o: tiny_models.save_tiny_colbert(f, o), "late", "a MultiVectorEncoder of"),
    "HF_ColBERT": (renamed("HF_ColBERT"), "late", "a HF_ColBERT"),
    "own code": (own_code("JinaForPairs"), "", "a JinaForPairs, a class that transformers does not have"),
    "own lists": (own_code("JinaForRanking"), "listwise", "a JinaForRanking, which scores a whole list, by code"),
    "own encoder": (own_code("NewModel"), "encoder", "a NewModel; no pooling is stated, by code of its"),
    "multimodal": (renamed("Gemma3ForConditionalGeneration"), "", "reads more than text"),
    "tagger": (bare("bert", "AutoModelForTokenClassification"), "", "is no kind that unimoe loads"),
    "unnamed": (renamed(), "", "config.json names no architecture"),
    "empty": (lambda f, _: f.mkdir(), "", "holds neither modules.json nor config.json"),
    "LoRA": (lambda f, o: save_tiny_lora(save_tiny_model(o), f), "yes-no", "task_type CAUSAL_LM, an adapter of"),
    "LoRA without a task": (lambda f, o: save_tiny_lora(save_tiny_model(o), f, task_type=None), "yes-no", "LlamaForC"),
    "RankLLaMA": (lambda f, o: tiny_models.save_tiny_score_adapter(o, f), "rankllama", "task_type SEQ_CLS"),
    "encoder's LoRA": (
        lambda f, o: save_library_lora(save_tiny_encoder(o), f, task="FEATURE_EXTRACTION"),
        "encoder",
        "a SentenceTransformer of Transformer, Pooling, an adapter of",
    ),
    "CrossEncoder's LoRA": (
        lambda f, o: save_library_lora(save_tiny_cross_encoder(o), f, CrossEncoder, "SEQ_CLS"),
        "cross-encoder",
        "a CrossEncoder of Transformer, an adapter of",
    ),
    "SPLADE's LoRA": (
        lambda f, o: save_library_lora(tiny_models.save_tiny_mlm(o), f, SparseEncoder),
        "sparse",
        "a SparseEncoder of Transformer, SpladePooling, an adapter of",
    ),
    "classifier's LoRA": (
        lambda f, o: save_tiny_lora(
            save_tiny_cross_encoder(o), f, "AutoModelForSequenceClassification", task_type="SEQ_CLS",
            target_modules=["query"],
        ),
        "cross-encoder",
        "a BertForSequenceClassification",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS)
def test_a_folder_says_what_kind_of_model_it_is_and_why(tmp_path: Path, case: str) -> None:
    make, kind, because = KINDS[case]
    make(tmp_path / "model", tmp_path / "other")
    folder = found(tmp_path / "model")
    assert folder.kind == kind, folder.because
    assert because in folder.because
    assert "\n" not in folder.because
    assert (folder.base is not None) == ("adapter of" in folder.because)


def test_a_bundled_encoder_keeps_its_identity_as_long_as_its_files_are_those_of_its_wheel() -> None:
    folder = found(BUNDLED_ENCODER)
    assert folder.identity == f"{BUNDLED_ENCODER}@eb7238ea9671a852"
    assert folder.kind == "encoder"


def test_a_copy_is_the_same_model_and_every_other_content_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path / "here" / "tiny", "qwen3")
    identity = found(folder).identity
    monkeypatch.chdir(folder)
    names: list[Any] = [".", "../tiny", f"{folder}/", shutil.copytree(folder, tmp_path / "there" / "tiny")]
    (tmp_path / "linked" / "tiny").mkdir(parents=True)
    for path in folder.iterdir():
        (tmp_path / "linked" / "tiny" / path.name).symlink_to(path)
    assert {found(name).identity for name in [*names, tmp_path / "linked" / "tiny"]} == {identity}
    (folder / "outputs").mkdir()
    (folder / "outputs" / "result.json").write_text("{}")  # of an evaluation in the model's own folder
    (folder / "README.md").write_text("A model.")
    assert found(".").identity == identity
    save_tiny_model(tmp_path / "elsewhere" / "tiny", "qwen3", seed=1)
    assert found(tmp_path / "elsewhere" / "tiny").identity != identity
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rerank.jinja").write_text("{{ messages }}")
    assert found(folder).identity != identity


def test_a_module_folder_that_is_a_link_counts(tmp_path: Path) -> None:
    folder = save_sentence_transformer(save_tiny_encoder(tmp_path / "bare"), tmp_path / "st")
    kept = shutil.move(folder / "1_Pooling", tmp_path / "kept")
    (folder / "1_Pooling").symlink_to(kept)
    identity = found(folder).identity
    with_config(Path(kept), pooling_mode="cls")
    assert found(folder).identity != identity


class Hub:
    """Stands for the hub's client: repositories by id, and what is asked of them."""

    def __init__(self, **folders: Path) -> None:
        self.folders, self.asked = folders, list[tuple[str, str | None, bool]]()

    def snapshot_download(self, name: str, *, revision: str | None, allow_patterns: list[str], **_: Any) -> str:
        self.asked.append((name, revision, "*.safetensors" in allow_patterns))
        return str(self.folders[name.replace("/", "_")])


def test_of_the_hub_the_commit_counts_and_of_an_adapter_its_bases_at_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_tiny_model(tmp_path / ("b" * 40), "qwen3")
    adapter = save_tiny_lora(base, tmp_path / ("a" * 40))
    settings = json.loads((adapter / "adapter_config.json").read_text())
    there = {"base_model_name_or_path": "org/base", "revision": "v2"}
    (adapter / "adapter_config.json").write_text(json.dumps(settings | there))
    hub = Hub(org_base=base, me_lora=adapter)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    plain = found("org/base", revision="main", weights=False)
    assert (plain.identity, plain.kind) == (f"org/base@{'b' * 16}", "yes-no")
    known = found("me/lora", weights=False)
    assert hub.asked == [("org/base", "main", False), ("me/lora", None, False), ("org/base", "v2", False)]
    assert known.base is not None
    assert known.base.identity == plain.identity
    loaded = load_base(ModelConfig(base="me/lora"), CPU, FLOAT)
    assert hub.asked[-1] == ("org/base", "v2", True)
    assert loaded.identity == known.identity
    local = shutil.copytree(adapter, tmp_path / "local")
    assert found(local).identity != known.identity
    hub.folders["org_base"] = shutil.copytree(base, tmp_path / ("c" * 40))
    assert found("me/lora").identity != known.identity


def test_code_of_its_own_that_runs_is_a_part_of_the_identity_with_the_commit_of_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path / "tiny", "qwen3")
    with_config(folder, auto_map={"AutoModelForCausalLM": "org/code--modeling.Own"})
    (folder / "modeling.py").write_text("")
    hub = Hub(org_code=tmp_path / ("a" * 40))
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.snapshot_download)
    identities = [found(folder).identity, found(folder, trust_remote_code=True).identity]
    hub.folders["org_code"] = tmp_path / ("b" * 40)
    identities.append(found(folder, trust_remote_code=True).identity)
    (folder / "modeling.py").write_text("# another")
    identities.append(found(folder, trust_remote_code=True).identity)
    assert len(set(identities)) == 4


class TestAdapters:
    def test_a_base_is_found_from_the_current_folder_or_beside_the_adapter(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_tiny_model(tmp_path / "base")
        adapter = save_tiny_lora(tmp_path / "base", tmp_path / "work" / "adapter")
        monkeypatch.chdir(tmp_path)
        identities = []
        for name in (str(tmp_path / "base"), "base", "../../base"):
            self.name_base(adapter, name)
            base = found(adapter).base
            assert base is not None
            assert (base.root / "config.json").is_file()
            assert load_base(ModelConfig(base=str(adapter)), CPU, FLOAT).adapted
            identities.append(base.identity)
        assert len(set(identities)) == 1

    def name_base(self, folder: Path, name: str | None, **settings: Any) -> None:
        path = folder / "adapter_config.json"
        changed = json.loads(path.read_text()) | {"base_model_name_or_path": name} | settings
        path.write_text(json.dumps(changed))

    def test_the_identity_is_also_that_of_the_base(self, tmp_path: Path) -> None:
        base = save_tiny_model(tmp_path / "base")
        adapter = save_tiny_lora(base, tmp_path / "adapter")
        before = found(adapter).identity
        with_config(base, rms_norm_eps=0.1)
        assert found(adapter).identity != before

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"peft_type": "IA3"}, "adapter_config.json: an adapter of type IA3; LoRA, DoRA and rsLoRA are known"),
            ({"peft_type": "PROMPT_TUNING"}, "an adapter of type PROMPT_TUNING"),
            ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens changes more than the weights"),
            ({"base_model_name_or_path": None}, "names no base model; set base_model_name_or_path to its hub id"),
            ({"base_model_name_or_path": "./gone"}, r"its base model './gone': no such folder; check the path"),
            ({"base_model_name_or_path": "nobody/nothing"}, r"its base model 'nobody/nothing' cannot be loaded"),
            ({"base_model_name_or_path": "adapter"}, "its base model 'adapter' is an adapter too; merge"),
        ],
    )
    def test_one_that_cannot_be_loaded_is_one_line(
        self, tmp_path: Path, settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        adapter = save_tiny_lora(save_tiny_model(tmp_path / "base"), tmp_path / "adapter")
        monkeypatch.chdir(tmp_path)
        self.name_base(adapter, str(tmp_path / "base"), **settings)
        with pytest.raises(DataError, match=words) as caught:
            found("adapter")
        assert "\n" not in str(caught.value)

    def test_a_whole_model_with_an_adapter_beside_it_is_refused(self, tmp_path: Path) -> None:
        base = save_tiny_model(tmp_path / "base")
        save_tiny_lora(base, base)
        with pytest.raises(DataError, match=r"holds a whole model \(model\.safetensors\) and an adapter; take away"):
            found(base)

    @pytest.mark.parametrize("extra", [False, True])
    @pytest.mark.parametrize("kind", ["yes-no", "rankllama", "monot5", "cross-encoder", "encoder", "sparse"])
    def test_keys_that_do_not_fit_are_refused_by_name_whatever_the_kind(
        self, tmp_path: Path, kind: str, extra: bool
    ) -> None:
        base, folder, classes = tmp_path / "base", tmp_path / "adapter", "AutoModelForSequenceClassification"
        load: Callable[[], Any]
        if kind == "yes-no":
            save_tiny_lora(save_tiny_model(base), folder)
            load = lambda: load_base(ModelConfig(base=str(folder)), CPU, FLOAT)  # noqa: E731
        elif kind == "rankllama":
            tiny_models.save_tiny_score_adapter(base, folder)
            load = lambda: load_score_head(folder, 300, CPU, FLOAT)  # noqa: E731
        elif kind == "monot5":
            lora = {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q", "v"]}
            save_tiny_lora(save_tiny_t5(base), folder, "AutoModelForSeq2SeqLM", **lora)
            load = lambda: load_mono_t5(folder, PromptConfig(), 300, CPU, FLOAT)  # noqa: E731
        elif kind == "cross-encoder":
            lora = {"task_type": "SEQ_CLS", "target_modules": ["query"]}
            save_tiny_lora(save_tiny_cross_encoder(base), folder, classes, **lora)
            load = lambda: load_cross_encoder(folder, CPU, FLOAT)  # noqa: E731
        elif kind == "encoder":
            save_library_lora(save_tiny_encoder(base), folder)
            load = lambda: tiny_models.load(folder)  # noqa: E731
        else:
            save_library_lora(tiny_models.save_tiny_mlm(base), folder, SparseEncoder)
            load = lambda: tiny_models.load_sparse(folder)  # noqa: E731
        load()
        weights = load_file(folder / "adapter_model.safetensors")
        name = min(weights)
        if extra:
            weights[name.replace(".0.", ".7.")] = weights[name].clone()
        else:
            del weights[name]
        save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
        with pytest.raises(DataError, match=r"does not fit .*lora_A\.weight is on one side only"):
            load()


def test_a_causal_lora_scores_as_pefts_own_model(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from unimoe.models.unimodel import UnimodelForExp1

    base = save_tiny_model(tmp_path / "base", "qwen3")
    auto: Any = AutoModelForCausalLM
    kinds: dict[str, dict[str, Any]] = {"lora": {}, "dora": {"use_dora": True}}
    kinds["embeddings"] = {"target_modules": ["embed_tokens"]}
    for name, settings in kinds.items():
        folder = save_tiny_lora(base, tmp_path / name, **settings)
        theirs: Any = PeftModel.from_pretrained(auto.from_pretrained(base), str(folder)).eval()
        ours = UnimodelForExp1(
            load_base(ModelConfig(base=str(folder)), CPU, FLOAT), PromptConfig(template="qwen3"), 300
        )
        sequences = ours.pair_ids(tiny_models.PAIRS[:4])
        yes, no = ours.tokenizer.convert_tokens_to_ids(["yes", "no"])
        with torch.inference_mode():
            logits = [theirs(input_ids=torch.tensor([ids])).logits[0, -1] for ids in sequences]
        expected = [float(one[yes] - one[no]) for one in logits]
        assert ours.rerank_ids(sequences).tolist() == pytest.approx(expected, abs=1e-4)


def test_a_cross_encoders_lora_scores_as_the_library_does(tmp_path: Path) -> None:
    base = save_tiny_cross_encoder(tmp_path / "base")
    folder = save_library_lora(base, tmp_path / "lora", CrossEncoder, "SEQ_CLS")
    theirs, whole = CrossEncoder(str(folder), device="cpu"), CrossEncoder(str(base), device="cpu")
    ours = load_cross_encoder(folder, CPU, FLOAT).predict(tiny_models.PAIRS)
    assert ours == pytest.approx(theirs.predict(tiny_models.PAIRS), abs=1e-6)
    assert abs(ours - whole.predict(tiny_models.PAIRS)).max() > 1e-3


def test_an_encoders_lora_in_a_module_folder_embeds_as_the_library_does(tmp_path: Path) -> None:
    """The adapter is in a folder of its own, as older versions of the library wrote every module, without tokenizer."""
    from sentence_transformers import SentenceTransformer

    save_tiny_encoder(tmp_path / "base")
    folder = save_library_lora(tmp_path / "base", tmp_path / "lora")
    theirs = SentenceTransformer(str(folder), device="cpu").encode(["the cat"], normalize_embeddings=True)
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in [*folder.glob("adapter_*"), folder / "sentence_bert_config.json"]:
        shutil.move(path, inner)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    modules = (folder / "modules.json").read_text().replace('"path": ""', '"path": "0_Transformer"')
    (folder / "modules.json").write_text(modules)
    assert tiny_models.load(folder).encode(["the cat"]) == pytest.approx(theirs, abs=1e-6)


def test_a_plain_lora_may_bring_the_head_of_a_cross_encoder_or_leave_the_pooling_to_its_base(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModelForSequenceClassification

    bare, classes = save_tiny_encoder(tmp_path / "bare"), "AutoModelForSequenceClassification"
    lora: dict[str, Any] = {"target_modules": ["query"]}
    with_head = save_tiny_lora(bare, tmp_path / "head", classes, task_type="SEQ_CLS", **lora)
    auto: Any = AutoModelForSequenceClassification
    theirs: Any = PeftModel.from_pretrained(auto.from_pretrained(bare, num_labels=1), str(with_head)).eval()
    ours: Any = load_cross_encoder(with_head, CPU, FLOAT)
    inputs = ours.tokenizer(*map(list, zip(*tiny_models.PAIRS[:1], strict=True)), return_tensors="pt")
    with torch.inference_mode():
        assert torch.allclose(theirs(**inputs).logits, ours[0].model(**inputs).logits, atol=1e-6)
    headless = save_tiny_lora(bare, tmp_path / "headless", classes, task_type=None, **lora)
    with pytest.raises(DataError, match=r"headless: no weights for classifier\.bias"):
        load_cross_encoder(headless, CPU, FLOAT)
    pooled = save_sentence_transformer(bare, tmp_path / "st", pooling="cls")
    adapter = save_tiny_lora(pooled, tmp_path / "pooled", "AutoModel", task_type="FEATURE_EXTRACTION", **lora)
    library = SentenceTransformer(str(pooled), device="cpu")
    library.load_adapter(str(adapter))
    encoder = tiny_models.load(adapter)
    assert encoder.pooling == "cls"
    expected = library.encode(["the cat"], normalize_embeddings=True)
    assert encoder.encode(["the cat"]) == pytest.approx(expected, abs=1e-6)
