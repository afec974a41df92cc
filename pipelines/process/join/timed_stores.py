"""The two stores of a bucket's join by event time: right records, and left records whose match may still change, each by its own time."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.key_store.index import Words
from pipelines.key_store.segments import Entries, RunFacts
from pipelines.key_store.storage import Storage
from pipelines.key_store.timed import Stored, TimedStore
from pipelines.process.join.matches import Matches, Records, distinct
from pipelines.process.join.sides import Windows, before
from pipelines.process.join.stores import Candidates, Listings
from pipelines.protocol.bodies import NEVER
from pipelines.types.vectors import Mask


class TimedJoinStores:
    """One bucket's stores. `fields`: the schemas of the stored fields, (of the right side, of the left side). Not thread-safe.

    A left record stays until the watermark has come to the end of its window, or until it is decided and merged; a right one as long as a
    left record of an open window may have met it.
    """

    def __init__(self, right: Storage, left: Storage, fields: tuple[pa.Schema, pa.Schema], windows: Windows) -> None:
        self.windows = windows
        self.rights, self.lefts = TimedStore(right, fields[0]), TimedStore(left, fields[1], self._is_decided)

    def open(self, rights: Sequence[RunFacts], lefts: Sequence[RunFacts]) -> None:
        """Read these segments from now on, as the last `done` lists them. Raise StateDamagedError for a missing or foreign one."""
        self.rights.open(rights)
        self.lefts.open(lefts)

    def add(self, rights: Entries, lefts: Entries, span: tuple[int, int], watermark_us: int, has_turn: bool) -> Listings:
        """Write the entries of a range, as `KeyedStore.add` does; return what the next `done` lists.

        `watermark_us`: that of the last `done`. The stores themselves read the old listings until `open`.
        """
        kept_lefts = self.lefts.add(lefts, span, before(watermark_us, self.windows.left_us), has_turn)
        return self.rights.add(rights, span, before(watermark_us, self.windows.kept_by_time_us), has_turn), kept_lefts

    def listings(self) -> Listings:
        """Return the segments that are read, as `open` was given them."""
        return [*self.rights.live], [*self.lefts.live]

    def oldest_waiting(self, watermark_us: int) -> tuple[int, int] | None:
        """Return (position, time) of the first stored left record whose window is open at `watermark_us`; None without one."""
        open_ = self._candidates(self.lefts.of_times([(before(watermark_us, self.windows.left_us), _LAST)]))
        if not len(open_):
            return None
        first = int(open_.positions.argmin())
        return int(open_.positions[first]), int(open_.times_us[first])

    def passed(self, start_us: int, end_us: int) -> tuple[Candidates, Candidates]:
        """Return (left, right) stored records that a watermark passes on its way from `start_us` to `end_us`.

        A left record is passed at its own time, and at the end of its window; a right one at its own time.
        """
        own = (_one_before(start_us), _one_before(end_us))
        ends = (before(start_us, self.windows.left_us), before(end_us, self.windows.left_us))
        return self._candidates(self.lefts.of_times([own, ends])), self._candidates(self.rights.of_times([own]))

    def lefts_of(self, hi: Words, lo: Words, start_us: int) -> Candidates:
        """Return the stored left records of these keys, distinct and sorted, whose window is open at `start_us`."""
        return self._candidates(self.lefts.of_keys(hi, lo, before(start_us, self.windows.left_us)))

    def rights_of(self, hi: Words, lo: Words, start_us: int) -> Candidates:
        """Return the stored right records of these keys, distinct and sorted, that a left record open at `start_us` may meet."""
        return self._candidates(self.rights.of_keys(hi, lo, before(start_us, self.windows.kept_by_time_us)))

    def _is_decided(self, lefts: Entries, ended_us: int) -> Mask:
        """Return which left entries are decided at the watermark at which windows of `ended_us` have ended."""
        if ended_us == NEVER:
            return np.zeros(len(lefts), dtype=bool)
        watermark_us, records = ended_us + self.windows.left_us, Records.of_entries(lefts)
        rights = Records.of_stored(self.rights_of(*distinct(lefts.hi, lefts.lo), watermark_us))
        is_decided: Mask = Matches.of(records, rights, self.windows).final_us <= watermark_us
        return is_decided

    @staticmethod
    def _candidates(found: Stored) -> Candidates:
        return Candidates.of(found) if found else Candidates.none()


_LAST = int(np.iinfo(np.int64).max)


def _one_before(time_us: int) -> int:
    return before(time_us, 1)
