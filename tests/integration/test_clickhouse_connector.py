"""The ClickHouse connector against the real engine behind the local server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from support.pipeline_case import wait_until

from pipelines.config import ClickHouseSink, parse
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.sinks import TableColumn, declared_columns
from pipelines.connectors.sinks.clickhouse import create_statement
from pipelines.error_classes import table
from pipelines.errors import HaltError, InsertTooLargeError, RefusedError, RetryableError
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration

WINDOW = "SETTINGS non_replicated_deduplication_window = 100"


def sink(stack: LocalStack, **connection: object) -> ClickHouseSink:
    a = stack.addresses()
    return ClickHouseSink.model_validate(
        {
            "type": "clickhouse",
            "connection_params": {
                "host": a.clickhouse_host,
                "port": a.clickhouse_port,
                "username": a.clickhouse_user,
                "password": a.clickhouse_password,
                **connection,
            },
            "table": "unused",
            "mapping": [{"name": "id", "column_name": "id", "column_type": "Int64"}],
        }
    )


@pytest.fixture
def clickhouse(running_stack: LocalStack) -> Iterator[ClickHouse]:
    opened = ClickHouse(sink(running_stack)).connect()
    yield opened
    opened.close()


@pytest.fixture
def database(clickhouse: ClickHouse) -> Iterator[str]:
    name = f"test_{uuid4().hex[:8]}"
    clickhouse.command("making a database", f"CREATE DATABASE {name}")
    yield name
    clickhouse.command("dropping a database", f"DROP DATABASE {name}")


def make(clickhouse: ClickHouse, *statements: str) -> None:
    for statement in statements:
        clickhouse.command("preparing a test", statement)


def block(*numbers: int) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64())})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


def numbers(clickhouse: ClickHouse, table: str) -> list[int]:
    return [row[0] for row in clickhouse.rows("reading back", f"SELECT id FROM {table} ORDER BY id")]


# -- what a table is --------------------------------------------------------------------------------------------------------


def test_a_table_is_described_with_its_columns_engine_and_window(clickhouse: ClickHouse, database: str) -> None:
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64, day Date DEFAULT today(), half Int64 MATERIALIZED intDiv(id, 2), twice Int64 ALIAS id * 2, "
        f"note LowCardinality(Nullable(String))) ENGINE = ReplacingMergeTree ORDER BY id {WINDOW}",
    )
    table = clickhouse.inspect(database, "t")
    assert table is not None
    assert (table.full_name, table.engine, table.dedup_window) == (f"{database}.t", "ReplacingMergeTree", 100)
    assert table.columns == (
        TableColumn("id", "Int64", ""),
        TableColumn("day", "Date", "DEFAULT"),
        TableColumn("half", "Int64", "MATERIALIZED"),
        TableColumn("twice", "Int64", "ALIAS"),
        TableColumn("note", "LowCardinality(Nullable(String))", ""),
    )


def test_a_missing_table_is_none(clickhouse: ClickHouse, database: str) -> None:
    assert clickhouse.inspect(database, "t") is None
    assert clickhouse.inspect("no_such_database", "t") is None


def test_a_table_that_is_just_being_made_has_all_its_columns(clickhouse: ClickHouse, database: str, running_stack: LocalStack) -> None:
    """Another runner of the pipeline makes it: what an inspection sees of it is none, or all."""
    with closing(ClickHouse(sink(running_stack)).connect()) as other, ThreadPoolExecutor(1) as pool:
        for number in range(30):
            making = pool.submit(make, other, f"CREATE TABLE {database}.t{number} (id Int64) ENGINE = MergeTree ORDER BY id")
            seen = None
            while seen is None:
                seen = clickhouse.inspect(database, f"t{number}")
            assert [column.name for column in seen.columns] == ["id"], number
            making.result()


def test_a_table_without_its_own_window_has_the_default(clickhouse: ClickHouse, database: str) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id")
    table = clickhouse.inspect(database, "t")
    assert table is not None
    assert table.dedup_window == 0
    make(clickhouse, f"ALTER TABLE {database}.t MODIFY SETTING non_replicated_deduplication_window = 7")
    table = clickhouse.inspect(database, "t")
    assert table is not None
    assert table.dedup_window == 7


@pytest.mark.parametrize(
    ("engine", "is_partitioned", "keeps_rows"),
    [
        ("MergeTree ORDER BY id", False, True),
        ("MergeTree PARTITION BY id % 5 ORDER BY id", True, True),
        ("MergeTree ORDER BY id TTL day + INTERVAL 1 DAY", False, True),
        ("MergeTree ORDER BY id TTL day + INTERVAL 1 DAY GROUP BY id SET day = max(day)", False, False),
        ("ReplacingMergeTree ORDER BY id", False, False),
        ("SummingMergeTree ORDER BY id", False, False),
    ],
)
def test_a_table_tells_whether_it_can_say_what_it_has_stored(
    clickhouse: ClickHouse, database: str, engine: str, is_partitioned: bool, keeps_rows: bool
) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64, day Date) ENGINE = {engine}")
    table = clickhouse.inspect(database, "t")
    assert table is not None
    assert (table.is_partitioned, table.keeps_rows, table.is_replicated, table.dedup_seconds) == (is_partitioned, keeps_rows, False, None)


@pytest.mark.parametrize("engine", ["Memory", "Null", "Log"])
def test_an_engine_without_deduplication_has_no_window(clickhouse: ClickHouse, database: str, engine: str) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64) ENGINE = {engine}")
    table = clickhouse.inspect(database, "t")
    assert table is not None
    assert (table.engine, table.dedup_window) == (engine, 0)


def test_a_created_table_has_what_was_asked_for(clickhouse: ClickHouse, database: str) -> None:
    config = parse(EXAMPLE.replace("table: orders", "table: t"), name="file", environment={})
    connection = config.sink.connection_params.model_copy(update={"database": database})
    config = config.model_copy(update={"only_sink": config.sink.model_copy(update={"connection_params": connection})})
    for _ in range(2):
        make(clickhouse, create_statement(config))
    table = clickhouse.inspect(database, "t")
    assert table is not None
    assert (table.engine, table.dedup_window) == ("MergeTree", 10_000)
    assert [(column.name, column.type) for column in table.columns] == declared_columns(config)
    assert "ORDER BY (order_id)" in table.definition
    assert "fsync_after_insert = 1, fsync_part_directory = 1" in table.definition, "what is confirmed outlives a power loss"
    assert "min_bytes_for_wide_part = 134217728" in table.definition, "inserts write compact parts"
    clickhouse.drop_table(database, "t")
    clickhouse.drop_table(database, "t")
    assert clickhouse.inspect(database, "t") is None


# -- views ------------------------------------------------------------------------------------------------------------------


def targets(clickhouse: ClickHouse, database: str, table: str = "t") -> dict[str, int]:
    """Window by name of the tables that views fill from `table`."""
    return {found.full_name.removeprefix(f"{database}."): found.dedup_window for found in clickhouse.view_targets(database, table)}


def test_a_table_without_views_has_no_targets(clickhouse: ClickHouse, database: str) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id")
    assert targets(clickhouse, database) == {}


def test_the_targets_of_views_on_views_are_found(clickhouse: ClickHouse, database: str) -> None:
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE TABLE {database}.u (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE TABLE {database}.v (id Int64) ENGINE = MergeTree ORDER BY id",
        f"CREATE MATERIALIZED VIEW {database}.t_to_u TO {database}.u AS SELECT id FROM {database}.t",
        f"CREATE MATERIALIZED VIEW {database}.t_to_v TO {database}.v AS SELECT id FROM {database}.t",
        f"CREATE MATERIALIZED VIEW {database}.u_to_v TO {database}.v AS SELECT id FROM {database}.u",
    )
    assert targets(clickhouse, database) == {"u": 100, "v": 0}
    assert targets(clickhouse, database, "u") == {"v": 0}


def test_the_inner_table_of_a_view_is_a_target(clickhouse: ClickHouse, database: str) -> None:
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id",
        f"CREATE MATERIALIZED VIEW {database}.w ENGINE = MergeTree ORDER BY id {WINDOW} AS SELECT id FROM {database}.t",
    )
    ((name, window),) = targets(clickhouse, database).items()
    assert name.startswith(".inner")
    assert window == 100


def test_targets_with_unusual_names_and_statements_are_found(clickhouse: ClickHouse, database: str) -> None:
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id",
        f"CREATE TABLE {database}.`orders-by d``ay` (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE TABLE {database}.x (`TO y` Int64) ENGINE = MergeTree ORDER BY `TO y` {WINDOW}",
        f"CREATE MATERIALIZED VIEW {database}.`to-days` TO {database}.`orders-by d``ay` AS SELECT id FROM {database}.t",
        f"CREATE MATERIALIZED VIEW {database}.`a TO b` TO {database}.x AS WITH 1 AS one SELECT id + one AS `TO y` FROM {database}.t",
    )
    assert targets(clickhouse, database) == {"orders-by d`ay": 100, "x": 100}


def test_a_target_in_another_database_is_found(clickhouse: ClickHouse, database: str) -> None:
    make(
        clickhouse,
        f"CREATE DATABASE {database}_b",
        f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id",
        f"CREATE TABLE {database}_b.u (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE MATERIALIZED VIEW {database}.v TO {database}_b.u AS SELECT id FROM {database}.t",
    )
    assert [table.full_name for table in clickhouse.view_targets(database, "t")] == [f"{database}_b.u"]
    make(clickhouse, f"DROP TABLE {database}.v SYNC", f"DROP DATABASE {database}_b")


# -- inserts ----------------------------------------------------------------------------------------------------------------


def test_a_token_inserts_once_also_through_a_view(clickhouse: ClickHouse, database: str) -> None:
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE TABLE {database}.u (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE MATERIALIZED VIEW {database}.v TO {database}.u AS SELECT id FROM {database}.t",
    )
    for token in ("one", "one", "two", "one"):
        clickhouse.insert(f"{database}.t", ["id"], block(1, 2), token, 6)
    assert numbers(clickhouse, f"{database}.t") == [1, 1, 2, 2]
    assert numbers(clickhouse, f"{database}.u") == [1, 1, 2, 2]


def test_a_large_block_is_one_part(clickhouse: ClickHouse, database: str) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")
    clickhouse.insert(f"{database}.t", ["id"], block(*range(300_000)), "one", 6)
    parts = clickhouse.rows("counting parts", f"SELECT rows, max_block_number FROM system.parts WHERE database = '{database}' AND active")
    assert parts == [(300_000, 1)]


def test_a_refused_insert_names_the_row_and_stores_nothing(clickhouse: ClickHouse, database: str) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64, CONSTRAINT positive CHECK id > 0) ENGINE = MergeTree ORDER BY id {WINDOW}")
    with pytest.raises(RefusedError, match=r"ClickHouse error 469 \(VIOLATED_CONSTRAINT\)") as refusal:
        clickhouse.insert(f"{database}.t", ["id"], block(1, -1), "one", 6)
    assert refusal.value.row == 1
    assert numbers(clickhouse, f"{database}.t") == []


def test_an_insert_refused_by_a_view_reaches_it_with_its_token(clickhouse: ClickHouse, database: str) -> None:
    """Why such an insert must not be cut: the pieces have other tokens, and the table would take the rows again."""
    view = f"CREATE MATERIALIZED VIEW {database}.v TO {database}.u AS SELECT id"
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE TABLE {database}.u (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"{view} + throwIf(id = 2) AS id FROM {database}.t",
    )
    with pytest.raises(HaltError, match="a materialized view on the table refuses these rows"):
        clickhouse.insert(f"{database}.t", ["id"], block(1, 2), "one", 6)
    assert (numbers(clickhouse, f"{database}.t"), numbers(clickhouse, f"{database}.u")) == ([1, 2], [])
    make(clickhouse, f"DROP VIEW {database}.v", f"{view} FROM {database}.t")
    clickhouse.insert(f"{database}.t", ["id"], block(1, 2), "one", 6)
    assert (numbers(clickhouse, f"{database}.t"), numbers(clickhouse, f"{database}.u")) == ([1, 2], [1, 2])


PROFILE = {
    "timeout_overflow_mode": "break",
    "deduplicate_insert": "disable",
    "insert_deduplicate": 0,
    "use_strict_insert_block_limits": 1,
    "max_insert_block_size_bytes": 100,
    "max_insert_block_size": 10,
    "async_insert": 1,
    "materialized_views_ignore_errors": 1,
    "throw_on_max_partitions_per_insert_block": 0,
}
"""What a user's profile may say, each of which makes an insert something else than one deduplicated block."""


