"""The account of a join in the protocol's model: record after record, from raw's frames, their arrivals and the plans of the ledger alone.

It imports nothing of the join. Before each frame of arrival A, a tick too, every waiting left record with arrival + left window <= A is
unmatched. A left record at A meets the newest right one of its key if A < its arrival + right window, and waits otherwise. A right record
meets all that wait for its key, and then is the newest one.

By the records' own times a left record is decided behind the first frame whose watermark leaves no room for a better right one.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from pipelines.process.program import Program
from pipelines.protocol.ledger import Entry
from pipelines.protocol.naming import is_redriven, is_tick, source_of_subject
from pipelines.protocol.records import Message
from pipelines.protocol.tally import tally
from support.protocol_account import At, Outcomes, arrivals_us, check_account, entries, position_of, program
from support.protocol_outside import FIRST, NAMES
from support.protocol_stages import BUCKETS, MORE, POISON, UNWANTED, VENOM, WORN, joined_text, key_of, kind, own_time_us, stored_rows, takes

if TYPE_CHECKING:
    from support.protocol_joins import JoinOfHistory
    from support.protocol_world import World

LAST_ORDINAL = 2**20 - 1
Cause = tuple[int, int, int]
"""Sequence and ordinal of the record that made a row appear, and the row's number among those of its cause in its bucket."""


@dataclass(frozen=True)
class Left:
    """A left record: its position, key, arrival and text behind its own steps, the plan that read it, and the row of raw."""

    at: At
    key: bytes
    arrival_us: int
    text: bytes
    plan: int
    row: dict
    time_us: int = 0

    @property
    def bucket(self) -> int:
        return int.from_bytes(hashlib.md5(self.key).digest()[8:], "big") % BUCKETS


class Right(NamedTuple):
    """The newest right record of a key."""

    arrival_us: int
    text: bytes


@dataclass
class Meaning:
    """What the frames up to some one mean. `causes`: bucket and cause of each decided left record; `oldest`: who waits first after a frame.

    `without_row`: left records that no sink sees, as they are unmatched, dropped by a step, or wait; right ones. `refused_behind`: dead
    letters of the join and of the steps behind it; `late`: those of records behind the watermark. `watermark_us`: that behind each frame.
    """

    accepted: dict[str, dict[At, tuple]]
    refused: dict[At, tuple] = field(default_factory=dict)
    refused_behind: set[At] = field(default_factory=set)
    late: set[At] = field(default_factory=set)
    watermark_us: dict[int, int | None] = field(default_factory=dict)
    without_row: dict[At, dict] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    causes: dict[At, tuple[int, Cause]] = field(default_factory=dict)
    newest: dict[bytes, Right] = field(default_factory=dict)
    waiting: dict[At, Left] = field(default_factory=dict)
    waited: dict[At, int] = field(default_factory=dict)
    oldest: dict[int, At | None] = field(default_factory=dict)

    @property
    def outcomes(self) -> Outcomes:
        apart = [*self.without_row.values(), *(left.row for left in self.waiting.values())]
        of_first = sum(row.get("sink") in (None, FIRST) for row in apart)
        return Outcomes(
            self.accepted, dict(self.refused), 0, set(), self.counts["filtered"], of_first, frozenset(self.refused_behind | self.late)
        )


