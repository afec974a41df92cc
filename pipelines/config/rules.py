"""The rules between the sections of the pipeline file: ids that must match, fields that must exist, limits of the format.

Each rule takes a PipelineConfig or, for a faulty file, a `Partial` that raises Unjudged where a value has a fault of its own.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from pipelines.config.base import Faults, Location, repeated
from pipelines.config.fields import UNKNOWN, Types, all_passed, apart, at_sink, checked, joins, known, of_source, source_of
from pipelines.config.order import in_order
from pipelines.config.partial import Unjudged
from pipelines.config.sinks import DEAD_LETTERS, FALLBACK_FIELDS
from pipelines.config.text import path_text
from pipelines.config.transform_model import Asked, Language
from pipelines.config.transforms.lookup import lookup_spec
from pipelines.lookups.spec import TableSpec
from pipelines.protocol.stream_limits import LEAST_LIMIT_BYTES
from pipelines.types.fields import SOURCE_TYPES
from pipelines.types.time_formats import has_time_of_day

_MAX_SEARCHED = 200
_MAX_NAME = 80
_OF_DATES = re.compile(r"(?:(?:Nullable|LowCardinality)\()*Date(?:32)?\)*")
_NO_REASONS: Mapping[str, str] = {}


def faults(config: Any) -> Faults:
    """Yield every fault between the sections of `config` as (location, sentence)."""
    of_transforms = (_transform_sources, _transforms_order, _dedups, _transform_fields, _several_rows, _lookups, _join_sources)
    for rule in (_sources, *of_transforms, _sinks, _mapping, _formats, _rollups, _lanes, _streams):
        try:
            yield from rule(config)
        except Unjudged:
            continue


def _sources(config: Any) -> Faults:
    if joins(config) and len(config.sources) != 2:
        yield ("join", "enabled"), f"a join needs two sources, the file has {len(config.sources)}"
    for index, source_id in repeated(source.source_id for source in config.sources):
        yield ("sources", index, "source_id"), f"the source_id {source_id!r} is used twice"
    places: dict[tuple[Any, ...], int] = {}
    for index, source in enumerate(config.sources):
        first = places.setdefault(source.place(), index)
        if first != index:
            yield ("sources", index, "topic"), f"is read by sources[{first}], too: each of its records would enter twice"


def _lanes(config: Any) -> Faults:
    if config.lanes > config.buckets:
        needed = f"{config.lanes} lanes need as many buckets at least, the file has {config.buckets}"
        yield ("lanes",), f"{needed}: each lane works on some of them"


def _streams(config: Any) -> Faults:
    max_bytes = config.resources.nats.stream.max_bytes
    if 0 < max_bytes < config.streams * LEAST_LIMIT_BYTES:
        yield (
            ("streams",),
            f"{config.streams} streams share resources.nats.stream.max_bytes, and each needs {LEAST_LIMIT_BYTES} bytes at least: "
            f"{config.streams * LEAST_LIMIT_BYTES} in all, the file has {max_bytes}",
        )


def _transform_sources(config: Any) -> Faults:
    source_ids = [source.source_id for source in config.sources]
    for index, transform in enumerate(config.transforms):
        if transform.source_id is None:
            if joins(config) and transform.type == "dedup":
                yield ("transforms", index, "source_id"), "is required with a join"
        elif transform.source_id not in source_ids:
            yield (
                ("transforms", index, "source_id"),
                f"there is no source {transform.source_id!r}{suggestion(transform.source_id, source_ids)}",
            )


def _transforms_order(config: Any) -> Faults:
    if config.transforms_order == "glassflow":
        for index, transform in enumerate(config.transforms):
            if not transform.is_of_glassflow:
                yield ("transforms_order",), f"GlassFlow has no {transform.type} (transforms[{index}]), so it has no order for this file"


def _dedups(config: Any) -> Faults:
    seen: set[str] = set()
    for index, transform in enumerate(config.transforms):
        if transform.type != "dedup":
            continue
        for source in config.sources if transform.source_id is None else filter(None, [source_of(config, transform.source_id)]):
            if source.source_id in seen:
                yield ("transforms", index), f"a source has at most one dedup, and {source.source_id!r} has one already"
                break
            seen.add(source.source_id)


def _transform_fields(config: Any) -> Faults:
    why = apart(config)
    for passed in all_passed(config):
        at = ("transforms", passed.index, "config")
        try:
            for location, names in passed.transform.config.fields_read():
                yield from _unknown_fields((*at, *location), names, list(passed.before), why)
            for asked in passed.transform.config.expressions():
                yield from _faulty((*at, *asked.at), asked, passed.before, passed.transform.config.language, why)
        except Unjudged:
            continue


def _several_rows(config: Any) -> Faults:
    """Yield the faults of functions that make several rows of a record, where their rows are not exact yet."""
    runs = in_order(config)
    several = [(place, index) for place, (index, one) in enumerate(runs) if one.config.makes_several]
    for place, index in several:
        at = ("transforms", index, "config", "rows")
        behind = next((other for other, one in runs[place:] if one.type == "dedup"), None)
        if joins(config):
            yield at, "`many` does not go with a join yet: let it be `one`, and make rows of an array in ClickHouse, by arrayJoin in a view"
        elif config.transforms[index].source_id is not None and len(config.sources) > 1:
            yield at, "`many` is for the records of all sources: leave out source_id, and let it return those of the others as one row"
        elif behind is not None:
            yield at, f"`many` does not go before a dedup yet: move this transform behind transforms[{behind}], which compares records"
        elif index != several[0][1]:
            yield at, f"transforms[{several[0][1]}] makes several rows already: let one function make all of them"


def _lookups(config: Any) -> Faults:
    """Yield the faults of look-ups: no such table, another number of keys, types that are never equal, or that differ between look-ups."""
    read: dict[str, TableSpec] = {}
    for passed in all_passed(config):
        if passed.transform.type != "lookup":
            continue
        at = ("transforms", passed.index, "config")
        try:
            asked = passed.transform.config
            if asked.table not in config.tables:
                yield (*at, "table"), f"there is no table {asked.table!r}{suggestion(asked.table, [*config.tables])}"
            elif len(asked.key) != len(config.tables[asked.table].key):
                parts = f"the key of table {asked.table!r} has {len(config.tables[asked.table].key)}"
                yield (
                    (*at, "key"),
                    f"names {len(asked.key)}, {parts}: give a field for each, in its order",
                )
            elif all(passed.before.get(name, UNKNOWN) != UNKNOWN for name in asked.key):
                spec = lookup_spec(asked, config.tables[asked.table], passed.before)
                read[asked.table] = read[asked.table].united(spec) if asked.table in read else spec
        except ValueError as error:
            yield at, f"table {asked.table!r}: {error}" if asked.table in read else str(error)
        except Unjudged:
            continue


def _faulty(at: Location, asked: Asked, fields: Types, language: Language | None, why: Mapping[str, str]) -> Faults:
    try:
        checked(asked, known(fields), language)
    except ValueError as error:
        if not any(name in asked.text for name, kind in fields.items() if kind == UNKNOWN):
            reasons = [f"; {name}: {reason}" for name, reason in why.items() if name in asked.text and name not in fields]
            yield at, f"{error}{''.join(reasons)}"


def _join_sources(config: Any) -> Faults:
    if not joins(config):
        return
    source_ids = [source.source_id for source in config.sources]
    sides = [(name, getattr(config.join, name)) for name in ("left_source", "right_source")]
    named: list[tuple[Location, str, str, tuple[str, ...]]] = [
        (("join", name), "key", side.source_id, side.key) for name, side in sides if side
    ]
    named += [
        (("join", name), "time_field", side.source_id, (side.time_field,))
        for name, side in sides
        if side and side.time_field and config.join.time == "event"
    ]
    outputs = enumerate(config.join.output_fields)
    named += [(("join", "output_fields", index), "name", field.source_id, (field.name,)) for index, field in outputs]
    for location, attribute, source_id, fields in named:
        if source_id not in source_ids:
            yield (*location, "source_id"), f"there is no source {source_id!r}{suggestion(source_id, source_ids)}"
        else:
            yield from _unknown_fields((*location, attribute), fields, list(of_source(config, source_of(config, source_id))[1]))
    if all(side and side.source_id in source_ids for _, side in sides):
        yield from _key_types(config)


def _key_types(config: Any) -> Faults:
    """Yield the fields of the keys of a join whose types make them never equal."""
    left, right = config.join.left_source, config.join.right_source
    types = [of_source(config, source_of(config, side.source_id))[1] for side in (left, right)]
    for names in zip(left.key, right.key, strict=False):
        kinds = [fields.get(name, UNKNOWN) for fields, name in zip(types, names, strict=True)]
        if UNKNOWN not in kinds and len({_key_kind(kind) for kind in kinds}) > 1:
            message = f"{names[0]!r} of the left source is {kinds[0]} and {names[1]!r} is {kinds[1]}: such keys are never equal"
            yield ("join", "right_source", "key"), message


def _key_kind(kind: str) -> str:
    source = SOURCE_TYPES[kind]
    return "JSON" if kind == "any" else "integer" if source.is_integer else "float" if source.is_float else str(source.arrow)


def _sinks(config: Any) -> Faults:
    if config.only_sink is not None and config.sinks:
        yield ("sinks",), "is for several sinks, and `sink` is given, too: move that one here"
    elif config.only_sink is None and not config.sinks:
        yield ("sink",), "is required"
    if config.only_sink is not None:
        for name in ("id", "when", "default", "on_refused"):
            if getattr(config.only_sink, name) not in (None, False):
                yield ("sink", name), "is for `sinks`; a filter drops the records that the only sink does not take"
        if _takes_dead_letters(config.only_sink):
            yield ("sink", "from"), "is for `sinks`: beside this one the records need a sink"
    elif config.sinks and _takes_dead_letters(config.sinks[0]):
        yield ("sinks", 0, "from"), "must stand behind a sink of records, which comes first"
    known_ids: set[str] = set()
    tables: dict[tuple[Any, ...], int] = {}
    for index, sink in enumerate(config.sinks):
        if sink.id is None:
            yield ("sinks", index, "id"), "is required"
        elif sink.id in known_ids:
            yield ("sinks", index, "id"), f"the id {sink.id!r} is used twice"
        known_ids.add(sink.id or "")
        first = tables.setdefault(sink.place(), index)
        if first != index:
            yield ("sinks", index, "table"), f"is the table of sinks[{first}]: there the rows of two sinks would be indistinguishable"
    yield from _default_sinks(config.sinks)
    yield from _fallbacks(config)


def _fallbacks(config: Any) -> Faults:
    """Yield the faults of fallbacks: each takes the rows of one sink before it, and no other row, so that a position is there once."""
    places, taken = {sink.id: index for index, sink in enumerate(config.sinks)}, dict[str, int]()
    for index, sink in enumerate(config.sinks):
        if sink.on_refused is None:
            continue
        name, at = sink.on_refused.sink, ("sinks", index, "on_refused", "sink")
        if name not in places:
            yield at, f"there is no sink {name!r}{suggestion(name, [*filter(None, places)])}"
        elif _takes_dead_letters(config.sinks[places[name]]):
            yield at, f"the sink {name!r} takes dead letters and nothing else"
        elif places[name] <= index:
            yield at, f"the sink {name!r} must stand behind this one"
        elif config.sinks[places[name]].on_refused is not None:
            yield at, f"the sink {name!r} has a fallback itself: a row that a fallback refuses becomes a dead letter"
        elif config.sinks[places[name]].when is not None or config.sinks[places[name]].default:
            yield (
                at,
                f"the sink {name!r} takes records by `when` or `default`: a record could be in its table twice; add a sink without them",
            )
        elif name in taken:
            yield at, f"the sink {name!r} is the fallback of sinks[{taken[name]}]: a record could be in its table twice; add another"
        taken.setdefault(name, index)
    for index, transform in enumerate(config.transforms) if taken else ():
        if [*transform.config.made()]:
            what, done = ("a look-up", "made") if transform.type == "lookup" else ("a function", "called")
            why = f"it is {done} again for a refused row, and might answer otherwise"
            yield (
                ("transforms", index),
                f"{what} does not go with `on_refused` of a sink: {why}",
            )


def _default_sinks(sinks: Sequence[Any]) -> Faults:
    fallbacks = fallback_ids(sinks)
    defaults = [index for index, sink in enumerate(sinks) if sink.default]
    for index in defaults[1:]:
        yield ("sinks", index, "default"), f"sinks[{defaults[0]}] is the default already"
    for index, sink in enumerate(sinks) if defaults else ():
        if not _takes_dead_letters(sink) and sink.when is None and not sink.default and sink.id not in fallbacks:
            yield ("sinks", defaults[0], "default"), f"would take nothing: sinks[{index}] has no `when`, so it takes every record"
            return


def _mapping(config: Any) -> Faults:
    reached, fallbacks, why = at_sink(config), fallback_ids(config.sinks), apart(config)
    for at, sink in _all_sinks(config):
        if _takes_dead_letters(sink):
            yield from _dead_letter_mapping(at, sink)
            continue
        fields = {**reached, **FALLBACK_FIELDS} if sink.id in fallbacks else reached
        field_set = frozenset(fields)
        for asked in sink.expressions():
            yield from _faulty((*at, *asked.at), asked, fields, sink.language, why)
        for index, column in enumerate(sink.mapping):
            try:
                yield from _unknown((*at, "mapping", index, "name"), [column.name], list(fields), field_set, why)
            except Unjudged:
                continue


def _formats(config: Any) -> Faults:
    """Yield the columns of dates whose field is a time of day, too: its format says so."""
    made = {one.name for passed in all_passed(config) for one in (*passed.transform.config.expressions(), *passed.transform.config.made())}
    read = [
        field for source in config.sources for field in (*source.schema_fields, *source.columns) if field.format and field.name not in made
    ]
    formats = {field.name: field.format for field in read if has_time_of_day(field.format)}
    for at, sink in _all_sinks(config):
        for index, column in enumerate(sink.mapping):
            if column.name in formats and _OF_DATES.fullmatch(column.column_type):
                message = f"the format {formats[column.name]} has a time of day, which a date does not hold: use DateTime"
                yield (*at, "mapping", index, "column_type"), message


def _dead_letter_mapping(at: Location, sink: Any) -> Faults:
    """Yield the faults of a mapping of dead letters: a column takes every value of its field, so that no dead letter fails to fit."""
    # Inside of the function: it needs the grammar of column types, as in `config.sinks`.
    from pipelines.types.dead_letter_fields import DEAD_LETTER_FIELDS

    for index, column in enumerate(sink.mapping):
        try:
            if column.name not in DEAD_LETTER_FIELDS:
                yield from _unknown_fields((*at, "mapping", index, "name"), [column.name], [*DEAD_LETTER_FIELDS])
            elif fault := DEAD_LETTER_FIELDS[column.name].fault(column.column_type):
                yield (*at, "mapping", index, "column_type"), fault
        except Unjudged:
            continue


def _takes_dead_letters(sink: Any) -> bool:
    """Return True for a sink of dead letters; a sink whose `from` has a fault is one of records."""
    with suppress(Unjudged):
        return bool(sink.takes == DEAD_LETTERS)
    return False


def _rollups(config: Any) -> Faults:
    """Yield the faults of rollups among each other: all tables and views of a database have names of their own."""
    taken: dict[tuple[Any, ...], str] = {}
    places = [(at, sink, sink.place()) for at, sink in _all_sinks(config) if getattr(sink, "rollups", ())]
    taken.update({sink.place(): f"the table of {path_text(at)}" for at, sink in _all_sinks(config)})
    fallbacks = fallback_ids(config.sinks)
    for at, sink, place in places:
        if _takes_dead_letters(sink):
            yield (*at, "rollups"), "a table of dead letters has none: its rows have no position of their own on raw"
        if sink.id in fallbacks:
            yield (*at, "rollups"), "a fallback has none: its rows arrive by another way, behind later positions"
        for index, rollup in enumerate(sink.rollups):
            named = taken.setdefault((rollup.name,), path_text((*at, "rollups", index)))
            if named != path_text((*at, "rollups", index)):
                yield (*at, "rollups", index, "name"), f"{rollup.name!r} is also the name of {named}"
                continue
            for name in rollup.relations:
                owner = taken.setdefault((*place[:-1], name), f"{path_text((*at, 'rollups', index))}")
                if owner != path_text((*at, "rollups", index)):
                    yield (*at, "rollups", index, "name"), f"its {name!r} is also a name of {owner}"
                    break


def fallback_ids(sinks: Sequence[Any]) -> frozenset[str]:
    """Return the ids of the sinks that take the refused rows of others."""
    return frozenset(sink.on_refused.sink for sink in sinks if sink.on_refused is not None)


def _all_sinks(config: Any) -> list[tuple[Location, Any]]:
    only: list[tuple[Location, Any]] = [(("sink",), config.only_sink)] if config.only_sink is not None else []
    return only + [(("sinks", index), sink) for index, sink in enumerate(config.sinks)]


def suggestion(name: str, known: list[str]) -> str:
    """Return "; did you mean ...?" if one of `known` is close to `name`, else "".

    A long list or name is not searched.
    """
    close = get_close_matches(name, known, n=1) if len(known) <= _MAX_SEARCHED and len(name) <= _MAX_NAME else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _unknown_fields(location: Location, names: Any, known: Sequence[str], why: Mapping[str, str] = _NO_REASONS) -> Faults:
    yield from _unknown(location, names, known, frozenset(known), why)


def _unknown(location: Location, names: Any, known: Sequence[str], are_known: frozenset[str], why: Mapping[str, str]) -> Faults:
    for name in names:
        if name not in are_known:
            reason = f"; {why[name]}" if name in why else suggestion(name, list(known))
            yield location, f"there is no field {name!r} here{reason}"
