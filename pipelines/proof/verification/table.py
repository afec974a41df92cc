"""The table's side of a verification: its rows in the plain form, compared with the reference's view `expected`.

First sums per bucket of raw frames and column, as the rows stream by; rows are kept, and compared one by one, only of buckets that differ.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from pipelines.config import ClickHouseSink
from pipelines.connectors.sql import filled, statement
from pipelines.proof.readers.table import full_name, stream_rows
from pipelines.proof.report import Finding, Kind
from pipelines.proof.verification.compared import Column, within
from pipelines.proof.verification.plain_form import duckdb_type, plain_sql, text_sql
from pipelines.proof.verification.reference import BUCKET_BITS, BUCKET_FRAMES, run_over
from pipelines.proof.verification.result import Checksum
from pipelines.proof.verification.values import literal
from pipelines.protocol.positions import NO_POSITIONS, ORDINAL_BITS, RawPositions, position_text
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.types.columns import parse_type, quote_identifier

_COORDINATES = {"_tf_topic": "topic", "_tf_partition": "partition", "_tf_offset": "offset", "_tf_arrival": "arrival_us"}
"""Position columns that are compared like the others, and their names in the engine."""
_POSITION = f"bitShiftLeft(toUInt64(_tf_sequence), {ORDINAL_BITS}) + _tf_ordinal"
_EMIT = "_tf_emit"
_MOST_RANGES = 500


class TableSide:
    """The rows of the table whose raw sequence is in `sequences` (inclusive). Positions must be columns of it.

    `mapped`: the columns that the reference has computed. `extra`: the statement that finds rows that must not be there.
    Raise RetryableError or HaltError as ClickHouse answers.
    """

    def __init__(
        self,
        engine: duckdb.DuckDBPyConnection,
        sink: ClickHouseSink,
        mapped: Sequence[Column],
        position_columns: Sequence[str],
        extra: str = "reference/extra",
    ) -> None:
        self._engine, self._sink, self._extra = engine, sink, extra
        types = dict(POSITION_COLUMN_TYPES)
        coordinates = [
            Column(label, name, parse_type(types[name]), False) for name, label in _COORDINATES.items() if name in position_columns
        ]
        self.columns = [*mapped, *coordinates]
        self._place = [f"{_POSITION} AS position", f"{_EMIT if _EMIT in position_columns else 'toUInt32(0)'} AS emit"]
        self._defaulted: set[str] = set()
        self._range = "false"
        self.missing: RawPositions = NO_POSITIONS
        """Positions that are missing, ascending."""
        self.unsure: dict[Column, int] = {}
        """Values that differ in rows that were made when the mapping had their column not under its name, by column."""

    def positions(self, first: int, last: int) -> Iterator[pa.Table]:
        yield from self._stream([f"{_POSITION} AS position"], f"_tf_sequence BETWEEN {first} AND {last}")

    def sum_up(self, first: int, last: int) -> list[Checksum]:
        """Fill `sums` and `mismatching` for the rows of these raw sequences; return the sums of all buckets together, by column."""
        self._range = f"_tf_sequence BETWEEN {first} AND {last}"
        labels = [column.label for column in self.columns]
        self._note_defaults()
        self._engine.execute(
            f"CREATE TABLE sums (side VARCHAR, bucket UBIGINT, rows HUGEINT{''.join(f', s_{label} HUGEINT' for label in labels)})"
        )
        sums = "".join(f', coalesce(sum(hash(position, emit, "{label}")), 0)' for label in labels)
        self._engine.execute(filled("reference/sums", side="expected", sums=sums, rows="expected"))
        self._with_rows(self._range, filled("reference/sums", side="found", sums=sums, rows=f"({self._plain()})"))
        differs = " OR ".join(f"min({name}) <> max({name})" for name in ("rows", *(f"s_{label}" for label in labels)))
        self._engine.execute(filled("reference/mismatching", differs=differs))
        return list(self._checksums())

    def counts(self) -> dict[str, int]:
        rows = dict(self._engine.execute("SELECT side, sum(rows) FROM sums GROUP BY side").fetchall())
        return {side: int(rows.get(side, 0)) for side in ("expected", "found")}

    def defaults(self) -> dict[str, int]:
        """Count by column the values that the table's DEFAULT gave: their expected value is unknown."""
        names = {column.label: column.name for column in self.columns}
        counts = self._engine.execute("SELECT label, count(*) FROM defaulted GROUP BY label").fetchall()
        return {names[label]: count for label, count in counts}

    def faults(self, examples: int) -> Iterator[Finding]:
        """Yield the differences in the rows of the buckets that differ, one by one."""
        ranges = self._mismatching_ranges()
        if not ranges:
            return
        findings = list(self._row_faults(ranges, examples))
        if not findings and not self.unsure:
            changed = "no row that differs: the table was changed meanwhile, verify again"
            example = {"expected": "at both looks the same rows", "found": changed}
            findings = [Finding("rows", "different", len(ranges), None, [example])]
        yield from findings

    def _row_faults(self, ranges: Sequence[tuple[int, int]], examples: int) -> Iterator[Finding]:
        self._engine.execute("CREATE TABLE wanted AS FROM expected SEMI JOIN mismatching USING (bucket)")
        differing = " OR ".join(f"_tf_sequence BETWEEN {low} AND {high}" for low, high in ranges)
        self._with_rows(f"{self._range} AND ({differing})", f"CREATE TABLE found AS {self._plain()}")
        self._engine.execute("DELETE FROM found WHERE bucket NOT IN (SELECT bucket FROM mismatching)")
        kinds: tuple[Kind, ...] = ("missing", "extra", "doubled")
        for kind in kinds:
            yield from self._finding(kind, statement(self._extra if kind == "extra" else f"reference/{kind}"), examples)
        for column in self.columns:
            sides = {side: text_sql(column.type, f'{side}."{column.label}"') for side in ("wanted", "found")}
            different = filled("reference/different", column=f'"{column.label}"', **sides)
            if column.doubtful:
                doubted = f"SELECT count(*) FROM ({different}) WHERE {within(column.doubtful)}"  # noqa: S608
                if count := self._engine.execute(doubted).fetchall()[0][0]:
                    self.unsure[column] = count
                different = f"SELECT * FROM ({different}) WHERE NOT ({within(column.doubtful)})"  # noqa: S608
            yield from self._finding("different", different, examples, column.name)

    def _finding(self, kind: Kind, faults: str, examples: int, column: str | None = None) -> Iterator[Finding]:
        """Yield a finding if there is one. `faults`: a SELECT of position, wanted and found."""
        count = self._engine.execute(f"SELECT count(*) FROM ({faults})").fetchall()[0][0]  # noqa: S608
        if count:
            if kind == "missing":
                positions = self._engine.execute(f"SELECT DISTINCT position FROM ({faults}) ORDER BY 1").fetchnumpy()["position"]  # noqa: S608
                self.missing = np.asarray(positions, dtype=np.uint64)
            yield Finding("rows", kind, count, column, examples_of(self._engine, faults, examples))

    # Reading.

    def _stream(self, expressions: Sequence[str], where: str) -> Iterator[pa.Table]:
        sql = f"SELECT {', '.join(expressions)} FROM {full_name(self._sink)} WHERE {where}"  # noqa: S608
        return stream_rows(self._sink, sql)

    def _with_rows(self, where: str, sql: str) -> None:
        """Run `sql` over the table `clickhouse`, which streams from the server."""
        selected = [f"{plain_sql(column.type, quote_identifier(column.name))} AS {_quoted(column.label)}" for column in self.columns]
        batches = self._stream([*self._place, *selected], where)
        first = next(batches, None)
        if first is None:
            first = self._no_rows()
        whole = (batch for table in chain([first], batches) for batch in table.to_batches())
        run_over(self._engine, "clickhouse", pa.RecordBatchReader.from_batches(first.schema, whole), sql)

    def _no_rows(self) -> pa.Table:
        """Return an empty batch: without a row ClickHouse does not even send the columns."""
        values = ", ".join(f"NULL::{duckdb_type(column.type)} AS {_quoted(column.label)}" for column in self.columns)
        return self._engine.sql(f"SELECT NULL::UBIGINT AS position, NULL::UINTEGER AS emit, {values} WHERE false").to_arrow_table()

    def _plain(self) -> str:
        """Return a SELECT of the rows that stream from the server, in the types of `expected`.

        Values that a DEFAULT gave, or that nothing computes, are NULL. Left out are rows of left records that may have none.
        """
        values = []
        for column in self.columns:
            value = f"{_quoted(column.label)}::{duckdb_type(column.type)}"
            if column.label in self._defaulted:
                defaulted = f"SELECT (position, emit) FROM defaulted WHERE label = {literal(column.label)}"  # noqa: S608
                value = f"CASE WHEN (position, emit) IN ({defaulted}) THEN NULL ELSE {value} END"
            if column.unknown:
                value = f"CASE WHEN {within(column.unknown)} THEN NULL ELSE {value} END"
            values.append(f", {value} AS {_quoted(column.label)}")
        closed = "position NOT IN (SELECT position FROM open_lefts)"
        return (
            f"SELECT position, emit::UINTEGER AS emit, position >> {BUCKET_BITS} AS bucket{''.join(values)} FROM clickhouse WHERE {closed}"  # noqa: S608
        )

    def _note_defaults(self) -> None:
        self._engine.execute("CREATE TABLE defaulted (position UBIGINT, emit UINTEGER, label VARCHAR)")
        for column in self.columns:
            if column.has_default and not column.type.takes_null:
                label = column.label
                unset = f"{label} IS NULL AND NOT ({within(column.unknown)})"
                self._engine.execute(f"INSERT INTO defaulted SELECT position, emit, {literal(label)} FROM expected WHERE {unset}")  # noqa: S608
                if self._engine.execute("SELECT count(*) FROM defaulted WHERE label = ?", [label]).fetchall()[0][0]:
                    self._defaulted.add(label)

    def _checksums(self) -> Iterator[Checksum]:
        for column in self.columns:
            sums = dict(self._engine.execute(f"SELECT side, sum(s_{column.label}) FROM sums GROUP BY side").fetchall())  # noqa: S608
            yield Checksum(column.name, *(_modulo_2_64(int(sums.get(side, 0))) for side in ("expected", "found")))

    def _mismatching_ranges(self) -> list[tuple[int, int]]:
        """Return the raw sequences, inclusive, of the buckets that differ; with very many, all between the first and the last."""
        buckets = [bucket for (bucket,) in self._engine.execute("SELECT bucket FROM mismatching ORDER BY bucket").fetchall()]
        ranges: list[tuple[int, int]] = []
        for bucket in buckets:
            low, high = bucket * BUCKET_FRAMES, (bucket + 1) * BUCKET_FRAMES - 1
            if ranges and ranges[-1][1] == low - 1:
                ranges[-1] = (ranges[-1][0], high)
            else:
                ranges.append((low, high))
        return ranges if len(ranges) <= _MOST_RANGES else [(ranges[0][0], ranges[-1][1])]


def examples_of(engine: duckdb.DuckDBPyConnection, faults: str, most: int) -> list[dict[str, Any]]:
    """Return the first of some faults by position, each with its Kafka coordinates if a raw record is there."""
    rows = engine.execute(
        f'SELECT position, topic, "partition", "offset", wanted, found FROM ({faults}) '  # noqa: S608
        "LEFT JOIN (FROM parsed WHERE is_first) AS parsed USING (position) ORDER BY position LIMIT ?",
        [most],
    ).fetchall()
    return [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "position": position_text(position),
            "expected": wanted,
            "found": found,
        }
        for position, topic, partition, offset, wanted, found in rows
    ]


def _modulo_2_64(sum_of_hashes: int) -> str:
    return f"{sum_of_hashes & (1 << 64) - 1:016x}"


def _quoted(label: str) -> str:
    return f'"{label}"'
