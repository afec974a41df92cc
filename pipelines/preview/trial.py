"""Raw frames through the steps of a program, one step at a time, in portions: dedup remembers the portions before.

In: whole frames in their order. Out: the rows of each portion, and what every step made of its records. Kept: the keys, in a directory of
the caller's, and the watermarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore, bucket_with_turn
from pipelines.preview.joined import KEPT, UNMATCHED, WAITING, JoinTrial, sides_of
from pipelines.process.arrivals import Arrived
from pipelines.process.buckets import key_owners, shares
from pipelines.process.dedup import Deduplicated
from pipelines.process.drop_marks import parted
from pipelines.process.frames import frame_times
from pipelines.process.join.progress import TimedFrames
from pipelines.process.program import Program
from pipelines.process.run import records_for
from pipelines.process.side_copies import copies_found_by, without_copies
from pipelines.process.steps import Context, State, Step, pass_through
from pipelines.process.steps.dedup import Dedup
from pipelines.process.watermarks import FrameTimes
from pipelines.protocol.bodies import NOTHING, Watermarks
from pipelines.protocol.positions import in_position_order, position_keys
from pipelines.protocol.records import empty_rejected, joined
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

DUPLICATE, DROPPED = "duplicate", "dropped"
FIRST_OF_KEY = "first of key"
"""The part of dedup behind all other steps."""


class Note(Protocol):
    """Takes what a step made of records: those before it, passed and rejected; `dropped` is the outcome of all others.

    `step`: its place among `step_names`.
    """

    def __call__(self, step: int, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None: ...


def note_nothing(step: int, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None:
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
        self._stores: dict[str, KeyedStore] = {}
        self._join = JoinTrial(program, program.join, directory) if program.join is not None else None
        self._waiting: list[pa.Table] = []
        """Left records that no portion has decided."""

    def read(self, frames: Sequence[Arrived]) -> pa.Table:
        """Return the records of frames, in position order, for `take`."""
        return records_for(self.program, frames)

    def take(self, frames: Sequence[Arrived], raw: pa.Table, note: Note) -> pa.Table:
        """Take the next frames, with their records, through the steps; return their rows, in position order, as the mapping gives them.

        With a join these are the rows that it makes of these and of earlier records, in the order of what made them appear.
        """
        rows = self._joined(self._join, frames, raw, note) if self._join is not None else self._through_steps(raw, note)
        if self.program.dedup.key:
            rows = self._first_of_keys(rows, frames, note)
        self._clocks.clock_us = frames[-1].arrival_us
        return rows

    def _through_steps(self, raw: pa.Table, note: Note) -> pa.Table:
        program, place, lanes = self.program, 0, []
        context = program.context(self._engine)
        for lane, records in zip(program.lanes, program.by_lane(raw), strict=True):
            lanes.append(self._through(lane.steps, place, context, records, note))
            place += len(lane.steps)
        return program.dedup.sealed(self._through(program.shared, place, context, program.united(lanes), note))

    def _joined(self, join_trial: JoinTrial, frames: Sequence[Arrived], raw: pa.Table, note: Note) -> pa.Table:
        program, place, lanes = self.program, sum(len(lane.steps) for lane in self.program.lanes), []
        context, at = program.context(self._engine), 0
        for lane, records in zip(program.lanes, program.by_lane(raw), strict=True):
            found = self._through(lane.steps, at, context, records, note)
            at += len(lane.steps)
            side = pass_through([(join_trial.step.of_source(lane.source), frozenset())], context, found, open_engine)
            _note_rejected(note, place, found, side.rejected)
            lanes.append(side.accepted)
        rows = self._without_copies(in_position_order(joined(lanes)), frames, note)
        of_range = join_trial.frames(frames, rows, self._clocks)
        if isinstance(of_range, TimedFrames):
            self._clocks.watermarks = of_range.last.stored
            rows, late = join_trial.step.without_late(rows, of_range)
            note(place, late, late.slice(0, 0), join_trial.step.rejected_late(late), DROPPED)
        left, right = sides_of(rows)
        note(place, right, right.slice(0, 0), empty_rejected(), KEPT)
        decided, rejected = join_trial.take(of_range, rows)
        self._note_waiting(left, decided)
        if not decided.num_rows:
            return self._through(program.shared[1:], place + 1, context, join_trial.none(self._clocks), note_nothing)
        passed = join_trial.passed(decided)
        note(place, decided, passed, rejected, UNMATCHED)
        return self._through(program.shared[1:], place + 1, context, passed, note)

    def _without_copies(self, rows: pa.Table, frames: Sequence[Arrived], note: Note) -> pa.Table:
        """Return the rows of both sides of a join without the copies of each, which are noted."""

        def first_of_keys(place: str, step: Dedup, keys: pa.Table) -> Deduplicated:
            return self._first(step, place, int(place.rpartition("/")[2]), keys, frames, None)[0]

        copies = copies_found_by(first_of_keys, rows, self.program, self.program.buckets)
        if len(copies):
            dropped = rows.filter(pa.array(np.isin(position_keys(rows), copies)))
            note(len(self.program.steps), dropped, dropped.slice(0, 0), empty_rejected(), DUPLICATE)
        return without_copies(rows, copies)

    def _first(
        self, step: Dedup, place: str, bucket: int, rows: pa.Table, frames: Sequence[Arrived], times: FrameTimes | None
    ) -> tuple[Deduplicated, pa.Table]:
        """Return what `Dedup.first_of_keys` makes of rows of a bucket, whose keys are remembered in `place`."""
        store = self._stores.setdefault(place, KeyedStore(Storage.local(self._directory / place)))
        found, late = step.first_of_keys(rows, store, times)
        span = (frames[0].message.sequence - 1, frames[-1].message.sequence)
        has_turn = bucket_with_turn(span[1], self.program.buckets) == bucket
        store.open(store.add(found.entries, span, step.expired_us(self._clocks), has_turn))
        return found, late

    def _note_waiting(self, left: pa.Table, decided: pa.Table) -> None:
        if decided.num_rows:
            self._waiting = [
                rows.filter(pa.array(~np.isin(position_keys(rows), position_keys(decided)))) for rows in (*self._waiting, left)
            ]
        else:
            self._waiting.append(left)

    def finish(self, note: Note) -> None:
        """Note the left records of a join that still wait, behind the last frame."""
        for rows in self._waiting:
            note(sum(len(lane.steps) for lane in self.program.lanes), rows, rows.slice(0, 0), empty_rejected(), WAITING)

    def _through(self, steps: Sequence[Step], place: int, context: Context, rows: pa.Table, note: Note) -> pa.Table:
        """Take rows through steps, of which the first has this place; return them with those that are dropped behind dedup."""
        later: list[pa.Table] = []
        is_behind = False
        for number, step in enumerate(steps, start=place):
            # Each field stays to be seen; the steps do not mind.
            found = pass_through([(step, frozenset())], context, rows, open_engine, is_behind)
            note(number, rows, found.accepted, found.rejected, DROPPED)
            rows = found.accepted
            later += found.marked
            is_behind |= step.state is State.PER_BUCKET
        return joined([rows, *later]) if later else rows

    def _first_of_keys(self, rows: pa.Table, frames: Sequence[Arrived], note: Note) -> pa.Table:
        times = frame_times(rows, frames, self._clocks.watermarks, self.program)
        accepted = []
        for bucket, share in shares(rows, key_owners(rows, self.program.buckets)):
            accepted.append(self._of_bucket(bucket, share, frames, times, note))
        if times is not None:
            self._clocks.watermarks = times.last
        return in_position_order(joined(accepted)) if accepted else rows.slice(0, 0)

    def _of_bucket(self, bucket: int, share: pa.Table, frames: Sequence[Arrived], times: FrameTimes | None, note: Note) -> pa.Table:
        dedup = self.program.dedup
        found, late = self._first(dedup, str(bucket), bucket, share, frames, times)
        accepted, dropped = parted(found.accepted)
        # What a step behind dedup has dropped keeps that end, unless it is a copy, or late.
        others = share.filter(pa.array(~np.isin(position_keys(share), position_keys(dropped)))) if dropped.num_rows else share
        note(len(self.program.steps), others, accepted, dedup.rejected_late(late), DUPLICATE)
        return accepted


def _note_rejected(note: Note, place: int, rows: pa.Table, rejected: pa.Table) -> None:
    before = rows.filter(pa.array(np.isin(position_keys(rows), position_keys(rejected))))
    note(place, before, before.slice(0, 0), rejected, DROPPED)


def step_names(program: Program) -> tuple[str, ...]:
    """Return the names of the steps of a trial, in their order; of several sources each has steps of its own. A name may repeat."""
    is_only = len(program.lanes) == 1
    own = (step.name if is_only else f"{lane.source}: {step.name}" for lane in program.lanes for step in lane.steps)
    return (*own, *(step.name for step in program.shared), *([FIRST_OF_KEY] if program.dedup.key or program.side_dedups else []))
