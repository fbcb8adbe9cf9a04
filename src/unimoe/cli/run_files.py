"""The systems and datasets of a comparison, as options of the command line name them.

Systems are run files, models, which are evaluated, and folders of results; each ends as a pattern of run files.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

from unimoe.analysis.comparisons import unknown_arm
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.grouping import natural_key
from unimoe.core.limits import name_problem, shortened
from unimoe.core.trec import text_lines
from unimoe.results import seed_name
from unimoe.results.clusters import Groups
from unimoe.results.runs.sources import JudgedDataset, RunSource, judged_by, judgments, refuse_draws

PLACE = "{dataset}"  # what a pattern holds in place of a dataset's name
WILDCARD = re.compile(r"[*?\[]")

_EXTENSIONS = re.compile(r"(\.(trec|run|res|txt|tsv|csv|jsonl?|parquet))?(\.gz)?$")

Named: TypeAlias = tuple[int, str]  # place of a pattern, and a file that matches it without the dataset's name


@dataclass(frozen=True)
class Pattern:
    """One system as a command line names it."""

    option: str  # that it was given to, for messages
    name: str | None  # of the system; None where none is given
    path: str  # a file or a pattern of files, with ``{dataset}`` where the name of a dataset is

    @classmethod
    def parse(cls, option: str, text: str) -> Pattern:
        """Take ``[NAME=]PATTERN`` apart; a path may hold ``=`` too."""
        name, equals, path = text.partition("=")
        if not equals or re.search(r"[/\\*?]", name) or Path(text).is_file():
            return cls(option, None, text)
        if not name or not path:
            raise UsageError(f"{option} {text}: write NAME=PATTERN, or a pattern alone")
        return cls(option, name, path)

    @property
    def names(self) -> list[str]:
        """What the system may be called: the file's name without seed, then with its folders, last its whole name."""
        if self.name is not None:
            return [self.name]
        kept = []
        for part in Path(_EXTENSIONS.sub("", self.path)).parts:
            # Without wildcards and the dataset's place, and what only introduced them, such as ``-seed``.
            part = re.sub(r"[-_.]*(?:seed|run|fold)?[-_.]*(?:\*+|\?+|\[[^\]]*\])+", "", part.replace(PLACE, ""))
            kept += [name for name in [re.sub(r"[-_. ]{2,}", "-", part).strip("-_. /\\")] if name]
        whole = [] if self.is_search or PLACE in self.path else [Path(self.path).name]  # bm25.trec and bm25.run
        return [*("-".join(kept[start:]) for start in range(len(kept) - 1, -1, -1)), *whole] or ["system"]

    @property
    def is_search(self) -> bool:
        """Whether it finds files by a pattern; a file with ``[`` in its name is named."""
        return WILDCARD.search(self.path) is not None and not Path(self.path).is_file()

    def files(self, dataset: str) -> list[Path]:
        """Return the files of one dataset, in the order of the numbers in their names; a DataError where none match."""
        plain = Path(self.path.replace(PLACE, dataset))
        if plain.is_file() or not WILDCARD.search(self.path):
            return [plain]
        once = re.sub(r"(\*\*/)+", "**/", self.path)  # glob goes through all folders again for each
        found = glob.glob(once.replace(PLACE, glob.escape(dataset)), recursive=True)  # noqa: PTH207 - any root
        files = [Path(path) for path in found if Path(path).is_file()]
        if not files:
            raise DataError(f"{self.option} {plain}: no file matches; check the pattern, and quote it from the shell")
        return sorted(files, key=natural_key)

    def template(self, path: Path, dataset: str) -> str:
        """Return the path of one of the files with ``{dataset}`` where the name of the dataset is."""
        expression = fnmatch.translate(str(Path(self.path)))  # its stars match separators too, as ** does
        found = re.fullmatch(expression.replace(re.escape(PLACE), f"({re.escape(dataset)})"), str(path))
        parts, end = [], 0
        for start, stop in found.regs[1:] if found else ():
            parts.append(str(path)[end:start])
            end = stop
        return PLACE.join([*parts, str(path)[end:]])


