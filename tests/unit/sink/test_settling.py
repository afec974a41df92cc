"""What became of an insert: the table is asked, once no earlier one can be at work, and says so where it cannot tell."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from support.memory_sink.connector import MemoryTable

from pipelines.connectors.sinks import Table
from pipelines.errors import HaltError, RetryableError
from pipelines.sink.settling import Sent, stored_rows

TABLE = Table("db", "t", "MergeTree", "", (), 10_000, is_partitioned=True)
WITHIN = timedelta(seconds=60)


def asked_of(table: Table, stored: list[int], at_work: int | None = 0) -> MemoryTable:
    """A sink with these rows."""
    found = MemoryTable()
    found.facts, found.at_work = table, at_work
    found.store(positions(stored), "token")
    return found


def positions(sequences: list[int]) -> pa.Table:
    count = len(sequences)
    return pa.table(
        {
            "_tf_sequence": pa.array(sequences, pa.uint64()),
            "_tf_ordinal": pa.array([1] * count, pa.uint32()),
            "_tf_emit": pa.array([0] * count, pa.uint32()),
            "_tf_arrival": pa.array([sequence * 10 for sequence in sequences], pa.int64()),
        }
    )


def ask(sink: MemoryTable, rows: pa.Table, age_seconds: float | None = None, is_certain: bool = False) -> list[int]:
    return stored_rows(sink, Sent("db.t", rows, "work", age_seconds, "refused"), WITHIN, is_certain).tolist()


@pytest.mark.parametrize(("stored", "expected"), [([], []), ([5, 7, 99], [0, 2]), ([7, 6, 5], [0, 1, 2])])
def test_the_table_says_which_rows_it_has(stored: list[int], expected: list[int]) -> None:
    assert ask(asked_of(TABLE, stored), positions([5, 6, 7])) == expected


def test_an_insert_at_work_is_waited_for() -> None:
    with pytest.raises(RetryableError, match="that Memory still runs"):
        ask(asked_of(TABLE, [], at_work=1), positions([5]))


@pytest.mark.parametrize(
    ("table", "at_work", "seconds"),
    [(TABLE, 0, 6), (TABLE, None, 60), (replace(TABLE, engine="ReplicatedMergeTree"), 0, 60)],
    ids=["seen", "may not be seen", "may be at work on another replica"],
)
def test_what_was_sent_earlier_is_waited_for_in_full(table: Table, at_work: int | None, seconds: int) -> None:
    asked = asked_of(table, [5], at_work)
    with pytest.raises(RetryableError, match="waiting until no earlier insert"):
        ask(asked, positions([5]), age_seconds=seconds - 1)
    assert ask(asked, positions([5]), age_seconds=seconds) == [0]


WITHOUT = positions([5]).drop_columns(["_tf_arrival"])


@pytest.mark.parametrize(
    ("table", "rows"),
    [(TABLE, WITHOUT), (replace(TABLE, keeps_rows=False), positions([5]))],
    ids=["no positions", "makes one row of several"],
)
def test_an_unclear_table_is_trusted_if_nothing_can_be_stored(table: Table, rows: pa.Table) -> None:
    one_part = replace(table, is_partitioned=False)
    assert ask(asked_of(one_part, []), rows) == []
    assert ask(asked_of(table, []), rows, is_certain=True) == []
    with pytest.raises(HaltError, match="may have stored some of its rows"):
        ask(asked_of(table, []), rows)
    with pytest.raises(HaltError, match="may have stored some of its rows"):
        ask(asked_of(one_part, []), rows, age_seconds=1000.0, is_certain=True)
