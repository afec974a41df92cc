"""`tallyflow validate`: each fault with its line and column."""

from pathlib import Path

from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.config.docs import EXAMPLE
from pipelines.config.text import location_of, path_text

SERVERS = {
    "KAFKA_BROKERS": "127.0.0.1:9092",
    "CLICKHOUSE_HOST": "127.0.0.1",
    "CLICKHOUSE_PORT": "8123",
    "NATS_URL": "nats://127.0.0.1:4222",
}


def validated(text: str, tmp_path: Path) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr, with the name of the file without its directory."""
    path = tmp_path / "orders.yaml"
    path.write_text(text)
    ended = CliRunner().invoke(app, ["validate", str(path)], env={**SERVERS, "COLUMNS": "400"})
    return ended.exit_code, [line.replace(f"{tmp_path}/", "") for line in ended.stderr.splitlines()]


def test_each_fault_has_its_line_and_column(tmp_path: Path) -> None:
    text = EXAMPLE.replace("type: kafka", "type: pulsar").replace("column_name: order_id,", "column_name: order id,")
    code, told = validated(text, tmp_path)
    assert code == 2
    for fault in told[1:]:
        place, _, message = fault.removeprefix("  - ").partition(": ")
        name, line, column = place.split(":")
        assert name == "orders.yaml"
        key = message.partition(":")[0].rpartition(".")[2].partition("[")[0]
        assert text.splitlines()[int(line) - 1][int(column) - 1 :].startswith(key), fault
    assert len(told) > 2


def test_a_missing_part_has_the_place_of_what_it_is_missing_in(tmp_path: Path) -> None:
    text = "\n".join(line for line in EXAMPLE.splitlines() if not line.startswith("    topic:"))
    (fault,) = validated(text, tmp_path)[1][1:]
    line = next(number for number, one in enumerate(text.splitlines(), 1) if one.startswith("  - type: kafka"))
    assert fault == f"  - orders.yaml:{line}:5: sources[0].topic: is required"


def test_a_file_that_is_no_yaml_names_its_own_place(tmp_path: Path) -> None:
    code, told = validated("version: v3\nsources: [", tmp_path)
    assert code == 2
    assert told[1].startswith("  - line 3, column 1: ")


def test_a_location_is_read_from_its_text() -> None:
    for location in (("sources", 0, "schema_fields", 12, "name"), ("pipeline_id",), ()):
        assert location_of(path_text(location)) == location
