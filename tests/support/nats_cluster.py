"""A NATS cluster of three servers on loopback, each a process that can be killed and started again."""

import asyncio
import json
import subprocess
from pathlib import Path
from types import TracebackType

import nats
import nats.errors

from resources.local.nats import find_nats_server
from resources.local.ports import HOST, choose_port
from support.pipeline_case import wait_until

USER, PASSWORD = "tallyflow", "cluster-password"
NODES = 3


class NatsCluster:
    """The servers, for one case. A context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ports: list[int] = []
        for _ in range(2 * NODES):
            ports.append(choose_port(ports))
        self._clients, self._routes = ports[:NODES], ports[NODES:]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"node-{number}" for number in range(NODES)]

    @property
    def connection(self) -> dict[str, str]:
        """The field `nats` of a pipeline file."""
        return {"url": ",".join(f"nats://{HOST}:{port}" for port in self._clients), "username": USER, "password": PASSWORD}

    def __enter__(self) -> "NatsCluster":
        try:
            for name in self.names:
                self.start(name)
            wait_until(lambda: self._ask("$JS.API.INFO"), "JetStream of the cluster")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str) -> None:
        place = self._directory / name
        place.mkdir(parents=True, exist_ok=True)
        file = place / "nats.conf"
        file.write_text(self._configuration(name, place))
        with (place / "console.log").open("ab") as log:
            self._processes[name] = subprocess.Popen([str(find_nats_server()), "--config", str(file)], stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def leader(self, stream: str) -> str:
        """The server that leads a stream."""
        return str(wait_until(lambda: (self._cluster(stream) or {}).get("leader"), f"a leader of {stream}"))

    def is_whole(self, stream: str) -> bool:
        """Whether a stream has a leader, and its other replicas have all that it has."""
        found = self._cluster(stream) or {}
        peers = found.get("replicas") or []
        return bool(found.get("leader")) and len(peers) == NODES - 1 and all(peer.get("current") for peer in peers)

    def _cluster(self, stream: str) -> dict[str, object] | None:
        return (self._ask(f"$JS.API.STREAM.INFO.{stream}") or {}).get("cluster")

    def _ask(self, subject: str) -> dict[str, object] | None:
        async def ask() -> dict[str, object] | None:
            client = await nats.connect(self.connection["url"].split(","), user=USER, password=PASSWORD, allow_reconnect=False)
            try:
                answer = json.loads((await client.request(subject, b"", timeout=2)).data)
            finally:
                await client.close()
            return None if "error" in answer else answer

        try:
            return asyncio.run(ask())
        except (nats.errors.Error, OSError, TimeoutError):
            return None

    def _configuration(self, name: str, place: Path) -> str:
        number = self.names.index(name)
        routes = ", ".join(json.dumps(f"nats://{HOST}:{port}") for port in self._routes)
        return f"""\
server_name: {name}
listen: "{HOST}:{self._clients[number]}"
authorization {{ user: {USER}, password: "{PASSWORD}" }}
jetstream {{ store_dir: {json.dumps(str(place / "data"))}, max_file_store: 16TB }}
cluster {{ name: tallyflow, listen: "{HOST}:{self._routes[number]}", routes: [{routes}] }}
"""
