"""What sensors decide, from what they see and what they remember: pure functions, without Dagster and without a clock of their own.

Memory is a flat mapping that fits into a cursor. `now` and what is remembered are seconds since 1970.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Literal, Self

from pipelines.job_state import JobState

Action = Literal["none", "start", "restart", "reprocess", "alert"]


@dataclass(frozen=True)
class Decision:
    """`why` is what the tick says. `what` and `remedy` are the alert's, for `alert`; `number` tells the attempts of one cause apart."""

    action: Action
    why: str
    what: str = ""
    remedy: str = ""
    number: int = 0


@dataclass(frozen=True)
class Limits:
    """Of restarts. The n-th waits for `backoff` * 2^(n-1), at most `longest_backoff`, after the one before.

    `patience`: how long a runner may not answer, or be stuck, until it is replaced. `calm`: how long a pipeline must have been well until
    its restarts are forgotten.
    """

    attempts: int = 5
    backoff: timedelta = timedelta(seconds=30)
    longest_backoff: timedelta = timedelta(minutes=15)
    patience: timedelta = timedelta(seconds=60)
    calm: timedelta = timedelta(minutes=10)


@dataclass(frozen=True)
class Trouble:
    """What is remembered of a pipeline that is, or was not long ago, not well. `told` is the state that people were alerted to."""

    since: float
    attempts: int = 0
    last_attempt: float = 0.0
    told: str = ""
    well_since: float = 0.0

    @classmethod
    def of(cls, memory: Mapping[str, Any] | None) -> Self | None:
        return cls(**memory) if memory else None

    def memory(self) -> dict[str, Any]:
        return asdict(self)


def health(state: JobState, trouble: Trouble | None, now: float, limits: Limits = Limits()) -> tuple[Decision, Trouble | None]:
    """Whether to start a dead job again, to replace one that does not work, or to call people; and what to remember.

    A job that nobody wants to run is left alone. A halted leg is never restarted: its reason does not pass, and its message has the remedy.
    """
    if state.desired != "running":
        return Decision("none", "is not meant to run"), None
    if state.state in ("running", "waiting", "starting") and not state.missing:
        return Decision("none", _words(state)), _calmer(trouble, now, limits)
    trouble = replace(trouble, well_since=0.0) if trouble else Trouble(now)
    if trouble.told == state.state:
        return Decision("none", f"{_words(state)}; people were told"), trouble
    told = replace(trouble, told=state.state)
    if state.state == "halted":
        remedy = "mend what the message names, then launch restart_pipeline"
        return Decision("alert", _words(state), f"halted: {state.message}", remedy), told
    is_replaced = state.state in ("unreachable", "stuck")
    if state.state == "starting" or (is_replaced and now - trouble.since < limits.patience.total_seconds()):
        return Decision("none", f"{_words(state)}; waited for"), trouble
    if trouble.attempts >= limits.attempts:
        what = f"given up after {trouble.attempts} restarts: {_words(state)}"
        return Decision("alert", what, what, "read the runner's log, mend the cause, then launch start_pipeline"), told
    wait = trouble.last_attempt + _backoff(trouble.attempts, limits) - now
    if trouble.attempts and wait > 0:
        return Decision("none", f"{_words(state)}; restart {trouble.attempts + 1} of {limits.attempts} in {wait:,.0f} s"), trouble
    again = replace(trouble, attempts=trouble.attempts + 1, last_attempt=now)
    action: Action = "restart" if is_replaced else "start"
    return Decision(action, f"{_words(state)}; restart {again.attempts} of {limits.attempts}", number=again.attempts), again


def _calmer(trouble: Trouble | None, now: float, limits: Limits) -> Trouble | None:
    """A pipeline that is well again keeps its count for a while, or one that dies every minute would be started for ever."""
    if trouble is None:
        return None
    trouble = replace(trouble, well_since=trouble.well_since or now, told="")
    return trouble if now - trouble.well_since < limits.calm.total_seconds() else None


def _backoff(attempts: int, limits: Limits) -> float:
    return float(min(limits.backoff.total_seconds() * 2 ** max(0, attempts - 1), limits.longest_backoff.total_seconds()))


