"""The reference of each step: a statement of sql/reference/steps, found by the step's name, applied to that of the step before.

A statement selects from `$rows`: for each record its position, its arrival, its fields as `json_type` and text, `stage`, the stage that
rejects it so far (NULL: none), `key`, and `at_us`. It returns the same columns, and may add some. Its other parameters are the step's
configuration: `$limit` is a literal; for a `field` that is read there are also `$field_kind` and `$field_text`. The parameters of our own
steps are made here, from types and names. No output of the steps is used.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from pipelines.config.sinks import ERROR_FIELD, REFUSING_SINK_FIELD
from pipelines.connectors.sql import filled
from pipelines.functions.spec import HOST_CODES
from pipelines.process.program import Lane, Program
from pipelines.process.steps import Step
from pipelines.proof.verification import record_columns
from pipelines.proof.verification.compared import Column, widened, within
from pipelines.proof.verification.functions import argument, name_of
from pipelines.proof.verification.tables import join_of
from pipelines.proof.verification.values import (
    Reading,
    field_value,
    is_finite,
    is_sound,
    json_text,
    key_text,
    kind_and_text,
    literal,
    reading,
    takes_null,
)
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES
from pipelines.protocol.topology import SINK
from pipelines.types.columns import parse_type, value_type
from pipelines.types.fields import SOURCE_TYPES

_MICROSECONDS = parse_type("DateTime64(6)")
Shapes = dict[tuple[str, ...], list[int]]
"""Hashes of lists of keys, by the path of an object."""


@dataclass(frozen=True)
class Field:
    """A field of a record. `kind` and `text` are its columns in `$rows`; `beside`: SQL of both, if it is read beside the JSON."""

    index: int
    name: str
    source: str
    beside: tuple[str, str] | None = None

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The literal key first, then, for a dotted name, the nested one; none for a field that is not read from the JSON."""
        if self.beside:
            return ()
        segments = tuple(self.name.split("."))
        return ((self.name,), segments) if len(segments) > 1 and all(segments) else ((self.name,),)

    @property
    def kind(self) -> str:
        return f"k{self.index}"

    @property
    def text(self) -> str:
        return f"t{self.index}"


Stated = tuple[str, dict[str, Field]]
"""A statement of rows, and their fields by name."""


@dataclass(frozen=True)
class Wanted:
    """The contents of a computation beside positions: `columns`, and, `with_bytes`, a hash of each record.

    `known`: shapes of sound objects. `ended`: SQL of whether a stage has ended on a record, by its `position`. `leg`: the sink leg whose
    rows are wanted. `source` and `topic`: of the records.
    `makes_several`: as of the program. `wide_bytes`: the size of a record from which on its row may be too large for a frame.
    """

    columns: Sequence[Column]
    known: Shapes
    with_bytes: bool = False
    ended: str = "false"
    leg: str = SINK
    source: str = ""
    topic: str = ""
    makes_several: bool = False
    wide_bytes: int = 0


def statement_of(program: Program, wanted: Wanted) -> str:
    """Return the statement that makes rows of `parsed` of records, step by step in the order of `program`."""
    indexes = count(max(len(fields_of(lane)) for lane in program.lanes))
    lanes = through_lanes(program, wanted, indexes)
    rows, fields = lanes[0] if len(lanes) == 1 else _union(lanes, indexes)
    return rows_of_parsed(wanted, through(program.shared, fields, rows, replace(wanted, leg=program.leg), indexes)[0])


def rows_of_parsed(wanted: Wanted, rows: str) -> str:
    """Return the statement that adds rows that the mapping has made to `parsed`."""
    return filled("reference/load", labels="".join(f", {column.label}" for column in wanted.columns), rows=rows)


