"""A Spark cluster on hosts of their own: a master, workers and a driver that have nothing in common but the release and an object store."""

import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyspark

from resources.local.java import find_java
from support.cluster_case import EXECUTOR
from support.hosts import Host, Network
from support.object_store import ObjectStore
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, forked_workers, wait_until, with_text

_MASTER, _DRIVER, WORKERS = "master", "driver", ("worker-1", "worker-2")
_MASTER_PORT, _PAGE_PORT = 7077, 8080
_SLOTS = 3
_CONFIGURATION = "spark-defaults.conf"
_MUTANT = str(Path(__file__).with_name("reports_early"))
COPIES = "tallyflow-keys-"
"""The beginning of the directory in which a host keeps copies of segments."""


class Cluster:
    """The hosts, for one case. A context manager; its driver starts with `start_driver`.

    `mutant`: its Python workers report segments before they are durable.
    """

    def __init__(self, case: PipelineCase, store: ObjectStore, mutant: bool = False) -> None:
        self.case, self.store = case, store
        ports = [int(address.rpartition(":")[2]) for address in (case.addresses.kafka_bootstrap, case.addresses.nats_address)]
        self.network = Network(case.directory / "hosts", [_MASTER, *WORKERS, _DRIVER], [*ports, case.addresses.clickhouse_port, store.port])
        self._hosts = {name: Host(self.network, name) for name in self.network.addresses}
        self.workers = [self._hosts[name] for name in WORKERS]
        self.driver = self._hosts[_DRIVER]
        self._mutation = {"PYTHONPATH": _MUTANT} if mutant else {}
        self._settings = (Path(__file__).parents[2] / "deployment" / "standalone" / _CONFIGURATION).read_text()
        self._settings = self._settings.replace("CHANGE-ME", secrets.token_hex(24))

    def __enter__(self) -> "Cluster":
        self.network.__enter__()
        try:
            main = "org.apache.spark.deploy.master.Master"
            self._start_java(self._hosts[_MASTER], main, ["--port", str(_MASTER_PORT), "--webui-port", str(_PAGE_PORT)])
            for worker in self.workers:
                self.start_worker(worker)
            master = self._hosts[_MASTER]
            wait_until(lambda: master.said.count("Registering worker") >= len(WORKERS), "a master with its workers")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for host in self._hosts.values():
            host.kill()
        self.network.__exit__(kind, error, trace)

    def start_worker(self, host: Host) -> None:
        """Starts a host with a worker of Spark."""
        own = ["--cores", str(_SLOTS), "--memory", "1g", "--work-dir", "/tmp/work", f"spark://{_MASTER}:{_MASTER_PORT}"]
        self._start_java(host, "org.apache.spark.deploy.worker.Worker", own, self._mutation)

    def start_driver(self, *arguments: str) -> None:
        """Starts a host with the driver; nothing is left of an earlier one."""
        self.driver.kill()
        self.driver.wipe()
        spark = ["--master", f"spark://{_MASTER}:{_MASTER_PORT}", "--spark-conf", f"/tmp/{_CONFIGURATION}"]
        run = [sys.executable, "-m", "pipelines.cli", "run", "/tmp/pipeline.yaml", *spark, *arguments]
        files = {_CONFIGURATION: self._settings, "pipeline.yaml": self.case.file.read_text()}
        self.driver.start(run, self._environment(self.driver), files)

    def _start_java(self, host: Host, main: str, own: Sequence[str], more: dict[str, str] | None = None) -> None:
        jars = Path(pyspark.__file__).parent / "jars"
        java = [str(find_java().executable), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", main]
        command = [*java, "--host", host.name, "--properties-file", f"/tmp/{_CONFIGURATION}", *own]
        host.start(command, {**self._environment(host), **(more or {})}, {_CONFIGURATION: self._settings})

    def _environment(self, host: Host) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "TALLYFLOW_HOME": "/tmp/home",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_LOCAL_IP": host.address,
            "SPARK_NO_DAEMONIZE": "1",
            **self.case.addresses.environment(),
            **self.store.environment(),
        }

    def executors(self) -> list[tuple[Host, psutil.Process]]:
        return [(host, found) for host in self.workers for found in with_text(host.processes(), EXECUTOR)]

    def pythons(self) -> list[tuple[Host, psutil.Process]]:
        """The Python workers of Spark."""
        return [(host, found) for host in self.workers for found in forked_workers(host.processes())]

    def is_whole(self) -> bool:
        """Whether the executor of each worker is one of the driver's."""
        return {host.name for host, executor in self.executors() if _is_registered(host, executor)} == set(WORKERS)

    def sharing_state(self, change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """The file's change, with key stores in the object store."""

        def changed(document: dict[str, Any]) -> None:
            change(document)
            document["state_uri"] = self.store.uri

        return changed


def _is_registered(host: Host, executor: psutil.Process) -> bool:
    try:
        words = executor.cmdline()
    except psutil.NoSuchProcess:
        return False
    if not words:
        # A zombie.
        return False
    number, application = (words[words.index(option) + 1] for option in ("--executor-id", "--app-id"))
    log = host.disk / "work" / application / number / "stderr"
    return log.exists() and "Successfully registered with driver" in log.read_text(errors="replace")


def count_outside(case: PipelineCase) -> dict[str, Any]:
    """The account that a program makes which knows nothing of ours (outside_account.py); an uneven one is a failure."""
    a = case.addresses
    clickhouse = {
        "url": f"http://{a.clickhouse_host}:{a.clickhouse_port}",
        "user": a.clickhouse_user,
        "password": a.clickhouse_password,
        "table": case.table,
    }
    letters = {"url": a.nats_url, "stream": case.names.stream("dlq"), "subject": case.names.subjects("dlq")}
    asked = {"kafka": a.kafka_client, "topic": case.topic, "clickhouse": clickhouse, "dead_letters": letters}
    # Alone in its directory, without a path to our code.
    script = shutil.copy(Path(__file__).with_name("outside_account.py"), case.directory)
    found = subprocess.run(
        [sys.executable, "-P", script], input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=5 * PATIENCE_SECONDS
    )
    assert found.returncode == 0, found.stdout + found.stderr
    counts: dict[str, Any] = json.loads(found.stdout)
    return counts
