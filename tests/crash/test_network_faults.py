"""What tests/integration/test_network_faults.py leaves out for its time."""

from functools import partial
from typing import Any

import pytest
from support.network_case import Proxied, running, through, waits
from support.pipeline_case import PipelineCase, wait_until

from pipelines.sink.chunks import chunks
from pipelines.sink.leg import SinkLeg

pytestmark = pytest.mark.crash

MANY = 52
"""Partitions and buckets, so that a small load is many frames, on both streams."""


def test_a_nats_that_falls_silent_is_left_for_a_new_connection(proxied: Proxied) -> None:
    case, nats, _ = proxied
    case.create_topic()
    with running(case) as runner:
        case.send_events(1000)
        case.wait_count(1000)
        nats.forget()
        before = nats.connections
        # New connections say nothing, either, until the leg was seen to wait.
        nats.be_silent()
        case.send_events(1000)
        waits(runner, "ingest", "NATS did not answer (TimeoutError)")
        nats.pass_on()
        wait_until(lambda: nats.connections > before, "a new connection", 60)
    assert case.dead_letters() == []


def in_small_chunks(case: PipelineCase) -> None:
    case.leg_classes["sink"] = partial(SinkLeg, cut=partial(chunks, max_rows=50))


def test_a_hundred_lost_answers_of_clickhouse_double_nothing(proxied: Proxied) -> None:
    case, nats, clickhouse = proxied
    in_small_chunks(case)

    def wide(document: dict[str, Any]) -> None:
        through(case, nats, clickhouse)(document)
        document["buckets"] = MANY

    case.write_file(wide)
    case.create_topic(MANY)
    # The driver itself sends an insert again once: two cuts in a row make it our turn.
    clickhouse.cut(100, b"INSERT", in_a_row=2)
    case.send_events(51 * MANY, partitions=MANY)
    case.warm_run()
    assert clickhouse.cuts == 100
    case.check()
    assert (case.count(), case.dead_letters()) == (case.good, [])


def test_a_clickhouse_killed_during_a_backlog_is_waited_for(case: PipelineCase) -> None:
    in_small_chunks(case)
    case.write_file(lambda document: document.update(buckets=MANY))
    case.create_topic(MANY)
    case.send_events(51 * MANY, partitions=MANY)
    with running(case) as runner:
        for share in (4, 2):
            case.wait_count(case.good // share)
            case.stack.server("clickhouse").kill()
            waits(runner, "sink", "ClickHouse did not answer")
            case.stack.server("clickhouse").start()
    assert runner.legs["sink"].status.batches > MANY // 2
    assert case.dead_letters() == []
