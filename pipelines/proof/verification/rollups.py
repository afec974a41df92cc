"""Rollups against the table: DuckDB adds up the rows of the table again, and compares every bucket with what ClickHouse keeps.

In: the rows as the table gives them, which the verification itself compares with the records, and the rows of the targets. The names of
tables and columns come from the pipeline file; nothing that has made the tables takes part. Rows that were deleted from the table are
still in its rollups, so their buckets are reported as different or extra.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from pipelines.config import ClickHouseSink
from pipelines.config.rollups import AMOUNT, BUCKET, ITEM, Measure, Quantile, Rollup
from pipelines.connectors.sql import filled
from pipelines.proof.readers.table import count_rows_of, full_name, stream_rows
from pipelines.proof.report import Finding, Kind, Report
from pipelines.proof.verification.reference import run_over
from pipelines.types.columns import quote_identifier, value_type

LOOKS = 3
"""How often buckets that differ are looked at again while the sink inserts."""
_MICROS = 1_000_000
_EXPIRY_LEEWAY = timedelta(minutes=10)


@dataclass(frozen=True)
class Figure:
    """A column of a target that is compared.

    `value`: SQL of ClickHouse over rows of the table, empty for a number of rows; `expected`: SQL of DuckDB over these; `found`: SQL of
    ClickHouse over rows of the target; `differs`: SQL of DuckDB over both sides.
    """

    name: str
    value: str
    expected: str
    found: str
    differs: str = "{w} IS DISTINCT FROM {f}"
    read: str = "{f}"
    """SQL of DuckDB that makes the figure of what ClickHouse answers."""


@dataclass(frozen=True)
class Part:
    """One target of a rollup. `keys`: SQL of ClickHouse over rows of the table, by the column of the target. `where`: which rows count."""

    rollup: Rollup
    target: str
    keys: dict[str, str]
    figures: tuple[Figure, ...]
    where: str = "_tf_sequence > 0"


def parts(rollup: Rollup, sink: ClickHouseSink) -> list[Part]:
    """Return the targets of a rollup with what must be in them."""
    kinds = {column.column_name: value_type(column.column_type) for column in sink.mapping}
    groups = {name: f"toString({quote_identifier(name)})" for name in rollup.group_by}

    def total(column: str, name: str) -> Figure:
        if kinds[column].name == "Decimal":
            value = f"CAST({quote_identifier(column)}, 'Nullable(Decimal(38, {kinds[column].number(1)}))')"
            return Figure(name, value, "coalesce(sum({v}), 0)", f"sum({name})")
        # An Int128 has no type in Arrow: it comes as text.
        text = "CAST(CAST({f} AS VARCHAR) AS HUGEINT)"
        return Figure(name, quote_identifier(column), "coalesce(sum({v}), 0)::HUGEINT", f"toString(sum({name}))", read=text)

    def rows(name: str) -> Figure:
        return Figure(name, "", "count(*)", f"toInt64(sum({name}))")

    figures = tuple(_figure(measure, rows, total) for measure in rollup.measures if measure.top is None)
    found = [Part(rollup, rollup.target, groups, figures)]
    for measure in rollup.tops:
        assert measure.top is not None
        item = quote_identifier(measure.top.column)
        amount = total(measure.top.by, AMOUNT) if measure.top.by is not None else rows(AMOUNT)
        keys = {**groups, ITEM: f"toString({item})"}
        found.append(Part(rollup, rollup.top_target(measure), keys, (amount,), f"_tf_sequence > 0 AND {item} IS NOT NULL"))
    return found


def _figure(measure: Measure, rows: Callable[[str], Figure], total: Callable[[str, str], Figure]) -> Figure:
    name = measure.name
    if measure.sum is not None:
        return total(measure.sum.column, name)
    if measure.unique is not None:
        is_exact = measure.unique.method == "exact"
        merged = f"toInt64({'uniqExact' if is_exact else 'uniqCombined64'}Merge({name}))"
        # The published error of 2^17 registers is 0.3 %; a difference of more than six times that is none of the estimate.
        differs = Figure.differs if is_exact else "abs({w} - coalesce({f}, 0)) > greatest(1, 0.02 * {w})"
        value = f"CAST({quote_identifier(measure.unique.column)}, 'Nullable(String)')"
        return Figure(name, value, "count(DISTINCT {v})", merged, differs)
    if measure.quantile is not None:
        return _quantile(name, measure.quantile)
    return rows(name)


def _quantile(name: str, quantile: Quantile) -> Figure:
    value = f"CAST({quote_identifier(quantile.column)}, 'Nullable(Float64)')"
    is_exact = quantile.method == "exact"
    merged = f"{'quantileExact' if is_exact else 'quantileBFloat16'}Merge({quantile.q!r})({name})"
    sorted_values = "list_sort(list({v}) FILTER ({v} IS NOT NULL))"
    if is_exact:
        return Figure(name, value, f"{sorted_values}[1 + floor({quantile.q!r}::DOUBLE * count({{v}}))::BIGINT]", merged)
    # Between two ranks either value is the quantile.
    places = (f"floor({quantile.q} * (count({{v}}) - 1))", f"ceil({quantile.q} * (count({{v}}) - 1))")
    # ClickHouse keeps the first 8 significant bits of a value: it loses less than 1 / 128, and all of what is below the least float.
    leeway = "greatest(0.0079 * abs({v}), 1.2e-38)"
    both = ", ".join(f"{sorted_values}[1 + {place}::BIGINT]" for place in places)
    differs = (
        "({w}[1] IS NOT NULL) <> isfinite(coalesce({f}, 'nan'::DOUBLE)) OR {w}[1] IS NOT NULL AND NOT "
        f"{{f}} BETWEEN {{w}}[1] - {leeway.format(v='{w}[1]')} AND {{w}}[2] + {leeway.format(v='{w}[2]')}"
    )
    return Figure(name, value, f"[{both}]", merged, differs)


@dataclass(frozen=True)
class Difference:
    """What may be wrong with buckets of a target: those `where` it holds, and the two `values` that an example shows."""

    place: str
    kind: Kind
    where: str
    values: str
    shown: str
    column: str | None = None


class RollupProof:
    """One comparison of the rollups of a sink. Raise RetryableError or HaltError as ClickHouse answers."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, sink: ClickHouseSink, examples: int) -> None:
        self._engine, self._sink, self._examples, self._now = engine, sink, examples, datetime.now(UTC)
        self.buckets: dict[str, int] = {}
        """The number of rows of each target, as they must be."""

    def is_there(self, rollup: Rollup) -> bool:
        """Return whether its targets exist: without rights, or before the first start, they do not."""
        names = (rollup.target, *map(rollup.top_target, rollup.tops), rollup.progress)
        return all(count_rows_of(self._sink, "system.tables", f"database = {self._database} AND name = '{name}'") for name in names)

    @property
    def _database(self) -> str:
        return f"'{quote_identifier(self._sink.connection_params.database)}'"

    def unfilled(self, rollup: Rollup) -> list[str]:
        """Return the targets that still lack rows from before their view, by the notes of the sink; the last attempt counts."""
        place = self._place(rollup.progress)
        sql = (
            "SELECT target, max(filled_to) < max(cut) AS lacks FROM (SELECT *, max(attempt) OVER (PARTITION BY stream_id, target) AS last, "  # noqa: S608
            f"max(noted_at) OVER (PARTITION BY target) AS newest FROM {place}) WHERE attempt = last GROUP BY target, stream_id "
            "HAVING max(noted_at) = max(newest) AND lacks"
        )
        return [target for batch in stream_rows(self._sink, sql, as_text=True) for target in batch["target"].to_pylist()]

    def _place(self, table: str) -> str:
        return f"{quote_identifier(self._sink.connection_params.database)}.{quote_identifier(table)}"

    def faults(self, part: Part) -> list[Finding]:
        """Return what differs between a target and the rows of the table at this moment."""
        self._load("wanted", part, self._rows_sql(part), self._adding_up(part))
        figures = [f"{figure.read.format(f=f'_c{number}')} AS _c{number}" for number, figure in enumerate(part.figures)]
        self._load("found", part, self._target_sql(part), f"SELECT {', '.join([*_keys(part), *figures])} FROM batch")  # noqa: S608
        keys = ", ".join(f"coalesce(w.{key}, f.{key}) AS {key}" for key in _keys(part))
        sides = filled("reference/rollup_sides", keys=keys, on=" AND ".join(f"w.{key} = f.{key}" for key in _keys(part)))
        self._engine.execute(f"CREATE OR REPLACE TEMP TABLE sides AS {sides}")
        self.buckets[part.target] = self._number("SELECT count(*) FROM wanted")
        return list(self._found_faults(part))

    def _found_faults(self, part: Part) -> Iterator[Finding]:
        place = f"rollup {part.target}"
        first = (part.figures[0].name, "_c0") if part.figures else (BUCKET, "_bucket")
        yield from self._finding(part, Difference(place, "missing", "f._bucket IS NULL", f"w.{first[1]}, NULL", first[0]))
        yield from self._finding(part, Difference(place, "extra", "w._bucket IS NULL", f"NULL, f.{first[1]}", first[0]))
        # Where one side has no row at all, no bucket is on both, and the figures of that side have no type.
        is_comparable = self._number("SELECT count(*) FROM wanted") and self._number("SELECT count(*) FROM found")
        for number, figure in enumerate(part.figures if is_comparable else ()):
            w, f = f"w._c{number}", f"f._c{number}"
            where = f"w._bucket IS NOT NULL AND f._bucket IS NOT NULL AND ({figure.differs.format(w=w, f=f)})"
            yield from self._finding(part, Difference(place, "different", where, f"{w}, {f}", figure.name, figure.name))

    def _finding(self, part: Part, fault: Difference) -> Iterator[Finding]:
        count = self._number(f"SELECT count(*) FROM sides WHERE {fault.where}")  # noqa: S608
        if count:
            keys = ", ".join(_keys(part))
            sql = f"SELECT {keys}, {fault.values} FROM sides WHERE {fault.where} ORDER BY {keys} LIMIT {self._examples}"  # noqa: S608
            examples = [_example(fault.shown, row) for row in self._engine.execute(sql).fetchall()]
            yield Finding(fault.place, fault.kind, count, fault.column, examples)

    # Reading.

    def _rows_sql(self, part: Part) -> str:
        time = quote_identifier(part.rollup.time)
        values = [f"toUnixTimestamp64Micro(CAST({time}, 'DateTime64(6, \\'UTC\\')')) AS _micros"]
        values += [f"{key} AS _k{number}" for number, key in enumerate(part.keys.values())]
        values += [f"{figure.value} AS _v{number}" for number, figure in enumerate(part.figures) if figure.value]
        return f"SELECT {', '.join(values)} FROM {full_name(self._sink)} WHERE {part.where}"  # noqa: S608

    def _adding_up(self, part: Part) -> str:
        """Return SQL of DuckDB that adds up the rows of `batch`."""
        length = part.rollup.bucket_seconds * _MICROS
        begin = f"((_micros - ((_micros % {length}) + {length}) % {length}) // {_MICROS})"
        keys = [*_keys(part)[:-1], f"{begin} AS _bucket"]
        figures = [f"{figure.expected.format(v=f'_v{number}')} AS _c{number}" for number, figure in enumerate(part.figures)]
        return f"SELECT {', '.join([*keys, *figures])} FROM batch WHERE {self._is_kept(part, begin)} GROUP BY ALL"  # noqa: S608

    def _target_sql(self, part: Part) -> str:
        begin = f"toUnixTimestamp64Second({BUCKET})"
        keys = [f"toString({name}) AS _k{number}" for number, name in enumerate(part.keys)]
        figures = [f"{figure.found} AS _c{number}" for number, figure in enumerate(part.figures)]
        columns, groups = ", ".join([*keys, f"{begin} AS _bucket", *figures]), ", ".join([*part.keys, BUCKET])
        return f"SELECT {columns} FROM {self._place(part.target)} WHERE {self._is_kept(part, begin)} GROUP BY {groups}"  # noqa: S608

    def _is_kept(self, part: Part, begin: str) -> str:
        """Return a condition for buckets that do not expire during this comparison."""
        if part.rollup.keep is None:
            return "true"
        return f"{begin} >= {int((self._now - part.rollup.keep + _EXPIRY_LEEWAY).timestamp())}"

    def _load(self, name: str, part: Part, sql: str, reduced: str) -> None:
        """Create a table of what ClickHouse answers, reduced by a statement over `batch`."""
        batches = stream_rows(self._sink, sql)
        first = next(batches, None)
        if first is None:
            # Without a row ClickHouse does not even send the columns.
            kinds = {
                **dict.fromkeys(_keys(part), "BLOB"),
                "_bucket": "BIGINT",
                **{f"_c{number}": "BIGINT" for number, _ in enumerate(part.figures)},
            }
            nothing = ", ".join(f"NULL::{kind} AS {one}" for one, kind in kinds.items())
            self._engine.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {nothing} WHERE false")
            return
        rows = (batch for table in _chained(first, batches) for batch in table.to_batches())
        reader = pa.RecordBatchReader.from_batches(first.schema, rows)
        run_over(self._engine, "batch", reader, f"CREATE OR REPLACE TEMP TABLE {name} AS {reduced}")

    def _number(self, sql: str) -> int:
        return int(self._engine.execute(sql).fetchall()[0][0])


