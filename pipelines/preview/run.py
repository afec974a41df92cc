"""Records through the steps of a program, with the outcome of each record at each step.

The steps are those of the process leg, applied one at a time; dedup begins with an empty store. Only an insert can show whether ClickHouse
takes a row.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.process.arrivals import Arrived, records_of
from pipelines.process.buckets import key_owners, shares
from pipelines.process.frames import frame_times
from pipelines.process.parse.columns import widest_bytes
from pipelines.process.program import Program
from pipelines.process.steps import Context, pass_through
from pipelines.protocol.bodies import NOTHING
from pipelines.protocol.positions import in_position_order, position_keys
from pipelines.protocol.records import joined
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

PASSED, ROW, DUPLICATE, DROPPED, REJECTED = "passed", "row", "duplicate", "dropped", "rejected"
FIRST_OF_KEY = "first of key"
"""The part of dedup behind all other steps."""


@dataclass(frozen=True)
class Seen:
    """A record at one step. `outcome`: passed, row, duplicate, rejected, or `dropped`. `fields`: after the step, if it passed.

    `stage`, `code`, `column` and `reason` are those of the dead letter, if it is rejected.
    """

    step: str
    outcome: str
    fields: dict[str, Any] | None = None
    stage: str = ""
    code: str = ""
    column: str | None = None
    reason: str = ""


@dataclass
class Traced:
    """One record: its coordinates, its value, and what it met at each step that it reached."""

    partition: int
    offset: int
    value: bytes | None
    steps: list[Seen] = field(default_factory=list)

    @property
    def last(self) -> Seen:
        return self.steps[-1]


@dataclass(frozen=True)
class Preview:
    """The records in their order, and the names of the steps in theirs."""

    records: tuple[Traced, ...]
    steps: tuple[str, ...]

    def counts(self) -> list[tuple[str, Counter[str]]]:
        """Return, step by step, the number of records by outcome; a step's name may repeat."""
        found = [Counter[str]() for _ in self.steps]
        for record in self.records:
            for number, seen in enumerate(record.steps):
                found[number][seen.outcome] += 1
        return list(zip(self.steps, found, strict=True))

    def outcomes(self) -> Counter[str]:
        """Return the number of records by what became of them."""
        return Counter(record.last.outcome for record in self.records)


def preview(program: Program, frames: Sequence[Arrived]) -> Preview:
    """Take whole frames through the program. Nothing is written."""
    raw = joined([records_of(frame.message, frame.arrival_us) for frame in frames])
    columns = (raw.column(name).to_pylist() for name in ("_tf_partition", "_tf_offset", "value"))
    trace = _Trace([Traced(*record) for record in zip(*columns, strict=True)], position_keys(raw).tolist())
    with open_engine() as engine:
        rows = _through_steps(program, engine, raw, trace)
    if program.dedup.key:
        rows = _first_of_keys(program, rows, frames, trace)
    shown = rows.select(program.insert_columns)
    for record, row in zip(trace.of(rows), shown.to_pylist(), strict=True):
        record.steps[-1] = Seen(record.last.step, ROW, row)
    steps = (*(step.name for step in program.steps), *([FIRST_OF_KEY] if program.dedup.key else []))
    return Preview(tuple(trace.records), steps)


class _Trace:
    """The records of a preview, by their positions."""

    def __init__(self, records: Sequence[Traced], keys: Sequence[int]) -> None:
        self.records = records
        self._by_key = dict(zip(keys, records, strict=True))

    def of(self, rows: pa.Table) -> list[Traced]:
        """Return the records of `rows`, in their order."""
        return [self._by_key[key] for key in position_keys(rows).tolist()]

    def note(self, step: str, before: pa.Table, after: pa.Table, rejected: pa.Table, dropped: str) -> None:
        """Note what a step made of the records of `before`; `dropped`: the outcome of those that are neither passed nor rejected."""
        passed = dict(zip(position_keys(after).tolist(), _fields(after), strict=True))
        reasons = dict(zip(position_keys(rejected).tolist(), rejected.to_pylist(), strict=True))
        for key in position_keys(before).tolist():
            if key in passed:
                seen = Seen(step, PASSED, passed[key])
            elif key in reasons:
                reason = reasons[key]
                seen = Seen(step, REJECTED, None, *(reason[name] for name in ("stage", "code", "field", "message")))
            else:
                seen = Seen(step, dropped)
            self._by_key[key].steps.append(seen)


def _fields(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the fields of rows, without positions and keys."""
    fields: list[dict[str, Any]] = rows.select([name for name in rows.column_names if not name.startswith("_tf_")]).to_pylist()
    return fields or [{}] * rows.num_rows


def _through_steps(program: Program, engine: Engine, raw: pa.Table, trace: _Trace) -> pa.Table:
    widest = widest_bytes(raw, program.parse.columns)
    rows = raw
    for step, _ in program.path:
        # Each field stays to be seen; the steps do not mind.
        found = pass_through([(step, frozenset())], Context(engine, program.carried, widest), rows, open_engine)
        trace.note(step.name, rows, found.accepted, found.rejected, DROPPED)
        rows = found.accepted
    return program.dedup.sealed(rows)


def _first_of_keys(program: Program, rows: pa.Table, frames: Sequence[Arrived], trace: _Trace) -> pa.Table:
    times = frame_times(rows, frames, NOTHING, program)
    accepted = [rows.slice(0, 0)]
    with TemporaryDirectory(prefix="tallyflow-preview-") as directory:
        for bucket, share in shares(rows, key_owners(rows, program.buckets)):
            found, late = program.dedup.first_of_keys(share, KeyedStore(Storage.local(Path(directory, str(bucket)))), times)
            trace.note(FIRST_OF_KEY, share, found.accepted, program.dedup.rejected_late(late), DUPLICATE)
            accepted.append(found.accepted)
    return in_position_order(joined([part.select(program.insert_columns) for part in accepted if part.num_rows] or [rows.slice(0, 0)]))
