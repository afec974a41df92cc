"""The two Python Data Sources: their offsets are positions, their rows are ranges of positions, never records.

Spark starts one planner process per source and query (pyspark/sql/datasource.py). An exception there ends the query, so waiting for an
absent system happens here: a planner that cannot see new data reports none. `latestOffset` sleeps until there is new data, at most
IDLE_SECONDS (option `idle_seconds`), so an idle leg costs a wake-up per half second and a busy one starts at once.

Spark imports this module in three short-lived processes per source before a query starts; modules that only a planner needs are imported
inside it.
"""

import os
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pipelines.errors import RetryableError
from pipelines.protocol.naming import Names

if TYPE_CHECKING:
    from pipelines.connectors.nats.client import JetStream
    from pipelines.connectors.sources import Asked, Source
    from pipelines.protocol.topology import LegId

IDLE_SECONDS = 0.5
MAX_OFFSETS_PER_BATCH = 500_000
MAX_FRAMES_PER_BATCH = 128
LINGER_SECONDS = 0.25
"""Interval between the ranges of a trickling source.

A batch costs 100 ms of CPU over three legs, however few rows it has.
"""
_FACTS_EVERY_SECONDS = 5.0
_OUTAGE_PAUSE_SECONDS = 0.25
_ASK_SILENT_EVERY_SECONDS = 0.5

RANGE_SCHEMA = StructType(
    [StructField("part", StringType(), False), StructField("start", LongType(), False), StructField("stop", LongType(), False)]
)
Offset = dict[str, int]


class RangePartition(InputPartition):
    """One sub-range: of a source's partition (offsets, end exclusive) or of a stream (sequences, start exclusive, end inclusive)."""

    def __init__(self, part: str, start: int, stop: int) -> None:
        self.part, self.start, self.stop = part, start, stop


