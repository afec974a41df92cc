"""The real servers: started, killed, repaired and stopped. Needs Java and the broker's jars (fetched once)."""

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import nats
import nats.errors
import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from nats.js.api import StorageType, StreamConfig
from support.pipeline_case import pause

from pipelines.control.processes import identify
from resources.local.clickhouse.service import ClickHouse
from resources.local.errors import LocalServerError
from resources.local.kafka.broker import Kafka
from resources.local.nats import Nats
from resources.local.processes import HOME_MARK
from resources.local.server import Patience
from resources.local.stack import SERVERS, Addresses, LocalStack

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_brokers")]

SILENT = {"log_level": 0}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    one = LocalStack(tmp_path_factory.mktemp("home"))
    yield one
    one.down()


@pytest.fixture
def small_stack(tmp_path: Path) -> Iterator[LocalStack]:
    one = LocalStack(tmp_path / "home", kinds=[Nats()])
    yield one
    one.down()


def processes_of(home: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(HOME_MARK) == str(home.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.name()}")
        except psutil.Error:
            continue
    return found


def pids(stack: LocalStack) -> dict[str, int | None]:
    return {one.name: one.pid for one in stack.status() if one.state == "healthy"}


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write_records(addresses: Addresses, topic: str, count: int) -> None:
    admin = AdminClient({**addresses.kafka_client, **SILENT})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    failures: list[object] = []
    producer = Producer({**addresses.kafka_client, "acks": "all", **SILENT})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=lambda error, _record: failures.append(error))
    assert producer.flush(20) == 0
    assert failures == [None] * count


