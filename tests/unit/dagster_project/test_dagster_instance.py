"""The dagster.yaml that `tallyflow dagster` writes: when, and with which storage."""

from pathlib import Path

import pytest
import yaml

from pipelines.cli.dagster import write_instance
from pipelines.errors import HaltError

PROJECT = Path(__file__).resolve().parents[3] / "dagster_project"
URL = "postgresql+psycopg2://dagster:sesame@db/dagster"


def test_without_a_url_dagster_keeps_to_sqlite(tmp_path: Path) -> None:
    write_instance(tmp_path / "dagster", "")
    assert "storage" not in yaml.safe_load((tmp_path / "dagster" / "dagster.yaml").read_text())


def test_with_a_url_it_is_both_files_without_a_password(tmp_path: Path) -> None:
    write_instance(tmp_path, URL)
    written = (tmp_path / "dagster.yaml").read_text()
    assert written == (PROJECT / "dagster.yaml").read_text() + (PROJECT / "postgres.yaml").read_text()
    assert yaml.safe_load(written)["storage"] == {"postgres": {"postgres_url": {"env": "DAGSTER_POSTGRES_URL"}}}


@pytest.mark.parametrize(("existing", "words"), [("telemetry: {}", "does not use it"), ("# DAGSTER_POSTGRES_URL", "")])
def test_a_present_file_stays_and_is_named_if_it_ignores_the_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], existing: str, words: str
) -> None:
    (tmp_path / "dagster.yaml").write_text(existing)
    write_instance(tmp_path, URL)
    assert (tmp_path / "dagster.yaml").read_text() == existing
    answer = capsys.readouterr().out
    assert words in answer
    assert bool(answer) == bool(words)
    assert "sesame" not in answer


def test_a_url_without_a_driver_is_refused_without_telling_it(tmp_path: Path) -> None:
    with pytest.raises(HaltError, match=r"start it with postgresql\+psycopg2://$") as error:
        write_instance(tmp_path, "postgresql://dagster:sesame@db/dagster")
    assert "sesame" not in str(error.value)


def test_no_setting_is_said_twice() -> None:
    """YAML lets the second one win and says nothing."""
    lines = [line for name in ("dagster.yaml", "postgres.yaml") for line in (PROJECT / name).read_text().splitlines()]
    settings = [line.partition(":")[0] for line in lines if line[:1].isalpha()]
    assert len(settings) == len({*settings})
