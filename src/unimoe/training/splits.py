"""The door for splits: no query trains, or chooses a model, that is reported.

Every trainer, study and experiment shows the queries of its parts to ``checked_splits``. The same query in two parts is
refused, whatever its collections are called. So is a text under another id, except in published sets, which hold a few:
there it is a caveat of every result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Literal, NamedTuple

from unimoe.checks import Check
from unimoe.core.errors import DataError, first_few
from unimoe.core.grouping import gathered
from unimoe.data.collection import Collection
from unimoe.data.published import is_published
from unimoe.results.topics import normal

Role = Literal["train", "dev", "test"]

SHARED = "shared queries"
"""The name of the checks of queries in two parts."""

_ORDER: tuple[Role, ...] = ("train", "dev", "test")
_DOES = {"train": "trains", "dev": "chooses the checkpoint"}
_MOST = 0.1  # share of a published part from which equal texts are a copy of the other part


@dataclass(frozen=True)
class SplitQueries:
    """The judged queries of one part.

    Attributes:
        part: what they do.
        key: of the setting that names them, for messages.
        collection: as the user names it.
        texts: query id to text.
    """

    part: Role
    key: str
    collection: str
    texts: Mapping[str, str]

    @classmethod
    def of(cls, part: Role, key: str, name: str, collection: Collection) -> SplitQueries:
        """Return the judged queries of a collection that is called ``name``."""
        return cls(part, key, name, collection.judged_queries)

    @property
    def called(self) -> str:
        """How messages call them."""
        return f"{self.collection}: {self.key}"


class _Shared(NamedTuple):
    """Queries of a later part that an earlier one has too."""

    earlier: int
    later: int
    same: list[str]  # with one id and one text
    alike: list[str]  # with one text: their ids in the later part
    of_earlier: set[str]  # the ids of all of them in the earlier part


@dataclass(frozen=True)
class CheckedSplits:
    """What was found.

    Attributes:
        checks: caveats of every result, and notes.
        left_out: of each part the queries that ``drop_shared`` leaves out, in the order of the parts.
    """

    checks: tuple[Check, ...] = ()
    left_out: Sequence[frozenset[str]] = ()


def checked_splits(
    parts: Sequence[SplitQueries],
    *,
    drop_shared: bool = False,
    drop: str = "drop_shared",
    reports_dev: str | None = None,
) -> CheckedSplits:
    """Refuse queries that are in two of the parts, or say what is shared.

    Args:
        parts: of a training, each at most once; several may do the same.
        drop_shared: leave queries out of training that are in dev or test instead.
        drop: the setting that says so.
        reports_dev: the setting by which a recipe states that it reports what chooses; then this is a caveat.

    Raises:
        DataError: a query is in two parts by id and text, or texts are that no published set would share.
    """
    texts = [{query: normal(text) for query, text in part.texts.items()} for part in parts]
    found = [_shared(parts, texts, one, other) for one, other in combinations(range(len(parts)), 2)]
    left_out: list[set[str]] = [set() for _ in parts]
    checks = []
    for shared in filter(None, found):
        earlier, later = parts[shared.earlier], parts[shared.later]
        if drop_shared and earlier.part == "train":
            left_out[shared.earlier] |= shared.of_earlier
            number = len(shared.of_earlier)
            line = f"{drop}: {number:,} queries of {earlier.called} left out, whose texts are in {later.key}"
            checks.append(Check(SHARED, "note", line))
            continue
        if shared.same:
            checks.append(_same(earlier, later, shared.same, reports_dev))
        if shared.alike:
            checks.append(_equal_texts(earlier, later, shared.alike, drop))
    return CheckedSplits(tuple(checks), [frozenset(some) for some in left_out])


def _shared(parts: Sequence[SplitQueries], texts: Sequence[Mapping[str, str]], one: int, other: int) -> _Shared | None:
    """Return what two parts share, unless they do the same or share nothing."""
    earlier, later = sorted((one, other), key=lambda place: _ORDER.index(parts[place].part))
    if parts[earlier].part == parts[later].part:
        return None
    both = ({*texts[earlier].values()} & {*texts[later].values()}) - {""}
    ids = sorted(query for query, text in texts[later].items() if text in both)
    same = [query for query in ids if texts[earlier].get(query) == texts[later][query]]
    alike = [query for query in ids if texts[earlier].get(query) != texts[later][query]]
    of_earlier = {query for query, text in texts[earlier].items() if text in both}
    return _Shared(earlier, later, same, alike, of_earlier) if both else None


def _same(earlier: SplitQueries, later: SplitQueries, ids: Sequence[str], reports_dev: str | None) -> Check:
    if earlier.part == "dev" and reports_dev:
        some = f"{len(ids):,} of its {len(later.texts):,} queries choose the checkpoint too"
        return Check(SHARED, "caveat", f"{later.called}: {some} ({reports_dev})", {"queries": len(ids)})
    number = f" (one of {len(ids):,})" if len(ids) > 1 else ""
    both = f"{earlier.key} and in {later.key}"
    raise DataError(f"{later.collection}: query {ids[0]!r}{number} is in {both}; choose splits that differ")


def _equal_texts(earlier: SplitQueries, later: SplitQueries, ids: Sequence[str], drop: str) -> Check:
    """Return the caveat of texts under other ids that published sets share; refuse more, and those of other sets."""
    number, of = len(ids), len(later.texts)
    line = (
        f"{later.called}: {number:,} of its {of:,} queries have the text of one that {_DOES[earlier.part]}, under "
        f"another id ({first_few(ids)})"
    )
    if number <= _MOST * of and is_published(earlier.collection) and is_published(later.collection):
        return Check(SHARED, "caveat", line, {"queries": number, "of": of, "ids": [*ids[:5]]})
    remedy = f", or set {drop}: true, which leaves them out of training" if earlier.part == "train" else ""
    raise DataError(f"{line}, in {earlier.called}; choose splits that differ{remedy}")


def to_train_on(collection: Collection, left_out: frozenset[str]) -> Collection:
    """Return a part to train on, without the queries that are left out.

    What answers one query is no negative of another one of equal text: it is excluded there, and so no candidate.
    """
    known = relevant_by_text(collection)
    others = {query: known[query] - {d for d, grade in collection.qrels[query].items() if grade > 0} for query in known}
    excluded = {query: documents | collection.excluded.get(query, frozenset()) for query, documents in others.items()}
    if any(others.values()):
        collection = replace(collection, excluded={query: some for query, some in excluded.items() if some})
    return collection.with_queries(collection.queries.keys() - left_out) if left_out else collection


def relevant_by_text(collection: Collection, threshold: int = 1) -> dict[str, frozenset[str]]:
    """Return the documents of the corpus that are relevant to each judged query, or to another one of equal text.

    ``threshold`` is the lowest grade that counts.
    """
    own = {
        query: frozenset(key for key, grade in grades.items() if grade >= threshold and key in collection.corpus)
        for query, grades in collection.qrels.items()
    }
    alike = gathered((normal(collection.queries[query]), query) for query in own)
    of_text = {text: reduce(frozenset.union, (own[query] for query in ids)) for text, ids in alike.items()}
    return {query: documents for text, documents in of_text.items() for query in alike[text]}
