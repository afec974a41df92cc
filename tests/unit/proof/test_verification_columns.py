"""Which columns of the table hold what records call for, when file and table were changed since."""

from typing import Any

from support.verification_case import of as configured

from pipelines.config import PipelineConfig, parse
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.sinks import TableColumn
from pipelines.process.program import Program
from pipelines.proof.verification.columns import ColumnChoice, choose_columns
from pipelines.proof.verification.span import History, Plan
from pipelines.proof.verification.steps import Column
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


def choose(plans: list[Mapping], now: Mapping, table: dict[str, str]) -> ColumnChoice:
    """Ten frames were done under each of `plans`."""
    done = [Plan(10 * number + 1, 10 * number + 10, of(mapping).version) for number, mapping in enumerate(plans)]
    history = History(done, range(1, 21), range(1, 21), 20, is_whole=True)
    configs = {of(mapping).version: of(mapping) for mapping in plans}
    return choose_columns(history, configs, file(now), [TableColumn(name, kind, "") for name, kind in table.items()])


def reported(found: ColumnChoice) -> dict[str, Any]:
    return {
        "columns": [(column.name, column.former, column.since >> 20) for column in found.columns],
        "faults": [(one.kind, one.column) for one in found.faults.values()],
        "left out": list(found.left_out),
        "gone": [(answer.split(":")[0].rpartition(" ")[2], len(versions)) for answer, versions in found.lost.items()],
    }


NOTHING: dict[str, Any] = {"faults": [], "left out": [], "gone": []}
SAME = {"id": "Int64", "name": "String"}
RENAMED = {"id": "Int64", "title": "String"}


def test_a_column_renamed_in_file_and_table_is_compared() -> None:
    before = choose([THEN], NOW, RENAMED)
    assert reported(before) == {**NOTHING, "columns": [("id", (), 0), ("title", ("name",), 11)]}
    behind = choose([THEN, NOW], NOW, RENAMED)
    assert reported(behind) == reported(before)


def test_a_column_that_only_the_table_lost_is_a_fault() -> None:
    assert reported(choose([THEN], THEN, RENAMED)) == {**NOTHING, "columns": [("id", (), 0)], "faults": [("missing", "name")]}


def test_a_column_that_file_and_table_dropped_is_gone() -> None:
    without = THEN[:1]
    for plans in ([THEN], [THEN, without]):
        found = choose(plans, without, {"id": "Int64"})
        assert reported(found) == {**NOTHING, "columns": [("id", (), 0)], "gone": [("name", 1)]}


def test_the_new_name_of_one_of_two_columns_is_not_guessed() -> None:
    two = (*THEN, ("a.b", "also", "String"))
    assert reported(choose([two], NOW, RENAMED))["gone"] == [("name", 1), ("also", 1)]
    kept = (*NOW, ("a.b", "also", "String"))
    assert reported(choose([two], kept, {**RENAMED, "also": "String"}))["columns"][1:] == [("title", ("name",), 11), ("also", (), 0)]


def test_a_column_of_another_type_is_a_fault_unless_declared() -> None:
    table = {**SAME, "id": "Int32"}
    assert reported(choose([THEN], THEN, table))["faults"] == [("different", "id")]
    narrow = (("id", "id", "Int32"), THEN[1])
    assert reported(choose([THEN], narrow, table)) == {**NOTHING, "columns": [("name", (), 0)], "left out": ["id"]}
    assert reported(choose([THEN, narrow], narrow, table)) == reported(choose([THEN], narrow, table))


def test_a_column_that_was_added_later_is_left_out() -> None:
    more = (*THEN, ("a.b", "more", "String"))
    assert reported(choose([THEN, more], more, {**SAME, "more": "String"}))["left out"] == ["more"]


def test_a_task_is_told_the_columns_as_they_were_judged() -> None:
    columns = choose([THEN], NOW, RENAMED).columns
    assert [from_text(Column, to_text(column)) for column in columns] == columns
