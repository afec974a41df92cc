"""The expected value of a column for a JSON value, as SQL for DuckDB.

Independent of the stages: it implements docs/clickhouse.md and docs/pipeline-file.md over DuckDB's own `json_type` and
`json_extract_string`. Each column has a **plain form**, in which both sides are compared: numbers and booleans as they are; texts, enums,
addresses, UUIDs and types without a DuckDB type as bytes; dates as days, times as seconds, instants as ticks of the column's precision
since 1970; maps as pairs in the order of their keys. Unions and geometries have theirs in `united_values`.

SQL is passed as text. Names of columns come from `columns.parse_type`, texts from a pipeline file only as quoted literals.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from pipelines.proof.verification.plain_form import DUCKDB_INTEGERS, LAST_DAYS, WIDEST_DECIMAL, duckdb_type
from pipelines.proof.verification.time_formats import is_of_days, iso_text
from pipelines.proof.verification.united_values import geometry_reading, union_reading
from pipelines.types.columns import FLOATS, INTEGER_BITS, INTERVALS, ColumnType
from pipelines.types.unions import is_union

MACROS = (
    *("instant_us", "instant_ns_rest", "floor_divide", "day_number", "plain_decimal", "is_finite_json"),
    *("ipv6_groups", "ipv6_side", "ipv6_hex", "nearest_bfloat16"),
)
"""Statements under sql/reference that an engine needs before any of this SQL, in this order."""

_INTEGERS = {"int": "BIGINT", "int8": "TINYINT", "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT"}
_INTEGERS |= {f"u{name}": f"U{kind}" for name, kind in _INTEGERS.items()}
_FLOATS = {"float": "DOUBLE", "float32": "FLOAT", "float64": "DOUBLE"}
_KINDS = {
    **dict.fromkeys(_INTEGERS, ("UBIGINT", "BIGINT")),
    **dict.fromkeys(_FLOATS, ("UBIGINT", "BIGINT", "DOUBLE")),
    "string": ("VARCHAR",),
    "bytes": ("VARCHAR",),
    "bool": ("BOOLEAN",),
    "array": ("ARRAY",),
    "object": ("OBJECT",),
    "map": ("OBJECT",),
    "any": ("UBIGINT", "BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN", "ARRAY", "OBJECT"),
    "decimal": ("UBIGINT", "BIGINT", "DOUBLE", "VARCHAR"),
    "blob": ("BLOB",),
    "timestamp": ("UBIGINT", "BIGINT"),
}
"""The answers of `json_type` that a field takes, by its declared type; `decimal` is a Decimal inside of a composite.

