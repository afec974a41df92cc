"""What may go of a pipeline's streams: literal chains and frames in memory, time moved by hand."""

import json
import sys
from datetime import timedelta

import pytest

from pipelines.connectors.nats.streams import StreamState
from pipelines.dead_letters.stream import read_frames
from pipelines.errors import DataLossError, RetryableError
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.protocol.bodies import (
    CHAINS,
    REDRIVE_CHAIN,
    REPROCESS_CHAIN,
    IngestDone,
    IngestPlan,
    ProcessDone,
    ProcessPlan,
    RawTail,
    RedriveDone,
    RedrivePlan,
    ReprocessDone,
    ReprocessPlan,
    SinkDone,
    SinkPlan,
    Waiting,
)
from pipelines.protocol.ledger import Chain, read_chain
from pipelines.protocol.naming import REDRIVE, Names
from pipelines.protocol.purge import (
    Purge,
    Purged,
    bytes_free_for_redrive,
    fold_redrive,
    is_full,
    purge_dead_letters,
    purge_lease,
    read_purged,
    redrive_entries_that_may_go,
)
from pipelines.protocol.records import HEADER_OLDEST, encode_frame
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES
from pipelines.protocol.topology import LegId, Topology
from pipelines.runner.retention import StreamFacts
from pipelines.testing import FIRST_INSTANT, SINGLE, MemoryLog

NAMES = Names("orders")
RAW, OUT, DLQ, LEDGER = (NAMES.stream(role) for role in ("raw", "out", "dlq", "ledger"))
HOUR = timedelta(hours=1)


