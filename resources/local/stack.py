"""The local servers as one thing: `LocalStack(home).up()` returns the addresses of a running Kafka, NATS and ClickHouse.

State is kept under one home directory; ports are chosen once per home and kept. Every method with an effect takes the home's file lock, so
any number of `up` and `down` may run at once; the next `up` repairs a server that ended in between.
"""

import shlex
import shutil
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event

from filelock import FileLock, Timeout

from pipelines.private import private_directory, write_whole
from resources.local.clickhouse.service import ClickHouse, close_default_user, keep_users, read_first_user
from resources.local.errors import LocalServerError
from resources.local.kafka.broker import MECHANISM as KAFKA_MECHANISM
from resources.local.kafka.broker import PROTOCOL as KAFKA_PROTOCOL
from resources.local.kafka.broker import Kafka
from resources.local.kafka.broker import client_settings as kafka_client_settings
from resources.local.nats import Nats
from resources.local.passwords import USER, keep_passwords, read_passwords
from resources.local.ports import HOST, is_free, keep_ports, read_ports
from resources.local.server import LocalServer, Patience, Progress, ServerKind, ServerStatus
from resources.local.spark import CLUSTER, CONFIGURATION_VARIABLE, MASTER_VARIABLE, SparkMaster, configuration_file

LOCK_TIMEOUT = timedelta(minutes=10)
_OF_CLUSTER = frozenset(kind.name for kind in CLUSTER)

STATE_VARIABLE = "TALLYFLOW_STATE_URI"
SERVERS = ("kafka", "nats", "clickhouse")
"""The servers to which a pipeline connects; a Spark cluster on which it may run comes beside them, if it is asked for."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of the servers, and their logins. No password is part of the repr; `nats_url` and `kafka_client` hold theirs."""

    kafka_bootstrap: str
    kafka_password: str = field(repr=False)
    nats_address: str
    nats_password: str = field(repr=False)
    clickhouse_host: str
    clickhouse_port: int
    clickhouse_user: str
    clickhouse_password: str = field(repr=False)
    spark_master: str = ""
    """The address of the Spark cluster; empty if none was set up."""
    spark_configuration: str = ""
    """The file with its settings, and its secret."""

    @property
    def nats_url(self) -> str:
        return f"nats://{USER}:{self.nats_password}@{self.nats_address}"

    @property
    def kafka_client(self) -> dict[str, str]:
        """Settings of librdkafka that connect and log in."""
        return kafka_client_settings(self.kafka_bootstrap, self.kafka_password)

    def environment(self) -> dict[str, str]:
        """Return addresses and logins as environment variables, by the names that pipeline files use."""
        return {
            "KAFKA_BOOTSTRAP": self.kafka_bootstrap,
            "KAFKA_SECURITY_PROTOCOL": KAFKA_PROTOCOL,
            "KAFKA_SASL_MECHANISM": KAFKA_MECHANISM,
            "KAFKA_SASL_USERNAME": USER,
            "KAFKA_SASL_PASSWORD": self.kafka_password,
            "NATS_URL": self.nats_url,
            "CLICKHOUSE_HOST": self.clickhouse_host,
            "CLICKHOUSE_PORT": str(self.clickhouse_port),
            "CLICKHOUSE_USER": self.clickhouse_user,
            "CLICKHOUSE_PASSWORD": self.clickhouse_password,
            **({MASTER_VARIABLE: self.spark_master, CONFIGURATION_VARIABLE: self.spark_configuration} if self.spark_master else {}),
        }

    def shell_exports(self) -> str:
        """Return one `export NAME=value` per line, with passwords, quoted for a POSIX shell."""
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.environment().items())


def ignore_progress(_server: str, _text: str) -> None:
    """Ignore the progress."""


