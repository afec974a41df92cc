"""The `rollups` of a ClickHouse sink: sums per group and bucket of time, kept up by views on the table, and windows over them."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from pipelines.config.base import Faults, Identifier, Location, Model, Text, Window, matching, no_flag, ours, repeated
from pipelines.config.durations import format_duration

ARRIVAL = "_tf_arrival"
BUCKET, WINDOW, AS_OF, REFRESHED_AT, ITEM, AMOUNT = "bucket", "window", "as_of", "refreshed_at", "item", "amount"
OWN_COLUMNS = (BUCKET, WINDOW, AS_OF, REFRESHED_AT, ITEM, AMOUNT)
"""Columns that the tables of a rollup have besides groups and measures."""
DAY = timedelta(days=1)
_INTEGERS = frozenset(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_NUMBERS = _INTEGERS | {"Float32", "Float64", "Decimal"}
_GROUPS = _INTEGERS | {"String", "FixedString", "UUID", "Date", "Date32", "Bool", "Enum8", "Enum16", "IPv4"}
_MOST_DIGITS = 38
_FINEST_DIGITS = 6

ROLLUP_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,59}$"
RollupName = Annotated[
    str,
    AfterValidator(matching(ROLLUP_NAME, "must be at most 60 letters, digits and underscores, not starting with a digit or underscore")),
    Field(json_schema_extra={"pattern": ROLLUP_NAME}),
]
MEASURE_NAME = r"^[A-Za-z][A-Za-z0-9_]{0,39}$"
MeasureName = Annotated[
    str,
    AfterValidator(matching(MEASURE_NAME, "must be at most 40 letters, digits and underscores, not starting with a digit or underscore")),
    Field(json_schema_extra={"pattern": MEASURE_NAME}),
]


def _whole_seconds(duration: timedelta) -> timedelta:
    if duration % timedelta(seconds=1):
        raise ValueError("must be whole seconds")
    return duration


Seconds = Annotated[Window, AfterValidator(_whole_seconds)]


class Sum(Model):
    """The exact sum of a column of whole numbers or decimals; a null adds nothing."""

    column: Identifier = ours(..., "Column of the mapping: an integer of up to 64 bits, or a Decimal.")


class Top(Model):
    """The items of a column that most rows have, exactly; rows with a null have none. Of equal ones the first in order of the item."""

    column: Identifier = ours(..., "Column of the mapping whose values are ranked.")
    n: Annotated[int, Field(ge=1, le=100), BeforeValidator(no_flag)] = ours(3, "How many items.")
    by: Identifier | None = ours(None, "Rank by the sum of this column, an integer or a Decimal. Default: by the number of rows.")


class Unique(Model):
    """The number of distinct values of a column; nulls do not count."""

    column: Identifier = ours(..., "Column of the mapping.")
    method: Literal["hll", "exact"] = ours(
        "hll", "`hll` estimates by HyperLogLog, within 2 %; `exact` keeps every value, and takes memory for each."
    )


class Quantile(Model):
    """A quantile of a column of numbers; nulls do not count."""

    column: Identifier = ours(..., "Column of the mapping: an integer of up to 64 bits, a float or a Decimal.")
    q: Annotated[float, Field(gt=0, lt=1), BeforeValidator(no_flag)] = ours(..., "Which one: 0.5 is the median.")
    method: Literal["sketch", "exact"] = ours(
        "sketch",
        "`sketch` counts values by their first digits, within 1 %; `exact` keeps every value, which takes less CPU while a bucket has "
        "tens of rows, and 8 bytes for each.",
    )


class Measure(Model):
    """One figure of a rollup: exactly one of `count`, `sum`, `top`, `unique` and `quantile`."""

    name: MeasureName = ours(..., "Column of the figure.", alias="as")
    count: Literal[True] | None = ours(None, "`true`: the number of rows.")
    sum: Sum | None = ours(None, "The sum of a column.")
    top: Top | None = ours(None, "The most frequent items of a column.")
    unique: Unique | None = ours(None, "The number of distinct values of a column.")
    quantile: Quantile | None = ours(None, "A quantile of a column.")
    label: Text | None = ours(None, "What the dashboard calls it. Default: the name.")
    unit: Annotated[str, Field(min_length=1, max_length=8)] | None = ours(None, "Unit that the dashboard shows, such as `€`.")

    @property
    def kind(self) -> str:
        """The kind of the measure: the name of the field that is given."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    def faults(self) -> Faults:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            yield (), f"needs exactly one of {', '.join(KINDS)}, and has {' and '.join(given) or 'none'}"
        if self.name in OWN_COLUMNS:
            yield ("as",), f"{self.name!r} is a column of the rollup itself; choose another name"


KINDS = ("count", "sum", "top", "unique", "quantile")


