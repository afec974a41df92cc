"""Dates and instants: from text, from unix seconds or another unit since 1970, into the ranges and precisions of ClickHouse's types.

Ranges (both ends included) are those of the ClickHouse manual, "Date", "Date32", "DateTime", "DateTime64"; a DateTime64 finer than
microseconds ends where 64 bits of nanoseconds end. Outside these ranges ClickHouse stores another instant without an error (measured,
26.9).
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import ColumnType
from pipelines.types.engine import Engine
from pipelines.types.vectors import Mask, mismatch, to_mask, without

_MICROS = pa.timestamp("us", tz="UTC")
_DAY = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
_DATES = {"Date": (date(1970, 1, 1), date(2149, 6, 6)), "Date32": (date(1900, 1, 1), date(2299, 12, 31))}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = (_EPOCH, datetime(2106, 2, 7, 6, 28, 15, 999999, tzinfo=UTC))
_TICKS = (datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
_NANOSECONDS = (datetime(1900, 1, 1, tzinfo=UTC), datetime(2262, 4, 11, 23, 47, 15, 999999, tzinfo=UTC))
_PER_SECOND = 1_000_000
_MICROSECOND = timedelta(microseconds=1)
_MAX_SECONDS = 10**11
"""Larger than any range, and small enough for 64 bits of microseconds."""
_PLAIN = "9999-19-39T29:59:59"
"""The largest character of each place of a plain instant; see `are_plain`."""
_RANGES = {**{c: f"0{c}" for c in "12359"}, "T": " T"}
"""The least and the largest character that a place may have, if it may have several."""
_PLAIN_LENGTHS = (20, *range(22, 28))
_PLAIN_ROWS = 2048
_TWO_ZEROS = np.uint8((10 * ord("0") + ord("0")) % 256)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Decimal places of an Arrow timestamp's unit."""


def parse_dates(engine: Engine, texts: pa.Array, kind: str) -> tuple[pa.Array, Mask, Mask]:
    """Parse dates; return (date32 column, rows that are not `YYYY-MM-DD`, rows out of the range of `kind`: Date or Date32)."""
    malformed = mismatch(texts, rf"^{_DAY}$")
    days, impossible = _cast(engine, without(texts, malformed), pa.date32())
    low, high = (pa.scalar(bound, pa.date32()) for bound in _DATES[kind])
    beyond = to_mask(pc.or_(pc.less(days, low), pc.greater(days, high)))
    return days, malformed | impossible, beyond


def parse_instants(engine: Engine, texts: pa.Array, target: ColumnType) -> tuple[pa.Array, Mask, Mask]:
    """Parse instants; return (timestamps of the target's unit, malformed rows, rows out of range).

    Texts are `YYYY-MM-DD`, then `T` or a space, `hh:mm:ss`, up to nine digits after a point, and a zone (`Z`, `+hh`, `+hhmm`, `+hh:mm`) or
    none, which means UTC. A leap second (`:60`) is malformed.
    """
    if are_plain(texts):
        malformed, zoned, short = np.zeros(len(texts), dtype=bool), texts, texts
    else:
        malformed = mismatch(texts, rf"^{_DAY}[T ]{_TIME}{_ZONE}?$")
        zoned = _zoned(without(texts, malformed))
        short = _shortened(zoned)
    micros, impossible = _cast(engine, short, _MICROS)
    result, beyond = truncate_instants(micros, target)
    if arrow_type(target).unit == "ns":
        result = cut_instants(without(zoned, beyond | impossible).cast(arrow_type(target)), target)
    return result, malformed | impossible, beyond


def epoch_to_instants(numbers: pa.Array, target: ColumnType, unit: str) -> tuple[pa.Array, Mask]:
    """Convert numbers of `unit` (s, ms, us or ns) since 1970; return (timestamps, rows out of range).

    A float is rounded to the nearest microsecond, and must lie between whole seconds of the range.
    """
    low, high = ((bound - _EPOCH) // _MICROSECOND for bound in _bounds(target))
    per_second = 10 ** _DIGITS[unit]
    if pa.types.is_floating(numbers.type):
        # A float32 holds no microseconds of today: its seconds are multiplied as float64.
        floats: npt.NDArray[Any] = pc.fill_null(numbers.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        inside = (floats >= -(-low // _PER_SECOND) * per_second) & (floats <= high // _PER_SECOND * per_second)
        kept = np.where(inside, floats, 0.0)
        micros = kept * float(_PER_SECOND // per_second) if per_second <= _PER_SECOND else kept / float(per_second // _PER_SECOND)
        ticks, wire = np.rint(micros).astype(np.int64), _MICROS
    else:
        whole: npt.NDArray[Any] = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
        limits = np.iinfo(whole.dtype)
        first, last = -(-low * per_second // _PER_SECOND), ((high + 1) * per_second - 1) // _PER_SECOND
        inside = (whole >= max(first, limits.min)) & (whole <= min(last, limits.max))
        kept = np.where(inside, whole, whole.dtype.type(0))
        # Nanoseconds beyond 64 bits are instants of a column that is less fine.
        is_finer = unit == "ns" and arrow_type(target).unit != "ns"
        ticks, wire = (kept // 1000 if is_finer else kept).astype(np.int64), _MICROS if is_finer else pa.timestamp(unit, tz="UTC")
    return cut_instants(pa.array(ticks, pa.int64(), mask=to_mask(pc.is_null(numbers))).cast(wire), target), ~inside


def epoch_texts_to_instants(texts: pa.Array, target: ColumnType, unit: str) -> tuple[pa.Array, Mask, Mask]:
    """Convert decimal texts of `unit` since 1970; return (timestamps, malformed rows, rows out of range).

    Exact to the nanosecond. Texts are `-?` digits and, except for ns, a point with as many digits as nanoseconds hold.
    """
    digits = _DIGITS[unit]
    places = 9 - digits
    malformed = mismatch(texts, rf"^-?[0-9]+(?:\.[0-9]{{1,{places}}})?$" if places else r"^-?[0-9]+$")
    # Larger numbers do not fit into 64 bits, and are no instant in any unit.
    large = mismatch(texts, r"^-?0*(?:1[0-7][0-9]{18}|[0-9]{0,19})(?:\..*)?$") & ~malformed
    plain = without(texts, malformed | large)
    is_negative = to_mask(pc.starts_with(plain, "-"))
    whole = _digits_of(pc.replace_substring_regex(plain, r"^-?([0-9]+).*$", r"\1"))
    rest = _digits_of(pc.utf8_slice_codeunits(pc.replace_substring_regex(plain, r"^[^.]*\.?(.*)$", rf"\1{'0' * 9}"), 0, max(places, 1)))
    if not places:
        rest = np.zeros_like(whole)
    inside = whole <= np.uint64(_MAX_SECONDS) * np.uint64(10**digits) if digits < 9 else np.ones(len(whole), dtype=bool)
    whole = np.where(inside, whole, np.uint64(0))
    micros, finer = (whole // 1000, whole % 1000) if digits == 9 else (whole * 10 ** (6 - digits) + rest // 1000, rest % 1000)
    micros = micros.astype(np.int64)
    result, beyond = truncate_instants(
        pa.array(np.where(is_negative, -micros - (finer > 0), micros), pa.int64(), mask=to_mask(pc.is_null(plain))).cast(_MICROS), target
    )
    if arrow_type(target).unit == "ns":
        nanos = np.where(beyond, 0, micros) * 1000 + np.where(beyond, 0, finer.astype(np.int64))
        signed = pa.array(np.where(is_negative, -nanos, nanos), pa.int64(), mask=to_mask(pc.is_null(plain)))
        result = cut_instants(signed.cast(pa.timestamp("ns", tz="UTC")), target)
    return result, malformed, beyond | large | ~inside


def _digits_of(texts: pa.Array) -> npt.NDArray[np.uint64]:
    numbers: npt.NDArray[np.uint64] = pc.fill_null(texts, "0").cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return numbers


def truncate_instants(micros: pa.Array, target: ColumnType) -> tuple[pa.Array, Mask]:
    """Truncate microsecond timestamps to the target's unit, towards the past; return (timestamps, rows out of range)."""
    low, high = (pa.scalar(bound, _MICROS) for bound in _bounds(target))
    beyond = to_mask(pc.or_(pc.less(micros, low), pc.greater(micros, high)))
    return cut_instants(without(micros, beyond), target), beyond


def cut_instants(instants: pa.Array, target: ColumnType) -> pa.Array:
    """Truncate timestamps to the target's precision (a DateTime: seconds), towards the past, in the target's unit.

    ClickHouse receives no finer value than it stores: it would truncate one before 1970 towards 1970 (measured, 26.9).
    """
    precision = target.number(0) if target.name == "DateTime64" else 0
    step = 10 ** max(0, _DIGITS[instants.type.unit] - precision)
    if step > 1:
        ticks = pc.fill_null(instants.cast(pa.int64()), 0).to_numpy(zero_copy_only=False) // step * step
        instants = pa.array(ticks, pa.int64(), mask=to_mask(pc.is_null(instants)) if instants.null_count else None).cast(instants.type)
    return instants.cast(arrow_type(target))


def _bounds(target: ColumnType) -> tuple[datetime, datetime]:
    if target.name == "DateTime":
        return _SECONDS
    return _NANOSECONDS if arrow_type(target).unit == "ns" else _TICKS


def are_plain(texts: pa.Array) -> bool:
    """Return True if all texts are `YYYY-MM-DDThh:mm:ss` (or with a space) with up to six digits after a point and `Z`, all of one length.

    That is how most producers write instants; the regular expressions over them cost ten times as much as this (measured, 24 bytes).
    """
    if not len(texts) or texts.null_count or not pa.types.is_string(texts.type):
        return False
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    length = int(offsets[1] - offsets[0])
    if length not in _PLAIN_LENGTHS or (np.diff(offsets) != length).any():
        return False
    # Each character has a range of its own; in one comparison over many rows at a time.
    pattern = _PLAIN[:19] + (f".{'9' * (length - 21)}Z" if length > 20 else "Z")
    least, most = (np.frombuffer("".join(_RANGES.get(c, c)[end] for c in pattern).encode(), np.uint8) for end in (0, -1))
    rows = min(len(texts), _PLAIN_ROWS)
    low, span = np.tile(least, rows), np.tile(most - least, rows)
    characters = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    for first in range(0, len(characters), len(low)):
        some = characters[first : first + len(low)]
        if (some - low[: len(some)] > span[: len(some)]).any():
            return False
    places = characters.reshape(-1, length)
    separator, month, day, hour = places[:, 10], *(places[:, at] * np.uint8(10) + places[:, at + 1] - _TWO_ZEROS for at in (5, 8, 11))
    return bool((((separator == ord("T")) | (separator == ord(" "))) & (month - 1 < 12) & (day - 1 < 31) & (hour < 24)).all())


def _zoned(texts: pa.Array) -> pa.Array:
    has_zone = pc.match_substring_regex(texts, rf":[0-9.]+{_ZONE}$")
    if pc.all(has_zone).as_py() is not False:
        return texts
    return pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))


def _shortened(texts: pa.Array) -> pa.Array:
    """Remove the digits beyond microseconds."""
    if not pc.any(pc.match_substring_regex(texts, r"\.[0-9]{7}")).as_py():
        return texts
    return pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")


def _cast(engine: Engine, texts: pa.Array, wire: pa.DataType) -> tuple[pa.Array, Mask]:
    """Cast the texts; return (values, rows with a day that its month does not have)."""
    nowhere = np.zeros(len(texts), dtype=bool)
    try:
        return texts.cast(wire), nowhere
    except pa.ArrowInvalid:
        days = pc.utf8_slice_codeunits(texts, 0, 10)
        (known,) = engine.ask("SELECT v IS NULL OR try_cast(v AS DATE) IS NOT NULL FROM _tf_values", days)
        impossible = ~to_mask(known)
        return without(texts, impossible).cast(wire), impossible
