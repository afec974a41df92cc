"""The one place that builds a Spark session."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from pipelines.engine.class_archive import java_option

_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

SETTINGS: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "640m",
    "spark.sql.session.timeZone": "UTC",
    # A task is a bucket: coalescing or splitting partitions would break the one-writer rule (protocol.md section 3).
    "spark.sql.adaptive.enabled": "false",
    "spark.speculation": "false",
    # A task yields a row per leg: generating and compiling code for it costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.worker.reuse": "true",
    # The checkpoint is a hint that lives as long as one start; the default manager costs 35-50 ms per file (dagster-pyspark.md section 0).
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    "spark.sql.streaming.minBatchesToRetain": "4",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|sasl|jaas",
}

_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:MaxMetaspaceSize=256m -XX:ReservedCodeCacheSize=96m"


def default_master(tasks: int = 2) -> str:
    """Return `local[N,4]`, N the cores and at least `tasks`.

    Plain `local[N]` never retries a task (measured: one killed worker failed the job).
    """
    return f"local[{max(tasks, os.cpu_count() or tasks)},4]"


def build_session(
    name: str, directory: Path, master: str | None = None, java_options: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start (or join) this process's session.

    `java_options`: replace the options that use the class archive. `settings` override SETTINGS. Workers run this interpreter: a `python3`
    found on PATH would not have our packages. The JVM logs to `spark.log` in `directory`: an error that ends a query reaches the runner as
    an exception, and the runner reports it in its own words.
    """
    master = master or default_master()
    local = directory / "spark"
    local.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = str(_local_python(local)) if master.startswith("local") else sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    sharing = java_option() if java_options is None else java_options
    options = [_JAVA_OPTIONS, sharing, _log_options(directory), f"-Dderby.system.home={local}"]
    builder = (
        builder.config("spark.local.dir", str(local))
        .config("spark.sql.warehouse.dir", str(local / "warehouse"))
        .config("spark.driver.extraJavaOptions", " ".join(options))
    )
    return builder.getOrCreate()


def _local_python(directory: Path) -> Path:
    """Return a script that starts this interpreter with the installed pyspark before the zip that Spark puts first on PYTHONPATH.

    Python keeps no compiled code of a zip: each of the seven processes of a start compiled pyspark anew (measured: 1.6 s of CPU, now 0.6).
    """
    site_packages = Path(pyspark.__file__).parent.parent
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(site_packages))}:"$PYTHONPATH" exec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return script


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
