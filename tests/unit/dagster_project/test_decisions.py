"""What sensors decide, over literal states and times."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from dagster_project.sensors.decisions import (
    DeadLetters,
    DeadLettersMemory,
    FileSeen,
    LagMemory,
    Trouble,
    changed_files,
    health,
    lag,
    on_dead_letters,
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
        assert trouble is None or recalled(Trouble, asdict(trouble)) == trouble
        if decision.action != "none":
            done.append((now, decision.action))
    return done


def test_a_dead_job_is_restarted_ever_later_then_alerted_once() -> None:
    ticks = [(float(now), DEAD) for now in range(0, 7200, 30)]
    assert actions(ticks) == [(0, "start"), (30, "start"), (90, "start"), (210, "start"), (450, "start"), (480, "alert")]


@pytest.mark.parametrize("desired", ["stopped", None])
def test_a_job_that_nobody_wants_to_run_stays_as_it_is(desired: str | None) -> None:
    state = replace(DEAD, desired=desired, missing=())
    assert health(state, Trouble(0, 2), 100.0, DEFAULT) == (health(state, None, 0.0, DEFAULT)[0], None)
    assert actions([(0, state), (600, state)]) == []


def test_a_runner_just_starting_is_waited_for() -> None:
    starting = replace(WELL, state="starting", missing=("sink",))
    assert actions([(float(now), starting) for now in range(0, 600, 30)]) == []


def test_a_job_given_up_that_came_back_and_died_alerts_again() -> None:
    ticks = [(480, DEAD), (510, DEAD), (540, WELL), (570, DEAD), (600, DEAD)]
    assert actions(ticks, Trouble(0, attempts=5, last_attempt=450)) == [(480, "alert"), (570, "alert")]


def test_a_job_that_dies_every_minute_is_not_started_for_ever() -> None:
    ticks = [(float(now), DEAD if now % 60 == 0 else WELL) for now in range(0, 7200, 30)]
    assert [action for _, action in actions(ticks)].count("start") == 5


def test_restarts_are_forgotten_after_ten_good_minutes() -> None:
    _, trouble = health(DEAD, None, 0.0, DEFAULT)
    _, trouble = health(WELL, trouble, 30.0, DEFAULT)
    assert trouble is not None
    assert trouble.attempts == 1
    _, trouble = health(WELL, trouble, 631.0, DEFAULT)
    assert trouble is None


def test_an_unresponsive_job_is_replaced_after_a_minute() -> None:
    assert actions([(0, SILENT), (30, SILENT), (60, SILENT)]) == [(60, "restart")]
    assert actions([(0, SILENT), (30, WELL), (60, SILENT), (90, SILENT), (119, SILENT), (120, SILENT)]) == [(120, "restart")]


def test_a_halted_job_is_never_restarted_and_alerts_once() -> None:
    decision, trouble = health(HALTED, None, 0.0, DEFAULT)
    assert (decision.action, decision.what) == ("alert", "halted: sink: the table is missing")
    assert "restart_pipeline" in decision.remedy
    assert actions([(30, HALTED), (3600, HALTED)], trouble) == []


def test_a_restarted_job_silent_for_a_moment_is_waited_for() -> None:
    assert actions([(0, DEAD), (30, WELL), (60, SILENT), (90, SILENT), (120, SILENT)]) == [(0, "start"), (120, "restart")]


def test_a_runner_ended_by_its_halt_alerts_once_and_stays_down() -> None:
    ticks = [(float(now), ENDED) for now in range(0, 7200, 30)]
    assert actions(ticks) == [(0, "alert")]
    assert actions([(0, HALTED), (30, replace(ENDED, halt="7")), (60, ENDED)]) == [(0, "alert")]


def test_a_halted_job_with_a_changed_file_is_started_again() -> None:
    ticks = [(0, ENDED), (30, DEAD), (60, WELL), (90, replace(ENDED, halt="8")), (120, replace(ENDED, halt="8"))]
    assert actions(ticks) == [(0, "alert"), (30, "start"), (90, "alert")]


def test_a_halt_that_a_slow_answer_hides_for_a_tick_is_told_once() -> None:
    slow = JobState("orders", "waiting", "a system that is away delays the account", pid=7, desired="running")
    assert actions([(0, HALTED), (30, slow), (60, HALTED)]) == [(0, "alert")]


def test_dead_legs_beside_a_halted_one_are_started() -> None:
    state = replace(ENDED, halted=("sink",), missing=("ingest", "process"))
    ticks = [(float(now), state) for now in range(0, 7200, 30)]
    assert actions(ticks) == [(0, "alert"), (30, "start"), (60, "start"), (120, "start"), (240, "start"), (480, "start"), (510, "alert")]


def test_the_file_sets_how_often_a_dead_job_is_started() -> None:
    ticks = [(float(now), DEAD) for now in range(0, 3600, 30)]
    assert actions(ticks, alerts=Alerts(max_restarts=2)) == [(0, "start"), (30, "start"), (60, "alert")]
    assert actions(ticks, alerts=Alerts(max_restarts=0)) == [(0, "alert")]
    assert actions(ticks, Trouble(0, 2, 30, given_up=True), Alerts(max_restarts=3)) == [(90, "start"), (120, "alert")]


def test_a_job_that_waits_for_a_system_is_left_alone() -> None:
    assert actions([(now, JobState("orders", "waiting", "Kafka is away", desired="running")) for now in range(0, 3600, 30)]) == []


def test_a_missing_leg_is_started_although_the_others_run() -> None:
    assert actions([(0, replace(WELL, missing=("sink",)))]) == [(0, "start")]


def lag_actions(readings: list[tuple[float, int | None]], alerts: Alerts = DEFAULT) -> list[float]:
    memory: LagMemory | None = None
    alerted = []
    for now, offsets in readings:
        decision, memory = lag(offsets, memory, now, alerts)
        if decision.action == "alert":
            alerted.append(now)
    return alerted


def test_a_lasting_growing_lag_alerts_once_an_hour() -> None:
    growing = [(float(now), 100_000 + now) for now in range(0, 4000, 60)]
    assert lag_actions(growing) == [120, 3720]


def test_a_shrinking_small_or_unknown_lag_alerts_nobody() -> None:
    assert lag_actions([(float(now), 900_000 - 100 * now) for now in range(0, 4000, 60)]) == []
    assert lag_actions([(float(now), 99_999) for now in range(0, 4000, 60)]) == []
    assert lag_actions([(0, 100_000), (60, None), (61, 50), (120, 100_000)]) == []


def test_the_file_sets_the_limits_of_a_lag_and_its_alerts() -> None:
    alerts = Alerts(lag=LagAlert(offsets=10, lasting=timedelta(0)), repeat_after=timedelta(minutes=10))
    assert lag_actions([(float(now), 10) for now in range(60, 1300, 60)], alerts) == [60, 660, 1260]
    assert lag_actions([(float(now), 9) for now in range(0, 1300, 60)], alerts) == []


def dead_letters(waiting: int, last: int = 10, age: int = 0, version: str | None = "v1") -> DeadLetters:
    return DeadLetters(waiting, last, timedelta(seconds=age), version)


def test_letters_enter_again_once_for_each_configuration() -> None:
    memory, done = DeadLettersMemory(), []
    for version in (None, "v1", "v1", None, "v1", "v2", "v2"):
        decision, memory = on_dead_letters(dead_letters(3, version=version), memory, 0.0, DEFAULT)
        done.append(decision.action)
    assert done == ["none", "none", "none", "none", "none", "reprocess", "none"]


def test_letters_of_a_newly_seen_pipeline_stay() -> None:
    decision, memory = on_dead_letters(dead_letters(100), DeadLettersMemory(), 0.0, DEFAULT)
    assert (decision.action, memory) == ("alert", DeadLettersMemory("v1", alerted=10, alerted_at=0.0))


def test_a_version_run_without_letters_mends_nothing_later() -> None:
    _, memory = on_dead_letters(dead_letters(0), DeadLettersMemory(), 0.0, DEFAULT)
    assert on_dead_letters(dead_letters(5), memory, 60.0, DEFAULT)[0].action == "none"


def test_a_version_begun_without_letters_sends_none_again() -> None:
    decision, memory = on_dead_letters(dead_letters(0, version="v2"), DeadLettersMemory("v1"), 0.0, DEFAULT)
    assert (decision.action, decision.why, memory.version) == ("none", "no dead letters wait", "v2")


def test_new_letters_wait_for_the_end_of_the_alert_pause() -> None:
    _, alerted = on_dead_letters(dead_letters(100), DeadLettersMemory("v1"), 10_000.0, DEFAULT)
    assert on_dead_letters(dead_letters(101, last=11), alerted, 13_599.0, DEFAULT)[0].action == "none"
    assert on_dead_letters(dead_letters(101, last=11), alerted, 13_600.0, DEFAULT)[0].action == "alert"


def test_many_or_old_letters_alert_and_again_only_new_ones() -> None:
    known = DeadLettersMemory("v1")
    assert on_dead_letters(dead_letters(99), known, 0.0, DEFAULT)[0].action == "none"
    decision, alerted = on_dead_letters(dead_letters(100), known, 0.0, DEFAULT)
    assert (decision.action, alerted.alerted) == ("alert", 10)
    assert on_dead_letters(dead_letters(1, age=3600), known, 0.0, DEFAULT)[0].action == "alert"
    assert on_dead_letters(dead_letters(100), alerted, 7200.0, DEFAULT)[0].action == "none"
    assert on_dead_letters(dead_letters(101, last=11), alerted, 60.0, DEFAULT)[0].action == "none"
    assert on_dead_letters(dead_letters(101, last=11), alerted, 7200.0, DEFAULT)[0].action == "alert"


def test_the_file_sets_how_many_and_how_old_letters_alert() -> None:
    alerts = Alerts(dead_letters=DeadLettersAlert(count=2, age=timedelta(days=1)), repeat_after=timedelta(seconds=30))
    known = DeadLettersMemory("v1")
    assert on_dead_letters(dead_letters(1, age=3600), known, 0.0, alerts)[0].action == "none"
    assert on_dead_letters(dead_letters(1, age=86_400), known, 0.0, alerts)[0].action == "alert"
    decision, alerted = on_dead_letters(dead_letters(2), known, 0.0, alerts)
    assert decision.action == "alert"
    assert on_dead_letters(dead_letters(3, last=11), alerted, 30.0, alerts)[0].action == "alert"


def test_a_tick_without_an_act_says_the_numbers() -> None:
    assert on_dead_letters(dead_letters(3, age=12), DeadLettersMemory("v1"), 0.0, DEFAULT)[0].why == (
        "3 dead letters waiting, the oldest 12 s old: fewer than 100, younger than 3,600 s"
    )


def test_changed_files_are_reported_but_at_first_only_faults() -> None:
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


def test_a_decision_says_the_state_the_gap_and_its_duration() -> None:
    assert health(replace(WELL, missing=("sink",)), None, 0.0, DEFAULT)[0].why == "running, without sink; restart 1 of 5"
    assert health(DEAD, None, 0.0, DEFAULT)[0].why == "stopped (killed); restart 1 of 5"
    alerted = lag(200_000, LagMemory(60.0, 150_000), 240.0, DEFAULT)[0].why
    assert alerted == "lag 200,000 offsets, at least 100,000 for 3 min, 150,000 at first"


def test_a_memory_of_another_release_is_read_where_it_agrees() -> None:
    assert recalled(Trouble, {"since": 5.0, "attempts": 2, "mood": "grim"}) == Trouble(5.0, attempts=2)
    assert recalled(Trouble, {"attempts": 2}) is None
    assert recalled(Trouble, {"since": "long ago"}) is None
    assert recalled(Trouble, [5.0]) is None
    assert recalled(Trouble, None) is None
