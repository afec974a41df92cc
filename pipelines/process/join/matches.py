"""The match of a left record by the records' own times, and the watermark at which it is final.

A left record at time t meets the right record of its key with the newest time at t or before, the last of these by position, if that time
is less than the right window before t; else the one with the first time behind t, the first of these by position, if that time is less
than the left window behind t. The match is final when the watermark leaves no room for a better right record: past t, past the time of
the later one, or at the end of the left window.

A record that is not late is never older than the watermark, so a final match stays: the order of arrival does not count.
"""

from dataclasses import dataclass

import numpy as np

from pipelines.key_store.index import Rows, Words
from pipelines.key_store.payload import NO_ROW
from pipelines.key_store.segments import Entries, by_hash
from pipelines.process.join.outcomes import OWN
from pipelines.process.join.sides import Side, Windows
from pipelines.process.join.stores import Candidates
from pipelines.process.watermarks import Times
from pipelines.protocol.positions import RawPositions, packed
from pipelines.types.vectors import Mask


@dataclass(frozen=True)
class Records:
    """Records of one side, stored ones and those of the range: the number of the segment or OWN, the row there, hash, position, time."""

    run: Rows
    row: Rows
    hi: Words
    lo: Words
    positions: RawPositions
    times_us: Times

    def __len__(self) -> int:
        return len(self.run)

    @classmethod
    def of(cls, stored: Candidates, own: Side, rows: Rows) -> "Records":
        """Put stored records and some rows of a side together."""
        run, row = np.append(stored.run, np.full(len(rows), OWN, dtype=np.int64)), np.append(stored.row, rows)
        columns = (np.append(getattr(stored, name), getattr(own, name)[rows]) for name in ("hi", "lo", "positions", "times_us"))
        return cls(run, row, *columns)

    @classmethod
    def of_entries(cls, entries: Entries) -> "Records":
        """Return entries of one segment, or of none yet."""
        rows = np.arange(len(entries), dtype=np.int64)
        return cls(np.zeros_like(rows), rows, entries.hi, entries.lo, packed(entries.sequence, entries.ordinal), entries.time)

    @classmethod
    def of_stored(cls, stored: Candidates) -> "Records":
        return cls(stored.run, stored.row, stored.hi, stored.lo, stored.positions, stored.times_us)


@dataclass(frozen=True)
class Matches:
    """By left record: the place of the right one that it meets as far as is known, NO_ROW for none, and when that is final.

    `final_us`: the watermark that leaves no room for a better one.
    """

    right: Rows
    final_us: Times

    @classmethod
    def of(cls, lefts: Records, rights: Records, windows: Windows) -> "Matches":
        earlier, later = neighbours(lefts, rights)
        is_there = (earlier != NO_ROW) & in_right_window(lefts.times_us, rights.times_us, earlier, windows)
        is_later = ~is_there & (later != NO_ROW) & in_left_window(lefts.times_us, rights.times_us, later, windows)
        right = np.where(is_there, earlier, np.where(is_later, later, NO_ROW))
        final_us = np.where(is_there, lefts.times_us + 1, lefts.times_us + windows.left_us)
        final_us[is_later] = rights.times_us[later[is_later]] + 1
        return cls(right, final_us)


def in_right_window(lefts_us: Times, rights_us: Times, earlier: Rows, windows: Windows) -> Mask:
    """Return which left records are less than the right window behind their earlier right one; undefined where there is none."""
    return lefts_us - _of(rights_us, earlier) < windows.right_us


def in_left_window(lefts_us: Times, rights_us: Times, later: Rows, windows: Windows) -> Mask:
    """Return which left records are less than the left window before their later right one; undefined where there is none."""
    return _of(rights_us, later) - lefts_us < windows.left_us


def _of(times_us: Times, places: Rows) -> Times:
    return times_us[places] if len(times_us) else np.zeros(len(places), dtype=np.int64)


def neighbours(lefts: Records, rights: Records) -> tuple[Rows, Rows]:
    """Return, by left record, the places of the last right one of its key at its time or before, and of the first one behind it."""
    count, every = len(rights), len(rights) + len(lefts)
    times, positions = np.append(rights.times_us, lefts.times_us), np.append(rights.positions, lefts.positions)
    hi, lo = np.append(rights.hi, lefts.hi), np.append(rights.lo, lefts.lo)
    # At one time the right records come first: they are there for the left ones.
    in_order = np.lexsort((positions, np.arange(every) >= count, times))
    order = in_order[by_hash(hi[in_order], lo[in_order])]
    hi, lo = hi[order], lo[order]
    is_first = np.ones(every, dtype=bool)
    is_first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    key, (first,) = np.cumsum(is_first) - 1, is_first.nonzero()
    end = np.append(first[1:], every)[: len(first)]
    is_right, places = order < count, np.arange(every)
    newest = np.maximum.accumulate(np.where(is_right, places, NO_ROW))
    following = np.minimum.accumulate(np.where(is_right, places, every)[::-1])[::-1]
    (at,) = (~is_right).nonzero()
    earlier, later = np.full((2, len(lefts)), NO_ROW, dtype=np.int64)
    left = order[at] - count
    has_earlier, has_later = newest[at] >= first[key[at]], following[at] < end[key[at]]
    earlier[left[has_earlier]] = order[newest[at[has_earlier]]]
    later[left[has_later]] = order[following[at[has_later]]]
    return earlier, later


def distinct(hi: Words, lo: Words) -> tuple[Words, Words]:
    """Return each hash once, sorted."""
    order = by_hash(hi, lo)
    hi, lo = hi[order], lo[order]
    is_first = np.ones(len(hi), dtype=bool)
    is_first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    return hi[is_first], lo[is_first]
