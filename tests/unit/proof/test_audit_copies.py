"""Which records are copies of one that stands on out, against a dictionary."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.programs import first_of, program

from pipelines.connectors.duckdb import open_spilling_engine
from pipelines.process.program import Program
from pipelines.process.watermarks import with_newest_before
from pipelines.proof.audit.account import encoded
from pipelines.proof.audit.copies import Copies, config_at
from pipelines.protocol.records import HEADER_PARTITION, Message

WINDOW_US = 10
CONFIG = program([("id", "int")], [], first_of("id", WINDOW_US))
KEEPS = program([("id", "int")], [], first_of("id", WINDOW_US, keeps=True))
BY_FIELD = program([("id", "int")], [], first_of("id", WINDOW_US, time_field="at", lateness_us=3))
Seen = list[tuple[int, int, bool]]
"""(key, time, whether the record stands on out), a frame each."""


def frame(sequence: int) -> Message:
    return Message("tf.p.raw.events.0", sequence, datetime(2026, 1, 1, tzinfo=UTC), b"", {HEADER_PARTITION: "0"})


def verdict(directory: Path, seen: Seen, config: Program, purged_us: int | None = None, portion: int = 3) -> tuple[list[int], list[int]]:
    """(records that are no copy, records that may be one of a purged record), by their numbers from 1."""
    codes = encoded(np.arange(1, len(seen) + 1), np.zeros(len(seen)).astype(np.int64))
    on_out = {int(code): accepted for code, (_, _, accepted) in zip(codes, seen, strict=True)}
    path = directory / "engine.duckdb"
    path.unlink(missing_ok=True)
    with open_spilling_engine(directory) as engine:
        copies = Copies(engine, codes[[not accepted for _, _, accepted in seen]] if seen else codes)
        for start in range(0, len(seen), portion):
            part = seen[start : start + portion]
            rows = {
                "_tf_sequence": pa.array(range(start + 1, start + len(part) + 1), pa.uint64()),
                "_tf_ordinal": pa.array([0] * len(part), pa.uint32()),
                "_tf_arrival": pa.array([time for _, time, _ in part], pa.timestamp("us", tz="UTC")),
                "_tf_time": pa.array([time for _, time, _ in part], pa.int64()),
                "_tf_key_hi": pa.array([0] * len(part), pa.uint64()),
                "_tf_key_lo": pa.array([key for key, _, _ in part], pa.uint64()),
            }
            frames = [frame(start + number) for number in range(1, len(part) + 1)]
            copies.add(
                with_newest_before(pa.table(rows)),
                frames,
                config,
                lambda found: np.array([on_out[int(code)] for code in found], dtype=bool),
            )
        found, may_be = copies.verdict(purged_us)
    return [int(code) >> 20 for code in found], [int(code) >> 20 for code in may_be]


def expected(seen: Seen, lateness_us: int | None) -> list[int]:
    last: dict[int, int] = {}
    newest: int | None = None
    found = []
    for number, (key, time, accepted) in enumerate(seen, 1):
        watermark = None if newest is None or lateness_us is None else newest - lateness_us
        newest = time if newest is None else max(newest, time)
        if accepted:
            last[key] = time
            continue
        is_over = watermark is not None and key in last and last[key] + WINDOW_US <= watermark
        if key not in last or abs(time - last[key]) >= WINDOW_US or is_over:
            found.append(number)
    return found


RECORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=20)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(RECORDS)
def test_a_copy_lies_within_the_window_of_the_last_accepted_record_of_its_key(tmp_path: Path, seen: Seen) -> None:
    seen = [(key, time, accepted) for (key, _, accepted), time in zip(seen, sorted(time for _, time, _ in seen), strict=True)]
    assert verdict(tmp_path, seen, CONFIG) == (expected(seen, None), [])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(RECORDS)
def test_by_the_time_of_the_event_the_watermark_ends_a_window(tmp_path: Path, seen: Seen) -> None:
    assert verdict(tmp_path, seen, BY_FIELD) == (expected(seen, 3), [])


def test_at_exactly_the_window_a_record_is_no_copy(tmp_path: Path) -> None:
    assert verdict(tmp_path, [(1, 0, True), (1, 9, False), (1, 10, False)], CONFIG) == ([3], [])


def test_the_original_may_be_purged_while_a_window_reaches_back_to_it(tmp_path: Path) -> None:
    assert verdict(tmp_path, [(1, 100, False), (2, 109, False), (3, 110, False)], CONFIG, purged_us=100) == ([3], [1, 2])


def test_where_copies_are_kept_a_record_that_is_nowhere_is_none(tmp_path: Path) -> None:
    assert verdict(tmp_path, [(1, 0, True), (1, 1, False)], KEEPS) == ([2], [])


@pytest.mark.parametrize(("sequence", "version"), [(1, "a"), (5, "a"), (6, "b"), (9, "b"), (10, "b")])
def test_a_sequence_has_the_configuration_of_its_range(sequence: int, version: str) -> None:
    assert config_at([(5, "a"), (9, "b")], sequence) == version
