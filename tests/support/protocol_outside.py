"""What the modelled world is made of: actors that stop before each call, an in-memory log, a list as Kafka, a set of tokens as ClickHouse.

Part of the model of tests/unit/protocol/test_protocol_model.py; protocol_world.py puts it together.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.config import OnError
from pipelines.connectors.sinks import Table as TableFacts
from pipelines.connectors.sinks import TableColumn
from pipelines.connectors.sources import Block, SourceFacts, Words
from pipelines.engine.connections import Kept
from pipelines.engine.lanes import Shelf
from pipelines.errors import DataLossError, RefusedError, RetryableError
from pipelines.key_store.storage import Header
from pipelines.process.program import Program
from pipelines.protocol.codec import to_text
from pipelines.protocol.frame_bodies import with_body
from pipelines.protocol.ledger import Entry
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message
from pipelines.protocol.topology import LegId
from pipelines.runner.share import LANE_WORKS
from pipelines.testing import Fault, ManualClock, MemoryLog, records, stream_of
from support.protocol_stages import modelled

if TYPE_CHECKING:
    from support.protocol_world import Command, Runner, World

NAMES = Names("model")
TOKEN_WINDOW = 200
LANE = "lane"
FIRST = LegId("sink")


class Killed(BaseException):
    """kill -9: no `except` of the code under test may see it."""


class Actor:
    """One thread of the modelled world, which runs only while it has calls left to spend."""

    def __init__(self, world: "World", name: str, script: Callable[[], None], runner: "Runner | Command") -> None:
        self.world, self.name, self.runner = world, name, runner
        self.is_killed = self.is_idle = self.is_expired = False
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
        self.is_expired = True
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
        if not self.is_expired:
            self.is_killed = True
            self.step(0)


class ModelLog(MemoryLog):
    """Stops its caller before each call."""

    def __init__(self, world: "World", clock: ManualClock) -> None:
        super().__init__(clock)
        self.world = world
        self.stored: dict[str, list[Message]] = {}
        self.entries: dict[str, list[Entry]] = {}
        """Those of each chain that the account has decoded."""
        self.programs: dict[str, Program] = {}
        """The configurations that the account has read, by version."""

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
        return [frame for message in self.stored.get(stream, []) if (frame := with_body(message, self._stored))]

    def _stored(self, stream: str, sequence: int) -> Message:
        return self.stored[stream][sequence - 1]

    def purge(self, stream: str, subject: str, below: int) -> None:
        before = set(self._streams.get(stream, {}))
        super().purge(stream, subject, below)
        if stream == NAMES.stream("raw"):
            self.world.check_purged(before - self._streams.get(stream, {}).keys())

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int:
        try:
            return super().publish(subject, payload, headers, expected)
        except RetryableError as error:
            if self.world.is_mended_at_failure:
                self.world.table.mend()
            if "is full" in str(error):
                # Its writer waits a while, and others look again, or there would never be room.
                self.world.current.spend_all()
                self.world.wait_for_room()
                for actor in self.world.current.runner.actors:
                    actor.is_idle = False
            raise


class Table:
    """ClickHouse: a table that forgets all but the last TOKEN_WINDOW insert tokens, and may refuse rows by their value.

    With several partitions it writes a block partition by partition, and finds a row that it refuses only when it comes to its partition:
    those before it are stored.
    """

    system = "ClickHouse"

    def __init__(self, world: "World", window: int = TOKEN_WINDOW) -> None:
        self.world, self.window = world, window
        self.rows: list[tuple[int, int, bytes]] = []
        self.positions: list[tuple[int, ...]] = []
        """(sequence, ordinal, emit, arrival in us) of each of `rows`."""
        self.tokens: list[tuple[str, int]] = []
        self.fault: Fault | None = None
        self.refused: bytes | None = None
        self.is_worse = False
        """It refuses what it has taken."""
        self.is_away = False
        self.partitions = 1
        self._in_flight: list[tuple[str, bytes]] = []

    def refuses(self, value: bytes) -> bool:
        return self.refused is not None and value.startswith(self.refused)

    def _call(self) -> None:
        self.world.call()
        if self.is_away:
            raise RetryableError("ClickHouse does not answer")

    def columns(self, database: str, name: str) -> tuple[TableColumn, ...]:
        """None that the sink could compare: nobody alters this table."""
        self._call()
        return ()

    def inspect(self, database: str, name: str) -> TableFacts:
        self._call()
        return TableFacts(database, name, "MergeTree", "", (), self.window, is_partitioned=self.partitions > 1)

    def views_on(self, database: str, name: str) -> list[object]:
        self._call()
        return []

    def inserts_at_work(self, work: str) -> int:
        """Whoever looks waits so long that they have arrived when it looks again."""
        self._call()
        found = len(self._in_flight)
        self.deliver()
        return found

    def count_rows(self, database: str, name: str, with_positions: bool) -> int:
        self._call()
        return len(self.positions)

    def stored_positions(self, table: TableFacts, sequences: tuple[int, int], arrivals_us: tuple[int, int]) -> pa.Table:
        self._call()
        found = [p for p in self.positions if sequences[0] <= p[0] <= sequences[1] and arrivals_us[0] <= p[3] <= arrivals_us[1]]
        columns = list(zip(*found, strict=True)) or [()] * 4
        return pa.table({n: pa.array(c, pa.int64()) for n, c in zip(("sequence", "ordinal", "emit", "arrival_us"), columns, strict=True)})

    def insert(self, table: str, columns: list[str], block: bytes, token: str, seconds: int, work: str) -> None:
        if self.world.current is None or self.world.current.name != LANE:
            # A lane's has arrived before a leg that waits for it asks: between its look at the chain and its insert are no six seconds.
            self.world.call()
        if self.is_away:
            raise RetryableError("inserting: ClickHouse does not answer")
        if (self.partitions > 1 or self.world.gives_up) and self.world.current is not None and self.world.current.runner.is_overtaken:
            # What a runner sends whose lease was over long ago: nothing fences it, and docs/protocol-sink.md says so.
            raise RetryableError("inserting: the lease is over")
        if self.world.is_mended_at_failure:
            self.world.log.deliver()
        fault, self.fault = self.fault, None
        refused = None
        if fault is Fault.DELAYED:
            self._in_flight.append((token, block))
        elif fault is not Fault.DROPPED:
            refused = self._store(token, block)
        if fault is not None:
            raise RetryableError("inserting: no answer")
        if refused is not None:
            # In one partition nothing is written before a row is refused.
            raise RefusedError("violates a constraint", self.world.rng.choice([refused, None]), is_whole=self.partitions == 1)

    @property
    def is_awaited(self) -> bool:
        return bool(self._in_flight)

    def mend(self) -> None:
        """Rows are refused no more. Never while an insert of an earlier runner may be at work: a runner waits that long (legs/sink.py)."""
        self.refused = None

    def worsen(self) -> None:
        """Rows that were taken are refused from now on."""
        self.refused, self.is_worse = b"fine", True

    def deliver(self) -> None:
        arrived, self._in_flight = self._in_flight, []
        for token, block in arrived:
            self._store(token, block)

    def _store(self, token: str, block: bytes) -> int | None:
        """The place of the first row that is refused, in the block; None when all is stored, or known."""
        rows, positions = self._rows(block)
        by_partition: dict[int, list[int]] = {}
        for place, (_, offset, _) in enumerate(rows):
            by_partition.setdefault(offset % self.partitions, []).append(place)
        for partition, places in by_partition.items():
            # Before tokens are looked at, as in ClickHouse.
            refused = [place for place in places if self.refuses(rows[place][2])]
            if refused:
                return refused[0]
            if (token, partition) not in self.tokens[-self.window :]:
                self.tokens.append((token, partition))
                self.rows.extend(rows[place] for place in places)
                self.positions.extend(positions[place] for place in places)
        return None

    @staticmethod
    def _rows(block: bytes) -> tuple[list[tuple[int, int, bytes]], list[tuple[int, ...]]]:
        with pa.ipc.open_stream(block, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            table = reader.read_all()
        arrival = table.schema.get_field_index("_tf_arrival")
        table = table.set_column(arrival, "_tf_arrival", table["_tf_arrival"].cast(pa.int64()))
        # A row without the column takes its DEFAULT, which is nothing.
        more = table["more"].to_pylist() if "more" in table.column_names else [b""] * table.num_rows
        reported, positions = (
            list(zip(*(column.to_pylist() for column in table.select(names).columns), strict=True))
            for names in (["_tf_partition", "_tf_offset", "value"], ["_tf_sequence", "_tf_ordinal", "_tf_emit", "_tf_arrival"])
        )
        rows = [(partition, offset, value + added) for (partition, offset, value), added in zip(reported, more, strict=True)]
        return rows, positions


class Topic:
    """Kafka as a source: per partition the records by offset, with gaps."""

    words = Words("Kafka", "topic", "orders", "a restore")

    def __init__(self, world: "World", starts: dict[int, int]) -> None:
        self.world = world
        self.first = dict(starts)
        self.end = dict(starts)
        self.held: dict[int, list[tuple[int, bytes]]] = {p: [] for p in starts}
        self.silent: set[int] = set()
        """Partitions without a leader."""

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

    @property
    def skips_expired(self) -> bool:
        return self.world.expires

    def facts(self) -> SourceFacts:
        self.world.call()
        return SourceFacts("T", tuple(self.held))

    def keep_only(self, partitions: object) -> None:
        """It reads nothing ahead."""

    def discard(self) -> None:
        """The next read starts anew anyway."""

    def starts(self, partitions: list[int] | None = None) -> dict[int, int]:
        self.world.call()
        return {p: self.first[p] for p in self._all_answer(partitions or self.held)}

    def ends(self, partitions: list[int] | None = None) -> dict[int, int]:
        self.world.call()
        return {p: self.end[p] for p in self._all_answer(partitions or self.held)}

    def known_ends(self, partitions: list[int], _: float) -> tuple[dict[int, int], dict[int, RetryableError]]:
        self.world.call()
        silent = {p: RetryableError("no leader") for p in partitions if p in self.silent}
        if partitions and len(silent) == len(partitions):
            raise RetryableError("no leader")
        return {p: self.end[p] for p in partitions if p not in silent}, silent

    def _all_answer(self, partitions: Iterable[int]) -> Iterable[int]:
        if not self.silent.isdisjoint(partitions):
            raise RetryableError("no leader")
        return partitions

    def _answered(self, partitions: Iterable[int]) -> list[int]:
        """Those of them that have a leader. Raises when none has: a reader waits for the last of its ranges, and then no more."""
        if answered := sorted(set(partitions) - self.silent):
            return answered
        raise RetryableError("no leader")

    def read(self, ranges: dict[int, tuple[int, int]]) -> Iterator[Block]:
        left = {p: r for p, r in ranges.items() if r[0] < r[1]}
        while left:
            self.world.call()
            partition = self.world.rng.choice(self._answered(left))
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


class Outside(Kept):
    """What a leg's work sees as `legs.connections.Connections`."""

    def __init__(self, world: "World", epoch: int, version: str, lanes: "ModelLanes | None" = None, leg: LegId = FIRST) -> None:
        super().__init__()
        self.names, self.log, self.engine = NAMES, world.log, None
        self._of = partial(Outside, world, epoch, version)
        sources = [SimpleNamespace(source_id=source) for source in world.topics]
        stages = world.config
        world.tables[leg].target = stages.seen_from(leg).full_table
        self.out = leg.input_role
        sink = SimpleNamespace(delivery="exactly_once", max_insert_time=timedelta(seconds=60), existing_rows="refuse", names_pipeline=False)
        # The clock may step back by minutes in a long history; what is told of it has a test of its own.
        resources = SimpleNamespace(nats=SimpleNamespace(clock_ahead="warn", max_clock_ahead=timedelta(minutes=1)))
        config = {"sources": sources, "topology": world.topology, "sink": sink, "sink_leg": leg, "join": None}
        self.config = SimpleNamespace(**config, on_error=OnError(), resources=resources)
        self._world, self.means = world, world.means
        self.lanes = lanes or ModelLanes(world, epoch, version)
        versions = {"stage_config": version, "accepted_config": version}
        self.run = SimpleNamespace(
            identities=dict.fromkeys(world.topics, "T"),
            stream_ids={role: f"S of {role}" for role in world.topology.outs},
            targets=None,
            **versions,
        )

    def keep(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """Programs have the model's steps in place of the real ones."""
        is_program = isinstance(name, tuple) and name[0] == "stage config"
        return super().keep(name, (lambda: modelled(make())) if is_program else make)

    def of_leg(self, leg: LegId) -> "Outside":
        """What a sink leg sees; the others see what the first one does."""
        if leg.kind != "sink" or leg == self.config.sink_leg:
            return self
        return self.keep(("of", leg), lambda: self._of(self.lanes, leg))

    def segments(self, key: str) -> "MemoryStorage":
        return self._world.storages.setdefault(key, MemoryStorage(self._world))

    def source(self, source_id: str) -> Topic:
        return self._world.topics[source_id]

    @property
    def sink(self) -> Table:
        return self._world.tables[self.config.sink_leg]

    def discard_engine(self) -> None:
        """There is none."""


class ModelLanes:
    """Lanes of a runner: each does its part, or is given up before or after it has begun; then it goes on whenever it likes.

    `shelves`: what each process of the runner holds, by its number. A lane may be lost, and a new one has its number.
    """

    helped, is_large = 0, False

    def __init__(self, world: "World", epoch: int, version: str, own: int = 0, shelves: dict[int, Shelf] | None = None) -> None:
        self._world, self._epoch, self._version, self.own = world, epoch, version, own
        self._shelves = {} if shelves is None else shelves
        self.shelf = Shelf() if own else self._shelves.setdefault(0, Shelf())

    def parts_for(self, records: int) -> int:
        return self._world.lanes.choice([1, 2, 3]) if self._world.has_lanes else 1

    def weights(self, work: str, count: int) -> list[int]:
        return [2, 1, 1][:count]

    def take_late(self) -> bool:
        """What late lanes leave is swept where a plan had several attempts."""
        return False

    def divide(
        self, work: str, parts: Sequence[Any], here: Callable[[Any], Any], read: Callable[[bytes], Any], sizes: Sequence[int] = ()
    ) -> list[Any]:
        made = [here(parts[0])]
        for number, part in enumerate(parts[1:], 1):
            seen_there = ModelLanes(self._world, self._epoch, self._version, number, self._shelves)
            do = partial(LANE_WORKS[work], Outside(self._world, self._epoch, self._version, seen_there), to_text(part))
            if self._world.lanes.random() < 0.5:
                seen_there.shelf = self._shelves.setdefault(number, seen_there.shelf)
                made.append(read(do()))
                continue
            runner = self._world.current.runner
            runner.actors.append(Actor(self._world, LANE, do, runner))
            made.append(here(part))
        return made

    def fetch(self, lane: int, exchange: str, name: str) -> bytes:
        if lane and self._world.lanes.random() < 0.1:
            self._shelves[lane] = Shelf()
        return self.found(self._shelves[lane].content(exchange, name))

    def found(self, content: bytes | None) -> bytes:
        if content is None:
            raise RetryableError("a lane is lost, and what it has held")
        return content


class MemoryStorage:
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

    def size(self, name: str) -> int:
        return int(name in self._held)

    def has_copy(self, name: str) -> bool:
        return False

    def discard_copies(self, keep: object = ()) -> None:
        """It has none."""

    def delete(self, name: str) -> None:
        self._world.call()
        self._held.pop(name, None)
