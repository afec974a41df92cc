"""The account at the end of a modelled history of lanes: a plain replay of the raw log, and comparisons. It uses no code of the lanes.

Every record of Kafka is on raw once, or had expired. Replayed in the order of raw, under the configuration that each bucket's chain names
for a sequence, raw gives the rows of out, the dead letters and the duplicates; the table holds those rows once, under one token each.
"""

import json
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from support.lanes.names import NAMES

if TYPE_CHECKING:
    from support.lanes.world import LaneWorld


def check_account(world: "LaneWorld") -> None:
    chains = chains_of(world)
    for name, entries in chains.items():
        check_chain(name, entries)
    states = {name: [e for e in entries if e["kind"] == "done"] for name, entries in chains.items()}
    raw = [m for m in world.log.everything(NAMES.stream("raw")) if m.payload]
    stored = check_raw(world, raw, states)
    rows, dead_letters, duplicates = replay(world, raw, states)
    check_stream(world, "out", rows)
    refused = world.table.refused
    of_sink = {at: row for at, row in rows.items() if refused is not None and row[3].startswith(refused)}
    check_stream(world, "dlq", {**dead_letters, **of_sink})
    table = Counter(tuple(row) for row, _ in world.table.stored)
    expected = Counter(row for at, row in rows.items() if at not in of_sink)
    assert table == expected, f"table: {dict(table - expected)} too many, {dict(expected - table)} missing"
    under = Counter(row[0] for row, _ in {(row, token) for row, token in world.table.stored})
    assert max(under.values(), default=1) == 1, "a row is stored under two tokens"
    process = sum((Counter(totals(states, name)) for name in states if name.startswith("process.")), Counter())
    found = [process[name] for name in ("rows_in", "rows_out", "rows_rejected", "duplicates")]
    assert found == [stored, len(rows), len(dead_letters), duplicates], f"counts of process: {found}"
    sink = sum((Counter(totals(states, name)) for name in states if name.startswith("sink.")), Counter())
    assert [sink[name] for name in ("rows_in", "rows_out", "rows_rejected")] == [len(rows), len(rows) - len(of_sink), len(of_sink)], "sink"
    check_newest(world, states)


def chains_of(world: "LaneWorld") -> dict[str, list[dict[str, Any]]]:
    prefix = NAMES.chain("")
    found: dict[str, list[dict[str, Any]]] = {}
    for message in world.log.everything(NAMES.stream("ledger")):
        entry = {**json.loads(message.payload), "sequence": message.sequence}
        found.setdefault(message.subject.removeprefix(prefix), []).append(entry)
    return found


def check_chain(name: str, entries: list[dict[str, Any]]) -> None:
    """Epochs ascend, each range begins where the one before ended, totals are sums; an assignment has a number of its own."""
    epoch, to, sums = 0, None, Counter[str]()
    for entry in entries:
        assert entry["epoch"] >= epoch, f"{name}: an epoch steps back"
        epoch = entry["epoch"]
        if entry["kind"] == "done":
            assert to is None or entry["start"] == to, f"{name}: a range does not follow"
            assert entry["to"] >= entry["start"], f"{name}: a range goes back"
            to = entry["to"]
            sums.update(entry.get("counts", {}))
            assert +sums == +Counter(entry.get("totals", {})), f"{name}: totals"


def check_raw(world: "LaneWorld", raw: list[Any], states: dict[str, list[dict[str, Any]]]) -> int:
    """Each record is once on raw, or has expired; records of a partition stand in order in each bucket; counts say so."""
    found = [(int(m.subject.split(".")[4]), *record) for m in raw for record in json.loads(m.payload)]
    assert len(found) == len(set(found)), "a record is on raw twice"
    by_subject: dict[str, list[int]] = {}
    for message in raw:
        by_subject.setdefault(message.subject, []).extend(record[0] for record in json.loads(message.payload))
    assert all(offsets == sorted(offsets) for offsets in by_subject.values()), "raw: order"
    for partition, held in world.kafka.held.items():
        done = states[f"ingest.orders.{partition}"]
        begin = done[0]["begin"]
        lost = {(partition, *record) for record in held if record[0] >= begin} - set(found)
        assert all(record[1] < world.kafka.first[partition] for record in lost), f"records are missing on raw: {sorted(lost)}"
        here = [record for record in found if record[0] == partition]
        assert all(record[1] >= begin for record in here)
        assert done[-1]["to"] == world.kafka.end[partition], "ingest has not stated its end"
        assert done[-1].get("rows", 0) == len(here), "counts of ingest"
        skipped = done[-1].get("skipped", 0)
        assert len(lost) <= skipped, "a lost record is not counted"
        sums = done[-1].get("totals", {})
        assert sums.get("rows_out", 0) == done[-1].get("rows", 0)
        assert sums.get("offsets", 0) == done[-1]["to"] - begin
        assert skipped <= sums.get("offsets", 0) - sums.get("rows_out", 0), "skipped counts what is there"
    assert len(set(found)) == len(found)
    return len(found)


