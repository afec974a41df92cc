"""The join in a trial: the rows of both sides, portion after portion, over stores of the caller's.

A left record may end in a later portion than its own: it is noted when it does.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.key_store.storage import Storage
from pipelines.key_store.store import bucket_with_turn
from pipelines.process.arrivals import Arrived
from pipelines.process.buckets import key_owners, shares
from pipelines.process.join.progress import TimedFrames
from pipelines.process.join.rows import RIGHT_COLUMNS
from pipelines.process.join.sides import Frames
from pipelines.process.joining import facts_by, frames_of
from pipelines.process.program import Program
from pipelines.process.steps.join import IS_RIGHT_COLUMN, Join, unmatched
from pipelines.process.watermarks import Clocks
from pipelines.protocol.positions import CAUSE_COLUMNS
from pipelines.protocol.records import empty_rejected, joined

KEPT, UNMATCHED, WAITING = "kept", "unmatched", "waiting"


class JoinTrial:
    """The join of a program over frames. `directory`: of the stores."""

    def __init__(self, program: Program, join_step: Join, directory: Path) -> None:
        self.step, self._buckets = join_step, program.buckets
        self._program = program
        places = [[Storage.local(directory / side / str(bucket)) for side in ("right", "left")] for bucket in range(program.buckets)]
        self._stores = [join_step.open_stores(right, left) for right, left in places]

    def frames(self, frames: Sequence[Arrived], rows: pa.Table, clocks: Clocks) -> Frames | TimedFrames:
        """Return what the join goes by of the next frames, of which these are the rows of both sides; `clocks`: those before them."""
        arrivals, facts = [frame.arrival_us for frame in frames], facts_by(self._program, rows, (frame.message for frame in frames))
        return frames_of(self.step, frames[0].message.sequence - 1, clocks, arrivals, facts)

    def take(self, frames: Frames | TimedFrames, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Join the rows of the next frames, none of them late.

        Return (all left records that this decides, the rejected of them), in the order of causes.
        """
        by_bucket = dict(shares(rows, key_owners(rows, self._buckets)))
        span = (int(frames.sequences[0]) - 1, int(frames.sequences[-1]))
        decided: list[pa.Table] = []
        for bucket, stores in enumerate(self._stores):
            made = self.step.joined(by_bucket.get(bucket), frames, stores)
            decided += [part.rows for part in made.slices(with_unmatched=True)]
            has_turn = bucket_with_turn(span[1], self._buckets) == bucket
            stores.open(*stores.add(made.new_rights, made.new_lefts, span, frames.start_us, has_turn))
        return self._parted(decided)

    def _parted(self, decided: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
        if not decided:
            return pa.table({}), empty_rejected()
        rows = joined(list(decided)).sort_by([(name, "ascending") for name in CAUSE_COLUMNS])
        is_alone = pc.is_null(rows.column(RIGHT_COLUMNS[0]))
        rejected = unmatched(rows.filter(is_alone), self.step) if self.step.unmatched == "dead_letter" else empty_rejected()
        return rows, rejected

    def none(self, clocks: Clocks) -> pa.Table:
        """Return no row, with the columns of rows that the join lets pass."""
        return self.step.joined(None, frames_of(self.step, 0, clocks, (), ()), self._stores[0]).none

    def passed(self, decided: pa.Table) -> pa.Table:
        """Return the rows that the join lets pass, of those that it has decided."""
        if self.step.unmatched == "emit":
            return decided
        return decided.filter(pc.is_valid(decided.column(RIGHT_COLUMNS[0])))


def sides_of(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return (left rows, right rows) of those before a join."""
    is_right = rows.column(IS_RIGHT_COLUMN)
    return rows.filter(pc.invert(is_right)), rows.filter(is_right)
