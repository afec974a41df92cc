"""Copies that dedup dropped in favor of records that became dead letters after it: discarding such a dead letter loses them, too.

In: the dead letters, and the records that dedup has processed (`replayed`). Dedup remembers the key of a dead letter that it had accepted;
the copies are the later records of that key, up to the first that dedup accepted again, without those that a step behind dedup would drop.
A record that was redriven and refused again represents its earlier dead letter. Nothing is written.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.nats.client import JetStream
from pipelines.dead_letters.dry_run import frames_of_dead_letters
from pipelines.dead_letters.triage import COPIES_COLUMN, COUNTED_FROM_COLUMN, Selection
from pipelines.key_store.index import Words
from pipelines.lookups.storage import Snapshots
from pipelines.maintenance.replay import Replayed, replayed, start_at
from pipelines.process import stage_config
from pipelines.process.dedup import KEY_COLUMNS
from pipelines.process.drop_marks import MARK_COLUMN
from pipelines.process.fingerprints import with_fingerprints
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.stage_config import with_snapshots
from pipelines.process.watermarks import TIME_COLUMN
from pipelines.progress import Progress
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import ORDINAL_BITS, first_rows, packed_record, position_keys
from pipelines.protocol.purge import Purged, read_purged
from pipelines.protocol.records import INSTANT
from pipelines.protocol.redrive import by_source
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine
from pipelines.types.vectors import Mask, to_mask

_ACCEPTED = pa.schema([("dead_letter", pa.uint64()), ("hi", pa.uint64()), ("lo", pa.uint64()), ("at_us", pa.int64())])
_ADD = """
    INSERT INTO seen
    SELECT dead_letter, code, abs(rows.at_us - accepted.at_us) < $window AND accepted.at_us + $window > watermark_us, has_row
    FROM _tf_rows AS rows
    ASOF JOIN accepted ON rows.hi = accepted.hi AND rows.lo = accepted.lo AND rows.code > accepted.dead_letter
"""
_COUNT = """
    SELECT dead_letter, (count(*) FILTER (has_row))::BIGINT AS copies
    FROM seen LEFT JOIN (SELECT dead_letter, min(code) AS let_through FROM seen WHERE NOT is_copy GROUP BY dead_letter) USING (dead_letter)
    WHERE let_through IS NULL OR code < let_through
    GROUP BY dead_letter
"""


@dataclass(frozen=True)
class DroppedCopies:
    """`copies` of each dead letter in `codes` (sorted positions). If `is_cut`, records before `since` are purged and were not counted."""

    codes: Words
    copies: npt.NDArray[np.int64]
    is_cut: Mask
    since: datetime | None

    def of(self, dead_letters: pa.Table) -> pa.Table:
        """Return `dead_letters` with COPIES_COLUMN and COUNTED_FROM_COLUMN.

        COPIES_COLUMN is 0 if dedup had not accepted the record, null if its key cannot be determined. COUNTED_FROM_COLUMN is an instant if
        copies before it may be missing, else null.
        """
        is_past, since = pc.fill_null(dead_letters.column("past_dedup"), False), pa.scalar(self.since, INSTANT)
        index = pc.index_in(pa.array(position_keys(dead_letters)), pa.array(self.codes))
        copies = pc.if_else(is_past, pa.array(self.copies).take(index), pa.scalar(0, pa.int64()))
        counted_from = pc.if_else(pa.array(self.is_cut).take(index), since, pa.scalar(None, INSTANT))
        return dead_letters.append_column(COPIES_COLUMN, copies).append_column(COUNTED_FROM_COLUMN, counted_from)


class CopiesByDeadLetter:
    """Counts the copies of accepted records, a table of _ACCEPTED. It needs all records that dedup processed after the first, in order."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, accepted: pa.Table, window_us: int) -> None:
        self._engine, self._window_us = engine, window_us
        engine.register("_tf_accepted", accepted)
        engine.execute("CREATE TABLE accepted AS FROM _tf_accepted")
        engine.execute("CREATE TABLE seen (dead_letter UBIGINT, code UBIGINT, is_copy BOOLEAN, has_row BOOLEAN)")

    def add(self, found: Replayed) -> None:
        hi, lo = (found.rows.column(name).to_numpy() for name in KEY_COLUMNS)
        has_row = np.ones(found.rows.num_rows, dtype=bool)
        if MARK_COLUMN in found.rows.column_names:
            has_row = to_mask(pc.is_null(found.rows.column(MARK_COLUMN)))
        columns = [position_keys(found.rows), hi, lo, found.times, found.watermarks, has_row]
        self._engine.register("_tf_rows", pa.table(columns, names=["code", "hi", "lo", "at_us", "watermark_us", "has_row"]))
        self._engine.execute(_ADD, {"window": self._window_us})
        self._engine.unregister("_tf_rows")

    def counts(self) -> dict[int, int]:
        """Return the copies by the code of the accepted record's position, for all of them."""
        return dict(self._engine.sql(_COUNT).fetchall())