def with_profile(stack: LocalStack, **settings: object) -> ClickHouse:
    """A client with settings that every statement has which does not say otherwise, as if a profile had them."""
    opened = ClickHouse(sink(stack)).connect()
    assert opened._client is not None
    for name, value in settings.items():
        opened._client.set_client_setting(name, value)
    return opened


def test_an_insert_is_one_block_whatever_the_profile_says(clickhouse: ClickHouse, database: str, running_stack: LocalStack) -> None:
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64, INDEX i intDiv(1, id - 777) TYPE minmax) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE TABLE {database}.u (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}",
        f"CREATE MATERIALIZED VIEW {database}.v TO {database}.u AS SELECT id + throwIf(id = 5000) AS id FROM {database}.t",
    )
    client = with_profile(running_stack, **PROFILE)
    client.check_insert_settings()
    for _ in range(2):
        client.insert(f"{database}.t", ["id"], block(*range(100)), "one", 6)
    assert numbers(clickhouse, f"{database}.t") == numbers(clickhouse, f"{database}.u") == list(range(100))
    with pytest.raises(RefusedError, match="divides by zero"):
        client.insert(f"{database}.t", ["id"], block(*range(100, 1000)), "two", 6)
    assert numbers(clickhouse, f"{database}.t") == list(range(100)), "one block, so one part: all or nothing"
    with pytest.raises(HaltError, match="a materialized view on the table refuses these rows"):
        client.insert(f"{database}.t", ["id"], block(5000), "three", 6)
    client.close()


