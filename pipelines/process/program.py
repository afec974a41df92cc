"""A program: the steps that raw records pass, from the parse of each source to the mapping. Pure: no Spark, no socket.

In: a pipeline file and the facts of its tables (`compile_program`), or the JSON that plans name by its version. Out: the rows and dead
letters of raw frames (`process.run`). The records of each source pass steps of their own first; then those of all pass the rest together,
in position order. The part before the exchange ends with the mapping, which reads each field as soon as no later step needs it: the
table's columns cross the exchange, not the fields. With a join it ends before the join: the steps behind that run after the exchange
(`joining`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.fields import common
from pipelines.errors import HaltError
from pipelines.lookups.spec import TableSpec
from pipelines.process.arrivals import SOURCE_COLUMN
from pipelines.process.steps import Columns, Context, Rank, State, Step, kinds
from pipelines.process.steps.dedup import NO_DEDUP, Dedup
from pipelines.process.steps.join import Join
from pipelines.process.steps.lookup import Lookup, SnapshotOpener
from pipelines.process.steps.mapping import MapToTable, MapToTables
from pipelines.process.steps.mapping.columns import TargetColumn
from pipelines.process.steps.parse import Parse
from pipelines.protocol.naming import DEDUP_STORE, LEFT_STORE, RIGHT_STORE, SIDE_DEDUP_STORES
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.positions import in_position_order
from pipelines.protocol.records import joined
from pipelines.protocol.topology import SINK
from pipelines.types.engine import Engine

ROWS_ASSUMED = 8
"""Rows of a record, for the size of plans: the rows of a plan are in memory together."""
RELEASE = 6
"""Format and meaning of programs.