Of fields that do not come from JSON (`record_columns`) `blob` is one of bytes, which are its text, and `timestamp` an instant.
"""
_DECIMALS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_NO_DEFAULT_FOR_NULL = ("Array", "Map", "JSON", "QBit")
_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Reading:
    """SQL of a value in the plain form, and of whether the JSON value fits the column: true or false, never NULL."""

    value: str
    fits: str


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def is_sound(source: str, kind: str, text: str) -> str:
    """Return SQL: whether a field of this declared type may hold this value. A JSON null and a missing value (kind 'NULL') always fit."""
    condition = f"{kind} IN ({', '.join(literal(kind_of_json) for kind_of_json in _KINDS[source])})"
    if source in _INTEGERS:
        condition += f" AND try_cast({text} AS {_INTEGERS[source]}) IS NOT NULL"
    elif source in _FLOATS:
        condition += f" AND isfinite({_number(source, text)})"
    elif source == "decimal":
        condition += f" AND ({kind} = 'VARCHAR' OR isfinite(try_cast({text} AS DOUBLE)))"
    elif source in ("array", "object", "map"):
        condition += f" AND tf_is_finite_json({text})"
    elif source == "any":
        condition += f" AND ({kind} = 'VARCHAR' OR tf_is_finite_json({text}))"
    return f"({kind} = 'NULL' OR coalesce({condition}, false))"


def _number(source: str, text: str) -> str:
    """Return SQL of a JSON number: a DOUBLE; a float32 is the FLOAT nearest to it."""
    number = f"try_cast({text} AS DOUBLE)"
    return number if _FLOATS[source] == "DOUBLE" else f"try_cast({number} AS {_FLOATS[source]})"


def field_value(source: str, kind: str, text: str) -> str:
    """Return SQL of a field as expressions read it: NULL for a null, a number, a boolean, a text, the text of an array or an object."""
    value = text
    if source in _INTEGERS:
        value = f"CAST({text} AS {_INTEGERS[source]})"
    elif source in _FLOATS:
        value = _number(source, text)
    elif source == "bool":
        value = f"CAST({text} AS BOOLEAN)"
    elif source == "bytes":
        value = f"encode({text})"
    elif source == "timestamp":
        value = f"make_timestamptz(CAST({text} AS BIGINT))"
    elif source == "any":
        value = json_text(kind, text)
    return f"CASE WHEN {kind} <> 'NULL' THEN {value} END"


def json_text(kind: str, text: str) -> str:
    """Return SQL of the JSON text of a value of any kind, from its kind and its text."""
    return f"CASE WHEN {kind} = 'VARCHAR' THEN CAST(to_json({text}) AS VARCHAR) ELSE {text} END"


def kind_and_text(source: str, value: str) -> tuple[str, str]:
    """Return SQL of the kind and the text of a computed value: the inverse of `field_value`."""
    kind = literal(_KINDS[source][-1])
    if source in _INTEGERS:
        kind = f"CASE WHEN {value} < 0 THEN 'BIGINT' ELSE 'UBIGINT' END"
    text = {"blob": value, "timestamp": f"CAST(epoch_us({value}) AS VARCHAR)"}.get(source, f"CAST({value} AS VARCHAR)")
    return f"CASE WHEN {value} IS NULL THEN 'NULL' ELSE {kind} END", text


def is_finite(source: str, value: str) -> str:
    """Return SQL of whether a computed value has no number that is not finite."""
    if source in ("array", "object", "map"):
        return f"coalesce(tf_is_finite_json({value}), true)"
    return f"coalesce(isfinite({value}), true)" if source in _FLOATS else "true"


def key_text(source: str, text: str) -> str:
    """Return SQL of a text that two values of a key's field share exactly when they are equal."""
    if source in _FLOATS:
        # 0.0 turns both zeros into one.
        return f"(({_number(source, text)} + 0.0)::DOUBLE::VARCHAR)"
    if source in ("blob", "bytes"):
        return f"hex({text})"
    return text


def is_compared(kind: ColumnType) -> bool:
    """Return whether ClickHouse writes values of the type unchanged."""
    return kind.name != "JSON" and all(is_compared(inner) for inner in kind.inner)


def takes_null(kind: ColumnType, has_default: bool) -> bool:
    return kind.takes_null or (has_default and kind.name not in _NO_DEFAULT_FOR_NULL)


