"""Records with copies, and the oracles that know which of them go on: by SQL, or a dictionary, over the raw log."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import SparkSession

from pipelines.config import parse
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.execute import Tasks, batch_tasks
from pipelines.maintenance.inspect import KeyState, Needs
from pipelines.protocol.records import decode_frame
from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE
from support.pipeline_case import PipelineCase, Position


def keyed_by(*fields: str, window: str = "1h", **options: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        config = {"key": list(fields), "time_window": window, **options}
        document["transforms"] = [{"type": "dedup", "source_id": "events", "config": config}]

    return change


def with_lanes(count: int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        keyed_by("id")(document)
        document["lanes"] = count

    return change


def event(number: int, key: int) -> bytes:
    return b'{"id": %d, "name": "record %d", "amount": null}' % (key, number)


def copies(count: int, first: int = 0, keys: int = 701) -> list[bytes | None]:
    """Records over so many keys in an order that mixes them; every hundredth is no JSON."""
    return [b"{" if number % 100 == 99 else event(number, number * 7919 % keys) for number in range(first, first + count)]


def timed_by(field: str, key: str, window: str, lateness: str = "0s", **options: Any) -> Callable[[dict[str, Any]], None]:
    """Dedup on an event's own time, an integer field."""

    def change(document: dict[str, Any]) -> None:
        document["sources"][0]["schema_fields"].append({"name": field, "type": "int"})
        keyed_by(key, window=window, time="event", time_field=field, allowed_lateness=lateness, **options)(document)

    return change


def check_event_times(case: PipelineCase, window_seconds: int, lateness_seconds: int) -> Counter[str]:
    """The table holds what a dictionary lets through in the order of raw; the dead letters are the bad records, and those that Kafka's own
    order of their partition makes late, whatever frames there are. All partitions must have records.
    """
    log = case.log()
    fate = _late_in_kafka(case, lateness_seconds)
    accepted: dict[int, int] = {}
    for record in chain.from_iterable(frames(case, log, "raw")):
        position = (record["partition"], record["offset"])
        if position in fate:
            continue
        value = json.loads(record["value"]) if record["value"] != b"{" else {}
        at, key = value.get("at"), value.get("id")
        if at is None:
            fate[position] = "letter"
        elif key in accepted and abs(at - accepted[key]) < window_seconds:
            fate[position] = "duplicate"
        else:
            fate[position], accepted[key] = "row", at
    assert Counter(position for position, *_ in case.rows()) == Counter(position for position, found in fate.items() if found == "row")
    dead_letters = case.dead_letters()
    found = {(dead_letter["_tf_partition"], dead_letter["_tf_offset"]): dead_letter["code"] == "late" for dead_letter in dead_letters}
    assert len(found) == len(dead_letters)
    assert found == {position: found == "late" for position, found in fate.items() if found in ("letter", "late")}
    records = case.records()
    assert all(dead_letter["value"] == records[dead_letter["_tf_partition"], dead_letter["_tf_offset"]] for dead_letter in dead_letters)
    account = tally(log, case.names, SINGLE)
    log.close()
    assert (account.residue, [leg.waiting for leg in account.legs]) == (0, [0, 0, 0])
    return Counter(fate.values())


def _late_in_kafka(case: PipelineCase, lateness_seconds: int) -> dict[Position, str]:
    newest: dict[int, int] = {}
    late: dict[Position, str] = {}
    for (partition, offset), value in sorted(case.records().items()):
        at = json.loads(value).get("at") if value != b"{" else None
        if at is None:
            continue
        if at < newest.get(partition, at) - lateness_seconds:
            late[partition, offset] = "late"
        newest[partition] = max(at, newest.get(partition, at))
    return late


FATES = """
    SELECT partition, "offset",
        CASE WHEN is_bad THEN 'letter' WHEN row_number() OVER (PARTITION BY is_bad, key ORDER BY place) = 1 THEN 'row' ELSE 'duplicate' END
    FROM (SELECT *, value = '{'::BLOB AS is_bad, CASE WHEN NOT is_bad THEN (decode(value)::JSON ->> 'id')::BIGINT END AS key FROM raw)
"""
"""What becomes of the records of raw, of which `place` is the order."""


