"""The partitions of `verification` in Dagster's own storage: hours with records appear, are verified, and stay over reloads."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import freeze_time
from support.dagster_case import DagsterCase, failure
from support.pipeline_case import PipelineCase

from dagster_project.assets.verification_hours import begin_of_hour, forget_hours, hour_of, key_of

pytestmark = pytest.mark.integration
HOUR = timedelta(hours=1)
OLD, UNVERIFIED = "2026-01-02-03:00", "2026-01-02-04:00"


@pytest.fixture
def dagster(case: PipelineCase) -> Iterator[DagsterCase]:
    """On an instance with a database: a schedule has no other."""
    case.create_topic()
    with dg.instance_for_test() as instance:
        made = DagsterCase(case, instance)
        yield made
        made.end()


def ran(dagster: DagsterCase) -> set[str]:
    """The hours in which records have arrived: one, or two when the case has met the full hour."""
    before = datetime.now(UTC)
    dagster.case.send_events(60)
    dagster.case.warm_run()
    return {key_of(begin_of_hour(instant)) for instant in (before, datetime.now(UTC))}


def listed(dagster: DagsterCase) -> set[str]:
    return {*dagster.instance.get_dynamic_partitions(f"{dagster.pipeline.key}_verification_hours")}


def look(dagster: DagsterCase, later: timedelta = timedelta()) -> None:
    """A tick of the sensor, with what the daemon does then."""
    with freeze_time(datetime.now(UTC) + later):
        for request in dagster.sensor("list_hours_to_verify").dynamic_partitions_requests or []:
            dagster.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)


def tick(dagster: DagsterCase, at: datetime) -> Any:
    """What the schedule asks for at 10 past the hour of `at`."""
    return dagster.schedule(f"verify_{dagster.pipeline.key}_hourly", begin_of_hour(at) + timedelta(minutes=10))


def test_a_new_pipeline_has_no_hour_before_one_has_ended(dagster: DagsterCase) -> None:
    look(dagster)
    assert listed(dagster) == set()
    hours = ran(dagster)
    look(dagster)
    assert max(hours) not in listed(dagster)
    # Two hours later the hour between is over as well: nothing arrived in it.
    look(dagster, 2 * HOUR)
    assert listed(dagster) == hours
    reloaded = DagsterCase(dagster.case, dagster.instance)
    look(reloaded, 3 * HOUR)
    assert listed(reloaded) == hours


def test_the_schedule_verifies_ended_hours_and_missed_ones(dagster: DagsterCase) -> None:
    hours = ran(dagster)
    now = datetime.now(UTC)
    assert tick(dagster, min(map(hour_of, hours))).run_requests == []
    for later in (1, 2):
        asked = tick(dagster, now + later * HOUR).run_requests
        assert [(one.partition_key, one.run_key) for one in asked] == [(hour, hour) for hour in sorted(hours)]
    assert listed(dagster) == hours
    for hour in hours:
        result = dagster.materialize("verification", partition=hour)
        assert result.success, failure(result)
    verified = tick(dagster, now + 2 * HOUR)
    assert (verified.run_requests, verified.skip_message) == ([], "no hour to verify")


def test_verdicts_of_hours_stay_as_long_as_their_events(dagster: DagsterCase) -> None:
    verdict = dg.AssetMaterialization(dagster.key("verification"), partition=OLD, metadata={"is_match": True, "summary": "7 rows match"})
    dagster.instance.report_runless_asset_event(verdict)
    hours = ran(dagster)
    look(dagster, HOUR)
    now = datetime.now(UTC)
    dagster.instance.add_dynamic_partitions(f"{dagster.pipeline.key}_verification_hours", [OLD, UNVERIFIED])
    assert listed(dagster) == {*hours, OLD, UNVERIFIED}
    assert forget_hours(dagster.instance, [dagster.pipeline], now - timedelta(days=14), now) == 1
    assert listed(dagster) == {*hours, OLD}
    dagster.instance.wipe_assets([dagster.key("verification")])
    assert forget_hours(dagster.instance, [dagster.pipeline], now - timedelta(days=14), now) == 1
    assert listed(dagster) == hours
    # What could still be proved stays, however short Dagster's own retention is.
    assert forget_hours(dagster.instance, [dagster.pipeline], now + HOUR, now) == 0


def test_an_hour_that_differs_is_not_forgotten_behind_matches(dagster: DagsterCase) -> None:
    """More verifications lie in the period than are read at once."""
    ran(dagster)
    matching = {"is_match": True, "summary": "7 rows match"}
    for number, facts in enumerate([{"is_match": False, "summary": "1 row differs"}, *[matching] * 101]):
        key = key_of(datetime(2026, 1, 1, tzinfo=UTC) + number * HOUR)
        verdict = dg.AssetMaterialization(dagster.key("verification"), partition=key, metadata=facts)
        dagster.instance.report_runless_asset_event(verdict)
    evaluations = dagster.job("publish").get_asset_check_evaluations()
    found = next(one for one in evaluations if one.check_name == "verification")
    assert (found.passed, found.metadata["hours verified"].value) == (False, 102)
    assert "1 of 102 verified hours differ: 2026-01-01-00:00" in str(found.description)


@pytest.mark.crash
def test_a_nats_that_is_away_is_told_and_changes_nothing(dagster: DagsterCase) -> None:
    hours = ran(dagster)
    look(dagster, HOUR)
    dagster.case.stack.server("nats").kill()
    try:
        assert "NATS" in dagster.sensor("list_hours_to_verify").skip_message
    finally:
        dagster.case.stack.up()
    assert listed(dagster) == hours
