"""Ingest against what Kafka and the replicas of NATS may tell: ends that have gone back, ends that are served late."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Uuid

from pipelines.connectors.kafka.client import topic_facts
from pipelines.connectors.sources import Words
from pipelines.errors import DataLossError, RetryableError
from pipelines.ingest.leg import IngestLeg, check_ends
from pipelines.ingest.ranges import IngestItem, _stored_frames, parts_of
from pipelines.protocol.append import Tail
from pipelines.protocol.bodies import RawTail
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message
from pipelines.protocol.topology import Topology
from pipelines.testing import MemoryLog

NAMES = Names("orders")
SUBJECT = NAMES.raw("events", 0)
ORDERS = Words("Kafka", "topic", "orders", "a restore")


def test_an_end_before_the_confirmed_one_is_a_named_loss() -> None:
    check_ends(ORDERS, {"0": 10, "1": 7}, {0: 10, 1: 90})
    check_ends(ORDERS, {"0": 10, "1": 7}, {0: 10})
    with pytest.raises(
        DataLossError, match=r"topic orders: it ends before what was read: partition 1 at 6, and 7 was confirmed\. Kafka lost"
    ):
        check_ends(ORDERS, {"0": 10, "1": 7}, {0: 10, 1: 6})


def leg(confirmed: dict[str, int], ends: dict[int, int]) -> Any:
    """As much of the leg as looks at ends."""
    config = SimpleNamespace(topology=Topology.of(["orders"], [""]), join=None)
    source = SimpleNamespace(words=ORDERS, known_ends=lambda partitions, _: ({p: ends[p] for p in partitions if p in ends}, {}))
    found = IngestLeg.__new__(IngestLeg)
    found.name = config.topology.ingests[0]
    found.connections = SimpleNamespace(config=config, source=lambda _: source)  # type: ignore[assignment]
    found.chain = SimpleNamespace(state=SimpleNamespace(to=confirmed, plan=None))  # type: ignore[assignment]
    found.patiently = lambda attempt: attempt()  # type: ignore[method-assign]
    return found


def test_an_end_moved_back_halts_unless_kafka_has_it_again() -> None:
    with pytest.raises(DataLossError, match="it ends before what was read"):
        leg({"0": 10}, {0: 8}).advance({"0": 8})
    leg({"0": 10}, {0: 10}).advance({"0": 8})
    leg({"0": 10}, {0: 8}).advance({"0": 10})
    # Of a partition without a leader nothing is known; what it ends at is looked at when it has one.
    leg({"0": 10, "1": 10}, {0: 10}).advance({"0": 10, "1": 8})


class _LaggingLog(MemoryLog):
    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        return iter(list(super().fetch(stream, subject, after, to))[:-1])


def test_frames_that_a_replica_does_not_serve_yet_are_waited_for() -> None:
    """Without the last one they would seem to end before the range does, which is a halt."""
    for log in (MemoryLog(), _LaggingLog()):
        for first in (0, 5):
            headers = {"Tf-First": str(first), "Tf-Last": str(first + 4), "Tf-Rows": "5"}
            log.publish(SUBJECT, b"", headers, len(log.messages(NAMES.stream("raw"))))
        connections: Any = SimpleNamespace(log=log, names=NAMES)
        if isinstance(log, _LaggingLog):
            with pytest.raises(RetryableError, match="not served yet"):
                _stored_frames(connections, SUBJECT, 0, 10, Tail(0, -1))
        else:
            assert [frame.last for frame in _stored_frames(connections, SUBJECT, 0, 10, Tail(0, -1))[0]] == [4, 9]


def test_a_broker_without_topic_ids_is_told_at_the_start() -> None:
    assert "never recreate a topic under the same name" in topic_facts(str(Uuid(0, 0)), (0,)).note
    assert topic_facts(str(Uuid(7, 1)), (0,)).note == ""


def test_a_plan_is_cut_by_the_numbers_of_its_partitions() -> None:
    item = IngestItem("s", {str(p): (0, 10 * p + 1) for p in range(7)}, {"6": RawTail(4, 0)}, standing=("1",), epoch=3)
    parts = parts_of(item, 3)
    assert [list(part.ranges) for part in parts] == [["0", "1", "4", "5"], ["2", "6"], ["3"]]
    assert [(part.tails, part.standing, part.epoch, part.is_part) for part in parts] == [
        ({}, ("1",), 3, True),
        ({"6": RawTail(4, 0)}, (), 3, True),
        ({}, (), 3, True),
    ]
    assert sum(part.offsets for part in parts) == item.offsets
