"""The statements that make a table fit an edited mapping. Pure: from the mappings of both files and the columns that are there."""

from dataclasses import dataclass, field, replace

from pipelines.config.sinks import Sink
from pipelines.connectors.sinks import Table, TableColumn
from pipelines.connectors.sinks.clickhouse import fits
from pipelines.sink.fit import keeps_values
from pipelines.types.columns import parse_type, quote_identifier, value_type


@dataclass(frozen=True)
class Alteration:
    """One ALTER TABLE. `why`: what it does to the rows that are there."""

    statement: str
    why: str


@dataclass
class TableEdit:
    """The alterations of one table, by what bears them.

    `early`: both files. `widening`: rows that wait, and runners, but no start of the earlier file. `late`: no row that waits. `lossy`: as
    late, and it changes stored values unasked.
    `left`: columns that the mapping no longer has and the table keeps. `columns`: those of the table after all of them.
    """

    table: str
    early: list[Alteration] = field(default_factory=list)
    widening: list[Alteration] = field(default_factory=list)
    late: list[Alteration] = field(default_factory=list)
    lossy: list[Alteration] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    columns: list[TableColumn] = field(default_factory=list)

    def alter(self, where: list[Alteration], change: str, why: str) -> None:
        where.append(Alteration(f"ALTER TABLE {self.table} {change}", why))


def table_edit(before: Sink | None, after: Sink, table: Table, drops: bool) -> TableEdit:
    """Return what `table` needs for the mapping `after`. `before`: the sink that has filled it so far. `drops`: without what left it.

    A column whose field is mapped to another column of the same type now is renamed. A type that keeps every stored value is widened;
    LowCardinality and Nullable of the table stay.
    """
    edit = TableEdit(".".join(map(quote_identifier, (table.database, table.name))), columns=list(table.columns))
    actual = {column.name: column for column in table.columns}
    mapped = {entry.column_name for entry in after.mapping}
    gone = [entry for entry in before.mapping if entry.column_name in actual and entry.column_name not in mapped] if before else []
    for entry in after.mapping:
        name, kind = entry.column_name, str(parse_type(entry.column_type))
        column = actual.get(name)
        if column is not None:
            _retype(edit, column, entry.column_type)
            continue
        renamed = next((one for one in gone if one.name == entry.name and fits(entry.column_type, actual[one.column_name].type)), None)
        if renamed is not None:
            gone.remove(renamed)
            change = f"RENAME COLUMN {quote_identifier(renamed.column_name)} TO {quote_identifier(name)}"
            edit.alter(edit.late, change, "the stored values stay")
            _replaced(edit, renamed.column_name, replace(actual[renamed.column_name], name=name))
            continue
        edit.alter(edit.early, f"ADD COLUMN {quote_identifier(name)} {kind}", "the rows so far get the type's default")
        edit.columns.append(TableColumn(name, kind, ""))
    for entry in gone:
        if drops:
            edit.alter(edit.late, f"DROP COLUMN {quote_identifier(entry.column_name)}", "deletes its values of all rows")
            edit.columns = [column for column in edit.columns if column.name != entry.column_name]
        else:
            edit.left.append(entry.column_name)
    return edit


def _retype(edit: TableEdit, column: TableColumn, declared: str) -> None:
    if column.default_kind in ("MATERIALIZED", "ALIAS") or fits(declared, column.type):
        return
    kind, actual = parse_type(declared), value_type(column.type)
    if keeps := keeps_values(declared, actual):
        is_same = kind.name == actual.name
        kind = replace(
            kind, nullable=kind.nullable or actual.nullable, low_cardinality=kind.low_cardinality or (actual.low_cardinality and is_same)
        )
    where, why = (
        (edit.widening, "every stored value stays") if keeps else (edit.lossy, f"ClickHouse casts the stored values from {column.type}")
    )
    edit.alter(where, f"MODIFY COLUMN {quote_identifier(column.name)} {kind}", why)
    _replaced(edit, column.name, replace(column, type=str(kind)))


def _replaced(edit: TableEdit, name: str, column: TableColumn) -> None:
    edit.columns = [column if one.name == name else one for one in edit.columns]
