"""The numbers that Dagster plots: few, of fixed names, taken from the tally."""

from datetime import UTC, datetime, timedelta

import pytest

from dagster_project.assets.stream_names import DEAD_LETTERS, DEDUP, OUT, RAW, TABLE
from dagster_project.numbers import PLOTTED, Account, nothing_waits, numbers, without_row_count
from dagster_project.sensors.observation import Seen, is_reported, observed
from pipelines.control.job_state import JobState
from pipelines.protocol.tally import LegTally, Tally
from pipelines.protocol.topology import LegId

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def account(waiting: int = 0, lag: int | None = 0) -> Account:
    """100 records: 70 rows, 20 duplicates, 10 dead letters, of which 4 entered again; `waiting` rows are not confirmed."""
    legs = (
        LegTally("ingest", 100, {"written to raw": 100}, 0, False),
        LegTally("process", 100, {"written to out": 70, "duplicates dropped": 20, "dead letters": 10}, 0, False),
        LegTally("sink", 70 - waiting, {"confirmed by ClickHouse": 70 - waiting, "dead letters": 0}, waiting, False),
    )
    dead_letters = LegTally("redrive", 10, {"entered again": 4, "discarded": 1, "still dead letters": 5}, 5, False)
    return Account(Tally(legs, dead_letters), {RAW: 1000, OUT: 900, DEAD_LETTERS: 80}, 70, 8, {LegId("sink"): 12}, "id", lag)


def test_numbers_are_those_of_the_tally() -> None:
    found = account(waiting=6, lag=3)
    assert numbers(found, RAW) == {"rows": 100, "waiting_rows": 0, "stream_bytes": 1000, "lag_offsets": 3}
    assert numbers(found, DEDUP) == {"keys": 70, "runs": 8, "duplicates_dropped": 20, "duplicates_percent": 20.0}
    assert numbers(found, TABLE) == {"dagster/row_count": 64, "waiting_rows": 6, "residue": 0, "lag_offsets": 3}
    dead_letters = {
        "dead_letters": 10,
        "still_there": 5,
        "entered_again": 4,
        "discarded": 1,
        "dead_letters_percent": 10.0,
        "stream_bytes": 80,
    }
    assert numbers(found, DEAD_LETTERS) == dead_letters


def test_a_materialization_reports_no_lasting_row_count() -> None:
    assert without_row_count(numbers(account(), TABLE)) == {"waiting_rows": 0, "residue": 0, "lag_offsets": 0}


@pytest.mark.parametrize("seam", PLOTTED)
def test_every_number_is_listed_and_there_are_at_most_twelve(seam: str) -> None:
    assert {*numbers(account(), seam)} == {*PLOTTED[seam]}
    assert len(PLOTTED[seam]) <= 12


def test_a_lag_that_nobody_tells_is_left_out() -> None:
    assert "lag_offsets" not in numbers(account(lag=None), TABLE)
    assert not nothing_waits(account(lag=None))


def test_the_observation_of_a_table_has_at_most_twelve_numbers() -> None:
    reported = observed(Seen(JobState("p", "running"), account()), [RAW, DEDUP, OUT, TABLE, DEAD_LETTERS])
    assert len([value for value in reported.values() if isinstance(value, int | float)]) <= 12
    assert (reported["dead_letters/still_there"], reported["dedup_store/keys"], reported["state"]) == (5, 70, "running")


def test_a_caught_up_pipeline_is_fresh_every_five_minutes() -> None:
    ago = {minutes: (NOW - timedelta(minutes=minutes)).timestamp() for minutes in (4, 5)}
    assert is_reported(account(), None, NOW)
    assert not is_reported(account(), ago[4], NOW)
    assert is_reported(account(), ago[5], NOW)
    assert not is_reported(account(waiting=1), None, NOW)
    assert not is_reported(account(lag=1), None, NOW)


def test_each_further_table_has_its_own_rows() -> None:
    found = account(waiting=6, lag=0)
    large = LegTally("sink:large", 9, {"confirmed by ClickHouse": 8, "dead letters": 1}, 2, False)
    both = Account(Tally((*found.tally.legs, large), found.tally.dead_letters), found.stream_bytes, 70, 8, {LegId("sink"): 12}, "id", 0)
    assert numbers(both, TABLE) == {"dagster/row_count": 64, "waiting_rows": 8, "residue": 0, "lag_offsets": 0}
    assert numbers(both, f"{TABLE}_large") == {"dagster/row_count": 8, "waiting_rows": 2}
