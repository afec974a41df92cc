"""Which local servers stand in for addresses that are not given. No server runs: a process that is there stands for one."""

import json
import os
from pathlib import Path

import pytest

from pipelines.control.processes import identify
from pipelines.errors import HaltError
from pipelines.init.file_text import Place
from pipelines.init.run import addresses_of
from resources.local_servers import local_servers_for

NO_NATS = "pipeline_id: orders\n"
LOCAL = """
sources: [{connection_params: {brokers: ["${KAFKA_BOOTSTRAP}"], password: "${KAFKA_SASL_PASSWORD:-}"}}]
sink: {connection_params: {host: "${CLICKHOUSE_HOST}", port: "${CLICKHOUSE_PORT}", password: "${CLICKHOUSE_PASSWORD}"}}
nats: {url: "nats://n:4222"}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose servers were set up; all of them seem to run."""
    servers = tmp_path / "servers"
    servers.mkdir()
    (servers / "ports.json").write_text('{"kafka": 21001, "nats": 21002, "clickhouse": 21003}')
    (servers / "passwords.json").write_text('{"kafka": "k-secret", "nats": "n-secret", "clickhouse": "c-secret"}')
    mine = identify(os.getpid())
    assert mine is not None
    for name in ("kafka", "nats", "clickhouse"):
        (servers / name).mkdir()
        record = {"pid": mine.pid, "start": mine.start, "settings_sha256": "", "was_ready": True}
        (servers / name / "pid.json").write_text(json.dumps(record))
    return tmp_path


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"TALLYFLOW_HOME": str(home), **more}


def test_a_file_that_names_its_nats_gets_none(home: Path) -> None:
    assert local_servers_for('nats: {url: "nats://n:4222"}', environment(home), "start").lines == ()
    assert local_servers_for(NO_NATS, environment(home, NATS_URL="nats://n:4222"), "start").variables == {}
    assert local_servers_for("nats: {username: u, password: p}", environment(home), "start").variables == {}


@pytest.mark.parametrize("text", [NO_NATS, 'nats: {url: "${NATS_URL}"}', "nats: {}"])
def test_a_file_without_nats_gets_the_address_of_the_local_one(home: Path, text: str) -> None:
    taken = local_servers_for(text, environment(home), "address")
    assert taken.variables == {"NATS_URL": "nats://tallyflow:n-secret@127.0.0.1:21002"}
    assert len(taken.lines) == 1
    assert str(home / "servers" / "nats") in taken.lines[0]
    assert "secret" not in repr(taken)


def test_no_first_nats_is_started_by_what_only_reads(tmp_path: Path) -> None:
    assert local_servers_for(NO_NATS, environment(tmp_path), "address").variables == {}
    with pytest.raises(HaltError, match=r"none was ever started in .*; start the pipeline there \(`tallyflow run`\)"):
        local_servers_for(NO_NATS, environment(tmp_path), "resume")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("master", ["spark://10.0.0.7:7077", "yarn", "k8s://https://k:6443"])
def test_executors_elsewhere_are_refused_before_a_server_starts(tmp_path: Path, master: str) -> None:
    with pytest.raises(HaltError, match="executors on other hosts cannot reach the local one; name a server that they reach"):
        local_servers_for(NO_NATS, environment(tmp_path), "start", master)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077"])
def test_executors_on_this_host_reach_the_local_nats(home: Path, master: str) -> None:
    assert local_servers_for(NO_NATS, environment(home), "address", master).variables


def test_running_servers_are_found_with_their_logins(home: Path) -> None:
    taken = local_servers_for(LOCAL, environment(home), "address")
    assert taken.variables["KAFKA_BOOTSTRAP"] == "127.0.0.1:21001"
    assert taken.variables["KAFKA_SASL_PASSWORD"] == "k-secret"
    assert taken.variables["CLICKHOUSE_PASSWORD"] == "c-secret"
    assert taken.lines == (
        "Kafka: the local one at 127.0.0.1:21001, as KAFKA_BOOTSTRAP is not set",
        "ClickHouse: the local one at 127.0.0.1:21003, as CLICKHOUSE_HOST and CLICKHOUSE_PORT are not set",
    )
    with pytest.raises(HaltError, match="the file names no Kafka"):
        local_servers_for(LOCAL, environment(home), "address", "spark://10.0.0.7:7077")


def test_a_local_login_goes_to_no_other_server(home: Path) -> None:
    elsewhere = LOCAL.replace("${KAFKA_BOOTSTRAP}", "k:9092").replace("${CLICKHOUSE_PORT}", "8123")
    assert local_servers_for(elsewhere, environment(home), "address").variables == {}
    with_default = LOCAL.replace("${KAFKA_BOOTSTRAP}", "${KAFKA_BOOTSTRAP:-k:9092}")
    assert "KAFKA_SASL_PASSWORD" not in local_servers_for(with_default, environment(home), "address").variables
    named = environment(home, KAFKA_SASL_USERNAME="me", CLICKHOUSE_HOST="ch")
    assert local_servers_for(LOCAL, named, "address").variables == {}


def test_servers_that_do_not_run_are_not_taken(home: Path) -> None:
    (home / "servers" / "kafka" / "pid.json").unlink()
    assert "KAFKA_BOOTSTRAP" not in local_servers_for(LOCAL, environment(home), "address").variables


REFERENCES = ("${KAFKA_BOOTSTRAP}", "${CLICKHOUSE_HOST}", "${CLICKHOUSE_PORT}")
BOTH = {"KAFKA_BOOTSTRAP", "CLICKHOUSE_HOST"}


@pytest.mark.parametrize(
    ("addresses", "reads_topic", "asks_table", "more", "found"),
    [
        (REFERENCES, True, True, {}, BOTH),
        (("k:9092", *REFERENCES[1:]), True, True, {}, {"CLICKHOUSE_HOST"}),
        ((REFERENCES[0], "ch", "8123"), True, True, {}, {"KAFKA_BOOTSTRAP"}),
        (REFERENCES, True, True, {"KAFKA_BOOTSTRAP": "k:9092"}, {"CLICKHOUSE_HOST"}),
        (REFERENCES, True, True, {"CLICKHOUSE_PASSWORD": "mine"}, {"KAFKA_BOOTSTRAP"}),
        (REFERENCES, False, True, {}, {"CLICKHOUSE_HOST"}),
        (REFERENCES, False, False, {}, set()),
    ],
    ids=["nothing given", "brokers given", "clickhouse given", "a variable set", "a login set", "records of a file", "nothing asked"],
)
def test_init_takes_the_servers_that_it_asks_and_nobody_names(
    home: Path, addresses: tuple[str, str, str], reads_topic: bool, asks_table: bool, more: dict[str, str], found: set[str]
) -> None:
    brokers, host, port = addresses
    login = {"username": "${CLICKHOUSE_USER:-default}", "password": "${CLICKHOUSE_PASSWORD:-}"}
    place = Place("clicks", "clicks", {"brokers": brokers}, {"host": host, "port": port, **login}, "clicks")
    taken = local_servers_for(addresses_of(place, reads_topic, asks_table), environment(home, **more), "address")
    assert taken.variables.keys() & BOTH == found
    assert "NATS_URL" not in taken.variables
    assert len(taken.lines) == len(found)
