"""Whether the ids of a run are those of the judgments: a renamed document is not judged, and scores 0 in silence."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import reduce
from itertools import chain, islice
from typing import TypeAlias

from unimoe.checks import Check
from unimoe.core.trec import Grades, Run

Ids: TypeAlias = Collection[str]
Change: TypeAlias = Callable[[str], str]

_MOST_QUERIES = 500  # looked at; ids of one collection are renamed alike in all
_RENAMED = 0.1  # share of the matching pairs that only a change makes match, from which it is said

_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_SEPARATOR = re.compile(r"[-_:/.#|]")
_AFTER = re.compile(r"[-_:/.#|]|^[^\W\d_]+(?=[0-9])")
_PUNCTUATION = re.compile(r"[\W_]+")  # invisible characters too
_OF_NUMBERS = re.compile(r"(?<=[0-9])\.0$")

_CHANGES: dict[str, Change] = {
    "upper and lower case": str.casefold,
    "leading zeros": lambda key: _ZEROS.sub("", key),
    "a .0 at the end": lambda key: _OF_NUMBERS.sub("", key),
    "quotes": lambda key: key.strip("\"'"),
    "white space of any kind": lambda key: " ".join(key.split()),
    "Unicode form (NFC, NFD)": lambda key: unicodedata.normalize("NFKC", key),
    "punctuation": lambda key: _PUNCTUATION.sub("", key),
}


def document_ids(qrels: Grades, run: Run, run_name: str, qrels_name: str) -> list[Check]:
    """Find runs of which no document is judged, or in which many would be under other ids.

    Pairs of a query and a document are counted: those judged and retrieved under one id, and those that a simple
    change of both ids would add. With heavy pools or shallow runs most judged documents are not retrieved, so the
    share is of pairs that match.
    """
    judged = [(run[query], grades) for query, grades in qrels.items() if run.get(query)]
    none = not any(not grades.keys().isdisjoint(scores) for scores, grades in judged)
    sample = judged[:: -(-len(judged) // _MOST_QUERIES)] if judged else []
    equal = sum(len(grades.keys() & scores.keys()) for scores, grades in sample)
    pairs = [(grades.keys() - scores.keys(), scores.keys() - grades.keys()) for scores, grades in sample]
    how, added = best_change(pairs)
    # One pair may be a coincidence where others match as they are.
    renamed = added > (0 if none else 2) and added >= _RENAMED * (equal + added)
    if not judged or not (none or renamed):
        return []
    remedy = f"; the ids of {added:,} more differ in {how} alone: write them alike in both" if renamed else ""
    if none:
        one, other = next(iter(judged[0][0])), next(iter(judged[0][1]))
        line = f"{run_name}: none of its documents is judged in {qrels_name} (ids such as {one!r} and {other!r})"
        line += remedy or "; check that both are of one collection"
    else:
        share = f"{100 * added / (equal + added):.0f} %"
        line = f"{run_name}: {share} of the documents that {qrels_name} judges count as unjudged{remedy}"
    return [Check("ids", "caveat", line, {"matching": equal, "renamed": added, "change": how or None}, unfit=True)]


def query_ids(judged: Ids, found: Ids) -> str:
    """Say which simple change of ids would let more queries of a run meet their judgments; empty where none does."""
    lacking, unknown = set(judged).difference(found), set(found).difference(judged)
    how, added = best_change([(lacking, unknown)])
    return f"the ids of {added:,} queries differ in {how} alone" if added else ""


def best_change(pairs: Iterable[tuple[Ids, Ids]]) -> tuple[str, int]:
    """Return the change of ids that makes most match, and how many; pairs hold ids on both sides that match nowhere."""
    pairs = [(left, right) for left, right in pairs if left and right]
    ends = [_common_ends(side) for side in zip(*pairs, strict=True)] if pairs else []
    named = " or ".join(f"{text!r}" for text in dict.fromkeys(text for pair in ends for text in pair) if text)
    changes = {how: (change, change) for how, change in _CHANGES.items()}
    if named:
        without = [_without(*pair) for pair in ends]
        changes[f"the beginning or end {named}"] = (without[0], without[1])
    found = {how: _matches(pairs, *change) for how, change in changes.items()}
    how = max(found, key=found.__getitem__, default="")
    if found.get(how):
        return how, found[how]
    # Several at once, such as another beginning and lost zeros.
    both = _matches(pairs, *(_all_of(_without(*pair)) for pair in ends)) if ends else 0
    return ("several ways (such as case, zeros, beginnings)", both) if both else ("", 0)


def _matches(pairs: Iterable[tuple[Ids, Ids]], left: Change, right: Change) -> int:
    return sum(len({left(key) for key in ones} & {right(key) for key in others}) for ones, others in pairs)


def _common_ends(sides: Iterable[Ids]) -> tuple[str, str]:
    """Return what most ids of one side begin and end with, up to a separator, or letters before a number."""
    keys = list(islice(chain.from_iterable(sides), 10_000))
    heads = Counter(key[: found.end()] for key in keys for found in _AFTER.finditer(key))
    tails = Counter(key[found.start() :] for key in keys for found in _SEPARATOR.finditer(key))
    most = (
        max((ends[end], len(end), end) for end in ("", *ends) if not end or ends[end] >= _RENAMED * len(keys))[-1]
        for ends in (heads, tails)
    )
    return next(most), next(most)


def _without(head: str, tail: str) -> Change:
    return lambda key: key.removeprefix(head).removesuffix(tail)


def _all_of(first: Change) -> Change:
    return lambda key: reduce(lambda text, change: change(text), _CHANGES.values(), first(key))
