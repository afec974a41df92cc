"""The one place that builds a Spark session: on this host, or on the executors of a cluster."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines.errors import HaltError, RetryableError
from pipelines.loopback import is_loopback
from pipelines.spark_classes import java_option

_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

SETTINGS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "640m",
    "spark.sql.session.timeZone": "UTC",
    # A task is a bucket: coalescing or splitting partitions would break the one-writer rule (protocol.md section 3).
    "spark.sql.adaptive.enabled": "false",
    "spark.speculation": "false",
    # A task yields a row per leg: generating and compiling code for it costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "pipelines.runner.worker_daemon",
    # The checkpoint is a hint that lives as long as one start; the default manager costs 35-50 ms per file (dagster-pyspark.md section 0).
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    "spark.sql.streaming.minBatchesToRetain": "4",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|sasl|jaas",
}

LOOPBACK_SETTINGS: dict[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

CLUSTER_DEFAULTS: dict[str, str] = {
    # A task's code travels by Spark's own connections: whoever may open one may run code.
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.executor.memory": "512m",
    # An executor that vanishes with its host is given up after 8 s; the defaults take two minutes.
    "spark.executor.heartbeatInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "8s",
    "spark.network.timeoutInterval": "2s",
    # A task prefers the executor in which its process is, but waits for none: for one that is gone it would wait 3 s (measured).
    "spark.locality.wait": "0s",
}
"""Settings for executors beside this process; `spark-defaults.conf` may say otherwise."""

# Without counters for jstat an idle JVM wakes up 27 times a second instead of 47.
_JAVA_OPTIONS = "-XX:-UsePerfData -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:MaxMetaspaceSize=256m -XX:ReservedCodeCacheSize=96m"


def default_master(tasks: int = 2) -> str:
    """Return `local[N,4]`, N the cores and at least `tasks`.

    Plain `local[N]` never retries a task (measured: one killed worker failed the job).
    """
    return f"local[{max(tasks, os.cpu_count() or tasks)},4]"


def is_cluster(master: str | None) -> bool:
    """Return True for a master whose executors are processes beside the driver's JVM, on this host or others."""
    return master is not None and not re.fullmatch(r"local(\[[^]]*\])?", master)


def is_on_this_host(master: str) -> bool:
    """Return whether all executors of a master are on this host: loopback is then the same for all of them."""
    return master.startswith("local-cluster[") or _listens_on_loopback(master)


def check_answers(master: str | None, seconds: float = 3.0) -> None:
    """Raise RetryableError if a standalone master cannot be reached; Spark itself would try for a minute, and say nothing."""
    addresses = re.fullmatch(r"spark://(.+)", master or "")
    refused: OSError | None = None
    for address in addresses[1].split(",") if addresses else ():
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), seconds):
                return
        except OSError as error:
            refused = error
    if refused is not None:
        raise RetryableError(f"reaching the Spark master {master}: {refused}; start it, or correct --master")


def build_session(
    name: str,
    directory: Path,
    master: str | None = None,
    java_options: str | None = None,
    settings: Mapping[str, str] | None = None,
    properties: Path | None = None,
    tasks: int = 3,
) -> SparkSession:
    """Start (or join) this process's session, for so many `tasks` at a time.

    `properties`: Spark's own file of settings, such as a cluster's secret, which has no place on a command line; where it is given,
    Spark reads no `spark-defaults.conf`.
    `java_options`: replace the options that use the class archive. `settings` override SETTINGS. Workers run this interpreter: a `python3`
    found on PATH would not have our packages; on a cluster PYSPARK_PYTHON may name another one. The JVM logs to `spark.log` in `directory`:
    an error that ends a query reaches the runner as an exception, and the runner reports it in its own words. Raise HaltError if a cluster
    does not take this driver.
    """
    master = master or default_master()
    local = directory / "spark"
    local.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_cluster(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    if _listens_on_loopback(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    if properties is not None:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(properties))} pyspark-shell"
    for key, value in {**SETTINGS, **_settings_for(master, properties, tasks), **(settings or {})}.items():
        builder = builder.config(key, value)
    sharing = java_option() if java_options is None else java_options
    options = [_JAVA_OPTIONS, sharing, _log_options(directory), f"-Dderby.system.home={local}"]
    builder = (
        builder.config("spark.local.dir", str(local))
        .config("spark.sql.warehouse.dir", str(local / "warehouse"))
        .config("spark.driver.extraJavaOptions", " ".join(options))
    )
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        if not is_cluster(master):
            raise
        raise _refused(master, str(error), directory) from error


