"""The hours that verification is partitioned by: those with records, once they have ended, as far as nothing of them is purged."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from dagster_project.assets.verification_hours import hour_of, hours_with_records, key_of
from dagster_project.report_metadata import summary
from pipelines.proof.report import Finding, Gap
from pipelines.proof.verification.result import OPEN, UNCONFIRMED, Verification
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import Purged
from pipelines.testing import ManualClock, MemoryLog

NAMES = Names("orders")


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, 22, hour, minute, tzinfo=UTC)


def raw(*instants: datetime) -> MemoryLog:
    """Frames of two partitions that arrive at these instants."""
    clock = ManualClock()
    log = MemoryLog(clock)
    last = {0: 0, 1: 0}
    for number, instant in enumerate(instants):
        clock.now = instant
        partition = number % 2
        last[partition] = log.publish(NAMES.raw("events", partition), b"frame", {}, last[partition])
    return log


def hours(log: MemoryLog, now: datetime) -> list[int]:
    return [hour.hour for hour in hours_with_records(log, NAMES, now)]


def test_a_pipeline_that_was_never_started_has_no_hour() -> None:
    assert hours(MemoryLog(ManualClock()), at(12)) == []


def test_an_hour_is_there_if_records_arrived_and_it_has_ended() -> None:
    log = raw(at(3), at(3, 59), at(5, 30), at(9, 1))
    assert hours(log, at(9, 59)) == [3, 5]
    assert hours(log, at(10)) == [3, 5, 9]
    assert hours(log, at(3, 59)) == []


def test_of_what_was_purged_only_whole_hours_behind_it_are_there() -> None:
    log = raw(at(3), at(5, 10), at(5, 50), at(6, 30))
    # A quiet partition keeps its last frame, whatever is purged.
    log.publish(NAMES.purged("raw"), Purged(3, at(5, 40)).encode(), {}, 0)
    assert hours(log, at(12)) == [6]


def test_keys_are_those_of_hourly_partitions_whatever_the_zone() -> None:
    east = at(5).astimezone(datetime.fromisoformat("2026-11-22T00:00:00+02:00").tzinfo)
    assert (key_of(east), hour_of("2026-11-22-05:00")) == ("2026-11-22-05:00", at(5))
    calendar = dg.HourlyPartitionsDefinition(start_date=at(0), timezone="UTC")
    assert calendar.get_partition_keys(current_time=at(0) + timedelta(hours=2)) == [key_of(at(0)), key_of(at(1))]


@pytest.mark.parametrize("key", ["yesterday", "2026-11-22-05:30"])
def test_a_partition_that_is_no_hour_is_refused(key: str) -> None:
    with pytest.raises(dg.Failure, match="is not an hour such as"):
        hour_of(key)


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (OPEN, "this hour has not ended yet by the clock of NATS; verify it again"),
        (UNCONFIRMED, "the sink has not confirmed all of this hour yet; verify it again"),
        ("records without a row", "not proven: records without a row"),
    ],
)
def test_an_hour_that_is_not_proven_says_why_unless_it_differs(gap: str, words: str) -> None:
    found = Verification("orders", not_proven=[Gap(gap)])
    assert (summary(found), found.verdict) == (words, "not proven")
    assert summary(Verification("orders", findings=[Finding("rows", "missing", 2)], not_proven=[Gap(gap)])) == "2 missing rows"
