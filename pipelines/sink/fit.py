"""Compares rows that were made under one configuration with the table as it is now.

ClickHouse casts its input to the column's type and cuts the values in silence, and stores the type's default for a null in a column that
takes none (measured, 26.9). So a frame's columns are compared with the table's before every insert, and at a start, too.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from pipelines.connectors.sinks import TableColumn
from pipelines.errors import HaltError
from pipelines.process.program import Program
from pipelines.process.steps.mapping.columns import NO_DEFAULT_FOR_NULL
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import ColumnType, value_type
from pipelines.types.widening import bare, is_wider


def misfits(config: Program, position_columns: Sequence[str], columns: Sequence[TableColumn], nulls: Collection[str]) -> list[str]:
    """Return the reasons why rows of `config` cannot be inserted unchanged into a table of `columns`; empty if they can.

    `nulls`: columns with nulls.
    """
    return [*_column_misfits(config, columns, nulls), *_position_misfits(position_columns, columns)]


def _column_misfits(config: Program, columns: Sequence[TableColumn], nulls: Collection[str]) -> Iterator[str]:
    actual = {column.name: column for column in columns}
    for target in config.targets:
        column = actual.get(target.name)
        if column is None:
            yield f"the table has no column {target.name!r}, the rows hold {target.type}"
        elif column.default_kind in ("MATERIALIZED", "ALIAS"):
            yield f"column {target.name!r} is {column.default_kind} and cannot be inserted"
        elif not keeps_values(column.type, target.type):
            yield f"column {target.name!r} is {column.type}, the rows hold {target.type}"
        elif target.name in nulls and not keeps_null(column):
            yield f"column {target.name!r} is {column.type} and has no DEFAULT for nulls, the rows hold some"


def _position_misfits(names: Sequence[str], columns: Sequence[TableColumn]) -> Iterator[str]:
    actual = {column.name: column.type for column in columns}
    for name, kind in POSITION_COLUMN_TYPES:
        if name in names and actual.get(name) != kind:
            yield f"position column {name} is {actual[name]}, not {kind}" if name in actual else f"the table has no position column {name}"


@lru_cache(maxsize=4096)
def keeps_values(actual: str, made_for: ColumnType) -> bool:
    """Return True if a column of the type `actual`, in the server's notation, keeps every value of `made_for` except null unchanged."""
    try:
        column = bare(value_type(actual))
    except ValueError:
        return False
    return column == bare(made_for) or is_wider(column, bare(made_for))


def keeps_null(column: TableColumn) -> bool:
    """Return True if a null stays null in the column, or becomes its DEFAULT."""
    kind = value_type(column.type)
    return kind.takes_null or (column.default_kind == "DEFAULT" and kind.name not in NO_DEFAULT_FOR_NULL)


def way_on(pipeline: str, leg: str) -> str:
    """Return the ways to handle rows that no longer fit the table or the file. `leg`: as `--leg` names it."""
    return (
        f"Put the table and the file of pipeline {pipeline} back as they were, drain first with `tallyflow run FILE --until-caught-up`, "
        f"then change both; or stop the pipeline and give these rows up with `tallyflow plan abandon FILE --leg {leg} --waiting "
        "--reason TEXT`: they become dead letters, which `tallyflow dlq reprocess` lets enter again under the new file"
    )


def check_arrow_types(config: Program, rows: pa.Table) -> None:
    """Raise HaltError if the columns of `rows` do not have the types that `config` writes."""
    wrong = [
        f"{target.name} is {rows.schema.field(target.name).type}, not {arrow_type(target.type)}"
        for target in config.targets
        if _form(rows.schema.field(target.name).type) != _form(arrow_type(target.type))
    ]
    if wrong:
        raise HaltError(
            f"inserting a chunk: its rows are not those that configuration {config.version} writes: {'; '.join(wrong)}; nothing was sent. "
            "Only Tallyflow may write to its streams"
        )


def _form(kind: pa.DataType) -> object:
    """Return the relevant part of an Arrow type: without the names of list items; text and bytes are equal."""
    if pa.types.is_dictionary(kind):
        return _form(kind.value_type)
    if pa.types.is_map(kind):
        return "map", _form(kind.key_type), _form(kind.item_type)
    if pa.types.is_list(kind):
        return "list", _form(kind.value_type)
    if pa.types.is_struct(kind):
        return "struct", tuple((field.name, _form(field.type)) for field in kind.fields)
    return "bytes" if pa.types.is_binary(kind) or pa.types.is_string(kind) else str(kind)
