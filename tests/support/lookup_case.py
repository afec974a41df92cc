"""A pipeline that looks up in a CSV file, and an account of its own: each value is that of the snapshot that the covering plan names.

The account reads the entries of the ledger as JSON, the snapshots with pyarrow, and Kafka and the table as the case does.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from support.pipeline_case import PipelineCase

TABLE = {"type": "csv", "uri": "names.csv", "key": "code", "refresh": "1s"}
CONFIG = {"table": "names", "key": ["name"], "fields": [{"name": "value", "as": "amount", "type": "float64"}]}


def write(case: PipelineCase, table: Mapping[str, Any] = TABLE, others: tuple[dict[str, Any], ...] = (), **lookup: Any) -> None:
    """Write a file whose only change to a record is the amount, from the table's value of its name."""

    def change(document: dict[str, Any]) -> None:
        document["transforms"] = [{"type": "lookup", "config": {**CONFIG, **lookup}}, *others]
        document["tables"] = {"names": dict(table)}

    case.write_file(change)


def save(case: PipelineCase, rows: Mapping[str, float]) -> None:
    """Replace the table as a whole."""
    path = case.file.with_name("names.csv")
    part = path.with_suffix(".part")
    part.write_text("code,value\n" + "".join(f"{code},{value}\n" for code, value in rows.items()))
    part.rename(path)


def event(number: int, name: str | None) -> bytes:
    return json.dumps({"id": number, "name": name}).encode()


def entries(case: PipelineCase) -> list[dict[str, Any]]:
    """The entries of the process chain, as JSON."""
    log, ledger = case.log(), case.names.stream("ledger")
    state = log.state(ledger)
    messages = log.fetch(ledger, case.names.chain("process"), 0, state.last_sequence) if state else ()
    found = [json.loads(one.payload) for one in messages]
    log.close()
    return found


def snapshot_rows(case: PipelineCase, digest: str) -> dict[str, float]:
    """The table as a snapshot has it, whose file has this digest."""
    path = case.home / "pipelines" / case.pipeline / "state" / "lookups" / "names" / f"{digest}.arrow"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    with pa.memory_map(str(path)) as file:
        rows = pa.ipc.open_file(file).read_all()
        return dict(zip(rows.column("key.0").to_pylist(), rows.column("value.value").to_pylist(), strict=True))


def digests_in_order(case: PipelineCase) -> list[str]:
    """The snapshots that ranges were done with, in their order, each as often as another one came between."""
    named = [one["lookups"]["names"] for one in entries(case) if one["kind"] == "done"]
    return [digest for number, digest in enumerate(named) if number == 0 or named[number - 1] != digest]


def differences(case: PipelineCase) -> list[str]:
    """The rows whose value is not that of the snapshot which their covering plan names, and records that have no row."""
    ranges = [(one["start"], one["to"], one["lookups"]["names"]) for one in entries(case) if one["kind"] == "done"]
    snapshots = {digest: snapshot_rows(case, digest) for _, _, digest in ranges}
    columns = "_tf_sequence, _tf_partition, _tf_offset, id, name, amount"
    rows = case.client().query(f"SELECT {columns} FROM {case.table}").result_rows
    records, found = case.records(), []
    if len(rows) != len(records) or len({(partition, offset) for _, partition, offset, *_ in rows}) != len(rows):
        found.append(f"{len(rows)} rows of {len(records)} records")
    for sequence, partition, offset, number, name, amount in rows:
        (digest,) = [digest for start, to, digest in ranges if start < sequence <= to]
        value = records.get((partition, offset))
        assert value is not None
        if json.loads(value) != {"id": number, "name": name} or amount != snapshots[digest].get(name):
            found.append(f"raw {sequence}: {number} {name} has {amount}, its plan's snapshot {snapshots[digest].get(name)}")
    return found


def assert_proven(case: PipelineCase) -> None:
    """Verify and audit agree."""
    for command in ("verify", "audit"):
        found = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert (found["verdict"], found["findings"], found["not_proven"]) == ("clean", [], []), (command, found)
