"""Does every row hold what its Kafka record says? Recomputes the table's values from the raw JSON and compares them as multisets. Pure.

Independent of the stages: the JSON is taken apart value by value with DuckDB's path functions and cast there. Knows the column types that
examples/orders uses, and their like.
"""

from dataclasses import dataclass

import duckdb
import pyarrow as pa

from pipelines.columns import INTEGER_BITS, ColumnType, parse_type, quote_identifier
from pipelines.config import PipelineConfig

_KINDS = {
    "string": ("VARCHAR",),
    "int": ("BIGINT", "UBIGINT"),
    "float": ("BIGINT", "UBIGINT", "DOUBLE"),
    "bool": ("BOOLEAN",),
    "array": ("ARRAY",),
}
"""What DuckDB's json_type may say of a value, by the declared type of its field."""
_CASTS = {"String": "VARCHAR", "Float64": "DOUBLE", "Bool": "BOOLEAN", "Array(String)": "VARCHAR[]"}
_INTEGER_CASTS = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}
_POSITION = "_tf_topic, _tf_partition, _tf_offset"


@dataclass(frozen=True)
class ContentVerdict:
    """What comparing contents found. `missing`: rows that the JSON calls for and the table lacks; `unexpected`: rows of the table that no
    record calls for. A row with another value is in both. Columns: those of the mapping (instants as microseconds since 1970), positions.
    """

    good_records: int
    rows: int
    missing: pa.Table
    unexpected: pa.Table

    @property
    def is_exact(self) -> bool:
        return int(self.missing.num_rows) + int(self.unexpected.num_rows) == 0

    def lines(self, examples: int = 2) -> list[str]:
        """The verdict in words, with up to `examples` rows of each fault."""
        found = [f"{self.good_records:,} records fit the mapping, {self.rows:,} rows: {'same' if self.is_exact else 'OTHER'} contents"]
        for name, table in (("record without its row", self.missing), ("row without its record", self.unexpected)):
            found += [f"{name}: {row}" for row in table.slice(0, examples).to_pylist()]
        return found


def verify_contents(records: pa.Table, rows: pa.Table, config: PipelineConfig) -> ContentVerdict:
    """Compares `rows` (mapped columns and positions, as `verify.read_table` gives them) with what `records` call for.

    `records` have the positions and `value`, as `verify.read_topic` gives them, without what dedup drops. A record fits when it is a JSON
    object whose fields have the declared types (null and absent are the same), each mapped value has a place in its column, and a null
    stands for Nullable columns only; other records must not have a row. Keys twice in one object are not looked for, nor columns with a
    DEFAULT.
    Raises ValueError for a field or column type that it does not know.
    """
    fields = [_Field(index, field.name, field.type) for index, field in enumerate(config.sources[0].schema_fields)]
    by_name = {field.name: field for field in fields}
    columns = [_Column(quote_identifier(m.column_name), by_name[m.name], parse_type(m.column_type)) for m in config.sink.mapping]
    engine = duckdb.connect(":memory:", config={"preserve_insertion_order": False})
    try:
        engine.register("records", records)
        engine.register("rows", rows)
        engine.execute(_typed_texts(fields))
        engine.execute(_wanted(fields, columns))
        found = ", ".join(f"{column.found} AS {column.name}" for column in columns)
        engine.execute(f"CREATE TABLE found AS SELECT {found}, {_POSITION} FROM rows")  # noqa: S608
        missing, unexpected = (
            engine.sql(f"SELECT * FROM (FROM {one} EXCEPT ALL FROM {other}) ORDER BY {_POSITION}").to_arrow_table()  # noqa: S608
            for one, other in (("wanted", "found"), ("found", "wanted"))
        )
        good = engine.execute("SELECT count(*) FROM wanted").fetchall()[0][0]
    finally:
        engine.close()
    return ContentVerdict(good, rows.num_rows, missing, unexpected)


@dataclass(frozen=True)
class _Field:
    """A field of the pipeline file; `kind` and `text` are its columns in the table `texts`."""

    index: int
    name: str
    type: str

    @property
    def kind(self) -> str:
        return f"k{self.index}"

    @property
    def text(self) -> str:
        return f"t{self.index}"

    @property
    def is_sound(self) -> str:
        if self.type not in _KINDS:
            raise ValueError(f"field {self.name}: type {self.type} is not known to verify_contents")
        return f"{self.kind} IN ('NULL', {', '.join(_literal(kind) for kind in _KINDS[self.type])})"


