"""What a worker does before the runner reports ready: the imports and the connections that a first batch would otherwise pay for."""

from dataclasses import dataclass

from pipelines.engine.connections import Connections
from pipelines.engine.execute import Work
from pipelines.process.mapping.step import map_columns
from pipelines.process.parse.step import parse
from pipelines.process.stage_config import config_of
from pipelines.protocol.codec import Count, Form
from pipelines.protocol.records import RAW_SCHEMA, with_positions


@dataclass(frozen=True)
class Nothing(Form):
    """What there is to say."""


@dataclass(frozen=True)
class Warmed(Form):
    """How many rows were met, so that nothing is left out: none."""

    rows: Count


def warm(connections: Connections, item: Nothing) -> Warmed:
    """Opens the connections and runs the stages over no record; writes nothing."""
    config = config_of(connections, connections.run.stage_config)
    records = with_positions(RAW_SCHEMA.empty_table(), 1, config.topic, 0)
    parsed = parse(connections.engine, records, config.parsed_fields)
    mapped = map_columns(connections.engine, parsed.accepted, config.targets)
    return Warmed(connections.reader.open() + mapped.accepted.num_rows)


WARM = Work(warm, Nothing, Warmed)
