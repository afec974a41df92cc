"""One insert of rows of out: out frames become rows, these one block, if the table takes them, and the block is sent under its token.

In: the frames of a chunk, or of a piece. Out: one Arrow IPC stream of one record batch, with the columns that the table has.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from pipelines.protocol.records import POSITION_COLUMNS, Message, decode_frame, describe_frame
from pipelines.sink.chunks import Chunk, Pieces
from pipelines.sink.fit import check_arrow_types, misfits, way_on
from pipelines.types.vectors import empty_batch

MAX_COLUMN_BYTES = 2**31
"""Arrow keeps a smaller column in one piece."""
_LEAST_FOR_THREADS_BYTES = 8 * 1024 * 1024
"""A smaller block takes less CPU where its buffers are not given to threads; a larger one gains time by them."""

Decode = Callable[[Message], pa.Table]
"""A frame to its rows, in their order."""


@dataclass(frozen=True)
class Block:
    """Rows as they are sent: the names of their columns, and one Arrow IPC stream."""

    columns: list[str]
    content: bytes


def insert_columns(connections: Connections, config: Program) -> list[str]:
    """Return the columns of the mapping under which the rows were made, and the position columns that this run has found in the table.

    Every other column of the table takes its DEFAULT.
    """
    now = config_of(connections, connections.run.stage_config)
    return [*(target.name for target in config.targets), *now.position_columns]


def rows_of_frame(message: Message) -> pa.Table:
    """Return the rows of a frame as they are stored. Raise HaltError for bytes that are no frame."""
    return decode_frame(message.payload, describe_frame(message))


class ChunkRows:
    """The rows of a chunk, `columns` only. One stretch of its frames is decoded at a time, as the next piece needs it."""

    def __init__(self, chunk: Chunk, columns: Sequence[str], decode: Decode = rows_of_frame) -> None:
        self._chunk, self._columns, self._decode = chunk, columns, decode
        self._first = self._end = 0
        self._decoded = pa.table({})

    def of(self, pieces: Pieces) -> pa.Table:
        """Return the rows of the next piece that are to be sent."""
        first, end = pieces.sent, pieces.ends[0]
        if not self._first <= first < end <= self._end:
            self._decoded = pa.table({})
            part, self._first = self._chunk.part(first, end)
            self._end = self._first + part.rows
            self._decoded = chunk_rows(part, self._columns, self._decode)
        sending = pieces.to_send() - self._first
        return self._decoded if len(sending) == self._decoded.num_rows else self._decoded.take(sending)


def chunk_rows(chunk: Chunk, columns: Sequence[str], decode: Decode = rows_of_frame) -> pa.Table:
    """Return the chunk's rows, `columns` only. Raise HaltError for frames whose columns differ from their configuration."""
    tables = [decode(message) for message in chunk.messages]
    try:
        together = pa.concat_tables([t.select(list(columns)) for t in tables if t.num_rows] or [tables[0].select(list(columns))])
    except (KeyError, pa.ArrowException) as error:
        raise HaltError(
            f"decoding out sequences {chunk.first}-{chunk.last}: their columns are not those of the configuration that they name "
            f"({error}); only Tallyflow may write to its streams"
        ) from error
    return together.unify_dictionaries().combine_chunks()


def block_for(connections: Connections, config: Program, rows: pa.Table) -> Block:
    """Return the block of rows that were made under `config`, for the table as it is now; its answer may take long.

    Raise HaltError as `check_columns` does, InvariantError as `insert_block` does.
    """
    check_columns(connections, config, rows)
    rows = with_owner(connections.config, rows)
    return Block(rows.column_names, insert_block(rows))


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


def insert_block(table: pa.Table) -> bytes:
    """Encode rows as one Arrow IPC stream of one record batch: one block, so the token covers all or nothing.

    Raise InvariantError for rows that make more than one batch: 2 GiB in one column.
    """
    fits = all(column.nbytes < MAX_COLUMN_BYTES for column in table.columns)
    batches = table.combine_chunks().to_batches() if fits and table.num_rows else []
    if fits and not table.num_rows:
        batches = [empty_batch(table.schema)]
    if len(batches) != 1:
        raise InvariantError(
            f"inserting a chunk: its {table.num_rows} rows do not fit into one block ({table.nbytes} bytes); nothing was sent"
        )
    out = pa.BufferOutputStream()
    with_threads = table.nbytes >= _LEAST_FOR_THREADS_BYTES
    options = pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True, use_threads=with_threads)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_batch(batches[0])
    block: bytes = out.getvalue().to_pybytes()
    return block


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


def insert(connections: Connections, table: str, block: Block, token: str, work: str) -> None:
    """Insert a block; raise as `Sink.insert` does."""
    seconds = math.ceil(connections.config.sink.max_insert_time.total_seconds())
    reach("sink.before-insert")
    connections.sink.insert(table, block.columns, block.content, token, seconds, work)
    reach("sink.after-insert")
