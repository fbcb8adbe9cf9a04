"""Build the bundled collection ``apidocs`` from the docstrings of the installed NumPy, SciPy and pandas.

uv run --with numpy==2.4.6 --with scipy==1.17.1 --with pandas==3.1.1 scripts/build_apidocs.py --output FOLDER

makes what is in ``src/unimoe/data/apidocs``, on every platform with Python 3.11 or 3.12: Python 3.13 takes the
indentation out of docstrings, and other versions of the packages have other documentation. For every public object with
a numpydoc docstring, the summary sentence is a query and the rest of the docstring a document, without See Also and
References. The object's own document has grade 2, documents of the objects under See Also have grade 1. A document
carries no title: the name would give it away.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import io
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from unimoe.core.console import run
from unimoe.core.trec import Qrels
from unimoe.data.collection import Document
from unimoe.data.sources.beir_layout import write_parts

SPLITS = {"train": 60, "dev": 15, "test": 25}
"""Percent of the queries. A query's split depends on its object's name alone, so it never moves."""

SHORTEST_TEXT = 150
"""Characters; a shorter remainder mostly says where the full text is, and holds nothing a query could find."""

SHORTEST_QUERY = 3
"""Words."""

MODULES = {
    "numpy": (
        "char ctypeslib exceptions fft lib lib.array_utils lib.format lib.introspect lib.mixins lib.npyio "
        "lib.scimath lib.stride_tricks linalg ma ma.mrecords polynomial polynomial.chebyshev "
        "polynomial.hermite polynomial.hermite_e polynomial.laguerre polynomial.legendre polynomial.polynomial "
        "polynomial.polyutils random rec strings testing"
    ),
    "scipy": (
        "cluster.hierarchy cluster.vq constants datasets differentiate fft fftpack integrate interpolate io io.arff "
        "io.matlab io.wavfile linalg linalg.interpolative ndimage odr optimize optimize.elementwise signal "
        "signal.windows sparse sparse.csgraph sparse.linalg spatial spatial.distance spatial.transform special stats "
        "stats.contingency stats.mstats stats.qmc stats.sampling"
    ),
    "pandas": (
        "api.extensions api.indexers api.interchange api.types api.typing arrays errors plotting testing "
        "tseries.frequencies tseries.offsets"
    ),
}
"""The modules of each package's API reference besides the package itself."""

_PLATFORM_TYPES = (np.signedinteger, np.unsignedinteger, np.longdouble, np.clongdouble)
"""Which of these a name such as ``int64`` stands for depends on the platform."""


class PublicName(NamedTuple):
    """One public path of an object; the least of several, in the order of these fields, is its name.

    Attributes:
        inherited: whether the path leads through a class that only inherits the object.
        dots: dots in the path.
        length: characters of the path.
        path: for example ``numpy.linalg.norm``.
    """

    inherited: bool
    dots: int
    length: int
    path: str


def documented() -> dict[Docstring, set[PublicName]]:
    """Return every distinct docstring of the public API with the public names that it is found under."""
    found: dict[Docstring, set[PublicName]] = defaultdict(set)
    noise = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        warnings.simplefilter("ignore")
        for package, modules in MODULES.items():
            for module_name in (package, *(f"{package}.{name}" for name in modules.split())):
                for name, value in _public_objects(module_name, package):
                    docstring = parse(value.__doc__) if isinstance(value.__doc__, str) else None
                    if docstring is not None:
                        found[docstring].add(name)
    return found


def _public_objects(module_name: str, package: str) -> Iterator[tuple[PublicName, Any]]:
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    for name in getattr(module, "__all__", dir(module)):
        value = getattr(module, name, None)
        if name.startswith("_") or value is None or isinstance(value, ModuleType) or not _is_of(value, package):
            continue
        path = f"{module_name}.{name}"
        yield _public_name(path), value
        if isinstance(value, type):
            yield from _public_members(path, value, package)


def _public_members(path: str, cls: type, package: str) -> Iterator[tuple[PublicName, Any]]:
    """Yield members that the package itself defines: what comes from Python changes with its version."""
    own = {name for base in cls.__mro__ if _root(base.__module__) == package for name in vars(base)}
    for name in sorted(own):
        value = getattr(cls, name, None)
        if name.startswith("_") or value is None:
            continue
        yield _public_name(f"{path}.{name}", inherited=name not in vars(cls)), value
        if isinstance(value, type) and _root(value.__module__) == package and path.count(".") == 1:
            yield from _public_members(f"{path}.{name}", value, package)  # accessors such as pandas.Series.str


def _public_name(path: str, *, inherited: bool = False) -> PublicName:
    return PublicName(inherited, path.count("."), len(path), path)


