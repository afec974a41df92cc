"""One running pipeline, or some of its legs: its leases, session, three streaming queries, status, and the way it stops.

The runner is an ordinary process: started by the command line, a service manager or Dagster alike. SIGTERM lets the batches in work
finish and exits 0. A kill at any moment is repaired by the next start.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from filelock import Timeout
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_exponential_jitter,
)

from pipelines.config import PipelineConfig, run_digest, version_of
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.kafka.client import KafkaTopic
from pipelines.connectors.nats.client import JetStream
from pipelines.control.control import forget_halts, note_halt
from pipelines.engine.connections import Connections
from pipelines.engine.leg import AnyLeg
from pipelines.engine.ranges import offset_text
from pipelines.engine.run_spec import RunSpec, resolved_digest
from pipelines.engine.session import build_session, is_jvm_alive
from pipelines.errors import ConfigurationError, FencedError, HaltError, ProcessLostError, RetryableError, TallyflowError
from pipelines.host import RESERVED_FILES, raise_file_limit, remedy
from pipelines.ingest.leg import DRIVER_OFFSETS, IngestLeg
from pipelines.key_store.store import RUNS_PER_BUCKET
from pipelines.private import private_directory
from pipelines.process import stage_config
from pipelines.process.leg import DRIVER_FRAMES, ProcessLeg
from pipelines.protocol.bodies import CHAINS, PROCESS_CHAIN
from pipelines.protocol.failpoints import RUNNER_PID_VARIABLE
from pipelines.protocol.lease import Lease, acquire_all, leg_lock
from pipelines.protocol.ledger import Chain, read_chain
from pipelines.protocol.naming import LEGS, Names
from pipelines.runner.pace import Pace
from pipelines.runner.preflight import CONTACT_SECONDS, Prepared, check_master, check_supported, check_types, prepare
from pipelines.runner.queries import Queries
from pipelines.runner.retention import LetterRetention, Retention
from pipelines.sink.ledger_copier import LedgerCopier
from pipelines.sink.leg import SinkLeg
from pipelines.sink.waiting import check_waiting

CAUGHT_UP_SINK_DELAY_MS = 50
JVM_END_SECONDS = 5.0
WATCH_SECONDS = 0.25
ExpireLetters = Callable[[PipelineConfig, Path, JetStream], None]
"""Drop the dead letters that are older than the file allows; called by the runner's retention (`reprocess.expire_letters`)."""
_LEG_CLASSES: dict[str, type[AnyLeg]] = {"ingest": IngestLeg, "process": ProcessLeg, "sink": SinkLeg}


