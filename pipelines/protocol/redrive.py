"""redrive: dead letters become raw records again, or are discarded; each dead letter at most once, however often it is requested.

In: dead letters of the dlq stream, by their place there: (sequence of the frame, row in it), which never changes. Out: REDRIVEN_SCHEMA,
records with their original Kafka coordinates and their history; they enter at the start, so that a fix anywhere helps. Every plan on the
`redrive` chain names the dead letters that it takes, and a dead letter that any plan has ever named is never named again. Rejected:
nothing; a dead letter of an oversize record cannot be redriven, because it holds only the record's head. State: the plans. After a kill the
open plan is finished first, exactly as planned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.protocol.bodies import RedrivePlan
from pipelines.protocol.records import HISTORY_SCHEMA, RAW_SCHEMA
from pipelines.types.vectors import Mask, to_mask

ENTER: Final = "enter"
DISCARD: Final = "discard"
"""Actions of a plan on its dead letters."""
OPEN, PARKED, REDRIVEN, DISCARDED = "open", "parked", "redriven", "discarded"
"""States of a dead letter.

Parked: it was rejected so often that it is redriven only by its position or with a higher limit.
"""
STATES = (OPEN, PARKED, REDRIVEN, DISCARDED)
WAITING = frozenset({OPEN, PARKED})
STATE_AFTER = {ENTER: REDRIVEN, DISCARD: DISCARDED}
REDRIVEN_SCHEMA = pa.schema([*RAW_SCHEMA, *HISTORY_SCHEMA])
MAX_PLAN_DEAD_LETTERS = 10_000
MAX_PLAN_RANGES = 5_000

Rows = npt.NDArray[np.int64]
RowRanges = list[tuple[int, list[tuple[int, int]]]]
"""Dead letters by their place: frames in the order of the dlq stream, ranges of rows in each (inclusive), ascending."""


@dataclass(frozen=True)
class Taken:
    """The dead letters that plans have named, by frame: rows and their outcome."""

    by_frame: Mapping[int, list[tuple[Rows, str]]]

    @classmethod
    def of(cls, plans: Iterable[RedrivePlan]) -> "Taken":
        found: dict[int, list[tuple[Rows, str]]] = {}
        for plan in plans:
            for sequence, ranges in plan.letters:
                found.setdefault(sequence, []).append((rows_of(ranges), STATE_AFTER[plan.action]))
        return cls(found)

    def states(self, sequence: int, attempts: npt.NDArray[np.int32], max_attempts: int) -> npt.NDArray[np.str_]:
        """Return the state of each dead letter of a frame, in their order; `attempts` are theirs."""
        states = np.where(attempts >= max_attempts, PARKED, OPEN).astype("U9")
        for rows, state in self.by_frame.get(sequence, []):
            states[rows] = state
        return states


def rows_of(ranges: Iterable[Sequence[int]]) -> Rows:
    return np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(first, last + 1) for first, last in ranges)])


def ranges_of(rows: Rows) -> list[tuple[int, int]]:
    """Return ascending rows as ranges, both ends inclusive."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    firsts, lasts = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(rows)]]) - 1
    return [(int(rows[first]), int(rows[last])) for first, last in zip(firsts, lasts, strict=True)] if len(rows) else []


def batches(
    frames: Iterable[tuple[int, Rows]], max_dead_letters: int = MAX_PLAN_DEAD_LETTERS, max_ranges: int = MAX_PLAN_RANGES
) -> Iterator[RowRanges]:
    """Yield the dead letters to take, (frame, ascending rows) in stream order, in portions that one plan may name."""
    row_ranges: RowRanges = []
    dead_letters = ranges = 0
    for sequence, rows in frames:
        for start in range(0, len(rows), max_ranges):
            part = rows[start : start + max_ranges]
            part_ranges = ranges_of(part)
            if row_ranges and (dead_letters + len(part) > max_dead_letters or ranges + len(part_ranges) > max_ranges):
                yield row_ranges
                row_ranges, dead_letters, ranges = [], 0, 0
            row_ranges.append((sequence, part_ranges))
            dead_letters += len(part)
            ranges += len(part_ranges)
    if row_ranges:
        yield row_ranges


def count(row_ranges: Iterable[Any]) -> int:
    return sum(last - first + 1 for _, ranges in row_ranges for first, last in ranges)


def can_enter(dead_letters: pa.Table) -> Mask:
    """Return False for dead letters of oversize records."""
    return to_mask(pc.is_null(dead_letters.column("oversize")))


def by_source(dead_letters: pa.Table) -> Iterator[pa.Table]:
    """Yield the dead letters of each source, in the order of their first ones."""
    for source in pc.unique(dead_letters.column("source")).to_pylist():
        yield dead_letters.filter(pc.equal(dead_letters.column("source"), source))


def records_of_dead_letters(dead_letters: pa.Table) -> pa.Table:
    """Return REDRIVEN_SCHEMA of dead letters (`dead_letter_rows.DEAD_LETTER_SCHEMA`), in their order."""
    positions = [dead_letters.column(name).cast(pa.string()) for name in ("_tf_sequence", "_tf_ordinal")]
    columns = {
        **{name: dead_letters.column(name) for name in ("key", "value", "headers", "timestamp", "oversize", *HISTORY_SCHEMA.names)},
        "partition": dead_letters.column("_tf_partition"),
        "offset": dead_letters.column("_tf_offset"),
        "origin": pc.binary_join_element_wise(*positions, "."),
    }
    return pa.table([columns[name] for name in REDRIVEN_SCHEMA.names], schema=REDRIVEN_SCHEMA)
