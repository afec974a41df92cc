"""The sink leg over a table in memory: each row once, whatever becomes of an insert; what the table refuses becomes a dead letter."""

from pathlib import Path
from typing import Any

import pytest
from support.leg_case import NAMES, LegCase, event
from support.memory_sink.connector import MemoryTable

import pipelines.sink.settling
from pipelines.engine.leg import StoppedError
from pipelines.errors import RefusedError
from pipelines.protocol.records import decode_frame


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> MemoryTable:
    monkeypatch.setattr(pipelines.sink.settling, "INSERT_MAX_EXECUTION_SECONDS", 0)
    return MemoryTable()


def dead_letters(case: LegCase) -> list[tuple[str, str, str, str]]:
    frames = [decode_frame(message.payload) for message in case.log.messages(NAMES.stream("dlq"))]
    return [(row["source"], row["stage"], row["code"], row["message"]) for frame in frames for row in frame.to_pylist()]


def test_every_row_is_in_the_table_once(tmp_path: Path, table: MemoryTable) -> None:
    case = LegCase(tmp_path, 2, table=table)
    for numbers in ((1, 2, 3), (4, 5)):
        case.send([event(number) for number in numbers])
        case.go_on()
        case.deliver()
    assert sorted(table.ids) == [1, 2, 3, 4, 5]
    assert case.delivery.chain.state.totals["rows_out"] == 5


def test_a_lost_answer_is_settled_by_the_same_token(tmp_path: Path, table: MemoryTable) -> None:
    killed = LegCase(tmp_path, 2, table=table)
    killed.send([event(1), event(2)])
    killed.go_on()
    table.loses_answers = True
    with pytest.raises(StoppedError, match="no answer"):
        killed.deliver()
    table.loses_answers = False
    case = LegCase(tmp_path, 2, killed.log, epoch=2, table=table)
    case.deliver()
    assert sorted(table.ids) == [1, 2]
    assert len(table.tokens) == 1


def test_a_row_stored_and_then_refused_is_no_dead_letter(tmp_path: Path, table: MemoryTable) -> None:
    killed = LegCase(tmp_path, 2, table=table)
    killed.send([event(1), event(2)])
    killed.go_on()
    table.loses_answers = True
    with pytest.raises(StoppedError):
        killed.deliver()
    table.loses_answers, table.refused = False, {2}
    case = LegCase(tmp_path, 2, killed.log, epoch=2, table=table)
    case.deliver()
    assert sorted(table.ids) == [1, 2]
    assert dead_letters(case) == []


def test_a_refused_row_is_a_dead_letter_of_its_source(tmp_path: Path, table: MemoryTable) -> None:
    case = LegCase(tmp_path, 2, table=table)
    case.send([event(number) for number in range(1, 6)])
    case.go_on()
    table.refused = {2}
    case.deliver()
    assert sorted(table.ids) == [1, 3, 4, 5]
    assert dead_letters(case) == [("s", "sink", "refused", "a row of Memory is refused")]


def test_each_further_row_that_is_named_takes_one_insert(tmp_path: Path, table: MemoryTable) -> None:
    case = LegCase(tmp_path, 2, table=table)
    case.send([event(number) for number in range(100)])
    case.go_on()
    table.refused = {*range(0, 100, 5)}
    case.deliver()
    assert sorted(table.ids) == [number for number in range(100) if number % 5]
    assert len(dead_letters(case)) == 20
    # The first one is cut out by itself, which shows that the table names rows as they are counted here; rows may stand before it.
    assert len(table.sent) in (20 + 2, 20 + 3)


def test_a_table_that_names_the_wrong_row_refuses_no_good_one(tmp_path: Path, table: MemoryTable, monkeypatch: pytest.MonkeyPatch) -> None:
    case = LegCase(tmp_path, 2, table=table)
    case.send([event(number) for number in range(20)])
    case.go_on()
    table.refused = {4, 9}
    insert = table.insert

    def one_too_far(*arguments: Any, **named: Any) -> None:
        try:
            insert(*arguments, **named)
        except RefusedError as error:
            assert error.row is not None
            raise RefusedError(str(error), error.row + 1, is_whole=True) from error

    monkeypatch.setattr(table, "insert", one_too_far)
    case.deliver()
    assert sorted(table.ids) == [number for number in range(20) if number not in (4, 9)]
    assert len(dead_letters(case)) == 2
