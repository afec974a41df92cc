"""Lanes with one protection taken away. Each must be found by the account, or the model proves nothing about it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from pipelines.errors import ConflictError
from pipelines.protocol.lanes import rules
from pipelines.protocol.lanes.bodies import IngestState, ProcessState
from pipelines.protocol.lanes.chain import LaneChain
from pipelines.protocol.lanes.writer import LaneTail, LaneWriter
from pipelines.protocol.ledger import Entry, Open
from pipelines.protocol.positions import Position
from pipelines.protocol.records import Message
from support.lanes.ingest import IngestLane, Record
from support.lanes.outside import LaneLog, LaneTable
from support.lanes.process import ProcessLane
from support.lanes.sink import SinkLane
from support.lanes.world import LaneWorld

Patch = pytest.MonkeyPatch
PUBLISH, FETCH, POLL, INSERT, STEP = LaneLog.publish, LaneLog.fetch, IngestLane._poll, SinkLane._insert, ProcessLane.step
ROWS, FENCE, HELD, EXCLUDE = ProcessLane._append, LaneWriter.fence, IngestLane._publish, ProcessLane._exclude


def opens_without_looking_at_the_epoch(patch: Patch) -> None:
    def open_anyway(self: LaneChain) -> object:
        while True:
            self.state = self._read()
            try:
                self._append(Entry(self._epoch, Open(), self._done_at))
            except ConflictError:
                continue
            return self.state

    patch.setattr(LaneChain, "open", open_anyway)


def publishes_wherever_the_subject_ends(patch: Patch, part: str) -> None:
    def publish(self: LaneLog, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int:
        if f".{part}" in subject:
            last = self._last.get(subject)
            expected = last.sequence if last else 0
        return PUBLISH(self, subject, payload, headers, expected)

    patch.setattr(LaneLog, "publish", publish)


def resumes_without_looking_at_the_tails(patch: Patch) -> None:
    def publish(self: IngestLane, writer: LaneWriter[int], records: list[Record]) -> None:
        base = {rules.HEADER_BASE: str(self._next.offset), rules.HEADER_BASE_ROWS: str(self._next.rows)}
        headers = {**base, rules.HEADER_LAYOUT: str(self._layout.number)}
        while writer._publish(json.dumps(records).encode(), records[0][0], records[-1][0], len(records), headers) is None:
            pass

    patch.setattr(rules, "resume_point", lambda state, tails: rules.Resume(state.to, state.rows))
    patch.setattr(IngestLane, "_publish", publish)


def takes_one_subjects_tail_for_all(patch: Patch) -> None:
    def resume(self: IngestLane) -> None:
        tails = [writer.read_tail() for writer in self._writers]
        self._next = rules.resume_point(self.chain.body, [tail.headers for tail in tails])
        end = 1 + max((tail.position for tail in tails[:1] if tail.position is not None), default=-1)
        if end > self._next.offset:
            held = self._world.kafka.held[self._partition]
            self._next = rules.Resume(end, sum(self.chain.body.begin <= record[0] < end for record in held))

    patch.setattr(IngestLane, "_resume", resume)


def believes_a_state_of_whoever_writes_it(patch: Patch) -> None:
    def decide(self: LaneChain, entry: Entry) -> Entry:
        while True:
            try:
                return self._append(entry)
            except ConflictError:
                self.state = self._read()

    patch.setattr(LaneChain, "_decide", decide)


def switches_at_the_last_state(patch: Patch) -> None:
    def switched(state: ProcessState, config: str, outputs: object) -> ProcessState:
        after = max([state.to, *(after for after, _ in state.switches)])
        return replace(state, start=state.to, counts={}, switches=(*state.switches, (after, config)), segments=rules.unchanged(state))

    patch.setattr(rules, "switched", switched)


def fences_nothing(patch: Patch) -> None:
    def fence(self: LaneWriter) -> LaneTail:
        return self.read_tail()

    patch.setattr(LaneWriter, "fence", fence)


def appends_behind_a_later_epoch(patch: Patch) -> None:
    patch.setattr("pipelines.protocol.lanes.writer.epoch_of", lambda message: 0)


def switches_without_a_fence(patch: Patch) -> None:
    def fence(self: LaneWriter) -> LaneTail:
        return self.read_tail() if isinstance(self._zero, Position) else FENCE(self)

    patch.setattr(LaneWriter, "fence", fence)


def forgets_the_attempt_in_the_epoch(patch: Patch) -> None:
    patch.setattr("support.lanes.world.lane_epoch", lambda assignment, attempt: assignment)


def reports_a_segment_before_it_is_durable(patch: Patch) -> None:
    def save(self: ProcessLane, prefix: str, keys: frozenset[str]) -> str:
        return self._world.segments.write(self._process, prefix, keys)

    def step(self: ProcessLane) -> bool:
        for name in [name for name in self._process.unsaved if name.startswith(f"{self._layout.number}.{self._bucket}.")]:
            self._world.segments.make_durable(self._process, name)
        return STEP(self)

    patch.setattr(ProcessLane, "_save", save)
    patch.setattr(ProcessLane, "step", step)


def deletes_segments_of_earlier_layouts(patch: Patch) -> None:
    report = ProcessLane._report

    def delete(self: ProcessLane) -> None:
        before = set(self._live)
        report(self)
        for name in before - set(self._live):
            self._world.segments.delete(name)

    patch.setattr(ProcessLane, "_report", delete)


def makes_the_token_of_the_attempt(patch: Patch) -> None:
    token = SinkLane._token
    patch.setattr(SinkLane, "_token", lambda self, chunk, rows: f"{token(self, chunk, rows)}:{self._task.epoch}")


def cuts_a_chunk_anew_at_a_retry(patch: Patch) -> None:
    def insert(self: SinkLane, chunk: object, is_last: bool) -> None:
        again = self._cut(self.chain.body.to) if self._must_look and not chunk.refused and not chunk.stored else None
        if again is not None:
            self._world.planned(again.digest)
        INSERT(self, again or chunk, is_last)

    patch.setattr(SinkLane, "_insert", insert)


def ends_a_refused_chunk_without_asking_the_table(patch: Patch) -> None:
    def positions(self: LaneTable) -> set[str]:
        self._world.call()
        return set()

    patch.setattr(LaneTable, "positions", positions)


def trusts_the_window_whatever_was_inserted_since(patch: Patch) -> None:
    patch.setattr(LaneWorld, "is_recent", lambda self, digest: True)


def begins_an_insert_without_a_lease(patch: Patch) -> None:
    patch.setattr(LaneWorld, "check_lease", lambda self: None)


def judges_duplicates_as_subjects_arrive(patch: Patch) -> None:
    def fetch(self: LaneLog, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        found = list(FETCH(self, stream, subject, after, to))
        if "*" not in subject:
            return iter(found)
        here = sorted(found, key=lambda message: (message.subject, message.sequence))
        return iter([*(m for m in here if m is not found[-1]), *found[-1:]])

    def append(self: ProcessLane, writer: LaneWriter, rows: list) -> None:
        ROWS(self, writer, sorted(rows, key=lambda row: row[0]))

    patch.setattr(LaneLog, "fetch", fetch)
    patch.setattr(ProcessLane, "_append", append)


def reads_frames_of_a_later_layout(patch: Patch) -> None:
    patch.setattr("support.lanes.process.check_layout", lambda *_: None)


def purges_raw_behind_the_fastest_bucket(patch: Patch) -> None:
    purge = rules.raw_that_may_go
    patch.setattr(rules, "raw_that_may_go", lambda frames, processed, ingested: purge(frames, 2**60, ingested))


def purges_raw_that_ingest_reads_back(patch: Patch) -> None:
    purge = rules.raw_that_may_go
    patch.setattr(rules, "raw_that_may_go", lambda frames, processed, ingested: purge(frames, processed, 2**60))


def purges_the_last_frame(patch: Patch) -> None:
    def purge(frames: list[Message], processed: int, ingested: int) -> int:
        return frames[-1].sequence + 1 if frames[-1].sequence <= processed else 0

    patch.setattr(rules, "raw_that_may_go", purge)


def claims_a_poll_complete_before_it_is(patch: Patch) -> None:
    def publish(self: IngestLane, writer: LaneWriter[int], records: list[Record]) -> None:
        base = {rules.HEADER_BASE: str(records[-1][0] + 1), rules.HEADER_BASE_ROWS: str(self._rows_below(records[-1][0] + 1))}
        headers = {**base, rules.HEADER_LAYOUT: str(self._layout.number)}
        while rest := [r for r in records if writer.tail.position is None or r[0] > writer.tail.position]:
            writer.append(json.dumps(rest).encode(), rest[0][0], rest[-1][0], len(rest), headers)

    def rows_below(self: IngestLane, end: int) -> int:
        return sum(self.chain.body.begin <= record[0] < end for record in self._world.kafka.held[self._partition])

    patch.setattr(IngestLane, "_rows_below", rows_below, raising=False)
    patch.setattr(IngestLane, "_publish", publish)


def states_more_than_another_subject_holds(patch: Patch) -> None:
    def publish(self: IngestLane, writer: LaneWriter[int], records: list[Record]) -> None:
        HELD(self, writer, records)
        body, to = self.chain.body, records[-1][0] + 1
        if to > body.to:
            rows = sum(body.begin <= record[0] < to for record in self._world.kafka.held[self._partition])
            counts = {"offsets": to - body.to, "rows_out": rows - body.rows}
            self.chain.advance(IngestState(**{**vars(body), "start": body.to, "to": to, "rows": rows, "counts": counts}))

    patch.setattr(IngestLane, "_publish", publish)


def skips_without_a_fence(patch: Patch) -> None:
    skip = IngestLane._skip

    def unfenced(self: IngestLane) -> None:
        fence, LaneWriter.fence = LaneWriter.fence, LaneWriter.read_tail
        try:
            skip(self)
        finally:
            LaneWriter.fence = fence

    patch.setattr(IngestLane, "_skip", unfenced)


def excludes_earlier_attempts_only_to_switch(patch: Patch) -> None:
    def exclude(self: ProcessLane) -> list[Position | None]:
        before = self.chain.state.done
        switches = before is not None and rules.last_config(before.body) != self._assignment.config
        return EXCLUDE(self) if switches else []

    patch.setattr(ProcessLane, "_exclude", exclude)


def closes_a_layout_without_sink_lanes(patch: Patch) -> None:
    patch.setattr(rules, "has_sink_lanes", lambda generation, layout: True)


COMMON: list[Callable[[Patch], None]] = [
    opens_without_looking_at_the_epoch,
    *(partial(publishes_wherever_the_subject_ends, part=part) for part in ("raw.", "out.", "dlq.process", "ledger.process", "ledger.sink")),
    partial(publishes_wherever_the_subject_ends, part="ledger.lanes"),
    resumes_without_looking_at_the_tails,
    takes_one_subjects_tail_for_all,
    believes_a_state_of_whoever_writes_it,
    switches_at_the_last_state,
    switches_without_a_fence,
    fences_nothing,
    appends_behind_a_later_epoch,
    forgets_the_attempt_in_the_epoch,
    reports_a_segment_before_it_is_durable,
    deletes_segments_of_earlier_layouts,
    makes_the_token_of_the_attempt,
    cuts_a_chunk_anew_at_a_retry,
    ends_a_refused_chunk_without_asking_the_table,
    judges_duplicates_as_subjects_arrive,
    reads_frames_of_a_later_layout,
    purges_raw_behind_the_fastest_bucket,
    purges_raw_that_ingest_reads_back,
    purges_the_last_frame,
    claims_a_poll_complete_before_it_is,
    states_more_than_another_subject_holds,
]
"""Found within 300 histories."""
RARE: list[Callable[[Patch], None]] = [
    trusts_the_window_whatever_was_inserted_since,
    begins_an_insert_without_a_lease,
    skips_without_a_fence,
]
"""Found within 6,000."""
WRITTEN: dict[str, Callable[[Patch], None]] = {
    "an_earlier_attempt_reads_on_behind_a_purge": excludes_earlier_attempts_only_to_switch,
    "a_layout_is_over_before_its_buckets_have_sink_lanes": closes_a_layout_without_sink_lanes,
}
"""Found by a written-out history (histories.py) of that name: a random one in 8,000 finds the first, one in 66,000 the second."""


def name_of(mutant: Callable[[Patch], None]) -> str:
    return f"{mutant.func.__name__}: {mutant.keywords['part']}" if isinstance(mutant, partial) else mutant.__name__