class Rollup(Model):
    """Figures of the table's rows per group and bucket of time, and of the last windows."""

    name: RollupName = ours(..., "Begin of the names of its tables and views, such as `restaurant_stats`.")
    group_by: tuple[Identifier, ...] = ours((), "Columns of the mapping, without nulls. Default: one group of all rows.")
    time: Identifier = ours(..., "Column with the time of a row: a DateTime or DateTime64 of the mapping, or `_tf_arrival`.")
    bucket: Seconds = ours(timedelta(minutes=5), "Length of a bucket: whole seconds that divide a day. Windows end with buckets.")
    windows: Annotated[tuple[Seconds, ...], Field(min_length=1, max_length=8)] = ours(
        (timedelta(hours=1), timedelta(hours=24), timedelta(hours=168)), "The last windows to show, multiples of `bucket`."
    )
    refresh: Seconds = ours(timedelta(minutes=5), "How often ClickHouse computes the windows again.")
    as_of: Literal["clock", "newest"] = ours(
        "clock",
        "Where the windows end: with the last full bucket by ClickHouse's clock, or with the newest that has a row, if that is earlier.",
    )
    keep: Seconds | None = ours(
        None, "How long a bucket is kept after its begin, longer than the largest window. Default: without a limit."
    )
    measures: Annotated[tuple[Measure, ...], Field(min_length=1, max_length=32)] = ours(..., "The figures.")

    @property
    def target(self) -> str:
        """The table with a row per group and bucket."""
        return f"{self.name}_{format_duration(self.bucket)}"

    def top_target(self, measure: Measure) -> str:
        """Return the table with a row per group, bucket and item."""
        return f"{self.target}_{measure.name}"

    @property
    def refreshed(self) -> str:
        """The table that each refresh writes the windows to."""
        return f"{self.name}_refreshed"

    @property
    def now(self) -> str:
        """The view of the newest refresh."""
        return f"{self.name}_now"

    @property
    def progress(self) -> str:
        """The table that keeps how far each target is filled with rows from before its view."""
        return f"{self.name}_progress"

    @property
    def tops(self) -> tuple[Measure, ...]:
        return tuple(one for one in self.measures if one.top is not None)

    @property
    def bucket_seconds(self) -> int:
        return self.bucket // timedelta(seconds=1)

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of all its tables and views."""
        targets = (self.target, *map(self.top_target, self.tops), self.refreshed)
        return (*targets, *(f"{target}_view" for target in targets), self.now, self.progress)

    def faults(self) -> Faults:
        if self.bucket > DAY or DAY % self.bucket:
            yield ("bucket",), "must divide a day, so that buckets begin at full minutes and hours"
        for index, window in enumerate(self.windows):
            if window % self.bucket and not DAY % self.bucket:
                yield ("windows", index), f"must be a multiple of the bucket ({format_duration(self.bucket)})"
        for index, text in repeated(format_duration(window) for window in self.windows):
            yield ("windows", index), f"{text} is given twice"
        if self.keep is not None and self.keep < max(self.windows) + self.bucket + self.refresh:
            needed = f"{format_duration(max(self.windows))} and a bucket and a refresh"
            yield ("keep",), f"must be at least the largest window, {needed}: else buckets are removed before the window has passed"
        for index, name in repeated((*self.group_by, *(measure.name for measure in self.measures))):
            at: Location = ("group_by", index) if index < len(self.group_by) else ("measures", index - len(self.group_by), "as")
            yield at, f"the name {name!r} is used twice"
        for _, name in repeated(self.relations):
            yield ("measures",), f"two of its tables and views would have the name {name!r}: choose another name for a measure"
        for index, name in enumerate(self.group_by):
            if name in OWN_COLUMNS:
                yield ("group_by", index), f"{name!r} is a column of the rollup itself; map it under another name"


def column_faults(rollups: tuple[Rollup, ...], types: Mapping[str, str]) -> Faults:
    """Yield the faults of rollups that name columns, by the types of the columns of the mapping."""
    for index, rollup in enumerate(rollups):
        for at, name, allowed in _named(rollup):
            why = _unfit(name, types, allowed)
            if why:
                yield ("rollups", index, *at), why


def _named(rollup: Rollup) -> Iterator[tuple[Location, str, str]]:
    """Yield where a rollup names a column, the name, and for what it stands: a group, a time, a sum, a number or any value."""
    yield from ((("group_by", index), name, "group") for index, name in enumerate(rollup.group_by))
    if rollup.time != ARRIVAL:
        yield ("time",), rollup.time, "time"
    for index, measure in enumerate(rollup.measures):
        at: Location = ("measures", index)
        if measure.sum is not None:
            yield (*at, "sum", "column"), measure.sum.column, "sum"
        if measure.top is not None:
            yield (*at, "top", "column"), measure.top.column, "item"
            if measure.top.by is not None:
                yield (*at, "top", "by"), measure.top.by, "sum"
        if measure.unique is not None:
            yield (*at, "unique", "column"), measure.unique.column, "item"
        if measure.quantile is not None:
            yield (*at, "quantile", "column"), measure.quantile.column, "number"


def _unfit(name: str, types: Mapping[str, str], use: str) -> str:
    """Return why a column cannot be used so; empty if it can."""
    # Inside the function: the grammar needs pyarrow, and the JSON Schema and the docs do without.
    from pipelines.types.columns import value_type

    if name not in types:
        return f"the column {name!r} is not in the mapping"
    found: Any = value_type(types[name])
    if use in ("group", "time") and found.nullable:
        return f"the column {name!r} is Nullable, and a row without it belongs to no {'group' if use == 'group' else 'bucket'}"
    if use == "time":
        is_time = found.name == "DateTime" or (found.name == "DateTime64" and found.number(0) <= _FINEST_DIGITS)
        return "" if is_time else f"the column {name!r} is {found}, a DateTime or a DateTime64 of up to {_FINEST_DIGITS} digits is needed"
    if use == "sum":
        is_exact = found.name in _INTEGERS or (found.name == "Decimal" and found.number(0) <= _MOST_DIGITS)
        hint = "; a sum of floats depends on the order of the rows: map the field to a Decimal" if found.name.startswith("Float") else ""
        return "" if is_exact else f"the column {name!r} is {found}, an integer of up to 64 bits or a Decimal is needed{hint}"
    if use == "number":
        return "" if found.name in _NUMBERS else f"the column {name!r} is {found}, a number is needed"
    return "" if found.name in _GROUPS else f"the column {name!r} is {found}, which has no simple values to tell apart"
