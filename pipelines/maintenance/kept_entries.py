"""The proof of a compaction: every live entry is in the new segment, with the fields that are stored beside it."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.errors import InvariantError
from pipelines.key_store.index import Rows, Sought
from pipelines.key_store.segment_file import BLOCK_ROWS
from pipelines.key_store.segments import Entries, Run, RunFacts
from pipelines.key_store.store import KeyedStore
from pipelines.key_store.timed import TimedStore
from pipelines.key_store.waiting import WaitingRun, WaitingStore
from pipelines.protocol.positions import packed
from pipelines.types.vectors import Mask

_NONE = -1


def check_kept(store: KeyedStore, after: Sequence[RunFacts], expired: int) -> int:
    """Look up each live entry of `store`, as it is open, in the segments `after`, one or none; return the number of live entries there.

    An entry is live if its time is after `expired`, and if it is the newest of its key, or, of a record of a join, is needed still.
    Raise InvariantError for one that is missing or another one.
    """
    new = next((store.kind.open(store.storage, facts, fields=store.fields) for facts in after), None)
    for run in store.opened():
        entries = run.checked_entries()
        for start in range(0, len(entries), BLOCK_ROWS):
            block = entries.take(slice(start, start + BLOCK_ROWS))
            live = block.take(_is_live(store, block, expired))
            if len(live) and (new is None or not _has(new, live)):
                raise InvariantError(
                    f"compacting {store.storage.path}: a live entry of {run.facts.name} is not in the new segment; nothing was listed"
                )
    return 0 if new is None else int(np.count_nonzero(new.checked_entries().time > expired))


def _is_live(store: KeyedStore, entries: Entries, expired: int) -> Mask:
    if isinstance(store, WaitingStore | TimedStore):
        return store.is_live(entries, expired)
    is_open: Mask = entries.time > expired
    newest = store.find(entries.hi, entries.lo)
    is_newest: Mask = (newest.sequence == entries.sequence) & (newest.ordinal == entries.ordinal)
    return is_open & is_newest


def _has(new: Run, entries: Entries) -> bool:
    """Return whether the segment holds all of these entries."""
    rows = _by_position(new, entries) if isinstance(new, WaitingRun) else _by_hash(new, entries)
    if (rows == _NONE).any():
        return False
    found = new.checked_entries().take(rows)
    is_same = all(np.array_equal(*columns) for columns in zip(found.columns(), entries.columns(), strict=True))
    return is_same and (found.payload is None or _bits(found.payload).equals(_bits(entries.payload)))


def _by_hash(new: Run, entries: Entries) -> Rows:
    rows = np.full(len(entries), _NONE, dtype=np.int64)
    at, found = new.find(Sought.of(entries.hi, entries.lo))
    rows[at] = found
    return rows


def _by_position(new: Run, entries: Entries) -> Rows:
    """Return the rows by position: a key may have a million waiting records."""
    positions, sought = (packed(one.sequence, one.ordinal) for one in (new.entries, entries))
    # They may be in the order of their times.
    order = np.argsort(positions, kind="stable")
    at = order[np.minimum(np.searchsorted(positions, sought, sorter=order), len(positions) - 1)]
    return np.where(positions[at] == sought, at, _NONE)


def _bits(payload: pa.RecordBatch | None) -> pa.RecordBatch:
    """Return stored columns in a form in which a NaN equals itself."""
    assert payload is not None
    columns = [column.view(_INTEGERS[column.type.bit_width]) if pa.types.is_floating(column.type) else column for column in payload.columns]
    return pa.RecordBatch.from_arrays(columns, names=payload.schema.names)


_INTEGERS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
