"""The test of the source in memory; it runs in a tree that has the source's three files, this one among them, and nothing else new."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pipelines.connectors.sources.memory import LISTS, Lists

from pipelines.config import parse, unsupported
from pipelines.config.docs import EXAMPLE
from pipelines.engine.connections import Connections
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import DataLossError
from pipelines.ingest.leg import IngestLeg
from pipelines.ingest.ranges import IngestItem, ingest
from pipelines.protocol.bodies import INGEST_CHAIN
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.records import decode_frame
from pipelines.testing import MemoryLog

NAMES = Names("orders-demo")
RAW = NAMES.stream("raw")


def file(on_data_loss: str) -> str:
    kafka, _, rest = EXAMPLE.partition("  - type: kafka\n")
    _, _, fields = rest.partition("    schema_fields:\n")
    return f"{kafka}  - {{type: memory, topic: events, on_data_loss: {on_data_loss}, schema_fields: [{{name: id, type: int}}]}}\n" + (
        fields[fields.index("sink:\n") :].partition("  order_by")[0] + "  mapping:\n    - {name: id, column_name: id, column_type: Int64}\n"
    )


def connections(log: MemoryLog, epoch: int, on_data_loss: str = "halt", identity: str = "first") -> Connections:
    config = parse(file(on_data_loss), name="file", environment={})
    assert unsupported(config) == []
    run = RunSpec("", "file", {}, {"events": identity}, "", "")
    reached: Any = log
    return Connections(run, keep_partitions=True, log=reached, config=config)


def start(log: MemoryLog, epoch: int, **options: str) -> IngestLeg:
    """A start of the leg, whose first one begins where the source says."""
    chain = Chain(log, NAMES, INGEST_CHAIN, epoch)
    chain.open()
    lease: Any = SimpleNamespace(lost=threading.Event())
    leg = IngestLeg(connections(log, epoch, **options), chain, lease, threading.Event())
    source = leg.connections.source("events")
    leg.anchor(lambda: source.beginnings(source.facts().partitions))
    return leg


def advance(leg: IngestLeg, end: dict[str, int]) -> None:
    leg.advance(end)
    leg.show_progress()


def values(log: MemoryLog) -> list[bytes]:
    return [value for message in log.messages(RAW) for value in decode_frame(message.payload)["value"].to_pylist()]


def test_every_record_is_on_raw_once_over_a_restart() -> None:
    LISTS["events"], log = Lists({0: [b"a", b"b"], 3: [b"x"]}), MemoryLog()
    leg = start(log, 1)
    assert leg.start_offset() == {"0": 0, "3": 0}
    advance(leg, {"0": 2, "3": 1})
    LISTS["events"].held[0] += [b"c"]
    again = start(log, 2)
    assert again.start_offset() == {"0": 2, "3": 1}
    advance(again, {"0": 3, "3": 1})
    assert sorted(values(log)) == [b"a", b"b", b"c", b"x"]
    assert [message.headers["Tf-Topic"] for message in log.messages(RAW)] == ["events"] * 5
    assert {message.subject for message in log.messages(RAW)} == {NAMES.raw("events", 0), NAMES.raw("events", 3)}


def test_two_attempts_at_one_item_write_each_record_once() -> None:
    LISTS["events"], log = Lists({0: [b"a", b"b"]}), MemoryLog()
    item = IngestItem("events", {"0": (0, 2)}, {})
    first, second = (ingest(connections(log, 1), item) for _ in range(2))
    assert first == second
    assert values(log) == [b"a", b"b"]


def test_expired_records_halt_the_leg_or_are_counted() -> None:
    LISTS["events"], log = Lists({0: [b"a", b"b", b"c"]}), MemoryLog()
    leg = start(log, 1)
    LISTS["events"].firsts = {0: 2}
    with pytest.raises(DataLossError, match="reading list events: offset 0 of partition 0 has expired"):
        advance(leg, {"0": 3})
    skipping = start(log, 2, on_data_loss="skip")
    advance(skipping, {"0": 3})
    assert values(log) == [b"c"]
    assert skipping.chain.state.totals["offsets_skipped"] == 2


def test_another_identity_halts_a_start_and_a_running_leg() -> None:
    LISTS["events"], log = Lists({0: [b"a"]}), MemoryLog()
    leg = start(log, 1)
    LISTS["events"].identity = "second"
    with pytest.raises(DataLossError, match="list events was deleted and made again while it was read: its offsets mean other records"):
        advance(leg, {"0": 1})
    with pytest.raises(DataLossError, match=r"list events was deleted and made again \(its id is second, the pipeline read first\)"):
        start(log, 2, identity="second").start_offset()
    assert values(log) == []


def test_an_end_before_what_was_read_is_told_in_its_words() -> None:
    LISTS["events"], log = Lists({0: [b"a", b"b"]}), MemoryLog()
    advance(start(log, 1), {"0": 2})
    LISTS["events"].held[0].pop()
    with pytest.raises(DataLossError, match=r"reading list events: .* partition 0 at 1, .*Memory lost records \(it was cut\)"):
        start(log, 2).start_offset()
