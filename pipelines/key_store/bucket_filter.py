"""One filter over the live segments of a bucket. Most keys are new; one probe rules them out, however many segments there are.

In memory only. Keys enter generations, each a filter for about as many keys as were live when it was created. A segment knows the oldest
generation with one of its keys, so a generation is dropped with the last such segment; a merge moves no key. Segments of other processes,
or of earlier starts, are not covered until they have been read: every batch reads a few.
"""

from collections.abc import Iterable

import numpy as np

from pipelines.key_store.index import Index, Rows, Sought, Words, pieces
from pipelines.key_store.segments import Run, RunFacts

_LEAST_ROWS = 64 * 1024
_ROWS_PER_KEY = 4
"""Rows of uncovered segments to read per key that is looked up: after a start all are covered within half a window."""


class BucketFilter:
    """Which hashes may be in the segments that it covers."""

    def __init__(self) -> None:
        self.generations: dict[int, Words] = {}
        self._room = 0
        self._oldest: dict[RunFacts, int] = {}
        self._may_read = 0

    def __contains__(self, facts: RunFacts) -> bool:
        return facts in self._oldest

    def may_hold(self, sought: Sought) -> Rows:
        """Return the places of the hashes that may be in a covered segment; the others are in none."""
        is_possible = np.zeros(len(sought.hi), dtype=bool)
        for words in self.generations.values():
            is_possible |= sought.pass_filter(words)
        indices: Rows = is_possible.nonzero()[0]
        return indices

    def add(self, facts: RunFacts, hi: Words, lo: Words, merged: Iterable[RunFacts], live_rows: int) -> None:
        """Cover a segment of these hashes and those of `merged`, unless one of `merged` is not covered."""
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
        """Cover uncovered segments, as many as `keys` looked up pay for. Raise StateDamagedError for a damaged block."""
        self._may_read += _ROWS_PER_KEY * keys
        for run in runs:
            if run.facts not in self and run.facts.rows <= self._may_read:
                hi, lo = run.checked_hashes()
                self._may_read -= len(hi)
                self.add(run.facts, hi, lo, (), live_rows)
        self._may_read = min(self._may_read, live_rows)

    def keep(self, live: Iterable[RunFacts]) -> None:
        """Forget all other segments, and the generations that only they used."""
        self._oldest = {facts: self._oldest[facts] for facts in live if facts in self._oldest}
        first = min(self._oldest.values(), default=max(self.generations, default=0))
        self.generations = {number: words for number, words in self.generations.items() if number >= first}
