import json
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipelines.home import default_home
from pipelines.private import private_directory
from resources.local.cli import _table, app
from resources.local.errors import LocalServerError
from resources.local.nats import Nats
from resources.local.passwords import keep_passwords, read_passwords
from resources.local.server import Patience, ServerStatus
from resources.local.stack import Addresses, LocalStack

ADDRESSES = Addresses("127.0.0.1:21001", "k-secret", "127.0.0.1:21002", "n-secret", "127.0.0.1", 21003, "default", "it's $ecret")


def set_up(home: Path) -> None:
    (home / "servers").mkdir(parents=True)
    (home / "servers" / "ports.json").write_text('{"kafka": 21001, "nats": 21002, "clickhouse": 21003}')
    (home / "servers" / "passwords.json").write_text('{"kafka": "k-secret", "nats": "n-secret", "clickhouse": "c-secret"}')


def test_addresses_become_quoted_shell_exports() -> None:
    assert ADDRESSES.shell_exports().splitlines() == [
        "export KAFKA_BOOTSTRAP=127.0.0.1:21001",
        "export KAFKA_SECURITY_PROTOCOL=SASL_PLAINTEXT",
        "export KAFKA_SASL_MECHANISM=PLAIN",
        "export KAFKA_SASL_USERNAME=tallyflow",
        "export KAFKA_SASL_PASSWORD=k-secret",
        "export NATS_URL=nats://tallyflow:n-secret@127.0.0.1:21002",
        "export CLICKHOUSE_HOST=127.0.0.1",
        "export CLICKHOUSE_PORT=21003",
        "export CLICKHOUSE_USER=default",
        "export CLICKHOUSE_PASSWORD='it'\"'\"'s $ecret'",
    ]


def test_password_is_not_in_the_repr_of_addresses() -> None:
    assert "ecret" not in repr(ADDRESSES)


def test_home_is_as_named_or_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_home({}) == tmp_path / ".tallyflow"
    assert default_home({"TALLYFLOW_HOME": "elsewhere"}) == tmp_path / "elsewhere"


def test_addresses_before_the_first_up_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalServerError, match="run `tallyflow up`"):
        LocalStack(tmp_path).addresses()


def test_servers_without_passwords_have_no_addresses_until_up(tmp_path: Path) -> None:
    set_up(tmp_path)
    (tmp_path / "servers" / "passwords.json").unlink()
    with pytest.raises(LocalServerError, match="run `tallyflow up`"):
        LocalStack(tmp_path).addresses()