class Account:
    """Plays raw's frames. `plan`: the start of the plan that covers the present one, and `config` its configuration."""

    def __init__(self, world: "World", join: "JoinOfHistory") -> None:
        self._world, self._join = world, join
        self.meaning = Meaning({leg: {} for leg in world.tables})
        self._emits: Counter[tuple[int, int, int]] = Counter()
        self._plan, self._config = 0, world.config

    def take(self, message: Message, arrival_us: int, plan: Entry) -> None:
        found = self.meaning
        self._plan, self._config = plan.body.start, program(self._world.log, plan.body.config)
        over = sorted(at for at, left in found.waiting.items() if left.arrival_us + self._join.left_us <= arrival_us)
        for at in over:
            self._decide(found.waiting.pop(at), None, (message.sequence - 1, LAST_ORDINAL))
        for ordinal, row in enumerate(records_of(message.payload)):
            self._take_record((message.sequence, ordinal), arrival_us, row, source_of_subject(message.subject))
        found.oldest[message.sequence] = min(found.waiting, default=None)

    def _take_record(self, at: At, arrival_us: int, row: dict, source: str) -> None:
        found, refused = self.meaning, refused_by(self._config)
        key = key_of(row["value"])
        if kind(row["value"]) in (refused, POISON) or key is None:
            found.refused[at] = row["partition"], row["offset"], row["value"]
            return
        text = row["value"] + b" not " + refused
        if source == self._join.right:
            for one in [one for one, left in found.waiting.items() if left.key == key]:
                self._decide(found.waiting.pop(one), text, at)
            found.newest[key] = Right(arrival_us, text)
            found.without_row[at] = row
            found.counts["kept"] += 1
            return
        left, right = Left(at, key, arrival_us, text, self._plan, row), found.newest.get(key)
        if right is not None and arrival_us < right.arrival_us + self._join.right_us:
            self._decide(left, right.text, at)
        else:
            found.waiting[at], found.waited[at] = left, arrival_us

    def _decide(self, left: Left, right: bytes | None, cause: At) -> None:
        found, unmatched = self.meaning, self._config.join.unmatched
        is_tried = right is not None or unmatched == "emit"
        letter = left.row["partition"], left.row["offset"], left.row["value"]
        if is_tried and kind(left.row["value"]) == VENOM and left.plan == self._plan:
            # The plan names it once it has ended a step, and then it is no left record.
            found.refused[left.at] = letter
            return
        emit = self._emits[left.bucket, *cause]
        self._emits[left.bucket, *cause] += 1
        found.causes[left.at] = left.bucket, (*cause, emit)
        found.counts["unmatched" if right is None else "joined"] += 1
        if not is_tried and unmatched == "drop":
            found.counts["dropped"] += 1
            found.without_row[left.at] = left.row
        elif is_tried and kind(left.row["value"]) == UNWANTED:
            found.counts["filtered"] += 1
            found.without_row[left.at] = left.row
        elif not is_tried or kind(left.row["value"]) in (VENOM, WORN):
            found.refused[left.at] = letter
            found.refused_behind.add(left.at)
        else:
            self._accept(left, joined_text(left.text, right))

    def _accept(self, left: Left, text: bytes) -> None:
        more = MORE if "more" in self._config.insert_columns else b""
        for leg, rows in self.meaning.accepted.items():
            if takes(leg, left.row["value"], left.row.get("sink")):
                rows[left.at] = left.row["partition"], left.row["offset"], text + (more if leg == FIRST else b"")


