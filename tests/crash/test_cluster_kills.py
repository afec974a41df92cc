"""A pipeline on a Spark cluster while its processes are killed: executors, Python workers, Spark's own workers, the driver."""

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from support.cluster_case import CAN_ISOLATE, Cluster, sharing_state
from support.dedup_case import check_first_of_keys, event, keyed_by
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, kill, meanwhile, wait_until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not CAN_ISOLATE, reason="a driver on a host of its own takes the right to make namespaces"),
]
KILLED = ("an executor", "the driver", "a Python worker", "a worker of Spark")
KILLS = int(os.environ.get("TALLYFLOW_KILLS", "2"))


def _records(first: int, count: int = 300) -> list[bytes | None]:
    """Records of which every tenth repeats the key of the one 57 before it, and every hundredth is no JSON."""
    return [b"{" if n % 100 == 99 else event(n, n - 57 if n % 10 == 0 else n) for n in range(first, first + count)]


@pytest.fixture
def cluster(case: PipelineCase) -> Cluster:
    return Cluster(case.stack)


@pytest.fixture
def made(case: PipelineCase) -> Iterator[PipelineCase]:
    case.write_file(sharing_state(case, keyed_by("id")))
    case.create_topic()
    yield case


def _newest(case: PipelineCase) -> int:
    """The newest record in the table: it went through every leg."""
    return int(case.client().query(f"SELECT max(id) FROM {case.table}").result_rows[0][0])


class _Drivers:
    """The driver of a case, replaced by one on another host when it is killed."""

    def __init__(self, case: PipelineCase, cluster: Cluster) -> None:
        self._case, self._cluster = case, cluster
        self.process = cluster.start_elsewhere(case)

    def kill(self) -> None:
        """Kills the driver and all that its host runs; the next host has to wait for the leases of this one."""
        (inner,) = psutil.Process(self.process.pid).children()
        kill(inner)
        self.process.wait(PATIENCE_SECONDS)
        before = _newest(self._case)
        while True:
            self.process = self._cluster.start_elsewhere(self._case)
            wait_until(lambda: self.process.poll() is not None or _newest(self._case) > before, "a driver that was taken or refused")
            if self.process.poll() is None:
                return
            words = self.process.communicate()[1]
            assert "on another host holds leg" in words, words

    def stop(self) -> str:
        (inner,) = psutil.Process(self.process.pid).children()
        inner.send_signal(signal.SIGTERM)
        words = self.process.communicate(timeout=PATIENCE_SECONDS)[1]
        assert self.process.returncode == 0, words
        return words


def test_whatever_is_killed_on_a_cluster_each_key_goes_on_once(made: PipelineCase, cluster: Cluster) -> None:
    moments = random.Random()
    drivers = _Drivers(made, cluster)
    sent = [0]

    def load(stop: threading.Event) -> None:
        while not stop.wait(0.1):
            made.send(_records(sent[0]))
            sent[0] += 300

    with meanwhile(load):
        made.wait_count(1000)
        for number in range(KILLS):
            what = moments.choice(KILLED) if number >= len(KILLED) else KILLED[number]
            begun = time.monotonic()
            if what == "the driver":
                drivers.kill()
            elif what == "a worker of Spark":
                server = made.stack.server(moments.choice(cluster.workers))
                server.kill()
                server.start()
            else:
                found = cluster.executors() if what == "an executor" else cluster.pythons()
                kill(moments.choice(found))
            later = sent[0]
            wait_until(lambda: _newest(made) >= later, f"a record that was sent after the kill of {what}")  # noqa: B023
            print(f"kill {number} of {what}: a record that was sent later is in the table after {time.monotonic() - begun:.1f} s")
    words = drivers.stop()
    assert "halted" not in words
    ended = made.run(*cluster.options())
    assert ended.returncode == 0, ended.stderr
    counts = check_first_of_keys(made)
    assert counts.total() == sent[0]


def test_a_driver_without_the_clusters_secret_is_told_so(made: PipelineCase, cluster: Cluster) -> None:
    refused: subprocess.CompletedProcess[str] = made.run("--master", cluster.addresses.spark_master, TALLYFLOW_SPARK_CONF="")
    assert refused.returncode == 1
    assert "the same spark.authenticate.secret" in refused.stderr.strip().splitlines()[-1]


def test_a_master_that_does_not_answer_is_waited_for_and_named(made: PipelineCase) -> None:
    refused = made.run("--master", "spark://127.0.0.1:1", "--connect-timeout", "1")
    assert refused.returncode == 1
    assert refused.stderr.strip().splitlines()[-1].startswith("reaching the Spark master spark://127.0.0.1:1: ")
