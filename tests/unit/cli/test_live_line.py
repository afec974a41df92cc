"""The live line of `run`: its figures, and that it fits a terminal."""

import io

from pipelines.cli.narration import LogFormat, Narrator, live_line
from pipelines.protocol.topology import LegId
from pipelines.runner.events import Event
from pipelines.runner.pace import LegPace
from pipelines.runner.run_log import RunLog

LEGS = {
    LegId("ingest"): LegPace(1_000, 12.4, 1_200.4),
    LegId("process"): LegPace(30, 2.0, 1_100.0),
    LegId("sink"): LegPace(4, 0.5, 900.0),
}


def test_events_in_and_out_lag_and_waits_are_on_the_line() -> None:
    assert live_line(LEGS, 1, []) == "in 1,200/s · out 900/s · lag 1,034, 12 s · 1 dead letter"
    assert live_line(LEGS, 0, ["ClickHouse"]) == "waiting for ClickHouse · in 1,200/s · out 900/s · lag 1,034, 12 s · 0 dead letters"
    assert live_line({}, 0, ["NATS"]) == "waiting for NATS · counting"
    assert live_line({LegId("ingest"): LegPace()}, 0, []) == "in - · out - · lag 0 · 0 dead letters"


def test_rates_of_all_sources_and_all_tables_are_added() -> None:
    both = {**LEGS, LegId("ingest", "clicks"): LegPace(0, 0.0, 800.0), LegId("sink", "second"): LegPace(0, 0.0, 100.0)}
    assert live_line(both, 0, []).startswith("in 2,000/s · out 1,000/s · ")


def test_a_step_that_begins_is_no_log_line() -> None:
    shown, log = io.StringIO(), RunLog()
    narrator = Narrator(shown, log, LogFormat.TEXT)
    narrator.take(Event("begin", "starting Spark"))
    narrator.take(Event("step", "Spark started (3.0 s)"))
    assert [line[25:] for line in shown.getvalue().splitlines()] == ["INFO Spark started (3.0 s)"]


def test_control_characters_of_a_message_do_not_reach_a_terminal() -> None:
    shown = io.StringIO()
    Narrator(shown, RunLog(), LogFormat.TEXT).note("a\x1b]0;title\x07b")
    assert "\x1b" not in shown.getvalue()
