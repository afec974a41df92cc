"""Which records must have a row, by the statements of sql/reference: literal records, and a dictionary as the oracle of dedup."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database
from support.verification_case import COLUMNS, CONFIG, KEYED, SECOND, TIMED, of
from support.watermark_oracle import marks

from pipelines.process import watermarks
from pipelines.process.computed import stored
from pipelines.process.program import Program
from pipelines.process.steps.compute import Compute, Output
from pipelines.process.steps.dedup import Dedup
from pipelines.proof.verification import reference as verification_reference
from pipelines.proof.verification.reference import FRAME_SCHEMA, Bounds, Reference, compared_columns
from pipelines.protocol.bodies import Watermarks
from pipelines.types.duckdb import open_spilling_engine

ALL = Bounds(0, 2**63)
MANY = (*COLUMNS, ("many", "many", "String", False))


@pytest.fixture
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with fresh_database() as one:
        yield one


def at(sequence: int, ordinal: int = 0) -> int:
    return sequence << 20 | ordinal


def frame(
    sequence: int, *values: bytes | None, arrival_us: int = 0, is_oversize: Sequence[int] = (), is_past: Sequence[int] = ()
) -> pa.RecordBatch:
    rows = len(values)
    columns = [
        pa.array([at(sequence, ordinal) for ordinal in range(rows)], pa.uint64()),
        pa.array([0] * rows, pa.int32()),
        pa.array(range(rows), pa.int64()),
        pa.array([arrival_us] * rows, pa.int64()),
        pa.array(values, pa.binary()),
        *(pa.nulls(rows, FRAME_SCHEMA.field(name).type) for name in ("key", "headers", "timestamp_us")),
        pa.array([ordinal in is_oversize for ordinal in range(rows)]),
        pa.array([ordinal in is_past for ordinal in range(rows)]),
        pa.nulls(rows, pa.string()),
        pa.nulls(rows, pa.uint32()),
        pa.repeat("orders", rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


def good(key: int | None = 1, event_seconds: int | None = None) -> bytes:
    reported = {None: "null"}
    return b'{"id": %s, "a.b": "x", "at": %s}' % tuple(reported.get(one, str(one)).encode() for one in (key, event_seconds))


def computed(
    engine: duckdb.DuckDBPyConnection,
    frames: Sequence[pa.RecordBatch],
    config: Program,
    bounds: Bounds = ALL,
    partitions: Sequence[int | None] | None = None,
) -> Reference:
    """Frames of sequences from 1 on, of partition 0 unless `partitions` tells."""
    reference = Reference(engine, compared_columns(config))
    reference.load(iter(frames), config)
    reference.add_frames(dict(enumerate([0] * len(frames) if partitions is None else partitions, 1)))
    reference.evaluate(config, bounds)
    return reference


def stages(engine: duckdb.DuckDBPyConnection) -> list[str | None]:
    return [stage for (stage,) in engine.execute("SELECT stage FROM parsed ORDER BY position").fetchall()]


def rows(engine: duckdb.DuckDBPyConnection) -> list[int]:
    return [position for (position,) in engine.execute("SELECT position FROM expected ORDER BY position").fetchall()]


# -- parse ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "stage"),
    [
        (b'{"id": 1, "a.b": "x", "other": 1e400}', None),
        (b'{"id": 1, "a": {"b": "x"}}', None),
        (b'{"id": 1, "a.b": null, "a": {"b": "x"}}', None),
        (b'{"a.b": "x"}', None),
        (b'{"id": 1, "a": 5}', "transform"),
        (b'{"id": 1, "a.b": null}', "transform"),
        (b'{"id": 1, "a.b": 5, "a": {"b": "x"}}', "parse"),
        (b'{"id": "1", "a.b": "x"}', "parse"),
        (b'{"id": 1, "a.b": "x", "id": 1}', "parse"),
        (b'{"id": 1, "a": {"b": "x", "b": "x"}}', "parse"),
        (b'{"id": 1, "a.b": "x", "other": {"c": 1, "c": 1}}', None),
        (b"[1]", "parse"),
        (b"null", "parse"),
        (b'{"id": 1, ', "parse"),
        (b"", "parse"),
        (b'{"id": 1, "a.b": "\xff"}', "parse"),
        (None, "parse"),
    ],
)
def test_a_record_is_rejected_by_the_first_stage_that_cannot(
    engine: duckdb.DuckDBPyConnection, value: bytes | None, stage: str | None
) -> None:
    computed(engine, [frame(1, value, good())], CONFIG)
    assert stages(engine) == [stage, None]


def test_of_two_names_the_literal_one_is_read(engine: duckdb.DuckDBPyConnection) -> None:
    computed(engine, [frame(1, b'{"a.b": "x", "a": {"b": "y"}}', b'{"a.b": null, "a": {"b": "y"}}')], CONFIG)
    assert engine.execute("SELECT v1 FROM expected ORDER BY position").fetchall() == [(b"x",), (b"y",)]


def test_the_head_of_a_record_that_was_too_large_is_rejected(engine: duckdb.DuckDBPyConnection) -> None:
    computed(engine, [frame(1, good(), good(), is_oversize=[1])], CONFIG)
    assert stages(engine) == [None, "parse"]


def test_a_poison_record_is_expected_as_a_letter_of_its_stage(engine: duckdb.DuckDBPyConnection) -> None:
    reference = Reference(engine, compared_columns(CONFIG))
    reference.add_dead_letters(
        pa.table({"position": pa.array([at(1, 1)], pa.uint64()), "emit": [0], "stage": ["transform"], "code": ["internal_error"]})
    )
    reference.load(iter([frame(1, good(), good(), good())]), CONFIG)
    reference.evaluate(CONFIG, ALL)
    assert stages(engine) == [None, "transform", None]
    assert rows(engine) == [at(1, 0), at(1, 2)]


WIDENED = Compute((Output("many", stored('repeat("a.b", 10000)', {"a.b": "string"}, "sql", None)),), True)
WIDE = b'{"id": 2, "a.b": "%s", "at": 1}' % (b"x" * 15_000)


def test_a_record_of_too_much_memory_is_not_computed_again(tmp_path: Path) -> None:
    program = of(WIDENED, Dedup(("id",), 10 * SECOND), columns=MANY)
    with open_spilling_engine(tmp_path, "100MiB") as engine:
        reference = Reference(engine, compared_columns(program))
        reference.add_dead_letters(
            pa.table({"position": pa.array([at(1, 1)], pa.uint64()), "stage": ["compute"], "code": ["internal_error"]})
        )
        reference.load(iter([frame(1, good(), WIDE, good(2), b"{")]), program)
        reference.evaluate(program, ALL)
        assert stages(engine) == [None, "compute", None, "parse"]
        assert rows(engine) == [at(1, 0), at(1, 2)]
        assert engine.execute("SELECT octet_length(v2) FROM expected").fetchall() == [(10_000,)] * 2


def test_without_its_letter_such_a_record_fails_all(tmp_path: Path) -> None:
    program = of(WIDENED, columns=MANY)
    with open_spilling_engine(tmp_path, "100MiB") as engine, pytest.raises(duckdb.OutOfMemoryException):
        Reference(engine, compared_columns(program)).load(iter([frame(1, WIDE)]), program)


def test_a_record_that_fitted_no_frame_is_not_first_of_its_key(engine: duckdb.DuckDBPyConnection) -> None:
    reference = Reference(engine, compared_columns(KEYED))
    letter = {"position": pa.array([at(1)], pa.uint64()), "stage": ["transform"], "code": ["row_too_large"]}
    reference.add_dead_letters(pa.table(letter))
    large = b'{"id": 1, "a.b": "%s", "at": 1}' % (b"x" * 900_000)
    reference.load(iter([frame(1, large, good(1), good(1))]), KEYED)
    reference.evaluate(KEYED, ALL)
    assert rows(engine) == [at(1, 1)]


def test_a_key_twice_is_seen_behind_any_number_of_sound_records(engine: duckdb.DuckDBPyConnection) -> None:
    """Lists of keys that a sample has proven are not looked through again."""
    twice = b'{"id": 1, "a.b": "x", "at": null, "id": 1}'
    computed(engine, [frame(1, *[good()] * 50), frame(2, good(), twice)], CONFIG)
    assert stages(engine) == [None] * 51 + ["parse"]
    with fresh_database() as other:
        computed(other, [frame(1, twice), frame(2, good(), twice)], CONFIG)
        assert stages(other) == ["parse", None, "parse"]


def test_a_null_in_a_column_with_a_default_has_no_known_value(engine: duckdb.DuckDBPyConnection) -> None:
    config = of(columns=(("id", "id", "Int64", True), ("a.b", "tags", "String", False)))
    computed(engine, [frame(1, b'{"a.b": "x"}')], config)
    assert engine.execute("SELECT v0, v1 FROM expected").fetchall() == [(None, b"x")]


def test_a_null_key_or_time_is_rejected_before_the_columns(engine: duckdb.DuckDBPyConnection) -> None:
    values = [good(None, 5), good(1, None), b'{"id": 1, "at": 5}', good(1, 99_999_999_999), good(1, 5)]
    computed(engine, [frame(1, *values)], TIMED)
    assert stages(engine) == ["dedup", "dedup", "transform", "dedup", None]


def test_rows_that_clickhouse_refused_are_not_expected(engine: duckdb.DuckDBPyConnection) -> None:
    reference = Reference(engine, compared_columns(CONFIG))
    reference.load(iter([frame(1, good(), good())]), CONFIG)
    reference.add_dead_letters(
        pa.table({"position": pa.array([at(1, 1)], pa.uint64()), "emit": [0], "stage": ["sink"], "code": ["refused"]})
    )
    reference.evaluate(CONFIG, ALL)
    assert rows(engine) == [at(1)]


# -- copies ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap_us", "is_copy"), [(0, True), (10 * SECOND - 1, True), (10 * SECOND, False), (10 * SECOND + 1, False)])
def test_at_exactly_the_window_a_record_is_no_copy(engine: duckdb.DuckDBPyConnection, gap_us: int, is_copy: bool) -> None:
    computed(engine, [frame(1, good()), frame(2, good(), arrival_us=gap_us)], KEYED)
    assert rows(engine) == ([at(1)] if is_copy else [at(1), at(2)])


def test_a_copy_does_not_prolong_the_window(engine: duckdb.DuckDBPyConnection) -> None:
    frames = [frame(one, good(), arrival_us=6 * SECOND * one) for one in range(1, 6)]
    computed(engine, frames, KEYED)
    assert rows(engine) == [at(1), at(3), at(5)]


def test_what_is_rejected_is_no_original(engine: duckdb.DuckDBPyConnection) -> None:
    computed(engine, [frame(1, b'{"id": 1}', good(), good())], KEYED)
    assert rows(engine) == [at(1, 1)]


def test_a_record_past_dedup_is_neither_copy_nor_original(engine: duckdb.DuckDBPyConnection) -> None:
    computed(engine, [frame(1, good(1), good(1), good(2), good(2), is_past=[1, 2])], KEYED)
    assert rows(engine) == [at(1), at(1, 1), at(1, 2), at(1, 3)]


def test_a_key_of_two_fields_says_where_each_ends(engine: duckdb.DuckDBPyConnection) -> None:
    config = of(Dedup(("id", "a.b"), 10 * SECOND))
    values = [b'{"id": 1, "a.b": "1:x"}', b'{"id": 11, "a.b": ":x"}', b'{"id": 1, "a.b": "1:x"}']
    computed(engine, [frame(1, *values)], config)
    assert rows(engine) == [at(1), at(1, 1)]


def test_what_was_accepted_before_the_range_is_told(engine: duckdb.DuckDBPyConnection) -> None:
    """Key 1 was accepted in frame 2 and not in frame 1, which the frames alone do not tell."""
    reference = Reference(engine, compared_columns(KEYED))
    times = {1: 0, 2: 5, 3: 12, 4: 15}
    reference.load(iter([frame(one, good(1), good(one), arrival_us=seconds * SECOND) for one, seconds in times.items()]), KEYED)
    reference.add_accepted_before(pa.table({"position": pa.array([at(2), at(2, 1)], pa.uint64())}))
    reference.evaluate(KEYED, Bounds(at(3), at(5) - 1, first_replayed=at(3)))
    assert rows(engine) == [at(3, 1), at(4), at(4, 1)]


def test_a_record_before_the_judged_ones_without_a_row_is_unsure(engine: duckdb.DuckDBPyConnection) -> None:
    reference = Reference(engine, compared_columns(KEYED))
    reference.load(iter([frame(1, good(1), good(2)), frame(2, good(1), arrival_us=SECOND)]), KEYED)
    reference.add_accepted_before(pa.table({"position": pa.array([at(1)], pa.uint64())}))
    reference.evaluate(KEYED, Bounds(at(1), at(3) - 1, first_replayed=at(2)))
    assert rows(engine) == [at(1)]
    assert engine.execute("SELECT position, why FROM dropped ORDER BY position").fetchall() == [(at(1, 1), "unsure"), (at(2), "copy")]


def test_a_record_older_than_its_partitions_newest_is_late(engine: duckdb.DuckDBPyConnection) -> None:
    """Lateness 3 s: behind 100 s, 97 s is in time and 96 s is late, in the same frame or in another; other partitions do not matter."""
    frames = [frame(1, good(1, 100), good(2, 96)), frame(2, good(3, 96), good(4, 97)), frame(3, good(5, 87))]
    computed(engine, frames, TIMED, partitions=[0, 0, 1])
    assert stages(engine) == [None, "dedup", "dedup", None, None]


def test_the_watermarks_before_all_that_is_read_count(engine: duckdb.DuckDBPyConnection) -> None:
    before = Watermarks(80 * SECOND, 100 * SECOND, 2, {0: (100 * SECOND, 2), 1: (80 * SECOND, 1)})
    frames = [frame(1, good(1, 96), good(2, 97)), frame(2, good(3, 77)), frame(3, good(4, 76))]
    computed(engine, frames, TIMED, Bounds(0, 2**63, before=before), [0, 1, None])
    assert stages(engine) == ["dedup", None, None, "dedup"]


def test_a_time_too_far_ahead_of_its_arrival_is_rejected(engine: duckdb.DuckDBPyConnection) -> None:
    computed(engine, [frame(1, good(1, 3_600), good(2, 3_601), good(3, 3_600))], TIMED)
    assert stages(engine) == [None, "dedup", None]


# -- against a dictionary -------------------------------------------------------------------------------------------------------------


Record = tuple[int, int, int]
Partitions = list[int | None]


def by_dictionary(
    frames: Sequence[Sequence[Record]], config: Program, partitions: Sequence[int | None] = ()
) -> tuple[list[int], list[int]]:
    """(accepted, late) positions of frames of (arrival, key, event time in seconds): record after record."""
    accepted_at: dict[int, int] = {}
    accepted, late = [], []
    timed = [(partition, [event * SECOND for _, _, event in records]) for partition, records in zip(partitions, frames, strict=False)]
    known = marks(timed, config.dedup.window_us, watermarks.IDLE_RECORDS) if config.dedup.time_field else []
    for number, records in enumerate(frames):
        for ordinal, (arrival_us, key, event) in enumerate(records):
            position, mark = at(number + 1, ordinal), known[number][ordinal] if known else None
            time_us = event * SECOND if config.dedup.time_field else arrival_us
            if mark is not None and time_us < mark - config.dedup.lateness_us:
                late.append(position)
            elif key not in accepted_at or abs(time_us - accepted_at[key]) >= config.dedup.window_us:
                accepted_at[key] = time_us
                accepted.append(position)
    return accepted, late


@st.composite
def streams(draw: st.DrawFn) -> list[list[Record]]:
    """Frames of (arrival, key, event time in seconds): arrivals ascend, keys are few, event times go up and down."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=12))
    arrival_us, frames = 0, []
    for size in sizes:
        arrival_us += draw(st.sampled_from([0, 1, 3 * SECOND, 5 * SECOND, 10 * SECOND - 1, 10 * SECOND, 25 * SECOND]))
        one = st.tuples(st.just(arrival_us), st.integers(1, 4), st.integers(1_000, 1_040))
        frames.append(draw(st.lists(one, min_size=size, max_size=size)))
    return frames