def reading(source: str, kind: ColumnType, json_kind: str, text: str, depth: int = 0, unit: str = "") -> Reading:
    """Return the reading of a value with this declared type, whose `json_type` is `json_kind` and whose text is `text`, for a column.

    The value is NULL if it is null or does not fit. `fits` does not cover nulls: the caller knows how the column treats them. `unit` is the
    unit of a number since 1970, or the format of a text, which holds a percent sign; it counts for times inside of composites, too.
    """
    if kind.name == "Array":
        return _array(kind, text, depth, unit)
    if kind.name == "QBit":
        vector = _array(kind, text, depth, unit)
        return Reading(vector.value, f"({vector.fits} AND json_array_length(try_cast({text} AS JSON)) = {kind.number(1)})")
    if kind.name == "Geometry":
        return Reading(*geometry_reading(text, lambda shape, coordinates: _parts(_array(shape, coordinates, depth, ""))))
    if is_union(kind):
        document = f"try_cast({json_text(json_kind, text)} AS JSON)"
        return Reading(*union_reading(kind, document, depth, lambda member, deeper: _parts(_element(member, document, deeper, unit))))
    if kind.name == "Map":
        return _map(kind, text, depth, unit)
    if kind.name == "Tuple":
        return _tuple(kind, text, depth, unit)
    if kind.name == "JSON":
        is_object = f"coalesce(json_valid({text}) AND regexp_matches({text}, '^[ \\t\\r\\n]*\\{{'), false)"
        return Reading("NULL", is_object if source == "string" else f"({text} IS NOT NULL)")
    if source == "any":
        value = f"encode({json_text(json_kind, text)})"
    elif source == "decimal":
        value = f"CASE WHEN {json_kind} = 'VARCHAR' THEN {_decimal('string', kind, text)} ELSE {_decimal('float64', kind, text)} END"
    elif "%" in unit and (kind.name in ("DateTime", "DateTime64") or (kind.name in LAST_DAYS and is_of_days(unit))):
        value = _scalar(source, kind, f"({iso_text(text, unit, kind.name in LAST_DAYS)})")
    elif unit and kind.name in ("DateTime", "DateTime64"):
        value = _instant_of_unit(source, kind, text, unit)
    else:
        value = _scalar(source, kind, text)
    return Reading(value, f"(({value}) IS NOT NULL)")


def _element(kind: ColumnType, document: str, depth: int, unit: str) -> Reading:
    """Return the reading of a JSON document inside of a composite; here `fits` covers nulls."""
    is_counted = bool(unit) and "%" not in unit and kind.name in ("DateTime", "DateTime64")
    source = "int64" if is_counted else _element_source(kind)
    json_kind, text = f"coalesce(json_type({document}), 'NULL')", f"json_extract_string({document}, '$')"
    inner = reading(source, kind, json_kind, text, depth, unit)
    value, fits = inner.value, f"{is_sound(source, json_kind, text)} AND {inner.fits}"
    if is_counted or kind.name in (*INTEGER_BITS, *INTERVALS, *FLOATS):
        # A number may be written as a text.
        of_text = reading("string", kind, json_kind, text, depth, unit)
        value = f"CASE WHEN {json_kind} = 'VARCHAR' THEN {of_text.value} ELSE {value} END"
        fits = f"CASE WHEN {json_kind} = 'VARCHAR' THEN {of_text.fits} ELSE {fits} END"
    when_null = "true" if kind.takes_null else "false"
    return Reading(value, f"CASE WHEN {json_kind} = 'NULL' THEN {when_null} ELSE {fits} END")


def _element_source(kind: ColumnType) -> str:
    """Return the declared type of an element that is no text of a number: instants, dates, addresses and enums are texts."""
    if kind.name in INTEGER_BITS:
        return "uint64" if kind.name.startswith("U") else "int64"
    if kind.name == "Tuple" and not kind.fields:
        return "array"
    declared = {"Array": "array", "Map": "object", "Tuple": "object", "JSON": "object", "Bool": "bool", "Decimal": "decimal"}
    declared |= {**dict.fromkeys(FLOATS, "float64"), **dict.fromkeys(INTERVALS, "int64"), "Variant": "any", "Dynamic": "any"}
    return declared.get(kind.name, "string")


def _parts(found: Reading) -> tuple[str, str]:
    return found.value, found.fits


def _all(elements: str, name: str, fits: str) -> str:
    return f"coalesce(len(list_filter({elements}, lambda {name}: NOT ({fits}))) = 0, false)"


def _array(kind: ColumnType, text: str, depth: int, unit: str) -> Reading:
    name = f"e{depth}"
    elements = f"json_extract(try_cast({text} AS JSON), '$[*]')"
    inner = _element(kind.inner[0], name, depth + 1, unit)
    return Reading(f"list_transform({elements}, lambda {name}: {inner.value})", _all(elements, name, inner.fits))