class _RangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The common part of both sources: waiting, admission, and the frozen end of an available-now query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._idle_seconds = float(options.get("idle_seconds", IDLE_SECONDS))
        self._frozen: Offset | None = None

    def initialOffset(self) -> Offset:
        """Return the start that the runner read from the ledger; a checkpoint never outlives a start."""
        return _offset(self._options["start"])

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(int(self._options.get("max_per_batch", self._default_limit)))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next range: at most `limit` beyond `start`; `start` itself if nothing came within `idle_seconds`."""
        deadline = time.monotonic() + self._idle_seconds
        while True:
            try:
                end = self._admit(start, self._frozen or self._available(start), limit)
                if end != start:
                    return end
                pause = self._pause()
            except RetryableError:
                pause = _OUTAGE_PAUSE_SECONDS
            left = deadline - time.monotonic()
            if left <= 0 or self._frozen is not None:
                return start
            self._sleep(min(pause, left))

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._available(self.initialOffset())

    def _admit(self, start: Offset, available: Offset, limit: ReadLimit) -> Offset:
        rows = None if isinstance(limit, ReadAllAvailable) else limit.max_rows if isinstance(limit, ReadMaxRows) else self._default_limit
        return admit(start, available, rows)

    def stop(self) -> None:
        """Close the planner's resources; Spark calls it when the query ends, while it handles the error that ended the planner.

        At an orderly end the JVM closes its connection. PySpark 4.3 tries to answer nevertheless, and if the JVM had an answer waiting this
        write fails: one stop in eight left a traceback of `read_int` on the terminal. So the process ends here, as requested.
        """
        self._close()
        if isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            os._exit(0)

    def _close(self) -> None:
        """Close the resources of a subclass."""

    def commit(self, end: Offset) -> None:
        """Do nothing: the ledger's `done` is the commit, and purging follows it."""

    def read(self, partition: InputPartition) -> Iterator[tuple[str, int, int]]:
        assert isinstance(partition, RangePartition)
        yield partition.part, partition.start, partition.stop

    _default_limit: int

    @abstractmethod
    def _available(self, start: Offset) -> Offset:
        """Return the newest end that may be planned now."""

    def _pause(self) -> float:
        return self._idle_seconds

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def admit(start: Offset, available: Offset, limit: int | None) -> Offset:
    """Return `available`, or at most `limit` positions beyond `start`, shared among the parts by the positions waiting in each.

    An end before `start` is passed on: positions have disappeared, and the leg reports the cause.
    """
    waiting = {part: max(0, end - start.get(part, 0)) for part, end in available.items()}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(available)
    share = {part: -(-count * limit // total) for part, count in waiting.items()}
    return {part: min(end, start.get(part, 0) + min(waiting[part], share[part])) for part, end in available.items()}


def _offset(text: str) -> Offset:
    """Parse `0:12,1:7` as an offset: planners compare offsets as JSON text, so parts keep their numeric order."""
    pairs = (item.rsplit(":", 1) for item in text.split(",") if item)
    return {part: int(value) for part, value in sorted(pairs, key=lambda pair: (len(pair[0]), pair[0]))}


def offset_text(offset: Mapping[Any, int]) -> str:
    return ",".join(f"{part}:{value}" for part, value in offset.items())


class _SourceRangeReader(_RangeReader):
    """Reads ranges of a source; offsets are {partition: next offset}. New partitions join from offset 0 within 5 s.

    After a range of under `few` offsets the next one waits until LINGER_SECONDS have passed, so that few large batches replace many small
    ones. The first record after a quiet time is not delayed.
    """

    _default_limit = MAX_OFFSETS_PER_BATCH

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._until = _offset(options["until"]) if "until" in options else None
        self._source: Source | None = None
        self._partitions: tuple[int, ...] = ()
        self._silent: set[int] = set()
        self._asked_silent: Asked | None = None
        self._ask_silent_at = 0.0
        self._looked_at = -_FACTS_EVERY_SECONDS
        self._quiet_since = time.monotonic()
        self._few = int(options.get("few", "0"))
        self._linger_until = 0.0

    def _available(self, start: Offset) -> Offset:
        if self._source is None:
            from pipelines.connectors.sources import open_source
            from pipelines.engine.run_spec import load_run
            from pipelines.protocol.topology import LegId

            config = load_run(self._options["run"]).config
            self._source = open_source(config, config.topology.file_id(LegId.parse(self._options["leg"])))
        now = time.monotonic()
        if now - self._looked_at >= _FACTS_EVERY_SECONDS:
            self._partitions = self._source.facts().partitions
            self._looked_at = now
        ends = self._ends(self._source, start)
        if self._until is None:
            return ends
        return {part: min(end, self._until[part]) for part, end in ends.items() if part in self._until}

    def _ends(self, source: "Source", start: Offset) -> Offset:
        """Return the end of each partition; for a partition without a leader its `start`, so that the others continue."""
        asked = [p for p in self._partitions if p not in self._silent]
        ends: dict[int, int] = {}
        if asked:
            ends, lost = source.known_ends(asked)
            self._silent |= set(lost)
        ends |= self._ends_heard_since(source)
        return {str(p): ends.get(p, start.get(str(p), 0)) for p in sorted(self._partitions)}

    def _ends_heard_since(self, source: "Source") -> dict[int, int]:
        """Return the ends of silent partitions that have answered meanwhile. They are asked repeatedly, without waiting for the answers."""
        found: dict[int, int] = {}
        if self._asked_silent is not None and all(future.done() for future in self._asked_silent.values()):
            with suppress(RetryableError):
                found, _ = source.heard(self._asked_silent)
            self._silent -= set(found)
            self._asked_silent = None
        if self._silent and self._asked_silent is None and time.monotonic() >= self._ask_silent_at:
            self._ask_silent_at = time.monotonic() + _ASK_SILENT_EVERY_SECONDS
            self._asked_silent = source.ask_ends(sorted(self._silent))
        return found

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the end. Raise RetryableError while a partition has no leader: without its end the query would leave it out."""
        super().prepareForTriggerAvailableNow()
        if self._silent and self._source is not None:
            silent = ", ".join(map(str, sorted(self._silent)))
            raise RetryableError(
                f"freezing the end of the {self._source.words.noun}: no leader answers for partition {silent}; "
                "start the query again when it has one"
            )

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        self._sleep(max(0.0, self._linger_until - time.monotonic()))
        end = super().latestOffset(start, limit)
        if end != start:
            self._quiet_since = time.monotonic()
            is_small = sum(end.values()) - sum(start.values()) < self._few
            self._linger_until = self._quiet_since + LINGER_SECONDS if is_small else 0.0
        return end

    def _pause(self) -> float:
        """Return the pause between looks: Kafka cannot announce new records without sending them.

        It is 15 ms, and longer after a long quiet time.
        """
        quiet = time.monotonic() - self._quiet_since
        return 0.015 if quiet < 2 else 0.05 if quiet < 10 else 0.15

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [RangePartition(part, start.get(part, 0), stop) for part, stop in end.items() if stop > start.get(part, 0)]


class _StreamRangeReader(_RangeReader):
    """Reads ranges of a stream; the offset is {"sequence": last sequence}.

    The ledger entries of the legs upstream wake it; it also looks every half second. With `min_rows` and `max_delay_ms` it holds back until
    that many rows wait, or the oldest has waited that long.
    """

    _default_limit = MAX_FRAMES_PER_BATCH

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._log: JetStream | None = None
        # Spark pickles a reader once per plan to send it to the tasks; an event cannot be pickled, so it is made on connecting.
        self._woken: Event | None = None
        self._names: Names
        self._leg: LegId
        self._upstream: tuple[LegId, ...]
        self._min_rows = int(options.get("min_rows", "0"))
        self._max_delay = int(options.get("max_delay_ms", "0")) / 1000
        self._waiting_since: float | None = None

    def _connect(self) -> "JetStream":
        if self._log is None:
            from pipelines.connectors.nats.client import JetStream
            from pipelines.engine.run_spec import load_run
            from pipelines.protocol.topology import LegId

            run = load_run(self._options["run"])
            config, leg = run.config, LegId.parse(self._options["leg"])
            upstream = config.topology.upstream(leg)
            log, woken = JetStream(config.nats, "tallyflow-planner", config.on_error.classes("nats")), Event()
            try:
                for earlier in upstream:
                    log.on_message(run.names.chain(earlier), woken.set)
            except RetryableError:
                log.close()
                raise
            self._log, self._woken, self._names, self._leg, self._upstream = log, woken, run.names, leg, upstream
        return self._log

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _available(self, start: Offset) -> Offset:
        log = self._connect()
        assert self._woken is not None
        self._woken.clear()
        state = log.state(self._names.stream(str(self._leg.reads)))
        last = max(start["sequence"], state.last_sequence if state else 0)
        if last == start["sequence"]:
            self._waiting_since = None
            return start
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if time.monotonic() - self._waiting_since < self._max_delay and self._rows_waiting(log) < self._min_rows:
            return start
        self._waiting_since = None
        return {"sequence": last}

    def _rows_waiting(self, log: "JetStream") -> int:
        """Return the rows that the legs upstream have written and this one has not confirmed, by the totals of each last `done`."""
        from pipelines.protocol.ledger import read_chain

        def total(leg: "LegId", count: str) -> int:
            return read_chain(log, self._names, leg.chain).totals.get(count, 0)

        return sum(total(leg, "rows_out") for leg in self._upstream) - total(self._leg, self._leg.counted_in)

    def _pause(self) -> float:
        if self._waiting_since is None:
            return self._idle_seconds
        return max(0.001, self._max_delay - (time.monotonic() - self._waiting_since))

    def _sleep(self, seconds: float) -> None:
        if self._woken is None:
            time.sleep(seconds)
        else:
            self._woken.wait(seconds)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        first, last = start["sequence"], end["sequence"]
        return [RangePartition("sequence", first, last)] if last > first else []


class SourceRanges(DataSource):
    """The Data Source `format("tallyflow_source")`: `run` is the path of the run file, `leg` the source's ingest leg.

    `start`: the first offsets as `partition:offset,...`. `until`, in the same form: plan nothing at or beyond these offsets, and no other
    partition. `few`: see `_SourceRangeReader`.
    """

    @classmethod
    def name(cls) -> str:
        return "tallyflow_source"

    def schema(self) -> StructType:
        return RANGE_SCHEMA

    def streamReader(self, schema: StructType) -> _SourceRangeReader:
        return _SourceRangeReader(self.options)


class StreamRanges(DataSource):
    """The source `format("tallyflow_stream")`: options `run`, `start`, `leg` (its id), and the batching options."""

    @classmethod
    def name(cls) -> str:
        return "tallyflow_stream"

    def schema(self) -> StructType:
        return RANGE_SCHEMA

    def streamReader(self, schema: StructType) -> _StreamRangeReader:
        return _StreamRangeReader(self.options)