class TimedAccount(Account):
    """The same by the records' own times. The partitions of both sources have numbers of their own."""

    def __init__(self, world: "World", join: "JoinOfHistory") -> None:
        super().__init__(world, join)
        self._reached: dict[tuple[str, int], int | None] = {}
        self._read: dict[tuple[str, int], int] = {}
        self._idle: set[tuple[str, int]] = set()
        self._rights: dict[bytes, list[tuple[int, bytes]]] = {}
        self._watermark_us: int | None = None

    def take(self, message: Message, arrival_us: int, plan: Entry) -> None:
        found = self.meaning
        self._plan, self._config = plan.body.start, program(self._world.log, plan.body.config)
        source = "" if is_tick(message.subject) else source_of_subject(message.subject)
        times = [self._take_timed((message.sequence, ordinal), row, source) for ordinal, row in enumerate(records_of(message.payload))]
        self._note(message, source, max((time for time in times if time is not None), default=None))
        found.watermark_us[message.sequence] = self._watermark_us
        for at in sorted(found.waiting):
            text, final_us = self._met(found.waiting[at])
            if self._watermark_us is not None and final_us <= self._watermark_us:
                self._decide(found.waiting.pop(at), text, (message.sequence, LAST_ORDINAL))
        found.oldest[message.sequence] = min(found.waiting, default=None)

    def _take_timed(self, at: At, row: dict, source: str) -> int | None:
        """Take a record; return its own time if it has come to the join."""
        found, refused, key = self.meaning, refused_by(self._config), key_of(row["value"])
        letter = row["partition"], row["offset"], row["value"]
        if kind(row["value"]) in (refused, POISON) or key is None:
            found.refused[at] = letter
            return None
        time_us, text = own_time_us(row["value"]), row["value"] + b" not " + refused
        if self._watermark_us is not None and time_us < self._watermark_us:
            found.refused[at] = letter
            found.late.add(at)
        elif source == self._join.right:
            self._rights.setdefault(key, []).append((time_us, text))
            found.without_row[at] = row
            found.counts["kept"] += 1
        else:
            found.waiting[at], found.waited[at] = Left(at, key, 0, text, self._plan, row, time_us), time_us
        return time_us

    def _note(self, message: Message, source: str, newest_us: int | None) -> None:
        """Note how far the partition of a frame has come, or what a tick marks, and where the watermark is."""
        if not source:
            mark = json.loads(message.headers.get("Tf-Idle", '{"source": "", "next": {}}'))
            places = {(mark["source"], int(number)): offset for number, offset in mark["next"].items()}
            self._idle |= {place for place, offset in places.items() if offset >= self._read.get(place, 0)}
        elif not is_redriven(message.subject):
            place = source, int(message.headers["Tf-Partition"])
            self._read[place] = int(message.headers["Tf-Last"]) + 1
            reached = [one for one in (self._reached.get(place), newest_us) if one is not None]
            self._reached[place] = max(reached, default=None)
            self._idle -= {place} if newest_us is not None else set()
        known = {*self._reached, *self._idle}
        if len({source for source, _ in known}) < 2:
            return
        holding = [self._reached.get(place) for place in known - self._idle]
        of_all = [one for one in self._reached.values() if one is not None]
        if None in holding or not (holding or of_all):
            return
        now_us = (min(holding) if holding else max(of_all)) - (self._join.lateness_us or 0)
        self._watermark_us = now_us if self._watermark_us is None else max(self._watermark_us, now_us)

    def _met(self, left: Left) -> tuple[bytes | None, int]:
        """The right record that it meets as far as is known, and the watermark at which that is final."""
        rights = self._rights.get(left.key, [])
        earlier = [one for one in rights if one[0] <= left.time_us]
        newest_us = max((at for at, _ in earlier), default=None)
        if newest_us is not None and left.time_us - newest_us < self._join.right_us:
            return [text for at, text in earlier if at == newest_us][-1], left.time_us + 1
        later = [one for one in rights if one[0] > left.time_us]
        next_us = min((at for at, _ in later), default=None)
        if next_us is not None and next_us - left.time_us < self._join.left_us:
            return next(text for at, text in later if at == next_us), next_us + 1
        return None, left.time_us + self._join.left_us


@lru_cache(maxsize=500)
def records_of(payload: bytes) -> list[dict]:
    return stored_rows(payload).to_pylist()


def refused_by(config: Program) -> bytes:
    """The value that the first step of every source refuses."""
    return config.lanes[0].parse.fields[0][0].encode()


def meaning_of(world: "World", to: int) -> Meaning:
    """What raw's frames up to `to` mean."""
    assert world.join is not None
    account = Account(world, world.join) if world.join.lateness_us is None else TimedAccount(world, world.join)
    arrivals = arrivals_us(world)
    plans: Iterator[Entry] = iter([entry for entry in entries(world.log, "process") if entry.kind == "plan"])
    plan = next(plans, None)
    for message in world.log.everything(NAMES.stream("raw")):
        if message.sequence > to:
            break
        while plan is not None and plan.body.to < message.sequence:
            plan = next(plans, None)
        assert plan is not None and plan.body.start < message.sequence
        account.take(message, arrivals[message.sequence], plan)
    return account.meaning


def check_joined_account(world: "World") -> None:
    """All records, all rows, in the order of their causes, and all counts; nobody waits whose window has ended."""
    meaning = meaning_of(world, sys.maxsize)
    check_account(world, meaning.outcomes)
    check_order(world, meaning)
    check_waiting(world, meaning)
    done = [entry for entry in entries(world.log, "process") if entry.kind == "done"]
    totals = Counter(done[-1].body.totals if done else {})
    found = {name: totals[f"join.{name}"] for name in ("joined", "unmatched")}
    found |= {"kept": totals["dropped.kept"], "dropped": totals["dropped.unmatched"]}
    assert found == {name: meaning.counts[name] for name in found}, "counts of the join"
    process = next(leg for leg in tally(world.log, NAMES, world.topology).legs if leg.leg == "process")
    assert process.outcomes.get("waiting in the join", 0) == len(meaning.waiting), "waiting in the join"


