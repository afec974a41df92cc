"""The modelled sink lane of one group of buckets: chunks of out under tokens, planned on the chain, settled by reading the table."""

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines.errors import InvariantError, RefusedError
from pipelines.protocol.lanes import rules
from pipelines.protocol.lanes.bodies import Buckets, Chunk, SinkState, sink_chain
from pipelines.protocol.lanes.chain import LaneChain
from pipelines.protocol.lanes.writer import LaneWriter
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import bucket_of_subject, insert_token
from pipelines.protocol.positions import Position
from support.lanes.names import NAMES
from support.lanes.outside import Row
from support.lanes.process import ZERO

if TYPE_CHECKING:
    from support.lanes.world import Task

Found = list[tuple[int, Row]]
"""Rows of a chunk with their buckets, in the order of out."""


class SinkLane:
    """`step` plans a chunk or inserts the open one; returns False if nothing waits."""

    def __init__(self, task: "Task", generation: int, group: int, buckets: Buckets) -> None:
        self._task, self._world, self._log = task, task.world, task.world.log
        self._generation, self._group, self._buckets = generation, group, buckets
        self.chain: LaneChain[SinkState] = LaneChain(self._log, NAMES, sink_chain(generation, group), task.epoch)
        self._is_opened = False

    def open(self) -> bool:
        """Returns False while an earlier group, which another lane closes, is not closed."""
        if not self._is_opened:
            self.chain.open()
            self._is_opened = True
        if self.chain.state.done is None:
            starts = self._starts()
            if starts is None:
                return False
            to = min(starts.values())
            ahead = {str(bucket): start for bucket, start in starts.items() if start > to}
            self.chain.advance(SinkState(start=to, to=to, ahead=ahead))
        self._must_look = self.chain.body.chunk is not None
        return True

    def _starts(self) -> dict[int, int] | None:
        """Where each bucket goes on: where its group of the generation before was closed, which this lane does where it is the closer."""
        generation = self._task.assignment.generation
        starts = dict.fromkeys(self._buckets, 0)
        for old, buckets in enumerate(generation.before):
            shared = set(buckets) & set(self._buckets)
            if not shared:
                continue
            state = read_chain(self._log, NAMES, sink_chain(generation.number - 1, old))
            body = state.done.body if state.done else None
            if body is None or not body.is_closed:
                if rules.closer_of(generation, old) != self._group:
                    return None
                lane = SinkLane(self._task, generation.number - 1, old, buckets)
                lane.close()
                body = lane.chain.body
            for bucket in shared:
                starts[bucket] = body.ahead.get(str(bucket), body.to)
        return starts

    def close(self) -> None:
        """Finishes the open chunk of a group whose generation is over, and closes it."""
        if not self.open():
            raise InvariantError("a generation was replaced before it had begun")
        while self.chain.body.chunk is not None:
            self._insert(self.chain.body.chunk, is_last=True)
        if not self.chain.body.is_closed:
            body = self.chain.body
            self.chain.advance(replace(body, start=body.to, counts={}, is_closed=True))

    def step(self) -> bool:
        if self.chain.body.is_closed:
            return False
        chunk = self.chain.body.chunk
        if chunk is not None:
            self._insert(chunk, is_last=self._world.rng.random() < 0.5)
            return True
        planned = self._cut(self.chain.body.to)
        if planned is None:
            return False
        body = self.chain.body
        self._world.planned(planned.digest)
        self.chain.advance(replace(body, start=body.to, counts={}, chunk=planned))
        return True

    def _cut(self, after: int) -> Chunk | None:
        found = self._read(after, self._log.end(NAMES.stream("out")))
        if not found:
            return None
        limit = self._world.rng.choice([1, 1, 4, 100])
        sequences = sorted({Position.parse(row[0]) and sequence for sequence, _, row in found})[:limit]
        rows = [(bucket, row) for sequence, bucket, row in found if sequence <= sequences[-1]]
        return Chunk(sequences[-1], len(rows), digest([row for _, row in rows]))

    def _read(self, after: int, to: int) -> list[tuple[int, int, Row]]:
        """(sequence, bucket, row) of the group's rows with `after` < sequence <= `to`, but those that another group has confirmed."""
        found = []
        for message in self._log.fetch(NAMES.stream("out"), ">", after, to):
            bucket = bucket_of_subject(message.subject)
            if bucket in self._buckets and message.sequence > self.chain.body.ahead.get(str(bucket), 0) and message.payload:
                found += [(message.sequence, bucket, tuple(row)) for row in json.loads(message.payload)]
        return found

    def _insert(self, chunk: Chunk, is_last: bool) -> None:
        rows = [(bucket, row) for _, bucket, row in self._read(self.chain.body.to, chunk.to)]
        if digest([row for _, row in rows]) != chunk.digest:
            raise InvariantError("a chunk's rows are not those of its plan")
        if self._must_look and not self._world.is_recent(chunk.digest):
            # The tokens of other lanes may have pushed ours out of the window: only the table knows what it holds.
            chunk = self._look(chunk, rows, chunk.refused)
        self._must_look = True
        left = [row for _, row in rows if row[0] not in chunk.refused and row[0] not in chunk.stored]
        if left:
            try:
                self._world.table.insert(self._token(chunk, digest(left)), left, chunk.digest)
            except RefusedError as error:
                refused = left[error.row if error.row is not None else 0][0]
                self._look(chunk, rows, (*chunk.refused, refused))
                return
        self._dead_letters([(bucket, row) for bucket, row in rows if row[0] in chunk.refused])
        self._confirm(chunk, rows, is_last)

    def _look(self, chunk: Chunk, rows: Found, refused: tuple[str, ...]) -> Chunk:
        """Decides what is sent next, from what the table holds, when nothing sent before can be stored any more."""
        self._world.table.settle()
        held = self._world.table.positions()
        decided = replace(chunk, refused=refused, stored=tuple(row[0] for _, row in rows if row[0] in held))
        body = self.chain.body
        self._world.planned(chunk.digest)
        self.chain.advance(replace(body, start=body.to, counts={}, chunk=decided))
        return decided

    def _token(self, chunk: Chunk, rows_digest: str) -> str:
        return insert_token(NAMES.pipeline, "S", "table", self.chain.body.to, chunk.to, rows_digest)

    def _dead_letters(self, refused: Found) -> None:
        for bucket in sorted({bucket for bucket, _ in refused}):
            writer = LaneWriter(self._log, NAMES.dead_letters("sink", bucket), self._task.epoch, Position.parse, ZERO)
            dead_letters = sorted((Position.parse(row[0]), row) for owner, row in refused if owner == bucket)
            while rest := [one for one in dead_letters if writer.tail.position is None or one[0] > writer.tail.position]:
                writer.append(json.dumps([row for _, row in rest]).encode(), rest[0][0], rest[-1][0], len(rest), {})

    def _confirm(self, chunk: Chunk, rows: Found, is_last: bool) -> None:
        """The end of a chunk; in a steady flow the same entry plans the next one."""
        body = self.chain.body
        counts = {"rows_in": len(rows), "rows_out": len(rows) - len(chunk.refused), "rows_rejected": len(chunk.refused)}
        following = None if is_last else self._cut(chunk.to)
        ahead = {bucket: sequence for bucket, sequence in body.ahead.items() if sequence > chunk.to}
        if following is not None:
            self._world.planned(following.digest)
        self.chain.advance(SinkState(start=body.to, to=chunk.to, ahead=ahead, chunk=following, counts=counts))
        self._must_look = False


def digest(rows: list[Row]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()
