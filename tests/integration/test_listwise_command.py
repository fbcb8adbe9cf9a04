"""``listwise:`` by the commands: folders, code of their own, a server, random orders, plans and comparisons."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import scripts, tiny_models
from support.model_server import ModelServer, serve
from support.toy_collections import invented, write_invented
from support.windows import in_windows

from unimoe.config import BM25Config
from unimoe.config.listwise import ListwiseConfig
from unimoe.core.trec import ranked
from unimoe.data.catalog import load_collection
from unimoe.models.served.probe import PROBE_PAIRS
from unimoe.results import EvalResult, read_result
from unimoe.results.folder import load_all_results
from unimoe.retrieval.bm25 import bm25_run
from unimoe.studies.common.study import load_study
from unimoe.studies.cross_encoder.data import collection_lists

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

OWN_MODEL = '''
import torch
from transformers import AutoTokenizer, Qwen3Model, Qwen3PreTrainedModel

class JinaForRanking(Qwen3PreTrainedModel):
    """The layout of jina-reranker-v3, with signs for its special tokens."""

    def __init__(self, config):
        super().__init__(config)
        self.model = Qwen3Model(config)
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(config.hidden_size, 32, bias=False), torch.nn.ReLU(), torch.nn.Linear(32, 16, bias=False)
        )
        self.post_init()

    def rerank(self, query, documents, top_n=None):
        tokenizer, ids, places = AutoTokenizer.from_pretrained(self.name_or_path), [], []
        for text in [*documents, query]:
            ids += tokenizer(text, add_special_tokens=False)["input_ids"] + [0]
            places.append(len(ids) - 1)
        states = self.projector(self.model(torch.tensor([ids])).last_hidden_state[0, places])
        scores = torch.nn.functional.cosine_similarity(states[:-1], states[-1:]).tolist()
        rows = [{"document": d, "relevance_score": s, "index": i} for i, (d, s) in enumerate(zip(documents, scores))]
        return sorted(rows, key=lambda row: -row["relevance_score"])[:top_n]
'''


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A collection, and the folders of models, made once."""
    folder = tmp_path_factory.mktemp("listwise")
    write_invented(folder / "toy", invented(documents=14, queries=4, words=30))
    tiny_models.save_tiny_model(folder / "causal", "qwen3", layers=2)
    tiny_models.save_tiny_cross_encoder(folder / "ce")
    save_list_scorer(folder / "jina")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def save_list_scorer(folder: Path) -> Path:
    """A model in jina's layout, whose code comes with it."""
    base = tiny_models.tiny_base("qwen3", layers=2)
    tiny_models.saved(folder, base.model, base.tokenizer)
    (folder / "modeling.py").write_text(OWN_MODEL)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["JinaForRanking"], "auto_map": {"AutoModel": "modeling.JinaForRanking"}}
    (folder / "config.json").write_text(json.dumps(config))
    from safetensors.torch import load_file, save_file

    weights = {n: w for n, w in load_file(folder / "model.safetensors").items() if n.startswith("model.")}
    draw = torch.Generator().manual_seed(3)
    weights["projector.0.weight"] = torch.randn(32, tiny_models.HIDDEN, generator=draw)
    weights["projector.2.weight"] = torch.randn(16, 32, generator=draw)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def evaluate(data: Path, model: str, out: Path, *more: str) -> scripts.Done:
    exact = ["--set", "model.dtype=float32", "--set", "evaluation.depth=12", "--set", "listwise.words=4"]
    given = ["--model", model, "--dataset", "path:toy", "--name", "it", "--output-dir", str(out)]
    return scripts.evaluate(data, *given, *exact, *more)


def result(out: Path, seed: int) -> EvalResult:
    return read_result(out / "it" / f"seed_{seed}" / "results" / "reranking" / "toy.json")


def run_of(out: Path, seed: int) -> dict[str, list[str]]:
    lines = (out / "it" / f"seed_{seed}" / "runs" / "reranking" / "toy.trec").read_text().splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        query, _, key, *_ = line.split()
        found.setdefault(query, []).append(key)
    return found


