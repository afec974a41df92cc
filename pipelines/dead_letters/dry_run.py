"""A dry run of redriving dead letters now: the stages themselves, over dead letters, without Spark and without any effect.

The stages follow the pipeline file and the current table; keys are looked up in the store as the last `done` lists it. Only an
insert can show whether ClickHouse takes a row.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.sinks import Table
from pipelines.connectors.sinks.clickhouse import check_columns
from pipelines.connectors.tables import fetch
from pipelines.dead_letters.dry_run_join import BEHIND_ALL, meet
from pipelines.dead_letters.triage import Group, Selection, groups
from pipelines.errors import HaltError
from pipelines.lookups.snapshot import Snapshot
from pipelines.maintenance.inspect import KeyState
from pipelines.process.arrivals import Arrived, microseconds, steps
from pipelines.process.buckets import dedup_store, key_owners, live_runs, shares
from pipelines.process.compile import compile_program
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA, dead_letters
from pipelines.process.drop_marks import counts_of, parted
from pipelines.process.frames import frame_times
from pipelines.process.program import Program
from pipelines.process.run import records_for, run
from pipelines.process.steps import pass_through
from pipelines.process.steps.lookup import SnapshotOpener
from pipelines.protocol.bodies import NOTHING, ProcessState
from pipelines.protocol.lookup_offers import last_offer
from pipelines.protocol.naming import Names
from pipelines.protocol.outcomes import DROPPED, WAITING, label_of
from pipelines.protocol.positions import first_rows
from pipelines.protocol.records import HEADER_BYTES, HEADER_PARTITION, HEADER_ROWS, HEADER_TOPIC, Message, encode_frame, joined
from pipelines.protocol.redrive import by_source, records_of_dead_letters
from pipelines.types.duckdb import open_engine
from pipelines.without_pandas import empty_table


@dataclass(frozen=True)
class Rehearsal:
    """The result of a dry run: `letters` were tried, `refused` of them had been refused by ClickHouse.

    `passed` would reach the sink; `duplicates` would be dropped by dedup; `late` would be rejected as late; `dropped` would be kept or
    dropped by other steps, by the label of the outcome; `rejected` are the causes of the dead letters that an earlier stage would reject
    again. `released`: left records that wait in the join and would meet one of them.
    """

    letters: int
    refused: int
    passed: int
    duplicates: int
    late: int
    rejected: tuple[Group, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    released: int = 0


def rehearse(config: PipelineConfig, state: KeyState, letters: Iterable[pa.Table]) -> Rehearsal:
    """Try dead letters. Nothing is written.

    Raise HaltError if the table is missing, ConfigurationError if it does not fit the mapping, RetryableError while a system is away.
    """
    remaining = (table for table in letters if table.num_rows)
    first = next(remaining, None)
    if first is None:
        return Rehearsal(0, 0, 0, 0, 0, ())
    stage = with_tables_now(program_of_tables(config), config, state)
    tried: list[pa.Table] = []
    rows, rejected, counts = [], [], Counter[str]()
    frames: list[Arrived] = []
    for step in steps(frames_of_dead_letters(itertools.chain([first], remaining), tried)):
        frames += step
        made = run(stage, state.connections.engine, step)
        rows.append(made.rows)
        rejected.append(made.dead_letters)
        counts.update(made.counts)
    ends = (_ends_in_join if stage.join is not None else _ends_in_dedup)(state, stage, joined(rows), frames)
    rejected.append(ends.dead_letters)
    counts.update(ends.counts)
    codes_before = pc.value_counts(pa.chunked_array([part for table in tried for part in table.column("code").chunks])).to_pylist()
    refused = sum(one["counts"] for one in codes_before if one["values"] == "refused")
    causes = groups(rejected, Selection())
    is_an_end = {name: name.startswith(DROPPED) or name == WAITING.total for name in counts}
    dropped = {label_of(name): count for name, count in sorted(counts.items()) if is_an_end[name] and count}
    count = sum(table.num_rows for table in tried)
    return Rehearsal(count, refused, ends.passed, ends.duplicates, ends.late, tuple(causes), dropped, ends.released)


def program_of_tables(config: PipelineConfig) -> Program:
    """Return the program of a pipeline file for its tables as they are now. Raise RetryableError while ClickHouse is away."""
    return compile_program(config, [_table_now(seen) for seen in config.by_table])


def with_tables_now(program: Program, config: PipelineConfig, state: KeyState) -> Program:
    """Return a program with the snapshots that the next plan would name, or of tables as they are now where there are none of them."""
    log, snapshots = state.connections.log, state.connections.snapshots
    openers: dict[str, SnapshotOpener] = {}
    for name, spec in program.lookups.items():
        offered = last_offer(log, state.names, name)
        if offered is not None and offered.offer.shape == spec.shape:
            openers[name] = partial(snapshots.open, name, offered.offer.digest)
        else:
            openers[name] = partial(Snapshot, spec, fetch(name, config.tables[name], spec))
    return program.with_snapshots(openers) if openers else program


def _table_now(config: PipelineConfig) -> Table:
    """Return the facts of the table of the config's sink. Raise HaltError without it, ConfigurationError if it does not fit."""
    with closing(ClickHouse(config.sink)) as clickhouse:
        clickhouse.connect()
        table = clickhouse.inspect(config.sink.connection_params.database, config.sink.table)
    if table is None:
        raise HaltError(f"reading table {config.sink.table}: it does not exist; create it, or start the pipeline")
    check_columns(config, table)
    return table


