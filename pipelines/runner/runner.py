"""One running pipeline, or some of its legs: leases, session, a streaming query, status, and an orderly stop.

The runner is an ordinary process, started by the command line, a service manager or Dagster. SIGTERM lets the batches in progress finish
and exits with 0. After a kill at any moment the next start recovers.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
    wait_exponential_jitter,
)

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Sink, open_sink
from pipelines.connectors.sources import Source, open_source
from pipelines.control.control import forget_halts
from pipelines.engine.coordinator import Coordinator, LegView
from pipelines.engine.run_spec import RunSpec
from pipelines.engine.session import check_answers, is_jvm_alive
from pipelines.errors import HaltError, ProcessLostError, RetryableError
from pipelines.host import raise_file_limit, remedy
from pipelines.private import private_directory
from pipelines.process.compile import compile_program
from pipelines.protocol.failpoints import RUNNER_PID_VARIABLE
from pipelines.protocol.lease import Lease, acquire_all, release_all
from pipelines.protocol.naming import Names
from pipelines.protocol.tally import Tally, tally
from pipelines.protocol.topology import LegId
from pipelines.rollups.fills import RollupFills, fills_of
from pipelines.runner.caught_up import LegsLeft, begun
from pipelines.runner.ending import end
from pipelines.runner.epochs import Epochs
from pipelines.runner.events import Event, Report, ignore, step
from pipelines.runner.file_checks import check_file, check_master
from pipelines.runner.halts import halts_noted
from pipelines.runner.lookup_tables import LookupTables
from pipelines.runner.options import RunOptions, files_needed
from pipelines.runner.pace import Pace
from pipelines.runner.preflight import CONTACT_SECONDS, Prepared, prepare
from pipelines.runner.reloads import Reloads
from pipelines.runner.retention import DeadLetterRetention, Retention
from pipelines.runner.run_file import write_run
from pipelines.runner.signals import on_stop_signals
from pipelines.runner.spark_engine import SparkEngine
from pipelines.runner.summary import duration, summary
from pipelines.runner.waits import StoppedInStartError, system_of
from pipelines.sink.ledger_copier import LedgerCopier

Made = TypeVar("Made")
JVM_END_SECONDS = 5.0
ExpireDeadLetters = Callable[[PipelineConfig, Path, JetStream], None]
"""Discard the dead letters that are older than the file allows; called by the runner's retention (`reprocess.expire_letters`)."""


class Service(Protocol):
    """A service that lives as long as the runner, such as the status server."""

    def start(self) -> None: ...

    def close(self) -> None: ...


