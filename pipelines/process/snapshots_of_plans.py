"""Programs with the snapshots of the plans that covered some frames, for work that goes over processed records again.

In: the entries of the process chain. Out: the program of each frame. Kept: the snapshots that ranges name.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from pipelines.lookups.storage import Snapshots
from pipelines.process.arrivals import Arrived
from pipelines.process.program import Program
from pipelines.process.stage_config import with_snapshots
from pipelines.protocol.bodies import ProcessDone
from pipelines.protocol.ledger import Open, Plan


class SnapshotsOfPlans:
    """The snapshots of a chain's ranges, by the last raw sequence of each."""

    def __init__(self, snapshots: Snapshots, entries: Iterable[Open | Plan | ProcessDone]) -> None:
        self._snapshots = snapshots
        ranges = {entry.to: entry.lookups for entry in entries if isinstance(entry, ProcessDone)}
        self._ends = sorted(ranges)
        self._lookups = [ranges[end] for end in self._ends]

    def program(self, program: Program, sequence: int) -> Program:
        """Return a program with the snapshots of the range in which a frame is, or of the last range if it is behind all.

        Raise HaltError if that range names none of a table that the program reads.
        """
        if not program.lookups:
            return program
        return with_snapshots(program, self._snapshots, self._of(sequence))

    def _of(self, sequence: int) -> Mapping[str, str]:
        return self._lookups[min(bisect_left(self._ends, sequence), len(self._ends) - 1)] if self._ends else {}

    def parts(self, program: Program, frames: Sequence[Arrived]) -> Iterator[tuple[Program, list[Arrived]]]:
        """Yield frames with the program for them, cut where other snapshots begin."""
        if not program.lookups:
            yield program, list(frames)
            return
        for lookups, part in groupby(frames, key=lambda frame: sorted(self._of(frame.message.sequence).items())):
            yield with_snapshots(program, self._snapshots, dict(lookups)), list(part)
