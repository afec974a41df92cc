"""Scalar conversions from parsed columns to ClickHouse column types, a whole column at a time.

Every conversion takes a column and returns (column, faults): the column has `arrow_type(target)` (or is binary, for bytes into String) and
the length of the input. A fault marks rows whose value does not fit the target; these rows hold any value. Null stays null. Nothing is
rounded or cut in silence, with two exceptions: a float takes the nearest value of a narrower float or Decimal, and instants lose digits
finer than the column's precision.
"""

import ipaddress
import math
import socket
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import INTEGER_BITS, INTERVALS, ColumnType
from pipelines.types.engine import Engine
from pipelines.types.formatted_times import iso_texts
from pipelines.types.instants import epoch_texts_to_instants, epoch_to_instants, parse_dates, parse_instants, truncate_instants
from pipelines.types.time_formats import has_time_of_day, is_format
from pipelines.types.vectors import Mask, mismatch, to_mask, without


class Fault(NamedTuple):
    """Rows of a column whose value is rejected, and the reason. `message` never holds a value."""

    rows: Mask
    code: str
    message: str


Converted = tuple[pa.Array, list[Fault]]
_UUID = r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_WIDEST_JSON_INTEGER = 64
"""Bits of the widest integer of a record; wider ones travel as texts."""
_ANY_INTEGER = pa.decimal128(38, 0)
"""Holds every integer of 64 bits."""
_MOST_DIGITS = len(str(2**256))
_EXACT_SCALE = 22
"""Largest exact scale: a float's 53 bits times ten to this scale fit into pyarrow's 128 bits; beyond, the last digit may be off by one."""
_INT64, _FLOAT64 = ColumnType("Int64"), ColumnType("Float64")
_BFLOAT16_BITS, _BFLOAT16_LEAST_EXPONENT = 8, -125
"""Binary digits of a BFloat16, and the least exponent of a number that has all of them, as `frexp` counts it."""
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CLOCK = r"^-?[0-9]{1,3}:[0-5][0-9]:[0-5][0-9]"
_IPV4 = rf"^{_OCTET}(?:\.{_OCTET}){{3}}$"


def convert_scalar(engine: Engine, column: pa.Array, target: ColumnType, notation: str = "") -> Converted:
    """Convert `column` to `target`, which is no Array, Map or Tuple. Raise TypeError for a pair that `check_mapping` rejects.

    `notation`: the unit since 1970 or the format of a time; it counts for targets of times only.
    """
    source = column.type
    if pa.types.is_dictionary(source):
        return convert_scalar(engine, column.cast(source.value_type), target, notation)
    if is_written_in(notation, target):
        return convert_formatted(engine, column, target, notation)
    if is_counted_in(notation, target):
        return convert_epoch(column, target, notation)
    convert = next((conversions.get(target.name) for is_of_kind, conversions in _CONVERSIONS if is_of_kind(source)), None)
    if convert is None:
        raise TypeError(f"no conversion from {source} to {target}")
    return convert(engine, column, target)


def _unchanged(_engine: Engine, column: pa.Array, _target: ColumnType) -> Converted:
    return column, []


