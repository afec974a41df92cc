"""The difference that an edit makes: two programs over the same raw frames, compared record by record.

In: the frames, of which those before a sequence are only to be remembered. Out: the rows gained, lost and changed, by column, and the
records that end otherwise. Kept: counts by kind of ending, a few examples of each, and one portion of frames.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.preview.readable import readable
from pipelines.preview.trial import Trial, note_nothing
from pipelines.process.arrivals import STEP_BYTES, Arrived, steps
from pipelines.process.program import Program
from pipelines.protocol.bodies import NOTHING, Watermarks
from pipelines.protocol.positions import RawPositions, position_keys, position_text
from pipelines.types.columns import value_type
from pipelines.types.duckdb import open_engine
from pipelines.types.vectors import Mask, to_mask

SHOWN_BYTES = 300
"""Bytes of a record that an example holds."""


class Ending(NamedTuple):
    """What became of a record. `outcome`: row, dropped, duplicate or rejected, at `step`; `code` and `column` of a rejected one."""

    outcome: str
    step: str = ""
    code: str = ""
    column: str = ""

    def __str__(self) -> str:
        if self.outcome in ("row", "duplicate"):
            return f"a {self.outcome}"
        cause = f": {self.code}{f' of {self.column}' if self.column else ''}" if self.code else ""
        return f"{self.outcome} by {self.step}{cause}"


A_ROW = Ending("row")


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
        return sum(change.records for (old, new), change in kinds if ((old == A_ROW), (new == A_ROW)) == (was_row, is_row))


def difference(
    old: Program, new: Program, frames: Iterable[Arrived], first: int = 0, watermarks: Watermarks = NOTHING, examples: int = 3
) -> Difference:
    """Take frames through both programs and compare; those before raw sequence `first` are only remembered. Nothing is written.

    `watermarks`: before the first frame. `examples`: kept of each change.
    """
    found = Difference(**_columns(old, new))
    with open_engine() as engine, open_engine() as other, TemporaryDirectory(prefix="tallyflow-diff-") as directory:
        trials = (
            Trial(old, engine, Path(directory, "old"), watermarks),
            Trial(new, other, Path(directory, "new"), watermarks),
        )
        for portion in steps(frames, STEP_BYTES // max(old.widening, new.widening)):
            earlier = [frame for frame in portion if frame.message.sequence < first]
            if earlier:
                for trial in trials:
                    trial.take(earlier, note_nothing)
            if len(earlier) < len(portion):
                before, now = (_Ends(trial, portion[len(earlier) :]) for trial in trials)
                _compare(found, before, now, examples)
    return found


def _columns(old: Program, new: Program) -> dict[str, Any]:
    before, now = ({column.name: column.type for column in program.mapping.columns} for program in (old, new))
    return {
        "added": {name: kind for name, kind in now.items() if name not in before},
        "dropped": {name: kind for name, kind in before.items() if name not in now},
        "retyped": {name: (kind, now[name]) for name, kind in before.items() if name in now and now[name] != kind},
    }


class _Ends:
    """The ends of a portion's records under one program: `of` numbers the endings, record by record in position order."""

    def __init__(self, trial: Trial, frames: Sequence[Arrived]) -> None:
        self.program = trial.program
        self.raw = pa.table({})
        self.keys: RawPositions = np.zeros(0, dtype=np.uint64)
        self.of = np.zeros(0, dtype=np.int64)
        self.endings: list[Ending] = [A_ROW]
        self.reasons: dict[int, str] = {}
        self.rows = trial.take(frames, self._note)

    def _note(self, step: str, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None:
        """Note what a step made of records; see `trial.Note`."""
        if not self.raw.num_columns:
            self.raw, self.keys = before, position_keys(before)
            self.of = np.zeros(len(self.keys), dtype=np.int64)
        refused = position_keys(rejected)
        causes = zip(*(rejected.column(name).to_pylist() for name in ("code", "field", "message")), strict=True)
        for key, (code, column, reason) in zip(refused.tolist(), causes, strict=True):
            self.of[np.searchsorted(self.keys, key)] = self._number(Ending("rejected", step, code, column or ""))
            self.reasons[key] = reason
        gone = np.setdiff1d(np.setdiff1d(position_keys(before), position_keys(passed)), refused)
        if len(gone):
            self.of[np.searchsorted(self.keys, gone)] = self._number(Ending(dropped, step))

    def _number(self, ending: Ending) -> int:
        if ending not in self.endings:
            self.endings.append(ending)
        return self.endings.index(ending)


def _compare(found: Difference, before: _Ends, now: _Ends, examples: int) -> None:
    found.records += len(before.keys)
    found.old_rows += before.rows.num_rows
    found.new_rows += now.rows.num_rows
    # Other endings of the two have other numbers: they are compared as pairs.
    pairs, kinds = np.unique(np.stack([before.of, now.of]), axis=1, return_inverse=True)
    for number, (old, new) in enumerate(pairs.T.tolist()):
        ends = before.endings[old], now.endings[new]
        if ends[0] != ends[1]:
            (at,) = np.nonzero(kinds.reshape(-1) == number)
            _note_change(found, ends, before, now, at, examples)
    _compare_rows(found, before, now, examples)


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


def _compare_rows(found: Difference, before: _Ends, now: _Ends, examples: int) -> None:
    """Compare, column by column, the rows that both programs make."""
    keys, old_at, new_at = np.intersect1d(position_keys(before.rows), position_keys(now.rows), assume_unique=True, return_indices=True)
    if not len(keys):
        return
    old_rows, new_rows = before.rows.take(pa.array(old_at)), now.rows.take(pa.array(new_at))
    kinds = [{column.name: value_type(column.type) for column in ends.program.mapping.columns} for ends in (before, now)]
    differing: dict[str, Mask] = {}
    for name in kinds[0].keys() & kinds[1].keys():
        old_values, new_values = old_rows.column(name), new_rows.column(name)
        if kinds[0][name] == kinds[1][name] and not pa.types.is_nested(old_values.type):
            differs = _differs(old_values, new_values)
        else:
            shown = zip(old_values.to_pylist(), new_values.to_pylist(), strict=True)
            differs = np.array([readable(old, kinds[0][name]) != readable(new, kinds[1][name]) for old, new in shown], dtype=bool)
        if differs.any():
            differing[name] = differs
            found.columns[name] += int(differs.sum())
    if not differing:
        return
    change = found.changes.setdefault((A_ROW, A_ROW), Change())
    (at,) = np.logical_or.reduce([*differing.values()]).nonzero()
    change.records += len(at)
    for index in at[: max(0, examples - len(change.examples))].tolist():
        values = {
            name: tuple(
                readable(rows.column(name)[index].as_py(), kind[name]) for rows, kind in zip((old_rows, new_rows), kinds, strict=True)
            )
            for name, differs in sorted(differing.items())
            if differs[index]
        }
        change.examples.append(_example(before, int(np.searchsorted(before.keys, keys[index])), values=values))


def _differs(old: pa.ChunkedArray, new: pa.ChunkedArray) -> Mask:
    """Return where two columns of one type differ; a null is equal to a null alone."""
    are_nulls = pc.xor(pc.is_null(old), pc.is_null(new))
    return to_mask(pc.or_(pc.fill_null(pc.not_equal(old, new), False), are_nulls))
