"""The matrix of types: which column types a field of each source type may become, in what form, and what is lost.

The pairs are those of the conversions (`step.targets_of`); FORMS says of each what its values look like, with an example that the tests
send through ClickHouse. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.process.steps.mapping.columns import targets_of
from pipelines.types.columns import INTEGER_BITS, INTERVALS
from pipelines.types.fields import SOURCE_TYPES

NOTHING = "nothing"
_UUID = "c0ffee00-1234-5678-9abc-def012345678"
_INTEGERS = tuple(INTEGER_BITS)
_FLOATS = ("Float32", "Float64")
_VARIANT = "Variant(Array(Int64), Bool, Float64, Int64, String)"
COLUMNS = (
    *("String", "FixedString", "Enum8", "Enum16", "UUID", "Bool"),
    *(*_INTEGERS, *_FLOATS, "BFloat16", "Decimal"),
    *("Date", "Date32", "DateTime", "DateTime64", "Time", "Time64", *INTERVALS),
    *("IPv4", "IPv6", "Array", "Nested", "QBit", "Map", "Tuple", "JSON", "Geometry", "Variant", "Dynamic"),
)
"""The column types by name, in the order of the page."""
_SAMPLES = {
    "FixedString": "FixedString(4)",
    "Enum8": "Enum8('on' = 1, 'off' = 2)",
    "Enum16": "Enum16('on' = 1, 'off' = 2)",
    "Decimal": "Decimal(18, 4)",
    "DateTime": "DateTime('UTC')",
    "DateTime64": "DateTime64(3, 'UTC')",
    "Time64": "Time64(3)",
    "Array": "Array(Int64)",
    "Map": "Map(String, Int64)",
    "Tuple": "Tuple(sku String, count Int64)",
    "Nested": "Nested(sku String, count Int64)",
    "QBit": "QBit(Float32, 3)",
    "Variant": _VARIANT,
}
"""A whole type, by the names of types that need arguments."""


@dataclass(frozen=True)
class Form:
    """The form of values of some source types for some column types. `example`: JSON; `stored`: the text that ClickHouse shows for it.

    `notation`: the unit or the format of the field in the example. `kind`: the column's type there, if it is not the usual one.
    """

    sources: tuple[str, ...]
    columns: tuple[str, ...]
    text: str
    example: str
    stored: str
    lost: str = NOTHING
    notation: str = ""
    kind: str = ""

    def column_type(self, column: str) -> str:
        return self.kind or _SAMPLES.get(column, column)


@dataclass(frozen=True)
class Pair:
    """A source type and a column type that it can become, with its forms, at least one."""

    source: str
    column: str
    forms: tuple[Form, ...]


_INTS = ("int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64")
_REALS = ("float", "float32", "float64")
_OBJECTS = ("object", "map")
_SECONDS = "digits finer than a second, cut off"
_PRECISION = "digits finer than the column's precision, cut off"
_TIMES = (("DateTime", "", _SECONDS), ("DateTime64", ".000", _PRECISION))
_NEAREST = "what the nearest float does not hold"
_NEAREST_BFLOAT = "what the nearest BFloat16 does not hold: it has eight binary digits"


def _times() -> Iterator[Form]:
    for column, fraction, lost in _TIMES:
        stored = f"2026-01-31 23:59:59{fraction}"
        exact = f"2026-01-31 23:59:59{'.123' if fraction else ''}"
        iso = "`2026-01-31T23:59:59Z`: `T` or a space, up to nine digits after a point, a zone or none, which is UTC"
        yield Form(("string",), (column,), iso, '"2026-01-31T23:59:59.123Z"', exact, lost)
        yield Form(("string",), (column,), "a text in the field's `format`", '"31/01/2026 23:59:59"', stored, lost, "%d/%m/%Y %H:%M:%S")
        text = "with `unit`: decimal digits, with a point as far as nanoseconds go"
        yield Form(("string",), (column,), text, '"1769903999.123"', exact, lost, "s")
        yield Form(
            ("int", "int64", "uint", "uint64"), (column,), "a number since 1970, of the field's `unit`", "1769903999123", exact, lost, "ms"
        )
        yield Form(("int32", "uint32"), (column,), "a number since 1970, of the field's `unit`", "1769903999", stored, lost)
        small = f"1970-01-01 00:00:07{fraction}"
        yield Form(("int8", "int16", "uint8", "uint16"), (column,), "a number since 1970, of the field's `unit`", "7", small, lost)
        lost_of_float = f"the nearest microsecond counts; {lost}"
        half = f"1970-01-01 00:00:07{'.500' if fraction else ''}"
        yield Form(_REALS, (column,), "a number since 1970, of the field's `unit`", "7.5", half, lost_of_float)


FORMS: tuple[Form, ...] = (
    Form(("string",), ("String",), "any text", '"é"', "é"),
    Form(("string",), ("FixedString",), "a text of at most so many bytes", '"abcd"', "abcd"),
    Form(("string",), ("Enum8", "Enum16"), "the name of a member", '"on"', "on"),
    Form(("string",), ("UUID",), "a UUID, in any case", f'"{_UUID.upper()}"', _UUID),
    Form(("string",), _INTEGERS, "decimal digits, with `-` before them or without", '"42"', "42"),
    Form(("string",), _FLOATS, "decimal digits, with a point and an exponent or without", '"-12.5e-1"', "-1.25", _NEAREST),
    Form(("string",), ("BFloat16",), "as of Float32", '"0.1"', "0.100097656", _NEAREST_BFLOAT),
    Form(("string",), INTERVALS, "decimal digits: a whole number of the unit", '"90"', "90"),
    Form(("string",), ("Decimal",), "decimal digits, with a point or without; all must fit", '"-12.5000"', "-12.5"),
    Form(("string",), ("Date", "Date32"), "`2026-01-31`", '"2026-01-31"', "2026-01-31"),
    Form(
        ("string",),
        ("Date", "Date32"),
        "a text in the field's `format`, which has no time of day",
        '"31.1.2026"',
        "2026-01-31",
        NOTHING,
        "%d.%m.%Y",
    ),
    *_times(),
    Form(("string",), ("Time",), "a time of day or a span, up to `999:59:59`", '"-12:30:00"', "-12:30:00"),
    Form(("string",), ("Time64",), "the same with a fraction; all its digits must fit", '"12:30:00.5"', "12:30:00.500"),
    Form(("string",), ("IPv4",), "an address", '"192.168.0.255"', "192.168.0.255"),
    Form(("string",), ("IPv6",), "an address; one of IPv4 is `::ffff:` before it", '"2001:db8::1"', "2001:db8::1"),
    Form(("string",), ("JSON",), "the text of an object", '"{\\"a\\":1}"', '{"a":1}'),
    Form(_INTS, _INTEGERS, "a whole number that fits", "42", "42"),
    Form(_INTS, _FLOATS, "a whole number", "42", "42", _NEAREST),
    Form(_INTS, ("BFloat16",), "a whole number", "42", "42", _NEAREST_BFLOAT),
    Form(_INTS, INTERVALS, "a whole number of the unit", "42", "42"),
    Form(_INTS, ("Decimal",), "a whole number; all digits must fit", "42", "42"),
    Form(_REALS, _FLOATS, "a number", "0.5", "0.5", _NEAREST),
    Form(_REALS, ("BFloat16",), "a number", "0.1", "0.100097656", _NEAREST_BFLOAT),
    Form(_REALS, ("Decimal",), "a number", "12.34375", "12.3438", "what the nearest decimal of the exact value does not hold"),
    Form(
        ("decimal",),
        ("Decimal",),
        "a number or a text of one, where a composite has a Decimal; a DECIMAL of an expression",
        '"12.5"',
        "12.5",
    ),
    Form(("bool",), ("Bool",), "true or false", "true", "true"),
    Form(("bytes",), ("String",), "any text, as its UTF-8 bytes", '"é"', "é"),
    Form(("bytes",), ("FixedString",), "a text of at most so many bytes", '"abcd"', "abcd"),
    Form(("array",), ("String",), "an array, as minified JSON", "[1, null]", "[1,null]"),
    Form(("array",), ("Array",), "an array; each element as its type asks", '[1, "2"]', "[1,2]"),
    Form(
        *(("array",), ("Array",), "an array of times: whole numbers of the field's `unit`, texts of them, or texts in its `format`"),
        *('[1769903999123, "1769903999123"]', "['2026-01-31 23:59:59.123','2026-01-31 23:59:59.123']", _PRECISION, "ms"),
        kind="Array(DateTime64(3, 'UTC'))",
    ),
    Form(("array",), ("Nested",), "an array of objects with the named members", '[{"sku": "a", "count": 2}]', "[('a',2)]"),
    Form(
        ("array",),
        ("QBit",),
        "an array of as many numbers",
        "[1, 0.5, -2]",
        "[1,0.5,-2]",
        "what the nearest float of the QBit does not hold",
    ),
    Form(("array",), ("Tuple",), "an array with an element for each member", '["a", 2]', "('a',2)", kind="Tuple(String, Int64)"),
    Form(_OBJECTS, ("String",), "an object, as minified JSON", '{"b": 1}', '{"b":1}'),
    Form(_OBJECTS, ("Map",), "an object; keys are what a `string` may become", '{"a": 1, "b": "2"}', "{'a':1,'b':2}"),
    Form(_OBJECTS, ("Tuple",), "an object with the named members; others are left out", '{"count": "2", "sku": "a"}', "('a',2)"),
    Form(_OBJECTS, ("JSON",), "an object", '{"a": 1}', '{"a":1}', "what ClickHouse's JSON does not keep, such as the order of keys"),
    Form(
        *(_OBJECTS, ("Geometry",), "a GeoJSON geometry; members other than `type` and `coordinates` are left out"),
        *('{"type": "LineString", "coordinates": [[0, 0], [1.5, 1]]}', "[(0,0),(1.5,1)]"),
    ),
    Form(("any",), ("String",), "any JSON value, as minified JSON", '"a"', '"a"'),
    Form(("any",), ("Variant",), "a value that one of the types keeps as it is", "[1, 2]", "[1,2]"),
    Form(("any",), ("Dynamic",), "a text, a boolean, a number, or an array of one of them", "1.5", "1.5"),
    Form(("timestamp",), ("DateTime",), "an instant of Kafka or NATS (`columns`)", "", "", _SECONDS),
    Form(("timestamp",), ("DateTime64",), "an instant of Kafka or NATS (`columns`)", "", "", _PRECISION),
)


def matrix() -> list[Pair]:
    """Return every pair that a conversion exists for, by source type, then by column type. Raise ValueError for one without a form."""
    pairs = []
    for source in SOURCE_TYPES:
        for column in sorted(targets_of(source), key=COLUMNS.index):
            forms = tuple(form for form in FORMS if source in form.sources and column in form.columns)
            if not forms:
                raise ValueError(f"a {source} can become {column}, and no form says how")
            pairs.append(Pair(source, column, forms))
    return pairs