def _integer(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    wire = arrow_type(target)
    if wire == column.type:
        return column, []
    low, high = integer_bounds(target.name)
    column, faults = _clip(column, low, high, target)
    if pa.types.is_integer(wire):
        return column.cast(wire), faults
    return _wide_integer(column, wire), faults


def integer_bounds(name: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type, by its ClickHouse name."""
    bits = INTEGER_BITS[name]
    return (0, 2**bits - 1) if name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _wide_integer(column: pa.Array, wire: pa.DataType) -> pa.Array:
    """Return little-endian bytes; the sign fills the upper ones."""
    width = wire.byte_width
    signed = column.type in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    numbers = _numbers(column.cast(pa.int64() if signed else pa.uint64()))
    wide = np.zeros((len(column), width // 8), dtype=np.int64)
    wide[:, 0] = numbers.astype(np.int64)
    if signed:
        wide[:, 1:] = np.where(numbers < 0, -1, 0)[:, None]
    return _fixed(wide.astype("<i8").tobytes(), wire, column)


def _integer_from_string(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    """Convert decimal texts to an integer of at most 64 bits."""
    malformed = mismatch(column, r"^-?[0-9]+$")
    plain = pc.replace_substring_regex(without(column, malformed), r"^(-?)0+([0-9])", r"\1\2")
    is_long = to_mask(pc.greater(pc.utf8_length(plain), _ANY_INTEGER.precision))
    numbers = without(plain, is_long).cast(_ANY_INTEGER)
    low, high = (pa.scalar(Decimal(bound), _ANY_INTEGER) for bound in integer_bounds(target.name))
    beyond = to_mask(pc.or_(pc.less(numbers, low), pc.greater(numbers, high))) | is_long
    faults = _fault(malformed, "invalid_value", "the string is no integer")
    faults += _fault(beyond, "out_of_range", f"the integer does not fit {target}")
    return without(numbers, beyond).cast(arrow_type(target)), faults


def _float_from_string(engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    """Convert decimal texts, with an exponent or without, to the nearest float."""
    malformed = mismatch(column, r"^-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$")
    texts = without(column, malformed)
    (numbers,) = engine.ask("SELECT try_cast(v AS DOUBLE) FROM _tf_values", texts)
    infinite = to_mask(pc.is_valid(texts)) & ~to_mask(pc.is_finite(numbers))
    result, faults = _float(engine, without(numbers, infinite), target)
    infinite_fault = _fault(infinite, "out_of_range", f"the number does not fit {target}")
    return result, [*_fault(malformed, "invalid_value", "the string is no number such as -12.5e3"), *infinite_fault, *faults]


def _wide_integer_from_string(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    """Convert decimal texts. Each distinct text is read once: Arrow has no integer of more than 64 bits."""
    malformed = mismatch(column, r"^-?[0-9]+$")
    low, high = integer_bounds(target.name)
    coded = without(column, malformed).dictionary_encode()
    wire = arrow_type(target)
    numbers = [_short_integer(text) for text in coded.dictionary.to_pylist()]
    fitting = [number if number is not None and low <= number <= high else None for number in numbers]
    packed = [None if number is None else number.to_bytes(wire.byte_width, "little", signed=low < 0) for number in fitting]
    result = pa.array(packed, wire).take(coded.indices)
    beyond = to_mask(pc.is_null(result)) & to_mask(pc.is_valid(column)) & ~malformed
    faults = _fault(malformed, "invalid_value", "the string is no integer")
    return result, [*faults, *_fault(beyond, "out_of_range", f"the integer does not fit {target}")]


def _short_integer(text: str) -> int | None:
    """Return the integer of a decimal text; None if it has more digits than 256 bits hold: Python refuses very many."""
    digits = text.lstrip("-0")
    return (-1 if text.startswith("-") else 1) * int(digits or "0") if len(digits) <= _MOST_DIGITS else None


def _interval(engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    """Convert whole numbers, or texts of them, to a number of the target's units: 64 bits, whatever the unit."""
    read = _integer_from_string if pa.types.is_string(column.type) else _integer
    return read(engine, column, _INT64)


def _integer_to_float(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    return column.cast(arrow_type(target), safe=False), []


def _float(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    result = column.cast(arrow_type(target), safe=False)
    if target.name == "Float64" or result.type == column.type:
        return result, []
    return result, _fault(to_mask(pc.is_inf(result)) & to_mask(pc.is_finite(column)), "out_of_range", f"the number does not fit {target}")


def _bfloat16(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    """Convert numbers to the nearest BFloat16 of their Float64, as a float32 that ClickHouse stores unchanged: it cuts off other ones."""
    numbers = _numbers(column.cast(pa.float64(), safe=False))
    exponents = np.maximum(np.frexp(numbers)[1], _BFLOAT16_LEAST_EXPONENT)
    with np.errstate(over="ignore"):
        nearest = np.ldexp(np.rint(np.ldexp(numbers, _BFLOAT16_BITS - exponents)), exponents - _BFLOAT16_BITS).astype(np.float32)
    beyond = np.isinf(nearest) & np.isfinite(numbers)
    return pa.array(nearest, mask=to_mask(pc.is_null(column))), _fault(beyond, "out_of_range", f"the number does not fit {target}")


def _bfloat16_from_string(engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    numbers, faults = _float_from_string(engine, column, _FLOAT64)
    result, more = _bfloat16(engine, numbers, target)
    return result, [*faults, *more]


def _integer_to_decimal(engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    return _string_to_decimal(engine, column.cast(pa.string()), target)


def _float_to_decimal(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    numbers = column.cast(pa.float64())
    precision, scale = target.number(0), target.number(1)
    beyond = to_mask(pc.invert(pc.less_equal(pc.abs(numbers), _greatest_float(precision, scale))))
    fitting = without(numbers, beyond)
    if scale > _EXACT_SCALE:
        fitting = fitting.cast(pa.decimal256(precision, scale))
    return fitting.cast(arrow_type(target)), _fault(beyond, "out_of_range", f"the number does not fit {target}")


@lru_cache(maxsize=64)
def _greatest_float(precision: int, scale: int) -> float:
    """Return the greatest float whose nearest decimal of `scale` digits has at most `precision` digits.

    A tie is rounded to even, so at the edge it is out of range.
    """
    edge = Fraction(10**precision * 2 - 1, 2 * 10**scale)
    nearest = float(edge)
    return nearest if Fraction(nearest) < edge else math.nextafter(nearest, 0.0)


def _string_to_decimal(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    precision, scale = target.number(0), target.number(1)
    malformed = mismatch(column, r"^-?[0-9]+(?:\.[0-9]+)?$")
    fits = rf"^-?0*{_at_most(precision - scale)}(?:\.{_at_most(scale)}0*)?$"
    beyond = mismatch(column, fits) & ~malformed
    plain = pc.replace_substring_regex(without(column, malformed | beyond), r"^(-?)0+([0-9])", r"\1\2")
    shortened = pc.replace_substring_regex(plain, rf"(\.[0-9]{{{scale}}})0+$", r"\1")
    faults = _fault(malformed, "invalid_value", "the string is no decimal number such as -12.50")
    return shortened.cast(arrow_type(target)), [*faults, *_fault(beyond, "out_of_range", f"the number has more digits than {target} holds")]


def _at_most(digits: int) -> str:
    return rf"[0-9]{{0,{digits}}}"


def _fixed_string(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    length = target.number(0)
    binary = column.cast(pa.binary())
    too_long = to_mask(pc.greater(pc.binary_length(binary), length))
    return binary, _fault(too_long, "out_of_range", f"the string has more than {length} bytes")


def _enum(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    names = pa.array([member.name for member in target.members], pa.string())
    values = pa.array([member.value for member in target.members], arrow_type(target))
    index = pc.index_in(column, names)
    unknown = to_mask(pc.and_(pc.is_null(index), pc.is_valid(column)))
    return values.take(index), _fault(unknown, "invalid_value", "the string is no member of the Enum")


def _uuid(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    malformed = mismatch(column, _UUID)
    texts = without(column, malformed)
    digits = pc.replace_substring(pc.fill_null(texts, "0" * 32), "-", "")
    packed = bytes.fromhex("".join(digits.to_pylist()))
    return _fixed(packed, arrow_type(target), texts), _fault(malformed, "invalid_value", "the string is no UUID")


def _ipv4(_engine: Engine, column: pa.Array, _target: ColumnType) -> Converted:
    malformed = mismatch(column, _IPV4)
    texts = without(column, malformed)
    packed = b"".join(map(socket.inet_aton, pc.fill_null(texts, "0.0.0.0").to_pylist()))  # noqa: S104
    numbers = pa.array(np.frombuffer(packed, ">u4").astype(np.uint32), mask=to_mask(pc.is_null(texts)))
    return numbers, _fault(malformed, "invalid_value", "the string is no IPv4 address")


def _ipv6(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    """Convert addresses, including an IPv4 address as `::ffff:a.b.c.d`.

    Each distinct address is read once: there is no vectorized reader.
    """
    coded = column.dictionary_encode()
    packed = pa.array([_packed_address(text) for text in coded.dictionary.to_pylist()], arrow_type(target))
    result = packed.take(coded.indices)
    malformed = to_mask(pc.and_(pc.is_null(result), pc.is_valid(column)))
    return result, _fault(malformed, "invalid_value", "the string is no IPv6 address")


def _packed_address(text: str) -> bytes | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return b"\0" * 10 + b"\xff\xff" + address.packed
    return None if address.scope_id else address.packed


def _json(engine: Engine, column: pa.Array, _target: ColumnType) -> Converted:
    (valid,) = engine.ask("SELECT json_valid(v) FROM _tf_values", column)
    braced = pc.match_substring_regex(column, r"^[ \t\r\n]*\{")
    malformed = to_mask(pc.invert(pc.and_(valid, braced)))
    return column, _fault(malformed, "invalid_value", "the string is no JSON object")


def _date(engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    days, malformed, beyond = parse_dates(engine, column, target.name)
    faults = _fault(malformed, "invalid_value", "the string is no date such as 2026-01-31")
    return days, [*faults, *_fault(beyond, "out_of_range", f"the date does not fit {target.name}")]


def _time(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    """Convert times of day or spans, as texts; all their digits must fit."""
    malformed = mismatch(column, rf"{_CLOCK}(?:\.[0-9]{{1,9}})?$")
    digits = target.number(0) if target.name == "Time64" else 0
    finer = mismatch(column, rf"{_CLOCK}(?:\.{_at_most(digits)}0*)?$") & ~malformed
    texts = pc.fill_null(without(column, malformed | finer), "0:00:00")
    parts = pc.extract_regex(texts, r"^(?P<sign>-?)(?P<hours>[0-9]+):(?P<minutes>[0-9]+):(?P<seconds>[0-9]+)(?P<rest>.*)$")
    hours, minutes, seconds = (pc.struct_field(parts, name).cast(pa.int32()) for name in ("hours", "minutes", "seconds"))
    whole = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds).cast(pa.string())
    rest = pc.utf8_slice_codeunits(pc.struct_field(parts, "rest"), 0, digits + 1) if digits else ""
    numbers = pc.binary_join_element_wise(pc.struct_field(parts, "sign"), whole, rest, "").cast(arrow_type(target))
    faults = _fault(malformed, "invalid_value", "the string is no time such as 23:59:59")
    return without(numbers, to_mask(pc.is_null(column))), [*faults, *_fault(finer, "out_of_range", f"the time is finer than {target}")]


def _instant_from_string(engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    instants, malformed, beyond = parse_instants(engine, column, target)
    faults = _fault(malformed, "invalid_value", "the string is no instant such as 2026-01-31T23:59:59Z")
    return instants, [*faults, *_fault(beyond, "out_of_range", f"the instant does not fit {target}")]


def _instant_from_seconds(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    return convert_epoch(column, target, "s")


def is_counted_in(notation: str, target: ColumnType) -> bool:
    """Return whether a unit counts for a target: an instant."""
    return bool(notation) and not is_format(notation) and target.name in INSTANT_TARGETS


def is_written_in(notation: str, target: ColumnType) -> bool:
    """Return whether a format counts for a target: an instant, or a date if the format has no time of day."""
    return is_format(notation) and (target.name in INSTANT_TARGETS or (target.name in DATE_TARGETS and not has_time_of_day(notation)))


def convert_epoch(column: pa.Array, target: ColumnType, unit: str) -> Converted:
    """Convert numbers, or decimal texts of numbers, of `unit` (s, ms, us or ns) since 1970 to a DateTime or DateTime64."""
    what = "unix seconds" if unit == "s" else f"{unit} since 1970"
    if pa.types.is_string(column.type):
        instants, malformed, beyond = epoch_texts_to_instants(column, target, unit)
        faults = _fault(malformed, "invalid_value", f"the string is no decimal number of {what}")
    else:
        (instants, beyond), faults = epoch_to_instants(column, target, unit), []
    return instants, [*faults, *_fault(beyond, "out_of_range", f"the {what} do not fit {target}")]


def convert_formatted(engine: Engine, column: pa.Array, target: ColumnType, notation: str) -> Converted:
    """Convert texts in a format (`types.time_formats`) to a DateTime, DateTime64, Date or Date32."""
    is_date = target.name in DATE_TARGETS
    texts, malformed = iso_texts(column, notation, is_date)
    values, impossible, beyond = parse_dates(engine, texts, target.name) if is_date else parse_instants(engine, texts, target)
    faults = _fault(malformed | impossible, "invalid_value", f"the string is no time in the format {notation}")
    return values, [*faults, *_fault(beyond, "out_of_range", f"the {'date' if is_date else 'instant'} does not fit {target}")]


def _instant(_engine: Engine, column: pa.Array, target: ColumnType) -> Converted:
    instants, beyond = truncate_instants(column.cast(pa.timestamp("us", tz="UTC")), target)
    return instants, _fault(beyond, "out_of_range", f"the instant does not fit {target}")


_Conversion = Callable[[Engine, pa.Array, ColumnType], Converted]
_FROM_STRING: dict[str, _Conversion] = {
    "String": _unchanged,
    "FixedString": _fixed_string,
    "Enum8": _enum,
    "Enum16": _enum,
    "UUID": _uuid,
    "Date": _date,
    "Date32": _date,
    "DateTime": _instant_from_string,
    "DateTime64": _instant_from_string,
    "Time": _time,
    "Time64": _time,
    "Decimal": _string_to_decimal,
    **{name: _wide_integer_from_string if bits > _WIDEST_JSON_INTEGER else _integer_from_string for name, bits in INTEGER_BITS.items()},
    "Float32": _float_from_string,
    "Float64": _float_from_string,
    "BFloat16": _bfloat16_from_string,
    **dict.fromkeys(INTERVALS, _interval),
    "IPv4": _ipv4,
    "IPv6": _ipv6,
    "JSON": _json,
}
_FROM_FLOAT: dict[str, _Conversion] = {
    "BFloat16": _bfloat16,
    "Float32": _float,
    "Float64": _float,
    "Decimal": _float_to_decimal,
    "DateTime": _instant_from_seconds,
    "DateTime64": _instant_from_seconds,
}
_FROM_INSTANT: dict[str, _Conversion] = {"DateTime": _instant, "DateTime64": _instant}
_FROM_INTEGER: dict[str, _Conversion] = {
    **dict.fromkeys(INTEGER_BITS, _integer),
    **dict.fromkeys(INTERVALS, _interval),
    "BFloat16": _bfloat16,
    "Float32": _integer_to_float,
    "Float64": _integer_to_float,
    "Decimal": _integer_to_decimal,
    "DateTime": _instant_from_seconds,
    "DateTime64": _instant_from_seconds,
}
_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], dict[str, _Conversion]], ...] = (
    (pa.types.is_integer, _FROM_INTEGER),
    (pa.types.is_floating, _FROM_FLOAT),
    (pa.types.is_string, _FROM_STRING),
    (pa.types.is_timestamp, _FROM_INSTANT),
    (pa.types.is_binary, {"String": _unchanged, "FixedString": _fixed_string}),
    (pa.types.is_boolean, {"Bool": _unchanged}),
)
"""The conversions by kind of Arrow type and name of the column type."""

STRING_TARGETS = frozenset(_FROM_STRING)
FLOAT_TARGETS = frozenset(_FROM_FLOAT)
INTEGER_TARGETS = frozenset(_FROM_INTEGER)
INSTANT_TARGETS = frozenset(_FROM_INSTANT)
DATE_TARGETS = frozenset({"Date", "Date32"})


def _fault(rows: Mask, code: str, message: str) -> list[Fault]:
    return [Fault(rows, code, message)] if rows.any() else []


def _clip(column: pa.Array, low: int, high: int, target: ColumnType) -> Converted:
    bounds: Any = pc.min_max(column).as_py()
    if bounds["min"] is None or (low <= bounds["min"] and bounds["max"] <= high):
        return column, []
    numbers = _numbers(column)
    least, greatest = np.iinfo(numbers.dtype).min, np.iinfo(numbers.dtype).max
    beyond = (numbers < max(low, least)) | (numbers > min(high, greatest))
    return without(column, beyond), _fault(beyond, "out_of_range", f"the integer does not fit {target}")


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """Return the values as numpy; 0 for null."""
    numbers: npt.NDArray[Any] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return numbers


def _fixed(content: bytes, wire: pa.DataType, like: pa.Array) -> pa.Array:
    """Return fixed-size binary of `content`, null where `like` is null."""
    values = pa.Array.from_buffers(wire, len(like), [None, pa.py_buffer(content)])
    return without(values, to_mask(pc.is_null(like)))
