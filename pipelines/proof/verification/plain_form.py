"""A column of ClickHouse in the plain form of `values`, and the plain form in DuckDB: its types, and as texts for people."""

from pipelines.types.columns import FLOATS, INTEGER_BITS, INTERVALS, SHAPES, ColumnType
from pipelines.types.unions import is_union, members_of

DUCKDB_INTEGERS = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT"}
WIDEST_DECIMAL = 38
MISSING_BRACKETS = {"Point": 3, "LineString": 2, "MultiPoint": 2, "Polygon": 1, "MultiLineString": 1, "MultiPolygon": 0}
"""How many pairs of brackets the coordinates of a shape lack to be those of a MultiPolygon."""
LAST_DAYS = {"Date": (0, 65_535), "Date32": (-25_567, 120_529)}
"""1970-01-01 to 2149-06-06, 1900-01-01 to 2299-12-31."""


def duckdb_type(kind: ColumnType) -> str:
    if kind.name in ("Array", "QBit"):
        return f"{duckdb_type(kind.inner[0])}[]"
    if kind.name == "Geometry":
        return f'STRUCT("1" BLOB, "2" {duckdb_type(SHAPES["MultiPolygon"])})'
    if is_union(kind):
        lists = (f'"{number}" {duckdb_type(member)}[]' for number, member in enumerate(members_of(kind), 1))
        return f"STRUCT({', '.join(lists)})"
    if kind.name in ("Map", "Tuple"):
        struct = ", ".join(f'"{number}" {duckdb_type(inner)}' for number, inner in enumerate(kind.inner, 1))
        return f"STRUCT({struct})" + "[]" * (kind.name == "Map")
    if kind.name in INTEGER_BITS and INTEGER_BITS[kind.name] in DUCKDB_INTEGERS:
        return f"{'U' * kind.name.startswith('U')}{DUCKDB_INTEGERS[INTEGER_BITS[kind.name]]}"
    if kind.name == "Decimal" and kind.number(0) <= WIDEST_DECIMAL:
        return f"DECIMAL({kind.number(0)}, {kind.number(1)})"
    if kind.name == "Time64":
        return f"DECIMAL(18, {kind.number(0)})"
    types = {"Bool": "BOOLEAN", "Time": "INTEGER", "Float64": "DOUBLE", **dict.fromkeys(("BFloat16", "Float32"), "FLOAT")}
    types |= dict.fromkeys(("DateTime", "DateTime64", *INTERVALS), "BIGINT")
    return types.get(kind.name, "INTEGER" if kind.name in LAST_DAYS else "BLOB")


def plain_sql(kind: ColumnType, value: str, depth: int = 0) -> str:
    """Return ClickHouse SQL of `value`, of type `kind`, in the plain form.

    Texts must be sent as bytes (`output_format_arrow_string_as_string = 0`).
    """
    name = f"e{depth}"
    if kind.name == "Array":
        inner = plain_sql(kind.inner[0], name, depth + 1)
        return value if inner == name else f"arrayMap({name} -> {inner}, {value})"
    if kind.name == "Map":
        key, entry = (plain_sql(inner, f"{side}{depth}", depth + 1) for side, inner in zip("kv", kind.inner, strict=True))
        pairs = f"arrayMap((k{depth}, v{depth}) -> tuple({key}, {entry}), mapKeys({value}), mapValues({value}))"
        return f"arraySort({name} -> {name}.1, {pairs})"
    if kind.name == "Tuple":
        members = (plain_sql(inner, f"tupleElement({value}, {number})", depth) for number, inner in enumerate(kind.inner, 1))
        plain = f"tuple({', '.join(members)})"
        return f"if({value} IS NULL, NULL, {plain})" if kind.nullable else plain
    if kind.name == "Geometry":
        return _plain_geometry(value)
    if is_union(kind):
        return _plain_union(kind, value, depth)
    if kind.name == "QBit":
        return f"CAST({value} AS Array({'Float32' if kind.inner[0].name in FLOATS[:2] else kind.inner[0]}))"
    if kind.name == "BFloat16":
        return f"toFloat32({value})"
    if kind.name == "DateTime64":
        return f"reinterpret({value}, 'Int64')"
    if kind.name == "DateTime" or kind.name in INTERVALS:
        return f"toInt64({value})"
    if kind.name in LAST_DAYS or kind.name == "Time":
        return f"toInt32({value})"
    if kind.name == "Time64":
        return f"toDecimal64({value}, {kind.number(0)})"
    if kind.name == "IPv6":
        return f"hex({value})"
    if kind.name == "FixedString":
        return f"trim(TRAILING '\\0' FROM toString({value}))"
    is_text = kind.name in ("UUID", "IPv4", "Enum8", "Enum16") or (kind.name == "Decimal" and kind.number(0) > WIDEST_DECIMAL)
    is_wide = kind.name in INTEGER_BITS and INTEGER_BITS[kind.name] not in DUCKDB_INTEGERS
    return f"toString({value})" if is_text or is_wide else value


def _plain_union(kind: ColumnType, value: str, depth: int) -> str:
    """Return SQL of a list for each member, with the value in the list of its own type; the names of members come from `parse_type`."""
    lower = kind.name.lower()
    lists = []
    for member in members_of(kind):
        plain = plain_sql(member, f"assumeNotNull({lower}Element({value}, '{member}'))", depth)
        lists.append(f"if({lower}Type({value}) = '{member}', [{plain}], [])")
    return f"if({value} IS NULL, NULL, tuple({', '.join(lists)}))"


def _plain_geometry(value: str) -> str:
    """Return SQL of the name of a shape, and its coordinates with as many brackets as those of a MultiPolygon."""
    cases = []
    for shape, count in MISSING_BRACKETS.items():
        element = f"assumeNotNull(variantElement({value}, '{shape}'))"
        cases.append(f"variantType({value}) = '{shape}', {'[' * count}{element}{']' * count}")
    return f"if({value} IS NULL, NULL, tuple(toString(variantType({value})), multiIf({', '.join(cases)}, [])))"


def text_sql(kind: ColumnType, value: str) -> str:
    """Return DuckDB SQL of a value in the plain form as a readable text."""
    plain = duckdb_type(kind)
    if is_union(kind):
        lists = [(member, f"struct_extract({value}, '{number}')") for number, member in enumerate(members_of(kind), 1)]
        cases = " ".join(f"WHEN len({held}) > 0 THEN '{member} ' || ({text_sql(member, f'{held}[1]')})" for member, held in lists)
        return f"CASE {cases} ELSE {value}::VARCHAR END"
    if kind.name == "Geometry":
        return f"(decode(struct_extract({value}, '1')) || ' ' || struct_extract({value}, '2')::VARCHAR)"
    if plain == "BLOB":
        return f"coalesce(try(decode({value})), {value}::VARCHAR)"
    if kind.name in LAST_DAYS:
        return f"(DATE '1970-01-01' + {value})::VARCHAR"
    if kind.name in ("DateTime", "DateTime64"):
        digits = kind.number(0) if kind.name == "DateTime64" else 0
        micros = f"{value} * {10 ** (6 - digits)}" if digits <= 6 else f"{value} // {10 ** (digits - 6)}"
        return f"(make_timestamp({micros})::VARCHAR || 'Z')"
    return f"({value})::VARCHAR"
