"""The door for splits, at the level of commands: no query trains, or chooses, what is reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.experiments import tiny_experiment_dict, write_tiny_experiment
from support.scripts import Done, assert_refused, call_unimoe, read_plain, successful, write_plain
from support.studies import cross_encoder_keys, topics_folder
from support.tiny_models import save_tiny_cross_encoder, save_tiny_encoder

from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document
from unimoe.data.published import is_published
from unimoe.models.seen_queries import SEEN_FILE
from unimoe.results import read_result, result_path
from unimoe.studies.common.splits import SplitConfig, load_splits
from unimoe.training.splits import SplitQueries, checked_splits, to_train_on

pytestmark = pytest.mark.usefixtures("one_thread")

SPLITS = {"train": 12, "dev": 6, "test": 6}


@pytest.fixture
def places(tmp_path: Path, tmp_cache: Path) -> tuple[Path, Path]:
    return save_tiny_encoder(tmp_path / "encoder"), topics_folder(tmp_path / "topics", SPLITS)


def with_texts(folder: Path, copy: Path, change: Callable[[str, str], tuple[str, str]]) -> Path:
    """A copy of a collection whose queries have other ids and texts."""
    shutil.copytree(folder, copy)
    lines = [json.loads(line) for line in (copy / "queries.jsonl").read_text("utf-8").splitlines()]
    named = {line["_id"]: change(line["_id"], line["text"]) for line in lines}
    rows = (json.dumps({"_id": key, "text": text}) + "\n" for key, text in named.values())
    (copy / "queries.jsonl").write_text("".join(rows), "utf-8")
    for file in (copy / "qrels").glob("*.tsv"):
        header, *judged = file.read_text("utf-8").splitlines()
        parts = [line.split("\t") for line in judged]
        file.write_text("\n".join([header, *("\t".join([named[q][0], *rest]) for q, *rest in parts), ""]), "utf-8")
    return copy


def cross_encoder(places: tuple[Path, Path], folder: Path, *more: str) -> Done:
    keys = cross_encoder_keys(*places) | {"max_steps": 2, "learning_rate": 1e-3, "output_dir": str(folder / "out")}
    write_plain(folder / "cross.yaml", keys)
    settings = (part for text in more for part in ("--set", text))
    return call_unimoe("train-cross-encoder", "--config", folder / "cross.yaml", "--device", "cpu", *settings)


@pytest.mark.parametrize(
    ("part", "key"), [("test", "lists.source and in evaluation.test"), ("dev", "lists.source and in evaluation.dev")]
)
def test_training_queries_neither_choose_nor_are_reported(
    places: tuple[Path, Path], tmp_path: Path, part: str, key: str
) -> None:
    done = cross_encoder(places, tmp_path, f"evaluation.{part}=[path:{places[1]}@train]")
    assert_refused(done, 3, "query 'train00' (one of 12) is in", key, "choose splits that differ")
    study = {"name": "s", "family": "cross_encoder", "base": {}, "arms": {"one": {}}, "seeds": 1}
    study["base"] = cross_encoder_keys(*places) | {"max_steps": 2, "evaluation": {part: [f"path:{places[1]}@train"]}}
    write_plain(tmp_path / "study.yaml", study)
    done = call_unimoe("study", tmp_path / "study.yaml", "--device", "cpu", "--output-dir", tmp_path / "study")
    assert_refused(done, 3, key)


@pytest.mark.parametrize(
    "change",
    [
        lambda key, text: (key, text.upper()),  # the same ids, in a folder of another name
        lambda key, text: (f"other-{key}", f"  {text.replace(' ', '  ').title()} "),
        lambda key, text: (f"other-{key}", "".join(chr(ord(c) + 0xFEE0) if c.isalnum() else c for c in text)),
        lambda key, text: (f"other-{key}", "\ufeff" + text.replace(" ", " \u200b") + "\u200e"),  # nobody sees these
    ],
)
def test_copies_of_training_queries_are_found_whatever_they_are_called(
    places: tuple[Path, Path], tmp_path: Path, change: Callable[[str, str], tuple[str, str]]
) -> None:
    copy = with_texts(places[1], tmp_path / "another", change)
    done = cross_encoder(places, tmp_path, f"evaluation.test=[path:{copy}@train]")
    assert_refused(done, 3, f"path:{copy}", "12", "lists.source", "choose splits that differ")


def test_the_queries_that_choose_are_reported_only_where_the_recipe_says_so_and_then_a_caveat_says_it_everywhere(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    name = f"path:{places[1]}"
    assert_refused(
        cross_encoder(places, tmp_path, f"evaluation.dev=[{name}]"), 3, "is in evaluation.dev and in the test"
    )
    done = successful(cross_encoder(places, tmp_path, f"evaluation.dev=[{name}]", "evaluation.reports_dev=true"))
    caveat = "6 of its 6 queries choose the checkpoint too (evaluation.reports_dev)"
    assert caveat in " ".join(done.stdout.split())
    place = (tmp_path / "out", "cross_encoder", 12, "reranking", places[1].name)
    assert any(caveat in line for line in read_result(result_path(*place)).caveats)
    table = successful(call_unimoe("analyze", "tables", "--output-dir", tmp_path / "out"))
    files = [*(tmp_path / "out" / "analysis").rglob("*.md")]
    assert any(caveat in file.read_text("utf-8") for file in files), table.stdout


@pytest.mark.parametrize("drop", [False, True])
def test_one_shared_text_of_an_own_collection_is_refused_or_left_out_of_training(
    places: tuple[Path, Path], tmp_path: Path, *, drop: bool
) -> None:
    texts = load_collection(f"path:{places[1]}", "train").queries
    shared = {"test00": texts["train03"].upper()}
    copy = with_texts(places[1], tmp_path / "shared", lambda key, text: (key, shared.get(key, text)))
    done = cross_encoder((places[0], copy), tmp_path, *(["drop_shared=true"] if drop else []))
    if not drop:
        words = ("1 of its 6 queries have the text of one that trains, under another id (test00)", "drop_shared: true")
        assert_refused(done, 3, *words)
        return
    assert "drop_shared: 1 queries of" in successful(done).stderr
    seen = read_plain(tmp_path / "out/cross_encoder/seed_12/checkpoint" / SEEN_FILE)
    assert len(seen["train"]) == 11
    assert not read_result(result_path(tmp_path / "out", "cross_encoder", 12, "reranking", "shared")).caveats


def test_every_trainer_asks_at_the_same_door(places: tuple[Path, Path], tmp_path: Path) -> None:
    texts = load_collection(f"path:{places[1]}", "train").queries
    copy = with_texts(
        places[1], tmp_path / "leaky", lambda key, text: (key, texts["train03"] if key == "dev02" else text)
    )
    words = ("1 of its 6 queries have the text of one that trains", "(dev02)", "drop_shared: true")
    heads = ("--set", f"encoder.base={places[0]}", "--set", "num_steps=1", "--output-dir", tmp_path / "heads")
    assert_refused(call_unimoe("train-head", "--task", f"path:{copy}", "--device", "cpu", *heads), 3, *words)
    bi = ("--set", f"encoder.base={places[0]}", "--output-dir", tmp_path / "bi", "--device", "cpu")
    assert_refused(call_unimoe("train-biencoder", "--dataset", f"path:{copy}", *bi), 3, *words)
    config = tiny_experiment_dict(tmp_path)
    config["training"] |= {"collection": f"path:{copy}", "evaluate_every": 1}
    write_plain(tmp_path / "arms.yaml", config)
    arms = call_unimoe("train", "--config", tmp_path / "arms.yaml", "--arm", "rank_only_r8", "--device", "cpu")
    assert_refused(arms, 3, *words[:2], "set training.drop_shared: true", silent=False)


def test_an_evaluation_says_which_of_its_queries_the_checkpoint_has_seen_whatever_they_are_called(
    tmp_path: Path, tmp_cache: Path
) -> None:
    config = write_tiny_experiment(tmp_path)
    done = call_unimoe("train", "--config", config, "--arm", "rank_only_r8", "--device", "cpu")
    checkpoint = Path(successful(done).stdout.strip())
    assert (checkpoint / SEEN_FILE).is_file()
    trained = read_plain(checkpoint / SEEN_FILE)["train"]
    other = topics_folder(tmp_path / "own", {"test": 4})
    text = next(iter(load_collection("apidocs", "train").sample_queries(len(trained)).queries.values()))
    copy = with_texts(
        other, tmp_path / "renamed", lambda key, old: (f"x{key}", text.upper() if key == "test01" else old)
    )
    where = ("--dataset", f"path:{copy}", "--task", "reranking", "--output-dir", tmp_path / "out", "--device", "cpu")
    successful(call_unimoe("evaluate", "--checkpoint", checkpoint, *where))
    result = read_result(result_path(tmp_path / "out", "rank_only_r8", 0, "reranking", "renamed"))
    assert "1 of 4 queries trained the checkpoint (xtest01)" in result.caveats


def queries(part: str, name: str, **texts: str) -> SplitQueries:
    return SplitQueries(part, part, name, texts)  # type: ignore[arg-type]


def test_a_few_texts_under_other_ids_are_a_caveat_of_published_sets_and_a_copy_is_refused() -> None:
    ask: Mapping[str, str] = {f"q{n}": f"question {n}" for n in range(20)}
    train = SplitQueries("train", "train", "nfcorpus", {f"t{n}": f"Question  {n}" for n in range(2)})
    found = checked_splits([train, SplitQueries("test", "test", "nfcorpus", ask)])
    (check,) = found.checks
    assert (check.weight, check.data["queries"], check.data["of"]) == ("caveat", 2, 20)
    more = SplitQueries("train", "train", "nfcorpus", {f"t{n}": f"Question  {n}" for n in range(3)})
    with pytest.raises(Exception, match="3 of its 20 queries"):
        checked_splits([more, SplitQueries("test", "test", "nfcorpus", ask)])
    assert [is_published(name) for name in ("SciFact", "mteb:X", "path:nfcorpus", "mine")] == [True, True, False, False]


def test_ids_that_coincide_by_chance_are_no_shared_queries() -> None:
    parts = [queries("train", "path:a", q1="one", q2="two"), queries("test", "path:b", q1="three", q2="four")]
    assert not checked_splits(parts).checks


def test_the_published_sets_have_their_known_shared_texts(unimoe_data: Path) -> None:
    lines = {
        name: [check.line for check in load_splits(name, None).test.checks if check.name == "shared queries"]
        for name in ("nfcorpus", "scifact")
    }
    assert any("4 of its 323 queries have the text of one that trains" in line for line in lines["nfcorpus"])
    assert any("4 of its 324 queries have the text of one that trains" in line for line in lines["nfcorpus"])
    assert any("2 of its 300 queries have the text of one that trains" in line for line in lines["scifact"])
    dropped = load_splits("nfcorpus", None, drop_shared=True)
    assert len(load_splits("nfcorpus", None).train.qrels) - len(dropped.train.qrels) == 8


def test_queries_of_equal_text_share_what_answers_them_and_their_part(tmp_path: Path, tmp_cache: Path) -> None:
    corpus = {f"d{n}": Document("", f"text {n}") for n in range(4)}
    asked = {"a": "What is it?", "b": "what is  IT?", "c": "another"}
    collection = Collection("toy", "train", corpus, asked, {"a": {"d0": 1}, "b": {"d1": 1}, "c": {"d2": 1}})
    found = to_train_on(collection, frozenset())
    assert [sorted(found.left_out(query)) for query in "abc"] == [["d1"], ["d0"], []]
    folder = topics_folder(tmp_path / "twins", {"test": 24})
    twins = with_texts(folder, tmp_path / "twice", lambda key, text: (key, f"query {int(key[-2:]) // 2}"))
    parts = load_splits(f"path:{twins}", SplitConfig(train=None))
    places = [{part.queries[query] for query in part.qrels} for part in parts]
    assert sum(map(len, places)) == len(set.union(*places)) == 12


def test_a_trained_cross_encoder_says_so_on_its_own_queries_and_so_does_one_trained_from_it(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    successful(cross_encoder(places, tmp_path))
    first = tmp_path / "out/cross_encoder/seed_12/checkpoint"
    own = topics_folder(tmp_path / "second", {"train": 20})
    texts = [*load_collection(f"path:{own}", "train").queries.items()]
    later = {key: (f"late-{key}", f"{text} again") for key, text in texts}
    second = with_texts(own, tmp_path / "later", lambda key, text: later[key])
    (tmp_path / "next").mkdir()
    config = "lists.splits={dev: null, test: train, train: null}"
    successful(cross_encoder((first, second), tmp_path / "next", config))
    for number, name in enumerate((first, tmp_path / "next/out/cross_encoder/seed_12/checkpoint")):
        folder = tmp_path / f"evaluated{number}"
        where = ("--dataset", f"path:{places[1]}@train", "--output-dir", folder, "--device", "cpu", "--name", "it")
        successful(call_unimoe("evaluate", "--model", name, *where, "--task", "reranking"))
        result = read_result(result_path(folder, "it", None, "reranking", "topics"))
        assert "these queries trained the checkpoint" in result.caveats


def test_a_head_and_a_first_stage_say_that_their_encoder_was_trained_on_the_reported_queries(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    own = ("--set", f"encoder.base={places[0]}", "--set", "freeze_base=false", "--set", "out_dim=null")
    sizes = ("--set", "epochs=1", "--set", "batch_size=4", "--device", "cpu", "--output-dir", tmp_path / "bi")
    successful(call_unimoe("train-biencoder", "--dataset", f"path:{places[1]}", *own, *sizes))
    encoder = tmp_path / "bi/biencoder/seed_0/checkpoint"
    texts = [*load_collection(f"path:{places[1]}", "train").queries.values()]
    folder = topics_folder(tmp_path / "second", {"train": 12, "dev": 6, "test": 6})
    copy = with_texts(
        folder,
        tmp_path / "later",
        lambda key, text: (f"late-{key}", texts[int(key[-2:])].upper() if key.startswith("test") else f"{text} again"),
    )
    caveat = "the encoder: these queries trained the checkpoint"
    keys = {"encoder": {"base": str(encoder)}, "task": f"path:{copy}", "num_steps": 1, "head_output_size": 8}
    head = call_unimoe(
        *("train-head", "--task", f"path:{copy}", "--set", f"encoder.base={encoder}", "--num-steps", "1", "--test"),
        *("--set", "head_output_size=8", "--output-dir", tmp_path / "head", "--device", "cpu"),
    )
    assert f"caveat: {caveat}" in successful(head).stdout
    study = {"name": "s", "family": "heads", "base": keys, "arms": {"eggroll": {}}, "seeds": 1}
    write_plain(tmp_path / "study.yaml", study)
    done = call_unimoe("study", tmp_path / "study.yaml", "--device", "cpu", "--output-dir", tmp_path / "study")
    assert caveat in " ".join(successful(done).stdout.split())
    assert caveat in read_result(result_path(tmp_path / "study", "eggroll", 0, "reranking", "later")).caveats
    where = ("--dataset", f"path:{copy}", "--task", "reranking", "--output-dir", tmp_path / "out", "--device", "cpu")
    first = ("--set", "evaluation.first_stage=dense", "--set", f"evaluation.fusion.encoder.base={encoder}")
    model = save_tiny_cross_encoder(tmp_path / "ce")
    successful(call_unimoe("evaluate", "--model", f"cross-encoder:{model}", *where, *first, "--name", "it"))
    result = read_result(result_path(tmp_path / "out", "it", None, "reranking", "later"))
    assert "first stage: these queries trained the checkpoint" in result.caveats


def test_own_lists_need_a_test_split_only_where_no_other_collection_is_tested(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    """As ``unimoe label`` writes them: a train split alone."""
    lists = topics_folder(tmp_path / "lists", {"train": 20})
    own = with_texts(lists, tmp_path / "own", lambda key, text: (key, f"{text} again"))
    refused = cross_encoder((places[0], own), tmp_path)
    assert_refused(refused, 2, "no split 'test'", "set splits.test to the one to report")
    done = successful(cross_encoder((places[0], own), tmp_path, f"evaluation.test=[path:{places[1]}]"))
    assert "topics  ndcg@10" in done.stdout
    same = cross_encoder((places[0], own), tmp_path, f"evaluation.test=[path:{own}@train]")
    assert_refused(same, 3, "is in lists.source and in evaluation.test")


def test_what_chose_a_checkpoint_are_the_judged_queries_alone(places: tuple[Path, Path], tmp_path: Path) -> None:
    with (places[1] / "queries.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"_id": "nobody", "text": "a query that no split judges"}) + "\n")
    successful(cross_encoder(places, tmp_path))
    first = tmp_path / "out/cross_encoder/seed_12/checkpoint"
    assert len(read_plain(first / SEEN_FILE)["dev"]) == SPLITS["dev"]
    swapped = "lists.splits={train: dev, dev: test, test: train}"  # what has trained is reported now
    (tmp_path / "next").mkdir()
    done = successful(cross_encoder((first, places[1]), tmp_path / "next", swapped))
    assert "caveat: these queries trained the checkpoint" in done.stdout
