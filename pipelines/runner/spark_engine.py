"""What a runner runs its legs on: a session of Spark, with slots for its shares."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from pyspark.sql import SparkSession

from pipelines.collection import collect_rarely
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.coordinator import Coordinator
from pipelines.engine.run_spec import RunSpec
from pipelines.engine.session import build_session, default_master, is_cluster, is_jvm_alive
from pipelines.protocol.topology import LegId
from pipelines.runner.epochs import EPOCH_SECONDS, Epochs
from pipelines.runner.retention import LOOK_EVERY_SECONDS
from pipelines.runner.scaling import LIMITS
from pipelines.without_pandas import no_pandas


class SparkEngine:
    """What a runner runs its legs on: a session of Spark, and a query on it. With `session`: on that one, which stays when the run ends."""

    watch_seconds = 0.25
    """Interval between the runner's looks at its legs."""
    retention_seconds = LOOK_EVERY_SECONDS
    epoch_seconds = EPOCH_SECONDS
    limits = LIMITS
    """When lanes are added and taken away."""

    def __init__(self, session: SparkSession | None = None) -> None:
        self._given = session

    def open(self, name: str, directory: Path, master: str | None, properties: Path | None, tasks: int) -> SparkSession:
        """Return the session; start one in `directory` where none was given. Without a `master` it has slots for `tasks`, on any host."""
        if self._given is not None:
            return self._given
        with no_pandas():
            # Spark imports it with the first argument to its JVM, only to look for numpy; it looks for pandas, too.
            import_module("pyspark.testing.utils")
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

    def epochs(self, session: SparkSession, run: RunSpec, directory: Path, coordinator: Coordinator, log: JetStream) -> Epochs:
        """Return the query of a run, not yet started; `directory` is for its checkpoint."""
        return Epochs(session, run, directory, coordinator, log, self.epoch_seconds, self.limits)

    def close(self, session: SparkSession) -> None:
        """Stop a session that `open` has started, unless its JVM is gone."""
        if self._given is None and is_jvm_alive(session):
            session.stop()

    def leave(self, code: int) -> NoReturn:
        """End the process at once: everything is closed by now, and the threads that Spark's gateway leaves would only delay the exit."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
