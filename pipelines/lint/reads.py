"""The fields of a pipeline file that nothing reads. Pure; takes a sound config."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.config import PipelineConfig
from pipelines.config.base import Location
from pipelines.config.fields import Passed, at_sink, checked, path_of
from pipelines.config.sinks import FALLBACK_FIELDS
from pipelines.config.transforms.python import FunctionConfig


@dataclass(frozen=True)
class Field:
    """A field where it is declared or computed; a computed one may replace another of its name."""

    name: str
    at: Location
    is_computed: bool = False


def unread(config: PipelineConfig) -> Iterator[Field]:
    """Yield the fields that no transform, no dedup key and no column reads, in the order of the file."""
    made, read = list[Field](), set[Field]()
    for number, source in enumerate(config.sources):
        declared = [Field(field.name, ("sources", number, "schema_fields", index)) for index, field in enumerate(source.schema_fields)]
        declared += [Field(column.name, ("sources", number, "columns", index)) for index, column in enumerate(source.columns)]
        present = {field.name: field for field in declared}
        made += declared
        for passed in path_of(config, source):
            read |= {present[name] for name in _names_read(passed)}
            computed = _computed(passed)
            made += computed
            present = {**(present if passed.transform.config.keeps_fields else {}), **{field.name: field for field in computed}}
        for sink in config.record_sinks:
            names = {column.name for column in sink.mapping} - FALLBACK_FIELDS.keys()
            names = names.union(*(checked(asked, at_sink(config), sink.language).fields for asked in sink.expressions()))
            read |= {present[name] for name in names}
    yield from (field for field in dict.fromkeys(made) if field not in read)


def _names_read(passed: Passed) -> set[str]:
    config = passed.transform.config
    if isinstance(config, FunctionConfig) and not config.input:
        return {*passed.before}
    names = {name for _, named in config.fields_read() for name in named}
    return names.union(*(checked(asked, passed.before, config.language).fields for asked in config.expressions()))


def _computed(passed: Passed) -> list[Field]:
    if not passed.transform.computes:
        return []
    at: Location = ("transforms", passed.index, "config")
    config = passed.transform.config
    made_at = "fields" if passed.transform.type == "lookup" else "output"
    returned = [Field(one.name, (*at, made_at, index), True) for index, one in enumerate(config.made())]
    return [*(Field(asked.name, (*at, *asked.at[:-1]), True) for asked in config.expressions()), *returned]
