"""One streaming query per pipeline: its batches are epochs, and each of its tasks works on a share, legs or a lane, until the epoch ends.

What a task starts outlives it: threads, connections, engines and stores stay in its Python worker, which Spark keeps, and the next epoch's
task finds them there. The driver plans shares, watches and stops; no record passes here.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import coalesce, lit
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.connectors.nats.client import JetStream
from pipelines.engine.coordinator import Coordinator
from pipelines.engine.failures import from_failure, last_message
from pipelines.engine.leg import StoppedError
from pipelines.engine.line import serve
from pipelines.engine.run_spec import RunSpec
from pipelines.engine.session import is_cluster, is_jvm_alive
from pipelines.errors import HaltError, ProcessLostError, TallyflowError
from pipelines.host import remedy_by_text
from pipelines.runner.leg_thread import RESTARTS_WITHOUT_PROGRESS, Restarts
from pipelines.runner.scaling import LIMITS, Limits, Mark, Scaling
from pipelines.runner.spark_tasks import crashed_tasks, places_of_tasks, rows_at
from pipelines.runner.task import ROWS, task_of

EPOCH_SECONDS = 600.0
"""The next epoch goes on in the same processes, without a gap; an end lets Spark count rows, and give up executors."""
BEGIN_SECONDS = 60.0
"""How long an epoch goes on behind its time for a task that has not begun: until the last has ended, the others' processes have none."""
SLOT_SECONDS = 30.0
"""The run announces that a task has not begun when it has waited so long."""
STOP_SECONDS = 60.0
"""How long a stop waits for the batches in progress before it ends the query under them."""


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
        limits: Limits = LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._run, self._directory = session, run, directory
        self._coordinator, self._log, self._epoch_seconds, self._clock = coordinator, log, epoch_seconds, clock
        self.rows = 0
        """The rows that every leg took in the epochs that have ended, as Spark counted them in its tasks."""
        self._query: StreamingQuery | None = None
        self._starts = 0
        self._is_at_work = False
        """Whether an epoch runs: the query cannot have ended."""
        self._is_over = threading.Event()
        """Set when an epoch has ended behind a stop in which every leg has ended: Spark has counted all rows."""
        self.scaling, self.limits = Scaling(), limits
        self._began = clock()
        self._lacking_since: float | None = None
        self._told_tasks = 0
        self._restarts = Restarts()
        self._reached: list[Mapping[str, int]] = []
        self._due: float | None = None
        """When the query starts again, by the clock; None while it runs."""

    def start(self) -> None:
        """Start the query; return when every leg has begun, or waits, or has halted."""
        serve(self._coordinator, self._log, self._subject)
        self._coordinator.has_places = is_cluster(self._session.sparkContext.master)
        self._start()
        while not self._coordinator.has_begun and not self._coordinator.is_stopping and self._query is not None and self._query.isActive:
            self._coordinator.changed.wait(0.1)
            self._coordinator.changed.clear()
            self._tell_of_lacking_slots()

    def _tell_of_lacking_slots(self) -> None:
        """Announce, once for a number of tasks, that one of them has not begun for SLOT_SECONDS."""
        tasks = self._coordinator.tasks
        if self._coordinator.has_joined or tasks <= self._told_tasks:
            self._lacking_since = None
            return
        self._lacking_since = self._clock() if self._lacking_since is None else self._lacking_since
        if self._clock() - self._lacking_since > SLOT_SECONDS:
            self._told_tasks = tasks
            self._coordinator.announce(
                f"waiting for a free task slot of Spark: the run keeps {tasks} now; give the master more cores, or stop what holds them"
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

    def _on_epoch(self, epoch: DataFrame, _: int) -> None:
        """Run the tasks of an epoch: the `foreachBatch` function. Raise what ends the query.

        The DataFrame has a partition for each share that there may be; as many tasks take them as the run keeps shares now. Once it is
        known in which executors the processes are, the tasks go there by a DataFrame of our own.
        """
        if self._is_over.is_set():
            raise StoppedError("the runner is stopping")
        (ours, places), self._began = self._coordinator.begin_epoch(), self._clock()
        work = task_of(self._run.text(), self._subject, ours, self._epoch_seconds + BEGIN_SECONDS)
        counted = Observation()
        tasks = rows_at(epoch.sparkSession, places) if any(places) else epoch.select("value").coalesce(len(places))
        done = tasks.mapInArrow(work, ROWS).observe(counted, coalesce(sum_of("rows"), lit(0)).alias("rows"))
        self._is_at_work = True
        try:
            rows = done.collect()
        except (Py4JError, PySparkException) as error:
            # Spark compares the text of what Python raises with a regular expression that takes stack for each character.
            raise ProcessLostError(last_message(str(error))) from None
        finally:
            self._is_at_work = False
            if not self._coordinator.is_stopping:
                self._coordinator.note_places(places_of_tasks(self._session))
        for row in rows:
            if row["failure"]:
                self._fail(row["share"], from_failure(row["failure"]))
        self.rows += counted.get["rows"]
        # A leg may go on behind the task of this epoch: the next one counts what it has taken.
        if self._coordinator.is_stopping and all(row["has_ended"] for row in rows):
            self._is_over.set()

    def look(self) -> None:
        """Start a query again that has ended by itself, such as one whose worker was killed too often; halt what makes no progress."""
        self._coordinator.look()
        if unheard := self._coordinator.unheard_tasks:
            self._coordinator.give_up(unheard & self._crashed_tasks())
        self._scale()
        if self._has_ended and self._due is None and not self._coordinator.has_halted:
            self._ended()
        if self._due is not None and self._due <= self._clock():
            self._start()

    def _crashed_tasks(self) -> set[str]:
        return crashed_tasks(self._session)

    def _scale(self) -> None:
        """Keep as many lanes as the load takes; end an epoch when its time is over, or as soon as one that begins anew is better."""
        coordinator, before = self._coordinator, self.scaling.lanes
        now = Mark(self._clock(), coordinator.seconds_large)
        self.scaling = self.scaling.next(now, coordinator.lanes, coordinator.allowed_lanes, self.limits)
        coordinator.keep_lanes(self.scaling.lanes)
        if self.scaling.lanes != before:
            coordinator.announce(f"lanes: {1 + self.scaling.lanes} instead of {1 + before}, by the load")
        self._tell_of_lacking_slots()
        if coordinator.is_border_due or self._is_time_over:
            coordinator.end_epoch()

    @property
    def _is_time_over(self) -> bool:
        behind = self._clock() - self._began - self._epoch_seconds
        return behind >= BEGIN_SECONDS or (behind >= 0 and self._coordinator.have_tasks_begun)

    @property
    def _has_ended(self) -> bool:
        # Without a question to the JVM while an epoch runs: it would be the dearest part of a look.
        return not self._is_at_work and self._query is not None and not self._query.isActive

    def _ended(self) -> None:
        error = self._query.exception() if self._query else None
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
