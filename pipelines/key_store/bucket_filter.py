"""One filter over the live runs of a bucket: most keys are new, and it tells so of them in one look, however many runs there are.

In memory only. Keys go into generations, each a filter for about as many keys as were live when it was begun. A run knows the oldest
generation with a key of it, so a generation goes with the last such run; a merge moves no key. Runs of other processes, or of before the
start, are no part of it until they were read, which is done a little with every batch.
"""

from collections.abc import Iterable

import numpy as np

from pipelines.key_store.index import Index, Rows, Sought, Words, pieces
from pipelines.key_store.segments import Run, RunFacts

_LEAST_ROWS = 64 * 1024
_ROWS_PER_KEY = 4
"""So many rows of uncovered runs are read per key that is looked up: after a start all are covered within half a window."""


class Cover:
    """Which hashes may be in the runs that it covers."""

    def __init__(self) -> None:
        self.generations: dict[int, Words] = {}
        self._room = 0
        self._oldest: dict[RunFacts, int] = {}
        self._may_read = 0

    def __contains__(self, facts: RunFacts) -> bool:
        return facts in self._oldest

    def may_hold(self, sought: Sought) -> Rows:
        """Which of the hashes, by their places, may be in a covered run; the others are not."""
        is_possible = np.zeros(len(sought.hi), dtype=bool)
        for words in self.generations.values():
            is_possible |= sought.pass_filter(words)
        places: Rows = is_possible.nonzero()[0]
        return places

    def add(self, facts: RunFacts, hi: Words, lo: Words, merged: Iterable[RunFacts], live_rows: int) -> None:
        """Covers a run of these hashes and of those of `merged`, unless one of these is not covered."""
        if any(one not in self for one in merged):
            return
        if self._room <= 0:
            self._room = max(_LEAST_ROWS, live_rows, len(hi))
            self.generations[max(self.generations, default=0) + 1] = np.zeros(Index.slots(self._room), dtype=np.uint64)
        newest = max(self.generations)
        for piece in pieces(hi, lo):
            piece.enter(self.generations[newest])
        self._room -= len(hi)
        self._oldest[facts] = min([newest, *(self._oldest[one] for one in merged)])

    def read(self, runs: Iterable[Run], keys: int, live_rows: int) -> None:
        """Covers uncovered ones of `runs`, as many as `keys` looked up pay for. Raises StateDamagedError for one with a damaged block."""
        self._may_read += _ROWS_PER_KEY * keys
        for run in runs:
            if run.facts not in self and run.facts.rows <= self._may_read:
                entries = run.checked_entries()
                self._may_read -= len(entries)
                self.add(run.facts, entries.hi, entries.lo, (), live_rows)
        self._may_read = min(self._may_read, live_rows)

    def keep(self, live: Iterable[RunFacts]) -> None:
        """Forgets all other runs, and what only they had."""
        self._oldest = {facts: self._oldest[facts] for facts in live if facts in self._oldest}
        first = min(self._oldest.values(), default=max(self.generations, default=0))
        self.generations = {number: words for number, words in self.generations.items() if number >= first}
