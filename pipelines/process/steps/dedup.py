"""The step that drops copies: before the exchange, keys and times (`process.dedup`); after it, the first record of each key passes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.key_store.store import KeyedStore
from pipelines.process.dedup import KEY_COLUMNS, PAST_COLUMN, Deduplicated, dedup, with_keys, with_times
from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, State, Step
from pipelines.process.watermarks import BEFORE_COLUMN, TIME_COLUMN, Clocks, FrameTimes, with_newest_before
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.outcomes import DUPLICATE, REJECTED
from pipelines.protocol.positions import first_rows, in_position_order, rows_of_same
from pipelines.protocol.records import StageOutput, joined


@dataclass(frozen=True)
class Dedup(Step):
    """The dedup step. `key`: its fields. `keeps`: dropped copies are kept in a stream.

    `window_us`, `lateness_us` and `max_ahead_us` are microseconds. `time_field`: the field on which the window is measured, empty for the
    arrival; `time_unit`: s, ms, us or ns, if the field counts since 1970, or the format of its texts.
    """

    name = "dedup"
    stage = "dedup"
    outcomes = (DUPLICATE, REJECTED)
    state = State.PER_BUCKET
    carried = (PAST_COLUMN, *KEY_COLUMNS, TIME_COLUMN)

    key: tuple[str, ...] = ()
    window_us: int = 0
    keeps: bool = False
    time_field: str = ""
    time_unit: str = ""
    lateness_us: int = 0
    max_ahead_us: int = 0

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        microsecond = timedelta(microseconds=1)
        return cls(
            key=config.key,
            window_us=config.time_window // microsecond,
            keeps=config.keep_duplicates,
            time_field=config.time_field or "",
            time_unit=units.get(config.time_field or "", ""),
            lateness_us=config.allowed_lateness // microsecond,
            max_ahead_us=config.max_ahead // microsecond,
        )

    def fields_read(self) -> frozenset[str]:
        return frozenset((*self.key, self.time_field)) - {""}

    def columns_out(self, columns_in: Columns) -> Columns:
        if unknown := sorted(self.fields_read() - columns_in.keys()):
            raise ValueError(f"no field {unknown[0]!r}")
        return columns_in

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        keyed = with_keys(context.engine, rows, self.key)
        if not self.time_field:
            return keyed
        timed = with_times(context.engine, keyed.accepted, self.time_field, self.max_ahead_us, self.time_unit)
        return StageOutput(timed.accepted, pa.concat_tables([keyed.rejected, timed.rejected]))

    def sealed(self, rows: pa.Table) -> pa.Table:
        """Return rows of whole frames as they cross the exchange; with the window on a field, BEFORE_COLUMN is their last column."""
        return with_newest_before(in_position_order(rows)) if self.time_field else rows

    # The part after the exchange.

    def first_of_keys(self, rows: pa.Table, store: KeyedStore, frames: FrameTimes | None) -> tuple[Deduplicated, pa.Table]:
        """Return (rows deduplicated against the bucket's store, the late rows); `rows`: all rows of a range in one bucket, in any order.

        The store is open on the state before the range. `frames`: the times of the whole range, if the window is measured on a field. Rows
        of PAST_COLUMN were accepted at their first pass: they are accepted without a comparison. The rows of a record are accepted, or
        dropped, together; of a late one there is one.
        """
        rows = in_position_order(rows)
        records = first_rows(rows)
        found, late = self._first_of_records(records, store, frames)
        if records.num_rows < rows.num_rows:
            accepted, duplicates = (rows_of_same(rows, part).select(part.column_names) for part in (found.accepted, found.duplicates))
            found = replace(found, accepted=accepted, duplicates=duplicates)
        return found, late

    def _first_of_records(self, rows: pa.Table, store: KeyedStore, frames: FrameTimes | None) -> tuple[Deduplicated, pa.Table]:
        if PAST_COLUMN not in rows.column_names:
            return self._deduplicated(rows, store, frames)
        is_past = pc.fill_null(rows.column(PAST_COLUMN), False)
        past = rows.filter(is_past)
        found, late = self._deduplicated(rows.filter(pc.invert(is_past)).drop_columns([PAST_COLUMN]), store, frames)
        accepted = joined([found.accepted, past.select(found.accepted.column_names)])
        return replace(found, accepted=in_position_order(accepted)), late

    def rejected_late(self, late: pa.Table) -> pa.Table:
        """Return the reasons (`REJECTED_SCHEMA`) of the late rows that `first_of_keys` has returned."""
        rejections = Rejections(self.stage, late.num_rows)
        rejections.note(np.ones(late.num_rows, dtype=bool), "late", self.time_field, f"{self.time_field} lies before the watermark")
        return rejections.split(late, late).rejected

    def _deduplicated(self, rows: pa.Table, store: KeyedStore, frames: FrameTimes | None) -> tuple[Deduplicated, pa.Table]:
        if frames is None:
            times = rows.column("_tf_arrival").cast(pa.int64()).to_numpy()
            return dedup(rows, times, self.window_us, store.find), rows.slice(0, 0)
        times = rows.column(TIME_COLUMN).to_numpy()
        marks = frames.watermarks(rows, self.lateness_us)
        is_late = times < marks
        plain = rows.drop_columns([TIME_COLUMN, BEFORE_COLUMN])
        if not is_late.any():
            return dedup(plain, times, self.window_us, store.find, marks), plain.slice(0, 0)
        kept = plain.filter(pa.array(~is_late))
        deduplicated = dedup(kept, times[~is_late], self.window_us, store.find, marks[~is_late])
        return deduplicated, plain.filter(pa.array(is_late)).drop_columns(list(KEY_COLUMNS))

    def clock_us(self, done: Clocks) -> int:
        """Return the time by which windows end, as of a `done` of the process leg.

        It is the arrival, or the combined watermark, NEVER before the first.
        """
        if not self.time_field:
            return done.clock_us
        newest = done.watermarks.combined_us
        return newest if newest == NEVER else newest - self.lateness_us

    def expired_us(self, done: Clocks) -> int:
        """Return the time up to which, inclusive, store entries have expired."""
        clock = self.clock_us(done)
        return clock if clock == NEVER else clock - self.window_us


STEP = Dedup
NO_DEDUP = Dedup()
"""The step of a program without dedup: no key, no window, no time."""
