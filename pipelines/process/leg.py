"""The process leg: raw frames to typed out frames and dead letters."""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from threading import Event
from typing import Any

from pipelines.config import format_duration
from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.engine.backlog import Backlog
from pipelines.engine.connections import Connections
from pipelines.engine.inputs import MAX_FRAMES_PER_BATCH, Hold, Offset, StreamInput
from pipelines.engine.leg import LEG_MEANS, Leg, LegMeans, Tenure, check_input, fetch_behind, input_mark
from pipelines.errors import FunctionHaltError, HaltError, UndecidedError
from pipelines.key_store.store import made_for
from pipelines.process.admission import admission_of
from pipelines.process.arrivals import FRAMES_PER_STEP, Arrived, arrival_by, arrivals, microseconds
from pipelines.process.buckets import check_not_passed, subjects_of
from pipelines.process.frames import process_frames
from pipelines.process.giving_up import given_up
from pipelines.process.items import ProcessItem, SubjectTail
from pipelines.process.join.progress import Fact
from pipelines.process.program import Program
from pipelines.process.snapshot_choice import SnapshotChoice
from pipelines.process.stage_config import config_of, planned
from pipelines.process.ticks import TickedInput
from pipelines.protocol.bodies import InputMark, PageReference, Poison, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import Chain, Entry, stored_form
from pipelines.protocol.naming import bucket_of_partition, listed_as
from pipelines.protocol.positions import Position, differences
from pipelines.protocol.records import Message
from pipelines.protocol.run_lists import Lists, Offers, RunLists, digest_of_names

LEAST_FRAMES = 16
"""So many frames always fit into a plan, whatever their size."""
OFFER_SECONDS = 1.0
MAX_POISON = 10_000
"""Most records of one plan on which the stages may end: its entry on the ledger has room for as many."""
PLAN_BYTES = 128 * 1024 * 1024
"""Limit of the frames of a plan, decoded."""
CLOCK_SECONDS = 1.0
"""Interval between comparisons of the clocks; a comparison takes a request."""
_HOLD = Hold(behind_seconds=0.25, frames=2 * LEAST_FRAMES)
"""While a backlog is read a plan has some frames, which share its fixed costs: among them to read the last one of the plan before again."""


