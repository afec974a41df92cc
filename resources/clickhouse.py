"""ClickHouse as a Dagster resource, over HTTP. Field names match Dagster's own database resources."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from clickhouse_connect.driver.client import Client
from pydantic import Field

from pipelines.config import ClickHouseConnection
from pipelines.connectors.clickhouse.connection import open_client
from resources.connection import ConnectionResource


class ClickHouseResource(ConnectionResource):
    """The server of `${CLICKHOUSE_HOST}` and related variables in pipeline files, and a client for it. Give secrets as `dg.EnvVar`."""

    variables: ClassVar[dict[str, str]] = {
        "host": "CLICKHOUSE_HOST",
        "port": "CLICKHOUSE_PORT",
        "user": "CLICKHOUSE_USER",
        "password": "CLICKHOUSE_PASSWORD",
        "database": "CLICKHOUSE_DATABASE",
    }

    defaults: ClassVar[dict[str, str]] = {"CLICKHOUSE_PORT": "8123", "CLICKHOUSE_USER": "default", "CLICKHOUSE_PASSWORD": ""}
    """Values of a new server: a pipeline file may name these variables although they are not set."""

    host: str = Field(default="", description="Host name or address. Empty: CLICKHOUSE_HOST.")
    port: str = Field(default="", description="HTTP(S) port. Empty: CLICKHOUSE_PORT, else 8123.")
    user: str = Field(default="", description="User. Empty: CLICKHOUSE_USER, else `default`.")
    password: str = Field(default="", repr=False, description="Password, as `dg.EnvVar`. Empty: CLICKHOUSE_PASSWORD.")
    database: str = Field(default="", description="Database. Empty: CLICKHOUSE_DATABASE, else `default`.")
    secure: bool = Field(default=False, description="Use TLS.")

    @contextmanager
    def get_connection(self) -> Iterator[Client]:
        """Yield a clickhouse-connect client. Raise RetryableError while the server is away, HaltError if it refuses the login."""
        database = self.value("database") or "default"
        values = {
            "host": self.value("host"),
            "port": int(self.value("port") or self.defaults["CLICKHOUSE_PORT"]),
            "username": self.value("user") or self.defaults["CLICKHOUSE_USER"],
            "password": self.value("password"),
            "database": database,
            "secure": self.secure,
        }
        client = open_client(ClickHouseConnection.model_validate(values))
        client.database = database
        try:
            yield client
        finally:
            client.close()
