"""Index of a segment: a filter that passes one in 150 of the hashes that are absent, and the first row of each slot.

Both divide the range of `hi` into equal slots of four rows on average, which uniform hashes fill evenly, and are in its order: sorted
hashes read them from front to back. The filter is a register-blocked Bloom filter: a word of 64 bits per slot, in which each row sets the
four bits of a pattern that its `lo` selects. Three bytes per row: two for the filter, one for the first rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ROWS_PER_SLOT = 4
_BITS = 4
_PIECE_ROWS = 32 * 1024
_PATTERN_BITS = np.uint64(12)
"""Upper bits of `lo` (the lower ones have chosen the bucket) that select one of 2^12 patterns."""

Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Sought:
    """Hashes to look up in several filters: `upper`, the upper half of `hi`, and `pattern`, the bits of each hash in a filter."""

    hi: Words
    lo: Words
    upper: Words
    pattern: Words

    @classmethod
    def of(cls, hi: Words, lo: Words) -> "Sought":
        """Build the lookup of these hashes; `hi` is best sorted: filters and segments are then read in order."""
        return cls(hi, lo, hi >> _HALF, _PATTERNS.take((lo >> (np.uint64(64) - _PATTERN_BITS)).view(np.int64)))

    def take(self, indices: Rows) -> "Sought":
        """Return the hashes at these places."""
        return Sought(self.hi[indices], self.lo[indices], self.upper[indices], self.pattern[indices])

    def slots(self, count: int) -> Rows:
        """Return the slot of each hash, of `count` equal slots of the range of `hi`; `count` < 2^32."""
        return _slots(self.upper, count)

    def pass_filter(self, words: Words) -> npt.NDArray[np.bool_]:
        """Return which hashes may be behind this filter; the others are not."""
        found = words.take(self.slots(len(words)), mode="clip")
        found &= self.pattern
        is_possible: npt.NDArray[np.bool_] = found == self.pattern
        return is_possible

    def enter(self, words: Words) -> None:
        """Set the bits of the hashes in this filter; their `hi` must be sorted."""
        slots = self.slots(len(words))
        is_last = np.append(slots[1:] != slots[:-1], True)
        # All words at once, so that cache misses overlap; the few hashes that share a word with the next one are set afterwards.
        words[slots] = words.take(slots, mode="clip") | self.pattern
        (others,) = (~is_last).nonzero()
        np.bitwise_or.at(words, slots[others], self.pattern[others])


def _slots(upper: Words, count: int) -> Rows:
    return ((upper * np.uint64(count)) >> _HALF).view(np.int64)


def pieces(hi: Words, lo: Words) -> Iterator[Sought]:
    """Yield the hashes in pieces that fit into the processor's cache: fresh pages for intermediate arrays would cost more than the work."""
    return (Sought.of(hi[start : start + _PIECE_ROWS], lo[start : start + _PIECE_ROWS]) for start in range(0, len(hi), _PIECE_ROWS))


@dataclass(frozen=True)
class Index:
    """An index by slots of the range of `hi`: `filter`, the bits of their rows, and `first_rows`, their first rows."""

    filter: Words
    first_rows: npt.NDArray[np.uint32]

    @staticmethod
    def slots(rows: int) -> int:
        """Return the number of slots of a segment with this many rows."""
        return max(1, rows // _ROWS_PER_SLOT)

    @classmethod
    def of(cls, hi: Words, lo: Words) -> "Index":
        """Build the index of rows with these hashes, sorted; at least one row."""
        slots = cls.slots(len(hi))
        words, counts = np.zeros(slots, dtype=np.uint64), np.zeros(slots, dtype=np.int64)
        for piece in pieces(hi, lo):
            slot = piece.slots(slots)
            np.bitwise_or.at(words, slot, piece.pattern)
            found = np.bincount(slot - slot[0])
            counts[slot[0] : slot[0] + len(found)] += found
        return cls(words, (np.cumsum(counts) - counts).astype(np.uint32))

    def may_hold(self, sought: Sought) -> Rows:
        """Return the places of the hashes that may be in the segment; the others are not."""
        indices: Rows = sought.pass_filter(self.filter).nonzero()[0]
        return indices

    def first_row(self, sought: Sought, at: Rows) -> Rows:
        """Return the first row at which each hash at these places may be; the number of rows if none is left."""
        return self.first_rows.take(_slots(sought.upper[at], len(self.first_rows)), mode="clip").astype(np.int64)

    def row_range(self, sought: Sought, at: Rows, rows: int) -> tuple[Rows, Rows]:
        """Return the first row of the slot of each hash at these places, and the first row behind it; `rows`: those of the segment."""
        slots = _slots(sought.upper[at], len(self.first_rows))
        following = np.where(slots + 1 < len(self.first_rows), self.first_rows.take(slots + 1, mode="clip"), rows)
        return self.first_rows.take(slots).astype(np.int64), following


def _patterns() -> Words:
    """Build all patterns; the bit numbers are pieces of the pattern's number times 2^64 divided by the golden ratio."""
    mixed = np.arange(1, 2 ** int(_PATTERN_BITS) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = np.zeros(len(mixed), dtype=np.uint64)
    for number in range(_BITS):
        found |= np.uint64(1) << (mixed >> np.uint64(58 - 6 * number) & np.uint64(63))
    return found


_PATTERNS = _patterns()
