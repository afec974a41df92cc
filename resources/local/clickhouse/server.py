"""The local ClickHouse server: the real engine (chdb) behind ClickHouse's HTTP interface, on loopback only.

python -m resources.local.clickhouse.server --data DIR --host 127.0.0.1 --port N [--user name:password[:insert,select]]...
[--users-file PATH] [--memory-bytes N] [--max-body-bytes N]

It answers `/ping` as soon as it can run statements. SIGTERM and SIGINT end it within about 6 s: running statements get 3 s, then they are
killed. `kill -9` at any moment loses no acknowledged insert, and the next start takes over. One process per data directory. Exit codes: 0
stopped, 1 cannot start (one line on stderr says why), 2 wrong arguments. Passwords given with --user are visible in the list of processes;
--users-file keeps them out of it and is read again when it changes.
"""

import argparse
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from pipelines.loopback import BoundedConnection, LoopbackServer
from pipelines.private import OWNER_ONLY
from resources.local.clickhouse.engine import DirectoryInUseError, Engine, EngineError
from resources.local.clickhouse.http import ClickHouseApp
from resources.local.clickhouse.users import UsersError, UserTable, parse_user

logger = logging.getLogger(__name__)

_GRACE = timedelta(seconds=3)
_KILL_TIME = timedelta(seconds=2)
_MAX_BODY_BYTES = 1 << 30
_MAX_MEMORY_BYTES = 4 << 30
# Connections that are accepted before the first of them is handled.
_BACKLOG = 64
# Request line and headers; http_max_uri_size of a server is 1 MiB.
_MAX_HEADER_BYTES = (1 << 20) + (64 << 10)


class _Connection(BoundedConnection):
    most_connections = 256
    head_seconds = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is asked to stop; return the exit code."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(OWNER_ONLY)
    users_file = options.users_file.resolve() if options.users_file else None
    try:
        users = UserTable([parse_user(text) for text in options.user], users_file)
        # Bound before the engine starts: a taken port must not cost a start of the engine.
        listener = _listen(options.host, options.port)
        directory = options.data.resolve()
        engine = Engine(directory, options.memory_bytes)
    except (UsersError, DirectoryInUseError, EngineError, OSError) as error:
        print(f"clickhouse_server: {error}", file=sys.stderr)
        return 1
    app = ClickHouseApp(engine, users, options.max_body_bytes)
    settings = {
        "lifespan": "off",
        "backlog": _BACKLOG,
        "h11_max_incomplete_event_size": _MAX_HEADER_BYTES,
        "log_config": None,
        "log_level": "critical",
        "server_header": False,
        "timeout_keep_alive": 60,
        "timeout_graceful_shutdown": int(_GRACE.total_seconds()),
    }
    logger.info("serving ClickHouse %s on %s:%d from %s", engine.version, *listener.getsockname()[:2], directory)
    # uvicorn stops on these signals and then raises them again; ignored, they do not end the process before the engine is closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    LoopbackServer(app, settings, _Connection).run(sockets=[listener])
    app.stop()
    _close(engine)
    logger.info("stopped")
    logging.shutdown()
    # Not through interpreter exit: it would wait for threads whose statement does not end.
    os._exit(0)


def _close(engine: Engine) -> None:
    """Kill running statements and close the engine; give up after a while, since the data directory is safe at any moment."""

    def close() -> None:
        engine.kill_all()
        engine.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(_KILL_TIME.total_seconds())


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the socket is named as TCP, asyncio turns Nagle's algorithm off: with it each answer waits 40 ms for the client's acknowledgement
    # of its headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"listening on {host}:{port}: {error.strerror}; is another server there?") from error
    return listener


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("clickhouse_server", description="The local ClickHouse server, on loopback only.")
    parser.add_argument("--data", type=Path, required=True, help="data directory; made if it does not exist")
    parser.add_argument("--host", type=_loopback, default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="0 for any free port; the log says which")
    parser.add_argument("--user", action="append", default=[], metavar="NAME:PASSWORD[:RIGHTS]")
    parser.add_argument("--users-file", type=Path, help="users with passwords and rights, mode 0600, read again when it changes")
    memory = min(_MAX_MEMORY_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    parser.add_argument("--memory-bytes", type=int, default=memory, help="bound of the engine's memory")
    parser.add_argument("--max-body-bytes", type=int, default=_MAX_BODY_BYTES, help="bound of one request's body, as it is sent")
    return parser.parse_args(arguments)


def _loopback(host: str) -> str:
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise argparse.ArgumentTypeError(f"{host!r} is not a loopback address; this server must not be reachable from outside")
    return host


if __name__ == "__main__":
    sys.exit(main())
