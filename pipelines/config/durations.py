"""Durations in Go's notation ("1h30m", "500ms", plus days) and sizes with a unit ("512MiB", "10Gi"), to and from text. Pure."""

import re
from datetime import timedelta
from fractions import Fraction

_MICROSECONDS = {
    "ns": Fraction(1, 1000),
    "us": Fraction(1),
    "µs": Fraction(1),
    "μs": Fraction(1),
    "ms": Fraction(1_000),
    "s": Fraction(1_000_000),
    "m": Fraction(60_000_000),
    "h": Fraction(3_600_000_000),
    "d": Fraction(86_400_000_000),
}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h|d)")
DURATION_PATTERN = rf"^(0|({_NUMBER}(ns|us|µs|μs|ms|s|m|h|d))+)$"
_DURATION = re.compile(DURATION_PATTERN)

_BYTES = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgtp", start=1)
    for base, suffixes in ((1000, ("", "b")), (1024, ("i", "ib")))
    for suffix in suffixes
}
_MAX_CHARACTERS = 64
SIZE_PATTERN = rf"^{_NUMBER} ?([kKmMgGtTpP]i?)?[bB]?$"
_SIZE = re.compile(rf"({_NUMBER}) ?([A-Za-z]*)")


def parse_duration(text: str) -> timedelta:
    """Parse a duration: one or more numbers with a unit (ns, us, ms, s, m, h, d), added up; "0" is zero.

    Raises ValueError with a readable message for other text, for a part below a microsecond, and beyond `timedelta.max`.
    """
    if len(text) > _MAX_CHARACTERS or not _DURATION.fullmatch(text):
        raise ValueError("must be a duration such as 500ms, 60s, 1h30m or 7d")
    microseconds = sum((Fraction(number) * _MICROSECONDS[unit] for number, unit in _PART.findall(text)), Fraction(0))
    if microseconds.denominator != 1:
        raise ValueError("must be a whole number of microseconds")
    try:
        return timedelta(microseconds=int(microseconds))
    except OverflowError:
        raise ValueError("is too long a duration") from None


def format_duration(duration: timedelta) -> str:
    """Format a duration (zero or more) as its shortest exact text, largest unit hours: "24h", "1h30m", "1s500ms", "0s".

    `parse_duration` returns an equal duration. Raises ValueError for a negative duration, which has no text.
    """
    rest = duration // timedelta(microseconds=1)
    if rest < 0:
        raise ValueError(f"a duration must not be negative, got {duration}")
    parts = []
    for unit in ("h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, int(_MICROSECONDS[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Parse a size in bytes: kB, MB, GB, ... (and k, M, ...) are powers of 1000, KiB, MiB, ... (and Ki, Mi, ...) of 1024.

    Case does not matter. Raises ValueError with a readable message for other text and for a part of a byte.
    """
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError("must be a size such as 1048576, 512MiB or 10Gi")
    size = Fraction(match[1]) * factor
    if size.denominator != 1:
        raise ValueError("must be a whole number of bytes")
    return int(size)
