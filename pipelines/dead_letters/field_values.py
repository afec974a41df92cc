"""The value that a dead letter was rejected for, read from its record when somebody looks at it. Pure; no message or log has it."""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_LONGEST = 200
_MISSING = object()


def value_of(dead_letter: Mapping[str, Any], fields: Mapping[str, str]) -> str | None:
    """Return the JSON text of the value of the field that a dead letter names, at most 200 characters of it; None if there is none.

    `dead_letter`: a row of `dead_letter_rows.DEAD_LETTER_SCHEMA`. `fields`: the field of each column, because the mapping names columns.
    """
    named, value = dead_letter["field"], dead_letter["value"]
    if not named or value is None:
        return None
    try:
        record = json.loads(value, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None
    found = next((one for name in (named, fields.get(named)) if name and (one := _at(record, name)) is not _MISSING), _MISSING)
    if found is _MISSING:
        return None
    text = str(found) if isinstance(found, Decimal) else json.dumps(found, ensure_ascii=False, default=float)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _at(record: Any, path: str) -> Any:
    """Return the value at a dotted path, `_MISSING` if there is none; a key may hold dots itself."""
    if not isinstance(record, dict):
        return _MISSING
    if path in record:
        return record[path]
    for end in range(len(path)):
        if path[end] == "." and path[:end] in record and (found := _at(record[path[:end]], path[end + 1 :])) is not _MISSING:
            return found
    return _MISSING
