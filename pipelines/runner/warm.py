"""Warm-up of a worker before the runner reports ready: the imports and connections that a first batch would otherwise pay for."""

from dataclasses import dataclass

from pipelines.engine.connections import Connections
from pipelines.engine.execute import Work
from pipelines.process.program import run_records
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
    """Open the connections and run the steps over no record; write nothing."""
    config = config_of(connections, connections.run.stage_config)
    records = with_positions(RAW_SCHEMA.empty_table(), 1, config.topic, 0)
    rows = run_records(config, connections.engine, records).rows
    partitions = sum(connections.source(source.source_id).open() for source in connections.config.sources)
    return Warmed(partitions + rows.num_rows)


WARM = Work(warm, Nothing, Warmed)