def through_lanes(program: Program, wanted: Wanted, indexes: Iterator[int]) -> list[Stated]:
    """Return the rows of each source behind its own steps, in the order of the sources."""
    lanes, wide_bytes = [], MAX_FRAME_BYTES // (4 * sum(len(table.columns) for table in program.tables.tables))
    for lane in program.lanes:
        own = "" if len(program.lanes) == 1 else f" WHERE source = {literal(lane.source)}"
        of_lane = replace(wanted, source=lane.source, topic=lane.topic, makes_several=program.makes_several, wide_bytes=wide_bytes)
        lanes.append(through(lane.steps, fields_of(lane), f"SELECT * FROM frames{own}", of_lane, indexes))  # noqa: S608
    return lanes


def through(steps: Iterable[Step], fields: dict[str, Field], rows: str, wanted: Wanted, indexes: Iterator[int]) -> Stated:
    """Return the rows behind steps, from those before them."""
    has_several = False
    for step in steps:
        made: dict[str, Field] = {}
        if getattr(step, "routes", False):
            rows = _routed(step, fields, rows)
        if step.name == "compute":
            made, parameters = _compute(step, fields, indexes)
        elif step.name in ("python", "pyspark"):
            made, parameters = _python(step, fields, indexes)
        elif step.name == "lookup":
            made, parameters = _lookup(step, fields, indexes)
        else:
            parameters = _PARAMETERS.get(step.name, _literals)(step, fields, wanted)
        statement = "reference/rows_of_function" if step.makes_several else f"reference/steps/{step.name}"
        rows = filled(statement, **{**parameters, "rows": rows})
        has_several |= step.makes_several
        if has_several:
            rows = filled("reference/whole_records", rows=rows)
        if made:
            rows = f"SELECT * REPLACE (true AS is_wide) FROM ({rows})"  # noqa: S608  what a step makes may be of any size
        fields = {**(fields if getattr(step, "keeps_fields", True) else {}), **made}
    return rows, fields


def _union(lanes: Sequence[Stated], indexes: Iterator[int]) -> Stated:
    """Return the rows of all sources, with the fields that all have as one type."""
    first, *others = (fields for _, fields in lanes)
    names = [name for name, field in first.items() if all(name in one and _is_same(one[name], field) for one in others)]
    together = {name: Field(next(indexes), name, first[name].source) for name in names}
    selected = []
    for rows, fields in lanes:
        pairs = [(fields[name], field) for name, field in together.items()]
        columns = "".join(f", {own.kind} AS {field.kind}, {own.text} AS {field.text}" for own, field in pairs)
        selected.append(filled("reference/of_source", columns=columns, rows=rows))
    return " UNION ALL ".join(selected), together


def _is_same(one: Field, other: Field) -> bool:
    """Return whether two fields are read alike; `int` and `int64` are."""
    return SOURCE_TYPES.get(one.source, one.source) == SOURCE_TYPES.get(other.source, other.source)


def fields_of(lane: Lane) -> dict[str, Field]:
    """Return the fields of a source's records."""
    fields = [Field(index, name, source) for index, (name, source) in enumerate(lane.parse.fields)]
    for index, column in enumerate(lane.parse.columns, start=len(fields)):
        beside = record_columns.kind_and_text(column, lane.topic)
        fields.append(Field(index, column.name, record_columns.source_of(column.type), beside))
    return {field.name: field for field in fields}


def parents(fields: Iterable[Field]) -> list[tuple[str, ...]]:
    """Return the objects in which no key may occur twice: the record itself, and the objects on a field's path."""
    return sorted({(), *(path[:depth] for field in fields for path in field.paths for depth in range(len(path)))})


def json_path(path: tuple[str, ...]) -> str:
    return "$" + "".join(f'."{segment}"' for segment in path)


def _literals(step: Step, fields: Mapping[str, Field], wanted: Wanted) -> dict[str, str]:
    """Return the configuration of a step, name by name; for a setting that names a field also the columns of its kind and its text."""
    settings = step.encode()
    named = {name: fields[value] for name, value in settings.items() if isinstance(value, str) and value in fields}
    places = {f"{name}_{part}": getattr(field, part) for name, field in named.items() for part in ("kind", "text")}
    return {name: _literal(value) for name, value in settings.items()} | places


