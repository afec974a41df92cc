"""What sensors decide, from what they see and what they remember: pure functions, without Dagster and without a clock of their own.

Memory is a flat mapping that fits into a cursor. `now` and what is remembered are seconds since 1970.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from pipelines.config import Alerts
from pipelines.control.job_state import JobState

Action = Literal["none", "start", "restart", "reprocess", "alert"]
T = TypeVar("T")


def read_cursor(text: str | None) -> dict[str, Any] | None:
    """A sensor's memory; None at its first tick, and where another release, or a hand, has left something else."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def recalled(kind: type[T], memory: object) -> T | None:
    """The memory of that kind; None where there is none, or another release has left one that says something else."""
    try:
        return TypeAdapter(kind).validate_python(memory)
    except ValidationError:
        return None


FIRST_PAUSE = timedelta(seconds=30)
"""Between the first restart and the second; each further one is twice as long, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = timedelta(minutes=15)
PATIENCE = timedelta(seconds=60)
"""How long a runner may not answer, or be stuck, until it is replaced."""
CALM = timedelta(minutes=10)
"""How long a pipeline must have been well until its restarts are forgotten."""


@dataclass(frozen=True)
class Decision:
    """`why` is what the tick says. `what` and `remedy` are the alert's, for `alert`; `number` tells the attempts of one cause apart."""

    action: Action
    why: str
    what: str = ""
    remedy: str = ""
    number: int = 0


@dataclass(frozen=True)
class Trouble:
    """What is remembered of a pipeline that is, or was not long ago, not well.

    `silent_since`: since when the runner does not answer or is stuck; None where it is not. `told`: the halt that people were called for.
    `given_up`: people were called because it does not stay up.
    """

    since: float
    attempts: int = 0
    last_attempt: float = 0.0
    silent_since: float | None = None
    told: str = ""
    given_up: bool = False
    well_since: float = 0.0

    def memory(self) -> dict[str, Any]:
        return asdict(self)


def health(state: JobState, before: Trouble | None, now: float, alerts: Alerts) -> tuple[Decision, Trouble | None]:
    """Whether to start a dead job again, to replace one that does not work, or to call people; and what to remember.

    A job that nobody wants to run is left alone. A halted leg is never restarted, whether its runner lives or has ended: its reason does
    not pass, and its message has the remedy. Legs that died beside it are.
    """
    if state.desired != "running":
        return Decision("none", "is not meant to run"), None
    if state.state in ("running", "waiting", "starting") and not state.missing:
        return Decision("none", _words(state)), _calmer(before, now)
    trouble = replace(before, well_since=0.0) if before else Trouble(now)
    silent_since = (now if trouble.silent_since is None else trouble.silent_since) if state.state in ("unreachable", "stuck") else None
    trouble = replace(trouble, silent_since=silent_since)
    if state.state == "halted":
        halt = f"halted: {state.halt}"
        if trouble.told != halt:
            remedy = "mend what the message names, then launch restart_pipeline"
            return Decision("alert", _words(state), f"halted: {state.message}", remedy), replace(trouble, told=halt)
        if not state.missing:
            return Decision("none", f"{_words(state)}; people were told"), trouble
    if state.state == "starting" or (silent_since is not None and now - silent_since < PATIENCE.total_seconds()):
        return Decision("none", f"{_words(state)}; waited for"), trouble
    return _again(state, trouble, now, alerts.max_restarts)


def _again(state: JobState, trouble: Trouble, now: float, max_restarts: int) -> tuple[Decision, Trouble]:
    """The next restart once its pause is over; people instead when there were enough."""
    if trouble.attempts >= max_restarts:
        what = f"given up after {trouble.attempts} restarts: {_words(state)}"
        if trouble.given_up:
            return Decision("none", f"{what}; people were told"), trouble
        remedy = "read the runner's log, mend the cause, then launch start_pipeline"
        return Decision("alert", what, what, remedy), replace(trouble, given_up=True)
    wait = trouble.last_attempt + _pause(trouble.attempts) - now
    if trouble.attempts and wait > 0:
        return Decision("none", f"{_words(state)}; restart {trouble.attempts + 1} of {max_restarts} in {wait:,.0f} s"), trouble
    again = replace(trouble, attempts=trouble.attempts + 1, last_attempt=now, given_up=False)
    action: Action = "start" if trouble.silent_since is None else "restart"
    return Decision(action, f"{_words(state)}; restart {again.attempts} of {max_restarts}", number=again.attempts), again


def _calmer(trouble: Trouble | None, now: float) -> Trouble | None:
    """A pipeline that is well again keeps its count for a while, or one that dies every minute would be started for ever."""
    if trouble is None:
        return None
    trouble = replace(trouble, well_since=trouble.well_since or now, silent_since=None, given_up=False)
    return trouble if now - trouble.well_since < CALM.total_seconds() else None


def _pause(attempts: int) -> float:
    """Seconds between the last of so many restarts and the next."""
    return float(min(FIRST_PAUSE.total_seconds() * 2 ** min(attempts - 1, 16), LONGEST_PAUSE.total_seconds()))


