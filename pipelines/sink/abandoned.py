"""Abandoned rows of the sink: `tallyflow plan abandon` writes their numbers into the plan before they become dead letters.

A plan with abandoned rows is finished by these dead letters alone, by the command or the next runner, whichever comes first: nothing of it
is inserted.
"""

import zlib
from base64 import b64decode, b64encode

import numpy as np
import numpy.typing as npt

from pipelines.engine.connections import Connections
from pipelines.engine.leg import input_mark
from pipelines.protocol.bodies import Abandoned, SinkDone, SinkPlan
from pipelines.protocol.outcomes import ABANDONED, DIVERTED, REJECTED
from pipelines.sink.chunks import Chunk, Pieces
from pipelines.sink.fallback import divert
from pipelines.sink.refused_rows import Refused, append_refused

Numbers = npt.NDArray[np.intp]


def abandonment(rows: Numbers, of: int, reason: str) -> Abandoned:
    """Return the entry of a plan of `of` rows that abandons the rows of these numbers, counted from 0.

    It takes a bit for each row: 16 KiB per 100,000.
    """
    bits = np.zeros(of, dtype=bool)
    bits[rows] = True
    return Abandoned(reason, len(rows), b64encode(zlib.compress(np.packbits(bits).tobytes())).decode())


def abandoned_rows(found: Abandoned | None, rows: int) -> Refused | None:
    """Return (row, reason) of the rows that the plan of a chunk of `rows` rows has abandoned, ascending; None if it abandons none."""
    if found is None:
        return None
    packed = np.frombuffer(zlib.decompress(b64decode(found.bits)), dtype=np.uint8)
    return tuple((row, found.reason) for row in np.flatnonzero(np.unpackbits(packed, count=rows)).tolist())


def closing(connections: Connections, plan: SinkPlan, chunk: Chunk, refused: Refused, abandoned: Refused = ()) -> SinkDone:
    """Append the refused rows of a chunk for the fallback, the dead letters of the others, and return its `done`."""
    kept = divert(connections, plan, chunk, refused)
    diverted, refused = len(refused) - len(kept), kept
    rejected = len(refused) + len(abandoned)
    counts = {"rows_in": chunk.rows, "rows_out": chunk.rows - rejected - diverted, "chunks": 1, "frames": len(chunk.messages)}
    if diverted:
        counts[DIVERTED.total] = diverted
    if rejected:
        append_refused(connections, plan, chunk, refused, abandoned)
        by_code = {"rejected.sink.refused": len(refused), ABANDONED.total: len(abandoned)}
        counts |= {REJECTED.total: rejected, **{name: count for name, count in by_code.items() if count}}
    return SinkDone(start=plan.start, to=plan.to, counts=counts, input=input_mark(chunk.messages[-1]))


def close_abandoned(connections: Connections, plan: SinkPlan, chunk: Chunk, abandoned: Refused) -> SinkDone:
    """Return the `done` of an abandoned plan, as `closing` does: rows that ClickHouse refused before stay refused."""
    return closing(connections, plan, chunk, Pieces.of(plan.pieces, chunk.rows).refused, abandoned)
