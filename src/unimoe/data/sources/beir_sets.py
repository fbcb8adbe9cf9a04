"""Collections that are folders: the bundled one, the BEIR sets, any other under $UNIMOE_DATA or elsewhere.

A set is a folder in BEIR layout under $UNIMOE_DATA, the published zip put there by hand, or a download. A zip has one
top folder, named like the zip: the collection itself, or for ``cqadupstack.zip`` a folder that holds twelve.

``data/apidocs`` holds the bundled collection, the API documentation of NumPy 2.4.6, SciPy 1.17.1 and pandas 3.1.1, with
the licences of its texts; ``scripts/build_apidocs.py`` made it and says how. People wrote its judgments.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unimoe.core.errors import DataError, UsageError, system_refusal
from unimoe.core.io import atomic_dir, cache_dir, hash_json, lock
from unimoe.core.trec import check_unpacked
from unimoe.data.collection import Collection, describe_collection
from unimoe.data.published import APIDOCS, SHORT_NAMES, canonical_name
from unimoe.data.source import DOWNLOAD_ADVICE, SHORT_NAME, SOURCES, Source, UnavailableError, not_at_hand, user_folder
from unimoe.data.sources.beir_layout import LAYOUT, is_beir_folder, read_beir
from unimoe.data.sources.msmarco import is_msmarco_folder, msmarco_files, read_msmarco

BUNDLED_FOLDER = Path(__file__).parents[1] / APIDOCS

BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{name}.zip"


def local_path(name: str) -> Path | None:
    """Return where the bundled collection, a BEIR set, or another folder under $UNIMOE_DATA is, without reading it.

    It is the folder there, as spelled or in canonical spelling; else the published zip there; else the folder of an
    earlier download; None where there is none of these. A name that is written like a path is a UsageError.
    """
    if name == APIDOCS:
        return BUNDLED_FOLDER
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", name):
        raise UsageError(f"collection {name!r} is no short name; write path:{name} if it is a folder")
    canonical, root = canonical_name(name), user_folder()
    places = [root / spelling for spelling in (name, name.lower(), canonical)] if root is not None else []
    if canonical in SHORT_NAMES:
        places += [root / f"{canonical.partition('/')[0]}.zip"] if root is not None else []
        places.append(_downloads() / canonical)
    return next((place for place in places if place.is_dir() or (place.suffix == ".zip" and place.is_file())), None)


def folder_of(name: str) -> Path:
    """Return the folder of a short name in any spelling, unpacked or downloaded once where needed."""
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
    with _opened(archive) as packed:
        content = hash_json([[file.filename, file.CRC, file.file_size] for file in packed.infolist()])
        folder = cache_dir("collections", "zips") / f"{archive.stem}-{content}"
        with lock(folder):
            if not folder.is_dir():
                with atomic_dir(folder) as temporary:
                    packed.extractall(temporary)
    return folder


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip to unpack; a DataError where it is damaged, or holds more than texts can."""
    try:
        with zipfile.ZipFile(archive) as packed:
            check_unpacked(archive, sum(file.file_size for file in packed.infolist()))
            yield packed
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError) as error:
        if system_refusal(error):
            raise  # the command's last line says so
        raise DataError(f"{archive}: cannot be unpacked ({error}); fetch it again") from None


def _download(name: str) -> Path:
    """Download the zip that holds a set; what is kept is whole."""
    top, _, inside = name.partition("/")
    kept, url = _downloads() / top, BEIR_URL.format(name=top)
    with lock(kept), tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        if kept.is_dir():
            return kept / inside
        fetched = Path(temporary, top)
        try:
            from beir.util import download_url

            download_url(url, f"{fetched}.zip")
            with _opened(fetched.with_suffix(".zip")) as packed:
                packed.extractall(temporary)
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


class ShortNames(Source):
    """The bundled collection and BEIR sets by their short names, and any folder under $UNIMOE_DATA."""

    has_published_names = True

    def load(self, name: str, split: str) -> Collection:
        """Load one split, unpacked or downloaded where needed."""
        canonical = canonical_name(name)
        return _read_folder(folder_of(name), split, canonical if canonical in SHORT_NAMES else name)

    def available(self, name: str) -> Path | None:
        """Return the folder or zip that is here."""
        place = local_path(name)
        return place if place is not None and (place.is_file() or _is_collection(place)) else None


class Folders(Source):
    """Folders in BEIR layout, or with the files of MS MARCO's passage ranking."""

    usage = "path:DIR"

    def load(self, name: str, split: str) -> Collection:
        """Read one split."""
        return _read_folder(Path(name), split, self.result_name(name))

    def refuse_unknown(self, name: str) -> None:
        """Refuse a folder that is not there, and a file."""
        if Path(name).is_file():
            remedy = "make one of it with unimoe import, and give the folder that this writes"
            raise DataError(f"{Path(name)}: this is a file, and a collection is a folder; {remedy}")
        if not Path(name).is_dir():
            raise DataError(f"{Path(name)}: no such folder; give one that holds {LAYOUT}")

    def available(self, name: str) -> Path | None:
        """Return the folder, where it holds a collection."""
        return Path(name) if _is_collection(Path(name)) else None

    def set_name(self, name: str) -> str:
        """Return the folder's name; ``msmarco`` for a folder with the files of MS MARCO, whatever it is called."""
        return "msmarco" if is_msmarco_folder(Path(name)) else Path(name).name.lower()

    def result_name(self, name: str) -> str:
        """Return the name in ``collection.json``, else the folder's, after ``cqadupstack/`` if that is above."""
        folder = Path(name)
        if stated := describe_collection(folder).name:
            return stated
        whole = folder.absolute() if folder.name not in ("", "..") else folder.resolve()
        return f"cqadupstack/{whole.name}" if whole.parent.name.lower() == "cqadupstack" else whole.name


SOURCES.add(SHORT_NAME, ShortNames())
SOURCES.add("path", Folders())