class Pipeline:
    """Chains and streams of a pipeline with one out subject; a range is one raw frame, an hour after the one before."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.chains = {leg: Chain(self.log, NAMES, CHAINS[leg], 1) for leg in ("ingest", "process", "sink")}
        for chain in self.chains.values():
            chain.open()

    def append(self, subject: str, headers: dict[str, str], payload: bytes = b"frame") -> int:
        last = self.log.last(f"tf-orders-{subject.split('.')[2]}", subject)
        return self.log.publish(subject, payload, headers, last.sequence if last else 0)

    def ingest(self, partition: int = 0) -> int:
        sequence = self.append(NAMES.raw("events", partition), {})
        chain = self.chains["ingest"]
        tails = chain.state.done.body.tails if chain.state.done else {}
        plan = chain.plan(IngestPlan(start={}, to={str(partition): sequence})).body
        tails = {**tails, str(partition): RawTail(sequence, sequence)}
        chain.done(IngestDone(start=plan.start, to=plan.to, counts={"rows_out": 1}, tails=tails))
        return sequence

    def process(self, to: int, waiting: Waiting | None = None, oldest: int = 0) -> None:
        """All raw frames up to `to` as one range, each of which gives a frame of out; `oldest`: as those of a join say."""
        chain = self.chains["process"]
        start = chain.state.to or 0
        chain.plan(ProcessPlan(start=start, to=to, config="v"))
        for sequence in range(start + 1, to + 1):
            of_join = {HEADER_OLDEST: str(oldest)} if oldest else {}
            self.append(NAMES.out(0), {"Tf-First": f"{sequence}.0.0", "Tf-Last": f"{sequence}.0.0", **of_join})
        clock_us = int(self.log.clock.now.timestamp()) * 1_000_000
        counts = {"rows_in": to - start}
        chain.done(ProcessDone(start=start, to=to, config="v", counts=counts, clock_us=clock_us, waiting=waiting))

    def confirm(self, to: int) -> None:
        chain = self.chains["sink"]
        start = chain.state.to or 0
        chain.plan(SinkPlan(start=start, to=to, config="v", rows=0, digest=""))
        chain.done(SinkDone(start=start, to=to))

    def hours(self, count: int) -> None:
        """So many records, one an hour, each through all legs."""
        for _ in range(count):
            self.log.clock.advance(HOUR)
            sequence = self.ingest()
            self.process(sequence)
            self.confirm(sequence)

    def purge(self, leg: str, max_age: timedelta = 3 * HOUR, **limits: int) -> Purge:
        return Purge(self.log, NAMES, SINGLE, LegId.parse(leg), max_age, **limits)

    def held(self, stream: str) -> list[int]:
        return [message.sequence for message in self.log.messages(stream)]


def test_what_is_older_than_the_retention_by_the_logs_clock_goes() -> None:
    made = Pipeline()
    made.hours(10)
    for leg in ("process", "sink"):
        made.purge(leg).by_age()
    assert made.held(RAW) == made.held(OUT) == [7, 8, 9, 10]
    assert read_purged(made.log, NAMES, "raw") == Purged(7, FIRST_INSTANT + 7 * HOUR)
    made.log.clock.advance(1000 * HOUR)
    made.purge("process").by_age()
    assert made.held(RAW) == [7, 8, 9, 10]


def test_a_chain_is_as_long_as_its_stream_and_reads_as_before() -> None:
    made = Pipeline()
    made.hours(10)
    before = {leg: read_chain(made.log, NAMES, CHAINS[leg]) for leg in made.chains}
    for leg in made.chains:
        made.purge(leg).by_age()
    assert before == {leg: read_chain(made.log, NAMES, CHAINS[leg]) for leg in made.chains}
    for leg in ("process", "sink"):
        entries = [CHAINS[leg].decode(m) for m in made.log.fetch(LEDGER, NAMES.chain(leg), 0, made.held(LEDGER)[-1])]
        assert [(entry.kind, entry.body.to) for entry in entries] == [(kind, to) for to in (7, 8, 9, 10) for kind in ("plan", "done")]


def test_raw_frames_of_left_records_that_wait_in_a_join_stay() -> None:
    made = Pipeline()
    for _ in range(6):
        made.log.clock.advance(HOUR)
        made.process(made.ingest(), Waiting(3, 0, 0))
        made.confirm(made.chains["process"].state.to or 0)
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [2, 3, 4, 5, 6]
    made.process(made.ingest(), Waiting(6, 0, 0))
    made.confirm(7)
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [5, 6, 7]
    made.process(made.ingest(), None)
    made.confirm(8)
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [8]


def test_raw_frames_of_unconfirmed_joined_rows_stay() -> None:
    made = Pipeline()
    made.hours(5)
    made.process(made.ingest(), oldest=3)
    made.process(made.ingest(), oldest=6)
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [2, 3, 4, 5, 6, 7]
    made.confirm(6)
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [5, 6, 7]


def test_raw_frames_of_rows_that_are_being_made_anew_stay() -> None:
    made = Pipeline()
    made.hours(6)
    chain = Chain(made.log, NAMES, REPROCESS_CHAIN, 1)
    chain.open()
    chain.plan(ReprocessPlan(start=0, to=1, first=3, last=4, config="v", table="db.t", rows=2))
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [2, 3, 4, 5, 6]
    chain.done(ReprocessDone(start=0, to=1, first=3, last=4, config="v"))
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [6]


def test_ticks_go_like_other_frames() -> None:
    made = Pipeline()
    made.hours(3)
    tick = made.append(NAMES.tick(), {})
    made.process(tick)
    made.confirm(tick)
    made.hours(5)
    Purge(made.log, NAMES, Topology.of(["events", "names"], [""]), LegId.parse("process"), timedelta(0)).by_age()
    assert made.held(RAW) == [tick, 9]


def test_the_last_message_of_a_quiet_subject_stays_for_ever() -> None:
    made = Pipeline()
    quiet = made.ingest(partition=5)
    made.process(quiet)
    made.confirm(1)
    made.hours(10)
    made.purge("process").by_age()
    assert made.held(RAW) == [quiet, 8, 9, 10, 11]


def test_raw_frames_of_rows_that_the_sink_has_not_confirmed_stay() -> None:
    made = Pipeline()
    made.hours(2)
    for _ in range(4):
        made.log.clock.advance(HOUR)
        made.ingest()
    made.process(6)
    made.confirm(4)
    made.log.clock.advance(9 * HOUR)
    made.process(made.ingest())
    made.purge("process", timedelta(0)).by_age()
    # Rows of frame 5 are not confirmed, and their range begins behind 2.
    assert made.held(RAW) == [2, 3, 4, 5, 6, 7]
    made.confirm(7)
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [7]


def test_raw_frames_that_ingest_has_not_confirmed_stay() -> None:
    made = Pipeline()
    made.hours(2)
    made.chains["ingest"].plan(IngestPlan(start={}, to={"0": 9}))
    for _ in range(3):
        made.process(made.append(NAMES.raw("events", 0), {}))
    made.confirm(5)
    made.purge("process", timedelta(0)).by_age()
    assert made.held(RAW) == [2, 3, 4, 5]


def test_a_nearly_full_stream_is_purged_early_and_says_so() -> None:
    made = Pipeline()
    made.log.max_bytes[RAW] = 5 * MAX_FRAME_BYTES
    for _ in range(4):
        made.log.clock.advance(HOUR)
        made.append(NAMES.raw("events", 0), {}, bytes(MAX_FRAME_BYTES))
    with pytest.raises(RetryableError, match="is full"):
        made.append(NAMES.raw("events", 0), {}, bytes(MAX_FRAME_BYTES + 1))
    purge = made.purge("process", 1000 * HOUR)
    sequence = made.ingest()
    purge.for_room()
    assert len(made.held(RAW)) == 5
    made.process(sequence)
    purge.for_room()
    assert len(made.held(RAW)) == 5
    made.confirm(sequence)
    purge.for_room()
    assert len(made.held(RAW)) == 1
    assert read_purged(made.log, NAMES, "raw") == Purged(sequence, FIRST_INSTANT + 4 * HOUR, is_early=True)


def test_frames_of_an_open_plan_do_not_keep_others_from_a_purge() -> None:
    made = Pipeline()
    made.hours(1)
    made.chains["ingest"].plan(IngestPlan(start={}, to={"0": 9}))
    for _ in range(5):
        made.append(NAMES.raw("events", 0), {}, bytes(MAX_FRAME_BYTES))
    made.log.max_bytes[RAW] = 5 * MAX_FRAME_BYTES
    made.chains["ingest"].done(IngestDone(start={}, to={"0": 9}, tails={"0": RawTail(4, 4)}))
    made.chains["ingest"].plan(IngestPlan(start={}, to={"0": 20}))
    made.log.clock.advance(HOUR)
    made.process(6)
    made.confirm(6)
    made.purge("process", 1000 * HOUR).for_room()
    assert made.held(RAW) == [4, 5, 6]
    purged = read_purged(made.log, NAMES, "raw")
    assert purged == Purged(6, FIRST_INSTANT + 2 * HOUR, is_early=True)
    advice = StreamFacts("raw", RAW, 7, 100_000_000, False, purged).advice
    assert advice == "raw stream tf-orders-raw, 7 of 100,000,000 bytes, was purged early to free space, up to 2026-01-01 02:00:00 UTC"


def enter_again(made: Pipeline, count: int) -> int:
    """So many frames of dead letters that entered again, of the largest size; the last one's sequence."""
    return [made.append(NAMES.redriven("events", 0), {}, bytes(MAX_FRAME_BYTES)) for _ in range(count)][-1]


