"""Joins a range: decides its left records, and makes their rows, slice by slice: one right record may release a million left ones."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.key_store.index import Rows
from pipelines.key_store.payload import Gathered, Taker, from_stored, gather, stored_schema
from pipelines.key_store.segments import Entries, Run
from pipelines.key_store.store import KeyedStore
from pipelines.process.join.outcomes import OWN, Outcomes, decide
from pipelines.process.join.sides import Frames, Side, before
from pipelines.process.join.stores import JoinStores
from pipelines.protocol.positions import CAUSE_COLUMNS, RawPositions, ordinals_of, sequences_of
from pipelines.protocol.records import INSTANT

GATHERED_ROWS = 64 * 1024
"""Rows to look up at once, fewer if they are large: each segment costs some 0.1 ms."""
GATHERED_BYTES = 64 * 1024 * 1024
SLICE_BYTES = 32 * 1024 * 1024
RIGHT_COLUMNS = ("_tf_right_sequence", "_tf_right_ordinal")
"""The position of the right record that a left one has met; null if it has met none."""


@dataclass(frozen=True)
class JoinCounts:
    """What became of the left records, and of the right ones.

    `waiting`: how many more left records wait than before. `kept`: right records, each of which is or was the newest one of its key;
    `replaced`: those that a later one replaced while they could still be joined.
    """

    joined: int
    unmatched: int
    waiting: int
    kept: int
    replaced: int


@dataclass(frozen=True)
class Slice:
    """Some rows by cause and number: columns of the left and of the right side, positions, CAUSE_COLUMNS and RIGHT_COLUMNS.

    The right side's columns are null where `is_joined` is False.
    """

    rows: pa.Table

    @property
    def is_joined(self) -> pa.ChunkedArray:
        return self.rows.column(RIGHT_COLUMNS[0]).is_valid()


@dataclass(frozen=True)
class Joined:
    """A range that was joined. `new_rights`, `new_lefts`: what `JoinStores.add` takes.

    `oldest_waiting`: (packed position, arrival in microseconds) of the first stored left record whose window is open, None if there is
    none; it may have met a right record. `began`: the left records of the range that wait.
    """

    counts: JoinCounts
    new_rights: Entries
    new_lefts: Entries
    oldest_waiting: tuple[int, int] | None
    began: int
    _outcomes: Outcomes
    _sides: tuple[Side, Side]
    _runs: tuple[list[Run], list[Run]]
    _fields: tuple[pa.Schema, pa.Schema]

    def slices(self, with_unmatched: bool) -> Iterator[Slice]:
        """Yield the rows in order, those of unmatched left records only if they are asked for.

        Raise StateDamagedError if a touched block is damaged.
        """
        outcomes = self._outcomes
        (wanted,) = (outcomes.is_joined | with_unmatched).nonzero()
        count = self._rows_at_once()
        for start in range(0, len(wanted), count):
            places = wanted[start : start + count]
            left = self._gathered(0, outcomes.left_run[places], outcomes.left_row[places])
            right = self._gathered(1, outcomes.right_run[places], outcomes.right_row[places])
            for part in _parts(left, right):
                yield Slice(self._table(places[part], left.rows(part), right.rows(part)))

    @property
    def none(self) -> pa.Table:
        """No row, with the columns of all."""
        nothing: Rows = np.zeros(0, dtype=np.int64)
        left, right = (self._gathered(side, nothing, nothing).rows(slice(0, 0)) for side in (0, 1))
        return self._table(nothing, left, right)

    def _rows_at_once(self) -> int:
        """Return how many rows of average size take GATHERED_BYTES, GATHERED_ROWS at most."""
        sizes = 0
        for side, runs in zip(self._sides, self._runs, strict=True):
            payloads = [side.payload, *(run.entries.payload for run in runs if run.entries.payload is not None)]
            sizes += max(payload.nbytes // max(1, payload.num_rows) for payload in payloads)
        return max(1, min(GATHERED_ROWS, GATHERED_BYTES // max(1, sizes)))

    def _gathered(self, side: int, run: Rows, row: Rows) -> Gathered:
        runs, own = self._runs[side], self._sides[side].payload
        takers: list[Taker] = [*(each.payload_rows for each in runs), lambda rows: own.take(pa.array(rows))]
        return gather(takers, np.where(run == OWN, len(runs), run), row, stored_schema(self._fields[side]))

    def _table(self, places: Rows, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.Table:
        outcomes, (left_fields, right_fields) = self._outcomes, self._fields
        is_none = ~outcomes.is_joined[places]
        columns = dict(zip(left_fields.names, from_stored(left, left_fields), strict=True))
        columns |= zip(right_fields.names, from_stored(right, right_fields), strict=True)
        columns |= _position(("_tf_sequence", "_tf_ordinal"), outcomes.positions[places])
        if "_tf_arrival" not in columns:
            columns["_tf_arrival"] = pa.array(outcomes.times_us[places]).cast(INSTANT)
        columns |= _position(CAUSE_COLUMNS[:2], outcomes.cause[places])
        columns[CAUSE_COLUMNS[2]] = pa.array(outcomes.cause_emit[places])
        columns |= _position(RIGHT_COLUMNS, outcomes.right_positions[places], is_none)
        return pa.table(columns)


def _position(names: tuple[str, ...], positions: RawPositions, is_none: np.ndarray | None = None) -> dict[str, pa.Array]:
    sequences, ordinals = sequences_of(positions).astype(np.uint64), ordinals_of(positions).astype(np.uint32)
    return dict(zip(names, (pa.array(sequences, mask=is_none), pa.array(ordinals, mask=is_none)), strict=True))


def _parts(left: Gathered, right: Gathered) -> Iterator[slice]:
    """Yield the parts of gathered rows that take SLICE_BYTES or less, or are one row."""
    ends = np.cumsum(left.row_bytes() + right.row_bytes())
    start = 0
    while start < len(ends):
        taken = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, taken + SLICE_BYTES, side="right")))
        yield slice(start, end)
        start = end


def join(lefts: Side, rights: Side, frames: Frames, stores: JoinStores) -> Joined:
    """Join a range of one bucket with the stores, which are open on the state before it.

    The stores may be opened on other segments only after the last slice was taken.
    """
    outcomes = decide(lefts, rights, frames, stores)
    stored = stores.oldest_waiting(before(frames.end_us, stores.windows.left_us))
    own = [(int(lefts.positions[row]), int(lefts.times_us[row])) for row in outcomes.waiting[:1].tolist()]
    return joined_from(outcomes, (lefts, rights), (stores.lefts, stores.rights), stored if stored is not None else next(iter(own), None))


def joined_from(
    outcomes: Outcomes, sides: tuple[Side, Side], stores: tuple[KeyedStore, KeyedStore], oldest_waiting: tuple[int, int] | None
) -> Joined:
    """Return a range whose left records are decided. `sides` and `stores`: (left, right)."""
    lefts, rights = sides
    joined = int(np.count_nonzero(outcomes.is_joined))
    unmatched = len(outcomes.positions) - joined
    new_lefts = lefts.entries(outcomes.waiting)
    return Joined(
        counts=JoinCounts(joined, unmatched, len(lefts) - joined - unmatched, len(rights), outcomes.replaced),
        new_rights=rights.entries(outcomes.newest),
        new_lefts=new_lefts,
        oldest_waiting=oldest_waiting,
        began=len(new_lefts),
        _outcomes=outcomes,
        _sides=sides,
        _runs=(stores[0].opened(), stores[1].opened()),
        _fields=(_fields(stores[0]), _fields(stores[1])),
    )


def _fields(store: KeyedStore) -> pa.Schema:
    assert store.fields is not None
    return store.fields
