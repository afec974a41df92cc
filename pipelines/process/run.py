"""Raw frames through the steps of a program before the exchange. Pure: no Spark, no socket.

In: whole raw frames. Out: their rows, dead letters and counts (`Made`). The records of each source pass the steps of their lane first, then
those of all pass the rest together, in position order.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.arrivals import Arrived, records_of, sourced_records_of
from pipelines.process.dead_letter_rows import dead_letters
from pipelines.process.isolation import INTERNAL_ERROR, Decided, take_out
from pipelines.process.program import Program
from pipelines.process.steps import pass_through
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.positions import in_position_order
from pipelines.protocol.records import StageOutput, joined
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

if TYPE_CHECKING:
    from pipelines.engine.connections import Connections

T = TypeVar("T")
Renew = Callable[[], Engine]
"""Opens another engine, if an error of a step has ended the one before."""


@dataclass(frozen=True)
class Made:
    """The output of a program for raw frames.

    With dedup, `rows` are the rows that cross the exchange, and are not counted as written yet; those with a mark (`drop_marks`) come last,
    or, if windows are measured on a field, all are in position order. With a join they are the rows of both sides, in position order.
    """

    rows: pa.Table
    dead_letters: pa.Table
    counts: dict[str, int]


def run_step(connections: "Connections", program: Program, frames: Sequence[Arrived], decided: Decided) -> Made:
    """Do `run` in the engine of a leg's work."""
    return in_engine(connections, lambda engine, renew: run(program, engine, frames, decided, renew), lambda made: made.dead_letters)


def in_engine(connections: "Connections", work: Callable[[Engine, Renew], T], rejected: Callable[[T], pa.Table]) -> T:
    """Return what `work` does in the engine of a leg's work; discard an engine that an error may have left unusable.

    `rejected`: returns the records that the work has rejected, with their codes.
    """
    try:
        done = work(connections.engine, connections.means.open_engine)
    except Exception:
        connections.discard_engine()
        raise
    if INTERNAL_ERROR in rejected(done).column("code").unique().to_pylist():
        connections.discard_engine()
    return done


def run(program: Program, engine: Engine, frames: Sequence[Arrived], decided: Decided = (), renew: Renew = open_engine) -> Made:
    """Take whole raw frames through the steps before the exchange.

    A record on which a step ends becomes a dead letter of INTERNAL_ERROR; so do the records of `decided`, which are not tried.
    """
    records = records_for(program, frames)
    passed = run_records(program, engine, records, decided, renew)
    rejected = passed.rejected
    counts = {**new_counts(), "frames": len(frames), "rows_in": records.num_rows, REJECTED.total: rejected.num_rows, **passed.dropped}
    if not program.is_keyed:
        counts |= program.tables.counts(passed.accepted)
    counts |= counts_of_reasons(rejected)
    source = program.lanes[0].source if len(program.lanes) == 1 else None
    return Made(passed.accepted, dead_letters(records, rejected, program.version, source), counts)


def records_for(program: Program, frames: Sequence[Arrived]) -> pa.Table:
    """Return the records of whole raw frames as the program reads them, in the order of the frames."""
    read = records_of if len(program.lanes) == 1 else sourced_records_of
    return joined([read(frame.message, frame.arrival_us) for frame in frames])


def run_records(program: Program, engine: Engine, records: pa.Table, decided: Decided = (), renew: Renew = open_engine) -> StageOutput:
    """Take records as `records_for` returns them, in position order, through the steps; see `run`."""
    tried = take_out(records, decided)
    context = program.context(engine)
    by_lane = list(zip(program.lane_paths, program.by_lane(tried.accepted), strict=True))
    present = [(path, mine) for path, mine in by_lane if mine.num_rows] or by_lane[:1]
    lanes = [pass_through(path, context, mine, renew) for path, mine in present]
    parts = lanes
    if program.join is not None:
        rows = in_position_order(joined([lane.accepted for lane in lanes]))
    else:
        passed = pass_through(program.shared_path, context, program.united([lane.accepted for lane in lanes]), renew)
        parts = [*lanes, passed]
        rows = program.dedup.sealed(joined([passed.accepted, *passed.marked]) if passed.marked else passed.accepted)
    rejected = pa.concat_tables([tried.rejected, *(part.rejected for part in parts)])
    return StageOutput(rows, rejected, sum((Counter(part.dropped) for part in parts), Counter[str]()))


def counts_of_reasons(rejected: pa.Table) -> dict[str, int]:
    """Return the number of rejected records (`REJECTED_SCHEMA`) by stage and code, by the names of their totals."""
    if not rejected.num_rows:
        return {}
    reasons = pc.value_counts(pc.binary_join_element_wise("rejected", rejected.column("stage"), rejected.column("code"), "."))
    return {reason["values"]: reason["counts"] for reason in reasons.to_pylist()}


def new_counts() -> dict[str, int]:
    return {"rows_in": 0, "rows_out": 0, "rows_rejected": 0, "frames": 0}


def add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    """Add `more` to `counts`, name by name."""
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
