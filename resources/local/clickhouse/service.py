"""The real ClickHouse engine (chdb) behind our own HTTP server, as one of the local servers.

Its users are kept in `users.json` (mode 0600) and not on the command line, where `ps` would show their passwords.
"""

import json
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.private import private_directory, write_whole
from resources.local.clickhouse.users import User, UsersError, parse_user, read_users
from resources.local.errors import LocalServerError
from resources.local.ports import HOST
from resources.local.server import Endpoint, NotReadyError

if TYPE_CHECKING:
    import httpx

DEFAULT_NAME = "default"
_RELEASE = 2
"""Release of the server's own code: a server that has run since before a change of it is restarted."""


class ClickHouse:
    """Runs ClickHouse on a loopback port, with the users of `keep_users`, else `default` with the place's password."""

    name = "clickhouse"

    def settings(self, endpoint: Endpoint) -> str:
        """Return the settings, without the users: the server reads their file again by itself."""
        return f"{endpoint.address} {_RELEASE}"

    def prepare(self, endpoint: Endpoint, progress: Callable[[str], None]) -> Sequence[str]:
        if not users_file(endpoint.directory).is_file():
            _write_users(endpoint.directory, [User(DEFAULT_NAME, endpoint.password)])
        command = [sys.executable, "-m", "resources.local.clickhouse.server", "--data", str(endpoint.directory / "data")]
        return [*command, "--host", HOST, "--port", str(endpoint.port), "--users-file", str(users_file(endpoint.directory))]

    def probe(self, endpoint: Endpoint, timeout: timedelta) -> str:
        # Imported where a server is asked: most commands only look up where the local one is.
        import httpx

        user = read_first_user(endpoint.directory, endpoint.password)
        asking = f"asking ClickHouse for its version at {endpoint.address}"
        try:
            url, seconds = f"http://{endpoint.address}", timeout.total_seconds()
            ping = _client().get(f"{url}/ping", timeout=seconds)
            answer = _client().post(f"{url}/", content="SELECT version()", auth=(user.name, user.password), timeout=seconds)
        except httpx.HTTPError as error:
            raise NotReadyError(f"{asking}: {error or type(error).__name__}") from error
        if ping.text.strip() != "Ok." or answer.status_code != 200:
            raise NotReadyError(f"{asking}: /ping says {ping.text[:80]!r}, SELECT version() {answer.status_code} {answer.text[:200]!r}")
        return answer.text.strip()

    def logs(self, directory: Path) -> Sequence[Path]:
        return [directory / "console.log"]


@cache
def _client() -> "httpx.Client":
    """Return the client of this process for its probes: to make one reads the system's certificates, and a start probes many times."""
    import httpx

    # Without the environment's proxies: this is loopback.
    return httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def users_file(directory: Path) -> Path:
    """Return the file of the users."""
    return directory / "users.json"


def keep_users(directory: Path, users: Sequence[str]) -> None:
    """Keep users given as `name:password[:rights]`, instead of the earlier ones; a running server follows at once.

    Raise LocalServerError if one is malformed or has no password; nothing is kept then.
    """
    try:
        parsed = [parse_user(user) for user in users]
    except UsersError as error:
        raise LocalServerError(f"reading the ClickHouse users: {error}") from error
    _write_users(directory, parsed)


def read_first_user(directory: Path, default_password: str) -> User:
    """Return the user in the addresses: the first kept one, else `default` with its password. Raise LocalServerError."""
    path = users_file(directory)
    if not path.is_file():
        return User(DEFAULT_NAME, default_password)
    try:
        users = read_users(path)
    except UsersError as error:
        raise LocalServerError(f"{error}; or name them anew with `tallyflow up --user name:password`") from error
    if not users:
        raise LocalServerError(f"reading users file {path}: no user in it; name one with `tallyflow up --user name:password`")
    return next(iter(users.values()))


def close_default_user(directory: Path, password: str) -> None:
    """Give `default` this password if an earlier release has made it, as the only user, without one; else change nothing."""
    try:
        kept = json.loads(users_file(directory).read_text())
    except (FileNotFoundError, ValueError):
        return
    if kept == {DEFAULT_NAME: {"password": "", "rights": ["all"]}}:
        _write_users(directory, [User(DEFAULT_NAME, password)])


def _write_users(directory: Path, users: Sequence[User]) -> None:
    private_directory(directory)
    entries = {
        user.name: {"password": user.password, "rights": ["all"] if user.is_unlimited else sorted(right.value for right in user.rights)}
        for user in users
    }
    write_whole(users_file(directory), json.dumps(entries, indent=2) + "\n")
