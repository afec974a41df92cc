"""Warm-up of a worker before the runner reports ready: the imports and connections that a first batch would otherwise pay for."""

from pipelines.engine.connections import Connections
from pipelines.engine.execute import Item, Report
from pipelines.process.program import run_records
from pipelines.process.stage_config import config_of
from pipelines.protocol.records import RAW_SCHEMA, with_positions


def warm(connections: Connections, item: Item) -> Report:
    """Open the connections and run the steps over no record; write nothing."""
    config = config_of(connections, connections.run.stage_config)
    records = with_positions(RAW_SCHEMA.empty_table(), 1, config.topic, 0)
    rows = run_records(config, connections.engine, records).rows
    return {"rows": connections.reader.open() + rows.num_rows, **item}