def once(patterns: Sequence[Pattern]) -> list[Pattern]:
    """Return each system or dataset once: the shell gives a file again that another option names.

    A pattern without a name, or with the same one, is the earlier of its path; two names make two.
    """
    kept: list[Pattern] = []
    for pattern in patterns:
        at = next((i for i, one in enumerate(kept) if _place(one.path) == _place(pattern.path)), None)
        if at is None or (None not in (kept[at].name, pattern.name) and kept[at].name != pattern.name):
            kept.append(pattern)
        else:
            kept[at] = replace(kept[at], name=kept[at].name or pattern.name)
    return kept


def read_queries(path: Path) -> dict[str, str]:
    """Read query texts from lines of ``qid TAB text``, or JSON lines with ``_id`` and ``text`` as BEIR has them.

    A line of another shape or a second text is a DataError.
    """
    texts: dict[str, str] = {}
    for number, line in text_lines(path):
        if line.startswith("{"):
            try:
                query_id, text = (json.loads(line)[key] for key in ("_id", "text"))
            except (ValueError, KeyError):
                query_id = text = ""
            query_id, text = (str(value).strip() for value in (query_id, text))
        else:
            query_id, _, text = map(str.strip, line.partition("\t"))
        if not query_id or not text:
            raise DataError(
                f"{path}:{number}: not a line of query id, tab, text, nor JSON with `_id` and `text`; write one such "
                "line for each query"
            )
        if texts.setdefault(query_id, text) != text:
            raise DataError(f"{path}:{number}: query {query_id!r} has two texts; remove one of them")
    return texts


def groups_in(queries: str | None, sources: Sequence[RunSource]) -> Groups | None:
    """Return the groups that the JSON lines of ``--queries`` name, as ``group`` or in BEIR's ``metadata``.

    None where the judged queries have fewer than two. A query with two groups is a DataError.
    """
    found = dict[str, str]()
    files = dict.fromkeys(queries.replace(PLACE, source.judged.dataset) for source in sources) if queries else ()
    for file in files:
        for number, line in text_lines(Path(file)):
            record = json.loads(line) if line.startswith("{") else {}
            metadata = record.get("metadata")
            group = record.get("group", metadata.get("group") if isinstance(metadata, dict) else None)
            if group is not None and str(group).strip():
                query_id, group = str(record["_id"]).strip(), str(group).strip()
                if found.setdefault(query_id, group) != group:
                    raise DataError(f"{file}:{number}: query {query_id!r} is in two groups; leave one")
    of_judged = {query_id: found[query_id] for source in sources for query_id in source.judged.qrels.keys() & found}
    return Groups(f"group in {', '.join(files)}", of_judged) if len(set(of_judged.values())) > 1 else None


def select_datasets(
    qrels: Path | None,
    given: Sequence[str],
    level: int | None,
    queries: str | None = None,
    metrics: Sequence[str] = (),
    predicted: Sequence[str] = (),
) -> list[JudgedDataset]:
    """Read the judgments that ``--qrels`` and ``--dataset`` name, and a model's, with the texts of ``--queries``."""
    if qrels is None and not given:
        raise UsageError("no judgments; give --qrels FILE, or --dataset NAME=FILE for each of several datasets")
    if qrels is not None and len(given) > 1:
        raise UsageError("--qrels holds the judgments of one dataset; with several give --dataset NAME=QRELS each")
    if qrels is not None and given and "=" in given[0]:
        raise UsageError(f"--dataset {given[0]}: --qrels names the judgments already; give one of the two")
    if qrels is not None:
        found = [judgments(qrels, given[0] if given else None, level, metrics)]
    else:
        patterns = once([Pattern.parse("--dataset", text) for text in given])
        found = [judgments(Path(pattern.path), pattern.name, level, metrics) for pattern in patterns]
        choices = [
            [judged.dataset] if pattern.name else _with_folders(Path(pattern.path), judged.dataset)
            for pattern, judged in zip(patterns, found, strict=True)
        ]
        named = zip(found, _told_apart(choices), strict=True)
        found = [replace(judged, dataset=name) for judged, name in named]
    _refuse_equal("dataset", [judged.dataset for judged in found], "--dataset NAME=QRELS")
    if predicted:
        found = _with_predicted(found, predicted, metrics)
    if queries is None:
        return found
    files = [Path(queries.replace(PLACE, judged.dataset)) for judged in found]
    return [replace(judged, texts=read_queries(path)) for judged, path in zip(found, files, strict=True)]


