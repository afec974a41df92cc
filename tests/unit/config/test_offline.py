"""Files of commands that connect to nothing: what only connections read may be missing from the environment; other faults are told."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.config import parse
from pipelines.errors import ConfigurationError

FILE = """
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks
    connection_params:
      {brokers: ["${BROKERS}"], protocol: "${PROTOCOL}", mechanism: PLAIN, username: "${USER_NAME}", password: {file: no/such/file}}
    schema_fields: [{name: id, type: int}]
sink:
  type: clickhouse
  connection_params: {host: "${HOST}", port: "${PORT}", password: "${PASSWORD}", database: shop}
  table: clicks
  mapping: [{name: id, column_name: id, column_type: Int64}]
nats: {url: "${NATS}"}
state_uri: ${STATE}
"""
CASES = "tests: [{name: one, given: [{value: {id: 1}}], expect: {rows: [{id: 1}]}}]"


def faults(text: str, offline: bool = True, **environment: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        parse(text, name="file", environment=environment, offline=offline)
    return [fault.path for fault in raised.value.faults]


def test_connections_may_lack_their_values() -> None:
    config = parse(FILE, name="file", environment={"HOST": "known"}, offline=True)
    connection = config.sink.connection_params
    assert (connection.host, connection.port, connection.database) == ("known", 8123, "shop")
    assert config.sources[0].connection_params.brokers == ("unset.invalid:9092",)
    assert (config.nats.url, config.state_uri) == ("nats://127.0.0.1:4222", "")


def test_two_servers_that_are_not_known_are_not_one() -> None:
    sink = FILE[FILE.index("sink:\n") : FILE.index("nats:")]
    entry = sink.removeprefix("sink:\n").replace("\n  ", "\n    ").strip()
    several = "sinks:\n" + "".join(f"  - id: s{number}\n    {entry}\n".replace("${HOST}", f"${{H{number}}}") for number in range(2))
    config = parse(FILE.replace(sink, several), name="file", environment={}, offline=True)
    assert len({sink.connection_params.host for sink in config.all_sinks}) == 2


def test_a_command_that_connects_needs_every_value() -> None:
    params = "sources[0].connection_params"
    assert {f"{params}.brokers[0]", f"{params}.password", "sink.connection_params.port", "nats.url", "state_uri"} <= {
        *faults(FILE, offline=False)
    }


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("topic: clicks", "topic: ${TOPIC}", "sources[0].topic"),
        ("database: shop", 'database: "${DATABASE}"', "sink.connection_params.database"),
        ("mechanism: PLAIN", "mechanisms: PLAIN", "sources[0].connection_params.mechanisms"),
        ('"${NATS}"', '"${NATS"', "nats.url"),
        ("name: id, column_name", "name: idd, column_name", "sink.mapping[0].name"),
    ],
)
def test_other_faults_are_told_alone(old: str, new: str, path: str) -> None:
    assert old in FILE
    assert faults(FILE.replace(old, new)) == [path]


@pytest.mark.parametrize("command", [["preview", "--input", "-"], ["test"], ["ddl"]], ids=" ".join)
def test_commands_without_servers_run_without_addresses(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "clicks.yaml"
    file.write_text(FILE)
    file.with_suffix(".tests.yaml").write_text(CASES)
    shown = CliRunner().invoke(app, [command[0], str(file), *command[1:]], input='{"id": 1}\n')
    assert shown.exit_code == 0, shown.output


def test_the_newest_records_of_kafka_need_its_address(tmp_path: Path) -> None:
    file = tmp_path / "clicks.yaml"
    file.write_text(FILE)
    shown = CliRunner().invoke(app, ["preview", str(file), "--from-topic", "3"])
    assert shown.exit_code == 2
    assert "BROKERS" in shown.stderr
