"""Who asks for TLS tells a server nothing before it: not one that has none, not one that somebody poses as, not on the way back."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.pipeline_case import wait_until

from pipelines.config import NatsConnection
from pipelines.connectors.nats.client import JetStream
from pipelines.errors import HaltError

pytestmark = pytest.mark.integration

CREDENTIALS = """-----BEGIN NATS USER JWT-----
eyJhbGciOiJlZDI1NTE5LW5rZXkifQ.canary-jwt.c2ln
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU
------END USER NKEY SEED------
"""
LOGINS: dict[str, dict[str, Any]] = {
    "user and password": {"username": "canary", "password": "canary"},
    "token": {"token": "canary"},
    "credentials file": {"credentials_file": "canary.creds"},
}


class Greeter:
    """Greets as a NATS server does, answers PING, and keeps what it was told; with a certificate it starts TLS after the greeting."""

    def __init__(self, info: dict[str, Any], tls: ssl.SSLContext | None = None) -> None:
        self.info, self.tls = info, tls
        self.reported = bytearray()
        self.greeted = 0
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        greeting = {"server_id": "x", "version": "2.15.1", "headers": True, "nonce": "n", "max_payload": 1048576, "auth_required": True}
        try:
            self._open.append(connection)
            self.greeted += 1
            connection.sendall(b"INFO " + json.dumps(greeting | self.info).encode() + b"\r\n")
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            while piece := connection.recv(65536):
                self.reported.extend(piece)
                if b"PING" in piece:
                    connection.sendall(b"PONG\r\n")
        except OSError:
            return

    def drop(self) -> None:
        """Ends every connection."""
        for connection in list(self._open):
            with suppress(OSError):
                # A close alone does not wake who waits for the connection's next piece.
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def close(self) -> None:
        self._listener.close()
        self.drop()


@contextmanager
def greeter(info: dict[str, Any], tls: ssl.SSLContext | None = None) -> Iterator[Greeter]:
    made = Greeter(info, tls)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, with its key and the authority that both sides trust."""
    authority, path = trustme.CA(), tmp_path / "all.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(path)
    authority.cert_pem.write_to_path(path, append=True)
    return path


@pytest.fixture(params=LOGINS, ids=[name.replace(" ", "-") for name in LOGINS])
def login(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    found = dict(LOGINS[request.param])
    if "credentials_file" in found:
        found["credentials_file"] = str(tmp_path / "canary.creds")
        (tmp_path / "canary.creds").write_text(CREDENTIALS)
    return found


@pytest.mark.parametrize(("scheme", "more"), [("tls", {}), ("nats", {"tls": {}}), ("tls", {"tls": {}})])
def test_a_server_without_tls_is_told_nothing(login: dict[str, Any], scheme: str, more: dict[str, Any]) -> None:
    with greeter({}) as plain:
        client = JetStream(NatsConnection.model_validate({"url": f"{scheme}://127.0.0.1:{plain.port}", **login, **more}))
        with pytest.raises(HaltError, match="the server offers no TLS, and nothing was sent to it"):
            client.connect()
        client.close()
        assert (plain.greeted > 0, bytes(plain.reported)) == (True, b"")


def test_a_server_of_several_without_tls_is_told_nothing() -> None:
    with greeter({}) as plain, greeter({}) as other:
        urls = f"nats://127.0.0.1:{plain.port},tls://127.0.0.1:{other.port}"
        client = JetStream(NatsConnection.model_validate({"url": urls, "token": "canary"}))
        with pytest.raises(HaltError, match="offers no TLS"):
            client.connect()
        client.close()
        assert bytes(plain.reported + other.reported) == b""


@pytest.mark.parametrize("info", [{"tls_required": True}, {"tls_available": True}])
def test_tls_lost_on_the_way_back_puts_nothing_in_the_clear(certificate: Path, info: dict[str, Any]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with greeter(info, context) as server:
        tls = {"ca_file": str(certificate)}
        client = JetStream(NatsConnection.model_validate({"url": f"tls://127.0.0.1:{server.port}", "token": "canary", "tls": tls}))
        client.connect()
        assert b"canary" in server.reported
        server.info, server.tls = {}, None
        before, server.reported = server.greeted, bytearray()
        server.drop()
        wait_until(lambda: server.greeted > before + 1, "two attempts to come back")
        assert bytes(server.reported) == b""
        client.close()


def test_without_tls_asked_for_a_server_in_the_clear_is_used() -> None:
    with greeter({}) as plain:
        client = JetStream(NatsConnection.model_validate({"url": f"nats://127.0.0.1:{plain.port}", "token": "canary"}))
        client.connect()
        client.close()
        assert b"canary" in plain.reported
