"""The rest of a plan whose function hangs on record after record: with `--accept` it becomes dead letters without a further call.

In: the raw frames of the plan, and the last positions that its attempts have written. Out: a decision for each frame, or its rest.
"""

from collections.abc import Iterable
from typing import Any

from pipelines.engine.connections import Connections
from pipelines.errors import FunctionHaltError
from pipelines.functions.spec import PYTHON_TIMEOUT
from pipelines.process.buckets import subjects_of
from pipelines.process.isolation import COUNTED, Decided
from pipelines.process.program import Program
from pipelines.protocol.append import last_position
from pipelines.protocol.naming import bucket_of_partition
from pipelines.protocol.positions import Position
from pipelines.protocol.records import Message


def given_up(
    connections: Connections, config: Program, frames: Iterable[Message], decided: Decided, error: FunctionHaltError
) -> list[list[Any]]:
    """Return decisions, in the form of `UndecidedError` with a count, about all records of `frames` that are not written yet.

    With dedup nothing of a plan is written before all its records have passed the steps. A frame of which `decided` has the same records is
    left out.
    """
    known = {(place[0], place[1]) for place in decided if len(place) == COUNTED}
    written: dict[int, Position] = {}
    reason = [error.stage, f"given up with --accept, without a call: {str(error).partition('. ')[0]}", PYTHON_TIMEOUT]
    found: list[list[Any]] = []
    for frame in frames:
        partition = int(frame.subject.rpartition(".")[2])
        bucket = bucket_of_partition(partition, config.buckets)
        if bucket not in written:
            written[bucket] = Position(0, 0) if config.is_keyed else _last_written(connections, bucket)
        last = written[bucket]
        first = last.ordinal + 1 if last.sequence == frame.sequence else 0
        if frame.sequence >= last.sequence and first < frame.rows and (frame.sequence, first) not in known:
            found.append([frame.sequence, first, partition, *reason, frame.rows - first])
    return found


def _last_written(connections: Connections, bucket: int) -> Position:
    places = subjects_of(connections, bucket)
    messages = [connections.log.last(connections.names.stream(role), subject) for role, subject in places]
    return max([Position(0, 0), *(last_position(message) for message in messages if message is not None)])
