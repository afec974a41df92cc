"""Spark as a Dagster resource, for batch work beside the stream: the stream itself has a driver of its own."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, PrivateAttr
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipelines.engine.session import build_session


class SparkResource(LazyPySparkResource):
    """dagster-pyspark's lazy resource with the settings of the stream's own sessions, and an end.

    No JVM starts before `spark_session` is requested. A session that existed before is used and left running; a session that this resource
    made is stopped after the step.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict, description="Settings of Spark, over those of the pipelines.")
    master: str = Field(default="", description="Spark master. Empty: this machine, all cores.")
    spark_conf: str = Field(default="", description="Spark's properties file for the master: a cluster's secret, memory.")
    _directory: TemporaryDirectory[str] | None = PrivateAttr(default=None)

    def _init_session(self) -> None:
        if self._spark_session is not None:
            return
        running = SparkContext._active_spark_context
        if running is not None:
            self._spark_session = SparkSession.getActiveSession() or SparkSession(running)
            return
        self._directory = TemporaryDirectory(prefix="tallyflow-spark-")
        settings = {name: str(value) for name, value in self.spark_config.items()}
        properties = Path(self.spark_conf) if self.spark_conf else None
        directory = Path(self._directory.name)
        self._spark_session = build_session("tallyflow-dagster", directory, self.master or None, None, settings, properties)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._directory is not None and self._spark_session is not None:
            self._spark_session.stop()
            self._directory.cleanup()
        self._spark_session, self._directory = None, None
