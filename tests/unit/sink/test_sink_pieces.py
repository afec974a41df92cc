"""A chunk that ClickHouse refuses: its bad rows are found one by one, the others are inserted, and no restart changes what was decided."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.protocol.bodies import PlannedPieces
from pipelines.protocol.codec import from_text, to_text
from pipelines.sink.chunks import Pieces


class Table:
    """Takes a piece whole or not at all, once per token; refuses it while one of its rows is in `bad`."""

    def __init__(self, bad: set[int], names_rows: bool) -> None:
        self.bad, self.names_rows = set(bad), names_rows
        self.tokens: set[str] = set()
        self.rows: list[int] = []
        self.inserts = 0

    def insert(self, token: str, rows: Sequence[int]) -> tuple[bool, int | None]:
        """(whether it was taken, the first bad row of the piece if the table names it)."""
        self.inserts += 1
        if token in self.tokens:
            return True, None
        refused = [row for row in rows if row in self.bad]
        if refused:
            return False, [*rows].index(refused[0]) if self.names_rows else None
        self.tokens.add(token)
        self.rows += rows
        return True, None


def decide(table: Table, pieces: Pieces, rows: int, trusts_names: bool = False) -> Pieces:
    taken, at = table.insert(pieces.token("chunk", rows), pieces.to_send().tolist())
    return pieces.inserted() if taken else pieces.refuse("no", at, trusts_names and at is not None)


def settle(table: Table, rows: int, trusts_names: bool = False) -> Pieces:
    pieces = Pieces.of(None, rows)
    while pieces.ends:
        pieces = decide(table, pieces, rows, trusts_names)
    return pieces


def test_a_taken_chunk_is_one_piece_with_every_releases_tokens() -> None:
    pieces = Pieces.of(None, 7)
    assert (pieces.sent, pieces.ends, pieces.token("chunk", 7)) == (0, (7,), "chunk")
    assert pieces.inserted() == Pieces(7, ())
    assert Pieces.of(None, 0).ends == ()


def test_a_row_that_is_named_is_cut_out_at_once() -> None:
    cut = Pieces.of(None, 10).refuse("no", 4)
    assert (cut.sent, cut.ends, cut.token("chunk", 10)) == (0, (4, 5, 10), "chunk:0-4")
    alone = cut.inserted()
    assert (alone.sent, alone.ends) == (4, (5, 10))
    assert alone.refuse("no", 0) == Pieces(5, (10,), ((4, "no"),))
    assert Pieces.of(None, 10).refuse("no", 0).ends == (1, 10)
    assert Pieces.of(None, 10).refuse("no", 9).ends == (9, 10)


def test_pieces_that_are_stored_out_of_order_are_passed_over() -> None:
    pieces = Pieces(0, (4, 6, 10)).found(np.array([4, 5, 7]))
    assert (pieces.sent, pieces.ends, pieces.settled) == (0, (4, 6, 10), 3)
    after = pieces.inserted()
    assert (after.sent, after.ends, after.to_send().tolist(), after.settled) == (6, (10,), [6, 8, 9], 7)
    assert Pieces.of(after.planned(), 10) == after
    assert after.inserted() == Pieces(10, ())


@pytest.mark.parametrize("at", [None, -1, 10, 99])
def test_a_piece_without_a_certain_row_is_halved(at: int | None) -> None:
    assert Pieces.of(None, 10).refuse("no", at).ends == (5, 10)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 60).flatmap(lambda rows: st.tuples(st.just(rows), st.sets(st.integers(0, max(0, rows - 1))))), st.booleans())
def test_exactly_the_bad_rows_are_refused(drawn: tuple[int, set[int]], names_rows: bool) -> None:
    rows, bad = drawn
    bad = {row for row in bad if row < rows}
    for trusts_names in {False, names_rows}:
        table = Table(bad, names_rows)
        pieces = settle(table, rows, trusts_names)
        assert [row for row, _ in pieces.refused] == sorted(bad)
        assert table.rows == [row for row in range(rows) if row not in bad]
        tries_per_bad_row = 1 if trusts_names else 3 if names_rows else 2 * max(1, rows.bit_length())
        assert table.inserts <= tries_per_bad_row * len(bad) + 1


def test_many_rows_before_a_named_one_are_sent_once() -> None:
    rows, bad = 40_000, set(range(20_000, 40_000, 100))
    sent = 0

    class Counting(Table):
        def insert(self, token: str, rows: Sequence[int]) -> tuple[bool, int | None]:
            nonlocal sent
            sent += len(rows)
            return super().insert(token, rows)

    table = Counting(bad, True)
    pieces = settle(table, rows, trusts_names=True)
    assert [row for row, _ in pieces.refused] == sorted(bad)
    assert table.rows == [row for row in range(rows) if row not in bad]
    assert (table.inserts, sent < 3_000_000) == (len(bad) + 5, True)


def test_rows_that_two_constraints_name_keep_their_order() -> None:
    pieces = Pieces.of(None, 10).refuse("a", 7, is_named=True).refuse("b", 2, is_named=True)
    assert pieces.refused == ((2, "b"), (7, "a"))
    assert pieces.to_send().tolist() == [0, 1, 3, 4, 5, 6, 8, 9]
    assert Pieces.of(from_text(PlannedPieces, to_text(pieces.planned())), 10) == pieces


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.booleans(), st.booleans(), st.integers(0, 2**32))
def test_a_kill_and_a_table_mended_half_way_lose_nothing(rows: int, bad: set[int], names_rows: bool, trusts: bool, seed: int) -> None:
    random = Random(seed)
    table = Table({row for row in bad if row < rows}, names_rows)
    plan: PlannedPieces | None = None
    pieces = Pieces.of(plan, rows)
    while pieces.ends:
        decided = decide(table, pieces, rows, trusts)
        if random.random() < 0.1:
            table.bad.clear()
        if random.random() < 0.3:
            # Killed before the decision was on the ledger: the last one that is counts.
            pieces = Pieces.of(plan, rows)
            continue
        plan = from_text(PlannedPieces, to_text(decided.planned()))
        pieces = Pieces.of(plan, rows)
        assert pieces == decided
    refused = [row for row, _ in pieces.refused]
    assert sorted(table.rows + refused) == list(range(rows))
    assert set(refused) <= bad


def test_reasons_stand_in_the_plan_once() -> None:
    pieces = Pieces(9, (), ((1, "a"), (4, "b"), (6, "a")))
    assert pieces.planned() == PlannedPieces(9, (), ((1, 0), (4, 1), (6, 0)), ("a", "b"))
    assert Pieces.of(pieces.planned(), 9) == pieces


# -- rows that were found in the table ---------------------------------------------------------------------------------------


def test_stored_rows_are_not_sent_again_others_get_a_new_token() -> None:
    pieces = Pieces.of(None, 10).found(np.array([1, 2, 7]))
    assert pieces.to_send().tolist() == [0, 3, 4, 5, 6, 8, 9]
    assert pieces.token("chunk", 10) not in (
        Pieces.of(None, 10).token("chunk", 10),
        Pieces.of(None, 10).found(np.array([1])).token("chunk", 10),
    )
    assert Pieces.of(from_text(PlannedPieces, to_text(pieces.planned())), 10) == pieces
    cut = pieces.refuse("no", 1)
    assert (cut.ends, cut.to_send().tolist()) == ((3, 4, 10), [0])
    assert cut.inserted().to_send().tolist() == [3]
    assert cut.inserted().refuse("no", None).refused == ((3, "no"),)
    assert cut.inserted().inserted().token("chunk", 10) != "chunk:4-10", "rows 7 is missing from it"


def test_a_piece_that_was_found_whole_is_confirmed() -> None:
    assert Pieces.of(None, 3).found(np.arange(3)) == Pieces(3, ())
    assert Pieces(0, (2, 4)).found(np.arange(2)).to_send().tolist() == [2, 3]


def test_a_plan_stays_small_whatever_was_found_and_refused() -> None:
    rows = 200_000
    found = np.flatnonzero(np.random.default_rng(1).random(rows) < 0.5)
    refused = tuple((row, f"reason {row} {'x' * 490}") for row in range(20_000))
    pieces = Pieces.of(None, rows).found(found)
    for row in range(300):
        pieces = Pieces(row, (row + 1, rows), pieces.refused, pieces.stored).refuse(refused[row][1], 0) if row not in found else pieces
    assert len({reason for _, reason in pieces.refused}) == 101
    body = Pieces(0, (rows,), tuple((row, "one of few") for row in range(20_000)) + pieces.refused, pieces.stored).planned()
    assert len(to_text(body)) < 700_000


class Parted(Table):
    """Writes a piece partition by partition, and finds a bad row only there: what was written before it stays."""

    def insert(self, token: str, rows: Sequence[int]) -> tuple[bool, int | None]:
        self.inserts += 1
        for partition in range(3):
            mine = [row for row in rows if row % 3 == partition]
            if any(row in self.bad for row in mine):
                return False, None
            if f"{token} {partition}" not in self.tokens:
                self.tokens.add(f"{token} {partition}")
                self.rows += mine
        return True, None


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.integers(0, 2**32))
def test_a_table_that_stores_part_of_a_refusal_has_rows_once(rows: int, bad: set[int], seed: int) -> None:
    random = Random(seed)
    table = Parted({row for row in bad if row < rows}, False)
    plan: PlannedPieces | None = None
    pieces = Pieces.of(plan, rows)
    while pieces.ends:
        sending = pieces.to_send()
        taken, _ = table.insert(pieces.token("chunk", rows), sending.tolist())
        stored = sending[np.isin(sending, table.rows)]
        decided = pieces.inserted() if taken else pieces.found(stored) if len(stored) else pieces.refuse("no", None)
        if random.random() < 0.05:
            table.bad ^= {random.randrange(rows)} - set(table.rows)
        if random.random() < 0.3:
            pieces = Pieces.of(plan, rows)
            continue
        plan = from_text(PlannedPieces, to_text(decided.planned()))
        pieces = Pieces.of(plan, rows)
    assert sorted(table.rows + [row for row, _ in pieces.refused]) == list(range(rows))