def test_reentered_letters_make_room_while_ingest_is_idle() -> None:
    made = Pipeline()
    made.hours(2)
    made.log.max_bytes[RAW] = 5 * MAX_FRAME_BYTES
    last = enter_again(made, 4)
    purge = made.purge("process", 1000 * HOUR)
    purge.for_room()
    assert made.held(RAW) == [2, 3, 4, 5, 6], "process has not done them"
    made.process(last)
    purge.for_room()
    assert made.held(RAW) == [2, 3, 4, 5, 6], "the sink has not confirmed them"
    made.confirm(last)
    purge.for_room()
    assert made.held(RAW) == [2, 6], "the last of each subject stays"
    assert bytes_free_for_redrive(made.log.state(RAW)) == 0
    last = enter_again(made, 3)
    made.process(last)
    made.confirm(last)
    purge.for_room()
    assert made.held(RAW) == [2, 9]
    assert made.ingest() == 10


def test_letters_around_unconfirmed_frames_make_room() -> None:
    made = Pipeline()
    made.hours(2)
    made.log.max_bytes[RAW] = 5 * MAX_FRAME_BYTES
    made.chains["ingest"].plan(IngestPlan(start={}, to={"0": 9, "1": 9}))
    enter_again(made, 1)
    of_known, of_new = (made.append(NAMES.raw("events", partition), {}) for partition in (0, 1))
    last = enter_again(made, 3)
    for partition in (0, 1):
        with pytest.raises(RetryableError, match="is full"):
            made.append(NAMES.raw("events", partition), {}, bytes(MAX_FRAME_BYTES))
    made.process(last)
    made.confirm(last)
    purge = made.purge("process", 1000 * HOUR)
    for _ in range(2):
        purge.for_room()
    assert made.held(RAW) == [2, of_known, of_new, last]
    ends = [made.append(NAMES.raw("events", partition), {}, bytes(MAX_FRAME_BYTES)) for partition in (0, 1)]
    tails = {str(partition): RawTail(end, 9) for partition, end in enumerate(ends)}
    made.chains["ingest"].done(IngestDone(start={}, to={"0": 9, "1": 9}, tails=tails))
    purge.for_room()
    assert made.held(RAW) == [last, *ends], "confirmed by now, and below what was decided"


