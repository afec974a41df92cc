"""Where in a run a hash can be: a filter that lets through one in 150 of the hashes that are not there, and the rows of each range.

Both cut the range of `hi` into equal slots of four rows on average, which uniform hashes fill evenly, and are in its order: sorted hashes
read them from front to back. The filter is a register-blocked Bloom filter: a word of 64 bits per slot, in which each row sets the four
bits of a pattern that its `lo` names. Three bytes per row: two for the filter, one for the rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ROWS_PER_SLOT = 4
_BITS = 4
_PIECE_ROWS = 32 * 1024
_PATTERN_BITS = np.uint64(12)
"""So many bits of `lo`, at its upper end (the lower one has decided the bucket), choose one of as many patterns as they tell apart."""

Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Sought:
    """Hashes that are looked for in several filters: `upper`, the upper half of `hi`, and `pattern`, the bits that a filter has of each."""

    hi: Words
    lo: Words
    upper: Words
    pattern: Words

    @classmethod
    def of(cls, hi: Words, lo: Words) -> "Sought":
        """`hi` is best sorted: filters and runs are read in order then."""
        return cls(hi, lo, hi >> _HALF, _PATTERNS.take((lo >> (np.uint64(64) - _PATTERN_BITS)).view(np.int64)))

    def take(self, places: Rows) -> "Sought":
        """Those at these places."""
        return Sought(self.hi[places], self.lo[places], self.upper[places], self.pattern[places])

    def slots(self, count: int) -> Rows:
        """Which of `count` equal slots of the range of `hi` each falls into; `count` < 2^32."""
        return _slots(self.upper, count)

    def pass_filter(self, words: Words) -> npt.NDArray[np.bool_]:
        """Which of them may be behind this filter; the others are not."""
        found = words.take(self.slots(len(words)), mode="clip")
        found &= self.pattern
        is_possible: npt.NDArray[np.bool_] = found == self.pattern
        return is_possible

    def enter(self, words: Words) -> None:
        """Sets their bits in this filter; their `hi` must be sorted."""
        slots = self.slots(len(words))
        is_last = np.append(slots[1:] != slots[:-1], True)
        # All words at once, as misses of the cache overlap then; those that share a word with the next one are few and set after it.
        words[slots] = words.take(slots, mode="clip") | self.pattern
        (others,) = (~is_last).nonzero()
        np.bitwise_or.at(words, slots[others], self.pattern[others])


def _slots(upper: Words, count: int) -> Rows:
    return ((upper * np.uint64(count)) >> _HALF).view(np.int64)


def pieces(hi: Words, lo: Words) -> Iterator[Sought]:
    """The hashes in pieces that fit into the processor's cache: all at once, fresh pages for what is in between cost more than all else."""
    return (Sought.of(hi[start : start + _PIECE_ROWS], lo[start : start + _PIECE_ROWS]) for start in range(0, len(hi), _PIECE_ROWS))


@dataclass(frozen=True)
class Index:
    """Of slots of the range of `hi`: `filter`, the bits of their rows, and `first_rows`, their first rows."""

    filter: Words
    first_rows: npt.NDArray[np.uint32]

    @staticmethod
    def slots(rows: int) -> int:
        """How many slots a run of so many rows has."""
        return max(1, rows // _ROWS_PER_SLOT)

    @classmethod
    def of(cls, hi: Words, lo: Words) -> "Index":
        """That of rows with these hashes, sorted; at least one row."""
        slots = cls.slots(len(hi))
        words, counts = np.zeros(slots, dtype=np.uint64), np.zeros(slots, dtype=np.int64)
        for piece in pieces(hi, lo):
            slot = piece.slots(slots)
            np.bitwise_or.at(words, slot, piece.pattern)
            found = np.bincount(slot - slot[0])
            counts[slot[0] : slot[0] + len(found)] += found
        return cls(words, (np.cumsum(counts) - counts).astype(np.uint32))

    def may_hold(self, sought: Sought) -> Rows:
        """Which of the hashes, by their places, may be there; the others are not."""
        places: Rows = sought.pass_filter(self.filter).nonzero()[0]
        return places

    def first_row(self, sought: Sought, at: Rows) -> Rows:
        """The row from which on each of the hashes at these places is, if it is there; the number of rows where there is none left."""
        return self.first_rows.take(_slots(sought.upper[at], len(self.first_rows)), mode="clip").astype(np.int64)


def _patterns() -> Words:
    """All patterns: the numbers of their bits are pieces of the number of the pattern times 2^64 divided by the golden ratio."""
    mixed = np.arange(1, 2 ** int(_PATTERN_BITS) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found = np.zeros(len(mixed), dtype=np.uint64)
    for number in range(_BITS):
        found |= np.uint64(1) << (mixed >> np.uint64(58 - 6 * number) & np.uint64(63))
    return found


_PATTERNS = _patterns()
