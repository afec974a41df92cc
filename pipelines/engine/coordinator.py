"""Which process works on which share of a run: the runner grants a share, some legs or a lane, to one process at a time.

A process joins, is given epochs of its own for the legs, and reports to the runner every second. Each answer says how long nobody else is
given the share. So a process that was given up loses its right to insert before another one gets it, without a clock that two hosts share;
what it still appends is fenced by its epoch.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from pipelines.config.settings import settings_digest
from pipelines.engine.failures import from_failure, to_failure
from pipelines.engine.leg import LegStatus
from pipelines.engine.line import REPORT_EVERY_SECONDS, Answer, Gone, Join, Joined, Process, Report
from pipelines.engine.release import release_differences
from pipelines.errors import FencedError, HaltError, TallyflowError
from pipelines.protocol.lease import Lease
from pipelines.protocol.topology import LegId

SILENT_SECONDS = 3.0
UNHEARD_SECONDS = 1.5 * REPORT_EVERY_SECONDS
"""The runner asks Spark whether a process has ended that has not reported for so long."""
RIGHT_SECONDS = 8.0
"""Limit of the right to a share from a report on: an insert, which nothing fences, may begin while more than 6 s are left."""
IDLE_SECONDS = 5.0
"""A share whose process has had no task for so long moves to a process that has one: Spark ends a worker without tasks."""
FREE_SECONDS = 5.0
"""Legs on which nobody works for so long take the task slot of a lane."""
WAITING_SECONDS = 1.0
"""A process that waits for a share asks for it far more often."""


class LegView:
    """A leg as its runner knows it, by the last report of the process that works on it."""

    def __init__(self, name: LegId, lease: Lease) -> None:
        self.name, self.lease = name, lease
        self.status = LegStatus()
        self.process: Process | None = None

    @property
    def failure(self) -> HaltError | None:
        """The error that halted the leg."""
        if not self.status.failure:
            return None
        error = from_failure(self.status.failure)
        return error if isinstance(error, HaltError) else HaltError(str(error))

    def halt(self, error: TallyflowError) -> None:
        """Halt a leg that no process works on."""
        self.status.state, self.status.message, self.status.failure = "halted", str(error), to_failure(error)


@dataclass
class _Member:
    """The process that has a share. `until`: the time up to which it may insert. `heard_at`: that of its last report.

    `task_at`: that of its last report with a task. `is_leaving`: it is to make room for another one. `task`: Spark's id of its task, empty
    if it has none; `last_task`: of the one that it had last. `place`: the executor in which it is, as Spark names it, empty if Spark does
    not tell, None before it was asked. `has_ended`: it is known to have.
    """

    process: Process
    until: float
    heard_at: float
    task_at: float
    is_leaving: bool = False
    task: str = ""
    last_task: str = ""
    place: str | None = None
    has_ended: bool = False


class Coordinator:
    """The runner's side. Thread-safe.

    `shares`: the legs of each; the shares without a leg are lanes, and come last. At first no lane is kept.
    """

    has_places = False
    """Whether tasks may run in one of several executors."""

    def __init__(
        self,
        shares: Sequence[Sequence[LegId]],
        legs: Mapping[LegId, LegView],
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shares = tuple(tuple(share) for share in shares)
        self._legs, self._announce, self._clock = legs, announce, clock
        self._members: dict[int, _Member] = {}
        self._granted: set[int] = set()
        self._free_since: dict[int, float] = {}
        self._waited_until = clock()
        """The time up to which a process is taken to wait for a share."""
        self._lock = threading.Lock()
        self._stop_callbacks: list[Callable[[], None]] = []
        self._border_callbacks: list[Callable[[], None]] = []
        self._kept_lanes = 0
        self.allowed_lanes = self.most_lanes
        """The number of lanes that the run may keep, as the pipeline file says now."""
        self._settings = ""
        self._begun_epoch, self._epoch_tasks, self._ended_epoch = 0, 0, 0
        self._to_begin = 0
        self._begun: set[Process] = set()
        """The processes that have a task of the epoch, of which there are `_to_begin`."""
        self._taken_over: dict[int, list[Mapping[str, int]]] = {}
        """What the legs had reached when a process took a share over from a lost one in this epoch, by the share."""
        self.changed = threading.Event()
        """Set with each report, and with each halt or wait that the runner notes itself."""
        self.is_stopping = False

    def join(self, join: Join) -> Joined:
        """Give a share on which no process works, and after which none may still insert: legs before lanes, else the one asked for.

        Which worker gets which task differs from epoch to epoch, so a process keeps its share whatever its task is. If no share is free,
        a process that has had no task for IDLE_SECONDS is asked to leave, and the others which of their neighbours have ended. Raise
        HaltError for a process of another release: two releases of an engine must not write one stream.
        """
        if differences := release_differences(join.release):
            raise HaltError(
                f"a worker on {join.process} does not run what this runner runs: {differences}. Nothing was done there; install one "
                "release on every host, and start the pipeline again"
            )
        with self._lock:
            joined, waits = self._joined(join), self._someone_waits
            if joined.held_by:
                self._waited_until = self._clock() + WAITING_SECONDS
        if joined.held_by and not waits:
            self._let_report()
        return joined

    def _joined(self, join: Join) -> Joined:
        if self.is_stopping:
            return Joined(is_stopping=True)
        self._note_task(join.process, join.epoch)
        wanted = sorted(range(self.tasks), key=lambda number: (not self.shares[number], number != join.share))
        free = [number for number in wanted if self._is_free(number, {join.process, *join.gone})]
        if not free:
            for member in self._members.values():
                member.is_leaving |= self._clock() - member.task_at >= IDLE_SECONDS
            processes = tuple(member.process for member in self._members.values())
            if join.share >= self.tasks:
                return Joined(is_stopping=True)
            return Joined(held_by=processes, ended_epoch=self._ended_epoch)
        epochs = {str(leg): self._epoch(leg, free[0]) for leg in self.shares[free[0]]}
        if free[0] in self._members and self._members[free[0]].process != join.process:
            self._taken_over[free[0]] = self._reached(free[0])
        self._granted.add(free[0])
        now = self._clock()
        self._members[free[0]] = _Member(join.process, now + self._lease_seconds(free[0]), now, now, task=join.task, last_task=join.task)
        lane = 0 if epochs else self._lane(free[0])
        settings = self._settings if epochs else ""
        return Joined(free[0], epochs, lane, self.most_lanes, ended_epoch=self._ended_epoch, settings=settings)

    @property
    def _someone_waits(self) -> bool:
        return self._clock() < self._waited_until

    def _neighbours(self, process: Process) -> list[_Member]:
        """Return the other processes with a share on the host of this one, which alone can tell whether they have ended."""
        return [member for member in self._members.values() if member.process.host == process.host and member.process != process]

    def _lease_seconds(self, number: int) -> float:
        return max(0.0, min([RIGHT_SECONDS, *(self._legs[leg].lease.remaining_seconds for leg in self.shares[number])]))

    def _is_free(self, number: int, without: Set[Process]) -> bool:
        """Return whether nobody works on a share, but for processes that work on it no more."""
        member = self._members.get(number)
        return member is None or member.process in without or self._clock() >= member.until or member.process.is_dead()

    def _epoch(self, leg: LegId, share: int) -> int:
        """Return an epoch that no other process has: an earlier process of this runner is fenced by the next one."""
        lease = self._legs[leg].lease
        if lease.lost.is_set():
            raise FencedError(f"{leg}: the lease was lost, another runner has taken this leg over; stop this one")
        return lease.raise_epoch() if share in self._granted else lease.holder.epoch

    def report(self, report: Report) -> Answer:
        """Note the state of a share's legs; answer for how long the process keeps the share."""
        with self._lock:
            member = self._members.get(report.share)
            if member is None or member.process != report.process or member.has_ended:
                return Answer(is_replaced=True)
            if any(self._legs[leg].lease.lost.is_set() for leg in self.shares[report.share]):
                return Answer(is_replaced=True)
            if report.task:
                self._note_task(report.process, report.epoch)
            beside = self._neighbours(report.process)
            self._end(neighbour for neighbour in beside if neighbour.process in report.gone)
            for name, status in report.legs.items():
                view = self._legs[LegId.parse(name)]
                view.status, view.process = status, report.process
            if report.has_ended:
                del self._members[report.share]
            seconds = self._lease_seconds(report.share)
            member.heard_at, member.task = self._clock(), report.task
            if report.task:
                member.last_task, member.task_at = report.task, member.heard_at
            member.until = member.heard_at + seconds
            is_stopping = self.is_stopping or member.is_leaving or report.share >= self.tasks
            lanes = tuple(map(self._lane, self._working_lanes))
            settings = self._news_for(report)
            asked = tuple(one.process for one in beside if self._someone_waits and self._clock() < one.until)
        for note in report.notes:
            self._announce(note)
        self.changed.set()
        return Answer(seconds, is_stopping, lanes=lanes, ended_epoch=self._ended_epoch, settings=settings, asked=asked)

    def note_gone(self, gone: Gone) -> Gone:
        """Give the shares of processes that have ended to others; return those that had one."""
        with self._lock:
            self._end(ended := [member for member in self._members.values() if member.process in gone.processes])
        if ended:
            names = ", ".join(str(member.process) for member in ended)
            self._announce(f"with an executor have ended: {names}; other processes take their shares over")
        return Gone(tuple(member.process for member in ended))

    def _end(self, members: Iterable[_Member]) -> None:
        for member in members:
            member.until, member.has_ended = self._clock(), True

    def _news_for(self, report: Report) -> str:
        """Return the settings that a share of legs has not been sent yet, empty if there are none: a lane's work has them in its items."""
        is_told = not self._settings or report.settings == settings_digest(self._settings)
        return "" if is_told or not self.shares[report.share] else self._settings

    def take_settings(self, settings: str, lanes: int) -> None:
        """Send other settings of the pipeline file to every process with legs, and to those that join later; allow so many lanes."""
        with self._lock:
            self._settings, self.allowed_lanes = settings, min(lanes, self.most_lanes)
        self._let_report()

    def look(self) -> None:
        """Note the legs of processes that have ended, or been silent for SILENT_SECONDS, as waiting: reports travel over NATS.

        Ask a lane to leave if legs are without a process: on a cluster without a free slot nobody could join for them.
        """
        with self._lock:
            self._make_room()
            for share, member in self._members.items():
                silent = self._clock() - member.heard_at
                for view in (self._legs[leg] for leg in self.shares[share]):
                    if (member.has_ended or silent > SILENT_SECONDS) and view.status.state in ("starting", "running", "waiting"):
                        message = f"no report from {member.process} for {silent:.0f} s: NATS does not answer, or the process hangs"
                        if member.has_ended:
                            message = f"its process {member.process} has ended, another one is to take over"
                        view.status = replace(view.status, state="waiting", message=message)

    def _make_room(self) -> None:
        free = [number for number in self._granted if self.shares[number] and self._is_free(number, set())]
        self._free_since = {number: self._free_since.get(number, self._clock()) for number in free}
        if any(self._clock() - since >= FREE_SECONDS for since in self._free_since.values()):
            self._free_since.clear()
            lane = next((member for share, member in self._members.items() if not self.shares[share] and not member.is_leaving), None)
            if lane is not None:
                lane.is_leaving = True

    @property
    def unheard_tasks(self) -> set[str]:
        """The tasks of processes that have not reported for UNHEARD_SECONDS, while another one waits for a share."""
        with self._lock:
            unheard = [member.task for member in self._members.values() if self._clock() - member.heard_at >= UNHEARD_SECONDS]
            return {task for task in unheard if task} if self._someone_waits else set()

    def give_up(self, tasks: Set[str]) -> None:
        """Give the shares of processes that ended with these tasks to others."""
        with self._lock:
            self._end(member for member in self._members.values() if member.task in tasks)

    @property
    def most_lanes(self) -> int:
        """The number of lanes for which there are shares."""
        return sum(not legs for legs in self.shares)

    @property
    def kept_lanes(self) -> int:
        """The number of lanes that the run keeps now."""
        return self._kept_lanes

    @property
    def lanes(self) -> int:
        """The number of lanes with a process."""
        with self._lock:
            return len(self._working_lanes)

    @property
    def _working_lanes(self) -> list[int]:
        members = ((share, member) for share, member in sorted(self._members.items()) if share < self.tasks)
        return [share for share, member in members if not self.shares[share] and not member.is_leaving and not self._is_free(share, set())]

    def _lane(self, share: int) -> int:
        """Return the number of a lane; the shares before it have legs."""
        return 1 + share - len(self.shares) + self.most_lanes

    @property
    def tasks(self) -> int:
        """The number of tasks of the next epoch: one for each share with legs, and for each lane that the run keeps."""
        return len(self.shares) - self.most_lanes + self._kept_lanes

    def keep_lanes(self, count: int) -> None:
        """Keep so many lanes: further ones join at the next border; of those that are too many each leaves after its part."""
        with self._lock:
            self._kept_lanes = count
            self._epoch_tasks = min(self._epoch_tasks, self.tasks)

    def note_places(self, places: Mapping[str, str]) -> None:
        """Note the executors in which tasks ran, by the task."""
        with self._lock:
            for member in self._members.values():
                member.place = places.get(member.last_task, member.place or "")

    def begin_epoch(self) -> tuple[int, list[str]]:
        """Begin an epoch of the query; return its number, which no other one of this runner has, and where its tasks are to run.

        A task is to run where the process is that has the share of its number; anywhere (empty) if none has it, or its place is not known.
        """
        with self._lock:
            self._begun_epoch, self._epoch_tasks = self._begun_epoch + 1, self.tasks
            self._to_begin, self._begun, self._taken_over = self.tasks, set(), {}
            members = (self._members.get(share) for share in range(self.tasks))
            return self._begun_epoch, [(member.place or "") if member else "" for member in members]

    @property
    def is_border_due(self) -> bool:
        """Whether the epoch has too few tasks, or a lost one works again, or one is where no epoch sent it; all have begun, and report.

        Tried again, a task that was sent nowhere would go to any executor, also to one whose Python has not begun.
        Of a lost task Spark counts the failures in an epoch, and ends all tasks at the fourth; without progress that is what should come.
        """
        with self._lock:
            is_due = self._epoch_tasks < self.tasks or self._lacks_places
            is_due |= any(self._has_moved(share, before) for share, before in self._taken_over.items())
            return is_due and self._have_tasks_begun

    @property
    def have_tasks_begun(self) -> bool:
        """Whether all tasks of the epoch have begun, and report.

        Until the last task has ended the others' processes, and so their executors, are without one.
        """
        with self._lock:
            return self._have_tasks_begun

    @property
    def _have_tasks_begun(self) -> bool:
        holders = [member for member in self._members.values() if member.process in self._begun]
        return len(self._begun) >= self._to_begin and all(self._clock() - member.heard_at <= SILENT_SECONDS for member in holders)

    @property
    def _lacks_places(self) -> bool:
        return self.has_places and any(
            member.place is None and share not in self._taken_over for share, member in self._members.items() if share < self.tasks
        )

    def _has_moved(self, share: int, before: list[Mapping[str, int]]) -> bool:
        # A process that begins has reached nothing yet.
        return any(end > old.get(key, 0) for old, new in zip(before, self._reached(share), strict=True) for key, end in new.items())

    def _reached(self, share: int) -> list[Mapping[str, int]]:
        """Return the end of the last `done` of each leg of a share, of every leg for a lane."""
        return [self._legs[leg].status.reached for leg in self.shares[share] or self._legs]

    def _note_task(self, process: Process, epoch: int) -> None:
        if epoch == self._begun_epoch:
            self._begun.add(process)

    def end_epoch(self) -> None:
        """Let every task of the epoch end; what works in their processes goes on."""
        if self._ended_epoch == self._begun_epoch:
            return
        self._ended_epoch = self._begun_epoch
        self._let_report()

    def _let_report(self) -> None:
        """Let every process report at once: the answer has news."""
        for callback in self._border_callbacks:
            callback()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the runner stops."""
        self._stop_callbacks.append(callback)

    def on_border(self, callback: Callable[[], None]) -> None:
        """Call `callback` when an epoch is over, the settings are others, or a process waits for a share."""
        self._border_callbacks.append(callback)

    @property
    def has_begun(self) -> bool:
        """Whether every leg has begun, or waits for a system, or has halted."""
        return all(leg.status.state != "starting" for leg in self._legs.values())

    @property
    def has_joined(self) -> bool:
        """Whether a process has joined for every share that the run keeps."""
        return self._granted.issuperset(range(self.tasks))

    @property
    def has_halted(self) -> bool:
        """Whether every leg has halted."""
        return all(leg.failure is not None for leg in self._legs.values())

    @property
    def reached(self) -> list[Mapping[str, int]]:
        """The end of each leg's last `done`, by the last reports."""
        return [leg.status.reached for leg in self._legs.values()]

    @property
    def seconds_large(self) -> dict[str, float]:
        """The seconds that each leg has spent on batches large enough for lanes, by the last reports."""
        return {str(name): leg.status.seconds_large for name, leg in self._legs.items()}

    def announce(self, message: str) -> None:
        """Tell the user."""
        self._announce(message)

    def fail(self, leg: LegId, error: TallyflowError) -> None:
        """Halt a leg that no process works on."""
        self._legs[leg].halt(error)
        self._announce(f"{leg} halted: {error}")
        self.changed.set()

    def wait(self, message: str) -> None:
        """Note that every leg waits, and why."""
        self._announce(f"waiting: {message}")
        for leg in self._legs.values():
            if leg.failure is None:
                leg.status.state, leg.status.message = "waiting", message
        self.changed.set()

    def stop(self) -> None:
        """Ask every process to finish its batch and end."""
        self.is_stopping = True
        for callback in self._stop_callbacks:
            callback()