def _map(kind: ColumnType, text: str, depth: int, unit: str) -> Reading:
    """Return the reading of a Map: in a Map of strings, other values become their JSON text. Keys are distinct."""
    name = f"e{depth}"
    keys, values = f"json_keys(try_cast({text} AS JSON))", f"json_extract(try_cast({text} AS JSON), '$.*')"
    pairs = f"list_zip({keys}, {values})"
    key = reading("string", kind.inner[0], "'VARCHAR'", f"{name}[1]", depth + 1)
    value = _map_value(kind.inner[1], f"{name}[2]", depth + 1, unit)
    plain = f"list_sort(list_transform({pairs}, lambda {name}: {{'1': {key.value}, '2': {value.value}}}))"
    fits = f"list_unique({keys}) = len({keys}) AND {_all(pairs, name, f'{key.fits} AND {value.fits}')}"
    return Reading(plain, f"coalesce({fits}, false)")


def _map_value(kind: ColumnType, document: str, depth: int, unit: str) -> Reading:
    if kind.name != "String":
        return _element(kind, document, depth, unit)
    is_null = f"coalesce(json_type({document}), 'NULL') = 'NULL'"
    return Reading(f"encode(json_extract_string({document}, '$'))", "true" if kind.nullable else f"NOT ({is_null})")


def _tuple(kind: ColumnType, text: str, depth: int, unit: str) -> Reading:
    document = f"try_cast({text} AS JSON)"
    places = [f'."{name}"' for name in kind.fields] or [f"[{index}]" for index in range(len(kind.inner))]
    members = [_element(one, f"json_extract({document}, '${place}')", depth, unit) for place, one in zip(places, kind.inner, strict=True)]
    plain = ", ".join(f"'{number}': {member.value}" for number, member in enumerate(members, 1))
    keys = f"json_keys({document})"
    is_whole = f"list_unique({keys}) = len({keys})" if kind.fields else f"json_array_length({document}) = {len(kind.inner)}"
    fits = " AND ".join([is_whole, *(member.fits for member in members)])
    return Reading(f"CASE WHEN {text} IS NOT NULL THEN {{{plain}}} END", f"coalesce({fits}, false)")


def _scalar(source: str, kind: ColumnType, text: str) -> str:
    if source == "blob":
        return _bytes(kind, text)
    if kind.name in (*INTEGER_BITS, *INTERVALS):
        name = "Int64" if kind.name in INTERVALS else kind.name
        return _integer_of_text(name, text) if source == "string" else _integer(name, text)
    if kind.name in FLOATS:
        return _float(source, kind.name, text)
    if kind.name == "Decimal":
        return _decimal(source, kind, text)
    if kind.name in ("DateTime", "DateTime64"):
        return _instant(source, kind, text)
    if kind.name in ("Time", "Time64"):
        return _time(kind, text)
    if kind.name in LAST_DAYS:
        first, last = LAST_DAYS[kind.name]
        return f"CASE WHEN tf_day_number({text}) BETWEEN {first} AND {last} THEN tf_day_number({text})::INTEGER END"
    if kind.name in ("Enum8", "Enum16"):
        return f"CASE WHEN {text} IN ({', '.join(literal(member.name) for member in kind.members)}) THEN encode({text}) END"
    if kind.name == "FixedString":
        return f"CASE WHEN octet_length(encode({text})) <= {kind.number(0)} THEN encode(rtrim({text}, chr(0))) END"
    return {
        "String": f"encode({text})",
        "Bool": f"try_cast({text} AS BOOLEAN)",
        "UUID": f"CASE WHEN regexp_full_match({text}, '{_UUID}') THEN encode(lower({text})) END",
        "IPv4": f"CASE WHEN regexp_full_match({text}, '({_OCTET}\\.){{3}}{_OCTET}') THEN encode({text}) END",
        "IPv6": f"encode(tf_ipv6_hex({text}))",
    }[kind.name]


def _bytes(kind: ColumnType, content: str) -> str:
    if kind.name == "FixedString":
        return f"CASE WHEN octet_length({content}) <= {kind.number(0)} THEN unhex(regexp_replace(hex({content}), '(00)+$', '')) END"
    return content


