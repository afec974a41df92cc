"""Dedup on real servers: the first record of a key in the raw log goes on, whichever way the ranges are worked off."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pipeline_case import PipelineCase, Position
from pyspark.sql import SparkSession

from pipelines.errors import HaltError, StateDamagedError
from pipelines.records import decode_frame
from pipelines.tally import tally

pytestmark = [pytest.mark.integration, pytest.mark.spark]

IN_TASKS = {"driver_offsets": 0, "driver_frames": 0}


def keyed_by(*fields: str, window: str = "1h") -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["transforms"] = [{"type": "dedup", "source_id": "events", "config": {"key": list(fields), "time_window": window}}]

    return change


def event(number: int, key: int) -> bytes:
    return json.dumps({"id": key, "name": f"record {number}", "amount": None}).encode()


def copies(count: int, first: int = 0, keys: int = 701) -> list[bytes | None]:
    """Records over so many keys in an order that mixes them; every hundredth is no JSON."""
    return [b"{" if number % 100 == 99 else event(number, number * 7919 % keys) for number in range(first, first + count)]


def check(case: PipelineCase) -> Counter[str]:
    """The table holds exactly the first record of each key by raw position, the dead letters the bad ones; what became of each record."""
    log = case.log()
    stream = case.names.stream("raw")
    state = log.state(stream)
    assert state is not None
    seen: set[int] = set()
    fate: dict[Position, str] = {}
    for message in log.fetch(stream, case.names.subjects("raw"), 0, state.last_sequence):
        for record in decode_frame(message.payload).to_pylist():
            position = (record["partition"], record["offset"])
            if record["value"] == b"{":
                fate[position] = "letter"
                continue
            key = json.loads(record["value"])["id"]
            fate[position] = "duplicate" if key in seen else "row"
            seen.add(key)
    assert set(fate) == set(case.records())
    rows = Counter(position for position, *_ in case.rows())
    assert rows == Counter(position for position, found in fate.items() if found == "row")
    letters = Counter((letter["_tf_partition"], letter["_tf_offset"]) for letter in case.letters())
    assert letters == Counter(position for position, found in fate.items() if found == "letter")
    account = tally(log, case.names)
    log.close()
    counts = Counter(fate.values())
    assert (account.residue, [leg.waiting for leg in account.legs]) == (0, [0, 0, 0])
    assert account.legs[1].outcomes == {
        "written to out": counts["row"],
        "duplicates dropped": counts["duplicate"],
        "dead letters": counts["letter"],
    }
    return counts


@pytest.mark.parametrize("options", [{}, IN_TASKS], ids=["in the driver", "in tasks"])
def test_the_first_record_of_each_key_arrives_once(case: PipelineCase, session: SparkSession, options: dict[str, Any]) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(3000))
    case.warm_run(**options)
    assert check(case) == {"row": 701, "duplicate": 2269, "letter": 30}


def test_keys_are_remembered_from_run_to_run_and_from_driver_to_tasks(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    for number, options in enumerate([{}, IN_TASKS, {}, IN_TASKS]):
        case.send(copies(1000, first=1000 * number, keys=1499))
        case.warm_run(**options)
    assert check(case)["row"] == 1499
    runs = sorted(path.name for path in (case.names.directory(case.home) / "state").rglob("*.arrow"))
    log = case.log()
    done = json.loads(log.last(case.names.stream("ledger"), case.names.chain("process")).payload)  # type: ignore[union-attr]
    log.close()
    assert runs == sorted(listed[0] for listing in done["runs"].values() for listed in listing), "only listed runs are left"


def test_a_composite_key_tells_records_apart_by_all_its_fields(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("id", "name"))
    case.create_topic()
    case.send([event(0, 1), event(1, 1), event(0, 1), event(0, 2), event(1, 1)], partitions=1)
    case.warm_run()
    assert sorted((number, name) for _, number, name, _ in case.rows()) == [(1, "record 0"), (1, "record 1"), (2, "record 0")]


def test_a_null_key_is_a_dead_letter(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("amount"))
    case.create_topic()
    case.send([b'{"id": 1, "name": "a", "amount": 2.5}', b'{"id": 2, "name": "b"}', b'{"id": 3, "name": "c", "amount": 2.5}'], partitions=1)
    case.warm_run()
    assert [number for _, number, _, _ in case.rows()] == [1]
    assert [(letter["stage"], letter["code"], letter["field"]) for letter in case.letters()] == [("dedup", "null_key", "amount")]


def test_an_edit_of_the_key_is_refused_and_loses_nothing(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(500))
    case.warm_run()
    case.write_file(keyed_by("name"))
    with pytest.raises(HaltError, match="may not change while the pipeline lives"):
        case.warm_run()
    case.write_file(keyed_by("id"))
    case.send(copies(500, first=500))
    case.warm_run()
    check(case)


@pytest.mark.parametrize("options", [{}, IN_TASKS], ids=["in the driver", "in tasks"])
@pytest.mark.parametrize("damage", ["missing", "flipped bit"])
def test_a_damaged_store_halts_before_anything_is_written(
    case: PipelineCase, session: SparkSession, options: dict[str, Any], damage: str
) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(1000))
    case.warm_run(**options)
    runs = {path: path.read_bytes() for path in (case.names.directory(case.home) / "state").rglob("*.arrow")}
    for path, content in runs.items():
        path.unlink()
        if damage == "flipped bit":
            at = len(content) // 2
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    rows = case.count()
    case.send(copies(1000, first=1000))
    with pytest.raises(StateDamagedError, match="nothing was written; restore the pipeline's state directory"):
        case.warm_run(**options)
    assert case.count() == rows
    for path, content in runs.items():
        path.unlink(missing_ok=True)
        path.write_bytes(content)
    case.warm_run(**options)
    check(case)
