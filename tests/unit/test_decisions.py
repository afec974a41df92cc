"""What sensors decide, over literal states and times."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from dagster_project.decisions import (
    FileSeen,
    LagMemory,
    Letters,
    LettersMemory,
    Trouble,
    changed_files,
    dead_letters,
    health,
    lag,
)
from pipelines.job_state import JobState

LEGS = ("ingest", "process", "sink")
DEAD = JobState("orders", "stopped", "killed", missing=LEGS, desired="running")
WELL = JobState("orders", "running", desired="running")
SILENT = JobState("orders", "unreachable", "process 7 does not answer", desired="running")
HALTED = JobState("orders", "halted", "sink: the table is missing", desired="running")


def actions(states: Iterable[tuple[float, JobState]], trouble: Trouble | None = None) -> list[tuple[float, str]]:
    """When something was done, and what."""
    done = []
    for now, state in states:
        decision, trouble = health(state, trouble, now)
        assert trouble is None or Trouble.of(trouble.memory()) == trouble
        if decision.action != "none":
            done.append((now, decision.action))
    return done


def test_a_dead_job_is_started_again_with_growing_pauses_and_then_people_are_called_once() -> None:
    ticks = [(float(now), DEAD) for now in range(0, 7200, 30)]
    assert actions(ticks) == [(0, "start"), (30, "start"), (90, "start"), (210, "start"), (450, "start"), (480, "alert")]


@pytest.mark.parametrize("desired", ["stopped", None])
def test_a_job_that_nobody_wants_to_run_stays_as_it_is(desired: str | None) -> None:
    state = replace(DEAD, desired=desired, missing=())
    assert health(state, Trouble(0, 2), 100.0) == (health(state, None, 0.0)[0], None)
    assert actions([(0, state), (600, state)]) == []


def test_a_job_that_dies_every_minute_is_not_started_for_ever() -> None:
    ticks = [(float(now), DEAD if now % 60 == 0 else WELL) for now in range(0, 7200, 30)]
    assert [action for _, action in actions(ticks)].count("start") == 5


def test_restarts_are_forgotten_when_the_job_was_well_for_ten_minutes() -> None:
    _, trouble = health(DEAD, None, 0.0)
    _, trouble = health(WELL, trouble, 30.0)
    assert trouble is not None
    assert trouble.attempts == 1
    _, trouble = health(WELL, trouble, 631.0)
    assert trouble is None


def test_a_job_that_does_not_answer_is_replaced_after_a_minute_and_not_before() -> None:
    assert actions([(0, SILENT), (30, SILENT), (60, SILENT)]) == [(60, "restart")]
    assert actions([(0, SILENT), (30, WELL), (60, WELL)]) == []


def test_a_halted_job_is_never_restarted_and_people_are_called_once_with_its_words() -> None:
    decision, trouble = health(HALTED, None, 0.0)
    assert (decision.action, decision.what) == ("alert", "halted: sink: the table is missing")
    assert "restart_pipeline" in decision.remedy
    assert actions([(30, HALTED), (3600, HALTED)], trouble) == []


def test_a_job_that_waits_for_a_system_is_left_alone() -> None:
    assert actions([(now, JobState("orders", "waiting", "Kafka is away", desired="running")) for now in range(0, 3600, 30)]) == []


def test_a_leg_that_is_missing_is_started_although_the_others_run() -> None:
    assert actions([(0, replace(WELL, missing=("sink",)))]) == [(0, "start")]


def lag_actions(readings: list[tuple[float, int | None]]) -> list[float]:
    memory: LagMemory | None = None
    told = []
    for now, offsets in readings:
        decision, memory = lag(offsets, memory, now)
        if decision.action == "alert":
            told.append(now)
    return told


def test_people_are_told_of_a_lag_that_lasts_and_grows_once_an_hour() -> None:
    growing = [(float(now), 100_000 + now) for now in range(0, 4000, 60)]
    assert lag_actions(growing) == [120, 3720]


def test_a_lag_that_shrinks_or_is_small_or_not_known_calls_nobody() -> None:
    assert lag_actions([(float(now), 900_000 - 100 * now) for now in range(0, 4000, 60)]) == []
    assert lag_actions([(float(now), 99_999) for now in range(0, 4000, 60)]) == []
    assert lag_actions([(0, 100_000), (60, None), (61, 50), (120, 100_000)]) == []


def letters(waiting: int, last: int = 10, age: int = 0, version: str | None = "v1") -> Letters:
    return Letters(waiting, last, timedelta(seconds=age), version)


def test_letters_enter_again_once_for_each_configuration_that_the_job_runs_with() -> None:
    memory, done = LettersMemory(), []
    for version in ("v1", "v1", None, "v1", "v2", "v2"):
        decision, memory = dead_letters(letters(3, version=version), memory, 0.0)
        done.append(decision.action)
    assert done == ["reprocess", "none", "none", "none", "reprocess", "none"]


def test_a_version_that_ran_while_no_letters_waited_has_nothing_to_mend_later() -> None:
    _, memory = dead_letters(letters(0), LettersMemory(), 0.0)
    assert dead_letters(letters(5), memory, 60.0)[0].action == "none"


def test_people_are_told_of_many_letters_or_of_old_ones_and_again_only_of_new_ones() -> None:
    known = LettersMemory("v1")
    assert dead_letters(letters(99), known, 0.0)[0].action == "none"
    decision, told = dead_letters(letters(100), known, 0.0)
    assert (decision.action, told.told) == ("alert", 10)
    assert dead_letters(letters(1, age=3600), known, 0.0)[0].action == "alert"
    assert dead_letters(letters(100), told, 7200.0)[0].action == "none"
    assert dead_letters(letters(101, last=11), told, 60.0)[0].action == "none"
    assert dead_letters(letters(101, last=11), told, 7200.0)[0].action == "alert"


def test_a_tick_without_an_act_says_the_numbers() -> None:
    assert dead_letters(letters(3, age=12), LettersMemory("v1"), 0.0)[0].why == (
        "3 letters wait, the oldest is 12 s old: fewer than 100, younger than 3,600 s"
    )


def test_files_that_came_changed_or_went_are_told_and_at_the_first_look_only_faults() -> None:
    seen = {"a": FileSeen("1"), "b": FileSeen("2", "sink.table: is required"), "c": FileSeen("3")}
    assert changed_files(seen, None) == {"b": "faulty"}
    assert changed_files(seen, {"a": "1", "b": "2", "c": "2", "d": "4"}) == {"c": "changed", "d": "gone"}
    assert changed_files(seen, {"b": "2", "c": "3"}) == {"a": "new"}