def _words(state: JobState) -> str:
    missing = f", not running: {', '.join(state.missing)}" if state.missing and state.state != "stopped" else ""
    return f"{state.state}{missing}" + (f" ({state.message})" if state.message else "")


@dataclass(frozen=True)
class LagMemory:
    """Since when the lag is too large, what it was then, and when people were told (0: not yet)."""

    since: float
    first: int
    told: float = 0.0

    def memory(self) -> dict[str, Any]:
        return asdict(self)


def lag(offsets: int | None, before: LagMemory | None, now: float, alerts: Alerts) -> tuple[Decision, LagMemory | None]:
    """Whether a pipeline falls behind: people are told when the lag has been too large for long enough and is not less than it was."""
    limit = alerts.lag
    if offsets is None:
        return Decision("none", "the lag is not known"), before
    if offsets < limit.offsets:
        return Decision("none", f"lag {offsets:,} < {limit.offsets:,}"), None
    before = before or LagMemory(now, offsets)
    minutes = (now - before.since) / 60
    words = f"lag {offsets:,} offsets, at least {limit.offsets:,} for {minutes:,.0f} minutes, {before.first:,} then"
    if now - before.since < limit.lasting.total_seconds() or offsets < before.first:
        return Decision("none", words), before
    if before.told and now - before.told < alerts.repeat_after.total_seconds():
        return Decision("none", f"{words}; people were told"), before
    remedy = "look at the slowest leg in `tallyflow status`; more cores or larger batches raise the rate, docs/tuning.md"
    return Decision("alert", words, f"falls behind: {words}", remedy), replace(before, told=now)


@dataclass(frozen=True)
class Letters:
    """The dead letters of a pipeline: how many wait, the last sequence of their stream, how old its first frame is, and the version of the
    configuration that the running job plans with (None: it does not run)."""

    waiting: int
    last_sequence: int
    oldest: timedelta
    config_version: str | None


@dataclass(frozen=True)
class LettersMemory:
    """The last version that the pipeline was seen running with (empty: none yet), and the last sequence that people were told of."""

    version: str = ""
    told: int = 0
    told_at: float = 0.0

    def memory(self) -> dict[str, Any]:
        return asdict(self)


def dead_letters(letters: Letters, before: LettersMemory, now: float, alerts: Alerts) -> tuple[Decision, LettersMemory]:
    """Whether letters enter again by themselves: once, when the job runs with a configuration (the file's and the table's) that it has not
    been tried with; those that this very configuration has rejected stay. Otherwise people are told.

    No endless loop: a version is tried once, and `dead_letters.max_attempts` of the file parks what is rejected again and again. The first
    version that a pipeline is seen running with mends nothing: it is noted.
    """
    if letters.waiting == 0:
        return Decision("none", "no letters wait"), replace(before, version=letters.config_version or before.version)
    limit, age_seconds = alerts.dead_letters, letters.oldest.total_seconds()
    words = f"{letters.waiting:,} letters wait, the oldest is {age_seconds:,.0f} s old"
    if letters.config_version and not before.version:
        before = replace(before, version=letters.config_version)
    if letters.config_version and letters.config_version != before.version:
        changed = f"{words}; the configuration is another one since: {letters.config_version}"
        return Decision("reprocess", changed), replace(before, version=letters.config_version)
    if letters.waiting < limit.count and letters.oldest < limit.age:
        return Decision("none", f"{words}: fewer than {limit.count:,}, younger than {limit.age.total_seconds():,.0f} s"), before
    if letters.last_sequence <= before.told:
        return Decision("none", f"{words}; people were told, no new ones"), before
    if before.told and now - before.told_at < alerts.repeat_after.total_seconds():
        return Decision("none", f"{words}; people were told not long ago"), before
    remedy = "`tallyflow dlq groups` names the causes and their fixes; mend them and restart, or launch discard_dead_letters"
    return Decision("alert", words, words, remedy), replace(before, told=letters.last_sequence, told_at=now)


@dataclass(frozen=True)
class FileSeen:
    """A pipeline file: the digest of its bytes, its faults (empty: sound), and the digest of what its runner acts on."""

    digest: str
    faults: str = ""
    run: str = ""

    @property
    def mark(self) -> str:
        """What is remembered of the file."""
        return f"{self.run}/{self.digest}"


CHANGED_BESIDE = "changed, not for its runner"


def changed_files(seen: Mapping[str, FileSeen], before: Mapping[str, str] | None) -> dict[str, str]:
    """By path, what has become of it since the marks of `before`: new, changed (for its runner or not), faulty or gone.

    Nothing at the first look but faults.
    """
    found = {}
    for path, one in seen.items():
        mark = before.get(path) if before is not None else None
        if mark == one.mark:
            continue
        if one.faults:
            found[path] = "faulty"
        elif mark is not None:
            found[path] = CHANGED_BESIDE if one.run and mark.startswith(f"{one.run}/") else "changed"
        elif before is not None:
            found[path] = "new"
    return {**found, **{path: "gone" for path in before or {} if path not in seen}}
