"""Which columns of the table hold what records call for, when file and table were changed since."""

from dataclasses import replace
from typing import Any

import pytest
from support.verification_case import of as configured

from pipelines.config import PipelineConfig, parse
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.sinks import TableColumn
from pipelines.process.program import Program
from pipelines.proof.verification.columns import ColumnChoice, choose_columns
from pipelines.proof.verification.compared import Column, Stretch
from pipelines.proof.verification.span import History, Plan
from pipelines.protocol.codec import from_text, to_text

Mapping = tuple[tuple[str, str, str], ...]
THEN: Mapping = (("id", "id", "Int64"), ("a.b", "name", "String"))
NOW: Mapping = (("id", "id", "Int64"), ("a.b", "title", "String"))


def of(mapping: Mapping) -> Program:
    return configured(columns=tuple((*entry, False) for entry in mapping))


def file(mapping: Mapping) -> PipelineConfig:
    head, _, _ = EXAMPLE.partition("  mapping:\n")
    head = head.replace("order_id, type: string", "id, type: int").replace("customer.city", "a.b").replace("[order_id]", "[id]")
    rows = "".join(f'    - {{name: {name}, column_name: {column}, column_type: "{kind}"}}\n' for name, column, kind in mapping)
    return parse(f"{head}  mapping:\n{rows}", name="file", environment={})


def choose(plans: list[Mapping], now: Mapping, table: dict[str, str], default_kind: str = "", has_join: bool = False) -> ColumnChoice:
    """Ten frames were done under each of `plans`. `default_kind`: of the table's last column."""
    done = [Plan(10 * number + 1, 10 * number + 10, of(mapping).version) for number, mapping in enumerate(plans)]
    history = History(done, range(1, 31), range(1, 31), 30, is_whole=True)
    configs = {of(mapping).version: of(mapping) for mapping in plans}
    columns = [TableColumn(name, kind, "") for name, kind in table.items()]
    columns[-1] = replace(columns[-1], default_kind=default_kind)
    return choose_columns(history, configs, file(now), columns, is_joined=has_join)


def reported(found: ColumnChoice) -> dict[str, Any]:
    return {
        "columns": [(column.name, column.former, frames(column.doubtful)) for column in found.columns],
        "faults": [(one.kind, one.column) for one in found.faults.values()],
        "left out": list(found.left_out),
        "gone": [(answer.partition(":")[0].rpartition(" ")[2], len(versions)) for answer, versions in found.lost.items()],
    }


def frames(stretches: tuple[Stretch, ...]) -> list[tuple[int, int]]:
    """The raw sequences of whole frames."""
    return [(first >> 20, last >> 20) for first, last in stretches]


NOTHING: dict[str, Any] = {"faults": [], "left out": [], "gone": []}
SAME = {"id": "Int64", "name": "String"}
RENAMED = {"id": "Int64", "title": "String"}


def test_a_column_renamed_in_file_and_table_is_compared() -> None:
    before = choose([THEN], NOW, RENAMED)
    assert reported(before) == {**NOTHING, "columns": [("id", (), []), ("title", ("name",), [(1, 10)])]}
    behind = choose([THEN, NOW], NOW, RENAMED)
    assert reported(behind) == reported(before)


def test_a_column_that_only_the_table_lost_is_a_fault() -> None:
    assert reported(choose([THEN], THEN, RENAMED)) == {**NOTHING, "columns": [("id", (), [])], "faults": [("missing", "name")]}


def test_a_column_that_file_and_table_dropped_is_gone() -> None:
    without = THEN[:1]
    for plans in ([THEN], [THEN, without]):
        found = choose(plans, without, {"id": "Int64"})
        assert reported(found) == {**NOTHING, "columns": [("id", (), [])], "gone": [("name", 1)]}


def test_the_new_name_of_one_of_two_columns_is_not_guessed() -> None:
    two = (*THEN, ("a.b", "also", "String"))
    assert reported(choose([two], NOW, RENAMED))["gone"] == [("name", 1), ("also", 1)]
    kept = (*NOW, ("a.b", "also", "String"))
    assert reported(choose([two], kept, {**RENAMED, "also": "String"}))["columns"][1:] == [
        ("title", ("name",), [(1, 10)]),
        ("also", (), []),
    ]


def test_a_column_of_another_type_is_a_fault_unless_declared() -> None:
    table = {**SAME, "id": "Int32"}
    assert reported(choose([THEN], THEN, table))["faults"] == [("different", "id")]
    narrow = (("id", "id", "Int32"), THEN[1])
    assert reported(choose([THEN], narrow, table)) == {**NOTHING, "columns": [("name", (), [])], "gone": [("id", 1)]}
    both = choose([THEN, narrow], narrow, table)
    assert reported(both) == {**NOTHING, "columns": [("id", (), []), ("name", (), [])], "gone": [("id", 1)]}
    assert frames(both.columns[0].unknown) == [(1, 10)], "a value may have been cut"


def test_a_column_of_a_wider_type_is_compared_in_all_rows() -> None:
    narrow = (("id", "id", "Int32"), ("a.b", "name", "String"))
    wide = (("id", "id", "Int64"), ("a.b", "name", "Nullable(String)"))
    found = choose([narrow, wide], wide, {"id": "Int64", "name": "Nullable(String)"})
    assert reported(found) == {**NOTHING, "columns": [("id", (), []), ("name", (), [])]}
    assert [(str(column.type), column.unknown) for column in found.columns] == [("Int64", ()), ("Nullable(String)", ())]


def test_rows_from_before_a_column_have_the_default_of_its_type() -> None:
    more = (*THEN, ("a.b", "more", "String"))
    found = choose([THEN, more], more, {**SAME, "more": "String"})
    assert reported(found) == {**NOTHING, "columns": [("id", (), []), ("name", (), []), ("more", (), [(1, 10)])]}
    assert (found.columns[2].unmapped, found.columns[2].unknown) == ("''::BLOB", ())


@pytest.mark.parametrize(("kind", "default_kind"), [("UUID", ""), ("String", "DEFAULT")])
def test_a_default_that_is_not_known_leaves_rows_not_proven(kind: str, default_kind: str) -> None:
    more = (*THEN, ("a.b", "more", kind))
    found = choose([THEN, more], more, {**SAME, "more": kind}, default_kind)
    assert reported(found)["gone"] == [("more", 1)]
    assert frames(found.columns[2].unknown) == [(1, 10)]


def test_a_column_that_was_mapped_again_may_have_been_made_again() -> None:
    found = choose([THEN, THEN[:1], THEN], THEN, SAME)
    assert reported(found)["columns"] == [("id", (), []), ("name", (), [(11, 20), (1, 10)])]


def test_a_column_of_a_join_whose_mapping_changed_is_not_proven() -> None:
    more = (*THEN, ("a.b", "more", "String"))
    found = choose([THEN, more], more, {**SAME, "more": "String"}, has_join=True)
    assert reported(found) == {**NOTHING, "columns": [("id", (), []), ("name", (), [])], "gone": [("more", 2)]}


def test_a_task_is_told_the_columns_as_they_were_judged() -> None:
    columns = choose([THEN], NOW, RENAMED).columns
    assert [from_text(Column, to_text(column)) for column in columns] == columns
