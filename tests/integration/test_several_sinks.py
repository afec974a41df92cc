"""One pipeline into several tables: each is what a script makes of Kafka's records, and every proof names its own table."""

import json
from collections.abc import Callable, Sequence
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
CONDITIONS = {"every": None, "cheap": "amount < 10", "named": "name LIKE 'a%' AND amount >= 5"}


def into_tables(*transforms: dict[str, Any], conditions: dict[str, str | None] | None = None) -> Callable[[dict[str, Any]], None]:
    """The case's sink once for each condition; the first one keeps the case's table."""

    def change(document: dict[str, Any]) -> None:
        sink = document.pop("sink")
        wanted = CONDITIONS if conditions is None else conditions
        document["transforms"] = list(transforms)
        document["sinks"] = [
            {**sink, "id": name, "table": sink["table"] + (f"_{name}" if number else ""), **({"when": when} if when else {})}
            for number, (name, when) in enumerate(wanted.items())
        ]

    return change


def order(number: int, name: str, amount: float | None) -> bytes:
    return json.dumps({"id": number, "name": name, "amount": amount}).encode()


def orders(count: int, first: int = 0) -> list[bytes]:
    """Every tenth is a copy of the one before, every 50th is broken, every 40th has no amount."""
    values = []
    for number in range(first, first + count):
        name = "abc"[number % 3] + str(number)
        value = order(number - (number % 10 == 9), name, None if number % 40 == 7 else number % 20)
        values.append(value if number % 50 != 3 else b"{broken")
    return values


def ids(case: PipelineCase, sink: str = "") -> list[int]:
    found = case.client().query(f"SELECT id FROM {case.table}{sink and '_' + sink} ORDER BY id").result_rows
    return [number for (number,) in found]


def wanted(values: Sequence[bytes]) -> dict[str, list[int]]:
    """What the tables must hold of records with the copies taken out: the account of this script alone."""
    first: dict[int, dict[str, Any]] = {}
    for value in values:
        if value != b"{broken":
            record = json.loads(value)
            first.setdefault(record["id"], record)
    rows = list(first.values())
    return {
        "": sorted(row["id"] for row in rows),
        "cheap": sorted(row["id"] for row in rows if row["amount"] is not None and row["amount"] < 10),
        "named": sorted(row["id"] for row in rows if row["name"].startswith("a") and row["amount"] is not None and row["amount"] >= 5),
    }


def topology_of(case: PipelineCase) -> Topology:
    return parse(case.file.read_text(), name="case", environment=case.environment()).topology


def proof(case: PipelineCase, command: str) -> dict[str, Any]:
    found = case.invoke(command, str(case.file), "--json")
    report: dict[str, Any] = json.loads(found.stdout)
    assert (found.exit_code, report["verdict"]) == (0, "clean"), report
    return report


