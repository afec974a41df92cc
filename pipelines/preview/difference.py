"""The difference that an edit makes: two programs over the same raw frames, compared record by record.

In: the frames, of which those before a sequence are only to be remembered. Out: the rows gained, lost and changed, by column, and the
records that end otherwise. Kept: counts by kind of ending, a few examples of each, and one portion of frames.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.preview.readable import readable
from pipelines.preview.trial import Trial, note_nothing, step_names
from pipelines.process.arrivals import STEP_BYTES, Arrived, steps
from pipelines.process.program import Program
from pipelines.process.steps.mapping import MapToTable
from pipelines.protocol.bodies import NOTHING, Watermarks
from pipelines.protocol.positions import RawPositions, position_keys, position_text
from pipelines.protocol.records import EMIT_FIELD
from pipelines.types.columns import value_type
from pipelines.types.duckdb import open_engine
from pipelines.types.vectors import Mask, to_mask

NUMBER_OF_ROWS = "number of rows"
_EMIT_BITS = 32
SHOWN_BYTES = 300
"""Bytes of a record that an example holds."""


class Ending(NamedTuple):
    """What became of a record. `outcome`: row, dropped, duplicate or rejected, at `step`; `code` and `column` of a rejected one.

    The step of a row is its table; those of several tables have commas between them.
    """

    outcome: str
    step: str = ""
    code: str = ""
    column: str = ""

    def __str__(self) -> str:
        if self.outcome in ("row", "duplicate"):
            return f"a {self.outcome}" if self.outcome == "duplicate" else f"a row of {self.step}"
        cause = f": {self.code}{f' of {self.column}' if self.column else ''}" if self.code else ""
        return f"{self.outcome} by {self.step}{cause}"


@dataclass(frozen=True)
class Example:
    """A record that ends otherwise: where it is, the beginning of its value, and why it was rejected before and is now, if it is.

    `values`: by column, the value before and now, if it stays a row.
    """

    position: str
    partition: int
    offset: int
    value: str | None
    old_reason: str = ""
    new_reason: str = ""
    values: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass
class Change:
    """The records of one ending before and one now; a row that stays one has other values."""

    records: int = 0
    examples: list[Example] = field(default_factory=list)


@dataclass
class Difference:
    """The difference between two programs over some records.

    `columns`: changed rows by the name of each changed column. `added`, `dropped`, `retyped`: columns of the mapping.
    """

    records: int = 0
    old_rows: int = 0
    new_rows: int = 0
    columns: Counter[str] = field(default_factory=Counter)
    changes: dict[tuple[Ending, Ending], Change] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    retyped: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        return not (self.changes or self.added or self.dropped or self.retyped)

    def count(self, *, was_row: bool, is_row: bool) -> int:
        """Return how many changed records were a row or not, and are one now or not."""
        kinds = self.changes.items()
        return sum(change.records for (old, new), change in kinds if (old.outcome == "row", new.outcome == "row") == (was_row, is_row))


def difference(
    old: Program, new: Program, frames: Iterable[Arrived], first: int = 0, watermarks: Watermarks = NOTHING, examples: int = 3
) -> Difference:
    """Take frames through both programs and compare; those before raw sequence `first` are only remembered. Nothing is written.

    `watermarks`: before the first frame. `examples`: kept of each change.
    """
    pairs = _tables(old, new)
    found = Difference(**_columns(pairs))
    with open_engine() as engine, open_engine() as other, TemporaryDirectory(prefix="tallyflow-diff-") as directory:
        trials = (
            Trial(old, engine, Path(directory, "old"), watermarks),
            Trial(new, other, Path(directory, "new"), watermarks),
        )
        for portion in steps(frames, STEP_BYTES // max(old.widening, new.widening)):
            earlier = [frame for frame in portion if frame.message.sequence < first]
            if earlier:
                for trial in trials:
                    trial.take(earlier, trial.read(earlier), note_nothing)
            if len(earlier) < len(portion):
                before, now = (_Ends(trial, portion[len(earlier) :]) for trial in trials)
                _compare_ends(found, before, now, examples)
                _compare_rows(found, before, now, pairs, examples)
    return found


Pair = tuple[MapToTable | None, MapToTable | None]
"""A table before and now; None where there is none."""


def _tables(old: Program, new: Program) -> list[Pair]:
    """Return the tables of both programs, by their names; the only one of each is the same table, whatever its name."""
    before, now = ({_name(table): table for table in program.tables.tables} for program in (old, new))
    if len(before) == len(now) == 1:
        return [(old.tables.tables[0], new.tables.tables[0])]
    return [(before.get(name), now.get(name)) for name in dict.fromkeys((*before, *now))]


def _name(table: MapToTable) -> str:
    return f"{table.database}.{table.table}"


def _label(pairs: Sequence[Pair], pair: Pair, column: str) -> str:
    """Return the name of a column, with its table if there are several."""
    table = pair[1] or pair[0]
    return f"{table.table}.{column}" if len(pairs) > 1 and table else column


def _columns(pairs: Sequence[Pair]) -> dict[str, Any]:
    before, now = (
        {_label(pairs, pair, column.name): column.type for pair in pairs if (table := pair[side]) for column in table.columns}
        for side in (0, 1)
    )
    return {
        "added": {name: kind for name, kind in now.items() if name not in before},
        "dropped": {name: kind for name, kind in before.items() if name not in now},
        "retyped": {name: (kind, now[name]) for name, kind in before.items() if name in now and now[name] != kind},
    }


class _Ends:
    """The ends of a portion's records under one program: `of` numbers the endings, record by record in position order."""

    def __init__(self, trial: Trial, frames: Sequence[Arrived]) -> None:
        self.program, self._names = trial.program, step_names(trial.program)
        self.raw = trial.read(frames)
        self.keys: RawPositions = position_keys(self.raw)
        self.of = np.zeros(len(self.keys), dtype=np.int64)
        self.endings: list[Ending] = []
        self.reasons: dict[int, str] = {}
        self.rows = trial.take(frames, self.raw, self._note)
        self._note_rows()

    def rows_of(self, table: MapToTable) -> pa.Table:
        """Return the rows of one table, with their positions."""
        return self.program.tables.rows_for(self.rows, table.leg)

    def places(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        """Return a number for each row: of its record in this portion, and its own among the rows of that."""
        records = np.searchsorted(self.keys, position_keys(rows)).astype(np.uint64)
        places: npt.NDArray[np.uint64] = (records << np.uint64(_EMIT_BITS)) | rows.column(EMIT_FIELD.name).to_numpy()
        return places

    def _note_rows(self) -> None:
        """Note the records with rows: their endings differ by the tables that take them."""
        tables = self.program.tables.tables
        takers = np.zeros(len(self.keys), dtype=np.int64)
        for number, table in enumerate(tables):
            takers[np.searchsorted(self.keys, position_keys(self.rows_of(table)))] |= 1 << number
        for taker in np.unique(takers[takers > 0]).tolist():
            names = ", ".join(_name(table) for number, table in enumerate(tables) if taker >> number & 1)
            self.of[takers == taker] = self._number(Ending("row", names))

    def _note(self, step: int, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None:
        """Note what a step made of records; see `trial.Note`."""
        name, refused = self._names[step], position_keys(rejected)
        causes = zip(*(rejected.column(name).to_pylist() for name in ("code", "field", "message")), strict=True)
        for key, (code, column, reason) in zip(refused.tolist(), causes, strict=True):
            self.of[np.searchsorted(self.keys, key)] = self._number(Ending("rejected", name, code, column or ""))
            self.reasons[key] = reason
        gone = np.setdiff1d(np.setdiff1d(position_keys(before), position_keys(passed)), refused)
        if len(gone):
            self.of[np.searchsorted(self.keys, gone)] = self._number(Ending(dropped, name))

    def _number(self, ending: Ending) -> int:
        if ending not in self.endings:
            self.endings.append(ending)
        return self.endings.index(ending)


def _compare_ends(found: Difference, before: _Ends, now: _Ends, examples: int) -> None:
    found.records += len(before.keys)
    found.old_rows += before.rows.num_rows
    found.new_rows += now.rows.num_rows
    # The two number their endings each by itself: they are compared as pairs.
    pairs, kinds = np.unique(np.stack([before.of, now.of]), axis=1, return_inverse=True)
    for number, (old, new) in enumerate(pairs.T.tolist()):
        ends = before.endings[old], now.endings[new]
        if ends[0] != ends[1]:
            (at,) = np.nonzero(kinds.reshape(-1) == number)
            _note_change(found, ends, before, now, at, examples)


def _note_change(found: Difference, ends: tuple[Ending, Ending], before: _Ends, now: _Ends, at: Any, examples: int) -> None:
    change = found.changes.setdefault(ends, Change())
    change.records += len(at)
    for index in at[: max(0, examples - len(change.examples))].tolist():
        key = int(before.keys[index])
        change.examples.append(_example(before, index, before.reasons.get(key, ""), now.reasons.get(key, "")))


def _example(before: _Ends, index: int, old_reason: str = "", new_reason: str = "", values: Any = None) -> Example:
    record = before.raw.slice(index, 1).select(["_tf_partition", "_tf_offset", "value"]).to_pylist()[0]
    value = record["value"]
    shown = None if value is None else value[:SHOWN_BYTES].decode(errors="backslashreplace")
    position = position_text(int(before.keys[index]))
    return Example(position, record["_tf_partition"], record["_tf_offset"], shown, old_reason, new_reason, values or {})


def _compare_rows(found: Difference, before: _Ends, now: _Ends, pairs: Sequence[Pair], examples: int) -> None:
    """Compare, table by table, the rows that both programs make; count the records that end as before, with other values."""
    values: dict[int, dict[str, tuple[Any, Any]]] = {}
    for pair in pairs:
        old, new = pair
        if old and new:
            for key, name, shown in _changed_values(before, now, old, new):
                label = _label(pairs, pair, name)
                found.columns[label] += 1
                values.setdefault(key, {})[label] = shown
    for key, changed in values.items():
        index = int(np.searchsorted(before.keys, key))
        ending = before.endings[before.of[index]]
        if ending == now.endings[now.of[index]]:
            change = found.changes.setdefault((ending, ending), Change())
            change.records += 1
            if len(change.examples) < examples:
                change.examples.append(_example(before, index, values=changed))


def _changed_values(before: _Ends, now: _Ends, old: MapToTable, new: MapToTable) -> Iterator[tuple[int, str, tuple[Any, Any]]]:
    """Yield position, column, and the values before and now, of each value that differs; by column, then by position.

    Of a record that has rows before and now, another number of them is a difference in NUMBER_OF_ROWS.
    """
    old_rows, new_rows = before.rows_of(old), now.rows_of(new)
    common, old_at, new_at = np.intersect1d(before.places(old_rows), before.places(new_rows), assume_unique=True, return_indices=True)
    keys = before.keys[common >> np.uint64(_EMIT_BITS)]
    counts = np.stack(
        [np.bincount(np.searchsorted(before.keys, position_keys(rows)), minlength=len(before.keys)) for rows in (old_rows, new_rows)]
    )
    for index in np.flatnonzero((counts[0] != counts[1]) & (counts > 0).all(axis=0)).tolist():
        yield int(before.keys[index]), NUMBER_OF_ROWS, (int(counts[0, index]), int(counts[1, index]))
    old_kinds, new_kinds = ({column.name: value_type(column.type) for column in table.columns} for table in (old, new))
    for name, kind in old_kinds.items():
        if name not in new_kinds:
            continue
        old_values, new_values = old_rows.column(name).take(pa.array(old_at)), new_rows.column(name).take(pa.array(new_at))
        if kind == new_kinds[name] and not pa.types.is_nested(old_values.type):
            (at,) = _differs(old_values, new_values).nonzero()
            keys_here, old_values, new_values = keys[at], old_values.take(pa.array(at)), new_values.take(pa.array(at))
        else:
            keys_here = keys
        shown = zip(keys_here.tolist(), old_values.to_pylist(), new_values.to_pylist(), strict=True)
        for key, old_value, new_value in shown:
            pair = readable(old_value, kind), readable(new_value, new_kinds[name])
            if pair[0] != pair[1]:
                yield key, name, pair


def _differs(old: pa.ChunkedArray, new: pa.ChunkedArray) -> Mask:
    """Return where two columns of one type differ; a null is equal to a null alone."""
    are_nulls = pc.xor(pc.is_null(old), pc.is_null(new))
    return to_mask(pc.or_(pc.fill_null(pc.not_equal(old, new), False), are_nulls))
