"""The resources' clients on real servers, and that what is secret stays out of sight."""

from pathlib import Path

import dagster as dg
import duckdb
import pytest
from support.pipeline_case import PipelineCase

from resources.clickhouse import ClickHouseResource
from resources.duckdb import DuckDBResource
from resources.kafka import KafkaResource
from resources.local.kafka.broker import MECHANISM, PROTOCOL
from resources.local.passwords import USER
from resources.nats import NatsResource

pytestmark = pytest.mark.integration


def test_each_resource_gives_a_client_that_works(case: PipelineCase, tmp_path: Path) -> None:
    case.create_topic()
    a = case.addresses
    kafka_login = {"security_protocol": PROTOCOL, "sasl_mechanism": MECHANISM, "sasl_username": USER, "sasl_password": a.kafka_password}
    with KafkaResource(bootstrap_servers=a.kafka_bootstrap, **kafka_login).get_client() as kafka:
        assert case.topic in kafka.list_topics(timeout=30).topics
    with NatsResource(url=a.nats_url).get_client() as nats:
        assert nats.state("no-such-stream") is None
    clickhouse = ClickHouseResource(
        host=a.clickhouse_host, port=str(a.clickhouse_port), user=a.clickhouse_user, password=a.clickhouse_password
    )
    with clickhouse.get_connection() as connection:
        assert connection.query("SELECT currentDatabase(), 1 + 1").result_rows == [("default", 2)]
    with DuckDBResource(database=str(tmp_path / "one.duckdb"), memory_limit="512MiB", threads=1).get_connection() as engine:
        assert engine.execute("SELECT current_setting('threads'), current_setting('memory_limit')").fetchone() == (1, "512.0 MiB")
        with pytest.raises(duckdb.Error):
            engine.execute("INSTALL no_such_extension FROM community")


def test_an_empty_field_stands_for_the_variable_of_its_name(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in case.addresses.environment().items():
        monkeypatch.setenv(name, value)
    with ClickHouseResource().get_connection() as connection:
        assert connection.query("SELECT 1").result_rows == [(1,)]


def test_a_secret_of_the_environment_is_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CH_SECRET", "canary-81c2")
    seen = []

    @dg.op
    def look(clickhouse: ClickHouseResource) -> None:
        seen.append((clickhouse.environment()["CLICKHOUSE_PASSWORD"], repr(clickhouse)))

    @dg.job
    def looking() -> None:
        look()

    resource = ClickHouseResource(password=dg.EnvVar("CH_SECRET"))
    defs = dg.Definitions(jobs=[looking], resources={"clickhouse": resource})
    assert defs.resolve_job_def("looking").execute_in_process().success
    ((password, printed),) = seen
    assert password == "canary-81c2"
    assert "canary" not in printed
    assert "canary" not in repr(resource)
