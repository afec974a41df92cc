"""The memory of a pipeline for keys, for operators: the contents of each bucket, and the history of one key. Reads only.

It may be used beside the running pipeline: the segments that the ledger lists are immutable, and if a merge has deleted one while it was
read, the newer listing is read instead.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.config.fields import joins
from pipelines.counts import count_of
from pipelines.engine.connections import Connections
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import ConfigurationError, DataLossError, Fault, HaltError, StateDamagedError
from pipelines.key_store.store import KeyedStore
from pipelines.maintenance.replay import Start, replayed, start_at
from pipelines.process.buckets import dedup_store, live_runs
from pipelines.process.dedup import KEY_COLUMNS, with_keys
from pipelines.process.program import Program
from pipelines.process.stage_config import config_of
from pipelines.process.steps import Columns
from pipelines.process.steps.parse import parse
from pipelines.progress import Progress, no_progress
from pipelines.protocol.bodies import NEVER, PROCESS_CHAIN, ProcessDone, ProcessPlan, ProcessState
from pipelines.protocol.existence import check_started
from pipelines.protocol.lease import Lease
from pipelines.protocol.ledger import Chain, read_chain
from pipelines.protocol.naming import Names, bucket_of_key
from pipelines.protocol.positions import Position
from pipelines.protocol.purge import read_purged
from pipelines.protocol.records import RAW_SCHEMA, decode_frame, describe_frame, instant, with_positions
from pipelines.protocol.run_lists import Listing, Lists, RunLists
from pipelines.types.columns import parse_type
from pipelines.types.engine import Engine
from pipelines.types.fields import ParsedField
from pipelines.types.instants import parse_instants
from pipelines.types.vectors import one_chunk

T = TypeVar("T")
Needs = Literal["keys", "nothing"]
"""What a command needs of a pipeline: a key store, or none."""
SHOWN_DUPLICATES = 10
_MICROSECONDS = parse_type("DateTime64(6)")


@dataclass(frozen=True)
class BucketState:
    """One bucket's live segments. An entry per accepted key; a key accepted again has two until a merge."""

    bucket: int
    entries: int
    bytes: int
    runs: int


@dataclass(frozen=True)
class StoreState:
    """The dedup store as the last `done` lists it.

    `clock`: the time by which windows end, the arrival of the last processed record, or the watermark if the window is measured on a field;
    None before the first record.
    """

    pipeline: str
    key: tuple[str, ...]
    window: timedelta
    clock: datetime | None
    buckets: tuple[BucketState, ...]


@dataclass(frozen=True)
class Seen:
    """A record by its raw position and its Kafka coordinates; these are None if the raw frame was purged."""

    at: datetime
    position: str
    topic: str | None
    partition: int | None
    offset: int | None


@dataclass(frozen=True)
class KeyHistory:
    """The history of a key. `accepted` is its last accepted record, None if the store has none.

    `is_expired`: its window has ended by the pipeline's clock, so the next record of the key will be accepted. `duplicates`: records
    dropped since it was accepted, or since `counted_from`, if the raw stream was purged up to there; the first SHOWN_DUPLICATES of them
    are in `dropped`. `records_scanned` were read for this.
    """

    key: dict[str, Any]
    bucket: int
    accepted: Seen | None
    expires: datetime | None
    is_expired: bool
    duplicates: int
    dropped: tuple[Seen, ...]
    records_scanned: int
    counted_from: datetime | None = None


