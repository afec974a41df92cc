"""Look-ups: CPU of the search in a snapshot alone, by its rows, and of the steps with a look-up and without, in one process."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np
import pyarrow as pa

from bench.expressions import frames_of, program_of
from pipelines.collection import collect_rarely
from pipelines.lookups.snapshot import Snapshot, snapshot_of
from pipelines.lookups.spec import Column, Range, TableSpec
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

EVENTS = 50_000
ROUNDS = 9
BATCH = 16_384
TABLE_ROWS = (1_000, 100_000, 5_000_000)
_COLUMNS = (Column("name", "string"), Column("size", "int64"))


@dataclass(frozen=True)
class KernelCost:
    """CPU microseconds per record to find the row of a key and take two columns; seconds to make a snapshot, and to open one."""

    kind: str
    rows: int
    microseconds: float
    build_seconds: float
    open_seconds: float
    bytes: int


@dataclass(frozen=True)
class LookupCost:
    """CPU microseconds per event of all steps, all threads, median of interleaved rounds."""

    name: str
    microseconds: float


def measure_kernel(rounds: int = ROUNDS) -> list[KernelCost]:
    """Measure tables with a text as their key, and with ranges of integers; half of the last per cent of the records find no row."""
    collect_rarely()
    with open_engine() as engine:
        return [_kernel(engine, kind, rows, rounds) for kind in ("text", "range") for rows in TABLE_ROWS]


def _kernel(engine: Engine, kind: str, rows: int, rounds: int) -> KernelCost:
    random, numbers = np.random.default_rng(1), np.arange(rows, dtype=np.int64)
    texts = pa.array(np.char.add("customer-", numbers.astype("U8")).tolist()) if kind == "text" else None
    values = {"name": [f"name {number % 5000}" for number in range(rows)], "size": numbers}
    spec, table = TableSpec((Column("id", "string"),), None, _COLUMNS), {"id": texts, **values}
    if texts is None:
        spec, table = TableSpec((), Range("first", "last", "int64"), _COLUMNS), {"first": numbers * 10, "last": numbers * 10 + 8, **values}
    begun = time.process_time()
    batch = snapshot_of(spec, pa.table(table), engine)
    built = time.process_time()
    snapshot = Snapshot(spec, batch)
    opened = time.process_time()
    spent = []
    for _ in range(rounds + 2):
        asked = random.integers(0, rows, BATCH)
        key = [pa.chunked_array([texts.take(pa.array(asked))])] if texts is not None else []
        at = None if texts is not None else pa.chunked_array([pa.array(asked * 10 + asked % 9)])
        start = time.process_time()
        found = snapshot.find(engine, key, at)
        for column in _COLUMNS:
            snapshot.take(column.name, found)
        spent.append((time.process_time() - start) / BATCH * 1e6)
    return KernelCost(kind, rows, median(spent[2:]), built - begun, opened - built, batch.nbytes)


def measure(events: int = EVENTS, rounds: int = ROUNDS) -> list[LookupCost]:
    """Measure parse and mapping alone, and with a look-up of two fields in tables of 1,000 and 100,000 rows."""
    frames = frames_of(events, 0)
    spent: dict[str, list[float]] = {}
    collect_rarely()
    with open_engine() as engine:
        columns = {"owner": "String", "level": "Int64"}
        programs = {"parse and map": program_of([], {})}
        programs |= {f"with a look-up in {rows:,} rows": _program(engine, rows, columns) for rows in (1_000, 100_000)}
        for number in range(rounds + 2):
            for name, program in programs.items():
                begun = time.process_time()
                run(program, engine, frames)
                if number >= 2:
                    spent.setdefault(name, []).append((time.process_time() - begun) / events * 1e6)
    return [LookupCost(name, median(found)) for name, found in spent.items()]


def _program(engine: Engine, rows: int, columns: Mapping[str, str]) -> Program:
    """Return a program that looks up the code of an event, of which there are 1,000."""
    fields = [{"name": "owner"}, {"name": "level", "type": "int64"}]
    transform = {"type": "lookup", "config": {"table": "codes", "key": "code", "fields": fields}}
    program = program_of([transform], dict(columns), tables={"codes": {"type": "csv", "uri": "codes.csv", "key": "code"}})
    numbers = list(range(rows))
    table = {"code": [str(number) for number in numbers], "owner": [f"owner {number % 500}" for number in numbers], "level": numbers}
    snapshot = Snapshot(program.lookups["codes"], snapshot_of(program.lookups["codes"], pa.table(table), engine))
    return program.with_snapshots({"codes": lambda: snapshot})
