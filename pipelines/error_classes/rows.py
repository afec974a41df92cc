"""The rows of the table of errors, and their reader for `<system>.toml`.

A `[[group]]` there has the common part of its errors (class, remedy, traits by the names of `ErrorRow`), and `errors`: `[code, name,
meaning]` each, or `[name, meaning]` if the system gives only a name.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

System = Literal["clickhouse", "nats", "kafka", "tallyflow"]
ErrorClass = Literal["retryable", "record", "halt"]


@dataclass(frozen=True, kw_only=True)
class ErrorRow:
    """One error: its code (None if the system gives only a name), its name, its class, its meaning, the remedy.

    `is_vague`: it leaves open whether a row or the table is the cause, so a chunk that meets it repeatedly is cut, and a row that meets it
    alone becomes a dead letter. `is_fixed`: the protocol answers it itself; only its own class makes sense. `words`: the row applies only
    if the server's message has these words.
    """

    system: System
    code: int | None
    name: str
    error_class: ErrorClass
    meaning: str
    remedy: str
    is_fixed: bool = False
    is_vague: bool = False
    words: str = ""

    def __post_init__(self) -> None:
        if self.error_class not in get_args(ErrorClass) or not (self.name and self.meaning and self.remedy):
            raise ValueError(f"{self.system}.toml: {self.name or self.code} needs one of the classes {get_args(ErrorClass)} and its texts")

    @property
    def may_be_record(self) -> bool:
        """Whether single values can cause the error, so that `on_error` may make it a `record` again."""
        return self.error_class == "record"


def read_rows(system: System, text: str) -> list[ErrorRow]:
    """Return the rows of one system's file. Raise ValueError or TypeError for an invalid class or key, before anything starts."""
    rows = []
    for group in tomllib.loads(text)["group"]:
        for *code, name, meaning in group.pop("errors"):
            rows.append(ErrorRow(system=system, code=code[0] if code else None, name=name, meaning=meaning, **group))
    return rows


def read_table() -> tuple[ErrorRow, ...]:
    """Return the rows of all systems."""
    folder = Path(__file__).parent
    return tuple(row for system in get_args(System) for row in read_rows(system, (folder / f"{system}.toml").read_text(encoding="utf-8")))
