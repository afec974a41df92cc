"""The connections of one process (driver or worker), opened at first use and kept, because opening costs more than a small batch."""

import os
from contextlib import suppress
from functools import lru_cache
from socket import gethostname

import duckdb

from pipelines.breaker import PLANNED, PLANNED_BEFORE, Breaker
from pipelines.config import PipelineConfig
from pipelines.connectors.duckdb import open_engine
from pipelines.connectors.jetstream import JetStream
from pipelines.connectors.kafka import KafkaTopic, RangeReader
from pipelines.errors import HaltError
from pipelines.legs import stage_config
from pipelines.legs.stage_config import StageConfig
from pipelines.naming import STREAM_ID_KEY, Names, dedup_place
from pipelines.run_spec import RunSpec, load_run, read_run
from pipelines.state.place import Place
from pipelines.state.store import KeyedStore


class Connections:
    """What a leg's work needs of the outside. The reader and the engine serve one thread at a time; the log serves many."""

    def __init__(self, run: RunSpec, keep_partitions: bool, log: JetStream | None = None, config: PipelineConfig | None = None) -> None:
        """`config`: that of `run`, where somebody has resolved it already, with other variables than those of this process."""
        self.run = run
        self.config = config or run.config
        self.names = Names(self.config.pipeline_id)
        self._keep_partitions = keep_partitions
        self._log = log
        self._owns_log = log is None
        self._reader: RangeReader | None = None
        self._topic: KafkaTopic | None = None
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._stage_configs: dict[str, StageConfig] = {}
        self._dedup_stores: dict[int, KeyedStore] = {}
        self._breakers: dict[tuple[str, str], Breaker] = {}

    def prove(self) -> None:
        """Raises HaltError unless the streams that this process reaches are those of the run: the same address may lead elsewhere."""
        for role, known in self.run.stream_ids.items():
            stream = self.names.stream(role)
            state = self.log.state(stream)
            if state is None or state.metadata.get(STREAM_ID_KEY) != known:
                raise HaltError(
                    f"reaching stream {stream} from process {os.getpid()} of {gethostname()}: it is not the one that the driver writes, so "
                    f"nothing was done; let every worker reach the NATS of the driver at {self.config.nats.url}"
                )

    def breaker(self, stage: str, version: str) -> Breaker:
        """What judges the dead letters of a stage, of plans of one configuration. Any thread may ask."""
        percent = 100 if version == self.run.accepted_config else self.config.on_error.max_rejected_percent
        made = Breaker(percent, PLANNED if version == self.run.stage_config else PLANNED_BEFORE)
        return self._breakers.setdefault((stage, version), made)

    @property
    def log(self) -> JetStream:
        if self._log is None:
            # It connects at its first use, and again until that succeeds: one object, so one thread.
            self._log = JetStream(self.config.nats, classes=self.config.on_error.classes("nats"))
        return self._log

    @property
    def reader(self) -> RangeReader:
        if self._reader is None:
            self._reader = RangeReader(self.config.sources[0], self._keep_partitions, self.config.on_error.classes("kafka"))
        return self._reader

    @property
    def topic(self) -> KafkaTopic:
        if self._topic is None:
            self._topic = KafkaTopic(self.config.sources[0], self.config.on_error.classes("kafka"))
        return self._topic

    @property
    def engine(self) -> duckdb.DuckDBPyConnection:
        if self._engine is None:
            self._engine = open_engine()
        return self._engine

    def stage_config(self, version: str) -> StageConfig:
        if version not in self._stage_configs:
            self._stage_configs[version] = stage_config.load(self.log, self.names, version)
        return self._stage_configs[version]

    def dedup_store(self, bucket: int) -> KeyedStore:
        """The bucket's key store; its caller opens the runs that the last `done` lists."""
        if bucket not in self._dedup_stores:
            self._dedup_stores[bucket] = KeyedStore(Place.at(dedup_place(self.run.state_place, bucket)))
        return self._dedup_stores[bucket]

    def discard_reader(self) -> None:
        """After a failed read: the next one starts with a fresh consumer."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def discard_engine(self) -> None:
        """After an error in a stage: it may have left an engine that does nothing more."""
        if self._engine is not None:
            with suppress(duckdb.Error):
                self._engine.close()
            self._engine = None

    def close(self) -> None:
        self.discard_reader()
        self.discard_engine()
        if self._log is not None and self._owns_log:
            self._log.close()


@lru_cache(maxsize=1)
def worker_connections(run_path: str) -> Connections:
    """A worker's connections for one run; a worker process outlives its tasks."""
    connections = Connections(load_run(run_path), keep_partitions=False)
    connections.prove()
    return connections


@lru_cache(maxsize=1)
def batch_connections(run_text: str, variables: tuple[tuple[str, str], ...]) -> Connections:
    """As `worker_connections`, for work beside the stream: `variables` go over the worker's environment."""
    run = read_run(run_text)
    return Connections(run, keep_partitions=False, config=run.resolve({**os.environ, **dict(variables)}))