def _quoted(field: str) -> str:
    return '"' + field.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return literal(value) if isinstance(value, str) else json.dumps(value)


def _parse(step: Any, fields: Mapping[str, Field], wanted: Wanted) -> dict[str, str]:
    paths = [path for field in fields.values() for path in field.paths]
    distinct = [_keys_are_distinct(parent, wanted.known.get(parent, [])) for parent in parents(fields.values())]
    return {
        "is_ended": wanted.ended,
        "is_lost": "false" if wanted.makes_several else "refused_row > 0",
        "source": literal(wanted.source),
        "topic": literal(wanted.topic),
        "wide_bytes": str(wanted.wide_bytes),
        "size": record_columns.size() if step.columns else "octet_length(value)",
        "bytes": "CASE WHEN NOT is_oversize THEN hash(value) END" if wanted.with_bytes else "NULL",
        "paths": ", ".join(literal(json_path(path)) for path in paths),
        "keys_are_distinct": " AND ".join(distinct),
        "kinds_and_texts": ", ".join(_kinds_and_texts(fields.values())),
        "is_read": " AND ".join(["is_object", *(is_sound(field.source, field.kind, field.text) for field in fields.values())]),
    }


def _dedup(step: Any, fields: Mapping[str, Field], wanted: Wanted) -> dict[str, str]:
    key = [fields[name] for name in step.key]
    at, is_timed = time_of(step, step.max_ahead_us, fields)
    return {"is_keyed": f"{is_keyed(key)} AND {is_timed}", "key": key_of(key), "at": at}


def is_keyed(key: Iterable[Field]) -> str:
    """Return whether no field of a key is null."""
    return " AND ".join(f"{field.kind} <> 'NULL'" for field in key)


def time_of(step: Any, max_ahead_us: int, fields: Mapping[str, Field]) -> tuple[str, str]:
    """Return (the time by which windows go, in microseconds, NULL for a record without one, whether a record's time is valid)."""
    if not step.time_field:
        return "arrival_us", "true"
    field = fields[step.time_field]
    at = reading(field.source, _MICROSECONDS, field.kind, field.text, unit=step.time_unit).value
    return at, f"coalesce(({at}) - arrival_us <= {max_ahead_us}, false)"


def _filter(step: Any, fields: Mapping[str, Field], wanted: Wanted) -> dict[str, str]:
    is_expr = step.condition.language == "expr"
    return {
        "tried": step.condition.expression.tried,
        "or_is_nil": " OR tried.v IS NULL" if is_expr else "",
        "inputs": _inputs(step.fields_read(), fields),
    }


def _compute(step: Any, fields: Mapping[str, Field], indexes: Iterator[int]) -> tuple[dict[str, Field], dict[str, str]]:
    made = {one.name: Field(next(indexes), one.name, record_columns.source_of(one.value.type)) for one in step.outputs}
    tried = {field: f"tried_{field.index}.v" for field in made.values()}
    failed = [f"tried_{field.index} IS NULL OR NOT {is_finite(field.source, value)}" for field, value in tried.items()]
    parts = [(field, kind_and_text(field.source, value)) for field, value in tried.items()]
    expressions = zip(made.values(), step.outputs, strict=True)
    return made, {
        "is_failed": " OR ".join(failed),
        "kinds_and_texts": "".join(f", {kind} AS {field.kind}, {text} AS {field.text}" for field, (kind, text) in parts),
        "tried": "".join(f", {one.value.expression.tried} AS tried_{field.index}" for field, one in expressions),
        "inputs": _inputs(step.fields_read(), fields),
    }


