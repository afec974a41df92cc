"""Functions in Python: CPU of the steps with a function that does next to nothing and without, that of the function host included.

A function over DataFrames is called in batches of several sizes, on a host that has been called before.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil
import pyarrow as pa

from bench.expressions import frames_of, program_of
from pipelines.collection import collect_rarely
from pipelines.functions.code import pack
from pipelines.functions.host import Host
from pipelines.functions.spec import Function
from pipelines.process.run import run
from pipelines.types.duckdb import open_engine

EVENTS = 50_000
ROUNDS = 9
_SOURCE = """
import numpy as np
import pyarrow as pa
def batch(batch):
    return pa.record_batch({"code": batch["code"], "price": batch["price"]})
def row(record):
    return {"code": record["code"], "price": record["price"]}
def two_of_batch(batch):
    rows = pa.array(np.repeat(np.arange(len(batch), dtype=np.uint32), 2))
    return pa.record_batch({"code": batch["code"].take(rows), "price": batch["price"].take(rows), "_row": rows})
def two_of_row(record):
    return [row(record), row(record)]
def array(record):
    return {"code": record["code"], "numbers": [1, 2, 3]}
"""
_FUNCTIONS = (
    ("batch", "batch", "one", ("price", "float64")),
    ("row", "row", "one", ("price", "float64")),
    ("two_of_batch", "batch", "many", ("price", "float64")),
    ("two_of_row", "row", "many", ("price", "float64")),
    ("array", "row", "one", ("numbers", "array")),
)
"""Name, mode, rows, and the second output."""
_COLUMNS = {"code": "String"}


@dataclass(frozen=True)
class FunctionCost:
    """CPU microseconds per event, of this process and its hosts, median of interleaved rounds."""

    name: str
    microseconds: float


def measure(events: int = EVENTS, rounds: int = ROUNDS) -> list[FunctionCost]:
    """Measure the steps without a function, and with one of 7 flat fields that returns two of them, by batch and by row.

    Also with one that makes two rows of each event, and with one that returns an array of three numbers.
    """
    frames = frames_of(events, 0)
    spent: dict[str, list[float]] = {}
    collect_rarely()
    with TemporaryDirectory() as directory, open_engine() as engine:
        Path(directory, "own.py").write_text(_SOURCE)
        programs = {"parse and map": program_of([], _COLUMNS)}
        for name, mode, rows, (second, kind) in _FUNCTIONS:
            output = [{"name": "code", "type": "string"}, {"name": second, "type": kind}]
            transform = {"type": "python", "config": {"function": f"own:{name}", "mode": mode, "rows": rows, "output": output}}
            programs[f"with the function {name}"] = program_of([transform], _COLUMNS, Path(directory))
        for number in range(rounds + 2):
            for name, program in programs.items():
                begun = _cpu_seconds()
                run(program, engine, frames)
                if number >= 2:
                    spent.setdefault(name, []).append((_cpu_seconds() - begun) / events * 1e6)
    return [FunctionCost(name, median(found)) for name, found in spent.items()]


@dataclass(frozen=True)
class BatchCost:
    """One call of a function over DataFrames: median seconds, and CPU microseconds per event, of this process, its host and the JVM."""

    rows: int
    seconds: float
    microseconds: float


def measure_dataframes(calls: int = 30) -> list[BatchCost]:
    """Measure calls of a function over DataFrames with 7 flat fields in and two out, by the rows of a call."""
    frame = "from pyspark.sql import functions as F\ndef f(df):\n    return df.where('price >= 0').select('code', 'price')\n"
    texts, numbers = ("id", "code", "customer", "city"), ("price", "quantity", "discount")
    inputs = (*((name, "string") for name in texts), *((name, "float64") for name in numbers))
    found = []
    with TemporaryDirectory() as directory:
        Path(directory, "own.py").write_text(frame)
        host = Host(
            Function("own:f", pack(Path(directory), "own", ()), "pyspark", inputs, (("code", "string"), ("price", "float64")), 60_000)
        )
        try:
            for rows in (65_536, 16_384, 1_000):
                columns = [pa.array([f"{name} {row % 5000}" for row in range(rows)]) for name in texts]
                columns += [pa.array([float(row) for row in range(rows)])] * len(numbers)
                found.append(_calls(host, pa.record_batch(columns, schema=host.function.input_schema), calls))
        finally:
            host.close()
    return found


def _calls(host: Host, batch: pa.RecordBatch, calls: int) -> BatchCost:
    seconds = []
    for number in range(2 * calls):
        if number == calls:
            used = _all_cpu_seconds()
        begun = time.monotonic()
        host.call(batch)
        seconds.append(time.monotonic() - begun)
    spent = (_all_cpu_seconds() - used) / calls
    return BatchCost(batch.num_rows, median(seconds[calls:]), spent / batch.num_rows * 1e6)


def _all_cpu_seconds() -> float:
    """CPU of this process and of all below it, a JVM included, whose threads come and go."""
    return sum(sum(process.cpu_times()[:2]) for process in (psutil.Process(), *psutil.Process().children(recursive=True)))


def _cpu_seconds() -> float:
    """CPU of all threads of this process and its children, in nanoseconds' resolution: a round takes few ticks of the clock."""
    tasks = [path for child in psutil.Process().children() for path in Path(f"/proc/{child.pid}/task").glob("*/schedstat")]
    return time.process_time() + sum(int(path.read_text().split()[0]) for path in tasks) / 1e9