def replay(world: "LaneWorld", raw: list[Any], states: dict[str, list[dict[str, Any]]]) -> tuple[dict, dict, int]:
    """(rows by position, dead letters by position, number of duplicates)."""
    rows: dict[str, tuple] = {}
    dead_letters: dict[str, tuple] = {}
    seen: set[str] = set()
    duplicates = 0
    configs = {name: schedule(entries) for name, entries in states.items() if name.startswith("process.")}
    for message in raw:
        _, _, _, _, partition, bucket = message.subject.split(".")
        config = next(c for to, c in configs[f"process.{bucket}"] if message.sequence <= to)
        bad = "odd" if int(config[1:]) % 2 else "bad"
        for ordinal, (offset, key, value) in enumerate(json.loads(message.payload)):
            at = f"{message.sequence}.{ordinal}.0"
            if value == bad:
                dead_letters[at] = (at, int(partition), offset, value)
            elif world.dedups and key in seen:
                duplicates += 1
            else:
                seen |= {key} if key is not None else set()
                rows[at] = (at, int(partition), offset, f"{value}|{config}")
    return rows, dead_letters, duplicates


def schedule(entries: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """(up to which raw sequence, configuration), from what stood on the chain before a sequence was done."""
    found = []
    for before, entry in pairwise(entries):
        parts = [(before["to"], before["config"]), *before.get("switches", [])]
        for (_, config), (end, _) in zip(parts, [*parts[1:], (2**60, "")], strict=True):
            found.append((min(end, entry["to"]), config))
    return found


def check_stream(world: "LaneWorld", role: str, expected: dict[str, tuple]) -> None:
    """The rows of all subjects are the expected ones, each once, in the order of their positions within a subject."""
    found: list[tuple] = []
    last: dict[str, tuple[int, ...]] = {}
    for message in world.log.everything(NAMES.stream(role)):
        for row in json.loads(message.payload or b"[]"):
            position = tuple(map(int, row[0].split(".")))
            assert last.get(message.subject, ()) < position, f"{message.subject}: order"
            last[message.subject] = position
            found.append(tuple(row))
    surplus, missing = Counter(found) - Counter(expected.values()), Counter(expected.values()) - Counter(found)
    assert not surplus and not missing, f"{role}: {dict(surplus)} too many, {dict(missing)} missing"


def totals(states: dict[str, list[dict[str, Any]]], name: str) -> dict[str, int]:
    return states[name][-1].get("totals", {}) if states[name] else {}


def check_newest(world: "LaneWorld", states: dict[str, list[dict[str, Any]]]) -> None:
    """Who came last has its way: its configuration holds, and a listed segment is there."""
    made = world.assignment
    assert made is not None
    for bucket in range(made.layout.buckets):
        last = states[f"process.{bucket}"][-1]
        switches = last.get("switches", [])
        assert (switches[-1][1] if switches else last["config"]) == made.config, "another configuration holds than the newest"
    live: dict[int, list[str]] = {}
    for bucket in range(made.layout.buckets):
        names: list[str] = []
        for entry in states[f"process.{bucket}"]:
            change = entry.get("segments", {})
            names = [] if change.get("is_full") else [n for n in names if n not in change.get("removed", [])]
            names += change.get("added", [])
        live[bucket] = names
    assert all(name in world.segments.durable for names in live.values() for name in names), "a listed segment is gone"