def _settings_for(master: str, properties: Path | None, tasks: int = 3) -> dict[str, str]:
    """Return the settings that depend on where the executors are; the operator's own file wins over the defaults for a cluster."""
    if not is_cluster(master):
        return LOOPBACK_SETTINGS
    usual = Path(os.environ.get("SPARK_CONF_DIR", Path(pyspark.__file__).parent / "conf")) / "spark-defaults.conf"
    set_there = _names_set_in(properties or usual)
    # A standalone master gives everything to whoever comes first; this is twice what the tasks need, so that a lost executor is replaced.
    own = {"spark.executor.extraJavaOptions": _executor_options(master), "spark.cores.max": str(2 * tasks), **CLUSTER_DEFAULTS}
    if pod := os.environ.get("TALLYFLOW_DRIVER_POD", ""):
        # Kubernetes deletes the executors with the pod that owns them.
        own["spark.kubernetes.driver.pod.name"] = pod
    if master.startswith("local-cluster["):
        # Spark has master, workers and driver in one JVM, which alone knows this secret.
        own |= {**LOOPBACK_SETTINGS, "spark.authenticate.secret": token_hex(24)}
    elif _listens_on_loopback(master):
        own |= LOOPBACK_SETTINGS
    return {key: value for key, value in own.items() if key not in set_there}


def _executor_options(master: str) -> str:
    """Return the options of an executor's JVM. Of a host without our archive it would start slower than without the option."""
    return f"{_JAVA_OPTIONS} {java_option()}" if is_on_this_host(master) else _JAVA_OPTIONS


def _names_set_in(file: Path) -> set[str]:
    """Return the settings that a properties file has; none if it does not exist."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return {re.split(r"[\s=:]", line.strip(), maxsplit=1)[0] for line in lines if line.strip() and line.strip()[0] not in "#!"}


def _listens_on_loopback(master: str) -> bool:
    """Return True if nobody but this host is to reach the driver: without a cluster, or with a standalone one on loopback."""
    standalone = re.match(r"spark://([^:,/]+)", master)
    return is_loopback(standalone[1]) if standalone else not is_cluster(master)


def _refused(master: str, error: str, directory: Path) -> HaltError:
    """Return the error for a cluster on which no session could be started."""
    if "spark.authenticate.secret" in error:
        to_do = (
            "give this driver (--spark-conf FILE), the master and every worker (--properties-file FILE) the same "
            "spark.authenticate.secret, in a file that only their users can read"
        )
    else:
        to_do = (
            f"compare its address, and the secret in its --spark-conf, with the master's; Spark's words are in {directory / 'spark.log'}"
        )
    return HaltError(f"starting on the Spark master {master}: it did not take this driver; {to_do}")


def is_jvm_alive(session: SparkSession, patience_seconds: float = 0.0) -> bool:
    """Return False once the JVM that this process started for the session has ended; a cluster's or foreign JVM is never checked.

    A dying process closes its sockets some time before it ends: after a closed socket, ask with patience.
    """
    process: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
    if process is None:
        return True
    try:
        process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _log_options(directory: Path) -> str:
    settings = Path(__file__).with_name("log4j2.properties")
    return f"-Dlog4j2.configurationFile={settings.as_uri()} -Dtallyflow.spark.log={directory / 'spark.log'}"
