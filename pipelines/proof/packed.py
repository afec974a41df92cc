"""Raw positions as single integers that sort like them, as `positions.position_keys` packs them."""

import numpy as np
import numpy.typing as npt

from pipelines.protocol import positions
from pipelines.protocol.positions import ORDINAL_BITS

RawPositions = npt.NDArray[np.uint64]
NO_POSITIONS: RawPositions = np.zeros(0, dtype=np.uint64)
_MASK = (1 << ORDINAL_BITS) - 1


def decoded(code: int) -> tuple[int, int]:
    """Return the sequence and the ordinal of one position."""
    return int(code) >> ORDINAL_BITS, int(code) & _MASK


def sequences_of(keys: RawPositions) -> npt.NDArray[np.int64]:
    """Return the sequences of positions as signed numbers, to subtract and to index with."""
    return positions.sequences_of(keys).astype(np.int64)


def ordinals_of(keys: RawPositions) -> npt.NDArray[np.int64]:
    """Return the ordinals of positions as signed numbers, to subtract and to index with."""
    return positions.ordinals_of(keys).astype(np.int64)


def position_text(code: int) -> str:
    """Return one position as users write it: 17.3."""
    sequence, ordinal = decoded(code)
    return f"{sequence}.{ordinal}"


def first_position(sequence: int) -> int:
    """Return the position of the first record of a frame."""
    return sequence << ORDINAL_BITS


def last_position(sequence: int) -> int:
    """Return the greatest position that a record of a frame can have."""
    return (sequence << ORDINAL_BITS) | _MASK