def check_first_of_keys(case: PipelineCase, keeps_duplicates: bool = False) -> Counter[str]:
    """The table holds exactly the first record of each key by raw position, the dead letters the bad ones, and the stream of duplicates
    the others, if they are kept; what became of each record.
    """
    log = case.log()
    raw = pa.concat_tables(frame.select(["partition", "offset", "value"]) for frame in tables(case, log, "raw"))
    with duckdb.connect() as oracle:
        oracle.register("raw", raw.append_column("place", pa.array(range(raw.num_rows))))
        fate = {(partition, offset): found for partition, offset, found in oracle.execute(FATES).fetchall()}
    assert len(fate) == raw.num_rows
    assert set(fate) == set(case.records()), (len(fate), len(case.records()), case.reported[-20:])
    rows = Counter(case.client().query(f"SELECT _tf_partition, _tf_offset FROM {case.table}").result_rows)
    assert rows == Counter(position for position, found in fate.items() if found == "row")
    dead_letters = Counter((dead_letter["_tf_partition"], dead_letter["_tf_offset"]) for dead_letter in case.dead_letters())
    assert dead_letters == Counter(position for position, found in fate.items() if found == "letter")
    kept = Counter((row["_tf_partition"], row["_tf_offset"]) for frame in frames(case, log, "duplicates") for row in frame)
    assert kept == Counter(position for position, found in fate.items() if found == "duplicate" and keeps_duplicates)
    account = tally(log, case.names, SINGLE)
    log.close()
    counts = Counter(fate.values())
    assert (account.residue, [leg.waiting for leg in account.legs]) == (0, [0, 0, 0])
    assert account.legs[1].outcomes == {
        "written to out": counts["row"],
        "duplicates dropped": counts["duplicate"],
        "dead letters": counts["letter"],
    }
    return counts


def key_state(case: PipelineCase, needs: Needs = "keys") -> KeyState:
    """The commands' view of the store; the caller closes it."""
    text = case.file.read_text()
    return KeyState(parse(text, name="case", environment=case.environment()), text, case.home, needs)


def run_files(case: PipelineCase) -> set[str]:
    """The names of all segments of the pipeline's stores on disk."""
    return {path.name for path in (case.names.directory(case.home) / "state").rglob("*.arrow")}


def listed_files(case: PipelineCase) -> set[str]:
    """The names of the segments that the last `done` lists."""
    with closing(key_state(case)) as state:
        return {name for listing in state.lists(state.chain()).values() for name, *_ in listing}


def tasks_of(state: KeyState, session: SparkSession) -> Tasks:
    """For batch work on the store, in workers with the environment of the test process."""
    return batch_tasks(session, state.connections.run, {})


def live_entries(case: PipelineCase) -> dict[tuple[int, int], tuple[int, int, int]]:
    """The last entry of each key, if its window is not over: raw position and time by hash."""
    state = key_state(case)
    chain = state.chain()
    config = state.stage_config(chain)
    found = {}
    for bucket in range(chain.done.body.buckets):
        for entries in state.store(chain, bucket).checked():
            for hi, lo, time, sequence, ordinal in zip(*(column.tolist() for column in entries.columns()), strict=True):
                found[hi, lo] = max(found.get((hi, lo), (0, 0, 0)), (sequence, ordinal, time))
    state.close()
    return {key: entry for key, entry in found.items() if entry[2] > config.dedup.expired_us(chain.done.body)}


def frames(case: PipelineCase, log: JetStream, role: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of each frame of a stream, in order."""
    return (table.to_pylist() for table in tables(case, log, role))


def tables(case: PipelineCase, log: JetStream, role: str) -> Iterator[pa.Table]:
    """Each frame of a stream, in order."""
    state = log.state(case.names.stream(role))
    assert state is not None
    for message in log.fetch(case.names.stream(role), case.names.subjects(role), 0, state.last_sequence):
        yield decode_frame(message.payload)
