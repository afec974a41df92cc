"""The component in a dg project: two of them side by side, beside resources of the project's own; `dg check defs` has the last word."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = (ROOT / "examples" / "orders" / "pipeline.yaml").read_text().replace("${ORDERS_PIPELINE:-orders-demo}", "orders-demo")
pytestmark = pytest.mark.integration
PROJECT = """
[project]
name = "shop"
version = "0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""
DEFINITIONS = """
from pathlib import Path
import dagster as dg

@dg.definitions
def defs():
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
OWN_RESOURCES = """
import dagster as dg

@dg.definitions
def own() -> dg.Definitions:
    keys = ("duckdb", "kafka", "nats", "clickhouse", "pyspark", "alerts")
    return dg.Definitions(resources={key: dg.ResourceDefinition.hardcoded_resource(key) for key in keys})
"""
LIST = """
import json
from shop.definitions import defs
made = defs()
print(json.dumps({
    "assets": sorted(spec.key.to_user_string() for spec in made.resolve_all_asset_specs()),
    "groups": sorted({spec.group_name for spec in made.resolve_all_asset_specs()}),
    "jobs": sorted(job.name for job in made.resolve_all_job_defs()),
    "sensors": sorted(one.name for one in made.sensors or ()),
    "running": sorted(one.name for one in made.sensors or () if one.default_status.value == "RUNNING"),
}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "shop"
    (package / "defs").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    (package / "defs" / "own.py").write_text(OWN_RESOURCES)
    return tmp_path


def add(project: Path, name: str, pipeline_id: str = "orders-demo", **attributes: Any) -> None:
    directory = project / "shop" / "defs" / name
    directory.mkdir()
    component = {"type": "dagster_project.components.TallyflowPipelines", "attributes": attributes}
    (directory / "defs.yaml").write_text(yaml.safe_dump(component))
    (directory / "orders.yaml").write_text(EXAMPLE.replace("orders-demo", pipeline_id))


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    names = {"KAFKA_BOOTSTRAP": "k:9092", "CLICKHOUSE_HOST": "ch", "CLICKHOUSE_PORT": "8123", "NATS_URL": "nats://n:4222"}
    places = {"PYTHONPATH": f"{ROOT}:{project}", "HOME": str(project), "TALLYFLOW_HOME": str(project / "home")}
    environment = {
        **names,
        **places,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "DAGSTER_DG_CLI_CONFIG": str(project / "none"),
    }
    return subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=600)


def listed(project: Path) -> dict[str, list[str]]:
    found = run(project, sys.executable, "-c", LIST)
    assert found.returncode == 0, found.stderr
    answer: dict[str, list[str]] = yaml.safe_load(found.stdout.splitlines()[-1])
    return answer


def test_two_components_live_beside_resources_of_the_project(project: Path) -> None:
    """Both read the same topic, into pipelines of the same id on servers of their own."""
    add(project, "europe")
    add(project, "asia", key_prefix="asia", schedules="running", translation={"group_name": "asia", "tags": {"pipeline": "{{ pipeline }}"}})
    checked = run(project, str(Path(sys.executable).with_name("dg")), "check", "defs")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    found = listed(project)
    for name in ("kafka/orders", "orders_demo/clickhouse_table", "orders_demo/published"):
        assert {name, f"asia/{name}"} <= {*found["assets"]}
    assert {"start_pipeline", "asia_start_pipeline", "publish_orders_demo", "publish_asia_orders_demo"} <= {*found["jobs"]}
    assert not any("prune" in job for job in found["jobs"])
    assert {"automate_pipelines", "asia_automate_pipelines"} <= {*found["sensors"]}
    assert {one for one in found["running"] if not one.startswith("asia_")} == {"keep_pipelines_running"}
    assert {"asia", "kafka", "orders_demo"} <= {*found["groups"]}


def test_a_translation_that_changes_a_key_is_refused(project: Path) -> None:
    add(project, "europe", translation={"key": "other"})
    checked = run(project, str(Path(sys.executable).with_name("dg")), "check", "defs")
    assert checked.returncode != 0
    assert "the key must stay; set key_prefix" in checked.stdout + checked.stderr
