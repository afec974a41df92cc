"""Another number of buckets for a stopped pipeline: its key store is rewritten, and no new subject accepts rows that old ones hold.

Order of effects: new segments; a marker frame at the end of the processed range on each new subject, so that a replay finds its rows
covered; one entry of the process chain that lists the new segments and names the new number; the shape in the streams' metadata. If the
rebucketing is killed in between, a start with either number is refused until it has run again, and it may run again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipelines.config.fields import joins
from pipelines.errors import HaltError, NotSupportedError
from pipelines.key_store.segments import RunFacts, write_run
from pipelines.key_store.store import merge, run_name
from pipelines.maintenance.inspect import KeyState
from pipelines.process.buckets import dedup_store, listed, live_runs
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.protocol.append import Appender, last_position
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessDone, ProcessPlan, ProcessState
from pipelines.protocol.lease import acquire_all
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import bucket_of_key
from pipelines.protocol.positions import Position
from pipelines.protocol.records import POSITION_FIELDS, encode_frame
from pipelines.protocol.run_lists import RunLists
from pipelines.runner.preflight import change_buckets, check_other_shape


@dataclass(frozen=True)
class Rebucketed:
    """Entries of the store before (including expired ones) and after."""

    buckets_before: int
    buckets: int
    entries_before: int
    entries: int


def rebucket(state: KeyState) -> Rebucketed:
    """Give the pipeline the number of buckets of its file. Safe to kill, and to repeat.

    Raise FencedError while a leg runs, HaltError if a range was begun and not finished, or if more than the number has changed,
    NotSupportedError for a join, StateDamagedError for a damaged segment.
    """
    log, names, config = state.connections.log, state.names, state.connections.config
    if joins(config):
        raise NotSupportedError(
            f"rebucketing {names.pipeline}: the stores of a join are not supported yet, and nothing was changed; restore the former number "
            "of `buckets`, or start a new pipeline (another pipeline_id) with the new one"
        )
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
        for lease in leases.values():
            lease.release()


def _rewritten(state: KeyState, chain: Chain[ProcessPlan, ProcessDone], found: ProcessState, buckets: int) -> Rebucketed:
    if found.done is None:
        return Rebucketed(buckets, buckets, 0, 0)
    done, lists, topology = found.done.body, state.lists(found), state.connections.config.topology
    before = done.buckets
    old = {bucket: live_runs(lists, str(bucket)) for bucket in range(before)}
    new = old
    if before != buckets:
        new = {bucket: _new_runs(state, found, done, bucket) for bucket in range(buckets)}
    _mark(state, topology.writes(topology.process), buckets, Position.end_of(done.to))
    if before != buckets:
        runs = {str(bucket): listed(facts) for bucket, facts in new.items() if facts}
        pages = RunLists(state.connections.log, state.names).write(None, runs)
        chain.restate(replace(done, runs=pages, buckets=buckets))
        for bucket, facts in old.items():
            for one in facts:
                dedup_store(state.connections, bucket).storage.delete(one.name)
    counted = [sum(facts.rows for runs in each.values() for facts in runs) for each in (old, new)]
    return Rebucketed(before, buckets, *counted)


def _new_runs(state: KeyState, found: ProcessState, done: ProcessDone, bucket: int) -> list[RunFacts]:
    """Return the entries of one new bucket, from all old ones, as one segment."""
    buckets = state.connections.config.buckets
    # All entries of a key are in one old bucket, older segments first.
    old = (entries for one in range(done.buckets) for entries in state.store(found, one).checked())
    mine = (entries.take(np.flatnonzero(bucket_of_key(entries.lo, buckets) == bucket)) for entries in old)
    parts = [part for part in mine if len(part)]
    together = merge(parts, state.stage_config(found).dedup.expired_us(done)) if parts else None
    if together is None or not len(together):
        return []
    return [write_run(dedup_store(state.connections, bucket).storage, run_name((0, done.to), done.to), together)]


def _mark(state: KeyState, outs: Sequence[str], buckets: int, end: Position) -> None:
    """Append an empty frame at `end` to every subject of every bucket that does not reach it."""
    log, names = state.connections.log, state.names
    positions = encode_frame(pa.schema(POSITION_FIELDS).empty_table())
    for bucket in range(buckets):
        marks = (
            *((role, names.out(bucket, role), positions) for role in outs),
            ("duplicates", names.duplicates(bucket), positions),
            ("duplicates", names.then_dropped(bucket), positions),
            ("dlq", names.dead_letters(PROCESS_CHAIN.leg, bucket), encode_frame(DEAD_LETTER_SCHEMA.empty_table())),
        )
        for role, subject, payload in marks:
            Appender(log, names.stream(role), subject, last_position, end).append(payload, end, end, 0)