def windows_of(out: Path) -> int:
    """Windows of 6 documents, every third of which begins one."""
    lengths = [len(found) for found in run_of(out, 0).values()]
    assert max(lengths) > 6
    return sum(1 + max(0, math.ceil((length - 6) / 3)) for length in lengths if length > 1)


def test_a_folder_writes_lists_in_each_order_a_run_and_continues(data: Path, tmp_path: Path) -> None:
    windows = ["--set", "listwise.window=6"]
    done = scripts.successful(evaluate(data, "listwise:causal", tmp_path, "--shuffles", "2", *windows))
    assert "windows of 6" in done.stderr
    first, *others = [result(tmp_path, seed) for seed in range(3)]
    assert first.provenance.hashes["order"] == "the first stage's"
    assert [one.provenance.hashes["order"] for one in others] == ["random, seed 1", "random, seed 2"]
    assert len({one.provenance.hashes["candidates"] for one in (first, *others)}) == 1
    assert len({str(run_of(tmp_path, seed)) for seed in range(3)}) == 3
    assert first.identity.base_model is not None
    assert first.identity.base_model.startswith("listwise:causal@")
    assert str(first.identity.prompt).startswith("rankzephyr(window=6,step=3,passes=1)@")
    assert first.provenance.usage["answers"] == windows_of(tmp_path)
    assert first.provenance.usage["tokens"] > 0
    assert first.provenance.usage["unparsable answers"] <= windows_of(tmp_path)
    assert first.read_as.startswith("listwise: config.json: a Qwen3ForCausalLM; listwise.way permutation")
    assert not [line for line in first.caveats if "read as" in line]
    again = scripts.successful(evaluate(data, "listwise:causal", tmp_path, "--shuffles", "3", *windows))
    assert again.stderr.count("already done") >= 3
    assert result(tmp_path, 3).provenance.hashes["order"] == "random, seed 3"


