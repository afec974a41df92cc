"""The table of errors: the possible answers of ClickHouse, NATS and Kafka, and the class of each, by the next step.

- `retryable`: the same operation is retried, with pauses of up to 15 s, for as long as necessary; the status names the absent system.
- `record`: single rows are refused: they are found and become dead letters.
- `halt`: the leg stops; the message ends with the remedy. An error that is not in the table is a halt, never a drop.

The connectors map their driver's errors by it, `on_error` of the pipeline file may put a row into another class, and docs/errors.md is
generated from it. Pure: no driver is imported here.

clickhouse.toml nats.toml kafka.toml tallyflow.toml   the rows                  rows.py   the type of a row, and its reader
"""

import re
from collections.abc import Mapping
from functools import cache

from pipelines.error_classes.rows import ErrorClass, ErrorRow, System, read_table

TUNABLE: tuple[System, ...] = ("clickhouse", "nats", "kafka")
"""The systems whose rows may be put into another class."""

_CODE = re.compile(r"-?[0-9]{1,9}")


@cache
def table() -> tuple[ErrorRow, ...]:
    """Return the rows of all systems. They are read when an error, or an `on_error`, first asks: most commands meet neither."""
    return read_table()


@cache
def _by_key() -> dict[tuple[System, int | str, str], ErrorRow]:
    return {(row.system, key, row.words): row for row in table() for key in (row.code, row.name) if key is not None}


class ErrorClasses:
    """The classes of one system's errors: the table's classes, unless `on_error` sets another for a code or a name."""

    def __init__(self, system: System, overrides: Mapping[str, ErrorClass] | None = None) -> None:
        self._system: System = system
        self._overrides = {row.name: kind for key, kind in (overrides or {}).items() if (row := row_named(system, key))}

    def row(self, code: int | str | None, text: str = "") -> ErrorRow | None:
        """Return the row of a code or a name, in its own class; None if the table does not have it. `text` is the server's message."""
        if code is None:
            return None
        worded = (row for row in table() if row.words and row.system == self._system and code in (row.code, row.name) and row.words in text)
        return next(worded, None) or _by_key().get((self._system, code, ""))

    def of(self, row: ErrorRow | None) -> ErrorClass:
        """Return the class of a row in this pipeline; halt for an unknown error."""
        if row is None:
            return "halt"
        return row.error_class if row.words else self._overrides.get(row.name, row.error_class)

    def is_vague(self, row: ErrorRow) -> bool:
        """Return whether the row's error leaves open if a record or the table is its cause; False if `on_error` has set its class."""
        return row.is_vague and row.name not in self._overrides


def row_named(system: System, key: str) -> ErrorRow | None:
    """Return the row for a user's code (`252`) or name (`TOO_MANY_PARTS`)."""
    return _by_key().get((system, int(key) if _CODE.fullmatch(key) else key, ""))


def names_of(system: System) -> list[str]:
    """Return every name that a user may give."""
    return [row.name for row in table() if row.system == system and not row.words]


def why_not(row: ErrorRow, wanted: ErrorClass) -> str | None:
    """Return why the errors of a row cannot be put into the class `wanted`; None if they can."""
    if row.is_fixed:
        return f"{row.name} is answered by the protocol itself and keeps its class"
    if wanted == "record" and not row.may_be_record:
        if row.error_class == "retryable":
            return f"{row.name} may come after rows were stored, and does not depend on what they hold: they could be doubled, or lost"
        if row.is_vague:
            return f"{row.name} may be a row's or the table's: rows that meet it alone are dead letters without a word here"
        return f"{row.name} does not depend on what single rows hold: every row would become a dead letter"
    return None
