"""A plan on several processes: the same rows, dead letters, counts and key store as on one."""

import random
from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from support.leg_case import NAMES, LegCase
from support.programs import first_of
from support.shared_case import BUCKETS, Shared, outcome

from pipelines.engine.lanes import LATE_SECONDS, LEAST_RECORDS, Lanes, lane_subject
from pipelines.functions.code import pack
from pipelines.functions.spec import versions
from pipelines.process.arrivals import Arrived
from pipelines.process.exchange import BUCKETS_PART, STAGES_PART, stretches_of
from pipelines.process.steps import Step
from pipelines.process.steps.python import Python
from pipelines.protocol.outcomes import residue
from pipelines.protocol.records import decode_frame

KEYLESS: Sequence[Step] = ()
ARRIVAL = (first_of("id", 3_600_000_000, keeps=True),)
EVENT_TIME = (first_of("id", 20_000_000, time_field="at", time_unit="s", lateness_us=5_000_000, max_ahead_us=10**15),)


def records(seed: int, count: int) -> list[bytes]:
    """Records over 40 keys whose times jump about by up to 20 s; some are no JSON, some have no key."""
    some = random.Random(seed)
    made = []
    for number in range(count):
        at = 1_780_000_000 + seed * 10 + number // 4 + some.randrange(-20, 20)
        key: int | None = None if some.random() < 0.02 else some.randrange(40)
        text = b'{"id": %s, "v": "%d", "at": %d}' % (b"null" if key is None else b"%d" % key, number, at)
        made.append(b"{" if some.random() < 0.05 else text)
    return made


