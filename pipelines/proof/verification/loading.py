"""The records and dead letters of a span, read into the reference."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.lookups.storage import Snapshots
from pipelines.process.arrivals import Arrived
from pipelines.process.program import Program
from pipelines.process.stage_config import with_snapshots
from pipelines.process.watermarks import PARTITIONS_OF_A_SOURCE
from pipelines.progress import Progress
from pipelines.proof.readers.frames import read_batches
from pipelines.proof.readers.streams import positions_of, read_dead_letters, read_frames
from pipelines.proof.verification.record_columns import parts_read
from pipelines.proof.verification.reference import Arrivals, Marked, Reference
from pipelines.proof.verification.span import History, Span
from pipelines.protocol.naming import Names, is_redriven, is_tick, source_of_subject
from pipelines.protocol.positions import RawPositions, first_position, last_position
from pipelines.protocol.records import HEADER_LAST, HEADER_PARTITION
from pipelines.protocol.ticks import idle_of
from pipelines.protocol.topology import LegId
from pipelines.types.duckdb import open_spilling_engine

OTHER_SINK = "sink of others"
"""The stage of dead letters of the sinks whose tables are not compared."""
ENGINE_MEMORY = "640MiB"
"""Memory of DuckDB alone; the rest spills to disk."""


@contextmanager
def reference_engine(directory: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an engine. Its tables, and spilled data, are in a new directory below `directory`, which is removed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix="verification-", dir=directory) as own,
        open_spilling_engine(Path(own), ENGINE_MEMORY) as engine,
    ):
        yield engine


@dataclass
class FramesSeen:
    """The raw frames that were read, by sequence: their arrivals, and their partitions, None for redriven dead letters; ticks have none.

    `ends`: the offset behind a frame of a partition. `marks`: of partitions as idle, which ticks bear. `sources`: the ids of the sources;
    the partitions of each have numbers of their own, as in the watermarks of `done`.
    """

    sources: Sequence[str]
    arrivals_us: dict[int, int] = field(default_factory=dict)
    partitions: dict[int, int | None] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    marks: list[Marked] = field(default_factory=list)

    def add(self, frame: Arrived) -> None:
        sequence, message = frame.message.sequence, frame.message
        self.arrivals_us[sequence] = frame.arrival_us
        if is_tick(message.subject):
            if (mark := idle_of(message)) is not None and mark.source in self.sources:
                first = self._first(mark.source)
                self.marks += [(sequence, first + int(partition), offset) for partition, offset in mark.next.items()]
            return
        if is_redriven(message.subject):
            self.partitions[sequence] = None
            return
        self.partitions[sequence] = self._first(source_of_subject(message.subject)) + int(message.headers[HEADER_PARTITION])
        self.ends[sequence] = int(message.headers[HEADER_LAST]) + 1

    def _first(self, source: str) -> int:
        return self.sources.index(source) * PARTITIONS_OF_A_SOURCE

    @property
    def redriven(self) -> list[int]:
        return [sequence for sequence, partition in self.partitions.items() if partition is None]


@dataclass(frozen=True)
class Source:
    """The streams of one pipeline, its ledger's account of raw, and the configurations of its ranges by version, as `sink` sees them.

    `snapshots`: those of its look-up tables.
    """

    log: JetStream
    names: Names
    sink: LegId
    history: History
    configs: Mapping[str, Program]
    snapshots: Snapshots

    @property
    def sources(self) -> Sequence[str]:
        """The ids of the pipeline's sources, in their order."""
        return self.configs[self.history.plans[-1].version].sources

    @property
    def fallbacks(self) -> set[tuple[LegId, LegId]]:
        """The sinks whose refused rows others take, and those."""
        tables = [table for config in self.configs.values() for table in config.tables.tables if table.refused_by]
        return {(LegId.parse(table.refused_by), LegId.parse(table.leg)) for table in tables}


def snapshots_of(config: PipelineConfig, directory: Path) -> Snapshots:
    """Return the snapshots of a pipeline's look-up tables; `directory`: the pipeline's own on this host."""
    return Snapshots(Names(config.pipeline_id).state_storage(directory, config.state_uri))


