"""Lanes: who does the parts of a plan, and what becomes of a part that its lane does not finish."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from pipelines.engine.lanes import LATE_SECONDS, LEAST_RECORDS, PIECE_BYTES, SILENT_SECONDS, Ask, Lane, Lanes, lane_subject
from pipelines.errors import DataLossError, RetryableError
from pipelines.protocol.codec import Form, Text, from_text, to_text
from pipelines.protocol.records import decode_parcel
from pipelines.testing import ManualClock


@dataclass(frozen=True)
class Item(Form):
    """A part of the work of these tests, which is to write a text in capitals."""

    text: Text


def shout(text: str) -> bytes:
    return from_text(Item, text).text.upper().encode()


class Network:
    """Carries requests to lanes; `lost`: how many of the next answers are lost."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.requests, self.lost = 0, 0
        self.on_request: Callable[[str], object] = str

    def join(self, number: int, work: Callable[[str], bytes] = shout) -> list[str]:
        notes: list[str] = []
        self.lanes[lane_subject("run", number)] = Lane({"shout": work}, notes.append)
        return notes

    def request(self, subject: str, payload: bytes, seconds: float) -> bytes:
        self.requests += 1
        self.on_request(subject)
        if subject not in self.lanes:
            raise RetryableError("nobody answers there")
        answer = self.lanes[subject].answer(payload)
        if self.lost:
            self.lost -= 1
            raise RetryableError("no answer")
        return answer