class Service(Protocol):
    """Something that lives as long as the runner, such as the status server."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    """How to run: which legs, whether to end when Kafka's present end is confirmed, and how long to wait for systems at the start.

    `accept`: without the circuit breaker.
    """

    legs: tuple[str, ...] = LEGS
    until_caught_up: bool = False
    connect_seconds: float = 60.0
    master: str | None = None
    driver_offsets: int = DRIVER_OFFSETS
    driver_frames: int = DRIVER_FRAMES
    accept: bool = False


def files_needed(config: PipelineConfig) -> int:
    """How many files each process of a run may have to open: a run of the key store is mapped from a file of its own."""
    has_store = any(transform.type == "dedup" for transform in config.transforms)
    return RESERVED_FILES + (config.buckets * RUNS_PER_BUCKET if has_store else 0)


class Runner:
    """Runs legs of one pipeline until `stop`, a halt of every leg, or the frozen end. Use it once.

    `directory` is the pipeline's on this host, `own_directory` that of this start in it; another runner there may run the other legs.
    """

    def __init__(
        self,
        config: PipelineConfig,
        config_text: str,
        home: Path,
        options: RunOptions,
        expire_letters: ExpireLetters,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.config, self.options = config, options
        self._text, self._tell, self._expire_letters = config_text, tell, expire_letters
        self.names = Names(config.pipeline_id)
        self.directory = self.names.directory(home)
        self.own_directory = self.directory
        self.leases: dict[str, Lease] = {}
        self.stop_requested = threading.Event()
        self.legs: dict[str, AnyLeg] = {}
        self.copier: LedgerCopier | None = None
        self.retention: Retention | None = None
        self.pace: Pace | None = None
        self.is_ready = False
        self.waits_for = ""
        """What the start waits for before any leg is built: why a system does not answer, and what to do; else empty."""
        self._waiting_service: Service | None = None
        self.on_start: Callable[[Runner], Service] | None = None
        self.shared_session: SparkSession | None = None
        """A session to run on and leave running, instead of one of our own: several runners in one process (tests, bench)."""
        self.queries_class = Queries
        self.started_at = time.time()
        self._targets: dict[int, int] | None = None

    def run(self) -> None:
        """Runs to the end. Raises HaltError, ConfigurationError or RetryableError (a system stayed away at the start)."""
        forget_halts(self.directory, self.options.legs)
        with self._halts_noted():
            check_supported(self.config)
            check_types(self.config)
            check_master(self.config, self.options.master)
            raise_file_limit(files_needed(self.config))
            self.stop_on_signals()
            self.log = JetStream(self.config.nats, f"tallyflow-{self.config.pipeline_id}", self.config.on_error.classes("nats"))
            self.topic = KafkaTopic(self.config.sources[0], self.config.on_error.classes("kafka"))
            prepared = self._wait_for_systems()
        if prepared is None:
            return
        if prepared.topic.note:
            self._tell(prepared.topic.note)
        private_directory(self.directory)
        self.leases = acquire_all(self.log, self.names, self.directory, self.options.legs)
        forget_halts(self.directory, self.options.legs)
        self._make_own_directory()
        session: SparkSession | None = None
        queries: Queries | None = None
        service = self.on_start(self) if self.on_start else None
        try:
            with self._halts_noted():
                if service:
                    service.start()
                run_path = self._write_run(prepared)
                self._build_legs(prepared, run_path)
                self._copy_ledger(prepared)
                os.environ[RUNNER_PID_VARIABLE] = str(os.getpid())
                name = f"tallyflow-{self.config.pipeline_id}"
                session = self.shared_session or build_session(name, self.own_directory, self.options.master)
                self.stop_on_signals()
                queries = self.queries_class(session, run_path, self.legs, self._sources(), self._tell)
                queries.start()
                self._keep_retention()
                self.is_ready = True
                self._watch(session, queries)
        except (Py4JError, OSError) as error:
            if isinstance(error, OSError) and (to_do := remedy(error)):
                raise RetryableError(f"running in {self.own_directory}: {error}; {to_do}, and start again") from error
            if session is None or is_jvm_alive(session, JVM_END_SECONDS):
                raise
            raise self._jvm_ended() from error
        finally:
            self._shut_down(session, queries)
            if service:
                service.close()

    def _wait_for_systems(self) -> Prepared | None:
        """The start-up checks, again and again while a system is away, for `connect_seconds`; None when told to stop meanwhile."""
        clickhouse = ClickHouse(self.config.sink, self.config.on_error.classes("clickhouse"))
        retrying = Retrying(
            retry=retry_if_exception_type(RetryableError),
            wait=wait_exponential_jitter(multiplier=0.5, max=5),
            stop=stop_any(stop_after_delay(self.options.connect_seconds), stop_when_event_set(self.stop_requested)),
            sleep=sleep_using_event(self.stop_requested),
            before_sleep=lambda state: self._wait_for(state.outcome.exception() if state.outcome else None),
            reraise=True,
        )
        try:
            return retrying(self._prepare, clickhouse)
        except RetryableError:
            if self.stop_requested.is_set():
                return None
            raise
        finally:
            clickhouse.close()
            self._end_waiting()

    def _prepare(self, clickhouse: ClickHouse) -> Prepared:
        prepared = prepare(self.config, self.log, self.topic, clickhouse)
        if self.options.until_caught_up:
            # Of every partition: one without a leader is waited for, or the end would come without its records.
            self._targets = self.topic.ends(prepared.topic.partitions, CONTACT_SECONDS)
        return prepared

    def _wait_for(self, error: BaseException | None) -> None:
        """Says what the start waits for: in words each time, and from the first time on at `/status`."""
        self._tell(f"waiting: {error}")
        self.waits_for = (
            f"{error}; the start waits for it, at most {self.options.connect_seconds:.0f} s: start the server, or correct its address in "
            "the pipeline file"
        )
        if self._waiting_service is None and self.on_start is not None:
            # No lease is held yet: another start may wait beside this one.
            self.own_directory = self.directory / f"{'-'.join(self.options.legs)}-waiting-{os.getpid()}"
            private_directory(self.own_directory)
            self._waiting_service = self.on_start(self)
            self._waiting_service.start()

    def _end_waiting(self) -> None:
        """Leaves nothing of the wait: a start that fails has made nothing."""
        self.waits_for = ""
        if self._waiting_service is not None:
            self._waiting_service.close()
            shutil.rmtree(self.own_directory, ignore_errors=True)
            self.own_directory = self.directory
            with suppress(OSError):
                self.directory.rmdir()

    def _make_own_directory(self) -> None:
        """Makes a directory for this start, under a name never used before, and deletes those of earlier starts with a leg of ours.

        We hold these legs' locks, so those runners are dead; the JVM of one that was killed may still write for a moment.
        """
        for old in self.directory.iterdir():
            if old.is_dir() and not {*old.name.split("-")}.isdisjoint(self.options.legs):
                shutil.rmtree(old, ignore_errors=True)
        epoch = self.leases[self.options.legs[0]].holder.epoch
        self.own_directory = self.directory / f"{'-'.join(self.options.legs)}-{epoch}"
        self.own_directory.mkdir(exist_ok=True)

    def _write_run(self, prepared: Prepared) -> Path:
        """Stores the stage configuration and the run file of this start."""
        stages = stage_config.stage_config(self.config, prepared.table)
        if "sink" in self.options.legs:
            check_waiting(self.log, self.names, stages, prepared.table)
        version = stage_config.store(self.log, self.names, stages)
        run = RunSpec(
            self._text,
            f"pipeline {self.config.pipeline_id}",
            {leg: lease.holder.epoch for leg, lease in self.leases.items()},
            prepared.stream_ids,
            prepared.topic.topic_id,
            version,
            self.options.driver_offsets,
            self.options.driver_frames,
            self.names.state_place(self.directory, self.config.state_uri),
            self._planned_config() or version if self.options.accept else "",
            version_of(self.config),
            resolved_digest(self.config),
        )
        path = self.own_directory / "run.json"
        run.save(path)
        self.run_spec = run
        return path

    def _planned_config(self) -> str:
        """The version that the open plan of process names; empty where there is none."""
        plan = read_chain(self.log, self.names, PROCESS_CHAIN).plan
        return plan.body.config if plan else ""

    def _build_legs(self, prepared: Prepared, run_path: Path) -> None:
        for name in self.options.legs:
            connections = Connections(self.run_spec, keep_partitions=True, log=self.log)
            lease = self.leases[name]
            chain = Chain(self.log, self.names, CHAINS[name], lease.holder.epoch)
            chain.open()
            self.legs[name] = _LEG_CLASSES[name](connections, chain, lease, run_path, self.stop_requested)
        if "ingest" in self.legs:
            self._anchor(self.legs["ingest"], prepared.topic.partitions)

    def _copy_ledger(self, prepared: Prepared) -> None:
        """Where the file asks for it; one runner of the pipeline does it, the one that has the sink."""
        if self.config.sink.ledger_table and "sink" in self.leases:
            stream_id = prepared.stream_ids["ledger"]
            self.copier = LedgerCopier(self.config.sink, self.names, self.log, stream_id, self.leases["sink"])
            self.copier.start()

    def _keep_retention(self) -> None:
        letters_age = self.config.dead_letters.max_age
        expire = partial(self._expire_letters, self.config, self.directory, self.log)
        letters = LetterRetention(expire, letters_age) if letters_age is not None else None
        self.retention = Retention(self.log, self.names, self.legs, self.config.resources.nats.stream.max_age, letters)
        self.retention.start()
        self.pace = Pace(self.log, self.names, self.topic)
        self.pace.start()

    def _anchor(self, leg: AnyLeg, partitions: Sequence[int]) -> None:
        assert isinstance(leg, IngestLeg)
        is_latest = self.config.sources[0].consumer_group_initial_offset == "latest"
        leg.anchor(lambda: self.topic.ends(partitions) if is_latest else self.topic.starts(partitions))

    def _sources(self) -> dict[str, dict[str, str]]:
        """Options of each leg's Data Source."""
        sink = self.config.sink
        delay_ms = int(sink.max_delay_time.total_seconds() * 1000)
        delay_ms = min(delay_ms, CAUGHT_UP_SINK_DELAY_MS) if self.options.until_caught_up else delay_ms
        until = {"until": offset_text(self._targets)} if self._targets is not None else {}
        return {
            "ingest": {"few": str(self.options.driver_offsets), **until},
            "process": {"role": "raw", "upstream": "ingest"},
            "sink": {"role": "out", "upstream": "process", "min_rows": str(sink.max_batch_size), "max_delay_ms": str(delay_ms)},
        }

    def _watch(self, session: SparkSession, queries: Queries) -> None:
        """Until told to stop, or all is confirmed: notices legs that ended."""
        while not self.stop_requested.wait(WATCH_SECONDS):
            if not is_jvm_alive(session):
                raise self._jvm_ended()
            queries.look()
            halted = [leg for leg in self.legs.values() if leg.failure is not None]
            if halted and (self.options.until_caught_up or len(halted) == len(self.legs) or self.is_fenced):
                raise halted[0].failure or HaltError(f"{halted[0].name} halted")
            if self._targets is not None and self.is_caught_up():
                return

    @contextmanager
    def _halts_noted(self) -> Iterator[None]:
        """Notes for those who would start the legs again that they have halted, or could not start, for a reason that does not pass."""
        try:
            yield
        except (FencedError, ProcessLostError):
            raise
        except (HaltError, ConfigurationError) as error:
            halted: dict[str, TallyflowError] = {name: leg.failure for name, leg in self.legs.items() if leg.failure is not None}
            for name, failure in (halted or dict.fromkeys(self.options.legs, error)).items():
                if not isinstance(failure, FencedError):
                    self._note_halt(name, str(failure))
            raise

    def _note_halt(self, leg: str, message: str) -> None:
        """Written under the leg's lock only, and forgotten by who takes it: a note never outlives a later runner of the leg.

        A pipeline that was never here has no directory, and a refused start makes none: nobody would start that one again.
        """
        if leg in self.leases:
            note_halt(self.directory, leg, message, run_digest(self._text))
            return
        if not self.directory.is_dir():
            return
        with suppress(Timeout), leg_lock(self.directory, leg).acquire(timeout=0):
            note_halt(self.directory, leg, message, run_digest(self._text))

    def _jvm_ended(self) -> ProcessLostError:
        return ProcessLostError(
            f"running pipeline {self.config.pipeline_id}: Spark's JVM has ended, killed from outside or out of memory (its last words are "
            f"in {self.own_directory / 'spark.log'}); start the pipeline again, it goes on where it stood"
        )

    @property
    def is_fenced(self) -> bool:
        """True when another runner has taken one of our legs over."""
        return any(lease.lost.is_set() for lease in self.leases.values())

    def is_caught_up(self) -> bool:
        """True when our legs, and those before them wherever they run, have confirmed everything up to the frozen ends of the topic."""
        last = max(LEGS.index(name) for name in self.legs)
        try:
            return all(self._has_reached_the_end(name) for name in LEGS[: last + 1])
        except RetryableError:
            return False

    def _has_reached_the_end(self, name: str) -> bool:
        """Asked in the order of the legs: the input of each is complete once the one before has reached its end."""
        state = self.legs[name].chain.state if name in self.legs else read_chain(self.log, self.names, CHAINS[name])
        if name == "ingest":
            reached = state.to or {}
            return all(reached.get(str(p), 0) >= end for p, end in (self._targets or {}).items())
        stream = self.log.state(self.names.stream("raw" if name == "process" else "out"))
        return stream is not None and (state.to or 0) >= stream.last_sequence

    def request_stop(self) -> None:
        self.stop_requested.set()

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT ask for a stop. Called again once Spark is up: it installs a SIGINT handler that interrupts a batch."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.request_stop())

    def _shut_down(self, session: SparkSession | None, queries: Queries | None) -> None:
        """Lets the batches in work finish, then gives back what is held, in the opposite order.

        A step that fails is told and keeps no other from being made: what the run ended with, or that it ended well, says more.
        """
        self.stop_requested.set()
        for step in self._last_steps(session, queries):
            try:
                step()
            except Exception as error:
                self._tell(f"while ending: {type(error).__name__}: {error}")

    def _last_steps(self, session: SparkSession | None, queries: Queries | None) -> Iterator[Callable[[], object]]:
        if queries is not None:
            yield queries.stop
        if self.retention is not None:
            yield self.retention.close
        if self.pace is not None:
            yield self.pace.close
        if session is not None and self.shared_session is None and is_jvm_alive(session):
            yield session.stop
        for leg in self.legs.values():
            if leg.failure is None:
                leg.status.state = "stopped"
            yield leg.close
        if self.copier is not None:
            yield partial(self._end_copying, self.copier)
        for lease in self.leases.values():
            yield lease.release
        yield self.log.close

    def _end_copying(self, copier: LedgerCopier) -> None:
        if left := copier.close():
            self._tell(f"the ledger was not copied to its end; the next start goes on: {left}")
