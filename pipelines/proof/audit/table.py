"""The table's part of an audit where it has no position columns: read whole, compared with out as rows; a second look names the faults."""

from collections.abc import Iterable, Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import ClickHouseSink
from pipelines.errors import HaltError
from pipelines.key_store.index import Words
from pipelines.process.stage_config import StageConfig
from pipelines.proof.audit.account import DOUBLED, EXTRA, MISSING, OUT_TO_TABLE
from pipelines.proof.audit.report import Audited
from pipelines.proof.audit.rows import CONFIRMED, FOUND, PENDING, Rows
from pipelines.proof.positions import table_batches
from pipelines.protocol.positions import position_keys
from pipelines.protocol.records import Message, decode_frame, place_of_frame

_COORDINATES = ("_tf_topic", "_tf_partition", "_tf_offset", "_tf_sequence", "_tf_ordinal")
_SHOWN_CHARACTERS = 60


class TableRows:
    """Rows of out and of the table. The table is read at once: out, which comes after, holds all that is in it."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, sink: ClickHouseSink, config: StageConfig) -> None:
        self._sink, self._config = sink, config
        self._rows = Rows(engine, config.targets)
        if not self._rows.compared:
            raise HaltError(
                f"auditing table {config.full_table}: it has no position columns, and no column of the mapping that can be compared; "
                "give the table the position columns (docs/concepts.md)"
            )
        self.count = 0
        for batch in self._batches():
            self._rows.add(batch, FOUND)
            self.count += batch.num_rows

    def _batches(self) -> Iterator[pa.Table]:
        return table_batches(self._sink, list(self._rows.compared))

    @property
    def not_compared(self) -> list[str]:
        return [target.name for target in self._config.targets if target.name not in self._rows.compared]

    def add_out(self, message: Message, is_confirmed: bool, refused: Words) -> None:
        """The rows of one out frame, without those that ClickHouse has refused (`refused`: sorted positions)."""
        rows = _inserted(message, refused, self._config)
        if rows.num_rows:
            self._rows.add(rows, CONFIRMED if is_confirmed else PENDING)

    def judge(self, found: Audited, out: Iterable[Message], refused: Words, examples: int, is_whole: bool) -> None:
        """Adds the faults. `out`: the frames once more, for their coordinates. `is_whole`: nothing of out was purged, else rows of the
        table that out does not explain may be of earlier frames.
        """
        faults = self._rows.faults()
        named = self._named(faults.hashes(MISSING), faults.hashes(DOUBLED), out, refused, examples)
        found.find(OUT_TO_TABLE, MISSING, faults.count(MISSING), named[MISSING])
        if not is_whole:
            found.cannot_prove(
                "rows of the table that out does not explain: its beginning is purged", faults.count(DOUBLED) + faults.count(EXTRA)
            )
            return
        found.find(OUT_TO_TABLE, DOUBLED, faults.count(DOUBLED), named[DOUBLED])
        found.find(OUT_TO_TABLE, EXTRA, faults.count(EXTRA), self._strangers(faults.hashes(EXTRA), examples))

    def _named(self, missing: pa.Array, doubled: pa.Array, out: Iterable[Message], refused: Words, examples: int) -> dict[str, list[Any]]:
        """A record of out for each hash: where several have the same row, which of them is meant cannot be told."""
        wanted = {kind: {*hashes.slice(0, examples).to_pylist()} for kind, hashes in ((MISSING, missing), (DOUBLED, doubled))}
        named: dict[str, list[Any]] = {kind: [] for kind in wanted}
        for message in out if any(wanted.values()) else ():
            rows = _inserted(message, refused, self._config)
            hashes = self._rows.hashes(rows) if rows.num_rows else pa.array([], pa.uint64())
            for kind, left in wanted.items():
                for row in _places(hashes, left):
                    left.discard(hashes[row].as_py())
                    named[kind].append(_coordinates(rows, row))
            if not any(wanted.values()):
                break
        return named

    def _strangers(self, hashes: pa.Array, examples: int) -> list[dict[str, Any]]:
        """Rows of the table by what they hold: they have no coordinates."""
        shown: list[dict[str, Any]] = []
        wanted = {*hashes.slice(0, examples).to_pylist()}
        for batch in self._batches() if wanted else ():
            found = self._rows.hashes(batch)
            for row in _places(found, wanted):
                wanted.discard(found[row].as_py())
                shown.append({"found": f"row {str(batch.slice(row, 1).to_pylist()[0])[:_SHOWN_CHARACTERS]}"})
            if not wanted:
                break
        return shown


def _inserted(message: Message, refused: Words, config: StageConfig) -> pa.Table:
    rows = decode_frame(message.payload, place_of_frame(message))
    missing = [target.name for target in config.targets if rows.num_rows and target.name not in rows.column_names]
    if missing:
        raise HaltError(
            f"auditing table {config.full_table}: frame {message.sequence} of out has no column {missing[0]}: the mapping was changed, and "
            "without position columns rows of two mappings cannot be compared"
        )
    if not len(refused) or not rows.num_rows:
        return rows
    return rows.filter(pa.array(~np.isin(position_keys(rows), refused)))


def _places(hashes: pa.Array, wanted: set[int]) -> list[int]:
    """The first row of each wanted hash."""
    is_wanted = pc.is_in(hashes, value_set=pa.array(sorted(wanted), pa.uint64()))
    first: dict[int, int] = {}
    for row in np.flatnonzero(is_wanted.to_numpy(zero_copy_only=False)).tolist():
        first.setdefault(hashes[row].as_py(), row)
    return list(first.values())


def _coordinates(rows: pa.Table, row: int) -> dict[str, Any]:
    topic, partition, offset, sequence, ordinal = (rows.column(name)[row].as_py() for name in _COORDINATES)
    return {"topic": topic, "partition": partition, "offset": offset, "position": f"{sequence}.{ordinal}"}
