"""What `tallyflow dagster` does before it starts: the dagster.yaml that it writes, and the addresses that it needs."""

import ssl
import subprocess
from pathlib import Path

import dagster as dg
import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.cli.dagster import _wait_until_up, write_instance
from pipelines.errors import HaltError

PROJECT = Path(__file__).resolve().parents[3] / "dagster_project"
URL = "postgresql+psycopg2://dagster:sesame@db/dagster"


def test_without_a_url_dagster_keeps_to_sqlite(tmp_path: Path) -> None:
    write_instance(tmp_path / "dagster", "")
    assert "storage" not in yaml.safe_load((tmp_path / "dagster" / "dagster.yaml").read_text())


def test_with_a_url_it_is_both_files_without_a_password(tmp_path: Path) -> None:
    write_instance(tmp_path, URL)
    written = (tmp_path / "dagster.yaml").read_text()
    assert written == (PROJECT / "dagster.yaml").read_text() + (PROJECT / "postgres.yaml").read_text()
    assert yaml.safe_load(written)["storage"] == {"postgres": {"postgres_url": {"env": "DAGSTER_POSTGRES_URL"}}}


def test_a_run_waits_longer_than_a_code_server_restarts(tmp_path: Path) -> None:
    write_instance(tmp_path, "")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    assert queue.max_user_code_failure_retries * queue.user_code_failure_retry_delay >= 60


@pytest.mark.parametrize(("existing", "words"), [("telemetry: {}", "does not use it"), ("# DAGSTER_POSTGRES_URL", "")])
def test_a_present_file_stays_and_is_named_if_it_ignores_the_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], existing: str, words: str
) -> None:
    (tmp_path / "dagster.yaml").write_text(existing)
    write_instance(tmp_path, URL)
    assert (tmp_path / "dagster.yaml").read_text() == existing
    answer = capsys.readouterr().out
    assert words in answer
    assert bool(answer) == bool(words)
    assert "sesame" not in answer


def test_a_url_without_a_driver_is_refused_without_telling_it(tmp_path: Path) -> None:
    with pytest.raises(HaltError, match=r"start it with postgresql\+psycopg2://$") as error:
        write_instance(tmp_path, "postgresql://dagster:sesame@db/dagster")
    assert "sesame" not in str(error.value)


def test_no_setting_is_said_twice() -> None:
    """YAML lets the second one win and says nothing."""
    lines = [line for name in ("dagster.yaml", "postgres.yaml") for line in (PROJECT / name).read_text().splitlines()]
    settings = [line.partition(":")[0] for line in lines if line[:1].isalpha()]
    assert len(settings) == len({*settings})


def test_the_instance_is_valid_and_has_no_telemetry(tmp_path: Path) -> None:
    write_instance(tmp_path, "")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1


def test_missing_addresses_of_own_servers_are_named(tmp_path: Path) -> None:
    lacking = {"KAFKA_BOOTSTRAP": None, "NATS_URL": None, "CLICKHOUSE_PORT": None}
    environment = {"CLICKHOUSE_HOST": "ch", "TALLYFLOW_HOME": str(tmp_path), "TALLYFLOW_PIPELINES": str(tmp_path), **lacking}
    found = CliRunner().invoke(app, ["dagster", "--own-servers"], env=environment)
    assert found.exit_code == 1
    assert "set KAFKA_BOOTSTRAP, CLICKHOUSE_PORT" in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


def test_a_start_that_is_waited_for_reads_certificates_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: read.append(1) or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    (tmp_path / "log").write_text("broken")
    with subprocess.Popen(["sleep", "0.5"]) as process, pytest.raises(HaltError, match=r"no answer at http://127\.0\.0\.1:1; the end of"):
        _wait_until_up(process, "http://127.0.0.1:1", tmp_path / "log")
    assert len(read) == 1