def frames_of_dead_letters(letters: Iterable[pa.Table], tried: list[pa.Table]) -> Iterator[Arrived]:
    """Yield dead letters, none of the tables empty, as their future raw frames, each of one source; append them to `tried`."""
    now = datetime.now(UTC)
    for number, table in enumerate(itertools.chain.from_iterable(map(by_source, letters)), start=BEHIND_ALL):
        tried.append(table)
        headers = {HEADER_TOPIC: table.column("_tf_topic")[0].as_py(), HEADER_PARTITION: "0", HEADER_BYTES: str(table.nbytes)}
        headers[HEADER_ROWS] = str(table.num_rows)
        subject = Names("rehearsal").redriven(table.column("source")[0].as_py(), 0)
        yield Arrived(Message(subject, number, now, encode_frame(records_of_dead_letters(table)), headers), microseconds(now))


class _Ends(NamedTuple):
    """What becomes of the rows before dedup, or before the join: as `Rehearsal` counts them, and as dead letters what is rejected there."""

    passed: int
    duplicates: int
    late: int
    counts: Mapping[str, int]
    dead_letters: pa.Table
    released: int = 0


def _ends_in_dedup(state: KeyState, stage: Program, rows: pa.Table, frames: Sequence[Arrived]) -> _Ends:
    if not stage.dedup.key:
        return _Ends(first_rows(rows).num_rows, 0, 0, {}, empty_table(DEAD_LETTER_SCHEMA))
    judged = state.settled(lambda chain: _judged(state, chain, stage, rows, frames))
    return _Ends(judged["accepted"], judged["duplicates"], judged["late"], judged, empty_table(DEAD_LETTER_SCHEMA))


def _ends_in_join(state: KeyState, stage: Program, rows: pa.Table, frames: Sequence[Arrived]) -> _Ends:
    met, records = state.settled(lambda chain: meet(state, chain, stage, rows, frames)), records_for(stage, frames)
    passed, rejected, counts = 0, [met.rejected], Counter(met.counts)
    if met.rows.num_rows:
        behind = pass_through(stage.shared_path, stage.context(state.connections.engine), met.rows, open_engine)
        passed = first_rows(behind.accepted).num_rows
        rejected.append(behind.rejected)
        counts.update(behind.dropped)
    letters = dead_letters(records, pa.concat_tables(rejected), stage.version, source=None, is_past_dedup=True)
    return _Ends(passed, met.duplicates, met.late, counts, letters, met.released)


def _judged(state: KeyState, chain: ProcessState, stage: Program, rows: pa.Table, frames: Sequence[Arrived]) -> Counter[str]:
    """Count rows with their keys: `accepted`, `duplicates`, `late`, and by outcome those that a step behind dedup drops."""
    before, lists = chain.done.body.watermarks if chain.done else NOTHING, state.lists(chain)
    times = frame_times(rows, frames, before, stage)
    counts: Counter[str] = Counter()
    for bucket, share in shares(rows, key_owners(rows, stage.buckets)):
        store = dedup_store(state.connections, bucket)
        store.open(live_runs(lists, str(bucket)))
        found, late = stage.dedup.first_of_keys(share, store, times)
        accepted, dropped = parted(found.accepted)
        counts.update({"accepted": first_rows(accepted).num_rows, "duplicates": found.counts[1], "late": late.num_rows})
        counts.update(counts_of(dropped))
    return counts
