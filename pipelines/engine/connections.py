"""The connections of one process (driver or worker), opened at first use and kept, because opening costs more than a small batch."""

import os
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from socket import gethostname
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pipelines.config import PipelineConfig
from pipelines.config.settings import with_settings
from pipelines.connectors.sinks import Sink, open_sink
from pipelines.connectors.sources import Source, open_source
from pipelines.engine.lanes import NO_LANES, Lanes
from pipelines.engine.run_spec import RunSpec, read_run
from pipelines.errors import HaltError
from pipelines.key_store.cache import CachedStorage
from pipelines.key_store.storage import Storage
from pipelines.lookups.storage import Snapshots
from pipelines.protocol.naming import STREAM_ID_KEY, Names, segments_place
from pipelines.protocol.records import FRAMING, Framing
from pipelines.protocol.topology import LegId
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

if TYPE_CHECKING:
    from pipelines.connectors.nats.client import JetStream

Made = TypeVar("Made")


class Kept:
    """Objects that are made once and kept by name."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}

    def keep(self, name: Hashable, make: Callable[[], Made]) -> Made:
        """Return the object made under `name` before, or make it. Thread-safe."""
        if name not in self._kept:
            return cast(Made, self._kept.setdefault(name, make()))
        return cast(Made, self._kept[name])

    def _kept_of(self, kind: type[Made]) -> list[Made]:
        return [one for one in self._kept.values() if isinstance(one, kind)]


class KeptThreads(Kept):
    """Threads for one piece of work after the other: to start eight takes longer than what they do for a hundred rows.

    Called as ThreadPoolExecutor is, with a number and a name. What is returned ends when its own work has; the threads end with this.
    """

    def __call__(self, count: int, name: str) -> Executor:
        return _Turn(self.keep((count, name), partial(ThreadPoolExecutor, count, name)))


class _Turn(Executor):
    """The use of kept threads by one piece of work."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._given: list[Future[Any]] = []

    def submit(self, work: Callable[..., Made], /, *args: Any, **named: Any) -> "Future[Made]":
        future = self._pool.submit(work, *args, **named)
        self._given.append(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if wait:
            wait_for(self._given)


@dataclass(frozen=True)
class Means:
    """What a leg's work uses of its own process: how rows become frames, threads (their number, and their name), DuckDB engines."""

    framing: Framing = FRAMING
    threads: Callable[[int, str], Executor] = field(default_factory=KeptThreads)
    open_engine: Callable[[], Engine] = open_engine


class Connections(Kept):
    """The connections of a leg's work to other systems.

    A source's reader and the engine serve one thread at a time; the log serves many.
    """

    def __init__(
        self,
        run: RunSpec,
        keep_partitions: bool,
        log: "JetStream | None" = None,
        config: PipelineConfig | None = None,
        lanes: Lanes = NO_LANES,
        note: Callable[[str], None] = print,
    ) -> None:
        """Create without connecting.

        `config`: the configuration of `run`, if the caller has resolved it already, with other variables than this process has, or sees it
        from a further sink. `lanes`:
        the processes that may do parts of a leg's plans. `note`: tells the user, of each thing once.
        """
        super().__init__()
        self.lanes, self._note = lanes, note
        self.run = run
        self.config = config or run.config
        self.names = Names(self.config.pipeline_id)
        self._keep_partitions = keep_partitions
        self._log = log
        self._owns_log = log is None
        self._sources: dict[str, Source] = {}
        self._sink: Sink | None = None
        self._engine: Engine | None = None
        self.means = Means()
        self.snapshots = Snapshots(run.state_storage)
        """The snapshots of look-up tables."""

    def of_leg(self, leg: LegId) -> "Connections":
        """Return the connections of a sink leg, to its table: these, or others that end with these."""
        if leg == self.config.sink_leg:
            return self
        seen = self.config.seen_from(leg)
        return self.keep(("of", leg), lambda: Connections(self.run, self._keep_partitions, self.log, seen, self.lanes, self._note))

    def take_settings(self, settings: str) -> None:
        """Take other settings of the pipeline file. What is open stays open: no setting is one of a connection.

        Only for the connections of a leg, between two of its batches; a lane is told what counts for an item with the item.
        """
        self.config, self.run = with_settings(self.config, settings), replace(self.run, settings=settings)

    def prove(self) -> None:
        """Raise HaltError unless the streams that this process reaches belong to the run: the same address may lead elsewhere."""
        known_ids = {self.names.stream(role): known for role, known in self.run.stream_ids.items()}
        states = self.log.states([*known_ids])
        for stream, known in known_ids.items():
            state = states[stream]
            if state is None or state.metadata.get(STREAM_ID_KEY) != known:
                raise HaltError(
                    f"reaching stream {stream} from process {os.getpid()} of {gethostname()}: it is not the one that the driver writes, so "
                    f"nothing was done; let every worker reach the NATS of the driver at {self.config.nats.url}"
                )

    @property
    def log(self) -> "JetStream":
        if self._log is None:
            # Imported where NATS is reached: a preview runs the same steps without it.
            from pipelines.connectors.nats.client import JetStream

            # It connects at its first use, and again until that succeeds: one object, so one thread.
            self._log = JetStream.of(self.config)
        return self._log

    def source(self, source_id: str) -> Source:
        """Return the source of this id. Raise HaltError if the file has none."""
        if source_id not in self._sources:
            self._sources[source_id] = open_source(self.config, source_id, self._keep_partitions)
        return self._sources[source_id]

    @property
    def out(self) -> str:
        """The role of the stream that the sink reads."""
        return self.config.sink_leg.input_role

    @property
    def sink(self) -> Sink:
        if self._sink is None:
            self._sink = open_sink(self.config)
        return self._sink

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._engine = self.means.open_engine()
        return self._engine

    def segments(self, key: str) -> Storage:
        """Return the storage of the segments that are listed under a key (`naming.listed_as`)."""
        return self.keep(("segments", key), lambda: self._storage(segments_place(self.run.state_storage, key)))

    def _storage(self, place: str) -> Storage:
        storage = Storage.at(place)
        # Batch work reads each segment once.
        is_cached = self._keep_partitions and not storage.is_local
        return CachedStorage.before(storage, self._note_once) if is_cached else storage

    def _note_once(self, message: str) -> None:
        self.keep(("noted", message), lambda: self._note(message))

    def discard_engine(self) -> None:
        """Discard the engine after an error in a stage, which may have left it unusable."""
        if self._engine is not None:
            self._engine.discard()
            self._engine = None

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
        self._sources.clear()
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        for of_leg in self._kept_of(Connections):
            of_leg.close()
        if self._log is not None and self._owns_log:
            self._log.close()


@lru_cache(maxsize=1)
def batch_connections(run_text: str, variables: tuple[tuple[str, str], ...]) -> Connections:
    """Return a worker's connections for work beside the stream: `variables` override the worker's environment."""
    run = read_run(run_text)
    return Connections(run, keep_partitions=False, config=run.resolve({**os.environ, **dict(variables)}))
