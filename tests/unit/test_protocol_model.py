"""A model of the protocol: the real legs, chains and writers over an in-memory log, a list as Kafka and a set of tokens as ClickHouse.

Everything outside is a fake that stops before each of its calls, so a seed decides, call by call, who goes on: a leg, a second attempt of
a task, a runner that was taken for dead. A runner can be killed before every call, an acknowledgement lost, a request delayed; records
are produced, the configuration is edited, the server's clock steps back. Then a clean runner drains, the paused ones wake up, and the
account must be right: every record exactly once in the table or among the dead letters, and every count in the ledger true.

`TALLYFLOW_MODEL_SECONDS` (default 20) bounds the random part, `TALLYFLOW_MODEL_SEED` runs one seed.
"""

import hashlib
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tenacity import wait_none

import pipelines.append
import pipelines.ingest
import pipelines.legs.arrivals
import pipelines.legs.frames
import pipelines.legs.ingest
import pipelines.legs.leg
import pipelines.legs.process
import pipelines.legs.redrive
import pipelines.legs.sink
import pipelines.letters_file
import pipelines.redrive
from pipelines.breaker import Breaker
from pipelines.config import OnError
from pipelines.connectors.clickhouse import TableColumn
from pipelines.connectors.kafka import Block
from pipelines.connectors.ranges import admit
from pipelines.dead_letters import frames_that_may_go, read_frames, with_states
from pipelines.dedup import KEY_COLUMNS
from pipelines.errors import DataLossError, FencedError, InvariantError, RefusedError, RetryableError, StateDamagedError
from pipelines.ledger import Chain, Entry, read_chain
from pipelines.legs import stage_config
from pipelines.legs.arrivals import bucket_of
from pipelines.legs.ingest import IngestLeg
from pipelines.legs.leg import StoppedError
from pipelines.legs.process import ProcessLeg
from pipelines.legs.redrive import Redrive, taken
from pipelines.legs.sink import SinkLeg
from pipelines.legs.stage_config import StageConfig
from pipelines.letters_file import Edited, edited_frames
from pipelines.naming import LEGS, REDRIVE, Names
from pipelines.purge import Purge, fold_redrive, purge_letters, redrive_entries_that_may_go
from pipelines.records import (
    EMIT_FIELD,
    POSITION_COLUMNS,
    RAW_SCHEMA,
    REJECTED_SCHEMA,
    Message,
    Position,
    StageOutput,
    decode_frame,
    first_and_last,
)
from pipelines.redrive import DISCARD, ENTER, OPEN, rows_of
from pipelines.sink import chunks
from pipelines.state.place import Header
from pipelines.state.store import KeyedStore
from pipelines.tally import tally
from pipelines.testing import Fault, ManualClock, MemoryLog, records, stream_of

NAMES = Names("model")
BUCKETS = 3
TOKEN_WINDOW = 200
MAX_ATTEMPTS = 4
MAX_CALLS = 20_000
EXPIRE = "expire"
LATER = datetime(9999, 1, 1, tzinfo=UTC)
SESSION = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))


class Killed(BaseException):
    """kill -9: no `except` of the code under test may see it."""


class Actor:
    """One thread of the modelled world, which runs only while it has calls left to spend."""

    def __init__(self, world: "World", name: str, script: Callable[[], None], runner: "Runner | None" = None) -> None:
        self.world, self.name, self.runner = world, name, runner
        self.is_killed = self.is_idle = self.is_over = False
        self.error: Exception | None = None
        self.was_overtaken = False
        self._calls = 0
        self._script = script
        self._turn = threading.Lock()
        self._turn.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.is_killed:
                self._script()
        except Killed:
            pass
        except Exception as error:
            self.error, self.was_overtaken = error, self.runner.is_overtaken
        self.is_over = True
        self.world.turn.release()

    def step(self, calls: int) -> None:
        """Runs until `calls` calls are made, or until it is idle or over."""
        self.is_idle = False
        self._calls = calls
        self.world.current = self
        self._turn.release()
        self.world.turn.acquire()

    def call(self) -> None:
        """Stands before every call to the outside."""
        if self._calls == 0:
            self._pause()
        if self.is_killed:
            raise Killed
        self._calls -= 1

    def may_end_with(self, clean: "Runner") -> tuple[type[Exception], ...]:
        """Fenced by a newer one; a start or a command by an outage; what was told to stop while it waited; a second attempt by all that."""
        if self in self.world.attempts:
            # Long after its plan it may miss a run that was merged into another since, or frames that were purged.
            return FencedError, RetryableError, StateDamagedError, DataLossError, InvariantError
        fenced = (FencedError,) if self.was_overtaken else ()
        if isinstance(self.runner, Command):
            return *fenced, RetryableError
        return fenced if self.runner is clean else (*fenced, StoppedError, *((RetryableError,) if self.name == "start" else ()))

    def spend_all(self) -> None:
        self._calls = 0

    def idle(self) -> None:
        self.is_idle = True
        self._pause()
        if self.is_killed:
            raise Killed

    def _pause(self) -> None:
        self.world.turn.release()
        self._turn.acquire()
        self.world.current = self

    def kill(self) -> None:
        if not self.is_over:
            self.is_killed = True
            self.step(0)


class ModelLog(MemoryLog):
    """Stops its caller before each call."""

    def __init__(self, world: "World", clock: ManualClock) -> None:
        super().__init__(clock)
        self.world = world
        self.stored: dict[str, list[Message]] = {}

    def _reach(self, doing: str) -> None:
        self.world.call()
        super()._reach(doing)

    def _store(self, request: object) -> int:
        sequence = super()._store(request)
        stream = stream_of(request.subject)
        self.stored.setdefault(stream, []).append(self._streams[stream][sequence])
        return sequence

    def everything(self, stream: str) -> list[Message]:
        """What was ever stored, in order, purged or not."""
        return self.stored.get(stream, [])

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int:
        try:
            return super().publish(subject, payload, headers, expected)
        except RetryableError as error:
            if self.world.is_mended_at_failure:
                self.world.table.mend()
            if "is full" in str(error):
                # Its writer waits a while, and others look again, or there would never be room.
                self.world.current.spend_all()
                for actor in self.world.current.runner.actors:
                    actor.is_idle = False
            raise


