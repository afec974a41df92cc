"""The replay behind a rebuild of key stores: the frames that are left, under the configurations and decisions of their plans.

What becomes of each portion is a matter of the pipeline's keyed steps (`rebuild_dedup`, `rebuild_join`).
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.errors import DataLossError
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.replay import Start, process_entries
from pipelines.process.arrivals import Arrived, arrivals, steps
from pipelines.process.program import Program
from pipelines.process.run import add_counts, new_counts, run
from pipelines.process.stage_config import planned
from pipelines.progress import Progress
from pipelines.protocol.bodies import Poison, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import Open
from pipelines.protocol.purge import Purged, read_purged
from pipelines.protocol.run_lists import Listing, Lists

FRAMES_PER_PORTION = 120
"""Frames that are replayed together; a frame has some thousand records of usual size."""


@dataclass(frozen=True)
class Rebuilt:
    """The records read, what became of them, by its label, and the contents of the new stores."""

    records: int
    entries: int
    runs: int
    outcomes: dict[str, int] = field(default_factory=dict)


class Rebuilding(ABC):
    """The growing new stores. Until they are listed their segments belong to no reader, so a merge deletes its inputs at once."""

    def __init__(self, state: KeyState, done: ProcessDone, end: int) -> None:
        self._state, self._connections, self._done, self._end = state, state.connections, done, end
        self._counts: Counter[str] = Counter(new_counts())
        self._at = Start()
        self._totals_before: dict[str, int] = {}
        self._poison: dict[tuple[int, int], Poison] = {}
        """Decisions of plans about records on which a stage ends, by sequence and ordinal."""
        self._times: dict[int, tuple[int, int, int, int]] = {}
        """The facts of frames that plans have kept (`ProcessPlan.times`), by sequence, but for the marks."""
        self.runs: Lists = {}
        """The new segments by store and bucket, in the ledger's form."""

    @abstractmethod
    def _begin_behind(self, purged: Purged) -> None:
        """Prepare to replay what is left behind a purge. Raise DataLossError if that is not enough."""

    @abstractmethod
    def _replay(self, frames: Sequence[Arrived], config: Program) -> None:
        """Replay one portion through the stages of its plan, and write its keys to the stores."""

    @abstractmethod
    def result(self) -> Rebuilt:
        """Return the counts. Raise InvariantError if they differ from the ledger's."""

    def replay_all(self, progress: Progress, frames_per_portion: int) -> None:
        """Replay all needed frames up to the last `done`, in portions of one configuration."""
        log, stream, to = self._connections.log, self._state.names.stream("raw"), self._done.to
        purged = read_purged(log, self._state.names, "raw")
        held = log.state(stream)
        if held is None or (not purged.below and held.first_sequence > 1):
            begins = "does not exist" if held is None else f"begins at sequence {held.first_sequence}"
            raise DataLossError(f"rebuilding the key store: {stream} {begins}, earlier records cannot be replayed; restore a backup")
        if purged.below:
            self._begin_behind(purged)
        begin = self._at.sequence
        for start, end, version, lookups in self._ranges(begin):
            messages = fetch_whole(log, stream, self._state.names.subjects("raw"), start, min(end, to))
            frames = arrivals(messages, self._at.clock_us, self._done.clock_resets)
            while portion := list(islice(frames, frames_per_portion)):
                sequences = [frame.message.sequence for frame in portion]
                check_contiguous(stream, sequences, self._at.sequence, sequences[-1])
                self._replay(portion, planned(self._connections, version, lookups))
                progress("replaying the raw stream", self._at.sequence - begin, to - begin)

    def _entries(self) -> Iterator[Open | ProcessPlan | ProcessDone]:
        return process_entries(self._connections.log, self._state.names, self._end)

    def _counted(self, name: str) -> int:
        return self._done.totals.get(name, 0) - self._totals_before.get(name, 0)

    def _ranges(self, begin: int) -> list[tuple[int, int, str, dict[str, str]]]:
        """Return (from, to, configuration, snapshots of look-up tables) of the ranges after `begin`; neighbors that share both are one.

        It adds the decisions of their plans to `_poison`.
        """
        ranges: list[tuple[int, int, str, dict[str, str]]] = []
        for plan in self._entries():
            if not isinstance(plan, ProcessPlan) or plan.to > self._done.to or plan.start < begin:
                continue
            start, to, version = plan.start, plan.to, plan.config
            self._poison |= {(poison[0], poison[1]): poison for poison in plan.poison}
            self._times |= {fact[0]: fact for fact in plan.times if not fact[3] & 1}
            if ranges and ranges[-1][2:] == (version, plan.lookups):
                ranges[-1] = (ranges[-1][0], to, *ranges[-1][2:])
            else:
                ranges.append((start, to, version, plan.lookups))
        return ranges

    def _made(self, config: Program, frames: Sequence[Arrived]) -> list[pa.Table]:
        """Return the rows of the frames behind the stages; records that a plan has decided are not tried again."""
        first, last = frames[0].message.sequence, frames[-1].message.sequence
        decided = tuple(poison for (sequence, _), poison in self._poison.items() if first <= sequence <= last)
        rows = []
        for step in steps(frames):
            made = run(config, self._connections.engine, step, decided)
            add_counts(self._counts, made.counts)
            rows.append(made.rows)
        return rows

    def _list(self, key: str, runs: Listing) -> None:
        """Take the new listing of a store's bucket, and delete the segments that it replaces."""
        for name in {name for name, *_ in self.runs.get(key, [])} - {name for name, *_ in runs}:
            self._connections.segments(key).delete(name)
        self.runs[key] = runs

    def _stored(self) -> tuple[int, int]:
        """Return the numbers of entries and of segments."""
        rows = [rows for listing in self.runs.values() for _, rows, *_ in listing]
        return sum(rows), len(rows)
