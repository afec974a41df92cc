"""Retention of Dagster's event log on a real instance: what is old goes, the newest of everything stays. Time is moved in the database."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.runs.schema import RunsTable
from dagster_postgres import PostgresEventLogStorage
from support.dagster_storage import migrations_read_once, postgres_instance

from dagster_project.jobs.event_log import Pruned, build, prune
from dagster_project.pipeline_files import PipelineFiles

pytestmark = pytest.mark.integration
TABLE = dg.AssetKey(["p", "clickhouse_table"])
NOW = datetime(2026, 11, 22, tzinfo=UTC)
OLD, CUTOFF = NOW - timedelta(days=30), NOW - timedelta(days=14)


@pytest.fixture(scope="module", params=["SQLite", "PostgreSQL"])
def kept(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[dg.DagsterInstance]:
    """With SQLite on disk as `tallyflow dagster` has it, and in PostgreSQL as a deployment has it."""
    with migrations_read_once():
        if request.param == "PostgreSQL":
            made = postgres_instance(request.getfixturevalue("postgres"))
        else:
            made = dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster")))
        with made as instance:
            yield instance


@pytest.fixture
def instance(kept: dg.DagsterInstance) -> dg.DagsterInstance:
    """Empty."""
    kept.wipe()
    return kept


def age(instance: dg.DagsterInstance, instant: datetime) -> None:
    """Everything that is there now happened at the instant."""
    naive = instant.replace(tzinfo=None)
    storage = instance.event_log_storage
    for connect in (storage.index_connection, lambda: storage.run_connection("")):
        with connect() as connection:
            connection.execute(SqlEventLogStorageTable.update().values(timestamp=naive))
            connection.execute(AssetCheckExecutionsTable.update().values(create_timestamp=naive))
    with instance.run_storage.connect() as connection:
        connection.execute(RunsTable.update().values(update_timestamp=naive, create_timestamp=naive))


def observe(instance: dg.DagsterInstance, count: int) -> None:
    for number in range(count):
        instance.report_runless_asset_event(dg.AssetObservation(TABLE, metadata={"number": number}))


def observations(instance: dg.DagsterInstance) -> list[int]:
    records = instance.fetch_observations(TABLE, limit=1000).records
    return [record.asset_observation.metadata["number"].value for record in records if record.asset_observation]


def copies(instance: dg.DagsterInstance) -> int:
    with instance.event_log_storage.run_connection("") as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(SqlEventLogStorageTable)).scalar_one())


@dg.asset(key=["p", "published"])
def published() -> None: ...


@dg.op
def fails() -> None:
    raise dg.Failure("on purpose")


@dg.job
def failing() -> None:
    fails()


def test_old_observations_go_tick_by_tick_and_the_newest_stays(instance: dg.DagsterInstance) -> None:
    """A tick takes no more than it may; what is not old stays."""
    observe(instance, 8)
    age(instance, NOW)
    assert prune(instance, CUTOFF, 10, 100) == Pruned(0, 0, 0)
    assert len(observations(instance)) == 8
    age(instance, OLD)
    assert [prune(instance, CUTOFF, 10, 3).events for _ in range(4)] == [3, 3, 1, 0]
    assert observations(instance) == [7]
    # SQLite keeps events without a run a second time; PostgreSQL has the one that stays, once.
    assert copies(instance) == (1 if isinstance(instance.event_log_storage, PostgresEventLogStorage) else 0)


def test_old_runs_are_pruned_but_for_the_newest_of_an_asset(instance: dg.DagsterInstance) -> None:
    first, second = (dg.materialize([published], instance=instance).run_id for _ in range(2))
    failed = failing.execute_in_process(instance=instance, raise_on_error=False).run_id
    age(instance, OLD)
    assert prune(instance, CUTOFF, 10, 100).runs == 2
    left = {run.run_id for run in instance.get_runs()}
    assert (second in left, first in left, failed in left) == (True, False, False)
    assert instance.get_latest_materialization_event(dg.AssetKey(["p", "published"])) is not None


def test_old_results_of_checks_go_but_for_the_newest_of_each(instance: dg.DagsterInstance) -> None:
    observe(instance, 1)
    for passed in (True, True, False):
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(TABLE, check_name="gaps", passed=passed, metadata={}))
    age(instance, OLD)
    assert prune(instance, CUTOFF, 10, 100).check_results == 2
    key = dg.AssetCheckKey(TABLE, "gaps")
    record = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key]
    assert record.status.value == "FAILED"


@pytest.mark.parametrize("kept", ["PostgreSQL"], indirect=True)
def test_the_nightly_job_prunes_by_its_configuration(instance: dg.DagsterInstance) -> None:
    observe(instance, 3)
    age(instance, datetime.now(UTC) - timedelta(days=3))
    job = build(PipelineFiles(Path("none"), (), ())).resolve_job_def("prune_event_log")
    assert job.execute_in_process(instance=instance).success
    assert len(observations(instance)) == 3
    assert job.execute_in_process(instance=instance, run_config={"ops": {"prune_event_log_op": {"config": {"keep_days": 2}}}}).success
    assert observations(instance) == [2]
