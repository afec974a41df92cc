"""Lanes that insert beside the sink leg into a real table, from threads with connections of their own."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from support.pipeline_case import PipelineCase
from support.refused_case import BAD, make_strict, refused

from pipelines.engine.connections import Connections
from pipelines.engine.lanes import Lane, Lanes, lane_subject
from pipelines.errors import RetryableError
from pipelines.sink.leg import SinkLeg
from pipelines.sink.parts import SINK_PART, insert_part

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]
ROWS = 6000


class Threads:
    """Carries requests to two lanes; `lost`: the subjects whose lanes do their part and do not answer."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.lost: set[str] = set()
        self._opened: list[Connections] = []

    def open(self, connections: Connections) -> None:
        for number in (1, 2):
            own = Connections(connections.run, keep_partitions=True, log=connections.log)
            self._opened.append(own)
            self.lanes[lane_subject("run", number)] = Lane({SINK_PART: partial(insert_part, own)}, print)

    def request(self, subject: str, payload: bytes, seconds: float) -> bytes:
        answer = self.lanes[subject].answer(payload)
        if subject in self.lost:
            raise RetryableError("no answer")
        return answer

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
        for connections in self._opened:
            connections.close()


@pytest.fixture
def threads(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    """The sink of `case` has two lanes, and gives them parts of each plan of 500 rows."""
    monkeypatch.setattr("pipelines.engine.lanes.LEAST_RECORDS", 500)
    threads = Threads()

    class Beside(SinkLeg):
        def __init__(self, connections: Connections, *rest: Any) -> None:
            super().__init__(connections, *rest)
            threads.open(connections)
            connections.lanes = Lanes(threads, "run", 2)

    case.leg_classes["sink"] = Beside
    yield threads
    threads.close()


def deliver(case: PipelineCase) -> int:
    """Run the legs one after the other; return the parts of the sink's plans that lanes have done."""
    case.run_in_turn("ingest", "process")
    return case.warm_run(legs=("sink",)).legs["sink"].status.lane_parts


def fill(case: PipelineCase) -> None:
    # Names that do not compress: 6,000 rows are many frames.
    case.send_events(ROWS, bad_every=100, name_bytes=1000)


def test_a_plan_is_several_inserts_and_every_row_is_there_once(case: PipelineCase, threads: Threads) -> None:
    case.create_topic()
    fill(case)
    assert deliver(case) >= 2
    case.check()


def test_lanes_insert_into_the_table_of_the_sink_that_asks(case: PipelineCase, threads: Threads) -> None:
    def into_two(document: dict[str, Any]) -> None:
        sink = document.pop("sink")
        document["sinks"] = [{**sink, "id": "all"}, {**sink, "id": "even", "when": "id % 2 = 0", "table": f"{case.table}_even"}]

    case.write_file(into_two)
    case.create_topic()
    fill(case)
    case.run_in_turn("ingest", "process")
    for leg in ("sink:all", "sink:even"):
        (view,) = case.warm_run(legs=(leg,)).legs.values()
        assert view.status.lane_parts >= 2
    rows = case.client().query(f"SELECT count(), uniqExact(id), sum(id % 2) FROM {case.table}_even").result_rows
    assert rows == [(ROWS // 2, ROWS // 2, 0)]
    case.check()


def test_rows_refused_in_pieces_of_lanes_are_dead_letters(case: PipelineCase, threads: Threads) -> None:
    make_strict(case)
    case.send_events(ROWS, name_bytes=1000)
    assert deliver(case) >= 2
    assert set(BAD) < set(refused(case))
    assert len(refused(case)) == ROWS // 100
    case.check()


def test_a_lane_that_inserts_and_does_not_answer_doubles_nothing(case: PipelineCase, threads: Threads) -> None:
    threads.lost = {lane_subject("run", 1), lane_subject("run", 2)}
    case.create_topic()
    fill(case)
    assert deliver(case) == 0
    # Behind the parts in work.
    threads.close()
    case.check()
    positions = Counter(position for position, *_ in case.rows())
    assert max(positions.values()) == 1
