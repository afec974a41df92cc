"""The two Data Sources in a real session: their rows are ranges, their offsets positions."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from support.pipeline_case import PipelineCase, wait_until
from tenacity import Retrying, retry_if_exception_message, stop_after_attempt

from pipelines.engine.ranges import RANGE_SCHEMA, SourceRanges, StreamRanges
from pipelines.testing import LEGS

pytestmark = pytest.mark.spark

Range = tuple[str, int, int]
"""part, start, stop."""
_SERIALIZED = Retrying(retry=retry_if_exception_message(match="(?s).*OptionalDataException"), stop=stop_after_attempt(3), reraise=True)
"""Spark 4.3 now and then sends a task a map of the source that changed while it was written. A leg reads no rows of a source."""


def run_file(case: PipelineCase) -> str:
    (path,) = case.names.directory(case.home).glob("*/run.json")
    return str(path)


def read_available(
    session: SparkSession, source: str, options: dict[str, str], checkpoint: Path, meanwhile: Callable[[], None] | None = None
) -> list[list[Range]]:
    """The ranges of each batch of an available-now query; `meanwhile` is called once, in the first batch."""
    batches: list[list[Range]] = []

    def collect(frame: DataFrame, _: int) -> None:
        if meanwhile and not batches:
            meanwhile()
        batches.append([(row["part"], row["start"], row["stop"]) for row in _SERIALIZED(frame.collect)])

    query = (
        session.readStream.format(source)
        .options(**options)
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return batches


def raw_end(case: PipelineCase) -> int:
    log = case.log()
    state = log.state(case.names.stream("raw"))
    log.close()
    assert state is not None
    return int(state.last_sequence)


def joined(batches: list[list[Range]]) -> dict[str, tuple[int, int]]:
    """First start and last stop per part; asserts that the ranges in between follow each other without gap or overlap."""
    found: dict[str, tuple[int, int]] = {}
    for part, start, stop in (each for batch in batches for each in batch):
        assert start < stop
        assert part not in found or found[part][1] == start
        found[part] = (found.get(part, (start, stop))[0], stop)
    return found


def test_kafka_ranges_cover_the_frozen_end_within_the_limit(case: PipelineCase, session: SparkSession, tmp_path: Path) -> None:
    case.create_topic()
    case.warm_run()
    case.send_events(1000)
    options = {"run": run_file(case), "start": "0:34,1:0,2:0", "leg": "ingest", "max_per_batch": "300"}
    batches = read_available(session, "tallyflow_source", options, tmp_path / "query", lambda: case.send_events(600))
    assert joined(batches) == {"0": (34, 334), "1": (0, 333), "2": (0, 333)}
    sizes = [sum(stop - start for _, start, stop in batch) for batch in batches]
    assert sum(sizes) == 966
    assert max(sizes) <= 300 + 2
    assert len(batches) == 4


def test_an_end_of_kafka_may_be_given(case: PipelineCase, session: SparkSession, tmp_path: Path) -> None:
    case.create_topic()
    case.warm_run()
    case.send_events(300)
    options = {"run": run_file(case), "start": "0:0,1:0,2:0", "leg": "ingest", "until": "0:10,2:200"}
    assert joined(read_available(session, "tallyflow_source", options, tmp_path / "query")) == {"0": (0, 10), "2": (0, 100)}


def test_stream_ranges_cover_the_frozen_end_within_the_limit(case: PipelineCase, session: SparkSession, tmp_path: Path) -> None:
    case.create_topic()
    case.send_events(120, name_bytes=300_000)
    case.warm_run(legs=("ingest",))
    end = raw_end(case)
    assert end > 20
    options = {"run": run_file(case), "start": "sequence:3", "leg": "process", "max_per_batch": "10"}
    batches = read_available(session, "tallyflow_stream", options, tmp_path / "query")
    assert joined(batches) == {"sequence": (3, end)}
    assert [stop - start for ((_, start, stop),) in batches[:-1]] == [10] * (len(batches) - 1)


@pytest.mark.parametrize("leg", ["ingest", "process"])
def test_nothing_new_is_no_batch_however_many_partitions(case: PipelineCase, session: SparkSession, tmp_path: Path, leg: str) -> None:
    case.create_topic(12)
    case.send_events(1200, partitions=12)
    case.warm_run(legs=("ingest",))
    if leg == "ingest":
        source, start = "tallyflow_source", ",".join(f"{p}:{100 if p < 11 else 99}" for p in range(12))
    else:
        source, start = "tallyflow_stream", f"sequence:{raw_end(case) - 1}"
    seen: list[int] = []
    frame = session.readStream.format(source).options(run=run_file(case), start=start, leg=leg).load()
    query = (
        frame.writeStream.foreachBatch(lambda _, number: seen.append(number)).option("checkpointLocation", str(tmp_path / "query")).start()
    )
    try:
        wait_until(lambda: seen, "the batch of the one position left")
        time.sleep(2)
        assert seen == [0]
        assert query.isActive
    finally:
        query.stop()


OUTAGES: list[Any] = [
    ("kafka", SourceRanges, {"start": "0:0,1:0,2:0", "leg": "ingest"}, {"0": 0, "1": 0, "2": 0}, {"0": 10, "1": 10, "2": 10}),
    ("nats", StreamRanges, {"start": "sequence:0", "leg": "process"}, {"sequence": 0}, None),
]


@pytest.mark.parametrize(("server", "source", "options", "start", "end"), OUTAGES, ids=["kafka", "nats"])
def test_an_unreachable_planner_sees_nothing_new_and_recovers(
    case: PipelineCase, session: SparkSession, server: str, source: Any, options: dict[str, str], start: dict[str, int], end: Any
) -> None:
    case.create_topic()
    case.send_events(30)
    case.warm_run(legs=("ingest",))
    threads = threading.active_count()
    case.stack.server(server).stop()
    try:
        reader = source({"run": run_file(case), **options}).streamReader(RANGE_SCHEMA)
        assert reader.initialOffset() == start
        for _ in range(2):
            assert reader.latestOffset(start, ReadAllAvailable()) == start
        assert threading.active_count() <= threads + 2
    finally:
        case.stack.server(server).start()

    def recovered() -> Any:
        found = reader.latestOffset(start, ReadMaxRows(1_000_000))
        return found == (end or {"sequence": raw_end(case)})

    # A partition of a Kafka that starts has no leader at first, and is asked again after 5 s while the others go on.
    wait_until(recovered, "all new positions")


def test_a_runner_plans_no_batch_twice(case: PipelineCase, session: SparkSession) -> None:
    case.create_topic()
    case.session = session
    case.send_events(900)
    runner = case.warm_run()
    assert [runner.legs[leg].status.totals["rows_out"] for leg in LEGS] == [900, 900, 900]
    case.check()
