"""dedup: accept the first record by position of each key within a window.

In: records in position order with their key's hash in KEY_COLUMNS (`with_keys`), a time per record, and the store's `find`. Out: the
accepted records; the duplicates; and one new store entry per key with an accepted record: the last accepted one.

Meaning, key by key in position order: a record is a duplicate if the last accepted record a of its key was accepted at a time less than
`window` away, |t - a.t| < window, and a has not expired, a.t + window > W. Every other record is accepted and replaces a. So a record
exactly at the window, or later, is accepted and starts a new window; a dropped duplicate does not extend the window. t is the arrival,
which never steps back (then W does not apply), or a field, with W the record's watermark (`watermarks`). A record older than W is late and
is not compared.

Guarantee: the answer is a function of the records in their order, whatever the batches and whatever has expired from the store. Rejected:
`null_key` (by `with_keys`), `null_time`, `invalid_time` and `ahead` (by `with_times`), `late` (by the caller). State: the store's entries,
which may be deleted once a.t + window <= the clock of the last `done`: the arrival, or the combined watermark. After a restart the same
records with the same store give the same answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.key_store.index import Rows, Words
from pipelines.key_store.keys import hash_keys
from pipelines.key_store.segments import Entries, by_hash
from pipelines.key_store.store import Found
from pipelines.process.rejections import Rejections
from pipelines.process.watermarks import TIME_COLUMN, Times
from pipelines.protocol.positions import is_first_row
from pipelines.protocol.records import StageOutput
from pipelines.types.columns import parse_type
from pipelines.types.engine import Engine
from pipelines.types.formatted_times import iso_texts
from pipelines.types.instants import epoch_texts_to_instants, epoch_to_instants, parse_instants, truncate_instants
from pipelines.types.time_formats import is_format
from pipelines.types.vectors import Mask, one_chunk, to_mask

KEY_COLUMNS = ("_tf_key_hi", "_tf_key_lo")
COPY_KEY_COLUMNS = ("_tf_copy_key_hi", "_tf_copy_key_lo")
"""The hash of the key of a dedup, in rows of a side of a join, of which KEY_COLUMNS are of the join's key."""
PAST_COLUMN = "_tf_past_dedup"
"""True for a record that dedup accepted before it became a dead letter: it is accepted without changing the store. Often absent."""
_MAX_PASSES = 64
_INSTANT = parse_type("DateTime64(6)")


