"""The modelled ingest lane of one partition: polls are dealt to the buckets' subjects; a state on the chain only now and then."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

from pipelines.errors import DataLossError, FencedError, InvariantError
from pipelines.protocol.lanes import rules
from pipelines.protocol.lanes.bodies import IngestState, ingest_chain, raw_subject
from pipelines.protocol.lanes.chain import LaneChain
from pipelines.protocol.lanes.writer import LaneWriter
from support.lanes.names import NAMES, SOURCE

if TYPE_CHECKING:
    from support.lanes.world import Task

Record = tuple[int, str | None, str]


def bucket_of(key: str | None, partition: int, buckets: int) -> int:
    return partition % buckets if key is None else crc32(key.encode()) % buckets


class IngestLane:
    """`step` polls once, or closes the layout; returns False if there was nothing to do."""

    def __init__(self, task: "Task", partition: int) -> None:
        self._world, self._log, self._partition = task.world, task.world.log, partition
        self._assignment, self._epoch = task.assignment, task.epoch
        self._layout = task.assignment.layout
        self.chain: LaneChain[IngestState] = LaneChain(self._log, NAMES, ingest_chain(SOURCE, partition), task.epoch)

    def open(self) -> bool:
        self.chain.open()
        if self.chain.state.done is None:
            begin = self._world.kafka.start(self._partition)
            self.chain.advance(IngestState(start=begin, to=begin, begin=begin, layout=self._layout.number))
        if self.chain.body.layout < self._layout.number:
            if not self.chain.body.is_closed:
                raise InvariantError("a layout follows one that is not closed")
            self._decide(layout=self._layout.number, is_closed=False)
        self._writers = [
            LaneWriter(self._log, raw_subject(NAMES, SOURCE, self._partition, bucket), self._epoch, int, -1)
            for bucket in range(self._layout.buckets)
        ]
        self._resume()
        return True

    def _resume(self) -> None:
        """Goes on where every subject is complete; what a subject holds beyond that is left out for it."""
        tails = [writer.read_tail() for writer in self._writers]
        self._next = rules.resume_point(self.chain.body, [tail.headers for tail in tails])

    def step(self) -> bool:
        try:
            if self._assignment.is_draining:
                return self._close()
            return self._poll(self._world.rng.choice([1, 2, 4, 8]))
        except DataLossError:
            self._skip()
            return True

    def _poll(self, limit: int) -> bool:
        records, end = self._world.kafka.read(self._partition, self._next.offset, limit)
        if end == self._next.offset:
            return self._rest()
        dealt: dict[int, list[Record]] = {}
        for record in records:
            dealt.setdefault(bucket_of(record[1], self._partition, len(self._writers)), []).append(record)
        order = sorted(dealt)
        self._world.rng.shuffle(order)
        for bucket in order:
            self._publish(self._writers[bucket], dealt[bucket])
        self._next = rules.Resume(end, self._next.rows + len(records))
        if self._world.rng.random() < 0.1:
            self._report()
        return True

    def _rest(self) -> bool:
        """Nothing to read: what was read is stated after a while."""
        if self._next.offset == self.chain.body.to:
            return False
        if self._world.rng.random() < 0.5:
            self._report()
        return True

    def _publish(self, writer: LaneWriter[int], records: list[Record]) -> None:
        base = {rules.HEADER_BASE: str(self._next.offset), rules.HEADER_BASE_ROWS: str(self._next.rows)}
        headers = {**base, rules.HEADER_LAYOUT: str(self._layout.number)}
        while rest := beyond(writer, records):
            part = rest[: self._world.rng.choice([1, 3, 9])]
            writer.append(json.dumps(part).encode(), part[0][0], part[-1][0], len(part), headers)

    def _report(self, **changes: object) -> None:
        """States how far all subjects are complete: a checkpoint, not what makes records count."""
        body, at = self.chain.body, self._next
        counts = {"offsets": at.offset - body.to, "rows_out": at.rows - body.rows}
        self.chain.advance(replace(body, start=body.to, to=at.offset, rows=at.rows, counts=counts, **changes))

    def _decide(self, **changes: object) -> None:
        body = self.chain.body
        self.chain.advance(replace(body, start=body.to, counts={}, **changes))

    def _close(self) -> bool:
        """Completes what an earlier attempt began, excludes all earlier attempts, and closes the layout."""
        if self.chain.body.is_closed:
            return False
        ends = [writer.fence().position for writer in self._writers]
        self._resume()
        last = max((end for end in ends if end is not None), default=-1)
        while self._next.offset <= last:
            self._poll(last + 1 - self._next.offset)
        self._report(is_closed=True)
        return True

    def _skip(self) -> None:
        """Passes over expired offsets: what of them is on no subject, and never will be, counts as skipped."""
        first = self._world.kafka.start(self._partition)
        for writer in self._writers:
            writer.fence()
        self._resume()
        if self._next.offset >= first:
            return
        found = 0
        for writer, bucket in zip(self._writers, range(self._layout.buckets), strict=True):
            subject = raw_subject(NAMES, SOURCE, self._partition, bucket)
            for message in self._log.fetch(NAMES.stream("raw"), subject, 0, writer.tail.sequence):
                found += sum(self._next.offset <= record[0] < first for record in json.loads(message.payload or b"[]"))
        skipped = first - self._next.offset - found
        self._next = rules.Resume(first, self._next.rows + found)
        self._report(skipped=self.chain.body.skipped + skipped)


def beyond(writer: LaneWriter[int], records: list[Record]) -> list[Record]:
    """What the subject does not hold yet."""
    last = writer.tail.position
    return [record for record in records if last is None or record[0] > last]


def check_layout(mine: int, found: str, doing: Callable[[], str]) -> None:
    """A lane that meets a frame of a later layout has been replaced: it judges by a store of another cut."""
    if int(found) > mine:
        raise FencedError(f"{doing()}: the layout is {found}, ours is {mine}")
