"""What stops a start: one clear message, nothing begun. And what looks wrong but is fine."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

from pipelines.connectors.kafka.client import KafkaTopic
from pipelines.connectors.nats.connection import REQUEST_TIMEOUT_SECONDS
from pipelines.errors import ConfigurationError, DataLossError, HaltError, NotSupportedError, RetryableError, TallyflowError
from pipelines.protocol.naming import ROLES
from pipelines.runner.events import Event
from resources.local.nats import find_nats_server
from resources.local.ports import choose_port

pytestmark = pytest.mark.integration

Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A port of loopback that refuses connections and is nobody else's meanwhile."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def refused(case: PipelineCase, kind: type[TallyflowError] = HaltError, seconds: float = 5) -> str:
    """The message with which a start fails."""
    with pytest.raises(kind) as caught:
        case.warm_run(connect_seconds=seconds)
    assert type(caught.value) is kind
    return str(caught.value)


def assert_nothing_was_made(case: PipelineCase) -> None:
    log = case.log()
    assert [role for role in ROLES if log.state(case.names.stream(role))] == []
    log.close()
    assert not case.names.directory(case.home).exists()


def table_exists(case: PipelineCase) -> bool:
    return bool(case.client().query("SELECT 1 FROM system.tables WHERE name = {t:String}", {"t": case.table}).result_rows)


def sink(**fields: Any) -> Change:
    return lambda document: document["sink"].update(fields)


POSITIONS = (
    "_tf_sequence UInt64, _tf_ordinal UInt32, _tf_emit UInt32, _tf_topic LowCardinality(String), _tf_partition Int32, "
    "_tf_offset Int64, _tf_arrival DateTime64(6, 'UTC')"
)
COLUMNS = "id Int64, name String, amount Nullable(Float64)"
WINDOW = "SETTINGS non_replicated_deduplication_window = 100"


def make_table(case: PipelineCase, columns: str = COLUMNS, engine: str = "MergeTree", more: str = "") -> None:
    order = " ORDER BY id" if "MergeTree" in engine else ""
    case.client().command(f"CREATE TABLE {case.table} ({columns}, {POSITIONS}) ENGINE = {engine}{order} {more}")


# -- the command line: message, exit code, no traceback ---------------------------------------------------------------------


def test_a_bad_file_is_refused_with_all_its_faults(case: PipelineCase) -> None:
    def spoil(document: dict[str, Any]) -> None:
        document["sources"][0]["schema_fields"][0]["type"] = "integer"
        document["sink"]["max_delay_time"] = "soon"
        document["sink"]["mapping"][1]["name"] = "nmae"
        del document["sink"]["table"]

    case.write_file(spoil)
    ended = case.invoke("run", str(case.file))
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[0] == f"{case.file}: 4 faults"
    for path in ("sources[0].schema_fields[0].type", "sink.max_delay_time", "sink.mapping[1].name", "sink.table"):
        assert f"\n  - {path}: " in ended.stderr
    assert "Traceback" not in ended.stderr
    case.write_file()
    assert_nothing_was_made(case)


# A first answer of Kafka is waited for 3 s, and so the start must wait longer to say that it waits.
@pytest.mark.crash
@pytest.mark.parametrize(("server", "seconds"), [("kafka", "6"), ("nats", "3"), ("clickhouse", "3")])
def test_a_server_that_stays_away_is_waited_for_and_then_named(case: PipelineCase, nowhere: int, server: str, seconds: str) -> None:
    variables: dict[str, Any] = {
        "kafka": {"KAFKA_BOOTSTRAP": f"127.0.0.1:{nowhere}"},
        "nats": {"NATS_URL": f"nats://127.0.0.1:{nowhere}"},
        "clickhouse": {"CLICKHOUSE_PORT": str(nowhere)},
    }[server]
    case.create_topic()
    ended = case.invoke("run", str(case.file), "--connect-timeout", seconds, **variables)
    assert ended.exit_code == 1
    told, last = ended.stderr.splitlines()
    assert " WARNING waiting: " in told
    assert str(nowhere) in last
    assert "Traceback" not in ended.stderr
    assert_nothing_was_made(case)
    assert not table_exists(case)


def test_a_table_that_does_not_fit_ends_the_command(case: PipelineCase) -> None:
    case.create_topic()
    make_table(case, "id String, name String", more=WINDOW)
    ended = case.invoke("run", str(case.file))
    assert ended.exit_code == 2
    assert ended.stderr.splitlines() == [
        f"table default.{case.table} does not fit the mapping: 2 faults",
        "  - sink.mapping[0].column_type: column 'id' is String, the file has Int64",
        "  - sink.mapping[2].column_name: the table has no column 'amount'",
    ]
    assert_nothing_was_made(case)


# -- credentials ------------------------------------------------------------------------------------------------------------


def test_a_wrong_clickhouse_password_is_refused_at_once(case: PipelineCase) -> None:
    case.create_topic()
    case.write_file(lambda document: document["sink"]["connection_params"].update(password="canary-7d1f"))
    message = refused(case)
    assert "516" in message
    assert "check `username` and `password` in the sink's connection_params" in message
    assert "canary-7d1f" not in message
    assert_nothing_was_made(case)


@contextmanager
def private_nats(directory: Path, port: int, *arguments: str) -> Iterator[None]:
    command = [str(find_nats_server()), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def nats(**fields: Any) -> Change:
    return lambda document: document.update(nats=fields)


def test_wrong_nats_credentials_are_refused_at_once(case: PipelineCase, tmp_path: Path) -> None:
    case.create_topic()
    port = choose_port(())
    url = f"nats://127.0.0.1:{port}"
    with private_nats(tmp_path / "nats", port, "--user", "pipeline", "--pass", "right"):
        for login in ({}, {"username": "pipeline", "password": "canary-7d1f"}):
            case.write_file(nats(url=url, **login))
            wait_until(lambda: "refused the credentials" in message_of(case), "an answer of the private server")
            assert "canary-7d1f" not in message_of(case)
        case.write_file(nats(url=url, username="pipeline", password="right"))
        log = case.log()
        assert log.state(case.names.stream("raw")) is None
        log.close()


def test_a_nats_that_takes_no_large_frame_is_refused(case: PipelineCase, tmp_path: Path) -> None:
    case.create_topic()
    port = choose_port(())
    (tmp_path / "nats.conf").write_text("max_payload: 1000000\n")
    with private_nats(tmp_path / "nats", port, "--config", str(tmp_path / "nats.conf")):
        case.write_file(nats(url=f"nats://127.0.0.1:{port}"))
        said = "asking for messages of 1032192 bytes, where NATS takes 1000000: nats: maximum payload exceeded; raise `max_payload`"
        wait_until(lambda: said in message_of(case), "an answer of the private server")
        looked = case.invoke("doctor", str(case.file))
        assert (looked.exit_code, said in looked.output.replace("\n", " ")) == (1, True), looked.output
        log = case.log()
        assert log.state(case.names.stream("raw")) is None
        log.close()


def message_of(case: PipelineCase) -> str:
    with pytest.raises(TallyflowError) as caught:
        case.warm_run(connect_seconds=0)
    return str(caught.value)


# -- servers that come up late ----------------------------------------------------------------------------------------------


@pytest.mark.crash
@pytest.mark.spark
def test_a_start_goes_on_when_the_servers_come_up(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300)
    reported: list[str] = []
    runner = case.warm_runner(connect_seconds=120)
    runner.report = lambda event: reported.append(event.message) if event.kind == "waiting" else None
    servers = [case.stack.server(name) for name in ("kafka", "nats", "clickhouse")]
    try:
        for server in servers:
            server.stop()
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        for server in servers:
            # It may be there by now: the server before was seen as soon as it answered.
            wait_until(lambda: any(server.name in line.lower() for line in reported), f"word of waiting for {server.name}")  # noqa: B023
            seen = len(reported)
            server.start()
    finally:
        case.stack.up()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert all(line.startswith("waiting: ") for line in reported[:seen])
    assert case.count() == 300
    case.check()


@pytest.mark.crash
@pytest.mark.parametrize("moment", ["taking the leases", "leases taken"])
def test_a_start_goes_on_when_nats_pauses_within_it(case: PipelineCase, moment: str) -> None:
    case.create_topic()
    case.send_events(30)
    runner, told = case.warm_runner(), list[str]()
    nats = case.stack.server("nats").pid
    assert nats is not None

    def report(event: Event) -> None:
        if event.message.startswith(moment):
            os.kill(nats, signal.SIGSTOP)
            threading.Timer(REQUEST_TIMEOUT_SECONDS + 2, os.kill, (nats, signal.SIGCONT)).start()
        if event.kind == "waiting":
            told.append(event.message)

    runner.report = report
    try:
        runner.run()
    finally:
        os.kill(nats, signal.SIGCONT)
    assert [one.startswith("waiting: ") and "NATS did not answer" in one for one in told] == [True]
    assert runner.waits_for == ""
    assert case.count() == 30
    case.check()


@pytest.mark.crash
@pytest.mark.parametrize("moment", ["taking the leases", "leases taken"])
def test_a_start_that_waits_within_it_is_stopped_as_asked(case: PipelineCase, moment: str) -> None:
    case.create_topic()
    runner, nats = case.warm_runner(), case.stack.server("nats").pid
    assert nats is not None

    def report(event: Event) -> None:
        if event.message.startswith(moment):
            os.kill(nats, signal.SIGSTOP)
        if event.kind == "waiting":
            runner.request_stop()

    runner.report = report
    try:
        runner.run()
    finally:
        os.kill(nats, signal.SIGCONT)
    assert not runner.is_ready


# -- topic and table --------------------------------------------------------------------------------------------------------


def test_a_missing_topic_is_refused(case: PipelineCase) -> None:
    message = refused(case)
    assert case.topic in message
    assert "create the topic, or correct `topic` in the pipeline file" in message
    assert_nothing_was_made(case)
    assert not table_exists(case)


def test_a_missing_table_is_refused_unless_the_file_says_create(case: PipelineCase) -> None:
    case.create_topic()
    case.write_file(sink(create_table=False))
    assert refused(case) == (f"checking table default.{case.table}: it does not exist; create it, or set `create_table: true` in the sink")
    assert_nothing_was_made(case)


def test_a_missing_database_is_refused(case: PipelineCase) -> None:
    case.create_topic()
    case.write_file(lambda document: document["sink"]["connection_params"].update(database="nowhere"))
    message = refused(case)
    assert "81" in message
    assert "correct `database` in the sink's connection_params" in message


def test_all_faults_of_a_table_are_told_at_once(case: PipelineCase) -> None:
    case.create_topic()
    make_table(case, "id String, name String MATERIALIZED 'x'", more=WINDOW)
    message = refused(case, ConfigurationError)
    assert message.splitlines() == [
        f"table default.{case.table} does not fit the mapping: 3 faults",
        "  - sink.mapping[0].column_type: column 'id' is String, the file has Int64",
        "  - sink.mapping[1].column_name: column 'name' is MATERIALIZED and cannot be inserted",
        "  - sink.mapping[2].column_name: the table has no column 'amount'",
    ]
    assert_nothing_was_made(case)


@pytest.mark.spark
def test_a_nullable_column_may_be_declared_by_its_base_type(case: PipelineCase) -> None:
    case.create_topic()
    make_table(
        case,
        "id Nullable(Int64), name LowCardinality(String), amount Nullable(Float64)",
        more=WINDOW.replace("100", "100, allow_nullable_key = 1"),
    )
    case.write_file(lambda document: document["sink"]["mapping"][2].update(column_type="Float64"))
    case.send([b'{"id": 1, "name": "a", "amount": null}', b'{"id": 2, "name": "b"}', b'{"id": 3, "name": "c", "amount": 1.5}'])
    case.warm_run()
    assert sorted(row[1:] for row in case.rows()) == [(1, "a", None), (2, "b", None), (3, "c", 1.5)]
    case.check()


# -- deduplication ----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_table_without_a_window_is_refused_with_its_statement(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(60)
    make_table(case)
    message = refused(case)
    assert message.startswith(
        f"checking table default.{case.table}: it remembers 0 insert tokens, exactly-once needs at least 4; run ALTER"
    )
    assert_nothing_was_made(case)
    case.client().command(message.partition("; run ")[2].partition(", or set")[0])
    case.warm_run()
    case.check()


@pytest.mark.spark
def test_a_view_target_without_a_window_is_refused(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(60)
    client = case.client()
    make_table(case, more=WINDOW)
    client.command(f"CREATE TABLE {case.table}_copy (name String, amount Nullable(Float64)) ENGINE = MergeTree ORDER BY name")
    client.command(f"CREATE MATERIALIZED VIEW {case.table}_view TO {case.table}_copy AS SELECT name, amount FROM {case.table}")
    message = refused(case)
    assert f"ALTER TABLE default.{case.table}_copy MODIFY SETTING non_replicated_deduplication_window = " in message
    case.write_file(sink(delivery="at_least_once"))
    case.warm_run()
    assert client.query(f"SELECT count() FROM {case.table}_copy").result_rows == [(60,)]
    case.check()


@pytest.mark.parametrize("engine", ["Memory", "Null", "Log"])
def test_an_engine_that_cannot_deduplicate_is_refused(case: PipelineCase, engine: str) -> None:
    case.create_topic()
    make_table(case, engine=engine)
    assert refused(case) == (
        f"checking table default.{case.table}: engine {engine} does not deduplicate inserts, so exactly-once is not possible; "
        "use a MergeTree engine, or set `delivery: at_least_once` in the sink"
    )
    assert_nothing_was_made(case)


@pytest.mark.spark
def test_at_least_once_runs_on_an_engine_that_cannot_deduplicate(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(60)
    make_table(case, engine="Memory")
    case.write_file(sink(delivery="at_least_once"))
    case.warm_run()
    case.check()


# -- what this release does not run, and what may not change -----------------------------------------------------------------


def keeping_copies_beside_a_join(document: dict[str, Any]) -> None:
    document["transforms"] = [{"type": "dedup", "source_id": "events", "config": {"key": "id", "time_window": "1h"}}]
    document["transforms"][0]["config"]["keep_duplicates"] = True
    first = document["sources"][0]
    document["sources"].append({**first, "source_id": "others", "topic": f"{first['topic']}-others"})
    document["join"] = {
        "enabled": True,
        "type": "temporal",
        "left_source": {"source_id": "events", "key": "id", "time_window": "1h"},
        "right_source": {"source_id": "others", "key": "id", "time_window": "1h"},
        "output_fields": [{"source_id": "events", "name": name, "output_name": name} for name in ("id", "name", "amount")],
    }


def test_stages_of_a_later_release_are_refused(case: PipelineCase) -> None:
    case.create_topic()
    case.write_file(keeping_copies_beside_a_join)
    message = refused(case, NotSupportedError)
    assert message.startswith(f"pipeline {case.pipeline}: not supported yet: ")
    assert message.endswith("Nothing was started")
    assert_nothing_was_made(case)


def other_buckets(document: dict[str, Any]) -> None:
    document["buckets"] = 4


def other_topic(document: dict[str, Any]) -> None:
    document["sources"][0]["topic"] += "-other"


@pytest.mark.spark
def test_another_shape_is_refused_and_the_old_one_goes_on(case: PipelineCase) -> None:
    case.create_topic()
    case.admin.create_topics([NewTopic(f"{case.topic}-other", 1, 1)])[f"{case.topic}-other"].result(30)
    case.send_events(30)
    case.warm_run()
    for change, reported in ((other_buckets, "buckets was 8, the file has 4"), (other_topic, f"{case.topic}-other")):
        case.write_file(lambda document, change=change: (change(document), document["sink"].update(table=f"{case.table}_other")))
        message = refused(case)
        assert reported in message
        assert "may not change while the pipeline lives" in message
    assert case.client().command(f"EXISTS TABLE {case.table}_other") == 0
    case.write_file()
    case.send_events(30)
    case.warm_run()
    case.check()


@pytest.mark.spark
@pytest.mark.parametrize("role", ROLES)
def test_a_stream_that_was_deleted_by_hand_is_not_made_again(case: PipelineCase, role: str) -> None:
    case.create_topic()
    case.send_events(30)
    if role == ROLES[0]:
        case.warm_run()
    else:
        case.warm_run(legs=("ingest",))
    log = case.log()
    log.delete_stream(case.names.stream(role))
    message = refused(case, DataLossError)
    assert f"of its streams {case.names.stream(role)} is missing; restore all streams from one moment" in message
    assert log.state(case.names.stream(role)) is None
    log.close()


def test_a_leaderless_partition_is_waited_for_first(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a topic that was made a moment ago."""

    def no_leader(*_: Any) -> dict[int, int]:
        raise RetryableError("listing offsets: the partition's leader has moved")

    case.create_topic()
    monkeypatch.setattr(KafkaTopic, "known_ends", no_leader)
    assert refused(case, RetryableError, seconds=1) == "listing offsets: the partition's leader has moved"
    assert_nothing_was_made(case)


def test_waiting_ends_with_the_last_reason(case: PipelineCase, nowhere: int) -> None:
    case.create_topic()
    case.write_file(lambda document: document["sink"]["connection_params"].update(port=nowhere))
    began = time.monotonic()
    message = refused(case, RetryableError, seconds=2)
    assert time.monotonic() - began > 1
    assert message.startswith("connecting to ClickHouse at 127.0.0.1:")


@pytest.mark.crash
def test_an_unreachable_key_store_is_waited_for_then_named(case: PipelineCase, nowhere: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    uri = f"s3://keys/state?endpoint_override=127.0.0.1:{nowhere}&scheme=http&region=here"
    case.create_topic()
    case.write_file(lambda document: document.update(state_uri=uri))
    message = refused(case, RetryableError, seconds=2)
    assert message.startswith("reaching the key store at keys/state: ")
    assert_nothing_was_made(case)