@dataclass(frozen=True)
class Deduplicated:
    """The rows of accepted and of dropped records, each in position order and without the hashes; entries to add, sorted."""

    accepted: pa.Table
    duplicates: pa.Table
    entries: Entries

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of accepted and of dropped records."""
        return int(is_first_row(self.accepted).sum()), int(is_first_row(self.duplicates).sum())


def with_keys(engine: Engine, parsed: pa.Table, fields: Sequence[str], stage: str = "dedup") -> StageOutput:
    """Append the hash of the key in `fields` (columns of `parsed`) as KEY_COLUMNS; reject records with a null in the key.

    `stage`: the one that rejects them. Raise TypeError for a column that cannot be a key.
    """
    hashes = hash_keys(engine, [parsed.column(name) for name in fields])
    rejections = Rejections(stage, parsed.num_rows)
    rejections.note(hashes.is_null, "null_key", fields[0] if len(fields) == 1 else None, f"the key ({', '.join(fields)}) is null")
    for name, column in zip(KEY_COLUMNS, (hashes.hi, hashes.lo), strict=True):
        parsed = parsed.append_column(name, pa.array(column))
    return rejections.split(parsed, parsed)


def with_times(engine: Engine, parsed: pa.Table, field: str, max_ahead_us: int, unit: str = "", stage: str = "dedup") -> StageOutput:
    """Append the time in `field` as TIME_COLUMN; reject the records without a valid time. `stage`: the one that rejects them.

    With a `unit`, the time is a number or decimal text of that unit since 1970, or a text in the format that it holds. Without one it is an
    instant, unix seconds, or a text in a form that a DateTime column takes. Valid times are the times of DateTime64, 1900 to 2299, and at
    most `max_ahead_us` ahead of the record's arrival: one time in the far future would make all other records late.
    """
    values = one_chunk(parsed.column(field))
    rejections = Rejections(stage, len(values))
    rejections.note(to_mask(pc.is_null(values)), "null_time", field, "the time is null")
    if pa.types.is_timestamp(values.type):
        instants, bad = truncate_instants(values, _INSTANT)
    elif pa.types.is_string(values.type):
        instants, bad = _instants_of_texts(engine, values, unit)
    else:
        instants, bad = epoch_to_instants(values, _INSTANT, unit or "s")
    rejections.note(bad, "invalid_time", field, "the value is no instant between 1900 and 2299")
    times = pc.fill_null(instants.cast(pa.int64()), 0)
    ahead = times.to_numpy() - one_chunk(parsed.column("_tf_arrival")).cast(pa.int64()).to_numpy() > max_ahead_us
    rejections.note(ahead, "ahead", field, "the time lies further ahead of the arrival than max_ahead")
    return rejections.split(parsed, parsed.append_column(TIME_COLUMN, times))


def _instants_of_texts(engine: Engine, texts: pa.Array, unit: str) -> tuple[pa.Array, Mask]:
    """Return the instants, and the rows without one."""
    if is_format(unit):
        texts, malformed = iso_texts(texts, unit)
        instants, impossible, beyond = parse_instants(engine, texts, _INSTANT)
        return instants, malformed | impossible | beyond
    instants, malformed, beyond = epoch_texts_to_instants(texts, _INSTANT, unit) if unit else parse_instants(engine, texts, _INSTANT)
    return instants, malformed | beyond


def dedup(
    records: pa.Table, times: Times, window_us: int, find: Callable[[Words, Words], Found], watermarks: Times | None = None
) -> Deduplicated:
    """Split `records` into accepted ones and duplicates.

    `times`: microseconds since 1970, one per record. `watermarks`: the same, if the time is a field.
    """
    hi, lo = (records.column(name).to_numpy() for name in KEY_COLUMNS)
    plain = records.drop_columns(list(KEY_COLUMNS))
    order = by_hash(hi, lo)
    groups = _Groups(hi[order], lo[order])
    stored = find(groups.hi, groups.lo)
    is_duplicate, last = mark_duplicates(groups.of, times[order], window_us, stored, None if watermarks is None else watermarks[order])
    is_dropped = np.zeros(len(order), dtype=bool)
    is_dropped[order[is_duplicate]] = True
    has_accepted = last >= 0
    rows = order[last[has_accepted]]
    sequence, ordinal = records.column("_tf_sequence").to_numpy()[rows], records.column("_tf_ordinal").to_numpy()[rows]
    entries = Entries(groups.hi[has_accepted], groups.lo[has_accepted], times[rows], sequence, ordinal)
    if not is_dropped.any():
        return Deduplicated(plain, plain.slice(0, 0), entries)
    return Deduplicated(plain.filter(pa.array(~is_dropped)), plain.filter(pa.array(is_dropped)), entries)


class _Groups:
    """The keys of records sorted by key: `hi` and `lo` once each, and the number of its key for every record."""

    def __init__(self, hi: Words, lo: Words) -> None:
        is_first = np.ones(len(hi), dtype=bool)
        is_first[1:] = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
        self.of: Rows = np.cumsum(is_first) - 1
        self.hi, self.lo = hi[is_first], lo[is_first]


def mark_duplicates(group: Rows, times: Times, window_us: int, stored: Found, watermarks: Times | None) -> tuple[Mask, Rows]:
    """Return (mask of the duplicates, the last accepted record of each group or -1); records are sorted by group, then by position.

    Each pass decides, for all groups at once, the records up to and including the next accepted one. There are as many passes as the
    busiest key of the batch has accepted records.
    """
    accepted_at, has_accepted = stored.time.copy(), stored.is_found.copy()
    is_duplicate = np.zeros(len(group), dtype=bool)
    last = np.full(len(stored.time), -1, dtype=np.int64)
    rows = np.arange(len(group), dtype=np.int64)

    def is_copy(rows: Rows) -> Mask:
        keys = group[rows]
        near = has_accepted[keys] & (np.abs(times[rows] - accepted_at[keys]) < window_us)
        copies: Mask = near if watermarks is None else near & (accepted_at[keys] + window_us > watermarks[rows])
        return copies

    def accept(rows: Rows) -> None:
        keys = group[rows]
        accepted_at[keys], has_accepted[keys], last[keys] = times[rows], True, rows

    passes = 0
    while len(rows) and passes < _MAX_PASSES:
        passes += 1
        copies = is_copy(rows)
        others = rows[~copies]
        is_next = np.ones(len(others), dtype=bool)
        is_next[1:] = group[others[1:]] != group[others[:-1]]
        chosen = others[is_next]
        decided_to = np.full(len(last), len(group), dtype=np.int64)
        decided_to[group[chosen]] = chosen
        border = decided_to[group[rows]]
        is_duplicate[rows[copies & (rows < border)]] = True
        accept(chosen)
        rows = rows[rows > border]
    # A few keys with very many windows in one batch: their records are decided one by one.
    for row in rows:
        one_row = np.array([row])
        if is_copy(one_row)[0]:
            is_duplicate[row] = True
        else:
            accept(one_row)
    return is_duplicate, last
