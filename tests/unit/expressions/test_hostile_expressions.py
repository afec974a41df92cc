"""What reaches for files, the network, the catalog, settings, the clock, chance, or too much of anything is refused at load."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.expressions.evaluate import evaluate
from pipelines.expressions.expression import check
from pipelines.types.duckdb import open_engine

FIELDS = {"a": "string", "n": "int64", "tags": "array"}
FILE = "{canary}"
URL = "{url}"

READERS = [
    f"{function}('{place}')"
    for function in (
        "read_csv",
        "read_csv_auto",
        "read_text",
        "read_blob",
        "read_json",
        "read_json_auto",
        "read_parquet",
        "parquet_scan",
        "glob",
    )
    for place in (FILE, URL)
]
SUBQUERIES = [
    "(SELECT 1)",
    "n IN (SELECT 1)",
    "EXISTS (SELECT 1)",
    "n = ANY (SELECT 1)",
    "n = ALL (SELECT 1)",
    "n = ANY ([1, 2])",
    "ARRAY (SELECT 1)",
    "(FROM duckdb_settings())",
    "(SELECT count(*) FROM duckdb_tables())",
    "(VALUES (1))",
    "(TABLE duckdb_settings)",
    "(SHOW TABLES)",
    "(DESCRIBE SELECT 1)",
    "(SUMMARIZE SELECT 1)",
    "(PIVOT x ON y)",
    "(WITH x AS (SELECT 1) SELECT * FROM x)",
    "CASE WHEN (SELECT true) THEN 1 END",
    "coalesce(n, (SELECT 1))",
    "list_transform([1], lambda x: (SELECT x))",
    "upper((SELECT a))",
    "CAST((SELECT 1) AS VARCHAR)",
    "[(SELECT 1)]",
    "{'k': (SELECT 1)}",
    "n BETWEEN (SELECT 1) AND 2",
    f"(SELECT content FROM read_text('{FILE}'))",
    f"(FROM '{FILE}')",
    f"(FROM '{URL}')",
    f"(SELECT * FROM '{FILE}')",
    f"(SELECT * FROM sniff_csv('{FILE}'))",
]
STATEMENTS = [
    f"COPY (SELECT 1) TO '{FILE}'",
    f"ATTACH '{FILE}'",
    "DETACH memory",
    f"EXPORT DATABASE '{FILE}'",
    f"IMPORT DATABASE '{FILE}'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET memory_limit = '1GB'",
    "RESET memory_limit",
    "DROP TABLE x",
    "CREATE TABLE x AS SELECT 1",
    "INSERT INTO x VALUES (1)",
    "UPDATE x SET y = 1",
    "DELETE FROM x",
    "CALL pragma_version()",
    "EXPLAIN SELECT 1",
    "VACUUM",
    "CHECKPOINT",
    "BEGIN",
    "USE memory",
    "PREPARE x AS SELECT 1",
    "EXECUTE x",
    "SELECT 1",
]
SPLICES = [
    "1; DROP TABLE x",
    "1); DROP TABLE x; SELECT (1",
    "1), (2",
    "1), n, (2",
    "1) AS x, (2",
    "1) FROM duckdb_settings() WHERE (true",
    "1) FROM duckdb_settings() --",
    "1) --",
    "1) /*",
    "1) -- )",
    "1 --\n) FROM duckdb_settings(",
    "1) UNION SELECT (2",
    "1) UNION ALL (SELECT 2",
    "1) ORDER BY (1",
    "1) LIMIT (1",
    "1) WHERE (true",
    "1) GROUP BY (1",
    "1) HAVING (true",
    "1) QUALIFY (true",
    "1) USING SAMPLE (1",
    "1) INTO (x",
    "1) EXCEPT SELECT (1",
    "DISTINCT n",
    "ALL n",
    "n AS m",
    "n m",
    ");",
    "(",
    ")",
    "'",
    '"',
    "$$",
    "/*",
    "--",
    ";",
    ",",
    "n,",
    "n;",
    "\x00",
    "n\x00",
    "'\x00'",
    "n\x1b",
    "n\x7f",
    "\ud800",
    "'\udfff'",
    "ｎ",
    "n＞1",
    "‘a’",
    "а",
    "n\u037e DROP TABLE x",
    "𝐧 > 1",
    "\ufeff\ufeffx",
]
AROUND = [
    *("*", "a.*", "COLUMNS(*)", "COLUMNS('a')", "* EXCLUDE (a)", "UNPACK(COLUMNS(*))", "#1", "?", "$1", "$name", ":name", "DEFAULT"),
    *("rowid", "filename", "current_date", "current_timestamp", "current_time", "localtime", "localtimestamp", "user", "current_user"),
    *("session_user", "current_catalog", "current_schema", "current_role", "CURRENT_DATE", "_tf_rows", "_tf_sequence", "_tf_values"),
    *("main.a", "memory.main.a", "_tf_fields.a", "system.a", "duckdb_settings", "information_schema.tables", "now()", "today()"),
    *("get_current_timestamp()", "transaction_timestamp()", "age(CAST(a AS TIMESTAMP))", "ago(INTERVAL 1 DAY)", "random()"),
    *("setseed(0.5)", "uuid()", "gen_random_uuid()", "uuidv4()", "uuidv7()", "txid_current()", "nextval('x')", "currval('x')"),
    *("getenv('HOME')", "current_setting('memory_limit')", "getvariable('x')", "current_database()", "current_schemas(true)"),
    *("version()", "current_query()", "pg_typeof(n)", "has_table_privilege('x', 'y')", "inet_client_addr()", "pg_sleep(1)"),
    *("sleep_ms(1)", "write_log('x')", "error('x')", "in_search_path('a', 'b')", "json_serialize_sql('SELECT 1')"),
    *("json_deserialize_sql('{}')", "json_execute_serialized_sql('')", "json_serialize_plan('SELECT 1')", "query('SELECT 1')"),
    *("query_table('x')", "eval('1')", "load_extension('x')", "stats(n)", "hash(n)", "vector_type(n)", "create_sort_key(a, 'ASC')"),
    *("enum_range(a)", "struct_insert({'a': 1}, b := 2)", "printf('%9999d', n)", "format('{}', n)", "sum(n)", "count(*)", "max(n)"),
    *("string_agg(a, ',')", "first(a)", "arg_max(a, n)", "any_value(a)", "list(a)", "histogram(n)", "approx_quantile(n, 0.5)"),
    *("sum(n) FILTER (WHERE true)", "upper(a ORDER BY a)", "upper(DISTINCT a)", "GROUPING(a)", "unnest([1])", "generate_series(1, 9)"),
    *("range(9)", "row_number() OVER ()", "lag(n) OVER (ORDER BY n)", "sum(n) OVER ()", "rank() OVER (PARTITION BY a)"),
    *("ntile(2) OVER ()", "first_value(a) OVER ()", "a COLLATE NOCASE", "a COLLATE de", "system.main.upper(a)", "main.upper(a)"),
    *("a.upper()", "a.b.upper()", "icu_sort_key(a, 'de')", "collate_de(a)", "CAST(a AS main.x)", "CAST(a AS x)"),
    *("CAST(a AS ENUM('a'))", "CAST(a AS BIT)", "CAST(a AS TIMETZ)", "CAST(a AS GEOMETRY)", "CAST(a AS VARIANT)"),
    *("CAST(a AS regclass)", "CAST(a AS UNION(x INTEGER))", "CAST(a AS STRUCT(x BIT))", "CAST(a AS MAP(VARCHAR, BIT))", "a::oid"),
    *("CAST(a AS BIT[])", "st_astext(a)", "list_aggregate([1], 'histogram')", "list_reduce(['a', 'a'], lambda x, y: x || x)"),
    *("remap_struct(a)", "trigger()", "nosuch(a)"),
]
BOMBS = [
    "(" * 1_990 + "n" + ")" * 1_990,
    "n" + " + n" * 60,
    "NOT " * 990 + "true",
    "-" + "(-" * 990 + "n" + ")" * 990,
    "[" * 1_000 + "]" * 1_000,
    "upper(" * 400 + "a" + ")" * 400,
    "CASE WHEN true THEN " * 150 + "1" + " END" * 150,
    "list_transform([1], lambda x: " * 60 + "1" + ")" * 60,
    "n IN (" + ", ".join(map(str, range(600))) + ")",
    "n IN (" + ", ".join(map(str, range(5_000))) + ")",
    " OR ".join(["n = 1"] * 200),
    "'" + "a" * 4_000 + "'",
    "n" + " " * 4_000,
    "a" * 4_001,
    "a" * 1_000_000,
    "é" * 3_000 + "x" * 1_001,
    "repeat(a, 1000000000)",
    "repeat(a, n)",
    "repeat('a', 99999999999999999999)",
    "lpad(a, 1000000000, 'x')",
    "rpad(a, n, 'x')",
    "repeat(a, CAST('1000000000' AS INTEGER))",
    "repeat(a, -1)",
    "repeat(a)",
    "regexp_matches(a, '((a{1000}){1000}){1000}')",
    "regexp_matches(a, '(?<=a)b')",
    "regexp_matches(a, '(a)\\1')",
    "regexp_matches(a, '[')",
]
HOSTILE = [*READERS, *SUBQUERIES, *STATEMENTS, *SPLICES, *AROUND, *BOMBS]


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("canary") / "canary.csv"
    path.write_text("secret\n42\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        yield server


def test_there_are_two_hundred_of_them() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 200


def test_hostile_expressions_are_refused_at_load(canary: Path, listener: socket.socket) -> None:
    before = (canary.read_bytes(), canary.stat(), sorted(canary.parent.iterdir()))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.csv"
    accepted = []
    for text in HOSTILE:
        try:
            accepted.append(check(text.replace(FILE, str(canary)).replace(URL, url), FIELDS, "sql"))
        except ValueError as error:
            assert "\n" not in str(error)
            assert "secret" not in str(error)
    assert accepted == []
    assert (canary.read_bytes(), canary.stat(), sorted(canary.parent.iterdir())) == before
    with pytest.raises(BlockingIOError):
        listener.accept()


HARMLESS = [
    *("n > 1 -- positive", "n /* the number */ > 1", "((n)) > (1)", "'; DROP TABLE x' = a", "a = '--'", "n\u200b > 1"),
    # RE2 has no backtracking, so this takes linear time.
    "regexp_matches(a, '" + "(" * 900 + "a" + ")*" * 900 + "b')",
]


@pytest.mark.parametrize("text", HARMLESS, ids=[text[:20] for text in HARMLESS])
def test_harmless_texts_that_look_hostile_are_sound(text: str) -> None:
    found = check(text, FIELDS, "sql")
    assert "--" not in found.sql.replace("'--'", "")
    assert "/*" not in found.sql
    with open_engine() as engine:
        result = evaluate(engine, pa.table({"a": ["a" * 20_000], "n": [2]}), [found])
    assert (result.values[0].type, result.failed) == (pa.bool_(), [])
