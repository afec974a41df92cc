"""The reference: what the table must hold, computed anew from the raw records in DuckDB, with the statements of sql/reference.

In: raw frames as batches of FRAME_SCHEMA, in any cut, under the stage configuration that their range was done with. Kept: one row per
record in an engine that spills to disk, with its position, its key and the values it calls for in the plain form (`values`). Out: the
view `expected`.

Positions are single integers, `sequence << 20 | ordinal`, as in `records.position_keys`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import duckdb
import pyarrow as pa

from pipelines.connectors.sql import filled, statement
from pipelines.process.stage_config import StageConfig
from pipelines.process.watermarks import IDLE_RECORDS
from pipelines.proof.verification.values import (
    MACROS,
    Reading,
    duckdb_type,
    is_compared,
    is_sound,
    key_text,
    literal,
    reading,
    takes_null,
)
from pipelines.protocol.bodies import NEVER, NOTHING, Watermarks
from pipelines.protocol.records import MAX_ROW_BYTES
from pipelines.types.columns import ColumnType, parse_type

FRAME_SCHEMA = pa.schema(
    [
        ("position", pa.uint64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("arrival_us", pa.int64()),
        ("value", pa.binary()),
        ("is_oversize", pa.bool_()),
        ("is_past", pa.bool_()),
    ]
)
"""A raw record. `is_oversize`: `value` is only its head. `is_past`: dedup accepted it before it was a dead letter, and does not judge
it."""
BUCKET_FRAMES = 32
"""Raw frames whose rows are summed up together: what a mismatch is narrowed down to before rows are compared."""
BUCKET_BITS = 20 + BUCKET_FRAMES.bit_length() - 1
_MAY_BE_TOO_WIDE = MAX_ROW_BYTES // 8
_MICROSECONDS = parse_type("DateTime64(6)")
_SAMPLED_RECORDS = 20_000
_MOST_SHAPES = 32
Shapes = dict[tuple[str, ...], list[int]]
"""By the path of an object, hashes of lists of keys."""


@dataclass(frozen=True)
class Column:
    """A column that is compared: what it is called in the engine, and in the table, and its type there.

    `former`: what configurations call it besides; rows from position `since` on were made under its own name.
    """

    label: str
    name: str
    type: ColumnType
    has_default: bool
    former: tuple[str, ...] = ()
    since: int = 0


@dataclass(frozen=True)
class Bounds:
    """Positions, inclusive. Records from `first` to `last` are compared; the reference judges copies from `first_judged` on, where nothing
    before tells, or where `accepted_before` tells what was accepted. `before`: the watermarks before all that
    was read.
    """

    first: int
    last: int
    first_judged: int = 0
    before: Watermarks = NOTHING


def compared_columns(config: StageConfig) -> list[Column]:
    """The mapped columns whose values can be compared."""
    targets = [(name, parse_type(kind), has_default) for _, name, kind, has_default in config.mapping]
    return [Column(f"v{place}", *target) for place, target in enumerate(targets) if is_compared(target[1])]


class Reference:
    """One computation over one range; use it once. `columns`: those whose values are kept, of all configurations that are loaded.
    `with_bytes`: a hash of each record's bytes is kept as well, but of records of which only the head is there.

    The engine must spill to disk. Raises duckdb.Error for what no record can cause: a full disk.
    """

    def __init__(self, engine: duckdb.DuckDBPyConnection, columns: Sequence[Column], with_bytes: bool = False) -> None:
        self._engine, self._columns, self._with_bytes = engine, columns, with_bytes
        for macro in MACROS:
            engine.execute(statement(f"reference/{macro}"))
        declared = "".join(f", {column.label} {duckdb_type(column.type)}" for column in columns)
        engine.execute(filled("reference/create_parsed", columns=declared))
        engine.execute("CREATE TABLE letters (position UBIGINT, stage VARCHAR, code VARCHAR)")
        engine.execute("CREATE TABLE dropped (position UBIGINT, why VARCHAR)")
        engine.execute("CREATE TABLE accepted (position UBIGINT)")
        engine.execute("CREATE TABLE accepted_before (position UBIGINT)")
        engine.execute('CREATE TABLE raw_frames (sequence UBIGINT, "partition" INTEGER)')
        engine.execute('CREATE TABLE partitions_before ("partition" INTEGER, newest_us BIGINT, seen BIGINT)')

    def load(self, frames: Iterable[pa.RecordBatch], config: StageConfig) -> None:
        """Reads records of FRAME_SCHEMA that were done under `config`. Memory holds a batch per thread of the engine."""
        batches = iter(frames)
        first = next(batches, None)
        if first is None:
            return
        known = self._known_shapes(first, config)
        reader = pa.RecordBatchReader.from_batches(FRAME_SCHEMA, chain([first], batches))
        self._with_rows("frames", reader, parse_statement(config, self._columns, known, self._with_bytes))

    def _known_shapes(self, records: pa.RecordBatch, config: StageConfig) -> "Shapes":
        """Hashes of lists of keys without a key twice, as a sample has them: a list costs 1 us to look through, and a stream has few."""
        sample = pa.Table.from_batches([records]).slice(0, _SAMPLED_RECORDS)
        known: Shapes = {}
        for parent in _parents(path for name, _ in config.fields for path in _paths(name)):
            statement_of_parent = filled("reference/shapes", path=literal(_json_path(parent)), most=_MOST_SHAPES)
            self._engine.register("frames", sample)
            known[parent] = [shape for (shape,) in self._engine.execute(statement_of_parent).fetchall()]
            self._engine.unregister("frames")
        return known

    def add_frames(self, partitions: Mapping[int, int | None]) -> None:
        """The Kafka partition of each raw frame by its sequence; None where its records entered again. Frames without records count."""
        rows = {"sequence": pa.array(partitions.keys(), pa.uint64()), "partition": pa.array(partitions.values(), pa.int32())}
        self._insert("raw_frames", pa.table(rows))

    def add_letters(self, letters: pa.Table) -> None:
        """Dead letters: `position`, `stage`, `code`."""
        self._insert("letters", letters.select(["position", "stage", "code"]))

    def add_accepted_before(self, positions: pa.Table) -> None:
        """`position` of the records before the judged ones that are known to be accepted; no `is_past` among them counts."""
        self._insert("accepted_before", positions.select(["position"]))

    def _insert(self, table: str, rows: pa.Table) -> None:
        self._with_rows("_tf_rows", rows, f"INSERT INTO {table} FROM _tf_rows")

    def _with_rows(self, name: str, rows: pa.Table | pa.RecordBatchReader, sql: str) -> None:
        self._engine.register(name, rows)
        try:
            self._engine.execute(sql)
        finally:
            self._engine.unregister(name)

    def judge(self, config: StageConfig, bounds: Bounds) -> None:
        """Finds the copies, by the key and window of `config`, once all is loaded; makes the view `expected`.

        No other means tells on which record a stage of ours ends: such a letter is believed.
        """
        self._engine.execute(statement("reference/believe_internal_errors"))
        if config.dedup_time_field:
            self._mark_late(config, bounds.before)
        if config.dedup_key:
            self._find_copies(config, bounds)
        self._engine.execute(self._expected(config, bounds))

    def _mark_late(self, config: StageConfig, before: Watermarks) -> None:
        partitions = [(partition, _known(newest), seen) for partition, (newest, seen) in before.partitions.items()]
        columns = zip(*partitions, strict=True) if partitions else ((), (), ())
        types = {"partition": pa.int32(), "newest_us": pa.int64(), "seen": pa.int64()}
        rows = {name: pa.array(column, kind) for (name, kind), column in zip(types.items(), columns, strict=True)}
        self._insert("partitions_before", pa.table(rows))
        numbers = {
            "records": before.records,
            "combined_us": "NULL" if _known(before.combined_us) is None else before.combined_us,
            "window_us": config.dedup_window_us,
            "idle_records": IDLE_RECORDS,
        }
        self._engine.execute(filled("reference/watermarks", **numbers))
        self._engine.execute(filled("reference/mark_late", lateness_us=config.dedup_lateness_us))

    def _find_copies(self, config: StageConfig, bounds: Bounds) -> None:
        numbers = {"first": bounds.first, "first_judged": bounds.first_judged, "window_us": config.dedup_window_us}
        in_windows = "accepted_in_event_windows" if config.dedup_time_field else "accepted_in_windows"
        for name in ("judged", "seeds", "contested", "accepted_in_one_window", in_windows, "dropped", "unsure"):
            self._engine.execute(filled(f"reference/{name}", **numbers))

    def _expected(self, config: StageConfig, bounds: Bounds) -> str:
        listed = "".join(f", {column.label}" for column in self._columns)
        listed += f', encode({literal(config.topic)}) AS topic, "partition", "offset", arrival_us'
        return filled("reference/expected", bucket_bits=BUCKET_BITS, columns=listed, first=bounds.first, last=bounds.last)


@dataclass(frozen=True)
class _Field:
    """A field of the stage configuration. `kind` and `text` are its columns below `parse.sql`'s inner query."""

    place: int
    name: str
    source: str
    paths: tuple[tuple[str, ...], ...]
    unit: str

    @property
    def kind(self) -> str:
        return f"k{self.place}"

    @property
    def text(self) -> str:
        return f"t{self.place}"

    @property
    def is_sound(self) -> str:
        return is_sound(self.source, self.kind, self.text)


