"""Ingest and process in one process without Spark: the real legs, stages and key store, over an in-memory log and a list as Kafka."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipelines.config import OnError
from pipelines.connectors.sources import Block, SourceFacts, Words
from pipelines.engine.connections import Kept, Means
from pipelines.engine.lanes import NO_LANES
from pipelines.ingest.leg import IngestLeg
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.process import stage_config
from pipelines.process.leg import ProcessLeg
from pipelines.process.program import Program
from pipelines.process.steps import Step
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.run_lists import Lists, live_lists
from pipelines.protocol.topology import LegId, Topology
from pipelines.sink.leg import SinkLeg
from pipelines.testing import ManualClock, MemoryLog, records
from support.memory_sink.connector import MemoryTable
from support.programs import first_of, program

NAMES = Names("p")
LEDGER = NAMES.stream("ledger")


class Topic:
    """A source: one partition, one block per read."""

    words, skips_expired = Words("Kafka", "topic", "s", "a restore"), False

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def facts(self) -> SourceFacts:
        return SourceFacts("T", (0,))

    def read(self, ranges: dict[int, tuple[int, int]]) -> Iterator[Block]:
        for partition, (start, end) in ranges.items():
            yield Block(partition, records(partition, self.values[start:end], first=start), end)

    def discard(self) -> None:
        """The next read starts anew anyway."""


class LegCase(Kept):
    """One start of the legs. Records are JSON objects with an integer `id`, which is the key, and a text `v`; some cases have an `at`, too.

    `between`: the steps between parse and the mapping, by default the first of each key. `stages`: a program of other sources.
    """

    out = "out"

    def __init__(
        self,
        directory: Path,
        buckets: int,
        log: MemoryLog | None = None,
        epoch: int = 1,
        table: MemoryTable | None = None,
        between: Sequence[Step] = (first_of("id", 3_600_000_000),),
        stages: Program | None = None,
    ) -> None:
        super().__init__()
        self.log = log or MemoryLog(ManualClock())
        self.clock = self.log.clock
        self.sink = table or MemoryTable()
        self.names, self.directory, self.epoch = NAMES, directory, epoch
        self.means, self.lanes = Means(), NO_LANES
        self.engine = self.means.open_engine()
        # The next case takes its database.
        weakref.finalize(self, self.engine.close)
        columns = (("id", "id", "Int64", False), ("v", "v", "String", False))
        fields = (("id", "int"), ("v", "string"), ("at", "int"))
        self.stages = stages or program(fields, columns, *between, source="s", topic="s", buckets=buckets)
        self.topics = {source: Topic() for source in self.stages.sources}
        self.topic = next(iter(self.topics.values()))
        version = stage_config.store(self.log, NAMES, self.stages)
        sources = [SimpleNamespace(source_id=source) for source in self.stages.sources]
        nats = SimpleNamespace(clock_ahead="warn", max_clock_ahead=timedelta(minutes=1))
        sink = SimpleNamespace(delivery="exactly_once", existing_rows="refuse", names_pipeline=False, max_insert_time=timedelta(seconds=60))
        topology = Topology.of(self.stages.sources, [""])
        resources = SimpleNamespace(nats=nats)
        self.config = SimpleNamespace(
            sources=sources, topology=topology, sink=sink, on_error=OnError(), resources=resources, sink_leg=LegId("sink"), join=None
        )
        versions = {"stage_config": version, "accepted_config": version}
        self.run = SimpleNamespace(identities=dict.fromkeys(self.topics, "T"), stream_ids={self.out: "S"}, targets=None, **versions)
        self.lease = SimpleNamespace(lost=threading.Event(), remaining_seconds=60.0)
        # A leg that is asked to stop gives up instead of waiting: the test says when it goes on.
        stop = threading.Event()
        stop.set()
        self.ingests = {source: IngestLeg(self, self._chain(leg), self.lease, stop) for leg, source in topology.sources.items()}
        self.ingest = next(iter(self.ingests.values()))
        self.process = ProcessLeg(self, self._chain("process"), self.lease, stop)
        self.delivery = SinkLeg(self, self._chain("sink"), self.lease, stop)
        for ingest in self.ingests.values():
            ingest.anchor(lambda: {0: 0})

    def _chain(self, leg: str) -> Chain:
        chain = Chain(self.log, NAMES, LegId.parse(leg).chain, self.epoch)
        chain.open()
        return chain

    def of_leg(self, leg: LegId) -> Any:
        return self

    def discard_engine(self) -> None:
        """It goes on: no error of a test ends it."""

    def segments(self, key: str) -> Storage:
        return Storage.local(self.directory / key)

    def source(self, source_id: str) -> Topic:
        return self.topics[source_id]

    def send(self, values: list[bytes], source: str = "s") -> None:
        """Records of one batch, a quarter of a second after those before, through ingest."""
        topic = self.topics[source]
        topic.values += values
        self.clock.advance(timedelta(milliseconds=250))
        self.ingests[source].advance({"0": len(topic.values)})

    def go_on(self) -> None:
        """Process works on all that is on raw. Raises StoppedError when it would wait."""
        state = self.log.state(NAMES.stream("raw"))
        self.go_on_to(state.last_sequence if state else 0)

    def deliver(self) -> None:
        """The sink works on all that is on out. Raises StoppedError when it would wait."""
        state = self.log.state(NAMES.stream("out"))
        self.delivery.advance({"sequence": state.last_sequence if state else 0})

    def go_on_to(self, sequence: int) -> None:
        self.process.advance({"sequence": sequence})

    @property
    def stores(self) -> dict[str, KeyedStore]:
        """The stores of keys that this process has opened, by what they are listed under."""
        return {name[1]: one for name, one in self._kept.items() if isinstance(one, KeyedStore) and isinstance(name, tuple)}

    def forget_stores(self) -> None:
        """As another process, which has opened none."""
        self._kept = {name: one for name, one in self._kept.items() if not isinstance(one, KeyedStore)}

    def files(self) -> set[str]:
        return {path.name for path in self.directory.rglob("*.arrow")}

    def listed(self) -> set[str]:
        return {run[0] for listing in self.lists().values() for run in listing}

    def lists(self) -> Lists:
        return live_lists(self.log, NAMES)[1]

    def chain_bytes(self, leg: str) -> list[int]:
        """Of a leg's entries, in order."""
        return [len(message.payload) for message in self.log.messages(LEDGER) if message.subject == NAMES.chain(leg)]


def event(number: int, size: int = 20) -> bytes:
    return b'{"id": %d, "v": "%s"}' % (number, b"x" * size)
