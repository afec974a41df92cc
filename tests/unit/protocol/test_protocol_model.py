"""A model of the protocol: the real legs, chains and writers over an in-memory log, a list as Kafka and a set of tokens as ClickHouse.

Everything outside is a fake that stops before each of its calls, so a seed decides, call by call, who goes on: a leg, a second attempt of
a task, a runner that was taken for dead. A runner can be killed before every call, an acknowledgement lost, a request delayed; records
are produced, the configuration is edited, the server's clock steps back. Then a clean runner drains, the paused ones wake up, and the
account must be right: every record exactly once in the table or among the dead letters, and every count in the ledger true.

`TALLYFLOW_MODEL_HISTORIES` (default 100) says how many random ones are played, the same on every machine;
`TALLYFLOW_MODEL_SEED` plays one.
The actors are in tests/support/protocol_outside.py, their world in protocol_world.py, the account at the end in protocol_account.py.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from support.protocol_chaos import play
from support.protocol_outside import FIRST, NAMES, Actor, ModelLog, Topic
from support.protocol_stages import POISON, SECOND, VENOM, configuration
from support.protocol_strikes import History, at_every_publish, before_every_call, reported
from support.protocol_world import EXPIRE, MAX_CALLS, World

from pipelines.dead_letters.stream import purge_taken
from pipelines.errors import DataLossError, FencedError, HaltError, RefusedError
from pipelines.process.arrivals import SOURCE_COLUMN, records_of
from pipelines.process.drop_marks import parted
from pipelines.process.program import Program
from pipelines.process.stage_config import config_of
from pipelines.process.steps.mapping import MapToTables
from pipelines.protocol.bodies import REDRIVE_CHAIN, SINK_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import REDRIVE, Names
from pipelines.protocol.purge import Purge, Purged, read_purged
from pipelines.protocol.records import Message
from pipelines.protocol.redrive import DISCARD, ENTER
from pipelines.protocol.topology import LegId
from pipelines.sink.chunks import MAX_CHUNK_ROWS
from pipelines.sink.leg import SinkLeg

PURGE_LIMITS, FIRST_UNCONFIRMED = Purge._limits, Purge._first_unconfirmed
ROWS_FOR = MapToTables.rows_for
HISTORIES = int(os.environ.get("TALLYFLOW_MODEL_HISTORIES", "100"))
"""Each mistake below is found by one of the first hundred."""


def play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        reported(f"seed {seed} (TALLYFLOW_MODEL_SEED={seed})", partial(play, seed))


@pytest.mark.crash
def test_every_record_is_accounted_for_in_random_histories() -> None:
    seed = os.environ.get("TALLYFLOW_MODEL_SEED")
    play_all([int(seed)] if seed else range(HISTORIES))


def short_history(
    prepare: Callable[[World], None],
    window_us: int = 0,
    is_mended: bool = False,
    max_age: timedelta | None = None,
    command: str = "",
    max_calls: int = MAX_CALLS,
) -> tuple[int, int]:
    """One runner over two partitions, its legs one after the other, with what `prepare` arranged; then the end of every history.

    `is_mended`: before that the table is mended, which has refused some of the rows. `command`: that takes all letters when the runner has
    drained, and what `prepare` arranges is for the command.
    Returns how many calls the first runner, or the command, made, and how many of them published.
    """
    world = World(4)
    world.max_calls = max_calls
    world.window_us, world.config = window_us, configuration("bad", window_us)
    world.max_age, world.log.max_bytes = max_age, {}
    world.topic = Topic(world, {0: 0, 1: 7})
    world.begins_at_latest = world.expires = False
    world.table.refused = b"fine"
    for number, value in enumerate([b"good", b"bad", b"fine", POISON, b"odd", b"good", VENOM, b"fine", b"fine"]):
        world.topic.produce(number % 2, value, gap=number % 3)
    try:
        first = world.start()
        if command:
            world.drain(first)
        before = world.calls, world.log.publishes
        prepare(world)
        world.finish(world.command(command).actors) if command else world.drain(first)
        made = world.calls - before[0], world.log.publishes - before[1]
        if is_mended:
            world.table.mend()
        world.produce(2)
        world.settle()
    finally:
        for actor in world.actors():
            actor.kill()
    return made


@pytest.mark.crash
def test_a_runner_may_stop_before_every_call() -> None:
    """A window has calls of its own, and most are the same."""
    histories = []
    for window_us in (0, 10**12):
        calls, _ = short_history(lambda world: None, window_us)
        assert calls > 60
        histories.append(History(f"window {window_us}", calls, partial(short_history, window_us=window_us)))
    before_every_call(*histories)


@pytest.mark.crash
@pytest.mark.parametrize("command", [ENTER, DISCARD, "import", EXPIRE])
def test_a_letters_command_may_stop_before_every_call(command: str) -> None:
    histories = []
    for window_us in (0, 10**12):
        calls, publishes = short_history(lambda world: None, window_us, command=command)
        assert calls > publishes > 2
        histories.append(History(f"window {window_us}", calls, partial(short_history, window_us=window_us, command=command)))
    before_every_call(*histories)


@pytest.mark.crash
@pytest.mark.parametrize("command", [ENTER, DISCARD, "import", EXPIRE])
def test_every_publish_of_a_letters_command_may_fail(command: str) -> None:
    _, publishes = short_history(lambda world: None, command=command)
    at_every_publish(History(command, publishes, partial(short_history, command=command)))


@pytest.mark.crash
def test_a_purging_or_a_mended_runner_may_be_killed_anywhere() -> None:
    histories = {"purging": partial(short_history, max_age=timedelta(0)), "mended": partial(short_history, is_mended=True)}
    before_every_call(*(History(name, play(lambda world: None)[0], play) for name, play in histories.items()), kinds=["kill"])


@pytest.mark.crash
def test_a_table_may_be_mended_while_publishes_fail_or_are_late() -> None:
    _, publishes = short_history(lambda world: None)

    def history(fail: Callable[[World], None]) -> None:
        def prepare(world: World) -> None:
            world.is_mended_at_failure = True
            fail(world)

        short_history(prepare)

    at_every_publish(History("", publishes, history))


@pytest.mark.crash
def test_every_single_publish_may_fail() -> None:
    _, publishes = short_history(lambda world: None)
    assert publishes > 20
    at_every_publish(History("", publishes, short_history))


def seeds(first: int) -> list[int]:
    """The seed that finds a mistake as things are, and all others of `make test`: one of them finds it when histories have changed."""
    return [first, *(seed for seed in range(100) if seed != first)]


def cuts_without_asking(*_: object) -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


def test_a_sink_that_cuts_without_asking_the_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused may have stored partitions, and what was stored may be refused when it is sent again."""
    monkeypatch.setattr("pipelines.sink.attempts.stored_rows", cuts_without_asking)
    with pytest.raises(AssertionError, match="table"):
        for seed in seeds(10):
            play(seed)


