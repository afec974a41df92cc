"""Every exception of a driver becomes one of ours by what to do next: wait, read again, or halt. Unknown is a halt."""

from concurrent.futures import TimeoutError as FutureTimeoutError

import nats.errors
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError
from confluent_kafka import KafkaError, KafkaException
from nats.js.errors import APIError, ServiceUnavailableError
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from pipelines.connectors.clickhouse import errors as clickhouse_errors
from pipelines.connectors.kafka import client as kafka
from pipelines.connectors.nats import errors as jetstream_errors
from pipelines.errors import ConflictError, DataLossError, HaltError, RefusedError, RetryableError, TallyflowError

CLICKHOUSE_WAITS = {
    3: "UNEXPECTED_END_OF_FILE",
    159: "TIMEOUT_EXCEEDED",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    209: "SOCKET_TIMEOUT",
    210: "NETWORK_ERROR",
    225: "NO_ZOOKEEPER",
    241: "MEMORY_LIMIT_EXCEEDED",
    242: "TABLE_IS_READ_ONLY",
    243: "NOT_ENOUGH_SPACE",
    252: "TOO_MANY_PARTS",
    285: "TOO_FEW_LIVE_REPLICAS",
    319: "UNKNOWN_STATUS_OF_INSERT",
    999: "KEEPER_EXCEPTION",
}
CLICKHOUSE_HALTS = {
    16: "compare the table with the mapping",
    33: "compare the table with the mapping",
    60: "create_table: true",
    81: "create the database",
    117: "the row is a dead letter",
    36: "compare the table with the mapping",
    192: "check `username` and `password`",
    193: "check `username` and `password`",
    349: "the row is a dead letter",
    497: "grant the user the right",
    516: "check `username` and `password`",
    987_654: "nothing was dropped",
}


def server_error(code: int, name: str = "NAME") -> DatabaseError:
    """As clickhouse-connect builds it from the header `X-ClickHouse-Exception-Code`."""
    text = f"Received ClickHouse exception, code: {code}, server response: Code: {code}. DB::Exception: words. ({name})"
    return DatabaseError(text, code=code, name=name)


@pytest.mark.parametrize(("code", "name"), CLICKHOUSE_WAITS.items())
def test_an_overloaded_clickhouse_is_waited_for(code: int, name: str) -> None:
    found = clickhouse_errors.map_error("inserting", server_error(code, name))
    assert type(found) is RetryableError
    assert str(found).startswith(f"inserting: ClickHouse error {code} ({name})")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (76, "DB::ErrnoException: Cannot open file /d/tmp_insert_all_1_1_0/data.bin: , errno: 28, strerror: No space left on device"),
        (
            1001,
            'DB::Exception: filesystem_error: filesystem error: in create_directories: No space left on device ["/d/tmp_insert_all_1_1_0"]',
        ),
    ],
)
def test_a_full_disk_is_waited_for_whatever_its_code(code: int, words: str) -> None:
    found = clickhouse_errors.map_error("inserting", DatabaseError(f"Code: {code}. {words}. (NAME)", code=code))
    assert type(found) is RetryableError
    assert "DB::" not in str(found)
    other = clickhouse_errors.map_error("inserting", DatabaseError(f"Code: {code}. DB::Exception: errno: 13, Permission denied", code=code))
    assert type(other) is HaltError


@pytest.mark.parametrize(("code", "remedy"), CLICKHOUSE_HALTS.items())
def test_any_other_code_of_clickhouse_is_a_halt_with_a_remedy(code: int, remedy: str) -> None:
    found = clickhouse_errors.map_error("inserting", server_error(code))
    assert type(found) is HaltError
    assert str(found).startswith(f"inserting: ClickHouse error {code}: ")
    assert remedy in str(found)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OperationalError("Error HTTPConnectionPool(host='ch', port=8123): Max retries exceeded executing HTTP request"), RetryableError),
        (OperationalError("Unexpected response to server version query: ''"), RetryableError),
        (DatabaseError("HTTP driver received HTTP status 502, server response: upstream answered 404"), RetryableError),
        (DatabaseError("HTTP driver received HTTP status 503"), RetryableError),
        (DatabaseError("HTTP driver received HTTP status 429, server response: slow down"), RetryableError),
        (DatabaseError("HTTP driver received HTTP status 408"), RetryableError),
        (DatabaseError("HTTP driver received HTTP status 404, server response: not found"), HaltError),
        (DatabaseError("HTTP driver received HTTP status 401"), HaltError),
        (ReadTimeoutError(None, "/", "read timed out"), RetryableError),  # type: ignore[arg-type]
        (ProtocolError("connection broken"), RetryableError),
        (ConnectionResetError(104, "reset by peer"), RetryableError),
        (TimeoutError(), RetryableError),
        (ProgrammingError("bad call", code=None), HaltError),
        (KeyError("a bug"), HaltError),
    ],
    ids=lambda value: f"{type(value).__name__}: {value}"[:60] if isinstance(value, Exception) else value.__name__,
)
def test_clickhouse_errors_without_a_code(error: Exception, kind: type[TallyflowError]) -> None:
    assert type(clickhouse_errors.map_error("inserting", error)) is kind


