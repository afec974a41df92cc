"""What the leg and its lanes tell each other of one exchange: items of work, reports with tables, and what each holds for the others."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.engine.connections import Connections
from pipelines.process.arrivals import FRAMES_PER_STEP
from pipelines.process.items import ProcessItem, SubjectTail
from pipelines.protocol.bodies import Lookups, Poison, Waiting
from pipelines.protocol.codec import Count, F, Form, Long, PartitionKey, Text, Version, from_text, to_text
from pipelines.protocol.ledger import Totals
from pipelines.protocol.records import decode_parcel
from pipelines.protocol.run_lists import Lists

_HEAD_BYTES = 4
Times = tuple[Count, Long, Long, Count]
"""The times of a frame, as `watermarks.FrameTimes.of_rows` takes them, or, with a join, `join.progress.TimedFrames.of_facts`."""


@dataclass(frozen=True, kw_only=True)
class StagesItem(Form):
    """The stretch `number` of a plan: raw frames from `start` (exclusive) to `to`, and their `arrivals` in microseconds.

    `poison`: records that are not tried. `lookups`: as in the plan. `step_frames`: the most frames that pass through the stages together.
    `exchange`: the name under which the rows are held.
    """

    exchange: Text
    number: Count
    start: Count
    to: Count
    config: Version
    arrivals: tuple[Long, ...]
    poison: tuple[Poison, ...] = ()
    lookups: Lookups = field(default_factory=dict)
    step_frames: Count = FRAMES_PER_STEP


@dataclass(frozen=True)
class StagesReport(Form):
    """What became of a stretch: the lane that holds its rows, their number by bucket, the counts, and the times of its frames, if any.

    `keys`: of the records that a dedup before a join compares, by store and bucket (`naming.listed_as`).
    """

    holder: Count
    rows: dict[PartitionKey, Count]
    keys: tuple[Text, ...] = ()
    counts: Totals = field(default_factory=dict)
    times: tuple[Times, ...] = ()


@dataclass(frozen=True)
class CopiesItem(Form):
    """The keys of some `places`, each a store and bucket, of a plan. `holders`: as in BucketsItem."""

    plan: ProcessItem
    exchange: Text
    holders: tuple[Count, ...]
    places: tuple[Text, ...]


@dataclass(frozen=True)
class CopiesReport(Form):
    """The segments that hold the keys of some places now. The positions of the copies follow."""

    runs: Lists = field(default_factory=dict)


@dataclass(frozen=True)
class BucketsItem(Form):
    """Some `buckets` of a plan. `holders`: by stretch, the lane that has its rows.

    Of all frames of the plan: `times`, where windows are measured on a field, and the `arrivals` in microseconds, with a join.
    """

    plan: ProcessItem
    exchange: Text
    holders: tuple[Count, ...]
    buckets: tuple[Count, ...]
    times: tuple[Times, ...] = ()
    arrivals: tuple[Long, ...] = ()


@dataclass(frozen=True)
class BucketsReport(Form):
    """What became of some buckets. `late`: the number of dead letters of each; they follow in the order of the buckets' numbers.

    `waiting`: the oldest left record that a join has stored in one of them.
    """

    counts: Totals = field(default_factory=dict)
    tails: dict[Text, SubjectTail] = field(default_factory=dict)
    runs: Lists = field(default_factory=dict)
    late: dict[PartitionKey, Count] = field(default_factory=dict)
    waiting: Waiting | None = None


@dataclass(frozen=True)
class Place(Form):
    """Where an item lies that may be too large for a request: what the leg holds under a name."""

    exchange: Text
    name: Text


def held_in(connections: Connections, exchange: str, holders: Sequence[int], name: str) -> list[pa.Table]:
    """Return what the stretches of a plan hold under a name, in their order. `holders`: by stretch, the lane that has its rows.

    Raise RetryableError if a lane is lost, or has begun another exchange.
    """
    lanes, found = connections.lanes, []
    for number, holder in enumerate(holders):
        own = stretch_name(number, name)
        table = lanes.shelf.table(exchange, own) if holder == lanes.own else None
        if table is not None:
            found.append(table)
        elif content := lanes.fetch(holder, exchange, own):
            found.append(decode_parcel(content))
    return found


def stretch_name(number: int, name: str) -> str:
    """Return the name under which a stretch holds the rows of a bucket, or, of a store and bucket, the keys."""
    return f"{number} {name}"


def packed(report: Form, content: bytes) -> bytes:
    """Return a report and a table beside it as one answer."""
    head = to_text(report).encode()
    return b"".join((len(head).to_bytes(_HEAD_BYTES), head, content))


def unpacked(form: type[F], content: bytes) -> tuple[F, bytes]:
    """Return what `packed` has put together."""
    end = _HEAD_BYTES + int.from_bytes(content[:_HEAD_BYTES])
    return from_text(form, content[_HEAD_BYTES:end]), content[end:]