class LocalStack:
    """The local servers of one home. Cheap to make; nothing is read or started before a method is called."""

    def __init__(self, home: Path, patience: Patience = Patience(), kinds: Sequence[ServerKind] | None = None) -> None:  # noqa: B008
        """Take the servers in `kinds`; without it all three, in the order of the data, and the Spark cluster once it was set up."""
        self.home = home.resolve()
        self._patience = patience
        self._directory = self.home / "servers"
        self._ports_path = self._directory / "ports.json"
        self._passwords_path = self._directory / "passwords.json"
        cluster = CLUSTER if configuration_file(self._directory).exists() else ()
        self._kinds: dict[str, ServerKind] = {kind.name: kind for kind in kinds or (Kafka(), Nats(), ClickHouse(), *cluster)}

    @property
    def state_uri(self) -> str:
        """The place that the workers of the Spark cluster share: for the key stores of what runs there."""
        return (self.home / "state").as_uri()

    @property
    def is_set_up(self) -> bool:
        """Whether `up` has chosen ports and passwords; without them `addresses` and `server` raise."""
        return read_ports(self._ports_path).keys() >= set(SERVERS) and read_passwords(self._passwords_path).keys() >= set(SERVERS)

    def up(
        self, progress: Progress = ignore_progress, users: Sequence[str] = (), new_ports: bool = False, with_spark: bool = False
    ) -> Addresses:
        """Start stopped servers, repair servers that do not answer, leave the rest alone; return when all answer.

        `with_spark`: the Spark cluster as well, without which its processes are left as they are.

        `users`: ClickHouse users as `name:password[:rights]`, kept for later starts; the first is the one in the addresses. `new_ports`: if
        another process took the port of a stopped server, give the server a new one instead of failing. `progress` is called from several
        threads. Raise LocalServerError that names each server that did not start; the others run. If it is interrupted (Ctrl-C), it leaves
        the started servers to the next `up` or `down`.
        """
        if with_spark:
            self._kinds = {**self._kinds, **{kind.name: kind for kind in CLUSTER if kind.name not in self._kinds}}
        with self._locked(progress):
            passwords = keep_passwords(self._passwords_path, [*SERVERS, *self._kinds])
            close_default_user(self._directory / "clickhouse", passwords["clickhouse"])
            if users:
                keep_users(self._directory / "clickhouse", users)
            ports = keep_ports(self._ports_path, [*SERVERS, *self._kinds])
            if new_ports:
                taken = [name for name in self._kinds if not is_free(ports[name]) and self._make(name, ports[name], "").pid is None]
                ports = keep_ports(self._ports_path, self._kinds, renew=taken)
            asked = [name for name in self._kinds if with_spark or name not in _OF_CLUSTER]
            self._ensure_all([self._make(name, ports[name], passwords[name]) for name in asked], progress)
        return self.addresses()

    def down(self, progress: Progress = ignore_progress, purge: bool = False, names: Collection[str] = ()) -> None:
        """Stop all servers, or those with these `names`, one after the other, and wait until none of their processes is left.

        `purge` deletes their data, and the ClickHouse users, but not the ports and the passwords made for them. Raise LocalServerError for
        a name that no server has.
        """
        if unknown := [name for name in names if name not in self._kinds]:
            raise LocalServerError(f"stopping {', '.join(unknown)}: there are {', '.join(self._kinds)}")
        if not self._directory.exists():
            return
        with self._locked(progress):
            ports = keep_ports(self._ports_path, self._kinds)
            for name in (name for name in reversed(self._kinds) if not names or name in names):
                self._make(name, ports[name], "").end(progress)
                if purge and (self._directory / name).exists():
                    shutil.rmtree(self._directory / name)

    def status(self) -> list[ServerStatus]:
        """Return one entry per server, in the order of the data; change nothing."""
        ports, passwords = read_ports(self._ports_path), read_passwords(self._passwords_path)
        servers = [self._make(name, ports[name], passwords.get(name, "")) if name in ports else None for name in self._kinds]
        with ThreadPoolExecutor(max_workers=len(servers)) as pool:
            found = pool.map(lambda server: server.status() if server else None, servers)
        return [status or ServerStatus(name, "stopped", "") for name, status in zip(self._kinds, found, strict=True)]

    def addresses(self) -> Addresses:
        """Return the addresses, whether the servers run or not.

        Raise LocalServerError if `up` never ran for this home, or if its servers are of a release that gave them no passwords.
        """
        ports, passwords = read_ports(self._ports_path), read_passwords(self._passwords_path)
        if not self.is_set_up:
            raise LocalServerError(f"reading the addresses of {self.home}: no servers with passwords were set up there; run `tallyflow up`")
        user = read_first_user(self._directory / "clickhouse", passwords["clickhouse"])
        return Addresses(
            f"{HOST}:{ports['kafka']}",
            passwords["kafka"],
            f"{HOST}:{ports['nats']}",
            passwords["nats"],
            HOST,
            ports["clickhouse"],
            user.name,
            user.password,
            *(
                (f"spark://{HOST}:{ports[SparkMaster.name]}", str(configuration_file(self._directory)))
                if SparkMaster.name in self._kinds
                else ()
            ),
        )

    def server(self, name: str) -> LocalServer:
        """Return one server, for fault tests: `.kill()`, `.stop()`, `.start(timeout)`, `.pid`.

        Raise LocalServerError before the first `up`.
        """
        if name not in self._kinds:
            raise LocalServerError(f"looking for the server {name!r}: there are {', '.join(self._kinds)}")
        self.addresses()
        return self._make(name, read_ports(self._ports_path)[name], read_passwords(self._passwords_path)[name])

    def _make(self, name: str, port: int, password: str) -> LocalServer:
        # Spark's tasks resolve the pipeline file where they run.
        environment = {**self.addresses().environment(), STATE_VARIABLE: self.state_uri} if name in _OF_CLUSTER else None
        return LocalServer(self._kinds[name], self.home, port, password, lambda: self._locked(ignore_progress), self._patience, environment)

    def _ensure_all(self, servers: Sequence[LocalServer], progress: Progress) -> None:
        cancelled = Event()
        with ThreadPoolExecutor(max_workers=len(servers)) as pool:
            started = [pool.submit(server.ensure, self._patience.start, progress, cancelled) for server in servers]
            try:
                failures = [error for error in (future.exception() for future in started) if error is not None]
            except BaseException:
                cancelled.set()
                raise
        unforeseen = [error for error in failures if not isinstance(error, LocalServerError)]
        if unforeseen:
            raise unforeseen[0]
        if failures:
            raise LocalServerError("\n".join(str(error) for error in failures)) from failures[0]

    @contextmanager
    def _locked(self, progress: Progress) -> Iterator[None]:
        """Hold the home's lock, which the kernel frees if this process dies."""
        private_directory(self._directory)
        ignored = self.home / ".gitignore"
        if not ignored.exists():
            write_whole(ignored, "*\n")
        lock = FileLock(self._directory / "lock", timeout=LOCK_TIMEOUT.total_seconds())
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress("stack", "waiting for another tallyflow up or down of this home")
            try:
                lock.acquire()
            except Timeout as error:
                raise LocalServerError(
                    f"waiting for another tallyflow up or down of {self.home}: still busy after {LOCK_TIMEOUT}"
                ) from error
        try:
            yield
        finally:
            lock.release()