class ClockOfEachThread(threading.local):
    """Time goes on for the thread that sleeps."""

    now = 0.0

    def seconds(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Case:
    """A leg with lanes; `here`: the parts that it has done itself."""

    def __init__(self, lanes: int) -> None:
        self.network, self.clock = Network(), ManualClock()
        self.lanes = Lanes(self.network, "run", lanes, self.clock.seconds)
        self.here: list[str] = []

    def divide(self, *texts: str) -> list[str]:
        return self.lanes.divide("shout", [Item(text) for text in texts], self._do, lambda made: made.decode() + " by a lane")

    def _do(self, item: Item) -> str:
        self.here.append(item.text)
        return item.text.upper()


def test_the_first_part_is_done_here_and_the_others_by_lanes() -> None:
    case = Case(2)
    case.network.join(1)
    case.network.join(2)
    assert case.divide("a", "b", "c") == ["A", "B by a lane", "C by a lane"]
    assert (case.here, case.lanes.helped) == (["a"], 2)


def test_parts_are_weighed_by_what_they_took() -> None:
    """Lane 1 takes four times as long as it should: the next plan has less for it, and lane 2 is asked first."""
    clock, network = ClockOfEachThread(), Network()
    lanes = Lanes(network, "run", 2, clock.seconds)
    network.join(1)
    network.join(2)
    network.on_request = lambda subject: clock.sleep(4.0 if subject == lane_subject("run", 1) else 1.0)

    def here(item: Item) -> str:
        clock.sleep(2.0)
        return item.text

    assert lanes.weights("shout", 3) == (2, 1, 1)
    parts = [Item(text) for text in "abc"]
    assert lanes.divide("shout", parts, here, bytes.decode, [200, 100, 100]) == ["a", "B", "C"]
    own, fast, slow = lanes.weights("shout", 3)
    assert slow < 1 < fast < own
    assert lanes.weights("shout", 2) == (own, fast)
    asked = list[str]()
    network.on_request = asked.append
    lanes.divide("shout", parts[:2], here, bytes.decode, [200, 100])
    assert {*asked} == {lane_subject("run", 2)}


def test_a_large_plan_is_cut_for_the_lanes_that_may_answer() -> None:
    case = Case(2)
    assert [case.lanes.parts_for(LEAST_RECORDS - 1), case.lanes.parts_for(LEAST_RECORDS)] == [1, 3]
    assert Lanes().parts_for(10 * LEAST_RECORDS) == 1


def test_lanes_that_come_and_go_are_asked_while_they_are_there() -> None:
    case = Case(0)
    case.network.join(3)
    assert case.divide("a", "b") == ["A", "B"]
    case.lanes.use([3])
    assert case.lanes.parts_for(LEAST_RECORDS) == 2
    assert case.divide("a", "b") == ["A", "B by a lane"]
    case.lanes.use([])
    assert (case.lanes.parts_for(LEAST_RECORDS), case.divide("a", "b")) == (1, ["A", "B"])


def test_a_large_plan_is_noted_without_a_lane_too() -> None:
    lanes = Lanes()
    lanes.parts_for(LEAST_RECORDS - 1)
    assert not lanes.is_large
    lanes.parts_for(LEAST_RECORDS)
    assert lanes.is_large


def test_a_part_whose_lane_is_not_there_is_done_here() -> None:
    case = Case(2)
    case.network.join(1)
    assert case.divide("a", "b", "c") == ["A", "B by a lane", "C"]
    assert (case.here, case.lanes.helped) == (["a", "c"], 1)
    assert case.divide("a", "b") == ["A", "B by a lane"]
    assert case.lanes.helped == 2


def test_a_lane_that_is_silent_is_left_alone_for_a_while() -> None:
    case = Case(1)
    case.divide("a", "b")
    case.network.join(1)
    assert case.lanes.parts_for(LEAST_RECORDS) == 1
    assert case.divide("a", "b") == ["A", "B"]
    assert case.network.requests == 1
    case.clock.sleep(SILENT_SECONDS)
    assert case.lanes.parts_for(LEAST_RECORDS) == 2
    assert case.divide("a", "b") == ["A", "B by a lane"]


def test_what_a_lane_makes_too_late_is_looked_for_once() -> None:
    case = Case(1)
    assert not case.lanes.take_late()
    case.divide("a", "b")
    case.clock.sleep(LATE_SECONDS - 1)
    case.divide("a", "b")
    case.clock.sleep(1)
    assert not case.lanes.take_late(), "another one was given up"
    case.clock.sleep(LATE_SECONDS - 1)
    assert [case.lanes.take_late() for _ in range(2)] == [True, False]


def test_a_large_result_comes_in_pieces() -> None:
    case = Case(1)
    case.network.join(1)
    text = "x" * (PIECE_BYTES - 100)
    made = case.lanes.divide("shout", [Item(""), Item(text)], lambda _: b"", lambda found: found)
    assert made[1] == text.upper().encode()
    case.network.join(1, lambda _: b"0123456789" * PIECE_BYTES)
    made = case.lanes.divide("shout", [Item(""), Item("")], lambda _: b"", lambda found: found)
    assert made[1] == b"0123456789" * PIECE_BYTES
    assert case.network.requests > 10


def test_a_request_that_is_too_large_is_not_sent() -> None:
    case = Case(1)
    case.network.join(1)
    text = "x" * (PIECE_BYTES + 1)
    assert case.divide("a", text) == ["A", text.upper()]
    assert (case.network.requests, case.lanes.parts_for(LEAST_RECORDS)) == (0, 2)


@pytest.mark.parametrize("lost_after", [0, 1])
def test_after_a_lost_answer_the_part_is_done_here(lost_after: int) -> None:
    case = Case(1)
    case.network.join(1)
    if lost_after:
        case.network.join(1, lambda text: (setattr(case.network, "lost", 1), shout(text))[1])
    else:
        case.network.lost = 1
    assert case.divide("a", "b") == ["A", "B"]


def test_an_error_of_ours_in_a_lane_is_the_legs_own() -> None:
    case = Case(1)

    def fail(_: str) -> bytes:
        raise DataLossError("offset 3 has expired")

    case.network.join(1, fail)
    with pytest.raises(DataLossError, match="offset 3 has expired"):
        case.divide("a", "b")
    assert case.here == ["a"]


def test_an_unknown_error_in_a_lane_leaves_its_part_to_the_leg() -> None:
    case = Case(1)

    def fail(_: str) -> bytes:
        raise MemoryError("this process is full")

    notes = case.network.join(1, fail)
    assert case.divide("a", "b") == ["A", "B"]
    assert notes == ["a part that this process should do ended with MemoryError: this process is full; the leg does it"]


def test_a_lane_works_until_it_is_done_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.engine.lanes.WAIT_SECONDS", 0.001)
    case, go_on = Case(1), threading.Event()

    def wait(text: str) -> bytes:
        assert go_on.wait(10)
        return shout(text)

    case.network.join(1, wait)
    threading.Timer(0.05, go_on.set).start()
    assert case.divide("a", "b") == ["A", "B by a lane"]
    assert case.network.requests > 3


def test_a_process_that_does_not_know_a_part_says_so() -> None:
    case = Case(1)
    case.network.join(1)
    (lane,) = case.network.lanes.values()
    assert {
        lane.answer(payload) for payload in (b"no JSON", to_text(Ask("other")).encode(), to_text(Ask("p", "dance", "{}")).encode())
    } == {b"?"}


def test_a_failure_here_waits_for_the_lanes() -> None:
    case, done = Case(1), list[str]()
    case.network.join(1, lambda text: (done.append(text), b"")[1])

    def fail(_: Item) -> bytes:
        raise RetryableError("Kafka is away")

    with pytest.raises(RetryableError, match="Kafka is away"):
        case.lanes.divide("shout", [Item("a"), Item("b")], fail, lambda found: found)
    assert done == [to_text(Item("b"))]


def test_a_lane_that_ends_waits_for_its_part() -> None:
    done, begun, may_end = list[str](), threading.Event(), threading.Event()

    def work(text: str) -> bytes:
        begun.set()
        assert may_end.wait(60)
        done.append(text)
        return b""

    lane = Lane({"shout": work}, done.append)
    lane.answer(to_text(Ask("p", "shout", "{}")).encode())
    assert begun.wait(60)
    closing = threading.Thread(target=lane.close)
    closing.start()
    may_end.set()
    closing.join(60)
    assert done == ["{}"]
    assert lane.answer(to_text(Ask("p")).encode()) == b"?"


def test_a_lane_keeps_what_it_makes_for_each_leg() -> None:
    lane = Lane({"shout": shout}, print)
    for part, leg in (("p1", "sink"), ("p2", "sink:audit")):
        lane.answer(to_text(Ask(part, "shout", to_text(Item(part)), leg=leg)).encode())
    assert [lane.answer(to_text(Ask(part)).encode())[-2:] for part in ("p1", "p2")] == [b"P1", b"P2"]
    lane.close()


def test_what_a_process_holds_is_fetched_by_name() -> None:
    network = Network()
    holder, other = Lanes(network, "run", 2, own=1), Lanes(network, "run", 2, own=2)
    network.lanes[lane_subject("run", 1)] = Lane({}, print, holder.shelf)
    table = pa.table({"v": ["a", "b"]})
    holder.shelf.clear("x")
    holder.shelf.put("x", "rows", table)
    holder.shelf.put("x", "text", b"0" * 3 * PIECE_BYTES)
    assert holder.shelf.table("x", "rows") is table
    assert decode_parcel(other.fetch(1, "x", "rows")) == table
    assert other.fetch(1, "x", "text") == holder.fetch(1, "x", "text") == b"0" * 3 * PIECE_BYTES
    assert other.fetch(1, "x", "nothing") == b""
    assert decode_parcel(holder.fetch(1, "x", "rows")) == table


def test_what_was_held_is_gone_with_the_next_exchange() -> None:
    network = Network()
    holder, other = Lanes(network, "run", 2, own=1), Lanes(network, "run", 2, own=2)
    network.lanes[lane_subject("run", 1)] = Lane({}, print, holder.shelf)
    holder.shelf.clear("x")
    holder.shelf.put("x", "text", b"old")
    holder.shelf.clear("x")
    assert other.fetch(1, "x", "text") == b"old"
    holder.shelf.clear("y")
    holder.shelf.put("x", "text", b"late")
    for asking, lane in ((other, 1), (holder, 1), (holder, 2)):
        with pytest.raises(RetryableError, match=f"fetching what lane {lane} holds"):
            asking.fetch(lane, "x", "text")
