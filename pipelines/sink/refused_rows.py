"""Dead letters of the sink: rows that ClickHouse refuses or that were abandoned, with the records from which they were made.

A dead letter's subject is `dlq.<leg>.<bucket>` of the out frame that holds the row. Rows of one bucket are in the order of their positions
there, those of a join in that of their causes, so these dead letters are appended by the position rule like all others, and a replay
appends nothing.
"""

from bisect import bisect_left

import numpy as np
import pyarrow as pa

from pipelines.engine.connections import Connections
from pipelines.process.arrivals import read_again
from pipelines.process.dead_letter_rows import dead_letters, with_causes
from pipelines.process.rejection_limit import describe_position
from pipelines.process.rejections import Rejections
from pipelines.process.stage_config import config_of
from pipelines.protocol.append import Appender, append_rows, last_position
from pipelines.protocol.bodies import SinkPlan
from pipelines.protocol.naming import bucket_of_subject
from pipelines.protocol.positions import CAUSE_COLUMNS, SEQUENCE_AND_ORDINAL, Position
from pipelines.protocol.records import EMIT_FIELD, REJECTED_SCHEMA, Message, decode_frame, describe_frame
from pipelines.sink.chunks import Chunk

Refused = tuple[tuple[int, str], ...]
"""(row, reason), rows counted from 0 within the chunk, ascending."""


def append_refused(connections: Connections, plan: SinkPlan, chunk: Chunk, refused: Refused, abandoned: Refused = ()) -> None:
    """Append the dead letters of a chunk's refused and abandoned rows. Raise RetryableError while a raw frame is not served."""
    coded = sorted([*((row, "refused", reason) for row, reason in refused), *((row, "abandoned", reason) for row, reason in abandoned)])
    leg = connections.config.sink_leg
    rows_of: dict[int, list[pa.Table]] = {}
    last_of: dict[int, Position] = {}
    first = 0
    for message in chunk.messages:
        bucket = bucket_of_subject(message.subject)
        last_of[bucket] = last_position(message)
        begin, end = (bisect_left(coded, (row,)) for row in (first, first + message.rows))
        here = [(row - first, code, reason) for row, code, reason in coded[begin:end]]
        first += message.rows
        if here:
            rows_of.setdefault(bucket, []).append(_rejected_rows(message, here))
    for bucket, found in rows_of.items():
        rejected = pa.concat_tables(found)
        names = connections.names
        records = read_again(connections.log, names.stream("raw"), rejected)
        several = [EMIT_FIELD.name] if config_of(connections, plan.config).makes_several else []
        table = dead_letters(records, rejected.select([*REJECTED_SCHEMA.names, *several]), plan.config, source=None, refused_by=leg)
        stream, subject = names.stream("dlq"), names.dead_letters(leg, bucket)
        appender = Appender(connections.log, stream, subject, last_position, last_of[bucket], framing=connections.means.framing)
        if CAUSE_COLUMNS[0] in rejected.column_names:
            append_rows(appender, with_causes(table, rejected), beside=CAUSE_COLUMNS)
        elif several:
            append_rows(appender, table.append_column(EMIT_FIELD, table.column("refused_row")), beside=several)
        else:
            append_rows(appender, table)


def describe_row(chunk: Chunk, row: int) -> str:
    """Return the place of the record of a row of the chunk, in words."""
    for message in chunk.messages:
        if row < message.rows:
            return describe_position(decode_frame(message.payload, describe_frame(message)).slice(row, 1))
        row -= message.rows
    raise IndexError(row)


def _rejected_rows(message: Message, coded: list[tuple[int, str, str]]) -> pa.Table:
    """Return REJECTED_SCHEMA of the refused and abandoned rows of one out frame, (row, code, reason) each.

    Beside it their arrivals, their numbers among the rows of their records, and causes.
    """
    places, codes, reasons = zip(*coded, strict=True)
    frame = decode_frame(message.payload, describe_frame(message))
    beside = ["_tf_arrival", EMIT_FIELD.name, *(name for name in CAUSE_COLUMNS if name in frame.column_names)]
    rows = frame.select([*SEQUENCE_AND_ORDINAL, *beside]).take(pa.array(places))
    rejections = Rejections("sink", len(places))
    by_code = {code: [row for row, found in enumerate(codes) if found == code] for code in ("refused", "abandoned")}
    rejections.note_each(np.array(by_code["refused"], dtype=np.int64), "refused", None, [reasons[row] for row in by_code["refused"]])
    rejections.note_each(np.array(by_code["abandoned"], dtype=np.int64), "abandoned", None, [reasons[row] for row in by_code["abandoned"]])
    rejected = rejections.split(rows, rows).rejected
    for name in beside:
        rejected = rejected.append_column(name, rows.column(name))
    return rejected
