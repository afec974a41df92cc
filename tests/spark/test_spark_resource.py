"""The Spark resource: lazy, with the settings of the pipelines, and stopped by whoever made the session."""

import subprocess
import sys

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from resources.spark import SparkResource

pytestmark = pytest.mark.spark

SCRIPT = """
import dagster as dg
from pyspark.sql import SparkSession
from resources.spark import SparkResource

@dg.op
def count(context, pyspark: SparkResource):
    assert SparkSession.getActiveSession() is None
    session = pyspark.spark_session
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    assert pyspark.spark_context is session.sparkContext
    assert session.range(5).count() == 5

@dg.job(resource_defs={"pyspark": SparkResource(spark_config={"spark.sql.shuffle.partitions": 3}, master="local[1]")})
def counting():
    count()

assert counting.execute_in_process().success
assert SparkSession.getActiveSession() is None
print("stopped")
"""


def test_a_session_of_the_resource_is_stopped_after_the_step() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("stopped\n")


def test_a_session_that_was_there_is_used_and_left_running(session: SparkSession) -> None:
    with dg.build_init_resource_context() as context:
        resource = SparkResource()
        assert resource.spark_session.sparkContext is session.sparkContext
        resource.teardown_after_execution(context)
    assert session.range(3).count() == 3
