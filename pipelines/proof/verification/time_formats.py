"""Times in a format as SQL for DuckDB: the text in ISO 8601, which `values` reads. Written independently of the stages' reader."""

import re

_ENGLISH = "january february march april may june july august september october november december"
_DAYS = "monday tuesday wednesday thursday friday saturday sunday"
_NUMBER = "([0-9]{1,2})"
_READ = {
    "%Y": "([0-9]{4})",
    "%y": "([0-9]{2})",
    "%b": f"((?i){'|'.join(name[:3] for name in _ENGLISH.split())})",
    "%B": f"((?i){'|'.join(_ENGLISH.split())})",
    "%I": "(0?[1-9]|1[0-2])",
    "%p": "((?i)am|pm)",
    "%f": "([0-9]{1,9})",
    "%z": "(Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)",
    "%a": f"((?i){'|'.join(name[:3] for name in _DAYS.split())})",
    "%A": f"((?i){'|'.join(_DAYS.split())})",
    **dict.fromkeys(("%m", "%d", "%H", "%M", "%S"), _NUMBER),
}
_SHORT = {"%F": ["%Y", "-", "%m", "-", "%d"], "%T": ["%H", ":", "%M", ":", "%S"]}
_DIGITS = ("%Y", "%y", "%m", "%d", "%H", "%I", "%M", "%S", "%f")


def is_of_days(notation: str) -> bool:
    """Return whether a format has no time of day."""
    return not {*re.findall("%.", notation)} & {"%H", "%I", "%T", "%M", "%S", "%f", "%p", "%z"}


def iso_text(text: str, notation: str, is_date: bool) -> str:
    """Return SQL of a text in a format as ISO 8601, `is_date`: a date, else an instant; NULL for a text of another form."""
    parts = [inner for part in re.findall("%.|.", notation) for inner in _SHORT.get(part, [part])]
    expected = ""
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        read = _READ.get(part) or re.escape(part[-1])
        if following in _DIGITS or following.isdigit():
            read = {_NUMBER: "([0-9]{2})", _READ["%I"]: "(0[1-9]|1[0-2])"}.get(read, read)
        expected += read
    read_from = [part for part in parts if part in _READ]
    quoted = "'" + expected.replace("'", "''") + "'"
    found = {part: f"regexp_extract({text}, {quoted}, {number})" for number, part in enumerate(read_from, 1)}
    day = f"{_year(found)} || '-' || {_month(found)} || '-' || lpad({found['%d']}, 2, '0')"
    return f"CASE WHEN regexp_full_match({text}, {quoted}) THEN {day if is_date else f'{day} || {_clock(found)}'} END"


def _year(found: dict[str, str]) -> str:
    short = found.get("%y", "")
    return found.get("%Y") or f"CASE WHEN {short}::INTEGER > 68 THEN '19' ELSE '20' END || {short}"


def _month(found: dict[str, str]) -> str:
    if "%m" in found:
        return f"lpad({found['%m']}, 2, '0')"
    names = ", ".join(f"'{name[:3]}'" for name in _ENGLISH.split())
    return f"lpad(list_position([{names}], lower({found.get('%b') or found['%B']})[1:3])::VARCHAR, 2, '0')"


def _clock(found: dict[str, str]) -> str:
    hour, minute, second = (f"lpad({found[part]}, 2, '0')" if part in found else "'00'" for part in ("%H", "%M", "%S"))
    if "%I" in found:
        hour = f"lpad((try_cast({found['%I']} AS INTEGER) % 12 + CASE lower({found['%p']}) WHEN 'pm' THEN 12 ELSE 0 END)::VARCHAR, 2, '0')"
    fraction = f"'.' || {found['%f']}" if "%f" in found else "''"
    zone = found.get("%z", "'Z'")
    return f"'T' || {hour} || ':' || {minute} || ':' || {second} || {fraction} || {zone}"
