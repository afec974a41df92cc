"""The model of a look-up table in PostgreSQL."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, SecretStr

from pipelines.config.base import UNSET_HOST, Effect, Model, Port, Secret, Text, Window, matching, ours
from pipelines.config.table_model import TableModel

_HOST = r"^[A-Za-z0-9._-]+$|^[0-9A-Fa-f:.%]+$|^/[^\x00-\x1f]+$"
PostgresHost = Annotated[str, AfterValidator(matching(_HOST, "must be a host name or address, or the absolute directory of a socket"))]


class PostgresConnection(Model):
    """Connection to PostgreSQL."""

    unreached: ClassVar[Mapping[str, Any]] = {"host": UNSET_HOST, **dict.fromkeys(("port", "username", "password", "sslmode"))}

    host: PostgresHost = ours(..., "Host name or address, or the directory of a socket.")
    port: Port = ours(5432, "Port.")
    database: Text = ours("postgres", "Database.")
    username: Text = ours("postgres", "User; the right to read is enough.")
    password: Secret = ours(SecretStr(""), "Password; may be empty.")
    sslmode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] = ours("prefer", "TLS, as libpq takes it.")


class PostgresTable(TableModel):
    """The rows of a query of PostgreSQL. Needs the extra `postgres`: `pip install 'tallyflow[postgres]'`."""

    type: Literal["postgres"] = ours(..., "Kind of table.")
    query: Annotated[str, Field(min_length=1, max_length=20_000)] = ours(
        ..., "One SELECT, run in a read-only transaction. Its columns are found by their names."
    )
    connection_params: PostgresConnection = ours(..., "Connection to PostgreSQL.")
    timeout: Window = ours(timedelta(minutes=1), "Longest time of the query.", Effect.RELOAD)


TABLE = PostgresTable
