"""`tallyflow init` on a file of records: what it writes, what it asks, what it refuses. It connects to nothing."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pipelines.cli.app import app

RECORDS = [{"event_id": f"e{n}", "at": 1_769_903_999_000 + n, "amount": f"{n}.90", "kind": ("view", "buy")[n % 2]} for n in range(40)]
ENVIRONMENT = {"COLUMNS": "160", "KAFKA_SASL_PASSWORD": "canary-1", "CLICKHOUSE_PASSWORD": "canary-2"}


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sample.ndjson"
    path.write_text("\n".join(json.dumps(record) for record in RECORDS))
    return path


def run(*arguments: str, answers: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), env=ENVIRONMENT, input=answers)


def init(sample: Path, *arguments: str, answers: str = "") -> Result:
    return run("init", "--from-file", str(sample), "--topic", "shop-clicks", *arguments, answers=answers)


def test_the_file_passes_validate_lint_and_preview(sample: Path) -> None:
    made = init(sample, "--yes")
    assert made.exit_code == 0, made.output
    assert "preview of 40 JSON objects: 40 rows" in made.output
    assert "candidate keys: event_id (100.0% distinct)" in made.output
    servers = {
        "KAFKA_BOOTSTRAP": "127.0.0.1:9092",
        "NATS_URL": "nats://127.0.0.1:4222",
        "CLICKHOUSE_HOST": "127.0.0.1",
        "CLICKHOUSE_PORT": "8123",
    }
    for command in (
        ["validate", "shop-clicks.yaml"],
        ["lint", "shop-clicks.yaml"],
        ["preview", "shop-clicks.yaml", "--input", str(sample)],
    ):
        ended = CliRunner().invoke(app, command, env={**ENVIRONMENT, **servers})
        assert ended.exit_code == 0, ended.output
    assert "40 rows for default.shop_clicks" in ended.output
    assert "ORDER BY (kind, at, event_id)" in Path("shop-clicks.sql").read_text()


def test_no_secret_reaches_a_file_or_the_terminal(sample: Path) -> None:
    made = init(sample, "--yes", "--json")
    written = Path("shop-clicks.yaml").read_text() + Path("shop-clicks.sql").read_text() + made.output
    assert "canary" not in written
    assert 'password: "${KAFKA_SASL_PASSWORD:-}"' in written
    assert 'password: "${CLICKHOUSE_PASSWORD:-}"' in written


def test_files_that_exist_are_kept_without_force(sample: Path) -> None:
    Path("shop-clicks.sql").write_text("mine")
    refused = init(sample, "--yes")
    assert refused.exit_code == 1
    assert "writing shop-clicks.sql: already there; name another file, or overwrite with --force" in " ".join(refused.output.split())
    assert Path("shop-clicks.sql").read_text() == "mine"
    assert not Path("shop-clicks.yaml").exists()
    assert init(sample, "--yes", "--force").exit_code == 0
    assert Path("shop-clicks.sql").read_text() != "mine"


def test_the_json_holds_fields_keys_and_outcomes(sample: Path) -> None:
    made = init(sample, "other.yaml", "--json")
    found = json.loads(made.stdout)
    assert found["file"] == "other.yaml"
    assert found["records"] == {"sampled": 40, "objects": 40, "empty": 0, "unreadable": 0}
    assert {field["name"]: (field["type"], field["notation"], field["column_type"]) for field in found["fields"]} == {
        "event_id": ("string", "", "String"),
        "at": ("int", "ms", "DateTime64(3)"),
        "amount": ("string", "", "Decimal(18, 2)"),
        "kind": ("string", "", "LowCardinality(String)"),
    }
    assert found["keys"] == [{"name": "event_id", "distinct_share": 1.0}]
    assert (found["outcomes"], found["findings"]) == ({"row": 40}, [])


def test_questions_have_defaults_and_the_file_waits_for_a_yes(sample: Path) -> None:
    asked = run("init", "--from-file", str(sample), answers="clicks\nclicks_of_shop\nnone\nn\n")
    assert asked.exit_code == 1
    assert "Topic [sample]: " in asked.output
    assert "Table [clicks]: " in asked.output
    assert "Drop copies by this field (none: keep all) [none]: " in asked.output
    assert "Write clicks.yaml? [Y/n]: " in asked.output
    assert not Path("clicks.yaml").exists()
    assert run("init", "--from-file", str(sample), answers="clicks\nclicks_of_shop\nevent_id\n\n").exit_code == 0
    assert "table: clicks_of_shop" in Path("clicks.yaml").read_text()
    assert "config: {key: event_id, time_window: 24h}" in Path("clicks.yaml").read_text()


def test_a_directory_that_is_not_there_is_named(sample: Path) -> None:
    refused = init(sample, "nowhere/clicks.yaml", "--yes")
    assert refused.exit_code == 1
    assert "writing nowhere/clicks.yaml: No such file or directory" in refused.output


def test_without_a_topic_nothing_is_guessed() -> None:
    refused = run("init", "--yes")
    assert refused.exit_code == 2
    assert "is required" in refused.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--table", "a b"], "sink.table: must be letters, digits and underscores"),
        (["--brokers", "kafka"], "sources[0].connection_params.brokers[0]: must be host:port"),
        (["--clickhouse", "ch"], "'ch' is not host:port"),
        (["--dedup-key", "at ", "--dedup-window", "24h"], "no field 'at ' to drop copies by"),
        (["--dedup-key", "event_id", "--dedup-window", "a day"], "time_window"),
    ],
)
def test_an_option_that_no_file_may_hold_is_named(sample: Path, options: list[str], message: str) -> None:
    refused = init(sample, "--yes", *options)
    assert refused.exit_code in (1, 2)
    assert message in " ".join(refused.output.split())
    assert not Path("shop-clicks.yaml").exists()


def test_records_that_are_no_objects_are_counted_in_a_note(sample: Path) -> None:
    sample.write_text('{"id": 1}\n[2]\n')
    assert "note: 1 record without a JSON object becomes a dead letter\n" in init(sample, "--yes").output
    sample.write_text('{"id": 1}\n[2]\n3\n')
    assert "note: 2 records without a JSON object become dead letters\n" in init(sample, "--yes", "--force").output


def test_types_are_whole_at_80_columns(sample: Path) -> None:
    records = [{"payment_kind": ("card", "cash")[n % 2], "amount": f"{n}.95", "note": "x" * 60} for n in range(2_000)]
    sample.write_text("\n".join(json.dumps({**record, "amount": record["amount"] if n % 9 else None}) for n, record in enumerate(records)))
    made = CliRunner().invoke(app, ["init", "--from-file", str(sample), "--topic", "t", "--yes"], env={"COLUMNS": "80"})
    shown = made.output.splitlines()
    assert any("payment_kind" in line and "LowCardinality(String)" in line for line in shown)
    assert any("amount" in line and "Nullable(Decimal(18, 2))" in line for line in shown)
    assert max(map(len, shown[:6])) <= 80
