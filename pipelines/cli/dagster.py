"""The command that shows pipelines in Dagster on this machine.

Dagster's web server, daemon and code server are separate processes that end together; nothing here imports Dagster.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import psutil
import typer

from pipelines.cli.arguments import err, errors_as_exit, out
from pipelines.config import load
from pipelines.config.source_ids import only_source
from pipelines.errors import HaltError, RetryableError
from pipelines.home import default_home
from pipelines.shipped import shipped
from resources.local import cli as local_cli
from resources.local.ports import HOST, is_free, keep_ports, port_holder
from resources.local.server import START_TIMEOUT

if TYPE_CHECKING:
    from pipelines.connectors.kafka.client import KafkaTopic

DIRECTORY_VARIABLE = "TALLYFLOW_PIPELINES"
SCHEDULES_VARIABLE = "TALLYFLOW_SCHEDULES"
POSTGRES_VARIABLE = "DAGSTER_POSTGRES_URL"
HOME_VARIABLE = "DAGSTER_HOME"
_ROOT = Path(__file__).resolve().parents[2]
_EXAMPLE = shipped("examples") / "orders" / "pipeline.yaml"
_INSTANCE = _ROOT / "dagster_project" / "dagster.yaml"
_POSTGRES = _ROOT / "dagster_project" / "postgres.yaml"
_SAMPLE_ORDERS = 20_000
_START_SECONDS = 180.0
_POLL_SECONDS = 0.2
_PATIENCE = timedelta(seconds=60)
_END_WITHIN = timedelta(seconds=30)
_KILLED_WITHIN = timedelta(seconds=10)
_SERVER_NAMES = ("KAFKA_BOOTSTRAP", "CLICKHOUSE_HOST", "CLICKHOUSE_PORT")
"""Without NATS_URL, a runner starts the local NATS."""


def dagster(
    pipelines: Annotated[
        Path | None,
        typer.Option(
            envvar=DIRECTORY_VARIABLE, help="Directory of pipeline files.", show_default="examples/orders/", exists=True, file_okay=False
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the web page. Default: a free port, reused at the next start.")
    ] = None,
    own_servers: Annotated[
        bool, typer.Option("--own-servers", help="Use your own Kafka, NATS and ClickHouse, which the environment names.")
    ] = False,
) -> None:
    """Show the pipelines in Dagster, on loopback, with the local servers. Ctrl-C stops everything; the next start resumes the pipelines."""
    with errors_as_exit(), local_cli.errors_as_exit():
        if importlib.util.find_spec("dagster") is None or importlib.util.find_spec("dagster_webserver") is None:
            raise HaltError("starting Dagster: it is not installed; run `pip install 'tallyflow[dagster]'`, or `make venv` in a checkout")
        if pipelines is None and not _EXAMPLE.exists():
            raise HaltError(f"starting Dagster: {_EXAMPLE} is missing; name the directory of your pipeline files with --pipelines")
        home = default_home()
        with _signals_as_interrupts(), _servers(home, own_servers) as environment:
            if pipelines is None:
                _give_orders(environment)
            _serve(home, port, {**environment, **({DIRECTORY_VARIABLE: str(pipelines.resolve())} if pipelines else {})})


@contextmanager
def _on_signals(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C, even where a background shell has disabled it, and SIGTERM by `handle` inside the block."""
    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C; either ends the block."""
    with _on_signals(signal.default_int_handler):
        try:
            yield
        except KeyboardInterrupt:
            out.print("stopped")


def _undisturbed() -> AbstractContextManager[None]:
    """Ignore further Ctrl-C and SIGTERM inside the block.

    The work here is bounded, and an interrupt would leave processes running. Child processes do not inherit the handlers.
    """
    return _on_signals(lambda *_: None)


@contextmanager
def _servers(home: Path, own_servers: bool) -> Iterator[dict[str, str]]:
    """Yield the environment for everything that is started.

    Stops only the servers that it started itself.
    """
    environment = {**os.environ, "TALLYFLOW_HOME": str(home)}
    if own_servers:
        missing = [name for name in _SERVER_NAMES if not environment.get(name)]
        if missing:
            raise HaltError(f"starting Dagster with your own servers: set {', '.join(missing)}")
        yield environment
        return
    from resources.local.stack import LocalStack

    stack = LocalStack(home)
    ran_before = all(one.state == "healthy" for one in stack.status())
    if not ran_before:
        out.print("starting Kafka, NATS and ClickHouse", highlight=False)
        local_cli.up(home, None, START_TIMEOUT.total_seconds(), new_ports=False)
    try:
        yield environment | stack.addresses().environment()
    finally:
        if not ran_before:
            out.print("stopping Kafka, NATS and ClickHouse", highlight=False)
            with _undisturbed():
                stack.down()


def _give_orders(environment: Mapping[str, str]) -> None:
    """Produce sample orders to the topic of the example while the topic is empty."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

    from pipelines.connectors.kafka.client import KafkaTopic
    from pipelines.connectors.kafka.settings import client_settings
    from pipelines.demo.events import Recipe
    from pipelines.demo.produce import ensure_topic, produce

    source = only_source(load(_EXAMPLE, environment))
    connection = client_settings(source)
    ensure_topic(connection, source.topic, 4)
    # A topic that was just created has no leaders yet.
    retrying = Retrying(retry=retry_if_exception_type(RetryableError), wait=wait_fixed(0.5), stop=stop_after_delay(60), reraise=True)
    if retrying(_is_empty, KafkaTopic(source)):
        made = produce(connection, source.topic, Recipe(duplicate_share=0.1, bad_share=0.001), _SAMPLE_ORDERS)
        out.print(
            f"produced {made.produced:,} orders to topic {made.topic}: 1 in 10 is a copy, 1 in 1,000 is broken on purpose", highlight=False
        )