def test_a_chain_never_folded_is_walked_in_several_calls() -> None:
    made = Pipeline()
    made.hours(10)
    purge = made.purge("process", HOUR, entries_per_call=8)
    purge.by_age()
    assert made.held(RAW) == [3, 4, 5, 6, 7, 8, 9, 10]
    for _ in range(4):
        purge.by_age()
    assert made.held(RAW) == [9, 10]


def test_small_last_frames_do_not_keep_large_ones_from_a_purge() -> None:
    made = Pipeline()
    for partition in range(20):
        made.ingest(partition)
    made.log.max_bytes[RAW] = 5 * MAX_FRAME_BYTES
    purge = made.purge("process", 1000 * HOUR)
    last = enter_again(made, 4)
    made.process(last)
    made.confirm(last)
    for _ in range(3):
        purge.for_room()
    assert made.held(RAW) == [*range(1, 21), last]


def test_a_stream_with_room_or_no_limit_is_not_purged_for_room() -> None:
    made = Pipeline()
    made.hours(4)
    for limit in (10**9, -1):
        made.log.max_bytes[RAW] = limit
        made.purge("process").for_room()
    assert made.held(RAW) == [1, 2, 3, 4]


def test_an_overtaken_runner_purges_nothing_that_is_needed() -> None:
    made = Pipeline()
    made.hours(5)
    old = made.purge("process", timedelta(0))
    old.by_age()
    made.hours(5)
    made.purge("process").by_age()
    kept = made.held(RAW)
    # Its last request, delayed until now.
    made.log.purge(RAW, NAMES.raw("events", 0), 5)
    assert made.held(RAW) == kept


def test_what_was_decided_is_purged_by_the_next_runner() -> None:
    made = Pipeline()
    made.hours(10)
    made.log.publish(NAMES.purged("raw"), Purged(7).encode(), {}, 0)
    made.purge("process", 1000 * HOUR).by_age()
    assert made.held(RAW) == [7, 8, 9, 10]


def test_a_lost_answer_delays_the_purge_and_loses_nothing() -> None:
    made = Pipeline()
    made.hours(10)
    purge = made.purge("process")
    made.log.go_away(1)
    with pytest.raises(RetryableError):
        purge.by_age()
    purge.by_age()
    assert made.held(RAW) == [7, 8, 9, 10]


def test_leases_are_folded_and_unknown_subjects_left_alone() -> None:
    made = Pipeline()
    subjects = (NAMES.lease("process"), NAMES.lease("sink"), NAMES.config("v"), "tf.orders.ledger.redrive")
    for subject in subjects:
        for number in range(3):
            made.append(subject, {}, b"%d" % number)
    made.hours(10)
    made.purge("process").by_age()
    assert made.log.subjects(LEDGER, "tf.orders.ledger.>") | {"tf.orders.ledger.process": 8} == {
        NAMES.lease("process"): 1,
        **dict.fromkeys(subjects[1:], 3),
        NAMES.chain("ingest"): 21,
        NAMES.chain("process"): 8,
        NAMES.chain("sink"): 21,
        NAMES.purged("raw"): 1,
    }


def test_a_reader_whose_entry_is_purged_reads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pipeline()
    made.hours(2)
    made.chains["process"].open()
    get, pending = made.log.get, [True]

    def purged_meanwhile(stream: str, sequence: int) -> object:
        if pending:
            pending.clear()
            made.hours(2)
            made.purge("process", timedelta(0)).by_age()
        return get(stream, sequence)

    monkeypatch.setattr(made.log, "get", purged_meanwhile)
    assert read_chain(made.log, NAMES, CHAINS["process"]).to == 4


def test_letters_may_be_missing_only_where_they_were_purged() -> None:
    made = Pipeline()
    subjects = [NAMES.dead_letters("process", bucket) for bucket in (0, 1)]
    for subject in [subjects[1], *[subjects[0]] * 5]:
        made.append(subject, {}, encode_frame(DEAD_LETTER_SCHEMA.empty_table()))
    purge_dead_letters(made.log, NAMES, {subjects[0]: 4, subjects[1]: 4})
    assert made.held(DLQ) == [1, 4, 5, 6]
    assert len(list(read_frames(made.log, NAMES))) == 4
    made.log._streams[DLQ].pop(5)
    with pytest.raises(DataLossError, match=r"sequences \[5\]"):
        list(read_frames(made.log, NAMES))


