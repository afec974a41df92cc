"""Dead letters for operators: the dead letters of one cause as one group, with the remedy, and single ones by their position.

In: dead letters of the dlq stream (`dead_letter_rows.DEAD_LETTER_SCHEMA`), frame by frame, so that memory holds one frame. Nothing
here changes anything.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.fingerprints import CAUSE, with_fingerprints
from pipelines.process.steps import in_order, kinds
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, Position, first_rows
from pipelines.protocol.records import joined
from pipelines.protocol.redrive import OPEN, WAITING

COPIES_COLUMN, COUNTED_FROM_COLUMN = "copies_dropped", "copies_counted_from"
"""Columns of a count (`dropped_copies`): copies that dedup dropped in favor of a dead letter, and the instant from which they are counted.

The instant is set if earlier copies may be missing.
"""
STAGES = (*(kind.stage for kind in in_order(kinds().values())), "sink")
"""Stages that may reject a record."""
_TRANSFORM = "correct the mapping or the column's type in ClickHouse"
REMEDIES = {
    "oversize": "fetch the record from Kafka by its coordinates; let the producer send at most 1,000,000 bytes",
    "unreadable": "let the producer give its headers names in UTF-8; the record is whole in Kafka, at its coordinates",
    "tombstone": "a record without a value: let the producer leave it out, if the topic is not meant to delete by key",
    "invalid_json": "correct the producer; a schema registry's prefix or another encoding than UTF-8 looks like this, too",
    "wrong_type": "correct the type in `schema_fields` or `columns`, or the producer",
    "out_of_range": f"widen the type in `schema_fields`, or {_TRANSFORM}",
    "null_in_non_nullable": "make the column Nullable or give it a DEFAULT, or let the producer fill the field",
    "invalid_value": f"correct the producer, or {_TRANSFORM}",
    "row_too_large": "map fewer or shorter fields, or let the producer send less",
    "null_key": "correct `key` of the dedup or of the join, or let the producer fill the field",
    "unmatched": "no right record came within the windows: widen them, or reprocess the dead letters once it is there",
    "ahead": "see to the producer's clock, or to the unit of the time field; raise `max_ahead` if such times are right",
    "null_time": "correct `time_field`, or let the producer fill the field",
    "invalid_time": "correct `time_field`, or the producer",
    "refused": "read the message: a constraint or an expression of the table refuses the row; mend the table, or the producer",
    "abandoned": "given up by `tallyflow plan abandon`: let them enter again under the file of now, or discard them",
    "internal_error": "a fault of ours, at this record alone: report it with the record; `dlq reprocess` under the release that mends it",
    "expression_error": "correct the expression, or the producer; the message has the values that it read",
    "not_finite": "keep the expression from dividing by zero or overflowing, for example by nullif",
    "python_error": "correct the function, or the producer; the message has the exception and the values that it read",
    "python_rows": "let the function return the declared fields in their types; several rows for a record need `rows: many`",
    "python_timeout": "make the function faster on such a record, or raise its `timeout`; it may also wait for something outside",
    "python_died": "the function ends its process on this record: look at its native libraries, and at the memory it takes",
    "lookup_missing": "add the row to the table and reprocess, or set `missing` of the look-up to `null` or `drop`",
    "late": "raise `allowed_lateness`, or see to the producer's delay",
}
"""The most likely remedy for the cause of a code."""


@dataclass(frozen=True)
class Selection:
    """A selection of dead letters by all given conditions. `since` is inclusive, `until` exclusive, both of arrivals.

    `states` are of `redrive.STATES`, `positions` raw positions, of a refused row of several with its
    number, `not_rejected_by` a version of the stage configuration. A position without a number, or with 0, selects all dead letters of its
    record.
    """

    stage: str | None = None
    fingerprint: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    key: bytes | None = None
    states: frozenset[str] | None = None
    positions: frozenset[Position] | None = None
    not_rejected_by: str | None = None

    @property
    def states_that_enter(self) -> frozenset[str]:
        """The states of the dead letters that a redrive takes: parked ones only where positions are named."""
        return WAITING if self.positions else frozenset({OPEN})

    def of(self, dead_letters: pa.Table) -> pa.Table:
        """Return the selected dead letters; `dead_letters` has the column `fingerprint`, and `state` if `states` are given."""
        tests: list[tuple[str, Callable[..., pa.ChunkedArray], object]] = [
            ("stage", pc.equal, self.stage),
            ("fingerprint", pc.equal, self.fingerprint),
            ("_tf_arrival", pc.greater_equal, self.since),
            ("_tf_arrival", pc.less, self.until),
            ("key", pc.equal, self.key),
            ("config_version", pc.not_equal, self.not_rejected_by),
        ]
        for name, test, wanted in tests:
            if wanted is not None:
                column = dead_letters.column(name)
                dead_letters = dead_letters.filter(pc.fill_null(test(column, pa.scalar(wanted, column.type)), False))
        if self.states is not None:
            dead_letters = dead_letters.filter(pc.is_in(dead_letters.column("state"), value_set=pa.array(sorted(self.states), pa.string())))
        if self.positions is not None:
            names = (*SEQUENCE_AND_ORDINAL, "refused_row")
            positions = [letter_position(row) for row in dead_letters.select(names).to_pylist()]
            dead_letters = dead_letters.filter(pa.array([self._names(self.positions, one) for one in positions], pa.bool_()))
        return dead_letters

    def _names(self, positions: frozenset[Position], position: Position) -> bool:
        return position in positions or position._replace(emit=0) in positions


@dataclass(frozen=True)
class ExactSelection(Selection):
    """A selection whose positions each select the dead letter of one row: that of their number, of 0 the first or the only one."""

    def _names(self, positions: frozenset[Position], position: Position) -> bool:
        return position in positions


def letter_position(dead_letter: Mapping[str, Any]) -> Position:
    """Return the raw position of a dead letter, of a refused row of several with its number."""
    return Position(dead_letter["_tf_sequence"], dead_letter["_tf_ordinal"], dead_letter["refused_row"] or 0)


def position_as_text(dead_letter: Mapping[str, Any]) -> str:
    """Return the position of a dead letter as commands show and take it: without a number unless it is of one row."""
    position = letter_position(dead_letter)
    return str(position) if dead_letter["refused_row"] is not None else str(position).removesuffix(".0")


@dataclass(frozen=True)
class Group:
    """Dead letters of one cause. `message` and `position` belong to the first one, `first` and `last` are arrivals.

    `copies_dropped`: copies dropped in favor of them; counted from `copies_counted_from` if earlier ones may be missing.
    """

    fingerprint: str
    stage: str
    code: str
    field: str | None
    message: str
    letters: int
    first: datetime
    last: datetime
    position: Position
    topic: str
    partition: int
    offset: int
    copies_dropped: int = 0
    copies_counted_from: datetime | None = None

    @property
    def remedy(self) -> str:
        return REMEDIES.get(self.code, "")


def groups(frames: Iterable[pa.Table], selection: Selection) -> list[Group]:
    """Return the selected dead letters by cause, the largest group first."""
    by_cause: dict[str, Group] = {}
    for frame in frames:
        dead_letters = selection.of(with_fingerprints(frame))
        for group in _groups_of(dead_letters):
            before = by_cause.get(group.fingerprint)
            by_cause[group.fingerprint] = _together(before, group) if before else group
    return sorted(by_cause.values(), key=lambda group: (-group.letters, group.fingerprint))


def _groups_of(dead_letters: pa.Table) -> Iterator[Group]:
    for name in pc.unique(dead_letters.column("fingerprint")).to_pylist():
        members = dead_letters.filter(pc.equal(dead_letters.column("fingerprint"), name))
        limits = pc.min_max(members.column("_tf_arrival")).as_py()
        example = members.slice(0, 1).to_pylist()[0]
        yield Group(
            **{part: example[part] for part in ("fingerprint", *CAUSE)},
            letters=members.num_rows,
            first=limits["min"],
            last=limits["max"],
            position=letter_position(example),
            topic=example["_tf_topic"],
            partition=example["_tf_partition"],
            offset=example["_tf_offset"],
            **_copies_of(members),
        )


def _copies_of(members: pa.Table) -> dict[str, Any]:
    if COPIES_COLUMN not in members.column_names:
        return {}
    # Of several refused rows of a record each has the same copies.
    copies, since = (first_rows(members).column(name) for name in (COPIES_COLUMN, COUNTED_FROM_COLUMN))
    return {COPIES_COLUMN: pc.sum(copies, min_count=0).as_py(), COUNTED_FROM_COLUMN: pc.max(since).as_py()}


def _together(group: Group, other: Group) -> Group:
    first = min(group, other, key=lambda each: each.position)
    sums = {name: getattr(group, name) + getattr(other, name) for name in ("letters", COPIES_COLUMN)}
    times = {"first": min(group.first, other.first), "last": max(group.last, other.last)}
    return Group(**{**vars(first), **sums, **times, COUNTED_FROM_COLUMN: group.copies_counted_from or other.copies_counted_from})


def listed(frames: Iterable[pa.Table], selection: Selection, limit: int) -> tuple[pa.Table, int]:
    """Return (the first `limit` selected dead letters by position, with `fingerprint`; the number of selected ones)."""
    kept: pa.Table | None = None
    count = 0
    for frame in frames:
        dead_letters = selection.of(with_fingerprints(frame))
        count += dead_letters.num_rows
        together = dead_letters if kept is None else joined([kept, dead_letters])
        kept = together.sort_by([("_tf_sequence", "ascending"), ("_tf_ordinal", "ascending")]).slice(0, limit)
    return (kept if kept is not None else pa.table({})), count


def dead_letters_at(frames: Iterable[pa.Table], position: Position) -> pa.Table:
    """Return the dead letters of the record at `position`, with `fingerprint`: one, or one of each sink that has refused its row."""
    found = []
    for frame in frames:
        is_it = pc.and_(pc.equal(frame.column("_tf_sequence"), position.sequence), pc.equal(frame.column("_tf_ordinal"), position.ordinal))
        if position.emit:
            is_it = pc.and_(is_it, pc.fill_null(pc.equal(frame.column("refused_row"), position.emit), False))
        dead_letters = frame.filter(is_it)
        if dead_letters.num_rows:
            found.append(with_fingerprints(dead_letters))
    return joined(found) if found else pa.table({})
