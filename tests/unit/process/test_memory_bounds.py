"""What is worked on at once is cut by what it takes uncompressed, however well it compresses."""

from pathlib import Path

import pyarrow as pa
import pytest
from support.leg_case import NAMES, LegCase, event

import pipelines.process.leg
from pipelines.process.arrivals import FRAMES_PER_STEP, Arrived, steps
from pipelines.protocol.records import HEADER_BYTES, Message, cut_frames, decode_frame
from pipelines.protocol.stream_limits import MAX_CONTENT_BYTES
from pipelines.testing import FIRST_INSTANT


def frame(sequence: int, content_bytes: int) -> Arrived:
    return Arrived(Message("s", sequence, FIRST_INSTANT, b"", {HEADER_BYTES: str(content_bytes)}), 0)


def test_a_step_ends_before_too_much_but_takes_one_frame() -> None:
    found = [[one.message.sequence for one in step] for step in steps([frame(n, size) for n, size in enumerate([4, 5, 2, 20, 1])], 10)]
    assert found == [[0, 1], [2], [3], [4]]
    assert [len(step) for step in steps([frame(n, 0) for n in range(30)])] == [FRAMES_PER_STEP, FRAMES_PER_STEP, 6]


def test_a_frame_of_records_packed_250_to_1_is_bounded() -> None:
    table = pa.table({"value": [b"a" * 400_000] * 100})
    parts = [part for part, _ in cut_frames(table)]
    assert pa.concat_tables(parts).equals(table)
    assert max(part.nbytes for part in parts) <= MAX_CONTENT_BYTES
    assert len(parts) < 8


def test_raw_and_out_frames_tell_what_they_take(tmp_path: Path) -> None:
    case = LegCase(tmp_path, 2)
    case.send([event(number, 400_000) for number in range(60)])
    case.go_on()
    for role in ("raw", "out"):
        frames = [message for message in case.log.messages(NAMES.stream(role)) if message.rows]
        assert sum(message.rows for message in frames) == 60
        assert all(0 < message.content_bytes <= MAX_CONTENT_BYTES for message in frames)
        assert all(decode_frame(message.payload).nbytes <= message.content_bytes + 1000 for message in frames)


def test_a_plan_ends_before_its_frames_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines.process.leg, "LEAST_FRAMES", 3)
    monkeypatch.setattr(pipelines.process.leg, "PLAN_BYTES", 700_000)
    case = LegCase(tmp_path, 1)
    for number in range(20):
        case.send([event(number, 100_000)])
    done = []
    while not case.process.covers({"sequence": 21}):
        plan = case.process.propose({"sequence": 21})
        case.go_on_to(plan.to)
        done.append(plan.to - plan.start)
    # The first frame is the anchor, without rows.
    assert done[0] == 7
    assert max(done) <= 7
    assert sum(done) == 21
