"""Loopback ports: chosen free once, kept in `ports.json`, so that a published address stays valid over stop and start."""

import json
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from pipelines.private import write_whole
from resources.local.errors import LocalServerError

HOST = "127.0.0.1"

# Below the ports that Linux (32768+) and macOS (49152+) give to outgoing connections: else a client anywhere on the machine
# could sit on a server's port while the server is down.
PORT_RANGE = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: connections of the last run that linger in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def accepts_connections(port: int) -> bool:
    """Return whether anything listens on this loopback port now."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def _offers() -> Iterator[int]:
    return (PORT_RANGE[secrets.randbelow(len(PORT_RANGE))] for _ in range(1000))


def choose_port(taken: Iterable[int], offers: Iterable[int] | None = None, free: Callable[[int], bool] = is_free) -> int:
    """Return the first of `offers` (without them: 1000 at random) that is free and not in `taken`; raise LocalServerError without one."""
    avoid = set(taken)
    for port in offers or _offers():
        if port not in avoid and free(port):
            return port
    raise LocalServerError(
        f"choosing a port: none free between {PORT_RANGE.start} and {PORT_RANGE.stop} on {HOST}; stop something that listens there"
    )


def read_table(path: Path, what: str, is_sound: Callable[[Any], bool], remedy: str) -> dict[str, Any]:
    """Read a JSON object that was kept in `path`; empty if the file is missing. Raise LocalServerError if it, or a value, is damaged."""
    try:
        kept = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LocalServerError(f"reading {path}: not JSON; {remedy}") from error
    if not isinstance(kept, dict) or not all(map(is_sound, kept.values())):
        raise LocalServerError(f"reading {path}: not a table of {what}; {remedy}")
    return kept


def read_ports(path: Path) -> dict[str, int]:
    """Read the ports kept in `path`, by name, as `read_table` does."""
    return read_table(path, "ports", lambda port: type(port) is int and 0 < port < 65536, "delete it to choose new ones")


def keep_ports(
    path: Path, names: Iterable[str], renew: Collection[str] = (), choose: Callable[[Iterable[int]], int] = choose_port
) -> dict[str, int]:
    """Return the kept ports, with a fresh free one for each name that has none yet or is in `renew`; write `path` if any changed."""
    ports = {name: port for name, port in read_ports(path).items() if name not in renew}
    missing = [name for name in names if name not in ports]
    for name in missing:
        ports[name] = choose(ports.values())
    if missing:
        write_whole(path, json.dumps(ports, indent=2) + "\n")
    return ports


def port_holder(port: int) -> str | None:
    """Return the process that listens on the loopback port, for a message: "process 4711 (nginx)"; None if the system does not show it."""
    for process in psutil.process_iter(["name"]):
        try:
            listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
        if any(one.laddr and one.laddr.port == port for one in listening):
            return f"process {process.pid} ({process.info['name']})"
    return None