class ProcessLeg(Leg[ProcessPlan, ProcessDone]):
    """The process leg; its offset is {"sequence": last raw sequence}."""

    _next_offer = 0.0
    _seen_offer = 0
    _next_clock = 0.0
    _undecided: Sequence[Sequence[Any]] = ()
    _is_unwritten = False
    """Whether it is known that no attempt has written anything of the undecided records."""
    _times: Sequence[Fact] = ()
    """The facts of the frames by which the last attempt has joined, which the amended plan keeps."""
    _attempts = (0, 0)
    """The end of the plan in work, and the number of its attempts: each task's process may have left a segment of its own."""
    _fetched: Sequence[Message] = ()
    """The raw frames of the last proposed plan."""
    _run_lists: RunLists | None = None
    _tails: Mapping[str, SubjectTail] = {}
    """Ends of subjects as this leg has seen them; a missing subject is looked up."""
    _snapshots: SnapshotChoice | None = None
    _runs: Lists | None = None
    """The live segments after the plan that was executed last."""

    def __init__(
        self,
        connections: Connections,
        chain: Chain[ProcessPlan, ProcessDone],
        tenure: Tenure,
        stop: Event,
        means: LegMeans = LEG_MEANS,
        plan_frames: int = MAX_FRAMES_PER_BATCH,
        step_frames: int = FRAMES_PER_STEP,
    ) -> None:
        super().__init__(connections, chain, tenure, stop, means)
        self._plan_frames, self._step_frames = plan_frames, step_frames

    def open_input(self) -> StreamInput:
        connections, log, names, clock = self.connections, self.connections.log, self.connections.names, self.means.clock
        topology = connections.config.topology
        upstream, is_behind = topology.upstream(self.name), Backlog(log, names, topology.ingests, clock).is_read
        join = config_of(connections, connections.run.stage_config).join
        if join is not None and not join.is_timed:
            return TickedInput(log, names, self.name, upstream, self._next_end_us, clock, _HOLD, is_behind)
        return StreamInput(log, names, self.name, upstream, _HOLD, clock, is_behind=is_behind)

    def _next_end_us(self) -> int | None:
        """Return when the window of the oldest waiting left record ends; None if none waits."""
        done, join = self._done, config_of(self.connections, self.connections.run.stage_config).join
        return done.waiting.arrival_us + join.windows.left_us if done and done.waiting and join else None

    @property
    def _lists(self) -> RunLists:
        if self._run_lists is None:
            self._run_lists = RunLists(self.connections.log, self.connections.names)
        return self._run_lists

    def _start_offset(self) -> Offset:
        check_input(self.connections.log, self.connections.names.stream("raw"), self._input_mark)
        self._check_buckets()
        if self.chain.state.plan is None:
            self._check_clock()
        self._sweep()
        return {"sequence": self.chain.state.to or 0}

    @property
    def _done(self) -> ProcessDone | None:
        return self.chain.state.done.body if self.chain.state.done else None

    @property
    def _listed_by(self) -> PageReference | None:
        return self._done.runs if self._done else None

    @property
    def _input_mark(self) -> InputMark | None:
        return self._done.input if self._done else None

    def _check_buckets(self) -> None:
        done, buckets = self._done, config_of(self.connections, self.connections.run.stage_config).buckets
        if done is not None and done.buckets != buckets:
            raise HaltError(
                f"starting process: its state lies in {done.buckets} buckets, the file says {buckets}: a change was begun and is "
                "not finished; run `tallyflow rebucket` again"
            )

    def _check_clock(self) -> None:
        """Compare the arrival with the server's clock, if windows are measured on it; warn or halt if it is ahead, as the file says.

        The arrival never steps back. A planned range is finished first, so that `reset-clock` finds none.
        """
        done, log = self._done, self.connections.log
        config = config_of(self.connections, self.connections.run.stage_config)
        if done is None or not config.goes_by_arrival or time.monotonic() < self._next_clock:
            return
        self._next_clock = time.monotonic() + CLOCK_SECONDS
        limits = self.connections.config.resources.nats
        now_us = microseconds(log.clock(self.connections.names.stream("raw")))
        ahead = timedelta(microseconds=done.clock_us - arrival_by(done.clock_resets, sys.maxsize, now_us))
        self.status.warning = ""
        if ahead > limits.max_clock_ahead:
            warning = (
                f"the arrival of the last record is {format_duration(ahead)} ahead of NATS's clock, which was ahead and stepped back: "
                "until it is there again windows stand still, and records are compared with older ones than they should be; set the "
                "clock of the server right, stop the pipeline and run `tallyflow reset-clock`"
            )
            if limits.clock_ahead == "halt":
                raise HaltError(f"comparing arrivals: {warning}; or wait, or set `clock_ahead: warn` in resources.nats")
            self.status.warning = warning

    def _finish(self, plan: Entry[ProcessPlan]) -> None:
        """Finish the plan; then delete the segments that the new `done` no longer lists, or that failed attempts or lanes have left."""
        before = self._listed()
        super()._finish(plan)
        now = self._listed()
        # An attempt of an earlier start at this plan has left segments that the sweep at our start spared.
        if self._attempts[1] > 1 or plan.epoch != self.chain.state.epoch or self.connections.lanes.take_late():
            self._sweep()
            return
        for key, names in before.items():
            for name in names - now.get(key, set()):
                self.connections.segments(key).delete(name)

    def _listed(self) -> dict[str, set[str]]:
        """Return the names of the live segments, by store and bucket."""
        runs = self._lists.of(self._listed_by)
        return {key: {listed[0] for listed in listing} for key, listing in runs.items()}

    def _sweep(self) -> None:
        """Delete segments that no `done` lists and no open plan may still need: killed attempts have left them."""
        config = config_of(self.connections, self.connections.run.stage_config)
        listed, done_to = self._listed(), self.chain.state.to or 0
        for key in (listed_as(store, bucket) for store in config.stores for bucket in range(config.buckets)):
            storage = self.connections.segments(key)
            storage.discard_copies(listed.get(key, set()))
            for name in storage.names():
                if name not in listed.get(key, set()) and made_for(name) <= done_to:
                    storage.delete(name)

    def covers(self, end: Offset) -> bool:
        return (self.chain.state.to or 0) >= end["sequence"]

    def propose(self, end: Offset) -> ProcessPlan:
        self._check_clock()
        start, version = self.chain.state.to or 0, self.connections.run.stage_config
        to = min(end["sequence"], start + self._plan_frames)
        # With dedup the rows of a plan are handled together, so they must fit into memory.
        config = config_of(self.connections, version)
        self._fetched = self._fetch(start, to, PLAN_BYTES // config.widening)
        return ProcessPlan(start=start, to=self._fetched[-1].sequence, config=version, lookups=self._newest_lookups(config))

    def _newest_lookups(self, config: Program) -> dict[str, str]:
        """Return the snapshots that a new plan names."""
        if self._snapshots is None:
            self._snapshots = SnapshotChoice(self.connections)
        return self._snapshots.newest(config)

    def _fetch(self, start: int, to: int, most_bytes: float = math.inf) -> list[Message]:
        """Fetch the raw frames with `start` < sequence <= `to`; end before that with the frame that exceeds `most_bytes`, decoded.

        LEAST_FRAMES always fit. Raise RetryableError while the first frame is not served.
        """
        log, names = self.connections.log, self.connections.names
        messages: list[Message] = []
        size = 0
        for message in fetch_behind(log, self._input_mark, names.stream("raw"), names.subjects("raw"), to):
            size += message.content_bytes
            if size > most_bytes and len(messages) >= LEAST_FRAMES:
                break
            messages.append(message)
        sequences = [message.sequence for message in messages]
        if most_bytes < math.inf:
            to = sequences[-1] if sequences else start + 1
        check_contiguous(names.stream("raw"), sequences, start, to)
        return messages

    def execute(self, plan: Entry[ProcessPlan]) -> ProcessDone:
        # An earlier attempt may have amended the plan.
        body = (self.chain.state.plan or plan).body
        while True:
            if self._undecided:
                body = self._decide(body)
            try:
                return self._execute(body)
            except UndecidedError as error:
                self._undecided, self._is_unwritten, self._times = error.records, error.is_unwritten, error.times
            except FunctionHaltError as error:
                self._times = error.times
                if body.config != self.connections.run.accepted_config:
                    raise
                frames, config = self._fetch(body.start, body.to), config_of(self.connections, body.config)
                self._undecided, self._is_unwritten = given_up(self.connections, config, frames, body.poison, error), False
                if not self._undecided:
                    # It hangs on records that an earlier attempt has written.
                    raise

    def _decide(self, plan: ProcessPlan) -> ProcessPlan:
        """Return the plan with the records on which a stage ends: from now on every attempt makes them dead letters.

        If an earlier attempt passed one of these records, it wrote a row of it, or a dead letter for another reason; then nothing can be
        decided.
        """
        found: Iterator[Poison] = ((sequence, ordinal, *reason) for sequence, ordinal, _, *reason in self._undecided)
        decided = (*plan.poison, *found)
        if len(decided) > MAX_POISON:
            raise HaltError(
                f"processing raw {plan.start}-{plan.to}: the stages end on more than {MAX_POISON:,} records "
                f"({self._undecided[0][4]}); nothing was dropped. Report this with the log, and start the version that ran before"
            )
        if not self._is_unwritten:
            self._check_not_passed(plan)
        # After an append of unknown outcome the same decision is appended again.
        amended = self.chain.amend(replace(plan, poison=decided, times=plan.times or tuple(self._times))).body
        self._undecided = []
        return amended

    def _check_not_passed(self, plan: ProcessPlan) -> None:
        """Raise HaltError if an attempt at the plan has written positions beyond a record that is about to be decided."""
        config = config_of(self.connections, plan.config)
        first: dict[int, Position] = {}
        for sequence, ordinal, partition, *_ in self._undecided:
            # With dedup, or a join, nothing is written before every record of the plan has passed the stages before the exchange.
            places = range(config.buckets) if config.is_keyed else [bucket_of_partition(partition, config.buckets)]
            storage = Position(plan.start + 1, 0) if config.is_keyed else Position(sequence, ordinal)
            for bucket in places:
                first[bucket] = min(first.get(bucket, storage), storage)
        for bucket, storage in first.items():
            subjects = subjects_of(self.connections, bucket)
            check_not_passed(self.connections, (plan.start, plan.to), self._undecided[0], subjects, storage)

    def _execute(self, plan: ProcessPlan) -> ProcessDone:
        self._attempts = (plan.to, self._attempts[1] + 1 if self._attempts[0] == plan.to else 1)
        item = self._item(plan)
        arrived = self._arrived(item)
        # All buckets at once: a step through the stages has a fixed cost, however few its rows are.
        report = process_frames(self.connections, planned(self.connections, item.config, item.lookups), item, arrived)
        self._runs = self._adopted({**item.runs, **report.runs})
        self._tails = tails = {**item.tails, **report.tails}
        return ProcessDone(
            start=plan.start,
            to=plan.to,
            counts=report.counts,
            config=plan.config,
            buckets=config_of(self.connections, plan.config).buckets,
            clock_us=arrived[-1].arrival_us,
            clock_resets=item.clock_resets,
            watermarks=item.watermarks if report.watermarks is None else report.watermarks,
            input=input_mark(arrived[-1].message),
            waiting=report.waiting,
            ends={role: self._end_of(role, tails) for role in (*self.connections.config.topology.writes(self.name), "duplicates")},
            arrivals=tuple(differences([frame.arrival_us for frame in arrived])),
            lookups=plan.lookups,
        )

    def _item(self, plan: ProcessPlan) -> ProcessItem:
        """Return the whole plan as an item, as of the last `done`."""
        item = ProcessItem(
            start=plan.start,
            to=plan.to,
            config=plan.config,
            admission=admission_of(self.connections),
            poison=plan.poison,
            lookups=plan.lookups,
            times=plan.times,
            tails=dict(self._tails),
            runs=self._lists.of(self._listed_by),
            step_frames=self._step_frames,
            oldest=plan.start + 1,
        )
        done = self._done
        if done is not None and done.waiting is not None:
            item = replace(item, oldest=done.waiting.sequence)
        return item if done is None else replace(item, clock_us=done.clock_us, clock_resets=done.clock_resets, watermarks=done.watermarks)

    def _closing(self, done: ProcessDone) -> ProcessDone:
        """Return `done` with its segments on pages of their own."""
        return replace(done, runs=self._lists.write(self._listed_by, self._runs or {}))

    def _end_of(self, role: str, tails: Mapping[str, SubjectTail]) -> int:
        """Return the last sequence of a stream that ranges up to this one have written."""
        before = self._done.ends.get(role, 0) if self._done else 0
        subjects = self.connections.names.subjects(role).removesuffix(">")
        return max(before, *(sequence for subject, (sequence, _) in tails.items() if subject.startswith(subjects)), 0)

    def _adopted(self, runs: Lists) -> Lists:
        """Replace the oldest of `runs` by the output of an offered compaction, if all of its input is still listed.

        The offer is looked up at most once in OFFER_SECONDS. The time of the replacement does not matter: every lookup gives the same
        answer before and after.
        """
        if not runs or time.monotonic() < self._next_offer:
            return runs
        self._next_offer = time.monotonic() + OFFER_SECONDS
        offer = self.connections.log.last(self.connections.names.stream("ledger"), self.connections.names.compaction())
        if offer is None or offer.sequence <= self._seen_offer:
            return runs
        adopted = dict(runs)
        for place, one in stored_form(Offers, offer).buckets.items():
            present = runs.get(place, [])
            storage = self.connections.segments(place)
            if digest_of_names(present[: one.count]) == one.names and all(storage.size(listed[0]) for listed in one.output):
                adopted[place] = [*one.output, *present[one.count :]]
        self._seen_offer = offer.sequence
        return adopted

    def _arrived(self, item: ProcessItem) -> list[Arrived]:
        fetched, self._fetched = self._fetched, ()
        if not fetched or (fetched[0].sequence, fetched[-1].sequence) != (item.start + 1, item.to):
            fetched = self._fetch(item.start, item.to)
        return list(arrivals(fetched, item.clock_us, item.clock_resets))