def _with_predicted(
    found: Sequence[JudgedDataset], given: Sequence[str], metrics: Sequence[str]
) -> list[JudgedDataset]:
    """Return datasets with the model's judgments of each that has some; a UsageError where a name is none of theirs."""
    patterns = [Pattern.parse("--predicted-qrels", text) for text in given]
    names = [judged.dataset for judged in found]
    of_dataset = {pattern.name or (names[0] if len(names) == 1 else None): Path(pattern.path) for pattern in patterns}
    if len(of_dataset) < len(patterns) or any(name not in names for name in of_dataset):
        raise UsageError(
            f"--predicted-qrels {' '.join(given)}: write NAME=FILE, once for each dataset that a model judged; "
            f"datasets are {', '.join(names)}"
        )
    return [
        judged.with_predicted(of_dataset[judged.dataset], metrics) if judged.dataset in of_dataset else judged
        for judged in found
    ]


def select_runs(
    patterns: Mapping[str, Sequence[Pattern]],
    datasets: Sequence[JudgedDataset],
    *,
    in_order: bool = False,
    untrained: Collection[str] = (),
) -> list[RunSource]:
    """Find the run files of each system on each dataset, ordered by name, or as given where their seeds pair.

    Files that differ in the dataset alone are of one training, and have one seed. Where no two datasets share a name,
    each file is a training of its own, and seeds count on over the datasets. Systems that are ``untrained``, or whose
    one file ``evaluate`` wrote for a system without training, have no seed.

    A pattern that does not say where a dataset's name is serves each dataset if its files hold the judged queries. One
    without a file is a DataError; a file of two patterns, or a second run of an untrained system, a UsageError.
    """
    if unknown := next((name for name in untrained if name not in patterns), None):
        raise UsageError(f"--untrained: {unknown_arm(unknown, patterns)}")
    # A run file is read once for this, and not at all where there is one dataset.
    served = cache(lambda path: {judged.dataset for judged in judged_by(path, datasets)})

    def serves(path: Path, judged: JudgedDataset) -> bool:
        return len(datasets) == 1 or judged.dataset in served(path)

    here = [_files_on(judged, patterns, serves) for judged in datasets]
    found = []
    for system in patterns:
        files = [of_system[system] for of_system in here]
        if not in_order:
            files = [sorted(of_dataset, key=lambda file: natural_key(file[0])) for of_dataset in files]
        every = [run for of_dataset in files for _, run in of_dataset]
        apart = len(set(every)) == len(every)
        order = sorted(set(every), key=lambda run: (run[0] if in_order else 0, natural_key(run[1]), run[0]))
        seed_of: dict[Named, int | None] = {run: seed for seed, run in enumerate(every if apart else order)}
        paths = [path for of_dataset in files for path, _ in of_dataset]
        evaluated = max(map(len, files)) == 1 and all(seed_name(None) in path.parts for path in paths)
        if system in untrained or evaluated:
            seed_of = dict.fromkeys(seed_of)
            for judged, of_dataset in zip(datasets, files, strict=True):
                refuse_draws(system, judged.dataset, [str(path) for path, _ in of_dataset])
        for judged, of_dataset in zip(datasets, files, strict=True):
            found += [RunSource(system, judged, seed_of[run], str(path), path) for path, run in of_dataset]
    return found


def _place(path: Path | str) -> str:
    """Return an absolute path without following links: their names tell systems apart."""
    return os.path.abspath(path)  # noqa: PTH100