def _words(state: JobState) -> str:
    missing = f", not running: {', '.join(state.missing)}" if state.missing and state.state != "stopped" else ""
    return f"{state.state}{missing}" + (f" ({state.message})" if state.message else "")


@dataclass(frozen=True)
class LagMemory:
    """Since when the lag is too large, what it was then, and when people were told (0: not yet)."""

    since: float
    first: int
    told: float = 0.0

    @classmethod
    def of(cls, memory: Mapping[str, Any] | None) -> Self | None:
        return cls(**memory) if memory else None

    def memory(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LagLimits:
    """People are told when the lag is at least `offsets`, has been so for `lasting`, and is not less than it was; then every `again`."""

    offsets: int = 100_000
    lasting: timedelta = timedelta(minutes=2)
    again: timedelta = timedelta(hours=1)


def lag(offsets: int | None, before: LagMemory | None, now: float, limits: LagLimits = LagLimits()) -> tuple[Decision, LagMemory | None]:
    """Whether a pipeline falls behind."""
    if offsets is None:
        return Decision("none", "the lag is not known"), before
    if offsets < limits.offsets:
        return Decision("none", f"lag {offsets:,} < {limits.offsets:,}"), None
    before = before or LagMemory(now, offsets)
    minutes = (now - before.since) / 60
    words = f"lag {offsets:,} offsets, at least {limits.offsets:,} for {minutes:,.0f} minutes, {before.first:,} then"
    if now - before.since < limits.lasting.total_seconds() or offsets < before.first:
        return Decision("none", words), before
    if before.told and now - before.told < limits.again.total_seconds():
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
    """The version for which letters were sent in again, and the last sequence that people were told of."""

    version: str = ""
    told: int = 0
    told_at: float = 0.0

    def memory(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LettersLimits:
    """People are told of at least `count` waiting letters, or of any once they are `age` old; of new ones not before `again`."""

    count: int = 100
    age: timedelta = timedelta(hours=1)
    again: timedelta = timedelta(hours=1)


def dead_letters(
    letters: Letters, before: LettersMemory, now: float, limits: LettersLimits = LettersLimits()
) -> tuple[Decision, LettersMemory]:
    """Whether letters enter again by themselves: once, when the job runs with a configuration (the file's and the table's) that it has not
    been tried with; those that this very configuration has rejected stay. Otherwise people are told.

    No endless loop: a version is tried once, and `dead_letters.max_attempts` of the file parks what is rejected again and again.
    """
    if letters.waiting == 0:
        return Decision("none", "no letters wait"), replace(before, version=letters.config_version or before.version)
    age_seconds = letters.oldest.total_seconds()
    words = f"{letters.waiting:,} letters wait, the oldest is {age_seconds:,.0f} s old"
    if letters.config_version and letters.config_version != before.version:
        changed = f"{words}; the configuration is another one since: {letters.config_version}"
        return Decision("reprocess", changed), replace(before, version=letters.config_version)
    if letters.waiting < limits.count and letters.oldest < limits.age:
        return Decision("none", f"{words}: fewer than {limits.count:,}, younger than {limits.age.total_seconds():,.0f} s"), before
    if letters.last_sequence <= before.told:
        return Decision("none", f"{words}; people were told, no new ones"), before
    if before.told and now - before.told_at < limits.again.total_seconds():
        return Decision("none", f"{words}; people were told not long ago"), before
    remedy = "`tallyflow dlq groups` names the causes and their fixes; mend them and restart, or launch discard_dead_letters"
    return Decision("alert", words, words, remedy), replace(before, told=letters.last_sequence, told_at=now)


@dataclass(frozen=True)
class FileSeen:
    """A pipeline file: the digest of its bytes, and its faults (empty: sound)."""

    digest: str
    faults: str = ""


def changed_files(seen: Mapping[str, FileSeen], before: Mapping[str, str] | None) -> dict[str, str]:
    """By path, what has become of it since the digests of `before`: new, changed, faulty or gone. Nothing at the first look but faults."""
    found = {}
    for path, one in seen.items():
        if before is not None and before.get(path) == one.digest:
            continue
        if one.faults:
            found[path] = "faulty"
        elif before is not None:
            found[path] = "changed" if path in before else "new"
    return {**found, **{path: "gone" for path in before or {} if path not in seen}}
