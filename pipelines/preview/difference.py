"""The difference that an edit makes: two programs over the same raw frames, compared record by record.

In: the frames, of which those before a sequence are only to be remembered. Out: the rows gained, lost and changed, by column, and the
records that end otherwise. Kept: counts by kind of ending, a few examples of each, one portion of frames, and the records of a join that
are open (`ends`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.preview.ends import Ending, Ends, Settled, table_name
from pipelines.preview.readable import readable
from pipelines.preview.trial import Trial, note_nothing
from pipelines.process.arrivals import STEP_BYTES, Arrived, steps
from pipelines.process.program import Program
from pipelines.process.steps.mapping import MapToTable
from pipelines.protocol.bodies import NOTHING, Watermarks
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, position_keys, position_text
from pipelines.protocol.records import joined
from pipelines.types.columns import value_type
from pipelines.types.duckdb import open_engine
from pipelines.types.vectors import Mask, to_mask

NUMBER_OF_ROWS = "number of rows"
_SHOWN = ["_tf_partition", "_tf_offset", "value"]
SHOWN_BYTES = 300
"""Bytes of a record that an example holds."""


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

    `watermarks`: before the first frame. `examples`: kept of each change. The left records of a join that still wait behind the last frame
    end as waiting.
    """
    pairs = _tables(old, new)
    found = Difference(**_columns(pairs))
    with open_engine() as engine, open_engine() as other, TemporaryDirectory(prefix="tallyflow-diff-") as directory:
        trials = (
            Trial(old, engine, Path(directory, "old"), watermarks),
            Trial(new, other, Path(directory, "new"), watermarks),
        )
        compared = _Compared(found, pairs, examples, *map(Ends, trials))
        for portion in steps(frames, STEP_BYTES // max(old.widening, new.widening)):
            earlier = [frame for frame in portion if frame.message.sequence < first]
            if earlier:
                for trial in trials:
                    trial.take(earlier, trial.read(earlier), note_nothing)
            if len(earlier) < len(portion):
                compared.take(portion[len(earlier) :], trials[0].read(portion[len(earlier) :]))
        compared.finish()
    return found


Pair = tuple[MapToTable | None, MapToTable | None]
"""A table before and now; None where there is none."""


def _tables(old: Program, new: Program) -> list[Pair]:
    """Return the tables of both programs, by their names; the only one of each is the same table, whatever its name."""
    before, now = ({table_name(table): table for table in program.tables.tables} for program in (old, new))
    if len(before) == len(now) == 1:
        return [(old.tables.tables[0], new.tables.tables[0])]
    return [(before.get(name), now.get(name)) for name in dict.fromkeys((*before, *now))]


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


class _Compared:
    """The comparison, record by record, of two programs that take the same frames. Kept: the records that are open under either."""

    def __init__(self, found: Difference, pairs: Sequence[Pair], examples: int, before: Ends, now: Ends) -> None:
        self._found, self._pairs, self._examples = found, pairs, examples
        self._before, self._now = before, now
        self._raw: list[pa.Table] = []

    def take(self, frames: Sequence[Arrived], raw: pa.Table) -> None:
        """Take the next frames, with their records, and compare what is settled under both programs."""
        self._raw.append(raw.select([*SEQUENCE_AND_ORDINAL, *_SHOWN]))
        for ends in (self._before, self._now):
            ends.take(frames, raw)
        self._compare()

    def finish(self) -> None:
        """Compare the records that are open to the end."""
        if self._raw:
            for ends in (self._before, self._now):
                ends.finish()
            self._compare()

    def _compare(self) -> None:
        which = self._before.are_settled & self._now.are_settled
        raw = joined(self._raw)
        self._raw = [raw.filter(pa.array(~which))]
        before, now, raw = self._before.settle(which), self._now.settle(which), raw.filter(pa.array(which))
        self._compare_ends(before, now, raw)
        self._compare_rows(before, now, raw)

    def _compare_ends(self, before: Settled, now: Settled, raw: pa.Table) -> None:
        self._found.records += len(before.keys)
        self._found.old_rows += before.rows.num_rows
        self._found.new_rows += now.rows.num_rows
        # The two number their endings each by itself: they are compared as pairs.
        pairs, kinds = np.unique(np.stack([before.of, now.of]), axis=1, return_inverse=True)
        for number, (old, new) in enumerate(pairs.T.tolist()):
            ends = before.endings[old], now.endings[new]
            if ends[0] != ends[1]:
                change = self._found.changes.setdefault(ends, Change())
                (at,) = np.nonzero(kinds.reshape(-1) == number)
                change.records += len(at)
                for index in at[: max(0, self._examples - len(change.examples))].tolist():
                    key = int(before.keys[index])
                    reasons = before.reasons.get(key, ""), now.reasons.get(key, "")
                    change.examples.append(_example(raw, index, *reasons))

    def _compare_rows(self, before: Settled, now: Settled, raw: pa.Table) -> None:
        """Compare, table by table, the rows that both programs make; count the records that end as before, with other values."""
        values: dict[int, dict[str, tuple[Any, Any]]] = {}
        for pair in self._pairs:
            old, new = pair
            if old and new:
                for key, name, shown in _changed_values(before, now, old, new):
                    label = _label(self._pairs, pair, name)
                    self._found.columns[label] += 1
                    values.setdefault(key, {})[label] = shown
        for key, changed in values.items():
            index = int(np.searchsorted(before.keys, np.uint64(key)))
            ending = before.ending(index)
            if ending == now.ending(index):
                change = self._found.changes.setdefault((ending, ending), Change())
                change.records += 1
                if len(change.examples) < self._examples:
                    change.examples.append(_example(raw, index, values=changed))


def _example(raw: pa.Table, index: int, old_reason: str = "", new_reason: str = "", values: Any = None) -> Example:
    one = raw.slice(index, 1)
    record = one.select(_SHOWN).to_pylist()[0]
    value = record["value"]
    shown = None if value is None else value[:SHOWN_BYTES].decode(errors="backslashreplace")
    position = position_text(int(position_keys(one)[0]))
    return Example(position, record["_tf_partition"], record["_tf_offset"], shown, old_reason, new_reason, values or {})


def _changed_values(before: Settled, now: Settled, old: MapToTable, new: MapToTable) -> Iterator[tuple[int, str, tuple[Any, Any]]]:
    """Yield position, column, and the values before and now, of each value that differs; by column, then by position.

    Of a record that has rows before and now, another number of them is a difference in NUMBER_OF_ROWS.
    """
    old_rows, new_rows = before.rows_of(old), now.rows_of(new)
    common, old_at, new_at = np.intersect1d(before.places(old_rows), before.places(new_rows), assume_unique=True, return_indices=True)
    keys = before.keys_at(common)
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
