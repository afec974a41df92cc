"""The step that joins two sources: before the exchange the key and the fields of each side; after it the join itself (`process.join`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.key_store.keys import kind_of
from pipelines.key_store.storage import Storage
from pipelines.process.dedup import COPY_KEY_COLUMNS, KEY_COLUMNS, with_keys, with_times
from pipelines.process.join.progress import TimedFrames
from pipelines.process.join.rows import Joined, join
from pipelines.process.join.sides import Frames, Side, Windows
from pipelines.process.join.stores import JoinStores
from pipelines.process.join.timed_outcomes import join_by_time
from pipelines.process.join.timed_stores import TimedJoinStores
from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, Rank, State, Step
from pipelines.process.steps.mapping import SINK_COLUMN
from pipelines.process.watermarks import TIME_COLUMN, Clocks
from pipelines.protocol.outcomes import REJECTED, WAITING, Outcome, register
from pipelines.protocol.positions import CAUSE_COLUMNS
from pipelines.protocol.records import POSITION_FIELDS, StageOutput
from pipelines.types.fields import SOURCE_TYPES

UNMATCHED, KEPT = register("unmatched", "unmatched by the join"), register("kept", "kept for the join")
"""The outcomes of a left record without a match, and of a right record."""
IS_RIGHT_COLUMN = "_tf_is_right"
_OF_THE_ENTRY = frozenset({"_tf_sequence", "_tf_ordinal", "_tf_arrival"})
"""Position columns of a left record that its entry holds; the others are stored beside it. The time of an entry may be the record's own."""
_NO_ROWS = pa.schema(
    [*((name, pa.uint64()) for name in KEY_COLUMNS), (IS_RIGHT_COLUMN, pa.bool_()), (TIME_COLUMN, pa.int64()), *POSITION_FIELDS]
)
_SINK_FIELD = pa.field(SINK_COLUMN, pa.string())


class JoinedField(NamedTuple):
    """A field of the joined record, and the field of the source that it is, of a source type."""

    name: str
    of: str
    type: str


@dataclass(frozen=True)
class JoinSide:
    """One side. `fields`: those that a joined record takes of it. `window_us`: how long a record waits for the other side, or is found.

    `time_field`: the field with the record's own time, by which it meets others, empty for the arrival; `time_unit`: as in `Dedup`.
    """

    source: str
    key: tuple[str, ...]
    fields: tuple[JoinedField, ...]
    window_us: int
    time_field: str = ""
    time_unit: str = ""

    @property
    def columns(self) -> pa.Schema:
        """The joined record's columns of this side."""
        return pa.schema([(one.name, SOURCE_TYPES[one.type].arrow) for one in self.fields])


@dataclass(frozen=True)
class SideOfRecords(Step):
    """The end of a source's own steps before a join: a record without a null in its key becomes a row of one side.

    Out: the side's columns under their names in the joined record, the hash of the key, the time, if it is a field, and which side it is.
    The hash of a dedup's key moves to COPY_KEY_COLUMNS. `max_ahead_us`: as `with_times` takes it.
    """

    name: ClassVar[str] = "join side"
    stage: ClassVar[str] = "join"
    outcomes: ClassVar[tuple[Outcome, ...]] = (REJECTED,)

    side: JoinSide
    is_right: bool
    max_ahead_us: int = 0

    def fields_read(self) -> frozenset[str]:
        return frozenset((*self.side.key, *(one.of for one in self.side.fields), self.side.time_field)) - {""}

    def columns_out(self, columns_in: Columns) -> Columns:
        if unknown := sorted(self.fields_read() - columns_in.keys()):
            raise ValueError(f"no field {unknown[0]!r}")
        return {one.name: one.type for one in self.side.fields}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        own = dict(zip(KEY_COLUMNS, COPY_KEY_COLUMNS, strict=True))
        rows = rows.rename_columns([own.get(name, name) for name in rows.column_names])
        keyed = with_keys(context.engine, rows, self.side.key, self.stage)
        accepted, rejected = keyed.accepted, keyed.rejected
        if self.side.time_field:
            timed = with_times(context.engine, accepted, self.side.time_field, self.max_ahead_us, self.side.time_unit, self.stage)
            accepted, rejected = timed.accepted, pa.concat_tables([rejected, timed.rejected])
        columns = {one.name: accepted.column(one.of) for one in self.side.fields}
        columns |= {name: accepted.column(name) for name in accepted.column_names if name.startswith("_tf_")}
        columns[IS_RIGHT_COLUMN] = pa.array(np.full(accepted.num_rows, self.is_right))
        return StageOutput(pa.table(columns), rejected)


