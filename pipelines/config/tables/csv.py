"""The model of a look-up table in a CSV file."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from pipelines.config.base import matching, ours
from pipelines.config.table_model import FileTable

Delimiter = Annotated[str, AfterValidator(matching(r"[\t -~]", "must be one ASCII character"))]


class CsvTable(FileTable):
    """A CSV file with a line of names. An empty value is a null, `""` an empty text."""

    type: Literal["csv"] = ours(..., "Kind of table.")
    delimiter: Delimiter = ours(",", "The character between two values.")


TABLE = CsvTable
