"""Functions in Python: CPU of the steps with a function that does next to nothing and without, that of the function host included."""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from bench.expressions import frames_of, program_of
from pipelines.host import collect_rarely
from pipelines.process.program import run
from pipelines.types.duckdb import open_engine

EVENTS = 50_000
ROUNDS = 9
_SOURCE = """
import pyarrow as pa
def batch(batch):
    return pa.record_batch({"code": batch["code"], "price": batch["price"]})
def row(record):
    return {"code": record["code"], "price": record["price"]}
"""
_COLUMNS = {"code": "String"}


@dataclass(frozen=True)
class FunctionCost:
    """CPU microseconds per event, of this process and its hosts, median of interleaved rounds."""

    name: str
    microseconds: float


def measure(events: int = EVENTS, rounds: int = ROUNDS) -> list[FunctionCost]:
    """Measure the steps without a function, and with one of 7 flat fields that returns two of them, by batch and by row."""
    frames = frames_of(events, 0)
    spent: dict[str, list[float]] = {}
    collect_rarely()
    with TemporaryDirectory() as directory, open_engine() as engine:
        Path(directory, "own.py").write_text(_SOURCE)
        programs = {"parse and map": program_of([], _COLUMNS)}
        for mode in ("batch", "row"):
            output = [{"name": "code", "type": "string"}, {"name": "price", "type": "float64"}]
            transform = {"type": "python", "config": {"function": f"own:{mode}", "mode": mode, "output": output}}
            programs[f"with a function by {mode}"] = program_of([transform], _COLUMNS, Path(directory))
        for number in range(rounds + 2):
            for name, program in programs.items():
                begun = _cpu_seconds()
                run(program, engine, frames)
                if number >= 2:
                    spent.setdefault(name, []).append((_cpu_seconds() - begun) / events * 1e6)
    return [FunctionCost(name, median(found)) for name, found in spent.items()]


def _cpu_seconds() -> float:
    """CPU of all threads of this process and its children, in nanoseconds' resolution: a round takes few ticks of the clock."""
    tasks = [path for child in psutil.Process().children() for path in Path(f"/proc/{child.pid}/task").glob("*/schedstat")]
    return time.process_time() + sum(int(path.read_text().split()[0]) for path in tasks) / 1e9
