"""The reference of a join, in statements of sql/reference: first the records of both sides, then the rows behind the join.

Between the two, `joined.sql` finds for all left records at once what each has met, by two ASOF joins. No output of the join is used.

A left record whose outcome no step decides here has a stage of its own in `parsed`: WAITING_STAGE.
"""

from dataclasses import replace
from itertools import count
from typing import Any

from pipelines.connectors.sql import filled
from pipelines.process.program import Program
from pipelines.proof.verification.steps import (
    Field,
    Stated,
    Wanted,
    is_keyed,
    key_of,
    rows_of_parsed,
    through,
    through_lanes,
    time_of,
)
from pipelines.protocol.outcomes import DROPPED, WAITING, Outcome, label_of

WAITING_STAGE = f"{DROPPED}waiting"
"""The stage of left records that wait: they have no row yet."""
PURGED, PENDING, WAITS = "purged", "pending", "waits"
"""Why `open_lefts` has a left record.

A right record that is purged may decide it; or the sink has not confirmed what made its row appear; or it waits, and process may have
gone on.
"""


COPY_STAGE = f"{DROPPED}copies"
"""The stage of the records that a dedup before a join drops."""


def stage_of(outcome: Outcome) -> str:
    """Return the stage in `parsed` of the records that end with an outcome."""
    return WAITING_STAGE if outcome == WAITING else outcome.total


def label_of_stage(stage: str) -> str:
    """Return the label of the outcome of the records of a stage: the inverse of `stage_of`."""
    return WAITING.label if stage == WAITING_STAGE else label_of(stage)


class JoinedField(Field):
    """A field of the joined record, by its place in the join; its columns have the same names whatever a source's fields are."""

    @property
    def kind(self) -> str:
        return f"jk{self.index}"

    @property
    def text(self) -> str:
        return f"jt{self.index}"


def sides_statement(program: Program, wanted: Wanted) -> str:
    """Return the statement of the records of both sides, from `frames`: a SELECT."""
    return " UNION ALL BY NAME ".join(_side(program, source, stated) for source, stated in _lanes(program, wanted).items())


def _lanes(program: Program, wanted: Wanted) -> dict[str, Stated]:
    indexes = count(max(len(lane.parse.fields) + len(lane.parse.columns) for lane in program.lanes))
    return dict(zip(program.sources, through_lanes(program, wanted, indexes), strict=True))


def _side(program: Program, source: str, stated: Stated) -> str:
    rows, own = stated
    join: Any = program.join
    is_right = join.right.source == source
    side = join.right if is_right else join.left
    key = [own[name] for name in side.key]
    first = len(join.left.fields) if is_right else 0
    columns = "".join(f", {own[one.of].kind} AS jk{index}, {own[one.of].text} AS jt{index}" for index, one in enumerate(side.fields, first))
    time, is_timed = time_of(side, join.max_ahead_us, own)
    return filled(
        "reference/steps/join",
        is_right=str(is_right).lower(),
        is_keyed=f"{is_keyed(key)} AND {is_timed}",
        time=time,
        key=key_of(key),
        copy_key="key" if is_right in program.side_dedups else "NULL::UHUGEINT",
        columns=columns,
        rows=f"FROM ({rows})",
    )


def side_records(is_right: bool) -> str:
    """Return the records of one side as those of `parsed` among which copies are found."""
    side = "is_right" if is_right else "NOT is_right"
    return f"(SELECT * REPLACE (copy_key AS key) FROM sides ANTI JOIN undecided_copies USING (position) WHERE {side}) AS records"  # noqa: S608


def decided_in(is_timed: bool) -> str:
    """Return the raw sequence of the frame that has decided about a left record, from the cause of its row.

    By arrival a window ends before the records of the frame with which it has ended, by the records' own times behind those of a frame.
    """
    return "(cause >> 20)" if is_timed else "((cause + 1) >> 20)"


def joined_rows_statement(program: Program, wanted: Wanted, within: tuple[int, int], bounds: tuple[int, int]) -> str:
    """Return the statement that makes rows of `parsed` of the records of the range, under a configuration.

    `within`: raw sequences of the frames that were processed under it; `bounds`: the positions of the range. All are inclusive.
    """
    join: Any = program.join
    lanes = _lanes(program, wanted)
    of = [(one, lanes[side.source][1][one.of].source) for side in (join.left, join.right) for one in side.fields]
    fields = [JoinedField(index, one.name, source) for index, (one, source) in enumerate(of)]
    of_right = fields[len(join.left.fields) :]
    rows = filled(
        "reference/join_rows",
        other_fields="".join(f", {field.kind}, {field.text}" for field in of_right),
        columns="".join(f", coalesce(met.{field.kind}, 'NULL') AS {field.kind}, met.{field.text} AS {field.text}" for field in of_right),
        unmatched={"drop": f"'{DROPPED}unmatched'", "dead_letter": "'join'", "emit": "NULL"}[join.unmatched],
        decided_in=decided_in(join.is_timed),
        low=within[0],
        high=within[1],
        first=bounds[0],
        last=bounds[1],
    )
    named: dict[str, Field] = {field.name: field for field in fields}
    rows, _ = through(program.shared[1:], named, rows, replace(wanted, leg=program.leg), count(len(fields)))
    return rows_of_parsed(wanted, rows)
