"""The facts of the checks, from the ledger, Kafka and ClickHouse. Reads only; queries spill what memory does not hold.

Values go to the server as parameters, names as `Identifier` parameters or as checked identifiers.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any

import numpy as np

from pipelines.config import DedupConfig, PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.removal import KEEPS_EVERY_ROW, has_removing_ttl, removes_rows
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Table, TableColumn, View
from pipelines.connectors.sources import Source
from pipelines.connectors.sql import filled, statement
from pipelines.proof.checks.evaluate import Behind, PositionCounts, RepeatedKeys, ViewSum
from pipelines.proof.readers.streams import rows_of
from pipelines.proof.readers.table import row_batches
from pipelines.protocol.bodies import PROCESS_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names, is_redriven
from pipelines.protocol.outcomes import CONFIRMED
from pipelines.protocol.positions import NO_PLACES, Places, row_places, sequences_of
from pipelines.protocol.topology import DEAD_LETTERS, LegId, Topology
from pipelines.types.columns import parse_type, quote_identifier

EXAMPLES = 20
_SPILL_BYTES = 512 * 2**20
_POSITIONS = frozenset({"_tf_topic", "_tf_partition", "_tf_offset", "_tf_emit", "_tf_sequence", "_tf_ordinal", "_tf_arrival"})
_SAME_VALUE = re.compile(r"^(?:Nullable\(|LowCardinality\()*(?:String|U?Int\d+)\)*$")
"""Column types that keep different values of a field different; two texts may be one UUID or one instant."""
_NOT_ONE_FOR_ONE = re.compile(
    r"\b(?:where|prewhere|group\s+by|having|join|distinct|limit|union|except|intersect|qualify|sample|arrayjoin|fill)\b", re.IGNORECASE
)


class TableFacts:
    """The table of one pipeline, through one client. Methods raise RetryableError or HaltError as the client does."""

    def __init__(self, config: PipelineConfig, clickhouse: ClickHouse) -> None:
        self._config, self._clickhouse = config, clickhouse
        self._database, self._name = config.sink.connection_params.database, config.sink.table

    def columns(self) -> tuple[TableColumn, ...]:
        """Return the columns as they are now; none when the table does not exist."""
        return self._clickhouse.columns(self._database, self._name)

    def has_positions(self) -> bool:
        return {column.name for column in self.columns()} >= _POSITIONS

    def removes(self) -> str:
        """Return what removes rows, as `removes_rows`; nothing when the table does not exist."""
        table = self._clickhouse.inspect(self._database, self._name)
        return removes_rows(table) if table else ""

    def rows(self) -> int:
        return self._number("counting the rows of", "checks/rows", self._database, self._name)

    def positions(self, settled_to: int) -> PositionCounts:
        """Count the positions of the sources' rows; the table has position columns.

        `settled_to`: rows of raw frames up to there are confirmed.
        """
        if self._config.sink_leg.kind == DEAD_LETTERS:
            return self._positions_of_dead_letters()
        counts = np.zeros(4, dtype=np.int64)
        examples: list[dict[str, Any]] = []
        for parameters in self._of_topics():
            parameters |= {"spill_bytes": _SPILL_BYTES, "settled_to": settled_to}
            topic_counts = self._clickhouse.rows(self._doing("counting the positions of"), statement("checks/positions"), parameters)[0]
            counts += np.array([int(count) for count in topic_counts])
            if topic_counts[2]:
                parameters["examples"] = EXAMPLES - len(examples)
                named = self._clickhouse.rows(self._doing("naming positions of"), statement("checks/doubled_positions"), parameters)
                examples += [{"topic": parameters["topic"], "partition": p, "offset": o, "rows": n} for p, o, n in named]
        rows, positions, doubled, settled = counts.tolist()
        return PositionCounts(rows, positions, doubled, tuple(examples), self._foreign(), settled)

    def _positions_of_dead_letters(self) -> PositionCounts:
        """Count the places of the dead-letter stream that the table has: one record may have several dead letters."""
        parameters: dict[str, Any] = {**self._names, "spill_bytes": _SPILL_BYTES}
        doing = self._doing("counting the positions of")
        rows, positions, doubled = map(int, self._clickhouse.rows(doing, statement("checks/dead_letter_positions"), parameters)[0])
        named = []
        if doubled:
            parameters["examples"] = EXAMPLES
            named = self._clickhouse.rows(doing, statement("checks/doubled_dead_letters"), parameters)
        examples = tuple({"position": f"{sequence}.{ordinal} of the dead-letter stream", "rows": n} for sequence, ordinal, n in named)
        return PositionCounts(rows, positions, doubled, examples)

    def _foreign(self) -> int:
        """Count the rows of other topics than the sources'."""
        parameters = {**self._names, "topics": [source.topic for source in self._config.sources]}
        return int(self._clickhouse.rows(self._doing("counting foreign rows of"), statement("checks/foreign_rows"), parameters)[0][0])

    def held_of(self, places: Places) -> int:
        """Count the ascending places (`row_places`) that have a row; the table has position columns.

        Reads the rows of all raw frames in between.
        """
        if not len(places):
            return 0
        first, last = sequences_of(places["position"][[0, -1]]).tolist()
        rows = row_batches(self._config.sink, f"_tf_sequence BETWEEN {first} AND {last}")
        held = [np.intersect1d(row_places(batch), places) for batch in rows]
        return len(np.unique(np.concatenate(held))) if held else 0

    def key_columns(self, dedup: DedupConfig) -> tuple[str, ...] | str:
        """Return the columns that hold the key of the dedup; or why its rows cannot be compared by key."""
        if dedup.time == "event":
            return "keys: the window is measured on a field, which verification compares"
        columns = {entry.name: entry for entry in self._config.sink.mapping}
        missing = [name for name in dedup.key if name not in columns]
        if missing:
            return f"keys: {', '.join(missing)} is not in the mapping"
        inexact = [name for name in dedup.key if not _SAME_VALUE.match(str(parse_type(columns[name].column_type)))]
        if inexact:
            return f"keys: the column of {', '.join(inexact)} may hold one value for two"
        return tuple(columns[name].column_name for name in dedup.key)

    def repeated_keys(self, columns: Sequence[str], window: timedelta, since: datetime, log: JetStream) -> RepeatedKeys:
        """Return pairs of rows with one key and less than the window between them; the later one arrived at `since` or later.

        Dead letters of the sink enter after dedup, so a pair with such a row is none.
        """
        limit, raw = 50 * EXAMPLES, Names(self._config.pipeline_id).stream("raw")

        @cache
        def entered_again(sequence: int) -> bool:
            message = log.get(raw, sequence)
            return message is not None and is_redriven(message.subject)

        text = filled("checks/repeated_keys", key=", ".join(map(quote_identifier, columns)))
        pairs: list[dict[str, Any]] = []
        is_cut = False
        for parameters in self._of_topics():
            parameters |= {"since": f"{since.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}", "window_us": window // timedelta(microseconds=1)}
            parameters |= {"spill_bytes": _SPILL_BYTES, "limit": limit}
            rows = self._clickhouse.rows(self._doing("comparing the keys of"), text, parameters)
            is_cut |= len(rows) == limit
            pairs += [
                {"topic": parameters["topic"], "partition": p, "offset": o, "partition before": pb, "offset before": ob}
                for p, o, sequence, pb, ob, sequence_before in rows
                if not entered_again(sequence) and not entered_again(sequence_before)
            ]
        return RepeatedKeys(tuple(pairs), is_cut)

    def tables(self) -> Iterator[Table]:
        """Yield the table and the targets of its views, views on views included."""
        table = self._clickhouse.inspect(self._database, self._name)
        if table is not None:
            yield table
            yield from self._clickhouse.view_targets(self._database, self._name)

    def view_sums(self, inserting: Callable[[], int]) -> Iterator[ViewSum]:
        """Yield the sums of the targets of views on the table itself, each once.

        `inserting`: counts the rows that the sink may be inserting now, which a view may have earlier or later than the table.
        """
        counted = {total.table: total.count_column for total in self._config.checks.views.totals}
        views: dict[str, list[tuple[View, Table]]] = {}
        for view in self._clickhouse.views_on(self._database, self._name):
            if view.target is None:
                yield ViewSum(view.full_name, None, 0, 0, "the table that it fills cannot be found")
            else:
                views.setdefault(view.target.full_name, []).append((view, view.target))
        removes = self.removes()
        for name, ((view, target), *others) in views.items():
            before, inserted_first = self.rows(), inserting()
            total, reason = None, f"the table has fewer rows than it was given, {removes} removes some"
            if others:
                # A row may be in it once for each view, or once for all of them.
                reason = f"{len(others) + 1} views fill it"
            elif not removes:
                total, reason = self._view_total(view, target, counted.get(target.name))
            inserted_last = inserting()
            yield ViewSum(name, total, before, self.rows(), reason, max(inserted_first, inserted_last))

    def _view_total(self, view: View, target: Table, count_column: str | None) -> tuple[int | None, str]:
        """Return the sum of the view's target; or None and why it cannot be compared."""
        if has_removing_ttl(target):
            return None, "its TTL removes rows"
        if count_column is not None:
            kinds = {column.name: column.type for column in target.columns}
            if count_column not in kinds:
                return None, f"it has no column {count_column}"
            name = "merged_count" if kinds[count_column].startswith("AggregateFunction(count") else "sum"
            name = "merged_sum" if kinds[count_column].startswith("AggregateFunction(sum") else name
            doing = f"adding up {count_column} of"
            return self._number(doing, f"checks/{name}", target.database, target.name, column=count_column), ""
        if not passes_every_row(view.definition, self._aggregates) or target.engine not in KEEPS_EVERY_ROW:
            return None, "it does not hold a row for each row: name its column of counts in checks.views.totals"
        return self._number("counting the rows of", "checks/rows", target.database, target.name), ""

    def _number(self, doing: str, name: str, database: str, table: str, **parameters: Any) -> int:
        names = {"database": database, "table": table}
        return int(self._clickhouse.rows(f"{doing} {database}.{table}", statement(name), {**names, **parameters})[0][0])

    @cached_property
    def _aggregates(self) -> frozenset[str]:
        names = self._clickhouse.rows("listing aggregate functions", statement("checks/aggregate_functions"))
        return frozenset(name for (name,) in names)

    @property
    def _names(self) -> dict[str, Any]:
        return {"database": self._database, "table": self._name}

    def _of_topics(self) -> Iterator[dict[str, Any]]:
        """Yield the parameters of a statement about the rows of one topic, for each source."""
        yield from ({**self._names, "topic": source.topic} for source in self._config.sources)

    def _doing(self, verb: str) -> str:
        return f"{verb} {self._database}.{self._name}"


def passes_every_row(definition: str, aggregates: Set[str]) -> bool:
    """Return whether the view's SELECT surely gives one row for each row of its table; False where its text does not show it.

    `aggregates`: names of the server's aggregate functions, in lower case. A name that only begins like one counts as one, with a
    combinator: `sumIf`.
    """
    select = re.search(r"\bAS\s+(?:\(\s*)?(?:SELECT|WITH)\b", definition, re.IGNORECASE)
    body = definition[select.start() :] if select else ""
    called = {name.lower() for name in re.findall(r"(\w+)\s*\(", body)}
    is_aggregate = any(name.startswith(tuple(aggregates)) for name in called)
    return bool(body) and not _NOT_ONE_FOR_ONE.search(body) and not is_aggregate


@dataclass(frozen=True)
class Settled:
    """The rows that the sink has confirmed: of all raw frames up to `sequence`, and, of later frames, at `places` (ascending)."""

    sequence: int
    places: Places


def settled(log: JetStream, names: Names, sink: LegId) -> Settled | None:
    """Return the rows that a sink has confirmed. Call it before the table is counted.

    None where the ledger, or out, does not reach back to the sink's last chunk any more.
    """
    ledger, role = names.stream("ledger"), sink.input_role
    confirmed = read_chain(log, names, sink.chain).to or 0
    done = read_chain(log, names, PROCESS_CHAIN).done
    while done is not None and done.body.ends.get(role, 0) > confirmed:
        message = log.get(ledger, done.previous_done) if done.previous_done else None
        if message is None and done.previous_done:
            return None
        done = PROCESS_CHAIN.decode_done(message) if message else None
    sequence, out = (done.body.to, done.body.ends.get(role, 0)) if done else (0, 0)
    frames = [*log.fetch(names.stream(role), names.subjects(role), out, confirmed)] if confirmed > out else []
    if len(frames) < confirmed - out:
        return None
    return Settled(sequence, np.unique(np.concatenate([NO_PLACES, *(row_places(rows_of(frame)) for frame in frames)])))


def confirmed_rows(log: JetStream, names: Names, sink: LegId) -> tuple[int, int]:
    """Return (rows of a sink that ClickHouse has confirmed, the same with the chunk that is being inserted)."""
    state = read_chain(log, names, sink.chain)
    done = state.totals.get(CONFIRMED.total, 0)
    return done, done + (state.plan.body.rows if state.plan else 0)


def behind(
    log: JetStream,
    names: Names,
    topology: Topology,
    sources: Mapping[LegId, Source],
    rows: int,
    now: datetime,
    warn_after: timedelta,
    fail_after: timedelta,
) -> Behind:
    """Return what waits before each leg; `rows` of it in the streams. `sources` by the ingest leg that reads them.

    A record in a stream is as old as its message by the clock of NATS, a record in a source as its own timestamp at `now`.
    """
    chains = {leg: read_chain(log, names, leg.chain) for leg in topology.legs}
    oldest = timedelta(0)
    for leg in (leg for leg in topology.legs if leg.reads):
        stream, reached = names.stream(str(leg.reads)), chains[leg].to or 0
        state = log.state(stream)
        message = log.get(stream, reached + 1) if state is not None and state.last_sequence > reached else None
        if message is not None:
            oldest = max(oldest, log.clock(stream) - message.time)
    instants = (now - warn_after, now - fail_after)
    counts = [_waiting_at(source, chains[leg].to or {}, instants) for leg, source in sources.items()]
    offsets, past_warn, past_fail = (sum(count) for count in zip(*counts, strict=True))
    return Behind(rows, oldest, offsets, past_warn, past_fail)


def _waiting_at(source: Source, to: Mapping[str, int], instants: Iterable[datetime]) -> Iterator[int]:
    """Yield the number of offsets beyond `to`, and of those before the first record since each of the instants."""
    reached = {int(partition): offset for partition, offset in to.items()}
    # Partitions that were added since: they are read from their beginning.
    added = [partition for partition in source.facts().partitions if partition not in reached]
    reached |= source.starts(added) if added else {}
    partitions = sorted(reached)
    ends = source.ends(partitions)
    yield _waiting(reached, ends, ends)
    for instant in instants:
        yield _waiting(reached, source.first_since(partitions, instant), ends)


def _waiting(reached: dict[int, int], to: dict[int, int], ends: dict[int, int]) -> int:
    return sum(max(0, min(to[partition], ends[partition]) - offset) for partition, offset in reached.items())
