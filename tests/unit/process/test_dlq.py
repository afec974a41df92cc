"""Dead letters: the rejected records, whole, sorted, and the same on every replay."""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA, dead_letters
from pipelines.protocol.records import MAX_RECORD_BYTES, REJECTED_SCHEMA, cut_frames, empty_rejected, record_bytes, with_positions
from pipelines.testing import FIRST_INSTANT, records

ARRIVAL_US = int(FIRST_INSTANT.timestamp() * 1_000_000)


def stage_input() -> pa.Table:
    """Two frames, at sequences 5 and 9, with arrivals a second apart."""
    one = records(0, [b"a", b"b", b"c"], first=10, keys=[b"k", None, b"k"], headers=[None, [(b"h", b"1"), (b"h", None)], None])
    other = records(3, [b"d", None], first=70, timestamp=FIRST_INSTANT + timedelta(minutes=1))
    return pa.concat_tables(
        [with_positions(one, 5, "orders", ARRIVAL_US), with_positions(other, 9, "orders", ARRIVAL_US + 1_000_000)]
    ).unify_dictionaries()


def rejected(*rows: tuple[int, int, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"_tf_sequence": s, "_tf_ordinal": o, "stage": "parse", "code": code, "field": "f", "message": f"{code} is wrong"}
            for s, o, code in rows
        ],
        schema=REJECTED_SCHEMA,
    )


def test_no_rejected_record_gives_no_letter() -> None:
    found = dead_letters(stage_input(), empty_rejected(), "v1", "events")
    assert found.schema == DEAD_LETTER_SCHEMA
    assert found.num_rows == 0


def test_a_letter_holds_record_coordinates_and_reason() -> None:
    (dead_letter,) = dead_letters(stage_input(), rejected((5, 1, "missing")), "v1", "events").to_pylist()
    assert dead_letter == {
        "key": None,
        "value": b"b",
        "headers": [(b"h", b"1"), (b"h", None)],
        "timestamp": FIRST_INSTANT,
        "oversize": None,
        "_tf_sequence": 5,
        "_tf_ordinal": 1,
        "_tf_topic": "orders",
        "_tf_partition": 0,
        "_tf_offset": 11,
        "_tf_arrival": FIRST_INSTANT,
        "stage": "parse",
        "code": "missing",
        "field": "f",
        "message": "missing is wrong",
        "config_version": "v1",
        "attempts": 1,
        "first_time": FIRST_INSTANT,
        "last_time": FIRST_INSTANT,
        "past_dedup": False,
        "origin": None,
        "sink": None,
        "source": "events",
        "refused_row": None,
    }


def test_letters_are_sorted_by_position_across_stages() -> None:
    found = dead_letters(stage_input(), rejected((9, 1, "z"), (5, 2, "y"), (9, 0, "x"), (5, 0, "w")), "v1", "events")
    assert found.schema == DEAD_LETTER_SCHEMA
    rows = zip(*(found[c].to_pylist() for c in ("_tf_sequence", "_tf_ordinal", "value", "code", "_tf_offset")), strict=True)
    assert list(rows) == [(5, 0, b"a", "w", 10), (5, 2, b"c", "y", 12), (9, 0, b"d", "x", 70), (9, 1, None, "z", 71)]


def test_times_are_arrivals() -> None:
    found = dead_letters(stage_input(), rejected((9, 0, "x")), "v1", "events")
    assert found["first_time"].to_pylist() == found["last_time"].to_pylist() == [FIRST_INSTANT + timedelta(seconds=1)]


@pytest.mark.parametrize("position", [(5, 3), (6, 0), (4, 0), (9, 2), (10, 0)])
def test_a_position_that_was_not_in_the_input_is_an_error(position: tuple[int, int]) -> None:
    with pytest.raises(KeyError, match="not among its input"):
        dead_letters(stage_input(), rejected((5, 0, "x"), (*position, "y")), "v1", "events")


@pytest.mark.parametrize("with_headers", [False, True])
def test_a_letter_of_the_largest_record_fits_a_frame(with_headers: bool) -> None:
    generator = np.random.default_rng(1)
    headers = [(generator.bytes(4), generator.bytes(5)) for _ in range(MAX_RECORD_BYTES // 20)] if with_headers else None
    record = records(0, [b"" if with_headers else generator.bytes(MAX_RECORD_BYTES)], headers=[headers])
    assert record_bytes(record).tolist() == [MAX_RECORD_BYTES]
    reason = rejected((5, 0, "m" * 2000))
    ((_, payload),) = cut_frames(dead_letters(with_positions(record, 5, "orders", ARRIVAL_US), reason, "v1", "events"))
    assert len(payload) > 800_000


def test_an_oversize_record_keeps_its_size_and_digest() -> None:
    oversize = {"bytes": 900_000, "sha256": b"\x01" * 32}
    row = {**records(0, [b"head"]).to_pylist()[0], "oversize": oversize}
    table = with_positions(pa.Table.from_pylist([row], schema=records(0, []).schema), 5, "orders", ARRIVAL_US)
    (dead_letter,) = dead_letters(table, rejected((5, 0, "oversize")), "v1", "events").to_pylist()
    assert dead_letter["oversize"] == oversize


def test_a_replay_gives_the_same_letters() -> None:
    refused = rejected((5, 2, "y"), (9, 1, "z"))
    assert dead_letters(stage_input(), refused, "v1", "events").equals(dead_letters(stage_input(), refused, "v1", "events"))
