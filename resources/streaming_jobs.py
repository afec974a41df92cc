"""The streaming jobs: start, stop and query the runners of pipelines on this host.

A runner is a detached process of its own: it outlives the Dagster run that started it, the daemon and the code server. At most one runs a
leg: the leases ensure it, whatever the number of starts. A runner that was started by hand is adopted.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar

import dagster as dg
from pydantic import Field

from pipelines.config import PipelineConfig, load, run_digest
from pipelines.config.load import read_text
from pipelines.connectors.nats.client import JetStream
from pipelines.control.control import (
    Desired,
    Halt,
    Launched,
    ask_patiently,
    by_halt,
    controlled,
    find_runners,
    forget_halts,
    last_words,
    note_stop,
    read_desired,
    read_halts,
    read_launched,
    stage_config_version,
    stop_runners,
    together,
    write_desired,
    write_launched,
)
from pipelines.control.job_state import JobState, summarize
from pipelines.control.processes import Popen, spawn
from pipelines.control.runner_log import bound_log, last_message, new_log
from pipelines.errors import ConfigurationError, HaltError, RetryableError
from pipelines.home import default_home
from pipelines.protocol.failpoints import RUNNER_PID_VARIABLE
from pipelines.protocol.naming import Names
from pipelines.protocol.topology import LegId, Topology, in_data_order
from pipelines.runner.file_checks import check_file
from pipelines.runner.preflight import existing_streams
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.local_servers import local_servers_for
from resources.nats import NatsResource

ANSWER_WITHIN = timedelta(seconds=1)
_ADOPT_WITHIN = timedelta(seconds=3)
_POLL_SECONDS = 0.1
_LOG = logging.getLogger("tallyflow.streaming_jobs")
Announce = Callable[[str], None]
"""Receives the progress of a start, a line at a time."""


@dataclass(frozen=True)
class Started:
    """The result of a start. `adopted`: the legs ran already, or another start was first. `state` is the state at the end of the call.

    `log` holds the output of a runner that was launched here; None if another start launched it.
    """

    pipeline: str
    adopted: bool
    state: JobState
    log: Path | None
    took: timedelta


class StreamingJobs(dg.ConfigurableResource[None]):
    """The streaming jobs of this host. Safe to use from several processes at once.

    The executed command is no field: anyone who may launch a run may give fields other values in its configuration. A subclass may set it.
    """

    run_options: ClassVar[Sequence[str]] = ()
    """Further options of `tallyflow run`, such as --master."""
    command: ClassVar[Sequence[str]] = (sys.executable, "-m", "pipelines.cli")
    """`tallyflow`, or a command with the same arguments."""
    popen: ClassVar[Popen] = subprocess.Popen
    """The constructor of the process."""

    kafka: KafkaResource
    nats: NatsResource
    clickhouse: ClickHouseResource
    home: str = Field(default="", description="TALLYFLOW_HOME, where pipelines keep their state. Empty: that of this process.")
    start_timeout_seconds: float = Field(default=180.0, description="How long a start may take until the legs run.")
    stop_timeout_seconds: float = Field(default=60.0, description="How long a stop may take: batches in work are finished.")
    drain_timeout_seconds: float = Field(default=3600.0, description="How long a drain may take until nothing waits.")
    connect_timeout_seconds: float = Field(default=60.0, description="How long a runner waits at its start for a system that is away.")
    restart_on_change: bool = Field(
        default=False, description="Restart a running pipeline when its file has changed; reload one whose settings alone have."
    )

    def environment(self) -> dict[str, str]:
        """Return the environment that resolves `${NAME}` in pipeline files: this process's environment, overridden by the resources."""
        own = {**self.kafka.environment(), **self.nats.environment(), **self.clickhouse.environment()}
        return {**ClickHouseResource.defaults, **os.environ, **own, "TALLYFLOW_HOME": str(self.home_directory())}

    def config(self, path: Path) -> PipelineConfig:
        """Return the pipeline of a file, with the local servers that its runner takes. Raise ConfigurationError with every fault."""
        environment = self.environment()
        return load(path, environment | local_servers_for(read_text(path), environment, "address").variables)

    def directory(self, pipeline_id: str) -> Path:
        """Return the pipeline's directory on this host."""
        return Names(pipeline_id).directory(self.home_directory())

    def inspect(self, path: Path) -> JobState:
        """Return the state of the pipeline of a file, within about a second. Raise ConfigurationError for the file only."""
        return self.look(path, self.config(path))

    def look(self, path: Path, config: PipelineConfig) -> JobState:
        """Return the state on this host of the pipeline that was read from `path`.

        Never raise for a runner that is dead, paused or silent; raise HaltError if this user may not read the runner's files.
        """
        pipeline_id = config.pipeline_id
        directory = self.directory(pipeline_id)
        desired, launched, runners = read_desired(directory), read_launched(directory), find_runners(directory)
        wanted = desired.state if desired else None
        absent = _absent(desired, [leg for runner in runners for leg in runner["legs"]])
        halts = self._halts(directory, absent, path)
        missing = tuple(leg for leg in absent if leg not in halts)
        if not runners:
            if launched and launched.process.is_running():
                progress = last_message(Path(launched.log), with_progress=True)
                return JobState(pipeline_id, "starting", progress, pid=launched.pid, desired=wanted)
            if halts:
                return _halted(JobState(pipeline_id, "halted", missing=missing, desired=wanted), halts)
            ending = last_message(Path(launched.log)) if launched and wanted == "running" else ""
            return JobState(pipeline_id, "stopped", ending, missing=missing, desired=wanted)
        with ThreadPoolExecutor(len(runners), "ask") as pool:
            answers = [*pool.map(lambda runner: ask_patiently(runner, ANSWER_WITHIN), runners)]
        version, pid = stage_config_version(runners[0]), runners[0]["pid"]
        silent = [str(runner["pid"]) for runner, (_, is_there) in zip(runners, answers, strict=True) if not is_there]
        if silent:
            message = f"process {', '.join(silent)} lives and does not answer within {ANSWER_WITHIN.total_seconds():.0f} s"
            return JobState(pipeline_id, "unreachable", message, missing=missing, pid=pid, config_version=version, desired=wanted)
        snapshots = [snapshot for snapshot, _ in answers if snapshot is not None]
        if len(snapshots) < len(runners):
            message = "a system that is away delays the account of the runner"
            return JobState(pipeline_id, "waiting", message, missing=missing, pid=pid, config_version=version, desired=wanted)
        snapshot = together(snapshots)
        state, message = summarize(snapshot, config.topology, datetime.now(UTC), config.alerts.stuck_after, config.sink.max_delay_time)
        summarized = JobState(
            pipeline_id,
            state,
            message,
            legs={name: leg["state"] for name, leg in snapshot["legs"].items()},
            missing=missing,
            halt=runners[0]["mark"],
            lag=sum(snapshot["lag"].values()) if snapshot["lag"] else None,
            pid=pid,
            uptime=timedelta(seconds=snapshot["uptime_seconds"]),
            config_version=version,
            snapshot=snapshot,
            desired=wanted,
        )
        return _halted(summarized, halts) if halts else summarized

    def _halts(self, directory: Path, legs: tuple[LegId, ...], path: Path) -> dict[LegId, Halt]:
        """Return the halts at which runners of these legs have ended, if the file is unchanged. A faulty file repairs nothing."""
        halts = {leg: halt for leg, halt in read_halts(directory).items() if leg in legs}
        if not halts:
            return {}
        try:
            self.config(path)
            now = run_digest(path.read_text(encoding="utf-8"))
        except ConfigurationError:
            return halts
        return {leg: halt for leg, halt in halts.items() if halt.file == now}

    def start(
        self,
        path: Path,
        *,
        accept: bool = False,
        legs: Collection[str] = (),
        until_caught_up: bool = False,
        announce: Announce = _LOG.debug,
    ) -> Started:
        """Start the stopped ones of `legs`, or of all legs, and wait until they run; with `until_caught_up`, until the runner has ended.

        `legs`: what `Topology.select` takes; raise ValueError for an unknown one. From then on the pipeline should run, even if this
        process is killed meanwhile. Raise ConfigurationError for the file. Raise HaltError with the runner's own last words if it ends or
        a leg halts; then the earlier desired state holds. Raise RetryableError if it is still starting after the time for a start: it
        continues, look again. `announce` receives the progress of the start when it changes.
        """
        begun = time.monotonic()
        config = self.config(path)
        pipeline_id, chosen = config.pipeline_id, config.topology.select(legs)
        directory = self.directory(pipeline_id)
        with controlled(directory):
            left = self._not_running(directory, chosen)
            launched = self._launch(path, directory, config.topology, left, accept, until_caught_up) if left else None
            before = read_desired(directory)
            desired = _with_legs(before, chosen)
            if not until_caught_up:
                write_desired(directory, desired)
        announce(f"launched process {launched.pid}, its log is {launched.log}" if launched else "a runner is there already, or on its way")
        if until_caught_up:
            self._wait_for_the_end(pipeline_id, launched)
        else:
            try:
                launched = self._wait_until_ready(path, config, chosen, launched, announce)
            except HaltError:
                _take_back(directory, desired, before)
                raise
        took = timedelta(seconds=time.monotonic() - begun)
        return Started(pipeline_id, launched is None, self.look(path, config), Path(launched.log) if launched else None, took)

    def stop(self, path: Path, *, kill_after: timedelta | None = None) -> bool:
        """Stop the pipeline of a file; see `stop_pipeline`. Raise ConfigurationError for the file, too."""
        return self.stop_pipeline(self.config(path).pipeline_id, kill_after=kill_after)

    def stop_pipeline(self, pipeline_id: str, *, kill_after: timedelta | None = None) -> bool:
        """Stop all runners of the pipeline on this host: batches in work are finished. Return True if one ran.

        From then on the pipeline should be stopped. A runner that has not ended after `kill_after` is killed: its state is safe. Without
        it, raise HaltError after the time for a stop.
        """
        directory = self.directory(pipeline_id)
        note_stop(directory)
        return self._end(directory, kill_after)

    def drain(self, path: Path, *, announce: Announce = _LOG.debug) -> Started:
        """Stop the pipeline and run it until all records that Kafka holds at that moment are in ClickHouse.

        Raise as `start` and `stop` do.
        """
        self._check_startable(path)
        self.stop(path)
        return self.start(path, until_caught_up=True, announce=announce)

    def restart(self, path: Path, *, accept: bool = False, kill_after: timedelta | None = None, announce: Announce = _LOG.debug) -> Started:
        """Stop the pipeline's runners and start the legs that should run here, or all. Raise as `start` and `stop` do.

        Raise HaltError if the pipeline was stopped meanwhile. With a file that cannot be started, the runners continue.
        """
        config = self.config(path)
        directory = self.directory(config.pipeline_id)
        desired = read_desired(directory)
        self._check_startable(path)
        self._end(directory, kill_after)
        if desired is None or desired.state == "stopped":
            return self.start(path, accept=accept, announce=announce)
        if read_desired(directory) == Desired("stopped"):
            raise HaltError(f"restarting {directory.name}: it was stopped meanwhile and stays so; start it if it is to run")
        legs = [config.topology.option(leg) for leg in desired.legs if leg in config.topology.legs]
        return self.start(path, accept=accept, legs=legs, announce=announce)

    def _check_startable(self, path: Path) -> None:
        """Check the file before the runners are stopped: raise ConfigurationError or HaltError for a file that no start would take."""
        config = self.config(path)
        check_file(config)
        log = JetStream.of(config)
        # A restart may be the answer to an outage: then the start checks again.
        with suppress(RetryableError), closing(log):
            existing_streams(config, log.connect())

    def bound_logs(self, pipeline_id: str) -> None:
        """Keep the log of a detached runner within its size; a failure is logged."""
        launched = read_launched(self.directory(pipeline_id))
        if launched is None:
            return
        try:
            bound_log(Path(launched.log))
        except OSError as error:
            # Nothing depends on it; the next look tries again.
            _LOG.warning("the log %s cannot be cut: %s", launched.log, error.strerror)

    def home_directory(self) -> Path:
        """Return TALLYFLOW_HOME of the pipelines."""
        return Path(self.home).resolve() if self.home else default_home()

    def _not_running(self, directory: Path, legs: tuple[LegId, ...]) -> tuple[LegId, ...]:
        """Return the `legs` that neither run here nor are starting."""
        covered = {leg for runner in find_runners(directory) for leg in runner["legs"]}
        launched = read_launched(directory)
        if launched and launched.process.is_running():
            covered.update(launched.legs)
        return tuple(leg for leg in legs if leg not in covered)

    def _launch(
        self, path: Path, directory: Path, topology: Topology, legs: tuple[LegId, ...], accept: bool, until_caught_up: bool
    ) -> Launched:
        arguments = ["run", str(path.resolve()), *(word for leg in legs for word in ("--leg", topology.option(leg)))]
        arguments += ["--connect-timeout", str(self.connect_timeout_seconds), *self.run_options]
        arguments += ["--accept"] if accept else []
        arguments += ["--until-caught-up"] if until_caught_up else []
        log = new_log(directory)
        forget_halts(directory, legs)
        process = spawn([*self.command, *arguments], self._runner_environment(), Path.cwd(), log, self.popen)
        launched = Launched(process.pid, process.start, legs, str(log))
        write_launched(directory, launched)
        return launched

    def _runner_environment(self) -> dict[str, str]:
        """Return the environment of a runner: secrets are passed in it only, and Dagster's variables of its own run are left out."""
        left_out = (RUNNER_PID_VARIABLE,)
        return {name: value for name, value in self.environment().items() if not name.startswith("DAGSTER_") and name not in left_out}

    def _wait_until_ready(
        self, path: Path, config: PipelineConfig, legs: tuple[LegId, ...], launched: Launched | None, announce: Announce
    ) -> Launched | None:
        """Wait until all of `legs` run here; return None if another start's runner has them."""
        last_message = ""
        pipeline_id = config.pipeline_id
        deadline = time.monotonic() + self.start_timeout_seconds
        while True:
            if launched and not launched.process.is_running():
                self._check_adopted(pipeline_id, legs, launched)
                launched = None
            state = self.look(path, config)
            last_message = _announce_change(state, last_message, announce)
            is_settled = "halted" in state.legs.values() or (state.snapshot is not None and state.snapshot["ready"])
            if {*legs} <= {*state.legs} and is_settled:
                break
            if launched is None and not state.is_alive:
                raise HaltError(f"starting {pipeline_id}: the runner that was there has ended; start again. {state.message}")
            if time.monotonic() > deadline:
                raise RetryableError(
                    f"starting {pipeline_id}: not ready after {self.start_timeout_seconds:.0f} s, state {state.state}; "
                    f"it continues; check again. {state.message}"
                )
            time.sleep(_POLL_SECONDS)
        halted = {*state.halted, *(leg for leg, word in state.legs.items() if word == "halted")}
        if state.state == "halted" and (not halted or halted & {*legs}):
            raise HaltError(f"starting {pipeline_id}: {state.message}")
        return launched

    def _check_adopted(self, pipeline_id: str, legs: tuple[LegId, ...], ended: Launched) -> None:
        """Check a runner of ours that has ended before it was ready.

        Raise HaltError with its last words, unless another runner that was first has the legs.
        """
        directory = self.directory(pipeline_id)
        deadline = time.monotonic() + _ADOPT_WITHIN.total_seconds()
        while time.monotonic() < deadline and ended.process.exit_code() != 0:
            if {*legs} <= {leg for runner in find_runners(directory) for leg in runner["legs"]}:
                return
            time.sleep(_POLL_SECONDS)
        ending = last_message(Path(ended.log)) or "it said nothing"
        raise HaltError(f"starting {pipeline_id}: the runner has ended: {ending}")

    def _wait_for_the_end(self, pipeline_id: str, launched: Launched | None) -> None:
        if launched is None:
            raise HaltError(f"draining {pipeline_id}: a runner was started meanwhile; stop it first")
        if not launched.process.wait_ended(timedelta(seconds=self.drain_timeout_seconds)):
            self._end(self.directory(pipeline_id), None)
            raise RetryableError(
                f"draining {pipeline_id}: not caught up after {self.drain_timeout_seconds:.0f} s; what is done is done, drain again"
            )
        if launched.process.exit_code() != 0:
            raise HaltError(f"draining {pipeline_id}: the runner has ended: {last_message(Path(launched.log)) or 'it said nothing'}")

    def _end(self, directory: Path, kill_after: timedelta | None) -> bool:
        patience = kill_after if kill_after is not None else timedelta(seconds=self.stop_timeout_seconds)
        count, left = stop_runners(directory, None, patience)
        if left and kill_after is None:
            raise HaltError(
                f"stopping {directory.name}: {last_words(directory, left)} has not ended within {patience}; stop it with a time to kill "
                "it after"
            )
        for process in left:
            process.kill()
        return count > 0


