"""One insert of rows of out: their columns, the check of the table before it, and the names by which it is known."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.engine.connections import Connections
from pipelines.errors import HaltError, InvariantError
from pipelines.process.program import Program
from pipelines.process.stage_config import config_of
from pipelines.protocol.bodies import SinkPlan
from pipelines.protocol.failpoints import reach
from pipelines.protocol.naming import insert_token, inserts_of_chunk
from pipelines.protocol.records import POSITION_COLUMNS
from pipelines.sink.chunks import Chunk
from pipelines.sink.fit import check_arrow_types, misfits, way_on


def insert_columns(connections: Connections, config: Program) -> list[str]:
    """Return the columns of the mapping under which the rows were made, and the position columns that this run has found in the table.

    Every other column of the table takes its DEFAULT.
    """
    now = config_of(connections, connections.run.stage_config)
    return [*(target.name for target in config.targets), *now.position_columns]


def check_columns(connections: Connections, config: Program, rows: pa.Table) -> None:
    """Raise HaltError if the rows, made under `config`, do not fit the table as it is now; called before every insert.

    If the table is missing, the sink refuses the insert.
    """
    check_arrow_types(config, rows)
    columns = connections.sink.columns(config.database, config.table)
    nulls = [name for name in rows.column_names if rows.column(name).null_count]
    position_columns = [name for name in rows.column_names if name in POSITION_COLUMNS]
    faults = misfits(config, position_columns, columns, nulls) if columns else []
    if faults:
        raise HaltError(
            f"inserting a chunk into {config.full_table}: the table was altered and no longer takes the rows that were made "
            f"under configuration {config.version}: {'; '.join(faults)}. They were not sent. "
            f"{way_on(connections.names.pipeline, connections.config.topology.option(connections.config.sink_leg))}"
        )


def with_owner(config: PipelineConfig, rows: pa.Table) -> pa.Table:
    """Return the rows as a shared table takes them: with the pipeline that they are of."""
    if not config.sink.names_pipeline:
        return rows
    owner = pa.DictionaryArray.from_arrays(np.zeros(rows.num_rows, np.int8), [config.pipeline_id])
    return rows.append_column(PIPELINE_COLUMN, owner)


def check_digest(chunk: Chunk, stream: str, planned: str) -> None:
    """Raise InvariantError if the frames of a chunk are not those of its plan."""
    if chunk.digest != planned:
        raise InvariantError(
            f"sending chunk {chunk.first}-{chunk.last} of {stream} again: its rows differ from the planned rows (digest {chunk.digest}, "
            f"planned {planned}); nothing was sent. Compare the table with the stream before you do anything else"
        )


def token_of(connections: Connections, plan: SinkPlan, chunk: Chunk) -> str:
    """Return the insert token of a whole chunk, from which those of its pieces are made."""
    stream_id = connections.run.stream_ids[connections.out]
    return insert_token(connections.names.pipeline, stream_id, plan.table, chunk.first, chunk.last, chunk.digest)


def work_of(connections: Connections, chunk: Chunk) -> str:
    """Return the name of all inserts of a chunk, by which the sink finds those that are running."""
    return inserts_of_chunk(connections.names.pipeline, connections.run.stream_ids[connections.out], chunk.first, chunk.last)


def insert(connections: Connections, table: str, columns: Sequence[str], block: bytes, token: str, work: str) -> None:
    """Insert a block; raise as `Sink.insert` does."""
    seconds = math.ceil(connections.config.sink.max_insert_time.total_seconds())
    reach("sink.before-insert")
    connections.sink.insert(table, columns, block, token, seconds, work)
    reach("sink.after-insert")