class Table:
    """ClickHouse: a table that forgets all but the last TOKEN_WINDOW insert tokens, and may refuse rows by their value."""

    def __init__(self, world: "World", window: int = TOKEN_WINDOW) -> None:
        self.world, self.window = world, window
        self.rows: list[tuple[int, int, bytes]] = []
        self.tokens: list[str] = []
        self.fault: Fault | None = None
        self.refused: bytes | None = None
        self._in_flight: list[tuple[str, bytes]] = []

    def refuses(self, value: bytes) -> bool:
        return self.refused is not None and value.startswith(self.refused)

    def columns(self, database: str, name: str) -> tuple[TableColumn, ...]:
        """None that the sink could compare: nobody alters this table."""
        self.world.call()
        return ()

    def insert(self, table: str, columns: list[str], block: bytes, token: str, seconds: int) -> None:
        self.world.call()
        if self.world.is_mended_at_failure:
            self.world.log.deliver()
        fault, self.fault = self.fault, None
        refused = [number for number, (_, _, value) in enumerate(self._rows(block)) if self.refuses(value)]
        if fault is Fault.DELAYED:
            self._in_flight.append((token, block))
        elif fault is not Fault.DROPPED:
            self._store(token, block)
        if fault is not None:
            raise RetryableError("inserting: no answer")
        if refused:
            raise RefusedError("violates a constraint", self.world.rng.choice([refused[0], None]))

    @property
    def is_awaited(self) -> bool:
        return bool(self._in_flight)

    def mend(self) -> None:
        """Rows are refused no more. Never while an insert of an earlier runner may be at work: a runner waits that long (legs/sink.py)."""
        self.refused = None

    def deliver(self) -> None:
        arrived, self._in_flight = self._in_flight, []
        for token, block in arrived:
            self._store(token, block)

    def _store(self, token: str, block: bytes) -> None:
        rows = self._rows(block)
        if token in self.tokens[-self.window :] or any(self.refuses(value) for _, _, value in rows):
            return
        self.tokens.append(token)
        self.rows.extend(rows)

    @staticmethod
    def _rows(block: bytes) -> list[tuple[int, int, bytes]]:
        with pa.ipc.open_stream(block, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            rows = reader.read_all().select(["_tf_partition", "_tf_offset", "value"])
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


class Topic:
    """Kafka: per partition the records by offset, with gaps; also the reader of ranges."""

    def __init__(self, world: "World", starts: dict[int, int]) -> None:
        self.world = world
        self.first = dict(starts)
        self.end = dict(starts)
        self.held: dict[int, list[tuple[int, bytes]]] = {p: [] for p in starts}

    def produce(self, partition: int, value: bytes, gap: int) -> None:
        self.held[partition].append((self.end[partition], value))
        self.end[partition] += 1 + gap

    def add_partition(self) -> None:
        partition = len(self.held)
        self.first[partition] = self.end[partition] = 0
        self.held[partition] = []

    def expire(self) -> None:
        """Retention removes the older part of a partition."""
        partition = self.world.rng.choice(list(self.held))
        self.first[partition] = self.world.rng.randint(self.first[partition], self.end[partition])

    def facts(self) -> SimpleNamespace:
        self.world.call()
        return SimpleNamespace(topic_id="T", partitions=tuple(self.held))

    def starts(self, partitions: list[int] | None = None) -> dict[int, int]:
        self.world.call()
        return {p: self.first[p] for p in partitions or self.held}

    def ends(self) -> dict[int, int]:
        self.world.call()
        return dict(self.end)

    def read(self, ranges: dict[int, tuple[int, int]]) -> Iterator[Block]:
        left = {p: r for p, r in ranges.items() if r[0] < r[1]}
        while left:
            self.world.call()
            partition = self.world.rng.choice(sorted(left))
            start, end = left[partition]
            if start < self.first[partition]:
                raise DataLossError(f"offset {start} of partition {partition} has expired")
            stop = min(end, start + self.world.rng.randint(1, 12))
            found = [(o, v) for o, v in self.held[partition] if start <= o < stop]
            yield Block(partition, records(partition, [v for _, v in found], offsets=[o for o, _ in found]), stop)
            if stop == end:
                del left[partition]
            else:
                left[partition] = (stop, end)


class Outside:
    """What a leg's work sees as `legs.connections.Connections`."""

    def __init__(self, world: "World", epoch: int, version: str) -> None:
        self.names, self.log, self.topic, self.reader, self.engine = NAMES, world.log, world.topic, world.topic, None
        source = SimpleNamespace(source_id="orders", topic="orders", on_data_loss="skip" if world.expires else "halt")
        stages = world.config
        sink = SimpleNamespace(connection_params=SimpleNamespace(database=stages.database), table=stages.table)
        self.config = SimpleNamespace(sources=[source], sink=sink, on_error=OnError())
        limits = {"driver_offsets": world.driver_offsets, "driver_frames": world.driver_frames}
        self._world, self._stores = world, {}
        versions = {"stage_config": version, "accepted_config": version}
        self.run = SimpleNamespace(topic_id="T", epochs={"ingest": epoch}, stream_ids={"out": "S"}, **versions, **limits)

    def breaker(self, stage: str, version: str) -> Breaker:
        return Breaker(100)

    def stage_config(self, version: str) -> StageConfig:
        return stage_config.load(self.log, self.names, version)

    def dedup_store(self, bucket: int) -> KeyedStore:
        if bucket not in self._stores:
            self._stores[bucket] = KeyedStore(self._world.places.setdefault(bucket, MemoryPlace(self._world)))
        return self._stores[bucket]

    def discard_reader(self) -> None:
        """The next read starts anew anyway."""


class MemoryPlace:
    """A directory of the key store, which outlives every process; each access is a call at which its caller may die."""

    path = "memory"

    def __init__(self, world: "World") -> None:
        self._world = world
        self._held: dict[str, tuple[pa.RecordBatch, Header]] = {}

    def write(self, name: str, batch: pa.RecordBatch, header: Header) -> None:
        self._world.call()
        assert name not in self._held
        self._held[name] = (batch, header)

    def read(self, name: str) -> tuple[pa.RecordBatch, Header]:
        if name not in self._held:
            raise FileNotFoundError(name)
        return self._held[name]

    def names(self) -> list[str]:
        return sorted(self._held)

    def delete(self, name: str) -> None:
        self._world.call()
        self._held.pop(name, None)


class Runner:
    """One start of `tallyflow run`: opens its chains, anchors, then runs its legs side by side; all die together."""

    def __init__(self, world: "World") -> None:
        self.world = world
        world.epoch += 1
        self.epoch, self.config = world.epoch, world.config
        self.stop = threading.Event()
        self.lease = SimpleNamespace(lost=threading.Event(), remaining_seconds=10.0)
        self.actors = [Actor(world, "start", self._start, self)]

    def _start(self) -> None:
        log = self.world.log
        version = stage_config.store(log, NAMES, self.config)
        outside = Outside(self.world, self.epoch, version)
        legs = {}
        for name, kind in zip(LEGS, (IngestLeg, ProcessLeg, SinkLeg), strict=True):
            chain = Chain(log, NAMES.stream("ledger"), NAMES.chain(name), self.epoch)
            chain.open()
            legs[name] = kind(outside, chain, self.lease, Path("run"), self.stop)
        legs["sink"]._clickhouse = self.world.table
        legs["ingest"].anchor(self.world.topic.ends if self.world.begins_at_latest else self.world.topic.starts)
        for name, leg in legs.items():
            self.actors.append(Actor(self.world, name, partial(self._run, leg, leg.start_offset()), self))
            if self.world.max_age is not None:
                purge = Purge(log, NAMES, name, self.world.max_age)
                self.actors.append(Actor(self.world, f"purge of {name}", partial(self._purge, purge), self))

    def _purge(self, purge: Purge) -> None:
        """As the runner's own thread does, beside the legs."""
        while not self.stop.is_set():
            with suppress(RetryableError):
                self.world.rng.choice([purge.by_age, purge.for_room])()
                purge.for_room()
            self.world.current.idle()

    def _run(self, leg: object, start: dict[str, int]) -> None:
        """Spark's part: batch after batch, each as far as it likes; now and then from an old checkpoint, which must not matter."""
        world = self.world
        if world.rng.random() < 0.1:
            start = dict.fromkeys(start, 0)
        while not self.stop.is_set():
            end = admit(start, self._available(leg.name, start), world.rng.choice([1, 3, 10, 1000]))
            if end == start:
                world.current.idle()
            else:
                leg.advance(SESSION, end)
                start = end

    def _available(self, leg: str, start: dict[str, int]) -> dict[str, int]:
        if leg == "ingest":
            return {str(p): end for p, end in self.world.topic.end.items()}
        state = self.world.log.state(NAMES.stream("raw" if leg == "process" else "out"))
        return {"sequence": max(start["sequence"], state.last_sequence if state else 0)}

    def kill(self) -> None:
        for actor in self.actors:
            actor.kill()

    @property
    def is_over(self) -> bool:
        return all(actor.is_over for actor in self.actors)

    @property
    def is_overtaken(self) -> bool:
        return self.epoch < self.world.epoch


class Command:
    """One `tallyflow dlq reprocess`, `discard` or `import`: takes each waiting letter with probability `share`.

    EXPIRE is what the retention of letters does: it discards, lets frames go whose letters were all taken, and plans that no letter needs.
    """

    def __init__(self, world: "World", action: str, share: float) -> None:
        self.world, self._action, self._share = world, action, share
        world.command_epoch += 1
        self.epoch = world.command_epoch
        self.actors = [Actor(world, action, self._work, self)]

    def _work(self) -> None:
        log = self.world.log
        chain = Chain(log, NAMES.stream("ledger"), NAMES.chain(REDRIVE), self.epoch)
        chain.open()
        redrive = Redrive(log, NAMES, "orders", chain)
        if self._action == EXPIRE:
            fold_redrive(log, NAMES, redrive_entries_that_may_go(log, NAMES, timedelta(0)))
        chosen = list(self._chosen())
        if self._action == "import":
            changes = {Position(row["_tf_sequence"], row["_tf_ordinal"]): {"value": b"mended"} for _, t in chosen for row in t.to_pylist()}
            for places, payload in edited_frames(Edited("file", changes), chosen):
                redrive.enter_edited(places, payload)
            return
        wanted = ((sequence, letters["row"].to_numpy()) for sequence, letters in chosen)
        redrive.enter(wanted) if self._action == ENTER else redrive.discard(wanted, "a test")
        if self._action == EXPIRE:
            purge_letters(log, NAMES, frames_that_may_go(log, NAMES, taken(log, NAMES), LATER))

    def _chosen(self) -> Iterator[tuple[int, pa.Table]]:
        log, rng = self.world.log, self.world.rng
        for sequence, letters in with_states(read_frames(log, NAMES), taken(log, NAMES), MAX_ATTEMPTS):
            picked = letters.filter([state == OPEN and rng.random() < self._share for state in letters["state"].to_pylist()])
            if picked.num_rows:
                yield sequence, picked

    def kill(self) -> None:
        for actor in self.actors:
            actor.kill()

    @property
    def is_over(self) -> bool:
        return all(actor.is_over for actor in self.actors)

    @property
    def is_overtaken(self) -> bool:
        return self.epoch < self.world.command_epoch


def configuration(refused: str, window_us: int) -> StageConfig:
    """Stages that refuse records with the value `refused`, write its name behind the others, and drop copies within a window, if any."""
    mapping = (("v", "value", "String", False),)
    key = ("v",) if window_us else ()
    return StageConfig(1, "orders", "orders", BUCKETS, ((refused, "string"),), mapping, "db", "t", POSITION_COLUMNS, key, window_us)


def apply(value: bytes, config: StageConfig) -> bytes | None:
    """What the modelled stages make of a value: None is refused."""
    refused = config.fields[0][0].encode()
    return None if value == refused else value + b" not " + refused


def model_parse(_: None, table: pa.Table, fields: list[object], keep: Sequence[str] = ()) -> StageOutput:
    refused = fields[0].name.encode()
    for name in keep:
        table = table.append_column(f"_tf_{name}", table[name])
    fits = pc.not_equal(table["value"], pa.scalar(refused, pa.binary()))
    bad = table.filter(pc.invert(fits))
    fixed = [pa.array([text] * bad.num_rows, pa.string()) for text in ("parse", "invalid_json", None, "refused")]
    rejected = pa.table([bad["_tf_sequence"], bad["_tf_ordinal"], *fixed], schema=REJECTED_SCHEMA)
    kept = table.filter(fits)
    value = pc.binary_join_element_wise(kept["value"], pa.scalar(refused, pa.binary()), pa.scalar(b" not ", pa.binary()))
    return StageOutput(kept.set_column(kept.schema.get_field_index("value"), "value", value), rejected)


def model_keys(_: None, table: pa.Table, fields: list[str]) -> StageOutput:
    """The key is the value that was produced, whatever the configuration made of it."""
    hashes = [hashlib.md5(produced(value)).digest() for value in table["value"].to_pylist()]
    for name, half in zip(KEY_COLUMNS, (slice(8), slice(8, 16)), strict=True):
        table = table.append_column(name, pa.array([int.from_bytes(digest[half], "big") for digest in hashes], pa.uint64()))
    return StageOutput(table, REJECTED_SCHEMA.empty_table())


def produced(value: bytes) -> bytes:
    return value.split(b" not ")[0]


def model_map(_: None, table: pa.Table, targets: list[object], keep: Sequence[str] = ()) -> StageOutput:
    emit = pa.nulls(table.num_rows, EMIT_FIELD.type).fill_null(0)
    columns = [emit if name == EMIT_FIELD.name else table[name] for name in POSITION_COLUMNS]
    columns += [table[name] for name in keep]
    return StageOutput(pa.table([table["value"], *columns], names=["value", *POSITION_COLUMNS, *keep]), REJECTED_SCHEMA.empty_table())


def uncompressed(table: pa.Table) -> bytes:
    """A frame without lz4, which Arrow runs on a thread pool: most of the time of a history of small frames."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


@lru_cache(maxsize=500)
def stored_rows(payload: bytes) -> pa.Table:
    return decode_frame(payload)


class Inline:
    """A ThreadPoolExecutor whose work is done when it is submitted."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., None], *args: object) -> "Future[None]":
        future: Future[None] = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class World:
    """One history. Everything random comes from `rng`, and only one actor runs at a time, so a seed is a story."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.turn = threading.Lock()
        self.turn.acquire()
        self.current: Actor | None = None
        self.calls = 0
        self.epoch = self.command_epoch = 0
        self.window_us = self.rng.choice([0, 0, 2_000_000, 10**12])
        self.config = configuration("bad", self.window_us)
        self.places: dict[int, MemoryPlace] = {}
        self.clock = ManualClock()
        self.log = ModelLog(self, self.clock)
        self.table = Table(self)
        self.table.refused = self.rng.choice([None, b"fine", b"fine"])
        self.driver_offsets = self.rng.choice([0, 1000])
        self.driver_frames = self.rng.choice([0, 2, 1000])
        self.topic = Topic(self, {0: 0, 1: self.rng.choice([0, 7])})
        self.max_age = self.rng.choice([None, timedelta(0), timedelta(0), timedelta(seconds=2), timedelta(seconds=20)])
        if self.max_age is not None and self.rng.random() < 0.3:
            self.log.max_bytes = {NAMES.stream(role): self.rng.choice([30_000, 60_000, 200_000]) for role in ("raw", "out")}
        self.begins_at_latest, self.expires = self.rng.random() < 0.2, self.rng.random() < 0.2
        self.runners: list[Runner] = []
        self.commands: list[Command] = []
        self.attempts: list[Actor] = []
        self.strike: tuple[int, str] | None = None
        self.is_mended_at_failure = False
        self.is_frozen = False
        self._patch(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        """Small limits, so that a short history has many frames, plans and chunks; and the outside of the legs."""
        for module in (pipelines.append, pipelines.ingest, pipelines.legs.redrive, pipelines.letters_file):
            patch.setattr(module, "cut_frames", self._cut)
        for module in (pipelines.legs.ingest, pipelines.legs.frames):
            patch.setattr(module, "ThreadPoolExecutor", Inline)
        for module in (pipelines.legs.ingest, pipelines.legs.process):
            patch.setattr(module, "run_in_tasks", self._run_in_tasks)
        for module in (pipelines.ingest, pipelines.legs.ingest):
            patch.setattr(module, "encode_frame", uncompressed)
        patch.setattr(pipelines.redrive, "MAX_PLAN_LETTERS", self.rng.choice([2, 1000]))
        patch.setattr(pipelines.legs.ingest, "FLUSH_BYTES", self.rng.choice([1, 200, 10_000]))
        patch.setattr(pipelines.legs.process, "MAX_FRAMES_PER_BATCH", self.rng.choice([2, 5, 100]))
        patch.setattr(pipelines.legs.arrivals, "FRAMES_PER_STEP", self.rng.choice([1, 2, 12]))
        patch.setattr(pipelines.legs.frames, "parse", model_parse)
        patch.setattr(pipelines.legs.frames, "map_columns", model_map)
        patch.setattr(pipelines.legs.frames, "with_keys", model_keys)
        patch.setattr(pipelines.legs.frames, "encode_frame", uncompressed)
        patch.setattr(pipelines.legs.process, "run_with_exchange", self._run_with_exchange)
        # An insert of the model lasts no time, unless it is delivered late, and then it is refused like the first one.
        patch.setattr(pipelines.legs.sink, "INSERT_MAX_EXECUTION_SECONDS", 0)
        patch.setattr(pipelines.legs.sink, "chunks", lambda messages: chunks(messages, max_rows=self.rng.choice([2, 6, 1000])))
        patch.setattr(pipelines.legs.leg, "wait_exponential_jitter", lambda **_: wait_none())

    def _cut(self, table: pa.Table) -> Iterator[tuple[pa.Table, bytes]]:
        start = 0
        while start < table.num_rows:
            part = table.slice(start, self.rng.randint(1, 6))
            yield part, uncompressed(part)
            start += part.num_rows

    def _run_in_tasks(self, session: object, run_path: str, work: Callable[..., dict], items: list[dict]) -> list[dict]:
        """Each item once, and now and then a second attempt beside it, which may outlive its plan and its runner."""
        runner = self.current.runner
        reports = []
        for item in items:
            text = json.dumps(item)
            outside = Outside(self, runner.epoch, "")
            if self.rng.random() < 0.3:
                self.attempts.append(Actor(self, "second attempt", lambda o=outside, t=text: work(o, json.loads(t)), runner))
            reports.append(json.loads(json.dumps(work(outside, json.loads(text)))))
        return reports

    def _run_with_exchange(
        self, session: object, run_path: str, first: Callable, items: list[dict], second: Callable, shared: dict, buckets: int
    ) -> list[dict]:
        """First tasks may be tried twice, the parcels of the second attempt count; a bucket's task as any other task."""
        runner = self.current.runner
        parcels: list[tuple[int, str, bytes]] = []
        for item in items:
            for _ in range(self.rng.choice([1, 1, 2])):
                sent = list(first(Outside(self, runner.epoch, ""), json.loads(json.dumps(item))))
            parcels += sent
        self.rng.shuffle(parcels)
        reports = []
        for bucket in sorted({bucket for bucket, _, _ in parcels}):
            here = [(kind, payload) for to, kind, payload in parcels if to == bucket]

            def work(outside: Outside, item: dict, bucket: int = bucket, here: list[tuple[str, bytes]] = here) -> dict:
                return second(outside, item, bucket, here)

            reports += self._run_in_tasks(session, run_path, work, [shared])
        return reports

    def call(self) -> None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise AssertionError("the history does not come to an end")
        if self.strike is not None and self.calls == self.strike[0]:
            self._strike_now(self.strike[1])
        if self.current is not None:
            self.current.call()

    def _strike_now(self, kind: str) -> None:
        """Kills or pauses who is at work, in the middle of whatever it does."""
        if kind == "kill":
            for actor in self.current.runner.actors:
                actor.is_killed = True
        else:
            self.is_frozen = True
            self.current.spend_all()

    def start(self) -> Runner:
        self.runners.append(Runner(self))
        return self.runners[-1]

    def command(self, action: str, share: float = 1.0) -> Command:
        self.commands.append(Command(self, action, share))
        return self.commands[-1]

    def everybody(self) -> list[Actor]:
        return [*(a for r in (*self.runners, *self.commands) for a in r.actors), *self.attempts]

    def actors(self) -> list[Actor]:
        return [a for a in self.everybody() if not a.is_over]

    def produce(self, count: int) -> None:
        for _ in range(count):
            value = self.rng.choice([b"bad", b"odd", b"good", b"fine"])
            self.topic.produce(self.rng.choice(list(self.topic.held)), value, self.rng.choice([0, 0, 0, 1, 5]))

    def finish(self, actors: list[Actor]) -> None:
        """Runs these actors until each is over or idle."""
        while waiting := [a for a in actors if not a.is_over and not a.is_idle]:
            for actor in waiting:
                if not self.is_frozen:
                    actor.step(1000)
            if self.is_frozen:
                return

    def drain(self, runner: Runner) -> None:
        """Runs one runner until all its legs are idle, one after another, with nothing left for the next."""
        while True:
            before = self.log.publishes
            for actor in runner.actors:
                actor.is_idle = False
            self.finish(list(runner.actors))
            if runner.is_over or self.is_frozen or (self.log.publishes == before and len(runner.actors) > 1):
                return

    def settle(self) -> None:
        """The end of every history: a clean runner drains; whatever was paused or in flight comes to life; the account is checked twice."""
        self.log.come_back()
        self.table.fault, self.is_frozen = None, False
        clean = self.start()
        self.drain(clean)
        # Whatever a command has left open is finished by the next one, which takes what it likes.
        self.finish(self.command(ENTER, self.rng.choice([0, 0.5, 1])).actors)
        self.drain(clean)
        self.check(clean)
        self.current = None
        self.log.deliver()
        self.table.deliver()
        for runner in self.runners:
            if runner is not clean:
                runner.stop.set()
        self.finish_zombies(clean)
        self.drain(clean)
        self.check(clean)
        for actor in self.actors():
            actor.kill()

    def finish_zombies(self, clean: Runner) -> None:
        while zombies := [a for a in self.actors() if a.runner is not clean or a in self.attempts]:
            self.rng.choice(zombies).step(self.rng.randint(1, 9))

    def check(self, clean: Runner) -> None:
        self.current = None
        """Nobody may end in surprise, and nobody may think that it was overtaken when it was not."""
        for actor in self.everybody():
            if actor.error is not None and not isinstance(actor.error, actor.may_end_with(clean)):
                raise AssertionError(f"{actor.name} of runner {actor.runner.epoch}: {actor.error!r}") from actor.error
        check_account(self)


def entries(log: ModelLog, leg: str) -> list[Entry]:
    return [Entry.decode(m) for m in log.everything(NAMES.stream("ledger")) if m.subject == NAMES.chain(leg)]


def check_account(world: World) -> None:
    log = world.log
    for leg in (*LEGS, REDRIVE):
        check_chain(entries(log, leg))
    anchor = next(entry for entry in entries(log, "ingest") if entry.kind == "plan")
    begin = {p: anchor.body["to"].get(str(p), 0) for p in world.topic.held}
    read, skipped = check_raw(world, begin)
    accepted, refused, duplicates = expected_outcomes(world)
    letters = {place(row): row for m in log.everything(NAMES.stream("dlq")) for row in stored_rows(m.payload).to_pylist()}
    assert len(letters) == sum(m.rows for m in log.everything(NAMES.stream("dlq"))), "a letter is there twice"
    of_sink = {at for at, row in letters.items() if row["stage"] == "sink"}
    # A table that was mended has refused some of these rows only.
    assert all(accepted[at][2].startswith(b"fine") for at in of_sink)
    assert all(at in of_sink for at, row in accepted.items() if world.table.refuses(row[2]))
    stored = [row for at, row in accepted.items() if at not in of_sink]
    assert_only_listed_runs_are_left(world)
    assert Counter(world.table.rows) == Counter(stored), "table"
    for row in accepted:
        refused |= {row: (*accepted[row][:2], produced(accepted[row][2]))} if row in of_sink else {}
    assert {at: (row["_tf_partition"], row["_tf_offset"], row["value"]) for at, row in letters.items()} == refused, "dead letters"
    for row in letters.values():
        before = letters[tuple(map(int, row["origin"].split(".")))] if row["origin"] else {"attempts": 0, "past_dedup": False}
        assert row["attempts"] == before["attempts"] + 1
        assert row["past_dedup"] == (row["stage"] == "sink" or before["past_dedup"])
    redriven, discarded = check_taken(world, letters)
    waiting = [row[:2] for at, row in refused.items() if at not in redriven]
    assert max(Counter([*waiting, *(row[:2] for row in stored)]).values(), default=1) == 1, "a record is in two places"
    assert len(waiting) + len(stored) + duplicates == read
    totals = {leg: [e for e in entries(log, leg) if e.kind == "done"] for leg in (*LEGS, REDRIVE)}
    counts = {leg: Counter(done[-1].body["totals"]) if done else Counter() for leg, done in totals.items()}
    assert counts["ingest"]["rows_out"] == read
    assert counts["process"]["rows_in"] == read + len(redriven)
    assert counts["ingest"]["offsets"] == sum(world.topic.end.values()) - sum(begin.values())
    assert counts["ingest"]["offsets_skipped"] == skipped
    assert counts["ingest"]["offsets_without_record"] == counts["ingest"]["offsets"] - read - skipped
    assert counts["process"]["rows_out"] == counts["sink"]["rows_in"] == len(accepted)
    assert (counts["sink"]["rows_out"], counts["sink"]["rows_rejected"]) == (len(stored), len(of_sink))
    assert (counts["process"]["rows_rejected"], counts["process"]["duplicates"]) == (len(refused) - len(of_sink), duplicates)
    assert (counts[REDRIVE]["redriven"], counts[REDRIVE]["discarded"]) == (len(redriven), len(discarded))
    account = tally(log, NAMES)
    assert account.residue == 0
    assert [leg.waiting for leg in account.legs] == [0, 0, 0]
    assert list(account.letters.outcomes.values()) == [len(redriven), len(discarded), len(letters) - len(redriven) - len(discarded)]


def place(row: dict[str, object]) -> tuple[int, int]:
    return row["_tf_sequence"], row["_tf_ordinal"]


def check_taken(world: World, letters: dict[tuple[int, int], dict]) -> tuple[set, set]:
    """(positions of the letters that entered again, of those that were discarded): no letter twice, each as it was, or as it was edited."""
    log, taken_rows = world.log, []
    discarded = set()
    for plan in (e for e in entries(log, REDRIVE) if e.kind == "plan"):
        for sequence, ranges in plan.body["letters"]:
            rows = rows_of(ranges).tolist()
            taken_rows += [(sequence, row) for row in rows]
            if plan.body["action"] == DISCARD:
                (frame,) = [stored_rows(m.payload) for m in log.everything(NAMES.stream("dlq")) if m.sequence == sequence]
                discarded |= {place(row) for row in frame.take(rows).to_pylist()}
    assert len(taken_rows) == len(set(taken_rows)), "a letter was taken twice"
    redriven = {}
    for message in log.everything(NAMES.stream("raw")):
        if ".redrive." in message.subject:
            for row in stored_rows(message.payload).to_pylist():
                origin = tuple(int(part) for part in row["origin"].split("."))
                assert origin not in redriven
                redriven[origin] = row
                letter = letters[origin]
                assert row["value"] in (letter["value"], b"mended")
                assert message.headers["Tf-Partition"] == str(letter["_tf_partition"])
                expected = (letter["_tf_partition"], letter["_tf_offset"], letter["attempts"], letter["first_time"], letter["past_dedup"])
                assert (row["partition"], row["offset"], row["attempts"], row["first_time"], row["past_dedup"]) == expected
    assert len(redriven) + len(discarded) == len(taken_rows)
    assert discarded.isdisjoint(redriven)
    return set(redriven), discarded


def check_chain(chain: list[Entry]) -> None:
    """Plans and dones alternate, each done closes its plan, each range begins where the one before ended, totals are sums.

    A plan may be amended, for the same range.
    """
    to, plan, totals, epoch = None, None, Counter(), 0
    for entry in chain:
        assert entry.epoch >= epoch
        epoch = entry.epoch
        if entry.kind == "plan" and plan is not None:
            assert {**plan.body, **entry.body, "pieces": 0} == {**plan.body, "pieces": 0}
            plan = entry
        elif entry.kind == "plan":
            start = entry.body["from"]
            assert to is None or {**dict.fromkeys(start, 0), **to} == start if isinstance(start, dict) else (to or 0) == start
            plan = entry
        elif entry.kind == "done":
            assert plan is not None
            assert (entry.body["from"], entry.body["to"]) == (plan.body["from"], plan.body["to"])
            totals.update(entry.body["counts"])
            assert {k: v for k, v in totals.items() if v} == {k: v for k, v in entry.body["totals"].items() if v}
            to, plan = entry.body["to"], None
    # A plan without a position in it may wait for the next batch: it has no effect.
    assert plan is None or plan.body["from"] == plan.body["to"]


def check_raw(world: World, begin: dict[int, int]) -> tuple[int, int]:
    """Frames cover each partition's offsets without gap or overlap, and hold its records but those that had expired.

    Returns the records stored and the offsets skipped.
    """
    produced = {(p, o): v for p, held in world.topic.held.items() for o, v in held if o >= begin[p]}
    stored: dict[tuple[int, int], bytes] = {}
    reached, skipped = dict(begin), 0
    for message in (m for m in world.log.everything(NAMES.stream("raw")) if ".redrive." not in m.subject):
        partition = int(message.headers["Tf-Partition"])
        first, last = int(message.headers["Tf-First"]), int(message.headers["Tf-Last"])
        assert first == reached[partition]
        reached[partition] = last + 1
        frame = stored_rows(message.payload)
        assert frame.schema == RAW_SCHEMA
        offsets = frame["offset"].to_pylist()
        assert all(first <= offset <= last for offset in offsets)
        stored.update(zip([(partition, offset) for offset in offsets], frame["value"].to_pylist(), strict=True))
        if "Tf-Skipped" in message.headers:
            assert int(message.headers["Tf-Skipped"]) == last - first + 1
            assert last < world.topic.first[partition]
            skipped += last - first + 1
            produced = {(p, o): v for (p, o), v in produced.items() if p != partition or not first <= o <= last}
    assert reached == world.topic.end
    assert stored == produced
    return len(stored), skipped


def assert_only_listed_runs_are_left(world: World) -> None:
    """Of ranges that are done: a later attempt may have left a run for the range that it stood in."""
    done = [e for e in entries(world.log, "process") if e.kind == "done"][-1]
    listed = {name for listing in done.body["runs"].values() for name, *_ in listing}
    assert listed <= {name for place in world.places.values() for name in place.names()}


def expected_outcomes(world: World) -> tuple[dict[tuple, tuple], dict[tuple, tuple], int]:
    """(rows by raw position, dead letters by raw position, duplicates), by the configuration of the plan that covers each raw frame; checks
    the order of out frames.
    """
    log = world.log
    plans = [e for e in entries(log, "process") if e.kind == "plan"]
    accepted, refused, duplicates = {}, {}, 0
    last_of: dict[bytes, int] = {}
    arrival = 0
    for message in log.everything(NAMES.stream("raw")):
        (plan,) = [p for p in plans if p.body["from"] < message.sequence <= p.body["to"]]
        config = stage_config.load(log, NAMES, plan.body["config"])
        arrival = max(arrival, int(message.time.timestamp() * 1_000_000))
        for ordinal, row in enumerate(stored_rows(message.payload).to_pylist()):
            at, value, is_past = (message.sequence, ordinal), row["value"], bool(row.get("past_dedup"))
            outcome = apply(value, config)
            if outcome is None:
                refused[at] = (row["partition"], row["offset"], value)
                continue
            if not is_past and value in last_of and arrival - last_of[value] < world.window_us:
                duplicates += 1
                continue
            if not is_past:
                last_of[value] = arrival
            accepted[at] = (row["partition"], row["offset"], outcome)
    raw = {m.sequence: m for m in log.everything(NAMES.stream("raw"))}
    ends: dict[str, object] = {}
    for message in log.everything(NAMES.stream("out")):
        first, last = first_and_last(stored_rows(message.payload))
        assert world.window_us or message.subject == NAMES.out(bucket_of(raw[first.sequence], BUCKETS))
        assert message.subject not in ends or ends[message.subject] < first
        ends[message.subject] = last
    return accepted, refused, duplicates


def chaos(world: World, steps: int) -> None:
    """A seed's history: legs go on in turns of a few calls, and now and then something happens."""
    rng, log = world.rng, world.log
    world.produce(rng.randint(1, 15))
    paused: set[Runner] = set()
    for _ in range(steps):
        live = [r for r in world.runners if not r.is_over]
        event = rng.random()
        if not [r for r in live if r not in paused] or event < 0.02:
            paused.update(r for r in live if rng.random() < 0.5)
            world.start()
        elif event < 0.05:
            rng.choice(live).kill()
        elif event < 0.08:
            paused.symmetric_difference_update([rng.choice(live)])
        elif event < 0.12:
            log.fail_publish(rng.choice(list(Fault)), rng.randint(1, 6))
        elif event < 0.14:
            world.table.fault = rng.choice(list(Fault))
        elif event < 0.16:
            world.current = None
            log.deliver()
            world.table.deliver()
        elif event < 0.22 and len(world.topic.held) and sum(map(len, world.topic.held.values())) < 60:
            world.produce(rng.randint(1, 8))
        elif event < 0.23:
            world.config = configuration(rng.choice(["bad", "odd"]), world.window_us)
        elif event < 0.25:
            world.clock.advance(timedelta(seconds=rng.choice([-5, 1, 10])))
        elif event < 0.26 and len(world.topic.held) < 4:
            world.topic.add_partition()
        elif event < 0.28 and world.expires:
            world.topic.expire()
        elif event < 0.3 and len(live) == 1 and not world.table.is_awaited:
            world.table.mend()
        elif event < 0.38 and log.messages(NAMES.stream("dlq")):
            world.command(rng.choice([ENTER, ENTER, DISCARD, "import", EXPIRE, EXPIRE]), rng.choice([0.3, 1]))
        elif event < 0.41 and world.commands:
            rng.choice([world.commands[-1].kill, partial(paused.symmetric_difference_update, world.commands[-1:])])()
        else:
            awake = [a for a in world.actors() if a.runner not in paused or a in world.attempts]
            if awake:
                rng.choice(awake).step(rng.choice([1, 1, 2, 5, 15]))


def play(seed: int) -> World:
    with pytest.MonkeyPatch.context() as patch:
        world = World(seed, patch)
        try:
            chaos(world, world.rng.choice([10, 30, 100]))
            world.settle()
        finally:
            for actor in world.actors():
                actor.kill()
        return world


def test_every_record_is_accounted_for_in_random_histories() -> None:
    if seed := os.environ.get("TALLYFLOW_MODEL_SEED"):
        play(int(seed))
        return
    deadline = time.monotonic() + float(os.environ.get("TALLYFLOW_MODEL_SECONDS", "20"))
    seed = 0
    while time.monotonic() < deadline:
        try:
            play(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed} (TALLYFLOW_MODEL_SEED={seed}): {error}") from error
        seed += 1
    print(f"{seed} histories")


def short_history(
    prepare: Callable[[World], None],
    window_us: int = 0,
    is_mended: bool = False,
    max_age: timedelta | None = None,
    command: str = "",
) -> tuple[int, int]:
    """One runner over two partitions, its legs one after the other, with what `prepare` arranged; then the end of every history.

    `is_mended`: before that the table is mended, which has refused some of the rows. `command`: that takes all letters when the runner has
    drained, and what `prepare` arranges is for the command.
    Returns how many calls the first runner, or the command, made, and how many of them published.
    """
    with pytest.MonkeyPatch.context() as patch:
        world = World(4, patch)
        world.window_us, world.config = window_us, configuration("bad", window_us)
        world.max_age, world.log.max_bytes = max_age, {}
        world.topic = Topic(world, {0: 0, 1: 7})
        world.begins_at_latest = world.expires = False
        world.table.refused = b"fine"
        for number, value in enumerate([b"good", b"bad", b"fine", b"odd", b"good", b"fine", b"fine"]):
            world.topic.produce(number % 2, value, gap=number % 3)
        try:
            first = world.start()
            if command:
                world.drain(first)
            before = world.calls, world.log.publishes
            prepare(world)
            world.finish(world.command(command).actors) if command else world.drain(first)
            made = world.calls - before[0], world.log.publishes - before[1]
            if is_mended:
                world.table.mend()
            world.produce(2)
            world.settle()
        finally:
            for actor in world.actors():
                actor.kill()
        return made


def arrange(call: int, kind: str, world: World) -> None:
    world.strike = (world.calls + call, kind)


@pytest.mark.parametrize("kind", ["kill", "pause"])
@pytest.mark.parametrize("window_us", [0, 10**12], ids=["without dedup", "with dedup"])
def test_a_runner_may_be_killed_or_paused_before_every_single_call(kind: str, window_us: int) -> None:
    calls, _ = short_history(lambda world: None, window_us)
    assert calls > 60
    for call in range(1, calls + 1):
        try:
            short_history(partial(arrange, call, kind), window_us)
        except BaseException as error:
            raise AssertionError(f"{kind} before call {call} of {calls}: {error}") from error


@pytest.mark.parametrize("kind", ["kill", "pause"])
@pytest.mark.parametrize("command", [ENTER, DISCARD, "import", EXPIRE])
@pytest.mark.parametrize("window_us", [0, 10**12], ids=["without dedup", "with dedup"])
def test_a_command_that_takes_letters_may_be_killed_or_paused_before_every_single_call(kind: str, command: str, window_us: int) -> None:
    calls, publishes = short_history(lambda world: None, window_us, command=command)
    assert calls > publishes > 2
    for call in range(1, calls + 1):
        try:
            short_history(partial(arrange, call, kind), window_us, command=command)
        except BaseException as error:
            raise AssertionError(f"{kind} before call {call} of {calls}: {error}") from error


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("command", [ENTER, DISCARD, "import", EXPIRE])
def test_every_single_publish_of_a_command_that_takes_letters_may_fail(fault: Fault, command: str) -> None:
    _, publishes = short_history(lambda world: None, command=command)
    for number in range(1, publishes + 1):
        try:
            short_history(lambda world, n=number: world.log.fail_publish(fault, n), command=command)
        except BaseException as error:
            raise AssertionError(f"{fault.value} at publish {number}: {error}") from error


def test_a_runner_that_purges_may_be_killed_before_every_single_call() -> None:
    calls, _ = short_history(lambda world: None, max_age=timedelta(0))
    for call in range(1, calls + 1):
        try:
            short_history(partial(arrange, call, "kill"), max_age=timedelta(0))
        except BaseException as error:
            raise AssertionError(f"kill before call {call} of {calls}: {error}") from error


def test_a_table_may_be_mended_after_a_kill_before_every_single_call() -> None:
    calls, _ = short_history(lambda world: None, is_mended=True)
    for call in range(1, calls + 1):
        try:
            short_history(partial(arrange, call, "kill"), is_mended=True)
        except BaseException as error:
            raise AssertionError(f"kill before call {call} of {calls}: {error}") from error


@pytest.mark.parametrize("fault", list(Fault))
def test_a_table_may_be_mended_while_any_publish_fails_and_a_late_one_arrives_with_the_next_insert(fault: Fault) -> None:
    _, publishes = short_history(lambda world: None)
    for number in range(1, publishes + 1):

        def fail(world: World, number: int = number) -> None:
            world.is_mended_at_failure = True
            world.log.fail_publish(fault, number)

        try:
            short_history(fail)
        except BaseException as error:
            raise AssertionError(f"{fault.value} at publish {number}: {error}") from error


@pytest.mark.parametrize("fault", list(Fault))
def test_every_single_publish_may_fail(fault: Fault) -> None:
    _, publishes = short_history(lambda world: None)
    assert publishes > 20
    for number in range(1, publishes + 1):
        try:
            short_history(lambda world, n=number: world.log.fail_publish(fault, n))
        except BaseException as error:
            raise AssertionError(f"{fault.value} at publish {number}: {error}") from error


def forgets_plans_of_letters_that_are_there(log: ModelLog, names: Names, max_age: timedelta) -> int:
    done = read_chain(log, names.stream("ledger"), names.chain(REDRIVE)).done
    return done.sequence if done else 0


def test_a_folding_that_forgets_letters_which_are_still_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.redrive_entries_that_may_go", forgets_plans_of_letters_that_are_there)
    with pytest.raises(AssertionError, match="a letter was taken twice"):
        for seed in range(300):
            play(seed)


def takes_the_last_message(self: Purge, stream: str, subject: str, below: int) -> None:
    last = self._log.last(stream, subject)
    if last is not None:
        self._log.purge(stream, subject, min(below, last.sequence) + 1)


def takes_what_the_sink_has_not_read(self: Purge, role: str, below: int) -> None:
    if role == "out":
        for subject in self._log.subjects(NAMES.stream(role), NAMES.subjects(role)):
            self._purge_subject(NAMES.stream(role), subject, 10**9)


def takes_records_of_rows_that_are_not_confirmed(self: Purge, to: int) -> tuple[int, int]:
    return to, to


@pytest.mark.parametrize(
    ("step", "mistake"),
    [
        ("_purge_subject", takes_the_last_message),
        ("_purge_frames", takes_what_the_sink_has_not_read),
        ("_limits", takes_records_of_rows_that_are_not_confirmed),
    ],
)
def test_a_purge_that_goes_too_far_is_found(step: str, mistake: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Purge, step, mistake)
    # A leg that waits for what is gone never ends; no sound history of these has taken half as many.
    monkeypatch.setattr(f"{__name__}.MAX_CALLS", 6000)
    with pytest.raises(AssertionError):
        for seed in range(300):
            play(seed)
