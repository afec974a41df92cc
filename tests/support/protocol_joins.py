"""Joins in the histories of the protocol's model: two sources whose records meet by key, and a clock that moves on.

The account at their end is in protocol_join_account.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Literal
from unittest.mock import patch

from pipelines.errors import RetryableError
from pipelines.process.computed import stored
from pipelines.process.program import Program
from pipelines.process.steps.filter import Filter
from pipelines.process.steps.join import Join, JoinedField, JoinSide
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.protocol.records import POSITION_COLUMNS
from pipelines.protocol.ticks import Idle, append_tick
from support.programs import union
from support.protocol_outside import NAMES
from support.protocol_stages import BUCKETS, UNWANTED, WORN

if TYPE_CHECKING:
    from support.protocol_world import World

SECOND_US = 1_000_000
Unmatched = Literal["drop", "emit", "dead_letter"]
UNMATCHED: tuple[Unmatched, ...] = ("drop", "emit", "dead_letter")


def has_join(seed: int) -> bool:
    """Whether the history of a seed is one of a join by arrival; so is one of four."""
    return Random(f"a join in {seed}").random() < 0.25


def has_timed_join(seed: int) -> bool:
    """Whether the history of a seed is one of a join by the records' own times; so is one of ten of the others."""
    return not has_join(seed) and Random(f"a timed join in {seed}").random() < 0.1


@dataclass(frozen=True)
class JoinOfHistory:
    """The join of a history. `draws`: chance of its own, so that other histories do not depend on it.

    `lateness_us`: of one by the records' own times, None by arrival.
    """

    left: str
    right: str
    left_us: int
    right_us: int
    keys: int
    draws: Random
    lateness_us: int | None = None
    marked: set[tuple[str, str, int]] = field(default_factory=set)

    @classmethod
    def of_seed(cls, seed: int) -> "JoinOfHistory":
        draws = Random(f"the join of {seed}")
        left, right = draws.sample(["orders", "others"], 2)
        left_us, right_us = (draws.choice([1, 2, 2, 3, 5]) * SECOND_US for _ in range(2))
        keys = draws.choice([1, 2, 4])
        lateness_us = draws.choice([0, SECOND_US]) if has_timed_join(seed) else None
        return cls(left, right, left_us, right_us, keys, draws, lateness_us)

    def value(self, kinds: list[bytes], number: int) -> bytes:
        """A record's value: its kind, a key, mostly, and a number that no other record has."""
        kind = self.draws.choice([*kinds, b"good", WORN])
        return kind if self.draws.random() < 0.05 else b"%s/%d/%d" % (kind, self.draws.randrange(self.keys), number)

    def configuration(self, refused: str, has_more: bool = False, unmatched: Unmatched | None = None) -> Program:
        """Stages as of `protocol_stages.configuration`; behind the join UNWANTED is dropped, and WORN rejected.

        `unmatched`: one of the three is drawn without it.
        """
        fields = ((refused, "string"), ("v", "string"), ("t", "int"))
        time_field = "" if self.lateness_us is None else "t"
        left = JoinSide(self.left, ("v",), (JoinedField("value", "v", "string"),), self.left_us, time_field)
        right = JoinSide(self.right, ("v",), (JoinedField("other", "v", "string"),), self.right_us, time_field)
        names = [("value", "value", "String"), ("other", "other", "Nullable(String)"), *([("value", "more", "String")] if has_more else [])]
        columns = tuple(MappedColumn(*one, has_default=False) for one in names)
        wanted = Filter(stored(f"value <> '{UNWANTED.decode()}'", {"value": "string"}, "sql", "bool"))
        shared = (
            Join(left, right, unmatched or self.draws.choice(UNMATCHED), self.lateness_us or 0),
            wanted,
            MapToTables((MapToTable(columns, "db", "t", POSITION_COLUMNS),)),
        )
        return union(("orders", (Parse(fields),)), ("others", (Parse(fields),)), shared=shared, buckets=BUCKETS)

    def mark(self, world: "World", source: str, start: dict[str, int], ends: dict[str, int]) -> None:
        """Now and then ingest marks a partition that it has read to its end, as far as it knows."""
        quiet = {partition: start.get(partition, 0) for partition, end in ends.items() if end <= start.get(partition, 0)}
        if self.lateness_us is not None and quiet and self.draws.random() < 0.1:
            partition = self.draws.choice(sorted(quiet))
            # A fenced leg may not know the newest records.
            offset = max(0, quiet[partition] - self.draws.choice([0, 0, 1, 3]))
            place = source, partition, offset
            with suppress(RetryableError):
                # Once for all that it has read, so that marks do not fill raw.
                if place not in self.marked and append_tick(world.log, NAMES, Idle(source, {partition: offset})):
                    self.marked.add(place)

    def move_time(self, world: "World") -> None:
        """Now and then a few seconds pass."""
        if self.draws.random() < 0.2:
            world.clock.advance(timedelta(seconds=self.draws.choice([1, 1, 1, 2, 3])))

    def end_windows(self, world: "World") -> None:
        """In half of the histories every window ends at last; in the others some records wait."""
        if self.draws.random() < 0.5:
            world.clock.advance(timedelta(seconds=30))


@contextmanager
def small_portions() -> Iterator[None]:
    """Let a short history merge segments, and take what it has joined through the steps in several portions."""
    with (
        patch("pipelines.key_store.store.SMALL_FAN", 2),
        patch("pipelines.process.joining.GATHERED_ROWS", 4),
        patch("pipelines.process.join.rows.GATHERED_ROWS", 3),
    ):
        yield