def parse_statement(config: StageConfig, columns: Iterable[Column], known: Shapes | None = None, with_bytes: bool = False) -> str:
    """`parse.sql` for the fields and the mapping of `config`, with the values of those of its columns that are among `columns`."""
    fields = [_Field(place, name, source, _paths(name), config.unit_of(name)) for place, (name, source) in enumerate(config.fields)]
    by_name = {field.name: field for field in fields}
    paths = [path for field in fields for path in field.paths]
    mapped = {name: (by_name[source], parse_type(kind), has_default) for source, name, kind, has_default in config.mapping}
    readings = {name: reading(field.source, kind, field.kind, field.text, unit=field.unit) for name, (field, kind, _) in mapped.items()}
    key = [by_name[name] for name in config.dedup_key]
    at = _time(by_name[config.dedup_time_field]) if config.dedup_time_field else "arrival_us"
    is_timed = f"coalesce(({at}) - arrival_us <= {config.dedup_max_ahead_us}, false)"
    is_keyed = [f"{field.kind} <> 'NULL'" for field in key] + ([is_timed] if config.dedup_time_field else [])
    return filled(
        "reference/parse",
        wide_bytes=_MAY_BE_TOO_WIDE,
        bytes="CASE WHEN NOT is_oversize THEN hash(value) END" if with_bytes else "NULL",
        paths=", ".join(literal(_json_path(path)) for path in paths),
        keys_are_distinct=" AND ".join(_keys_are_distinct(parent, (known or {}).get(parent, [])) for parent in _parents(paths)),
        kinds_and_texts=", ".join(_kinds_and_texts(fields)),
        is_read=" AND ".join(["is_object", *(field.is_sound for field in fields)]),
        is_keyed=" AND ".join(is_keyed or ["true"]),
        is_mapped=" AND ".join(_fits(*mapped[name], readings[name]) for name in mapped) or "true",
        key=_key(key),
        at=at,
        values="".join(f", {_value(column, readings)} AS {column.label}" for column in columns),
    )


