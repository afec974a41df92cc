"""DuckDB as a Dagster resource, with the fields of dagster-duckdb and our limits."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import dagster as dg
import duckdb
from pydantic import Field

from pipelines.types.duckdb import open_database


class DuckDBResource(dg.ConfigurableResource[None]):
    """A DuckDB database with bounded memory and threads, that loads no extension by itself."""

    database: str = Field(default=":memory:", description="Path of the database, or `:memory:`.")
    connection_config: dict[str, str] = Field(default_factory=dict, description="More settings of DuckDB, by name.")
    memory_limit: str = Field(default="2GiB", description="What it may hold in memory; more is written to the temporary directory.")
    threads: int = Field(default=2, description="Worker threads.")
    temp_directory: str = Field(default="", description="Where it spills. Empty: a directory of its own, deleted afterwards.")

    @contextmanager
    def get_connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection, closed afterwards."""
        with TemporaryDirectory(prefix="tallyflow-duckdb-") as own:
            spilled = self.temp_directory or str(Path(own) / "spilled")
            settings: dict[str, str | int] = {"memory_limit": self.memory_limit, "threads": self.threads, "temp_directory": spilled}
            connection = open_database(self.database, {**settings, **self.connection_config})
            try:
                yield connection
            finally:
                connection.close()
