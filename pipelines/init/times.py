"""Times among sampled values: the unit of numbers since 1970, and the form of texts. A guess that two readings fit is none."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_NAMES_A_TIME = re.compile(
    r"(?:^|[._-])(?i:time|timestamp|date|datetime|at|ts|on|when|created|updated|modified|expires|millis)(?i:_?(?:s|ms|us|ns|utc))?$"
    r"|[a-z](?:At|Time|Timestamp|Date|Ts|Millis|Ms)$"
)
_FIRST_SECOND, _LAST_SECOND = 946_684_800, 4_102_444_800
"""2000 to 2100: a number of each unit in this range is in that of no other."""
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
PRECISIONS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
FORMATS = (
    "%d/%b/%Y:%H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S %z",
    "%Y/%m/%d %H:%M:%S",
    "%Y-%m-%d %H:%M",
    "%d.%m.%Y %H:%M:%S",
    "%d.%m.%Y %H:%M",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%m/%d/%Y %I:%M %p",
    "%m/%d/%Y %I:%M:%S %p",
    "%d %b %Y %H:%M:%S",
    "%b %d, %Y",
    "%Y/%m/%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%Y%m%d%H%M%S",
    "%Y%m%d",
)
"""Tried in this order; those that begin with day or month may both fit, and then neither is taken."""
_DIGITS_ONLY = ("%Y%m%d%H%M%S", "%Y%m%d")


class TimeGuess(NamedTuple):
    """A column type of times and how its field writes them: a unit, a format, or empty for ISO 8601. `doubt`: the readings that all fit."""

    column_type: str
    notation: str = ""
    doubt: tuple[str, ...] = ()


def names_a_time(name: str) -> bool:
    return bool(_NAMES_A_TIME.search(name))


def of_numbers(name: str, numbers: Sequence[float]) -> TimeGuess | None:
    """Guess the unit of numbers since 1970; None for a name that says nothing of time, or numbers of several units."""
    return _in_their_unit(numbers) if names_a_time(name) else None


def possible(name: str, numbers: Sequence[int]) -> TimeGuess | None:
    """Return the time that integers of 12 digits and more may be, whatever their name says: below, too many other numbers look so."""
    found = _in_their_unit(numbers)
    return found if found and found.notation != "s" and not names_a_time(name) else None


def _in_their_unit(numbers: Sequence[float]) -> TimeGuess | None:
    for unit, per_second in _UNITS.items() if numbers else ():
        if all(_FIRST_SECOND * per_second <= number < _LAST_SECOND * per_second for number in numbers):
            precision = 6 if unit == "s" and any(number % 1 for number in numbers) else PRECISIONS[unit]
            return TimeGuess(f"DateTime64({precision})" if precision else "DateTime", unit)
    return None


def of_texts(name: str, texts: Sequence[str], takes: Callable[[str, str], bool]) -> TimeGuess | None:
    """Guess the form of texts; `takes` says whether a column type takes all of them in a notation."""
    if takes("Date", ""):
        return TimeGuess("Date")
    fraction = max((len(found[1]) for text in texts if (found := re.search(r"\.([0-9]+)", text))), default=0)
    precision = 9 if fraction > 6 else 6 if fraction > 3 else 3
    if takes(f"DateTime64({precision})", ""):
        return TimeGuess(f"DateTime64({precision})")
    if all(re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) for text in texts):
        guess = of_numbers(name, [float(text) for text in texts])
        if guess and takes(guess.column_type, guess.notation):
            return guess
    fitting = [one for one in FORMATS if (one not in _DIGITS_ONLY or names_a_time(name)) and takes(_column_of(one), one)]
    if len(fitting) > 1:
        return TimeGuess("String", doubt=tuple(fitting))
    return TimeGuess(_column_of(fitting[0]), fitting[0]) if fitting else None


def _column_of(notation: str) -> str:
    return "DateTime" if "%H" in notation or "%I" in notation else "Date"