def _python(step: Any, fields: Mapping[str, Field], indexes: Iterator[int]) -> tuple[dict[str, Field], dict[str, str]]:
    made = {name: Field(next(indexes), name, record_columns.source_of(kind)) for name, kind in step.outputs}
    parts = [(field, kind_and_text(field.source, f"made.v{index}")) for index, field in enumerate(made.values())]
    return made, {
        "kinds_and_texts": "".join(f", {kind} AS {field.kind}, {text} AS {field.text}" for field, (kind, text) in parts),
        "function": name_of(step.called),
        "argument": argument([_quoted(name) for name, _ in step.inputs]),
        "codes": trusted_codes(),
        "inputs": _inputs(step.fields_read(), fields),
    }


def _lookup(step: Any, fields: Mapping[str, Field], indexes: Iterator[int]) -> tuple[dict[str, Field], dict[str, str]]:
    made = {one.field: Field(next(indexes), one.field, record_columns.source_of(one.type)) for one in step.fields}
    columns = zip(made.values(), step.fields, strict=True)
    parts = [(field, kind_and_text(field.source, f"found.{_quoted(f'value.{one.column}')}")) for field, one in columns]
    return made, {
        **join_of(step, _quoted),
        "kinds_and_texts": "".join(f", {kind} AS {field.kind}, {text} AS {field.text}" for field, (kind, text) in parts),
        "inputs": _inputs(step.fields_read(), fields),
    }


def trusted_codes() -> str:
    """Return the codes of dead letters of which no source but the stage itself shows that they are right, as SQL."""
    return ", ".join(literal(code) for code in ("internal_error", *sorted(HOST_CODES)))


def _inputs(names: Iterable[str], fields: Mapping[str, Field]) -> str:
    """Return the fields under their names, as expressions read them; NULL in a record that is rejected already."""
    values = {name: field_value(fields[name].source, f"record.{fields[name].kind}", f"record.{fields[name].text}") for name in names}
    return "".join(f", CASE WHEN record.stage IS NULL THEN {value} END AS {_quoted(name)}" for name, value in sorted(values.items()))


def _routed(step: Any, fields: Mapping[str, Field], rows: str) -> str:
    """Return the statement that tells for each table whether its sink takes a record, as `route_<number>`; NULL where that fails."""
    tried, routes = [], []
    for number, table in sorted(enumerate(step.routed), key=lambda one: one[1].is_default):
        route = "true"
        if table.is_default:
            # Behind the others, whose answers it reads; a record on which one of them fails is rejected whole.
            others = [f"coalesce(route_{other}, false)" for other in range(len(step.routed)) if other != number]
            route = " AND ".join(f"NOT {other}" for other in others)
        if table.when is not None:
            tried.append(f", {table.when.expression.tried} AS tried_{number}")
            fails = f"tried_{number} IS NULL" + (f" OR tried_{number}.v IS NULL" if table.when.language == "expr" else "")
            route = f"CASE WHEN {fails} THEN NULL ELSE tried_{number}.v IS true END"
        legs = ", ".join(map(literal, step.redriven_for(table)))
        routes.append(f", CASE WHEN record.sink NOT IN ({legs}) THEN false ELSE {route} END AS route_{number}")
    read = frozenset[str]().union(*(table.when.fields for table in step.routed if table.when is not None))
    return filled("reference/routes", routes="".join(routes), tried="".join(tried), inputs=_inputs(read, fields), rows=rows)


def _mapping(step: Any, fields: Mapping[str, Field], wanted: Wanted) -> dict[str, str]:
    fits = []
    for number, table in enumerate(step.routed):
        readings, is_mapped = _columns_of(table, fields)
        fits.append(f"CASE WHEN route_{number} IS NULL THEN false WHEN route_{number} THEN {is_mapped} ELSE true END")
        if table.leg == wanted.leg:
            values = _values(wanted.columns, table, readings)
            is_here = f"coalesce(route_{number}, false)"
    for table in step.tables:
        if table.refused_by and table.leg == wanted.leg:
            # The reason is not compared.
            own = {ERROR_FIELD: _Literal(0, "", "string"), REFUSING_SINK_FIELD: _Literal(0, table.refused_by, "string")}
            readings, _ = _columns_of(table, {**fields, **own})
            values = _values(wanted.columns, table, readings)
            is_here = "position IN (SELECT position FROM diverted)"
    if not step.routes:
        is_here = is_here if wanted.leg != step.routed[0].leg else "true"
        return {"is_mapped": is_mapped, "is_taken": "true", "is_here": is_here, "values": values}
    is_taken = " OR ".join(f"route_{number}" for number in range(len(step.routed)))
    return {"is_mapped": " AND ".join(fits), "is_taken": is_taken, "is_here": is_here, "values": values}