def as_batches(frames: Sequence[Sequence[Record]]) -> list[pa.RecordBatch]:
    return [
        frame(sequence, *(good(key, event) for _, key, event in records), arrival_us=records[0][0])
        for sequence, records in enumerate(frames, 1)
    ]


@pytest.mark.parametrize("config", [KEYED, TIMED], ids=["arrival", "event"])
@settings(max_examples=15, deadline=None)
@given(frames=streams(), partitions=st.lists(st.sampled_from([0, 0, 1, 2, None]), min_size=12, max_size=12))
def test_copies_are_those_of_a_dictionary(config: Program, frames: list[Any], partitions: Partitions) -> None:
    partitions = partitions[: len(frames)]
    with fresh_database() as engine, pytest.MonkeyPatch.context() as patch:
        for module in (watermarks, verification_reference):
            patch.setattr(module, "IDLE_RECORDS", 6)
        accepted, late = by_dictionary(frames, config, partitions)
        computed(engine, as_batches(frames), config, partitions=partitions)
        assert rows(engine) == accepted
        rejected = engine.execute("SELECT position FROM parsed WHERE stage IS NOT NULL ORDER BY position").fetchall()
        assert [position for (position,) in rejected] == late


@settings(max_examples=15, deadline=None)
@given(frames=streams(), share=st.floats(0, 1))
def test_a_range_finds_what_the_whole_finds(frames: list[Any], share: float) -> None:
    """Read from one window before the range on, with what the table has there."""
    first = 1 + int(share * (len(frames) - 1))
    accepted, _ = by_dictionary(frames, KEYED)
    arrivals = [records[0][0] for records in frames]
    read_from = 1 + int(np.searchsorted(arrivals, arrivals[first - 1] - KEYED.dedup.window_us, side="right"))
    with fresh_database() as engine:
        reference = Reference(engine, compared_columns(KEYED))
        reference.load(iter(as_batches(frames)[read_from - 1 :]), KEYED)
        before = [position for position in accepted if at(read_from) <= position < at(first)]
        reference.add_accepted_before(pa.table({"position": pa.array(before, pa.uint64())}))
        reference.evaluate(KEYED, Bounds(at(first), 2**63, first_replayed=at(first)))
        assert rows(engine) == [position for position in accepted if position >= at(first)]