def test_passwords_are_random_kept_and_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "passwords.json"
    made = keep_passwords(path, ["kafka", "nats"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made["kafka"] != made["nats"] and min(map(len, made.values())) >= 32
    assert keep_passwords(path, ["kafka", "nats", "clickhouse"]).items() >= made.items()
    path.write_text('{"kafka": ""}')
    with pytest.raises(LocalServerError, match="delete it and run `tallyflow up`"):
        read_passwords(path)


def test_a_home_is_private_and_what_was_open_in_it_is_closed(tmp_path: Path) -> None:
    old = tmp_path / "home" / "servers"
    old.mkdir(parents=True, mode=0o755)
    private_directory(old)
    private_directory(tmp_path / "home" / "pipelines" / "orders")
    private_directory(tmp_path / "new" / "servers")
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in sorted(tmp_path.rglob("*"))}
    assert modes.pop("home") & 0o700 == 0o700
    assert set(modes.values()) == {0o700}, modes


def test_inspecting_or_stopping_an_unused_home_creates_nothing(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "home")
    assert [(one.name, one.state) for one in stack.status()] == [("kafka", "stopped"), ("nats", "stopped"), ("clickhouse", "stopped")]
    stack.down(purge=True)
    assert not (tmp_path / "home").exists()


def test_pid_file_of_a_gone_process_is_dead_and_not_signalled(tmp_path: Path) -> None:
    set_up(tmp_path)
    record = tmp_path / "servers" / "nats" / "pid.json"
    record.parent.mkdir()
    record.write_text('{"pid": 1, "start": "another-boot/1", "settings_sha256": "", "was_ready": true}')
    stack = LocalStack(tmp_path, Patience(start=timedelta(seconds=1)), [Nats()])
    (status,) = stack.status()
    assert (status.state, status.pid, status.address) == ("dead", None, "127.0.0.1:21002")
    stack.server("nats").kill()
    stack.down()
    assert [one.state for one in stack.status()] == ["stopped"]


def test_purge_deletes_what_the_servers_hold_but_not_the_ports(tmp_path: Path) -> None:
    set_up(tmp_path)
    (tmp_path / "servers" / "nats" / "data").mkdir(parents=True)
    stack = LocalStack(tmp_path)
    stack.down()
    assert (tmp_path / "servers" / "nats" / "data").exists()
    stack.down(purge=True)
    assert not (tmp_path / "servers" / "nats").exists()
    assert stack.addresses().nats_url == "nats://tallyflow:n-secret@127.0.0.1:21002"
    assert stack.addresses().clickhouse_password == "c-secret"


def test_down_stops_the_named_servers_only(tmp_path: Path) -> None:
    set_up(tmp_path)
    for name in ("kafka", "nats"):
        (tmp_path / "servers" / name).mkdir()
    home = ["--home", str(tmp_path)]
    assert CliRunner().invoke(app, ["down", "kafka", "--purge", "--yes", *home]).exit_code == 0
    assert [path.name for path in sorted((tmp_path / "servers").glob("[kn]*[as]"))] == ["nats"]
    unknown = CliRunner().invoke(app, ["down", "kafak", *home])
    assert (unknown.exit_code, "stopping kafak: there are kafka, nats, clickhouse" in unknown.stderr) == (1, True)


def test_env_prints_exports_or_json(tmp_path: Path) -> None:
    set_up(tmp_path)
    plain = CliRunner().invoke(app, ["env", "--home", str(tmp_path)])
    assert (plain.exit_code, plain.stdout.splitlines()[0]) == (0, "export KAFKA_BOOTSTRAP=127.0.0.1:21001")
    machine = CliRunner().invoke(app, ["env", "--json"], env={"TALLYFLOW_HOME": str(tmp_path)})
    assert json.loads(machine.stdout)["CLICKHOUSE_PORT"] == "21003"


def test_env_before_up_fails_with_the_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["env", "--home", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "run `tallyflow up`" in result.stderr


def test_status_exits_with_one_unless_all_are_healthy(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["status", "--json", "--home", str(tmp_path)])
    assert result.exit_code == 1
    assert {one["state"] for one in json.loads(result.stdout)} == {"stopped"}


def test_purge_asks_first(tmp_path: Path) -> None:
    set_up(tmp_path)
    (tmp_path / "servers" / "nats").mkdir()
    declined = CliRunner().invoke(app, ["down", "--purge", "--home", str(tmp_path)], input="n\n")
    assert declined.exit_code == 1
    assert (tmp_path / "servers" / "nats").exists()
    assert CliRunner().invoke(app, ["down", "--purge", "--yes", "--home", str(tmp_path)]).exit_code == 0
    assert not (tmp_path / "servers" / "nats").exists()


def test_the_table_of_servers_fits_a_terminal_of_80_columns() -> None:
    since = datetime.now(UTC) - timedelta(days=3, hours=23, minutes=5)
    status = ServerStatus("clickhouse", "unhealthy", "127.0.0.1:31999", 4_194_303, "26.9.2.1", since, 2_000 * 2**20)
    console = Console(width=80)
    with console.capture() as shown:
        console.print(_table([status]))
    row = next(line for line in shown.get().splitlines() if "clickhouse" in line)
    assert row.split() == ["clickhouse", "unhealthy", "4194303", "127.0.0.1:31999", "26.9.2.1", "3", "d", "23", "h", "2000", "MiB"]
