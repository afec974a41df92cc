"""The rejection limit: if too many records are rejected for one cause, the leg stops before they become dead letters.

In: the number of records seen, and the rejected ones among them. Records are checked in samples of at least MIN_RECORDS, each record in one
sample: a large step is a sample of its own, small steps add up until they are enough. So a leg that sees few records at a time writes at
most MIN_RECORDS - 1 dead letters before it stops. A range is checked under the configuration of its plan, and never in one sample with
records of another configuration. Kept: the open sample, in memory; a start begins with an empty one. The limit decides nothing about a
record, only whether the leg continues.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import HaltError
from pipelines.process.fingerprints import with_fingerprints

MIN_RECORDS = 1000
ACCEPT = "`tallyflow run FILE --accept`"
MEND = f"Correct the table or the producer and start again, or accept such records as dead letters for one start: {ACCEPT}"
"""Ways to continue after a rejected row that is not decided yet."""
PLANNED = (
    f"These records are already planned: {ACCEPT} makes them dead letters, which can be reprocessed. Correct the mapping, the table or the "
    "producer first. After an edit of the file the option accepts only these records, and later ones are processed by the new file. "
    "Without an edit it accepts all rejected records of one start"
)
PLANNED_BEFORE = (
    f"These records were planned before the file was edited, and are processed as planned: {ACCEPT} makes them, and only them, "
    "dead letters, which can be reprocessed under the new file"
)


@dataclass(frozen=True)
class Cause:
    """Rejected records of one cause: their number, the reason (`parse: wrong_type of id: expected int`), and the position of one."""

    fingerprint: str
    reason: str
    example: str
    records: int


@dataclass(frozen=True)
class Sample:
    """Consecutive records, and the rejected ones among them, by cause."""

    records: int = 0
    causes: Mapping[str, Cause] = field(default_factory=dict)

    def plus(self, records: int, causes: Iterable[Cause]) -> "Sample":
        """Return the sample with `records` more, of which `causes` were rejected."""
        together = dict(self.causes)
        for cause in causes:
            known = together.get(cause.fingerprint)
            together[cause.fingerprint] = replace(known, records=known.records + cause.records) if known else cause
        return Sample(self.records + records, together)

    @property
    def is_enough(self) -> bool:
        return self.records >= MIN_RECORDS

    @property
    def rest(self) -> "Sample":
        """The sample to which the next records are added: empty after a sample that was checked."""
        return Sample() if self.is_enough else self

    def check(self, percent: int, ways: str) -> None:
        """Raise HaltError, with the `ways` to continue, if the sample is large enough and one cause rejected more than `percent` of it."""
        worst = max(self.causes.values(), key=lambda cause: cause.records, default=None)
        if worst is None or not self.is_enough or worst.records * 100 <= percent * self.records:
            return
        raise HaltError(
            f"stopping at the rejection limit: {worst.records:,} of {self.records:,} records were rejected for one cause, "
            f"more than {percent} % (`on_error.max_rejected_percent`): {worst.fingerprint}, {worst.reason}, for example {worst.example}. "
            f"{ways}"
        )


class RejectionLimit:
    """Checks the records of one leg that one process sees; thread-safe. 100 percent never stops anything."""

    def __init__(self, percent: int, ways: str = PLANNED) -> None:
        self._percent, self._ways = percent, ways
        self._sample = Sample()
        self._counted: dict[str, int] = {}
        self._halted = ""
        self._lock = threading.Lock()

    def check(self, records: int, rejected: pa.Table, share: str, to: int) -> None:
        """Count `records`, of which `rejected` (dead letters) are not written yet. Raise HaltError if they must not be written.

        `share` and `to` name the records: all records of a share up to raw sequence `to`. Records are counted once, however often their
        plan is tried again. After the first HaltError every later call raises it, too.
        """
        with self._lock:
            if self._halted:
                raise HaltError(self._halted)
            if to <= self._counted.get(share, 0):
                return
            self._counted[share] = to
            sample = self._sample.plus(records, causes_of(rejected))
            self._sample = sample.rest
            try:
                sample.check(self._percent, self._ways)
            except HaltError as halt:
                self._halted = str(halt)
                raise


def causes_of(rejected: pa.Table) -> list[Cause]:
    """Return the causes of some dead letters, with the first dead letter of each."""
    if rejected.num_rows == 0:
        return []
    names = with_fingerprints(rejected).column("fingerprint").combine_chunks()
    found = []
    for counted in pc.value_counts(names).to_pylist():
        first = rejected.slice(pc.index(names, counted["values"]).as_py(), 1)
        found.append(Cause(counted["values"], _reason(first), describe_position(first), counted["counts"]))
    return found


def halt_at(rejected: pa.Table) -> None:
    """Raise HaltError with the first of some dead letters, in position order, that are not written yet; return if there is none."""
    if rejected.num_rows:
        raise halt_for(_reason(rejected), describe_position(rejected))


def halt_for(reason: str, position: str) -> HaltError:
    """Return the halt for a record at which `on_error.rejected: halt` stops."""
    return HaltError(
        f"stopping at a rejected record, as `on_error.rejected: halt` requires: {position}: {reason}. No record of its batch became a dead "
        "letter, and none is lost. Correct the mapping, the table or the producer, or set `rejected: dead_letter`, and start again"
    )


def describe_position(dead_letters: pa.Table) -> str:
    """Return the position of the first of `dead_letters`, in Kafka and on raw."""
    (row,) = dead_letters.slice(0, 1).select(["_tf_topic", "_tf_partition", "_tf_offset", "_tf_sequence", "_tf_ordinal"]).to_pylist()
    coordinates = f"{row['_tf_topic']} partition {row['_tf_partition']} offset {row['_tf_offset']}"
    return f"{coordinates} (raw position {row['_tf_sequence']}.{row['_tf_ordinal']})"


def _reason(dead_letters: pa.Table) -> str:
    (row,) = dead_letters.slice(0, 1).select(["stage", "code", "field", "message"]).to_pylist()
    return f"{row['stage']}: {row['code']}{' of ' + row['field'] if row['field'] else ''}: {row['message']}"
