"""What sensors decide, over literal states and times."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from dagster_project.sensors.decisions import (
    FileSeen,
    LagMemory,
    Letters,
    LettersMemory,
    Trouble,
    changed_files,
    dead_letters,
    health,
    lag,
    read_cursor,
    recalled,
)
from pipelines.config.alerts import Alerts, DeadLettersAlert, LagAlert
from pipelines.control.job_state import JobState

LEGS = ("ingest", "process", "sink")
DEAD = JobState("orders", "stopped", "killed", missing=LEGS, desired="running")
WELL = JobState("orders", "running", desired="running")
SILENT = JobState("orders", "unreachable", "process 7 does not answer", desired="running")
HALTED = JobState("orders", "halted", "sink: the table is missing", halt="7", pid=7, desired="running")
ENDED = replace(HALTED, pid=None, halted=LEGS)
DEFAULT = Alerts()


def actions(states: Iterable[tuple[float, JobState]], trouble: Trouble | None = None, alerts: Alerts = DEFAULT) -> list[tuple[float, str]]:
    """When something was done, and what."""
    done = []
    for now, state in states:
        decision, trouble = health(state, trouble, now, alerts)
        assert trouble is None or recalled(Trouble, trouble.memory()) == trouble
        if decision.action != "none":
            done.append((now, decision.action))
    return done


def test_a_dead_job_is_started_again_with_growing_pauses_and_then_people_are_called_once() -> None:
    ticks = [(float(now), DEAD) for now in range(0, 7200, 30)]
    assert actions(ticks) == [(0, "start"), (30, "start"), (90, "start"), (210, "start"), (450, "start"), (480, "alert")]


@pytest.mark.parametrize("desired", ["stopped", None])
def test_a_job_that_nobody_wants_to_run_stays_as_it_is(desired: str | None) -> None:
    state = replace(DEAD, desired=desired, missing=())
    assert health(state, Trouble(0, 2), 100.0, DEFAULT) == (health(state, None, 0.0, DEFAULT)[0], None)
    assert actions([(0, state), (600, state)]) == []


def test_a_runner_that_is_just_starting_is_waited_for_though_a_leg_is_not_there_yet() -> None:
    starting = replace(WELL, state="starting", missing=("sink",))
    assert actions([(float(now), starting) for now in range(0, 600, 30)]) == []


def test_a_job_that_was_given_up_came_back_and_died_again_is_told_again() -> None:
    ticks = [(480, DEAD), (510, DEAD), (540, WELL), (570, DEAD), (600, DEAD)]
    assert actions(ticks, Trouble(0, attempts=5, last_attempt=450)) == [(480, "alert"), (570, "alert")]


def test_a_job_that_dies_every_minute_is_not_started_for_ever() -> None:
    ticks = [(float(now), DEAD if now % 60 == 0 else WELL) for now in range(0, 7200, 30)]
    assert [action for _, action in actions(ticks)].count("start") == 5


def test_restarts_are_forgotten_when_the_job_was_well_for_ten_minutes() -> None:
    _, trouble = health(DEAD, None, 0.0, DEFAULT)
    _, trouble = health(WELL, trouble, 30.0, DEFAULT)
    assert trouble is not None
    assert trouble.attempts == 1
    _, trouble = health(WELL, trouble, 631.0, DEFAULT)
    assert trouble is None


def test_a_job_that_does_not_answer_is_replaced_after_a_minute_and_not_before() -> None:
    assert actions([(0, SILENT), (30, SILENT), (60, SILENT)]) == [(60, "restart")]
    assert actions([(0, SILENT), (30, WELL), (60, SILENT), (90, SILENT), (119, SILENT), (120, SILENT)]) == [(120, "restart")]


def test_a_halted_job_is_never_restarted_and_people_are_called_once_with_its_words() -> None:
    decision, trouble = health(HALTED, None, 0.0, DEFAULT)
    assert (decision.action, decision.what) == ("alert", "halted: sink: the table is missing")
    assert "restart_pipeline" in decision.remedy
    assert actions([(30, HALTED), (3600, HALTED)], trouble) == []


def test_a_job_that_died_is_well_and_does_not_answer_for_a_moment_is_waited_for() -> None:
    assert actions([(0, DEAD), (30, WELL), (60, SILENT), (90, SILENT), (120, SILENT)]) == [(0, "start"), (120, "restart")]


def test_a_runner_that_ended_at_its_halt_is_not_started_again_and_people_are_called_once() -> None:
    ticks = [(float(now), ENDED) for now in range(0, 7200, 30)]
    assert actions(ticks) == [(0, "alert")]
    assert actions([(0, HALTED), (30, replace(ENDED, halt="7")), (60, ENDED)]) == [(0, "alert")]


def test_a_halted_job_whose_file_was_changed_is_started_and_told_again_when_it_halts_again() -> None:
    ticks = [(0, ENDED), (30, DEAD), (60, WELL), (90, replace(ENDED, halt="8")), (120, replace(ENDED, halt="8"))]
    assert actions(ticks) == [(0, "alert"), (30, "start"), (90, "alert")]


def test_a_halt_that_a_slow_answer_hides_for_a_tick_is_told_once() -> None:
    slow = JobState("orders", "waiting", "a system that is away delays the account", pid=7, desired="running")
    assert actions([(0, HALTED), (30, slow), (60, HALTED)]) == [(0, "alert")]


def test_legs_that_died_beside_a_halted_one_are_started_and_the_halted_one_is_told_once() -> None:
    state = replace(ENDED, halted=("sink",), missing=("ingest", "process"))
    ticks = [(float(now), state) for now in range(0, 7200, 30)]
    assert actions(ticks) == [(0, "alert"), (30, "start"), (60, "start"), (120, "start"), (240, "start"), (480, "start"), (510, "alert")]


def test_the_file_says_how_often_a_dead_job_is_started_and_more_counts_for_one_that_was_given_up() -> None:
    ticks = [(float(now), DEAD) for now in range(0, 3600, 30)]
    assert actions(ticks, alerts=Alerts(max_restarts=2)) == [(0, "start"), (30, "start"), (60, "alert")]
    assert actions(ticks, alerts=Alerts(max_restarts=0)) == [(0, "alert")]
    assert actions(ticks, Trouble(0, 2, 30, given_up=True), Alerts(max_restarts=3)) == [(90, "start"), (120, "alert")]


def test_a_job_that_waits_for_a_system_is_left_alone() -> None:
    assert actions([(now, JobState("orders", "waiting", "Kafka is away", desired="running")) for now in range(0, 3600, 30)]) == []


def test_a_leg_that_is_missing_is_started_although_the_others_run() -> None:
    assert actions([(0, replace(WELL, missing=("sink",)))]) == [(0, "start")]


def lag_actions(readings: list[tuple[float, int | None]], alerts: Alerts = DEFAULT) -> list[float]:
    memory: LagMemory | None = None
    told = []
    for now, offsets in readings:
        decision, memory = lag(offsets, memory, now, alerts)
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


def test_the_file_says_which_lag_is_too_large_for_how_long_and_when_it_is_told_again() -> None:
    alerts = Alerts(lag=LagAlert(offsets=10, lasting=timedelta(0)), repeat_after=timedelta(minutes=10))
    assert lag_actions([(float(now), 10) for now in range(60, 1300, 60)], alerts) == [60, 660, 1260]
    assert lag_actions([(float(now), 9) for now in range(0, 1300, 60)], alerts) == []


def letters(waiting: int, last: int = 10, age: int = 0, version: str | None = "v1") -> Letters:
    return Letters(waiting, last, timedelta(seconds=age), version)


def test_letters_enter_again_once_for_each_configuration_that_the_job_runs_with() -> None:
    memory, done = LettersMemory(), []
    for version in (None, "v1", "v1", None, "v1", "v2", "v2"):
        decision, memory = dead_letters(letters(3, version=version), memory, 0.0, DEFAULT)
        done.append(decision.action)
    assert done == ["none", "none", "none", "none", "none", "reprocess", "none"]


def test_letters_of_a_pipeline_that_is_seen_for_the_first_time_stay_and_are_told_as_any_others() -> None:
    decision, memory = dead_letters(letters(100), LettersMemory(), 0.0, DEFAULT)
    assert (decision.action, memory) == ("alert", LettersMemory("v1", told=10, told_at=0.0))


def test_a_version_that_ran_while_no_letters_waited_has_nothing_to_mend_later() -> None:
    _, memory = dead_letters(letters(0), LettersMemory(), 0.0, DEFAULT)
    assert dead_letters(letters(5), memory, 60.0, DEFAULT)[0].action == "none"


def test_a_configuration_that_began_to_run_while_no_letters_waited_sends_none_in_again() -> None:
    decision, memory = dead_letters(letters(0, version="v2"), LettersMemory("v1"), 0.0, DEFAULT)
    assert (decision.action, decision.why, memory.version) == ("none", "no dead letters wait", "v2")


def test_new_letters_are_not_told_until_the_time_since_people_were_told_is_over() -> None:
    _, told = dead_letters(letters(100), LettersMemory("v1"), 10_000.0, DEFAULT)
    assert dead_letters(letters(101, last=11), told, 13_599.0, DEFAULT)[0].action == "none"
    assert dead_letters(letters(101, last=11), told, 13_600.0, DEFAULT)[0].action == "alert"


def test_people_are_told_of_many_letters_or_of_old_ones_and_again_only_of_new_ones() -> None:
    known = LettersMemory("v1")
    assert dead_letters(letters(99), known, 0.0, DEFAULT)[0].action == "none"
    decision, told = dead_letters(letters(100), known, 0.0, DEFAULT)
    assert (decision.action, told.told) == ("alert", 10)
    assert dead_letters(letters(1, age=3600), known, 0.0, DEFAULT)[0].action == "alert"
    assert dead_letters(letters(100), told, 7200.0, DEFAULT)[0].action == "none"
    assert dead_letters(letters(101, last=11), told, 60.0, DEFAULT)[0].action == "none"
    assert dead_letters(letters(101, last=11), told, 7200.0, DEFAULT)[0].action == "alert"


def test_the_file_says_how_many_letters_and_how_old_ones_are_told_and_when_again() -> None:
    alerts = Alerts(dead_letters=DeadLettersAlert(count=2, age=timedelta(days=1)), repeat_after=timedelta(seconds=30))
    known = LettersMemory("v1")
    assert dead_letters(letters(1, age=3600), known, 0.0, alerts)[0].action == "none"
    assert dead_letters(letters(1, age=86_400), known, 0.0, alerts)[0].action == "alert"
    decision, told = dead_letters(letters(2), known, 0.0, alerts)
    assert decision.action == "alert"
    assert dead_letters(letters(3, last=11), told, 30.0, alerts)[0].action == "alert"


def test_a_tick_without_an_act_says_the_numbers() -> None:
    assert dead_letters(letters(3, age=12), LettersMemory("v1"), 0.0, DEFAULT)[0].why == (
        "3 dead letters waiting, the oldest 12 s old: fewer than 100, younger than 3,600 s"
    )


def test_files_that_came_changed_or_went_are_told_and_at_the_first_look_only_faults() -> None:
    seen = {"a": FileSeen("1", run="r"), "b": FileSeen("2", "sink.table: is required"), "c": FileSeen("3", run="s")}
    assert changed_files(seen, None) == {"b": "faulty"}
    assert changed_files(seen, {"a": "r/1", "b": "/2", "c": "r/2", "d": "r/4"}) == {"c": "changed", "d": "deleted"}
    assert changed_files(seen, {"b": "/2", "c": "s/3"}) == {"a": "new"}
    assert changed_files(seen, {"a": "r/0", "b": "r/0", "c": "/3"}) == {
        "a": "changed, but not for its runner",
        "b": "faulty",
        "c": "changed",
    }


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", None])
def test_a_cursor_that_is_no_memory_is_none(text: str | None) -> None:
    assert read_cursor(text) is None


def test_a_cursor_gives_back_its_memory() -> None:
    assert read_cursor('{"since": 5.0}') == {"since": 5.0}


def test_a_decision_says_the_state_what_is_missing_and_for_how_long() -> None:
    assert health(replace(WELL, missing=("sink",)), None, 0.0, DEFAULT)[0].why == "running, without sink; restart 1 of 5"
    assert health(DEAD, None, 0.0, DEFAULT)[0].why == "stopped (killed); restart 1 of 5"
    told = lag(200_000, LagMemory(60.0, 150_000), 240.0, DEFAULT)[0].why
    assert told == "lag 200,000 offsets, at least 100,000 for 3 min, 150,000 at first"


def test_a_memory_of_another_release_is_read_as_far_as_it_says_the_same() -> None:
    assert recalled(Trouble, {"since": 5.0, "attempts": 2, "mood": "grim"}) == Trouble(5.0, attempts=2)
    assert recalled(Trouble, {"attempts": 2}) is None
    assert recalled(Trouble, {"since": "long ago"}) is None
    assert recalled(Trouble, [5.0]) is None
    assert recalled(Trouble, None) is None