def test_each_table_is_what_a_script_makes_of_the_records(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.write_file(into_tables(DEDUP))
    case.create_topic(1)
    for first in (0, 300):
        case.send(orders(300, first), partitions=1)
        case.warm_run()
    expected = wanted(orders(600))
    assert {sink: ids(case, sink) for sink in expected} == expected
    audited, verified = proof(case, "audit"), proof(case, "verify")
    rows = {"every": len(expected[""]), "cheap": len(expected["cheap"]), "named": len(expected["named"])}
    assert {name: audited["counts"][f"table ({name})"] for name in rows} == rows
    assert {name: verified["counts"][f"found ({name})"] for name in rows} == rows
    log = case.log()
    found = tally(log, case.names, topology_of(case))
    log.close()
    assert found.residue == 0
    assert [leg.rows_in for leg in found.of_kind("sink")] == [*rows.values()]


def test_a_record_that_no_sink_takes_is_counted(case: PipelineCase) -> None:
    case.write_file(into_tables(conditions={"cheap": "amount < 10", "dear": "amount > 15"}))
    case.create_topic(1)
    case.send([order(n, "n", n) for n in range(20)], partitions=1)
    case.warm_run()
    assert (ids(case), ids(case, "dear")) == ([*range(10)], [*range(16, 20)])
    audited, verified = proof(case, "audit"), proof(case, "verify")
    assert audited["counts"]["taken by no sink"] == 6
    assert verified["counts"]["taken by no sink (cheap)"] == 6


def test_a_row_refused_by_tables_enters_again_for_each(case: PipelineCase) -> None:
    """One table refuses 3, two refuse 7, which has two dead letters."""
    case.write_file(into_tables(DEDUP))
    case.create_topic(1)
    case.warm_run()
    for sink in ("cheap", "named"):
        case.client().command(f"ALTER TABLE {case.table}_{sink} ADD CONSTRAINT some CHECK id NOT IN (3, 7)")
    case.send([order(n, "a", n) for n in range(20)], partitions=1)
    case.warm_run()
    letters = case.dead_letters()
    assert {(letter["stage"], letter["code"]) for letter in letters} == {("sink", "refused")}
    of_ids = sorted((json.loads(letter["value"])["id"], letter["sink"]) for letter in letters)
    assert of_ids == [(3, "sink:cheap"), (7, "sink:cheap"), (7, "sink:named")]
    (position,) = {f"{one['_tf_sequence']}.{one['_tf_ordinal']}" for one in letters if one["sink"] == "sink:named"}
    shown = json.loads(case.invoke("dlq", "show", str(case.file), position, "--json").stdout)
    assert sorted(letter["sink"] for letter in shown) == ["sink:cheap", "sink:named"]
    without = {3, 7}
    assert (ids(case), ids(case, "cheap")) == ([*range(20)], sorted({*range(10)} - without))
    assert ids(case, "named") == sorted({*range(5, 20)} - without)
    proof(case, "audit")
    proof(case, "verify")
    case.client().command(f"ALTER TABLE {case.table}_cheap DROP CONSTRAINT some")
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert (ids(case), ids(case, "cheap"), ids(case, "named")) == ([*range(20)], [*range(10)], sorted({*range(5, 20)} - without))
    assert sorted(letter["attempts"] for letter in case.dead_letters()) == [1, 1, 1, 2]
    proof(case, "audit")
    proof(case, "verify")


@pytest.mark.crash
def test_a_table_that_is_away_keeps_no_other_waiting(case: PipelineCase) -> None:
    case.write_file(into_tables(conditions={"every": None, "cheap": "amount < 10"}))
    case.create_topic(1)
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    case.client().command(f"RENAME TABLE {case.table}_cheap TO {case.table}_away")
    case.send([order(n, "a", n) for n in range(20)], partitions=1)
    case.wait_count(20)
    case.client().command(f"RENAME TABLE {case.table}_away TO {case.table}_cheap")
    runner.request_stop()
    thread.join()
    case.warm_run()
    assert ids(case, "cheap") == [*range(10)]
    proof(case, "audit")


def swapped(document: dict[str, Any]) -> None:
    into_tables()(document)
    document["sinks"].reverse()


def test_each_table_of_a_file_is_repaired_kept_and_deleted(case: PipelineCase) -> None:
    """A lost row is named with its sink and put back; a file with other sinks is refused; `delete` leaves no table."""
    case.write_file(into_tables())
    case.create_topic(1)
    case.send([order(n, "a", n) for n in range(20)], partitions=1)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table}_named DELETE WHERE id = 7 SETTINGS mutations_sync = 2")
    for command, place in (("audit", "out -> table (named)"), ("verify", "rows (named)")):
        (finding,) = json.loads(case.invoke(command, str(case.file), "--json").stdout)["findings"]
        assert (finding["place"], finding["kind"], finding["count"]) == (place, "missing", 1)
        assert command == "verify" or "put_back_missing" in finding["remedy"]
    *_, named = parse(case.file.read_text(), name="case", environment=case.environment()).by_sink
    with closing(case.log()) as log:
        assert put_back(named, log, Request(case.directory)).rows == 1
    proof(case, "audit")
    proof(case, "verify")
    case.write_file(swapped)
    found = case.invoke("run", str(case.file), "--until-caught-up")
    assert found.exit_code != 0
    assert "sinks was ['every', 'cheap', 'named'], the file has ['named', 'cheap', 'every']" in " ".join(found.stderr.split())
    case.write_file(into_tables())
    found = case.invoke("delete", str(case.file), "--yes")
    assert found.exit_code == 0, found.stderr
    left = case.client().query("SELECT count() FROM system.tables WHERE startsWith(name, {t:String})", {"t": case.table}).result_rows
    assert left == [(0,)]
    log = case.log()
    assert [role for role in (*topology_of(case).outs, "raw", "ledger") if log.state(case.names.stream(role)) is not None] == []
    log.close()