@dataclass(frozen=True)
class Join(Step):
    """The join of two sources, the first of the steps of all records. `unmatched`: what becomes of a left record without a match.

    `lateness_us`, `max_ahead_us`: by the records' own times, how far behind the newest time and ahead of its arrival a record may be.
    Raise ValueError for two sides that no record could pass: of one source, without a window, with keys of types that are never equal.
    """

    name = "join"
    stage = "join"
    outcomes = (UNMATCHED, KEPT, WAITING, REJECTED)
    state = State.PER_BUCKET
    rank = Rank.TRANSFORM

    left: JoinSide
    right: JoinSide
    unmatched: Literal["drop", "emit", "dead_letter"]
    lateness_us: int = 0
    max_ahead_us: int = 0

    def __post_init__(self) -> None:
        if self.left.source == self.right.source or min(self.left.window_us, self.right.window_us) <= 0:
            raise ValueError("a join has two sources, each with a window")
        if len(self.left.key) != len(self.right.key) or not self.left.key:
            raise ValueError("the keys of the two sides of a join have as many fields")
        if bool(self.left.time_field) != bool(self.right.time_field):
            raise ValueError("both sides of a join go by their records' own times, or none")

    @classmethod
    def of_sources(cls, config: Any, types: Mapping[str, Columns], units: Mapping[str, Mapping[str, str]]) -> Self:
        """Return the step for the `join` of a sound file.

        `types`: by source, of the fields behind its own transforms; `units`: of those that are times, as `Step.of_file` takes them. Raise
        ValueError for keys of types that are never equal.
        """
        sides = (config.left_source, config.right_source)
        left, right = (_side(side, config.output_fields, types[side.source_id], units[side.source_id]) for side in sides)
        for names in zip(left.key, right.key, strict=True):
            kinds = [types[side.source][name] for side, name in zip((left, right), names, strict=True)]
            if len({kind_of(SOURCE_TYPES[kind].arrow) for kind in kinds}) > 1:
                raise ValueError(f"{names[0]!r} is {kinds[0]} and {names[1]!r} is {kinds[1]}: keys of these types are never equal")
        microsecond = timedelta(microseconds=1)
        bounds = (config.allowed_lateness // microsecond, config.max_ahead // microsecond) if config.time == "event" else (0, 0)
        return cls(left, right, config.unmatched, *bounds)

    @property
    def carried(self) -> tuple[str, ...]:
        return CAUSE_COLUMNS

    def columns_out(self, columns_in: Columns) -> Columns:
        return {one.name: one.type for side in (self.left, self.right) for one in side.fields}

    def of_source(self, source: str) -> SideOfRecords:
        """Return the end of the steps of a source. Raise ValueError for a source of neither side."""
        for side in (self.left, self.right):
            if side.source == source:
                return SideOfRecords(side, side is self.right, self.max_ahead_us)
        raise ValueError(f"the join has no source {source!r}")

    # The part after the exchange.

    @property
    def windows(self) -> Windows:
        return Windows(self.left.window_us, self.right.window_us)

    @property
    def is_timed(self) -> bool:
        """Whether records meet by their own times, not by their arrivals."""
        return bool(self.left.time_field)

    @property
    def kept_us(self) -> int:
        """How long a right record is stored."""
        return self.windows.kept_by_time_us if self.is_timed else self.windows.kept_us

    def clock_us(self, done: Clocks) -> int:
        """Return the time by which windows end, as of a `done` of the process leg.

        It is the arrival, or the watermark, NEVER before the first.
        """
        return done.watermarks.combined_us if self.is_timed else done.clock_us

    def newest_us(self, done: Clocks) -> int:
        """Return the newest time of a record up to a `done` of the process leg; NEVER if there is none."""
        return done.watermarks.newest_us if self.is_timed else done.clock_us

    @cached_property
    def stored(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns that the stores keep: (of the right side, of the left side)."""
        of_entry = _OF_THE_ENTRY - {"_tf_arrival"} if self.is_timed else _OF_THE_ENTRY
        beside = (field for field in POSITION_FIELDS if field.name not in of_entry)
        return self.right.columns, pa.schema([*self.left.columns, *beside, _SINK_FIELD])

    def sides(self, rows: pa.Table | None) -> tuple[Side, Side]:
        """Return (left side, right side) of rows of a range in one bucket, in position order; None for a bucket without rows."""
        if rows is None:
            rows = pa.table([pa.nulls(0, kind) for kind in _NO_ROWS.types], schema=_NO_ROWS)
        is_right, (right, left) = rows.column(IS_RIGHT_COLUMN), self.stored
        for field in (*left, *right):
            # A range may have records of one side only, and none that a sink has refused before.
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        time = TIME_COLUMN if self.is_timed else "_tf_arrival"
        return Side.of(rows.filter(pc.invert(is_right)), left, time), Side.of(rows.filter(is_right), right, time)

    def open_stores(self, right: Storage, left: Storage) -> JoinStores | TimedJoinStores:
        """Return the stores of a bucket; the caller opens their segments."""
        return (TimedJoinStores if self.is_timed else JoinStores)(right, left, self.stored, self.windows)

    def joined(self, rows: pa.Table | None, frames: Frames | TimedFrames, stores: JoinStores | TimedJoinStores) -> Joined:
        """Join rows of a range in one bucket, as `sides` takes them, none of them late, with its stores."""
        left, right = self.sides(rows)
        if isinstance(frames, TimedFrames):
            assert isinstance(stores, TimedJoinStores)
            return join_by_time(left, right, frames, stores)
        assert isinstance(stores, JoinStores)
        return join(left, right, frames, stores)

    def without_late(self, rows: pa.Table, frames: TimedFrames) -> tuple[pa.Table, pa.Table]:
        """Return (the rows that are not late, those that are) of rows of a range; `frames`: all of the range."""
        is_late = frames.is_late(rows.column("_tf_sequence").to_numpy(), rows.column(TIME_COLUMN).to_numpy())
        return (rows, rows.slice(0, 0)) if not is_late.any() else (rows.filter(pa.array(~is_late)), rows.filter(pa.array(is_late)))

    def rejected_late(self, late: pa.Table) -> pa.Table:
        """Return the reasons (`REJECTED_SCHEMA`) of the late rows, in their order."""
        rejections, is_right = Rejections(self.stage, late.num_rows), late.column(IS_RIGHT_COLUMN).to_numpy()
        for side, mine in ((self.left, ~is_right), (self.right, is_right)):
            rejections.note(mine, "late", side.time_field, f"{side.time_field} lies before the watermark of the join")
        return rejections.split(late, late).rejected


def _side(side: Any, outputs: Any, types: Columns, units: Mapping[str, str]) -> JoinSide:
    fields = tuple(JoinedField(one.joined_name, one.name, types[one.name]) for one in outputs if one.source_id == side.source_id)
    time_field = side.time_field or ""
    window_us = side.time_window // timedelta(microseconds=1)
    return JoinSide(side.source_id, tuple(side.key), fields, window_us, time_field, units.get(time_field, ""))


def unmatched(rows: pa.Table, join_step: Join) -> pa.Table:
    """Return the reasons (`REJECTED_SCHEMA`) of left records without a match that become dead letters."""
    rejections = Rejections(join_step.stage, rows.num_rows)
    message = f"no record of {join_step.right.source} has its key ({', '.join(join_step.left.key)}) within the windows of the join"
    rejections.note(np.ones(rows.num_rows, dtype=bool), "unmatched", None, message)
    return rejections.split(rows, rows).rejected


STEP = Join
