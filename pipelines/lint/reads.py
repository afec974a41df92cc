"""The fields of a pipeline file that nothing reads. Pure; takes a sound config."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pipelines.config import PipelineConfig
from pipelines.config.base import Location
from pipelines.config.fields import Passed, after_join, at_sink, checked, joins, path_of
from pipelines.config.sinks import FALLBACK_FIELDS
from pipelines.config.transforms.python import FunctionConfig


@dataclass(frozen=True)
class Field:
    """A field where it is declared or computed; a computed one may replace another of its name."""

    name: str
    at: Location
    is_computed: bool = False


def unread(config: PipelineConfig) -> Iterator[Field]:
    """Yield the fields that no transform, no key, no join and no column reads, in the order of the file."""
    found, joined = _Found(), dict[str, Field]()
    for number, source in enumerate(config.sources):
        declared = [Field(field.name, ("sources", number, "schema_fields", index)) for index, field in enumerate(source.schema_fields)]
        declared += [Field(column.name, ("sources", number, "columns", index)) for index, column in enumerate(source.columns)]
        found.made += declared
        present = found.through(path_of(config, source), {field.name: field for field in declared})
        if config.join is not None and joins(config):
            sides = [one for one in (config.join.left_source, config.join.right_source) if one and one.source_id == source.source_id]
            found.read |= {present[name] for side in sides for name in (*side.key, *([side.time_field] if side.time_field else []))}
            taken = [one for one in config.join.output_fields if one.source_id == source.source_id]
            joined |= {one.joined_name: present[one.name] for one in taken}
        else:
            found.at_sinks(config, present)
    if joins(config):
        found.at_sinks(config, found.through(after_join(config)[0], joined))
    yield from (field for field in dict.fromkeys(found.made) if field not in found.read)


@dataclass
class _Found:
    """The fields that were found to be made, and to be read."""

    made: list[Field] = field(default_factory=list)
    read: set[Field] = field(default_factory=set)

    def through(self, path: Iterable[Passed], present: Mapping[str, Field]) -> Mapping[str, Field]:
        """Take fields, by name, through transforms; return those behind them."""
        for passed in path:
            self.read |= {present[name] for name in _names_read(passed)}
            computed = _computed(passed)
            self.made += computed
            present = {**(present if passed.transform.config.keeps_fields else {}), **{field.name: field for field in computed}}
        return present

    def at_sinks(self, config: PipelineConfig, present: Mapping[str, Field]) -> None:
        """Note what the sinks read of the fields that reach them."""
        for sink in config.record_sinks:
            names = {column.name for column in sink.mapping} - FALLBACK_FIELDS.keys()
            names = names.union(*(checked(asked, at_sink(config), sink.language).fields for asked in sink.expressions()))
            self.read |= {present[name] for name in names}


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
