"""The audit of records of which a function makes several rows: are the rows of each, by their numbers, those that it must have? Pure.

Beside the count of each record's rows a place keeps a sum over the hashes of their numbers: two places hold the same rows of a record if
both are equal. It takes twelve bytes more per record and place, and only where a function makes several rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipelines.proof.audit.account import DOUBLED, MISSING, OUT_TO_TABLE, RAW_TO_OUT, Account, Fault, Limits, RawFrames, Tallied, faults_at


@dataclass
class ExpectedRows:
    """The rows that verification finds for the records of raw frames.

    `ranges`: the sequences, both inclusive, of which it has found all.
    """

    raw: RawFrames
    tallied: Tallied = field(init=False)
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tallied = Tallied(self.raw, has_several=True)

    @property
    def is_known(self) -> npt.NDArray[np.bool_]:
        """Whether the rows of each raw record are known."""
        known = np.zeros(len(self.raw), dtype=bool)
        for first, last in self.ranges:
            known[self.raw.up_to(first - 1) : self.raw.up_to(last)] = True
        return known


def row_faults(account: Account, expected: ExpectedRows, limits: Limits) -> Iterator[Fault]:
    """Yield the faults of records on out that have fewer, more, or other rows there than they must have."""
    first, last = account.raw.up_to(limits.floor), account.raw.up_to(limits.process_to)
    is_compared = expected.is_known & (account.out.counts > 0)
    is_compared[:first] = is_compared[last:] = False
    found, wanted = account.out.rows_of, expected.tallied.rows_of
    yield from _faults(RAW_TO_OUT, account.raw, is_compared, (found.counts, wanted.counts), found.sums != wanted.sums)


def sink_row_faults(account: Account, table: Tallied, limits: Limits) -> Iterator[Fault]:
    """Yield the faults of records of which the table and the sink's dead letters hold other rows than the sink has confirmed.

    Of a record of which it has confirmed a part the others may be there.
    """
    first = account.raw.up_to(limits.floor)
    held, out, confirmed = table.rows_of.plus(account.refused.rows_of), account.out.rows_of, account.confirmed.rows_of
    is_compared = account.out.counts > 0
    is_compared[:first] = False
    wanted = np.where(held.counts < confirmed.counts, confirmed.counts, np.minimum(held.counts, out.counts))
    is_other = (held.counts == out.counts) & (held.sums != out.sums)
    yield from _faults(OUT_TO_TABLE, account.raw, is_compared, (held.counts, wanted), is_other)


def _faults(
    hop: str,
    raw: RawFrames,
    is_compared: npt.NDArray[np.bool_],
    counts: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]],
    is_other: npt.NDArray[np.bool_],
) -> Iterator[Fault]:
    found, wanted = counts
    yield faults_at(hop, MISSING, raw, is_compared & ((found < wanted) | (found == wanted) & is_other))
    yield faults_at(hop, DOUBLED, raw, is_compared & (found > wanted))