def _chained(first: pa.Table, others: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from others


def _keys(part: Part) -> list[str]:
    """Return the columns of the engine by which the rows of both sides are known."""
    return [*(f"_k{number}" for number, _ in enumerate(part.keys)), "_bucket"]


def _example(shown: str, row: Sequence[Any]) -> dict[str, Any]:
    *keys, begin, wanted, found = row
    group = ", ".join(key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in keys)
    bucket = f"{datetime.fromtimestamp(0, UTC) + timedelta(seconds=begin):%Y-%m-%d %H:%M:%S}"
    texts = ("no such bucket" if value is None else f"{shown} {value}" for value in (wanted, found))
    return {"position": f"{group} at {bucket}" if group else bucket, **dict(zip(("expected", "found"), texts, strict=True))}


def note_rollups(proof: RollupProof, sink: ClickHouseSink, report: Report, sink_position: Callable[[], tuple[int, bool]]) -> None:
    """Add the differences of all rollups to a report. `sink_position`: what the sink has confirmed, and whether it is inserting.

    Buckets that differ while the sink inserts are looked at again: a row is in the table a moment before it is in its rollups.
    """
    for rollup in sink.rollups:
        if not proof.is_there(rollup):
            report.cannot_prove(f"rollup {rollup.name}: its tables do not exist yet, or are not visible to the user: verify again")
            continue
        if unfilled := proof.unfilled(rollup):
            report.cannot_prove(
                f"rollup {rollup.name}: rows from before its views are still filled in ({', '.join(unfilled)}): verify again"
            )
            continue
        if rollup.keep is not None:
            report.leave_out(f"rollup {rollup.name}: buckets that its `keep` has removed")
        for part in parts(rollup, sink):
            for _ in range(LOOKS):
                before = sink_position()
                faults = proof.faults(part)
                is_quiet = before == sink_position() and not before[1]
                if not faults or is_quiet:
                    break
            if is_quiet:
                report.findings += faults
            else:
                report.cannot_prove(
                    f"rollup {part.target}: buckets that differ while the sink inserts: verify again", sum(one.count for one in faults)
                )
            report.counts[f"rows of {part.target}"] = proof.buckets[part.target]
