"""ClickHouse away for long while events go on: nothing is lost or doubled, nothing is a dead letter, and the backlog goes fast.

The promise is ten minutes at 5,000 events/s: `TALLYFLOW_OUTAGE_SECONDS=600 pytest -s tests/crash/test_outage.py`, which prints its figures.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.network_case import proxies, through
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, meanwhile, wait_until

from pipelines.sink.chunks import MAX_CHUNK_ROWS

pytestmark = pytest.mark.crash

OUTAGE_SECONDS = float(os.environ.get("TALLYFLOW_OUTAGE_SECONDS", "30"))
EVENTS_PER_SECOND = 5000
TICK_SECONDS = 0.5
TIMES_AS_FAST = 3


@contextmanager
def _steady_load(case: PipelineCase) -> Iterator[None]:
    """EVENTS_PER_SECOND from a thread; ticks that come late are made up for."""

    def send(stop: threading.Event) -> None:
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            case.send_events(int(EVENTS_PER_SECOND * TICK_SECONDS))
            due += TICK_SECONDS

    with meanwhile(send):
        yield


def _sink(case: PipelineCase) -> dict[str, str]:
    found: dict[str, str] = (case.ask() or {"legs": {"sink": {"state": "", "message": ""}}})["legs"]["sink"]
    return found


def _check(case: PipelineCase) -> None:
    """As the case's own oracle, by SQL: millions of rows. Every event has a number of its own, from 0 on."""
    facts = """
        SELECT count(), uniqExact(id), min(id), max(id), uniqExact(_tf_partition, _tf_offset),
               countIf(name != concat('event ', toString(id)) OR amount != id / 4)
        FROM {table:Identifier}
    """
    found = case.client().query(facts, {"table": case.table}).result_rows[0]
    assert tuple(found) == (case.sent, case.sent, 0, case.sent - 1, case.sent, 0)
    assert case.dead_letters() == []


def test_a_long_outage_of_clickhouse_is_made_up_without_loss(case: PipelineCase) -> None:
    with proxies(case) as (_, clickhouse):
        case.write_file(through(case, clickhouse=clickhouse))
        case.create_topic()
        process = case.start()
        case.wait_ready(process)
        with _steady_load(case):
            case.wait_count(2 * EVENTS_PER_SECOND)
            clickhouse.refuse()
            refused_at, before = time.monotonic(), case.count()
            wait_until(lambda: _sink(case)["state"] == "waiting", "a sink that waits")
            assert "ClickHouse did not answer" in _sink(case)["message"]
            wait_until(lambda: time.monotonic() - refused_at >= OUTAGE_SECONDS, "the end of the outage", OUTAGE_SECONDS + PATIENCE_SECONDS)
            held = case.count()
            assert held <= before + MAX_CHUNK_ROWS, "an insert on its way may still have landed"
            clickhouse.pass_on()
            back_at = time.monotonic()
            wait_until(lambda: case.count() > held, "the first rows")
            first_at = time.monotonic()
            wait_until(
                lambda: case.sent - case.count() < 2 * EVENTS_PER_SECOND, "the end of the backlog", OUTAGE_SECONDS + PATIENCE_SECONDS
            )
            caught_up_at, rows = time.monotonic(), case.count() - held
        wait_until(lambda: case.count() >= case.sent, "all rows")
        process.terminate()
        words = process.communicate(timeout=PATIENCE_SECONDS)[1]
        assert process.returncode == 0, words
        _check(case)
    seconds = caught_up_at - back_at
    rate = rows / (caught_up_at - first_at)
    print(
        f"outage {OUTAGE_SECONDS:.0f} s at {EVENTS_PER_SECOND} events/s: {rows} rows of backlog, the first {first_at - back_at:.1f} s "
        f"after the return, the last after {seconds:.1f} s: {rate:.0f} rows/s, {rate / EVENTS_PER_SECOND:.1f} times as fast as they came "
        f"({rows / seconds:.0f} rows/s from the return on); lost 0, doubled 0, dead letters 0 of {case.sent}"
    )
    # How fast it goes is a promise for an outage that lasts, and on a machine that does nothing else.
    assert "TALLYFLOW_OUTAGE_SECONDS" not in os.environ or rate >= TIMES_AS_FAST * EVENTS_PER_SECOND
