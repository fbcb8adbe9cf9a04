"""Heads: losses, pools with positives in training alone, the step that is kept; and studies of them, with tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.studies import WordEmbedder, topics_folder, toy_config, toy_data
from torch import Tensor
from torch.nn.functional import pad

from unimoe.analysis.tables import Table
from unimoe.core.errors import DataError
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document
from unimoe.metrics import score_run
from unimoe.results.folder import Results, load_all_results
from unimoe.results.logs import read_logs
from unimoe.retrieval import bm25
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.embeddings import Embedded
from unimoe.retrieval.postings import Words, write_postings
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import ChosenSetting, load_study
from unimoe.studies.common.table import differences, study_table
from unimoe.studies.heads.config import PoolConfig, TrainConfig, forward_passes, gradient_methods
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.family import HeadFamily, known_queries, overlap_table, step_peak_bytes
from unimoe.studies.heads.methods import head_loss
from unimoe.studies.heads.model import initial_weight, load_head
from unimoe.studies.heads.pools import PoolSet, candidates_of, pool_set
from unimoe.studies.heads.trainer import HeadTrainer

pytestmark = pytest.mark.usefixtures("tmp_cache")


OVER_POOLS = ["infonce", "supcon", "lambdaloss", "approxndcg", "listnet"]


def loss_of(name: str, scores: Tensor, grades: Tensor, valid: Tensor | None = None) -> Tensor:
    valid = torch.ones_like(scores, dtype=torch.bool) if valid is None else valid
    config = TrainConfig(temperature=0.5, ndcg_k=4)
    return head_loss(name, scores, grades, valid, config, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", gradient_methods())
def test_padding_and_queries_without_a_positive_change_nothing(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 6, generator=generator)
    grades = (torch.rand(3, 6, generator=generator) < 0.4).float()
    grades[:, 1] = 2.0
    expected = loss_of(name, scores, grades).item()
    valid = pad(torch.ones(3, 6, dtype=torch.bool), (0, 4), value=False)
    padded = loss_of(name, pad(scores, (0, 4), value=9.0), pad(grades, (0, 4), value=9.0), valid)
    assert padded.item() == pytest.approx(expected, rel=1e-6)
    more = loss_of(name, torch.cat([scores, torch.randn(1, 6)]), torch.cat([grades, torch.zeros(1, 6)]))
    assert more.item() == pytest.approx(expected, rel=1e-6)
    assert loss_of(name, scores, torch.zeros_like(grades)).item() == 0.0
    if name in OVER_POOLS:
        order = torch.tensor([5, 2, 0, 1, 4, 3])
        assert loss_of(name, scores[:, order], grades[:, order]).item() == pytest.approx(expected)


def vectors(rows: dict[str, list[float]]) -> Embedded:
    ids = sorted(rows)
    return Embedded(ids, np.array([rows[key] for key in ids], dtype=np.float32))


DOCUMENTS = vectors({"a": [1, 0], "b": [0.9, 0.1], "c": [0.5, 0.5], "d": [0.1, 0.9], "e": [-1, 0]})
QUERIES = vectors({"q": [1, 0], "r": [0, 1], "s": [1, 0]})

COLLECTION = Collection(
    "tiny",
    "test",
    {key: Document("", key) for key in DOCUMENTS.ids},
    {"q": "q", "r": "r", "s": "s"},
    {"q": {"a": 1, "e": 2, "gone": 1}, "r": {"a": 1, "c": 0}, "s": {"b": 1, "d": -1}},
)


def candidates(depth: int = 3, *, inject: bool, relevant: str = "", queries: Embedded = QUERIES) -> dict[str, set[str]]:
    """Return the pools by the encoder; with ``relevant``, those of the query q with other judgments."""
    judged = {"q": dict.fromkeys(relevant, 1)} if relevant else COLLECTION.qrels
    collection = Collection("tiny", "t", COLLECTION.corpus, COLLECTION.queries, judged)
    run = candidates_of(collection, PoolConfig(source="dense", depth=depth), queries, DOCUMENTS, inject=inject)
    return {query: set(found) for query, found in run.items()}


def test_training_pools_alone_get_positives_that_were_not_found_up_to_half_of_them() -> None:
    """They take the places of the last negatives."""
    assert candidates(inject=False) == {"q": {*"abc"}, "r": {*"bcd"}, "s": {*"abc"}}
    assert candidates(inject=True) == {"q": {*"abe"}, "r": {*"acd"}, "s": {*"abc"}}
    assert candidates(2, inject=True, relevant="acde")["q"] == {*"ab"}  # half of it is positive already
    far = vectors({"q": [-1, 0]})
    assert len(candidates(inject=True, relevant="acde", queries=far)["q"] & {*"acde"}) == 3
    assert candidates(inject=True, relevant="de")["q"] == {*"ade"}
    assert candidates(2, inject=True, relevant="de")["q"] in ({*"ad"}, {*"ae"})


def pools_of(name: str, *, inject: bool, training: bool, run: Run | None = None) -> PoolSet:
    found = candidates_of(COLLECTION, PoolConfig(source="dense", depth=3), QUERIES, DOCUMENTS, inject=inject)
    return pool_set(name, COLLECTION, run or found, QUERIES, DOCUMENTS, training=training)


def test_places_grades_ranks_and_ideal() -> None:
    pools = pools_of("train", inject=True, training=True)
    assert pools.query_ids == ["q", "r", "s"]
    assert pools.document_ids == [["e", "b", "a"], ["d", "c", "a"], ["c", "b", "a"]]
    assert pools.grades.tolist() == [[2, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert pools.ranks.tolist() == [[3, 2, 1], [1, 2, 3], [3, 2, 1]]
    assert [judged.tolist() for judged in pools.judged] == [[1, 2, 1], [1], [1]]  # also what is not in the corpus
    batch = pools.batch([2, 0])
    assert batch.places == [2, 0]
    assert torch.equal(batch.documents[1, 0], torch.tensor([-1.0, 0.0]))
    assert torch.equal(batch.queries, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))


def test_queries_without_a_positive_are_listed_and_count_zero_but_train_nothing() -> None:
    test, train = (pools_of(name, inject=False, training=name == "train") for name in ("test", "train"))
    assert (test.without_positive, test.query_ids) == (["r"], ["q", "r", "s"])
    assert (train.without_positive, train.query_ids) == (["r"], ["q", "s"])
    scores = score_run(test.qrels, test.run(torch.tensor([[3.0, 2, 1]] * 3)), ["ndcg@10"])
    assert scores.per_query["ndcg@10"]["r"] == 0.0
    assert scores.aggregate["ndcg@10"] == pytest.approx(sum(scores.per_query["ndcg@10"].values()) / 3)
    nothing = {"q": {"b": 1.0}, "r": {"b": 1.0}, "s": {"a": 1.0}}
    assert len(pools_of("test", inject=False, training=False, run=nothing)) == 3
    for name in ("train", "dev"):
        words = rf"tiny, {name}: no query has a relevant document in its pool; raise pools"
        with pytest.raises(DataError, match=words):
            pools_of(name, inject=False, training=name == "train", run=nothing)


def test_what_no_head_can_reach_is_said_and_another_encoder_is_other_data(tmp_path: Path) -> None:
    config = toy_config(topics_folder(tmp_path / "c"), tmp_path / "out", pools={"source": "dense", "depth": 3})
    found, same, other = (toy_data(config, WordEmbedder(seed=seed)) for seed in (0, 0, 1))
    assert all(bool((pool > 0).any()) for pool in found.train.grades)
    assert found.test.without_positive
    pools = zip(found.test.query_ids, found.test.document_ids, strict=True)
    assert {query: set(ids) for query, ids in found.candidates.items()} == {query: set(ids) for query, ids in pools}
    (note,) = (note for note in found.notes if note.startswith("test:"))
    assert f"{len(found.test.without_positive)} queries without a relevant document" in note
    assert "count 0 whatever the head" in note
    assert found.content_hash == same.content_hash != other.content_hash


Head = Callable[..., HeadTrainer]


@pytest.fixture
def head(base: TrainConfig, data: HeadData, tmp_path: Path) -> Head:
    """Makes a training by InfoNCE, or with other settings, in a folder of the test."""
    settings = base.model_dump() | {"output_dir": str(tmp_path / "out"), "method": "infonce", "learning_rate": 1e-2}

    def made(data: HeadData = data, **changes: Any) -> HeadTrainer:
        return HeadTrainer(TrainConfig.model_validate(settings | changes), data)

    return made


def test_the_head_that_is_kept_is_the_best_on_dev_and_is_not_trained_again(head: Head) -> None:
    trainer, steps = head(num_steps=20, eval_every=2), list[int]()
    facts = trainer.fit()
    log = read_logs(Path(trainer.config.output_dir))["infonce", 0]
    assert [record["step"] for record in log] == [*range(1, 21)]
    seen = {0: facts["start"]} | {record["step"]: record["val"] for record in log if "val" in record}
    assert facts["val"] == max(seen.values())
    assert facts["best_step"] == min(step for step, value in seen.items() if value == facts["val"])
    assert trainer.fit(lambda step, facts: steps.append(step)) == facts
    assert steps == []


def test_zero_shot_is_the_encoder_itself_and_has_no_seed(head: Head, data: HeadData) -> None:
    trainer, test = head(method="zero_shot"), data.test
    results = trainer.train()
    cosines = (test.documents[test.rows] @ test.queries.unsqueeze(2)).squeeze(2)
    expected = score_run(test.qrels, test.run(cosines), ["ndcg@10"])
    assert results["test/ndcg@10"] == pytest.approx(expected.aggregate["ndcg@10"])
    assert (trainer.seed, results["steps"]) == (None, 0)
    assert "seed_none" in str(trainer.head_path)


def test_a_head_of_another_training_or_size_and_a_damaged_one_are_refused(
    head: Head, base: TrainConfig, tmp_path: Path
) -> None:
    trainer = head()
    trainer.fit()
    words = r"head\.safetensors is of another training: config\.learning_rate was .* choose another output_dir"
    with pytest.raises(DataError, match=words):
        head(learning_rate=1e-4).fit()
    with pytest.raises(DataError, match="is of another training"):
        head(toy_data(base, WordEmbedder(seed=1))).fit()
    with pytest.raises(DataError, match="embeddings of 24 dimensions, these have 7; use the encoder"):
        load_head(trainer.head_path, inputs=7)
    trainer.head_path.write_bytes(trainer.head_path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"head\.safetensors: damaged, or no head"):
        head().fit()
    with pytest.raises(DataError, match="no such head; train it first"):
        load_head(tmp_path / "none.safetensors")


OVERFLOWS = "the weights overflow; lower learning_rate"
ALONE = r"sigma is 1e\+30 times what it perturbs, of which float32 keeps nothing; lower sigma"
RECIPE = {"sigma_is": "absolute", "optimizer": "sgd", "seed_scale": True}


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        *((name, {"learning_rate": 1e30}, OVERFLOWS) for name in ("infonce", "pg_rank", "eggroll", "score_es")),
        ("infonce", {"optimizer": "sgd", "learning_rate": 1e38, "scoring": "dot"}, OVERFLOWS),
        ("infonce", {"temperature": 1e-38}, "the loss is (nan|inf); lower learning_rate, or raise temperature"),
        ("hybrid", {"handoff": 2, "gradient_learning_rate": 1e30}, "overflow; lower gradient_learning_rate"),
        *((name, {"sigma": 1e30}, ALONE) for name in ("eggroll", "score_es", "hybrid")),
        ("eggroll", {"sigma": 1e30, "shaping_method": "rank", "scoring": "dot"}, ALONE),
        ("eggroll", {"sigma": 1e30, "precision": "fp4", "grid": True}, ALONE),
        ("eggroll", {"sigma": 1e30, **RECIPE}, r"sigma is .*e\+\d\d times"),
        ("eggroll", {"sigma": 1e308}, r"sigma is (inf|1e\+308) times"),
        ("genetic", {"genetic": {"mutation": 1e30}}, r"overflow; lower genetic\.mutation"),
        ("genetic", {"genetic": {"mutation": 1e30}, "precision": "fp4"}, r"overflow; lower genetic\.mutation"),
    ],
)
def test_a_training_that_overflows_names_its_step_and_what_to_lower(
    head: Head, method: str, changes: dict[str, Any], words: str
) -> None:
    trainer = head(**{"method": method, "num_steps": 4, "handoff": 3, **changes})
    with pytest.raises(DataError, match=rf"^{method}, seed 0, step [123]: .*{words}"):
        trainer.fit()
    assert not trainer.is_finished()


@pytest.mark.parametrize("method", ["infonce", "softmax", "listnet"])
def test_a_gradient_beyond_float32_ends_in_a_line_though_loss_and_weights_are_finite(head: Head, method: str) -> None:
    with pytest.raises(DataError, match=r"step 1: grad_norm is inf; lower the learning rate, or raise the temperature"):
        head(method=method, temperature=1e-30, num_steps=2).fit()


def test_embeddings_that_are_not_finite_are_refused() -> None:
    with pytest.raises(DataError, match="an embedding is not finite"):
        initial_weight("pca", torch.full((3, 4), torch.nan), 2, seed=0)


METHODS = ["zero_shot", "infonce", "eggroll", "eggroll_objectives"]
Finished = tuple[StudyRunner, dict[str, ChosenSetting]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    return toy_config(topics_folder(tmp_path_factory.mktemp("heads") / "c"), tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def data(base: TrainConfig) -> HeadData:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIMOE_CACHE", str(Path(base.output_dir) / "cache"))
        return toy_data(base)


def runner_of(base: TrainConfig, data: HeadData, methods: list[str], **changes: Any) -> StudyRunner:
    keys = base.model_dump(mode="json", exclude={"output_dir"})
    keys |= {"num_steps": 6, "eval_every": 3, "population_size": 8}
    options = {"base": keys, "output_dir": base.output_dir, "settings": 2, "seeds": 2, **changes}
    family = HeadFamily(load_study(Path("studies/heads_compare"), [], options).of_arms(methods), torch.device("cpu"))
    family.__dict__["data"] = data
    return StudyRunner(family)


@pytest.fixture(scope="module")
def finished(base: TrainConfig, data: HeadData) -> Finished:
    runner = runner_of(base, data, METHODS)
    return runner, runner.run()


def with_noise(results: Results) -> Results:
    """The same with other scores by query: so short a training changes no ranking."""
    rng, changed = np.random.default_rng(0), []
    for result in results.results:
        scores = {query: float(rng.uniform(0.2, 0.8)) for query in sorted(result.per_query)}
        changed.append(result.model_copy(update={"per_query": scores}))
    return Results(results.output_dir, changed)


def rows_of(table: Table) -> dict[str, dict[str, Any]]:
    return {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.groups[0].rows}


def test_a_gate_comes_too_late_where_there_are_results_and_a_later_caveat_reaches_them(
    base: TrainConfig, data: HeadData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = base.model_copy(update={"output_dir": str(tmp_path)})
    for caveats, arms in (([], ["infonce"]), (["unfit"], ["infonce", "eggroll"])):
        runner_of(own, data, arms, settings=1, seeds=1, caveats=caveats).run()
        assert {tuple(result.caveats) for result in load_all_results(tmp_path).results} == {tuple(caveats)}
    assert not (tmp_path / "gates.yaml").exists()
    assert "too late to register" in capsys.readouterr().err


def test_numbers_of_the_table_are_those_of_the_results(finished: Finished, base: TrainConfig, data: HeadData) -> None:
    runner, chosen = finished
    results = with_noise(load_all_results(runner.family.root))
    key = results.dataset_keys[0]
    table = study_table(runner.family, results, chosen, key)
    rows = rows_of(table)
    assert [*rows] == METHODS, "the pools are the encoder's own, so that there is no first stage"
    scores = {name: results.scores(name, key, results.seeds(name, key) or [None]) for name in METHODS}
    asked = [(n, b) for b in ("infonce", "zero_shot") for n in METHODS if n != b]
    found = {(n, b): (scores[n], scores[b], "zero_shot" not in (n, b)) for n, b in asked}
    for (name, other), (delta, _, p) in differences(found).items():
        assert rows[name]["p" if other == "infonce" else "p "].value == p.value
        assert rows[name][f"vs {other}"].value == delta.value
    for name in METHODS:
        assert rows[name]["nDCG@10"].value == pytest.approx(100 * scores[name].mean())
    assert rows["infonce"]["p"].value is None
    assert "corrected by Holm over all differences of this table" in " ".join(table.notes)
    assert rows["zero_shot"]["s"].value is None
    assert rows["eggroll"]["weights kB"].value == round(4 * 16 * 24 / 1e3)
    assert rows["eggroll"]["passes"].value == 6 * 8
    shorter = runner_of(base, data, METHODS, seeds=[1])  # the other seed's results are left out
    cell = rows_of(study_table(shorter.family, results, chosen, shorter.family.keys[0]))["infonce"]["nDCG@10"]
    assert cell.value == pytest.approx(100 * results.scores("infonce", key, [1]).mean())
    assert "±" not in cell.text + cell.spread


def test_an_arm_with_diversity_is_chosen_on_the_front(finished: Finished) -> None:
    """The most diverse that gives up little: the third is behind the second, the fourth too far down."""
    runner = finished[0]
    configs = [runner.tuned["eggroll_objectives"][0][1]] * 5
    points = [(0.50, 0.1), (0.495, 0.3), (0.494, 0.2), (0.40, 0.9), (0.495, 0.3)]
    found = [{"val": relevance, "diversity": diversity} for relevance, diversity in points]
    assert runner.family.choose(configs, found) == 1
    for give_up, place in ((0.0, 0), (1.0, 3)):
        family = HeadFamily(runner.study.model_copy(update={"give_up": give_up}), torch.device("cpu"))
        assert family.choose(configs, found) == place
    assert runner.family.choose([finished[1]["eggroll"].config] * 5, found) == 0


def test_scores_on_known_and_new_documents_are_means_over_each_part(finished: Finished, data: HeadData) -> None:
    """Training queries of half the topics only: the rest of the test queries looks for new documents."""
    some = {q: g for q, g in data.splits.train.qrels.items() if int(q[-2:]) % 2}
    trained = {d for grades in some.values() for d, g in grades.items() if g > 0}
    train, test = replace(data.splits.train, qrels=some), data.splits.test  # what is not relevant is not known
    judged = {q: dict.fromkeys(trained, 0) | grades for q, grades in test.qrels.items()}
    splits = data.splits._replace(train=train, test=replace(test, qrels=judged))
    family, results = finished[0].family, load_all_results(finished[0].family.root)
    assert isinstance(family, HeadFamily)
    known = known_queries(splits)
    assert known == sorted(q for q, grades in test.qrels.items() if trained & set(grades))
    assert 0 < len(known) < len(splits.test.qrels)
    cells = rows_of(overlap_table(family, results, splits, METHODS))["infonce"]
    scores = [results.result("infonce", s, results.dataset_keys[0]).per_query for s in (0, 1)]  # type: ignore[union-attr]
    for column, inside in (("known", True), ("new", False)):
        mean = np.mean([[v for q, v in s.items() if (q in known) == inside] for s in scores])
        assert cells[column].value == pytest.approx(100 * mean)
    table = overlap_table(family, results, data.splits, METHODS)  # no new document: nothing to say
    assert {cell.text for row in table.groups[0].rows for cell in row[5:]} == {"–"}
    assert overlap_table(family, results, data.splits, METHODS[1:]).columns == ("arm", "known", "new")


def test_seeds_pair_where_methods_share_first_weights(
    finished: Finished, base: TrainConfig, data: HeadData, tmp_path: Path
) -> None:
    runner, chosen = finished
    first, second = (runner.trained(name, chosen[name].config, 1) for name in ("infonce", "eggroll"))
    assert torch.equal(first.initial(), second.initial())  # type: ignore[attr-defined]
    own = base.model_copy(update={"output_dir": str(tmp_path), "head_output_size": 8})
    runner_of(own, data, ["infonce", "seed_recipe"], settings=1, seeds=1).run()
    results = load_all_results(tmp_path)
    assert results.seeds_pair(("infonce",), results.dataset_keys)
    assert not results.seeds_pair(("infonce", "seed_recipe"), results.dataset_keys), "it has its own first weights"


def test_work_is_counted_in_forward_passes(base: TrainConfig) -> None:
    settings: tuple[tuple[dict[str, Any], int], ...] = (
        ({"method": "zero_shot"}, 0),
        ({"method": "infonce"}, 6),
        ({"method": "score_es"}, 6),
        ({"method": "eggroll", "population_size": 4096}, 6 * 4096),
        ({"method": "genetic", "genetic": {"individuals": 16, "elites": 2}}, 6 * 16),
        ({"method": "hybrid", "handoff": 2, "population_size": 8}, 2 * 8 + 4),
    )
    for own, passes in settings:
        config = TrainConfig.model_validate(base.model_dump() | {"num_steps": 6} | own)
        assert forward_passes(config) == passes, own


def test_the_peak_of_a_step_is_what_it_holds_at_a_time() -> None:
    def step(weight: Tensor, batch: Any, step: int) -> tuple[Tensor, dict[str, float]]:
        return weight.clone(), {"sum": sum(float(torch.ones(2**20).sum()) for _ in range(3))}

    method: Any = SimpleNamespace(step=step)
    assert step_peak_bytes(method, torch.zeros(4), method) == pytest.approx(4 * 2**20, rel=0.001)


def test_bm25_reads_a_corpus_once_for_its_three_splits(
    tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[int]()

    def counted(folder: Path, texts: Iterable[str], words: Words) -> None:
        texts = list(texts)
        read.append(len(texts))
        write_postings(folder, texts, words)

    config = toy_config(topics_folder(tmp_path / "topics"), tmp_path / "out", pools={"source": "bm25", "depth": 20})
    monkeypatch.setattr(bm25, "write_postings", counted)
    data = toy_data(config)
    assert read == [len(data.splits.train.corpus)]
    monkeypatch.undo()
    alone = {split: bm25_run(part, 20, config.pools.bm25) for split, part in data.splits._asdict().items()}
    assert data.candidates == {key: alone["test"][key] for key in data.candidates}
