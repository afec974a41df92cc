"""The join of a dry run: dead letters meet the stores as the last `done` lists them. Nothing is stored.

In: the rows of both sides of the dead letters, whose frames stand behind all that raw has. Out: what the join makes of them, and how many
records that wait would meet one of them. Left records that wait and whose windows end meanwhile are no matter of the dead letters.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.maintenance.inspect import KeyState
from pipelines.process.arrivals import Arrived
from pipelines.process.buckets import dedup_store, key_owners, live_runs, shares
from pipelines.process.dedup import Deduplicated
from pipelines.process.join.progress import TimedFrames
from pipelines.process.join.rows import RIGHT_COLUMNS
from pipelines.process.joining import facts_by, frames_of, join_stores
from pipelines.process.program import Program
from pipelines.process.side_copies import copies_found_by, without_copies
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.join import IS_RIGHT_COLUMN, KEPT, UNMATCHED, unmatched
from pipelines.protocol.bodies import ProcessState
from pipelines.protocol.naming import LEFT_STORE, RIGHT_STORE, listed_as
from pipelines.protocol.outcomes import WAITING
from pipelines.protocol.records import empty_rejected, joined
from pipelines.protocol.run_lists import Lists

BEHIND_ALL = 2**40
"""The raw sequence of the first frame of a dry run: no stream gets so far."""


@dataclass(frozen=True)
class Met:
    """What the join makes of dead letters: `rows` pass to the steps behind it, `rejected` (`REJECTED_SCHEMA`) are unmatched.

    `duplicates`: copies before the join; `late`: records behind the watermark; `counts`: by outcome, those that the join keeps or drops.
    `released`: left records of the store that would meet one of the dead letters.
    """

    rows: pa.Table
    rejected: pa.Table
    duplicates: int
    late: int
    counts: Counter[str]
    released: int


def meet(state: KeyState, chain: ProcessState, program: Program, rows: pa.Table, frames: Sequence[Arrived]) -> Met:
    """Join the rows of both sides of some frames with the stores. Raise HaltError before the first range."""
    step, done, lists = program.join, state.last(chain), state.lists(chain)
    assert step is not None
    rows, duplicates = _without_copies(state, lists, program, rows, done.buckets)
    facts = facts_by(program, rows, (frame.message for frame in frames))
    of_range = frames_of(step, BEHIND_ALL - 1, done, [frame.arrival_us for frame in frames], facts)
    late = 0
    if isinstance(of_range, TimedFrames):
        rows, behind = step.without_late(rows, of_range)
        late = behind.num_rows
    decided, released = [], 0
    for bucket, share in shares(rows, key_owners(rows, done.buckets)):
        stores = join_stores(state.connections, step, bucket)
        stores.open(*(live_runs(lists, listed_as(store, bucket)) for store in (RIGHT_STORE, LEFT_STORE)))
        for part in step.joined(share, of_range, stores).slices(with_unmatched=True):
            is_letter = pc.greater_equal(part.rows.column("_tf_sequence"), BEHIND_ALL)
            decided.append(part.rows.filter(is_letter))
            stored = part.rows.filter(pc.invert(is_letter)).column(RIGHT_COLUMNS[0])
            released += len(stored) - stored.null_count
    return _met(program, rows, decided, (duplicates, late), released)


def _without_copies(state: KeyState, lists: Lists, program: Program, rows: pa.Table, buckets: int) -> tuple[pa.Table, int]:
    """Return the rows without the copies of each side, and the number of those."""

    def first_of_keys(place: str, dedup: Dedup, keys: pa.Table) -> Deduplicated:
        name, _, bucket = place.rpartition("/")
        store = dedup_store(state.connections, int(bucket), name)
        store.open(live_runs(lists, place))
        return dedup.first_of_keys(keys, store, None)[0]

    copies = copies_found_by(first_of_keys, rows, program, buckets)
    return without_copies(rows, copies), len(copies)


def _met(program: Program, rows: pa.Table, decided: Sequence[pa.Table], before: tuple[int, int], released: int) -> Met:
    """Return what became of `rows`, of whose left records `decided` has those that do not wait. `before`: copies, and late records."""
    step, rights = program.join, pc.sum(rows.column(IS_RIGHT_COLUMN)).as_py() or 0
    assert step is not None
    counts = Counter({KEPT.total: rights, WAITING.total: rows.num_rows - rights - sum(map(len, decided))})
    if not any(map(len, decided)):
        return Met(pa.table({}), empty_rejected(), *before, counts, released)
    mine = joined(list(decided))
    is_alone = pc.is_null(mine.column(RIGHT_COLUMNS[0]))
    alone, passed, rejected = mine.filter(is_alone), mine.filter(pc.invert(is_alone)), empty_rejected()
    if step.unmatched == "emit":
        passed = mine
    elif step.unmatched == "dead_letter":
        rejected = unmatched(alone, step)
    else:
        counts[UNMATCHED.total] = alone.num_rows
    return Met(passed.drop_columns([*RIGHT_COLUMNS]), rejected, *before, counts, released)
