"""A sink in memory: a table that takes a block once per token, whole or not at all. What a sink has to be, and no more."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.sinks import Table, TableColumn, View
from pipelines.errors import RefusedError, RetryableError
from pipelines.protocol.records import POSITION_COLUMN_TYPES

COLUMNS = (("id", "Int64"), ("v", "String"), *POSITION_COLUMN_TYPES)
POSITIONS = {"_tf_sequence": "sequence", "_tf_ordinal": "ordinal", "_tf_emit": "emit", "_tf_arrival": "arrival_us"}


class MemoryTable:
    """The table `db.t`, whose facts a test may set.

    It refuses blocks with an `id` of `refused`. `loses_answers`: it stores a block and does not answer. `at_work`: inserts that it shows
    as running; None shows none to this user. `sent`: the tokens of all attempts. `asked`: called before it says which rows it has.
    """

    system, target = "Memory", "db.t"

    def __init__(self, pipeline: PipelineConfig | None = None) -> None:
        self.facts = Table("db", "t", "MergeTree", "", tuple(TableColumn(name, kind, "") for name, kind in COLUMNS), 10_000)
        self.tokens: list[str] = []
        self.blocks: list[pa.Table] = []
        self.refused: set[int] = set()
        self.loses_answers = False
        self.at_work: int | None = 0
        self.sent: list[str] = []
        self.asked: Callable[[], object] = list

    @property
    def ids(self) -> list[int]:
        """The ids of its rows, in the order in which they were inserted."""
        return [number for block in self.blocks for number in block["id"].to_pylist()]

    def ensure(self) -> Table:
        return self.facts

    def checks(self, table: Table) -> Iterator[Callable[[], None]]:
        return iter(())

    def inspect(self, database: str, name: str) -> Table | None:
        return self.facts if (database, name) == ("db", "t") else None

    def columns(self, database: str, name: str) -> tuple[TableColumn, ...]:
        return self.facts.columns

    def views_on(self, database: str, name: str) -> list[View]:
        return []

    def count_rows(self, database: str, name: str, with_positions: bool) -> int:
        return len(self.ids)

    def insert(self, table: str, columns: Sequence[str], block: bytes, token: str, max_execution_seconds: int, work: str = "") -> None:
        assert table == self.target
        self.sent.append(token)
        rows = pa.ipc.open_stream(block).read_all()
        bad = [row for row, number in enumerate(rows["id"].to_pylist()) if number in self.refused]
        if bad:
            raise RefusedError("a row of Memory is refused", bad[0], is_whole=True)
        if token not in self.tokens[-self.facts.dedup_window :]:
            self.store(rows, token)
        if self.loses_answers:
            raise RetryableError("inserting a chunk: no answer")

    def store(self, rows: pa.Table, token: str) -> None:
        self.tokens.append(token)
        self.blocks.append(rows)

    def inserts_at_work(self, work: str) -> int | None:
        return self.at_work

    def stored_positions(self, table: Table, sequences: tuple[int, int], arrivals_us: tuple[int, int] | None = None) -> pa.Table:
        self.asked()
        kept = [block.select(list(POSITIONS)).rename_columns(list(POSITIONS.values())) for block in self.blocks]
        kept = [block.set_column(3, "arrival_us", block["arrival_us"].cast(pa.int64())) for block in kept]
        none = pa.table({name: pa.array([], pa.int64()) for name in POSITIONS.values()})
        return pa.concat_tables([none, *(block.cast(none.schema) for block in kept)])

    def close(self) -> None:
        """Nothing is open."""


SINK = MemoryTable
