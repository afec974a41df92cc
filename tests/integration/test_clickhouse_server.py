"""The local ClickHouse server as its clients see it: clickhouse-connect and plain HTTP against a real server process."""

import asyncio
import contextlib
import gzip
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import clickhouse_connect
import httpx
import lz4.frame
import pyarrow as pa
import pytest
import zstandard
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from resources.local.clickhouse.server import _listen

pytestmark = pytest.mark.integration

WINDOW = "ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 100"
USERS: dict[str, dict[str, Any]] = {
    "default": {"password": "d-secret"},
    "writer": {"password": "w-secret", "rights": ["insert"]},
    "reader": {"password": "r-secret", "rights": ["select"]},
    "moody": {"password": "m-secret", "rights": ["insert", "select"]},
}
OURS = ("default", "d-secret")
USER = ("--user", ":".join(OURS))
HEAD = b"Host: 127.0.0.1\r\nX-ClickHouse-User: default\r\nX-ClickHouse-Key: d-secret\r\n"


class Server:
    """A server process on a port of its own; `http` talks to it as `default`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "resources.local.clickhouse.server", "--data", str(directory / "data"), "--port", str(self.port)]
        log = (directory / "server.log").open("ab")
        environment = os.environ | {"TZ": "Asia/Tokyo"}
        self.process = subprocess.Popen([*command, *arguments], stdout=log, stderr=log, env=environment)
        log.close()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", auth=OURS, trust_env=False, timeout=30)
        wait_for(lambda: self.process.poll() is not None or self.answers(), "the server answers /ping")
        assert self.process.poll() is None, self.log()

    def answers(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self.http.get("/ping").text == "Ok.\n"
        return False

    def log(self) -> str:
        return (self.directory / "server.log").read_text()

    def client(self, **options: Any) -> Client:
        login = {"username": OURS[0], "password": OURS[1]}
        return clickhouse_connect.get_client(host="127.0.0.1", port=self.port, **login | options)

    def sql(self, text: str, **parameters: str) -> str:
        answer = self.http.post("/", content=text, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.text.rstrip("\n")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.http.close()
        return self.process.wait(20)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.02)


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("clickhouse")
    users = directory / "users.json"
    users.write_text(json.dumps(USERS))
    users.chmod(0o600)
    running = Server(directory, "--users-file", str(users))
    yield running
    if running.process.poll() is None:
        running.end()


@pytest.fixture
def table(server: Server) -> Iterator[str]:
    server.sql(f"CREATE TABLE t (a UInt64, s String) {WINDOW}")
    yield "t"
    server.sql("DROP TABLE t SYNC")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with server.client() as found:
        yield found


# clickhouse-connect


def test_client_inserts_and_queries_in_its_ordinary_ways(client: Client, table: str) -> None:
    assert client.insert(table, [[1, "x"], [2, "y"]], column_names=["a", "s"]).written_rows == 2
    client.insert_arrow(table, pa.table({"a": pa.array([3], pa.uint64()), "s": ["z"]}))
    assert client.query("SELECT a, s FROM t ORDER BY a").result_rows == [(1, "x"), (2, "y"), (3, "z")]
    assert client.query_arrow("SELECT a FROM t ORDER BY a").column("a").to_pylist() == [1, 2, 3]
    assert client.query_df("SELECT a, s FROM t ORDER BY a")["s"].tolist() == ["x", "y", "z"]
    assert client.command("SELECT count() FROM t") == 3
    assert client.query("SELECT a FROM t WHERE s = {s:String}", parameters={"s": "it's \\ \t"}).result_rows == []
    assert client.query("SELECT a FROM t LIMIT 0").column_names == ("a",)
    client.insert_df(table, client.query_df("SELECT a + 10 AS a, s FROM t"))
    assert client.command("SELECT count() FROM t") == 6


@pytest.mark.parametrize("compression", [None, "lz4", "zstd", "gzip"])
def test_raw_insert_takes_an_arrow_stream(client: Client, table: str, compression: str | None) -> None:
    body = arrow_stream(pa.table({"a": pa.array(range(1000), pa.uint64()), "s": [str(n) for n in range(1000)]}))
    encode: dict[str | None, Callable[[bytes], bytes]] = {
        None: bytes,
        "lz4": lz4.frame.compress,
        "zstd": zstandard.compress,
        "gzip": gzip.compress,
    }
    summary = client.raw_insert(table, ["a", "s"], encode[compression](body), fmt="ArrowStream", compression=compression)
    assert summary.written_rows == 1000
    assert client.command("SELECT sum(a) FROM t") == 499_500


def test_answers_belong_to_their_requests_while_others_write(server: Server, table: str) -> None:
    server.sql("INSERT INTO t SELECT number, toString(number) FROM numbers(2000)")

    def read(number: int) -> bool:
        with server.client() as reader:
            rows = [reader.query(f"SELECT a, s FROM t WHERE a < {500 + number}").result_rows for _ in range(12)]
        return all(len(found) == 500 + number and all(str(a) == s for a, s in found) for found in rows)

    def write(_: int) -> bool:
        for first in range(10_000, 10_020):
            server.sql(f"INSERT INTO t SELECT {first}, repeat('x', 100000)")
        return True

    with ThreadPoolExecutor(5) as pool:
        writing = pool.submit(write, 0)
        assert all(pool.map(read, range(4)))
        assert writing.result()


def test_large_results_are_streamed_and_whole(client: Client, server: Server) -> None:
    with client.query_row_block_stream("SELECT number FROM numbers(500000)") as blocks:
        assert sum(row[0] for block in blocks for row in block) == 499_999 * 250_000
    with client.query_arrow_stream("SELECT number, toString(number) AS s FROM numbers(200000)") as batches:
        assert sum(batch.num_rows for batch in batches) == 200_000
    for output, lines in (("CSVWithNames", 1), ("TabSeparatedWithNamesAndTypes", 2), ("JSONCompactEachRowWithNames", 1)):
        text = server.sql(f'SELECT number AS "a\nb" FROM numbers(150000) FORMAT {output}')
        rows = [row for row in text.splitlines() if row.strip('[]"').isdecimal()]
        assert len(rows) == 150_000
        assert len(text.splitlines()) == 150_000 + lines + (output == "CSVWithNames")


def test_first_bytes_arrive_before_the_statement_ends(server: Server) -> None:
    sql = "SELECT number, sleepEachRow(0.1) FROM numbers(100) SETTINGS max_block_size = 1, max_threads = 1"
    with server.http.stream("POST", "/", content=sql) as answer:
        next(answer.iter_bytes())
        assert "sleepEachRow" in server.sql("SELECT query FROM system.processes WHERE query NOT LIKE '%processes%'")


def test_totals_and_empty_results_are_kept(server: Server) -> None:
    assert server.sql("SELECT number + 5 AS a, count() FROM numbers(1) GROUP BY a WITH TOTALS") == "5\t1\n\n0\t1"
    assert server.sql("SELECT 1 AS a WHERE 0 FORMAT CSVWithNames") == '"a"'
    empty = server.http.post("/", content="SELECT 1 AS a WHERE 0 FORMAT ArrowStream").content
    assert pa.ipc.open_stream(empty).read_all().schema.names == ["a"]


# Plain HTTP


def test_query_may_be_in_the_url_in_the_body_or_in_both(server: Server, table: str) -> None:
    assert server.http.get("/ping").text == server.http.get("/").text == "Ok.\n"
    assert server.http.get("/", params={"query": "SELECT 1"}).text == "1\n"
    assert server.http.post("/", params={"query": "SELECT 1 +"}, content="2").text == "3\n"
    server.http.post("/", params={"query": "INSERT INTO t FORMAT CSV"}, content="1,a\n").raise_for_status()
    server.http.post("/", params={"query": "INSERT INTO t (a, s)"}, content="FORMAT CSV\n2,b\n").raise_for_status()
    server.sql('INSERT INTO t FORMAT JSONEachRow\n{"a": 3, "s": "c"}')
    server.sql("INSERT INTO t VALUES (4, 'd'), (2 + 3, ';');")
    server.sql("INSERT INTO {target:Identifier} (a) SELECT 6", param_target="t")
    server.sql("INSERT INTO {target:Identifier} (a) FORMAT CSV\n7\n", param_target="t")
    assert server.sql("SELECT groupArray(a) FROM (SELECT a FROM t ORDER BY a)") == "[1,2,3,4,5,6,7]"
    assert server.http.get("/", params={"query": "INSERT INTO t VALUES (8, '')"}).headers["X-ClickHouse-Exception-Code"] == "164"
    assert server.http.get("/nothing").status_code == 404


def test_headers_say_what_was_done(server: Server, table: str) -> None:
    answer = server.http.post("/", params={"query": "INSERT INTO t FORMAT CSV", "query_id": "q-7"}, content="1,a\n2,b\n")
    summary = json.loads(answer.headers["X-ClickHouse-Summary"])
    assert (summary["written_rows"], summary["read_rows"]) == ("2", "2")
    assert all(isinstance(value, str) for value in summary.values())
    assert int(summary["elapsed_ns"]) > 0
    assert answer.headers["X-ClickHouse-Query-Id"] == "q-7"
    assert answer.headers["X-ClickHouse-Timezone"] == "UTC"
    answer = server.http.post("/", content="SELECT a FROM t", params={"wait_end_of_query": "1", "default_format": "JSONEachRow"})
    assert answer.headers["X-ClickHouse-Format"] == "JSONEachRow"
    summary = json.loads(answer.headers["X-ClickHouse-Summary"])
    assert (summary["read_rows"], summary["result_rows"]) == ("2", "2")
    assert server.http.post("/", content="SELECT 1", headers={"X-ClickHouse-Format": "CSV"}).headers["X-ClickHouse-Format"] == "CSV"


@pytest.mark.parametrize(
    ("sql", "code", "status"),
    [
        ("SELECT * FROM nosuch", 60, 404),
        ("SELEC 1", 62, 400),
        ("selec", 62, 400),
        ("", 62, 400),
        ("SELECT 1; SELECT 2", 62, 400),
        ("SELECT nosuch", 47, 404),
        ("SELECT * FROM nosuch.t", 81, 404),
        ("SELECT 1 FORMAT Nosuch", 73, 404),
        ("INSERT INTO nosuch FORMAT CSV\n1", 60, 404),
        ("SELECT throwIf(1)", 395, 500),
        ("SELECT 1 INTO OUTFILE 'x.csv'", 358, 500),
        ("CREATE TEMPORARY TABLE x (a Int8)", 48, 501),
        ("SELECT {x:Int8}", 456, 500),
        ("SELECT sleepEachRow(0.2) FROM numbers(50) SETTINGS max_execution_time = 1, max_block_size = 1", 159, 408),
    ],
)
def test_errors_have_the_code_and_status_of_a_server(server: Server, sql: str, code: int, status: int) -> None:
    answer = server.http.post("/", content=sql, params={"wait_end_of_query": "1"})
    assert (answer.headers["X-ClickHouse-Exception-Code"], answer.status_code) == (str(code), status), answer.text
    assert answer.text.startswith(f"Code: {code}. DB::Exception: ")
    assert "(version " in answer.text


@pytest.mark.parametrize(
    ("table_part", "code"),
    [
        ("(a UInt64) ENGINE = MergeTree ORDER BY a PARTITION BY a", 252),
        ("(a UInt64, CONSTRAINT c CHECK a < 100) ENGINE = MergeTree ORDER BY a", 469),
        ("(a UInt64, b UInt8 MATERIALIZED throwIf(a = 100)) ENGINE = MergeTree ORDER BY a", 395),
    ],
)
def test_a_failed_insert_is_not_acknowledged(server: Server, table_part: str, code: int) -> None:
    server.sql(f"CREATE TABLE p {table_part}")
    body = "\n".join(map(str, range(200)))
    answer = server.http.post("/", params={"query": "INSERT INTO p FORMAT CSV"}, content=body)
    assert (answer.status_code, answer.headers.get("X-ClickHouse-Exception-Code")) == (500, str(code)), answer.text
    assert server.sql("SELECT count() FROM p") == "0"
    server.sql("DROP TABLE p SYNC")


def test_a_bad_row_is_told_in_the_words_of_a_server(server: Server, table: str) -> None:
    answer = server.http.post("/", content="INSERT INTO t FORMAT CSV\n1,a\nx,b\n")
    assert answer.headers["X-ClickHouse-Exception-Code"] == "27"
    assert answer.text.count("Code: 27") == answer.text.count("(version ") == 1
    assert "at row 2" in answer.text
    assert "spool" not in answer.text
    assert server.sql("SELECT count() FROM t") == "0"


def test_binary_data_may_hold_anything(server: Server, table: str) -> None:
    text = ";\n\n'; DROP TABLE t; --\x00\\"
    body = arrow_stream(pa.table({"a": pa.array([1], pa.uint64()), "s": [text]}))
    server.http.post("/", content=b"INSERT INTO t (a, s) SETTINGS max_threads = 1 FORMAT ArrowStream\n" + body).raise_for_status()
    assert server.sql("SELECT s = {s:String} FROM t", param_s=text.replace("\\", "\\\\").replace("\n", "\\n").replace("\x00", "\\0")) == "1"


def test_an_error_after_the_first_byte_is_seen_by_the_client(server: Server, client: Client) -> None:
    sql = "SELECT throwIf(number = 900000) FROM numbers(1000000) SETTINGS max_threads = 1"
    with pytest.raises(ClickHouseError, match="395"), client.query_row_block_stream(sql) as blocks:
        for _ in blocks:
            pass
    received = b""
    with pytest.raises(httpx.RemoteProtocolError), server.http.stream("POST", "/", content=sql) as answer:
        for piece in answer.iter_bytes():
            received += piece
    assert answer.status_code == 200
    assert answer.headers["X-ClickHouse-Exception-Tag"].encode() in received
    assert b"Code: 395. DB::Exception" in received


@pytest.mark.parametrize("encoding", ["gzip", "lz4", "zstd"])
@pytest.mark.parametrize("wait", ["0", "1"])
def test_responses_are_compressed_when_asked(server: Server, encoding: str, wait: str) -> None:
    decode: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.decompress,
        "lz4": lz4.frame.decompress,
        "zstd": lambda body: zstandard.ZstdDecompressor().decompressobj().decompress(body),
    }
    parameters = {"enable_http_compression": "1", "wait_end_of_query": wait}
    headers = {"Accept-Encoding": encoding}
    for rows in (1, 100_000):
        with server.http.stream("POST", "/", content=f"SELECT * FROM numbers({rows})", params=parameters, headers=headers) as answer:
            raw = b"".join(answer.iter_raw())
        assert answer.headers["Content-Encoding"] == encoding
        assert decode[encoding](raw).splitlines() == [str(n).encode() for n in range(rows)]
    plain = server.http.post("/", content="SELECT 1", params={"enable_http_compression": "0"}, headers=headers)
    assert "Content-Encoding" not in plain.headers


def test_a_damaged_or_cut_off_compressed_body_inserts_nothing(server: Server, table: str) -> None:
    body = gzip.compress(b"".join(b"%d,x\n" % n for n in range(1000)))
    for wrong in (body[:-20], b"nonsense", body + b"tail"):
        answer = server.http.post("/", params={"query": "INSERT INTO t FORMAT CSV"}, content=wrong, headers={"Content-Encoding": "gzip"})
        assert answer.status_code == 400, answer.text
    unknown = server.http.post("/", params={"query": "INSERT INTO t FORMAT CSV"}, content=body, headers={"Content-Encoding": "rot13"})
    assert unknown.headers["X-ClickHouse-Exception-Code"] == "89"
    assert server.sql("SELECT count() FROM t") == "0"


def test_parameters_are_substituted_and_long_ones_come_as_a_form(server: Server, client: Client) -> None:
    assert server.sql("SELECT {a:UInt8} + 1, {b:String}", param_a="4", param_b="x'; DROP TABLE t") == "5\tx\\'; DROP TABLE t"
    assert server.sql("SELECT count() FROM system.{t:Identifier}", param_t="one") == "1"
    long = "x" * 20_000
    assert client.query("SELECT length({v:String})", parameters={"v": long}).result_rows == [(20_000,)]


def test_database_is_taken_from_parameter_header_or_client(server: Server) -> None:
    server.sql("CREATE DATABASE other")
    assert server.sql("SELECT currentDatabase()", database="other") == "other"
    assert server.http.post("/", content="SELECT currentDatabase()", headers={"X-ClickHouse-Database": "other"}).text == "other\n"
    with server.client(database="other") as client:
        assert client.command("SELECT currentDatabase()") == "other"
    assert server.http.post("/", content="SELECT 1", params={"database": "nosuch"}).headers["X-ClickHouse-Exception-Code"] == "81"
    server.sql("DROP DATABASE other SYNC")


# Settings and tokens


def test_a_setting_holds_for_its_own_request_only(server: Server) -> None:
    asking = "SELECT getSetting('max_block_size')"
    default = server.sql(asking)
    assert server.sql(asking, max_block_size="123") == "123"
    assert server.sql(asking) == default
    with ThreadPoolExecutor(8) as pool:
        asked = [default if n % 3 == 0 else str(1000 + n) for n in range(48)]
        answers = pool.map(lambda value: server.sql(asking, **({} if value == default else {"max_block_size": value})), asked)
        assert list(answers) == asked
    assert server.http.post("/", content="SELECT 1", params={"nosuch": "1"}).headers["X-ClickHouse-Exception-Code"] == "115"
    assert server.http.post("/", content="SELECT 1", params={"a=1, b": "1"}).headers["X-ClickHouse-Exception-Code"] == "115"
    assert server.sql("SELECT getSetting('log_comment')", log_comment='it\'s \\ "x"') == 'it\\\'s \\\\ "x"'


def test_set_lasts_within_its_session_only(server: Server) -> None:
    asking = "SELECT getSetting('max_block_size')"
    default = server.sql(asking)
    server.sql("SET max_block_size = 77", session_id="s1")
    assert server.sql(asking, session_id="s1") == "77"
    assert server.sql(asking, session_id="s1", max_block_size="5") == "5"
    assert server.sql(asking, session_id="s1") == "77"
    assert server.sql(asking, session_id="s2") == server.sql(asking) == default


def test_same_token_gives_one_copy_and_another_token_two(server: Server, table: str) -> None:
    for token in ("one", "one", "two"):
        server.sql("INSERT INTO t FORMAT CSV\n1,a\n2,b\n", insert_deduplication_token=token, async_insert="0")
    assert server.sql("SELECT count() FROM t") == "4"
    with ThreadPoolExecutor(8) as pool:
        insert = "INSERT INTO t FORMAT CSV\n9,z\n"
        list(pool.map(lambda n: server.sql(insert, insert_deduplication_token=f"k{n % 4}"), range(32)))
    assert server.sql("SELECT count() FROM t WHERE a = 9") == "4"


def test_null_takes_the_default_only_when_the_request_says_so(server: Server) -> None:
    server.sql("CREATE TABLE d (a Int64, v Int64 DEFAULT 42) ENGINE = MergeTree ORDER BY a")
    body = arrow_stream(pa.table({"a": [1], "v": pa.array([None], pa.int64())}))
    parameters = {"query": "INSERT INTO d FORMAT ArrowStream", "input_format_null_as_default": "1"}
    server.http.post("/", params=parameters, content=body).raise_for_status()
    refused = server.http.post("/", params=parameters | {"input_format_null_as_default": "0"}, content=body)
    assert refused.headers["X-ClickHouse-Exception-Code"] == "349"
    assert server.sql("SELECT a, v FROM d") == "1\t42"
    server.sql("DROP TABLE d SYNC")


def test_a_retried_insert_is_one_copy_in_a_materialised_view_too(server: Server, table: str) -> None:
    server.sql(
        "CREATE TABLE sums (k UInt8, n UInt64) ENGINE = SummingMergeTree ORDER BY k SETTINGS non_replicated_deduplication_window = 100"
    )
    server.sql("CREATE MATERIALIZED VIEW v TO sums AS SELECT 1 AS k, count() AS n FROM t GROUP BY k")
    for _ in range(2):
        server.sql(
            "INSERT INTO t FORMAT CSV\n1,a\n2,b\n",
            insert_deduplication_token="x",
            deduplicate_blocks_in_dependent_materialized_views="1",
        )
    assert server.sql("SELECT sum(n) FROM sums") == "2"
    server.sql("DROP TABLE v SYNC")
    server.sql("DROP TABLE sums SYNC")


# Users


def test_wrong_passwords_and_unknown_users_are_refused_alike(server: Server) -> None:
    for auth in (("writer", "wrong"), ("nobody", "")):
        answer = server.http.post("/", content="SELECT 1", auth=auth)
        assert (answer.status_code, answer.headers["X-ClickHouse-Exception-Code"]) == (403, "516")
        assert "AUTHENTICATION_FAILED" in answer.text
    headers = {"X-ClickHouse-User": "reader", "X-ClickHouse-Key": "r-secret"}
    assert server.http.post("/", content="SELECT 1", headers=headers, auth=None).text == "1\n"
    assert server.http.post("/", content="SELECT 1", params={"user": "reader", "password": "r-secret"}, auth=None).text == "1\n"
    with pytest.raises(DatabaseError, match="516"):
        server.client(username="writer", password="wrong")


def test_nobody_gets_in_without_a_password(server: Server) -> None:
    for auth in (None, ("default", ""), ("reader", "")):
        for answer in (
            server.http.post("/", content="SELECT 1", auth=auth),
            server.http.get("/", params={"query": "SELECT 1"}, auth=auth),
        ):
            assert (answer.status_code, answer.headers["X-ClickHouse-Exception-Code"]) == (403, "516")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "evil.localhost:8123"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_web_page_is_refused_even_with_the_password(server: Server, table: str, headers: dict[str, str], method: str) -> None:
    sql = "INSERT INTO t VALUES (1, 'by a page')" if method == "POST" else "SELECT 1"
    answer = server.http.request(method, "/", params={"query": sql}, headers=headers)
    assert (answer.status_code, "answers" in answer.text) == (403, True), answer.text
    assert server.sql("SELECT count() FROM t") == "0"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8123", "[::1]"])
def test_the_hosts_own_names_are_answered(server: Server, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert server.http.post("/", content="SELECT 1", headers=headers).text == "1\n"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1, 'x')",
        "INSERT INTO FUNCTION file('by-get.csv', 'CSV', 'a Int8') VALUES (1)",
        "INSERT INTO FUNCTION url('http://127.0.0.1:1/', 'CSV', 'a Int8') SELECT 1",
        "CREATE TABLE by_get (a Int8) ENGINE = Memory",
        "DROP TABLE t",
        "SYSTEM FLUSH LOGS",
    ],
)
def test_only_post_changes_anything(server: Server, table: str, method: str, sql: str) -> None:
    answer = server.http.request(method, "/", params={"query": sql, "readonly": "0"})
    assert answer.headers["X-ClickHouse-Exception-Code"] == "164"
    assert server.sql("SELECT count() FROM t") == "0"
    assert server.sql("EXISTS by_get") == "0"
    assert not [*server.directory.rglob("by-get.csv")]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM file('{path}', 'LineAsString')",
        "SELECT * FROM `file`('{path}', 'LineAsString')",
        "SELECT * FROM {{f:Identifier}}",
        "SELECT * FROM '{path}'",
        "SELECT * FROM `{path}`",
        "SELECT * FROM url('file://{path}', 'LineAsString')",
        "SELECT * FROM fileCluster('default', '{path}', 'LineAsString')",
        "SELECT * FROM view(SELECT * FROM file('{path}', 'LineAsString'))",
        "SELECT * FROM eval('SELECT file(''{path}'')') SETTINGS allow_experimental_eval_table_function = 1",
        "SELECT file('{path}')",
        "SELECT \"file\"('{path}')",
        "SELECT `f\\x69le`('{path}')",
        "SELECT arrayMap(file, ['{path}'])",
        "SELECT arrayMap(path -> file(path), ['{path}'])",
        "SELECT * APPLY file FROM (SELECT '{path}')",
        "SELECT arrayMap({{f:Identifier}}, ['{path}'])",
        "CREATE FUNCTION read_file AS path -> file(path)",
        "CREATE TABLE outside (a String) ENGINE = File(LineAsString, '{path}')",
        "CREATE DATABASE outside ENGINE = Filesystem('/')",
        "CREATE TABLE outside (a String) ENGINE = SQLite('{path}', 't')",
        "CREATE TABLE outside (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS disk = disk(type = 'local_blob_storage', path = '{path}.d/')",
        "CREATE TABLE outside (k String, v String) ENGINE = EmbeddedRocksDB(0, '{path}.d') PRIMARY KEY k",
        "CREATE TABLE outside (a String) ENGINE = `Executable`('id', 'TSV')",
        "SELECT * FROM executable('id', 'TSV', 'a String')",
        "CREATE DICTIONARY outside (k UInt8) PRIMARY KEY k SOURCE(EXECUTABLE(COMMAND 'touch {path}.d' FORMAT 'CSV')) LAYOUT(FLAT())",
        "CREATE DICTIONARY outside (k UInt8) PRIMARY KEY k SOURCE(`executable`(COMMAND 'touch {path}.d' FORMAT 'CSV')) LAYOUT(FLAT())",
        "INSERT INTO FUNCTION file('{path}.d', 'CSV', 'a Int8') VALUES (1)",
        "INSERT INTO t VALUES (1, file('{path}'))",
        "INSERT INTO t VALUES (1, `f\\x69le`('{path}'))",
        "INSERT INTO t SETTINGS input_format_values_interpret_expressions = 1 VALUES (1, file('{path}'))",
        "BACKUP TABLE t TO File('{path}.d')",
        "SELECT 1 INTO OUTFILE '{path}.d'",
    ],
)
def test_not_even_a_user_of_all_rights_reaches_files_or_programs(server: Server, table: str, tmp_path: Path, sql: str) -> None:
    path = tmp_path / "secret.csv"
    path.write_text("TOPSECRET\n")
    answer = server.http.post("/", content=sql.format(path=path), params={"param_f": "file"})
    if answer.status_code == 200:
        # What may be made must not be of use.
        answer = server.http.post("/", content=f"SELECT * FROM outside.`{path}`")
        server.sql("DROP DATABASE outside")
    assert answer.status_code != 200
    assert "TOPSECRET" not in answer.text
    assert [one.name for one in tmp_path.iterdir()] == ["secret.csv"]
    assert server.sql("SELECT count() FROM t") == "0"
    assert server.sql("EXISTS outside") == "0"


def test_names_of_refused_things_may_name_tables_and_columns(server: Server) -> None:
    server.sql("CREATE TABLE `file` (`file` String, disk Int8) ENGINE = MergeTree ORDER BY (file, disk)")
    server.sql('INSERT INTO `default`.`file` (`file`, `disk`) FORMAT CSV\n"a file",1')
    server.sql("INSERT INTO file (file, disk) VALUES ('the `file`', 2)")
    assert (
        server.sql("SELECT count(file), max(disk), length(file) FROM file GROUP BY file, length(file) ORDER BY file LIMIT 1") == "1\t1\t6"
    )
    server.sql("DROP TABLE `file`")


@pytest.mark.parametrize(
    ("user", "sql", "code"),
    [
        ("reader", "SELECT 1 FORMAT CSV", None),
        ("reader", "SELECT * FROM `url`('http://127.0.0.1:1/', 'CSV', 'a Int8')", "497"),
        ("reader", "SELECT * FROM \"remote\"('127.0.0.1:1', system.one)", "497"),
        ("reader", "/* c */ WITH 1 AS x SELECT x", None),
        ("reader", "DESCRIBE TABLE t", None),
        ("reader", "INSERT INTO t FORMAT CSV\n1,a", "497"),
        ("reader", "-- SELECT\nDROP TABLE t", "497"),
        ("reader", "TRUNCATE TABLE t", "497"),
        ("reader", "CREATE TABLE u (a Int8) ENGINE = Memory", "497"),
        ("reader", "SYSTEM FLUSH LOGS", "497"),
        ("reader", "SELECT * FROM s3('http://127.0.0.1:1/b/k', 'LineAsString')", "497"),
        ("reader", "SELECT * FROM `/etc/hostname`", "497"),
        ("reader", "SELECT * FROM '/etc/hostname'", "497"),
        ("reader", "SELECT 1; DROP TABLE t", "62"),
        ("writer", "INSERT INTO t FORMAT CSV\n1,a", None),
        ("writer", "INSERT INTO t VALUES (1, 'DROP TABLE t')", None),
        ("writer", "SELECT 1", "497"),
        ("writer", "INSERT INTO t SELECT 1, ''", "497"),
        ("moody", "INSERT INTO t SELECT 1, ''", None),
        ("moody", "ALTER TABLE t DELETE WHERE 1", "497"),
    ],
)
def test_rights_decide_which_statements_run(server: Server, table: str, user: str, sql: str, code: str | None) -> None:
    answer = server.http.post("/", content=sql, auth=(user, str(USERS[user]["password"])))
    assert answer.headers.get("X-ClickHouse-Exception-Code") == code, answer.text
    assert answer.status_code == {None: 200, "497": 403, "62": 400}[code]


def test_a_right_is_taken_away_by_rewriting_the_users_file(server: Server, table: str) -> None:
    path = server.directory / "users.json"
    insert = {"content": "INSERT INTO t FORMAT CSV\n1,a", "auth": ("moody", "m-secret")}
    assert server.http.post("/", **insert).status_code == 200  # type: ignore[arg-type]
    path.write_text(json.dumps(USERS | {"moody": {"password": "m-secret", "rights": ["select"]}}))
    assert server.http.post("/", **insert).status_code == 403  # type: ignore[arg-type]
    path.write_text("{ half a file")
    assert server.http.post("/", **insert).status_code == 403  # type: ignore[arg-type]
    path.write_text(json.dumps(USERS))
    assert server.http.post("/", **insert).status_code == 200  # type: ignore[arg-type]
    assert "m-secret" not in server.log()


# Load, limits, life and death


def test_slow_selects_hold_up_neither_inserts_nor_ping(server: Server, table: str) -> None:
    sql = b"SELECT sleepEachRow(0.1) FROM numbers(30) SETTINGS max_block_size = 1 FORMAT JSON"
    request = b"POST / HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(sql) + sql
    counting = "INSERT INTO t SELECT 1, '' FROM system.processes WHERE query LIKE 'SELECT sleepEachRow%'"

    def written() -> int:
        return int(json.loads(server.http.post("/", content=counting).headers["X-ClickHouse-Summary"])["written_rows"])

    with contextlib.ExitStack() as stack:
        # More than the server runs at once.
        waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(40)]
        for connection in waiting:
            connection.sendall(request)
        wait_for(lambda: written() >= 32, "as many run as can")
        assert server.answers()
        assert select.select(waiting, [], [], 0)[0] == []


def test_concurrent_clients_get_their_own_answers(server: Server, table: str) -> None:
    def work(n: int) -> bool:
        server.sql(f"INSERT INTO t FORMAT CSV\n{n},{n}\n")
        return server.sql(f"SELECT s FROM t WHERE a = {n} FORMAT TabSeparated") == str(n)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(64)))
    assert server.sql("SELECT count(), uniqExact(a) FROM t") == "64\t64"


def test_a_client_that_leaves_amid_its_body_inserts_nothing(server: Server, table: str) -> None:
    head = b"POST /?query=INSERT+INTO+t+FORMAT+CSV HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b"1,a\n2,b\n")
    assert server.sql("SELECT count() FROM t") == "0"
    server.sql("INSERT INTO t FORMAT CSV\n3,c\n")
    assert server.sql("SELECT groupArray(a) FROM t") == "[3]"


@pytest.mark.parametrize("output", ["TabSeparated", "JSON"])
def test_a_select_whose_client_leaves_is_killed(server: Server, output: str) -> None:
    sql = f"SELECT count() FROM numbers(100000000000) WHERE sipHash64(number) = 7 FORMAT {output}"
    body = sql.encode()
    line = b"POST /?query_id=left-%s HTTP/1.1\r\n" % output.encode()
    request = line + HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    running = f"SELECT count() FROM system.processes WHERE Settings['log_comment'] = 'left-{output}'"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request)
        wait_for(lambda: server.sql(running) == "1", "the statement runs")
    wait_for(lambda: server.sql(running) == "0", "the statement is killed")


def test_bodies_and_headers_have_a_bound(tmp_path: Path) -> None:
    server = Server(tmp_path, "--max-body-bytes", "1000", *USER)
    assert server.http.post("/", content=b"SELECT 1" + b" " * 2000).status_code == 413
    assert server.http.post("/", content=iter([b"SELECT 1", b" " * 2000])).status_code == 413
    with socket.create_connection(("127.0.0.1", server.port)) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 3_000_000)
        assert b" 400 " in connection.recv(1000)
    assert server.sql("SELECT 1") == "1"
    assert server.end() == 0


@pytest.mark.crash
def test_kill_minus_9_loses_no_acknowledged_insert(tmp_path: Path) -> None:
    """The server that is started behind it is then ended while it is busy."""
    server = Server(tmp_path, *USER)
    server.sql(f"CREATE TABLE t (a UInt64, s String) {WINDOW}")
    acknowledged: list[int] = []

    def insert(first: int) -> None:
        with contextlib.suppress(httpx.HTTPError):
            for n in range(first, first + 100_000):
                server.sql(f"INSERT INTO t FORMAT CSV\n{n},x\n", insert_deduplication_token=str(n))
                acknowledged.append(n)

    writers = [threading.Thread(target=insert, args=(first,)) for first in (0, 1_000_000)]
    for writer in writers:
        writer.start()
    wait_for(lambda: len(acknowledged) > 50, "inserts are acknowledged")
    server.process.kill()
    server.process.wait()
    for writer in writers:
        writer.join()

    again = Server(tmp_path, *USER)
    last = acknowledged[-1]
    stored = [int(n) for n in again.sql("SELECT a FROM t").splitlines()]
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))
    again.sql(f"INSERT INTO t FORMAT CSV\n{last},x\n", insert_deduplication_token=str(last))
    assert again.sql(f"SELECT count() FROM t WHERE a = {last}") == "1"
    end_while_busy(again)
    assert Server(tmp_path, *USER).end() == 0


def end_while_busy(server: Server) -> None:
    """SIGTERM ends it, whatever runs, and frees its directory, which was nobody else's before."""
    data = server.directory / "data"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.http.post, "/", content="SELECT count() FROM numbers(100000000000) WHERE sipHash64(number) = 7")
        wait_for(lambda: "sipHash64" in server.sql("SELECT query FROM system.processes WHERE query NOT LIKE '%processes%'"), "it runs")
        second = subprocess.run(
            [sys.executable, "-m", "resources.local.clickhouse.server", "--data", str(data), "--port", "0", *USER],
            capture_output=True,
            text=True,
            timeout=30,
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        with contextlib.suppress(httpx.HTTPError):
            running.result()
    assert second.returncode == 1
    assert second.stderr.splitlines() == [f"clickhouse_server: another ClickHouse server already uses {data}"]


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    def start(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "resources.local.clickhouse.server", "--data", str(tmp_path / "data"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    outside = start("--host", "0.0.0.0", "--port", "0")
    assert outside.returncode == 2
    assert "not a loopback address" in outside.stderr
    users = tmp_path / "users.json"
    users.write_text(json.dumps(USERS))
    users.chmod(0o644)
    assert "chmod 600" in start("--port", "0", "--users-file", str(users)).stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = start(*USER, "--port", str(taken.getsockname()[1]))
    assert refused.returncode == 1
    assert "Address already in use" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_an_answer_does_not_wait_for_ack_of_its_headers() -> None:
    async def accepted_option() -> int:
        option: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            option.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = _listen("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=listener):
            _, client = await asyncio.open_connection(*listener.getsockname())
            found = await option
            client.close()
        return found

    assert asyncio.run(accepted_option()) != 0
