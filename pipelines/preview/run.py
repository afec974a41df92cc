"""A preview: records through the steps of a program, with the outcome of each record at each step.

The steps are those of the process leg; dedup begins with an empty store. Only an insert can show whether ClickHouse takes a row.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from pipelines.preview.readable import rows_of_records
from pipelines.preview.trial import Trial, step_names
from pipelines.process.arrivals import Arrived, steps
from pipelines.process.program import Program
from pipelines.protocol.positions import first_rows, position_keys, position_text
from pipelines.types.duckdb import open_engine

PASSED, ROW, REJECTED = "passed", "row", "rejected"


@dataclass(frozen=True)
class Seen:
    """A record at one step. `outcome`: passed, row, duplicate, rejected, dropped, or, at a join, kept, unmatched or waiting.

    `fields`: after the step, if it passed; behind the mapping to several sinks, the row of each by the sink's leg. `others`: the same of
    its other rows, if it has several. `stage`, `code`, `column` and `reason` are those of the dead letter, if it is rejected. `place`: of
    the step among those of the preview.
    """

    step: str
    outcome: str
    fields: dict[str, Any] | None = None
    stage: str = ""
    code: str = ""
    column: str | None = None
    reason: str = ""
    place: int = 0
    others: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The fields of each of its rows; without one if it has not passed."""
        return () if self.fields is None else (self.fields, *self.others)


@dataclass
class Traced:
    """One record: its raw position and its coordinates, its value, and what it met at each step that it reached."""

    position: str
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
        for seen in (seen for record in self.records for seen in record.steps):
            found[seen.place][seen.outcome] += 1
        return list(zip(self.steps, found, strict=True))

    def outcomes(self) -> Counter[str]:
        """Return the number of records by what became of them."""
        return Counter(record.last.outcome for record in self.records)


def preview(program: Program, frames: Iterable[Arrived]) -> Preview:
    """Take whole frames through the program. Nothing is written."""
    with open_engine() as engine, TemporaryDirectory(prefix="tallyflow-preview-") as directory:
        trial, trace = Trial(program, engine, Path(directory)), _Trace(program)
        for portion in steps(frames):
            raw = trial.read(portion)
            trace.add(raw)
            rows = trial.take(portion, raw, trace.note)
            for record, made in trace.rows_of(rows, rows_of_records(program, rows)):
                record.steps[-1] = replace(record.last, outcome=ROW, fields=made[0], others=tuple(made[1:]))
        trial.finish(trace.note)
    return Preview(tuple(trace.by_key.values()), step_names(program))


class _Trace:
    """The records in their order, by their positions."""

    def __init__(self, program: Program) -> None:
        self._program, self._names = program, step_names(program)
        self.by_key: dict[int, Traced] = {}

    def add(self, raw: pa.Table) -> None:
        """Add the records of the next portion."""
        keys = position_keys(raw).tolist()
        columns = (raw.column(name).to_pylist() for name in ("_tf_partition", "_tf_offset", "value"))
        records = (Traced(position_text(key), *record) for key, record in zip(keys, zip(*columns, strict=True), strict=True))
        self.by_key |= zip(keys, records, strict=True)

    def rows_of(self, rows: pa.Table, shown: Sequence[dict[str, Any]]) -> Iterator[tuple[Traced, list[dict[str, Any]]]]:
        """Yield the records of `rows`, in their order, each with what is `shown` of its rows."""
        for key, made in _by_record(rows, shown).items():
            yield self.by_key[key], made

    def note(self, step: int, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None:
        """Note what a step made of the records of `before`; see `trial.Note`."""
        name = self._names[step]
        is_routed = name == self._program.tables.name and self._program.tables.routes
        shown = rows_of_records(self._program, passed) if is_routed else _fields(passed)
        fields = _by_record(passed, shown)
        reasons = dict(zip(position_keys(rejected).tolist(), rejected.to_pylist(), strict=True))
        for key in position_keys(first_rows(before)).tolist():
            if key in fields:
                seen = Seen(name, PASSED, fields[key][0], place=step, others=tuple(fields[key][1:]))
            elif key in reasons:
                stage, code, column, reason = (reasons[key][part] for part in ("stage", "code", "field", "message"))
                seen = Seen(name, REJECTED, None, stage, code, column, reason, step)
            else:
                seen = Seen(name, dropped, place=step)
            self.by_key[key].steps.append(seen)


def _by_record(rows: pa.Table, shown: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return what is `shown` of rows by the key of their record, in their order."""
    found: dict[int, list[dict[str, Any]]] = {}
    for key, one in zip(position_keys(rows).tolist(), shown, strict=True):
        found.setdefault(key, []).append(one)
    return found


def _fields(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the fields of rows, without positions and keys."""
    fields: list[dict[str, Any]] = rows.select([name for name in rows.column_names if not name.startswith("_tf_")]).to_pylist()
    return fields or [{}] * rows.num_rows
