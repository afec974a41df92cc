"""What a plan must be finished with: the part of the configuration that decides what becomes of a record, and its version.

It is published once per version under `ledger.config.<version>`; plans name the version, so a range that one configuration began is
never finished by another. Connections and secrets are not part of it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import Table
from pipelines.engine.connections import Connections
from pipelines.errors import ConflictError, HaltError
from pipelines.process.mapping.step import TargetColumn
from pipelines.process.parse.step import ParsedField
from pipelines.process.watermarks import Clocks
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import Names
from pipelines.protocol.records import POSITION_COLUMNS
from pipelines.types.columns import parse_type, quote_identifier

RELEASE = 2
"""Meaning of the stages: raised when a release would give other rows for the same records and configuration."""


@dataclass(frozen=True)
class StageConfig:
    """Fields to read, columns to write. `mapping` rows are (field, column, type, whether the table gives a DEFAULT).

    `dedup_key`: the fields of the key, none without dedup; `dedup_window_us` in microseconds; `dedup_keeps`: dropped copies go to a stream.
    `dedup_time_field`: the field that the window is measured on, none for the arrival; `dedup_lateness_us` and `dedup_max_ahead_us` in
    microseconds. `units`: (field, s, ms, us or ns) of the fields that count so much since 1970.
    """

    release: int
    source: str
    topic: str
    buckets: int
    fields: tuple[tuple[str, str], ...]
    mapping: tuple[tuple[str, str, str, bool], ...]
    database: str
    table: str
    position_columns: tuple[str, ...]
    dedup_key: tuple[str, ...] = ()
    dedup_window_us: int = 0
    dedup_keeps: bool = False
    dedup_time_field: str = ""
    dedup_lateness_us: int = 0
    dedup_max_ahead_us: int = 0
    units: tuple[tuple[str, str], ...] = ()

    def encode(self) -> bytes:
        record = asdict(self)
        if not self.dedup_key:
            # As written before dedup existed: the version of such a configuration stays what it was.
            del record["dedup_key"], record["dedup_window_us"]
        if not self.dedup_keeps:
            del record["dedup_keeps"]
        if not self.dedup_time_field:
            del record["dedup_time_field"], record["dedup_lateness_us"], record["dedup_max_ahead_us"]
        if not self.units:
            del record["units"]
        return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def version(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()[:16]

    @property
    def parsed_fields(self) -> list[ParsedField]:
        return [ParsedField(name, kind) for name, kind in self.fields]

    @cached_property
    def targets(self) -> list[TargetColumn]:
        return [
            TargetColumn(source, name, parse_type(kind), has_default, self.unit_of(source))
            for source, name, kind, has_default in self.mapping
        ]

    def unit_of(self, field: str) -> str:
        """Of its numbers since 1970; empty without one."""
        return dict(self.units).get(field, "")

    def dedup_clock_us(self, done: Clocks) -> int:
        """What windows are over by, as of a `done` of the process leg: the arrival, or the combined watermark, NEVER before the first."""
        if not self.dedup_time_field:
            return done.clock_us
        newest = done.watermarks.combined_us
        return newest if newest == NEVER else newest - self.dedup_lateness_us

    def dedup_expired_us(self, done: Clocks) -> int:
        """Store entries of this time or earlier are over."""
        clock = self.dedup_clock_us(done)
        return clock if clock == NEVER else clock - self.dedup_window_us

    @property
    def widening(self) -> int:
        """How many columns a field may be written to: rows may take so many times what their records took."""
        return max(Counter(source for source, *_ in self.mapping).values(), default=1)

    @property
    def insert_columns(self) -> list[str]:
        return [name for _, name, _, _ in self.mapping] + list(self.position_columns)

    @property
    def full_table(self) -> str:
        return f"{self.database}.{self.table}"


def stage_config(config: PipelineConfig, table: Table) -> StageConfig:
    """The stages of `config` for the table as it is now: nullness and DEFAULTs are the table's, types the mapping's.

    A column that the mapping declares by its base type may be Nullable in the table (GlassFlow's files do so).
    """
    source = config.sources[0]
    actual = {column.name: column for column in table.columns}
    mapping = []
    for entry in config.sink.mapping:
        column = actual[entry.column_name]
        kind = str(parse_type(entry.column_type))
        if column.type in (f"Nullable({kind})", f"LowCardinality(Nullable({kind}))"):
            kind = column.type
        mapping.append((entry.name, entry.column_name, kind, column.default_kind == "DEFAULT"))
    return StageConfig(
        release=RELEASE,
        source=source.source_id,
        topic=source.topic,
        buckets=config.buckets,
        fields=tuple((field.name, field.type) for field in source.schema_fields),
        mapping=tuple(mapping),
        database=table.database,
        table=table.name,
        position_columns=tuple(name for name in POSITION_COLUMNS if name in actual),
        units=tuple((field.name, field.unit) for field in source.schema_fields if field.unit),
        **_dedup(config),
    )


def _dedup(config: PipelineConfig) -> dict[str, Any]:
    found = [transform.config for transform in config.transforms if transform.type == "dedup"]
    if not found:
        return {}
    dedup = found[0]
    return {
        "dedup_key": dedup.key,
        "dedup_window_us": dedup.time_window // timedelta(microseconds=1),
        "dedup_keeps": dedup.keep_duplicates,
        "dedup_time_field": dedup.time_field or "",
        "dedup_lateness_us": dedup.allowed_lateness // timedelta(microseconds=1),
        "dedup_max_ahead_us": dedup.max_ahead // timedelta(microseconds=1),
    }


def store(log: Log, names: Names, config: StageConfig) -> str:
    """Publishes the configuration under its version, once; returns the version."""
    subject = names.config(config.version)
    if log.last(names.stream("ledger"), subject) is None:
        try:
            log.publish(subject, config.encode(), {}, 0)
        except ConflictError:
            # Another start stored the same bytes between our look and our write.
            return config.version
    return config.version


def load(log: Log, names: Names, version: str) -> StageConfig:
    """The configuration that a plan or a frame names. Raises HaltError when it is gone, when it is not what was stored under that name,
    or when this release would give it another meaning.
    """
    message = log.last(names.stream("ledger"), names.config(version))
    if message is None:
        raise HaltError(f"reading configuration {version}: it is not in {names.stream('ledger')}; restore the ledger stream from a backup")
    if hashlib.sha256(message.payload).hexdigest()[:16] != version:
        raise HaltError(
            f"reading configuration {version}: its content in {names.stream('ledger')} has another version; only Tallyflow may write to "
            "its streams: restore the ledger stream from a backup"
        )
    try:
        record = json.loads(message.payload)
        if record["release"] != RELEASE:
            raise HaltError(
                f"configuration {version} was written by release {record['release']} of the stages, this is {RELEASE}: "
                "start the older version once with --until-caught-up, then this one"
            )
        return _decoded(record)
    except (KeyError, TypeError, ValueError) as error:
        raise HaltError(f"reading configuration {version}: {error}; only Tallyflow may write to its streams") from error


def config_of(connections: Connections, version: str) -> StageConfig:
    """Return `load`'s configuration of a version, read from the ledger once for these connections."""
    return connections.keep(("stage config", version), lambda: load(connections.log, connections.names, version))


def _decoded(record: Mapping[str, Any]) -> StageConfig:
    """Raises ValueError for names and types that may not be placed in a statement: whoever writes to the ledger decides no INSERT."""
    found = StageConfig(
        **{
            **record,
            "fields": _tuples(record["fields"]),
            "mapping": _tuples(record["mapping"]),
            "position_columns": tuple(record["position_columns"]),
            "dedup_key": tuple(record.get("dedup_key", ())),
            "units": _tuples(record.get("units", ())),
        }
    )
    for name in (found.database, found.table, *found.insert_columns):
        quote_identifier(name)
    for _, _, kind, _ in found.mapping:
        parse_type(kind)
    return found


def _tuples(rows: Sequence[Sequence[object]]) -> tuple[tuple[object, ...], ...]:
    return tuple(tuple(row) for row in rows)
