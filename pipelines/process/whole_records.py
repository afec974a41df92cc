"""Records of several rows: what a step makes of their rows becomes what it makes of the records.

A function with `rows: many` makes several rows of a record, each with its number in `_tf_emit`; they stay neighbors, in the order of their
numbers. A record of which a step rejects a row is rejected whole, or its other rows would be doubled once it is redriven. It is dropped by
the step that leaves none of its rows; a row that is dropped beside others is not counted.
"""

import numpy as np
import pyarrow as pa

from pipelines.process.rejections import Rejections
from pipelines.protocol.positions import first_rows, is_first_row, position_keys
from pipelines.protocol.records import EMIT_FIELD, REFUSED_ROW_COLUMN, StageOutput, empty_rejected
from pipelines.types.vectors import Mask, Numbers, one_chunk, to_mask

_REASON = ("_tf_sequence", "_tf_ordinal", "stage", "code", "field", "message")


def are_several(rows: pa.Table) -> bool:
    """Return whether these rows are behind the step that makes several of a record."""
    return EMIT_FIELD.name in rows.column_names


def of_records(before: pa.Table, output: StageOutput) -> StageOutput:
    """Return the output of a step over the rows `before`, record by record. Of the reasons of a record the first in their order counts."""
    accepted, rejected = output.accepted, output.rejected
    if rejected.num_rows:
        # Where a batch was cut decides in which order its rows were rejected.
        rejected = first_rows(rejected.sort_by([(name, "ascending") for name in _REASON]))
        accepted = accepted.filter(pa.array(~np.isin(position_keys(accepted), position_keys(rejected))))
    dropped = int(is_first_row(before).sum()) - int(is_first_row(accepted).sum()) - rejected.num_rows
    totals = [*output.dropped]
    if dropped and len(totals) != 1:
        raise TypeError(f"a step has dropped {dropped} records of several rows with {len(totals)} outcomes")
    return StageOutput(accepted, rejected, dict.fromkeys(totals, dropped))


def numbers_of_rows(records: Numbers) -> pa.Array:
    """Return `_tf_emit` of rows, by the ascending numbers of their records: the place of each among the rows of its record."""
    starts = np.flatnonzero(np.diff(records, prepend=-1))
    lengths = np.diff(np.append(starts, len(records)))
    return pa.array((np.arange(len(records)) - np.repeat(starts, lengths)).astype(np.uint32))


def wanted_rows(records: pa.Table, of_record: Numbers, emits: pa.Array, rejections: Rejections, function: str) -> Mask:
    """Return which rows stay: of a record that was redriven for one refused row, that row alone. Note the records that have none.

    `of_record`: the number of the record of each row, ascending; `emits`: its own number.
    """
    if REFUSED_ROW_COLUMN not in records.column_names:
        return np.ones(len(of_record), dtype=bool)
    wanted = one_chunk(records.column(REFUSED_ROW_COLUMN)).cast(pa.int64())
    is_any, numbers = to_mask(wanted.is_null()), wanted.fill_null(0).to_numpy()
    stays: Mask = is_any[of_record] | (numbers[of_record] == emits.to_numpy())
    lacks = ~is_any & rejections.open
    lacks[of_record[stays]] = False
    (missing,) = np.nonzero(lacks)
    messages = [f"{function} gives no row {numbers[record]} of the record, which was refused before" for record in missing.tolist()]
    rejections.note_each(missing, "python_rows", None, messages)
    return stays


def without_lost_rows(records: pa.Table) -> StageOutput:
    """Return raw records, and those that were redriven for a row that their program, which makes one row of each, does not make."""
    if "refused_row" not in records.column_names:
        return StageOutput(records, empty_rejected())
    rejections = Rejections("python", records.num_rows)
    numbers = one_chunk(records.column("refused_row")).fill_null(0).to_numpy()
    (lost,) = np.nonzero(numbers)
    messages = [
        f"row {number} of the record was refused before, and no function makes several rows of it any more" for number in numbers[lost]
    ]
    rejections.note_each(lost, "python_rows", None, messages)
    return rejections.split(records, records)