def _integer(name: str, text: str) -> str:
    bits = INTEGER_BITS[name]
    if bits in DUCKDB_INTEGERS:
        return f"try_cast({text} AS {'U' * name.startswith('U')}{DUCKDB_INTEGERS[bits]})"
    return f"CASE WHEN NOT starts_with({text}, '-') THEN encode({text}) END" if name.startswith("U") else f"encode({text})"


def _integer_of_text(name: str, text: str) -> str:
    """Return SQL of a decimal text as an integer; one of more than 64 bits in its shortest form: DuckDB has none of 256 bits."""
    bits, is_unsigned = INTEGER_BITS[name], name.startswith("U")
    if bits in DUCKDB_INTEGERS:
        return f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN {_integer(name, text)} END"
    digits, is_negative = f"ltrim({text}, '-0')", f"starts_with({text}, '-')"

    def is_within(limit: int) -> str:
        return f"(length({digits}) < {len(str(limit))} OR length({digits}) = {len(str(limit))} AND {digits} <= '{limit}')"

    greatest = 2**bits - 1 if is_unsigned else 2 ** (bits - 1) - 1
    fits = f"CASE WHEN {digits} = '' THEN true WHEN {is_negative} THEN {'false' if is_unsigned else is_within(greatest + 1)} "
    fits += f"ELSE {is_within(greatest)} END"
    plain = f"CASE WHEN {digits} = '' THEN '0' WHEN {is_negative} THEN '-' || {digits} ELSE {digits} END"
    return f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') AND {fits} THEN encode({plain}) END"


def _float(source: str, name: str, text: str) -> str:
    if source == "string":
        is_number = f"regexp_full_match({text}, '-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?')"
        return f"CASE WHEN {is_number} THEN {_float('float64', name, text)} END"
    number = _number(source, text) if source in _FLOATS else f"try_cast({text} AS HUGEINT)"
    if name == "BFloat16":
        number = f"tf_nearest_bfloat16({number}::DOUBLE)"
    plain = f"try_cast({number} AS {'DOUBLE' if name == 'Float64' else 'FLOAT'})"
    return f"CASE WHEN isfinite({plain}) THEN {plain} END"


def _decimal(source: str, kind: ColumnType, text: str) -> str:
    """Return SQL of a decimal: the nearest of a float (`format` writes the exact digits); of a text or an integer all digits must fit."""
    precision, scale = kind.number(0), kind.number(1)
    digits = f"format('{{:.{scale}f}}', {_number(source, text)}::DOUBLE)" if source in _FLOATS else text
    fits = f"regexp_full_match({digits}, '-?0*[0-9]{{0,{precision - scale}}}(\\.[0-9]{{0,{scale}}}0*)?')"
    is_number = f"regexp_full_match({digits}, '-?[0-9]+(\\.[0-9]+)?')"
    plain = f"encode(tf_plain_decimal({digits}))"
    if precision <= WIDEST_DECIMAL:
        plain = f"try_cast(tf_plain_decimal({digits}) AS DECIMAL({precision}, {scale}))"
    return f"CASE WHEN {is_number} AND {fits} THEN {plain} END"


def _time(kind: ColumnType, text: str) -> str:
    digits = kind.number(0) if kind.name == "Time64" else 0
    clock = "-?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]"
    fits = f"regexp_full_match({text}, '{clock}(\\.[0-9]+)?') AND regexp_full_match({text}, '{clock}(\\.[0-9]{{0,{digits}}}0*)?')"
    fits += f" AND NOT regexp_matches({text}, '\\.[0-9]{{10}}')"
    hours, minutes, seconds = (f"split_part(ltrim({text}, '-'), ':', {index})" for index in (1, 2, 3))
    number = f"try_cast({hours} AS INTEGER) * 3600 + try_cast({minutes} AS INTEGER) * 60 + try_cast({seconds} AS DECIMAL(18, {digits}))"
    return (
        f"CASE WHEN {fits} THEN try_cast(CASE WHEN starts_with({text}, '-') THEN -({number}) ELSE {number} END AS {duckdb_type(kind)}) END"
    )


