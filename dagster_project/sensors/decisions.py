"""The decisions of sensors, from facts and memory: pure functions, without Dagster and without a clock of their own.

Memory is a flat mapping that fits into a cursor. `now` and remembered instants are seconds since 1970.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from pipelines.config import Alerts
from pipelines.control.job_state import JobState
from pipelines.counts import count_of

Action = Literal["none", "start", "restart", "reprocess", "alert"]
T = TypeVar("T")


def read_cursor(text: str | None) -> dict[str, Any] | None:
    """Read a sensor's memory; None at its first tick, and for a cursor of another release or an edited one."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def recalled(kind: type[T], memory: object) -> T | None:
    """Return the memory of this kind; None if there is none, or it has another form."""
    try:
        return TypeAdapter(kind).validate_python(memory)
    except ValidationError:
        return None


FIRST_PAUSE = timedelta(seconds=30)
"""Pause between the first restart and the second; each further pause is twice as long, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = timedelta(minutes=15)
PATIENCE = timedelta(seconds=60)
"""How long a runner may be unreachable or stuck before it is replaced."""
CALM = timedelta(minutes=10)
"""How long a pipeline must be healthy before its restarts are forgotten."""


@dataclass(frozen=True)
class Decision:
    """A decision: `why` is the tick's message; `what` and `remedy` are for an alert; `number` counts the attempts for one cause."""

    action: Action
    why: str
    what: str = ""
    remedy: str = ""
    number: int = 0


@dataclass(frozen=True)
class Trouble:
    """The memory of a pipeline that is unhealthy, or was a short time ago.

    `silent_since`: since when the runner is unreachable or stuck, else None. `alerted`: the halt of the last alert. `given_up`: an alert
    was sent because the runner does not stay up.
    """

    since: float
    attempts: int = 0
    last_attempt: float = 0.0
    silent_since: float | None = None
    alerted: str = ""
    given_up: bool = False
    well_since: float = 0.0


def health(state: JobState, before: Trouble | None, now: float, alerts: Alerts) -> tuple[Decision, Trouble | None]:
    """Decide whether to start a dead job, replace a stuck one, or send an alert; return the decision and the new memory.

    A job whose desired state is not `running` is left alone. A halted leg is never restarted, whether its runner is alive or not: its cause
    does not pass, and its message has the remedy. Legs that died beside it are restarted.
    """
    if state.desired != "running":
        return Decision("none", "its desired state is stopped"), None
    if state.state in ("running", "waiting", "starting") and not state.missing:
        return Decision("none", _summary(state)), _calmer(before, now)
    trouble = replace(before, well_since=0.0) if before else Trouble(now)
    silent_since = (now if trouble.silent_since is None else trouble.silent_since) if state.state in ("unreachable", "stuck") else None
    trouble = replace(trouble, silent_since=silent_since)
    if state.state == "halted":
        halt = f"halted: {state.halt}"
        if trouble.alerted != halt:
            remedy = "fix what the message names, then launch restart_pipeline"
            return Decision("alert", _summary(state), f"halted: {state.message}", remedy), replace(trouble, alerted=halt)
        if not state.missing:
            return Decision("none", f"{_summary(state)}; alert already sent"), trouble
    if state.state == "starting" or (silent_since is not None and now - silent_since < PATIENCE.total_seconds()):
        return Decision("none", f"{_summary(state)}; waiting"), trouble
    return _again(state, trouble, now, alerts.max_restarts)


def _again(state: JobState, trouble: Trouble, now: float, max_restarts: int) -> tuple[Decision, Trouble]:
    """Decide on the next restart once its pause is over, or on an alert after enough restarts."""
    if trouble.attempts >= max_restarts:
        what = f"gave up after {count_of(trouble.attempts, 'restart')}: {_summary(state)}"
        if trouble.given_up:
            return Decision("none", f"{what}; alert already sent"), trouble
        remedy = "read the runner's log, fix the cause, then launch start_pipeline"
        return Decision("alert", what, what, remedy), replace(trouble, given_up=True)
    wait = trouble.last_attempt + _pause(trouble.attempts) - now
    if trouble.attempts and wait > 0:
        return Decision("none", f"{_summary(state)}; restart {trouble.attempts + 1} of {max_restarts} in {wait:,.0f} s"), trouble
    again = replace(trouble, attempts=trouble.attempts + 1, last_attempt=now, given_up=False)
    action: Action = "start" if trouble.silent_since is None else "restart"
    return Decision(action, f"{_summary(state)}; restart {again.attempts} of {max_restarts}", number=again.attempts), again


def _calmer(trouble: Trouble | None, now: float) -> Trouble | None:
    """Keep the restart count of a healthy pipeline for a while; else a runner that dies every minute would restart forever."""
    if trouble is None:
        return None
    trouble = replace(trouble, well_since=trouble.well_since or now, silent_since=None, given_up=False)
    return trouble if now - trouble.well_since < CALM.total_seconds() else None


def _pause(attempts: int) -> float:
    """Return the seconds between this restart and the next."""
    return float(min(FIRST_PAUSE.total_seconds() * 2 ** min(attempts - 1, 16), LONGEST_PAUSE.total_seconds()))


