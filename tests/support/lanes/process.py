"""The modelled process lane of one bucket: raw in stream order to rows and dead letters, with its own segments of seen keys."""

import json
from typing import TYPE_CHECKING

from pipelines.errors import InvariantError
from pipelines.protocol.lanes import rules
from pipelines.protocol.lanes.bodies import ProcessState, Segments, process_chain, raw_of_bucket
from pipelines.protocol.lanes.chain import LaneChain, change_of, live_segments
from pipelines.protocol.lanes.writer import LaneWriter
from pipelines.protocol.positions import Position
from pipelines.protocol.records import HEADER_CONFIG, Message
from support.lanes.ingest import check_layout
from support.lanes.names import NAMES

if TYPE_CHECKING:
    from support.lanes.world import Task

ZERO = Position(0, 0, 0)


def rejects(config: str, value: str) -> bool:
    """Versions take turns in what they reject."""
    return value == ("odd" if int(config[1:]) % 2 else "bad")


def mapped(config: str, value: str) -> str:
    return f"{value}|{config}"


class ProcessLane:
    """`step` processes some raw frames; returns False if there were none. A state is written now and then."""

    def __init__(self, task: "Task", bucket: int) -> None:
        self._world, self._log, self._process, self._bucket = task.world, task.world.log, task.process, bucket
        self._assignment, self._layout = task.assignment, task.assignment.layout
        self._kind = process_chain(bucket)
        self.chain: LaneChain[ProcessState] = LaneChain(self._log, NAMES, self._kind, task.epoch)
        self._rows = LaneWriter(self._log, NAMES.out(bucket), task.epoch, Position.parse, ZERO)
        self._letters = LaneWriter(self._log, NAMES.dead_letters("process", bucket), task.epoch, Position.parse, ZERO)

    def open(self) -> bool:
        self.chain.open()
        ends = self._exclude()
        layout = self._layout
        if self.chain.state.done is None:
            segments = Segments(layout.segments, is_full=True)
            state = ProcessState(
                start=layout.since, to=layout.since, config=self._assignment.config, segments=segments, layout=layout.number
            )
            self.chain.advance(state)
        elif self.chain.body.layout < layout.number:
            self._enter_layout()
        if rules.last_config(self.chain.body) != self._assignment.config:
            self.chain.advance(rules.switched(self.chain.body, self._assignment.config, [end.sequence for end in ends if end]))
        self._live = list(live_segments(self._log, NAMES, self._kind, self.chain.state))
        self._seen = set().union(*(self._world.segments.read(self._process, name) for name in self._live))
        self._new: set[str] = set()
        self._to, self._counts = self.chain.body.to, dict.fromkeys(("rows_in", "rows_out", "rows_rejected", "duplicates"), 0)
        return True

    def _exclude(self) -> list[Position | None]:
        """Excludes earlier attempts before the first state: what it states may be purged, and they would judge the rest without it."""
        return [writer.fence().position for writer in (self._rows, self._letters)]

    def _enter_layout(self) -> None:
        """Goes on behind the layout before, with the segments of all its buckets: a key's may be any of them."""
        body = self.chain.body
        to = max(body.to, self._layout.since)
        config, switches = rules.reached(body, to)
        segments = Segments(self._layout.segments, is_full=True)
        self.chain.advance(
            ProcessState(start=body.to, to=to, config=config, switches=switches, segments=segments, layout=self._layout.number)
        )

    def step(self) -> bool:
        stream = NAMES.stream("raw")
        end = self._log.end(stream)
        frames = list(self._log.fetch(stream, raw_of_bucket(NAMES, self._bucket), self._to, end))
        taken = frames[: self._world.rng.choice([1, 3, 100])]
        rows: list[tuple[Position, str, list[object]]] = []
        dead_letters: list[tuple[Position, str, list[object]]] = []
        for message in taken:
            self._apply(message, rows, dead_letters)
        self._append(self._rows, rows)
        self._append(self._letters, dead_letters)
        self._to = max(self._to, taken[-1].sequence if len(taken) < len(frames) else end)
        is_due = self._assignment.is_draining or self._world.rng.random() < (0.3 if taken else 0.7)
        if is_due and self._to > self.chain.body.to:
            self._report()
        return bool(taken) or self._to > self.chain.body.to

    def _apply(self, message: Message, rows: list[tuple[Position, str, list[object]]], dead_letters: list) -> None:
        if not message.payload:
            return
        found = message.headers[rules.HEADER_LAYOUT]
        check_layout(self._layout.number, found, lambda: f"reading {message.subject} at {message.sequence}")
        if int(found) < self._layout.number:
            raise InvariantError(f"{message.subject} at {message.sequence}: a frame of an earlier layout behind its end")
        config = rules.config_at(self.chain.body, message.sequence)
        partition = int(message.subject.split(".")[4])
        for ordinal, (offset, key, value) in enumerate(json.loads(message.payload)):
            self._counts["rows_in"] += 1
            position = Position(message.sequence, ordinal)
            if rejects(config, value):
                self._counts["rows_rejected"] += 1
                dead_letters.append((position, config, [str(position), partition, offset, value]))
            elif self._world.dedups and key is not None and (key in self._seen or key in self._new):
                self._counts["duplicates"] += 1
            else:
                if key is not None:
                    self._new.add(key)
                self._counts["rows_out"] += 1
                rows.append((position, config, [str(position), partition, offset, mapped(config, value)]))

    def _append(self, writer: LaneWriter[Position], rows: list[tuple[Position, str, list[object]]]) -> None:
        while rest := [row for row in rows if writer.tail.position is None or row[0] > writer.tail.position]:
            size = self._world.rng.choice([1, 3, 9])
            part = [row for row in rest[:size] if row[1] == rest[0][1]]
            payload = json.dumps([row[2] for row in part]).encode()
            writer.append(payload, part[0][0], part[-1][0], len(part), {HEADER_CONFIG: part[0][1]})

    def _report(self) -> None:
        """A segment of the new keys, made durable; then the state that lists it; then what it replaces may go."""
        added, removed = [], []
        prefix = f"{self._layout.number}.{self._bucket}."
        if self._new and self._world.dedups:
            keys = self._new
            if len(self._live) > 2 and self._world.rng.random() < 0.5:
                removed, keys = list(self._live), self._new | self._seen
            added = [self._save(prefix, frozenset(keys))]
        body = self.chain.body
        live = [*(name for name in self._live if name not in removed), *added]
        segments = change_of(body.segments, live, added, removed)
        config, switches = rules.reached(body, self._to)
        state = ProcessState(
            start=body.to, to=self._to, config=config, switches=switches, segments=segments, layout=body.layout, counts=self._counts
        )
        self.chain.advance(state)
        self._live, self._seen, self._new = live, self._seen | self._new, set()
        self._counts = dict.fromkeys(self._counts, 0)
        for name in removed:
            # What an earlier layout has left, other buckets list as well.
            if name.startswith(prefix):
                self._world.segments.delete(name)

    def _save(self, prefix: str, keys: frozenset[str]) -> str:
        name = self._world.segments.write(self._process, prefix, keys)
        self._world.segments.make_durable(self._process, name)
        return name
