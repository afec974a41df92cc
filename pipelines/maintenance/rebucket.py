"""Another number of buckets for a stopped pipeline: its key stores are rewritten, and no new subject accepts rows that old ones hold.

Order of effects: new segments; a marker frame at the end of the processed range on each new subject, so that a replay finds its rows
covered; one entry of the process chain that lists the new segments and names the new number; the shape in the streams' metadata. If the
rebucketing is killed in between, a start with either number is refused until it has run again, and it may run again.

The entries of a key are in one old bucket of each store, so which left records of a join wait is known by that bucket alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.key_store.segments import Entries
from pipelines.key_store.store import KeyedStore, merge, run_name
from pipelines.key_store.timed import TimedStore, in_time_order
from pipelines.key_store.waiting import WaitingStore, in_position_order
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.stores import expired_us, opened_store
from pipelines.process.buckets import JOIN_LETTERS, listed
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.process.program import Program
from pipelines.protocol.append import Appender, last_position
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessDone, ProcessPlan, ProcessState
from pipelines.protocol.lease import acquire_all, release_all
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import bucket_of_key, listed_as
from pipelines.protocol.positions import Position
from pipelines.protocol.records import HEADER_OLDEST, POSITION_FIELDS, encode_frame
from pipelines.protocol.run_lists import Listing, Lists, RunLists
from pipelines.runner.preflight import change_buckets, check_other_shape


@dataclass(frozen=True)
class Rebucketed:
    """Entries of all key stores before (including expired ones) and after."""

    buckets_before: int
    buckets: int
    entries_before: int
    entries: int


def rebucket(state: KeyState) -> Rebucketed:
    """Give the pipeline the number of buckets of its file. Safe to kill, and to repeat.

    Raise FencedError while a leg runs, HaltError if a range was begun and not finished, or if more than the number has changed,
    StateDamagedError for a damaged segment.
    """
    log, names, config = state.connections.log, state.names, state.connections.config
    check_other_shape(config, log)
    leases = acquire_all(log, names, state.directory, config.topology.legs)
    try:
        chain = Chain(log, names, PROCESS_CHAIN, leases[config.topology.process].holder.epoch)
        chain_state = chain.open()
        if chain_state.plan is not None:
            raise HaltError(
                f"rebucketing {names.pipeline}: a range was begun and is not finished; start the pipeline with the number of buckets that "
                "it has, then rebucket"
            )
        result = _rewritten(state, chain, chain_state, config.buckets)
        change_buckets(config, log)
        return result
    finally:
        release_all(leases.values())


def _rewritten(state: KeyState, chain: Chain[ProcessPlan, ProcessDone], found: ProcessState, buckets: int) -> Rebucketed:
    if found.done is None:
        return Rebucketed(buckets, buckets, 0, 0)
    done, old, config = found.done.body, state.lists(found), state.stage_config(found)
    before = done.buckets
    new = old
    if before != buckets:
        places = [(store, bucket) for store in config.stores for bucket in range(buckets)]
        made = {listed_as(*place): _new_runs(state, config, done, old, *place) for place in places}
        new = {place: runs for place, runs in made.items() if runs}
    _mark(state, config, buckets, done)
    if before != buckets:
        pages = RunLists(state.connections.log, state.names).write(None, new)
        chain.restate(replace(done, runs=pages, buckets=buckets))
        for place, runs in old.items():
            for name, *_ in runs:
                state.connections.segments(place).delete(name)
    counted = [sum(rows for runs in lists.values() for _, rows, *_ in runs) for lists in (old, new)]
    return Rebucketed(before, buckets, *counted)


def _new_runs(state: KeyState, config: Program, done: ProcessDone, lists: Lists, store: str, bucket: int) -> Listing:
    """Return the live entries of one new bucket of a store, from all old ones, as one segment."""
    expired, connections = expired_us(config, store, done), state.connections
    old = [opened_store(connections, config, store, one, lists) for one in range(done.buckets)]
    parts = [part for one in old for part in _share_of(one, bucket, connections.config.buckets, expired) if len(part)]
    if not parts:
        return []
    together = _together(old[0], parts, expired)
    if not len(together):
        return []
    storage, name = connections.segments(listed_as(store, bucket)), run_name((0, done.to), done.to)
    return listed([old[0].kind.write(storage, name, together, old[0].fields).facts])


def _share_of(store: KeyedStore, bucket: int, buckets: int, expired: int) -> Iterator[Entries]:
    """Yield what each segment of an old bucket, older ones first, has for a new one; of the records of a join those that are needed."""
    for entries in store.checked():
        mine = entries.take(np.flatnonzero(bucket_of_key(entries.lo, buckets) == bucket))
        yield mine.take(store.is_live(mine, expired)) if isinstance(store, WaitingStore | TimedStore) else mine


def _together(store: KeyedStore, parts: Sequence[Entries], expired: int) -> Entries:
    """Return the parts of a new bucket, at least one, as a store of this kind keeps them."""
    if isinstance(store, WaitingStore):
        return in_position_order(parts)
    return in_time_order(parts) if isinstance(store, TimedStore) else merge(parts, expired)


def _mark(state: KeyState, config: Program, buckets: int, done: ProcessDone) -> None:
    """Append an empty frame at the end of the processed range to every subject of every bucket that does not reach it.

    Where causes are the order, the end of a window at the next frame is behind all records of this range, and behind the mark.
    """
    log, names, topology = state.connections.log, state.names, state.connections.config.topology
    end = Position.end_of(done.to)
    end_of_rows = Position.end_of_causes(done.to) if config.join else end
    oldest = {HEADER_OLDEST: str(done.waiting.sequence if done.waiting else done.to + 1)} if config.join else {}
    positions, letters = encode_frame(pa.schema(POSITION_FIELDS).empty_table()), encode_frame(DEAD_LETTER_SCHEMA.empty_table())
    for bucket in range(buckets):
        marks = [
            *((role, names.out(bucket, role), end_of_rows, positions) for role in topology.writes(topology.process)),
            ("duplicates", names.duplicates(bucket), end, positions),
            ("duplicates", names.then_dropped(bucket), end, positions),
            ("dlq", names.dead_letters(PROCESS_CHAIN.leg, bucket), end, letters),
        ]
        if config.join:
            marks.append(("dlq", names.dead_letters(JOIN_LETTERS, bucket), end_of_rows, letters))
        for role, subject, at, payload in marks:
            Appender(log, names.stream(role), subject, last_position, at).append(payload, at, at, 0, oldest)
