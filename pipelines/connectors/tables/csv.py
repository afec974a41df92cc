"""A look-up table in a CSV file."""

from typing import Any

import pyarrow as pa
from pyarrow import csv

from pipelines.config.tables.csv import CsvTable
from pipelines.connectors.tables import doing
from pipelines.connectors.tables.files import content_of
from pipelines.errors import HaltError
from pipelines.lookups.spec import TableSpec


def fetch(name: str, table: Any, spec: TableSpec) -> pa.Table:
    """Return the columns of the file, each read as the type that is asked for: "007" stays a text."""
    assert isinstance(table, CsvTable)
    types = {column.name: column.arrow for column in (*spec.key, *spec.columns)}
    if spec.between:
        types |= dict.fromkeys((spec.between.begin, spec.between.end), spec.key_schema.field("from").type)
    options = csv.ConvertOptions(
        # Instants are read with or without a zone (`lookups.columns`), which the reader does not do.
        column_types={column: pa.string() if pa.types.is_timestamp(kind) else kind for column, kind in types.items()},
        include_columns=list(spec.names),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    content = content_of(name, table)
    try:
        return csv.read_csv(
            pa.BufferReader(content),
            parse_options=csv.ParseOptions(delimiter=table.delimiter, newlines_in_values=True),
            convert_options=options,
        )
    except (pa.ArrowException, OSError) as error:
        raise HaltError(f"{doing(name)}: {error}") from error


FETCH = fetch
