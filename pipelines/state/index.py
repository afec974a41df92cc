"""Where in a run a hash can be: a filter that most hashes which are not there fail, and the rows of each range of hashes.

Both cut the range of `hi` into equal slots, which uniform hashes fill evenly, and are in its order: sorted hashes read them from front
to back.
A hash that is not there passes the filter with 1 - 1/e^(1/16) = 6 %; two bytes per row for that, and two for the rows.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_ROWS_PER_SLOT = 2
_FILTER_BYTES_PER_ROW = 2
_MAX_FILTER_BYTES = 2**29 - 1
"""A slot is found with 32 bits of the hash; a run of more rows has a fuller filter, no wrong one."""
_PIECE_BITS = 8 * 1024 * 1024

Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Index:
    """`filter`: a bit per slot, set where a row is. `first_rows`: the first row of each slot."""

    filter: npt.NDArray[np.uint8]
    first_rows: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, hi: Words) -> "Index":
        """That of rows with these sorted high halves; at least one row."""
        slots = max(1, len(hi) // _ROWS_PER_SLOT)
        counts = np.bincount(_slots(hi, slots), minlength=slots)
        first_rows = (np.cumsum(counts) - counts).astype(np.uint32)
        return cls(_filter(hi, min(_FILTER_BYTES_PER_ROW * len(hi), _MAX_FILTER_BYTES)), first_rows)

    def may_hold(self, hi: Words) -> Rows:
        """Which of the hashes, by their places in `hi`, may be there; the others are not."""
        bit = _slots(hi, 8 * len(self.filter))
        is_set = ((self.filter[bit >> 3] >> (bit & 7).astype(np.uint8)) & 1).view(bool)
        places: Rows = is_set.nonzero()[0]
        return places

    def first_row(self, hi: Words) -> Rows:
        """The row from which on each hash is, if it is there; the number of rows where there is none left."""
        return self.first_rows[_slots(hi, len(self.first_rows))].astype(np.int64)


def _slots(hi: Words, count: int) -> Rows:
    """Which of `count` equal slots of the range of 64 bits each hash falls into; `count` < 2^32."""
    half = np.uint64(32)
    return (((hi >> half) * np.uint64(count)) >> half).view(np.int64)


def _filter(hi: Words, size: int) -> npt.NDArray[np.uint8]:
    """Piece by piece: as booleans, the bits of a large run would take more memory than the run."""
    bits = _slots(hi, 8 * size)
    borders = [*range(0, 8 * size, _PIECE_BITS), 8 * size]
    pieces = []
    for (start, end), (first, last) in zip(pairwise(borders), pairwise(np.searchsorted(bits, borders)), strict=True):
        is_set = np.zeros(end - start, dtype=bool)
        is_set[bits[first:last] - start] = True
        pieces.append(np.packbits(is_set, bitorder="little"))
    return np.concatenate(pieces)
