"""Lanes in the protocol's model: whoever does a part, and whenever, the account stays right; and mistakes of lanes that it finds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from support.protocol_chaos import play
from support.protocol_outside import LANE, NAMES, ModelLanes, Topic
from support.protocol_stages import configuration
from support.protocol_strikes import reported
from support.protocol_world import World

from pipelines.engine.connections import Connections
from pipelines.ingest.ranges import INGEST_PART, IngestItem, IngestReport, PartitionReport, parts_of
from pipelines.process.arrivals import Arrived
from pipelines.process.exchange import STAGES_PART, StagesItem, stages_part, stretches_of
from pipelines.protocol.bodies import RawTail
from pipelines.protocol.codec import from_text, to_text
from pipelines.runner.share import LANE_WORKS
from pipelines.sink.chunks import Chunk
from pipelines.sink.parts import SINK_PART, InsertItem, InsertReport, Parts, _send

pytestmark = pytest.mark.crash

HISTORIES = 60
ITEM_OF = Parts._item


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


def says_that_it_has_inserted(connections: Connections, text: str) -> bytes:
    return to_text(InsertReport(from_text(InsertItem, text).number, is_stored=True)).encode()


def inserts_whenever_it_likes(connections: Connections, text: str) -> bytes:
    item, names = from_text(InsertItem, text), connections.names
    messages = tuple(connections.log.fetch(names.stream("out"), names.subjects("out"), item.start, item.to))
    if messages:
        _send(connections, item, Chunk(messages), lambda: None)
    return to_text(InsertReport(item.number, is_stored=True)).encode()


class AllLate:
    """Chance by which every plan has three parts, and every lane is given up before it begins."""

    def choice(self, options: Sequence[int]) -> int:
        return options[-1]

    def random(self) -> float:
        return 1.0


def lanes_that_wake_up_when_the_table_is_mended() -> None:
    """The legs do all parts themselves, with what the table refuses as dead letters; then it would take these rows, and lanes go on."""
    world: Any = World(4)
    world.config, world.window_us, world.max_age, world.log.max_bytes = configuration("bad", 0), 0, None, {}
    world.topic, world.has_two_sources = Topic(world, {0: 0, 1: 7}), False
    world.begins_at_latest = world.expires = False
    world.table.refused, world.chunk_rows, world.lanes = b"fine", [1000], AllLate()
    for number, value in enumerate([b"good", b"fine", b"good", b"good", b"odd", b"fine", b"good", b"fine", b"good"]):
        world.topic.produce(number % 2, value, gap=0)
    runner, before = world.start(), -1
    try:
        while before != world.log.publishes:
            before = world.log.publishes
            for actor in (legs := [actor for actor in runner.actors if actor.name != LANE]):
                actor.is_idle = False
            world.finish(legs)
        assert len(world.log.messages(NAMES.stream("dlq"))) > 0
        world.table.mend()
        world.finish([actor for actor in runner.actors if actor.name == LANE])
        world.settle()
    finally:
        for actor in world.actors():
            actor.kill()


def test_a_lane_inserts_nothing_for_a_plan_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes_that_wake_up_when_the_table_is_mended()
    monkeypatch.setitem(LANE_WORKS, SINK_PART, inserts_whenever_it_likes)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="table"):
        lanes_that_wake_up_when_the_table_is_mended()


def has_one_token(self: Parts, number: int, entry: int) -> InsertItem:
    return replace(ITEM_OF(self, number, entry), token="the chunk's")


def test_pieces_under_one_token_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parts, "_item", has_one_token)
    with pytest.raises(AssertionError, match="table"):
        histories()


@pytest.mark.parametrize(
    ("work", "mistake", "reported"),
    [
        (SINK_PART, says_that_it_has_inserted, "table"),
        (INGEST_PART, reports_what_it_has_not_written, "which was confirmed|==|a foreign message stands"),
        (STAGES_PART, dates_frames_by_the_servers_clock, "arrivals"),
    ],
)
def test_a_lane_that_is_wrong_is_found(
    work: str, mistake: Callable[[Connections, str], bytes], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LANE_WORKS, work, mistake)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=reported):
        histories()


def without_the_first(frames: Sequence[Arrived], weights: Sequence[float]) -> list[Sequence[Arrived]]:
    return stretches_of(frames, weights)[1:] or [frames]


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
