"""The model of a look-up: fields of a record from the row of a table that has its key."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from pipelines.config.base import Faults, FieldPath, Key, Location, Model, Text, ours, repeated
from pipelines.config.sources import Unit
from pipelines.config.table_model import TableModel, TableName
from pipelines.config.transform_model import SOURCE_ID, Made, TransformConfig, TransformModel
from pipelines.config.transforms.python import OutputType
from pipelines.lookups.spec import Column, Range, TableSpec, key_type, range_type


class LookupField(Model):
    """One column that becomes a field."""

    name: Text = ours(..., "Column of the table.")
    as_name: FieldPath | None = Field(
        None,
        alias="as",
        description="Name of the field; it replaces a field of this name. Default: `name`.",
        json_schema_extra={"x-ours": True},
    )
    type: OutputType = ours("string", "Type of the field. A snapshot with a value that does not fit is refused.")
    unit: Unit | None = ours(None, "Unit since 1970 of a number that becomes a DateTime or DateTime64. Default: `s`.")

    @property
    def field(self) -> str:
        return self.as_name or self.name


class LookupConfig(TransformConfig):
    """The table, the key, and the columns that become fields."""

    table: TableName = ours(..., "Name of one of `tables`.")
    key: Key = ours(..., "The fields that must equal the columns of the table's key, in its order; a field with a null matches no row.")
    fields: tuple[LookupField, ...] = ours((), "The columns that become fields; all other fields stay. May be left out to reject or drop.")
    missing: Literal["null", "reject", "drop"] = ours(
        "null", "What becomes of a record without a row: its fields are null, it becomes a dead letter, or it is dropped and counted."
    )
    _table: TableModel | None = PrivateAttr(None)

    def attach(self, tables: Mapping[str, Any]) -> None:
        self._table = tables.get(self.table)

    @property
    def of_table(self) -> TableModel:
        """The table of the file. Raise ValueError if it has none of this name."""
        if self._table is None:
            raise ValueError(f"there is no table {self.table!r}")
        return self._table

    @property
    def input(self) -> tuple[str, ...]:
        """The fields that decide the others."""
        return self.key

    def fields_read(self) -> Iterable[tuple[Location, Sequence[str]]]:
        yield ("key",), self.key

    def made(self) -> Iterable[Made]:
        for one in self.fields:
            yield Made(one.field, one.type, one.unit)

    def origin_of(self, made: Made) -> dict[str, Any]:
        return {"table": self.table, "column": next(one.name for one in self.fields if one.field == made.name)}

    def faults(self) -> Faults:
        for index, name in repeated(one.field for one in self.fields):
            yield ("fields", index), f"the field {name!r} is made twice: set `as`"
        for index, one in enumerate(self.fields):
            if one.field.startswith("_tf_"):
                yield ("fields", index), "names that start with _tf_ are reserved"
        if not self.fields and self.missing == "null":
            yield ("fields",), "is required, unless `missing` rejects or drops"


def lookup_spec(config: Any, table: Any, before: Mapping[str, str]) -> TableSpec:
    """Return what a look-up reads of its table; `before`: the types of the fields before it. Also called over a `Partial`.

    Raise ValueError for a field whose type can be no key.
    """
    between = table.range_of_key
    names = config.key[:-1] if between else config.key
    key = (Column(name, key_type(field, before[field])) for name, field in zip(table.columns_of_key, names, strict=True))
    found = None
    if between:
        begin, end = between.between
        found = Range(begin, end, range_type(config.key[-1], before[config.key[-1]]), between.includes_end)
    return TableSpec(tuple(key), found, tuple(sorted({Column(one.name, one.type) for one in config.fields}, key=lambda one: one.name)))


class LookupTransform(TransformModel):
    """Adds fields from a table by a key. A plan names the snapshot of the table, so a replay gives the same rows."""

    computes = True

    type: Literal["lookup"] = ours(..., "Kind of transform.")
    source_id: Text | None = ours(None, SOURCE_ID)
    config: LookupConfig = ours(..., "The table, the key, and the columns that become fields.")


TRANSFORM = LookupTransform
