"""Decides, for all left records of a range at once, which right record each has met, and what made that known.

The cause of a row is the left record itself if a right one was there, the right record that released it, or the end of its window, before
the first frame f that arrived then or later: the cause is (f - 1, last ordinal), behind all records of the frame before. Rows of one cause
are numbered by the position of their left record.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.key_store.index import Rows, Words
from pipelines.key_store.payload import NO_ROW
from pipelines.key_store.segments import by_hash
from pipelines.key_store.store import Found
from pipelines.process.join.sides import Frames, Side, before
from pipelines.process.join.stores import Candidates, JoinStores, is_consumed
from pipelines.process.watermarks import Times
from pipelines.protocol.positions import ORDINAL_BITS, RawPositions, packed
from pipelines.types.vectors import Mask

LAST_ORDINAL = (1 << ORDINAL_BITS) - 1
OWN = -2
"""Source of a row that came with the range; a stored one has the number of its segment."""


@dataclass(frozen=True)
class Outcomes:
    """The left records that a range decides, by cause and then by position, and what of the range the stores take.

    `left_run`, `right_run`: the number of the segment that holds the record, OWN for one of the range, NO_ROW for no right record; the rows
    there. `waiting`: rows of the left side that wait; `newest`: rows of the right side that are the last of their key, by hash.
    """

    positions: RawPositions
    times_us: Times
    left_run: Rows
    left_row: Rows
    right_run: Rows
    right_row: Rows
    right_positions: RawPositions
    cause: RawPositions
    cause_emit: npt.NDArray[np.uint32]
    waiting: Rows
    newest: Rows
    replaced: int

    @property
    def is_joined(self) -> Mask:
        is_joined: Mask = self.right_run != NO_ROW
        return is_joined


@dataclass(frozen=True)
class _Sorted:
    """Stored left records, left ones and right ones of the range by key and position, and the borders of the keys.

    `origin`: the place of each among the stored, then the left, then the right ones.
    """

    origin: Rows
    positions: RawPositions
    times_us: Times
    is_right: Mask
    key: Rows
    first: Rows
    end: Rows
    hi: Words
    lo: Words

    @classmethod
    def of(cls, stored: Candidates, lefts: Side, rights: Side) -> "_Sorted":
        sides = (stored, lefts, rights)
        hi, lo, positions, times_us = (
            np.concatenate([getattr(side, name) for side in sides]) for name in ("hi", "lo", "positions", "times_us")
        )
        in_order = np.argsort(positions, kind="stable")
        order = in_order[by_hash(hi[in_order], lo[in_order])]
        hi, lo = hi[order], lo[order]
        is_first = np.ones(len(order), dtype=bool)
        is_first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
        (first,) = is_first.nonzero()
        is_right = order >= len(stored) + len(lefts)
        end = np.append(first[1:], len(order))[: len(first)]
        return cls(order, positions[order], times_us[order], is_right, np.cumsum(is_first) - 1, first, end, hi[is_first], lo[is_first])

    def right_before(self) -> Rows:
        """Return the place of the newest right record of the range before each one of its key, itself included; NO_ROW for none."""
        places = np.where(self.is_right, np.arange(len(self.origin)), NO_ROW)
        newest = np.maximum.accumulate(places) if len(places) else places
        return np.where(newest >= self.first[self.key], newest, NO_ROW)

    def right_after(self) -> Rows:
        """Return the place of the first right record of the range at or behind each one of its key; NO_ROW for none."""
        count = len(self.origin)
        places = np.where(self.is_right, np.arange(count), count)
        following = np.minimum.accumulate(places[::-1])[::-1] if count else places
        return np.where(following < self.end[self.key], following, NO_ROW)


def released_in_time(left_us: Times, right_us: Times, window_us: int) -> Mask:
    """Return which waiting left records are still there when their next right one arrives."""
    return right_us < left_us + window_us


def decide(lefts: Side, rights: Side, frames: Frames, stores: JoinStores) -> Outcomes:
    """Decide the left records of a range and the stored ones. The stores are open on the state before the range."""
    windows = stores.windows
    ended_us = before(frames.end_us, windows.left_us)
    keys = by_hash(rights.hi, rights.lo)
    is_one = np.ones(len(keys), dtype=bool)
    is_one[1:] = (rights.hi[keys[1:]] != rights.hi[keys[:-1]]) | (rights.lo[keys[1:]] != rights.lo[keys[:-1]])
    keys = keys[is_one]
    stored = stores.candidates((rights.hi[keys], rights.lo[keys]), before(frames.clock_us, windows.left_us), ended_us)
    every = _Sorted.of(stored, lefts, rights)
    known = stores.rights.find(every.hi, every.lo)
    return _Decision(stored, lefts, rights, frames, stores, every, known).outcomes(ended_us)


@dataclass(frozen=True)
class _Decision:
    stored: Candidates
    lefts: Side
    rights: Side
    frames: Frames
    stores: JoinStores
    every: _Sorted
    known: Found

    def outcomes(self, ended_us: int) -> Outcomes:
        every, known, windows = self.every, self.known, self.stores.windows
        (at,) = (~every.is_right).nonzero()
        key, arrived_us, earlier, later = every.key[at], every.times_us[at], every.right_before()[at], every.right_after()[at]
        is_stored = every.origin[at] < len(self.stored)
        newest_us = np.where(earlier != NO_ROW, every.times_us[earlier], known.time[key])
        is_there = ~is_stored & ((earlier != NO_ROW) | known.is_found[key]) & (arrived_us < newest_us + windows.right_us)
        known_of = Found(*(column[key] for column in vars(known).values()))
        waits = ~is_there & ~(is_stored & is_consumed(every.positions[at], known_of))
        is_released = waits & (later != NO_ROW) & released_in_time(arrived_us, every.times_us[later], windows.left_us)
        is_over = waits & ~is_released & (arrived_us <= ended_us)
        met = np.where(is_there, earlier, np.where(is_released, later, NO_ROW))
        cause = np.where(is_there, every.positions[at], every.positions[met])
        over_us = arrived_us[is_over] + windows.left_us
        cause[is_over] = packed(self.frames.first_from(over_us) - np.uint64(1), LAST_ORDINAL)
        is_decided = is_there | is_released | is_over
        by_store = is_there & (earlier == NO_ROW)
        right_run = np.where(by_store, known_of.run, np.where(met != NO_ROW, OWN, NO_ROW))
        right_row = np.where(by_store, known_of.row, every.origin[met] - len(self.stored) - len(self.lefts))
        right_positions = np.where(by_store, packed(known_of.sequence, known_of.ordinal), every.positions[met])
        waiting = np.sort(every.origin[at[waits & ~is_released & ~is_over & ~is_stored]]) - len(self.stored)
        decided = self._in_order(at, cause, is_decided)
        return self._outcomes(at[decided], cause[decided], (right_run[decided], right_row[decided], right_positions[decided]), waiting)

    def _in_order(self, at: Rows, cause: RawPositions, is_decided: Mask) -> Rows:
        """Return the numbers of the decided left records by cause and then by position."""
        (decided,) = is_decided.nonzero()
        decided = decided[np.argsort(self.every.positions[at[decided]], kind="stable")]
        return decided[np.argsort(cause[decided], kind="stable")]

    def _outcomes(self, at: Rows, cause: RawPositions, met: tuple[Rows, Rows, RawPositions], waiting: Rows) -> Outcomes:
        every, stored = self.every, len(self.stored)
        origin = every.origin[at]
        is_stored = origin < stored
        run, row = np.full(len(at), OWN, dtype=np.int64), origin - stored
        run[is_stored], row[is_stored] = self.stored.run[origin[is_stored]], self.stored.row[origin[is_stored]]
        starts = np.ones(len(at), dtype=bool)
        starts[1:] = cause[1:] != cause[:-1]
        places = np.arange(len(at))
        emit = places - np.maximum.accumulate(np.where(starts, places, 0)) if len(at) else places
        newest = self._last_rights()
        return Outcomes(
            every.positions[at], every.times_us[at], run, row, *met, cause, emit.astype(np.uint32), waiting, newest, self._replaced()
        )

    def _last_rights(self) -> Rows:
        """Return the last right record of each key, as rows of the right side, by hash."""
        last = self.every.right_before()[self.every.end - 1] if len(self.every.end) else self.every.end
        rows: Rows = self.every.origin[last[last != NO_ROW]] - len(self.stored) - len(self.lefts)
        return rows

    def _replaced(self) -> int:
        """Count the right records that a later one of their key has replaced while they could still be joined."""
        every, window_us = self.every, self.stores.windows.right_us
        (at,) = every.is_right.nonzero()
        key, arrived_us = every.key[at], every.times_us[at]
        is_next = np.zeros(len(at), dtype=bool)
        is_next[1:] = key[1:] == key[:-1]
        before_us = np.where(is_next, np.roll(arrived_us, 1), self.known.time[key])
        return int(np.count_nonzero((is_next | self.known.is_found[key]) & (arrived_us < before_us + window_us)))
