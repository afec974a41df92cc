"""One look at a pipeline: reads the facts and evaluates the checks. It may run beside the pipeline, and changes nothing."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from pipelines.config import DedupConfig, PipelineConfig
from pipelines.config.fields import joins
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks.clickhouse import column_faults
from pipelines.connectors.sources import open_source
from pipelines.errors import HaltError
from pipelines.proof.audit.run import Audit
from pipelines.proof.checks import evaluate
from pipelines.proof.checks.evaluate import CheckResult, Confirmed, Held, Hours, PositionCounts
from pipelines.proof.checks.facts import TableFacts, behind, confirmed_rows, settled
from pipelines.protocol.naming import Names
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.protocol.tally import tally
from pipelines.protocol.topology import DEAD_LETTERS

AUDITED_ROWS = 20_000_000
"""Limit of the rows for which an audit names missing confirmed rows: it reads everything, at 6 bytes a record."""
_EXAMPLES = 20
_LOOKS, _PAUSE_SECONDS = 5, 0.2
"""Attempts to read a number that changes while a chunk is inserted, and the pause between them."""


class Look:
    """The connections of one look; use it as a context. Connects to each system when the first check needs it.

    `check` raises HaltError for a pipeline that was never started, RetryableError while a system that the check needs is away: then this
    check has no result, and others may have one.
    """

    def __init__(self, config: PipelineConfig, directory: Path | None = None) -> None:
        """Create without connecting. `directory`: the pipeline's, by default below this host's home."""
        self._config, self._names = config, Names(config.pipeline_id)
        self._log = JetStream.of(config)
        tables = {config.topology.file_id(seen.sink_leg): _TableLook(seen, self._log, self._clock, directory) for seen in config.by_table}
        self._tables = tables

    def __enter__(self) -> "Look":
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()
        for table in self._tables.values():
            table.close()

    def check(self, name: str, verified: Hours | None = None) -> CheckResult:
        """Evaluate one check, by its name in the file's `checks`. `verified`: the results of verifications, for the check of that name."""
        if name == "verification":
            return evaluate.verification(verified or Hours(), self._first_arrival(), self._now)
        checks: dict[str, Callable[[], CheckResult]] = {
            "conservation": lambda: evaluate.conservation(tally(self._log, self._names, self._config.topology)),
            "freshness": self._freshness,
            "dead_letters": self._dead_letters,
        }
        if name in checks:
            return checks[name]()
        return CheckResult.together({sink: table.check(name) for sink, table in self._tables.items()})

    def _clock(self) -> datetime:
        return self._now

    @cached_property
    def _now(self) -> datetime:
        """Return one instant for the whole look, by the clock of NATS as arrivals are.

        Of a pipeline that was never started, by this host's clock.
        """
        stream = self._names.stream("raw")
        return self._log.clock(stream) if self._log.state(stream) is not None else datetime.now(UTC)

    def _first_arrival(self) -> datetime | None:
        """Return the arrival of the first raw frame within the period to check: hours without records are not verified."""
        stream = self._names.stream("raw")
        if self._log.state(stream) is None:
            return None
        since = self._now - self._config.checks.verification.over
        first = self._log.first_since(stream, self._names.subjects("raw"), since)
        return first.time if first else None

    def _freshness(self) -> CheckResult:
        limits = self._config.checks.freshness
        topology = self._config.topology
        waiting = sum(max(0, leg.waiting) for leg in tally(self._log, self._names, topology).legs)
        sources = {leg: open_source(self._config, source_id) for leg, source_id in topology.sources.items()}
        now = datetime.now(UTC)
        waiting_records = behind(self._log, self._names, topology, sources, waiting, now, limits.warn_after, limits.fail_after)
        return evaluate.freshness(waiting_records, limits.warn_after, limits.fail_after)

    def _dead_letters(self) -> CheckResult:
        limits = self._config.checks.dead_letters
        account = tally(self._log, self._names, self._config.topology)
        # If the ledger does not reach back so far, the whole is evaluated.
        with suppress(HaltError):
            account = tally(self._log, self._names, self._config.topology, self._now - limits.over)
        return evaluate.dead_letters(account, limits.max_percent)