class KeyState:
    """The key stores of one pipeline on this host."""

    def __init__(self, config: PipelineConfig, config_text: str, home: Path, needs: Needs = "keys") -> None:
        """Create without connecting. Raise HaltError if the pipeline lacks what the caller `needs`."""
        self.names = Names(config.pipeline_id)
        self.directory = self.names.directory(home)
        storage = self.names.state_storage(self.directory, config.state_uri)
        run = RunSpec.beside(config_text, config, storage)
        self.connections = Connections(run, keep_partitions=False, config=config)
        self._lists = RunLists(self.connections.log, self.names)
        if needs != "nothing" and not joins(config) and not any(transform.type == "dedup" for transform in config.transforms):
            raise HaltError(f"looking into the key store of {config.pipeline_id}: the pipeline has no dedup and no join, so there is none")

    @property
    def joins(self) -> bool:
        """Whether the stores are those of a join."""
        return joins(self.connections.config)

    def close(self) -> None:
        self.connections.log.close()
        self.connections.close()

    def chain(self) -> ProcessState:
        """Read the process chain. Raise HaltError for a pipeline that was never started."""
        check_started(self.connections.log, self.names)
        return read_chain(self.connections.log, self.names, PROCESS_CHAIN)

    def lease(self) -> Lease:
        return Lease(self.connections.log, self.names, self.directory, PROCESS_CHAIN.leg)

    @contextmanager
    def held(self) -> Iterator[tuple[Chain[ProcessPlan, ProcessDone], ProcessState]]:
        """Hold the lease of the leg that writes the store; yield its chain, opened, and the state of the chain.

        Raise HaltError for a pipeline that was never started, FencedError while the leg runs.
        """
        check_started(self.connections.log, self.names)
        lease = self.lease()
        epoch = lease.acquire()
        try:
            chain = Chain(self.connections.log, self.names, PROCESS_CHAIN, epoch)
            yield chain, chain.open()
        finally:
            lease.release()

    def last(self, state: ProcessState) -> ProcessDone:
        """Return the last range that was done. Raise HaltError before the first.

        Its `buckets` are the store's; after a rebucketing the configuration of the range names another number.
        """
        if state.done is None:
            raise HaltError(f"looking into the key store of {self.names.pipeline}: no record has gone through the pipeline yet")
        return state.done.body

    def stage_config(self, state: ProcessState) -> Program:
        """Return the configuration of the last range that was done. Raise as `last`."""
        return config_of(self.connections, self.last(state).config)

    def store(self, state: ProcessState, bucket: int) -> KeyedStore:
        """Return the bucket's store, open on the listing of `state`. Raise as `lists`, and StateDamagedError if a segment is missing."""
        store = dedup_store(self.connections, bucket)
        store.open(live_runs(self.lists(state), str(bucket)))
        return store

    def lists(self, state: ProcessState) -> Lists:
        """Return the live segments by bucket. Raise DataLossError if a page of the ledger is missing."""
        return self._lists.of(state.done.body.runs if state.done else None)

    def check_written(self, place: str, runs: Listing) -> None:
        """Raise HaltError for a new segment that a task has written and this process does not find; it must not be listed."""
        storage = self.connections.segments(place)
        for name, *_ in runs:
            if not storage.size(name):
                raise HaltError(
                    f"writing the key store of {self.names.pipeline}: a task has written {name}, and it is not at {storage.path} here; "
                    "nothing was listed; use workers of this host, or set state_uri to a place that all of them share"
                )

    def settled(self, read: Callable[[ProcessState], T]) -> T:
        """Return `read` of the newest listing; repeat it each time that a live job has replaced segments while they were read."""
        while True:
            state = self.chain()
            try:
                return read(state)
            except (StateDamagedError, DataLossError):
                if self.chain().sequence == state.sequence:
                    raise

    def summary(self) -> StoreState:
        return self.settled(self._summary)

    def _summary(self, state: ProcessState) -> StoreState:
        config = self.stage_config(state)
        buckets = []
        for bucket in range(self.last(state).buckets):
            store = self.store(state, bucket)
            sizes = [store.storage.size(facts.name) for facts in store.live]
            buckets.append(BucketState(bucket, sum(facts.rows for facts in store.live), sum(sizes), len(sizes)))
        window = timedelta(microseconds=config.dedup.window_us)
        return StoreState(self.names.pipeline, config.dedup.key, window, clock(state, config), tuple(buckets))

    def why(self, texts: Sequence[str], progress: Progress = no_progress) -> KeyHistory:
        """Return the history of the key whose fields have these values, in the order of the file's `key`.

        It reads the raw stream from the accepted record on, about a microsecond per record; `progress` receives the frames read and their
        total. Raise ConfigurationError for a value that is not of its field's type.
        """
        return self.settled(lambda state: self._why(state, texts, progress))

    def _why(self, state: ProcessState, texts: Sequence[str], progress: Progress) -> KeyHistory:
        config = self.stage_config(state)
        values, hi, lo = hashed_key(self.connections.engine, config.dedup.key, config.before_dedup, texts)
        bucket = int(bucket_of_key(lo, self.last(state).buckets)[0])
        entry = self.store(state, bucket).find(hi, lo)
        if not entry.is_found[0]:
            return KeyHistory(values, bucket, None, None, False, 0, (), 0)
        at, first = instant(int(entry.time[0])), Position(int(entry.sequence[0]), int(entry.ordinal[0]), 0)
        expires = at + timedelta(microseconds=config.dedup.window_us)
        purged = read_purged(self.connections.log, self.names, "raw")
        start = start_at(self.connections.log, self.names, config, first.sequence, int(entry.time[0]), purged.below)
        duplicates, dropped, scanned = self._copies(state, config, (hi[0], lo[0]), first, start, progress)
        now = clock(state, config)
        is_expired, counted_from = now is not None and expires <= now, purged.since if first.sequence < purged.below else None
        return KeyHistory(values, bucket, self._seen(at, first), expires, is_expired, duplicates, tuple(dropped), scanned, counted_from)

    def _seen(self, at: datetime, position: Position) -> Seen:
        message = self.connections.log.get(self.names.stream("raw"), position.sequence)
        if message is None:
            return Seen(at, str(position), None, None, None)
        row = decode_frame(message.payload, describe_frame(message)).slice(position.ordinal, 1).to_pylist()[0]
        return Seen(at, str(position), message.headers["Tf-Topic"], row["partition"], row["offset"])

    def _copies(
        self, state: ProcessState, config: Program, key: tuple[Any, Any], first: Position, start: Start, progress: Progress
    ) -> tuple[int, list[Seen], int]:
        """Return (number, the first few, records read) of the key's records after `first` that had been processed by `state`."""
        count = records = 0
        shown: list[Seen] = []
        log, engine, to = self.connections.log, self.connections.engine, self.last(state).to
        for portion in replayed(log, self.names, engine, config, start, to, progress, self.connections.snapshots):
            hi, lo = (portion.rows.column(name).to_numpy() for name in KEY_COLUMNS)
            mine = portion.rows.take(np.flatnonzero((hi == key[0]) & (lo == key[1]))).to_pylist()
            later = [row for row in mine if Position(row["_tf_sequence"], row["_tf_ordinal"], 0) > first]
            count += len(later)
            records += portion.records
            shown += [_seen_row(row) for row in later[: SHOWN_DUPLICATES - len(shown)]]
        return count, shown, records