def _is_of(value: Any, package: str) -> bool:
    """Return whether an object found in a module of ``package`` belongs there and is the same on every platform."""
    if isinstance(value, np.ufunc):  # knows no module; numpy.ufunc's would hide those of scipy.special
        return True
    if type(value).__name__ == "fortran":  # thousands of BLAS and LAPACK wrappers that differ in one letter
        return False
    if isinstance(value, type) and issubclass(value, _PLATFORM_TYPES):
        return False
    return _root(getattr(value, "__module__", None) or package) == package


def _root(module_name: str) -> str:
    return module_name.partition(".")[0]


LEFT_OUT = {"See Also", "References"}
"""Sections that are no part of the text: the first is the judgments, the second is not about the object."""

_SIGNATURE = re.compile(r"^[\w.\s,=]*\b[\w.]+\(.*\)(\s*->\s*.+)?$", re.DOTALL)
_RULE = re.compile(r"^(-{3,}|={3,})$")
_ROLE = re.compile(r":[\w:]+:`~?([^`]+)`")
_NAME = re.compile(r"^[A-Za-z_]\w*(\.\w+)*$")
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)(?<!\bcf)\.\s+(?=[A-Z])")
_CHANGING = re.compile(
    r"^:Alias on this platform\b.*$"  # NumPy's scalar types
    r"|\bat 0x[0-9a-f]+"  # addresses of objects
    r"|^.*# may vary$"  # outputs, some of them computed when SciPy is imported
    # SciPy's table of array libraries, in 700 docstrings, and in one of NumPy's once SciPy has been imported
    r"|^[ \t]*\*\*Array API Standard Support\*\*(?s:.*?)See :ref:`dev-arrayapi` for more information\.",
    re.MULTILINE,
)
_SET = re.compile(r"\{('\w+'(?:, '\w+')+)\}")


@dataclass(frozen=True)
class Docstring:
    """What one docstring holds.

    Attributes:
        summary: its first sentence, on one line; empty when there is none.
        text: everything else but the signature and the sections in ``LEFT_OUT``; white space within lines collapsed.
        see_also: the names listed under See Also, as written.
    """

    summary: str
    text: str
    see_also: tuple[str, ...]


def parse(docstring: str) -> Docstring | None:
    """Take a docstring apart; None when it has no numpydoc section.

    What changes with the platform or from one process to the next is removed or put in order.
    """
    steady = _SET.sub(_sorted_set, _CHANGING.sub("", inspect.cleandoc(docstring)))
    sections = _sections(steady)
    preamble = sections.pop("", "")
    if not sections:
        return None
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", preamble) if part.strip()]
    while paragraphs and _SIGNATURE.match(paragraphs[0]):
        paragraphs.pop(0)
    summary, rest = _first_sentence(paragraphs[0]) if paragraphs else ("", "")
    parts = [rest, *paragraphs[1:]]
    parts += [
        f"{title}\n{_collapse(body)}" for title, body in sections.items() if body.strip() and title not in LEFT_OUT
    ]
    text = "\n".join(part for part in parts if part)
    return Docstring(summary, text, tuple(_see_also(sections.get("See Also", ""))))


def _sorted_set(match: re.Match[str]) -> str:
    """Sort a set of names as SciPy prints it, in the order of the process's hash seed."""
    return "{" + ", ".join(sorted(match[1].split(", "))) + "}"


def _sections(text: str) -> dict[str, str]:
    """Return section title to body; the part before the first title has the empty title."""
    lines = text.splitlines()
    bodies: dict[str, list[str]] = {"": []}
    title = ""
    for number, line in enumerate(lines):
        follower = lines[number + 1] if number + 1 < len(lines) else ""
        if line and not line[0].isspace() and _RULE.match(follower.strip()) and len(line) < 30:
            title = line.strip()
            bodies.setdefault(title, [])
        elif not (title and number and _RULE.match(line.strip()) and lines[number - 1].strip() == title):
            bodies[title].append(line)
    return {name: "\n".join(body) for name, body in bodies.items()}


def _first_sentence(paragraph: str) -> tuple[str, str]:
    end = _SENTENCE_END.search(paragraph)
    return (paragraph[: end.start() + 1], paragraph[end.end() :]) if end else (paragraph, "")


def _collapse(body: str) -> str:
    # Indentation differs between Python versions, which dedent docstrings or do not.
    return "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())


def _see_also(body: str) -> list[str]:
    """Return names from lines such as ``sum, prod : Text`` or ``:func:`norm```; indented lines are descriptions."""
    names: list[str] = []
    for line in body.splitlines():
        if not line.strip() or line[0].isspace():
            continue
        listed = re.split(r"\s*:(?:\s|$)", _ROLE.sub(r"\1", line))[0]
        for part in listed.split(","):
            name = part.strip(" `.").removesuffix("()")
            if _NAME.match(name):
                names.append(name)
    return names