class _Literal(Field):
    """A text that is the same in all records."""

    @property
    def kind(self) -> str:
        return "'VARCHAR'"

    @property
    def text(self) -> str:
        return literal(self.name)


def _columns_of(table: Any, fields: Mapping[str, Field]) -> tuple[dict[str, Reading], str]:
    """Return how each column of a table is read, and the condition under which all of them fit."""
    readings: dict[str, Reading] = {}
    fits = []
    for column in table.columns:
        field, kind = fields[column.field], value_type(column.type)
        readings[column.name] = reading(field.source, kind, field.kind, field.text, unit=column.unit)
        when_null = "true" if takes_null(kind, column.has_default) else "false"
        fits.append(f"CASE WHEN {field.kind} = 'NULL' THEN {when_null} ELSE {readings[column.name].fits} END")
    return readings, " AND ".join(fits) or "true"


_PARAMETERS: Mapping[str, Callable[[Any, Mapping[str, Field], Wanted], dict[str, str]]] = {
    "parse": _parse,
    "dedup": _dedup,
    "filter": _filter,
    "mapping": _mapping,
}
"""The functions that fill the statements of steps whose statements depend on types."""


def _keys_are_distinct(parent: tuple[str, ...], known: Sequence[int]) -> str:
    keys = f"json_keys(document, {literal(json_path(parent))})" if parent else "json_keys(document)"
    closely = f"coalesce(list_unique({keys}) = len({keys}), true)"
    if not known:
        return closely
    return f"CASE WHEN hash({keys}) IN ({', '.join(map(str, known))}) THEN true ELSE {closely} END"


def _kinds_and_texts(fields: Iterable[Field]) -> Iterable[str]:
    """Yield the kind and the text of each field, from lists that count from 1; of those beside the JSON from the record."""
    first = 1
    for field in fields:
        if field.beside:
            yield from (f"{sql} AS {name}" for sql, name in zip(field.beside, (field.kind, field.text), strict=True))
            continue
        index = str(first)
        if len(field.paths) > 1:
            index = f"CASE WHEN coalesce(kinds[{first}], 'NULL') <> 'NULL' THEN {first} ELSE {first + 1} END"
        yield f"coalesce(kinds[{index}], 'NULL') AS {field.kind}"
        yield f"texts[{index}] AS {field.text}"
        first += len(field.paths)


def _values(columns: Sequence[Column], table: Any, readings: Mapping[str, Reading]) -> str:
    """Return the values of compared columns as the mapping of a table makes them, in the types that the columns have now."""
    mapped = {column.name: value_type(column.type) for column in table.columns}
    found = []
    for column in columns:
        name = next((name for name in (column.name, *column.former) if name in mapped), None)
        value = column.unmapped if name is None else widened(readings[name].value, mapped[name], column.type) or "NULL"
        found.append(f", CASE WHEN NOT ({within(column.unknown)}) THEN {value} END" if column.unknown else f", {value}")
    return "".join(f"{value} AS {column.label}" for value, column in zip(found, columns, strict=True))


def key_of(fields: Sequence[Field]) -> str:
    """Return 128 bits of the key, so that a key of any length takes as much room. In a key of several fields each carries its length."""
    texts = [key_text(field.source, json_text(field.kind, field.text) if field.source == "any" else field.text) for field in fields]
    parts = texts if len(texts) == 1 else [f"length({text}) || ':' || {text}" for text in texts]
    return f"md5_number({' || '.join(parts)})"
