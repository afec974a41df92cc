"""Orders with dedup on hosts that share nothing but an object store, while processes and whole hosts are killed and their caches wiped.

By hand with more: TALLYFLOW_KILLS and TALLYFLOW_ORDERS.
"""

import math
import os
import random
import signal
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

import psutil
import pytest
from support.dedup_case import event, keyed_by
from support.hosts import CAN_MAKE_HOSTS, Host
from support.hosts_case import COPIES, Cluster, count_outside
from support.object_store import ObjectStore
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, kill, meanwhile, wait_until

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not CAN_MAKE_HOSTS, reason="hosts take the right to make namespaces, mounts and networks"),
]
KINDS = ("Python worker", "executor", "worker host", "silent host", "driver host")
MORE = "one more"
"""What was lost while something else was not back yet."""
KILLS = int(os.environ.get("TALLYFLOW_KILLS", len(KINDS)))
ORDERS = int(os.environ.get("TALLYFLOW_ORDERS", "20000"))
MOST_UNDER_WAY = 50_000
MOST_KILLS_OF_A_MUTANT = 20
_SENT_AT_ONCE = max(300, ORDERS // max(1, 60 * KILLS) // 300 * 300)


def _orders(first: int, count: int) -> Iterator[bytes]:
    """Orders in three partitions: of ten one repeats a recent key and one a key of half the way back, both of its own partition; every
    hundredth is no JSON.
    """
    return (b"{" if n % 100 == 99 else event(n, _key(n)) for n in range(first, first + count))


def _key(n: int) -> int:
    if n % 10 == 0 and n >= 57:
        return n - 57
    return n // 6 * 3 + n % 3 if n % 10 == 5 else n


class _Load:
    """Sends orders until it is stopped; it waits while too many are under way. `arrived`: the newest order that is known in the table."""

    def __init__(self, case: PipelineCase) -> None:
        self._case = case
        self.sent = self.arrived = 0

    def __call__(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            if self.sent - self.arrived < MOST_UNDER_WAY:
                self.send(_SENT_AT_ONCE)

    def send(self, count: int) -> None:
        self._case.send(_orders(self.sent, count))
        self.sent += count


class _Killer:
    """Kills, and waits for the first row of an order that was sent later; `seconds` has how long that took, by kind."""

    def __init__(self, cluster: Cluster, load: _Load) -> None:
        self._cluster, self._load = cluster, load
        self._chance = random.Random()
        self._ways: Mapping[str, Callable[[], Callable[[], None] | None]] = {
            "Python worker": self._python,
            "executor": self._executor,
            "worker host": self._worker,
            "silent host": self._silence,
            "driver host": self._driver,
        }
        """How each kind is lost; what they give back ends the loss."""
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.wiped = 0

    def _has_arrived(self, order: int) -> bool:
        """Whether this order, or a later one, went through every leg to the table; starts a driver again that was refused."""
        driver, case = self._cluster.driver, self._cluster.case
        assert "halted" not in driver.said, driver.said
        if driver.code is not None:
            assert "on another host holds leg" in driver.said, driver.said
            self._cluster.start_driver()
        self._load.arrived = case.client().query(f"SELECT max(id) FROM {case.table}").result_rows[0][0]
        return self._load.arrived >= order

    def kill(self, kind: str, at_once: bool = False) -> None:
        """`at_once`: although the cluster may still lack what was lost before."""
        if not at_once:
            wait_until(self._cluster.is_whole, "a cluster with all its executors")
        row = kind if self._cluster.is_whole() else MORE
        later, begun = self._load.sent + _SENT_AT_ONCE, time.monotonic()
        end = self._ways[kind]()
        wait_until(lambda: self._has_arrived(later), f"an order that was sent after the loss of a {kind}")
        self.seconds[row].append(time.monotonic() - begun)
        if end is not None:
            end()
        print(f"loss {sum(map(len, self.seconds.values()))}, {kind}: {self.seconds[row][-1]:.1f} s", flush=True)

    def _at_work(self) -> tuple[Host, psutil.Process, psutil.Process]:
        """A Python worker as the last one, behind its host and its executor."""

        def found() -> list[tuple[Host, psutil.Process, psutil.Process]]:
            executors = {host.name: executor for host, executor in self._cluster.executors()}
            return [(host, executors[host.name], python) for host, python in self._cluster.pythons() if host.name in executors]

        return self._chance.choice(wait_until(found, "a Python worker"))

    def _python(self) -> None:
        host, _, python = self._at_work()
        kill(python)
        self._wipe_cache(host)

    def _executor(self) -> None:
        host, executor, _ = self._at_work()
        kill(executor)
        self._wipe_cache(host)

    def _wipe_cache(self, host: Host) -> None:
        copies = host.files(COPIES)
        for copy in copies:
            copy.unlink(missing_ok=True)
        self.wiped += len(copies)

    def _worker(self) -> None:
        host, *_ = self._at_work()
        host.kill()
        self._wipe_cache(host)
        host.wipe()
        self._cluster.start_worker(host)

    def _silence(self) -> Callable[[], None]:
        host, *_ = self._at_work()
        host.cut_off()
        return host.reconnect

    def _driver(self) -> None:
        """The next one, on a host without a file of the last, has to wait for its leases."""
        self._cluster.start_driver()

    def table(self) -> str:
        """Seconds by kind, from the kill to the first row of an order that was sent later."""
        rows = [f"{'lost':15} {'times':>6} {'min':>6} {'median':>6} {'p95':>6} {'max':>6}"]
        for kind, found in self.seconds.items():
            ranked = sorted(found)
            figures = [ranked[0], statistics.median(ranked), ranked[math.ceil(0.95 * len(ranked)) - 1], ranked[-1]]
            rows.append(f"{kind:15} {len(found):6} " + " ".join(f"{figure:6.1f}" for figure in figures))
        return "\n".join(rows)


def _started(cluster: Cluster) -> None:
    case = cluster.case
    # Few, so that their segments are soon large enough for copies.
    case.write_file(cluster.sharing_state(lambda document: (keyed_by("id")(document), document.update(buckets=2))))
    case.create_topic()
    cluster.start_driver()


def test_hosts_are_lost_with_their_caches_and_no_order_is(case: PipelineCase, object_store: ObjectStore) -> None:
    with Cluster(case, object_store) as cluster:
        _started(cluster)
        load = _Load(case)
        killer = _Killer(cluster, load)
        chance = random.Random()
        with meanwhile(load):
            case.wait_count(1000)
            for number in range(KILLS):
                if number < len(KINDS):
                    killer.kill(KINDS[number])
                else:
                    killer.kill(chance.choice(KINDS), at_once=chance.random() < 0.25)
        load.send(max(0, ORDERS - load.sent))
        # Rows of a lost driver's executors come before the next driver takes signals.
        wait_until(lambda: " ready after " in cluster.driver.said, "a driver that is ready")
        cluster.driver.command().send_signal(signal.SIGTERM)
        assert cluster.driver.wait(PATIENCE_SECONDS) == 0, cluster.driver.said
        cluster.start_driver("--until-caught-up")
        assert cluster.driver.wait(5 * PATIENCE_SECONDS) == 0, cluster.driver.said
        counts = count_outside(case)
    print(killer.table(), f"{killer.wiped} copies wiped", counts, sep="\n")
    assert counts["records"] == load.sent >= ORDERS
    assert counts["rows"] + counts["dead letters"] < counts["records"]


def test_a_leg_that_reports_before_it_is_durable_is_found(case: PipelineCase, object_store: ObjectStore) -> None:
    with Cluster(case, object_store, mutant=True) as cluster:
        _started(cluster)
        load = _Load(case)
        killer = _Killer(cluster, load)
        chance = random.Random()
        with meanwhile(load), pytest.raises(AssertionError, match="process halted: "):
            case.wait_count(1000)
            for _ in range(MOST_KILLS_OF_A_MUTANT):
                killer.kill(chance.choice(KINDS[:3]))
    print(f"found at kill {1 + sum(map(len, killer.seconds.values()))}")
