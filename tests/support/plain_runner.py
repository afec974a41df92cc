"""`tallyflow run` without Spark: the legs of a run work in the runner's own process, on real servers.

It starts in a moment instead of fifteen seconds, so that a kill can be tried at every step. What Spark adds (tasks, workers) is killed in
cases of its own. `main` is a process of its own (support/forked.py), with the arguments of `tallyflow`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from pyspark.sql import SparkSession

import pipelines.connectors.kafka.client
import pipelines.process.leg
import pipelines.sink.rollups
import pipelines.sink.settling
from pipelines.cli.app import app
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.coordinator import Coordinator
from pipelines.engine.leg import AnyLeg
from pipelines.engine.run_spec import RunSpec
from pipelines.protocol.topology import LegId
from pipelines.runner.epochs import Epochs
from pipelines.runner.scaling import Scaling
from pipelines.runner.share import LEG_CLASSES, Share
from pipelines.runner.spark_engine import SparkEngine

LegClasses = Mapping[str, Callable[..., AnyLeg]]


class PlainSession:
    """As much of a Spark session as the runner looks at."""

    sparkContext = SimpleNamespace(_gateway=None)


class PlainEpochs:
    """In place of `pipelines.runner.epochs.Epochs`: the shares in this process."""

    def __init__(self, run: RunSpec, coordinator: Coordinator, log: JetStream, leg_classes: LegClasses) -> None:
        self._coordinator = coordinator
        self._shares = [Share(run, number, log, coordinator, leg_classes) for number in range(len(coordinator.shares))]
        self._started: list[Share] = []

    def start(self) -> None:
        for share in self._shares:
            share.start(1, "7")
            self._started.append(share)
        while not self._coordinator.has_begun and not self._coordinator.is_stopping:
            self._coordinator.changed.wait(0.1)
            self._coordinator.changed.clear()

    def look(self) -> None:
        """Nothing ends by itself."""

    def stop(self) -> None:
        self._coordinator.stop()
        for share in self._started:
            share.ended.wait()


class BriskEngine(SparkEngine):
    """An end waits until the runner has looked, whoever waits for a purge until retention has: as long as it takes to look."""

    watch_seconds = 0.05
    retention_seconds = 0.5


class WatchedEngine(BriskEngine):
    """Runs legs in Spark's tasks; `made`: the query of the run, `scaling` and `limits` as the test sets them."""

    scaling = Scaling()

    def epochs(self, *arguments: Any) -> Epochs:
        self.made = super().epochs(*arguments)
        self.made.scaling = self.scaling
        return self.made


class PlainEngine(BriskEngine):
    """Runs legs without Spark; `leg_classes` by kind."""

    def __init__(self, leg_classes: LegClasses = LEG_CLASSES) -> None:
        super().__init__(PlainSession())
        self._leg_classes = leg_classes

    def shares(self, session: SparkSession, legs: Sequence[LegId], lanes: int) -> list[Sequence[LegId]]:
        return [legs]

    def epochs(self, session: SparkSession, run: RunSpec, directory: Path, coordinator: Coordinator, log: JetStream) -> Epochs:
        made: Any = PlainEpochs(run, coordinator, log, self._leg_classes)
        return made


class InvokedEngine(PlainEngine):
    """For `tallyflow run` inside a process that goes on behind it."""

    def leave(self, code: int) -> NoReturn:
        sys.exit(code)


def main() -> None:
    app(obj=PlainEngine())


def main_with_brief_inserts() -> None:
    """As the fixture `brief_inserts` in the test's process."""
    pipelines.sink.settling.INSERT_MAX_EXECUTION_SECONDS = 0.2
    main()


def main_with_small_fills() -> None:
    """Let an insert into a rollup fill in some rows of the table only, so that there are several."""
    pipelines.sink.rollups.ROWS_PER_FILL = 150
    main()


def main_with_small_answers() -> None:
    """Let an answer of Kafka and a plan of process be a quarter as large: a quarter of the records shows that memory does not hold them."""
    pipelines.connectors.kafka.client.FETCH_BYTES //= 4
    pipelines.process.leg.PLAN_BYTES //= 4
    main()