def test_a_slow_insert_is_no_success(clickhouse: ClickHouse, database: str, running_stack: LocalStack) -> None:
    """With `timeout_overflow_mode = break` it was acknowledged, with 0 of 4,000 rows."""
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64, slow UInt8 MATERIALIZED sleepEachRow(0.001)) ENGINE = MergeTree ORDER BY id {WINDOW}",
    )
    client = with_profile(running_stack, timeout_overflow_mode="break")
    with pytest.raises(InsertTooLargeError, match=r"TIMEOUT_EXCEEDED"):
        client.insert(f"{database}.t", ["id"], block(*range(2500)), "one", 1)
    client.close()


def test_a_disobedient_server_is_refused_with_the_settings(
    clickhouse: ClickHouse, monkeypatch: pytest.MonkeyPatch, running_stack: LocalStack
) -> None:
    clickhouse.check_insert_settings()
    assert clickhouse._client is not None
    query = clickhouse._client.query

    def without_settings(*arguments: Any, settings: Any = None, **rest: Any) -> Any:
        """As a proxy that strips what it does not know."""
        return query(*arguments, **rest)

    monkeypatch.setattr(clickhouse._client, "query", without_settings)
    with pytest.raises(HaltError, match=r"the server uses async_insert = 1, .*deduplicated block needs async_insert = 0"):
        clickhouse.check_insert_settings()
    monkeypatch.undo()
    known = dict(clickhouse._client.server_settings)
    monkeypatch.setitem(clickhouse._client.server_settings, "async_insert", known["async_insert"]._replace(readonly=1))
    with pytest.raises(HaltError, match=r"async_insert is readonly.*Allow the user's profile what these inserts set: async_insert = 0"):
        clickhouse.check_insert_settings()