def _is_empty(topic: "KafkaTopic") -> bool:
    """Return whether the topic holds no record."""
    partitions = topic.facts().partitions
    return topic.ends(partitions) == topic.starts(partitions)


def write_instance(directory: Path, postgres_url: str) -> None:
    """Write dagster.yaml into the directory unless it exists: with PostgreSQL, or with SQLite if the URL is empty."""
    directory.mkdir(parents=True, exist_ok=True)
    instance = directory / "dagster.yaml"
    if not instance.exists():
        instance.write_text(_INSTANCE.read_text() + (_POSTGRES.read_text() if postgres_url else ""))
    elif postgres_url and POSTGRES_VARIABLE not in instance.read_text():
        notice = f"{POSTGRES_VARIABLE} is set, but {instance} does not use it: delete that file to have it recreated"
        out.print(notice, markup=False, highlight=False, soft_wrap=True)
        return
    if postgres_url.startswith(("postgresql://", "postgres://")):
        raise HaltError(f"starting Dagster: {POSTGRES_VARIABLE} names no driver; start it with postgresql+psycopg2://")


def _serve(home: Path, port: int | None, environment: Mapping[str, str]) -> None:
    directory = home / "dagster"
    write_instance(directory, environment.get(POSTGRES_VARIABLE, ""))
    chosen = port or keep_ports(directory / "ports.json", ["webserver"])["webserver"]
    url = f"http://{HOST}:{chosen}"
    if not is_free(chosen):
        raise HaltError(
            f"starting Dagster: port {chosen} is in use by {port_holder(chosen) or 'another process'}; if that is this home's Dagster, "
            f"open {url}; otherwise choose another --port"
        )
    log = directory / "dagster.log"
    settings = {"DAGSTER_DISABLE_TELEMETRY": "yes", SCHEDULES_VARIABLE: "running", **environment, HOME_VARIABLE: str(directory)}
    _show_ignored_home(directory, environment.get(HOME_VARIABLE, ""))
    command = [sys.executable, "-m", "dagster_project.web.dev", "dev", "-h", HOST, "-p", str(chosen), "-m", "dagster_project.definitions"]
    with log.open("wb") as output:
        # In its own session: Ctrl-C reaches this process only, which ends the others in their order.
        process = subprocess.Popen(command, env=settings, cwd=_ROOT, stdout=output, stderr=output, start_new_session=True)  # noqa: S603
        try:
            _wait_until_up(process, url, log)
            _show_address(url, log)
            process.wait()
            raise HaltError(f"running Dagster: it exited by itself; see {log}")
        finally:
            with _undisturbed():
                _end(process)
                _stop_pipelines(home)


