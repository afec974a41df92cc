"""CPU time and memory of groups of processes, from the operating system's own accounting."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

GROUPS = ("driver", "jvm", "workers", "kafka", "nats", "clickhouse")
PIPELINE_GROUPS = ("driver", "jvm", "workers")


@dataclass(frozen=True)
class Usage:
    """CPU seconds by group since each process began, and the sum of proportional set sizes (PSS) of the pipeline's groups, in bytes.

    `worker_seconds`: CPU seconds of each of Spark's Python workers, by pid.
    """

    cpu_seconds: dict[str, float]
    pipeline_pss_bytes: int
    worker_seconds: dict[int, float]

    def since(self, earlier: "Usage") -> dict[str, float]:
        return {group: self.cpu_seconds[group] - earlier.cpu_seconds[group] for group in GROUPS}

    def busiest_since(self, earlier: "Usage") -> float:
        """The CPU seconds of the worker that took the most."""
        return max(seconds - earlier.worker_seconds.get(pid, 0.0) for pid, seconds in self.worker_seconds.items())


class Meter:
    """Watches one runner and the servers. The Python workers of Spark are `workers`, executors beside the runner are `jvm`.

    A process that has ended keeps the CPU time at which it was last seen, so no figure ever goes back; one that began and ended between
    two looks is missed.
    """

    def __init__(self, runner_pid: int, servers: dict[str, int], spark_pids: Sequence[int] = ()) -> None:
        """`spark_pids`: the workers of a Spark cluster, whose children are the pipeline's."""
        self._runner = psutil.Process(runner_pid)
        self._spark = [psutil.Process(pid) for pid in spark_pids]
        self._servers = {name: psutil.Process(pid) for name, pid in servers.items()}
        self._seen: dict[psutil.Process, tuple[str, float]] = {}

    def read(self, with_memory: bool = False) -> Usage:
        pss = 0
        for process, group in self._processes():
            try:
                times = process.cpu_times()
                pss += _pss_bytes(process.pid) if with_memory and group in PIPELINE_GROUPS else 0
            except psutil.NoSuchProcess:
                continue
            self._seen[process] = (group, float(times.user + times.system))
        cpu = dict.fromkeys(GROUPS, 0.0)
        for group, seconds in self._seen.values():
            cpu[group] += seconds
        workers = {process.pid: seconds for process, (group, seconds) in self._seen.items() if group == "workers"}
        return Usage(cpu, pss, workers)

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        yield self._runner, "driver"
        for child in (child for parent in (self._runner, *self._spark) for child in parent.children(recursive=True)):
            try:
                yield child, "jvm" if child.name() == "java" else "workers"
            except psutil.NoSuchProcess:
                continue
        for name, process in self._servers.items():
            yield process, name


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def machine() -> str:
    """One line about where the figures were taken."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?"
    )
    memory_gib = psutil.virtual_memory().total / 2**30
    return f"{os.cpu_count()} cores ({model}), {memory_gib:.0f} GiB"
