"""The stages of the protocol's model, and its frames: they refuse one value, drop one behind dedup, and write on the others."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.computed import stored
from pipelines.process.dedup import KEY_COLUMNS
from pipelines.process.program import Program
from pipelines.process.steps import Context, Step
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.filter import FILTERED, Filter
from pipelines.process.steps.join import IS_RIGHT_COLUMN, Join, SideOfRecords
from pipelines.process.steps.mapping import MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.process.watermarks import TIME_COLUMN
from pipelines.protocol.records import EMIT_FIELD, POSITION_COLUMNS, REJECTED_SCHEMA, StageOutput, decode_frame
from pipelines.protocol.topology import LegId
from support.programs import first_of, program

BUCKETS = 3
MORE = b" and more"
"""What a column holds that only some configurations map."""
UNWANTED = b"odd"
"""The value that a step behind dedup drops."""
LEFT_OUT = b"good"
"""The value that the second sink does not take."""
SECOND = LegId("sink", "second")
WORN = b"worn"
"""The kind of a left record that a step behind a join rejects."""
POISON, VENOM = b"poison", b"venom"
"""Values over which the modelled parse, and the modelled transform, end with an exception, whatever stands beside them."""


def configuration(refused: str, window_us: int, has_more: bool = False, lateness_us: int | None = None) -> Program:
    """Stages that refuse records with the value `refused`, write its name behind the others, and drop copies within a window, if any.

    Where copies are dropped, UNWANTED is dropped, too, if it is no copy.

    `has_more`: with a column more. `lateness_us`: the window is measured on the time that stands in the values, with this lateness.
    """
    columns = [("v", "value", "String", False), *([("v", "more", "String", False)] if has_more else [])]
    timed = {} if lateness_us is None else {"time_field": "t", "lateness_us": lateness_us}
    wanted = Filter(stored(f"v <> '{UNWANTED.decode()}'", {"v": "string"}, "sql", "bool"))
    between = [first_of("v", window_us, **timed), wanted] if window_us else []
    return program([(refused, "string"), ("v", "string"), ("t", "int")], columns, *between, buckets=BUCKETS)


def of_sources(config: Program, sources: Sequence[str]) -> Program:
    """`config`, whose records come from these sources; each has the same steps."""
    return replace(config, lanes=tuple(replace(config.lanes[0], source=source) for source in sources))


def of_sinks(config: Program, has_two: bool) -> Program:
    """`config`, with a second table that takes all records but LEFT_OUT."""
    if not has_two:
        return config
    first = config.tables.tables[0]
    field = first.columns[0].field
    when = stored(f"{field} <> '{LEFT_OUT.decode()}'", {field: "string"}, "sql", "bool")
    second = replace(first, columns=first.columns[:1], table="second", leg=SECOND, when=when)
    return replace(config, shared=(*config.shared[:-1], MapToTables((first, second))))


def takes(leg: str, value: bytes, sink: str | None) -> bool:
    """Whether a sink takes a record of this value; `sink`: the one that has refused it before."""
    return sink in (None, leg) and (leg != SECOND or kind(value) != LEFT_OUT)


def modelled(config: Program) -> Program:
    """`config` with the model's steps in place of the real ones."""
    kinds = {Parse: ModelParse, Dedup: ModelDedup, Join: ModelJoin, Filter: ModelFilter, MapToTables: ModelMap}

    def of_model(steps: Iterable[Step]) -> tuple[Step, ...]:
        return tuple(kinds[type(step)](*(getattr(step, one.name) for one in fields(step))) for step in steps)

    lanes = tuple(replace(lane, steps=of_model(lane.steps)) for lane in config.lanes)
    return replace(config, lanes=lanes, shared=of_model(config.shared))


def apply(value: bytes, config: Program) -> bytes | None:
    """What the modelled stages make of a value: None is refused."""
    refused = config.lanes[0].parse.fields[0][0].encode()
    return (
        None if kind(value) in (refused, POISON, VENOM) else value + b" not " + refused + (MORE if "more" in config.insert_columns else b"")
    )


def is_then_dropped(value: bytes, config: Program) -> bool:
    """Whether the modelled stages drop a value behind dedup."""
    return bool(config.dedup.key) and kind(value) == UNWANTED


class ModelParse(Parse):
    def apply(self, context: Context, table: pa.Table) -> StageOutput:
        end_at(POISON, table)
        refused = self.fields[0][0].encode()
        for name in [name for name in table.column_names if f"_tf_{name}" in context.carried]:
            table = table.append_column(f"_tf_{name}", table[name])
        fits = pa.array([kind(value) != refused for value in table["value"].to_pylist()], pa.bool_())
        rejected = refusals(table.filter(pc.invert(fits)), "parse", "invalid_json")
        kept = table.filter(fits)
        value = pc.binary_join_element_wise(kept["value"], pa.scalar(refused, pa.binary()), pa.scalar(b" not ", pa.binary()))
        return StageOutput(kept.set_column(kept.schema.get_field_index("value"), "value", value), rejected)


def refusals(rows: pa.Table, stage: str, code: str) -> pa.Table:
    """The rejections of all these rows."""
    fixed = [pa.array([text] * rows.num_rows, pa.string()) for text in (stage, code, None, "refused")]
    return pa.table([rows["_tf_sequence"], rows["_tf_ordinal"], *fixed], schema=REJECTED_SCHEMA)


def values_of(table: pa.Table) -> list[bytes]:
    """The values, which a join has as text."""
    return table["value"].cast(pa.binary()).to_pylist()


def end_at(value: bytes, table: pa.Table) -> None:
    if value in {kind(each) for each in values_of(table)}:
        raise ZeroDivisionError(value)


