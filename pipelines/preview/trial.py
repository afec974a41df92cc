"""Raw frames through the steps of a program, one step at a time, in portions: dedup remembers the portions before.

In: whole frames in their order. Out: the rows of each portion, and what every step made of its records. Kept: the keys, in a directory of
the caller's, and the watermarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore, bucket_with_turn
from pipelines.process.arrivals import Arrived, records_of
from pipelines.process.buckets import key_owners, shares
from pipelines.process.frames import frame_times
from pipelines.process.parse.columns import widest_bytes
from pipelines.process.program import Program
from pipelines.process.steps import Context, pass_through
from pipelines.process.watermarks import FrameTimes
from pipelines.protocol.bodies import NOTHING, Watermarks
from pipelines.protocol.positions import in_position_order
from pipelines.protocol.records import joined
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

DUPLICATE, DROPPED = "duplicate", "dropped"
FIRST_OF_KEY = "first of key"
"""The part of dedup behind all other steps."""


class Note(Protocol):
    """Takes what a step made of records: those before it, passed and rejected; `dropped` is the outcome of all others."""

    def __call__(self, step: str, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None: ...


def note_nothing(step: str, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None:
    """Note nothing, for frames that are only to be remembered."""


@dataclass
class _Clocks:
    """The progress of time before a portion (`watermarks.Clocks`)."""

    clock_us: int
    watermarks: Watermarks


class Trial:
    """One program over frames; nothing is written but the keys, below `directory`. `watermarks`: those before the first frame."""

    def __init__(self, program: Program, engine: Engine, directory: Path, watermarks: Watermarks = NOTHING) -> None:
        self.program, self._engine, self._directory = program, engine, directory
        self._clocks = _Clocks(0, watermarks)
        self._stores: dict[int, KeyedStore] = {}

    def take(self, frames: Sequence[Arrived], note: Note) -> pa.Table:
        """Take the next frames through the steps; return their rows, in position order, as the mapping gives them."""
        raw = joined([records_of(frame.message, frame.arrival_us) for frame in frames])
        rows = self._through_steps(raw, note)
        if self.program.dedup.key:
            rows = self._first_of_keys(rows, frames, note)
        self._clocks.clock_us = frames[-1].arrival_us
        return rows

    def _through_steps(self, raw: pa.Table, note: Note) -> pa.Table:
        program, rows = self.program, raw
        widest = widest_bytes(raw, program.parse.columns)
        for step, _ in program.path:
            # Each field stays to be seen; the steps do not mind.
            found = pass_through([(step, frozenset())], Context(self._engine, program.carried, widest), rows, open_engine)
            note(step.name, rows, found.accepted, found.rejected, DROPPED)
            rows = found.accepted
        return program.dedup.sealed(rows)

    def _first_of_keys(self, rows: pa.Table, frames: Sequence[Arrived], note: Note) -> pa.Table:
        times = frame_times(rows, frames, self._clocks.watermarks, self.program)
        span = (frames[0].message.sequence - 1, frames[-1].message.sequence)
        accepted = []
        for bucket, share in shares(rows, key_owners(rows, self.program.buckets)):
            accepted.append(self._of_bucket(bucket, share, span, times, note))
        if times is not None:
            self._clocks.watermarks = times.last
        return in_position_order(joined(accepted)) if accepted else rows.slice(0, 0)

    def _of_bucket(self, bucket: int, share: pa.Table, span: tuple[int, int], times: FrameTimes | None, note: Note) -> pa.Table:
        dedup = self.program.dedup
        store = self._stores.setdefault(bucket, KeyedStore(Storage.local(self._directory / str(bucket))))
        found, late = dedup.first_of_keys(share, store, times)
        note(FIRST_OF_KEY, share, found.accepted, dedup.rejected_late(late), DUPLICATE)
        has_turn = bucket_with_turn(span[1], self.program.buckets) == bucket
        store.open(store.add(found.entries, span, dedup.expired_us(self._clocks), has_turn))
        return found.accepted


def step_names(program: Program) -> tuple[str, ...]:
    """Return the names under which a trial notes, in the order of the steps; a name may repeat."""
    return (*(step.name for step in program.steps), *([FIRST_OF_KEY] if program.dedup.key else []))
