"""``unimoe import``: a collection from tables, dumps and data sets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from unimoe.cli.options import comma_separated
from unimoe.core.console import stdout
from unimoe.core.errors import UsageError


def import_collection(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A folder with corpus, queries and qrels: a data set of Hugging Face, or the layout itself."
        ),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="Documents: ids, texts and perhaps titles.")] = None,
    queries: Annotated[Path | None, typer.Option(help="Queries: ids and texts.")] = None,
    qrels: Annotated[
        list[Path] | None,
        typer.Option(help="Judgments: ids of queries and documents, and grades; once for each split."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="One table of query texts, document texts and labels, in place of the three.")
    ] = None,
    *,
    output_dir: Annotated[Path, typer.Option(help="The folder to write.")],
    split: Annotated[
        str | None, typer.Option(help="What the judgments are called: test, or of several files the names of these.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of your own for fields: text=body,queries.text=question,grade=stars.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The collection's name in results; by default the folder's.")] = None,
    language: Annotated[str | None, typer.Option(help="Of the documents, such as de; by default by script.")] = None,
    relevance_level: Annotated[int | None, typer.Option(help="The lowest grade that counts as relevant.")] = None,
    excludes_self: Annotated[
        bool | None,
        typer.Option(
            "--excludes-self/--keeps-self", help="Whether the document with a query's id is no candidate of it."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the collection in the folder.")] = False,
) -> None:
    """Make a collection from CSV, TSV, JSONL or parquet files, a dump of Elasticsearch or OpenSearch, or a data set.

    Files are told by their content, columns by their names. The command prints what it found, and refuses a row that is
    half made. It writes corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv and collection.json, or nothing.
    """
    from unimoe.checks import report
    from unimoe.core.grouping import gathered
    from unimoe.data.collection import describe_collection, described
    from unimoe.data.importing import read_folder, read_pairs, read_parts, split_name, write_collection

    three = (corpus, queries, qrels)
    if [folder is not None, any(three), table is not None].count(True) != 1 or (any(three) and not all(three)):
        raise UsageError("give a FOLDER, or --corpus, --queries and --qrels, or --table")
    if wrong := next((text for text in comma_separated(columns) or [] if "=" not in text), None):
        raise UsageError(f"--columns {wrong}: write FIELD=COLUMN, such as text=body")
    own = dict(text.split("=", 1) for text in comma_separated(columns) or [])
    if folder is not None:
        found = read_folder(folder, own)
    elif table is not None:
        found = read_pairs(table, split or "test", own)
    else:
        judged = gathered((split_name(path) if len(qrels or []) > 1 else "test", path) for path in qrels or [])
        found = read_parts([corpus], [queries], judged, own)
    if split is not None:
        if len(found.qrels) > 1:
            raise UsageError(f"--split {split}: there are {', '.join(found.qrels)}, which have their own names")
        found.qrels = {split: next(iter(found.qrels.values()))}
    card = described(name=name, language=language, relevance_level=relevance_level, excludes_self=excludes_self)
    known = describe_collection(folder).model_dump(exclude_none=True) if folder is not None else {}
    card = described(**{"name": output_dir.absolute().name, **known, **card.model_dump(exclude_none=True)})
    parts = {split: found.collection(split, card) for split in found.qrels}
    first = next(iter(parts.values()))
    plain = not any(check.name == "language" and check.weight == "caveat" for check in first.checks)
    if plain and first.language != "en":
        card = card.model_copy(update={"language": first.language})
    write_collection(output_dir, found, card, overwrite=overwrite)

    stdout.print(f"{len(found.corpus):,} documents, {len(found.queries):,} queries, language {first.language}")
    for split, part in parts.items():
        grades = Counter(grade for judged in part.qrels.values() for grade in judged.values())
        counts = ", ".join(f"{number:,} of grade {grade}" for grade, number in sorted(grades.items()))
        without = len(part.corpus.keys() - {key for judged in part.qrels.values() for key in judged})
        stdout.print(
            f"{split}: {len(part.qrels):,} queries with {grades.total():,} judgments ({counts}), "
            f"{without:,} documents without one",
            soft_wrap=True,
        )
    report({check.line: check for part in parts.values() for check in part.checks}.values())
    stdout.print(f"{output_dir}: written, for --dataset path:{output_dir}", soft_wrap=True)