def read_records(addresses: Addresses, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({**addresses.kafka_client, "group.id": "reader", **SILENT})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [record.value() for record in consumer.consume(count, timeout=20)]
    finally:
        consumer.close()


async def publish(addresses: Addresses, stream: str, count: int) -> None:
    client = await nats.connect(addresses.nats_url)
    context = client.jetstream()
    await context.add_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"], storage=StorageType.FILE))
    for number in range(count):
        await context.publish(f"{stream}.x", b"%d" % number)
    await client.close()


async def stored(addresses: Addresses, stream: str, count: int) -> list[bytes | None]:
    client = await nats.connect(addresses.nats_url)
    messages = [(await client.jetstream().get_msg(stream, number)).data for number in range(1, count + 1)]
    await client.close()
    return messages


async def ignore(_error: Exception) -> None:
    """The client logs what it also raises."""


def query(addresses: Addresses, sql: str) -> str:
    answer = httpx.post(
        f"http://{addresses.clickhouse_host}:{addresses.clickhouse_port}/",
        content=sql,
        auth=(addresses.clickhouse_user, addresses.clickhouse_password),
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    return answer.text.strip()


def test_up_leaves_healthy_servers_alone(stack: LocalStack) -> None:
    addresses = stack.up()
    before = pids(stack)
    assert before.keys() == set(SERVERS)
    assert stack.up() == addresses == stack.addresses()
    assert pids(stack) == before


def test_servers_listen_on_loopback_only(stack: LocalStack) -> None:
    stack.up()
    for pid in pids(stack).values():
        listening = [one.laddr for one in psutil.Process(pid).net_connections() if one.status == psutil.CONN_LISTEN]
        assert listening and {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_nobody_gets_in_without_the_password(stack: LocalStack) -> None:
    addresses = stack.up()
    for login in ({}, {**addresses.kafka_client, "sasl.password": "wrong"}):
        admin = AdminClient({"bootstrap.servers": addresses.kafka_bootstrap, **login, **SILENT})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3)
    ports = {one.laddr.port for one in psutil.Process(pids(stack)["kafka"]).net_connections() if one.status == psutil.CONN_LISTEN}
    (controller,) = ports - {int(addresses.kafka_bootstrap.rpartition(":")[2])}
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": f"127.0.0.1:{controller}", **SILENT}).list_topics(timeout=3)

    for url in (f"nats://{addresses.nats_address}", f"nats://tallyflow:wrong@{addresses.nats_address}"):
        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            asyncio.run(nats.connect(url, allow_reconnect=False, error_cb=ignore))

    clickhouse = f"http://{addresses.clickhouse_host}:{addresses.clickhouse_port}/"
    for auth in (None, ("default", ""), ("default", "wrong")):
        assert httpx.post(clickhouse, content="SELECT 1", auth=auth, trust_env=False, timeout=60).status_code == 403


def test_what_the_servers_keep_is_for_their_owner_only(stack: LocalStack) -> None:
    stack.up()
    opened = [path for path in (stack.home / "servers").rglob("*") if path.is_dir() and path.stat().st_mode & 0o077]
    assert stat.S_IMODE((stack.home / "servers").stat().st_mode) == 0o700
    assert [path for path in opened if "data" not in path.parts] == []
    for name in ("passwords.json", "kafka/server.properties", "nats/nats.conf", "clickhouse/users.json"):
        assert stat.S_IMODE((stack.home / "servers" / name).stat().st_mode) == 0o600
    assert not (stack.home / "servers/kafka/data/meta.properties").stat().st_mode & 0o077


def test_servers_without_passwords_get_them_and_keep_their_data(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "home", kinds=[Nats(), ClickHouse()])
    addresses = stack.up()
    try:
        query(addresses, "CREATE TABLE default.kept (n UInt64) ENGINE = MergeTree ORDER BY n")
        query(addresses, "INSERT INTO default.kept VALUES (7)")
        asyncio.run(publish(addresses, "kept", 1))
        servers = stack.home / "servers"
        (servers / "passwords.json").unlink()
        (servers / "clickhouse" / "users.json").write_text('{"default": {"password": "", "rights": ["all"]}}')
        servers.chmod(0o755)
        with pytest.raises(LocalServerError, match="run `tallyflow up`"):
            stack.addresses()
        upgraded = stack.up()
        assert "" not in (upgraded.clickhouse_password, upgraded.nats_password)
        assert upgraded.nats_password != addresses.nats_password
        assert query(upgraded, "SELECT n FROM default.kept") == "7"
        assert asyncio.run(stored(upgraded, "kept", 1)) == [b"0"]
        assert stat.S_IMODE(servers.stat().st_mode) == 0o700
    finally:
        stack.down()


@pytest.mark.crash
def test_acknowledged_records_survive_kills_and_up_repairs(stack: LocalStack) -> None:
    addresses = stack.up()
    write_records(addresses, "killed", 1000)
    asyncio.run(publish(addresses, "killed", 100))
    query(addresses, "CREATE TABLE IF NOT EXISTS default.killed (n UInt64) ENGINE = MergeTree ORDER BY n")
    query(addresses, "INSERT INTO default.killed SELECT number FROM numbers(1000)")
    before = pids(stack)
    for name in SERVERS:
        stack.server(name).kill()
    assert {one.state for one in stack.status()} == {"dead"}

    assert stack.up() == addresses
    after = pids(stack)
    assert after.keys() == set(SERVERS)
    assert not set(after.values()) & set(before.values())
    assert read_records(addresses, "killed", 1000) == [b"%d" % number for number in range(1000)]
    assert asyncio.run(stored(addresses, "killed", 100)) == [b"%d" % number for number in range(100)]
    assert query(addresses, "SELECT count(), sum(n) FROM default.killed") == "1000\t499500"


def test_down_leaves_no_process_and_up_has_the_same_records(stack: LocalStack) -> None:
    addresses = stack.up()
    write_records(addresses, "stopped", 10)
    assert len(processes_of(stack.home)) >= 3
    stack.down()
    assert processes_of(stack.home) == []
    assert {one.state for one in stack.status()} == {"stopped"}
    assert stack.up() == addresses
    assert read_records(addresses, "stopped", 10) == [b"%d" % number for number in range(10)]


def test_clickhouse_users_change_without_a_restart(stack: LocalStack) -> None:
    default = stack.up()
    before = pids(stack)
    addresses = stack.up(users=["writer:s3cret", f"default:{default.clickhouse_password}"])
    assert (addresses.clickhouse_user, addresses.clickhouse_password) == ("writer", "s3cret")
    assert pids(stack) == before
    assert query(addresses, "SELECT 1") == "1"
    command_lines = " ".join(" ".join(psutil.Process(pid).cmdline()) for pid in before.values())
    assert "s3cret" not in command_lines
    assert stack.up(users=[f"default:{default.clickhouse_password}"]) == default


def test_kill_of_one_server_leaves_the_others_running(stack: LocalStack) -> None:
    stack.up()
    before = pids(stack)
    stack.server("nats").kill()
    assert stack.server("nats").pid is None
    stack.server("nats").start()
    after = pids(stack)
    assert after.pop("nats") != before.pop("nats")
    assert after == before


@pytest.mark.crash
def test_two_ups_at_once_start_each_server_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    code = (
        "import sys; from pathlib import Path; from resources.local.stack import LocalStack\n"
        "from resources.local.clickhouse.service import ClickHouse; from resources.local.nats import Nats\n"
        "print(LocalStack(Path(sys.argv[1]), kinds=[ClickHouse(), Nats()]).up())"
    )
    ups = [subprocess.Popen([sys.executable, "-c", code, str(home)], stdout=subprocess.PIPE, env=importing()) for _ in range(2)]
    try:
        outputs = [up.communicate(timeout=120)[0] for up in ups]
        assert [up.returncode for up in ups] == [0, 0]
        assert outputs[0] == outputs[1]
        assert len(processes_of(home)) == 2
    finally:
        LocalStack(home).down()
    assert processes_of(home) == []


def importing() -> dict[str, str]:
    """The environment of a child that imports what this process imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.crash
def test_up_takes_over_what_a_killed_up_started(tmp_path: Path) -> None:
    home = tmp_path / "home"
    stack = LocalStack(home, kinds=[ClickHouse()])
    code = (
        "import sys; from pathlib import Path; from resources.local.stack import LocalStack\n"
        "from resources.local.clickhouse.service import ClickHouse\n"
        "LocalStack(Path(sys.argv[1]), kinds=[ClickHouse()]).up()"
    )
    command = subprocess.Popen([sys.executable, "-c", code, str(home)], env=importing())
    try:
        wait_until((home / "servers" / "clickhouse" / "pid.json").exists)
        command.kill()
        command.wait()
        started = stack.server("clickhouse").pid
        stack.up()
        assert stack.server("clickhouse").pid == started
    finally:
        command.kill()
        command.wait()
        LocalStack(home).down()
    assert processes_of(home) == []


@pytest.mark.crash
@pytest.mark.parametrize("damage", ["deleted", "damaged", "of another process"])
def test_server_without_its_pid_file_is_found_by_up_and_down(small_stack: LocalStack, damage: str) -> None:
    small_stack.up()
    pid_file = small_stack.home / "servers" / "nats" / "pid.json"

    def lose_pid_file() -> None:
        contents = {"damaged": '{"pid": ', "of another process": '{"pid": 1, "start": "", "settings_sha256": "", "was_ready": true}'}
        pid_file.unlink() if damage == "deleted" else pid_file.write_text(contents[damage])

    lose_pid_file()
    small_stack.up()
    assert len(processes_of(small_stack.home)) == 1
    lose_pid_file()
    small_stack.down()
    assert processes_of(small_stack.home) == []


@pytest.mark.crash
def test_server_that_ends_while_starting_shows_its_log(small_stack: LocalStack) -> None:
    store = small_stack.home / "servers" / "nats" / "data"
    store.parent.mkdir(parents=True)
    store.write_text("not a directory")
    with pytest.raises(
        LocalServerError, match=r"(?s)starting nats on .*: process \d+ ended .*nats.log, last \d+ lines:.*storage directory"
    ):
        small_stack.up()
    assert processes_of(small_stack.home) == []
    store.unlink()
    small_stack.up()


@pytest.mark.crash
def test_server_that_never_answers_is_stopped_and_shows_its_log(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, Patience(start=timedelta(milliseconds=1)), [Kafka()])
    with pytest.raises(LocalServerError, match=r"(?s)no answer within 0 s .*asking Kafka for its topics.*\.log"):
        stack.up()
    assert processes_of(tmp_path) == []


@pytest.mark.crash
def test_hung_server_is_started_anew(small_stack: LocalStack) -> None:
    brief = Patience(hung=timedelta(seconds=1), stop=timedelta(seconds=1))
    small_stack = LocalStack(small_stack.home, brief, [Nats()])
    small_stack.up()
    hung = small_stack.server("nats").pid
    assert hung is not None
    identity = identify(hung)
    assert identity is not None
    pause(psutil.Process(hung))
    small_stack.up()
    assert not identity.is_running()
    assert small_stack.server("nats").pid is not None


def test_server_with_changed_settings_is_started_anew(small_stack: LocalStack) -> None:
    small_stack.up()
    before = small_stack.server("nats").pid
    pid_file = small_stack.home / "servers" / "nats" / "pid.json"
    pid_file.write_text(json.dumps({**json.loads(pid_file.read_text()), "settings_sha256": "of an older release"}))
    small_stack.up()
    assert small_stack.server("nats").pid not in (None, before)


def test_a_taken_port_is_named_and_new_ports_move_away(small_stack: LocalStack) -> None:
    addresses = small_stack.up()
    small_stack.down()
    with socket.create_server(("127.0.0.1", int(addresses.nats_url.rpartition(":")[2]))):
        with pytest.raises(LocalServerError, match=rf"the port is taken by process {os.getpid()} .*--new-ports"):
            small_stack.up()
        moved = small_stack.up(new_ports=True)
    assert moved.nats_url != addresses.nats_url
    assert (moved.kafka_bootstrap, moved.clickhouse_port) == (addresses.kafka_bootstrap, addresses.clickhouse_port)
