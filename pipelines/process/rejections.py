"""Collects the reasons for rejecting rows of one batch, and splits the batch. A row keeps the first reason that is noted for it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.protocol.records import REJECTED_SCHEMA, StageOutput, empty_rejected
from pipelines.types.vectors import Mask


class Rejections:
    """The rejected rows of a batch of `rows` records in `stage`. Reasons are stored once; rows point to them."""

    def __init__(self, stage: str, rows: int) -> None:
        self._stage = stage
        self._reason_of: npt.NDArray[np.int32] = np.full(rows, -1, dtype=np.int32)
        self._reasons: list[tuple[str, str | None, str]] = []

    @property
    def open(self) -> Mask:
        """True for every row without a reason."""
        return self._reason_of < 0

    @property
    def any(self) -> bool:
        return bool(self._reasons)

    def note(self, mask: Mask, code: str, field: str | None, message: str) -> None:
        """Reject the rows of `mask` that have no reason yet."""
        fresh = mask & self.open
        if fresh.any():
            self._reason_of[fresh] = len(self._reasons)
            self._reasons.append((code, field, message))

    def note_each(self, rows: npt.NDArray[np.int64], code: str, field: str | None, messages: Sequence[str]) -> None:
        """Reject `rows[i]`, if it has no reason yet, with `messages[i]`."""
        reason_of: dict[str, int] = {}
        for message in messages:
            reason_of.setdefault(message, len(self._reasons) + len(reason_of))
        reasons = np.fromiter((reason_of[message] for message in messages), dtype=np.int32, count=len(messages))
        fresh = self._reason_of[rows] < 0
        self._reason_of[rows[fresh]] = reasons[fresh]
        self._reasons.extend((code, field, message) for message in reason_of)

    def note_all(self, failures: Iterable[tuple[int, str, str]]) -> None:
        """Reject the row of each (row, code, message)."""
        by_code: dict[str, list[tuple[int, str]]] = {}
        for row, code, message in failures:
            by_code.setdefault(code, []).append((row, message))
        for code, rows in by_code.items():
            self.note_each(np.array([row for row, _ in rows], dtype=np.int64), code, None, [message for _, message in rows])

    def adopt(self, part: "Rejections", rows: npt.NDArray[np.int64]) -> None:
        """Adopt the reasons that were noted in `part`, whose row i is our `rows[i]`."""
        refused = ~part.open
        target = rows[refused]
        fresh = self._reason_of[target] < 0
        self._reason_of[target[fresh]] = part._reason_of[refused][fresh] + len(self._reasons)
        self._reasons.extend(part._reasons)

    def reasons(self) -> Iterator[tuple[Mask, str, str | None, str]]:
        """Yield (rows, code, field, message) for every reason that some row kept."""
        for index, (code, field, message) in enumerate(self._reasons):
            rows = self._reason_of == index
            if rows.any():
                yield rows, code, field, message

    def split(self, positions: pa.Table, accepted: pa.Table) -> StageOutput:
        """Return `accepted` without the rejected rows (the same table if there are none), and the rejected rows as `REJECTED_SCHEMA`.

        `positions` has the columns `_tf_sequence` and `_tf_ordinal` of the same rows.
        """
        refused = ~self.open
        if not refused.any():
            return StageOutput(accepted, empty_rejected())
        return StageOutput(accepted.filter(pa.array(~refused)), self._table(positions, np.flatnonzero(refused)))

    def _table(self, positions: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
        reason = pa.array(self._reason_of[rows])
        codes, fields, messages = zip(*self._reasons, strict=True)

        def spread(values: Sequence[Any]) -> pa.Array:
            return pa.array(values, pa.string()).take(reason)

        where = positions.select(["_tf_sequence", "_tf_ordinal"]).take(pa.array(rows))
        columns = [where.column(0), where.column(1), spread([self._stage] * len(codes)), spread(codes), spread(fields), spread(messages)]
        return pa.table([column.cast(kind) for column, kind in zip(columns, REJECTED_SCHEMA.types, strict=True)], schema=REJECTED_SCHEMA)
