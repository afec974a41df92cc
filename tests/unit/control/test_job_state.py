"""What a job is called, from what its runners say; and what is kept of their words."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.control.control import Desired, by_halt, forget_halts, note_halt, note_stop, read_desired, read_halts, write_desired
from pipelines.control.job_state import summarize
from pipelines.control.processes import host_mark, start_mark
from pipelines.control.runner_log import KEPT_LOGS, bound_log, event_json, event_lines, last_message, new_log
from pipelines.protocol.topology import Topology
from pipelines.testing import LEGS, SINGLE

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEN_MINUTES = timedelta(minutes=10)


def leg(rows_in: int = 0, rows_out: int = 0, state: str = "running", message: str = "", idle: timedelta = timedelta()) -> dict[str, Any]:
    last = {"at": (NOW - idle).isoformat()}
    return {"state": state, "message": message, "totals": {"rows_in": rows_in, "rows_out": rows_out}, "last_batch": last}


def snapshot(lag: int = 0, ready: bool = True, healthy: bool = True, **legs: dict[str, Any]) -> dict[str, Any]:
    return {"ready": ready, "healthy": healthy, "legs": legs, "lag": {"0": lag}, "uptime_seconds": 36_000.0}


OLD = timedelta(minutes=11)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (snapshot(ingest=leg(), process=leg(), sink=leg()), "running"),
        (snapshot(ingest=leg(idle=OLD), process=leg(idle=OLD), sink=leg(idle=OLD)), "running"),
        (snapshot(lag=1, ingest=leg(idle=OLD)), "stuck"),
        (snapshot(lag=1, ingest=leg()), "running"),
        (snapshot(ingest=leg(rows_out=5), process=leg(rows_in=4, idle=OLD)), "stuck"),
        (snapshot(sink=leg(rows_in=4, idle=OLD)), "running"),
        (snapshot(ready=False, ingest=leg(state="starting")), "starting"),
        (snapshot(ingest=leg(state="waiting", message="Kafka is away"), sink=leg()), "waiting"),
        (snapshot(healthy=False, ingest=leg(state="waiting"), sink=leg(state="halted", message="no table")), "halted"),
        (snapshot(healthy=False, ingest=leg()), "halted"),
    ],
)
def test_a_job_is_called_by_its_worst_leg(answer: dict[str, Any], state: str) -> None:
    assert summarize(answer, SINGLE, NOW, TEN_MINUTES)[0] == state


def test_a_sink_that_lets_its_batch_fill_is_not_stuck() -> None:
    answer = snapshot(process=leg(rows_out=5), sink=leg(rows_in=4, idle=OLD))
    assert summarize(answer, SINGLE, NOW, TEN_MINUTES, timedelta(minutes=5))[0] == "running"
    assert summarize(answer, SINGLE, NOW, TEN_MINUTES, timedelta(seconds=5))[0] == "stuck"


def test_each_source_has_its_own_lag_and_process_reads_them_all() -> None:
    two = Topology.of(["orders", "clicks"], [""])
    answer = snapshot(ingest=leg(rows_out=5, idle=OLD), process=leg(rows_in=9, idle=OLD))
    answer["legs"]["ingest:clicks"] = leg(rows_out=4)
    answer["lag"] = {"0": 0, "clicks/0": 3}
    assert summarize(answer, two, NOW, TEN_MINUTES) == ("running", "")
    answer["legs"]["ingest:clicks"] = leg(rows_out=5, idle=OLD)
    state, message = summarize(answer, two, NOW, TEN_MINUTES)
    assert (state, message.partition(": there")[0]) == ("stuck", "process, ingest:clicks")


def test_the_message_names_the_leg() -> None:
    assert summarize(snapshot(sink=leg(state="halted", message="no table")), SINGLE, NOW, TEN_MINUTES) == ("halted", "sink: no table")


def test_a_stopped_leg_is_not_wanted_any_more_and_the_others_are(tmp_path: Path) -> None:
    write_desired(tmp_path, Desired("running", LEGS))
    note_stop(tmp_path, ["sink"])
    assert read_desired(tmp_path) == Desired("running", ("ingest", "process"))
    note_stop(tmp_path, ["ingest", "process"])
    assert read_desired(tmp_path) == Desired("stopped")


def test_a_halt_is_kept_until_the_next_start_of_its_leg(tmp_path: Path) -> None:
    note_halt(tmp_path, "sink", "the table is missing", "digest", NOW)
    note_halt(tmp_path, "ingest", "the topic is missing", "digest", NOW)
    found = read_halts(tmp_path)
    assert {leg: (halt.message, halt.file, halt.mark) for leg, halt in found.items()} == {
        "ingest": ("the topic is missing", "digest", start_mark(os.getpid())),
        "sink": ("the table is missing", "digest", start_mark(os.getpid())),
    }
    assert [*by_halt(found).values()] == ["ingest", "sink"]
    forget_halts(tmp_path, ["process", "sink"])
    assert [*read_halts(tmp_path)] == ["ingest"]


def test_a_halt_from_before_a_reboot_is_not_believed(tmp_path: Path) -> None:
    note_halt(tmp_path, "sink", "the table is missing", "digest", NOW)
    (path,) = tmp_path.glob("halted-*.json")
    path.write_text(path.read_text().replace(host_mark(), "another-boot/22"))
    assert read_halts(tmp_path) == {}


def test_the_halts_of_two_sources_are_told_apart(tmp_path: Path) -> None:
    for leg_id in ("ingest:clicks.v2", "sink", "ingest"):
        note_halt(tmp_path, leg_id, "its topic is missing", "digest", NOW)
    (tmp_path / "halted-another-release.json").write_text("{}")
    assert [*read_halts(tmp_path)] == ["ingest", "ingest:clicks.v2", "sink"]
    forget_halts(tmp_path, ["ingest"])
    assert [*read_halts(tmp_path)] == ["ingest:clicks.v2", "sink"]


def test_half_a_halt_is_none(tmp_path: Path) -> None:
    (tmp_path / "halted-sink.json").write_text('{"message": "the table')
    assert read_halts(tmp_path) == {}


def test_half_a_file_after_a_loss_of_power_is_no_wish(tmp_path: Path) -> None:
    (tmp_path / "desired.json").write_text('{"state": "run')
    assert read_desired(tmp_path) is None


def test_the_last_words_are_the_last_message_with_its_faults(tmp_path: Path) -> None:
    log = tmp_path / "runner.log"
    assert last_message(log) == ""
    log.write_text("note: a\nwaiting: b\npipeline.yaml: 2 faults\n  - sink: x\n  - sources: y\n\n")
    assert last_message(log) == "pipeline.yaml: 2 faults\n  - sink: x\n  - sources: y"
    log.write_text("waiting: b\nthe topic does not exist; create it\n")
    assert last_message(log) == "the topic does not exist; create it"
    log.write_text('waiting: b\nWARNING: Using incubator modules: jdk.incubator.vector\nSetting default log level to "WARN".\n')
    assert last_message(log) == "waiting: b"


AT = datetime(2026, 11, 25, 3, 14, 5, 120_000, tzinfo=UTC)


def test_events_are_lines_with_their_time_and_level() -> None:
    lines = "2026-11-25T03:14:05.120Z WARNING ended:\n2026-11-25T03:14:05.120Z WARNING   sink: 3\n"
    assert event_lines(AT, "warning", "ended:\n  sink: 3") == lines
    line = '{"at": "2026-11-25T03:14:05.120+00:00", "level": "info", "message": "ready", "event": "ready"}\n'
    assert event_json(AT, "info", "ready", {"event": "ready"}) == line


@pytest.mark.parametrize("as_json", [False, True])
def test_steps_are_the_state_of_a_start_and_no_last_words(tmp_path: Path, as_json: bool) -> None:
    def line(level: str, message: str) -> str:
        return event_json(AT, level, message, {}) if as_json else event_lines(AT, level, message)

    log = tmp_path / "runner.log"
    log.write_text(line("warning", "waiting: NATS did not answer") + line("info", "Spark started (3.1 s)"))
    assert last_message(log, with_progress=True) == "Spark started (3.1 s)"
    assert last_message(log) == "waiting: NATS did not answer"
    log.write_text(line("info", "Spark started (3.1 s)"))
    assert last_message(log) == ""


def test_a_log_cut_to_its_end_is_still_written(tmp_path: Path) -> None:
    log = tmp_path / "runner.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x\n" * 100_000 + b"last\n")
        bound_log(log, 100_000)
        writer.write(b"after\n")
    assert log.stat().st_size < 20_000
    assert log.read_text().endswith("x\nlast\nafter\n")


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    for _ in range(8):
        new_log(tmp_path).touch()
    assert len([*tmp_path.glob("logs/*.log")]) == KEPT_LOGS
    used = new_log(tmp_path, "run")
    used.touch()
    for _ in range(8):
        new_log(tmp_path, "run", [used]).touch()
    assert used.exists()
    assert len([*tmp_path.glob("logs/runner-*.log")]) == KEPT_LOGS
