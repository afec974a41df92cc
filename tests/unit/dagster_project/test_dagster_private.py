"""What we use of Dagster beside its public names: only in the modules that say so, and as we use it."""

import ast
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned

from dagster_project import dagster_private
from dagster_project.dagster_private import Looked, results_since
from dagster_project.run_config import sealed

ROOT = Path(__file__).resolve().parents[3]
ALLOWED = {"dagster_private.py", "dev.py"}
KEY = dg.AssetKey(["p", "clickhouse_table"])


def private_imports(path: Path) -> list[str]:
    text = path.read_text()
    # To parse them all takes two seconds.
    tree = ast.parse(text if "dagster._" in text else "")
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return [node.module for node in nodes if node.module and node.module.startswith("dagster._")]


def test_private_names_are_imported_in_one_place() -> None:
    paths = [path for folder in ("dagster_project", "resources", "pipelines") for path in (ROOT / folder).rglob("*.py")]
    assert {path.name for path in paths if private_imports(path)} == ALLOWED


def test_pruned_tables_have_the_columns_that_pruning_reads() -> None:
    events = {column.name for column in dagster_private.SqlEventLogStorageTable.c}
    checks = {column.name for column in dagster_private.AssetCheckExecutionsTable.c}
    assert {"id", "run_id", "asset_key", "dagster_event_type", "timestamp"} <= events
    assert {"id", "run_id", "asset_key", "check_name", "create_timestamp"} <= checks
    assert "event_id" in {column.name for column in dagster_private.AssetEventTagsTable.c}


def test_the_replaced_entry_points_are_those_dagster_calls() -> None:
    # Dagster's web server takes 1.5 s of CPU to import: here, not in every worker that collects this module.
    dev, webserver = (import_module(f"dagster_project.web.{name}") for name in ("dev", "server"))
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


def reported(instance: dg.DagsterInstance, looked: dict[str, Looked]) -> list[tuple[str, bool]]:
    """What is new, by name of the check; `looked` remembers it."""
    found = []
    for key, seen, results in results_since(instance, [dg.AssetCheckKey(KEY, name) for name in ("gaps", "views")], looked):
        looked[key.to_user_string()] = seen
        found += [(key.name, result.passed) for _, result in results]
    return found


def test_results_are_those_since_and_the_newest_of_a_new_check(instance: dg.DagsterInstance) -> None:
    looked: dict[str, Looked] = {}
    assert reported(instance, looked) == []
    report(instance, "gaps", False)
    report(instance, "gaps", True)
    assert reported(instance, looked) == [("gaps", True)]
    assert reported(instance, looked) == []
    report(instance, "gaps", False)
    report(instance, "views", False)
    report(instance, "gaps", True)
    assert sorted(reported(instance, looked)) == [("gaps", False), ("gaps", True), ("views", False)]


def test_a_result_overtaken_by_another_is_still_seen() -> None:
    """Two runs make the check at once; the one that began first ends last, and fails."""
    with dg.instance_for_test() as instance:
        report(instance, "gaps", True)
        looked: dict[str, Looked] = {}
        assert reported(instance, looked) == [("gaps", True)]
        slow, quick = (run_of(instance), run_of(instance))
        for run in (slow, quick):
            of_run(instance, run, AssetCheckEvaluationPlanned(asset_key=KEY, check_name="gaps"))
        of_run(instance, quick, dg.AssetCheckEvaluation(KEY, check_name="gaps", passed=True, metadata={}))
        assert reported(instance, looked) == [("gaps", True)]
        assert reported(instance, looked) == []
        of_run(instance, slow, dg.AssetCheckEvaluation(KEY, check_name="gaps", passed=False, metadata={}))
        assert reported(instance, looked) == [("gaps", False)]
        assert reported(instance, looked) == []


def run_of(instance: dg.DagsterInstance) -> str:
    @dg.job
    def checked() -> None: ...

    return instance.create_run_for_job(checked).run_id


def of_run(instance: dg.DagsterInstance, run_id: str, made: dg.AssetCheckEvaluation | AssetCheckEvaluationPlanned) -> None:
    is_planned = isinstance(made, AssetCheckEvaluationPlanned)
    kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED if is_planned else dg.DagsterEventType.ASSET_CHECK_EVALUATION
    event = dg.DagsterEvent(kind.value, "checked", event_specific_data=made)
    instance.store_event(dg.EventLogEntry(None, 10, "", run_id, time.time(), dagster_event=event))


class Inner(dg.ConfigurableResource[None]):
    word: str


class Outer(dg.ConfigurableResource[None]):
    inner: Inner
    word: str

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        begun.append((context.instance, self.word, self.inner.word))

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        begun.append("ended")


begun: list[Any] = []


def test_a_sealed_resource_begins_in_the_instance_of_its_run(monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance) -> None:
    """With the environment as it is then, in the resources below it too; another instance would cost each run databases of its own."""

    @dg.op(required_resource_keys={"outer"})
    def works() -> None:
        begun.append("works")

    outer = Outer(inner=Inner(word=dg.EnvVar("BELOW")), word=dg.EnvVar("ABOVE"))

    @dg.job(resource_defs={"outer": sealed(outer)})
    def job() -> None:
        works()

    begun.clear()
    assert not job.execute_in_process(instance=instance, raise_on_error=False).success
    assert begun == []
    for name in ("ABOVE", "BELOW"):
        monkeypatch.setenv(name, name.lower())
    assert job.execute_in_process(instance=instance).success
    assert begun == [(instance, "above", "below"), "works", "ended"]
