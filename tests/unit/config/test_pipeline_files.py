"""The directory of pipeline files that Dagster shows: what is sound is used, what is not is told."""

from pathlib import Path

import pytest
import yaml

from dagster_project.pipeline_files import pipelines_directory, read_pipeline_files

ENVIRONMENT = {"KAFKA_BOOTSTRAP": "127.0.0.1:1", "CLICKHOUSE_HOST": "127.0.0.1", "CLICKHOUSE_PORT": "1"}
EXAMPLE = (Path(__file__).resolve().parents[3] / "examples" / "orders" / "pipeline.yaml").read_text()


def write(path: Path, text: str = EXAMPLE, **replaced: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    for old, new in replaced.items():
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_a_faulty_file_is_listed_beside_sound_ones(tmp_path: Path) -> None:
    write(tmp_path / "b" / "orders.yaml")
    write(tmp_path / "a.yml", demo="copy")
    broken = write(tmp_path / "c.yaml", "version: v3\npipeline_id: c\n")
    found = read_pipeline_files(tmp_path, ENVIRONMENT)
    assert [pipeline.key for pipeline in found.pipelines] == ["orders_copy", "orders_demo"]
    assert [one.path for one in found.faulty] == [broken]
    assert "sources" in found.faulty[0].message
    assert "sink" in found.faulty[0].message
    assert found.get("orders_demo").names.pipeline == "orders-demo"


def test_an_unset_variable_makes_a_file_faulty_and_is_named(tmp_path: Path) -> None:
    write(tmp_path / "orders.yaml")
    found = read_pipeline_files(tmp_path, {})
    assert found.pipelines == ()
    assert "KAFKA_BOOTSTRAP" in found.faulty[0].message


def test_of_two_files_with_one_id_the_second_by_path_is_not_used(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1.yaml"), write(tmp_path / "2.yaml")
    found = read_pipeline_files(tmp_path, ENVIRONMENT)
    assert [pipeline.path for pipeline in found.pipelines] == [first]
    assert [one.path for one in found.faulty] == [second]
    assert str(first) in found.faulty[0].message


def test_a_file_that_this_release_cannot_run_is_told(tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE)
    (orders,) = document["sources"]
    document["sources"].append({**orders, "source_id": "others", "topic": "others"})
    side, names = {"key": "order_id", "time_window": "1h"}, [field["name"] for field in orders["schema_fields"]]
    document["join"] = {
        "enabled": True,
        "left_source": {"source_id": "orders", **side},
        "right_source": {"source_id": "others", **side},
        "output_fields": [{"source_id": "orders", "name": name} for name in names],
    }
    document["transforms"] = [
        {"type": "dedup", "source_id": "orders", "config": {"key": "order_id", "time_window": "1h", "keep_duplicates": True}}
    ]
    write(tmp_path / "joined.yaml", yaml.safe_dump(document))
    assert "not supported yet" in read_pipeline_files(tmp_path, ENVIRONMENT).faulty[0].message


def test_hidden_and_other_files_are_no_pipeline_files(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "x.yaml", "x")
    write(tmp_path / ".hidden.yaml", "x")
    write(tmp_path / "README.md", "x")
    write(tmp_path / "orders.tests.yaml", "x")
    found = read_pipeline_files(tmp_path, ENVIRONMENT)
    assert (found.pipelines, found.faulty) == ((), ())


def test_state_below_the_directory_is_no_pipeline_file(tmp_path: Path) -> None:
    write(tmp_path / "home" / "pipelines" / "orders" / "desired.json", "{}")
    assert read_pipeline_files(tmp_path, {"TALLYFLOW_HOME": str(tmp_path / "home")}).faulty == ()


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    directory = pipelines_directory({"TALLYFLOW_PIPELINES": str(tmp_path / "no")})
    assert "TALLYFLOW_PIPELINES" in read_pipeline_files(directory, {}).faulty[0].message


def test_the_examples_are_the_default_and_sound() -> None:
    found = read_pipeline_files(pipelines_directory({}), ENVIRONMENT)
    assert [pipeline.config.pipeline_id for pipeline in found.pipelines] == ["orders-demo"]
    assert found.faulty == ()


@pytest.mark.parametrize(
    "text",
    ["[" * 1000, "a: !!bool x", "a: !!timestamp x", "buckets: 0x" + 4000 * "f", "\x00", "a: &a [*a]", "? {a: 1}\n: 2", "%YAML 9.9\n---\na"],
    ids=["depth", "bool", "timestamp", "number", "NUL", "cycle", "odd key", "directive"],
)
def test_whatever_a_file_does_to_its_reader_the_others_are_shown(tmp_path: Path, text: str) -> None:
    write(tmp_path / "sound.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text(text)
    found = read_pipeline_files(tmp_path, ENVIRONMENT)
    assert [pipeline.key for pipeline in found.pipelines] == ["orders_demo"]
    assert [one.path for one in found.faulty] == [broken]


def test_a_file_that_breaks_its_reader_is_shown_without_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("secret-7d1f")

    monkeypatch.setattr("dagster_project.pipeline_files.load", broken)
    write(tmp_path / "a.yaml")
    (found,) = read_pipeline_files(tmp_path, ENVIRONMENT).faulty
    assert "cannot be read (LookupError)" in found.message
    assert "secret" not in found.message
