"""The user table of the local ClickHouse server.

The embedded engine runs every statement as one user, so users' rights are decided here: this is the one simulated part of the server. It
separates programs and lets a test revoke a right; it is no sandbox, since the server runs with the rights of its own account. Kept: the
users given at the start and those of the last readable users file. Passwords stay in memory and are never logged.
"""

import hmac
import json
import logging
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path

from resources.local.clickhouse.statement import ALL_RIGHTS, Right, Statement

logger = logging.getLogger(__name__)

AUTHENTICATION_FAILED = 516
ACCESS_DENIED = 497


class UsersError(ValueError):
    """A `--user` or a users file that cannot be used; the message names the place, never a password."""


@dataclass(frozen=True)
class User:
    name: str
    password: str = field(repr=False)
    rights: frozenset[Right] = ALL_RIGHTS

    @property
    def is_unlimited(self) -> bool:
        return self.rights == ALL_RIGHTS

    def refusal(self, statement: Statement) -> str | None:
        """Return why this user may not run `statement` (the text of error 497), or None if it may."""
        if self.is_unlimited:
            return None
        missing = sorted(right.value.upper() for right in statement.rights - self.rights)
        if statement.reaches_outside:
            missing.append("READ, WRITE ON FILE or a remote source")
        if not missing:
            return None
        return f"{self.name}: Not enough privileges. To execute this query, it's necessary to have the grant {', '.join(missing)}"


def parse_user(text: str) -> User:
    """Parse the user in `name:password[:right,right,...]`. A password that ends in `:right` needs a users file. Raise UsersError.

    A password is required: every user of the host, and every web page that one of them opens, can reach a loopback port.
    """
    name, separator, rest = text.partition(":")
    if not name or not separator:
        raise UsersError("--user takes name:password[:insert,select,...]")
    password, separator, words = rest.rpartition(":")
    rights = _rights(words.split(",")) if separator else None
    user = User(name, rest) if rights is None else User(name, password, rights)
    if not user.password:
        raise UsersError(f"--user {name!r} has no password: give it one as name:password")
    return user


def read_users(path: Path) -> dict[str, User]:
    """Read the users of a file that only its owner may read. Raise UsersError.

    The file is a JSON object `{"name": {"password": "...", "rights": ["insert", ...]}}` (without `rights`: all), or one
    `name:password[:right,right,...]` per line.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text()
        if not text.lstrip().startswith("{"):
            users = [parse_user(line) for line in text.splitlines() if line.strip()]
            document = None
        else:
            document = json.loads(text)
    except UsersError as error:
        raise UsersError(f"reading users file {path}: a line is not name:password[:rights] with a password") from error
    except (OSError, ValueError) as error:
        raise UsersError(f"reading users file {path}: {error.__class__.__name__}; it must be a readable JSON object") from error
    if mode & 0o077:
        raise UsersError(f"reading users file {path}: mode is {mode:04o}; run chmod 600 on it")
    if document is None:
        return {user.name: user for user in users}
    return {name: _user(path, name, entry) for name, entry in document.items()}


def _user(path: Path, name: str, entry: object) -> User:
    password = entry.get("password") if isinstance(entry, dict) else None
    words = entry.get("rights", ["all"]) if isinstance(entry, dict) else None
    rights = _rights(words) if isinstance(words, list) else None
    if not isinstance(password, str) or not password or rights is None:
        known = ", ".join(right.value for right in Right)
        raise UsersError(f"reading users file {path}: user {name!r} needs a password and rights out of {known}, all")
    return User(name, password, rights)


def _rights(words: list[object] | list[str]) -> frozenset[Right] | None:
    if words == ["all"]:
        return ALL_RIGHTS
    known = {right.value: right for right in Right}
    return frozenset(known[str(word)] for word in words) if all(word in known for word in words) else None


class UserTable:
    """The users, read again from the users file whenever that file changes. Thread-safe."""

    def __init__(self, users: list[User], path: Path | None = None) -> None:
        """Read the users. Raise UsersError if the file cannot be used, or if there are neither users nor a file."""
        self._fixed = {user.name: user for user in users}
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._users = dict(self._fixed)
        if path is not None:
            self._stamp = _stamp(path)
            self._users |= read_users(path)
        elif not users:
            raise UsersError("there is nobody who may log in: give --user name:password or --users-file")

    def authenticate(self, name: str, password: str) -> User | None:
        """Return the user, or None for an unknown name as for a wrong password; both take the same time."""
        self._reload()
        user = self._users.get(name)
        expected = user.password if user else "\0" * 16
        is_equal = hmac.compare_digest(expected.encode(), password.encode("utf-8", "surrogateescape"))
        return user if user and is_equal else None

    def _reload(self) -> None:
        if self._path is None:
            return
        with self._lock:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                self._users = self._fixed | read_users(self._path)
            except UsersError as error:
                logger.error("%s; the users read before stay valid", error)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode
