"""One share in this process: a thread for each of its legs, or the parts that it does as a lane; and one that reports to the runner."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from pipelines.config import PipelineConfig
from pipelines.config.settings import settings_digest, settings_of
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.connections import Connections, Kept
from pipelines.engine.lanes import Lane, Lanes, lane_subject
from pipelines.engine.leg import AnyLeg
from pipelines.engine.line import REPORT_EVERY_SECONDS, Answer, Held, Join, Joined, Line, Process, Report
from pipelines.engine.release import own_release
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import HaltError, RetryableError
from pipelines.ingest.leg import IngestLeg
from pipelines.ingest.ranges import INGEST_PART, ingest_part
from pipelines.process.exchange import BUCKETS_PART, COPIES_PART, STAGES_PART, buckets_part, copies_part, stages_part
from pipelines.process.leg import ProcessLeg
from pipelines.protocol.ledger import Chain
from pipelines.protocol.topology import DEAD_LETTERS, INGEST, PROCESS, SINK, LegId, for_every_kind
from pipelines.runner.leg_thread import LegThread
from pipelines.sink.dead_letter_leg import DeadLetterLeg
from pipelines.sink.leg import SinkLeg
from pipelines.sink.parts import SINK_PART, insert_part

LEG_CLASSES: Mapping[str, Callable[..., AnyLeg]] = for_every_kind(
    {INGEST: IngestLeg, PROCESS: ProcessLeg, SINK: SinkLeg, DEAD_LETTERS: DeadLetterLeg}
)
LANE_WORKS: Mapping[str, Callable[[Connections, str], bytes]] = {
    INGEST_PART: ingest_part,
    STAGES_PART: stages_part,
    COPIES_PART: copies_part,
    BUCKETS_PART: buckets_part,
    SINK_PART: insert_part,
}
"""What a lane can do for the legs."""
_JOIN_EVERY_SECONDS = 0.05


class Share:
    """A share of a run in this process, from `start` to its end. The log belongs to the caller.

    `number`: the share to ask for; another one is given if a process works on this one. `subject`: that of the runner; without it nobody
    asks a lane for anything.
    """

    def __init__(
        self,
        run: RunSpec,
        number: int,
        log: JetStream,
        line: Line,
        leg_classes: Mapping[str, Callable[..., AnyLeg]] = LEG_CLASSES,
        clock: Callable[[], float] = time.monotonic,
        subject: str = "",
    ) -> None:
        self._run, self._number, self._log, self._line = run, number, log, line
        self._leg_classes, self._clock, self._subject = leg_classes, clock, subject
        self._at_the_end: list[Callable[[], object]] = []
        self.process = Process.own()
        self._held = Held(clock)
        self._stop = threading.Event()
        self._news = threading.Event()
        self._notes: list[str] = []
        self._dead_beside: tuple[Process, ...] = ()
        """Neighbours that have ended, of which the next report tells."""
        self._legs: list[LegThread] = []
        self._reporter = threading.Thread(target=self._report_until_the_end, name="report", daemon=True)
        self._task = ""
        self._lanes: list[Lanes] = []
        self._resolved = Kept()
        """The configuration of the run, for all legs, by the settings that the runner has sent."""
        self._settings = ""
        """The digest of the settings that the runner has sent last."""
        self._epoch, self._ended_epoch = 0, 0
        self._turn = threading.Condition()
        """Notified when an epoch of the query is over, and when the share has ended."""
        self.ended = threading.Event()
        self.is_over = False
        """Whether the share has ended and `hold` has said so."""

    def start(self, epoch: int, task: str) -> None:
        """Join the run and start the legs, or the lane, in a task of Spark; wait until a share is free.

        Return without either if the runner stops, or the epoch is over before.
        Raise RetryableError if the runner does not answer, HaltError if this process must not work for it.
        """
        self._line.on_stop(self.stop)
        self._line.on_border(self._news.set)
        self._epoch, self._task = epoch, task
        joined = self._joined(epoch)
        if joined.epochs or joined.lane:
            self._number = joined.share
            self._note_settings(joined.settings)
            for name, epoch in joined.epochs.items():
                self._legs.append(self._made(LegId.parse(name), epoch, joined.lanes))
            if joined.lane:
                self._serve_lane(joined.lane)
            self._report()
        for thread in self._legs:
            thread.start()
        self._reporter.start()

    def at_the_end(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the legs, or the lane, have ended, and the runner was told so."""
        self._at_the_end.append(callback)

    def _note_settings(self, settings: str) -> None:
        """Work under settings that the runner has sent, if it has: the legs that are made from now on, and those at work."""
        if settings:
            self._run, self._settings = replace(self._run, settings=settings), settings_digest(settings)
            for thread in self._legs:
                thread.send_settings(settings)

    def _resolve(self) -> tuple[PipelineConfig, str]:
        """Return the configuration of the run, and the digest of its settings."""
        config = self._run.config
        return config, settings_digest(settings_of(config))

    def _made(self, name: LegId, epoch: int, count: int) -> LegThread:
        lanes = Lanes(self._log, self._subject, leg=name)
        self._lanes.append(lanes)
        config, settings = self._resolved.keep(self._run.settings, self._resolve)
        connections = Connections(
            self._run, keep_partitions=True, log=self._log, config=config.seen_from(name), lanes=lanes, note=self._say
        )
        if count and name.kind == PROCESS:
            self._serve(0, Lane({}, self._say, lanes.shelf))
        chain = Chain(self._log, connections.names, name.chain, epoch)
        leg = self._leg_classes[name.kind](connections, chain, self._held, self._stop)
        leg.status.settings = settings
        return LegThread(leg, self._say, self._news.set)

    def _serve_lane(self, number: int) -> None:
        """Do the parts for which this lane is asked, until the end."""
        lanes = Lanes(self._log, self._subject, own=number)
        connections = Connections(self._run, keep_partitions=True, log=self._log, lanes=lanes, note=self._say)
        connections.prove()
        works = {name: partial(work, connections) for name, work in LANE_WORKS.items()}
        self._serve(number, Lane(works, self._say, lanes.shelf))
        self._at_the_end.append(connections.close)

    def _serve(self, number: int, lane: Lane) -> None:
        self._at_the_end += [self._log.serve(lane_subject(self._subject, number), lane.answer), lane.close]

    def _joined(self, epoch: int) -> Joined:
        """Return the share that is given, neither legs nor a lane after a stop, or when the epoch is over."""
        gone: tuple[Process, ...] = ()
        while not self._stop.is_set():
            joined = self._line.join(Join(self._number, self.process, dict(own_release()), gone, epoch, self._task))
            gone = tuple(process for process in joined.held_by if process.is_dead())
            if joined.epochs or joined.lane:
                return joined
            if joined.is_stopping or joined.ended_epoch >= epoch:
                self._stop.set()
            self._stop.wait(_JOIN_EVERY_SECONDS)
        return Joined()

    def stop(self) -> None:
        """Let every leg finish its batch and end. For any thread."""
        self._stop.set()
        for thread in self._legs:
            thread.wake()
        self._news.set()

    def hold(self, epoch: int, seconds: float, task: str) -> dict[LegId, int]:
        """Wait in a task until the share has ended, the epoch is over, or so many seconds have passed.

        Return each leg's rows since the last call.
        """
        self._epoch, self._task = epoch, task
        # Of a process that ends in its task only the runner can learn it, by the task.
        self._news.set()
        with self._turn:
            self._turn.wait_for(lambda: self.ended.is_set() or self._ended_epoch >= epoch, seconds)
        self.is_over, self._task = self.ended.is_set(), ""
        return {thread.leg.name: thread.rows_taken() for thread in self._legs}

    def _say(self, note: str) -> None:
        self._notes.append(note)
        self._news.set()

    def _report_until_the_end(self) -> None:
        while not self._stop.is_set():
            self._news.wait(REPORT_EVERY_SECONDS)
            self._news.clear()
            self._report()
        for thread in self._legs:
            # The last batch may take longer than the right to the share lasts without a report.
            while not thread.join(REPORT_EVERY_SECONDS):
                self._report()
        self._report(has_ended=True)
        # Each is called whatever another one meets: the runner waits for the end.
        with ExitStack() as last_steps:
            last_steps.callback(self._note_end)
            for end in reversed(self._at_the_end):
                last_steps.callback(_end, end)
            for thread in self._legs:
                last_steps.callback(thread.leg.close)

    def _note_end(self) -> None:
        with self._turn:
            self.ended.set()
            self._turn.notify_all()

    def _report(self, has_ended: bool = False) -> None:
        """Report once; without an answer the right to the share runs out, and the next report may extend it."""
        notes, asked_at = tuple(self._notes), self._clock()
        statuses = {str(thread.leg.name): thread.leg.status for thread in self._legs}
        try:
            answer = self._line.report(
                Report(
                    self._number,
                    self.process,
                    statuses,
                    notes,
                    self._task,
                    self._epoch,
                    has_ended,
                    self._settings,
                    self._dead_beside,
                )
            )
        except RetryableError:
            return
        except HaltError:
            # A runner that does not understand this process does not give it the share.
            answer = Answer(is_replaced=True)
        del self._notes[: len(notes)]
        self._dead_beside = tuple(process for process in answer.asked if process.is_dead())
        if self._dead_beside:
            self._news.set()
        self._held.extend(asked_at, answer.seconds)
        self._note_settings(answer.settings)
        for lanes in self._lanes:
            lanes.use(answer.lanes)
        with self._turn:
            self._ended_epoch = max(self._ended_epoch, answer.ended_epoch)
            self._turn.notify_all()
        if answer.is_replaced:
            self._held.lost.set()
        if answer.is_replaced or answer.is_stopping:
            self.stop()


def _end(step: Callable[[], object]) -> None:
    with suppress(RetryableError):
        step()