Raised when a release would store programs differently, or produce other rows for the same records.
"""


@dataclass(frozen=True)
class Lane:
    """The steps that the records of one source pass by themselves: parse, and the transforms that the file gives to it alone.

    Raise ValueError unless parse is the first, and none but a dedup has state.
    """

    source: str
    topic: str
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if [step.rank for step in self.steps] != [Rank.FIRST, *[Rank.TRANSFORM] * (len(self.steps) - 1)]:
            raise ValueError(f"the steps {_names(self.steps)} of a source do not begin with the one {Parse.name}")
        if any(step.state is State.PER_BUCKET and not isinstance(step, Dedup) for step in self.steps) or len(self._dedups) > 1:
            raise ValueError(f"of the steps {_names(self.steps)} of one source one has state")

    def encode(self) -> dict[str, Any]:
        return {"source": self.source, "topic": self.topic, "steps": [step.encode() for step in self.steps]}

    @classmethod
    def decode(cls, record: Mapping[str, Any]) -> "Lane":
        """Return the lane that `encode` has written. Raise KeyError, TypeError or ValueError for anything else."""
        if record.keys() != {"source", "topic", "steps"}:
            raise ValueError(f"the parts of a source are {', '.join(map(repr, sorted(record)))}"[:200])
        return cls(str(record["source"]), str(record["topic"]), _steps_of(record["steps"]))

    @property
    def _dedups(self) -> list[Dedup]:
        return [step for step in self.steps if isinstance(step, Dedup)]

    @property
    def dedup(self) -> Dedup:
        """The step that drops copies among the records of the source alone, or NO_DEDUP: only before a join."""
        return next(iter(self._dedups), NO_DEDUP)

    @property
    def parse(self) -> Parse:
        step = self.steps[0]
        assert isinstance(step, Parse)
        return step


Path = list[tuple[Step, frozenset[str]]]
"""Steps, each with the columns that no later step reads."""


@dataclass(frozen=True)
class Program:
    """The steps of every source, then those of all records, for the tables of all sinks. `buckets`: their number after the exchange.

    `leg`: the sink leg from which the program is seen, which has `table` and all that follows from it; no part of what is stored.
    `dead_letters`: the tables of dead letters, for their own legs; None without one.

    Raise ValueError unless the mapping is the last step, and at most one has state. Of dedup the own part, which drops copies, runs after
    all others: what a transform behind it drops is marked until then, and needs an outcome of its own. A join is the first step, of two
    lanes, of which each may drop copies by arrival before it.
    """

    release: int
    buckets: int
    lanes: tuple[Lane, ...]
    shared: tuple[Step, ...]
    leg: str = SINK
    dead_letters: MapToTables | None = None

    def __post_init__(self) -> None:
        if not self.lanes or len({lane.source for lane in self.lanes}) < len(self.lanes):
            raise ValueError("a program needs lanes, one for each source")
        if [step.rank for step in self.shared] != [*[Rank.TRANSFORM] * (len(self.shared) - 1), Rank.LAST]:
            raise ValueError(f"the steps {_names(self.shared)} do not end with the one {MapToTables.name}")
        keyed = [index for index, step in enumerate(self.shared) if step.state is State.PER_BUCKET]
        if len(keyed) > 1:
            raise ValueError(f"step {self.shared[keyed[0]].name} must be the only one with state")
        several = [index for index, step in enumerate(self.shared) if step.makes_several]
        if any(step.makes_several for lane in self.lanes for step in lane.steps) or len(several) > 1:
            raise ValueError("one step makes several rows of a record at most, and it is among the steps of all records")
        if several and (self.join is not None or (keyed and keyed[0] > several[0])):
            raise ValueError(f"step {self.shared[several[0]].name} makes several rows of a record, so it must be behind the one with state")
        if self.join is not None:
            self._check_join(self.join, keyed)
            return
        if any(lane.dedup.key for lane in self.lanes):
            raise ValueError("a dedup of one source alone needs a join behind it")
        for step in self.shared[keyed[0] + 1 : -1] if keyed else ():
            if len({*step.outcomes} - {REJECTED}) > 1:
                raise ValueError(f"step {step.name} drops with several outcomes, so it must be before {self.shared[keyed[0]].name}")

    def _check_join(self, join: Join, keyed: Sequence[int]) -> None:
        if keyed != [0] or {*self.sources} != {join.left.source, join.right.source}:
            raise ValueError("a join is the first of the steps of all records, and joins the two sources of the program")
        for lane in self.lanes:
            if lane.dedup.time_field or lane.dedup.keeps:
                raise ValueError("a dedup before a join compares arrivals, and keeps no copies")
            for step in lane.steps[lane.steps.index(lane.dedup) + 1 :] if lane.dedup.key else ():
                if step.drops:
                    raise ValueError(f"step {step.name} drops records, so it must be before the dedup of its source")
        _ = self.lane_paths

    def encode(self) -> bytes:
        record = {"release": self.release, "buckets": self.buckets, "lanes": [lane.encode() for lane in self.lanes]}
        record["steps"] = [step.encode() for step in self.shared]
        if self.dead_letters is not None:
            record["dead_letters"] = self.dead_letters.encode()
        return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, record: Mapping[str, Any]) -> "Program":
        """Return the program that `encode` has written, its JSON read. Raise KeyError, TypeError or ValueError for anything else."""
        if record.keys() - {"dead_letters"} != {"release", "buckets", "lanes", "steps"}:
            raise ValueError(f"its parts are {', '.join(map(repr, sorted(record)))}"[:200])
        lanes = tuple(map(Lane.decode, record["lanes"]))
        dead_letters = MapToTables.decode(record["dead_letters"]) if "dead_letters" in record else None
        return cls(int(record["release"]), int(record["buckets"]), lanes, _steps_of(record["steps"]), dead_letters=dead_letters)

    @cached_property
    def version(self) -> str:
        """The digest of the list, by which plans and frames name it."""
        return hashlib.sha256(self.encode()).hexdigest()[:16]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps: those of each source, then those of all records."""
        return (*(step for lane in self.lanes for step in lane.steps), *self.shared)

    @property
    def tables(self) -> MapToTables:
        step = self.shared[-1]
        assert isinstance(step, MapToTables)
        return step

    def seen_from(self, leg: str) -> "Program":
        """Return the program as a sink leg sees it."""
        return self if self.leg == leg else replace(self, leg=leg)

    @property
    def mapping(self) -> MapToTable:
        """The mapping to the table of `leg`. Raise HaltError for a leg that it has none for: the sink was added since."""
        for table in (*self.tables.tables, *(self.dead_letters.tables if self.dead_letters else ())):
            if table.leg == self.leg:
                return table
        raise HaltError(f"configuration {self.version} has no table for {self.leg}; restore the sinks of the pipeline file")

    @cached_property
    def dedup(self) -> Dedup:
        """The step that drops copies, or NO_DEDUP."""
        return next((step for step in self.shared if isinstance(step, Dedup)), NO_DEDUP)

    @cached_property
    def join(self) -> Join | None:
        """The step that joins the two sources."""
        return next((step for step in self.shared if isinstance(step, Join)), None)

    @cached_property
    def side_dedups(self) -> Mapping[bool, Dedup]:
        """The steps that drop copies among the records of one side of the join, by whether it is the right one."""
        join = self.join
        if join is None:
            return {}
        return {lane.source == join.right.source: lane.dedup for lane in self.lanes if lane.dedup.key}

    @cached_property
    def makes_several(self) -> bool:
        """Whether a step makes several rows of a record."""
        return any(step.makes_several for step in self.shared)

    @property
    def is_keyed(self) -> bool:
        """Whether rows cross the exchange by a key, and not by their Kafka partition."""
        return bool(self.dedup.key) or self.join is not None

    @property
    def goes_by_arrival(self) -> bool:
        """Whether a window of a step with state is measured on the arrival."""
        return any(not step.time_field for step in (self.dedup, *self.side_dedups.values()) if step.key) or (
            self.join is not None and not self.join.is_timed
        )

    @property
    def stores(self) -> tuple[str, ...]:
        """The key stores that the steps with state keep, per bucket."""
        if self.join is not None:
            return (RIGHT_STORE, LEFT_STORE, *(SIDE_DEDUP_STORES[is_right] for is_right in self.side_dedups))
        return (DEDUP_STORE,) if self.dedup.key else ()

    @property
    def before_dedup(self) -> Columns:
        """The fields before the step that drops copies, with their types."""
        columns = self._after_lanes
        for step in self.shared[: self.shared.index(self.dedup)] if self.dedup.key else ():
            columns = step.columns_out(columns)
        return columns

    def fields_of(self, source: str) -> Columns:
        """Return the fields of the records of a source behind its own steps, with their types."""
        columns: Columns = {}
        for step in next(lane.steps for lane in self.lanes if lane.source == source):
            columns = step.columns_out(columns)
        return columns

    @cached_property
    def lookups(self) -> Mapping[str, TableSpec]:
        """What the look-ups of all steps read of their tables, by the table's name."""
        found: dict[str, TableSpec] = {}
        for step in self.steps:
            if isinstance(step, Lookup):
                found[step.table] = found[step.table].united(step.spec) if step.table in found else step.spec
        return found

    def with_snapshots(self, openers: Mapping[str, SnapshotOpener]) -> "Program":
        """Return the program for a plan, with the snapshots that its look-ups read; what is stored of it stays the same."""

        def given(steps: Sequence[Step]) -> tuple[Step, ...]:
            return tuple(replace(one, snapshot=openers.get(one.table)) if isinstance(one, Lookup) else one for one in steps)

        lanes = tuple(replace(lane, steps=given(lane.steps)) for lane in self.lanes)
        return replace(self, lanes=lanes, shared=given(self.shared))

    @property
    def archives(self) -> frozenset[str]:
        """The digests of the code that the steps run, besides ours."""
        return frozenset[str]().union(*(step.archives for step in self.steps))

    @property
    def database(self) -> str:
        return self.mapping.database

    @property
    def table(self) -> str:
        return self.mapping.table

    @property
    def full_table(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def position_columns(self) -> tuple[str, ...]:
        return self.mapping.position_columns

    @property
    def insert_columns(self) -> list[str]:
        return self.mapping.insert_columns

    @property
    def targets(self) -> list[TargetColumn]:
        return self.mapping.targets

    @property
    def widening(self) -> int:
        """How many times the size of their records rows may take; where a step makes several of a record, an assumption."""
        return self._widening_of_one * (ROWS_ASSUMED if self.makes_several else 1)

    @property
    def _widening_of_one(self) -> int:
        read = [column.field for table in self.tables.routed for column in table.columns]
        whole = [{column.name for column in lane.parse.columns if column.is_whole} for lane in self.lanes]
        if self.join is not None:
            # A joined record may hold whole records of both sides, under other names.
            return self.tables.widening + sum(map(len, whole)) + 1
        return self.tables.widening + max(sum(name in names for name in read) for names in whole)

    @cached_property
    def carried(self) -> tuple[str, ...]:
        """The columns, besides the table's, that the part after the exchange needs."""
        return tuple(name for step in self.steps for name in step.carried)

    @property
    def sources(self) -> list[str]:
        """The ids of the sources, in their order."""
        return [lane.source for lane in self.lanes]

    @cached_property
    def lane_paths(self) -> tuple[Path, ...]:
        """The path of each lane, in their order."""
        if (join := self.join) is not None:
            return tuple(_path({}, (*lane.steps, join.of_source(lane.source)), ())[0] for lane in self.lanes)
        return tuple(_path({}, lane.steps, self.shared)[0] for lane in self.lanes)

    @cached_property
    def shared_path(self) -> Path:
        """The steps of all records: before the exchange, or, with a join, those behind it."""
        if (join := self.join) is not None:
            return _path(join.columns_out({}), self.shared[1:], ())[0]
        return _path(self._after_lanes, self.shared, ())[0]

    @cached_property
    def _after_lanes(self) -> Columns:
        """The fields of the records of all sources, as far as the steps of all read them."""
        return common([_path({}, lane.steps, self.shared)[1] for lane in self.lanes])

    def context(self, engine: Engine) -> Context:
        """Return the context in which records pass the steps."""
        return Context(engine, self.carried)

    def by_lane(self, records: pa.Table) -> list[pa.Table]:
        """Return the records of each lane, as `records_for` returns them all. Raise HaltError for a source without a lane."""
        if len(self.lanes) == 1:
            return [records]
        found = [records.filter(pc.equal(records.column(SOURCE_COLUMN), source)) for source in self.sources]
        if sum(lane.num_rows for lane in found) < records.num_rows:
            unknown = sorted({*records.column(SOURCE_COLUMN).unique().to_pylist()} - {*self.sources})
            raise HaltError(f"configuration {self.version} has no source {unknown[0]!r}; restore the sources of the pipeline file")
        return found

    def united(self, lanes: Sequence[pa.Table]) -> pa.Table:
        """Return the records behind the lanes together, in position order, with the columns that all of them have."""
        if len(lanes) == 1:
            return lanes[0]
        first, *others = (lane.schema for lane in lanes)
        kept = [field.name for field in first if field.name.startswith("_tf_") or all(field in other for other in others)]
        return in_position_order(joined([lane.select([name for name in lane.column_names if name in kept]) for lane in lanes]))


def _names(steps: Sequence[Step]) -> str:
    return ", ".join(step.name for step in steps)


def _steps_of(records: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    return tuple(kinds()[step["step"]].decode(step) for step in records)


def _path(columns: Columns, steps: Sequence[Step], behind: Sequence[Step]) -> tuple[Path, Columns]:
    """Return (the path of steps over these columns, the columns after it), where the steps `behind` follow."""
    path: Path = []
    for index, step in enumerate(steps):
        columns, later = step.columns_out(columns), (*steps[index + 1 :], *behind)
        needed = frozenset[str]().union(*(one.fields_read() for one in later)) if later else frozenset(columns)
        path.append((step, frozenset(columns.keys() - needed)))
        columns = {name: kind for name, kind in columns.items() if name in needed}
    return path, columns
