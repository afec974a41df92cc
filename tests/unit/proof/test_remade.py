"""Rows made anew: which configuration the rows of a range are under, what they have otherwise, and their positions on the ledger."""

from collections.abc import Sequence

import numpy as np
import pytest
from support.programs import first_of, program

from pipelines.errors import NotSupportedError
from pipelines.process.program import Program
from pipelines.proof.made_ranges import differences
from pipelines.proof.remakable import check_ranges
from pipelines.proof.verification.remade import Part, Remade, overlaid, read_remade
from pipelines.proof.verification.span import History, Plan
from pipelines.protocol.bodies import REPROCESS_CHAIN, ReprocessDone, ReprocessPlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import decoded, encoded, packed
from pipelines.testing import MemoryLog

FIELDS = (("id", "int"), ("name", "string"), ("at", "int"))
ID, NAME = ("id", "id", "Int64", False), ("name", "name", "String", False)
BEFORE: Sequence[Part] = [(1, 4, "a"), (5, 9, "b")]


@pytest.mark.parametrize(
    ("remade", "parts"),
    [
        ([], [(1, 4, "a"), (5, 9, "b")]),
        ([Remade(1, 4, "b")], [(1, 9, "b")]),
        ([Remade(3, 6, "c")], [(1, 2, "a"), (3, 6, "c"), (7, 9, "b")]),
        ([Remade(1, 9, "c"), Remade(2, 2, "a")], [(1, 1, "c"), (2, 2, "a"), (3, 9, "c")]),
        ([Remade(20, 30, "c")], [(1, 4, "a"), (5, 9, "b")]),
    ],
)
def test_the_last_time_that_rows_were_made_counts(remade: list[Remade], parts: list[Part]) -> None:
    assert overlaid(BEFORE, remade) == parts


def test_what_was_made_anew_is_read_from_the_ledger() -> None:
    log, names = MemoryLog(), Names("orders")
    chain = Chain(log, names, REPROCESS_CHAIN, 1)
    chain.open()
    for number, (first, last, version) in enumerate([(1, 4, "v"), (5, 9, "v"), (1, 4, "w"), (5, 9, "w")]):
        chain.plan(ReprocessPlan(start=number, to=number + 1, first=first, last=last, config=version, table="db.t", rows=1))
        if number < 3:
            chain.done(ReprocessDone(start=number, to=number + 1, first=first, last=last, config=version))
    assert read_remade(log, names) == [Remade(1, 9, "v"), Remade(1, 4, "w")], "the last plan is open"


@pytest.mark.parametrize("keys", [packed([], []), packed([1], [0]), packed([7, 7, 9, 2**43], [0, 3, 2, 1_000_000])])
def test_positions_come_back_from_the_ledger(keys: np.ndarray) -> None:
    assert decoded(encoded(keys)).tolist() == keys.tolist()


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (program(FIELDS, [ID, NAME]), ()),
        (program(FIELDS, [ID]), ("without name",)),
        (program(FIELDS, [ID, ("name", "title", "String", False)]), ()),
        (program(FIELDS, [("id", "id", "Int32", False), NAME]), ("id as Int32",)),
        (program(FIELDS, [ID, ("at", "name", "String", False)]), ("name from the field at",)),
        (program((("id", "string"), *FIELDS[1:]), [ID, NAME]), ("the field id as string",)),
        (program((FIELDS[0],), [ID]), ("without name",)),
        (program(FIELDS, [ID, NAME, ("at", "at", "Int64", False)]), ()),
        (program(FIELDS, [ID, NAME], first_of("id", 5)), ()),
        (program(FIELDS, [ID, NAME], buckets=64), ()),
    ],
    ids=["same", "added", "renamed", "type", "field", "parsed", "new field", "dropped", "dedup", "buckets"],
)
def test_a_difference_is_what_the_values_of_rows_have_otherwise(made: Program, found: tuple[str, ...]) -> None:
    assert differences(made, program(FIELDS, [ID, NAME])) == found


def test_rows_that_dedup_has_chosen_otherwise_are_not_made_anew() -> None:
    configs = {"v": program(FIELDS, [ID], first_of("id", 5)), "w": program(FIELDS, [ID, NAME], first_of("id", 9))}
    history = History([Plan(1, 4, "v"), Plan(5, 9, "w")], [*range(1, 10)], [0] * 9, 9, is_whole=True)
    check_ranges(history, {"v": configs["w"], "w": configs["w"]}, configs["w"])
    with pytest.raises(NotSupportedError, match=r"the rows of raw 1\.\.4 anew: they were chosen by another filter, dedup or look-up"):
        check_ranges(history, configs, configs["w"])
