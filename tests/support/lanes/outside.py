"""What surrounds the modelled lanes: the log with wildcards, Kafka, ClickHouse, and segments that a kill loses until they are durable."""

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipelines.errors import DataLossError, RefusedError, RetryableError, StateDamagedError
from pipelines.protocol.records import Message
from pipelines.testing import Fault, ManualClock
from support.protocol_outside import ModelLog

if TYPE_CHECKING:
    from support.lanes.world import LaneWorld, Process

Row = tuple[str, int, int, str]
"""A row of out: position, partition, offset, value."""


def matches(subject: str, pattern: str) -> bool:
    """As NATS does, with `*` for one token."""
    if "*" not in pattern:
        return pattern in (subject, ">")
    found, wanted = subject.split("."), pattern.split(".")
    return len(found) == len(wanted) and all(w in ("*", f) for f, w in zip(found, wanted, strict=True))


class LaneLog(ModelLog):
    """JetStream as the lanes use it: consumers filter by subjects with wildcards."""

    def __init__(self, world: "LaneWorld", clock: ManualClock) -> None:
        super().__init__(world, clock)  # type: ignore[arg-type]

    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        self._reach(f"reading {stream} from {after + 1} to {to}")
        held = self._streams.get(stream, {})
        found = [held[n] for n in range(after + 1, min(to, self._ends.get(stream, 0)) + 1) if n in held]
        return iter([message for message in found if matches(message.subject, subject)])

    def end(self, stream: str) -> int:
        self._reach(f"reading the state of {stream}")
        return self._ends.get(stream, 0)


class Kafka:
    """A topic: per partition its records (offset, key, value), with gaps; partitions grow, expire and lose their leaders."""

    def __init__(self, world: "LaneWorld", partitions: int) -> None:
        self._world = world
        self.held: dict[int, list[tuple[int, str | None, str]]] = {p: [] for p in range(partitions)}
        self.first = {p: world.rng.choice([0, 7]) for p in range(partitions)}
        self.end = dict(self.first)
        self.silent: set[int] = set()

    def produce(self, rng: random.Random) -> None:
        partition = rng.choice(list(self.held))
        key = None if rng.random() < 0.1 else f"k{rng.randrange(6)}"
        self.held[partition].append((self.end[partition], key, rng.choice(["bad", "odd", "good", "good", "fine"])))
        self.end[partition] += 1 + rng.choice([0, 0, 0, 1, 4])

    def add_partition(self) -> None:
        partition = len(self.held)
        self.held[partition], self.first[partition], self.end[partition] = [], 0, 0

    def expire(self, rng: random.Random) -> None:
        partition = rng.choice(list(self.held))
        self.first[partition] = rng.randint(self.first[partition], self.end[partition])

    def start(self, partition: int) -> int:
        self._answer(partition)
        return self.first[partition]

    def read(self, partition: int, start: int, limit: int) -> tuple[list[tuple[int, str | None, str]], int]:
        """The records of [start, end) and that end: at most `limit` offsets."""
        self._answer(partition)
        if start < self.first[partition]:
            raise DataLossError(f"offset {start} of partition {partition} has expired")
        end = min(self.end[partition], start + limit)
        return [record for record in self.held[partition] if start <= record[0] < end], max(start, end)

    def _answer(self, partition: int) -> None:
        self._world.call()
        if partition in self.silent:
            raise RetryableError("no leader")


class LaneTable:
    """ClickHouse: forgets all but the last `window` tokens of all writers, writes partition by partition, may refuse rows by their value.

    An insert may be stored later than its answer was lost, but in time: `max_execution_time` and the lease bound it, well within the
    window; what an overtaken lane begins after that is not sent. `protocol-sink.md` says so of today's sink.
    """

    def __init__(self, world: "LaneWorld") -> None:
        self._world = world
        self.partitions = world.rng.choice([1, 1, 3])
        self.window = world.rng.choice([8, 24, 60] if self.partitions > 1 else [4, 4, 8, 24])
        self.refused = world.rng.choice([None, None, "fine"])
        self.stored: list[tuple[Row, str]] = []
        """Rows in the order of their storing, with the token."""
        self.tokens: list[tuple[str, int]] = []
        self.fault: Fault | None = None
        self.settlings = 0
        self._in_flight: list[tuple[str, list[Row], int]] = []

    def insert(self, token: str, rows: list[Row], chunk: str) -> None:
        self._world.call()
        self._world.check_lease()
        if not self._world.is_recent(chunk):
            raise RetryableError("the chunk was decided too long ago to be sent unseen")
        self._deliver_what_is_late()
        fault, self.fault = self.fault, None
        refused = None
        if fault is Fault.DELAYED:
            self._in_flight.append((token, rows, len(self.tokens)))
        elif fault is not Fault.DROPPED:
            refused = self._store(token, rows)
        if fault is not None:
            raise RetryableError("inserting: no answer")
        if refused is not None:
            raise RefusedError("violates a constraint", refused)

    def settle(self) -> None:
        """Waits until no insert is at work, nor begun by an overtaken lane."""
        self._world.call()
        self.settlings += 1
        self.deliver()

    def positions(self) -> set[str]:
        self._world.call()
        return {row[0] for row, _ in self.stored}

    def deliver(self) -> None:
        arrived, self._in_flight = self._in_flight, []
        for token, rows, _ in arrived:
            self._store(token, rows)

    def _deliver_what_is_late(self) -> None:
        if any(len(self.tokens) - sent >= self.window // 4 for _, _, sent in self._in_flight):
            self.deliver()

    def _store(self, token: str, rows: list[Row]) -> int | None:
        by_partition: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            by_partition.setdefault(row[2] % self.partitions, []).append(place)
        for partition, places in by_partition.items():
            refused = [place for place in places if self.refused is not None and rows[place][3].startswith(self.refused)]
            if refused:
                return refused[0]
            if (token, partition) not in self.tokens[-self.window :]:
                self.tokens.append((token, partition))
                self.stored.extend((rows[place], token) for place in places)
        return None


class Segments:
    """Storage of segments: what was written is lost with its process until it is durable; a name is written once."""

    def __init__(self, world: "LaneWorld") -> None:
        self._world = world
        self.durable: dict[str, frozenset[str]] = {}
        self._names = 0

    def write(self, process: "Process", prefix: str, keys: frozenset[str]) -> str:
        self._world.call()
        self._names += 1
        name = f"{prefix}{self._names}"
        process.unsaved[name] = keys
        return name

    def make_durable(self, process: "Process", name: str) -> None:
        self._world.call()
        self.durable[name] = process.unsaved.pop(name)
        process.cache[name] = self.durable[name]

    def read(self, process: "Process", name: str) -> frozenset[str]:
        if name not in process.cache:
            self._world.call()
            if name not in self.durable and name not in process.unsaved:
                raise StateDamagedError(f"segment {name} is listed and not there")
            process.cache[name] = self.durable.get(name) or process.unsaved.get(name) or frozenset()
        return process.cache[name]

    def delete(self, name: str) -> None:
        self._world.call()
        self.durable.pop(name, None)