def take_dead_letters(made: Pipeline, *frames: int) -> None:
    """The first letter of these frames, by one plan, an hour after what was before."""
    made.log.clock.advance(HOUR)
    chain = Chain(made.log, NAMES, REDRIVE_CHAIN, 1)
    chain.open()
    number = chain.state.to or 0
    dead_letters = tuple((frame, ((0, 0),)) for frame in frames)
    chain.plan(RedrivePlan(start=number, to=number + 1, action="discard", letters=dead_letters))
    chain.done(RedriveDone(start=number, to=number + 1, counts={"discarded": len(frames)}))


def kinds(made: Pipeline) -> list[tuple[str, object]]:
    """What the chain of redrive holds, but for who opened it: plans with their frames, and where a `done` ends."""
    chain = (REDRIVE_CHAIN.decode(message) for message in made.log.messages(LEDGER) if message.subject == NAMES.chain(REDRIVE))
    reported = {"plan": lambda entry: [frame for frame, _ in entry.body.letters], "done": lambda entry: entry.body.to}
    return [(entry.kind, reported[entry.kind](entry)) for entry in chain if entry.kind in reported]


def test_a_plan_of_letters_lives_as_long_as_its_letters() -> None:
    made = Pipeline()
    subject = NAMES.dead_letters("process", 0)
    for _ in range(5):
        made.append(subject, {}, encode_frame(DEAD_LETTER_SCHEMA.empty_table()))
    for frames in ([1], [2, 4], [3], [5]):
        take_dead_letters(made, *frames)
    fold_redrive(made.log, NAMES, redrive_entries_that_may_go(made.log, NAMES, timedelta(0)))
    assert len(kinds(made)) == 8, "every frame is there"
    purge_dead_letters(made.log, NAMES, {subject: 4})
    assert redrive_entries_that_may_go(made.log, NAMES, 10 * HOUR) == 0, "younger than the retention of the streams"
    fold_redrive(made.log, NAMES, redrive_entries_that_may_go(made.log, NAMES, 3 * HOUR))
    assert kinds(made) == [("plan", [2, 4]), ("done", 2), ("plan", [3]), ("done", 3), ("plan", [5]), ("done", 4)]
    purge_dead_letters(made.log, NAMES, {subject: 5})
    fold_redrive(made.log, NAMES, redrive_entries_that_may_go(made.log, NAMES, timedelta(0)))
    assert kinds(made) == [("plan", [5]), ("done", 4)]
    assert read_chain(made.log, NAMES, REDRIVE_CHAIN).done.body.totals == {"discarded": 5}
    assert redrive_entries_that_may_go(made.log, NAMES, timedelta(0)) == 0


def test_a_lease_that_commands_took_is_folded_to_its_last_word() -> None:
    made = Pipeline()
    for number in range(4):
        made.append(NAMES.lease(REDRIVE), {}, b"%d" % number)
        made.append(NAMES.lease("sink"), {}, b"%d" % number)
    purge_lease(made.log, NAMES, REDRIVE)
    purge_lease(made.log, NAMES, "ingest")
    assert made.log.subjects(LEDGER, "tf.orders.ledger.lease.>") == {NAMES.lease(REDRIVE): 1, NAMES.lease("sink"): 4}
    assert made.log.last(LEDGER, NAMES.lease(REDRIVE)).payload == b"3"


def test_redrive_leaves_ingest_its_reserve() -> None:
    def raw(size: int, limit: int) -> StreamState:
        return StreamState("raw", 1, 1, 1, size, limit, {})

    assert bytes_free_for_redrive(raw(7, -1)) == sys.maxsize
    assert bytes_free_for_redrive(raw(30_000_000, 100_000_000)) == 50_000_000
    assert bytes_free_for_redrive(raw(90_000_000, 100_000_000)) == 0
    assert not is_full(raw(90_000_000, 100_000_000))
    assert is_full(raw(99_600_000, 100_000_000))
    assert not is_full(raw(99_600_000, -1))


def test_the_decision_is_readable_json() -> None:
    assert json.loads(Purged(7, FIRST_INSTANT, True).encode()) == {"below": 7, "since": "2026-01-01T00:00:00Z", "is_early": True}
