"""The statements that make a table fit an edited mapping."""

import pytest
from pydantic import TypeAdapter

from pipelines.config.sinks import Sink
from pipelines.connectors.sinks import Table, TableColumn
from pipelines.edits.columns import TableEdit, table_edit


def sink(**columns: str) -> Sink:
    """Types by column, of the field of the same name; column__field of another one."""
    mapping = [
        {"name": name.partition("__")[2] or name, "column_name": name.partition("__")[0], "column_type": kind}
        for name, kind in columns.items()
    ]
    made: Sink = TypeAdapter(Sink).validate_python(
        {
            "type": "clickhouse",
            "connection_params": {"host": "h", "port": "8123", "database": "shop"},
            "table": "orders",
            "mapping": mapping,
        }
    )
    return made


def table(**columns: str) -> Table:
    found = tuple(TableColumn(name, kind, "") for name, kind in columns.items())
    return Table("shop", "orders", "MergeTree", "", found, 100)


def edit(before: Sink, after: Sink, there: Table, drops: bool = False) -> dict[str, list[str]]:
    found = table_edit(before, after, there, drops)
    return {
        name: [one.statement.removeprefix("ALTER TABLE shop.orders ") for one in getattr(found, name)]
        for name in ("early", "widening", "late", "lossy")
    }


def test_a_new_column_is_added_while_the_pipeline_runs() -> None:
    made = edit(sink(id="Int64"), sink(id="Int64", more="Nullable(String)"), table(id="Int64"))
    assert made == {"early": ["ADD COLUMN more Nullable(String)"], "widening": [], "late": [], "lossy": []}


WIDENED = {
    "wider": ("Int32", "Int64", "Int64"),
    "wider, null kept": ("Nullable(Int32)", "Int64", "Nullable(Int64)"),
    "nullable": ("Int64", "Nullable(Int64)", "Nullable(Int64)"),
    "more digits": ("Decimal(9, 2)", "Decimal(18, 2)", "Decimal(18, 2)"),
    "low cardinality": ("String", "LowCardinality(String)", None),
}


@pytest.mark.parametrize(("actual", "declared", "expected"), WIDENED.values(), ids=WIDENED)
def test_a_type_that_keeps_every_value_is_widened(actual: str, declared: str, expected: str | None) -> None:
    made = edit(sink(value=actual), sink(value=declared), table(value=actual))
    assert made["lossy"] == []
    assert made["late"] == []
    if expected is not None:
        assert made["widening"] == [f"MODIFY COLUMN value {expected}"]


LOSSY = {
    "narrower": ("Int64", "Int32"),
    "text": ("String", "Int64"),
    "unsigned": ("Int64", "UInt64"),
    "scale": ("Decimal(9, 2)", "Decimal(9, 3)"),
}


@pytest.mark.parametrize(("actual", "declared"), LOSSY.values(), ids=LOSSY)
def test_a_type_that_may_change_values_is_lossy(actual: str, declared: str) -> None:
    made = edit(sink(value=actual), sink(value=declared), table(value=actual))
    assert (made["widening"], made["lossy"]) == ([], [f"MODIFY COLUMN value {declared}"])


def test_a_column_that_the_table_holds_as_nullable_is_left_alone() -> None:
    assert edit(sink(value="Int64"), sink(value="Int64"), table(value="Nullable(Int64)")) == {
        "early": [],
        "widening": [],
        "late": [],
        "lossy": [],
    }


def test_the_same_field_in_another_column_is_a_rename() -> None:
    made = edit(sink(id="Int64", name="String"), sink(id="Int64", title__name="String"), table(id="Int64", name="String"))
    assert made == {"early": [], "widening": [], "late": ["RENAME COLUMN name TO title"], "lossy": []}


def test_a_rename_with_another_type_is_a_new_column() -> None:
    made = edit(sink(name="String"), sink(title__name="Int64"), table(name="String"))
    assert made == {"early": ["ADD COLUMN title Int64"], "widening": [], "late": [], "lossy": []}


def test_what_left_the_mapping_stays_unless_it_is_dropped() -> None:
    before, after, there = sink(id="Int64", name="String"), sink(id="Int64"), table(id="Int64", name="String")
    kept = table_edit(before, after, there, drops=False)
    assert (kept.left, kept.lossy) == (["name"], [])
    assert edit(before, after, there, drops=True)["late"] == ["DROP COLUMN name"]


def test_a_column_that_the_file_never_had_is_not_touched() -> None:
    found = table_edit(sink(id="Int64"), sink(id="Int64"), table(id="Int64", theirs="String"), drops=True)
    assert (found.left, found.lossy, len(found.columns)) == ([], [], 2)


def test_the_columns_are_those_behind_all_alterations() -> None:
    found = table_edit(
        sink(id="Int32", name="String", gone="Int8"),
        sink(id="Int64", title__name="String", more="Date"),
        table(id="Int32", name="String", gone="Int8"),
        drops=True,
    )
    assert isinstance(found, TableEdit)
    assert [(column.name, column.type) for column in found.columns] == [("id", "Int64"), ("title", "String"), ("more", "Date")]
