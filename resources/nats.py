"""NATS JetStream as a Dagster resource."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from pydantic import Field

from pipelines.config import NatsConnection
from pipelines.config.pipeline import DEFAULT_NATS_URL
from pipelines.connectors.nats.client import JetStream
from resources.connection import ConnectionResource


class NatsResource(ConnectionResource):
    """The server of `${NATS_URL}` in pipeline files, and of a file without `nats`, with a client for it. Give secrets as `dg.EnvVar`."""

    variables: ClassVar[dict[str, str]] = {
        "url": "NATS_URL",
        "user": "NATS_USER",
        "password": "NATS_PASSWORD",
        "token": "NATS_TOKEN",
        "credentials_file": "NATS_CREDENTIALS_FILE",
    }

    url: str = Field(
        default="", repr=False, description="`nats://host:port`, several separated by commas. Empty: NATS_URL, else 127.0.0.1:4222."
    )
    user: str = Field(default="", description="User name. Empty: NATS_USER.")
    password: str = Field(default="", repr=False, description="Password, as `dg.EnvVar`. Empty: NATS_PASSWORD.")
    token: str = Field(default="", repr=False, description="Token, as `dg.EnvVar`. Empty: NATS_TOKEN.")
    credentials_file: str = Field(default="", description="Path of a `.creds` file. Empty: NATS_CREDENTIALS_FILE.")

    @contextmanager
    def get_client(self) -> Iterator[JetStream]:
        """Yield a connected JetStream client. Raise RetryableError while the server is away, HaltError if it refuses the login."""
        values = {
            "url": self.value("url") or DEFAULT_NATS_URL,
            "username": self.value("user") or None,
            "password": self.value("password") or None,
            "token": self.value("token") or None,
            "credentials_file": self.value("credentials_file") or None,
        }
        # A login may be in the URL, and then in no field: an empty one counts as given.
        given = {name: value for name, value in values.items() if value is not None}
        client = JetStream(NatsConnection.model_validate(given), "tallyflow-dagster")
        try:
            yield client.connect()
        finally:
            client.close()
