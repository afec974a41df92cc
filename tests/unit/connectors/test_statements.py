"""The files of sql/ and their use."""

from pathlib import Path

import pytest

import pipelines
from pipelines.connectors.sql import filled, statement

ROOT = Path(pipelines.__file__).parent.parent
FILES = sorted(path.relative_to(ROOT / "sql").with_suffix("").as_posix() for path in (ROOT / "sql").rglob("*.sql"))


@pytest.mark.parametrize("name", FILES)
def test_every_statement_is_used(name: str) -> None:
    sources = "\n".join(path.read_text() for package in ("pipelines", "dagster_project") for path in (ROOT / package).rglob("*.py"))
    assert f'"{name}"' in sources or f'"{Path(name).name}"' in sources


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_one_statement_and_says_what_it_is_for(name: str) -> None:
    text = statement(name)
    assert text.startswith("-- ")
    assert ";" not in "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def test_names_with_a_dollar_are_replaced() -> None:
    text = filled("clickhouse/create_table", database="db", table="t", columns="a Int8", order_by="a", window=7)
    assert "CREATE TABLE IF NOT EXISTS db.t (a Int8)" in text
    assert "non_replicated_deduplication_window = 7" in text


def test_a_name_that_is_not_given_is_an_error() -> None:
    with pytest.raises(KeyError):
        filled("clickhouse/drop_table", database="db")
