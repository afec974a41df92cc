"""A source's `connection_params` as settings of librdkafka."""

import atexit
import binascii
import os
import tempfile
from base64 import b64decode
from functools import cache
from pathlib import Path

from pipelines.config import KafkaConnection, KafkaSource

_PEM_BEGINS = "-----BEGIN"
_KEYTAB_MAGIC = b"\x05"


def client_settings(source: KafkaSource) -> dict[str, str | bool | int]:
    return connection_settings(source.connection_params)


def connection_settings(connection: KafkaConnection) -> dict[str, str | bool | int]:
    """Return the librdkafka settings for brokers, protocol, authentication and TLS. They hold secrets: never log them.

    A Kerberos configuration is process-wide: this sets `KRB5_CONFIG`. Names of settings: librdkafka CONFIGURATION.md.
    """
    settings: dict[str, str | bool | int] = {
        "bootstrap.servers": ",".join(connection.brokers),
        "security.protocol": connection.protocol if connection.logs_in else connection.protocol.replace("SASL_PLAINTEXT", "PLAINTEXT"),
        "client.id": "tallyflow",
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 2_000,
    }
    if connection.protocol == "SASL_SSL" and not connection.logs_in:
        settings["security.protocol"] = "SSL"
    if connection.logs_in:
        settings |= _login_settings(connection)
    if connection.protocol.endswith("SSL"):
        settings |= _tls_settings(connection)
    return settings


def _login_settings(connection: KafkaConnection) -> dict[str, str | bool | int]:
    settings: dict[str, str | bool | int] = {"sasl.mechanism": connection.mechanism}
    if connection.mechanism == "GSSAPI":
        settings |= _kerberos_settings(connection)
    elif connection.mechanism == "OAUTHBEARER":
        secret = connection.oauth_client_secret
        texts = {
            "method": "oidc",
            "token.endpoint.url": connection.oauth_token_endpoint_url,
            "client.id": connection.oauth_client_id,
            "client.secret": secret.get_secret_value() if secret else None,
            "scope": connection.oauth_scope,
            "extensions": connection.oauth_extensions,
        }
        settings |= {f"sasl.oauthbearer.{name}": text for name, text in texts.items() if text}
    else:
        settings["sasl.username"] = connection.username
        settings["sasl.password"] = connection.password.get_secret_value() if connection.password else ""
    return settings


def _kerberos_settings(connection: KafkaConnection) -> dict[str, str | bool | int]:
    has_realm = "@" in connection.username or not connection.kerberos_realm
    settings: dict[str, str | bool | int] = {
        "sasl.kerberos.service.name": connection.kerberos_service_name or "kafka",
        "sasl.kerberos.principal": connection.username if has_realm else f"{connection.username}@{connection.kerberos_realm}",
    }
    if connection.kerberos_keytab:
        keytab = connection.kerberos_keytab.get_secret_value()
        content = _from_base64(keytab)
        settings["sasl.kerberos.keytab"] = _private_file(content) if content and content.startswith(_KEYTAB_MAGIC) else keytab
    if connection.kerberos_config:
        text = connection.kerberos_config
        os.environ["KRB5_CONFIG"] = _private_file(text.encode()) if "[" in text else text
    return settings


def _tls_settings(connection: KafkaConnection) -> dict[str, str | bool | int]:
    settings: dict[str, str | bool | int] = {"enable.ssl.certificate.verification": not connection.skip_tls_verification}
    texts = {
        "ssl.ca": connection.root_ca,
        "ssl.certificate": connection.client_cert,
        "ssl.key": connection.client_key.get_secret_value() if connection.client_key else None,
    }
    for name, text in texts.items():
        if text:
            pem = _pem(text)
            settings[f"{name}.location" if pem is None else f"{name}.pem"] = text if pem is None else pem
    return settings


def _pem(text: str) -> str | None:
    """Return the PEM text of `text` or of its base64 content; None if it is neither, and therefore a path."""
    if _PEM_BEGINS in text:
        return text
    content = _from_base64(text)
    return content.decode("latin-1") if content and _PEM_BEGINS.encode() in content else None


def _from_base64(text: str) -> bytes | None:
    try:
        return b64decode("".join(text.split()), validate=True)
    except binascii.Error:
        return None


@cache
def _private_file(content: bytes) -> str:
    """Write the content to a file that only this user can read and return its path; deleted at exit.

    The libraries accept paths only.
    """
    descriptor, path = tempfile.mkstemp(prefix="tallyflow-kerberos-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    atexit.register(Path(path).unlink, missing_ok=True)
    return path