def _known(time_us: int) -> int | None:
    return None if time_us == NEVER else time_us


def _paths(name: str) -> tuple[tuple[str, ...], ...]:
    """The literal key first, then, for a dotted name, the nested one."""
    segments = tuple(name.split("."))
    return ((name,), segments) if len(segments) > 1 and all(segments) else ((name,),)


def _parents(paths: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The objects in which no key may stand twice: the record itself, and those on a field's path."""
    return sorted({path[:depth] for path in paths for depth in range(len(path))})


def _json_path(path: tuple[str, ...]) -> str:
    return "$" + "".join(f'."{segment}"' for segment in path)


def _keys_are_distinct(parent: tuple[str, ...], known: Sequence[int]) -> str:
    keys = f"json_keys(document, {literal(_json_path(parent))})" if parent else "json_keys(document)"
    closely = f"coalesce(list_unique({keys}) = len({keys}), true)"
    if not known:
        return closely
    return f"CASE WHEN hash({keys}) IN ({', '.join(map(str, known))}) THEN true ELSE {closely} END"


def _kinds_and_texts(fields: Iterable[_Field]) -> Iterable[str]:
    """Lists count from 1."""
    first = 1
    for field in fields:
        place = str(first)
        if len(field.paths) > 1:
            place = f"CASE WHEN coalesce(kinds[{first}], 'NULL') <> 'NULL' THEN {first} ELSE {first + 1} END"
        yield f"coalesce(kinds[{place}], 'NULL') AS {field.kind}"
        yield f"texts[{place}] AS {field.text}"
        first += len(field.paths)


def _fits(field: _Field, kind: ColumnType, has_default: bool, of_column: Reading) -> str:
    when_null = "true" if takes_null(kind, has_default) else "false"
    return f"CASE WHEN {field.kind} = 'NULL' THEN {when_null} ELSE {of_column.fits} END"


def _value(column: Column, readings: dict[str, Reading]) -> str:
    return next((readings[name].value for name in (column.name, *column.former) if name in readings), "NULL")


def _key(fields: Sequence[_Field]) -> str:
    """128 bits of the key, so that a key of any length takes as much room. In a key of several fields each says where it ends."""
    texts = [key_text(field.source, field.text) for field in fields]
    if not texts:
        return "NULL"
    parts = texts if len(texts) == 1 else [f"length({text}) || ':' || {text}" for text in texts]
    return f"md5_number({' || '.join(parts)})"


def _time(field: _Field) -> str:
    """The event's own time in microseconds, NULL where it is none."""
    return reading(field.source, _MICROSECONDS, field.kind, field.text, unit=field.unit).value