def _show_ignored_home(directory: Path, foreign: str) -> None:
    """Warn that another DAGSTER_HOME is ignored.

    Its own dagster.yaml may lack our limits, and two runs could then start one pipeline at the same time.
    """
    if foreign and Path(foreign).resolve() != directory.resolve():
        notice = f"ignoring {HOME_VARIABLE} of your shell: this Dagster uses {directory}, with its own runs and settings"
        out.print(notice, markup=False, highlight=False, soft_wrap=True)


def _wait_until_up(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    import httpx

    deadline = time.monotonic() + _START_SECONDS
    # One client: each reads the system's certificates, and a start asks a hundred times.
    with err.status("starting Dagster"), httpx.Client(timeout=5, trust_env=False) as client:
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if client.get(f"{url}/server_info").is_success:
                    return
            time.sleep(_POLL_SECONDS)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise HaltError(f"starting Dagster: no answer at {url}; the end of {log}:\n{tail}")


def _show_address(url: str, log: Path) -> None:
    for line in (
        f"Dagster: {url}",
        "  1. Catalog, group orders_demo: the pipeline from topic to table. Nothing is running yet.",
        "  2. Materialize the asset clickhouse_table: this starts the pipeline (about 20 s) and shows its numbers.",
        "  3. Jobs, publish_orders_demo, Materialize: this checks the table, then publishes it.",
        f"  Log: {log}. Ctrl-C stops Dagster, the pipelines and the servers.",
    ):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _end(process: "subprocess.Popen[bytes]", patience: timedelta = _END_WITHIN) -> None:
    """Ask Dagster's processes to exit, wait, then kill and name those of its session that are left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    if not (left := _left_of(process, patience)):
        return
    named = ", ".join(str(one.pid) for one in left)
    notice = f"Dagster did not stop within {patience.total_seconds():.0f} s; killing process {named}. Pipelines are not affected"
    err.print(notice, markup=False, highlight=False, soft_wrap=True)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    _left_of(process, _KILLED_WITHIN)


def _left_of(process: "subprocess.Popen[bytes]", patience: timedelta) -> list[psutil.Process]:
    """Return the processes of the session that still run after `patience`."""
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        left = [one for one in psutil.process_iter() if _is_of(one, process.pid)]
        # Behind the look: what ends meanwhile is reaped, too.
        process.poll()
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_SECONDS)


def _is_of(one: psutil.Process, session: int) -> bool:
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        return os.getsid(one.pid) == session and one.status() != psutil.STATUS_ZOMBIE
    return False


def _stop_pipelines(home: Path) -> None:
    """Stop the runners of this home in parallel.

    Their desired state stays `running`: the next start of Dagster resumes them.
    """
    from pipelines.control.control import stop_runners

    directories = sorted((home / "pipelines").glob("*/"))
    with ThreadPoolExecutor(max(1, len(directories)), "stop") as pool:
        stopped = pool.map(lambda directory: stop_runners(directory, None, _PATIENCE), directories)
    for one in (one for _, left in stopped for one in left):
        err.print(f"process {one.pid} did not stop within {_PATIENCE.total_seconds():.0f} s; its state is safe, so kill -9 loses nothing")
