"""One streaming query per pipeline: its batches are epochs, and each of its tasks works on a share, legs or a lane, until the epoch ends.

What a task starts outlives it: threads, connections, engines and stores stay in its Python worker, which Spark keeps, and the next epoch's
task finds them there. The driver plans shares, watches and stops; no record passes here.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import coalesce, lit
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.connectors.nats.client import JetStream
from pipelines.engine.coordinator import Coordinator, NatsLine, serve
from pipelines.engine.failures import from_failure, last_message, to_failure
from pipelines.engine.leg import StoppedError
from pipelines.engine.run_spec import RunSpec, read_run
from pipelines.engine.session import build_session, default_master, is_cluster, is_jvm_alive
from pipelines.errors import HaltError, ProcessLostError, RetryableError, TallyflowError
from pipelines.host import collect_rarely, remedy_by_text
from pipelines.protocol.topology import LegId
from pipelines.runner.retention import LOOK_EVERY_SECONDS
from pipelines.runner.share import RESTARTS_WITHOUT_PROGRESS, Restarts, Share

EPOCH_SECONDS = 600.0
"""The next epoch goes on in the same process, without a gap; an end lets Spark count rows, and give up executors."""
SLOT_SECONDS = 30.0
"""A start announces that no task has begun when it has waited so long."""
STOP_SECONDS = 60.0
"""How long a stop waits for the batches in progress before it ends the query under them."""
_ROWS = "share long, leg string, rows long, failure string"
_SCHEMA = pa.schema([("share", pa.int64()), ("leg", pa.string()), ("rows", pa.int64()), ("failure", pa.string())])


class SparkEngine:
    """What a runner runs its legs on: a session of Spark, and a query on it. With `session`: on that one, which stays when the run ends."""

    watch_seconds = 0.25
    """Interval between the runner's looks at its legs."""
    retention_seconds = LOOK_EVERY_SECONDS
    epoch_seconds = EPOCH_SECONDS

    def __init__(self, session: SparkSession | None = None) -> None:
        self._given = session

    def open(self, name: str, directory: Path, master: str | None, properties: Path | None, tasks: int) -> SparkSession:
        """Return the session; start one in `directory` where none was given. Without a `master` it has slots for `tasks`, on any host."""
        if self._given is not None:
            return self._given
        session = build_session(name, directory, master or default_master(tasks), properties=properties, tasks=tasks)
        collect_rarely()
        return session

    def shares(self, session: SparkSession, legs: Sequence[LegId], lanes: int) -> list[Sequence[LegId]]:
        """Return the legs of each task: one, so that none waits for another's interpreter; more where the master has fewer slots.

        Behind them an empty share for each lane, as far as the master of this host has slots.
        """
        context = session.sparkContext
        slots = len(legs) + lanes if is_cluster(context.master) else context.defaultParallelism
        tasks = min(len(legs), slots)
        return [*(legs[number::tasks] for number in range(tasks)), *([()] * min(lanes, slots - tasks))]

    def epochs(self, session: SparkSession, run: RunSpec, directory: Path, coordinator: Coordinator, log: JetStream) -> "Epochs":
        """Return the query of a run, not yet started; `directory` is for its checkpoint."""
        return Epochs(session, run, directory, coordinator, log, self.epoch_seconds)

    def close(self, session: SparkSession) -> None:
        """Stop a session that `open` has started, unless its JVM is gone."""
        if self._given is None and is_jvm_alive(session):
            session.stop()

    def leave(self, code: int) -> NoReturn:
        """End the process at once: everything is closed by now, and the threads that Spark's gateway leaves would only delay the exit."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Epochs:
    """The streaming query of one run. Spark calls `_on_epoch` on a thread of its own; everything else is for one thread."""

    def __init__(
        self,
        session: SparkSession,
        run: RunSpec,
        directory: Path,
        coordinator: Coordinator,
        log: JetStream,
        epoch_seconds: float = EPOCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._run, self._directory = session, run, directory
        self._coordinator, self._log, self._epoch_seconds, self._clock = coordinator, log, epoch_seconds, clock
        self.rows = 0
        """The rows that every leg took in the epochs that have ended, as Spark counted them in its tasks."""
        self._query: StreamingQuery | None = None
        self._starts = 0
        self._is_over = threading.Event()
        """Set when an epoch has ended that knew of the stop: every leg has ended, and Spark has counted its rows."""
        self._restarts = Restarts()
        self._reached: list[Mapping[str, int]] = []
        self._due: float | None = None
        """When the query starts again, by the clock; None while it runs."""

    def start(self) -> None:
        """Start the query; return when every leg has begun, or waits, or has halted."""
        serve(self._coordinator, self._log, self._subject)
        self._start()
        begun, is_told = self._clock(), False
        while not self._coordinator.has_begun and not self._coordinator.is_stopping and self._query is not None and self._query.isActive:
            self._coordinator.changed.wait(0.1)
            self._coordinator.changed.clear()
            if not is_told and self._clock() - begun > SLOT_SECONDS and not self._coordinator.has_joined:
                is_told = True
                self._coordinator.announce(
                    f"waiting for a free task slot of Spark: a run keeps {len(self._coordinator.shares)}; give the master more cores, or "
                    "stop what holds them"
                )

    @property
    def _subject(self) -> str:
        return self._run.names.run(self._directory.name)

    def _start(self) -> None:
        # A fresh checkpoint each time: a truncated one may be damaged, and the ledger has all that it holds.
        self._starts += 1
        checkpoint = self._directory / f"checkpoint-{self._starts}"
        shutil.rmtree(checkpoint, ignore_errors=True)
        shares = len(self._coordinator.shares)
        epochs = self._session.readStream.format("rate-micro-batch").options(rowsPerBatch=shares, numPartitions=shares).load()
        self._due = None
        self._query = (
            epochs.writeStream.queryName(f"{self._run.names.pipeline} {self._directory.name}")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(self._on_epoch)
            .start()
        )

    def _on_epoch(self, epoch: DataFrame, number: int) -> None:
        """Run the tasks of an epoch: the `foreachBatch` function. Raise what ends the query."""
        if self._is_over.is_set():
            raise StoppedError("the runner is stopping")
        work = _task(self._run.text(), self._subject, len(self._coordinator.shares), self._epoch_seconds)
        counted = Observation()
        done = epoch.select("value").mapInArrow(work, _ROWS).observe(counted, coalesce(sum_of("rows"), lit(0)).alias("rows"))
        try:
            rows = done.collect()
        except (Py4JError, PySparkException) as error:
            # Spark compares the text of what Python raises with a regular expression that takes stack for each character.
            raise ProcessLostError(last_message(str(error))) from None
        for row in rows:
            if row["failure"]:
                self._fail(row["share"], from_failure(row["failure"]))
        self.rows += counted.get["rows"]
        if self._coordinator.is_stopping:
            self._is_over.set()

    def look(self) -> None:
        """Start a query again that has ended by itself, such as one whose worker was killed too often; halt what makes no progress."""
        self._coordinator.look()
        if self._query is not None and not self._query.isActive and self._due is None and not self._coordinator.has_halted:
            self._ended(self._query)
        if self._due is not None and self._due <= self._clock():
            self._start()

    def _ended(self, query: StreamingQuery) -> None:
        error = query.exception()
        message = last_message(str(error)) if error else "it ended without an error"
        reached = self._coordinator.reached
        has_moved, self._reached = reached != self._reached, reached
        self._due = self._clock()
        if to_do := remedy_by_text(message):
            self._due += self._restarts.pause_seconds(has_moved)
            self._coordinator.wait(f"{message}; {to_do}")
            return
        ends = self._restarts.fruitless(has_moved)
        if ends > RESTARTS_WITHOUT_PROGRESS:
            halt = HaltError(f"the tasks of this pipeline ended {ends} times without progress, last with: {message}")
            for number in range(len(self._coordinator.shares)):
                self._fail(number, halt)
            self._due = None
            return
        self._coordinator.announce(f"starting the tasks again after: {message}")

    def _fail(self, share: int, error: TallyflowError) -> None:
        for leg in self._coordinator.shares[share]:
            self._coordinator.fail(leg, error)
        if not self._coordinator.shares[share]:
            self._coordinator.announce(f"a lane cannot work, the legs do without it: {error}")

    def stop(self) -> None:
        """Let every leg finish its batch; then end the query. With a dead JVM there is nothing to end."""
        self._coordinator.stop()
        if self._query is None or not is_jvm_alive(self._session):
            return
        until = self._clock() + STOP_SECONDS
        while self._query.isActive and self._clock() < until and not self._is_over.wait(0.1):
            pass
        self._query.stop()


def _task(run_text: str, subject: str, shares: int, seconds: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the work of an epoch's tasks; each row of their input is the number of a share, counted on from epoch to epoch."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist(list(_worked(run_text, subject, value % shares, seconds)), schema=_SCHEMA)

    return work


def _worked(run_text: str, subject: str, number: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the rows that each leg took. A share that must not begin has failed, for this run."""
    try:
        rows = KEPT.share(run_text, subject, number).hold(seconds)
    except RetryableError:
        raise
    except TallyflowError as error:
        yield {"share": number, "leg": "", "rows": 0, "failure": to_failure(error)}
        return
    yield from ({"share": number, "leg": str(leg), "rows": count, "failure": None} for leg, count in rows.items())


class _Kept:
    """What this Python worker keeps from one epoch to the next: its share of one run, and its connection."""

    def __init__(self) -> None:
        self._subject = ""
        self._log: JetStream | None = None
        self._share: Share | None = None

    def share(self, run_text: str, subject: str, number: int) -> Share:
        """Return the share that works here already, whatever its number; else start one, `number` if no other process has it."""
        if subject != self._subject:
            self._end()
            self._subject = subject
            collect_rarely()
        if self._share is None or self._share.is_over:
            run = read_run(run_text)
            if self._log is None:
                config = run.config
                self._log = JetStream(config.nats, "tallyflow-task", config.on_error.classes("nats"))
            share = Share(run, number, self._log, NatsLine(self._log, subject), subject=subject)
            share.start()
            self._share = share
        return self._share

    def _end(self) -> None:
        """End what is left of an earlier run: its runner was killed, and its session was not."""
        if self._share is not None:
            self._share.stop()
            self._share.ended.wait()
            self._share = None
        if self._log is not None:
            self._log.close()
            self._log = None


KEPT = _Kept()