def hashed_key(engine: Engine, key: Sequence[str], types: Columns, texts: Sequence[str]) -> tuple[dict[str, Any], Any, Any]:
    """Return the values of a key by field, and its hash, as the stages themselves read a record with these fields.

    Raise ConfigurationError for another number of values, or one that is not of its field's type.
    """
    if len(texts) != len(key):
        message = f"the key has {count_of(len(key), 'field')} ({', '.join(key)}), {count_of(len(texts), 'value')} were given"
        raise ConfigurationError("reading the key", [Fault("", message)])
    instants = [name for name in key if types[name] == "timestamp"]
    fields = [ParsedField(name, "string" if name in instants else types[name]) for name in key]
    record = {}
    for field, text in zip(fields, texts, strict=True):
        is_text = field.type in ("string", "bytes")
        try:
            record[field.name] = text if is_text else json.loads(text)
        except ValueError:
            raise ConfigurationError("reading the key", [Fault(field.name, f"{text!r} is no {field.type}")]) from None
    row = {**dict.fromkeys(RAW_SCHEMA.names), "value": json.dumps(record).encode(), "partition": 0, "offset": 0}
    row |= {"timestamp": datetime.now(UTC)}
    records = with_positions(pa.Table.from_pylist([row], schema=RAW_SCHEMA), 1, "", 0)
    parsed = parse(engine, records, fields)
    keyed = with_keys(engine, _with_instants(engine, parsed.accepted, instants), key)
    refused = [*parsed.rejected.to_pylist(), *keyed.rejected.to_pylist()]
    if refused:
        raise ConfigurationError("reading the key", [Fault(refused[0]["field"] or "", refused[0]["message"])])
    hi, lo = (keyed.accepted.column(name).to_numpy() for name in KEY_COLUMNS)
    return record, hi, lo


def _with_instants(engine: Engine, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the rows with the texts of these fields as instants."""
    for name in names:
        instants, malformed, beyond = parse_instants(engine, one_chunk(rows.column(name)), _MICROSECONDS)
        if malformed.any() or beyond.any():
            raise ConfigurationError("reading the key", [Fault(name, "the text is no instant such as 2026-01-31T23:59:59.999Z")])
        rows = rows.set_column(rows.column_names.index(name), name, instants)
    return rows


def clock(state: ProcessState, config: Program) -> datetime | None:
    """Return the time by which windows end."""
    clock_us = config.dedup.clock_us(state.done.body) if state.done else NEVER
    return None if clock_us == NEVER else instant(clock_us)


def _seen_row(row: dict[str, Any]) -> Seen:
    position = Position(row["_tf_sequence"], row["_tf_ordinal"], 0)
    return Seen(row["_tf_arrival"], str(position), row["_tf_topic"], row["_tf_partition"], row["_tf_offset"])