def _files_on(
    judged: JudgedDataset, patterns: Mapping[str, Sequence[Pattern]], serves: Callable[[Path, JudgedDataset], bool]
) -> dict[str, list[tuple[Path, Named]]]:
    """Return the files of each system on a dataset; one that is named belongs to no pattern besides."""
    holders: dict[str, tuple[str, Pattern]] = {}
    found: dict[str, list[tuple[Path, Named]]] = {system: [] for system in patterns}
    given = [(system, place, one) for system, of in patterns.items() for place, one in enumerate(of)]
    for system, place, pattern in sorted(given, key=lambda one: one[2].is_search):
        files = pattern.files(judged.dataset)
        if pattern.is_search:
            taken = {path: held for path in files if (held := holders.get(_place(path)))}
            for path, (other, its) in taken.items():
                if its.is_search and other != system:
                    raise UsageError(f"{path}: both {its.path} and {pattern.path} find it; give it to one of them")
                if other != system:
                    stderr.print(f"note: {path} is {other}, and left out of {system} ({pattern.path})", soft_wrap=True)
            files = [path for path in files if path not in taken]
            if taken and not files and not found[system]:
                raise UsageError(
                    f"{pattern.option} {pattern.path}: finds only files that are given by name; leave it out"
                )
        holders |= {_place(path): (system, pattern) for path in files}
        files = [path for path in files if PLACE in pattern.path or serves(path, judged)]
        found[system] += [(path, (place, pattern.template(path, judged.dataset))) for path in files]
    return {system: sorted(files, key=lambda file: file[1][0]) for system, files in found.items()}


def select_keys(keys: Sequence[str], names: Sequence[str]) -> set[str]:
    """Return those of some ``task/dataset`` keys that names of datasets, or whole keys, mean; all without names."""
    datasets = {key: key.partition("/")[2] for key in keys}
    chosen = {name: {key for key, dataset in datasets.items() if name in (key, dataset)} for name in names}
    for name, meant in chosen.items():
        if not meant:
            hint = did_you_mean(name, datasets.values())
            raise UsageError(f"--dataset {name}: no such results{hint}; there is {', '.join(keys)}")
    return set().union(*chosen.values()) if names else set(keys)


def two_arms(names: tuple[str, str], specialist: Sequence[str], joint: Sequence[str]) -> dict[str, list[Pattern]]:
    """Return the files of a specialist and a joint model by their names; a UsageError where one has none."""
    if names[0] == names[1]:
        raise UsageError(f"both arms are named {names[0]!r}; give --specialist-name or --joint-name")
    arms = {}
    for name, option, files in zip(names, ("--specialist", "--joint"), (specialist, joint), strict=True):
        if not files:
            raise UsageError(f"no run file of {name}; give one per seed to {option}")
        _refuse_unusable(name)
        arms[name] = [Pattern(option, None, text) for text in files]
    return arms


def name_systems(patterns: Sequence[Pattern]) -> dict[str, list[Pattern]]:
    """Return each system under a unique name: folders are added to names of files until they differ.

    Two systems of one given name, or a name that a folder cannot have, are a UsageError.
    """
    names = _told_apart([pattern.names for pattern in patterns])
    _refuse_equal("system", names, "NAME=PATTERN")
    for name in names:
        _refuse_unusable(name)
    return {name: [pattern] for name, pattern in zip(names, patterns, strict=True)}


def _told_apart(choices: Sequence[Sequence[str]]) -> list[str]:
    """Return one of the names that each thing may have: the first that no other has, as far as there are some."""
    depths = [0] * len(choices)
    while True:
        names = [of[depth] for of, depth in zip(choices, depths, strict=True)]
        more = [i for i, name in enumerate(names) if names.count(name) > 1 and depths[i] + 1 < len(choices[i])]
        if not more:
            return names
        for i in more:
            depths[i] += 1


def _with_folders(path: Path, name: str) -> list[str]:
    folders = [part for part in path.parent.parts if part.strip("/\\.")]
    return ["-".join([*folders[start:], name]) for start in range(len(folders), -1, -1)]


def _refuse_unusable(name: str) -> None:
    """Refuse a system's name that its folder cannot have: empty, hidden, with a separator, or the analysis's own."""
    problem = name_problem(name, is_folder=True) or ("is the analysis's own" if name == "analysis" else None)
    if problem:
        raise UsageError(f"a system cannot be named {shortened(name)!r}, which {problem}; choose another name")


def _refuse_equal(what: str, names: Sequence[str], remedy: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two {what}s are named {twice!r}; name them apart with {remedy}")