def test_an_error_of_ours_passes_the_map_unchanged() -> None:
    mine = HaltError("mine")
    assert clickhouse_errors.map_error("inserting", mine) is mine


VIOLATED = (
    "Code: 469. DB::Exception: Constraint `c` for table d.t (bd332692-c0f1-498a-8cfd-6820bb123e9d) is violated at row 101. "
    "Expression: (a < 100). Column values: a = 5"
)


@pytest.mark.parametrize(
    ("text", "code", "row", "words"),
    [
        (VIOLATED, 469, 100, "Constraint `c` for table d.t is violated at row 101. Expression: (a < 100)"),
        (
            "Code: 153. DB::Exception: Division by zero: while executing 'FUNCTION intDiv(100 :: 1, id : 0) -> intDiv(100, id) Int64 : 2'",
            153,
            None,
            "divides by zero, in intDiv(100 :: 1, id : 0)",
        ),
        (
            "Code: 252. DB::Exception: Too many partitions for single INSERT block (more than 100).",
            252,
            None,
            "Too many partitions for single",
        ),
    ],
)
def test_a_refused_insert_is_reported_without_values(text: str, code: int, row: int | None, words: str) -> None:
    found = clickhouse_errors.refusal(DatabaseError(text, code=code))
    assert found is not None
    assert (found.row, str(found).startswith(f"ClickHouse error {code}"), words in str(found)) == (row, True, True)
    assert "Column values" not in str(found)
    assert "at row 101" not in found.of_one_row, "a place in a block says nothing about the row"


VALUE = "iban DE00 4711 VALUE"
QUOTING = [
    (6, f"Cannot parse string '{VALUE}' as UInt8: syntax error at begin of string", "toUInt8(s : 0)"),
    (376, f"Cannot parse uuid {VALUE}: Cannot parse UUID from String", "toUUID(s : 0)"),
    (675, f"Cannot parse IPv4 {VALUE[:15]}: Cannot parse IPv4 from String", "toIPv4(s : 0)"),
    (691, f"Unknown element '{VALUE}' for enum", "CAST(s :: 0, 'Enum8(\\'a\\'=1)'_String :: 1)"),
    (117, f"Cannot parse JSON object here: {VALUE}", "CAST(s :: 0, 'JSON'_String :: 1)"),
    (6, f"Cannot parse string '{VALUE}' as Decimal(9, 2)", "toDecimal32(s :: 0, 2_UInt8 :: 1)"),
    (117, f"Invalid base64Decode value ({VALUE}), cannot be decoded", "base64Decode(s : 0)"),
    (6, f"Cannot parse string '{VALUE}' as UInt8: while executing 'FUNCTION no", "accurateCast(s : 0)"),
    (36, f"Cannot load time zone {VALUE}", "toTimeZone(now() : 0, s : 1)"),
    (467, f"Cannot parse boolean value here: '{VALUE[:10]}', should be 'true' or 'false'", "CAST(s :: 0, 'Bool'_String :: 1)"),
    (987_654, f"{VALUE} of a code that nobody knows", "unknown(s : 0)"),
    (1002, f"{VALUE}", "unknown(s : 0)"),
]
"""What the engine 26.9 says of expressions that quote the value that they cannot read."""


@pytest.mark.parametrize(("code", "words", "call"), QUOTING)
@pytest.mark.parametrize("view", ["", ": while pushing to view default.v"])
def test_no_message_of_an_insert_quotes_a_value(code: int, words: str, call: str, view: str) -> None:
    text = f"Code: {code}. DB::Exception: {words}: while executing 'FUNCTION {call} -> f(s) UInt8 : 2'{view}. (NAME) (version 26.9.2.1)"
    error = DatabaseError(text, code=code)
    found = clickhouse_errors.refusal(error) or clickhouse_errors.map_error("inserting", error, sends_rows=True)
    assert type(found) is (HaltError if view else RefusedError)
    assert not any(word in str(found) for word in VALUE.split())
    assert call in str(found), "which expression it is, is the table's own word"
    assert not view or "default.v" in str(found)


def test_an_error_that_may_as_well_be_the_tables_is_told_apart() -> None:
    found = [clickhouse_errors.refusal(DatabaseError("Code: 1. DB::Exception: words", code=code)) for code in (6, 376, 36, 454, 987_654)]
    assert [refusal.is_known for refusal in found if refusal] == [True, True, False, False, False]
    whole = [
        clickhouse_errors.refusal(DatabaseError(f"Code: 1. DB::Exception: {text}", code=code)) for text, code in ((VIOLATED, 469), ("x", 6))
    ]
    assert [refusal.is_whole for refusal in whole if refusal] == [True, False]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{VIOLATED}: while pushing to view default.v", 469),
        ("Code: 252. DB::Exception: Too many parts (3000).", 252),
        ("Code: 60. DB::Exception: Table d.t does not exist", 60),
        ("Code: 241. DB::Exception: Memory limit exceeded", 241),
    ],
)
def test_no_row_is_searched_behind_any_other_insert_error(text: str, code: int) -> None:
    assert clickhouse_errors.refusal(DatabaseError(text, code=code)) is None


