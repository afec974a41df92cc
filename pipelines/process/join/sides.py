"""What enters a join: the rows of each side of a range, the arrivals of its frames, and the two windows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.key_store.index import Rows, Words
from pipelines.key_store.payload import to_stored
from pipelines.key_store.segments import Entries
from pipelines.process.dedup import KEY_COLUMNS
from pipelines.process.watermarks import Times
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.positions import RawPositions, ordinals_of, position_keys, sequences_of


@dataclass(frozen=True)
class Windows:
    """How long a left record waits for a right one, and how long a right record is joined with later left ones; microseconds, above 0."""

    left_us: int
    right_us: int

    @property
    def kept_us(self) -> int:
        """How long a right record is stored: while it is joined, and while a left record before it is stored that it has consumed."""
        return max(self.left_us, self.right_us)

    @property
    def kept_by_time_us(self) -> int:
        """The same by the records' own times: the oldest stored left one is a left window old, and its match a right window older."""
        return self.left_us + self.right_us


def before(clock_us: int, window_us: int) -> int:
    """Return the time at which a window began that ends at `clock_us`; NEVER if that is."""
    return clock_us if clock_us == NEVER else clock_us - window_us


@dataclass(frozen=True)
class Frames:
    """All raw frames of a range, those without records too: sequences, ascending, and arrivals, which never step back.

    `clock_us`: the clock of the last `done`, which is the arrival of the frame before the range, NEVER before the first one.
    """

    sequences: npt.NDArray[np.uint64]
    arrivals_us: Times
    clock_us: int

    @property
    def start_us(self) -> int:
        """The arrival of the frame before the range."""
        return self.clock_us

    @property
    def end_us(self) -> int:
        """The arrival of the last frame."""
        return int(self.arrivals_us[-1]) if len(self.arrivals_us) else self.clock_us

    def first_from(self, times: Times) -> npt.NDArray[np.uint64]:
        """Return the sequence of the first frame that arrived at each time or later; each time is at most `end_us`."""
        return self.sequences[np.searchsorted(self.arrivals_us, times, side="left")]


@dataclass(frozen=True)
class Side:
    """The rows of one side of a range in one bucket, in position order: hashes, packed positions, times, and the stored fields.

    `times_us`: the times that the join goes by, arrivals or the records' own, in microseconds.
    """

    hi: Words
    lo: Words
    positions: RawPositions
    times_us: Times
    payload: pa.RecordBatch

    @classmethod
    def of(cls, rows: pa.Table, fields: pa.Schema, time: str = "_tf_arrival") -> "Side":
        """Build a side of rows with KEY_COLUMNS, `_tf_sequence`, `_tf_ordinal` and the column `time`; no key is null.

        `fields`: the columns that a joined row takes of this side.
        """
        keys = [rows.column(name) for name in KEY_COLUMNS]
        assert not any(key.null_count for key in keys), "a record with a null in its key cannot be joined"
        hi, lo = (key.to_numpy() for key in keys)
        positions = position_keys(rows)
        assert (positions[1:] > positions[:-1]).all(), "the rows of a join come in position order"
        return cls(hi, lo, positions, rows.column(time).cast(pa.int64()).to_numpy(), to_stored(rows, fields))

    def __len__(self) -> int:
        return len(self.hi)

    def entries(self, rows: Rows) -> Entries:
        """Return the store's entries of some rows, in the given order."""
        positions = self.positions[rows]
        sequence, ordinal = sequences_of(positions).astype(np.uint64), ordinals_of(positions).astype(np.uint32)
        return Entries(self.hi[rows], self.lo[rows], self.times_us[rows], sequence, ordinal, self.payload.take(pa.array(rows)))
