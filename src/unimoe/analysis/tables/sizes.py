"""The table of vectors' sizes: what cut and quantised vectors take, beside their scores and what these lose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from unimoe.analysis.comparisons import ALPHA, Comparison, Question, compare_arms
from unimoe.analysis.formats import metric_name
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.tables.cells import Cell, Row, caveat_notes, row_groups
from unimoe.analysis.tables.comparisons import COLUMNS, correction_text, limits
from unimoe.analysis.tables.table import Table
from unimoe.core.console import stdout
from unimoe.results.folder import Results, load_all_results

_TESTED = ("After", "Delta", "Low", "High", "p", "Corrected")


def print_sizes(output_dir: Path, whole: str, sizes: Sequence[str], keys: Sequence[str]) -> None:
    """Print what systems of other sizes take and lose beside the one of whole vectors, on ``task/dataset`` keys."""
    if keys and sizes:
        results = load_all_results(output_dir, only={(arm, key) for arm in (whole, *sizes) for key in keys})
        found = compare_arms(results, [Question(key, size, whole) for key in keys for size in sizes])
        stdout.print()
        stdout.print(sizes_table(results, found).to_rich())


def sizes_table(results: Results, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for the whole vectors of each dataset, and one for each size that is compared with them."""

    def rows() -> Iterator[tuple[str, Row]]:
        seen = set()
        for c in comparisons:
            heading = f"{c.key}, {metric_name(c.metric)}: {c.baseline}, {c.queries:,} queries"
            if c.key not in seen:
                seen.add(c.key)
                absent = [Cell.number(None)] * (len(_TESTED) - 1)
                yield heading, (*_index_cells(results, c.key, c.baseline), COLUMNS["Before"](c), *absent)
            yield heading, (*_index_cells(results, c.key, c.system), *(COLUMNS[name](c) for name in _TESTED))

    return Table(
        name="sizes",
        title="Sizes of vectors",
        caption="Vectors cut and quantised from one encoding, and the difference of their score from that of whole "
        f"vectors, in points (score × 100) with its {100 * LEVEL:g} % interval",
        columns=("Dims", "Precision", "Bytes", "MiB", "ms", "Score", *_TESTED[1:-1], "p (Holm)"),
        groups=row_groups(rows()),
        notes=(
            "Bytes of a vector and MiB of the corpus, as queries are compared with it; ms for the search of a query. "
            "binary: bits choose candidates, which retrieval.rescore ranks by vectors that may stay on disk.",
            f"p: two-sided t from the model of seeds and queries, level {ALPHA:g}; {correction_text(comparisons)}.",
            *limits(comparisons),
            *caveat_notes(results),
        ),
    )


def _index_cells(results: Results, key: str, system: str) -> Row:
    """Return what the vectors of a system take; its name and nothing else where an earlier version searched."""
    index = results.measured(key, system)[0].vector_index
    if index is None:
        return (Cell(system), *[Cell.number(None)] * 4)
    size = index.bytes_per_vector * index.documents / 2**20
    sizes = Cell.count(index.bytes_per_vector), Cell.number(size, ",.2f"), Cell.number(index.search_ms, ",.2f")
    return (Cell.count(index.dims), Cell(index.precision), *sizes)