def test_stored_rows_are_read_by_position_and_arrival(clickhouse: ClickHouse, database: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in POSITION_COLUMN_TYPES)
    make(
        clickhouse,
        f"CREATE TABLE {database}.t ({columns}) ENGINE = MergeTree ORDER BY _tf_sequence {WINDOW}",
        f"INSERT INTO {database}.t SELECT number, 1, 0, 'orders', 0, number, fromUnixTimestamp64Micro(1700000000000000 + number, 'UTC') "
        "FROM numbers(10)",
    )
    table = clickhouse.inspect(database, "t")
    assert table is not None
    found = clickhouse.stored_positions(table, (3, 6), (1_700_000_000_000_000, 1_700_000_000_000_005))
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == [(n, 1, 0, 1_700_000_000_000_000 + n) for n in (3, 4, 5)]


def test_an_insert_at_work_is_seen_by_its_name(clickhouse: ClickHouse, database: str, running_stack: LocalStack) -> None:
    make(
        clickhouse,
        f"CREATE TABLE {database}.t (id Int64, slow UInt8 MATERIALIZED sleepEachRow(0.5)) ENGINE = MergeTree ORDER BY id {WINDOW}",
    )
    assert clickhouse.inserts_at_work("chunk 1-2") == 0
    other = ClickHouse(sink(running_stack)).connect()
    with ThreadPoolExecutor(1) as pool:
        inserting = pool.submit(other.insert, f"{database}.t", ["id"], block(*range(6)), "one", 60, "chunk 1-2")
        wait_until(lambda: clickhouse.inserts_at_work("chunk 1-2") == 1, "an insert at work")
        assert clickhouse.inserts_at_work("chunk 1-3") == 0
        inserting.result()
    assert clickhouse.inserts_at_work("chunk 1-2") == 0
    other.close()


