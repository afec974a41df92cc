"""Formats of times that are texts, in the directives of strptime: what a format may hold, and the pattern of its texts. Pure.

A format gives one reading to every text: it names year, month and day, and nothing twice; a number of one or two digits has two where
other digits follow at once. Names of months and days are English, in any case. Without `%z` a time is UTC.
"""

import re
from functools import lru_cache

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_NAMES = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"]
_DAY_NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
MAX_CHARACTERS = 64
_SHORT = {"F": "%Y-%m-%d", "T": "%H:%M:%S"}
_TWO_DIGITS = {"m": "month", "d": "day", "H": "hour", "I": "hour of 12", "M": "minute", "S": "second"}


def _any_of(names: list[str]) -> str:
    return f"(?i:{'|'.join(names)})"


_PATTERNS = {
    "Y": "[0-9]{4}",
    "y": "[0-9]{2}",
    "b": _any_of([name[:3] for name in _MONTH_NAMES]),
    "B": _any_of(_MONTH_NAMES),
    "p": _any_of(["am", "pm"]),
    "f": "[0-9]{1,9}",
    "z": ZONE,
    "a": _any_of([name[:3] for name in _DAY_NAMES]),
    "A": _any_of(_DAY_NAMES),
}
DIRECTIVES = {
    "%Y": "year of four digits",
    "%y": "year of two: 69 to 99 are 19xx, 00 to 68 are 20xx",
    **{f"%{letter}": f"{name}, one or two digits" for letter, name in _TWO_DIGITS.items()},
    "%b": "month such as Jan",
    "%B": "month such as January",
    "%p": "AM or PM, of `%I`",
    "%f": "fraction of the second, one to nine digits",
    "%z": "Z, +hh, +hhmm or +hh:mm",
    "%a": "day such as Mon, not compared with the date",
    "%A": "day such as Monday, not compared with the date",
    "%F": "%Y-%m-%d",
    "%T": "%H:%M:%S",
    "%%": "a percent sign",
}
"""The directives and what they stand for."""
_NEEDED = (("year", "Yy"), ("month", "mbB"), ("day", "d"))
_OF_TIME = "HIMSfpz"
_NEEDS = {"I": "p", "p": "I", "M": "HI", "S": "M", "f": "S"}
_ONE_OF = ("Yy", "mbB", "d", "HI", "M", "S", "f", "p", "z", "aA")


def is_format(notation: str) -> bool:
    """Return whether a field's notation of times is a format, and no unit."""
    return "%" in notation


def has_time_of_day(notation: str) -> bool:
    return any(letter in _OF_TIME for letter in _letters(notation))


@lru_cache(maxsize=256)
def tokens(notation: str) -> tuple[str, ...]:
    """Return the directives (`%Y`) and the other characters of a format, one each; `%F` and `%T` as what they stand for."""
    plain = re.sub(r"%([FT])", lambda found: _SHORT[found[1]], notation.replace("%%", "\0"))
    return tuple(found.replace("\0", "%%") for found in re.findall(r"%.|[^%]", plain, re.DOTALL))


def check_format(notation: str) -> str:
    """Return a format unchanged. Raise ValueError with one sentence if it does not give every text one reading."""
    if len(notation) > MAX_CHARACTERS or not notation.isprintable():
        raise ValueError(f"must be at most {MAX_CHARACTERS} printable characters")
    if unknown := [one for one in re.findall(r"%.?", notation.replace("%%", "")) if one not in DIRECTIVES]:
        raise ValueError(f"{unknown[0]!r} is no directive here; known are {' '.join(DIRECTIVES)}")
    letters = _letters(notation)
    for what, choices in _NEEDED:
        if not any(letter in choices for letter in letters):
            raise ValueError(f"has no {what} (%{' or %'.join(choices)})")
    for choices in _ONE_OF:
        if len(found := [letter for letter in letters if letter in choices]) > 1:
            raise ValueError(f"%{found[0]} and %{found[1]} say the same")
    for letter in letters:
        if (needs := _NEEDS.get(letter)) and not any(other in needs for other in letters):
            raise ValueError(f"%{letter} needs %{' or %'.join(needs)}")
    if re.search(r"%f(%[YymdHIMS]|[0-9])", "".join(tokens(notation))):
        raise ValueError("%f takes as many digits as there are: no digits may follow it")
    return notation


def _letters(notation: str) -> list[str]:
    return [one[1] for one in tokens(notation) if len(one) == 2 and one != "%%"]


@lru_cache(maxsize=256)
def pattern(notation: str) -> str:
    """Return the RE2 pattern of a format's texts, whole; each directive is a group of its letter's name."""
    parts = []
    found = tokens(notation)
    for one, following in zip(found, (*found[1:], ""), strict=True):
        if len(one) == 1 or one == "%%":
            parts.append(re.escape(one[0]))
        else:
            parts.append(f"(?P<{one[1]}>{_PATTERNS.get(one[1]) or _two_digits(one[1], following)})")
    return f"^{''.join(parts)}$"


def _two_digits(letter: str, following: str) -> str:
    is_fixed = following.isdigit() or following[1:] in tuple("YymdHIMSf")
    if letter == "I":
        return f"(?:0{'' if is_fixed else '?'}[1-9]|1[0-2])"
    return "[0-9]{2}" if is_fixed else "[0-9]{1,2}"
