"""Functions that make several rows of a record, from Kafka to ClickHouse: an oracle computes the rows, and every proof agrees.

`TALLYFLOW_PROVEN_PROGRAMS` (default 3) says how many random programs with such a function are proven, from a seed that each run draws.
"""

import json
import os
import random
from itertools import count, islice
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from support.computed_case import DEDUP, event, with_transforms
from support.pipeline_case import PipelineCase
from support.preview_account import assert_equal, play
from support.random_programs import random_recipe

from pipelines.process.steps import python
from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration

SOURCE = """
def f(record):
    if record["name"] == "none":
        return None
    if record["name"] == "raises":
        raise ValueError("a bad name")
    return [{"name": part} for part in record["name"].split(",") if part]
"""
NAMES = ("a", "b,c", "none", "x,d,x,e", "", "raises", "x,x", "f,g,h,i,j,k,l")
FILTER = {"type": "filter", "config": {"expression": "name <> 'x'"}}
Row = tuple[int, int, str]
ROWS = """
    SELECT id, emit, part FROM (
        SELECT id, unnest(parts) AS part, unnest(range(len(parts)))::BIGINT AS emit
        FROM (
            SELECT id, list_filter(string_split(name, ','), lambda part: part <> '') AS parts
            FROM given WHERE name NOT IN ('none', 'raises')
        )
    ) WHERE part <> 'x' ORDER BY id, emit
"""


def write(case: PipelineCase, *before: dict[str, Any], source: str = SOURCE) -> None:
    case.file.with_name("own.py").write_text(source)
    output = [{"name": "name", "type": "string"}]
    config = {"function": "own:f", "mode": "row", "rows": "many", "input": ["name"], "output": output, "timeout": "20s"}
    case.write_file(with_transforms(*before, {"type": "python", "config": config}, FILTER))


def events(count: int, first: int = 0) -> list[bytes]:
    return [event(n, NAMES[n % len(NAMES)], 1.0) for n in range(first, first + count)]


def wanted(case: PipelineCase) -> list[Row]:
    """Return (id, number, name) of the rows that DuckDB makes of the records in Kafka."""
    sent = [json.loads(value or b"") for value in case.records().values()]
    given = pa.table({name: [record[name] for record in sent] for name in ("id", "name")})
    assert given.num_rows
    return duckdb.sql(ROWS).fetchall()


def stored(case: PipelineCase) -> list[Row]:
    return [
        tuple(row) for row in case.client().query(f"SELECT id, _tf_emit, name FROM {case.table} ORDER BY id, _tf_emit, name").result_rows
    ]


def proofs(case: PipelineCase) -> tuple[Any, Any]:
    return tuple(json.loads(case.invoke(proof, str(case.file), "--json").stdout) for proof in ("verify", "audit"))


def assert_proven(case: PipelineCase) -> None:
    for found in proofs(case):
        assert (found["verdict"], found["findings"], found["not_proven"]) == ("clean", [], [])
    log = case.log()
    account = tally(log, case.names, SINGLE)
    log.close()
    assert (account.residue, {leg.waiting for leg in account.legs}) == (0, {0})


