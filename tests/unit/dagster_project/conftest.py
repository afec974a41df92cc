"""What tests of Dagster's definitions share."""

from collections.abc import Iterator

import pytest
from support.dagster_storage import migrations_read_once


@pytest.fixture(scope="session", autouse=True)
def brief_storage() -> Iterator[None]:
    """Instances are made as those of the integration tests: one may have a database for each run."""
    with migrations_read_once():
        yield
