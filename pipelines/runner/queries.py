"""The streaming queries of a runner's legs: start them, notice that one ended, restart it if it may continue."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipelines.engine.execute import last_message, leg_tasks
from pipelines.engine.leg import AnyLeg, StoppedError
from pipelines.engine.ranges import offset_text
from pipelines.engine.session import build_session, is_jvm_alive
from pipelines.errors import HaltError
from pipelines.host import collect_rarely, remedy_by_text
from pipelines.protocol.topology import LegId
from pipelines.runner.retention import LOOK_EVERY_SECONDS
from pipelines.runner.warm import WARM, Nothing

RESTARTS_WITHOUT_PROGRESS = 5
FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.5, 15.0
_INITIALIZING = "Initializing sources"
_HALTS = ("HaltError", "DataLossError", "InvariantError")


class SparkEngine:
    """What a runner runs its legs on: a session of Spark, and queries on it. With `session`: on that one, which stays when the run ends."""

    watch_seconds = 0.25
    """Interval between the runner's looks at its legs."""
    retention_seconds = LOOK_EVERY_SECONDS

    def __init__(self, session: SparkSession | None = None) -> None:
        self._given = session

    def open(self, name: str, directory: Path, master: str | None) -> SparkSession:
        """Return the session; start one in `directory` where none was given."""
        if self._given is not None:
            return self._given
        session = build_session(name, directory, master)
        collect_rarely()
        return session

    def queries(
        self,
        session: SparkSession,
        run_path: Path,
        legs: Mapping[LegId, AnyLeg],
        sources: Mapping[LegId, dict[str, str]],
        announce: Callable[[str], None],
    ) -> "Queries":
        """Return the queries of the legs, not yet started."""
        return Queries(session, run_path, legs, sources, announce)

    def close(self, session: SparkSession) -> None:
        """Stop a session that `open` has started, unless its JVM is gone."""
        if self._given is None and is_jvm_alive(session):
            session.stop()

    def leave(self, code: int) -> NoReturn:
        """End the process at once: everything is closed by now, and the threads that Spark's gateway leaves would only delay the exit."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Queries:
    """One query per leg, on one session. `sources` are the options of each leg's Data Source, except its start.

    Spark calls each leg's `on_batch` on a separate thread; everything else here is for one thread.
    """

    def __init__(
        self,
        session: SparkSession,
        run_path: Path,
        legs: Mapping[LegId, AnyLeg],
        sources: Mapping[LegId, dict[str, str]],
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._run_path, self._clock = session, run_path, clock
        self._legs, self._sources, self._announce = legs, sources, announce
        self._running: dict[LegId, StreamingQuery] = {}
        self._restarts: dict[LegId, tuple[int, int]] = {}
        self._starts: Counter[LegId] = Counter()
        self._due: dict[LegId, float] = {}
        """Legs that wait for this host: the time of their retry, by the monotonic clock."""
        self._waited: dict[LegId, tuple[float, int]] = {}
        """The last wait in seconds, and the batches that the leg had done by then."""

    def start(self) -> None:
        """Warm the task workers and start every leg's query, in parallel: each waits for Python processes to start."""
        tasks = leg_tasks(self._session, str(self._run_path))
        with ThreadPoolExecutor(1 + len(self._legs), "start") as starting:
            warming = starting.submit(tasks.run, WARM, [Nothing()] * tasks.slots)
            queries = [starting.submit(self._start, leg) for leg in self._legs.values()]
            warming.result()
            for query in queries:
                with suppress(StoppedError):
                    query.result()

    def _start(self, leg: AnyLeg) -> None:
        """Start the leg's query at the end of its chain; wait for a system that is away. Raise StoppedError when the runner stops."""
        start = offset_text(leg.patiently(leg.start_offset))
        # A fresh checkpoint each time: a truncated one may be damaged, and the ledger has all that it holds.
        shutil.rmtree(self._checkpoint(leg), ignore_errors=True)
        self._starts[leg.name] += 1
        checkpoint = self._checkpoint(leg)
        options = {**self._sources[leg.name], "run": str(self._run_path), "start": start, "leg": leg.name}
        source = "tallyflow_stream" if leg.name.reads else "tallyflow_source"
        frame = self._session.readStream.format(source).options(**options).load()
        self._running[leg.name] = (
            frame.writeStream.queryName(f"{leg.connections.names.pipeline}.{leg.name.token}")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda batch, number: leg.on_batch(batch, number, checkpoint))
            .start()
        )
        leg.status.state = "running"

    def _checkpoint(self, leg: AnyLeg) -> Path:
        return self._run_path.parent / f"checkpoint-{leg.name.token}-{self._starts[leg.name]}"

    def look(self) -> None:
        """Handle a query that has ended by itself: a halt stays, anything else (such as a killed planner) is restarted.

        One at a time: Spark gives a planner 10 s to start, and on a busy machine several at once would all time out, again and again.
        """
        ended = [name for name, query in self._running.items() if not query.isActive]
        if ended and not any(query.isActive and query.status["message"] == _INITIALIZING for query in self._running.values()):
            self._ended(self._legs[ended[0]], self._running.pop(ended[0]))
        for name in [name for name, due in self._due.items() if due <= self._clock()]:
            del self._due[name]
            self._start_again(self._legs[name])

    def _ended(self, leg: AnyLeg, query: StreamingQuery) -> None:
        error = query.exception()
        message = str(error).strip() if error else "it ended without an error"
        if leg.failure is None and (to_do := remedy_by_text(message)):
            self._postpone(leg, last_message(message), to_do)
            return
        count, batches = self._restarts.get(leg.name, (0, 0))
        fruitless = count + 1 if leg.status.batches == batches else 1
        if leg.failure is None and any(name in message for name in _HALTS):
            leg.failure = HaltError(last_message(message))
        if leg.failure is None and fruitless > RESTARTS_WITHOUT_PROGRESS:
            leg.failure = HaltError(f"{leg.name}: its query ended {fruitless} times without progress, last with: {last_message(message)}")
        if leg.failure is not None:
            leg.status.state, leg.status.message = "halted", str(leg.failure)
            self._announce(f"{leg.name} halted: {leg.failure}")
            return
        self._restarts[leg.name] = (fruitless, leg.status.batches)
        self._announce(f"{leg.name}: restarting the query after: {last_message(message)}")
        self._start_again(leg)

    def _postpone(self, leg: AnyLeg, message: str, to_do: str) -> None:
        """Wait for room, files or memory of this host, with growing pauses; a batch in between resets the pause."""
        waited, batches = self._waited.get(leg.name, (0.0, 0))
        wait = min(MOST_WAIT_SECONDS, 2 * waited) if waited and leg.status.batches == batches else FIRST_WAIT_SECONDS
        self._waited[leg.name] = (wait, leg.status.batches)
        self._due[leg.name] = self._clock() + wait
        leg.status.state, leg.status.message = "waiting", f"{message}; {to_do}"
        self._announce(f"{leg.name}: waiting: {leg.status.message}")

    def _start_again(self, leg: AnyLeg) -> None:
        try:
            with suppress(StoppedError):
                leg.patiently(leg.chain.open)
                self._start(leg)
        except Exception as error:
            to_do = remedy_by_text(str(error))
            if not to_do:
                raise
            self._postpone(leg, last_message(str(error)), to_do)

    def stop(self) -> None:
        """Stop each query between two batches.

        With a dead JVM there is nothing to stop.
        """
        has_jvm = is_jvm_alive(self._session)
        for name, query in self._running.items():
            with self._legs[name].working:
                if has_jvm:
                    query.stop()
