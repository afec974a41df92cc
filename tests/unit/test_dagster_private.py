"""What we use of Dagster beside its public names: only in the modules that say so, and as we use it."""

import ast
from pathlib import Path

import dagster as dg
import pytest

from dagster_project import dagster_private, dev, webserver
from dagster_project.dagster_private import results_since

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = {"dagster_private.py", "dev.py"}
KEY = dg.AssetKey(["p", "clickhouse_table"])


def private_imports(path: Path) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module]
    return [node.module for node in nodes if node.module and node.module.startswith("dagster._")]


def test_private_names_are_imported_in_one_place_and_where_dagster_is_started() -> None:
    paths = [path for folder in ("dagster_project", "resources", "pipelines") for path in (ROOT / folder).rglob("*.py")]
    assert {path.name for path in paths if private_imports(path)} == ALLOWED


def test_the_tables_that_pruning_deletes_from_have_the_columns_it_reads() -> None:
    events = {column.name for column in dagster_private.SqlEventLogStorageTable.c}
    checks = {column.name for column in dagster_private.AssetCheckExecutionsTable.c}
    assert {"id", "run_id", "asset_key", "dagster_event_type", "timestamp"} <= events
    assert {"id", "run_id", "asset_key", "check_name", "create_timestamp"} <= checks
    assert "event_id" in {column.name for column in dagster_private.AssetEventTagsTable.c}


def test_what_dagster_dev_and_the_web_server_are_given_instead_is_what_they_call() -> None:
    assert callable(dev._open)
    assert dev.dev.__name__ == "dagster._cli.dev"
    source = Path(dev.dev.__file__ or "").read_text()
    assert f'open_ipc_subprocess(\n                [sys.executable, "-m", "{dev._WEBSERVER}"]' in source
    served = Path(webserver.cli.__file__ or "").read_text()
    assert served.count("create_app_from_workspace_process_context(") == 1


@pytest.fixture
def instance() -> dg.DagsterInstance:
    return dg.DagsterInstance.ephemeral()


def report(instance: dg.DagsterInstance, name: str, passed: bool) -> None:
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(KEY, check_name=name, passed=passed, metadata={}))


def test_results_are_those_since_and_the_newest_of_a_check_that_was_never_seen(instance: dg.DagsterInstance) -> None:
    gaps, views = dg.AssetCheckKey(KEY, "gaps"), dg.AssetCheckKey(KEY, "views")
    assert list(results_since(instance, [gaps, views], {})) == []
    report(instance, "gaps", False)
    report(instance, "gaps", True)
    first = list(results_since(instance, [gaps, views], {}))
    assert [(key.name, result.passed) for key, _, _, result in first] == [("gaps", True)]
    seen = {gaps.to_user_string(): first[0][1]}
    assert list(results_since(instance, [gaps, views], seen)) == []
    report(instance, "gaps", False)
    report(instance, "views", False)
    report(instance, "gaps", True)
    found = [(key.name, result.passed) for key, _, _, result in results_since(instance, [gaps, views], seen)]
    assert sorted(found) == [("gaps", False), ("gaps", True), ("views", False)]
    assert [passed for name, passed in found if name == "gaps"] == [False, True]
