"""The audit's verdict on the rows of records that have several, against the same question in SQL."""

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.proof.audit.account import Account, Limits, RawFrames, Tallied, compare, dead_letter_faults
from pipelines.proof.audit.several_rows import ExpectedRows, row_faults, sink_row_faults
from pipelines.protocol.positions import packed, unpacked

Row = tuple[int, int, int]
RAW = RawFrames(np.array([2, 5]), np.array([2, 1]))
RECORDS = [(2, 0), (2, 1), (5, 0)]
ROWS = st.lists(st.tuples(st.sampled_from(RECORDS), st.integers(0, 2)).map(lambda one: (*one[0], one[1])), max_size=8)
ALL = Limits(floor=0, process_to=5, read_to=5, newest=5)


def held(rows: list[Row]) -> Tallied:
    tallied = Tallied(RAW, has_several=True)
    sequences, ordinals, emits = (np.array(part, dtype=np.int64) for part in (zip(*rows, strict=True) if rows else ((), (), ())))
    tallied.add(packed(sequences, ordinals), emits.astype(np.uint32))
    return tallied


def account(out: list[Row], table: list[Row], refused: list[Row], confirmed: list[Row]) -> Account:
    nothing = [Tallied(RAW) for _ in range(4)]
    return Account(RAW, held(out), held(confirmed), nothing[0], nothing[1], nothing[2], held(refused), nothing[3], held(table))


def found(faults: Any) -> set[tuple[str, str, int, int]]:
    return {(fault.hop, fault.kind, *unpacked(code)) for fault in faults for code in fault.codes}


def expected(rows: list[Row], ranges: list[tuple[int, int]]) -> ExpectedRows:
    wanted = ExpectedRows(RAW, ranges=ranges)
    wanted.tallied = held(rows)
    return wanted


@pytest.mark.parametrize(
    ("out", "wanted"),
    [
        ([(2, 0, 0), (2, 0, 1), (5, 0, 0)], set()),
        ([(2, 0, 1), (2, 0, 0), (5, 0, 0)], set()),
        ([(2, 0, 0), (5, 0, 0)], {("raw -> out", "missing", 2, 0)}),
        ([(2, 0, 0), (2, 0, 0), (5, 0, 0)], {("raw -> out", "missing", 2, 0)}),
        ([(2, 0, 0), (2, 0, 1), (2, 0, 1), (5, 0, 0)], {("raw -> out", "doubled", 2, 0)}),
        ([(2, 0, 0), (2, 0, 2), (5, 0, 0)], {("raw -> out", "missing", 2, 0)}),
        ([(2, 0, 0), (2, 0, 1), (5, 0, 0), (2, 1, 0)], {("raw -> out", "doubled", 2, 1)}),
    ],
    ids=["as they must be", "in another order", "one lost", "one for another", "one twice", "another number", "none is due"],
)
def test_rows_on_out_are_those_that_are_due(out: list[Row], wanted: set[Any]) -> None:
    due = expected([(2, 0, 0), (2, 0, 1), (5, 0, 0)], [(1, 5)])
    assert found(row_faults(account(out, out, [], out), due, ALL)) == wanted


def test_records_of_which_nothing_is_known_are_not_compared() -> None:
    out = [(2, 0, 0), (5, 0, 0)]
    assert found(row_faults(account(out, out, [], out), expected([(5, 0, 0)], [(5, 5)]), ALL)) == set()


def test_a_record_in_the_table_and_refused_is_no_fault() -> None:
    out = [(2, 0, 0), (2, 0, 1), (2, 1, 0)]
    of_both = account(out, [(2, 0, 0), (2, 1, 0)], [(2, 0, 1)], out)
    assert found([*compare(of_both, ALL), *sink_row_faults(of_both, of_both.table, ALL)]) == {("raw -> out", "missing", 5, 0)}


def test_a_record_enters_again_once_for_each_refused_row() -> None:
    refused = [(2, 0, 0), (2, 0, 1)]
    seen = account(refused, [], refused, refused)
    for times, wanted in ((2, set()), (3, {("dead letters -> raw", "doubled", 2, 0)})):
        entered = Tallied(RAW)
        entered.add(packed(np.array([2] * times), np.array([0] * times)))
        again = Account(**{**vars(seen), "entered": entered})
        assert found(dead_letter_faults([again], ALL)) == wanted


ORACLE = """
    WITH held AS (SELECT s, o, e, count(*) FILTER (place = 'out') AS out, count(*) FILTER (place = 'confirmed') AS confirmed,
                         count(*) FILTER (place IN ('table', 'refused')) AS held FROM spots GROUP BY ALL),
         records AS (SELECT s, o, sum(out) AS out, sum(confirmed) AS confirmed, sum(held) AS held, bool_or(out <> held) AS differs
                     FROM held GROUP BY ALL)
    SELECT 'missing', s, o FROM records WHERE out > 0 AND held <= out AND (held < confirmed OR held = out AND differs)
    UNION ALL SELECT 'doubled', s, o FROM records WHERE out > 0 AND held > out
"""


@settings(deadline=None)
@given(ROWS, ROWS, ROWS, st.integers(0, 8))
def test_the_verdict_on_the_table_is_that_of_sql(out: list[Row], table: list[Row], refused: list[Row], confirmed: int) -> None:
    places = {"out": out, "confirmed": out[:confirmed], "table": table, "refused": refused}
    rows = [{"place": name, "s": s, "o": o, "e": e} for name, spots in places.items() for s, o, e in spots]
    wanted = set()
    if rows:
        spots = pa.Table.from_pylist(rows)
        assert spots.num_rows
        wanted = {("out -> table", *row) for row in duckdb.sql(ORACLE).fetchall()}
    seen = account(out, table, refused, out[:confirmed])
    assert seen.table is not None
    assert found(sink_row_faults(seen, seen.table, ALL)) == wanted
