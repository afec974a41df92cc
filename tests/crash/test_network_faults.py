"""The network between a pipeline and its servers fails in every way that a proxy knows; nothing is lost, doubled or a dead letter."""

from functools import partial
from typing import Any

import pytest
from support.network_case import Proxied, running, through, waits
from support.pipeline_case import PipelineCase, wait_until

from pipelines.connectors.clickhouse import client as clickhouse_connector
from pipelines.connectors.nats import streams as jetstream_connector
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
        # It waits itself for an answer, or another thread has given the connection up before, or a new one says nothing.
        endings = ("TimeoutError", "ConnectionClosedError", "no answer within 5 s")
        waits(runner, "ingest", *(f"NATS did not answer ({ending})" for ending in endings))
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


def test_a_refused_nats_is_waited_for_without_dead_letters(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_connector, "REQUEST_TIMEOUT_SECONDS", 1)
    case, nats, _ = proxied
    case.create_topic()
    with running(case) as runner:
        case.send_events(1000)
        case.wait_count(1000)
        nats.refuse()
        case.send_events(3000)
        waits(runner, "ingest", "NATS did not answer")
        assert case.count() == 1000
        nats.pass_on()
    assert case.dead_letters() == []


def test_acknowledgements_lost_repeatedly_double_nothing(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream_connector, "REQUEST_TIMEOUT_SECONDS", 0.3)
    case, nats, _ = proxied
    case.create_topic()
    with running(case):
        for leg, role in (("ingest", "raw"), ("process", "out"), ("sink", "ledger.sink")):
            wanted = nats.cuts + 5
            nats.cut(5, b"HPUB tf.%s.%s" % (case.pipeline.encode(), role.encode()), in_a_row=2)
            with case.load(100):
                wait_until(lambda n=wanted: nats.cuts == n, f"cuts of what {leg} writes")


def test_a_late_insert_of_a_gone_client_is_the_same_insert(proxied: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clickhouse_connector, "RESPONSE_TIMEOUT_SECONDS", 1)
    case, nats, clickhouse = proxied

    def brief(document: dict[str, Any]) -> None:
        through(case, nats, clickhouse)(document)
        # What the client gives up after, with the second above.
        document["sink"]["max_insert_time"] = "3s"

    case.write_file(brief)
    case.create_topic()
    with running(case) as runner:
        case.send_events(1000)
        case.wait_count(1000)
        clickhouse.hold(b"INSERT")
        before = runner.legs["sink"].status.retries
        case.send_events(1000)
        waits(runner, "sink", "ClickHouse did not answer")
        wait_until(lambda: runner.legs["sink"].status.retries >= before + 2, "inserts that were given up")
        clickhouse.pass_on()


def test_an_insert_that_ends_half_way_is_sent_again_whole(proxied: Proxied) -> None:
    case, _, clickhouse = proxied
    case.create_topic()
    # Before the run: of what trickles in while it runs, an insert might be smaller than that.
    case.send_events(600, name_bytes=2000)
    clickhouse.half_close(3, b"INSERT", after_bytes=150_000)
    with running(case):
        pass
    assert clickhouse.half_closes == 3


def test_a_slow_network_only_takes_longer(proxied: Proxied) -> None:
    case, nats, clickhouse = proxied
    nats.latency_seconds, clickhouse.latency_seconds = 0.005, 0.05
    case.create_topic()
    with running(case):
        case.send_events(1000, bad_every=100)
