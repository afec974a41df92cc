"""The parts of a Nested, as a table holds them, are one column of it."""

from pipelines.connectors.clickhouse.nested import together, written_as
from pipelines.connectors.sinks import TableColumn


def test_parts_that_follow_one_another_are_one_column() -> None:
    columns = [
        *(TableColumn("id", "Int64", ""), TableColumn("n.a", "Array(Int8)", ""), TableColumn("n.b", "Array(Nested(c String))", "")),
        *(TableColumn("m.a", "Array(Array(Int8))", "DEFAULT"), TableColumn("tags", "Array(String)", "")),
    ]
    found = together(columns)
    assert [(column.name, column.type, column.default_kind) for column in found] == [
        ("id", "Int64", ""),
        ("n", "Nested(a Int8, b Nested(c String))", ""),
        ("m", "Nested(a Array(Int8))", "DEFAULT"),
        ("tags", "Array(String)", ""),
    ]
    assert written_as(found) == {"n": ("n.a", "n.b"), "m": ("m.a",)}


def test_a_part_that_cannot_be_inserted_is_not_hidden() -> None:
    parts = [TableColumn("n.a", "Array(Int8)", "DEFAULT"), TableColumn("n.b", "Array(Int8)", "MATERIALIZED")]
    assert together(parts)[0].default_kind == "MATERIALIZED"
    assert together([TableColumn("n.a", "Array(Int8)", "DEFAULT"), TableColumn("n.b", "Array(Int8)", "")])[0].default_kind == ""


def test_other_names_with_a_point_stay_as_they_are() -> None:
    columns = (TableColumn("n.a", "Int8", ""), TableColumn("n.a.b", "Array(Int8)", ""), TableColumn("a b.c", "Array(Int8)", ""))
    assert together(columns) == columns
