"""A look-up table in a Parquet file."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config.tables.parquet import ParquetTable
from pipelines.connectors.tables import doing
from pipelines.connectors.tables.files import content_of
from pipelines.errors import HaltError
from pipelines.lookups.spec import TableSpec


def fetch(name: str, table: Any, spec: TableSpec) -> pa.Table:
    """Return the columns of the file."""
    assert isinstance(table, ParquetTable)
    content = content_of(name, table)
    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            present = file.schema_arrow.names
            if missing := [column for column in spec.names if column not in present]:
                raise HaltError(f"{doing(name)}: its file has no column {missing[0]!r}; it has {', '.join(present)[:500]}")
            return file.read(columns=list(spec.names))
    except (pa.ArrowException, OSError) as error:
        raise HaltError(f"{doing(name)}: its file is no sound Parquet: {error}") from error


FETCH = fetch
