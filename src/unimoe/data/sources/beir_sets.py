"""The BEIR sets: their names, and the folder each can be read from.

A set is a folder in BEIR layout under $UNIMOE_DATA, the published zip put there by hand, or a download. A zip has one
top folder, named like the zip: the collection itself, or for ``cqadupstack.zip`` a folder that holds twelve.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, system_refusal
from unimoe.core.io import atomic_dir, cache_dir, hash_json, lock
from unimoe.core.limits import shortened
from unimoe.data.collection import Collection
from unimoe.data.collection_card import GRADED_FROM_1, describe_collection
from unimoe.data.source import DOWNLOAD_ADVICE, SHORT_NAME, SOURCES, Source, UnavailableError, not_at_hand, user_folder
from unimoe.data.sources.beir_layout import is_beir_folder, read_beir
from unimoe.data.sources.msmarco import is_msmarco_folder, msmarco_files, read_msmarco

_TASKS = {
    "arguana": "ArguAna",
    "climate-fever": "ClimateFEVER",
    "dbpedia-entity": "DBPedia",
    "fever": "FEVER",
    "fiqa": "FiQA2018",
    "hotpotqa": "HotpotQA",
    "msmarco": "MSMARCO",
    "nfcorpus": "NFCorpus",
    "nq": "NQ",
    "quora": "QuoraRetrieval",
    "scidocs": "SCIDOCS",
    "scifact": "SciFact",
    "trec-covid": "TRECCOVID",
    "webis-touche2020": "Touche2020",
}

BEIR_NAMES = tuple(_TASKS)
"""Short names that can be downloaded: BEIR's public sets that are one folder each."""

CQADUPSTACK = tuple(
    f"cqadupstack/{subforum}"
    for subforum in (
        "android",
        "english",
        "gaming",
        "gis",
        "mathematica",
        "physics",
        "programmers",
        "stats",
        "tex",
        "unix",
        "webmasters",
        "wordpress",
    )
)
"""BEIR's fifteenth public set: twelve collections, each with its own corpus, in one zip."""

SHORT_NAMES = (*BEIR_NAMES, *CQADUPSTACK)

ALIASES = {"fiqa2018": "fiqa", "touche2020": "webis-touche2020", "dbpedia": "dbpedia-entity", "treccovid": "trec-covid"}
"""Other spellings of short names, in lower case."""

MTEB_TASKS = _TASKS | {name: f"CQADupstack{name.partition('/')[2].capitalize()}Retrieval" for name in CQADUPSTACK}
"""MTEB's tasks of the sets, by short name."""

BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{name}.zip"

TREC_DL = 2
"""The passage task of TREC Deep Learning counts "highly relevant" and "perfectly relevant", not "related"."""

_PUBLISHED = GRADED_FROM_1 | {"cqadupstack", *SHORT_NAMES}

_MOST_UNPACKED = 50
"""Bytes that a zip may unpack to, for each of its own; texts unpack to about three times the size."""


def canonical_name(name: str) -> str:
    """Return the published spelling of a short name, in lower case."""
    return ALIASES.get(name.lower(), name.lower())


def local_path(name: str) -> Path | None:
    """Return where a short name can be read from without a network.

    Args:
        name: a BEIR set, or any folder under $UNIMOE_DATA.

    Returns:
        The folder under $UNIMOE_DATA, as spelled or in canonical spelling; else the published zip there; else the
        folder of an earlier download; None where there is none of these. The content is not read.

    Raises:
        UsageError: the name is written like a path.
    """
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", name):
        raise UsageError(f"collection {name!r} is no short name; write path:{name} if it is a folder")
    canonical, root = canonical_name(name), user_folder()
    places = [root / spelling for spelling in (name, name.lower(), canonical)] if root is not None else []
    if canonical in SHORT_NAMES:
        places += [root / f"{canonical.partition('/')[0]}.zip"] if root is not None else []
        places.append(_downloads() / canonical)
    return next((place for place in places if place.is_dir() or (place.suffix == ".zip" and place.is_file())), None)


def folder_of(name: str) -> Path:
    """Return the folder of a BEIR set, unpacked or downloaded once where needed.

    Args:
        name: one of ``SHORT_NAMES`` in any spelling, or what ``local_path`` finds.

    Raises:
        UnavailableError: it is not on this machine and cannot be downloaded; the message says what to do.
        DataError: the zip is damaged, or is not the published one.
    """
    place = local_path(name)
    if place is None:
        return _download(canonical_name(name))
    if place.is_dir():
        return place
    folder = _unpacked(place) / canonical_name(name)
    if not is_beir_folder(folder):
        raise DataError(f"{place}: holds no folder {canonical_name(name)}/ in BEIR layout; use the zip as published")
    return folder


def _downloads() -> Path:
    return cache_dir("collections", "beir")


def _unpacked(archive: Path) -> Path:
    """Unpack a zip once into the cache, in a folder named after its content, and return the folder."""
    try:
        with zipfile.ZipFile(archive) as packed:
            files = packed.infolist()
            for file in files:
                if file.filename.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", file.filename):
                    raise DataError(
                        f"{archive}: {shortened(file.filename)!r} leads out of the folder; fetch the zip again"
                    )
            size = sum(file.file_size for file in files)
            if size > _MOST_UNPACKED * archive.stat().st_size:
                raise DataError(
                    f"{archive}: would unpack to {size:,} bytes, more than {_MOST_UNPACKED} times its size, which "
                    "texts do not; fetch the zip again"
                )
            content = hash_json([[file.filename, file.CRC, file.file_size] for file in files])
            folder = cache_dir("collections", "zips") / f"{archive.stem}-{content}"
            with lock(folder):
                if not folder.is_dir():
                    with atomic_dir(folder) as temporary:
                        packed.extractall(temporary)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        if system_refusal(error):
            raise  # the command's last line says so
        raise DataError(f"{archive}: cannot be unpacked ({error}); fetch it again") from None
    return folder