class _TableLook:
    """The part of a look at one table, that of the config's sink. `now`: returns the instant of the look."""

    def __init__(self, config: PipelineConfig, log: JetStream, now: Callable[[], datetime], directory: Path | None) -> None:
        self._config, self._names, self._log, self._now = config, Names(config.pipeline_id), log, now
        self._directory = directory
        self._clickhouse = ClickHouse(config.sink)
        self._table = TableFacts(config, self._clickhouse)

    def close(self) -> None:
        self._clickhouse.close()

    def check(self, name: str) -> CheckResult:
        """Evaluate a check of the table, by its name."""
        checks: dict[str, Callable[[], CheckResult]] = {
            "duplicates": self._duplicates,
            "gaps": self._gaps,
            "schema_drift": self._schema_drift,
            "views": lambda: evaluate.views(list(self._table.view_sums(self._inserting))),
            "insert_window": lambda: evaluate.insert_window(
                [(table.full_name, table.dedup_window) for table in self._table.tables()], self._config.checks.insert_window.min_tokens
            ),
        }
        return checks[name]()

    @cached_property
    def _positions(self) -> tuple[Confirmed, PositionCounts, int | None] | None:
        """Return how many rows were confirmed, the positions in the table, and how many of these are of the confirmed rows.

        None where the table has no position columns.
        """
        if not self._table.has_positions():
            return None
        for _ in range(_LOOKS):
            before, _ = confirmed_rows(self._log, self._names, self._config.sink_leg)
            # Which raw frames a fallback has settled only the other sink's chain says; dead letters are of any frame, and one of a join
            # may get further rows later.
            is_fallback = self._config.topology.refuser_of(self._config.sink_leg) is not None
            is_open = is_fallback or self._is_of_dead_letters or joins(self._config)
            reached = None if is_open else settled(self._log, self._names, self._config.sink_leg)
            if confirmed_rows(self._log, self._names, self._config.sink_leg)[0] == before:
                break
        else:
            reached = None
        positions = self._table.positions(reached.sequence if reached else 0)
        after = confirmed_rows(self._log, self._names, self._config.sink_leg)[1]
        return Confirmed(before, after), positions, positions.settled + self._table.held_of(reached.places) if reached else None

    def _duplicates(self) -> CheckResult:
        if self._positions is None:
            return evaluate.duplicates(None, None, "the table has no position columns, so its rows cannot be distinguished")
        dedup = self._dedup
        if dedup is None or self._is_of_dead_letters:
            return evaluate.duplicates(self._positions[1], None)
        columns = self._table.key_columns(dedup)
        if isinstance(columns, str):
            return evaluate.duplicates(self._positions[1], None, columns)
        since = self._now() - self._config.checks.duplicates.over
        return evaluate.duplicates(self._positions[1], self._table.repeated_keys(columns, dedup.time_window, since, self._log))

    @property
    def _is_of_dead_letters(self) -> bool:
        return self._config.sink_leg.kind == DEAD_LETTERS

    @property
    def _dedup(self) -> DedupConfig | None:
        return next((transform.config for transform in self._config.transforms if transform.type == "dedup"), None)

    def _gaps(self) -> CheckResult:
        if self._positions is None:
            return self._gaps_of_rows()
        confirmed, positions, of_confirmed = self._positions
        held = Held(positions.positions, True, positions.foreign, self._table.removes(), of_confirmed)
        result = evaluate.gaps(confirmed, held)
        if result.passed or positions.rows + positions.foreign > AUDITED_ROWS:
            return result
        return evaluate.gaps(confirmed, held, Audit(self._config, self._log, _EXAMPLES, directory=self._directory).run().findings)

    def _gaps_of_rows(self) -> CheckResult:
        """Compare numbers of rows; count again where a chunk was being inserted: between two chunks the numbers are clear."""
        for look in range(_LOOKS):
            before, _ = confirmed_rows(self._log, self._names, self._config.sink_leg)
            rows = self._table.rows() if self._table.columns() else 0
            confirmed = Confirmed(before, confirmed_rows(self._log, self._names, self._config.sink_leg)[1])
            if confirmed.before == confirmed.after or rows < before:
                break
            if look + 1 < _LOOKS:
                time.sleep(_PAUSE_SECONDS)
        return evaluate.gaps(confirmed, Held(rows, is_by_position=False, removes=self._table.removes()))

    def _schema_drift(self) -> CheckResult:
        columns = self._table.columns()
        if not columns:
            return evaluate.schema_drift([f"the table {self._config.sink.table} does not exist"], [], [])
        there, positions = [column.name for column in columns], [name for name, _ in POSITION_COLUMN_TYPES]
        filled = {entry.column_name for entry in self._config.sink.mapping} | {*positions}
        return evaluate.schema_drift(
            [str(fault) for fault in column_faults(self._config, columns)],
            [name for name in there if name not in filled],
            [name for name in positions if name not in there],
        )

    def _inserting(self) -> int:
        confirmed, with_open_chunk = confirmed_rows(self._log, self._names, self._config.sink_leg)
        return with_open_chunk - confirmed
