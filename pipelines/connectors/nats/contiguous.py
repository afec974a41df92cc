"""Check whether what was read of a stream has a gap.

No client of NATS is imported: steps that a preview runs, too, check what they are given.
"""

from collections.abc import Sequence

from pipelines.errors import DataLossError, RetryableError


def check_contiguous(stream: str, sequences: Sequence[int], after: int, to: int) -> None:
    """Raise DataLossError unless `sequences` are exactly `after` + 1 .. `to`; RetryableError if only the end is missing.

    A lagging replica serves only the beginning of the range.
    """
    if list(sequences) != list(range(after + 1, to + 1)):
        if list(sequences) == list(range(after + 1, after + 1 + len(sequences))):
            raise RetryableError(f"reading {stream}: {after + 1 + len(sequences)}..{to} are not served yet")
        missing = sorted(set(range(after + 1, to + 1)) - set(sequences))
        raise DataLossError(
            f"reading {stream}: sequences {missing[:5]} of {after + 1}..{to} are missing; they were removed before they were confirmed. "
            "Restore the stream from a backup, or delete the pipeline and start it anew"
        )
