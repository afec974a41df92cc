"""Isolation: a batch that ends a stage is halved down to the records at fault; these are rejected, the others pass.

In: a stage, and the table over which it raises. Out: the stage's output over the rest, with a rejection of the code `internal_error` for
each record that raises by itself, three times in a row, or takes more memory than an engine may. Kept: nothing. An error of the host
(memory, disk, descriptors) or of our own code is never a record's fault, nor is an error that the stage raises without any record: such
errors are raised.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.functions.spec import HOST_CODES
from pipelines.host import is_of_host
from pipelines.protocol.positions import position_keys
from pipelines.protocol.records import REJECTED_SCHEMA, StageOutput, empty_rejected, joined
from pipelines.types.duckdb import MEMORY_LIMIT, is_over_limit
from pipelines.types.engine import ENDS_THE_ENGINE, Engine

INTERNAL_ERROR = "internal_error"
ATTEMPTS = 3
COUNTED = 6
"""The parts of a decision about several records."""
UNDECIDED = frozenset({INTERNAL_ERROR, *HOST_CODES})
"""Codes with which a record may be rejected in one attempt and pass in the next: a plan decides about each such record."""
Decided = Sequence[Sequence[int | str]]
"""Records that are rejected without being tried: (sequence, ordinal, stage, message) each, and the code unless it is INTERNAL_ERROR.

A number behind the code counts the records of the frame from this one on for which it holds."""
Stage = Callable[[Engine, pa.Table], StageOutput]


def expanded(decided: Decided) -> list[Sequence[int | str]]:
    """Return a decision for each record, the first one if there are several."""
    found: dict[tuple[int, int], Sequence[int | str]] = {}
    for place in decided:
        sequence, first, *reason, count = place if len(place) == COUNTED else (*place, 1)
        for ordinal in range(int(first), int(first) + int(count)):
            found.setdefault((int(sequence), ordinal), (sequence, ordinal, *reason))
    return list(found.values())


def take_out(table: pa.Table, decided: Decided) -> StageOutput:
    """Return `table` without the decided records, and its decided records as rejected."""
    if not decided:
        return StageOutput(table, empty_rejected())
    decided = expanded(decided)
    columns = [list(column) for column in zip(*(place[:2] for place in decided), strict=True)]
    wanted = pa.table({"_tf_sequence": pa.array(columns[0], pa.uint64()), "_tf_ordinal": pa.array(columns[1], pa.uint32())})
    present = position_keys(table)
    is_decided = np.isin(present, position_keys(wanted))
    rows = [row for row, is_here in zip(decided, np.isin(position_keys(wanted), present), strict=True) if is_here]
    return StageOutput(table.filter(pa.array(~is_decided)), _rejected(rows))


def undecided(rejected: pa.Table, decided: Decided) -> list[list[Any]]:
    """Return the dead letters whose code says that they must be decided and are not yet, in the form of `UndecidedError`."""
    found = rejected.filter(pc.is_in(rejected.column("code"), value_set=pa.array(sorted(UNDECIDED))))
    if found.num_rows == 0:
        return []
    known = {(place[0], place[1]) for place in expanded(decided)}
    columns = ("_tf_sequence", "_tf_ordinal", "_tf_partition", "stage", "message", "code")
    places = (list(place) for place in zip(*(found.column(name).to_pylist() for name in columns), strict=True))
    return [place[:5] if place[5] == INTERNAL_ERROR else place for place in places if (place[0], place[1]) not in known]


class Search:
    """One search for the records over which a stage raises, on engines that `renew` opens: an error may leave an engine unusable."""

    def __init__(self, name: str, stage: Stage, renew: Callable[[], Engine]) -> None:
        self._name, self._stage, self._renew = name, stage, renew
        self._engine = renew()

    def through(self, table: pa.Table, error: Exception) -> StageOutput:
        """Return the output over `table`. Raise `error`, which the stage has raised over it, if no record is at fault."""
        try:
            try:
                self._attempt(table.slice(0, 0))
            except Exception:
                raise error from None
            return self._halved(table)
        finally:
            self._engine.discard()

    def _attempt(self, part: pa.Table) -> StageOutput:
        try:
            return self._stage(self._engine, part)
        except ENDS_THE_ENGINE:
            self._engine.discard()
            self._engine = self._renew()
            raise

    def _halved(self, part: pa.Table) -> StageOutput:
        for attempt in range(ATTEMPTS):
            try:
                return self._attempt(part)
            except Exception as error:
                if is_of_host(error):
                    raise
                if part.num_rows > 1:
                    break
                if attempt == ATTEMPTS - 1:
                    return self._refused(part, error)
        middle = part.num_rows // 2
        halves = [self._halved(part.slice(0, middle)), self._halved(part.slice(middle))]
        accepted = joined([half.accepted for half in halves])
        dropped = sum((Counter(half.dropped) for half in halves), Counter[str]())
        return StageOutput(accepted, pa.concat_tables([half.rejected for half in halves]), dropped)

    def _refused(self, record: pa.Table, error: Exception) -> StageOutput:
        if isinstance(error, duckdb.OutOfMemoryException) and not is_over_limit(error):
            raise error
        (row,) = record.select(["_tf_sequence", "_tf_ordinal"]).to_pylist()
        # The text of an error may hold the record's values; its type does not.
        why = f"takes more than {MEMORY_LIMIT} of memory for" if is_over_limit(error) else f"ends with {type(error).__name__} on"
        message = f"{self._name} {why} this record alone, {ATTEMPTS} times of {ATTEMPTS}"
        nothing = self._attempt(record.slice(0, 0)).accepted
        return StageOutput(nothing, _rejected([(row["_tf_sequence"], row["_tf_ordinal"], self._name, message)]))


def _rejected(rows: Decided) -> pa.Table:
    named = [
        dict(zip(REJECTED_SCHEMA.names, (sequence, ordinal, stage, *(code or [INTERNAL_ERROR]), None, message), strict=True))
        for sequence, ordinal, stage, message, *code in rows
    ]
    return pa.Table.from_pylist(named, schema=REJECTED_SCHEMA)