def test_a_table_that_refuses_every_row_halts_the_sink_soon() -> None:
    world = World(4)
    world.config, world.max_age, world.log.max_bytes = configuration("bad", 0), None, {}
    world.topic, world.begins_at_latest, world.expires = Topic(world, {0: 0}), False, False
    world.chunk_rows = [MAX_CHUNK_ROWS]

    def refuse(*_: object) -> None:
        world.call()
        raise RefusedError("no reason that is known", None, is_known=False)

    world.table.insert = refuse
    for _ in range(12):
        world.topic.produce(0, b"good", 0)
    runner = world.start()
    world.drain(runner)
    (halt,) = [actor.error for actor in runner.actors if actor.error is not None]
    assert isinstance(halt, HaltError)
    assert "the table refuses row after row and takes none, with: no reason that is known" in str(halt)
    plan = read_chain(world.log, NAMES, SINK_CHAIN).plan
    assert plan is not None
    assert [row for row, _ in plan.body.pieces.refused] == [0, 1, 2]
    for actor in world.actors():
        actor.kill()


@contextmanager
def two_letters() -> Iterator[World]:
    """Two frames of dead letters, one letter in each, and nothing that waits."""
    world = World(4)
    world.config, world.max_age, world.log.max_bytes = configuration("bad", 0), None, {}
    world.topic, world.begins_at_latest, world.expires = Topic(world, {0: 0}), False, False
    try:
        for value in (b"bad", b"good", b"bad"):
            world.topic.produce(0, value, 0)
            world.drain(world.runners[0] if world.runners else world.start())
        yield world
        world.settle()
    finally:
        for actor in world.actors():
            actor.kill()


