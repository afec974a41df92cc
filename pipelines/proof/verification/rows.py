"""A table without position columns against the reference: as multisets of rows, over everything that the pipeline ever wrote."""

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

from pipelines.config import ClickHouseSink
from pipelines.connectors.sql import filled
from pipelines.proof.readers.table import full_name, stream_rows
from pipelines.proof.report import Finding
from pipelines.proof.verification.compared import Column
from pipelines.proof.verification.plain_form import duckdb_type, plain_sql, text_sql
from pipelines.proof.verification.reference import run_over
from pipelines.proof.verification.table import examples_of
from pipelines.types.columns import quote_identifier


class RowSide:
    """The rows of the whole table. `mapped`: the columns that the reference has computed, at least one.

    A column with a DEFAULT must not be among them: the rows to which it was applied are unknown. Raise RetryableError or HaltError as
    ClickHouse answers.
    """

    def __init__(self, engine: duckdb.DuckDBPyConnection, sink: ClickHouseSink, mapped: Sequence[Column]) -> None:
        self._engine, self._sink, self._columns = engine, sink, mapped

    def read(self) -> int:
        """Read the table and return the number of its rows. Call it before the frames of its rows are read."""
        types = "".join(f", {column.label} {duckdb_type(column.type)}" for column in self._columns)
        self._engine.execute(f"CREATE TABLE found (n BIGINT{types})")
        selected = ", ".join(f"{plain_sql(column.type, quote_identifier(column.name))} AS {column.label}" for column in self._columns)
        values = "".join(f", {column.label}" for column in self._columns)
        for batch in stream_rows(self._sink, f"SELECT {selected} FROM {full_name(self._sink)}"):  # noqa: S608
            run_over(self._engine, "clickhouse", batch, f"INSERT INTO found SELECT 0{values} FROM clickhouse")  # noqa: S608
        return int(self._engine.execute("SELECT count(*) FROM found").fetchall()[0][0])

    def faults(self, confirmed: int, examples: int) -> Iterator[Finding]:
        """Yield the differences. `confirmed`: the last position whose row must be there; later rows may be there."""
        columns = ", ".join(column.label for column in self._columns)
        self._engine.execute(filled("reference/multiset", columns=columns, confirmed=confirmed))
        missing = self._count("greatest(wanted - found, 0)", "true")
        if missing:
            rows = "SELECT position, 'a row' AS wanted, 'fewer rows like it' AS found FROM multiset WHERE wanted > multiset.found"
            yield Finding("rows", "missing", missing, None, examples_of(self._engine, rows, examples))
        surplus = "greatest(found - wanted - pending, 0)"
        doubled = self._count(surplus, "wanted + pending > 0")
        if doubled:
            rows = (
                "SELECT position, (wanted + pending) || ' rows like it' AS wanted, multiset.found || ' rows' AS found "
                "FROM multiset WHERE wanted + pending > 0 AND multiset.found > wanted + pending"
            )
            yield Finding("rows", "doubled", doubled, None, examples_of(self._engine, rows, examples))
        extra = self._count(surplus, "wanted + pending = 0")
        if extra:
            yield Finding("rows", "extra", extra, None, self._strangers(columns, examples))

    def _count(self, expression: str, where: str) -> int:
        return int(self._engine.execute(f"SELECT coalesce(sum({expression}), 0) FROM multiset WHERE {where}").fetchall()[0][0])  # noqa: S608

    def _strangers(self, columns: str, most: int) -> list[dict[str, Any]]:
        """Return rows that no record calls for, by their values: they have no coordinates."""
        values = " || ', ' || ".join(
            f"'{column.name}=' || coalesce({text_sql(column.type, column.label)}, 'NULL')" for column in self._columns
        )
        sql = (
            f"SELECT {values} FROM found SEMI JOIN (FROM multiset WHERE wanted + pending = 0) AS strangers "  # noqa: S608
            f"ON hash({columns}) = strangers.h ORDER BY 1 LIMIT ?"
        )
        return [{"expected": "no row", "found": text} for (text,) in self._engine.execute(sql, [most]).fetchall()]
