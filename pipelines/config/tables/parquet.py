"""The model of a look-up table in a Parquet file."""

from typing import Literal

from pipelines.config.base import ours
from pipelines.config.table_model import FileTable


class ParquetTable(FileTable):
    """A Parquet file."""

    type: Literal["parquet"] = ours(..., "Kind of table.")


TABLE = ParquetTable
