"""A real Spark cluster on loopback: a standalone master and workers, each a process of its own, as further kinds of local servers.

What a pipeline needs from its executors is what it needs on other hosts: the same secret, the same release, and the servers' addresses in
the workers' environment. Each worker has room for a task of each leg, so one of them is enough when the other is lost.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from pipelines.private import write_whole
from resources.local.java import find_java
from resources.local.ports import HOST, choose_port
from resources.local.server import Endpoint, NotReadyError, ServerKind

WORKERS = 2
_SLOTS = 3
_JVM_FLAGS = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
_NEEDED = ("KAFKA_", "NATS_", "CLICKHOUSE_", "TALLYFLOW_STATE")
"""The beginnings of the variables that name the servers: a worker whose servers changed is started again."""
_CONFIGURATION = "spark-defaults.conf"
MASTER_VARIABLE = "TALLYFLOW_SPARK_MASTER"
"""The variable with the master's address, in the environment of the workers and of `tallyflow env`."""
CONFIGURATION_VARIABLE = "TALLYFLOW_SPARK_CONF"
"""The variable with the file of the cluster's settings, which a driver needs too."""


def configuration_file(servers: Path) -> Path:
    """Return the file with the cluster's secret, for the master, the workers and every driver."""
    return servers / SparkMaster.name / _CONFIGURATION


@dataclass(frozen=True)
class SparkMaster:
    """Runs the master on a loopback port."""

    name = "spark-master"

    def settings(self, endpoint: Endpoint) -> str:
        return f"{_version()} {endpoint.address} {_render(endpoint, hide=True)}"

    def prepare(self, endpoint: Endpoint, progress: Callable[[str], None]) -> Sequence[str]:
        write_whole(endpoint.directory / _CONFIGURATION, _render(endpoint))
        page_port = choose_port([endpoint.port])
        write_whole(endpoint.directory / "page.json", json.dumps(page_port))
        return _java(endpoint.directory, "org.apache.spark.deploy.master.Master", endpoint.port, page_port)

    def probe(self, endpoint: Endpoint, timeout: timedelta) -> str:
        found = _ask(endpoint.directory / "page.json", "the Spark master", timeout)
        if found.get("url") != f"spark://{endpoint.address}" or found.get("status") != "ALIVE":
            raise NotReadyError(f"asking the Spark master at {endpoint.address}: it says {found.get('url')}, {found.get('status')}")
        return _version()

    def logs(self, directory: Path) -> Sequence[Path]:
        return [directory / "console.log"]


@dataclass(frozen=True)
class SparkWorker:
    """Runs one worker of the master that its environment names. Its port is that of its page."""

    number: int

    @property
    def name(self) -> str:
        return f"spark-worker-{self.number}"

    def settings(self, endpoint: Endpoint) -> str:
        own = sorted(f"{name}={value}" for name, value in endpoint.environment.items() if name.startswith(_NEEDED))
        addresses = hashlib.sha256("\n".join(own).encode()).hexdigest()
        return f"{_version()} {endpoint.address} {endpoint.environment[MASTER_VARIABLE]} {addresses}"

    def prepare(self, endpoint: Endpoint, progress: Callable[[str], None]) -> Sequence[str]:
        java = _java(configuration_file(endpoint.directory.parent).parent, "org.apache.spark.deploy.worker.Worker", 0, endpoint.port)
        limits = ["--cores", str(_SLOTS), "--memory", "1g", "--work-dir", str(endpoint.directory / "work")]
        return [*java, *limits, endpoint.environment[MASTER_VARIABLE]]

    def probe(self, endpoint: Endpoint, timeout: timedelta) -> str:
        here = _ask(endpoint.port, "the Spark worker", timeout)
        master = _ask(configuration_file(endpoint.directory.parent).parent / "page.json", "the Spark master", timeout)
        if not any(one["id"] == here["id"] and one["state"] == "ALIVE" for one in master["workers"]):
            raise NotReadyError(f"asking the Spark worker at {endpoint.address}: the master does not know it yet")
        return _version()

    def logs(self, directory: Path) -> Sequence[Path]:
        return [directory / "console.log"]


CLUSTER: tuple[ServerKind, ...] = (SparkMaster(), *(SparkWorker(number) for number in range(1, WORKERS + 1)))


def _version() -> str:
    """Return the version of Spark, without the import of it: most commands only look up where the local master is."""
    return importlib.metadata.version("pyspark")


def _render(endpoint: Endpoint, hide: bool = False) -> str:
    """Return the cluster's settings; with `hide` without the secret."""
    secret = "" if hide else endpoint.password
    return f"""\
spark.authenticate true
spark.authenticate.secret {secret}
spark.network.crypto.enabled true
spark.master.rest.enabled false
spark.ui.killEnabled false
spark.worker.cleanup.enabled true
spark.worker.cleanup.appDataTtl 3600
# An executor that is killed is started again, however often.
spark.deploy.maxExecutorRetries -1
"""


def _java(configuration: Path, main: str, port: int, page_port: int) -> list[str]:
    """Return the command of a master or a worker; what Spark wants in its environment is no secret."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    home = Path(found.origin).parent
    # The wheel has no build directories from which Spark would read the version of Scala.
    variables = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": HOST, "SPARK_NO_DAEMONIZE": "1"}
    launch = ["env", *(f"{name}={value}" for name, value in variables.items()), str(find_java().executable), *_JVM_FLAGS]
    own = ["--host", HOST, "--port", str(port), "--webui-port", str(page_port)]
    return [*launch, "-cp", f"{home / 'jars'}/*", main, *own, "--properties-file", str(configuration / _CONFIGURATION)]


def _ask(page: Path | int, what: str, timeout: timedelta) -> dict[str, Any]:
    """Return what a page of Spark says of itself. Raise NotReadyError."""
    import httpx

    try:
        port = page if isinstance(page, int) else json.loads(page.read_text())
        # Without the environment's proxies: this is loopback.
        answer = httpx.get(f"http://{HOST}:{port}/json/", timeout=timeout.total_seconds(), trust_env=False)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise NotReadyError(f"asking {what}: {error or type(error).__name__}") from error
    return found
