"""Records whose row a sink's table has refused, taken to the columns of the fallback's table.

In: the raw records and the reason of each refusal. Out: the rows of the fallback, with the position columns, in position order. A record
passes the steps before the mapping once more; dedup has accepted it. Kept: nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from pipelines.config.sinks import ERROR_FIELD, REFUSING_SINK_FIELD
from pipelines.process.program import Program
from pipelines.process.steps import Step, pass_through
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.mapping import MapToTables
from pipelines.protocol.positions import position_keys
from pipelines.types.engine import Engine


def rows_of_refused(
    program: Program, engine: Engine, records: pa.Table, reasons: Mapping[int, str], renew: Callable[[], Engine]
) -> pa.Table:
    """Return the fallback's rows of the records that the table of `program.leg` has refused; none of a record that does not fit them.

    `reasons`: why, by the key of the record's position. `renew` opens another engine if a step's error has ended this one. Raise ValueError
    for a sink without a fallback.
    """
    fallback = program.tables.fallback_of(program.leg)
    if fallback is None:
        raise ValueError(f"the sink {program.leg} has no fallback")
    context = replace(program.context(engine), carried=())
    by_lane = zip(program.lanes, program.by_lane(records), strict=True)
    lanes = [pass_through(_whole(lane.steps), context, mine, renew).accepted for lane, mine in by_lane if mine.num_rows]
    shared = [step for step in program.shared[:-1] if not isinstance(step, Dedup)]
    passed = program.united(lanes)
    if shared:
        passed = pass_through(_whole(shared), context, passed, renew).accepted
    why = pa.array([reasons[key] for key in position_keys(passed).tolist()], pa.string())
    refuser = pa.repeat(pa.scalar(program.leg, pa.string()), passed.num_rows)
    fields = passed.append_column(ERROR_FIELD, why).append_column(REFUSING_SINK_FIELD, refuser)
    alone = MapToTables((replace(fallback, refused_by=""),))
    return pass_through(_whole([alone]), context, fields, renew).accepted


def _whole(steps: Sequence[Step]) -> list[tuple[Step, frozenset[str]]]:
    """Return the path of steps behind each of which every column is kept."""
    return [(step, frozenset()) for step in steps]