@pytest.mark.parametrize("between", [KEYLESS, ARRIVAL, EVENT_TIME], ids=["keyless", "by arrival", "by event time"])
def test_several_processes_write_what_one_writes(between: Sequence[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, shared = LegCase(tmp_path / "alone", BUCKETS, between=between), Shared(tmp_path / "shared", between, monkeypatch)
    for case in (alone, shared):
        for plan in range(4):
            for portion in range(5):
                case.send(records(10 * plan + portion, 60))
            case.go_on()
    assert outcome(shared) == outcome(alone)
    found = outcome(shared)
    # A plan has two parts for lanes in the stages, and two in the buckets, if it has so many buckets.
    assert shared.process.status.lane_parts == (4 * 2 if between is KEYLESS else 4 * 4)
    status = shared.process.status
    assert 0 < status.seconds_large == status.seconds_busy, "each plan was large enough to be cut"
    assert len(found["out"]) == 1 if between is KEYLESS else len(found["out"]) > 10
    if between is EVENT_TIME:
        assert "late" in {code for rows in found["dlq"].values() for _, _, code in rows}


def test_however_a_plan_is_cut_it_writes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, shared = LegCase(tmp_path / "alone", BUCKETS, between=ARRIVAL), Shared(tmp_path / "shared", ARRIVAL, monkeypatch)
    paces, cuts = random.Random(1), set()
    for plan in range(6):
        for work in (STAGES_PART, BUCKETS_PART):
            shared.lanes.balance.note(work, {process: (paces.randrange(1, 100), 1.0) for process in range(3)})
            cuts.add(shared.lanes.weights(work, 3))
        for case in (alone, shared):
            for portion in range(5):
                case.send(records(10 * plan + portion, 60))
            case.go_on()
    assert len(cuts) > 6
    assert outcome(shared) == outcome(alone)


SEVERAL = """
def f(record):
    number = int(record["v"])
    return [{"v": f"{number} {row}"} for row in range(number % 4)]
"""


@pytest.mark.parametrize("dedup", [KEYLESS, ARRIVAL, EVENT_TIME], ids=["keyless", "by arrival", "by event time"])
def test_rows_of_a_record_stay_together_in_lanes(dedup: Sequence[Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(SEVERAL)
    outputs = (("v", "string"),)
    function = Python("own:f", pack(tmp_path, "own", ()), "row", outputs, outputs, 20_000, *versions(), rows="many")
    between = (*dedup, function)
    alone, shared = LegCase(tmp_path / "alone", BUCKETS, between=between), Shared(tmp_path / "shared", between, monkeypatch)
    for case in (alone, shared):
        for portion in range(5):
            case.send(records(portion, 60))
        case.go_on()
    assert outcome(shared) == outcome(alone)
    found = outcome(shared)
    assert found["totals"]["rows_made"] > 0
    assert residue("process", found["totals"]["rows_in"], found["totals"]) == 0
    for message in shared.log.messages(NAMES.stream("out")):
        rows = decode_frame(message.payload).to_pylist()
        for (sequence, ordinal), made in groupby(rows, key=lambda row: (row["_tf_sequence"], row["_tf_ordinal"])):
            texts = [(row["_tf_emit"], row["v"].partition(" ")) for row in made]
            number = int(texts[0][1][0])
            assert [(emit, text[2]) for emit, text in texts] == [(row, str(row)) for row in range(number % 4)], (sequence, ordinal)


def test_a_plan_whose_rows_went_with_a_lane_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, shared = LegCase(tmp_path / "alone", BUCKETS, between=ARRIVAL), Shared(tmp_path / "shared", ARRIVAL, monkeypatch)
    for case in (alone, shared):
        for portion in range(5):
            case.send(records(portion, 60))
    fetch, gone = Lanes.fetch, lane_subject("run", 2)

    def lost_on_the_way(self: Lanes, lane: int, exchange: str, name: str) -> bytes:
        if lane == 2:
            shared.network.lost.add(gone)
        return fetch(self, lane, exchange, name)

    monkeypatch.setattr(Lanes, "fetch", lost_on_the_way)
    shared.process.stop.clear()
    alone.go_on()
    shared.go_on()
    assert outcome(shared) == outcome(alone)
    assert shared.process.status.retries >= 1
    assert shared.process.status.seconds_large == 0, "it waited"
    assert shared.files() == shared.listed(), "what the failed attempt has left on the disk is gone"


def test_a_segment_that_a_lane_wrote_too_late_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(tmp_path, ARRIVAL, monkeypatch)

    def go_on(number: int) -> None:
        for portion in range(5):
            shared.send(records(5 * number + portion, 60))
        shared.go_on()

    # The lane takes its part of the buckets, and does it; its answer is lost.
    shared.network.mute = lane_subject("run", 2)
    go_on(0)
    assert len(shared.files() - shared.listed()) > 0
    shared.network.mute = ""
    go_on(1)
    assert len(shared.files() - shared.listed()) > 0, "it may still be at it"
    shared.clock.advance(timedelta(seconds=LATE_SECONDS))
    go_on(2)
    assert shared.files() == shared.listed()


def test_a_small_plan_asks_no_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shared(tmp_path, ARRIVAL, monkeypatch)
    monkeypatch.setattr("pipelines.engine.lanes.LEAST_RECORDS", LEAST_RECORDS)
    case.send(records(1, 100))
    case.send(records(2, 100))
    case.go_on()
    assert case.network.asked.total() == 0
    assert (case.process.status.batches, case.process.status.seconds_large) == (1, 0)


def test_stretches_have_rows_by_weight() -> None:
    class Frame:
        def __init__(self, rows: int) -> None:
            self.rows = rows

    def cut(rows: Sequence[int], weights: Sequence[float]) -> list[list[int]]:
        frames: Any = [Arrived(Frame(count), 0) for count in rows]  # type: ignore[arg-type]
        return [[frame.message.rows for frame in stretch] for stretch in stretches_of(frames, weights)]

    assert cut([5, 5, 5, 5], [2, 1, 1]) == [[5, 5], [5], [5]]
    assert cut([90, 5, 5], [2, 1]) == [[90], [5, 5]]
    assert cut([5, 5, 90], [2, 1]) == [[5, 5, 90]]
    assert cut([5, 5], [2, 1, 1, 1, 1, 1, 1, 1]) == [[5], [5]]
    assert cut([0, 0, 7], [2, 1]) == [[0, 0, 7]]
    assert cut([5, 5, 5, 5], [1, 2, 1]) == [[5], [5, 5], [5]]
