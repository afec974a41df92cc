"""What becomes of records under one program, while frames go through it: their endings, their rows, and which are still open.

In: frames, portion after portion. Out: the records that are settled, with their rows (`Settled`). Kept: the open ones. Without a join a
portion settles its own records; a left record of a join may be decided by a later portion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.preview.joined import KEPT, WAITING
from pipelines.preview.trial import Trial, step_names
from pipelines.process.arrivals import Arrived
from pipelines.process.program import Program
from pipelines.process.steps.mapping import MapToTable
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, position_keys
from pipelines.protocol.records import EMIT_FIELD, joined
from pipelines.types.vectors import Mask

_EMIT_BITS = 32
_OPEN = 0
_IN_WORDS = {"duplicate": "a duplicate", KEPT: "kept for the join", WAITING: "waiting in the join"}


class Ending(NamedTuple):
    """What became of a record. `outcome`: row, or as `trial` notes it, at `step`; `code` and `column` of a rejected one.

    The step of a row is its table; those of several tables have commas between them.
    """

    outcome: str
    step: str = ""
    code: str = ""
    column: str = ""

    def __str__(self) -> str:
        if self.outcome == "row":
            return f"a row of {self.step}"
        cause = f": {self.code}{f' of {self.column}' if self.column else ''}" if self.code else ""
        return _IN_WORDS.get(self.outcome, f"{self.outcome} by {self.step}{cause}")


@dataclass(frozen=True)
class Settled:
    """Records that ended under one program, in position order: the number of each one's ending, and the rows.

    `reasons`: by position, of the rejected ones.
    """

    program: Program
    keys: RawPositions
    of: npt.NDArray[np.int64]
    endings: Sequence[Ending]
    reasons: dict[int, str]
    rows: pa.Table

    def ending(self, index: int) -> Ending:
        return self.endings[int(self.of[index])]

    def rows_of(self, table: MapToTable) -> pa.Table:
        """Return the rows of one table, with their positions."""
        return self.program.tables.rows_for(self.rows, table.leg)

    def places(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        """Return a number for each row: of its record, and its own among the rows of that."""
        records = np.searchsorted(self.keys, position_keys(rows)).astype(np.uint64)
        places: npt.NDArray[np.uint64] = (records << np.uint64(_EMIT_BITS)) | rows.column(EMIT_FIELD.name).to_numpy()
        return places

    def keys_at(self, places: npt.NDArray[np.uint64]) -> RawPositions:
        """Return the position of the record of each of these `places`."""
        keys: RawPositions = self.keys[places >> np.uint64(_EMIT_BITS)]
        return keys


class Ends:
    """The open records of a trial. Records that were only remembered by it are never among them."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._names = trial, step_names(trial.program)
        self._keys: RawPositions = NO_POSITIONS
        self._of = np.zeros(0, dtype=np.int64)
        self._endings = [Ending("open")]
        self._reasons: dict[int, str] = {}
        self._rows: list[pa.Table] = []

    @property
    def are_settled(self) -> Mask:
        """Whether each open record, in position order, has an ending by now."""
        settled: Mask = self._of != _OPEN
        return settled

    def take(self, frames: Sequence[Arrived], raw: pa.Table) -> None:
        """Take the next frames, with their records."""
        keys = position_keys(raw)
        self._keys, self._of = np.concatenate([self._keys, keys]), np.concatenate([self._of, np.zeros(len(keys), dtype=np.int64)])
        rows = self._trial.take(frames, raw, self._note)
        rows = rows.filter(pa.array(np.isin(position_keys(rows), self._keys)))
        self._note_rows(rows)
        self._rows.append(rows)

    def finish(self) -> None:
        """Settle the left records of a join that still wait, behind the last frame."""
        self._trial.finish(self._note)

    def settle(self, which: Mask) -> Settled:
        """Return these of the open records, and their rows, and keep the others."""
        keys, rows = self._keys[which], joined(self._rows)
        are_theirs = np.isin(position_keys(rows), keys)
        rejected = np.fromiter(self._reasons, dtype=np.uint64)
        reasons = {key: self._reasons.pop(key) for key in rejected[np.isin(rejected, keys)].tolist()}
        settled = Settled(self._trial.program, keys, self._of[which], self._endings, reasons, rows.filter(pa.array(are_theirs)))
        self._keys, self._of, self._rows = self._keys[~which], self._of[~which], [rows.filter(pa.array(~are_theirs))]
        return settled

    def _note_rows(self, rows: pa.Table) -> None:
        """Note the records with rows: their endings differ by the tables that take them."""
        tables = self._trial.program.tables
        takers = np.zeros(len(self._keys), dtype=np.int64)
        for number, table in enumerate(tables.tables):
            takers[np.searchsorted(self._keys, position_keys(tables.rows_for(rows, table.leg)))] |= 1 << number
        for taker in np.unique(takers[takers > 0]).tolist():
            names = ", ".join(table_name(table) for number, table in enumerate(tables.tables) if taker >> number & 1)
            self._of[takers == taker] = self._number(Ending("row", names))

    def _note(self, step: int, before: pa.Table, passed: pa.Table, rejected: pa.Table, dropped: str) -> None:
        """Note what a step made of records; see `trial.Note`."""
        name, refused = self._names[step], position_keys(rejected)
        causes = zip(*(rejected.column(name).to_pylist() for name in ("code", "field", "message")), strict=True)
        are_open, places = np.isin(refused, self._keys).tolist(), np.searchsorted(self._keys, refused).tolist()
        for key, is_open, place, (code, column, reason) in zip(refused.tolist(), are_open, places, causes, strict=True):
            if is_open:
                self._of[place] = self._number(Ending("rejected", name, code, column or ""))
                self._reasons[key] = reason
        gone = np.setdiff1d(np.setdiff1d(position_keys(before), position_keys(passed)), refused)
        gone = gone[np.isin(gone, self._keys)]
        if len(gone):
            self._of[np.searchsorted(self._keys, gone)] = self._number(Ending(dropped, name))

    def _number(self, ending: Ending) -> int:
        if ending not in self._endings:
            self._endings.append(ending)
        return self._endings.index(ending)


def table_name(table: MapToTable) -> str:
    """Return the table's name with its database."""
    return f"{table.database}.{table.table}"
