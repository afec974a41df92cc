"""One step of the process leg alone: CPU of everything between a raw frame and the published out frame, by part and by number of events.

The pipeline is the example with its dedup, the publisher counts instead of publishing, all keys are new. A step runs whole
(`process.leg.process_frames`), then its parts run one after the other on other events, so the parts need not add up to the whole.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, TypeVar

import pyarrow as pa
import yaml

from bench.release import HERE
from pipelines.collection import collect_rarely
from pipelines.config import parse
from pipelines.connectors.sinks import Table, TableColumn
from pipelines.demo.events import Recipe
from pipelines.demo.orders import orders
from pipelines.engine.connections import Kept, Means
from pipelines.engine.lanes import NO_LANES
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore, bucket_with_turn
from pipelines.process.arrivals import Arrived, records_of
from pipelines.process.buckets import key_owners, live_runs, shares
from pipelines.process.compile import compile_program
from pipelines.process.frames import process_frames
from pipelines.process.items import Admission, ProcessItem
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.steps import Context, Step
from pipelines.protocol.ledger import Append
from pipelines.protocol.naming import DEDUP_STORE, Names, listed_as
from pipelines.protocol.records import HEADER_BYTES, HEADER_PARTITION, HEADER_ROWS, HEADER_TOPIC, RAW_SCHEMA, Message, cut_frames, joined
from pipelines.testing import FIRST_INSTANT, SINGLE
from pipelines.types.duckdb import open_engine

PARTS = ("whole", "decode", "parse", "keys", "map", "stages", "find", "store", "encode")
"""`stages` is decode, parse, keys, map and what lies between them; the last three are of all buckets."""
EVENTS = (1, 40, 200, 1_000, 5_000, 50_000)
SIZES = (200, 1_500)
_LEAST_REPETITIONS, _EVENTS_PER_CASE, _MOST_REPETITIONS = 7, 150_000, 200
_BLOCK_EVENTS = 2_000
_WINDOW_US = 24 * 3600 * 1_000_000
Made = TypeVar("Made")


@dataclass(frozen=True)
class StepCost:
    """Medians of CPU milliseconds per step, of all threads of the process."""

    size: int
    events: int
    buckets: int
    repetitions: int
    ms: dict[str, float]


class _Log:
    """Takes every frame."""

    def __init__(self) -> None:
        self._ends: dict[str, int] = defaultdict(int)

    def last(self, stream: str, subject: str) -> None:
        return None

    def publish_all(self, appends: Sequence[Append]) -> list[int]:
        return [self._appended(one.subject) for one in appends]

    def _appended(self, subject: str) -> int:
        self._ends[subject] += 1
        return self._ends[subject]


class _Connections(Kept):
    """What the process leg reaches, in this process."""

    def __init__(self, program: Program, directory: Path) -> None:
        super().__init__()
        self.names, self.log, self.engine, self.means = Names("bench"), _Log(), open_engine(), Means()
        self.config, self.lanes = SimpleNamespace(topology=SINGLE, sink_leg=SINGLE.sinks[0]), NO_LANES
        self.run = SimpleNamespace(stage_config=program.version, accepted_config=program.version)
        self.keep(("stage config", program.version), lambda: program)
        self._directory = directory

    def segments(self, key: str) -> Storage:
        return self.keep(("segments", key), lambda: Storage.local(self._directory / key))

    def discard_engine(self) -> None:
        """Only after an error, which ends the measurement."""


def program_of_the_example(buckets: int) -> Program:
    """Compile the example for the table that it would create."""
    document = yaml.safe_load(HERE.example.read_text())
    environment = {
        "KAFKA_BOOTSTRAP": "localhost:1",
        "CLICKHOUSE_HOST": "localhost",
        "CLICKHOUSE_PORT": "1",
        "NATS_URL": "nats://localhost:1",
    }
    config = parse(yaml.safe_dump({**document, "buckets": buckets}), name="the example", environment=environment)
    columns = [TableColumn(column.column_name, column.column_type, "") for column in config.sink.mapping]
    return compile_program(config, [Table("default", "orders", "MergeTree", "", tuple(columns), 0)])


_ADMISSION = Admission(halts=False, percent=20)


class _Step:
    """Steps of `events` events each, with the state that they leave to the next one."""

    def __init__(self, directory: Path, size: int, events: int, buckets: int) -> None:
        self._program = program_of_the_example(buckets)
        self._connections: Any = _Connections(self._program, directory)
        self._events = events
        self._values = _values(size, events)
        self._sequence = 0
        self._item = ProcessItem(start=0, to=0, config=self._program.version, admission=_ADMISSION)

    def once(self) -> dict[str, float]:
        """CPU seconds of one step, whole, and of the parts of another."""
        spent: dict[str, float] = {}
        frames = self._frames()
        item = replace(self._item, start=self._item.to, to=self._sequence)
        report = _timed(spent, "whole", lambda: process_frames(self._connections, self._program, item, frames))
        assert report.counts["rows_out"] == self._events, report.counts
        self._next(item, {**item.tails, **report.tails}, {**item.runs, **report.runs})
        self._parts(self._frames(), spent)
        return spent

    def _next(self, item: ProcessItem, tails: Any, runs: Any) -> None:
        for name in {name for listing in item.runs.values() for name, *_ in listing} - {
            name for listing in runs.values() for name, *_ in listing
        }:
            for key in item.runs:
                self._connections.segments(key).delete(name)
        self._item = replace(item, start=item.to, to=item.to, tails=tails, runs=runs)

    def _parts(self, frames: list[Arrived], spent: dict[str, float]) -> None:
        program, engine = self._program, self._connections.engine
        rows = _timed(spent, "decode", lambda: joined([records_of(frame.message, frame.arrival_us) for frame in frames]))
        for name, step in zip(("parse", "keys", "map"), program.steps, strict=True):
            rows = _timed(spent, name, partial(_applied, step, Context(engine, program.carried), rows))
        made = _timed(spent, "stages", lambda: run(program, engine, frames))
        owned = list(shares(made.rows, key_owners(made.rows, program.buckets)))
        keys = [listed_as(DEDUP_STORE, bucket) for bucket, _ in owned]
        stores = [KeyedStore(self._connections.segments(key)) for key in keys]
        for key, store in zip(keys, stores, strict=True):
            store.open(live_runs(self._item.runs, key))
        span = (self._sequence, self._sequence + 1)
        turn = bucket_with_turn(span[1], program.buckets)
        found = _timed(
            spent,
            "find",
            lambda: [
                program.dedup.first_of_keys(part, store, None)[0]
                for store, (_, part) in zip(stores, shares(made.rows, key_owners(made.rows, program.buckets)), strict=True)
            ],
        )
        listings = _timed(
            spent,
            "store",
            lambda: [
                store.add(one.entries, span, -_WINDOW_US, bucket == turn)
                for (bucket, _), store, one in zip(owned, stores, found, strict=True)
            ],
        )
        _timed(spent, "encode", lambda: [payload for one in found for _, payload in cut_frames(one.accepted)])
        for store, listing in zip(stores, listings, strict=True):
            store.storage.delete(listing[-1].name)

    def _frames(self) -> list[Arrived]:
        """The next events, with keys that have not occurred."""
        texts = next(self._values)
        count = len(texts)
        table = pa.table(
            {
                "key": pa.nulls(count, pa.binary()),
                "value": texts,
                "headers": pa.nulls(count, RAW_SCHEMA.field("headers").type),
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(count), pa.int64()),
                "timestamp": pa.array([FIRST_INSTANT] * count, RAW_SCHEMA.field("timestamp").type),
                "oversize": pa.nulls(count, RAW_SCHEMA.field("oversize").type),
            },
            schema=RAW_SCHEMA,
        )
        frames = []
        for part, payload in cut_frames(table):
            self._sequence += 1
            headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0", HEADER_ROWS: str(part.num_rows), HEADER_BYTES: str(part.nbytes)}
            message = Message("tf.bench.raw.orders.0", self._sequence, FIRST_INSTANT, payload, headers)
            frames.append(Arrived(message, self._sequence))
        return frames


def _values(size: int, events: int) -> Iterator[pa.Array]:
    """Yield ever new events, `events` at a time."""
    seed = 0
    while True:
        seed += 1
        held = pa.chunked_array([block.values for block in orders(Recipe(seed=seed, size=size), max(events, _BLOCK_EVENTS))])
        for start in range(0, len(held) - events + 1, events):
            yield pa.concat_arrays(held.slice(start, events).chunks)


def _applied(step: Step, context: Context, rows: pa.Table) -> pa.Table:
    return step.apply(context, rows).accepted


def _timed(spent: dict[str, float], part: str, work: Callable[[], Made]) -> Made:
    begun = time.process_time()
    made = work()
    spent[part] = spent.get(part, 0.0) + time.process_time() - begun
    return made


def measure(directory: Path, size: int, events: int, buckets: int, repetitions: int = 0) -> StepCost:
    """Measure steps of `events` events of `size` bytes, warm, in a store below `directory`; the caller deletes it."""
    step = _Step(directory, size, events, buckets)
    count = repetitions or max(_LEAST_REPETITIONS, min(_MOST_REPETITIONS, _EVENTS_PER_CASE // events))
    for _ in range(max(2, count // 5)):
        step.once()
    collect_rarely()
    found = [step.once() for _ in range(count)]
    return StepCost(size, events, buckets, count, {part: median(one[part] for one in found) * 1e3 for part in PARTS})
