"""The marks of what is dropped behind dedup: which rows get one, and what comes of them."""

import pyarrow as pa

from pipelines.process.drop_marks import MARK_COLUMN, counts_of, marked, parted
from pipelines.protocol.records import joined


def rows(*ordinals: int) -> pa.Table:
    columns = {"_tf_sequence": pa.array([1] * len(ordinals), pa.uint64()), "_tf_ordinal": pa.array(ordinals, pa.uint32())}
    return pa.table({**columns, "name": pa.array([str(ordinal) for ordinal in ordinals], pa.string())})


def test_what_a_step_neither_passes_nor_rejects_is_marked() -> None:
    found = marked(rows(0, 1, 2, 3, 4), rows(1, 4), rows(3), "dropped.filter")
    assert found.to_pylist() == [
        {"_tf_sequence": 1, "_tf_ordinal": 0, MARK_COLUMN: "dropped.filter"},
        {"_tf_sequence": 1, "_tf_ordinal": 2, MARK_COLUMN: "dropped.filter"},
    ]


def test_marks_of_several_steps_are_counted_each_and_together() -> None:
    first, second = marked(rows(0, 1, 2), rows(2), rows(), "dropped.filter"), marked(rows(3, 4), rows(4), rows(), "dropped.function")
    stays, dropped = parted(joined([rows(2, 4), first, second]))
    assert stays.to_pylist() == rows(2, 4).to_pylist()
    assert counts_of(dropped) == {"then_dropped": 3, "dropped.filter": 2, "dropped.function": 1}


def test_rows_without_marks_stay_as_they_are() -> None:
    whole = rows(0, 1)
    stays, dropped = parted(whole)
    assert stays is whole
    assert (dropped.num_rows, counts_of(dropped)) == (0, {})
