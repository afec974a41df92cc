"""What a rollup consists of: each target with the view that feeds it, and the table of its windows. Pure.

In: a rollup of the file and the types of the mapped columns. Out: columns with their types and the SQL that computes them. Every name and
type has passed the checks of the file, so the texts are safe in a statement.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipelines.config import PipelineConfig
from pipelines.config.rollups import AMOUNT, ARRIVAL, AS_OF, BUCKET, ITEM, REFRESHED_AT, WINDOW, Measure, Rollup
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.types.columns import ColumnType, quote_identifier, value_type

BUCKET_TYPE = "DateTime64(0, 'UTC')"
"""Unlike a DateTime it holds every instant that a column may have, so that no bucket wraps around."""
_SUM_OF_INTEGERS = "Int128"
_DIGITS_OF_SUMS = 38


@dataclass(frozen=True)
class FeedColumn:
    """A column of a target. `value`: SQL over the rows of the table; `merged`: over rows of the target, the figure of several."""

    name: str
    type: str
    value: str
    merged: str = ""
    figure_type: str = ""
    """The type of `merged`; empty for a key."""


@dataclass(frozen=True)
class Feed:
    """A target, the view that feeds it, and their columns: `keys` that its rows are grouped by, and `values`.

    `where`: a condition over the rows of the table, in SQL; empty for all of them. `is_grouped`: whether the view adds up the rows of a
    key; otherwise each row of the table is sent to the target, which adds up those of a key when it sorts a block.
    """

    rollup: Rollup
    target: str
    keys: tuple[FeedColumn, ...]
    values: tuple[FeedColumn, ...]
    where: str = ""
    is_grouped: bool = True

    @property
    def view(self) -> str:
        return f"{self.target}_view"

    @property
    def columns(self) -> tuple[FeedColumn, ...]:
        return (*self.keys, *self.values)


def feeds_of(config: PipelineConfig) -> tuple[Feed, ...]:
    """Return the feeds of all rollups of the config's sink, in their order; none for a sink without rollups."""
    return tuple(feed for rollup in rollups_of(config) for feed in feeds(rollup, column_types(config)))


def rollups_of(config: PipelineConfig) -> tuple[Rollup, ...]:
    """Return the rollups of the config's sink; only a ClickHouse sink may have some."""
    found: tuple[Rollup, ...] = getattr(config.sink, "rollups", ())
    return found


def column_types(config: PipelineConfig) -> dict[str, ColumnType]:
    """Return the types of the values by column, as the file declares them; the table's own may be Nullable or LowCardinality."""
    return {column.column_name: value_type(column.column_type) for column in config.sink.mapping}


def feeds(rollup: Rollup, types: Mapping[str, ColumnType]) -> tuple[Feed, ...]:
    """Return the feeds of one rollup: of the target of all figures but the tops, then of the target of each top."""
    keys = (*(FeedColumn(name, plain(types[name]), _cast(name, types[name])) for name in rollup.group_by), _bucket(rollup))
    figures = tuple(_FIGURES[one.kind](one, types) for one in rollup.measures if one.top is None)
    tops = (_top(rollup, measure, types, keys) for measure in rollup.tops)
    return (Feed(rollup, rollup.target, keys, figures), *tops)


def plain(kind: ColumnType) -> str:
    """Return the text of a type without Nullable and LowCardinality."""
    return str(ColumnType(kind.name, kind.arguments, fields=kind.fields))


def _is_encoded(kind: ColumnType) -> bool:
    """Return whether the table keeps texts of this type by their numbers in a dictionary."""
    return kind.low_cardinality and kind.name == "String"


def _cast(name: str, kind: ColumnType, nullable: bool = False, encoded: bool = False) -> str:
    """Return SQL of a column as its declared type, whatever the table makes of it."""
    wanted = f"Nullable({plain(kind)})" if nullable else plain(kind)
    return f"CAST(source.{quote_identifier(name)}, {_literal(f'LowCardinality({wanted})' if encoded else wanted)})"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _bucket(rollup: Rollup) -> FeedColumn:
    """Return the bucket of a row: its beginning, on the grid of UTC, towards the past also before 1970."""
    micros = f"toUnixTimestamp64Micro(CAST(source.{quote_identifier(rollup.time)}, 'DateTime64(6, \\'UTC\\')'))"
    length = rollup.bucket_seconds * 1_000_000
    begin = f"fromUnixTimestamp64Second(intDiv({micros} - positiveModulo({micros}, {length}), 1000000), 'UTC')"
    return FeedColumn(BUCKET, BUCKET_TYPE, begin)


def _count(measure: Measure, types: Mapping[str, ColumnType]) -> FeedColumn:
    return FeedColumn(measure.name, "SimpleAggregateFunction(sum, UInt64)", "count()", f"sum({measure.name})", "UInt64")


def _sum_type(kind: ColumnType) -> str:
    return f"Decimal({_DIGITS_OF_SUMS}, {kind.number(1)})" if kind.name == "Decimal" else _SUM_OF_INTEGERS