def load_span(reference: Reference, source: Source, span: Span, progress: Progress) -> FramesSeen:
    """Read the raw frames of a span, from `read_from` on, and the dead letters of their records into the reference; join them."""
    progress("reading dead letters")
    for dead_letters in read_dead_letters(source.log, source.names, ("stage", "code", "sink", "past_dedup", "refused_row")):
        positions = dead_letters.column("position").to_numpy()
        is_inside = (positions >= first_position(span.read_from)) & (positions <= last_position(span.read_to))
        if is_inside.any():
            reference.add_dead_letters(_named(dead_letters.filter(pa.array(is_inside)), source.sink))
    for refuser, fallback in source.fallbacks:
        for message in read_frames(source.log, source.names, fallback.input_role):
            positions = positions_of(message)
            is_inside = (positions >= first_position(span.read_from)) & (positions <= span.bounds.last)
            _add_diverted(reference, source.sink, refuser, fallback, positions[is_inside])
    history, seen = source.history, FramesSeen(source.sources)
    clock_us = history.arrival_us(span.read_from)
    for first, last, version, lookups in history.parts(span.read_from, span.read_to):
        progress(f"reading raw {first}..{last}")
        config = _of_plan(source, version, lookups)
        parts = parts_read([column for lane in config.lanes for column in lane.parse.columns])
        frames = read_batches(source.log, source.names, first, last, clock_us, history.resets, seen.add, parts)
        reference.load(frames, config)
        clock_us = max([clock_us, *seen.arrivals_us.values()])
    _load_remade(reference, source, span, progress)
    reference.add_frames(seen.partitions, seen.ends, seen.marks)
    _join(reference, source, span)
    return seen


def _load_remade(reference: Reference, source: Source, span: Span, progress: Progress) -> None:
    """Take the values of rows that were made anew from the configuration under which that was done; it has no look-ups."""
    history = source.history
    made = history.rows_made(span.first, span.last)
    anew = [
        (low, high, version)
        for first, last, version in made
        for low, high, processed in history.segments(first, last)
        if processed != version
    ]
    for first, last, version in anew:
        progress(f"reading raw {first}..{last}, made anew")
        config = source.configs[version]
        parts = parts_read([column for lane in config.lanes for column in lane.parse.columns])
        clock_us = history.arrival_us(first)
        frames = read_batches(source.log, source.names, first, last, clock_us, history.resets, lambda _: None, parts)
        reference.load_values(frames, config)


def _of_plan(source: Source, version: str, lookups: Mapping[str, str]) -> Program:
    """Return the configuration of a plan, with the snapshots of its look-up tables."""
    config = source.configs[version]
    return with_snapshots(config, source.snapshots, lookups) if config.lookups else config


def _join(reference: Reference, source: Source, span: Span) -> None:
    """Join the records of a span, if its configurations have a join."""
    history, read = source.history, (span.read_from, span.read_to)
    parts = [(first, last, _of_plan(source, version, lookups)) for first, last, version, lookups in history.parts(*read)]
    if not parts or parts[-1][2].join is None:
        return
    sequences = history.frames(*read)
    times_us = [history.arrival_us(sequence) for sequence in sequences]
    arrivals = Arrivals(sequences, times_us, span.purged_us, history.confirmed_to, span.unread_us)
    reference.join(arrivals, parts, span.bounds)


def _add_diverted(reference: Reference, sink: LegId, refuser: LegId, fallback: LegId, positions: RawPositions) -> None:
    """Add records whose row a sink has refused and written for its fallback: for that sink they are like its dead letters."""
    if sink == fallback:
        reference.add_diverted(pa.table({"position": positions}))
        return
    stage = "sink" if sink == refuser else OTHER_SINK
    columns = {"position": positions, "emit": [0] * len(positions), "stage": [stage] * len(positions), "code": ["refused"] * len(positions)}
    reference.add_dead_letters(pa.table(columns))


def _named(dead_letters: pa.Table, sink: LegId) -> pa.Table:
    """Return dead letters of another sink than `sink` with the stage OTHER_SINK, and the number of the refused row as `emit`."""
    is_others = pc.and_(pc.equal(dead_letters.column("stage"), "sink"), pc.not_equal(dead_letters.column("sink"), sink))
    stage = pc.if_else(pc.fill_null(is_others, False), OTHER_SINK, dead_letters.column("stage"))
    dead_letters = dead_letters.append_column("emit", pc.fill_null(dead_letters.column("refused_row"), 0))
    return dead_letters.set_column(dead_letters.schema.get_field_index("stage"), "stage", stage)