@dataclass
class _Layout:
    """The whole collection, all splits: the content of one cache folder."""

    corpus: dict[str, Document] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)
    qrels: dict[str, Qrels] = field(default_factory=lambda: {split: {} for split in SPLITS})


def split_of(query_id: str) -> str:
    """Return the split of a query such as ``q:numpy.linalg.norm``, by the SHA-256 of its id."""
    percent = int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8], "big") % 100
    return next(split for split, bound in zip(SPLITS, accumulate(SPLITS.values()), strict=True) if percent < bound)


def _layout(docstrings: dict[Docstring, set[PublicName]]) -> _Layout:
    """Make documents, queries and judgments from docstrings and the names each is found under."""
    directory = _Directory(docstrings)
    layout = _Layout(corpus={key: Document("", text) for key, text in sorted(directory.texts.items())})
    by_summary: dict[str, list[Docstring]] = defaultdict(list)
    for docstring in docstrings:
        by_summary[_flat(docstring.summary)].append(docstring)
    for summary, group in by_summary.items():
        owners = {directory.document_of.get(min(docstrings[docstring]).path) for docstring in group}
        owner = owners.pop()
        if owners or owner is None or not _is_query(summary, directory.texts[owner]):
            continue
        names = set().union(*(docstrings[docstring] for docstring in group))
        related = {key for docstring in group for key in directory.targets(docstring, docstrings[docstring])}
        # Not the document's id: tools that drop a document called like the query would drop the answer.
        query_id = f"q:{min(names).path}"
        layout.queries[query_id] = min(docstring.summary for docstring in group)
        layout.qrels[split_of(query_id)][query_id] = {owner: 2} | dict.fromkeys(sorted(related - {owner}), 1)
    # The order of the walk is no one's to promise: numpy.__all__ comes from a set.
    layout.queries = dict(sorted(layout.queries.items()))
    layout.qrels = {split: dict(sorted(qrels.items())) for split, qrels in layout.qrels.items()}
    return layout


def _is_query(summary: str, text: str) -> bool:
    return len(summary.split()) >= SHORTEST_QUERY and summary.rstrip(".") not in _flat(text)


def _flat(text: str) -> str:
    return " ".join(text.casefold().split())


class _Directory:
    """The document that each public name leads to. Objects that share a text, such as aliases, share a document.

    Attributes:
        document_of: public name to document id, which is the least of the names that share the document.
        texts: document id to text.
    """

    def __init__(self, docstrings: dict[Docstring, set[PublicName]]) -> None:
        names_of: dict[str, set[PublicName]] = defaultdict(set)
        for docstring, names in docstrings.items():
            if len(docstring.text) >= SHORTEST_TEXT:
                names_of[docstring.text] |= names
        self.texts = {min(names).path: text for text, names in names_of.items()}
        self.document_of = {name.path: key for key, text in self.texts.items() for name in names_of[text]}
        self._tails: dict[tuple[str, str], set[str]] = defaultdict(set)
        for name, key in self.document_of.items():
            package, *parts = name.split(".")
            for start in range(len(parts)):
                self._tails[package, ".".join(parts[start:])].add(key)

    def targets(self, docstring: Docstring, names: set[PublicName]) -> set[str]:
        """Return the documents of the objects listed under See Also in a docstring found under ``names``."""
        found = {self._resolve(target, [name.path for name in sorted(names)]) for target in docstring.see_also}
        return {key for key in found if key is not None}

    def _resolve(self, target: str, owners: list[str]) -> str | None:
        """Look up a name beside its owner, then in the enclosing modules, then as a full path, then by its tail.

        Only the owner's package is searched by tail, and only a tail that leads to one document counts.
        """
        for owner in owners:
            scope = owner
            while scope:
                scope = scope.rpartition(".")[0]
                candidate = f"{scope}.{target}" if scope else target
                if candidate in self.document_of:
                    return self.document_of[candidate]
        package = owners[0].partition(".")[0]
        for short, full in (("np.", "numpy."), ("pd.", "pandas."), ("sp.", "scipy.")):
            if target.startswith(short):
                return self.document_of.get(full + target.removeprefix(short))
        tails = self._tails.get((package, target.removeprefix(f"{package}.")), set())
        return next(iter(tails)) if len(tails) == 1 else None


def build(
    output: Annotated[Path, typer.Option(help="A folder for the collection, in BEIR layout.")],
) -> None:
    layout = _layout(documented())
    output.mkdir(parents=True, exist_ok=True)
    write_parts(output, layout.corpus, layout.queries, layout.qrels, compress=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(build)
    run(app)
