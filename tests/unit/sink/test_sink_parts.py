"""Pieces of a plan that lanes insert beside the leg: each row once, whatever becomes of a lane."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.leg_case import NAMES, LegCase, event
from support.memory_sink.connector import MemoryTable

import pipelines.sink.settling
from pipelines.connectors.sinks import TableColumn
from pipelines.engine.lanes import NO_LANES
from pipelines.engine.leg import StoppedError
from pipelines.errors import HaltError, InsertTooLargeError, InvariantError
from pipelines.protocol.codec import from_text, to_text
from pipelines.protocol.records import Message, decode_frame
from pipelines.sink.attempts import Attempts, Turn
from pipelines.sink.chunks import Chunk, Pieces, chunks
from pipelines.sink.parts import FRESH_SECONDS, InsertItem, InsertReport, Parts, in_parts, insert_part


class SomeLanes:
    """Two lanes. Those of `given_up` have not begun, those of `silent` have done their part, when the leg does it; `late`: they go on."""

    helped = 0

    def __init__(self, case: LegCase) -> None:
        self._case = case
        self.given_up: set[int] = set()
        self.silent: set[int] = set()
        self.late: list[Callable[[], bytes]] = []
        self.items: list[InsertItem] = []

    def parts_for(self, records: int) -> int:
        return 3 if records > 5 else 1

    def divide(self, work: str, parts: Sequence[InsertItem], here: Callable[[InsertItem], Any], read: Callable[[bytes], Any]) -> list[Any]:
        self.items += parts
        made = [here(parts[0])]
        for number, part in enumerate(parts[1:], 1):
            do = partial(insert_part, self._case, to_text(part))
            if number in self.given_up:
                self.late.append(do)
            if number in self.silent:
                do()
            made.append(here(part) if number in self.given_up | self.silent else read(do()))
        return made


class Case(LegCase):
    """A sink leg beside two lanes."""

    lanes: Any

    def __init__(self, directory: Path, table: MemoryTable, before: "Case | None" = None) -> None:
        super().__init__(directory, 1, before.log if before else None, before.epoch + 1 if before else 1, table=table)
        self.table = table
        if before is None:
            # Twelve rows, in the order of their ids, in six frames: the pieces end behind the ids 5, 9 and 11.
            for first in range(0, 12, 2):
                self.send([event(first), event(first + 1)])
                self.go_on()
        self.lanes = SomeLanes(self)

    def dead_letters(self) -> list[tuple[str, str]]:
        frames = [decode_frame(message.payload) for message in self.log.messages(NAMES.stream("dlq"))]
        return [(row["code"], row["message"]) for frame in frames for row in frame.to_pylist()]


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(pipelines.sink.settling, "INSERT_MAX_EXECUTION_SECONDS", 0)
    return Case(tmp_path, MemoryTable())


def once(table: MemoryTable, but: Sequence[int] = ()) -> None:
    assert sorted(table.ids) == [number for number in range(12) if number not in but]


def test_each_piece_is_inserted_once_under_a_token_of_its_own(case: Case) -> None:
    case.deliver()
    once(case.table)
    assert [token.rpartition(":")[2] for token in case.table.sent] == ["0-6", "6-10", "10-12"]
    assert len({token.rpartition(":")[0] for token in case.table.sent}) == 1
    totals = case.delivery.chain.state.totals
    assert (totals["rows_in"], totals["rows_out"], totals["chunks"]) == (12, 12, 1)


def test_few_rows_are_one_insert_and_ask_no_lane(case: Case) -> None:
    case.deliver()
    case.lanes, case.table.sent = NO_LANES, []
    case.send([event(12)])
    case.go_on()
    case.lanes = SomeLanes(case)
    case.deliver()
    assert case.lanes.items == []
    (token,) = case.table.sent
    assert "-" not in token.rpartition(":")[2], "it is the chunk's own"


def test_a_lane_that_comes_too_late_inserts_nothing(case: Case) -> None:
    case.lanes.given_up = {1, 2}
    case.deliver()
    sent = list(case.table.sent)
    for late in case.lanes.late:
        report = from_text(InsertReport, late())
        assert "the leg has gone on" in report.failure
    assert case.table.sent == sent
    once(case.table)


def test_a_piece_that_a_silent_lane_has_stored_is_there_once(case: Case) -> None:
    case.lanes.silent = {1, 2}
    case.deliver()
    assert Counter(Counter(case.table.sent).values()) == {1: 1, 2: 2}
    once(case.table)


def test_what_lanes_have_stored_is_not_sent_again(case: Case) -> None:
    case.table.refused = {1}
    case.deliver()
    once(case.table, but=[1])
    assert case.dead_letters() == [("refused", "a row of Memory is refused")]
    of_lanes = {item.token for item in case.lanes.items[1:]}
    assert [Counter(case.table.sent)[token] for token in of_lanes] == [1, 1]


def test_rows_refused_in_every_piece_are_dead_letters(case: Case) -> None:
    case.table.refused = {0, 5, 10, 11}
    case.deliver()
    once(case.table, but=[0, 5, 10, 11])
    assert len(case.dead_letters()) == 4
    assert case.delivery.chain.state.totals["rejected.sink.refused"] == 4


def cut_until_tokens_are_forgotten(case: Case) -> None:
    case.table.facts = replace(case.table.facts, dedup_window=1)
    case.table.refused = {0, 2, 4}
    case.deliver()


def test_no_token_of_a_lane_is_needed_behind_a_cut(case: Case) -> None:
    cut_until_tokens_are_forgotten(case)
    once(case.table, but=[0, 2, 4])


def test_a_sink_that_forgets_what_lanes_stored_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parts, "confirmed_rows", lambda _: [])
    with pytest.raises(HaltError, match="now holds 6 rows of another writer"):
        cut_until_tokens_are_forgotten(case)


def lane_wakes_up_as_the_table_is_asked(case: Case) -> None:
    """A piece is refused, whose lane has not begun; the table is mended when the lane goes on, behind the answer of the table."""
    case.lanes.given_up, case.table.refused = {1}, {7}
    ask = case.table.stored_positions

    def asked_then_woken(*bounds: Any) -> Any:
        found = ask(*bounds)
        case.table.refused = set()
        for late in case.lanes.late:
            late()
        return found

    case.table.stored_positions = asked_then_woken  # type: ignore[method-assign]
    case.deliver()


def test_no_lane_begins_once_the_table_is_asked(case: Case) -> None:
    lane_wakes_up_as_the_table_is_asked(case)
    once(case.table)
    assert Counter(case.table.sent)[case.lanes.items[1].token] == 2, "refused, and taken in its turn"


def test_a_sink_that_asks_without_a_fence_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt_all = Attempts._attempt_all

    def asks_at_once(self: Attempts, turn: Turn) -> Pieces:
        pieces = attempt_all(self, turn)
        return attempt_all(self, turn) if self._parts is not None and not self._parts[1].open else pieces

    monkeypatch.setattr(Attempts, "_attempt_all", asks_at_once)
    lane_wakes_up_as_the_table_is_asked(case)
    assert Counter(case.table.sent)[case.lanes.items[1].token] == 3


def test_the_next_start_sends_the_same_pieces(tmp_path: Path, case: Case) -> None:
    case.table.loses_answers = True
    with pytest.raises(StoppedError, match="no answer"):
        case.deliver()
    tokens = set(case.table.tokens)
    case.table.loses_answers = False
    following = Case(tmp_path, case.table, before=case)
    following.deliver()
    once(case.table)
    assert set(case.table.tokens) == tokens
    assert len(tokens) == 3


def test_the_next_start_may_have_no_lanes(tmp_path: Path, case: Case) -> None:
    case.table.loses_answers = True
    with pytest.raises(StoppedError):
        case.deliver()
    case.table.loses_answers = False
    following = LegCase(tmp_path, 1, case.log, epoch=2, table=case.table)
    following.deliver()
    once(case.table)


def test_a_lane_of_an_earlier_leg_begins_no_insert(tmp_path: Path, case: Case) -> None:
    case.lanes.given_up, case.table.loses_answers = {1, 2}, True
    with pytest.raises(StoppedError):
        case.deliver()
    sent = len(case.table.sent)
    Case(tmp_path, case.table, before=case)
    for late in case.lanes.late:
        assert from_text(InsertReport, late()).failure
    assert len(case.table.sent) == sent


def test_a_look_at_the_chain_that_took_long_is_not_enough(case: Case) -> None:
    case.lanes.given_up, case.table.loses_answers = {1, 2}, True
    with pytest.raises(StoppedError):
        case.deliver()
    (item, *_) = case.lanes.items[1:]
    ticks = iter([0.0, FRESH_SECONDS + 0.1, 5.0, 5.0 + FRESH_SECONDS])
    sent = len(case.table.sent)
    assert "NATS is too slow" in from_text(InsertReport, insert_part(case, to_text(item), lambda: next(ticks))).failure
    assert len(case.table.sent) == sent
    assert "no answer" in from_text(InsertReport, insert_part(case, to_text(item), lambda: next(ticks))).failure


def test_a_lane_sends_no_other_rows_than_planned(case: Case) -> None:
    case.lanes.given_up = {1}
    case.deliver()
    item = case.lanes.items[1]
    with pytest.raises(InvariantError, match="its rows differ from the planned rows"):
        insert_part(case, to_text(replace(item, digest="0" * 16)))


def test_a_table_that_no_longer_fits_halts_the_leg_as_before(case: Case) -> None:
    columns = tuple(TableColumn("v", "Int32", "") if column.name == "v" else column for column in case.table.facts.columns)
    case.table.facts = replace(case.table.facts, columns=columns)
    with pytest.raises(HaltError, match="column 'v' is Int32, the rows hold String"):
        case.deliver()
    assert case.table.sent == []


def test_a_table_that_cannot_be_asked_gets_one_insert(case: Case) -> None:
    case.table.facts = replace(case.table.facts, keeps_rows=False)
    case.deliver()
    assert (case.lanes.items, len(case.table.sent)) == ([], 1)
    once(case.table)


def test_lanes_insert_at_least_once_without_questions(case: Case) -> None:
    def nobody_asks(*_: object) -> None:
        raise AssertionError("it was asked")

    case.config.sink.delivery, case.table.facts = "at_least_once", replace(case.table.facts, keeps_rows=False)
    case.table.refused, case.table.asked = {1, 11}, nobody_asks
    case.deliver()
    once(case.table, but=[1, 11])
    assert len(case.dead_letters()) == 2


def test_a_piece_that_takes_too_long_is_cut_after_three(case: Case) -> None:
    insert, cut_off = case.table.insert, []

    def slow(table: str, columns: Sequence[str], block: bytes, token: str, seconds: int, work: str = "") -> None:
        if token == case.lanes.items[-1].token:
            cut_off.append(token)
            raise InsertTooLargeError("inserting a chunk: it took too long")
        insert(table, columns, block, token, seconds, work)

    case.table.insert = slow  # type: ignore[method-assign]
    case.delivery.stop.clear()
    case.deliver()
    once(case.table)
    # Three among the others, three alone.
    assert len(cut_off) == 6
    assert [Counter(case.table.sent)[item.token] for item in case.lanes.items[:2]] == [1, 1]


def frames(*rows: int) -> list[Message]:
    return [Message(f"tf.p.out.{n}", n, None, bytes(count), {"Tf-Rows": str(count), "Tf-Config": "v"}) for n, count in enumerate(rows, 1)]  # type: ignore[arg-type]


def planned(parts: int, max_rows: int, *rows: int, max_bytes: int = 10**9) -> tuple[int, tuple[int, ...]]:
    """(the rows of the plan, the ends of its pieces); a row takes a byte."""
    cut = partial(chunks, max_rows=max_rows, max_bytes=max_bytes, bytes_of=len)
    waiting = cut(frames(*rows))
    chunk, ends = in_parts(next(waiting), waiting, parts, cut)
    return chunk.rows, ends


def test_the_legs_piece_has_two_shares_and_is_a_chunk_at_most() -> None:
    assert planned(1, 100, *[10] * 30) == (100, (100,))
    assert planned(2, 90, *[10] * 30) == (90, (60, 90))
    assert planned(4, 100, *[10] * 30) == (200, (80, 120, 160, 200))
    assert planned(4, 100, *[10] * 3) == (30, (20, 30))
    assert planned(2, 100, 50) == (50, (50,))
    assert planned(3, 100, 0, 0, 50, 0) == (50, (50,))
    assert planned(3, 100, 0) == (0, ())


def test_rows_of_very_different_sizes_are_cut_as_chunks() -> None:
    rows, ends = planned(3, 1000, 10, 10, 10, 90, 90, max_bytes=100)
    assert (rows, ends) == (120, (30, 120))
    rows, ends = planned(3, 1000, 100, 100, 10, max_bytes=100)
    assert (rows, ends) == (200, (100, 200))
    rows, ends = planned(3, 1000, 60, 40, 30, 30, 30, max_bytes=100)
    assert (rows, ends) == (190, (100, 160, 190))


def test_rows_of_another_configuration_wait_for_the_next_plan() -> None:
    waiting = frames(60, 40, 60, 40)
    other = [replace(message, headers={**message.headers, "Tf-Config": "w"}) for message in waiting[2:]]
    cut = partial(chunks, max_rows=100, max_bytes=10**9, bytes_of=len)
    following = cut(iter([*waiting[:2], *other]))
    chunk, ends = in_parts(next(following), following, 3, cut)
    assert (chunk.rows, ends) == (100, (60, 100))


def test_a_part_of_a_chunk_has_the_frames_of_its_rows() -> None:
    chunk = Chunk(tuple(frames(3, 0, 2, 4)))
    found = {bounds: (part.first, part.last, first) for bounds in [(0, 3), (3, 5), (4, 9), (0, 9)] for part, first in [chunk.part(*bounds)]}
    assert found == {(0, 3): (1, 1, 0), (3, 5): (3, 3, 3), (4, 9): (3, 4, 3), (0, 9): (1, 4, 0)}
