"""The figures that the page shows, from the tables of a rollup: those of a window as it was refreshed, and the course of its sums.

Every value leaves as JSON text: a sum as its exact digits, so that no float stands between ClickHouse and the page. Methods raise
RetryableError or HaltError as the client does, and LookupError for a group, window or rollup that does not exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

from pipelines.config import PipelineConfig, format_duration
from pipelines.config.rollups import BUCKET, Measure, Rollup
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.rollups.ddl import bare
from pipelines.rollups.feeds import column_types, feeds, plain, rollups_of
from pipelines.types.columns import quote_identifier

MOST_GROUPS = 5000
_MOST_STEPS = 30
"""Bars of a chart: more are thinner than the gaps between them."""
_NICE_STEPS = tuple(60 * minutes for minutes in (1, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440))
ADDITIVE = ("count", "sum")
"""Kinds of measures whose buckets add up."""


@dataclass(frozen=True)
class Choice:
    """What the page asks for: a window by its text, and a group by the texts of its columns."""

    window: str
    group: tuple[str, ...]


def step_of(bucket_seconds: int, window_seconds: int) -> int:
    """Return the length of a bar in seconds: a multiple of the bucket that divides the window into few enough bars, a usual one first."""
    nice = [step for step in _NICE_STEPS if step % bucket_seconds == 0 and window_seconds % step == 0]
    fitting = [step for step in nice if window_seconds // step <= _MOST_STEPS]
    multiples = range(bucket_seconds, window_seconds + 1, bucket_seconds)
    dividing = (step for step in multiples if window_seconds % step == 0 and window_seconds // step <= _MOST_STEPS)
    return fitting[0] if fitting else next(dividing)


class RollupFigures:
    """The figures of one rollup of a sink."""

    def __init__(self, config: PipelineConfig, rollup: Rollup, clickhouse: ClickHouse) -> None:
        self._rollup, self._clickhouse = rollup, clickhouse
        self._database = quote_identifier(config.sink.connection_params.database)
        self._types = column_types(config)
        self._windows = {format_duration(window): int(window.total_seconds()) for window in rollup.windows}

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the page knows before it asks for figures."""
        return {
            "name": self._rollup.name,
            "groups": list(self._rollup.group_by),
            "windows": [{"name": name, "seconds": seconds} for name, seconds in self._windows.items()],
            "bucket_seconds": self._rollup.bucket_seconds,
            "refresh_seconds": int(self._rollup.refresh.total_seconds()),
            "measures": [self._described(measure) for measure in self._rollup.measures],
        }

    def _described(self, measure: Measure) -> dict[str, Any]:
        counted = measure.unique or measure.quantile
        return {
            "name": measure.name,
            "label": measure.label or measure.name.replace("_", " ").capitalize(),
            "unit": measure.unit or "",
            "kind": measure.kind,
            "scale": self._scale(measure),
            "is_estimated": counted is not None and counted.method != "exact",
            "is_additive": measure.kind in ADDITIVE,
        }

    def _scale(self, measure: Measure) -> int:
        """Return the digits behind the point that a figure shows: those of its column."""
        numbers = measure.sum or measure.quantile
        column = numbers.column if numbers else measure.top.by if measure.top else None
        kind = self._types[column] if column else None
        if kind is not None and kind.name.startswith("Float"):
            return 2
        return kind.number(1) if kind is not None and kind.name == "Decimal" else 0

    def groups(self) -> list[list[str]]:
        """Return the groups of the newest refresh, as the texts of their columns, in order; MOST_GROUPS at most."""
        if not self._rollup.group_by:
            return [[]]
        names = ", ".join(f"toString({quote_identifier(name)}) AS g{number}" for number, name in enumerate(self._rollup.group_by))
        query = bare("groups", groups=names, database=self._database, now=self._rollup.now)
        return [list(row) for row in self._clickhouse.rows("listing the groups", query, {"most": MOST_GROUPS})]

    def of(self, choice: Choice) -> dict[str, Any]:
        """Return the figures of a window and group, the course of its sums, and the sums of the window before it.

        A group without a row in the window has zeros. `as_of` is None before the first refresh.
        """
        if choice.window not in self._windows or len(choice.group) != len(self._rollup.group_by):
            raise LookupError(f"rollup {self._rollup.name} has no window {choice.window!r} of {len(choice.group)} groups")
        names = ", ".join(quote_identifier(measure.name) for measure in self._rollup.measures)
        parameters = self._parameters(choice)
        query = bare("figures_now", figures=names, database=self._database, now=self._rollup.now, group=self._of_group)
        found = self._clickhouse.rows("reading the figures", query, parameters)
        if not found:
            # A window without a row of the group: only the other groups show when it was refreshed.
            newest = self._clickhouse.rows("reading the figures", bare("refreshed", database=self._database, now=self._rollup.now))
            if not newest:
                return {"as_of": None, "refreshed_at": None, "figures": {}, "series": [], "previous": {}}
            found = [(*newest[0], *[None] * len(self._rollup.measures))]
        refreshed_at, as_of, *values = found[0]
        figures = {measure.name: self._text(measure, value) for measure, value in zip(self._rollup.measures, values, strict=True)}
        return {"as_of": _instant(as_of), "refreshed_at": _instant(refreshed_at), "figures": figures, **self._course(choice, as_of)}

    def _text(self, measure: Measure, value: Any) -> Any:
        """Return a figure as the page gets it: exact digits, the items of a top, None for a quantile of nothing."""
        if measure.top is not None:
            return [{"item": str(one["item"]), "amount": self._digits(measure, one["amount"])} for one in value or ()]
        if value is None:
            return None if measure.kind == "quantile" else self._digits(measure, 0)
        return self._digits(measure, value)

    def _digits(self, measure: Measure, value: Any) -> str:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
        return f"{number:.{self._scale(measure)}f}"

    def _course(self, choice: Choice, as_of: datetime) -> dict[str, Any]:
        additive = [measure for measure in self._rollup.measures if measure.kind in ADDITIVE]
        seconds = self._windows[choice.window]
        step, until = step_of(self._rollup.bucket_seconds, seconds), int(as_of.replace(tzinfo=UTC).timestamp())
        if not additive:
            return {"step_seconds": step, "series": [], "previous": {}}
        since = until - seconds
        rows = self._sums(choice, additive, (since - seconds, until), step)
        by_begin = {begin: values for begin, _, *values in rows}
        nothing = [Decimal(0)] * len(additive)
        series = [self._point(begin, additive, by_begin.get(begin, nothing)) for begin in range(since, until, step)]
        before = [values for begin, _, *values in rows if begin < since]
        # Without rows from before that window, its sums say nothing.
        reaches_back = bool(rows) and rows[0][1] <= since - seconds
        previous = [sum(values, Decimal(0)) for values in zip(*before, strict=True)] if before else nothing
        return {
            "step_seconds": step,
            "series": series,
            "previous": {one.name: self._digits(one, value) for one, value in zip(additive, previous, strict=True)} if reaches_back else {},
        }

    def _point(self, begin: int, measures: Sequence[Measure], values: Sequence[Any]) -> dict[str, Any]:
        return {"begin": begin, **{measure.name: self._digits(measure, value) for measure, value in zip(measures, values, strict=True)}}

    def _sums(self, choice: Choice, measures: Sequence[Measure], bounds: tuple[int, int], step: int) -> list[tuple[Any, ...]]:
        """Return the begin of each step that has a row, the group's first bucket of all, and the sums."""
        names = ", ".join(f"sum({quote_identifier(measure.name)}) AS s{number}" for number, measure in enumerate(measures))
        query = bare("series", sums=names, database=self._database, target=self._rollup.target, group=self._of_group)
        parameters = {**self._parameters(choice), "since": bounds[0], "until": bounds[1], "step": step}
        return self._clickhouse.rows("reading the course of the sums", query, parameters)

    @cached_property
    def _of_group(self) -> str:
        """SQL that selects one group; the parameters are cast once, so that the sorting key is used."""
        whole, *_ = feeds(self._rollup, self._types)
        names = [column.name for column in whole.keys if column.name != BUCKET]
        return "".join(
            f" AND {quote_identifier(name)} = CAST({{g{number}:String}}, '{_escaped(plain(self._types[name]))}')"
            for number, name in enumerate(names)
        )

    def _parameters(self, choice: Choice) -> dict[str, Any]:
        return {"window": choice.window, **{f"g{number}": text for number, text in enumerate(choice.group)}}

    def refresh(self) -> None:
        """Let ClickHouse compute the windows now, and wait for it."""
        for name in ("refresh", "wait"):
            text = bare(name, database=self._database, view=f"{self._rollup.refreshed}_view")
            self._clickhouse.command(f"refreshing the windows of {self._rollup.name}", text)


def all_figures(config: PipelineConfig, clickhouse: ClickHouse) -> dict[str, RollupFigures]:
    """Return the figures of the rollups of a sink, by name."""
    return {rollup.name: RollupFigures(config, rollup, clickhouse) for rollup in rollups_of(config)}


def _escaped(kind: str) -> str:
    return kind.replace("\\", "\\\\").replace("'", "\\'")


def _instant(value: datetime) -> str:
    return value.replace(tzinfo=UTC).isoformat(timespec="seconds")
