"""The table of errors: each has one class and a remedy, connectors and pipeline files go by it, and docs/errors.md is what it says."""

from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
import pytest
import yaml
from clickhouse_connect.driver.exceptions import DatabaseError
from confluent_kafka import KafkaError
from nats.js.errors import APIError

from pipelines import errors
from pipelines.config import OnError, PipelineConfig, parse, version_of
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.clickhouse import errors as clickhouse_errors
from pipelines.connectors.kafka import client as kafka
from pipelines.connectors.nats import errors as jetstream_errors
from pipelines.error_classes import ErrorClasses, table
from pipelines.error_classes import docs as error_docs
from pipelines.error_classes.rows import ErrorClass, ErrorRow, System, read_rows
from pipelines.errors import ConfigurationError, ConflictError, HaltError, RefusedError, RetryableError, TallyflowError

PAGE = Path(__file__).parents[3] / error_docs.TARGET
KINDS: dict[ErrorClass, tuple[type[TallyflowError], ...]] = {
    "retryable": (RetryableError, ConflictError),
    "record": (RefusedError,),
    "halt": (HaltError,),
}


def rows_of(system: System) -> list[ErrorRow]:
    return [row for row in table() if row.system == system]


def name_of(row: ErrorRow) -> str:
    return f"{row.name}{' ' + row.words if row.words else ''}"


def test_no_code_and_no_name_stands_twice() -> None:
    codes = [(row.system, row.code, row.words) for row in table() if row.code is not None]
    names = [(row.system, row.name, row.words) for row in table()]
    assert (len(set(codes)), len(set(names))) == (len(codes), len(names))


@pytest.mark.parametrize("row", table(), ids=name_of)
def test_every_error_has_a_meaning_and_a_remedy(row: ErrorRow) -> None:
    assert len(row.meaning) > 10
    assert len(row.remedy) > 10


@pytest.mark.parametrize(
    ("group", "error"),
    [
        ('error_class = "drop"\nremedy = "wait"\nerrors = [[1, "NAME", "words"]]', ValueError),
        ('error_class = "halt"\nremedy = ""\nerrors = [[1, "NAME", "words"]]', ValueError),
        ('error_class = "halt"\nremedy = "wait"\nis_vage = true\nerrors = [[1, "NAME", "words"]]', TypeError),
        ('error_class = "halt"\nremedy = "wait"\nerrors = [["words"]]', ValueError),
    ],
    ids=["unknown class", "no remedy", "unknown key", "no name"],
)
def test_a_faulty_file_of_errors_is_refused_when_it_is_read(group: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_rows("kafka", f"[[group]]\n{group}")


def test_every_error_class_of_ours_is_in_the_table() -> None:
    ours = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, TallyflowError)}
    assert {row.name for row in rows_of("tallyflow")} == ours - {"TallyflowError"}


@pytest.mark.parametrize("row", rows_of("kafka"), ids=name_of)
def test_the_kafka_connector_agrees_with_the_table(row: ErrorRow) -> None:
    assert row.code is not None
    error = KafkaError(row.code)
    assert error.name() == row.name
    found = kafka.map_error("reading", error)
    assert isinstance(found, KINDS[row.error_class])
    assert row.remedy in str(found)


@pytest.mark.parametrize("row", rows_of("nats"), ids=name_of)
def test_the_nats_connector_agrees_with_the_table(row: ErrorRow) -> None:
    if row.code is not None:
        has_own = row.code > 1000
        error: Exception = APIError(code=400 if has_own else row.code, err_code=row.code if has_own else None, description="words")
    elif row.name == "OSError":
        error = OSError("words")
    else:
        error = (getattr(nats.errors, row.name, None) or getattr(nats.js.errors, row.name))()
    assert isinstance(jetstream_errors.map_error("publishing", error), KINDS[row.error_class])


@pytest.mark.parametrize("row", rows_of("clickhouse"), ids=name_of)
def test_the_clickhouse_connector_agrees_with_the_table(row: ErrorRow) -> None:
    error = DatabaseError(f"Code: {row.code}. DB::Exception: {row.words or 'words'}. ({row.name})", code=row.code, name=row.name)
    found = clickhouse_errors.refusal(error) or clickhouse_errors.map_error("inserting", error)
    if row.is_vague:
        assert isinstance(found, RefusedError)
        assert not found.is_known
        found = clickhouse_errors.map_error("reading", error)
    assert isinstance(found, KINDS[row.error_class])
    assert f"ClickHouse error {row.code}" in str(found)


def on_error(**fields: Any) -> OnError:
    return parse(f"{EXAMPLE}\n{yaml.safe_dump({'on_error': fields})}", name="file", environment={}).on_error


def faults(value: Any) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(f"{EXAMPLE}\n{yaml.safe_dump({'on_error': value})}", name="file", environment={})
    return {fault.path: fault.message for fault in caught.value.faults}


def server_error(code: int, text: str = "words") -> DatabaseError:
    return DatabaseError(f"Code: {code}. DB::Exception: {text}", code=code)


