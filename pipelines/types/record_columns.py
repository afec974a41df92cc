"""The columns of a Kafka record beside the fields of its JSON: their parts of the record, and their types."""

from typing import Literal, NamedTuple

ColumnType = Literal["string", "bytes", "map", "int32", "int64", "timestamp"]
ColumnOrigin = Literal["key", "headers", "offset", "partition", "timestamp", "topic", "arrival", "value"]


class RecordColumn(NamedTuple):
    """A column and its part of the record; with `header` it is that header alone. `type`: a key of `fields.SOURCE_TYPES`."""

    name: str
    origin: ColumnOrigin
    header: str
    type: ColumnType

    @property
    def is_whole(self) -> bool:
        """True if the column may take as much room as the record."""
        return self.origin in ("value", "headers") and not self.header
