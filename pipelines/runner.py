"""One running pipeline: its lease, session, three streaming queries, status, and the way it stops.

The runner is an ordinary process: started by the command line, a service manager or Dagster alike. SIGTERM lets the batches in work
finish and exits 0. A kill at any moment is repaired by the next start.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse import ClickHouse
from pipelines.connectors.jetstream import JetStream
from pipelines.connectors.kafka import GroupOffsets, KafkaTopic
from pipelines.connectors.ranges import offset_text
from pipelines.connectors.spark import build_session, is_jvm_alive
from pipelines.errors import HaltError, RetryableError
from pipelines.failpoints import RUNNER_PID_VARIABLE
from pipelines.lease import Lease
from pipelines.ledger import Chain
from pipelines.legs import stage_config
from pipelines.legs.connections import Connections
from pipelines.legs.execute import run_in_tasks
from pipelines.legs.ingest import DRIVER_OFFSETS, IngestLeg
from pipelines.legs.leg import Leg, StoppedError
from pipelines.legs.process import DRIVER_FRAMES, ProcessLeg
from pipelines.legs.sink import SinkLeg
from pipelines.legs.warm import warm
from pipelines.naming import LEGS, Names
from pipelines.preflight import Prepared, check_supported, check_types, prepare
from pipelines.run_spec import RunSpec

CAUGHT_UP_SINK_DELAY_MS = 50
RESTARTS_WITHOUT_PROGRESS = 5
JVM_END_SECONDS = 5.0
WATCH_SECONDS = 0.25
_LEG_CLASSES: dict[str, type[Leg]] = {"ingest": IngestLeg, "process": ProcessLeg, "sink": SinkLeg}


class Service(Protocol):
    """Something that lives as long as the runner, such as the status server."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    """How to run: which legs, whether to end when Kafka's present end is confirmed, and how long to wait for systems at the start."""

    legs: tuple[str, ...] = LEGS
    until_caught_up: bool = False
    connect_seconds: float = 60.0
    master: str | None = None
    driver_offsets: int = DRIVER_OFFSETS
    driver_frames: int = DRIVER_FRAMES