def test_a_pipeline_file_changes_classes_by_code_and_by_name() -> None:
    classes = on_error(clickhouse={"469": "halt", "CANNOT_PARSE_UUID": "record", "516": "retryable"}).classes("clickhouse")
    assert clickhouse_errors.refusal(server_error(469), classes) is None
    assert type(clickhouse_errors.map_error("inserting", server_error(469), classes)) is HaltError
    assert type(clickhouse_errors.refusal(server_error(376), classes)) is RefusedError
    assert type(clickhouse_errors.map_error("inserting", server_error(516), classes)) is RetryableError
    assert type(clickhouse_errors.map_error("inserting", server_error(193), classes)) is HaltError, "any other keeps its class"
    waits = jetstream_errors.map_error(
        "publishing", APIError(code=404, err_code=10059), on_error(nats={"JSStreamNotFoundErr": "retryable"}).classes("nats")
    )
    assert type(waits) is RetryableError
    halts = kafka.map_error("reading", KafkaError(KafkaError._RESOLVE), on_error(kafka={"-193": "halt"}).classes("kafka"))
    assert type(halts) is HaltError


def test_a_vague_error_is_a_halt_at_once_where_the_file_says_so() -> None:
    assert clickhouse_errors.refusal(server_error(36)) is not None
    assert clickhouse_errors.refusal(server_error(36), on_error(clickhouse={"BAD_ARGUMENTS": "halt"}).classes("clickhouse")) is None


def test_a_letter_of_a_vague_error_says_that_it_is_vague() -> None:
    vague, known = clickhouse_errors.refusal(server_error(36)), clickhouse_errors.refusal(server_error(376))
    assert vague is not None and known is not None
    assert vague.of_one_row == f"{vague}; the error does not say whether a row is its cause, but this row failed alone"
    assert known.of_one_row == str(known)


def test_what_a_view_refuses_is_no_record_whatever_the_file_says() -> None:
    classes = on_error(clickhouse={"CANNOT_PARSE_UUID": "record"}).classes("clickhouse")
    error = server_error(376, "Cannot parse uuid: while pushing to view default.v")
    assert clickhouse_errors.refusal(error, classes) is None
    assert type(clickhouse_errors.map_error("inserting", error, classes)) is HaltError


def test_a_block_of_too_many_partitions_is_always_cut() -> None:
    classes = on_error(clickhouse={"TOO_MANY_PARTS": "halt"}).classes("clickhouse")
    assert clickhouse_errors.refusal(server_error(252, "Too many partitions for single INSERT block (more than 100)"), classes) is not None
    assert type(clickhouse_errors.map_error("inserting", server_error(252, "Too many parts (3000)"), classes)) is HaltError


@pytest.mark.parametrize(
    ("system", "key", "wanted", "reason"),
    [
        ("clickhouse", "516", "record", "every row would become a dead letter"),
        ("clickhouse", "UNKNOWN_TABLE", "record", "every row would become a dead letter"),
        ("clickhouse", "36", "record", "may be a row's or the table's"),
        ("clickhouse", "241", "record", "may come after rows were stored"),
        ("clickhouse", "UNKNOWN_STATUS_OF_INSERT", "record", "may come after rows were stored"),
        ("clickhouse", "252", "record", "may come after rows were stored"),
        ("clickhouse", "987654", "halt", "no such code or name"),
        ("clickhouse", "TOO_MANY_PART", "halt", "did you mean TOO_MANY_PARTS?"),
        ("clickhouse", "469", "drop", "must be one of retryable, record, halt"),
        ("nats", "10077", "record", "must be one of retryable, halt"),
        ("nats", "10071", "halt", "answered by the protocol itself"),
        ("kafka", "OFFSET_OUT_OF_RANGE", "retryable", "answered by the protocol itself"),
        ("kafka", "_SLL", "halt", "did you mean _SSL?"),
    ],
)
def test_a_class_that_makes_no_sense_is_a_fault_at_its_path(system: str, key: str, wanted: str, reason: str) -> None:
    found = faults({system: {key: wanted}})
    assert found.keys() == {f"on_error.{system}.{key}"}
    assert reason in found[f"on_error.{system}.{key}"]


def test_an_error_that_is_given_by_code_and_by_name_is_a_fault() -> None:
    assert faults({"clickhouse": {"469": "halt", "VIOLATED_CONSTRAINT": "halt"}}) == {
        "on_error.clickhouse.VIOLATED_CONSTRAINT": "VIOLATED_CONSTRAINT is given twice, by code and by name"
    }


@pytest.mark.parametrize("value", ["dead_letter", "halt"])
def test_one_word_says_what_becomes_of_rejected_records(value: str) -> None:
    config = parse(f"{EXAMPLE}\non_error: {value}", name="file", environment={})
    assert config.on_error == OnError(rejected=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("percent", "message"), [(0, "must be at least 1"), (101, "must be at most 100"), (True, "must be a whole number")]
)
def test_the_share_of_the_circuit_breaker_is_a_whole_percentage(percent: Any, message: str) -> None:
    assert message in faults({"max_rejected_percent": percent})["on_error.max_rejected_percent"]


def test_a_file_without_on_error_keeps_its_version() -> None:
    def version(more: str) -> str:
        config: PipelineConfig = parse(f"{EXAMPLE}\n{more}", name="file", environment={})
        return version_of(config)

    assert version("") == version("on_error: dead_letter") == version("on_error: {max_rejected_percent: 20}")


def test_a_code_without_a_row_is_no_error_of_a_name() -> None:
    assert ErrorClasses("clickhouse").row(987_654) is None
    assert ErrorClasses("clickhouse").of(None) == "halt"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == error_docs.render(), "run `python -m pipelines.error_classes.docs`"
