"""The tables of a running pipeline: fetched first, again when due, kept when a fetch fails, and forgotten when no plan names them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.config import load
from pipelines.config.settings import with_settings
from pipelines.errors import HaltError, RetryableError
from pipelines.lookups.storage import Snapshots
from pipelines.preview.declared import declared_program
from pipelines.process.snapshot_choice import SnapshotChoice
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.lookup_offers import LookupOffer, last_offer, offer
from pipelines.protocol.naming import Names
from pipelines.runner.lookup_tables import LookupTables
from pipelines.testing import ManualClock, MemoryLog

FILE = """
version: v3
pipeline_id: orders
sources:
  - type: kafka
    topic: orders
    connection_params: {brokers: ["kafka:9092"]}
    schema_fields: [{name: id, type: int}, {name: code, type: string}]
tables:
  countries: {type: csv, uri: countries.csv, key: code, refresh: 10s, max_age: 60s}
transforms:
  - {type: lookup, config: {table: countries, key: code, fields: [{name: name}]}}
sink:
  type: clickhouse
  connection_params: {host: clickhouse, port: 8123}
  table: orders
  mapping: [{name: id, column_name: id, column_type: Int64}, {name: name, column_name: name, column_type: Nullable(String)}]
"""
NAMES = Names("orders")


@dataclass
class World:
    """A pipeline whose ledger is in memory, and whose table is a file."""

    directory: Path
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.directory / "pipeline.yaml").write_text(FILE)
        self.config = load(self.directory / "pipeline.yaml", {})
        self.program = declared_program(self.config)
        self.log: Any = MemoryLog(self.clock)
        self.lost = Event()

    def save(self, *names: str) -> None:
        rows = "".join(f"{number},{name}\n" for number, name in enumerate(names))
        (self.directory / "countries.csv").write_text("code,name\n" + rows)

    def tables(self) -> LookupTables:
        return LookupTables(self.config, self.log, str(self.directory / "state"), self.told.append, self.clock.seconds, unnamed_seconds=30)

    def started(self) -> LookupTables:
        tables = self.tables()
        tables.fetch_first(self.program.lookups)
        leg: Any = SimpleNamespace(failure=None, lease=SimpleNamespace(lost=self.lost))
        tables.offer_first(leg)
        return tables

    @property
    def snapshots(self) -> Snapshots:
        return Snapshots(str(self.directory / "state"))

    def offered(self) -> str:
        found = last_offer(self.log, NAMES, "countries")
        assert found is not None
        return found.offer.digest

    def names(self, digest: str) -> Sequence[Any]:
        return [value.as_py() for value in self.snapshots.open("countries", digest).rows.column("value.name")]

    def choice(self) -> SnapshotChoice:
        connections: Any = SimpleNamespace(log=self.log, names=NAMES, snapshots=self.snapshots, config=self.config)
        return SnapshotChoice(connections, self.clock.seconds)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.save("Germany")
    return made


def test_a_start_offers_a_durable_snapshot_of_the_table(world: World) -> None:
    world.started()
    assert world.names(world.offered()) == ["Germany"]
    assert world.choice().newest(world.program) == {"countries": world.offered()}


def test_a_first_start_without_the_table_fails_with_the_reason(world: World) -> None:
    (world.directory / "countries.csv").unlink()
    with pytest.raises(HaltError, match=r"fetching table countries: there is no file"):
        world.started()
    assert last_offer(world.log, NAMES, "countries") is None
    with pytest.raises(RetryableError, match="there is no snapshot of it yet"):
        world.choice().newest(world.program)


def test_a_later_start_without_the_table_keeps_the_snapshot(world: World) -> None:
    world.started()
    before = world.offered()
    (world.directory / "countries.csv").unlink()
    world.clock.sleep(25)
    tables = world.started()
    assert world.offered() == before
    assert tables.facts()["countries"]["age_seconds"] == 25
    assert "there is no file" in tables.facts()["countries"]["failure"]
    assert "the snapshot of 2026-01-01 00:00:00 UTC stays in use" in world.told[0]


def test_a_snapshot_of_other_columns_is_none_for_this_program(world: World) -> None:
    world.started()
    stored = world.snapshots.digests("countries")
    offer(world.log, NAMES, "countries", LookupOffer(stored[0], "ab", 1, 1), 1)
    (world.directory / "countries.csv").unlink()
    with pytest.raises(HaltError, match="there is no file"):
        world.started()
    with pytest.raises(RetryableError, match="there is no snapshot of it yet"):
        world.choice().newest(world.program)


def test_a_table_is_fetched_again_when_it_is_due(world: World) -> None:
    tables = world.started()
    first = world.offered()
    world.save("Germany", "France")
    world.clock.sleep(9)
    tables.look()
    assert world.offered() == first
    world.clock.sleep(1)
    tables.look()
    assert sorted(world.names(world.offered())) == ["France", "Germany"]
    assert tables.facts()["countries"] == {
        "snapshot": world.offered(),
        "rows": 2,
        "bytes": (world.directory / f"state/lookups/countries/{world.offered()}.arrow").stat().st_size,
        "age_seconds": 0,
        "failure": "",
    }


def test_a_shorter_refresh_counts_from_the_last_fetch(world: World) -> None:
    tables = world.started()
    first = world.offered()
    world.save("France")
    world.clock.sleep(4)
    tables.take_settings(with_settings(world.config, '{"tables.countries.refresh":"5s"}'))
    tables.look()
    assert world.offered() == first
    world.clock.sleep(1)
    tables.look()
    assert world.names(world.offered()) == ["France"]


def test_a_fetch_that_fails_keeps_the_snapshot_and_says_its_age(world: World) -> None:
    tables = world.started()
    before = world.offered()
    (world.directory / "countries.csv").write_text("code,name\n1,a\n1,b\n")
    for _ in range(3):
        world.clock.sleep(10)
        tables.look()
    facts = tables.facts()["countries"]
    assert (world.offered(), facts["age_seconds"]) == (before, 30)
    assert facts["failure"] == "fetching table countries: 1 row repeats a key: ('1')"
    assert len(world.told) == 1
    world.save("France")
    world.clock.sleep(10)
    tables.look()
    assert (world.names(world.offered()), tables.facts()["countries"]["failure"]) == (["France"], "")
    assert world.told[-1] == "table countries is fetched again"


def test_a_snapshot_older_than_max_age_halts_the_next_plan(world: World) -> None:
    world.started()
    world.clock.sleep(60)
    assert world.choice().newest(world.program)
    world.clock.sleep(1)
    with pytest.raises(HaltError, match="its newest snapshot is 1m1s old, `max_age` is 1m"):
        world.choice().newest(world.program)


def test_an_unchanged_table_is_as_new_as_its_last_fetch(world: World) -> None:
    tables = world.started()
    for _ in range(12):
        world.clock.sleep(10)
        tables.look()
    assert world.choice().newest(world.program)
    assert len(world.snapshots.digests("countries")) == 1


def test_a_runner_that_was_overtaken_offers_nothing(world: World) -> None:
    tables = world.started()
    first = world.offered()
    world.save("France")
    world.clock.sleep(10)
    world.lost.set()
    tables.look()
    assert world.offered() == first


def plan(world: World, chain: Any, to: int) -> None:
    before = chain.state.to or 0
    lookups = world.choice().newest(world.program)
    chain.plan(ProcessPlan(start=before, to=to, config="v", lookups=lookups))
    chain.done(ProcessDone(start=before, to=to, config="v", lookups=lookups))


def test_a_snapshot_goes_when_no_entry_of_the_chain_names_it(world: World) -> None:
    tables = world.started()
    chain: Any = Chain(world.log, NAMES, PROCESS_CHAIN, 1)
    chain.open()
    named, unused = world.offered(), ""
    plan(world, chain, 5)
    for number in range(3):
        world.save(f"name {number}")
        world.clock.sleep(10)
        tables.look()
        unused = unused or world.offered()
    plan(world, chain, 9)
    tables.sweep()
    world.clock.sleep(29)
    tables.sweep()
    assert {named, unused, world.offered()} < {*world.snapshots.digests("countries")}
    world.clock.sleep(1)
    tables.sweep()
    assert {*world.snapshots.digests("countries")} == {named, world.offered()}
    # The retention folds the chain: the first range is gone, and so are its raw frames.
    world.log.purge(NAMES.stream("ledger"), NAMES.chain("process"), chain.state.sequence - 1)
    tables.sweep()
    world.clock.sleep(30)
    tables.sweep()
    assert world.snapshots.digests("countries") == [world.offered()]


def test_the_snapshot_of_an_open_plan_stays(world: World) -> None:
    tables = world.started()
    chain: Any = Chain(world.log, NAMES, PROCESS_CHAIN, 1)
    chain.open()
    named = world.offered()
    chain.plan(ProcessPlan(start=0, to=5, config="v", lookups={"countries": named}))
    world.save("France")
    world.clock.advance(timedelta(seconds=10))
    tables.look()
    for _ in range(3):
        tables.sweep()
        world.clock.sleep(100)
    assert {*world.snapshots.digests("countries")} == {named, world.offered()}