def _instant(source: str, kind: ColumnType, text: str) -> str:
    digits = kind.number(0) if kind.name == "DateTime64" else 0
    low, high = _instant_bounds(kind.name, digits)
    rest = "0"
    if source == "string":
        micros, fits = f"tf_instant_us({text})", f"tf_instant_us({text}) BETWEEN {low} AND {high}"
        rest = f"tf_instant_ns_rest({text})"
    elif source == "timestamp":
        micros, fits = f"try_cast({text} AS BIGINT)", f"try_cast({text} AS BIGINT) BETWEEN {low} AND {high}"
    elif source in _FLOATS:
        # As a DOUBLE, because the bounds of a FLOAT comparison would be rounded to FLOATs.
        number = f"{_number(source, text)}::DOUBLE"
        micros = f"round_even({number} * 1e6, 0)::BIGINT"
        fits = f"{number} BETWEEN {-(-low // 1_000_000)} AND {high // 1_000_000}"
    else:
        number = f"try_cast({text} AS HUGEINT)"
        micros = f"({number} * 1000000)::BIGINT"
        fits = f"{number} BETWEEN {-(-low // 1_000_000)} AND {high // 1_000_000}"
    ticks = f"({micros} * 1000 + {rest})" if digits > 6 else f"({micros})"
    return f"CASE WHEN {fits} THEN tf_floor_divide({ticks}, {10 ** ((9 if digits > 6 else 6) - digits)}) END"


def _instant_of_unit(source: str, kind: ColumnType, text: str, unit: str) -> str:
    """Return SQL of a number since 1970, exact in nanoseconds; a float is taken to the nearest microsecond, between whole seconds."""
    digits = kind.number(0) if kind.name == "DateTime64" else 0
    low, high = _instant_bounds(kind.name, digits)
    decimals = 9 - _DECIMALS[unit]
    fits = "true"
    if source in _FLOATS:
        number, per_second = f"{_number(source, text)}::DOUBLE", 10 ** _DECIMALS[unit]
        micros = f"{number} * {10 ** (6 - _DECIMALS[unit])}" if decimals >= 3 else f"{number} / 1000"
        nanos = f"round_even({micros}, 0)::HUGEINT * 1000"
        fits = f"{number} BETWEEN {-(-low // 1_000_000) * per_second} AND {high // 1_000_000 * per_second}"
    elif source == "string":
        fits = f"regexp_full_match({text}, '-?[0-9]+{f'([.][0-9]{{1,{decimals}}})?' if decimals else ''}')"
        digits_of = f"regexp_extract({text}, '[0-9]+') || rpad(regexp_extract({text}, '[.]([0-9]+)', 1), {decimals}, '0')"
        nanos = f"try_cast(ltrim({digits_of}, '0') || '' AS HUGEINT)"
        nanos = f"CASE WHEN ltrim({digits_of}, '0') = '' THEN 0 WHEN starts_with({text}, '-') THEN -{nanos} ELSE {nanos} END"
    else:
        nanos = f"try_cast({text} AS HUGEINT) * {10**decimals}"
    inside = f"({nanos}) BETWEEN {low * 1000}::HUGEINT AND {high * 1000 + 999}::HUGEINT"
    return f"CASE WHEN {fits} AND {inside} THEN tf_floor_divide(({nanos}), {10 ** (9 - digits)}::HUGEINT)::BIGINT END"


def _instant_bounds(name: str, digits: int) -> tuple[int, int]:
    """Return the bounds in microseconds, inclusive; from the ClickHouse manual, as in docs/pipeline-file.md."""
    first, last = datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, 23, 59, 59, tzinfo=UTC)
    if name == "DateTime":
        first, last = _EPOCH, datetime(2106, 2, 7, 6, 28, 15, tzinfo=UTC)
    elif digits > 6:
        last = datetime(2262, 4, 11, 23, 47, 15, tzinfo=UTC)
    return int(first.timestamp()) * 1_000_000, int(last.timestamp()) * 1_000_000 + 999_999