def test_each_row_is_there_once_and_proven(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    write(case)
    case.create_topic()
    case.send(events(400))
    case.warm_run()
    assert stored(case) == wanted(case)
    assert len(stored(case)) == 600
    assert_proven(case)
    log = case.log()
    process = tally(log, case.names, SINGLE).legs[1]
    log.close()
    assert (process.rows_in, process.made) == (400, 400)
    assert {name: count for name, count in process.outcomes.items() if count} == {
        "written to out": 600,
        "dropped by function": 100,
        "dropped by filter": 50,
        "dead letters": 50,
    }


@pytest.mark.crash
def test_runners_killed_amid_them_double_no_row(case: PipelineCase) -> None:
    """Each finishes what the one before has begun, and has records of its own. A lost key store is rebuilt from the records."""
    write(case, {**DEDUP, "config": {"key": "id", "time_window": "1h"}})
    case.create_topic()
    case.send([*events(200), *events(40)])
    steps = ("process.between-frames:1", "process.after-publish:1", "sink.after-insert:1", "sink.before-insert:1")
    for first, step in zip(count(200, 40), steps, strict=False):
        killed = case.run_plain(TALLYFLOW_FAILPOINT=step)
        assert killed.returncode == -9, killed.stderr
        case.send(events(40, first))
    case.warm_run()
    assert stored(case) == sorted({*wanted(case)})
    assert_proven(case)
    for store in case.names.directory(case.home).glob("**/dedup/**/*"):
        if store.is_file():
            store.unlink()
    rebuilt = case.invoke("rebuild-state", str(case.file))
    assert rebuilt.exit_code == 0, rebuilt.output
    case.send(events(80))
    case.warm_run()
    assert stored(case) == sorted({*wanted(case)})
    assert_proven(case)


def test_a_refused_row_enters_again_alone(case: PipelineCase) -> None:
    write(case, {**DEDUP, "config": {"key": "id", "time_window": "1h"}})
    case.create_topic()
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT fair CHECK name NOT IN ('d', 'h', 'k')")
    case.send(events(80))
    case.warm_run()
    refused = [letter for letter in case.dead_letters() if letter["stage"] == "sink"]
    assert sorted((json.loads(letter["value"])["id"] % 8, letter["refused_row"]) for letter in refused) == [
        *[(3, 1)] * 10,
        *[(7, 2)] * 10,
        *[(7, 5)] * 10,
    ]
    assert stored(case) == [row for row in wanted(case) if row[2] not in "dhk"]
    assert_proven(case)
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT fair")
    rehearsed = case.invoke("dlq", "reprocess", str(case.file), "--stage", "sink", "--dry-run")
    assert "30 would pass to the sink" in rehearsed.stdout
    assert case.invoke("dlq", "reprocess", str(case.file), "--stage", "sink").exit_code == 0
    case.warm_run()
    assert stored(case) == wanted(case)
    assert_proven(case)
    assert_edited_letters_make_their_rows(case)


def assert_edited_letters_make_their_rows(case: PipelineCase) -> None:
    """Each letter of one row of a record makes that row again, as it was edited."""
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT fair CHECK name NOT IN ('d', 'e')")
    case.send([event(1000, "c,d,e", 1.0)], partitions=1)
    case.warm_run()
    edited = case.directory / "letters.jsonl"
    assert case.invoke("dlq", "export", str(case.file), str(edited), "--stage", "sink").exit_code == 0
    lines = [json.loads(line) for line in edited.read_text().splitlines()]
    assert [line["position"].split(".")[2] for line in lines] == ["1", "2"]
    edited.write_text("\n".join(json.dumps({**line, "value": line["value"].replace("c,d,e", "c,D,E")}) for line in lines))
    entered = case.invoke("dlq", "import", str(case.file), str(edited))
    assert entered.exit_code == 0, entered.output
    case.warm_run()
    assert [row for row in stored(case) if row[0] == 1000] == [(1000, 0, "c"), (1000, 1, "D"), (1000, 2, "E")]
    assert_proven(case)


def records_of(report: Any) -> dict[str, set[str]]:
    """The positions of the records that a report names, by what is wrong."""
    found: dict[str, set[str]] = {}
    for finding in report["findings"]:
        found.setdefault(finding["kind"], set()).update(".".join(one["position"].split(".")[:2]) for one in finding["examples"])
    return found


def test_proofs_find_the_row_of_a_record_that_differs(case: PipelineCase) -> None:
    """One row is lost, one has another number, and one is there twice."""
    write(case)
    case.create_topic(1)
    case.send(events(16), partitions=1)
    case.warm_run()
    rows = case.client().query(f"SELECT DISTINCT id, _tf_sequence, _tf_ordinal FROM {case.table}").result_rows
    at = {number: f"{sequence}.{ordinal}" for number, sequence, ordinal in rows}
    for change in (
        "DELETE FROM {} WHERE id = 7 AND name = 'h'",
        "INSERT INTO {} SELECT * REPLACE (9 AS _tf_emit) FROM {} WHERE id = 15 AND name = 'h'",
        "DELETE FROM {} WHERE id = 15 AND _tf_emit = 2",
        "INSERT INTO {} SELECT * FROM {} WHERE id = 11 AND name = 'd'",
    ):
        case.client().command(change.replace("{}", case.table), settings={"mutations_sync": 1, "insert_deduplicate": 0})
    verified, audited = proofs(case)
    assert (verified["verdict"], audited["verdict"]) == ("differs", "differs")
    expected = {"missing": {at[7], at[15]}, "doubled": {at[11]}}
    assert records_of(audited) == expected
    assert records_of(verified) | expected == records_of(verified)


def test_a_step_that_loses_a_row_or_its_number_is_found(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted_rows, numbers = python.wanted_rows, python.numbers_of_rows

    def all_but_the_second(records: Any, of_record: Any, emits: Any, *more: Any) -> Any:
        return wanted_rows(records, of_record, emits, *more) & (emits.to_numpy() != 1)

    write(case)
    case.create_topic(1)
    with monkeypatch.context() as patch:
        patch.setattr(python, "wanted_rows", all_but_the_second)
        case.send(events(16), partitions=1)
        case.warm_run()
    verified, audited = proofs(case)
    assert {finding["kind"] for finding in verified["findings"]} == {"missing"}
    assert [(finding["place"], finding["kind"]) for finding in audited["findings"]] == [("raw -> out", "missing")]
    lost = audited["findings"][0]["count"]
    monkeypatch.setattr(python, "numbers_of_rows", lambda records: pa.array([0] * len(numbers(records)), pa.uint32()))
    case.send(events(16, first=16), partitions=1)
    case.warm_run()
    verified, audited = proofs(case)
    assert {finding["kind"] for finding in verified["findings"]} >= {"missing", "doubled"}
    assert [(finding["place"], finding["kind"]) for finding in audited["findings"]] == [("raw -> out", "missing")]
    assert audited["findings"][0]["count"] > lost


def test_random_programs_of_several_rows_are_proven(running_stack: LocalStack, tmp_path: Path) -> None:
    seeds = count(random.SystemRandom().randrange(10**9))
    cases = (PipelineCase(running_stack, tmp_path) for _ in seeds)
    drawn = ((seed, case, random_recipe(seed, case.document())) for seed, case in zip(seeds, cases, strict=False))
    for seed, case, recipe in islice((one for one in drawn if one[2].files), int(os.environ.get("TALLYFLOW_PROVEN_PROGRAMS", "3"))):
        print(f"program of TALLYFLOW_PREVIEW_SEED={seed}")
        play(case, recipe)
        assert_equal(case)
        for found in proofs(case):
            assert (found["verdict"], found["findings"]) == ("clean", [])
        case.end()