def hashes(keys: Iterable[bytes]) -> dict[str, pa.Array]:
    """KEY_COLUMNS of these keys."""
    digests = [hashlib.md5(key).digest() for key in keys]
    halves = zip(KEY_COLUMNS, (slice(8), slice(8, 16)), strict=True)
    return {name: pa.array([int.from_bytes(digest[half], "big") for digest in digests], pa.uint64()) for name, half in halves}


class ModelDedup(Dedup):
    def apply(self, context: Context, table: pa.Table) -> StageOutput:
        """The key is the kind of the value that was produced, whatever the configuration made of it."""
        values = table["value"].to_pylist()
        for name, column in hashes(map(kind, values)).items():
            table = table.append_column(name, column)
        if self.time_field:
            table = table.append_column(TIME_COLUMN, pa.array([time_us(value) for value in values], pa.int64()))
        return StageOutput(table, REJECTED_SCHEMA.empty_table())


class ModelSide(SideOfRecords):
    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        """The key stands in the value, or is null."""
        keys = [key_of(value) for value in rows["value"].to_pylist()]
        has_key = pa.array([key is not None for key in keys], pa.bool_())
        kept = rows.filter(has_key)
        columns = {one.name: kept["value"].cast(pa.string()) for one in self.side.fields}
        columns |= {name: kept[name] for name in kept.column_names if name.startswith("_tf_")}
        columns |= hashes(key for key in keys if key is not None)
        columns[IS_RIGHT_COLUMN] = pa.array([self.is_right] * kept.num_rows, pa.bool_())
        if self.side.time_field:
            columns[TIME_COLUMN] = pa.array([own_time_us(value) for value in kept["value"].to_pylist()], pa.int64())
        return StageOutput(pa.table(columns), refusals(rows.filter(pc.invert(has_key)), self.stage, "null_key"))


class ModelJoin(Join):
    def of_source(self, source: str) -> SideOfRecords:
        end = super().of_source(source)
        return ModelSide(end.side, end.is_right)


class ModelFilter(Filter):
    def apply(self, context: Context, table: pa.Table) -> StageOutput:
        stays = pa.array([kind(value) != UNWANTED for value in values_of(table)], pa.bool_())
        kept = table.filter(stays)
        return StageOutput(kept, REJECTED_SCHEMA.empty_table(), {FILTERED.total: table.num_rows - kept.num_rows})


def produced(value: bytes) -> bytes:
    return value.split(b" not ")[0]


def kind(value: bytes) -> bytes:
    """The value that was produced without its time, its key and its number, if it has them."""
    return produced(value).split(b"@")[0].split(b"/")[0]


def key_of(value: bytes) -> bytes | None:
    """The key of a record of a join, which stands behind its kind."""
    _, *rest = produced(value).split(b"/")
    return rest[0] if rest else None


def own_time_us(value: bytes) -> int:
    """The own time of a record of a join, by its number: mostly later than that of the record before."""
    number = int(produced(value).split(b"/")[2])
    return 10_000_000 + number * 400_000 + (number * 7919 % 5 - 2) * 600_000


def joined_text(left: bytes, right: bytes | None) -> bytes:
    """What a table holds of a left record and the right one that it has met."""
    return left + (b" alone" if right is None else b" with " + right)


def time_us(value: bytes) -> int:
    """The event's own time; 0 of a value without one."""
    return int(produced(value).partition(b"@")[2] or 0) * 1_000_000


class ModelMap(MapToTables):
    def apply(self, context: Context, table: pa.Table) -> StageOutput:
        end_at(VENOM, table)
        table, rejected = _joined(table) if "other" in table.column_names else (table, REJECTED_SCHEMA.empty_table())
        keep = [name for name in context.carried if name in table.column_names]
        emit = pa.nulls(table.num_rows, EMIT_FIELD.type).fill_null(0)
        columns = [emit if name == EMIT_FIELD.name else table[name] for name in POSITION_COLUMNS]
        columns += [table[name] for name in keep]
        more = {column.name: pa.array([MORE] * table.num_rows, pa.binary()) for column in self.tables[0].columns if column.name == "more"}
        other = {column.name: table["other"] for column in self.tables[0].columns if column.name == "other"}
        mapped = {"value": table["value"], **other, **more}
        if self.routes:
            mapped = {self._label(0, name): column for name, column in mapped.items()} | {self._label(1, "value"): table["value"]}
            sinks = table["_tf_sink"].to_pylist() if "_tf_sink" in table.column_names else [None] * table.num_rows
            routed = [*zip(table["value"].to_pylist(), sinks, strict=True)]
            for number, one in enumerate(self.routed):
                mapped[self._label(number)] = pa.array([takes(one.leg, value, sink) for value, sink in routed], pa.bool_())
        names = [*mapped, *POSITION_COLUMNS, *keep]
        return StageOutput(pa.table([*mapped.values(), *columns], names=names), rejected)


def _joined(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(rows of a join with what the tables hold of both records as their value, rejections of those that are worn)."""
    is_worn = pa.array([kind(value) == WORN for value in values_of(table)], pa.bool_())
    kept = table.filter(pc.invert(is_worn))
    pairs = zip(values_of(kept), kept["other"].cast(pa.binary()).to_pylist(), strict=True)
    texts = pa.array([joined_text(*pair) for pair in pairs], pa.binary())
    kept = kept.set_column(kept.column_names.index("value"), "value", texts)
    return kept, refusals(table.filter(is_worn), "transform", "worn")


def uncompressed(table: pa.Table) -> bytes:
    """A frame without lz4, which Arrow runs on a thread pool: most of the time of a history of small frames."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    payload: bytes = sink.getvalue().to_pybytes()
    return payload


@lru_cache(maxsize=500)
def stored_rows(payload: bytes) -> pa.Table:
    return decode_frame(payload)
