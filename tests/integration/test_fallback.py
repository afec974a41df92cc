"""A table that refuses rows into the table of a fallback: each row once, every proof explains it, and nothing is a dead letter twice."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from support.pipeline_case import PipelineCase

from pipelines.config import parse
from pipelines.proof.put_back import put_back
from pipelines.proof.verification.run import Request
from pipelines.protocol.tally import tally

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


@pytest.fixture
def refusing(case: PipelineCase) -> Callable[[str], None]:
    """Start the pipeline's tables; the call makes `strict` refuse the rows for which a condition is false."""
    case.write_file(with_fallback)
    case.create_topic(1)
    case.warm_run()
    return lambda condition: case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT odd CHECK {condition}")


def test_a_refused_row_goes_to_the_table_of_the_fallback(case: PipelineCase, refusing: Callable[[str], None], way: None) -> None:
    refusing("id % 7 != 0")
    case.send([order(n) for n in range(1, 31)], partitions=1)
    case.warm_run()
    refused = [7, 14, 21, 28]
    assert rows(case) == [(n,) for n in range(1, 31) if n not in refused]
    assert rows(case, "_rest", "id, name, refused_by") == [(n, f"n{n}", "sink") for n in refused]
    assert all("odd" in why for _, why in rows(case, "_rest", "id, why"))
    assert case.dead_letters() == []
    audited, verified = proof(case, "audit"), proof(case, "verify")
    assert audited["counts"]["refused into the fallback (strict)"] == audited["counts"]["table (rest)"] == 4
    assert (verified["counts"]["found (rest)"], verified["counts"]["rows (rest)"]) == (4, 4)
    with closing(case.log()) as log:
        found = tally(log, case.names, parse(case.file.read_text(), name="case", environment=case.environment()).topology)
    assert found.residue == 0
    strict, _, rest = found.of_kind("sink")
    assert (strict.outcomes["refused into the fallback"], strict.outcomes["dead letters"]) == (4, 0)
    assert (rest.rows_in, rest.waiting, rest.outcomes["confirmed by ClickHouse"]) == (4, 0, 4)


def test_a_row_that_does_not_fit_the_fallback_is_a_dead_letter(case: PipelineCase, refusing: Callable[[str], None]) -> None:
    refusing("id % 7 != 0")
    case.send([order(n) for n in (6, 7, 700)], partitions=1)
    case.warm_run()
    assert (rows(case), rows(case, "_rest")) == ([(6,)], [(7,)])
    (letter,) = case.dead_letters()
    assert (letter["stage"], letter["code"], letter["sink"], json.loads(letter["value"])["id"]) == ("sink", "refused", "sink", 700)
    proof(case, "audit")
    proof(case, "verify")


def test_a_row_that_both_refuse_is_redriven_to_the_first(case: PipelineCase, refusing: Callable[[str], None]) -> None:
    refusing("id % 7 != 0")
    case.client().command(f"ALTER TABLE {case.table}_rest ADD CONSTRAINT small CHECK id < 10")
    case.send([order(n) for n in (6, 7, 14)], partitions=1)
    case.warm_run()
    (letter,) = case.dead_letters()
    assert (letter["sink"], json.loads(letter["value"])["id"]) == ("sink:rest", 14)
    proof(case, "audit")
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT odd")
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert (rows(case), rows(case, "_rest"), rows(case, "_cheap")) == ([(6,), (14,)], [(7,)], [(6,), (7,)])
    proof(case, "audit")
    proof(case, "verify")


def test_a_row_that_the_fallback_has_lost_is_named_and_put_back(case: PipelineCase, refusing: Callable[[str], None]) -> None:
    refusing("id % 7 != 0")
    case.send([order(n) for n in (6, 7, 14)], partitions=1)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table}_rest DELETE WHERE id = 14 SETTINGS mutations_sync = 2")
    for command, place in (("audit", "out -> table (rest)"), ("verify", "rows (rest)")):
        (finding,) = json.loads(case.invoke(command, str(case.file), "--json").stdout)["findings"]
        assert (finding["place"], finding["kind"], finding["count"]) == (place, "missing", 1)
    *_, rest = parse(case.file.read_text(), name="case", environment=case.environment()).by_sink
    with closing(case.log()) as log:
        assert put_back(rest, log, Request(case.directory)).rows == 1
    proof(case, "audit")
    assert all("odd" in why for _, why in rows(case, "_rest", "id, why"))


def test_a_value_of_the_fallback_that_was_changed_is_named(case: PipelineCase, refusing: Callable[[str], None]) -> None:
    refusing("id % 7 != 0")
    case.send([order(n) for n in (6, 7)], partitions=1)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table}_rest UPDATE name = 'other' WHERE id = 7 SETTINGS mutations_sync = 2")
    (finding,) = json.loads(case.invoke("verify", str(case.file), "--json").stdout)["findings"]
    assert (finding["place"], finding["kind"], finding["column"]) == ("rows (rest)", "different", "name")