@dataclass(frozen=True)
class _Column:
    """A row of the mapping."""

    name: str
    field: _Field
    type: ColumnType

    @property
    def wanted(self) -> str:
        """The value that the field's text stands for; instants as microseconds since 1970, cut to the column's precision."""
        text, kind = self.field.text, self.type.name
        if kind in ("DateTime", "DateTime64"):
            digits = self.type.number(0) if kind == "DateTime64" else 0
            micros = f"epoch_us(try_cast({text} AS TIMESTAMP))"
            return f"{micros} - {micros} % {10 ** max(0, 6 - digits)}"
        if kind in INTEGER_BITS and INTEGER_BITS[kind] in _INTEGER_CASTS:
            return f"try_cast({text} AS {'U' * kind.startswith('U')}{_INTEGER_CASTS[INTEGER_BITS[kind]]})"
        cast = _CASTS.get(kind if not self.type.inner else f"{kind}({', '.join(inner.name for inner in self.type.inner)})")
        if cast is None:
            raise ValueError(f"column {self.name}: type {self.type} is not known to verify_contents")
        return f"try_cast({text}::JSON AS {cast})" if self.type.inner else f"try_cast({text} AS {cast})"

    @property
    def is_sound(self) -> str:
        when_null = "true" if self.type.nullable else "false"
        fits = f"({self.wanted}) IS NOT NULL"
        if self.type.inner:
            fits += f" AND len(list_filter(json_type({self.field.text}::JSON, '$[*]'), lambda kind: kind <> 'VARCHAR')) = 0"
        return f"CASE WHEN {self.field.kind} = 'NULL' THEN {when_null} ELSE {fits} END"

    @property
    def found(self) -> str:
        """The column as SELECT gave it, instants as `wanted` has them."""
        return f"epoch_us({self.name}::TIMESTAMPTZ)" if self.type.name in ("DateTime", "DateTime64") else self.name


def _typed_texts(fields: list[_Field]) -> str:
    """Table `texts`: per record that is a JSON object, its position and of each field the kind and the text (strings decoded).

    A field is the literal key where that is there and not null, else the nested one. Each document is taken apart twice, not per field.
    """
    keys = [path for field in fields for path in ([field.name], field.name.split("."))]
    paths = ", ".join(_literal("$" + "".join(f'."{key}"' for key in path)) for path in keys)
    columns = []
    for field in fields:
        # Lists count from 1; the literal key's place is odd, the nested one's comes after it.
        place = 2 * field.index + 1
        nearest = f"CASE WHEN coalesce(kinds[{place}], 'NULL') <> 'NULL' THEN {place} ELSE {place + 1} END"
        columns += [f"coalesce(kinds[{nearest}], 'NULL') AS {field.kind}", f"texts[{nearest}] AS {field.text}"]
    decoded = f"SELECT {_POSITION}, try(decode(value)) AS text FROM records"  # noqa: S608
    documents = f"SELECT {_POSITION}, CASE WHEN json_valid(text) THEN text::JSON END AS document FROM ({decoded})"  # noqa: S608
    apart = f"json_type(document, [{paths}]) AS kinds, json_extract_string(document, [{paths}]) AS texts"
    return f"""
        CREATE TABLE texts AS
        SELECT {_POSITION}, {", ".join(columns)}
        FROM (SELECT {_POSITION}, {apart} FROM ({documents}) WHERE json_type(document) = 'OBJECT')
    """  # noqa: S608


def _wanted(fields: list[_Field], columns: list[_Column]) -> str:
    """Table `wanted`: the rows that the records call for."""
    values = ", ".join(f"{column.wanted} AS {column.name}" for column in columns)
    sound = " AND ".join([field.is_sound for field in fields] + [column.is_sound for column in columns])
    return f"CREATE TABLE wanted AS SELECT {values}, {_POSITION} FROM texts WHERE {sound}"  # noqa: S608


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
