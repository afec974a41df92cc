"""References in the parsed tree of a pipeline file: `${NAME}`, `${NAME:-default}` and `{file: PATH}`."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.config.base import External, Location
from pipelines.config.text import path_text
from pipelines.errors import Fault

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\$\{")
MAX_SECRET_BYTES = 1_000_000
_MAX_SHOWN = 200


class Unavailable:
    """Replaces a value that could not be read: no validator accepts it, and its fault is already reported.

    `is_outside`: the value is missing outside the file, so the file itself may be sound.
    """

    def __init__(self, is_outside: bool) -> None:
        self.is_outside = is_outside

    def __repr__(self) -> str:
        return "<not available>"


class _Refused(Exception):
    """A value that cannot be read; the message says why, without the value."""

    is_outside = True


class _Malformed(_Refused):
    """A reference that no environment can make sound."""

    is_outside = False


def interpolate(tree: Any, environment: Mapping[str, str]) -> tuple[Any, list[Fault]]:
    """Replace every reference in `tree` by its text (an `External`); return (tree, a fault per reference without text).

    `${NAME}` is the variable; `${NAME:-default}` the default if it is unset or empty; `$${` is `${` itself. A mapping with the one
    key `file` is the text of that file without its last line end. Replaced text is never searched for references.
    """
    walk = _Walk(environment)
    return walk.value(tree, ()), walk.faults


class _Walk:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.faults: list[Fault] = []

    def value(self, value: Any, at: Location) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, at)
        if isinstance(value, list):
            return [self.value(item, (*at, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        try:
            return expand(value, self._environment)
        except _Refused as error:
            return self._refuse(at, error)

    def _mapping(self, value: dict[Any, Any], at: Location) -> Any:
        result: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(key, str):
                result[key] = self.value(item, (*at, key))
            else:
                self._refuse((*at, str(key)), _Malformed("a field name must be text: put it in quotes"))
        if at and result.keys() == {"file"} and isinstance(result["file"], str):
            try:
                return read_secret(Path(result["file"]))
            except _Refused as error:
                return self._refuse(at, error)
        return result

    def _refuse(self, at: Location, error: _Refused) -> Unavailable:
        fault = Fault(path_text(at), str(error))
        if fault not in self.faults:
            self.faults.append(fault)
        return Unavailable(error.is_outside)


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace the references in `text`; return an `External` if there was one. Raise _Refused."""
    outside = False

    def replace(match: re.Match[str]) -> str:
        nonlocal outside
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            raise _Malformed("'${' starts a reference: write ${NAME} or ${NAME:-default}, or $${ for the characters themselves")
        outside = True
        value = environment.get(match[1])
        if not value and match[2] is not None:
            return match[2]
        if value is None:
            raise _Refused(f"the environment variable {match[1]} is not set")
        if not _is_text(value):
            raise _Refused(f"the environment variable {match[1]} is not UTF-8 text")
        return value

    result = _REFERENCE.sub(replace, text)
    return External(result) if outside else result


def names_in(text: str) -> list[str]:
    """Return the variables to which `text` refers, in their order."""
    return [match[1] for match in _REFERENCE.finditer(text) if match[1] is not None]


def required_names_in(text: str) -> list[str]:
    """Return those of `names_in` that have no default there."""
    return [match[1] for match in _REFERENCE.finditer(text) if match[1] is not None and match[2] is None]


def _is_text(value: str) -> bool:
    """Return False for what Python makes of bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_secret(path: Path) -> External:
    """Read the text of the file without its last line end; a relative path starts at the working directory. Raise _Refused."""
    try:
        content = _content_of(path)
    except OSError as error:
        raise _Refused(f"cannot read the file {_named(path)}: {error.strerror}") from error
    except ValueError:
        raise _Refused(f"the file {_named(path)} has an invalid name") from None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _Refused(f"the file {_named(path)} is not UTF-8 text") from None
    return External(text.removesuffix("\n").removesuffix("\r"))


def _content_of(path: Path) -> bytes:
    # Without waiting: a named pipe has no content until somebody writes.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _Refused(f"{_named(path)} is not a regular file")
        content = file.read(MAX_SECRET_BYTES + 1)
    if len(content) > MAX_SECRET_BYTES:
        raise _Refused(f"the file {_named(path)} has more than {MAX_SECRET_BYTES:,} bytes")
    return content


def _named(path: Path) -> str:
    text = repr(str(path))
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