def check_order(world: "World", meaning: Meaning) -> None:
    """Rows, and dead letters of rows, stand on their subjects in the order of causes, each once, and headers name causes."""
    for leg, rows in meaning.accepted.items():
        expected = by_bucket(meaning, rows)
        found: dict[int, list[tuple[Cause, At]]] = {}
        for message in world.log.everything(NAMES.stream(leg.input_role)):
            frame = stored_rows(message.payload).to_pylist()
            causes = [tuple(row[f"_tf_cause_{part}"] for part in ("sequence", "ordinal", "emit")) for row in frame]
            assert [message.headers["Tf-First"], message.headers["Tf-Last"]] == [".".join(map(str, causes[end])) for end in (0, -1)]
            found.setdefault(bucket_of(message), []).extend(zip(causes, map(position_of, frame), strict=True))
        assert found == expected, f"rows of {leg} in the order of causes"
    expected = by_bucket(meaning, meaning.refused_behind)
    found = {}
    for message in world.log.everything(NAMES.stream("dlq")):
        if ".dlq.join." in message.subject:
            places = [position_of(row) for row in stored_rows(message.payload).to_pylist()]
            causes = [meaning.causes[at][1] for at in places]
            assert [message.headers["Tf-First"], message.headers["Tf-Last"]] == [".".join(map(str, causes[end])) for end in (0, -1)]
            found.setdefault(bucket_of(message), []).extend(zip(causes, places, strict=True))
    assert found == expected, "dead letters of the join in the order of causes"


def by_bucket(meaning: Meaning, places: dict[At, tuple] | set[At]) -> dict[int, list[tuple[Cause, At]]]:
    """These left records by bucket, in the order of causes."""
    found: dict[int, list[tuple[Cause, At]]] = {}
    for at in places:
        bucket, cause = meaning.causes[at]
        found.setdefault(bucket, []).append((cause, at))
    return {bucket: sorted(rows) for bucket, rows in found.items()}


def bucket_of(message: Message) -> int:
    return int(message.subject.rpartition(".")[2])


def check_waiting(world: "World", meaning: Meaning) -> None:
    """Each `done` names a left record before which nobody waits; when all is done, nobody waits whose window has ended."""
    assert world.join is not None
    for done in (entry.body for entry in entries(world.log, "process") if entry.kind == "done"):
        oldest = meaning.oldest.get(done.to)
        if done.waiting is None:
            assert oldest is None, f"{oldest} waits behind {done.to}, and its done names nobody"
            continue
        named = done.waiting.sequence, done.waiting.ordinal
        assert meaning.waited[named] == done.waiting.arrival_us
        clock_us = done.clock_us if world.join.lateness_us is None else meaning.watermark_us[done.to]
        assert named[0] <= done.to and (clock_us is None or done.waiting.arrival_us + world.join.left_us > clock_us)
        assert oldest is None or named <= oldest, f"{oldest} waits behind {done.to}, and its done names {named}"
    if world.join.lateness_us is not None:
        return
    now_us = int(world.clock.now.timestamp()) * 1_000_000 + world.clock.now.microsecond
    ended = [left.at for left in meaning.waiting.values() if left.arrival_us + world.join.left_us <= now_us]
    assert not ended, f"{ended} wait, and their windows have ended"


def names_waiting(world: "World") -> bool:
    """Whether the last `done` names a left record that waits, so that raw is kept from there on."""
    done = [entry.body.waiting for entry in entries(world.log, "process") if entry.kind == "done"]
    return bool(done and done[-1])


def check_kept(world: "World", purged: set[int]) -> None:
    """No raw frame is purged of a left record that waits, or has a row that a sink has not confirmed: its bytes may be needed."""
    done = [entry.body.to for entry in entries(world.log, "process") if entry.kind == "done"]
    waiting = {at[0] for at in meaning_of(world, done[-1] if done else 0).waiting}
    assert not purged & waiting, f"raw was purged of {sorted(purged & waiting)}, of left records that wait"
    for leg in world.tables:
        confirmed = max((entry.body.to for entry in entries(world.log, leg) if entry.kind == "done"), default=0)
        frames = [message for message in world.log.everything(NAMES.stream(leg.input_role)) if message.sequence > confirmed]
        needed = {row["_tf_sequence"] for message in frames for row in stored_rows(message.payload).to_pylist()}
        assert not purged & needed, f"raw was purged of {sorted(purged & needed)}, whose rows {leg} has not confirmed"
