"""`tallyflow preview` of 1,000 records from the shell: how long a user waits for the answer, start of Python included."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from pipelines.demo.events import Recipe
from pipelines.demo.examples import example_file, load_example

RECORDS, RUNS = 1_000, 20
EXAMPLES = ("orders", "fraud", "clickstream", "restaurants")
"""Dedup; a filter before it; five steps, one a function in Python, into two tables; rollups."""
_NOWHERE = {"KAFKA_BOOTSTRAP": "nowhere:9092", "CLICKHOUSE_HOST": "nowhere", "CLICKHOUSE_PORT": "8123"}
_NOT_PASSED_ON = "PYTHONDONTWRITEBYTECODE"
"""Without its cache of compiled modules Python compiles ours at each start."""


@dataclass(frozen=True)
class Waits:
    """Seconds from the command to its end."""

    example: str
    p50_seconds: float
    p95_seconds: float
    longest_seconds: float


def measure(records: int = RECORDS, runs: int = RUNS) -> list[Waits]:
    """Preview records of each example `runs` times, after one that is not counted."""
    with TemporaryDirectory() as directory:
        return [_waits(name, _written(name, records, Path(directory)), runs) for name in EXAMPLES]


def _written(name: str, records: int, directory: Path) -> Path:
    path = directory / f"{name}.ndjson"
    with path.open("wb") as lines:
        for events in load_example(name).generator.events(Recipe(seed=1), records):
            lines.writelines(b"%b\t%b\n" % pair for pair in zip(events.keys.to_pylist(), events.values.to_pylist(), strict=True))
    return path


def _waits(name: str, sample: Path, runs: int) -> Waits:
    command = [sys.executable, "-m", "pipelines.cli", "preview", str(example_file(name)), "--input", str(sample), "--with-keys"]
    environment = {**{key: value for key, value in os.environ.items() if key != _NOT_PASSED_ON}, **_NOWHERE}
    seconds = []
    for _ in range(runs + 1):
        begun = time.monotonic()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.monotonic() - begun)
    return Waits(name, median(seconds[1:]), quantiles(seconds[1:], n=20, method="inclusive")[-1], max(seconds[1:]))