def test_a_model_of_jinas_layout_scores_whole_lists_where_it_is_trusted(data: Path, tmp_path: Path) -> None:
    scripts.assert_refused(evaluate(data, "jina", tmp_path / "no"), 3, "a JinaForRanking", "trust_remote_code=true")
    trusted = ["--set", "model.trust_remote_code=true"]
    for name in ("jina", "listwise:jina"):
        out = tmp_path / name.replace(":", "-")
        scripts.successful(evaluate(data, name, out, *trusted, "--shuffles", "1"))
        toy = load_collection("path:toy", "test")
        from transformers import AutoModel

        model = AutoModel.from_pretrained(data / "jina", trust_remote_code=True, dtype=torch.float32).eval()
        bm25 = (out / "bm25" / "seed_none" / "runs" / "reranking" / "toy.trec").read_text().splitlines()
        for query, found in run_of(out, 0).items():
            keys = [line.split()[2] for line in bm25 if line.split()[0] == query]
            with torch.inference_mode():
                rows = model.rerank(toy.queries[query], [toy.corpus[key].full_text for key in keys])
            assert found == ranked({keys[row["index"]]: row["relevance_score"] for row in rows})
        assert run_of(out, 0) != run_of(out, 1), "other documents of the list change the score of one"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A chat model that lists documents by their last letters."""

    def says(messages: list[dict[str, str]]) -> str:
        texts = re.findall(r"^\[\d+\] (.*)$", messages[-1]["content"], re.MULTILINE)
        order = sorted(range(len(texts)), key=lambda place: texts[place][::-1])
        return " > ".join(f"[{place + 1}]" for place in order)

    with serve(layers=2) as running:
        running.says = says
        yield running


SERVED = ["--set", "served.api=chat", "--set", "served.model=org/tiny", "--set", "served.retries=1"]


def of_the_collection(server: ModelServer) -> list[Any]:
    return [body for _, body in server.asked if PROBE_PAIRS[0][0] not in str(body)]


def test_a_server_is_planned_for_and_paid_once(data: Path, tmp_path: Path, server: ModelServer) -> None:
    url, prices = f"listwise:{server.base('chat')}", ["--set", "served.price_per_million_tokens=3"]
    how = [*SERVED, *prices, "--set", "listwise.window=6", "--shuffles", "1"]
    plan = scripts.successful(evaluate(data, url, tmp_path, *how, "--plan"))
    assert of_the_collection(server) == []
    assert ", price about " in plan.stdout
    assert "so much for each of the 2 orders of the candidates" in plan.stdout
    scripts.successful(evaluate(data, url, tmp_path, *how))
    asked = len(of_the_collection(server))
    usage = [result(tmp_path, seed).provenance.usage for seed in (0, 1)]
    assert sum(one["requests"] for one in usage) == asked == 2 * windows_of(tmp_path)
    assert f"total: {windows_of(tmp_path)} requests, about " in plan.stdout
    assert all(one["price"] == pytest.approx(3e-6 * one["tokens"]) for one in usage)
    scripts.successful(evaluate(data, url, tmp_path, *how))
    assert len(of_the_collection(server)) == asked
    with_password = evaluate(data, "listwise:http://me:secret@host/v1", tmp_path, *SERVED)
    scripts.assert_refused(with_password, 2, "leave credentials out")
    assert "secret" not in with_password.stderr


def test_orders_are_compared_in_the_place_of_seeds(data: Path, tmp_path: Path) -> None:
    systems = ["cross-encoder:ce", "yes=yes-no:causal", "list=listwise:causal"]
    given = ["--baseline", "bm25", "--systems", *systems, "--dataset", "path:toy", "--models-dir", str(tmp_path)]
    how = ["--set", "model.dtype=float32", "--set", "evaluation.depth=12", "--set", "listwise.words=4"]
    done = scripts.successful(scripts.call_unimoe("compare", *given, *how, "--shuffles", "2", "--json"))
    read = [line for line in done.stderr.splitlines() if line.startswith("read ")]
    assert [sum(f": {name}" in line for line in read) for name in ("bm25", "ce", "yes", "list")] == [1, 1, 1, 3]
    assert sum(": list seed" in line for line in read) == 3
    alone = scripts.call_unimoe("compare", *given[:3], *systems[:2], *given[6:], *how, "--shuffles", "2")
    scripts.assert_refused(alone, 2, "--shuffles 2: ", "score each pair alone")


def test_a_plan_counts_the_tokens_of_whole_lists(data: Path, tmp_path: Path) -> None:
    plan = scripts.successful(evaluate(data, "listwise:causal", tmp_path / "plan", "--plan", "--price-per-hour", "2"))
    scripts.successful(evaluate(data, "listwise:causal", tmp_path))
    (total,) = (line for line in plan.stdout.splitlines() if line.startswith("total: "))
    tokens = int(total.split()[1].replace(",", ""))
    used = result(tmp_path, 0).provenance.usage
    longest = 8 * sum(map(len, run_of(tmp_path, 0).values()))
    assert used["tokens"] <= tokens <= used["tokens"] + longest
    assert " tokens, " in total
    assert " at 2 an hour" in total


def test_what_cannot_be_shuffled_is_refused(data: Path, tmp_path: Path) -> None:
    alone = evaluate(data, "yes-no:causal", tmp_path, "--shuffles", "2")
    scripts.assert_refused(alone, 2, "--shuffles 2: it score", "leave it out")
    wrong = evaluate(data, "listwise:causal", tmp_path, "--set", "listwise.window=4", "--set", "listwise.step=5")
    scripts.assert_refused(wrong, 2, "listwise", "step 5 leaves out documents")


def test_the_lists_of_a_server_become_lists_to_train_on(data: Path, tmp_path: Path, server: ModelServer) -> None:
    model = ["--model", f"listwise:{server.base('chat')}", "--set", "listwise.window=6", *SERVED]
    sampling = ["--set", "split=test", "--set", "test_split=null", "--set", "sampling.queries=3", "--depth", "8"]
    sampling += ["--set", "sampling.min_words=1", "--set", "sampling.letters=0"]
    given = ["--dataset", "path:toy", *model]
    done = scripts.successful(scripts.call_unimoe("label", *given, *sampling, "--output-dir", str(tmp_path / "lists")))
    made = json.loads((tmp_path / "lists" / "labels.json").read_text())
    assert made["model"].startswith("served:chat:")
    assert made["prompt"].startswith("rankzephyr(window=6")
    assert made["usage"]["requests"] == made["usage"]["answers"] > 0
    labelled = load_collection(f"path:{tmp_path / 'lists'}", "train")
    documents = sum(len(row) + 1 for row in labelled.qrels.values())  # the last of a list has no grade
    assert f"lists 3 of {documents} documents, by rank" in " ".join(done.stdout.split())
    candidates = bm25_run(labelled, 8, BM25Config())
    lists = collection_lists(labelled, candidates, None, None).lists
    assert len(lists) == 3
    for one in lists:
        found = candidates[one.query_id]
        assert one.labels == tuple(float(place) for place in reversed(range(len(found))))
        keys = {labelled.corpus[key].full_text: key for key in found}
        first = ranked(found)
        last_letters = [" ".join(labelled.corpus[key].full_text.split())[::-1] for key in first]
        by_letters = partial(sorted, key=last_letters.__getitem__)
        expected = in_windows(len(found), by_letters, ListwiseConfig(window=6).reading, settles=False)
        assert [keys[text] for text in one.documents] == [first[place] for place in expected]
    scripts.successful(evaluate(data, "listwise:causal", tmp_path / "run"))
    run = tmp_path / "run" / "it" / "seed_0" / "runs" / "reranking" / "toy.trec"
    pooled = scripts.call_unimoe("label", "--runs", str(run), *given, "--output", str(tmp_path / "llm.qrels"))
    scripts.assert_refused(pooled, 2, "orders lists, which says nothing of one document", "without --runs")


def test_the_study_of_lists_can_be_read() -> None:
    study = load_study(Path("studies/distilled_lists"))
    assert [*study.arms] == ["order", "best"]


def test_a_table_of_systems_has_their_orders_in_pairs(data: Path, tmp_path: Path) -> None:
    tiny_models.save_tiny_model(tmp_path / "other", "qwen3", layers=2, seed=1)
    systems = {"a": "listwise:causal", "b": f"listwise:{tmp_path / 'other'}", "ce": "cross-encoder:ce"}
    evaluation = {"datasets": ["path:toy"], "depth": 8, "systems": systems}
    table = {"name": "t", "model": {"base": "causal", "dtype": "float32"}, "evaluation": evaluation}
    (tmp_path / "t.yaml").write_text(json.dumps(table | {"listwise": {"words": 3, "window": 4}}))
    given = ["--config", str(tmp_path / "t.yaml"), "--output-dir", str(tmp_path / "out"), "--shuffles", "2"]
    done = scripts.successful(scripts.evaluate(data, *given))
    held = load_all_results(tmp_path / "out")
    assert {arm: sorted(seeds, key=str) for arm, seeds in held.items()} == {
        "a": [0, 1, 2], "b": [0, 1, 2], "ce": [None], "bm25": [None]
    }  # fmt: skip
    assert held.seeds_pair(["a", "b"], ["reranking/toy"])
    assert "a" in done.stdout


OWN = """
from unimoe.models.reranker import Reranker

class Reversing(Reranker):
    identity, reads_order = "reversing, version 1", True

    def score(self, prepared, advance=None):
        return [float(place) for place, _ in enumerate(prepared)]

own = Reversing()
"""


def test_a_reranker_of_ones_own_that_reads_the_order_has_a_run_for_each(data: Path, tmp_path: Path) -> None:
    (data / "my_reversing.py").write_text(OWN)
    scripts.successful(evaluate(data, "python:my_reversing:own", tmp_path, "--shuffles", "1"))
    bm25 = (tmp_path / "bm25" / "seed_none" / "runs" / "reranking" / "toy.trec").read_text().splitlines()
    first: dict[str, list[str]] = {}
    for line in bm25:
        first.setdefault(line.split()[0], []).append(line.split()[2])
    found = run_of(tmp_path, 0)
    # BM25's candidates in its order, whose last document has now the highest score.
    assert {query: keys[::-1] for query, keys in found.items()} == first
    assert {query: sorted(keys) for query, keys in run_of(tmp_path, 1).items()} == {
        q: sorted(k) for q, k in first.items()
    }
    assert run_of(tmp_path, 1) != found
