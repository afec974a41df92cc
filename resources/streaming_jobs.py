"""The streaming jobs: starting, stopping and asking the runners of pipelines on this host.

A runner is a detached process of its own: it outlives the Dagster run that started it, the daemon and the code server. At most one runs a
leg: the leases see to it, whoever starts how many. One that somebody started by hand is adopted.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from pydantic import Field

from pipelines.config import PipelineConfig, load
from pipelines.errors import HaltError, RetryableError
from pipelines.failpoints import RUNNER_PID_VARIABLE
from pipelines.job_state import JobState, judge
from pipelines.naming import LEGS, Names
from pipelines.processes import ProcessIdentity, spawn
from pipelines.runners import (
    Desired,
    Launched,
    ask_patiently,
    find_runners,
    note_stop,
    read_desired,
    read_launched,
    stage_config_version,
    stop_runners,
    together,
    write_desired,
    write_launched,
)
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.local.stack import default_home
from resources.nats import NatsResource
from resources.runner_log import bound_log, last_words, new_log

ANSWER_WITHIN = timedelta(seconds=1)
_ADOPT_WITHIN = timedelta(seconds=3)
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Started:
    """What a start has come to. `adopted`: the legs ran already, or another start was first. `state` is that at the end of the call.

    `log` holds the words of a runner that was launched here; None for one that somebody else started.
    """

    pipeline: str
    adopted: bool
    state: JobState
    log: Path | None
    took: timedelta


class StreamingJobs(dg.ConfigurableResource[None]):
    """The streaming jobs of this host. Safe to use from several processes at once."""

    kafka: KafkaResource
    nats: NatsResource
    clickhouse: ClickHouseResource
    home: str = Field(default="", description="TALLYFLOW_HOME, where pipelines keep their state. Empty: that of this process.")
    start_timeout_seconds: float = Field(default=180.0, description="How long a start may take until the legs run.")
    stop_timeout_seconds: float = Field(default=60.0, description="How long a stop may take: batches in work are finished.")
    drain_timeout_seconds: float = Field(default=3600.0, description="How long a drain may take until nothing waits.")
    connect_timeout_seconds: float = Field(default=60.0, description="How long a runner waits at its start for a system that is away.")
    stuck_after_seconds: float = Field(default=600.0, description="A leg that has work and ends no batch for so long is stuck.")
    restart_on_change: bool = Field(default=False, description="Restart a running pipeline when its file has changed.")
    run_options: list[str] = Field(default_factory=list, description="More options of `tallyflow run`, such as --master.")
    command: list[str] = Field(default_factory=list, description="In place of `tallyflow`, with the same arguments.")

    def environment(self) -> dict[str, str]:
        """What `${NAME}` in pipeline files is resolved with: this process's environment, and over it what the resources say."""
        own = {**self.kafka.environment(), **self.nats.environment(), **self.clickhouse.environment()}
        return {**ClickHouseResource.defaults, **os.environ, **own, "TALLYFLOW_HOME": str(self.home_directory())}

    def config(self, path: Path) -> PipelineConfig:
        """The pipeline of a file. Raises ConfigurationError with every fault."""
        return load(path, self.environment())

    def directory(self, pipeline_id: str) -> Path:
        """The pipeline's directory on this host."""
        return Names(pipeline_id).directory(self.home_directory())

    def inspect(self, path: Path) -> JobState:
        """The state of the pipeline of a file, within about a second. Raises ConfigurationError for the file only."""
        config = self.config(path)
        return self.look(config.pipeline_id, config.sink.max_delay_time)

    def look(self, pipeline_id: str, sink_delay: timedelta = timedelta()) -> JobState:
        """The state of a pipeline on this host, by its id. Never raises for a runner that is dead, paused or does not answer.

        `sink_delay`: `max_delay_time` of the sink, which is no sign of being stuck.
        """
        directory = self.directory(pipeline_id)
        desired, launched, runners = read_desired(directory), read_launched(directory), find_runners(directory)
        wanted = desired.state if desired else None
        missing = _missing(desired, [leg for runner in runners for leg in runner["legs"]])
        if not runners:
            if launched and launched.process.is_running():
                return JobState(pipeline_id, "starting", last_words(Path(launched.log)), pid=launched.pid, desired=wanted)
            words = last_words(Path(launched.log)) if launched and wanted == "running" else ""
            return JobState(pipeline_id, "stopped", words, missing=missing, desired=wanted)
        with ThreadPoolExecutor(len(runners), "ask") as pool:
            answers = [*pool.map(lambda runner: ask_patiently(runner, ANSWER_WITHIN), runners)]
        version, pid = stage_config_version(runners[0]), runners[0]["pid"]
        silent = [str(runner["pid"]) for runner, (_, is_there) in zip(runners, answers, strict=True) if not is_there]
        if silent:
            message = f"process {', '.join(silent)} lives and does not answer within {ANSWER_WITHIN.total_seconds():.0f} s"
            return JobState(pipeline_id, "unreachable", message, missing=missing, pid=pid, config_version=version, desired=wanted)
        told = [snapshot for snapshot, _ in answers if snapshot is not None]
        if len(told) < len(runners):
            message = "a system that is away delays the account of the runner"
            return JobState(pipeline_id, "waiting", message, missing=missing, pid=pid, config_version=version, desired=wanted)
        snapshot = together(told)
        state, message = judge(snapshot, datetime.now(UTC), timedelta(seconds=self.stuck_after_seconds), sink_delay)
        return JobState(
            pipeline_id,
            state,
            message,
            legs={name: leg["state"] for name, leg in snapshot["legs"].items()},
            missing=missing,
            lag=sum(snapshot["lag"].values()) if snapshot["lag"] else None,
            pid=pid,
            uptime=timedelta(seconds=snapshot["uptime_seconds"]),
            config_version=version,
            snapshot=snapshot,
            desired=wanted,
        )

    def start(self, path: Path, *, accept: bool = False, legs: tuple[str, ...] = LEGS, until_caught_up: bool = False) -> Started:
        """Starts what does not run of `legs` and waits until they all do; with `until_caught_up`, until the runner has ended.

        From then on the pipeline is meant to run. Raises ConfigurationError for the file, HaltError with the runner's own last words when
        it ends or a leg halts, RetryableError when it is still on its way after the time for a start: it goes on, look again.
        """
        begun = time.monotonic()
        pipeline_id = self.config(path).pipeline_id
        directory = self.directory(pipeline_id)
        directory.mkdir(parents=True, exist_ok=True)
        left = self._not_running(directory, legs)
        launched = self._launch(path, directory, left, accept, until_caught_up) if left else None
        if until_caught_up:
            self._wait_for_the_end(pipeline_id, launched)
        else:
            launched = self._wait_until_ready(pipeline_id, legs, launched)
            before = read_desired(directory)
            kept = before.legs if before and before.state == "running" else ()
            write_desired(directory, Desired("running", tuple(leg for leg in LEGS if leg in {*legs, *kept})))
        took = timedelta(seconds=time.monotonic() - begun)
        return Started(pipeline_id, launched is None, self.look(pipeline_id), Path(launched.log) if launched else None, took)

    def stop(self, path: Path, *, kill_after: timedelta | None = None) -> bool:
        """Stops all runners of the pipeline on this host: batches in work are finished. True if one ran.

        From then on the pipeline is meant to be stopped. A runner that has not ended after `kill_after` is killed: its state is safe.
        Without it, raises HaltError after the time for a stop.
        """
        directory = self.directory(self.config(path).pipeline_id)
        note_stop(directory, LEGS)
        return self._end(directory, LEGS, kill_after)

    def drain(self, path: Path) -> Started:
        """Stops the pipeline and runs it until all that Kafka holds at that moment is in ClickHouse. Raises as `start` and `stop` do."""
        self.stop(path)
        return self.start(path, until_caught_up=True)

    def restart(self, path: Path, *, accept: bool = False, kill_after: timedelta | None = None) -> Started:
        """Stops the pipeline's runners and starts the legs that were meant to run here, or all. Raises as `start` and `stop` do."""
        directory = self.directory(self.config(path).pipeline_id)
        desired = read_desired(directory)
        self._end(directory, LEGS, kill_after)
        return self.start(path, accept=accept, legs=desired.legs if desired and desired.state == "running" else LEGS)

    def bound_logs(self, pipeline_id: str) -> None:
        """Keeps the log of a detached runner within its size."""
        launched = read_launched(self.directory(pipeline_id))
        if launched:
            bound_log(Path(launched.log))

    def home_directory(self) -> Path:
        """TALLYFLOW_HOME of the pipelines."""
        return Path(self.home).resolve() if self.home else default_home()

    def _not_running(self, directory: Path, legs: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `legs` that neither run here nor are on their way."""
        covered = {leg for runner in find_runners(directory) for leg in runner["legs"]}
        launched = read_launched(directory)
        if launched and launched.process.is_running():
            covered.update(launched.legs)
        return tuple(leg for leg in legs if leg not in covered)

    def _launch(self, path: Path, directory: Path, legs: tuple[str, ...], accept: bool, until_caught_up: bool) -> Launched:
        words = ["run", str(path.resolve()), *(word for leg in legs for word in ("--leg", leg))]
        words += ["--connect-timeout", str(self.connect_timeout_seconds), *self.run_options]
        words += ["--accept"] if accept else []
        words += ["--until-caught-up"] if until_caught_up else []
        command = self.command or [sys.executable, "-m", "pipelines.cli"]
        log = new_log(directory)
        process = spawn([*command, *words], self._runner_environment(), Path.cwd(), log)
        launched = Launched(process.pid, process.start, legs, str(log))
        write_launched(directory, launched)
        return launched

    def _runner_environment(self) -> dict[str, str]:
        """Secrets go by the environment only. What Dagster has told this process of its run is none of the runner's business."""
        left_out = (RUNNER_PID_VARIABLE,)
        return {name: value for name, value in self.environment().items() if not name.startswith("DAGSTER_") and name not in left_out}

    def _wait_until_ready(self, pipeline_id: str, legs: tuple[str, ...], launched: Launched | None) -> Launched | None:
        """Until all of `legs` run here; gives back None when a runner of somebody else's has them."""
        deadline = time.monotonic() + self.start_timeout_seconds
        while True:
            if launched and not launched.process.is_running():
                self._check_adopted(pipeline_id, legs, launched)
                launched = None
            state = self.look(pipeline_id)
            if {*legs} <= {*state.legs} and state.state != "starting":
                break
            if launched is None and state.state == "stopped":
                raise HaltError(f"starting {pipeline_id}: the runner that was there has ended; start again. {state.message}")
            if time.monotonic() > deadline:
                raise RetryableError(
                    f"starting {pipeline_id}: not ready after {self.start_timeout_seconds:.0f} s, state {state.state}; "
                    f"it goes on, look again. {state.message}"
                )
            time.sleep(_POLL_SECONDS)
        if state.state == "halted":
            raise HaltError(f"starting {pipeline_id}: {state.message}")
        return launched

    def _check_adopted(self, pipeline_id: str, legs: tuple[str, ...], ended: Launched) -> None:
        """Our runner has ended before it was ready. Raises HaltError with its words, unless another one that was first has the legs."""
        directory = self.directory(pipeline_id)
        deadline = time.monotonic() + _ADOPT_WITHIN.total_seconds()
        while time.monotonic() < deadline and ended.process.exit_code() != 0:
            if {*legs} <= {leg for runner in find_runners(directory) for leg in runner["legs"]}:
                return
            time.sleep(_POLL_SECONDS)
        words = last_words(Path(ended.log)) or "it said nothing"
        raise HaltError(f"starting {pipeline_id}: the runner has ended: {words}")

    def _wait_for_the_end(self, pipeline_id: str, launched: Launched | None) -> None:
        if launched is None:
            raise HaltError(f"draining {pipeline_id}: a runner was started meanwhile; stop it first")
        if not launched.process.wait_gone(timedelta(seconds=self.drain_timeout_seconds)):
            self._end(self.directory(pipeline_id), LEGS, None)
            raise RetryableError(
                f"draining {pipeline_id}: not caught up after {self.drain_timeout_seconds:.0f} s; what is done is done, drain again"
            )
        if launched.process.exit_code() != 0:
            raise HaltError(f"draining {pipeline_id}: the runner has ended: {last_words(Path(launched.log)) or 'it said nothing'}")

    def _end(self, directory: Path, legs: tuple[str, ...], kill_after: timedelta | None) -> bool:
        patience = kill_after if kill_after is not None else timedelta(seconds=self.stop_timeout_seconds)
        count, left = stop_runners(directory, legs, patience)
        if left and kill_after is None:
            raise HaltError(
                f"stopping {directory.name}: {_pids(left)} has not ended within {patience}; stop it with a time to kill it after"
            )
        for process in left:
            process.kill()
        return count > 0


def _missing(desired: Desired | None, running: list[str]) -> tuple[str, ...]:
    return tuple(leg for leg in desired.legs if leg not in running) if desired and desired.state == "running" else ()


def _pids(processes: list[ProcessIdentity]) -> str:
    return "process " + ", ".join(str(process.pid) for process in processes)