def planned(world: World) -> Actor:
    """A command that has planned to let the letters enter, and wrote no record."""
    (entering,) = world.command(ENTER).actors
    while last_of_redrive(world.log) != "plan":
        entering.step(1)
    return entering


def dead_letter_frames(world: World) -> list[int]:
    return [message.sequence for message in world.log.messages(NAMES.stream("dlq"))]


def test_an_overtaken_expiry_leaves_letters_of_an_open_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer command was killed, and somebody must finish its plan."""
    is_at_purge = Event()

    with two_letters() as world:

        def purge_then(*of: Any) -> None:
            is_at_purge.set()
            world.call()
            purge_taken(*of)

        monkeypatch.setattr("support.protocol_world.purge_taken", purge_then)
        # It expires no letter itself: all wait for the other command.
        (expiry,) = world.command(EXPIRE, share=0.0).actors
        while not is_at_purge.is_set():
            expiry.step(1)
        planned(world).kill()
        world.finish([expiry])
        assert dead_letter_frames(world) == [1, 2]


def test_a_command_whose_plan_another_one_has_finished_is_fenced() -> None:
    """The letters that it is about to read were purged behind that."""
    with two_letters() as world:
        entering = planned(world)
        world.finish(world.command(EXPIRE, share=0.0).actors)
        assert dead_letter_frames(world) == [2]
        world.finish([entering])
        assert isinstance(entering.error, FencedError)


def last_of_redrive(log: ModelLog) -> str:
    """The kind of the chain's last entry."""
    entries = [message for message in log.messages(NAMES.stream("ledger")) if message.subject == NAMES.chain(REDRIVE)]
    return REDRIVE_CHAIN.decode(entries[-1]).kind if entries else "none"


def forgets_plans_of_dead_letters_that_are_there(log: ModelLog, names: Names, max_age: timedelta) -> int:
    done = read_chain(log, names, REDRIVE_CHAIN).done
    return done.sequence if done else 0


def test_a_folding_that_forgets_present_letters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.protocol_world.redrive_entries_that_may_go", forgets_plans_of_dead_letters_that_are_there)
    made = World.__init__

    def with_expiry(self: World, seed: int) -> None:
        made(self, seed)
        self.expires = True

    monkeypatch.setattr(World, "__init__", with_expiry)
    with pytest.raises(AssertionError, match="a letter was taken twice"):
        for seed in seeds(549):
            play(seed)


def names_the_configuration_of_the_day(self: SinkLeg, chunk: object) -> Program:
    return config_of(self.connections, self.connections.run.stage_config)


def test_a_sink_planning_under_todays_configuration_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SinkLeg, "_config_of", names_the_configuration_of_the_day)
    with pytest.raises(AssertionError, match=r"table|their columns are not those"):
        for seed in seeds(20):
            play(seed)


def takes_the_last_message(self: Purge, stream: str, subject: str, below: int) -> None:
    last = self._log.last(stream, subject)
    if last is not None:
        self._log.purge(stream, subject, min(below, last.sequence) + 1)


def takes_what_the_sink_has_not_read(self: Purge, role: str, below: int) -> None:
    if role == "out":
        for subject in self._log.subjects(NAMES.stream(role), NAMES.subjects(role)):
            self._purge_subject(NAMES.stream(role), subject, 10**9)


def takes_records_of_rows_that_are_not_confirmed(self: Purge, to: int) -> tuple[int, int]:
    return to, to


def fill_raw(world: World) -> None:
    """More letters than raw has room for, all named by one plan: who finishes it must enter all of them, whatever a seed takes later."""
    for _ in range(30):
        world.topic.produce(0, b"bad", 0)
    world.drain(world.runners[0])
    world.plan_letters = 1000
    world.log.max_bytes = {NAMES.stream("raw"): 12_000}


