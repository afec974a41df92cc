"""The statements of rollups, from the texts of sql/rollups. Pure; `tallyflow ddl` prints them, the sink leg runs them.

Every name, type and number in them has passed the checks of the file.
"""

from collections.abc import Collection, Mapping, Sequence

from pipelines.config import PipelineConfig, format_duration
from pipelines.config.rollups import BUCKET, ITEM, REFRESHED_AT, WINDOW, Measure, Rollup
from pipelines.connectors.sinks.clickhouse import CREATED_DEDUP_WINDOW
from pipelines.connectors.sql import filled, statement
from pipelines.rollups.feeds import Feed, FeedColumn, column_types, feeds, feeds_of, rollups_of, window_columns
from pipelines.types.columns import quote_identifier

MERGE_SETTINGS: Mapping[str, int] = {"min_parts_to_merge_at_once": 20, "merge_selector_base": 24}
"""Settings of a target, which older servers do not know: it is merged by 20 parts of one size. Each merge reads every state anew, and by
ClickHouse's own base of 5 a part is merged two or three times before it is large (measured, 26.9)."""
_KEPT_REFRESHES = 12
_LEAST_KEPT_SECONDS = 3600


def bare(name: str, **texts: str | int) -> str:
    """Return a statement of sql/rollups without its comment, as a part of another one."""
    text = filled(f"rollups/{name}", **texts) if texts else statement(f"rollups/{name}")
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