def _announce_change(state: JobState, last_message: str, announce: Announce) -> str:
    """Report the state with its reason and the legs' states, if they have changed; return the last report."""
    legs = ", ".join(f"{leg} {word}" for leg, word in state.legs.items())
    now = ": ".join(filter(None, (state.state, legs, state.message)))
    if now != last_message:
        announce(now)
    return now


def _with_legs(before: Desired | None, legs: tuple[LegId, ...]) -> Desired:
    """Return the desired state in which these legs run, besides the ones that already should."""
    return Desired("running", tuple(in_data_order({*legs, *(before.legs if before else ())})))


def _take_back(directory: Path, wanted: Desired, before: Desired | None) -> None:
    """Take back the note of a failed start, unless another start or stop has noted something else since."""
    with controlled(directory):
        if read_desired(directory) == wanted:
            write_desired(directory, before)


def _halted(state: JobState, halts: dict[LegId, Halt]) -> JobState:
    """Return the state with legs whose runners have ended at their halts."""
    messages = [state.message] if state.state == "halted" and state.message else []
    messages += [f"{legs}: {halt.message}" for halt, legs in by_halt(halts).items()]
    halt = state.halt or next(iter(halts.values())).mark
    return replace(state, state="halted", message="; ".join(messages), halted=(*halts,), halt=halt)


def _absent(desired: Desired | None, running: list[LegId]) -> tuple[LegId, ...]:
    """Return the legs that should run here and do not."""
    return tuple(leg for leg in desired.legs if leg not in running) if desired and desired.state == "running" else ()