def test_a_views_refusal_halts_an_overloaded_view_is_waited_for() -> None:
    found = clickhouse_errors.map_error("inserting", DatabaseError(f"{VIOLATED}: while pushing to view default.v", code=469))
    assert (type(found), "a materialized view on the table refuses these rows" in str(found)) == (HaltError, True)
    waits = clickhouse_errors.map_error("inserting", DatabaseError("Code: 241. DB::Exception: Memory: while pushing to view d.v", code=241))
    assert type(waits) is RetryableError


def test_only_the_first_line_of_a_clickhouse_error_is_told() -> None:
    found = clickhouse_errors.map_error("inserting", DatabaseError("Code: 16. No such column\nStack trace:\n" + "frame\n" * 50, code=16))
    assert "Stack trace" not in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (APIError(code=400, err_code=10071, description="wrong last sequence: 7"), ConflictError),
        (APIError(code=503, err_code=10077, description="maximum bytes exceeded"), RetryableError),
        (APIError(code=503, err_code=10023, description="insufficient resources"), RetryableError),
        (APIError(code=500, err_code=10047, description="insufficient storage resources available"), RetryableError),
        (APIError(code=503, err_code=10008, description="system temporarily unavailable"), RetryableError),
        (ServiceUnavailableError(code=503, description="no leader"), RetryableError),
        (APIError(code=404, err_code=10059, description="stream not found"), HaltError),
        (APIError(code=400, err_code=10025, description="bad request"), HaltError),
        (APIError(code=400, err_code=None, description=None), HaltError),
        (nats.errors.AuthorizationError(), HaltError),
        (nats.errors.MaxPayloadError(), HaltError),
        (nats.errors.TimeoutError(), RetryableError),
        (nats.errors.NoServersError(), RetryableError),
        (nats.errors.NoRespondersError(), RetryableError),
        (nats.errors.ConnectionClosedError(), RetryableError),
        (nats.errors.ConnectionReconnectingError(), RetryableError),
        (nats.errors.StaleConnectionError(), RetryableError),
        (nats.errors.OutboundBufferLimitError(), RetryableError),
        (FutureTimeoutError(), RetryableError),
        (ConnectionRefusedError(111, "refused"), RetryableError),
        (ValueError("a bug"), HaltError),
    ],
    ids=lambda value: f"{type(value).__name__} {value}"[:60] if isinstance(value, Exception) else value.__name__,
)
def test_nats_errors(error: Exception, kind: type[TallyflowError]) -> None:
    found = jetstream_errors.map_error("publishing to tf.x", error)
    assert type(found) is kind
    assert str(found).startswith("publishing to tf.x: ")


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError._TRANSPORT, RetryableError, ""),
        (KafkaError._ALL_BROKERS_DOWN, RetryableError, ""),
        (KafkaError._TIMED_OUT, RetryableError, ""),
        (KafkaError._RESOLVE, RetryableError, ""),
        (KafkaError.REQUEST_TIMED_OUT, RetryableError, ""),
        (KafkaError.LEADER_NOT_AVAILABLE, RetryableError, ""),
        (KafkaError.NOT_LEADER_FOR_PARTITION, RetryableError, ""),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, RetryableError, ""),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, HaltError, "create the topic"),
        (KafkaError._UNKNOWN_TOPIC, HaltError, "create the topic"),
        (KafkaError._UNKNOWN_PARTITION, HaltError, "create the topic"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, HaltError, "check the credentials and rights"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, HaltError, "check the credentials and rights"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, HaltError, "check the credentials and rights"),
        (KafkaError._AUTHENTICATION, HaltError, "check the credentials and rights"),
        (KafkaError.OFFSET_OUT_OF_RANGE, DataLossError, "on_data_loss"),
        (KafkaError._AUTO_OFFSET_RESET, DataLossError, "on_data_loss"),
    ],
    ids=lambda value: KafkaError(value).name() if isinstance(value, int) else None,
)
@pytest.mark.parametrize("is_raised", [True, False], ids=["raised", "in a message"])
def test_kafka_errors(code: int, kind: type[TallyflowError], words: str, is_raised: bool) -> None:
    error = KafkaError(code)
    found = kafka.map_error("reading orders", KafkaException(error) if is_raised else error)
    assert type(found) is kind
    assert str(found).startswith(f"reading orders: Kafka says {error.name()}")
    assert words in str(found)


def test_a_fatal_kafka_error_is_a_halt() -> None:
    assert type(kafka.map_error("reading", KafkaError(KafkaError._FATAL, "fenced", fatal=True))) is HaltError


def test_what_kafka_did_not_raise_is_a_halt() -> None:
    assert type(kafka.map_error("reading", TypeError("a bug"))) is HaltError
