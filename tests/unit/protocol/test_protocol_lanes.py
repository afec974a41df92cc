"""Lanes in the protocol's model: whoever does a part, and whenever, the account stays right; and mistakes of lanes that it finds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.protocol_chaos import play
from support.protocol_outside import ModelLanes
from support.protocol_strikes import reported
from support.protocol_world import World

from pipelines.engine.connections import Connections
from pipelines.ingest.ranges import INGEST_PART, IngestItem, IngestReport, PartitionReport, parts_of
from pipelines.process.arrivals import Arrived
from pipelines.process.exchange import STAGES_PART, StagesItem, stages_part, stretches_of
from pipelines.protocol.bodies import RawTail
from pipelines.protocol.codec import from_text, to_text
from pipelines.runner.share import LANE_WORKS

HISTORIES = 60


def histories(count: int = HISTORIES) -> None:
    """Plays histories in which every plan may be cut."""
    for seed in range(count):
        reported(f"seed {seed}", partial(play, seed))


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    made = World.__init__

    def with_lanes(self: World, seed: int) -> None:
        made(self, seed)
        self.has_lanes = True

    monkeypatch.setattr(World, "__init__", with_lanes)


def test_parts_are_done_once_by_lanes_that_may_come_late() -> None:
    histories()


def reports_what_it_has_not_written(connections: Connections, text: str) -> bytes:
    item = from_text(IngestItem, text)
    tails = {p: RawTail(item.tails[p].sequence if p in item.tails else 1, end - 1) for p, (_, end) in item.ranges.items()}
    return to_text(IngestReport({p: PartitionReport(1, tail, 1, 0, 1) for p, tail in tails.items()})).encode()


def dates_frames_by_the_servers_clock(connections: Connections, text: str) -> bytes:
    item = from_text(StagesItem, text)
    return stages_part(connections, to_text(replace(item, arrivals=tuple(one + 5_000_000 for one in item.arrivals))))


@pytest.mark.parametrize(
    ("work", "mistake", "reported"),
    [
        (INGEST_PART, reports_what_it_has_not_written, "which was confirmed|=="),
        (STAGES_PART, dates_frames_by_the_servers_clock, "arrivals"),
    ],
)
def test_a_lane_that_is_wrong_is_found(
    work: str, mistake: Callable[[Connections, str], bytes], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LANE_WORKS, work, mistake)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=reported):
        histories()


def without_the_first(frames: Sequence[Arrived], most: int) -> list[Sequence[Arrived]]:
    return stretches_of(frames, most)[1:] or [frames]


def without_the_end(item: IngestItem, most: int) -> list[IngestItem]:
    return parts_of(item, most)[: max(1, most - 1)]


@pytest.mark.parametrize(
    ("place", "mistake"),
    [("pipelines.process.exchange.stretches_of", without_the_first), ("pipelines.ingest.ranges.parts_of", without_the_end)],
)
def test_a_plan_that_is_cut_wrongly_is_found(place: str, mistake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, mistake)
    with pytest.raises(AssertionError):
        histories()


def test_rows_that_a_lost_lane_has_held_may_not_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelLanes, "found", lambda _, content: content or b"")
    with pytest.raises(AssertionError):
        histories()
