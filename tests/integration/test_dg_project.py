"""The component in a dg project: two of them side by side, beside resources of the project's own; `dg check defs` has the last word."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
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
ADDRESSES = {"KAFKA_BOOTSTRAP": "k:9092", "CLICKHOUSE_HOST": "ch", "CLICKHOUSE_PORT": "8123", "NATS_URL": "nats://n:4222"}


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


def check_defs(project: Path) -> subprocess.CompletedProcess[str]:
    places = {"PYTHONPATH": f"{ROOT}:{project}", "HOME": str(project), "TALLYFLOW_HOME": str(project / "home")}
    paths = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "DAGSTER_DG_CLI_CONFIG": str(project / "none")}
    command = [str(Path(sys.executable).with_name("dg")), "check", "defs"]
    environment = {**ADDRESSES, **places, **paths}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=600)


def loaded(project: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """What the project defines, in this process."""
    for name, value in ADDRESSES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(project))
    made: dg.Definitions = importlib.import_module("shop.definitions").defs()
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]
    return made


def test_two_components_live_beside_resources_of_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the same topic, into pipelines of the same id on servers of their own."""
    add(project, "europe")
    add(project, "asia", key_prefix="asia", schedules="running", translation={"group_name": "asia", "tags": {"pipeline": "{{ pipeline }}"}})
    checked = check_defs(project)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    made = loaded(project, monkeypatch)
    specs, jobs = made.resolve_all_asset_specs(), {job.name for job in made.resolve_all_job_defs()}
    assets = {spec.key.to_user_string() for spec in specs}
    for name in ("kafka/orders", "orders_demo/clickhouse_table", "orders_demo/published"):
        assert {name, f"asia/{name}"} <= assets
    assert {"start_pipeline", "asia_start_pipeline", "publish_orders_demo", "publish_asia_orders_demo"} <= jobs
    assert not any("prune" in job for job in jobs)
    sensors = {one.name: one.default_status.value for one in made.sensors or ()}
    assert {"automate_pipelines", "asia_automate_pipelines"} <= {*sensors}
    running = {name for name, status in sensors.items() if status == "RUNNING"}
    assert {one for one in running if not one.startswith("asia_")} == {"keep_pipelines_running"}
    assert {"asia", "kafka", "orders_demo"} <= {spec.group_name for spec in specs}
