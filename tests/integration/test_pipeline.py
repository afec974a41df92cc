"""The main job on real servers, inside the test process on a warm session."""

import pytest
from pipeline_case import PipelineCase
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_every_record_reaches_the_table_or_the_dead_letters_through_the_driver(case: PipelineCase, session: SparkSession) -> None:
    case.create_topic()
    case.send_events(5000, bad_every=100)
    case.warm_run()
    assert case.count() == 4950
    case.check()


def test_every_record_reaches_the_table_or_the_dead_letters_through_tasks(case: PipelineCase, session: SparkSession) -> None:
    case.create_topic()
    case.send_events(30_000, bad_every=1000)
    case.warm_run(driver_offsets=0, driver_frames=0)
    case.check()


def test_a_second_run_goes_on_where_the_first_ended(case: PipelineCase, session: SparkSession) -> None:
    case.create_topic()
    case.send_events(3000)
    case.warm_run()
    case.send_events(3000)
    case.warm_run(driver_offsets=0, driver_frames=0)
    assert case.count() == 6000
    case.check()


def test_legs_may_run_one_after_the_other(case: PipelineCase, session: SparkSession) -> None:
    case.create_topic()
    case.send_events(2000, bad_every=50)
    for leg in ("ingest", "process", "sink"):
        case.warm_run(legs=(leg,))
    case.check()


def test_an_empty_topic_ends_at_once(case: PipelineCase, session: SparkSession) -> None:
    case.create_topic()
    case.warm_run()
    case.check()