class Runner:
    """Runs legs of one pipeline until a stop, a halt of every leg, or the frozen end. Use it once.

    `directory` is the pipeline's directory on this host, `own_directory` that of this start in it; another runner there may run other legs.
    """

    def __init__(
        self,
        config: PipelineConfig,
        config_text: str,
        home: Path,
        options: RunOptions,
        expire_dead_letters: ExpireDeadLetters,
        announce: Callable[[str], None] = print,
        engine: SparkEngine | None = None,
    ) -> None:
        self.config, self.topology = config, config.topology
        self.options = replace(options, legs=options.legs or self.topology.legs)
        self._text, self.announce, self._expire_dead_letters = config_text, announce, expire_dead_letters
        self.reloads: Reloads | None = None
        """Takes edits of the settings; None before the legs are started."""
        self.names = Names(config.pipeline_id)
        self.directory = self.names.directory(home)
        self.own_directory = self.directory
        self.leases: dict[LegId, Lease] = {}
        self.sources: dict[LegId, Source] = {}
        """The source of each ingest leg, wherever it runs; empty before the start."""
        self.stop_requested = threading.Event()
        self.legs: dict[LegId, LegView] = {}
        self.coordinator: Coordinator | None = None
        self.copiers: dict[LegId, LedgerCopier] = {}
        self._rollups: list[RollupFills] = []
        self.retention: Retention | None = None
        self.pace: Pace | None = None
        self.lookups: LookupTables | None = None
        self.is_ready = False
        self.waits_for = ""
        """Why the start is waiting before any leg is built, and what to do; else empty."""
        self._waiting_service: Service | None = None
        self.report: Report = ignore
        """Takes the events of the run that are no notes for `announce`."""
        self.log_path = ""
        """The log of this run on this host, for `status.json`; empty if none is kept."""
        self.on_directory: Callable[[], None] = lambda: None
        """Called once the start has passed its checks, when the pipeline's directory is there: before Spark starts."""
        self.on_start: Callable[[Runner], Service] | None = None
        self.on_ready: Callable[[Runner], Sequence[Service]] | None = None
        """Makes the services that live as long as the legs work."""
        self._beside: Sequence[Service] = ()
        self._tally_before: Tally | None = None
        self._engine = engine or SparkEngine()
        self._session: SparkSession | None = None
        self._epochs: Epochs | None = None
        self.started_at = time.time()
        self.targets: dict[LegId, dict[int, int]] | None = None

    def run(self) -> None:
        """Run to the end. Raise HaltError, ConfigurationError or RetryableError (a system stayed away at startup)."""
        with suppress(StoppedInStartError):
            self._run()

    def _run(self) -> None:
        forget_halts(self.directory, self.options.legs)
        with halts_noted(self):
            check_file(self.config)
            check_master(self.config, self.options.master, self.options.properties)
            raise_file_limit(files_needed(self.config))
            on_stop_signals(self.request_stop)
            name = f"tallyflow-{self.config.pipeline_id}"
            self.log = JetStream.of(self.config, name)
            self.sources = {leg: open_source(self.config, source_id) for leg, source_id in self.topology.sources.items()}
            prepared = self._wait_for_systems()
        for note in filter(None, (facts.note for facts in prepared.sources.values())):
            self.announce(note)
        private_directory(self.directory)
        self.on_directory()
        service: Service | None = None
        try:
            with halts_noted(self):
                # A dead holder's leases are waited for: Spark starts meanwhile.
                with step(self.report, "taking the leases", f"leases taken: {', '.join(self.options.legs)}"):
                    self.leases = self._patiently(acquire_all, self.log, self.names, self.directory, self.options.legs, self._open_session)
                forget_halts(self.directory, self.options.legs)
                self._make_own_directory()
                service = self.on_start(self) if self.on_start else None
                if service:
                    service.start()
                run = self._patiently(self._write_run, prepared)
                self.legs = {leg: LegView(leg, lease) for leg, lease in self.leases.items()}
                self._copy_ledger(prepared)
                if self.lookups is not None:
                    self._patiently(self.lookups.offer_first, self.legs[self.topology.process])
                self._rollups = fills_of(self.config, prepared.stream_ids, self.leases)
                session = self._open_session()
                shares = self._engine.shares(session, self.options.legs, self.config.lanes - 1)
                self.coordinator = coordinator = Coordinator(shares, self.legs, self.announce)
                # Spark has installed a handler of SIGINT that interrupts a batch.
                on_stop_signals(self.request_stop)
                self._tally_before = self._patiently(tally, self.log, self.names, self.topology)
                self._epochs = epochs = self._engine.epochs(session, run, self.own_directory, coordinator, self.log)
                with step(self.report, "starting the legs", "legs started"):
                    epochs.start()
                self._keep_retention()
                self.reloads = Reloads(self, run)
                self._become_ready()
                self._watch(session, epochs)
        except (Py4JError, OSError) as error:
            if isinstance(error, OSError) and (to_do := remedy(error)):
                raise RetryableError(f"running in {self.own_directory}: {error}; {to_do}, and start again") from error
            if self._session is None or is_jvm_alive(self._session, JVM_END_SECONDS):
                raise
            raise self._jvm_ended() from error
        finally:
            self._shut_down()
            if service:
                service.close()

    def _wait_for_systems(self) -> Prepared:
        """Run the startup checks, retried while a system is away, for `connect_seconds`."""
        sinks = {leg: open_sink(self.config.seen_from(leg)) for leg in self.topology.tables}
        try:
            prepared = self._patiently(self._prepare, sinks, on_wait=self._serve_wait)
            if self.stop_requested.is_set():
                raise StoppedInStartError
            return prepared
        finally:
            for sink in sinks.values():
                sink.close()
            self._end_waiting()

    def _prepare(self, sinks: Mapping[LegId, Sink]) -> Prepared:
        with step(self.report, "checking Kafka, NATS and ClickHouse", "Kafka, NATS and ClickHouse answer"):
            prepared = prepare(self.config, self.log, self.sources, sinks)
            self._fetch_tables(prepared)
            check_answers(self.options.master)
        if self.options.until_caught_up:
            # Every partition: wait for one without a leader, or the run would end without its records.
            self.targets = {leg: source.ends(prepared.sources[leg].partitions, CONTACT_SECONDS) for leg, source in self.sources.items()}
        elif self.options.drain:
            self.targets = begun(self.sources, self.log, self.names)
        return prepared

    def _fetch_tables(self, prepared: Prepared) -> None:
        """Fetch the look-up tables for the first plan; the runner that has process does."""
        if self.topology.process not in self.options.legs or not self.config.tables:
            return
        if self.lookups is None:
            state_storage = self.names.state_storage(self.directory, self.config.state_uri)
            self.lookups = LookupTables(self.config, self.log, state_storage, self.announce)
        self.lookups.fetch_first(compile_program(self.config, [*prepared.tables.values()]).lookups)

    def _patiently(self, work: Callable[..., Made], *arguments: Any, on_wait: Callable[[], None] = lambda: None) -> Made:
        """Return what `work` returns; while a system is away, call it again, for `connect_seconds`.

        Raise StoppedInStartError if the run is stopped while a system is away.
        """

        def tell(state: RetryCallState) -> None:
            self._tell_wait(state.outcome.exception() if state.outcome else None)
            on_wait()

        retrying = Retrying(
            retry=retry_if_exception_type(RetryableError),
            wait=wait_exponential_jitter(multiplier=0.5, max=5),
            stop=stop_any(stop_after_delay(self.options.connect_seconds), stop_when_event_set(self.stop_requested)),
            sleep=sleep_using_event(self.stop_requested),
            before_sleep=tell,
            reraise=True,
        )
        try:
            return retrying(work, *arguments)
        except RetryableError as error:
            if self.stop_requested.is_set():
                raise StoppedInStartError from error
            raise
        finally:
            self.waits_for = ""

    def _tell_wait(self, error: BaseException | None) -> None:
        """Report what the start waits for: a message for each system, and from the first time on at `/status`."""
        if not self.waits_for or system_of(str(error)) != system_of(self.waits_for):
            self.report(Event("waiting", f"waiting: {error}", {"for": system_of(str(error))}))
        self.waits_for = (
            f"{error}; the start waits at most {self.options.connect_seconds:.0f} s: start the server, or correct its address in "
            "the pipeline file"
        )

    def _serve_wait(self) -> None:
        """Serve `/status` before this start has a directory."""
        if self._waiting_service is None and self.on_start is not None:
            # No lease is held yet: another start may be waiting too.
            self.own_directory = self.directory / f"{self._tokens()}-waiting-{os.getpid()}"
            private_directory(self.own_directory)
            self._waiting_service = self.on_start(self)
            self._waiting_service.start()

    def _end_waiting(self) -> None:
        """Remove all traces of the wait: a start that fails leaves nothing."""
        if self._waiting_service is not None:
            self._waiting_service.close()
            shutil.rmtree(self.own_directory, ignore_errors=True)
            self.own_directory = self.directory
            with suppress(OSError):
                self.directory.rmdir()

    def _tokens(self) -> str:
        """Return the legs in the name of a directory: no token has a hyphen."""
        return "-".join(leg.token for leg in self.options.legs)

    def _make_own_directory(self) -> None:
        """Create a directory for this start, unless it is there, under a new name; delete those of earlier starts with a leg of ours.

        We hold these legs' locks, so the earlier runners are dead; the JVM of a killed runner may still write for a moment.
        """
        if self.own_directory != self.directory:
            return
        for old in self.directory.iterdir():
            if old.is_dir() and not {*old.name.split("-")}.isdisjoint(leg.token for leg in self.options.legs):
                shutil.rmtree(old, ignore_errors=True)
        # The tasks find their runner by this name, so no other host may give it.
        self.own_directory = self.directory / f"{self._tokens()}-{uuid4().hex[:12]}"
        self.own_directory.mkdir(exist_ok=True)

    def _open_session(self) -> SparkSession:
        """Start Spark in this start's directory, unless it has started while we waited for a lease."""
        if self._session is None:
            self._make_own_directory()
            os.environ[RUNNER_PID_VARIABLE] = str(os.getpid())
            name, master, legs = f"tallyflow-{self.config.pipeline_id}", self.options.master, self.options.legs
            tasks = len(legs) + self.config.lanes - 1
            with step(self.report, "starting Spark", "Spark started"):
                self._session = self._engine.open(name, self.own_directory, master, self.options.properties, tasks)
        return self._session

    def _write_run(self, prepared: Prepared) -> RunSpec:
        return write_run(self, prepared)

    def _copy_ledger(self, prepared: Prepared) -> None:
        """Start a ledger copier for each sink of this run whose `ledger_table` the file names."""
        for seen in self.config.by_table:
            if seen.sink.ledger_table and seen.sink_leg in self.leases:
                copier = LedgerCopier(seen.sink, self.names, self.log, prepared.stream_ids["ledger"], self.leases[seen.sink_leg])
                self.copiers[seen.sink_leg] = copier
                copier.start()

    def _keep_retention(self) -> None:
        max_age, every = self.config.resources.nats.stream.max_age, self._engine.retention_seconds
        self.retention = Retention(self.log, self.names, self.topology, self.legs, max_age, self.dead_letter_retention(), every)
        self.retention.start()
        self.pace = Pace(self.log, self.names, self.topology, self.sources, self.legs)
        self.pace.start()
        if self.lookups is not None:
            self.lookups.start()

    def dead_letter_retention(self) -> DeadLetterRetention | None:
        """Return what expires dead letters as the file says now; None if it keeps them."""
        expire_after = self.config.dead_letters.max_age
        expire = partial(self._expire_dead_letters, self.config, self.directory, self.log)
        return DeadLetterRetention(expire, expire_after) if expire_after is not None else None

    @property
    def text(self) -> str:
        """The text of the pipeline file under which the run works."""
        return self.reloads.text if self.reloads else self._text

    def _become_ready(self) -> None:
        self.is_ready = True
        states = {leg: view.status.state for leg, view in self.legs.items()}
        word = "started, and not ready," if "halted" in states.values() else "ready"
        took = duration(time.time() - self.started_at)
        self.report(
            Event("ready", f"{word} after {took}: {', '.join(f'{leg} {state}' for leg, state in states.items())}", {"legs": states})
        )
        self._beside = self.on_ready(self) if self.on_ready else ()
        for service in self._beside:
            service.start()

    def _watch(self, session: SparkSession, epochs: Epochs) -> None:
        """Watch for legs that ended, until a stop is requested or everything is confirmed."""
        left = LegsLeft(self.topology.up_to(self.legs), self.targets or {}, self.log, self.names)
        while not self.stop_requested.wait(self._engine.watch_seconds):
            if not is_jvm_alive(session):
                raise self._jvm_ended()
            epochs.look()
            halted = [leg for leg in self.legs.values() if leg.failure is not None]
            if halted and (self.options.has_an_end or len(halted) == len(self.legs) or self.is_fenced):
                raise halted[0].failure or HaltError(f"{halted[0].name} halted")
            if self.targets is not None and self._is_caught_up(left):
                return

    def _jvm_ended(self) -> ProcessLostError:
        return ProcessLostError(
            f"running pipeline {self.config.pipeline_id}: Spark's JVM has ended, killed from outside or out of memory (its last output is "
            f"in {self.own_directory / 'spark.log'}); start the pipeline again, it resumes where it stopped"
        )

    @property
    def is_fenced(self) -> bool:
        """True if another runner has taken over one of our legs."""
        return any(lease.lost.is_set() for lease in self.leases.values())

    def _is_caught_up(self, left: LegsLeft) -> bool:
        """Return True if our legs, and the legs before them, have confirmed everything up to the frozen ends of the sources.

        The rollups of our sinks must hold all of it, too.
        """
        try:
            return left.are_none() and all(fills.are_whole() for fills in self._rollups)
        except RetryableError:
            return False

    def request_stop(self) -> None:
        self.stop_requested.set()

    def _shut_down(self) -> None:
        """Let the batches in progress finish, then release everything in the opposite order."""
        self.stop_requested.set()
        self.report(Event("begin", "stopping: batches in work are finished"))
        end(self._last_steps(), self.announce)

    def _last_steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for service in self._beside:
            yield "what works beside the legs", service.close
        if self._epochs is not None:
            yield "the legs, which finish their batches", self._epochs.stop
        if self.retention is not None:
            yield "a purge", self.retention.close
        if self.pace is not None:
            yield "a look at what waits", self.pace.close
        if self.lookups is not None:
            yield "a look-up table", self.lookups.close
        if self._session is not None:
            yield "Spark", partial(self._engine.close, self._session)
        for leg, source in self.sources.items():
            yield f"the source of {leg}", source.close
        for copier in self.copiers.values():
            yield "the copy of the ledger", partial(self._end_copying, copier)
        for fills in self._rollups:
            yield "a rollup", fills.close
        yield "the leases, which NATS holds", partial(release_all, self.leases.values())
        if self._tally_before is not None:
            yield "the account, which NATS holds", self._report_tally
        yield "NATS", self.log.close

    def _report_tally(self) -> None:
        if self._tally_before is not None:
            now = tally(self.log, self.names, self.topology)
            self.report(summary(self._tally_before, now, self.options.legs, time.time() - self.started_at))

    def _end_copying(self, copier: LedgerCopier) -> None:
        if left := copier.close():
            self.announce(f"the ledger was not copied completely; the next start continues: {left}")
