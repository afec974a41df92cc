"""A pipeline on a real Spark cluster: executors beside the driver."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from resources.local.spark import WORKERS
from resources.local.stack import LocalStack
from support.pipeline_case import PipelineCase, with_text

EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """The workers of the shared servers' cluster, and what runs below them."""

    def __init__(self, stack: LocalStack) -> None:
        self.stack = stack
        self.addresses = stack.up(with_spark=True)
        self.workers = [f"spark-worker-{number}" for number in range(1, WORKERS + 1)]

    def executors(self) -> list[psutil.Process]:
        return with_text(self._below(), EXECUTOR)

    def _below(self) -> list[psutil.Process]:
        """All that runs below its workers, in their order."""
        pids = [pid for pid in (self.stack.server(name).pid for name in self.workers) if pid is not None]
        return [child for pid in pids for child in psutil.Process(pid).children(recursive=True)]

    def options(self, case: PipelineCase | None = None, **properties: str) -> list[str]:
        """The options of a run here; for a `case` also with further settings of Spark."""
        file = Path(self.addresses.spark_configuration)
        if case is not None:
            text, file = file.read_text(), case.directory / "spark.conf"
            file.write_text(text + "".join(f"{name} {value}\n" for name, value in properties.items()))
        return ["--master", self.addresses.spark_master, "--spark-conf", str(file)]


def sharing_state(case: PipelineCase, change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """The file's change, with key stores where every host reaches them."""

    def changed(document: dict[str, Any]) -> None:
        change(document)
        document["state_uri"] = (case.directory / "shared").as_uri()

    return changed