def test_an_insert_that_cannot_succeed_is_a_halt(clickhouse: ClickHouse, database: str) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")
    with pytest.raises(HaltError, match=r"ClickHouse error 60: .*create the table, or set `create_table: true`"):
        clickhouse.insert(f"{database}.none", ["id"], block(1), "one", 6)
    with pytest.raises(HaltError, match="ClickHouse error 16"):
        clickhouse.insert(f"{database}.t", ["di"], block(1), "one", 6)


def test_each_of_many_clients_gets_its_own_answers(clickhouse: ClickHouse, database: str, running_stack: LocalStack) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")

    def write(client: ClickHouse) -> None:
        for number in range(40):
            client.insert(f"{database}.t", ["id"], block(*range(1000)), f"token {number}", 6)

    def read(client: ClickHouse) -> None:
        for number in range(150):
            assert client.rows("asking", f"SELECT {number}, 'words', [1, 2]") == [(number, "words", [1, 2])]
            assert client.rows("counting", f"SELECT count() % 1000 FROM {database}.t") == [(0,)]

    clients = [ClickHouse(sink(running_stack)).connect() for _ in range(4)]
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [pool.submit(work, client) for work, client in zip([write, read, read, read], clients, strict=True)]:
            done.result()
    assert clickhouse.rows("counting", f"SELECT count() FROM {database}.t") == [(40_000,)]
    for client in clients:
        client.close()


# -- connections ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("login", [{"password": "canary-7d1f"}, {"username": "nobody", "password": "canary-7d1f"}])
def test_a_wrong_login_is_a_halt_that_shows_no_password(running_stack: LocalStack, login: dict[str, str]) -> None:
    with pytest.raises(HaltError, match=r"ClickHouse error 516: .*check `username` and `password`") as caught:
        ClickHouse(sink(running_stack, **login)).connect()
    assert "canary-7d1f" not in str(caught.value)


def test_nobody_there_is_waited_for(running_stack: LocalStack) -> None:
    with pytest.raises(RetryableError, match=r"connecting to ClickHouse at 127\.0\.0\.1:1: ClickHouse did not answer \(.*refused\)"):
        ClickHouse(sink(running_stack, port=1)).connect()


@pytest.mark.crash
def test_a_client_outlives_a_restart_of_the_server(clickhouse: ClickHouse, database: str, running_stack: LocalStack) -> None:
    make(clickhouse, f"CREATE TABLE {database}.t (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")
    clickhouse.insert(f"{database}.t", ["id"], block(1), "one", 6)
    server = running_stack.server("clickhouse")
    server.kill()
    with pytest.raises(RetryableError, match="ClickHouse did not answer"):
        clickhouse.insert(f"{database}.t", ["id"], block(1), "one", 6)
    server.start()
    clickhouse.insert(f"{database}.t", ["id"], block(1), "one", 6)
    clickhouse.insert(f"{database}.t", ["id"], block(2), "two", 6)
    assert numbers(clickhouse, f"{database}.t") == [1, 2]


def test_the_server_calls_its_errors_as_the_table_does(clickhouse: ClickHouse) -> None:
    ours = {row.code: row.name for row in table() if row.system == "clickhouse"}
    codes = ", ".join(map(str, ours))
    assert dict(clickhouse.rows("naming errors", f"SELECT arrayJoin([{codes}]) AS code, errorCodeToName(code)")) == ours
