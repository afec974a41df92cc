"""The rows of positions that a table has lost, as they were made.

In: a target, and the raw frames or the stream that the sink has read. Out: portions of rows. Rows that are a function of one record are
computed again from raw, by the stages that made them. Those of a join, and of a fallback, are not: they are taken from the stream, which
holds them as long as it was not purged. Changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Table
from pipelines.errors import RetryableError
from pipelines.process.arrivals import Arrived, steps
from pipelines.process.drop_marks import parted
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.proof.readers.streams import read_frames
from pipelines.proof.verification.run import Subject
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import Position, RawPositions, position_keys, sequences_of
from pipelines.protocol.records import HEADER_LAST, decode_frame, describe_frame
from pipelines.protocol.topology import LegId
from pipelines.sink.chunks import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS
from pipelines.types.duckdb import open_engine


@dataclass(frozen=True)
class Target:
    """Positions, ascending, that `table` has lost; those of them whose rows were made under `config` are meant."""

    config: Program
    table: Table
    missing: RawPositions


def are_stored(config: Program) -> bool:
    """Return whether the rows that a program makes are taken from the stream: a record alone does not tell what they hold."""
    return config.join is not None or bool(config.mapping.refused_by)


class LostRows:
    """The rows of one sink. `frames_per_portion`: the most frames that a portion is made of, raw ones or those that the sink has read."""

    def __init__(self, log: JetStream, names: Names, subject: Subject, frames_per_portion: int) -> None:
        self._log, self._names, self._subject, self._frames = log, names, subject, frames_per_portion

    def portions(self, target: Target) -> Iterator[pa.Table]:
        """Yield the rows of a target, with their positions. Raise RetryableError for a frame that is not there, or not served yet."""
        return self._stored(target) if are_stored(target.config) else self._computed(target)

    def _computed(self, target: Target) -> Iterator[pa.Table]:
        config = target.config
        with open_engine() as engine:
            for step in steps(self._raw_frames(target.missing), most_frames=self._frames):
                rows = config.tables.rows_for(parted(run(config, engine, step).rows)[0], config.leg)
                yield _of(rows, target.missing)

    def _raw_frames(self, missing: RawPositions) -> Iterator[Arrived]:
        """Yield the raw frames with missing rows, with their arrivals by the ledger."""
        stream = self._names.stream("raw")
        for sequence in np.unique(sequences_of(missing)).tolist():
            message = self._log.get(stream, sequence)
            if message is None:
                raise RetryableError(f"reading {stream}: sequence {sequence} was purged after the verification; launch the command again")
            yield Arrived(message, self._subject.history.arrival_us(sequence))

    def _stored(self, target: Target) -> Iterator[pa.Table]:
        config, first = target.config, int(sequences_of(target.missing)[0])
        leg = LegId.parse(config.leg)
        confirmed = read_chain(self._log, self._names, leg.chain).to or 0
        kept: list[pa.Table] = []
        for message in read_frames(self._log, self._names, leg.input_role, to=confirmed):
            # A row comes with its record or behind it: a frame that ends before the first lost record holds none of them.
            if message.config != config.version or Position.parse(message.headers[HEADER_LAST]).sequence < first:
                continue
            rows = _of(decode_frame(message.payload, describe_frame(message)), target.missing)
            kept += [rows] if rows.num_rows else []
            if len(kept) >= self._frames or sum(map(len, kept)) >= MAX_CHUNK_ROWS or sum(part.nbytes for part in kept) >= MAX_CHUNK_BYTES:
                yield pa.concat_tables(kept)
                kept = []
        if kept:
            yield pa.concat_tables(kept)


def _of(rows: pa.Table, positions: RawPositions) -> pa.Table:
    return rows.filter(pa.array(np.isin(position_keys(rows), positions)))
