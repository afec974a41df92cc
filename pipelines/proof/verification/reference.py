"""The reference: the expected table, computed anew from the raw records in DuckDB, with the statements of sql/reference.

In: raw frames as batches of FRAME_SCHEMA, in any cut, under the stage configuration of their range. Kept: one row per record in an engine
that spills to disk, with its position, its key and its values in the plain form (`values`). Out: the view `expected`.

Positions are single integers, `sequence << 20 | ordinal`, as in `records.position_keys`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa

from pipelines.config.sinks import ERROR_FIELD
from pipelines.connectors.sql import filled, statement
from pipelines.process.program import Program
from pipelines.process.steps.dedup import Dedup
from pipelines.process.watermarks import IDLE_RECORDS, PARTITIONS_OF_A_SOURCE
from pipelines.proof.verification.compared import Column
from pipelines.proof.verification.functions import register
from pipelines.proof.verification.join import COPY_STAGE, decided_in, joined_rows_statement, side_records, sides_statement
from pipelines.proof.verification.plain_form import duckdb_type
from pipelines.proof.verification.steps import Shapes, Wanted, fields_of, json_path, parents, statement_of, trusted_codes
from pipelines.proof.verification.tables import snapshots_in
from pipelines.proof.verification.values import MACROS, is_compared, literal
from pipelines.protocol.bodies import NEVER, NOTHING, Watermarks
from pipelines.types.columns import value_type

FRAME_SCHEMA = pa.schema(
    [
        ("position", pa.uint64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("arrival_us", pa.int64()),
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))),
        ("timestamp_us", pa.int64()),
        ("is_oversize", pa.bool_()),
        ("is_past", pa.bool_()),
        ("sink", pa.string()),
        ("refused_row", pa.uint32()),
        ("source", pa.string()),
    ]
)
"""A raw record. `is_oversize`: `value` is only its head. `key`, `headers` and `timestamp_us` are null where no column reads them.

