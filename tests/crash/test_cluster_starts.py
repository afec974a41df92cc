"""Starts on a Spark cluster that cannot be: the message says why."""

import pytest
from support.cluster_case import Cluster, sharing_state
from support.dedup_case import keyed_by
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.crash


@pytest.fixture
def made(case: PipelineCase) -> PipelineCase:
    case.write_file(sharing_state(case, keyed_by("id")))
    case.create_topic()
    return case


def test_a_driver_without_the_clusters_secret_is_told_so(made: PipelineCase) -> None:
    refused = made.run("--master", Cluster(made.stack).addresses.spark_master, TALLYFLOW_SPARK_CONF="")
    assert refused.returncode == 1
    assert "the same spark.authenticate.secret" in refused.stderr.strip().splitlines()[-1]


def test_a_master_that_does_not_answer_is_waited_for_and_named(made: PipelineCase) -> None:
    refused = made.run("--master", "spark://127.0.0.1:1", "--connect-timeout", "1")
    assert refused.returncode == 1
    assert refused.stderr.strip().splitlines()[-1].startswith("reaching the Spark master spark://127.0.0.1:1: ")
