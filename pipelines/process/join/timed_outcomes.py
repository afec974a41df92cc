"""Decides, for all left records of a range at once, which right record each has met by the records' own times.

A left record is decided behind the first frame whose watermark leaves no room for a better match than the one that is known (`matches`).
The cause of its row is (that frame, last ordinal).
"""

import numpy as np

from pipelines.key_store.index import Rows
from pipelines.key_store.payload import NO_ROW
from pipelines.process.join.matches import Matches, Records, distinct
from pipelines.process.join.outcomes import LAST_ORDINAL, OWN, Outcomes
from pipelines.process.join.progress import TimedFrames
from pipelines.process.join.rows import Joined, joined_from
from pipelines.process.join.sides import Side
from pipelines.process.join.stores import Candidates
from pipelines.process.join.timed_stores import TimedJoinStores
from pipelines.protocol.positions import RawPositions, packed


def join_by_time(lefts: Side, rights: Side, frames: TimedFrames, stores: TimedJoinStores) -> Joined:
    """Join a range of one bucket by the records' own times with the stores, which are open on the state before it; no record is late.

    The stores may be opened on other segments only after the last slice was taken.
    """
    outcomes = decide_by_time(lefts, rights, frames, stores)
    waiting = [stores.oldest_waiting(frames.end_us)]
    if len(outcomes.waiting):
        row = outcomes.waiting[lefts.positions[outcomes.waiting].argmin()]
        waiting.append((int(lefts.positions[row]), int(lefts.times_us[row])))
    oldest = min((one for one in waiting if one is not None), default=None)
    return joined_from(outcomes, (lefts, rights), (stores.lefts, stores.rights), oldest)


def decide_by_time(lefts: Side, rights: Side, frames: TimedFrames, stores: TimedJoinStores) -> Outcomes:
    """Decide the left records of a range and the stored ones. The stores are open on the state before the range."""
    start_us, end_us = frames.start_us, frames.end_us
    reached = _reached_lefts(lefts, rights, frames, stores)
    hi, lo = distinct(reached.hi, reached.lo)
    found = Records.of(stores.rights_of(hi, lo, start_us), rights, np.arange(len(rights)))
    matches = Matches.of(reached, found, stores.windows)
    is_decided = (matches.final_us <= end_us) & ((reached.run == OWN) | (matches.final_us > start_us))
    (at,) = is_decided.nonzero()
    cause = packed(frames.first_passing(matches.final_us[at]), LAST_ORDINAL)
    order = np.lexsort((reached.positions[at], cause))
    at, cause = at[order], cause[order]
    waits = np.ones(len(lefts), dtype=bool)
    waits[reached.row[at[reached.run[at] == OWN]]] = False
    (waiting,) = waits.nonzero()
    met = matches.right[at]
    is_met = met != NO_ROW
    right_run, right_row = np.full((2, len(at)), NO_ROW, dtype=np.int64)
    right_positions = np.zeros(len(at), dtype=np.uint64)
    right_run[is_met], right_row[is_met] = found.run[met[is_met]], found.row[met[is_met]]
    right_positions[is_met] = found.positions[met[is_met]]
    return Outcomes(
        positions=reached.positions[at],
        times_us=reached.times_us[at],
        left_run=reached.run[at],
        left_row=reached.row[at],
        right_run=right_run,
        right_row=right_row,
        right_positions=right_positions,
        cause=cause,
        cause_emit=_numbers(cause),
        waiting=_by_time(lefts, waiting),
        newest=_by_time(rights, np.arange(len(rights))),
        replaced=0,
    )


def _reached_lefts(lefts: Side, rights: Side, frames: TimedFrames, stores: TimedJoinStores) -> Records:
    """Return the left records that the range may decide: those that the watermark passes, and those of right records that it passes."""
    (own,) = (lefts.times_us < frames.end_us).nonzero()
    stored, passed = stores.passed(frames.start_us, frames.end_us)
    own_rights = rights.times_us < frames.end_us
    hi, lo = distinct(np.append(passed.hi, rights.hi[own_rights]), np.append(passed.lo, rights.lo[own_rights]))
    of_rights = stores.lefts_of(hi, lo, frames.start_us)
    every = Records.of(stored, lefts, own)
    return Records(*(np.append(one, other) for one, other in zip(_columns(of_rights, stored), _columns(every), strict=True)))


def _columns(records: "Records | Candidates", without: Candidates | None = None) -> tuple[np.ndarray, ...]:
    """Return the columns of `Records`, without the records that `without` has too."""
    columns = tuple(getattr(records, name) for name in ("run", "row", "hi", "lo", "positions", "times_us"))
    if without is None or not len(without):
        return columns
    # Not `np.isin`: it hashes, which took half of the time of a batch (measured).
    known = np.sort(without.positions)
    places = np.searchsorted(known, records.positions)
    is_new = known[np.minimum(places, len(known) - 1)] != records.positions
    return tuple(column[is_new] for column in columns)


def _numbers(cause: RawPositions) -> np.ndarray:
    """Return the number of each row among those of its cause; `cause` is sorted."""
    starts = np.ones(len(cause), dtype=bool)
    starts[1:] = cause[1:] != cause[:-1]
    places = np.arange(len(cause))
    return (places - np.maximum.accumulate(np.where(starts, places, 0))).astype(np.uint32)


def _by_time(side: Side, rows: Rows) -> Rows:
    """Return rows of a side in the order of (time, position)."""
    return rows[np.lexsort((side.positions[rows], side.times_us[rows]))]