class Runner:
    """Runs one pipeline until `stop`, a halt of every leg, or the frozen end. Use it once."""

    def __init__(
        self, config: PipelineConfig, config_text: str, home: Path, options: RunOptions, tell: Callable[[str], None] = print
    ) -> None:
        self.config, self.options = config, options
        self._text, self._tell = config_text, tell
        self.names = Names(config.pipeline_id)
        self.directory = self.names.directory(home)
        self.stop_requested = threading.Event()
        self.legs: dict[str, Leg] = {}
        self.is_ready = False
        self.on_start: Callable[[Runner], Service] | None = None
        self.shared_session: SparkSession | None = None
        """A session to run on and leave running, instead of one of our own: several runners in one process (tests, bench)."""
        self.started_at = time.time()
        self._queries: dict[str, StreamingQuery] = {}
        self._restarts: dict[str, tuple[int, int]] = {}
        self._targets: dict[int, int] | None = None

    def run(self) -> None:
        """Runs to the end. Raises HaltError, ConfigurationError or RetryableError (a system stayed away at the start)."""
        check_supported(self.config)
        check_types(self.config)
        self.log = JetStream(self.config.nats, f"tallyflow-{self.config.pipeline_id}")
        self.topic = KafkaTopic(self.config.sources[0])
        prepared = self._wait_for_systems()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.lease = Lease(self.log, self.names, self.directory)
        self.epoch = self.lease.acquire()
        session: SparkSession | None = None
        service = self.on_start(self) if self.on_start else None
        try:
            if service:
                service.start()
            self.stop_on_signals()
            run_path = self._write_run(prepared)
            self._build_legs(prepared, run_path)
            if self.options.until_caught_up:
                self._targets = self.topic.ends(prepared.topic.partitions)
            os.environ[RUNNER_PID_VARIABLE] = str(os.getpid())
            name = f"tallyflow-{self.config.pipeline_id}"
            session = self.shared_session or build_session(name, self.directory, self.options.master)
            self.stop_on_signals()
            self._start_all(session, run_path)
            self.is_ready = True
            self._watch(session, run_path)
        except (Py4JError, OSError) as error:
            if session is None or is_jvm_alive(session, JVM_END_SECONDS):
                raise
            raise self._jvm_ended() from error
        finally:
            self._shut_down(session)
            if service:
                service.close()

    def _wait_for_systems(self) -> Prepared:
        """The start-up checks, again and again while a system is away, for `connect_seconds`."""
        clickhouse = ClickHouse(self.config.sink)
        retrying = Retrying(
            retry=retry_if_exception_type(RetryableError),
            wait=wait_exponential_jitter(multiplier=0.5, max=5),
            stop=stop_after_delay(self.options.connect_seconds),
            before_sleep=lambda state: self._tell(f"waiting: {state.outcome.exception() if state.outcome else ''}"),
            reraise=True,
        )
        try:
            return retrying(prepare, self.config, self.log, self.topic, clickhouse)
        finally:
            clickhouse.close()

    def _write_run(self, prepared: Prepared) -> Path:
        """Stores the stage configuration and the run file of this start; files of earlier starts go."""
        version = stage_config.store(self.log, self.names, stage_config.stage_config(self.config, prepared.table))
        run = RunSpec(
            self._text,
            f"pipeline {self.config.pipeline_id}",
            self.epoch,
            prepared.stream_ids,
            prepared.topic.topic_id,
            version,
            self.options.driver_offsets,
            self.options.driver_frames,
        )
        for old in self.directory.glob("run-*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        path = self.directory / f"run-{self.epoch}.json"
        run.save(path)
        self.run_spec = run
        return path

    def _build_legs(self, prepared: Prepared, run_path: Path) -> None:
        for name in self.options.legs:
            connections = Connections(self.run_spec, keep_partitions=True, log=self.log)
            chain = Chain(self.log, self.names.stream("ledger"), self.names.chain(name), self.epoch)
            chain.open()
            self.legs[name] = _LEG_CLASSES[name](connections, chain, self.lease, run_path, self.stop_requested)
        if "ingest" in self.legs:
            self._anchor(self.legs["ingest"], prepared.topic.partitions)
            self._group = GroupOffsets(self.config.sources[0], self.config.consumer_group(self.config.sources[0]))

    def _anchor(self, leg: Leg, partitions: Sequence[int]) -> None:
        assert isinstance(leg, IngestLeg)
        is_latest = self.config.sources[0].consumer_group_initial_offset == "latest"
        leg.anchor(lambda: self.topic.ends(partitions) if is_latest else self.topic.starts(partitions))

    def _start_all(self, session: SparkSession, run_path: Path) -> None:
        """Warms the task workers and starts every leg's query, side by side: each waits for Python processes to start."""
        with ThreadPoolExecutor(1 + len(self.legs), "start") as starting:
            warming = starting.submit(run_in_tasks, session, str(run_path), warm, [{}] * session.sparkContext.defaultParallelism)
            queries = [starting.submit(self._start, session, leg, run_path) for leg in self.legs.values()]
            warming.result()
            for query in queries:
                query.result()

    def _start(self, session: SparkSession, leg: Leg, run_path: Path) -> None:
        checkpoint = self.directory / f"run-{self.epoch}-{leg.name}-{self._restarts.get(leg.name, (0, 0))[0]}"
        options = {"run": str(run_path), "start": offset_text(leg.start_offset()), "leg": leg.name}
        source = "tallyflow_kafka" if leg.name == "ingest" else "tallyflow_stream"
        if leg.name == "ingest":
            options |= {"few": str(self.options.driver_offsets)}
            options |= {"until": offset_text(self._targets)} if self._targets is not None else {}
        if leg.name == "process":
            options |= {"role": "raw", "upstream": "ingest"}
        if leg.name == "sink":
            sink = self.config.sink
            delay_ms = int(sink.max_delay_time.total_seconds() * 1000)
            delay_ms = min(delay_ms, CAUGHT_UP_SINK_DELAY_MS) if self.options.until_caught_up else delay_ms
            options |= {"role": "out", "upstream": "process", "min_rows": str(sink.max_batch_size), "max_delay_ms": str(delay_ms)}
        frame = session.readStream.format(source).options(**options).load()
        self._queries[leg.name] = (
            frame.writeStream.queryName(f"{self.config.pipeline_id}.{leg.name}")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda batch, number: self._on_batch(leg, batch, number, checkpoint))
            .start()
        )
        leg.status.state = "running"

    def _on_batch(self, leg: Leg, batch: Any, number: int, checkpoint: Path) -> None:
        leg.on_batch(batch, number, checkpoint)
        if leg.name == "ingest" and leg.chain.state.to:
            self._group.commit({int(p): offset for p, offset in leg.chain.state.to.items()})

    def _watch(self, session: SparkSession, run_path: Path) -> None:
        """Until told to stop, or all is confirmed: notices legs that ended, starts again those that may go on."""
        while not self.stop_requested.wait(WATCH_SECONDS):
            if not is_jvm_alive(session):
                raise self._jvm_ended()
            for name, query in list(self._queries.items()):
                if not query.isActive:
                    self._ended(session, self.legs[name], query, run_path)
            halted = [leg for leg in self.legs.values() if leg.failure is not None]
            if halted and (self.options.until_caught_up or len(halted) == len(self.legs) or self.lease.lost.is_set()):
                raise halted[0].failure or HaltError(f"{halted[0].name} halted")
            if self._targets is not None and self.is_caught_up():
                return

    def _jvm_ended(self) -> HaltError:
        return HaltError(
            f"running pipeline {self.config.pipeline_id}: Spark's JVM has ended, killed from outside or out of memory (its last words are "
            f"in {self.directory / 'spark.log'}); start the pipeline again, it goes on where it stood"
        )

    def _ended(self, session: SparkSession, leg: Leg, query: StreamingQuery, run_path: Path) -> None:
        """A query that ended by itself: a halt stays; anything else (a killed planner, say) starts again behind the chain."""
        del self._queries[leg.name]
        error = query.exception()
        words = str(error).strip() if error else "it ended without an error"
        if leg.failure is None and any(name in words for name in ("HaltError", "DataLossError", "InvariantError")):
            leg.failure = HaltError(_told(words))
        if leg.failure is not None:
            leg.status.state, leg.status.message = "halted", str(leg.failure)
            self._tell(f"{leg.name} halted: {leg.failure}")
            return
        count, batches = self._restarts.get(leg.name, (0, 0))
        fruitless = count + 1 if leg.status.batches == batches else 1
        if fruitless > RESTARTS_WITHOUT_PROGRESS:
            leg.failure = HaltError(f"{leg.name}: its query ended {fruitless} times without progress, last with: {_told(words)}")
            leg.status.state, leg.status.message = "halted", str(leg.failure)
            return
        self._restarts[leg.name] = (fruitless, leg.status.batches)
        self._tell(f"{leg.name}: starting the query again after: {_told(words)}")
        with suppress(StoppedError):
            leg.patiently(leg.chain.open)
            leg.patiently(lambda: self._start(session, leg, run_path))

    def is_caught_up(self) -> bool:
        """True when the sink has confirmed everything up to the frozen ends of the topic."""
        targets = self._targets or {}
        if "ingest" in self.legs:
            reached = self.legs["ingest"].chain.state.to or {}
            if any(reached.get(str(p), 0) < end for p, end in targets.items()):
                return False
        for name, role in (("process", "raw"), ("sink", "out")):
            if name in self.legs:
                try:
                    state = self.log.state(self.names.stream(role))
                except RetryableError:
                    return False
                if state is None or (self.legs[name].chain.state.to or 0) < state.last_sequence:
                    return False
        return True

    def request_stop(self) -> None:
        self.stop_requested.set()

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT ask for a stop. Called again once Spark is up: it installs a SIGINT handler that interrupts a batch."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.request_stop())

    def _shut_down(self, session: SparkSession | None) -> None:
        """Lets the batches in work finish, then gives back what is held, in the opposite order."""
        self.stop_requested.set()
        has_jvm = session is not None and is_jvm_alive(session)
        for name, query in self._queries.items():
            leg = self.legs[name]
            with leg.working:
                if has_jvm:
                    query.stop()
            if leg.failure is None:
                leg.status.state = "stopped"
        if session is not None and has_jvm and self.shared_session is None:
            session.stop()
        for leg in self.legs.values():
            leg.close()
        if "ingest" in self.legs:
            self._group.close()
        self.lease.release()
        self.log.close()


def _told(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if "Error" in line]
    return (lines[-1] if lines else words.splitlines()[0])[:500]
