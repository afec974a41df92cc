"""Out against a table without position columns: as multisets of rows, by a hash of what both sides say in the same way.

Measured (26.9): ClickHouse gives a value back as it was sent but for these. DateTime comes as a number, DateTime64 in another unit,
FixedString padded with zeros, UUID and JSON in types of Arrow's own: they are brought into one form first. Not compared are columns whose
values ClickHouse may rewrite (JSON, columns with a DEFAULT) and nested ones that hold a DateTime, DateTime64, FixedString or wide Decimal.
Nine bytes per row, in an engine that spills to disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.mapping.step import TargetColumn
from pipelines.proof.audit.account import DOUBLED, EXTRA, MISSING
from pipelines.types.columns import ColumnType, arrow_type
from pipelines.types.instants import cut_instants
from pipelines.types.vectors import one_chunk

CONFIRMED, PENDING, FOUND = 0, 1, 2
"""Rows of out up to the sink's last `done`, rows behind it, rows of the table."""
_REWRITTEN = {"DateTime", "DateTime64", "FixedString", "JSON"}
_WIDEST_DECIMAL = 38
_VERDICT = f"""
    SELECT h, CASE WHEN found < confirmed THEN '{MISSING}' WHEN confirmed + pending > 0 THEN '{DOUBLED}' ELSE '{EXTRA}' END AS kind,
           CASE WHEN found < confirmed THEN confirmed - found ELSE found - confirmed - pending END::BIGINT AS rows
    FROM (SELECT h, count(*) FILTER (place = {CONFIRMED}) AS confirmed, count(*) FILTER (place = {PENDING}) AS pending,
                 count(*) FILTER (place = {FOUND}) AS found FROM rows_seen GROUP BY h)
    WHERE found < confirmed OR found > confirmed + pending
    ORDER BY h
"""  # noqa: S608


@dataclass(frozen=True)
class RowFaults:
    """Hashes of rows, sorted, with what is wrong with each and for how many rows: `h`, `kind`, `rows`."""

    table: pa.Table

    def count(self, kind: str) -> int:
        return int(pc.sum(self._of(kind).column("rows")).as_py() or 0)

    def hashes(self, kind: str) -> pa.Array:
        return one_chunk(self._of(kind).column("h"))

    def _of(self, kind: str) -> pa.Table:
        return self.table.filter(pc.equal(self.table.column("kind"), kind))


class Rows:
    """The rows of both sides. `columns`: those of the mapping; which of them are compared is in `compared`, by name."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, columns: Sequence[TargetColumn]) -> None:
        self._engine = engine
        self.compared = {column.name: column.type for column in columns if not column.has_default and _is_comparable(column.type)}
        self._engine.execute("CREATE TABLE rows_seen (h UBIGINT, place UTINYINT)")

    def add(self, rows: pa.Table, place: int) -> None:
        hashes = pa.table([self.hashes(rows), pa.repeat(pa.scalar(place, pa.uint8()), rows.num_rows)], names=["h", "place"])
        self._engine.register("_tf_hashes", hashes)
        self._engine.execute("INSERT INTO rows_seen FROM _tf_hashes")
        self._engine.unregister("_tf_hashes")

    def hashes(self, rows: pa.Table) -> pa.Array:
        """The hash of each row, in their order."""
        plain = {f"c{index}": _plain(rows.column(name), kind) for index, (name, kind) in enumerate(self.compared.items())}
        numbered = pa.table({"n": pa.array(range(rows.num_rows), pa.int64()), **plain})
        self._engine.register("_tf_rows", numbered)
        found = self._engine.sql(f"SELECT hash({', '.join(plain)}) AS h FROM _tf_rows ORDER BY n").to_arrow_table()  # noqa: S608
        self._engine.unregister("_tf_rows")
        return one_chunk(found.column("h"))

    def faults(self) -> RowFaults:
        return RowFaults(self._engine.sql(_VERDICT).to_arrow_table())


def _is_comparable(kind: ColumnType) -> bool:
    if kind.inner:
        return all(_leaf(one) for one in kind.inner)
    return kind.name != "JSON"


def _leaf(kind: ColumnType) -> bool:
    if kind.inner:
        return all(_leaf(one) for one in kind.inner)
    return kind.name not in _REWRITTEN and not (kind.name == "Decimal" and kind.number(0) > _WIDEST_DECIMAL)


def _plain(column: pa.ChunkedArray, kind: ColumnType) -> pa.Array:
    """The values in the one form that both sides have."""
    values = one_chunk(column)
    if isinstance(values.type, pa.DictionaryType):
        values = values.dictionary_decode()
    if kind.name == "DateTime":
        return values.cast(pa.int64())
    if kind.name == "DateTime64":
        # Frames of older builds hold more digits than the column.
        return cut_instants(values, kind)
    if kind.name == "FixedString":
        return _padded(values.cast(pa.binary()), kind.number(0))
    if kind.name == "String":
        return values.cast(pa.binary())
    if kind.name == "Decimal" and kind.number(0) > _WIDEST_DECIMAL:
        return values.cast(pa.string())
    return values.cast(arrow_type(kind))


def _padded(values: pa.Array, length: int) -> pa.Array:
    return pc.binary_slice(pc.binary_join_element_wise(values, pa.scalar(b"\0" * length), pa.scalar(b"")), 0, length)