def _summary(state: JobState) -> str:
    missing = f", without {', '.join(state.missing)}" if state.missing and state.state != "stopped" else ""
    return f"{state.state}{missing}" + (f" ({state.message})" if state.message else "")


@dataclass(frozen=True)
class LagMemory:
    """Since when the lag is too large, the lag at that time, and when the last alert was sent (0: none)."""

    since: float
    first: int
    alerted: float = 0.0


def lag(offsets: int | None, before: LagMemory | None, now: float, alerts: Alerts) -> tuple[Decision, LagMemory | None]:
    """Decide whether to alert: the lag has been too large for long enough and is not shrinking."""
    limit = alerts.lag
    if offsets is None:
        return Decision("none", "the lag is unknown"), before
    if offsets < limit.offsets:
        return Decision("none", f"lag {offsets:,} < {limit.offsets:,}"), None
    before = before or LagMemory(now, offsets)
    minutes = (now - before.since) / 60
    summary = f"lag {count_of(offsets, 'offset')}, at least {limit.offsets:,} for {minutes:,.0f} min, {before.first:,} at first"
    if now - before.since < limit.lasting.total_seconds() or offsets < before.first:
        return Decision("none", summary), before
    if before.alerted and now - before.alerted < alerts.repeat_after.total_seconds():
        return Decision("none", f"{summary}; alert already sent"), before
    remedy = "find the slowest leg with `tallyflow status`; more cores or larger batches raise its rate, see docs/tuning.md"
    return Decision("alert", summary, f"falls behind: {summary}", remedy), replace(before, alerted=now)


@dataclass(frozen=True)
class DeadLetters:
    """The dead letters of a pipeline.

    How many wait, the last sequence of their stream, the age of its first frame, and the config version of the running job (None: not
    running).
    """

    waiting: int
    last_sequence: int
    oldest: timedelta
    config_version: str | None


@dataclass(frozen=True)
class DeadLettersMemory:
    """The last config version that the pipeline was seen running with (empty: none yet), and the sequence of the last alert."""

    version: str = ""
    alerted: int = 0
    alerted_at: float = 0.0


def on_dead_letters(dead_letters: DeadLetters, before: DeadLettersMemory, now: float, alerts: Alerts) -> tuple[Decision, DeadLettersMemory]:
    """Decide whether to redrive the dead letters: once, when the job runs with a configuration that they were not tried with.

    The configuration is that of the file and the table. Dead letters that this version has rejected stay. Otherwise decide on an alert.

    No endless loop: a version is tried once, and `dead_letters.max_attempts` of the file parks what is rejected again and again. The first
    version that a pipeline is seen running with repairs nothing: it is only noted.
    """
    if dead_letters.waiting == 0:
        return Decision("none", "no dead letters wait"), replace(before, version=dead_letters.config_version or before.version)
    limit, age_seconds = alerts.dead_letters, dead_letters.oldest.total_seconds()
    summary = f"{count_of(dead_letters.waiting, 'dead letter')} waiting, the oldest {age_seconds:,.0f} s old"
    if dead_letters.config_version and not before.version:
        before = replace(before, version=dead_letters.config_version)
    if dead_letters.config_version and dead_letters.config_version != before.version:
        changed = f"{summary}; redriving with the new configuration {dead_letters.config_version}"
        return Decision("reprocess", changed), replace(before, version=dead_letters.config_version)
    if dead_letters.waiting < limit.count and dead_letters.oldest < limit.age:
        return Decision("none", f"{summary}: fewer than {limit.count:,}, younger than {limit.age.total_seconds():,.0f} s"), before
    if dead_letters.last_sequence <= before.alerted:
        return Decision("none", f"{summary}; alert already sent, no new ones"), before
    if before.alerted and now - before.alerted_at < alerts.repeat_after.total_seconds():
        return Decision("none", f"{summary}; an alert was sent a short time ago"), before
    remedy = "`tallyflow dlq groups` lists the causes and their fixes; apply them and restart, or launch discard_dead_letters"
    return Decision("alert", summary, summary, remedy), replace(before, alerted=dead_letters.last_sequence, alerted_at=now)


@dataclass(frozen=True)
class FileSeen:
    """A pipeline file: the digest of its bytes, its faults (empty: sound), and the digest of what its runner acts on."""

    digest: str
    faults: str = ""
    run: str = ""

    @property
    def mark(self) -> str:
        """The remembered state of the file."""
        return f"{self.run}/{self.digest}"


CHANGED_BESIDE = "changed, but not for its runner"


def changed_files(seen: Mapping[str, FileSeen], before: Mapping[str, str] | None) -> dict[str, str]:
    """Return by path how a file changed since the marks of `before`: new, changed (for its runner or not), faulty or deleted.

    The first look reports faults only.
    """
    changes = {}
    for path, file in seen.items():
        mark = before.get(path) if before is not None else None
        if mark == file.mark:
            continue
        if file.faults:
            changes[path] = "faulty"
        elif mark is not None:
            changes[path] = CHANGED_BESIDE if file.run and mark.startswith(f"{file.run}/") else "changed"
        elif before is not None:
            changes[path] = "new"
    return {**changes, **{path: "deleted" for path in before or {} if path not in seen}}
