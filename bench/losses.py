"""The loss of a process while orders come: the longest time that an order waits for its row behind the SIGKILL.

A driver is started again at once, as Dagster or a supervisor does. In the end each order must be in the table once.
"""

import math
import random
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import psutil
from rich.table import Table

from bench.latency import WARM_UP_SECONDS, producing
from bench.pipeline import MeasuredPipeline
from pipelines.demo.produce import ensure_topic
from resources.local.spark import CLUSTER, WORKERS
from resources.local.stack import LocalStack

PYTHON, EXECUTOR, DRIVER = "Python worker", "executor", "driver"
LIMIT_SECONDS = 120.0
_LOOK_EVERY_SECONDS = 0.02
_DAEMON, _EXECUTOR_CLASS = "pipelines.runner.worker_daemon", "CoarseGrainedExecutorBackend"


def measure(stack: LocalStack, topic: str, times: int, on_cluster: bool, tell: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the seconds of so many losses of each kind, in turns and at random instants; a local master has no executor beside its driver.

    Raises RuntimeError if an order is missing or doubled.
    """
    ensure_topic(stack.addresses().kafka_client, topic, 4)
    with MeasuredPipeline(stack, topic, with_dedup=True) as pipeline:
        losses = _Losses(stack, pipeline, on_cluster)
        losses.start()
        with producing(stack, topic) as load:
            time.sleep(WARM_UP_SECONDS)
            for number in range(times):
                for kind in (PYTHON, EXECUTOR, DRIVER) if on_cluster else (PYTHON, DRIVER):
                    tell(f"loss {number + 1} of a {kind}: {losses.lose(kind):.2f} s")
        losses.account(load.sent)
        tell(f"{load.sent:,} orders, each in the table once")
    return dict(losses.seconds)


class _Losses:
    """One pipeline and its processes; `seconds` has what each loss took, by kind."""

    def __init__(self, stack: LocalStack, pipeline: MeasuredPipeline, on_cluster: bool) -> None:
        self._pipeline, self._client = pipeline, pipeline.clickhouse()
        self._workers = [stack.server(kind.name) for kind in CLUSTER[1:]] if on_cluster else []
        addresses = stack.addresses()
        self._options = ["--master", addresses.spark_master, "--spark-conf", addresses.spark_configuration] if on_cluster else []
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._driver = 0

    def start(self) -> None:
        self._driver = self._pipeline.start(*self._options)

    def lose(self, kind: str) -> float:
        """Kill one process of this kind; return how long the order that waited longest, of all partitions, had to wait for its row."""
        wait = self._pipeline.wait
        wait(lambda: len(self._executors()) == (WORKERS if self._workers else 0), LIMIT_SECONDS)
        at_work = wait(lambda: self._at_work(kind), LIMIT_SECONDS)
        random.choice(at_work).kill()
        if kind == DRIVER:
            self._pipeline.wait_for_end()
            self.start()
        longest, ready = 0.0, math.inf if kind == DRIVER else time.time()
        while (newest := self._newest_of_the_slowest()) <= ready:
            longest = max(longest, time.time() - newest)
            if longest > LIMIT_SECONDS:
                raise TimeoutError(f"no new row {longest:.0f} s behind the loss of a {kind}; status {self._pipeline.status()}")
            # Until then executors of the lost driver may bring rows.
            if ready == math.inf and self._is_ready():
                ready = time.time()
            time.sleep(_LOOK_EVERY_SECONDS)
        self.seconds[kind].append(longest)
        return longest

    def account(self, sent: int) -> None:
        """Wait until the table has as many rows as orders were sent. Raises RuntimeError unless each is there once."""
        self._pipeline.wait(lambda: self._count() >= sent, LIMIT_SECONDS)
        self._pipeline.stop()
        rows, orders = self._client.query(f"SELECT count(), uniqExact(order_id) FROM {self._pipeline.table}").result_rows[0]
        if not rows == orders == sent:
            raise RuntimeError(f"{sent:,} orders were sent, the table has {rows:,} rows of {orders:,} orders")

    def _count(self) -> int:
        return int(self._client.query(f"SELECT count() FROM {self._pipeline.table}").result_rows[0][0])

    def _is_ready(self) -> bool:
        return bool((self._pipeline.status() or {}).get("ready"))

    def _newest_of_the_slowest(self) -> float:
        """When the newest order was sent that has a row, in the partition that lags most; seconds since 1970."""
        newest = "SELECT max(ordered_at) AS newest FROM {} WHERE ordered_at > now64() - INTERVAL 5 MINUTE GROUP BY _tf_partition"
        rows = self._client.query(f"SELECT toFloat64(min(newest)) FROM ({newest.format(self._pipeline.table)})").result_rows
        return float(rows[0][0])

    def _at_work(self, kind: str) -> list[psutil.Process]:
        """The processes of this kind that have a leg: Python workers that take CPU within a random time, their executors, the driver."""
        before = {worker: _cpu_seconds(worker) for worker in self._python_workers()}
        time.sleep(random.uniform(1.0, 2.0))
        if kind == DRIVER:
            return [psutil.Process(self._driver)]
        busy = [worker for worker, seconds in before.items() if _cpu_seconds(worker) > seconds]
        return busy if kind == PYTHON else [java for java in self._executors() if any(java in _parents(worker) for worker in busy)]

    def _python_workers(self) -> list[psutil.Process]:
        """The processes that the daemons have forked."""
        found = self._with_text(_DAEMON)
        daemons = {process.pid for process in found}
        return [process for process in found if process.ppid() in daemons]

    def _executors(self) -> list[psutil.Process]:
        return self._with_text(_EXECUTOR_CLASS) if self._workers else []

    def _with_text(self, words: str) -> list[psutil.Process]:
        found = []
        for parent in [int(worker.pid or 0) for worker in self._workers] or [self._driver]:
            for child in psutil.Process(parent).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if words in " ".join(child.cmdline()):
                        found.append(child)
        return found


def _parents(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.parents())
    except psutil.NoSuchProcess:
        return []


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def table(found: dict[str, list[float]]) -> Table:
    """Seconds by kind."""
    shown = Table("lost", "times", "shortest, s", "median, s", "p95, s", "longest, s", title="the order that waited longest, by loss")
    for kind, seconds in found.items():
        shown.add_row(kind, str(len(seconds)), *(f"{figure:.1f}" for figure in np.percentile(seconds, [0, 50, 95, 100])))
    return shown