def forgets_the_positions_without_rows(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    stays, dropped = parted(rows)
    return stays, dropped if stays.num_rows else dropped.slice(0, 0)


def test_a_dropped_first_without_a_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of a plan may have no row but records that dedup has accepted and a later step has dropped."""
    monkeypatch.setattr("pipelines.process.buckets.parted", forgets_the_positions_without_rows)
    with pytest.raises(AssertionError):
        play_all(range(100))


def takes_all_records_for_those_of_the_first_source(message: Message, arrival_us: int) -> pa.Table:
    records = records_of(message, arrival_us)
    return records.append_column(SOURCE_COLUMN, pa.repeat("orders", records.num_rows))


def test_a_record_that_is_given_to_another_source_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.process.run.sourced_records_of", takes_all_records_for_those_of_the_first_source)
    with pytest.raises(AssertionError):
        play_all(range(100))


def second_sink_behind(max_calls: int = MAX_CALLS) -> None:
    """The first of two sinks has confirmed all, and everything was purged that may be; the second, which refuses rows, comes behind."""
    world = World(4)
    world.max_calls, world.max_age, world.log.max_bytes = max_calls, timedelta(0), {}
    world.config, world.topic, world.begins_at_latest, world.expires = configuration("bad", 0), Topic(world, {0: 0, 1: 7}), False, False
    world.has_two_sinks, world.refuser, world.table.refused = True, world.second, None
    world.second.refused = b"fine"
    try:
        runner = world.start()
        for number in range(24):
            world.topic.produce(number % 2, [b"good", b"fine", b"odd"][number % 3], 0)
            if number == 5:
                world.drain(runner)
            elif number > 5:
                world.clock.advance(timedelta(seconds=1))
                for actor in (others := [actor for actor in runner.actors if actor.name != SECOND]):
                    actor.is_idle = False
                for actor in others:
                    world.finish([actor])
        written = world.log.state(NAMES.stream(SECOND.input_role))
        assert written is not None and (read_chain(world.log, NAMES, SECOND.chain).to or 0) < written.last_sequence - 5
        world.settle()
    finally:
        for actor in world.actors():
            actor.kill()


def test_a_sink_that_is_behind_finds_its_rows_and_their_records() -> None:
    second_sink_behind()


def keeps_raw_for_the_first_sink_only(self: Purge, sink: LegId) -> int | None:
    return FIRST_UNCONFIRMED(self, sink) if sink == FIRST else None


def is_told_how_far_the_first_stream_is_purged(log: ModelLog, names: Names, role: str) -> Purged:
    return read_purged(log, names, "out" if role.startswith("out") else role)


@pytest.mark.parametrize(
    ("place", "mistake"),
    [
        ("pipelines.protocol.purge.Purge._first_unconfirmed", keeps_raw_for_the_first_sink_only),
        ("pipelines.protocol.purge.read_purged", is_told_how_far_the_first_stream_is_purged),
    ],
    ids=["raw", "the stream of the second"],
)
def test_purge_floors_of_two_sinks_that_are_mixed_up_are_found(
    place: str, mistake: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, mistake)
    with pytest.raises((AssertionError, DataLossError)):
        second_sink_behind(max_calls=2400)


def writes_for_each_sink_what_the_first_takes(self: MapToTables, rows: pa.Table, leg: str) -> pa.Table:
    return ROWS_FOR(self, rows, FIRST)


def test_rows_that_are_written_for_another_sink_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MapToTables, "rows_for", writes_for_each_sink_what_the_first_takes)
    with pytest.raises(AssertionError):
        play_all(range(100))


def keeps_dead_letters_that_entered_again_behind_ingest(self: Purge, to: int) -> tuple[int, int]:
    limit, anywhere = PURGE_LIMITS(self, to)
    return limit, min(limit, anywhere)


def test_letters_that_entered_again_and_fill_raw_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    short_history(fill_raw, max_age=timedelta(days=1), command=ENTER)
    monkeypatch.setattr(Purge, "_limits", keeps_dead_letters_that_entered_again_behind_ingest)
    with pytest.raises(AssertionError, match="does not come to an end"):
        short_history(fill_raw, max_age=timedelta(days=1), command=ENTER, max_calls=6000)


@pytest.mark.parametrize(
    ("step", "mistake", "found_by"),
    [
        ("_purge_subject", takes_the_last_message, 0),
        ("_purge_frames", takes_what_the_sink_has_not_read, 4),
        ("_limits", takes_records_of_rows_that_are_not_confirmed, 4),
    ],
)
def test_a_purge_that_goes_too_far_is_found(
    step: str, mistake: Callable[..., object], found_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Purge, step, mistake)
    # A leg that waits for what is gone never ends; no sound history of these has taken half as many.
    with pytest.raises((AssertionError, DataLossError)):
        for seed in seeds(found_by):
            play(seed, max_calls=6000)
