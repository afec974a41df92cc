"""Warm-up of a worker before the runner reports ready: the imports and connections that a first batch would otherwise pay for."""

from pipelines.engine.connections import Connections
from pipelines.engine.execute import Item, Report
from pipelines.process.mapping.step import map_columns
from pipelines.process.parse.step import parse
from pipelines.process.stage_config import config_of
from pipelines.protocol.records import RAW_SCHEMA, with_positions


def warm(connections: Connections, item: Item) -> Report:
    """Open the connections and run the stages over no record; write nothing."""
    config = config_of(connections, connections.run.stage_config)
    records = with_positions(RAW_SCHEMA.empty_table(), 1, config.topic, 0)
    parsed = parse(connections.engine, records, config.parsed_fields)
    mapped = map_columns(connections.engine, parsed.accepted, config.targets)
    return {"rows": connections.reader.open() + mapped.accepted.num_rows, **item}
