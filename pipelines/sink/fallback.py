"""Refused rows for the fallback of a sink: their records, taken through the steps again to the columns of the fallback's table.

In: the refused rows of a chunk, as its plan has them. Out: frames on the stream that the fallback's sink reads, on the subject of the
bucket of the out frame that held the row, under the positions of the records and the configuration of the plan. The refusing sink is the
only writer there, and rows of a bucket are in position order, so a replay appends nothing twice. The steps are functions of the record (a
program with a fallback calls no code of the user's), so a replay makes the same rows. A record that does not fit the fallback's columns
stays refused.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.engine.connections import Connections
from pipelines.process.arrivals import read_again
from pipelines.process.refused import rows_of_refused
from pipelines.process.stage_config import config_of
from pipelines.protocol.append import Appender, append_rows, last_position
from pipelines.protocol.bodies import SinkPlan
from pipelines.protocol.failpoints import reach
from pipelines.protocol.naming import bucket_of_subject
from pipelines.protocol.positions import Position, RawPositions, position_keys
from pipelines.protocol.records import HEADER_CONFIG, decode_columns, describe_frame
from pipelines.sink.chunks import Chunk
from pipelines.sink.refused_rows import Refused
from pipelines.types.engine import Engine

_PLACE = ["_tf_sequence", "_tf_ordinal", "_tf_arrival"]


class _Found(NamedTuple):
    """The refused rows of a chunk, ascending: their records' places and keys, and their buckets. `last_of`: the end of each bucket."""

    places: pa.Table
    keys: RawPositions
    buckets: list[int]
    last_of: dict[int, Position]


def divert(connections: Connections, plan: SinkPlan, chunk: Chunk, refused: Refused) -> Refused:
    """Append the refused rows for the fallback; return those that do not fit its table, all of them without a fallback.

    Raise RetryableError while a raw frame is not served.
    """
    fallback = connections.config.topology.fallback_of(connections.config.sink_leg)
    if fallback is None or not refused:
        return refused
    names, program, found = connections.names, config_of(connections, plan.config), _found(chunk, refused)
    records = read_again(connections.log, names.stream("raw"), found.places)
    records = records.filter(pa.array(np.isin(position_keys(records), found.keys)))
    reasons = dict(zip(found.keys.tolist(), (reason for _, reason in refused), strict=True))

    def renew() -> Engine:
        connections.discard_engine()
        return connections.engine

    rows = rows_of_refused(program, connections.engine, records, reasons, renew)
    made = position_keys(rows)
    for bucket, last in found.last_of.items():
        mine = rows.filter(pa.array(np.isin(made, found.keys[[one == bucket for one in found.buckets]])))
        role = fallback.input_role
        subject = names.out(bucket, role)
        appender = Appender(connections.log, names.stream(role), subject, last_position, last, framing=connections.means.framing)
        append_rows(appender, mine, {HEADER_CONFIG: plan.config})
    reach("sink.after-divert")
    fits = np.isin(found.keys, made)
    return tuple(one for one, is_diverted in zip(refused, fits, strict=True) if not is_diverted)


def _found(chunk: Chunk, refused: Refused) -> _Found:
    places: list[pa.Table] = []
    buckets: list[int] = []
    last_of: dict[int, Position] = {}
    first = 0
    for message in chunk.messages:
        bucket = bucket_of_subject(message.subject)
        begin, end = (bisect_left(refused, (row,)) for row in (first, first + message.rows))
        if begin < end:
            rows = decode_columns(message.payload, _PLACE, describe_frame(message))
            places.append(rows.take(pa.array([row - first for row, _ in refused[begin:end]])))
            buckets += [bucket] * (end - begin)
        last_of[bucket] = last_position(message)
        first += message.rows
    together = pa.concat_tables(places)
    return _Found(together, position_keys(together), buckets, last_of)