class RollupStatements:
    """The statements of the rollups of one sink."""

    def __init__(self, config: PipelineConfig) -> None:
        self._table = quote_identifier(config.sink.table)
        self._database = quote_identifier(config.sink.connection_params.database)
        self._types = column_types(config)
        self.feeds, self.rollups = feeds_of(config), rollups_of(config)

    def all(self, cut: int) -> list[str]:
        """Return what creates all tables and views, for rows behind raw sequence `cut`; a new pipeline has 0."""
        before = [*map(self.create_target, self.feeds), *map(self.create_progress, self.rollups)]
        views = [self.create_view(feed, cut) for feed in self.feeds]
        return [*before, *views, *(text for rollup in self.rollups for text in self.create_windows(rollup))]

    def create_target(self, feed: Feed, known: Collection[str] = MERGE_SETTINGS.keys()) -> str:
        """Return the statement of a target. `known`: those of MERGE_SETTINGS that the server knows."""
        keep = feed.rollup.keep
        ttl = f"\nTTL toDateTime({BUCKET}) + INTERVAL {int(keep.total_seconds())} SECOND" if keep is not None else ""
        return bare(
            "create_target",
            database=self._database,
            target=quote_identifier(feed.target),
            columns=", ".join(f"{quote_identifier(column.name)} {column.type}" for column in feed.columns),
            order_by=_names(feed.keys),
            ttl=ttl,
            window=CREATED_DEDUP_WINDOW,
            merges="".join(f", {name} = {value}" for name, value in MERGE_SETTINGS.items() if name in known),
        )

    def create_view(self, feed: Feed, cut: int) -> str:
        """Return the statement of a view that passes on the rows behind raw sequence `cut` (exclusive)."""
        columns = ", ".join(f"{quote_identifier(column.name)} {_sent_type(column)}" for column in feed.columns)
        view, target = quote_identifier(feed.view), quote_identifier(feed.target)
        return bare("create_view", database=self._database, view=view, target=target, columns=columns, select=self.rows_of_view(feed, cut))

    def rows_of_view(self, feed: Feed, cut: int) -> str:
        return self._rows(feed, f"source._tf_sequence > {cut}")

    def fill(self, feed: Feed, after: int, to: int) -> str:
        """Return the statement that adds the rows of raw sequences from `after` (exclusive) to `to` (inclusive) to a target."""
        select = self._rows(feed, f"source._tf_sequence > {after} AND source._tf_sequence <= {to}")
        return bare(
            "fill",
            database=self._database,
            target=quote_identifier(feed.target),
            columns=_names(feed.columns),
            keys=_names(feed.keys),
            select=select,
        )

    def _rows(self, feed: Feed, within: str) -> str:
        return bare(
            "rows_of_target",
            database=self._database,
            table=self._table,
            columns=", ".join(f"{column.value} AS {quote_identifier(column.name)}" for column in feed.columns),
            within=" AND ".join(filter(None, (within, feed.where))),
            grouped=f" GROUP BY {', '.join(column.value for column in feed.keys)}" if feed.is_grouped else "",
        )

    def drop(self, name: str) -> str:
        return bare("drop_view", database=self._database, view=quote_identifier(name))

    def create_progress(self, rollup: Rollup) -> str:
        return bare("create_progress", database=self._database, progress=quote_identifier(rollup.progress))

    def note_progress(self, rollup: Rollup) -> str:
        return bare("note_progress", database=self._database, progress=quote_identifier(rollup.progress))

    def progress(self, rollup: Rollup) -> str:
        return bare("progress", database=self._database, progress=quote_identifier(rollup.progress))

    def create_windows(self, rollup: Rollup) -> list[str]:
        """Return what creates the table of the windows, the view that refreshes it, and the view of the newest refresh."""
        columns = window_columns(rollup, self._types)
        keep = max(_LEAST_KEPT_SECONDS, _KEPT_REFRESHES * int(rollup.refresh.total_seconds()))
        database, refreshed = self._database, quote_identifier(rollup.refreshed)
        table = bare(
            "create_refreshed",
            database=database,
            refreshed=refreshed,
            columns=", ".join(f"{quote_identifier(name)} {kind}" for name, kind in columns),
            order_by=", ".join((REFRESHED_AT, *map(quote_identifier, rollup.group_by), WINDOW)),
            keep_seconds=keep,
        )
        refresh = bare(
            "create_refresh",
            database=database,
            view=f"{refreshed}_view",
            refreshed=refreshed,
            seconds=int(rollup.refresh.total_seconds()),
            select=self.windows(rollup),
        )
        select = self.newest(rollup)
        return [table, refresh, bare("create_now", database=database, now=quote_identifier(rollup.now), select=select)]

    def newest(self, rollup: Rollup) -> str:
        return bare("now", database=self._database, refreshed=quote_identifier(rollup.refreshed))

    def windows(self, rollup: Rollup) -> str:
        """Return the SELECT of the windows of a rollup: one row per window and group that has a row of the table in it."""
        whole, *tops = feeds(rollup, self._types)
        groups = [quote_identifier(name) for name in rollup.group_by]
        joined = []
        for number, (measure, feed) in enumerate(zip(rollup.tops, tops, strict=True)):
            on = " AND ".join(f"_whole.{name} = _top_{number}.{name}" for name in (WINDOW, *groups))
            joined.append(f"\nLEFT JOIN ({self._top(measure, feed)}) AS _top_{number} ON {on}")
        places = {measure.name: f"_top_{number}.items" for number, measure in enumerate(rollup.tops)}
        shown = [(name, f"_whole.{name}") for name in (WINDOW, *groups)]
        shown += [(measure.name, places.get(measure.name, f"_whole.{measure.name}")) for measure in rollup.measures]
        return bare(
            "windows",
            until=self._until(rollup),
            columns=", ".join(f"{value} AS {name}" for name, value in shown),
            whole=self._figures(whole),
            tops="".join(joined),
        )

    def _until(self, rollup: Rollup) -> str:
        """Return SQL of the instant at which the windows end, in seconds since 1970."""
        length = rollup.bucket_seconds
        clock = f"intDiv(toInt64(toUnixTimestamp(now())), {length}) * {length}"
        if rollup.as_of == "clock":
            return clock
        newest = f"SELECT max(toUnixTimestamp64Second({BUCKET})) + {length} FROM {self._database}.{quote_identifier(rollup.target)}"  # noqa: S608
        return f"least({clock}, ({newest}))"

    def _figures(self, feed: Feed) -> str:
        keys = [quote_identifier(column.name) for column in feed.keys if column.name != BUCKET]
        return bare(
            "figures",
            database=self._database,
            target=quote_identifier(feed.target),
            keys="".join(f", {name}" for name in keys),
            figures="".join(f", {column.merged} AS {quote_identifier(column.name)}" for column in feed.values),
            lengths=_lengths(feed.rollup),
        )

    def _top(self, measure: Measure, feed: Feed) -> str:
        assert measure.top is not None
        keys = [quote_identifier(column.name) for column in feed.keys if column.name not in (BUCKET, ITEM)]
        return bare("top", keys="".join(f", {name}" for name in keys), n=measure.top.n, figures=self._figures(feed))


def _names(columns: Sequence[FeedColumn]) -> str:
    return ", ".join(quote_identifier(column.name) for column in columns)


def _lengths(rollup: Rollup) -> str:
    return ", ".join(f"('{format_duration(window)}', {int(window.total_seconds())})" for window in rollup.windows)


def _sent_type(column: FeedColumn) -> str:
    """Return the type that a view gives: the value of a SimpleAggregateFunction is one of its argument's type."""
    simple = "SimpleAggregateFunction(sum, "
    return column.type.removeprefix(simple)[:-1] if column.type.startswith(simple) else column.type