`is_past`: dedup accepted it before it became a dead letter, and does not compare it again. `sink`: the only sink leg that takes it then.
`refused_row`: the only row of it that is made then. `source`: the id of its source.
"""
Marked = tuple[int, int, int]
"""The mark of a partition as idle: raw sequence, partition, and the next offset that was to be read of it."""
NO_ENDS: Mapping[int, int] = {}
BUCKET_FRAMES = 32
"""Raw frames whose rows are summed up together: a mismatch is narrowed down to them before rows are compared."""
BUCKET_BITS = 20 + BUCKET_FRAMES.bit_length() - 1
_SAMPLED_RECORDS = 20_000
_MOST_SHAPES = 32


@dataclass(frozen=True)
class Bounds:
    """Positions, inclusive. Records from `first` to `last` are compared.

    The reference finds copies from `first_replayed` on, if no record before matters, or if `accepted_before` shows the accepted ones.
    `before`: the watermarks before the first record read.
    """

    first: int
    last: int
    first_replayed: int = 0
    before: Watermarks = NOTHING


@dataclass(frozen=True)
class Arrivals:
    """All raw frames from the first record read to the last: sequences, and arrivals in microseconds.

    `purged_us`: the arrival of the last purged frame, at most; None if no purged record matters. `confirmed_to`: as in `span.History`.
    `unread_us`: as in `span.Span`, for a join by the records' own times.
    """

    sequences: Sequence[int]
    times_us: Sequence[int]
    purged_us: int | None
    confirmed_to: int
    unread_us: int | None = None


def compared_columns(config: Program) -> list[Column]:
    # Only the plan of the refusing sink has the server's own words.
    columns = [one for one in config.mapping.columns if not config.mapping.refused_by or one.field != ERROR_FIELD]
    targets = [(one.name, value_type(one.type), one.has_default) for one in columns]
    return [Column(f"v{index}", *target) for index, target in enumerate(targets) if is_compared(target[1])]


def macros_of(sql: str) -> list[str]:
    """Return those of MACROS that a statement calls, and that these call, in order."""
    found: list[str] = []
    for macro in reversed(MACROS):
        if f"tf_{macro}(" in sql:
            found.insert(0, macro)
            sql += statement(f"reference/{macro}")
    return found


def run_over(engine: duckdb.DuckDBPyConnection, name: str, rows: pa.Table | pa.RecordBatchReader, sql: str) -> list[tuple[Any, ...]]:
    """Run a statement that reads `rows` as the table `name`; return its result."""
    engine.register(name, rows)
    try:
        return engine.execute(sql).fetchall()
    finally:
        engine.unregister(name)


class Reference:
    """One computation over one range; use it once.

    `columns`: the columns whose values are kept, of all loaded configurations. `with_bytes`: a hash of each record's bytes is kept, too,
    except for records of which only the head is there. The engine must spill to disk. Raise duckdb.Error for faults that no record can
    cause: a full disk.
    """

    def __init__(self, engine: duckdb.DuckDBPyConnection, columns: Sequence[Column], with_bytes: bool = False) -> None:
        self._engine, self._columns, self._with_bytes = engine, columns, with_bytes
        self._has_sides = False
        self._functions: set[str] = set()
        """The names of the functions that the engine can call."""
        self._macros: set[str] = set()
        # Each transaction is written to the disk.
        engine.begin()
        declared = "".join(f", {column.label} {duckdb_type(column.type)}" for column in columns)
        self._parsed = filled("reference/create_parsed", columns=declared)
        engine.execute(self._parsed)
        letters = "position UBIGINT, emit UINTEGER DEFAULT 0, stage VARCHAR, code VARCHAR, past_dedup BOOLEAN DEFAULT false"
        engine.execute(f"CREATE TABLE dead_letters ({letters})")
        engine.execute("CREATE TABLE dropped (position UBIGINT, why VARCHAR)")
        engine.execute("CREATE TABLE accepted (position UBIGINT)")
        engine.execute("CREATE TABLE diverted (position UBIGINT)")
        engine.execute("CREATE TABLE open_lefts (position UBIGINT, why VARCHAR)")
        engine.execute("CREATE TABLE undecided_copies (position UBIGINT)")
        engine.execute("CREATE TABLE accepted_before (position UBIGINT)")
        engine.execute("CREATE TABLE raw_arrivals (sequence UBIGINT, arrival_us BIGINT)")
        engine.execute('CREATE TABLE raw_frames (sequence UBIGINT, "partition" INTEGER, next_offset BIGINT)')
        engine.execute('CREATE TABLE raw_marks (sequence UBIGINT, "partition" INTEGER, next_offset BIGINT)')
        engine.execute('CREATE TABLE partitions_before ("partition" INTEGER, newest_us BIGINT, seen BIGINT)')
        engine.commit()

    def load(self, frames: Iterable[pa.RecordBatch], config: Program) -> None:
        """Read records of FRAME_SCHEMA that were processed under `config`, which has the snapshots of their plan.

        Memory holds a batch per thread of the engine.
        """
        batches = iter(frames)
        first = next(batches, None)
        if first is None:
            return
        register(self._engine, config, self._functions)
        distinct_shapes = self._known_shapes(first, config)
        reader = pa.RecordBatchReader.from_batches(FRAME_SCHEMA, chain([first], batches))
        statement_for = statement_of if config.join is None else sides_statement
        wanted = Wanted(self._columns, distinct_shapes, self._with_bytes, self._ended(config))
        rows = statement_for(config, wanted)
        self._create_macros(rows)
        with snapshots_in(self._engine, config):
            if len(config.lanes) == 1:
                run_over(self._engine, "frames", reader, rows)
                return
            # The statement reads the records once for each source, a reader gives them once.
            run_over(self._engine, "_tf_frames", reader, "CREATE TABLE frames AS FROM _tf_frames")
            if config.join is not None:
                rows = f"INSERT INTO sides BY NAME {rows}" if self._has_sides else f"CREATE TABLE sides AS {rows}"
                self._has_sides = True
            self._engine.execute(rows)
            self._engine.execute("DROP TABLE frames")

    def load_values(self, frames: Iterable[pa.RecordBatch], config: Program) -> None:
        """Replace the values of records that were loaded by those under `config`, under which their rows were made anew.

        Which of them have a row was decided when they were processed, and stays. Records of a join are not made anew.
        """
        if not self._columns:
            return
        self._engine.execute("ALTER TABLE parsed RENAME TO as_processed")
        self._engine.execute(self._parsed)
        self.load(frames, config)
        values = ", ".join(f"{column.label} = parsed.{column.label}" for column in self._columns)
        self._engine.execute(f"UPDATE as_processed SET {values} FROM parsed WHERE parsed.position = as_processed.position")  # noqa: S608
        self._engine.execute("DROP TABLE parsed")
        self._engine.execute("ALTER TABLE as_processed RENAME TO parsed")

    def _create_macros(self, sql: str) -> None:
        """Create the macros that a statement calls and the engine has not: all of them take longer than a range of few records."""
        if missing := [macro for macro in macros_of(sql) if macro not in self._macros]:
            self._macros.update(missing)
            self._engine.begin()
            for macro in missing:
                self._engine.execute(statement(f"reference/{macro}"))
            self._engine.commit()

    def _ended(self, config: Program) -> str:
        """Return SQL of whether a stage has ended on a record: with a join, one before it."""
        before = "" if config.join is None else " AND past_dedup IS NOT true"
        letters = f"SELECT position FROM dead_letters WHERE code IN ({trusted_codes()}){before}"  # noqa: S608
        return f"position IN ({letters})" if self._engine.execute(f"{letters} LIMIT 1").fetchall() else "false"

    def _known_shapes(self, records: pa.RecordBatch, config: Program) -> Shapes:
        """Return the hashes of lists of keys without a key twice, from a sample: a list costs 1 us to inspect, and a stream has few."""
        sample = pa.Table.from_batches([records]).slice(0, _SAMPLED_RECORDS)
        known: Shapes = {}
        for parent in {parent for lane in config.lanes for parent in parents(fields_of(lane).values())}:
            shapes = filled("reference/shapes", path=literal(json_path(parent)), most=_MOST_SHAPES)
            known[parent] = [shape for (shape,) in run_over(self._engine, "frames", sample, shapes)]
        return known

    def add_frames(self, partitions: Mapping[int, int | None], ends: Mapping[int, int] = NO_ENDS, marks: Sequence[Marked] = ()) -> None:
        """Add the Kafka partition of each raw frame by its sequence; None for redriven dead letters. Frames without records count.

        `ends`: the offset behind a frame, by its sequence. `marks`: of ticks.
        """
        rows = {"sequence": pa.array(partitions.keys(), pa.uint64()), "partition": pa.array(partitions.values(), pa.int32())}
        rows["next_offset"] = pa.array([ends.get(sequence) for sequence in partitions], pa.int64())
        self._insert("raw_frames", pa.table(rows))
        columns = zip(*marks, strict=True) if marks else ((), (), ())
        kinds = {"sequence": pa.uint64(), "partition": pa.int32(), "next_offset": pa.int64()}
        self._insert("raw_marks", pa.table({name: pa.array(column, kinds[name]) for name, column in zip(kinds, columns, strict=True)}))

    def add_dead_letters(self, dead_letters: pa.Table) -> None:
        """Add `position`, `stage` and `code` of dead letters; if known, `emit`, the number of the refused row, and `past_dedup`."""
        known = [name for name in ("position", "emit", "stage", "code", "past_dedup") if name in dead_letters.column_names]
        run_over(self._engine, "_tf_rows", dead_letters.select(known), "INSERT INTO dead_letters BY NAME FROM _tf_rows")

    def add_diverted(self, positions: pa.Table) -> None:
        """Add `position` of the records that the table of a fallback must hold; before `load`."""
        self._insert("diverted", positions.select(["position"]))

    def add_accepted_before(self, positions: pa.Table) -> None:
        """Add `position` of the earlier records that are known to be accepted; no `is_past` among them counts."""
        self._insert("accepted_before", positions.select(["position"]))

    def join(self, arrivals: Arrivals, stretches: Iterable[tuple[int, int, Program]], bounds: Bounds) -> None:
        """Join the records of a range, after all records are loaded: those of the range become rows of `parsed`.

        `stretches`: first and last raw sequence, both inclusive, of the frames that were processed under a configuration; all have the same
        join.
        """
        if not self._has_sides:
            return
        parts = list(stretches)
        self._insert(
            "raw_arrivals",
            pa.table([pa.array(arrivals.sequences, pa.uint64()), pa.array(arrivals.times_us, pa.int64())], ["sequence", "arrival_us"]),
        )
        join = parts[-1][2].join
        assert join is not None
        if join.is_timed:
            # What was rejected behind the join has moved the watermark; what was before it has not.
            self._trust_dead_letters("sides", " AND NOT dead_letters.past_dedup")
            self._note_before(bounds.before)
            of_source = {"partitions_of_a_source": PARTITIONS_OF_A_SOURCE, "lateness_us": join.lateness_us}
            self._engine.execute(filled("reference/join_watermarks", before_us=_or_null(bounds.before.combined_us), **of_source))
        self._mark_copies(parts[-1][2].side_dedups, arrivals, bounds)
        within = {"first": bounds.first, "last": bounds.last}
        if join.is_timed:
            self._engine.execute(filled("reference/mark_late_for_join", before_us=_or_null(bounds.before.combined_us)))
            self._engine.execute(filled("reference/open_late", **within))
        self._trust_dead_letters("sides")
        for name in ("lefts", "rights"):
            self._engine.execute(filled(f"reference/{name}", **within))
        windows = {"left_window_us": join.windows.left_us, "right_window_us": join.windows.right_us}
        found = "reference/joined_by_time" if join.is_timed else "reference/joined"
        self._engine.execute(f"CREATE TABLE joined AS {filled(found, **windows)}")
        unread_us = arrivals.unread_us if join.is_timed else arrivals.purged_us
        purged_us = "NULL::BIGINT" if unread_us is None else unread_us
        opened = filled(
            "reference/open_lefts",
            purged_us=purged_us,
            confirmed_to=arrivals.confirmed_to,
            decided_in=decided_in(join.is_timed),
            is_before="lefts.time_us >= rights.time_us" if join.is_timed else "lefts.position > rights.position",
            is_enough=f"rights.time_us > {purged_us}" if join.is_timed else "true",
            **windows,
        )
        self._engine.execute(opened)
        for low, high, config in parts:
            wanted = Wanted(self._columns, {}, self._with_bytes)
            rows = joined_rows_statement(config, wanted, (low, high), (bounds.first, bounds.last))
            self._create_macros(rows)
            with snapshots_in(self._engine, config):
                self._engine.execute(rows)

    def _insert(self, table: str, rows: pa.Table) -> None:
        run_over(self._engine, "_tf_rows", rows, f"INSERT INTO {table} FROM _tf_rows")

    def evaluate(self, config: Program, bounds: Bounds, with_open: bool = False) -> None:
        """Find the copies, by the key and window of `config`, after all records are loaded; create the view `expected`.

        `with_open`: rows of left records in `open_lefts` are among them.

        No other source shows on which record one of our stages ends, or whether a large row fits a frame: such a dead letter is trusted.
        """
        self._trust_dead_letters("parsed")
        # The statements of a step about records beside others, once all are read.
        if config.dedup.time_field:
            self._mark_late(config.dedup, bounds.before)
        if config.dedup.key:
            self._find_copies(config.dedup, bounds)
            self._engine.execute(filled("reference/unsure", first=bounds.first, first_replayed=bounds.first_replayed))
        listed = "".join(f", {column.label}" for column in self._columns)
        listed += ', encode(topic) AS topic, "partition", "offset", arrival_us'
        closed = "" if with_open else "ANTI JOIN open_lefts USING (position)"
        expected = filled(
            "reference/expected", closed=closed, bucket_bits=BUCKET_BITS, columns=listed, first=bounds.first, last=bounds.last
        )
        self._engine.execute(expected)

    def _note_before(self, before: Watermarks) -> None:
        """Note what is known of the partitions before the first record read."""
        partitions = [(partition, _known(newest), seen) for partition, (newest, seen) in before.partitions.items()]
        columns = zip(*partitions, strict=True) if partitions else ((), (), ())
        types = {"partition": pa.int32(), "newest_us": pa.int64(), "seen": pa.int64()}
        rows = {name: pa.array(column, kind) for (name, kind), column in zip(types.items(), columns, strict=True)}
        self._insert("partitions_before", pa.table(rows))

    def _mark_late(self, dedup: Dedup, before: Watermarks) -> None:
        self._note_before(before)
        numbers = {
            "records": before.records,
            "combined_us": _or_null(before.combined_us),
            "window_us": dedup.window_us,
            "idle_records": IDLE_RECORDS,
        }
        self._engine.execute(filled("reference/watermarks", **numbers))
        self._engine.execute(filled("reference/mark_late", lateness_us=dedup.lateness_us))

    def _mark_copies(self, dedups: Mapping[bool, Dedup], arrivals: Arrivals, bounds: Bounds) -> None:
        """Give the copies on each side of a join a stage of their own. What was rejected behind the join, dedup has accepted."""
        if not dedups:
            return
        self._trust_dead_letters("sides", " AND NOT dead_letters.past_dedup")
        for is_right, step in dedups.items():
            if arrivals.purged_us is not None:
                numbers: dict[str, str | int] = {"window_us": step.window_us, "purged_us": arrivals.purged_us}
                numbers["is_right"] = str(is_right).lower()
                self._engine.execute(filled("reference/undecided_copies", **numbers))
            self._find_copies(step, bounds, side_records(is_right))
        self._engine.execute(f"UPDATE sides SET stage = '{COPY_STAGE}' FROM dropped WHERE dropped.position = sides.position")  # noqa: S608

    def _trust_dead_letters(self, table: str, only: str = "") -> None:
        self._engine.execute(filled("reference/trust_dead_letters", table=table, codes=trusted_codes(), only=only))

    def _find_copies(self, dedup: Dedup, bounds: Bounds, records: str = "parsed") -> None:
        numbers: dict[str, str | int] = {"first": bounds.first, "first_replayed": bounds.first_replayed}
        numbers |= {"window_us": dedup.window_us, "records": records}
        in_windows = "accepted_in_event_windows" if dedup.time_field else "accepted_in_windows"
        for name in ("replayed", "seeds", "keys_with_copies", "accepted_in_one_window", in_windows, "dropped"):
            self._engine.execute(filled(f"reference/{name}", **numbers))


def _known(time_us: int) -> int | None:
    return None if time_us == NEVER else time_us


def _or_null(time_us: int) -> int | str:
    return "NULL::BIGINT" if time_us == NEVER else time_us
