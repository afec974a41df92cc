"""How the pipeline file's NATS settings become options of nats-py."""

import ssl
from pathlib import Path
from typing import Any

from pipelines.config import NatsConnection


def connection_options(settings: NatsConnection) -> dict[str, Any]:
    """nats-py options for the credentials and TLS of the pipeline file."""
    options: dict[str, Any] = {}
    if settings.credentials_file:
        # Read here, so that a file that is not there is told as such.
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
