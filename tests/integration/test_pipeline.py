"""The main job on real servers, inside the test process on a warm session."""

import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase

from pipelines.errors import FencedError
from pipelines.runner.status import StatusServer
from pipelines.testing import LEGS

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_every_record_reaches_a_row_or_letter_in_the_driver(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(5000, bad_every=100)
    case.warm_run()
    assert case.count() == 4950
    case.check()


def test_every_record_reaches_a_row_or_letter_in_tasks(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    case.send_events(30_000, bad_every=1000)
    case.warm_run()
    case.check()


def test_a_second_run_goes_on_where_the_first_ended(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    case.send_events(3000)
    case.warm_run()
    case.send_events(3000)
    case.warm_run()
    assert case.count() == 6000
    case.check()


def test_legs_may_run_one_after_the_other(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(2000, bad_every=50)
    for leg in ("ingest", "process", "sink"):
        case.warm_run(legs=(leg,))
    case.check()


def test_legs_may_run_in_runners_of_their_own_at_the_same_time(case: PipelineCase, session: SparkSession) -> None:
    case.create_topic()
    case.send_events(2000, bad_every=50)
    runners = {}
    for leg in LEGS:
        # Each runner holds a core of its session for as long as it runs, and the shared session may have only one.
        case.session = session if leg == "sink" else None
        runners[leg] = case.warm_runner(legs=(leg,))
    threads = {leg: case.in_background(runners[leg]) for leg in reversed(LEGS)}
    for leg in LEGS:
        threads[leg].join(PATIENCE_SECONDS)
        assert not threads[leg].is_alive(), f"{leg} has not caught up"
    assert [runners[leg].legs[leg].status.totals["rows_in"] for leg in LEGS] == [2000, 2000, 1960]
    case.check()


def test_a_running_leg_is_refused_to_others_the_rest_is_not(case: PipelineCase) -> None:
    case.create_topic()
    sink = case.warm_runner(until_caught_up=False, legs=("sink",))
    sink.on_start = StatusServer
    case.in_background(sink)
    with pytest.raises(FencedError, match="already holds leg sink"):
        case.warm_run()
    case.send_events(100)
    case.warm_run(legs=("ingest", "process"))
    case.wait_count(100)
    shown = case.status()
    assert shown is not None
    assert (list(shown["legs"]), shown["ready"]) == (["sink"], True)
    case.check()


def test_an_empty_topic_ends_at_once(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    case.check()
