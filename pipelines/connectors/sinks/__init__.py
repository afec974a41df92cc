"""Sinks of rows: what the sink leg needs of one, and the kinds of sinks.

A sink takes a block of rows whole or not at all, once per token, and tells afterwards which rows it holds. Each kind is a module of this
package, whose `SINK` opens the sink of the pipeline file; the sink's `type` there names the module. A new kind is three files: its module
here, its model in `config/sinks`, and its test.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.types.columns import parse_type

PIPELINE_TYPE = "LowCardinality(String)"


@dataclass(frozen=True)
class TableColumn:
    """One column of `system.columns`; `default_kind` is '', DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL.

    `parts`: the columns of a Nested that the table holds apart, as `name.part`; empty for every other column.
    """

    name: str
    type: str
    default_kind: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """The facts of a target table.

    Its columns, engine (`definition`: with its clauses and settings), and how many insert tokens it remembers (0: none).
    """

    database: str
    name: str
    engine: str
    definition: str
    columns: tuple[TableColumn, ...]
    dedup_window: int
    dedup_seconds: int | None = None
    """How long a token is remembered; None if only their number counts."""
    is_partitioned: bool = False
    keeps_rows: bool = True
    """False if the engine or its TTL merges rows: a missing row may have been stored all the same."""
    views: tuple[tuple[str, str], ...] = ()
    """The materialized views that an insert feeds, without views on views: database and name."""

    @property
    def is_replicated(self) -> bool:
        return self.engine.startswith(("Replicated", "Shared"))

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"


def declared_columns(config: PipelineConfig) -> list[tuple[str, str]]:
    """Return (name, type) of each column that a created table has: those of the mapping, the position columns, the pipeline of a row."""
    owner = [(PIPELINE_COLUMN, PIPELINE_TYPE)] if config.sink.names_pipeline else []
    return [*((entry.column_name, str(parse_type(entry.column_type))) for entry in config.sink.mapping), *POSITION_COLUMN_TYPES, *owner]


@dataclass(frozen=True)
class View:
    """A materialized view: its definition as the server writes it, and the table that it fills.

    `target` is None if that table was dropped, or the server does not name it: chdb 26.9 gives no uuid to a view of the database `default`.
    """

    full_name: str
    definition: str
    target: Table | None


class Sink(Protocol):
    """The sink of a pipeline. Methods raise RetryableError (do it again) or HaltError; no method retries by itself.

    `system`: its name in messages. `target`: the table that the file names, as `database.name`.
    """

    system: str
    target: str

    def ensure(self) -> Table:
        """Return the target table, created if the file asks for it.

        Raise ConfigurationError if its columns do not fit the mapping, HaltError if it cannot recognize a repeated insert.
        """

    def checks(self, table: Table) -> Iterator[Callable[[], None]]:
        """Yield the checks that `ensure` makes of the target table, each of which raises as it does."""

    def inspect(self, database: str, name: str) -> Table | None:
        """Return the table's facts; None if it does not exist."""

    def columns(self, database: str, name: str) -> tuple[TableColumn, ...]:
        """Return the table's current columns, in their order; empty if it does not exist."""

    def views_on(self, database: str, name: str) -> list[View]:
        """List what an insert into this table feeds besides; a sink without such a thing has none."""

    def count_rows(self, database: str, name: str, with_positions: bool) -> int:
        """Count the rows of a table; `with_positions`: only rows that a pipeline has written, in a table with position columns."""

    def insert(self, table: str, columns: Sequence[str], block: bytes, token: str, max_execution_seconds: int, work: str = "") -> None:
        """Insert one Arrow IPC stream of one record batch into `database.name`, once per token; `work` names the insert.

        Raise RetryableError if the outcome is unknown: the caller sends the same block with the same token again. Raise
        InsertTooLargeError (retryable) if a smaller block may pass, RefusedError if the table refuses the block because of its rows.
        """

    def count_unowned(self, database: str, name: str) -> int:
        """Count the rows of a shared table that name no pipeline."""

    def alter(self, statement: str) -> None:
        """Run an ALTER TABLE that was built from checked identifiers and types."""

    def inserts_at_work(self, work: str) -> int | None:
        """Count the running inserts of this name; None if the user may not see them."""

    def stored_positions(self, table: Table, sequences: tuple[int, int], arrivals_us: tuple[int, int] | None = None) -> pa.Table:
        """Read (sequence, ordinal) of the rows within these bounds, inclusive; with `arrivals_us` also (emit, arrival in us)."""

    def close(self) -> None: ...


def open_sink(pipeline: PipelineConfig) -> Sink:
    """Open the sink of a pipeline without connecting."""
    kind: Callable[[PipelineConfig], Sink] = import_module(f"{__name__}.{pipeline.sink.type}").SINK
    return kind(pipeline)
