"""A table that refuses rows into the table of a fallback: each row once, every proof explains it, and nothing is a dead letter twice."""

import json
from contextlib import closing
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PipelineCase

from pipelines.config import parse
from pipelines.proof.put_back import put_back
from pipelines.proof.verification.run import Request
from pipelines.protocol.tally import tally
from pipelines.protocol.topology import Topology

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]

DEDUP = {"type": "dedup", "config": {"key": "id", "time_window": "1h"}}
REST = [
    {"name": "id", "column_name": "id", "column_type": "UInt8"},
    {"name": "name", "column_name": "name", "column_type": "Nullable(String)"},
    {"name": "_tf_error", "column_name": "why", "column_type": "String"},
    {"name": "_tf_sink", "column_name": "refused_by", "column_type": "String"},
]


def with_fallback(document: dict[str, Any]) -> None:
    """`strict` takes every record, `cheap` some; what `strict` refuses goes to `rest`, if its id fits into a byte."""
    sink = document.pop("sink")
    document["transforms"], document["on_error"] = [DEDUP], {"max_rejected_percent": 100}
    document["sinks"] = [
        {**sink, "id": "strict", "on_refused": {"sink": "rest"}},
        {**sink, "id": "cheap", "when": "amount < 10", "table": f"{sink['table']}_cheap"},
        {**sink, "id": "rest", "table": f"{sink['table']}_rest", "mapping": REST},
    ]


def order(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}", "amount": number % 20}).encode()


def proof(case: PipelineCase, command: str) -> dict[str, Any]:
    found = case.invoke(command, str(case.file), "--json")
    report: dict[str, Any] = json.loads(found.stdout)
    assert (found.exit_code, report["verdict"], report["findings"]) == (0, "clean", []), report
    return report


def rows(case: PipelineCase, suffix: str = "", columns: str = "id") -> list[Any]:
    return list(case.client().query(f"SELECT {columns} FROM {case.table}{suffix} ORDER BY id").result_rows)


def topology_of(case: PipelineCase) -> Topology:
    return parse(case.file.read_text(), name="case", environment=case.environment()).topology


REFUSED = [7, 14, 21, 28]


def run_refusing(case: PipelineCase) -> None:
    """`strict` refuses every seventh row, `rest` 35, and 700 does not fit into it: in Spark's tasks, if the case has a session."""
    case.write_file(with_fallback)
    case.create_topic(1)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT odd CHECK id % 7 != 0")
    case.client().command(f"ALTER TABLE {case.table}_rest ADD CONSTRAINT small CHECK id < 35")
    case.send([order(n) for n in (*range(1, 31), 35, 700)], partitions=1)
    case.warm_run()


def assert_faults_are_named(case: PipelineCase) -> None:
    """Delete a row of the fallback and change another: both are named, and the lost one is put back as it was."""
    case.client().command(f"ALTER TABLE {case.table}_rest DELETE WHERE id = 14 SETTINGS mutations_sync = 2")
    case.client().command(f"ALTER TABLE {case.table}_rest UPDATE name = 'other' WHERE id = 7 SETTINGS mutations_sync = 2")
    missing, different = ("missing", None, 1), ("different", "name", 1)
    for command, place, expected in (("audit", "out -> table (rest)", [missing]), ("verify", "rows (rest)", [missing, different])):
        findings = json.loads(case.invoke(command, str(case.file), "--json").stdout)["findings"]
        assert {one["place"] for one in findings} == {place}
        assert sorted([(one["kind"], one["column"], one["count"]) for one in findings], reverse=True) == expected
    *_, rest = parse(case.file.read_text(), name="case", environment=case.environment()).by_sink
    with closing(case.log()) as log:
        assert put_back(rest, log, Request(case.directory)).rows == 1
    proof(case, "audit")
    assert all("odd" in why for _, why in rows(case, "_rest", "id, why"))
    case.client().command(f"ALTER TABLE {case.table}_rest UPDATE name = 'n7' WHERE id = 7 SETTINGS mutations_sync = 2")


def test_a_refused_row_goes_to_the_fallback_or_is_redriven(case: PipelineCase, session: SparkSession) -> None:
    """Into the table of the fallback if it fits and is taken there, else it is a dead letter, which enters again for the first table."""
    case.session = session
    run_refusing(case)
    case.session = None
    assert rows(case) == [(n,) for n in range(1, 31) if n not in REFUSED]
    assert rows(case, "_rest", "id, name, refused_by") == [(n, f"n{n}", "sink") for n in REFUSED]
    assert all("odd" in why for _, why in rows(case, "_rest", "id, why"))
    letters = [(json.loads(one["value"])["id"], one["stage"], one["code"], one["sink"]) for one in case.dead_letters()]
    assert sorted(letters) == [(35, "sink", "refused", "sink:rest"), (700, "sink", "refused", "sink")]
    audited, verified = proof(case, "audit"), proof(case, "verify")
    assert (audited["counts"]["refused into the fallback (strict)"], audited["counts"]["table (rest)"]) == (5, 4)
    assert (verified["counts"]["found (rest)"], verified["counts"]["rows (rest)"]) == (4, 4)
    with closing(case.log()) as log:
        found = tally(log, case.names, topology_of(case))
    assert found.residue == 0
    strict, _, rest = found.of_kind("sink")
    assert (strict.outcomes["refused into the fallback"], strict.outcomes["dead letters"]) == (5, 1)
    assert (rest.rows_in, rest.waiting, rest.outcomes["confirmed by ClickHouse"], rest.outcomes["dead letters"]) == (5, 0, 4, 1)
    assert_faults_are_named(case)
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT odd")
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    cheap = [n for n in (*range(1, 31), 35, 700) if n % 20 < 10]
    assert rows(case) == [(n,) for n in (*range(1, 31), 35, 700) if n not in REFUSED]
    assert (rows(case, "_rest"), rows(case, "_cheap")) == ([(n,) for n in REFUSED], [(n,) for n in cheap])
    proof(case, "audit")
    proof(case, "verify")
