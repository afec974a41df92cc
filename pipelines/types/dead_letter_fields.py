"""The fields of a dead letter that a table may hold, and the one type of ClickHouse in which each is stored."""

from dataclasses import replace
from typing import NamedTuple

from pipelines.types.columns import parse_type

_INSTANT = "DateTime64(6, 'UTC')"


class DeadLetterField(NamedTuple):
    """A field and its type in ClickHouse; `may_be_null`: a dead letter may lack it."""

    name: str
    type: str
    may_be_null: bool = False

    @property
    def column_type(self) -> str:
        """The type of its column in the default mapping."""
        return f"Nullable({self.type})" if self.may_be_null else self.type

    def fault(self, column_type: str) -> str:
        """Return why a column of this type does not keep every value of the field; empty if it does."""
        column = parse_type(column_type)
        if str(replace(column, nullable=False, low_cardinality=False)) != self.type:
            return f"{self.name} of a dead letter is {self.type} and cannot become {column_type}"
        if self.may_be_null and not column.nullable:
            return f"a dead letter may lack {self.name}: the column must be Nullable"
        return ""


DEAD_LETTER_FIELDS = {
    field.name: field
    for field in (
        DeadLetterField("position", "String"),
        DeadLetterField("stage", "String"),
        DeadLetterField("code", "String"),
        DeadLetterField("field", "String", may_be_null=True),
        DeadLetterField("message", "String"),
        DeadLetterField("fingerprint", "String"),
        DeadLetterField("sink", "String", may_be_null=True),
        DeadLetterField("source", "String"),
        DeadLetterField("topic", "String"),
        DeadLetterField("partition", "Int32"),
        DeadLetterField("offset", "Int64"),
        DeadLetterField("timestamp", _INSTANT, may_be_null=True),
        DeadLetterField("key", "String", may_be_null=True),
        DeadLetterField("value", "String", may_be_null=True),
        DeadLetterField("headers", "Array(Tuple(String, Nullable(String)))"),
        DeadLetterField("value_bytes", "Int64", may_be_null=True),
        DeadLetterField("value_sha256", "String", may_be_null=True),
        DeadLetterField("attempts", "Int32"),
        DeadLetterField("first_time", _INSTANT),
        DeadLetterField("last_time", _INSTANT),
        DeadLetterField("config_version", "String"),
        DeadLetterField("past_dedup", "Bool"),
        DeadLetterField("origin", "String", may_be_null=True),
    )
}
"""By name, in the order of the default mapping. They are those of `tallyflow dlq export`, and what else the dead-letter stream holds.

`position`: where the record was rejected, as `tallyflow dlq show` takes it. `fingerprint`: its group. `timestamp`: Kafka's, or the nearer
end of the years that the column's type has. `value_bytes` and `value_sha256`: of the whole record, if `value` is its head. `origin`: the
position of the dead letter that it was before it was redriven.
"""