def _download(name: str) -> Path:
    """Download the zip that holds a set; what is kept is whole."""
    top, _, inside = name.partition("/")
    kept, url = _downloads() / top, BEIR_URL.format(name=top)
    with lock(kept), tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        if kept.is_dir():
            return kept / inside
        try:
            from beir.util import download_and_unzip

            fetched = Path(download_and_unzip(url, temporary))
        except Exception as error:
            advice = (
                f"set UNIMOE_DATA to a folder that holds {name}/ in BEIR layout or {top}.zip as published, "
                f"or {DOWNLOAD_ADVICE}"
            )
            raise not_at_hand(name, advice, error) from None
        if not is_beir_folder(fetched / inside):
            raise UnavailableError(f"collection {name!r}: {url} is not a folder in BEIR layout")
        fetched.replace(kept)
    return kept / inside


def _read_folder(folder: Path, split: str, name: str) -> Collection:
    """Read a folder in either layout; one that lacks something is read as the layout its files belong to."""
    if msmarco_files(folder) and not is_beir_folder(folder):
        return read_msmarco(folder, split, name)
    return read_beir(folder, split, name)


def _is_collection(folder: Path) -> bool:
    """Return whether a folder has the files of either layout; their content is not read."""
    return is_beir_folder(folder) or is_msmarco_folder(folder)


class PublishedSets(Source):
    """The conventions of BEIR and MS MARCO, for sources that hold their sets under the names they are known by."""

    def set_name(self, name: str) -> str:
        """Return the published set behind a name: ``quora`` of ``beir/quora/test``."""
        return name.lower().removeprefix("beir/").partition("/")[0]

    def main_metric(self, name: str, split: str) -> str:
        """Return MRR@10 for MS MARCO, where one passage a query is judged, and nDCG@10 for other sets.

        TREC DL's judgments of MS MARCO, which BEIR calls its test split, are graded and many: nDCG@10.
        """
        graded = self._is_trec_dl(name, split) or "trec-dl" in name
        return "mrr@10" if self.set_name(name).startswith("msmarco") and not graded else "ndcg@10"

    def default_split(self, name: str) -> str:
        """Return dev for MS MARCO, whose test split is TREC DL's; test for other sets."""
        return "dev" if self.set_name(name) == "msmarco" else "test"

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return 2 for passages judged by TREC DL, 1 for other published sets; None for others."""
        if self._is_trec_dl(name, split):
            return TREC_DL
        return 1 if canonical_name(self.set_name(name)) in _PUBLISHED else None

    def mteb_task(self, name: str) -> str | None:
        """Return MTEB's task of a BEIR set."""
        forum = re.search(r"(?:^|/)(cqadupstack/\w+)/?$", name.lower())
        return MTEB_TASKS.get(forum[1] if forum else canonical_name(self.set_name(name)))

    def _is_trec_dl(self, name: str, split: str) -> bool:
        """Return whether judgments are those of TREC DL, which BEIR calls the test split of MS MARCO."""
        return self.set_name(name) == "msmarco" and "test" in (split, name.rpartition("/")[2])


class ShortNames(PublishedSets):
    """BEIR sets by their short names, and any folder under $UNIMOE_DATA."""

    def load(self, name: str, split: str) -> Collection:
        """Load one split, unpacked or downloaded where needed."""
        canonical = canonical_name(name)
        return _read_folder(folder_of(name), split, canonical if canonical in SHORT_NAMES else name)

    def available(self, name: str) -> Path | None:
        """Return the folder or zip that is here."""
        place = local_path(name)
        return place if place is not None and (place.is_file() or _is_collection(place)) else None


class Folders(PublishedSets):
    """Folders in BEIR layout, or with the files of MS MARCO's passage ranking."""

    usage = "path:DIR"

    def load(self, name: str, split: str) -> Collection:
        """Read one split."""
        return _read_folder(Path(name), split, self.result_name(name))

    def available(self, name: str) -> Path | None:
        """Return the folder, where it holds a collection."""
        return Path(name) if _is_collection(Path(name)) else None

    def set_name(self, name: str) -> str:
        """Return the folder's name; ``msmarco`` for a folder with the files of MS MARCO, whatever it is called."""
        return "msmarco" if is_msmarco_folder(Path(name)) else Path(name).name.lower()

    def result_name(self, name: str) -> str:
        """Return the name that ``collection.json`` states, else the folder's, after ``cqadupstack/`` if that is above.

        Raises:
            DataError: ``collection.json`` is malformed.
        """
        folder = Path(name)
        if stated := describe_collection(folder).name:
            return stated
        whole = folder.absolute() if folder.name not in ("", "..") else folder.resolve()
        return f"cqadupstack/{whole.name}" if whole.parent.name.lower() == "cqadupstack" else whole.name


SOURCES.add(SHORT_NAME, ShortNames())
SOURCES.add("path", Folders())