def dropped_copies(
    log: JetStream, names: Names, frames: Iterable[pa.Table], wanted: Selection, progress: Progress, snapshots: Snapshots
) -> DroppedCopies:
    """Count the copies for the `wanted` ones of all dead letters; `frames` have `state` and the order of their stream.

    It reads raw from the oldest of them until the last window has ended; it reads nothing without dedup or without such a dead letter.
    """
    ledger = names.stream("ledger")
    done = read_chain(log, names, PROCESS_CHAIN).done if log.state(ledger) is not None else None
    config = stage_config.load(log, names, done.body.config) if done else None
    if done is None or config is None or not config.dedup.key:
        return _counted({}, {}, Purged())
    purged = read_purged(log, names, "raw")
    with open_engine() as engine, open_engine() as counting:
        newest = with_snapshots(config, snapshots, done.body.lookups)
        roots, accepted = _accepted(engine, newest, frames, wanted)
        if not accepted.num_rows:
            return _counted({}, {}, purged)
        copies = CopiesByDeadLetter(counting.connection, accepted, config.dedup.window_us)
        first, arrival_us = (accepted.column(name)[0].as_py() for name in ("dead_letter", "at_us"))
        start = start_at(log, names, config, first >> ORDINAL_BITS, arrival_us, purged.below)
        expired_us = pc.max(accepted.column("at_us")).as_py() + config.dedup.window_us
        for portion in replayed(log, names, engine, config, start, done.body.to, progress, snapshots):
            copies.add(portion)
            if not config.dedup.time_field and portion.times.max(initial=0) >= expired_us:
                break
        counts = dict.fromkeys(accepted.column("dead_letter").to_pylist(), 0) | copies.counts()
    return _counted(roots, counts, purged)


def _counted(roots: dict[int, int], counts: dict[int, int], purged: Purged) -> DroppedCopies:
    counted = sorted(
        (dead_letter, counts[root], root >> ORDINAL_BITS < purged.below) for dead_letter, root in roots.items() if root in counts
    )
    codes, copies, is_cut = zip(*counted, strict=True) if counted else ((), (), ())
    return DroppedCopies(np.array(codes, dtype=np.uint64), np.array(copies, dtype=np.int64), np.array(is_cut, dtype=bool), purged.since)


def _accepted(engine: Engine, config: Program, frames: Iterable[pa.Table], wanted: Selection) -> tuple[dict[int, int], pa.Table]:
    """Return (for each wanted dead letter the position at which dedup accepted the record, _ACCEPTED in position order).

    _ACCEPTED holds the records whose key is known.
    """
    roots: dict[int, int] = {}
    selected: set[int] = set()
    keyed = [_ACCEPTED.empty_table()]
    for frame in frames:
        past = frame.filter(pc.fill_null(frame.column("past_dedup"), False))
        if not past.num_rows:
            continue
        for code, origin in zip(position_keys(past).tolist(), past.column("origin").to_pylist(), strict=True):
            # A record that was redriven after its acceptance passed dedup for that reason.
            roots[code] = roots.get(packed_record(origin), code) if origin else code
        selected.update(position_keys(wanted.of(with_fingerprints(past))).tolist())
        keyed += [_keyed(engine, config, letters) for letters in by_source(past)]
    roots = {dead_letter: root for dead_letter, root in roots.items() if dead_letter in selected}
    together = pa.concat_tables(keyed)
    is_root = pc.is_in(together.column("dead_letter"), value_set=pa.array(sorted(roots.values()), pa.uint64()))
    return roots, together.filter(is_root).sort_by("dead_letter")


def _keyed(engine: Engine, config: Program, dead_letters: pa.Table) -> pa.Table:
    """Return _ACCEPTED of the own records of dead letters of one source, but for those that the stages before dedup would reject today."""
    rows = first_rows(run(config, engine, list(frames_of_dead_letters([dead_letters], []))).rows)
    here = dead_letters.take(rows.column("_tf_ordinal"))
    times = rows.column(TIME_COLUMN) if config.dedup.time_field else here.column("_tf_arrival").cast(pa.int64())
    return pa.table([pa.array(position_keys(here)), *(rows.column(name) for name in KEY_COLUMNS), times], schema=_ACCEPTED)
