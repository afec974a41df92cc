"""Which entries of the ledger go into its table together, and as what."""

import json

import pytest

from pipelines.protocol.bodies import PROCESS_CHAIN, REDRIVE_CHAIN, ProcessDone, ProcessPlan, RedrivePlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message
from pipelines.sink import ledger_table
from pipelines.sink.ledger_table import LEDGER_SCHEMA, blocks
from pipelines.testing import FIRST_INSTANT, MemoryLog

NAMES = Names("orders")
STREAM = NAMES.stream("ledger")


def stored(ranges: int) -> list[Message]:
    """The messages of a chain with so many ranges, and an offer of a compaction among them."""
    log = MemoryLog()
    chain = Chain(log, NAMES, PROCESS_CHAIN, 3)
    chain.open()
    log.publish(NAMES.compaction(), b"{}", {}, 0)
    for number in range(ranges):
        chain.plan(ProcessPlan(start=number, to=number + 1, config="v1"))
        counts = {"rows_in": 10, "rejected.parse.invalid_json": 1}
        chain.done(ProcessDone(start=number, to=number + 1, config="v1", counts=counts))
    return log.messages(STREAM)


def test_only_entries_become_rows_and_in_their_order() -> None:
    messages = stored(1)
    (block,) = blocks(messages, NAMES)
    rows = block.rows("orders", "id-1")
    assert rows.schema == LEDGER_SCHEMA
    assert rows.select(["sequence", "leg", "kind", "range_from", "range_to"]).to_pylist() == [
        {"sequence": 1, "leg": "process", "kind": "open", "range_from": "", "range_to": ""},
        {"sequence": 3, "leg": "process", "kind": "plan", "range_from": "0", "range_to": "1"},
        {"sequence": 4, "leg": "process", "kind": "done", "range_from": "0", "range_to": "1"},
    ]
    done = rows.slice(2).to_pylist()[0]
    assert dict(done["counts"]) == {"rows_in": 10, "rejected.parse.invalid_json": 1}
    assert (done["pipeline"], done["stream_id"], done["epoch"], done["time"]) == ("orders", "id-1", 3, FIRST_INSTANT)
    assert done["body"].encode() == messages[-1].payload


def test_records_that_were_edited_are_not_copied() -> None:
    log = MemoryLog()
    chain = Chain(log, NAMES, REDRIVE_CHAIN, 1)
    chain.open()
    chain.plan(RedrivePlan(start=0, to=1, action="enter", letters=((7, ((0, 0),)),), records="c2VjcmV0"))
    (block,) = blocks(log.messages(STREAM), NAMES)
    body = json.loads(block.rows("orders", "id-1").to_pylist()[1]["body"])
    assert (body["letters"], "records" in body) == ([[7, [[0, 0]]]], False)


def test_blocks_from_one_place_stay_equal_as_entries_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_table, "MAX_BLOCK_ENTRIES", 4)
    few, many = (list(blocks(stored(ranges), NAMES)) for ranges in (5, 20))
    tokens = [[block.token("orders", "id-1", "d.t") for block in found] for found in (few, many)]
    assert tokens[0][:-1] == tokens[1][: len(tokens[0]) - 1]
    assert [(block.first, block.last) for block in few] == [(1, 5), (6, 9), (10, 12)]
    assert len({*tokens[1]}) == len(tokens[1])


def test_a_token_names_stream_table_entries_and_content() -> None:
    (block,) = blocks(stored(2), NAMES)
    (other,) = blocks([*stored(2)[:-1], Message(NAMES.chain("process"), 6, FIRST_INSTANT, b"{}")], NAMES)
    tokens = {block.token("orders", "id-1", "d.t"), block.token("orders", "id-2", "d.t"), block.token("orders", "id-1", "d.u")}
    assert len(tokens | {other.token("orders", "id-1", "d.t")}) == 4
    assert block.token("orders", "id-1", "d.t").startswith("tf:orders:id-1:d.t:1-6:")


def test_a_large_entry_ends_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_table, "MAX_BLOCK_BYTES", 1)
    assert [len(block.messages) for block in blocks(stored(1), NAMES)] == [1, 1, 1]
    assert list(blocks([], NAMES)) == []
