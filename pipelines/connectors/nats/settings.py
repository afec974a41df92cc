"""The pipeline file's NATS settings as options of nats-py."""

import ssl
from pathlib import Path
from typing import Any

import nats.aio.client
import nats.errors
from nats.aio.client import Client

from pipelines.config import NatsConnection

# A frame of 250 kB comes in one piece instead of eight, each with a turn of the loop: 360 us of CPU instead of 480 (2 cores). nats-py 2.16
# has no option for it.
nats.aio.client.DEFAULT_BUFFER_SIZE = 1024 * 1024


class NoTlsError(nats.errors.Error):  # type: ignore[misc]
    """A server that must encrypt does not; nothing was sent to it."""


class TlsClient(Client):  # type: ignore[misc]
    """A client that sends to a server only after TLS, at each connect and reconnect, whatever the server's greeting says.

    The greeting is not encrypted, and nats-py 2.16 starts TLS only if it has `tls_required`: an attacker who changes it gets the
    credentials. Remove this class once nats-py has the check of nats.go (`ErrSecureConnWanted`; nats.py pull request 912).
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and info.get("tls_available"):
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    def _connect_command(self) -> bytes:
        writer = getattr(self._transport, "_io_writer", None)
        if writer is None or writer.get_extra_info("ssl_object") is None:
            raise NoTlsError("nats: the server offers no TLS")
        command: bytes = super()._connect_command()
        return command


def new_client(settings: NatsConnection) -> Client:
    """Create a client without connecting; it insists on TLS if any server's URL or the `tls` settings ask for it."""
    asks_for_tls = settings.tls is not None or any(url.startswith("tls://") for url in settings.servers)
    return TlsClient() if asks_for_tls else Client()


def connection_options(settings: NatsConnection) -> dict[str, Any]:
    """Return the nats-py options for the credentials and TLS of the pipeline file."""
    options: dict[str, Any] = {}
    if settings.credentials_file:
        # Read here, so that a missing file is reported as such.
        Path(settings.credentials_file).read_bytes()
        options["user_credentials"] = str(settings.credentials_file)
    if settings.username:
        options["user"] = settings.username
    if settings.password:
        options["password"] = settings.password.get_secret_value()
    if settings.token:
        options["token"] = settings.token.get_secret_value()
    if (tls := settings.tls) is not None:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        options["tls"] = context
        options["tls_handshake_first"] = tls.handshake_first
        if tls.hostname:
            options["tls_hostname"] = tls.hostname
    return options
