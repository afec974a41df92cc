"""Pipelines with a filter and computed fields, their records, and the account of what became of each."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE
from support.dedup_case import frames
from support.pipeline_case import PipelineCase, Position

FILTER = {"type": "filter", "config": {"expression": "amount >= 10 OR name = 'keep'"}}
COMPUTE = {
    "type": "compute",
    "config": {"fields": [{"name": "total", "expression": "amount * 2"}, {"name": "code", "expression": "CAST(name AS INTEGER)"}]},
}
DEDUP = {"type": "dedup", "config": {"key": "id", "time_window": "1h"}}


def with_transforms(*transforms: dict[str, Any], order: str | None = None) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["transforms"] = list(transforms)
        if order:
            document["transforms_order"] = order
        if COMPUTE in transforms:
            document["sink"]["mapping"] += [
                {"name": "total", "column_name": "total", "column_type": "Nullable(Float64)"},
                {"name": "code", "column_name": "code", "column_type": "Nullable(Int32)"},
            ]

    return change


def event(number: int, name: str, amount: float | None, key: int | None = None) -> bytes:
    return json.dumps({"id": number if key is None else key, "name": name, "amount": amount}).encode()


def events(count: int, first: int = 0) -> list[bytes]:
    """Of every ten records one is no JSON, one fails in an expression, and some are filtered; ids come twice."""
    names = ["7", "8", "keep", "x", "9", "10", "11", "12", "13", "14"]
    return [
        b"{" if n % 10 == 9 else event(n, names[n % 10], None if n % 10 == 2 else float(n % 17), key=n // 2)
        for n in range(first, first + count)
    ]


def outcome(value: bytes | None) -> str:
    """What becomes of a record by the file, without dedup."""
    assert value is not None
    if value == b"{":
        return "parse"
    record = json.loads(value)
    if not (record["name"] == "keep" or (record["amount"] is not None and record["amount"] >= 10)):
        return "dropped"
    return "row" if record["name"].isdigit() else "compute"


def ends_behind_dedup(case: PipelineCase) -> dict[Position, str]:
    """What becomes of each record by DEDUP, FILTER and COMPUTE in this order: a dictionary over raw, in its order.

    The first record of a key that no step rejects decides; then the filter does.
    """
    log = case.log()
    seen: set[int] = set()
    found: dict[Position, str] = {}
    for record in chain.from_iterable(frames(case, log, "raw")):
        end = outcome(record["value"])
        if end in ("row", "dropped"):
            key = json.loads(record["value"])["id"]
            end = "copy" if key in seen else end
            seen.add(key)
        found[record["partition"], record["offset"]] = end
    log.close()
    return found


def assert_ends_behind_dedup(case: PipelineCase) -> Counter[str]:
    """The table, the dead letters, the tally, verification and the audit say what `ends_behind_dedup` does."""
    ends = ends_behind_dedup(case)
    assert ends.keys() == case.records().keys()
    expected = Counter(ends.values())
    fate, of_process = accounts(case)
    assert sorted(case.client().query(f"SELECT _tf_partition, _tf_offset FROM {case.table}").result_rows) == sorted(
        position for position, end in ends.items() if end == "row"
    )
    letters = sorted((letter["_tf_partition"], letter["_tf_offset"], letter["stage"]) for letter in case.dead_letters())
    assert letters == sorted((*position, end) for position, end in ends.items() if end in ("parse", "compute"))
    assert fate["dropped"] == expected["dropped"] + expected["copy"]
    assert of_process == {
        "written to out": expected["row"],
        "duplicates dropped": expected["copy"],
        "dropped by filter": expected["dropped"],
        "dead letters": expected["parse"] + expected["compute"],
    }
    assert_proven(case, rows=expected["row"], copies=expected["copy"], dropped_by_filter=expected["dropped"])
    return expected


def accounts(case: PipelineCase) -> tuple[Counter[str], dict[str, int]]:
    """(what became of the records, the tally of process by outcome); each record is in one place."""
    positions = case.client().query(f"SELECT _tf_partition, _tf_offset FROM {case.table}").result_rows
    rows = Counter((partition, offset) for partition, offset in positions)
    letters = [((letter["_tf_partition"], letter["_tf_offset"]), letter["stage"]) for letter in case.dead_letters()]
    found: dict[Position, str] = dict.fromkeys(rows, "row") | dict(letters)
    assert max(rows.values()) == 1
    assert len(found) == len(rows) + len(letters)
    log = case.log()
    account = tally(log, case.names, SINGLE)
    log.close()
    assert (account.residue, [leg.waiting for leg in account.legs]) == (0, [0, 0, 0])
    fate = {position: found.get(position, "dropped") for position in case.records()}
    return Counter(fate.values()), next(leg.outcomes for leg in account.legs if leg.leg == "process")


def assert_proven(case: PipelineCase, **counts: int) -> None:
    """Verification and audit explain every record."""
    verified = json.loads(case.invoke("verify", str(case.file), "--json").stdout)
    assert (verified["verdict"], verified["findings"], verified["not_proven"]) == ("clean", [], [])
    assert {name: verified["counts"].get(name.replace("_", " "), 0) for name in counts} == counts
    audited = json.loads(case.invoke("audit", str(case.file), "--json").stdout)
    assert (audited["verdict"], audited["findings"], audited["not_proven"]) == ("clean", [], [])
    dropped = {name.replace("_", " "): count for name, count in counts.items() if name.startswith("dropped_by")}
    assert {name: audited["counts"].get(name, 0) for name in dropped} == dropped