def _sum(measure: Measure, types: Mapping[str, ColumnType]) -> FeedColumn:
    assert measure.sum is not None
    return _added_up(measure.name, measure.sum.column, types)


def _added_up(name: str, column: str, types: Mapping[str, ColumnType], is_grouped: bool = True) -> FeedColumn:
    kind = _sum_type(types[column])
    value = f"ifNull(CAST(source.{quote_identifier(column)}, 'Nullable({kind})'), CAST(0, '{kind}'))"
    return FeedColumn(name, f"SimpleAggregateFunction(sum, {kind})", f"sum({value})" if is_grouped else value, f"sum({name})", kind)


def _unique(measure: Measure, types: Mapping[str, ColumnType]) -> FeedColumn:
    assert measure.unique is not None
    function = "uniqCombined64" if measure.unique.method == "hll" else "uniqExact"
    kind = types[measure.unique.column]
    state = f"{function}State({_cast(measure.unique.column, kind, nullable=True)})"
    return FeedColumn(
        measure.name,
        f"AggregateFunction({function}, Nullable({plain(kind)}))",
        state,
        f"{function}Merge({measure.name})",
        "UInt64",
    )


def _quantile(measure: Measure, types: Mapping[str, ColumnType]) -> FeedColumn:
    assert measure.quantile is not None
    # A sketch of the first 8 significant bits: half of the CPU of a DDSketch, and no larger error near zero (measured, 26.9).
    function = "quantileExact" if measure.quantile.method == "exact" else "quantileBFloat16"
    parameters = f"({measure.quantile.q!r})"
    state = f"{function}State{parameters}(CAST(source.{quote_identifier(measure.quantile.column)}, 'Nullable(Float64)'))"
    kind = f"AggregateFunction({function}{parameters}, Nullable(Float64))"
    merged = f"{function}Merge{parameters}({measure.name})"
    return FeedColumn(measure.name, kind, state, merged, "Nullable(Float64)")


_FIGURES: Mapping[str, Callable[[Measure, Mapping[str, ColumnType]], FeedColumn]] = {
    "count": _count,
    "sum": _sum,
    "unique": _unique,
    "quantile": _quantile,
}
"""The column of a measure by its kind; a top has a target of its own."""


def _top(rollup: Rollup, measure: Measure, types: Mapping[str, ColumnType], keys: tuple[FeedColumn, ...]) -> Feed:
    top = measure.top
    assert top is not None
    kind = types[top.column]
    where = f"source.{quote_identifier(top.column)} IS NOT NULL"
    item = f"assumeNotNull({_cast(top.column, kind, nullable=True, encoded=_is_encoded(kind))})"
    # Most buckets have several items: to sort numbers of a dictionary costs less than to hash the texts and then sort these.
    is_grouped = not _is_encoded(kind)
    amount = _added_up(AMOUNT, top.by, types, is_grouped) if top.by is not None else _counted(is_grouped)
    if not is_grouped:
        keys = tuple(_encoded(column, types) for column in keys)
    return Feed(rollup, rollup.top_target(measure), (*keys, FeedColumn(ITEM, _stored(kind), item)), (amount,), where, is_grouped)


def _encoded(column: FeedColumn, types: Mapping[str, ColumnType]) -> FeedColumn:
    """Return a key as the table keeps it: a text by its number in a dictionary. The bucket stays as it is."""
    if column.name == BUCKET or not _is_encoded(types[column.name]):
        return column
    return FeedColumn(column.name, _stored(types[column.name]), _cast(column.name, types[column.name], encoded=True))


def _stored(kind: ColumnType) -> str:
    return f"LowCardinality({plain(kind)})" if _is_encoded(kind) else plain(kind)


def _counted(is_grouped: bool) -> FeedColumn:
    value = "count()" if is_grouped else "CAST(1, 'UInt64')"
    return FeedColumn(AMOUNT, "SimpleAggregateFunction(sum, UInt64)", value, f"sum({AMOUNT})", "UInt64")


def window_columns(rollup: Rollup, types: Mapping[str, ColumnType]) -> list[tuple[str, str]]:
    """Return (name, type) of the columns of the table of the windows, in their order: when, which window, which group, the figures."""
    whole, *tops = feeds(rollup, types)
    figures = {column.name: column.figure_type for column in whole.values}
    for measure, feed in zip(rollup.tops, tops, strict=True):
        item, amount = feed.keys[-1], feed.values[0]
        figures[measure.name] = f"Array(Tuple(item {plain(value_type(item.type))}, amount {amount.figure_type}))"
    return [
        (REFRESHED_AT, "DateTime64(6, 'UTC')"),
        (AS_OF, "DateTime64(0, 'UTC')"),
        (WINDOW, "String"),
        *((column.name, column.type) for column in whole.keys if column.name != BUCKET),
        *((measure.name, figures[measure.name]) for measure in rollup.measures),
    ]


def needed_positions() -> frozenset[str]:
    """Return the position columns that the table of a rollup must have."""
    return frozenset(name for name, _ in POSITION_COLUMN_TYPES if name in ("_tf_sequence", ARRIVAL))
