"""The rows of one table as an edited file makes them anew, computed from raw by its stages: in portions, for the positions that are there.

In: a range of raw sequences whose rows have something otherwise. Out: portions that follow each other, each with the positions that the
table holds and a row for each; the records of which the file makes none are noted (`Trial`). Changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.connectors.sinks import Table
from pipelines.errors import HaltError
from pipelines.process.arrivals import FRAMES_PER_STEP, Arrived, steps
from pipelines.process.drop_marks import parted
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.progress import Progress
from pipelines.proof.made_ranges import differing
from pipelines.proof.remakable import check_ranges
from pipelines.proof.verification.span import History, load_configs, read_history
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, position_keys, position_text, sequences_of
from pipelines.sink.chunks import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS
from pipelines.sink.fit import misfits
from pipelines.types.duckdb import open_engine

PORTION_ROWS = MAX_CHUNK_ROWS // 2
"""Rows that are out of the table together; a step of raw frames may add as many again."""
FRAMES_PER_LOOK = 512
"""Raw frames whose positions are read from the table together."""
_MOST_NAMED = 3


@dataclass(frozen=True)
class Portion:
    """Rows that are made anew together: of the raw sequences `first` to `last`, both inclusive, the position of each, and the new rows."""

    first: int
    last: int
    positions: RawPositions
    rows: pa.Table | None


@dataclass
class Trial:
    """What the edited file makes of the rows of some ranges: their number, and those of which it makes none, the first of them named."""

    rows: int = 0
    failed: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, positions: RawPositions, dead_letters: pa.Table) -> None:
        """Note rows of which the file makes none; `dead_letters`: of their records, where a step rejects them."""
        self.failed += len(positions)
        reasons = {}
        if dead_letters.num_rows:
            named = dead_letters.select(["stage", "code", "message"]).to_pylist()[: dead_letters.num_rows]
            reasons = dict(zip(position_keys(dead_letters).tolist(), named, strict=True)) if len(self.examples) < _MOST_NAMED else {}
        for key in positions[: _MOST_NAMED - len(self.examples)].tolist():
            why = reasons.get(key)
            self.examples.append(f"raw {position_text(key)}: " + (f"{why['stage']}, {why['code']}: {why['message']}" if why else "dropped"))


class RowsAnew:
    """The rows of one table as `program` makes them."""

    def __init__(
        self, config: PipelineConfig, program: Program, table: Table, log: JetStream, clickhouse: ClickHouse, progress: Progress
    ) -> None:
        self.config, self.program, self.table = config, program, table
        self.log, self.clickhouse, self.progress = log, clickhouse, progress
        self.names = Names(config.pipeline_id)
        self._raw = self.names.stream("raw")

    def ranges(self) -> tuple[History, list[tuple[int, int]]]:
        """Return the ledger's account, and the ranges of raw sequences, both inclusive, whose rows were made otherwise."""
        history = read_history(self.log, self.names, self.config.topology, self.config.sink_leg, None)
        if not history.sequences:
            return history, []
        configs = load_configs(self.log, self.names, self.config.sink_leg, history)
        check_ranges(history, configs, self.program)
        found = [(first, last) for first, last, differences in differing(history, configs, self.program) if differences]
        # Of a range that was purged in part, the rows whose raw records are gone stay as they are.
        kept = [(max(first, history.sequences[0]), min(last, history.confirmed_to)) for first, last in found]
        return history, [(first, last) for first, last in kept if first <= last]

    def tried(self) -> Trial:
        """Compute the rows of all ranges."""
        trial = Trial()
        history, ranges = self.ranges()
        for first, last in ranges:
            for portion in self.portions(history, first, last, trial):
                trial.rows += len(portion.positions)
        return trial

    def portions(self, history: History, first: int, last: int, trial: Trial) -> Iterator[Portion]:
        """Yield the rows of a range in portions that follow each other, the last one to its end."""
        begin, rows, held, size = first, list[pa.Table](), [NO_POSITIONS], 0
        for step, positions in self._steps(history, first, last):
            made = self.made(step, positions, trial)
            rows.append(made)
            held.append(positions)
            size += made.nbytes
            if sum(map(len, held)) >= PORTION_ROWS or size >= MAX_CHUNK_BYTES // 2:
                end = step[-1].message.sequence
                yield Portion(begin, end, np.concatenate(held), joined_rows(rows))
                begin, rows, held, size = end + 1, [], [NO_POSITIONS], 0
        if begin <= last:
            yield Portion(begin, last, np.concatenate(held), joined_rows(rows))

    def _steps(self, history: History, first: int, last: int) -> Iterator[tuple[list[Arrived], RawPositions]]:
        """Yield raw frames that have rows, as many as pass through the stages together, with the positions of their rows, ascending."""
        sequences, low = history.frames(first, last), first
        for at in range(0, len(sequences), FRAMES_PER_LOOK):
            inside = sequences[at : at + FRAMES_PER_LOOK]
            high = inside[-1] if at + FRAMES_PER_LOOK < len(sequences) else last
            self.progress(f"reading raw {low}..{high}", low - first, last - first)
            held = self.held(low, high)
            for step in steps(self.frames(history, held), most_frames=FRAMES_PER_STEP):
                of_frames = sequences_of(held)
                bounds = np.searchsorted(of_frames, [step[0].message.sequence, step[-1].message.sequence + 1])
                yield step, held[bounds[0] : bounds[1]]
            low = high + 1

    def held(self, first: int, last: int) -> RawPositions:
        """Return the positions of the rows that the table has of these sequences, ascending. Raise HaltError if one has several rows."""
        stored = self.clickhouse.stored_positions(self.table, (first, last))
        found = np.sort(position_keys(stored.rename_columns(["_tf_sequence", "_tf_ordinal"])))
        if len(doubled := found[1:][found[1:] == found[:-1]]):
            raise HaltError(
                f"making rows of {self.program.full_table} anew: raw {position_text(int(doubled[0]))} has several rows; nothing of raw "
                f"{first}..{last} was changed. `tallyflow verify` names all of them: remove what does not belong there first"
            )
        return found

    def frames(self, history: History, positions: RawPositions) -> Iterator[Arrived]:
        """Yield the raw frames of these positions with their arrivals. Raise HaltError for a position without one."""
        needed = np.unique(sequences_of(positions)).tolist()
        if not needed:
            return
        left = set(needed)
        for message in fetch_whole(self.log, self._raw, self.names.subjects("raw"), needed[0] - 1, needed[-1]):
            if message.sequence in left:
                left.remove(message.sequence)
                yield Arrived(message, history.arrival_us(message.sequence))
        if left:
            raise HaltError(
                f"making rows of {self.program.full_table} anew: {self._raw} has no frame {min(left)}, but the table has rows of it; they "
                "were not changed. `tallyflow verify` names the rows"
            )

    def made(self, step: Sequence[Arrived], positions: RawPositions, trial: Trial) -> pa.Table:
        """Return the rows of these positions, ascending, of the frames of a step; note those without one in `trial`."""
        with open_engine() as engine:
            made = run(self.program, engine, step)
        rows = self.program.tables.rows_for(parted(made.rows)[0], self.program.leg)
        keys = position_keys(rows)
        if len(lost := positions[~np.isin(positions, keys)]):
            trial.note(lost, made.dead_letters)
        wanted = rows.filter(pa.array(np.isin(keys, positions)))
        self._check_columns(wanted)
        return wanted

    def _check_columns(self, rows: pa.Table) -> None:
        nulls = [name for name in rows.column_names if rows.column(name).null_count]
        if faults := misfits(self.program, self.program.position_columns, self.table.columns, nulls):
            raise HaltError(
                f"making rows of {self.program.full_table} anew: its columns differ from those of the file: {'; '.join(faults)}; "
                "they were not changed"
            )


def joined_rows(rows: Sequence[pa.Table]) -> pa.Table | None:
    return pa.concat_tables(rows).unify_dictionaries().combine_chunks() if rows else None
