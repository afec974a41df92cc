"""The fields of a record at each transform: names, types, and what they are computed from. Also called over a `Partial`.

A type is a source type (`types.fields.SOURCE_TYPES`), or UNKNOWN for the value of a faulty expression, which is reported where it stands.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any, TypeVar

from pipelines.config.order import in_order
from pipelines.config.partial import Unjudged
from pipelines.config.transform_model import Asked, Language, Made
from pipelines.expressions.expression import Expression, check
from pipelines.types.fields import SOURCE_TYPES

UNKNOWN = ""
Types = Mapping[str, str]
Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Passed:
    """A transform of the file at `index`, and the fields before it."""

    index: int
    transform: Any
    before: Types


def checked(asked: Asked, fields: Types, language: Language | None) -> Expression:
    """Return the checked expression. Raise ValueError with one sentence for a faulty one."""
    return check(asked.text, fields, language, asked.type)


def source_of(config: Any, source_id: str | None) -> Any:
    """Return the source that a transform names, the only source if it names none, or None if there is no such source."""
    if source_id is None:
        return config.sources[0] if len(config.sources) == 1 else None
    return next((source for source in config.sources if source.source_id == source_id), None)


def joins(config: Any) -> bool:
    return config.join is not None and bool(config.join.enabled)


def is_union(config: Any) -> bool:
    """Return whether the records of several sources become rows side by side."""
    return len(config.sources) > 1 and not joins(config)


def of_source(config: Any, source: Any) -> tuple[list[Passed], Types]:
    """Return the transforms of one source alone in the order in which they run, and the fields after them."""
    only = len(config.sources) == 1
    own = [entry for entry in in_order(config) if entry[1].source_id == source.source_id or (only and entry[1].source_id is None)]
    return _through(own, _types_of(source))


def _types_of(source: Any) -> Types:
    """Return the fields of a source; UNKNOWN is the type of one whose type is faulty."""
    types = {}
    for field in (*source.schema_fields, *source.columns):
        try:
            types[field.name] = field.type
        except Unjudged:
            types[field.name] = UNKNOWN
    return types


def path_of(config: Any, source: Any) -> list[Passed]:
    """Return the transforms that the records of a source pass, in the order in which they run."""
    return [*of_source(config, source)[0], *(after_union(config)[0] if is_union(config) else [])]


def after_union(config: Any) -> tuple[list[Passed], Types]:
    """Return the transforms after the union of the sources, and the fields after them."""
    by_source = [of_source(config, source)[1] for source in config.sources]
    return _through([entry for entry in in_order(config) if entry[1].source_id is None], common(by_source))


def common(by_source: Sequence[Types]) -> Types:
    """Return the fields that the records of all sources have: those of one name and one type, or of an unknown one."""
    found = {}
    for name, kind in by_source[0].items():
        kinds = [fields[name] for fields in by_source if name in fields]
        if len(kinds) == len(by_source) and (UNKNOWN in kinds or all(SOURCE_TYPES[one] == SOURCE_TYPES[kind] for one in kinds)):
            found[name] = UNKNOWN if UNKNOWN in kinds else kind
    return found


def apart(config: Any) -> dict[str, str]:
    """Return, by name, why fields of sources are none behind their union: a source lacks it, or has it as another type."""
    if not is_union(config):
        return {}
    by_source = {source.source_id: of_source(config, source)[1] for source in config.sources}
    found = {}
    for name in sorted({*chain(*by_source.values())} - common([*by_source.values()]).keys()):
        kinds = [f"{fields[name]} in {source}" if name in fields else f"missing in {source}" for source, fields in by_source.items()]
        found[name] = f"it is {' and '.join(kinds)}: give it one name and one type in all sources"
    return found


def after_join(config: Any) -> tuple[list[Passed], Types]:
    """Return the transforms after the join, and the fields after them."""
    types = {source.source_id: of_source(config, source)[1] for source in config.sources}
    joined = {field.joined_name: types.get(field.source_id, {}).get(field.name, UNKNOWN) for field in config.join.output_fields}
    return _through([entry for entry in in_order(config) if entry[1].source_id is None], joined)


def all_passed(config: Any) -> Iterator[Passed]:
    """Yield every transform of the file whose source exists."""
    for source in config.sources:
        yield from of_source(config, source)[0]
    if joins(config):
        yield from after_join(config)[0]
    elif is_union(config):
        yield from after_union(config)[0]


def at_sink(config: Any) -> Types:
    """Return the fields that reach the sink."""
    if joins(config):
        return after_join(config)[1]
    return after_union(config)[1] if is_union(config) else of_source(config, config.sources[0])[1]


def _through(transforms: list[tuple[int, Any]], fields: Types) -> tuple[list[Passed], Types]:
    passed = []
    for index, transform in transforms:
        passed.append(Passed(index, transform, fields))
        if transform.computes:
            made = {asked.name: _type_of(asked, fields, transform.config) for asked in transform.config.expressions()}
            made |= {one.name: one.type for one in transform.config.made()}
            fields = {**(fields if transform.config.keeps_fields else {}), **made}
    return passed, fields


def _type_of(asked: Asked, fields: Types, config: Any) -> str:
    if asked.type is not None:
        return asked.type
    try:
        return checked(asked, known(fields), config.language).type
    except (ValueError, Unjudged):
        return UNKNOWN


def known(fields: Types) -> Types:
    """Return the fields whose type is known."""
    return {name: kind for name, kind in fields.items() if kind != UNKNOWN}


def origins(config: Any, source: Any) -> dict[str, frozenset[str]]:
    """Return, for each field of a sound config that reaches the sink, the fields of the source that decide it."""
    return _computed_from(
        path_of(config, source),
        {name: frozenset({name}) for name in source.field_names},
        lambda _, expression, found: frozenset[str]().union(*(found[name] for name in expression.fields)),
        lambda _, config, found: frozenset[str]().union(*(found[name] for name in config.input or found)),
    )


BEHIND_ALL = -1
"""No index of a transform."""


def definitions(config: Any, source: Any, index: int) -> dict[str, Any]:
    """Return, as JSON values by name, how each field before the transform at `index` is read, or from what it is computed.

    With BEHIND_ALL, each field behind the transforms of the source.
    """
    read = {field.name: field.model_dump(mode="json", exclude={"name"}, exclude_defaults=True) for field in source.schema_fields}
    read |= {column.name: column.definition for column in source.columns}
    before = takewhile(lambda passed: passed.index != index, path_of(config, source))
    return _computed_from(before, read, _definition, _returned)


def _definition(asked: Asked, expression: Expression, found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": expression.type,
        **({"unit": asked.unit} if asked.unit else {}),
        "sql": expression.sql,
        "of": {name: found[name] for name in expression.fields},
    }


def _returned(made: Made, config: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a field without an expression; an edit of a function's code, or of a table's rows, leaves it as it is."""
    read = config.input or sorted(found)
    return {
        "type": made.type,
        **({"unit": made.unit} if made.unit else {}),
        **config.origin_of(made),
        "of": {name: found[name] for name in read},
    }


def _computed_from(
    transforms: Iterable[Passed],
    read: dict[str, Fact],
    fact_of: Callable[[Asked, Expression, Mapping[str, Fact]], Fact],
    fact_made: Callable[[Made, Any, Mapping[str, Fact]], Fact],
) -> dict[str, Fact]:
    """Return the facts of the fields behind `transforms`: `read` before them, and of each made field by what it is and the facts before.

    `fact_of` a computed field, `fact_made` of one without an expression.
    """
    found = read
    for passed in transforms:
        config = passed.transform.config
        if passed.transform.computes:
            made = {asked.name: fact_of(asked, checked(asked, passed.before, config.language), found) for asked in config.expressions()}
            made |= {one.name: fact_made(one, config, found) for one in config.made()}
            found = {**(found if config.keeps_fields else {}), **made}
    return found
