"""What `run` shows on a terminal, in a file and as JSON, and what only the log has."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.pseudo_terminal import PseudoTerminal

pytestmark = [pytest.mark.integration, pytest.mark.spark]

TESTS = Path(__file__).parents[1]
CTRL_C = b"\x03"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def run_on_a_terminal(case: PipelineCase) -> PseudoTerminal:
    return PseudoTerminal([sys.executable, "-m", "pipelines.cli", "run", str(case.file)], case.environment(), case.directory)


@pytest.mark.crash
def test_a_terminal_shows_steps_figures_outages_and_the_tally(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300, bad_every=100)
    terminal = run_on_a_terminal(case)
    wait_until(lambda: "ready after" in terminal.text or terminal.process.poll() is not None, "a ready runner")
    wait_until(lambda: re.search(r"in [\d,]+/s · out [\d,]+/s · lag 0 · 3 dead letters", terminal.text), "the live line")
    clickhouse = case.stack.server("clickhouse")
    clickhouse.kill()
    try:
        case.send_events(30)
        wait_until(lambda: "waiting for ClickHouse · in " in terminal.text, "the wait on the live line")
    finally:
        case.stack.up()
    wait_until(lambda: "ClickHouse works again after" in terminal.text, "the end of the wait")
    case.wait_count(327)
    terminal.press(CTRL_C)
    assert terminal.wait(PATIENCE_SECONDS) == 0
    shown = terminal.text
    for step in ("Kafka, NATS and ClickHouse answer (", "leases taken: ingest, process, sink (", "Spark started (", "legs started ("):
        assert shown.count(step) == 1, step
    assert shown.count("waiting: sink: ") == 1
    assert shown.count("ClickHouse works again after") == 1
    assert "  ingest: 330 records in; 330 written to raw" in shown
    assert "  process: 330 records in; 327 written to out, 3 dead letters" in shown
    assert "  sink: 327 records in; 327 confirmed by ClickHouse" in shown
    assert "every event is accounted for, by the ledger" in shown
    assert not re.search(r"Traceback|WARNING|py4j|jdk\.incubator|SLF4J", shown)
    live = [line for line in terminal.lines if "dead letter" in line and "/s" in line]
    assert live
    assert max(map(len, live)) < 80
    case.check()


def test_a_file_gets_log_lines_and_spark_prints_into_the_log(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300)
    ended = case.run()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert all(re.match(f"{TIME} INFO ", line) for line in ended.stderr.splitlines()), ended.stderr
    assert "INFO ready after" in ended.stderr
    logged = case.command("logs", str(case.file)).stdout
    assert [line[25:] for line in ended.stderr.splitlines()] == [line[25:] for line in logged.splitlines() if re.match(TIME, line)]
    assert "jdk.incubator" in logged


def test_events_are_json_on_request(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300, bad_every=100)
    ended = case.invoke("run", str(case.file), "--until-caught-up", "--log-format", "json")
    assert ended.exit_code == 0, ended.output
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [event["event"] for event in events][-2:] == ["ready", "tally"]
    tally = events[-1]
    assert tally["legs"]["process"] == {
        "rows_in": 300,
        "outcomes": {"written to out": 297, "duplicates dropped": 0, "dead letters": 3},
    }
    assert (tally["residue"], tally["dead_letters"], tally["waiting"]) == (0, 3, {"process": 0, "sink": 0})
    refused = case.invoke("run", str(case.file), "--log-format", "json", "--connect-timeout", "0", NATS_URL="nats://127.0.0.1:1")
    assert refused.exit_code == 1
    last = json.loads(refused.stderr.splitlines()[-1])
    assert (last["event"], last["level"], "NATS did not answer" in last["message"]) == ("failed", "error", True)


def test_a_later_run_accounts_for_its_own_part(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300)
    assert case.invoke("run", str(case.file), "--until-caught-up").exit_code == 0
    case.send_events(1)
    ended = case.invoke("run", str(case.file), "--until-caught-up")
    assert "  process: 1 record in; 1 written to out" in ended.stderr


def test_an_unknown_error_is_one_line_its_traceback_in_the_log(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise ValueError("as if")

    case.create_topic()
    monkeypatch.setattr("pipelines.runner.runner.Retention", break_down)
    ended = case.invoke("run", str(case.file))
    (log,) = (case.names.directory(case.home) / "logs").glob("run-*.log")
    last = ended.stderr.splitlines()[-1]
    assert last == f"running pipeline {case.pipeline}: ValueError: as if; report it with its traceback in {log}"
    assert "Traceback" not in ended.stderr
    assert "in break_down\n" in log.read_text()


def test_logs_follow_a_run_and_the_one_after_it(case: PipelineCase) -> None:
    case.create_topic()
    never = case.invoke("logs", str(case.file))
    assert (never.exit_code, "has no log on this host" in never.stderr) == (1, True)
    case.send_events(30)
    assert case.invoke("run", str(case.file), "--until-caught-up").exit_code == 0
    assert case.invoke("logs", str(case.file), "--lines", "1").stdout.count("\n") == 1
    following = case.begin([sys.executable, "-m", "pipelines.cli", "logs", str(case.file), "--follow"])
    assert following.stdout is not None
    assert "Kafka, NATS and ClickHouse answer" in following.stdout.readline()
    assert case.invoke("run", str(case.file), "--until-caught-up").exit_code == 0
    seen = []
    while sum("every event is accounted for" in line for line in seen) < 2:
        seen.append(following.stdout.readline())
        assert seen[-1]
    following.send_signal(2)
    assert following.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_run_goes_on_when_nobody_reads_what_it_says(case: PipelineCase, log_format: str) -> None:
    case.create_topic()
    command = "import support.plain_runner as p; p.main()"
    run = case.begin([sys.executable, "-c", command, "run", str(case.file), "--log-format", log_format], PYTHONPATH=str(TESTS))
    assert run.stderr is not None
    run.stderr.readline()
    run.stderr.close()
    case.send_events(30)
    case.wait_count(30)
    run.terminate()
    assert run.wait(PATIENCE_SECONDS) == 0
    run.stderr = None
    assert "every event is accounted for" in case.invoke("logs", str(case.file)).stdout


def test_each_runner_has_a_log_of_its_own(case: PipelineCase) -> None:
    case.create_topic()
    runners = [case.start_plain("--leg", leg) for leg in ("ingest", "process", "sink")]
    wait_until(lambda: set((case.status() or {"legs": {}})["legs"]) == {"ingest", "process", "sink"}, "three runners")
    unclear = case.invoke("logs", str(case.file))
    assert unclear.exit_code == 2
    assert "here run: ingest, process, sink" in " ".join(unclear.stderr.replace("│", "").split())
    wait_until(lambda: "ready after" in case.invoke("logs", str(case.file), "--leg", "sink").stdout, "the log of the sink")
    assert "leases taken: sink" in case.invoke("logs", str(case.file), "--leg", "sink").stdout
    for runner in runners:
        runner.terminate()
        assert runner.wait(PATIENCE_SECONDS) == 0


def test_the_process_has_no_terminal_output_of_its_children(case: PipelineCase) -> None:
    """What a child of the runner prints goes to the log, wherever the runner's own events go."""
    case.create_topic()
    script = (
        "import os, subprocess, sys\n"
        "from support.plain_runner import PlainEngine\n"
        "from pipelines.cli.app import app\n"
        "class Noisy(PlainEngine):\n"
        "    def epochs(self, *arguments):\n"
        "        subprocess.run(['sh', '-c', 'echo of a child; echo its error >&2'])\n"
        "        return super().epochs(*arguments)\n"
        "app(obj=Noisy())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, "run", str(case.file), "--until-caught-up"],
        env=case.environment(PYTHONPATH=str(TESTS)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (ended.returncode, ended.stdout, "its error" in ended.stderr) == (0, "", False), ended.stderr
    logged = case.invoke("logs", str(case.file)).stdout
    assert {"of a child", "its error"} <= {*logged.splitlines()}


def test_a_watched_status_shows_bars_until_the_runner_ends(case: PipelineCase) -> None:
    case.create_topic()
    runner = case.start_plain()
    wait_until(lambda: (case.ask() or {}).get("ready"), "a ready runner")
    watch = [sys.executable, "-m", "pipelines.cli", "status", str(case.file), "--watch"]
    terminal = PseudoTerminal(watch, case.environment(), case.directory)
    with case.load():
        wait_until(lambda: re.search(r"sink\s+[▁▂▃▄▅▆▇█ ]*[▁▂▃▄▅▆▇█][▁▂▃▄▅▆▇█ ]* most [1-9]", terminal.text), "a bar of the sink")
    runner.terminate()
    assert runner.wait(PATIENCE_SECONDS) == 0
    assert terminal.wait(PATIENCE_SECONDS) == 0
    assert "the pipeline is not running on this host any more" in terminal.text
    assert max(map(len, terminal.lines)) <= 80


def test_a_watch_takes_the_only_file_here_and_a_key_ends_it(case: PipelineCase) -> None:
    case.create_topic()
    runner = case.start_plain()
    wait_until(lambda: (case.ask() or {}).get("ready"), "a ready runner")
    terminal = PseudoTerminal([sys.executable, "-m", "pipelines.cli", "status", "--watch"], case.environment(), case.directory)
    wait_until(lambda: f"pipeline {case.pipeline}" in terminal.text, "the table")
    terminal.press(CTRL_C)
    assert terminal.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in terminal.text
    runner.terminate()
