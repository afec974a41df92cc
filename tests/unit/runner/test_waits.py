"""Servers that go and come back while a run works: a line each, however many legs wait and however often they try again."""

import pytest

from pipelines.connectors.clickhouse.errors import map_error as clickhouse_error
from pipelines.connectors.kafka.client import map_error as kafka_error
from pipelines.connectors.nats.errors import map_error as nats_error
from pipelines.runner.waits import Waits, system_of

AWAY = "inserting a chunk: ClickHouse did not answer (Connection refused)"


def told(waits: Waits, now: float, **waiting: str) -> list[str]:
    return [event.message for event in waits.look(now, waiting)]


def test_an_outage_is_a_line_when_it_begins_and_one_when_it_ends() -> None:
    waits = Waits()
    seen = [told(waits, second, sink=AWAY) for second in range(15)]
    assert seen == [[], [f"waiting: sink: {AWAY}"], *[[]] * 13]
    assert waits.subjects == ["ClickHouse"]
    assert told(waits, 15) == []
    assert told(waits, 16) == ["ClickHouse works again after 14 s"]
    assert waits.subjects == []


def test_legs_that_wait_for_one_server_are_one_wait() -> None:
    waits, away = Waits(), "publishing to tf.a.raw.b.0: NATS did not answer (TimeoutError)"
    told(waits, 0, ingest=away)
    assert told(waits, 2, ingest=away, process="reading x: NATS did not answer (TimeoutError)") == [f"waiting: ingest: {away}"]
    assert told(waits, 9) == ["NATS works again after 2 s"]


def test_a_moment_of_waiting_is_no_news() -> None:
    waits = Waits()
    assert [told(waits, 0.0, sink=AWAY), told(waits, 0.5, sink=AWAY), told(waits, 1.5), told(waits, 9)] == [[], [], [], []]


def test_a_server_that_refuses_once_more_has_not_come_back() -> None:
    waits = Waits()
    told(waits, 0, sink=AWAY)
    told(waits, 1, sink=AWAY)
    assert [told(waits, 2), told(waits, 3, sink=AWAY), told(waits, 4), told(waits, 5)] == [[], [], [], ["ClickHouse works again after 3 s"]]


def test_a_wait_for_no_server_is_named_after_its_leg() -> None:
    waits, message = Waits(), "inserting a chunk into orders: waiting until no earlier insert of it can be running"
    told(waits, 0, sink=message)
    assert told(waits, 1, sink=message) == [f"waiting: sink: {message}"]
    assert waits.subjects == ["sink"]


@pytest.mark.parametrize(
    ("message", "system"),
    [
        (str(clickhouse_error("inserting", ConnectionRefusedError())), "ClickHouse"),
        (str(nats_error("publishing", TimeoutError())), "NATS"),
        (str(kafka_error("describing topic orders", RuntimeError())), ""),
        ("no report from 10.0.0.1 for 4 s: NATS does not answer, or the process hangs", "NATS"),
        ("listing offsets: the leader of partition 1 gave no answer; retrying, check that the brokers are running", "Kafka"),
        ("of stream tf-a-raw: JetStream error 10077: maximum bytes exceeded", "NATS"),
        ("reaching the key store: disk is full", ""),
    ],
)
def test_messages_of_connectors_name_their_server(message: str, system: str) -> None:
    assert system_of(message) == system
