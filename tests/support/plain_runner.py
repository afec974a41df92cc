"""`tallyflow run` without Spark: the real legs and planners on real servers, in the driver, with a loop where a streaming query would be.

It starts in two seconds instead of fifteen, so that a kill can be tried at every step. What Spark adds (its checkpoint, tasks, workers)
is killed in cases of its own. Started as a script, with the arguments of `tallyflow`; ranges must be small enough for the driver. With a
session it is only the loop: tasks run on Spark's workers.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from pipelines.cli.app import app
from pipelines.engine.leg import Leg, ReplanError, StoppedError
from pipelines.engine.ranges import RANGE_SCHEMA, StreamRanges, _SourceRangeReader, offset_text
from pipelines.errors import HaltError
from pipelines.runner.queries import SparkEngine

# A stop waits until the planners have looked once more: seconds of a run that takes none.
IDLE_SECONDS = 0.05


class SourcePlanner(_SourceRangeReader):
    """Where few records come it waits before the next range; a stop need not."""

    def __init__(self, options: Mapping[str, str], stop: threading.Event) -> None:
        super().__init__(options)
        self._stop = stop

    def _sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)


class PlainSession:
    """As much of a Spark session as the runner looks at."""

    sparkContext = SimpleNamespace(_gateway=None)


class PlainQueries:
    """In place of `pipelines.runner.queries.Queries`: one thread per leg."""

    def __init__(
        self, session: Any, run_path: Path, legs: Mapping[str, Leg], sources: Mapping[str, dict[str, str]], progress: Callable[[str], None]
    ) -> None:
        self._session, self._run_path, self._sources = session, str(run_path), sources
        self._errors: list[Exception] = []
        self._legs = legs
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        starts = {name: offset_text(leg.patiently(leg.start_offset)) for name, leg in self._legs.items()}
        for name, leg in self._legs.items():
            options = {**self._sources[name], "run": self._run_path, "start": starts[name], "leg": name, "idle_seconds": str(IDLE_SECONDS)}
            thread = threading.Thread(target=self._work, args=[leg, options], daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self, leg: Leg, options: dict[str, str]) -> None:
        reader = SourcePlanner(options, leg.stop) if leg.name == "ingest" else StreamRanges(options).streamReader(RANGE_SCHEMA)
        start, batch = reader.initialOffset(), 0
        offsets = Path(self._run_path).parent / f"checkpoint-{leg.name}" / "offsets"
        offsets.mkdir(parents=True)
        try:
            while not leg.stop.is_set():
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end != start:
                    # As Spark's offset log: version, metadata, one offset per source.
                    (offsets / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
                    try:
                        leg.on_batch(SimpleNamespace(sparkSession=self._session), batch, offsets.parent)
                    except ReplanError:
                        leg.patiently(leg.chain.open)
                        end = leg.patiently(leg.start_offset)
                    start, batch = end, batch + 1
        except StoppedError:
            pass
        except HaltError as error:
            leg.failure = leg.failure or error
            leg.status.state, leg.status.message = "halted", str(leg.failure)
        except Exception as error:
            self._errors.append(error)
        finally:
            reader.stop()

    def look(self) -> None:
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        for thread in self._threads:
            thread.join()


class BriskEngine(SparkEngine):
    """An end waits until the runner has looked, whoever waits for a purge until retention has: as long as it takes to look."""

    watch_seconds = 0.05
    retention_seconds = 0.5


class PlainEngine(BriskEngine):
    """Runs legs without Spark, or, on a session, with nothing of it but tasks."""

    def __init__(self, session: SparkSession | None = None) -> None:
        super().__init__(session or PlainSession())

    def queries(self, *arguments: Any) -> PlainQueries:
        return PlainQueries(*arguments)


class InvokedEngine(PlainEngine):
    """For `tallyflow run` inside a process that goes on behind it."""

    def leave(self, code: int) -> NoReturn:
        sys.exit(code)


if __name__ == "__main__":
    app(obj=PlainEngine())
