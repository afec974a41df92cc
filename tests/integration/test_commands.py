"""The command line over a running, a stopped and a deleted pipeline, and how the sink batches."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from typer.testing import CliRunner, Result

from pipelines.cli.app import app
from pipelines.config import json_schema
from pipelines.control.control import find_runners
from pipelines.errors import FencedError
from pipelines.protocol.bodies import SINK_CHAIN
from pipelines.protocol.naming import ROLES
from pipelines.runner.runner import Runner
from pipelines.runner.status import StatusServer
from pipelines.testing import LEGS

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def tallyflow(case: PipelineCase, *arguments: str, answer: str | None = None) -> Result:
    """A command inside the test process; `run` and `stop` need a process of their own."""
    return CliRunner().invoke(app, list(arguments), input=answer, env=case.environment(COLUMNS="200"))


@contextmanager
def running(case: PipelineCase) -> Iterator[Runner]:
    """A continuous run in a thread of the test process, with its status server."""
    runner = case.warm_runner(until_caught_up=False)
    runner.on_start = StatusServer
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    wait_until(lambda: runner.is_ready or not thread.is_alive(), "a ready runner")
    try:
        assert runner.is_ready
        yield runner
    finally:
        runner.request_stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


# -- run, status, stop as a user has them ---------------------------------------------------------------------------------------


def test_run_delivers_status_shows_it_and_stop_ends_it(case: PipelineCase) -> None:
    """Beside it no second run begins, and nothing is deleted."""
    case.create_topic()
    process = case.start()
    case.wait_ready(process)
    case.send_events(300, bad_every=100)
    case.wait_count(297)
    wait_until(lambda: (case.status() or {})["legs"]["sink"]["totals"].get("rows_out") == 297, "the sink's total")
    shown = case.invoke("status", str(case.file))
    assert shown.exit_code == 0
    assert case.pipeline in shown.stdout
    assert all(leg in shown.stdout for leg in LEGS)
    for refused in (case.invoke("run", str(case.file)), case.invoke("delete", str(case.file), "--yes")):
        assert refused.exit_code == 1
        assert "a runner on this host already holds" in refused.stderr
        assert "Traceback" not in refused.stderr
    stopped = case.invoke("stop", str(case.file))
    assert (stopped.exit_code, stopped.stdout.strip()) == (0, "stopped")
    assert process.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in process.communicate()[1]
    again = case.invoke("stop", str(case.file))
    assert (again.exit_code, again.stdout.strip()) == (0, "no runner of this pipeline is running on this host")
    case.check()


def wait_waiting(case: PipelineCase) -> None:
    wait_until(lambda: "waiting" in case.invoke("status", str(case.file)).stdout, "a start that waits")


def test_a_signal_while_the_start_waits_ends_it(case: PipelineCase) -> None:
    process = case.start_plain("--connect-timeout", "300", NATS_URL="nats://127.0.0.1:1", KAFKA_BOOTSTRAP="127.0.0.1:1")
    wait_waiting(case)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0
    answer = process.communicate()[1]
    assert " WARNING waiting: " in answer.splitlines()[0]
    assert "Traceback" not in answer


def test_a_waiting_start_is_stopped_and_leaves_nothing(case: PipelineCase) -> None:
    process = case.start_plain("--connect-timeout", "300", KAFKA_BOOTSTRAP="127.0.0.1:1")
    wait_waiting(case)
    stopped = case.invoke("stop", str(case.file))
    assert (stopped.exit_code, stopped.stdout) == (0, "stopped\n")
    assert process.wait(PATIENCE_SECONDS) == 0
    assert sorted(path.name for path in case.names.directory(case.home).iterdir()) == ["control.lock", "desired.json"]


def test_a_start_that_is_stopped_in_its_checks_takes_no_lease(case: PipelineCase) -> None:
    case.create_topic()
    runner = case.warm_runner()
    runner.request_stop()
    runner.run()
    assert runner.leases == {}
    assert not runner.is_ready


# -- status -----------------------------------------------------------------------------------------------------------------------


def test_the_status_server_tells_legs_lag_and_health(case: PipelineCase) -> None:
    case.create_topic()
    with running(case) as runner:
        case.send_events(90, bad_every=30)
        case.wait_count(87)
        (found,) = find_runners(runner.directory)
        assert (found["pid"], found["legs"]) == (os.getpid(), list(LEGS))
        with httpx.Client(base_url=f"http://127.0.0.1:{found['port']}", timeout=10) as http:
            wait_until(lambda: http.get("/status").json()["legs"]["sink"]["totals"].get("rows_out") == 87, "the sink's total")
            status = http.get("/status").json()
            assert (status["pipeline"], status["ready"], status["healthy"]) == (case.pipeline, True, True)
            assert {name: leg["state"] for name, leg in status["legs"].items()} == dict.fromkeys(LEGS, "running")
            assert status["lag"] == {"0": 0, "1": 0, "2": 0}
            assert status["legs"]["process"]["totals"]["rows_rejected"] == 3
            assert status["legs"]["sink"]["last_batch"]["counts"]["rows_out"] > 0
            healthy = http.get("/healthz")
            assert (healthy.status_code, healthy.json()) == (200, {"healthy": True})
            check_metrics(case, http.get("/metrics"))
            shown = tallyflow(case, "status", str(case.file))
            assert (shown.exit_code, case.pipeline in shown.output) == (0, True)
            runner.legs["sink"].halt(FencedError("as if"))
            unhealthy = http.get("/healthz")
            assert (unhealthy.status_code, unhealthy.json()) == (503, {"healthy": False})
            assert tallyflow(case, "status", str(case.file), "--json").exit_code == 1
            runner.legs["sink"].status.failure = ""
    assert find_runners(runner.directory) == []
    ended = tallyflow(case, "status", str(case.file))
    assert (ended.exit_code, "not running on this host" in ended.output) == (1, True)
    case.check()


def check_metrics(case: PipelineCase, answer: httpx.Response) -> None:
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert answer.headers["content-type"].startswith("text/plain")
    assert {name: family.type for name, family in families.items()} == {
        "tallyflow_lookup_age_seconds": "gauge",
        "tallyflow_lookup_failed": "gauge",
        "tallyflow_lookup_rows": "gauge",
        "tallyflow_rows": "counter",
        "tallyflow_batches": "counter",
        "tallyflow_retries": "counter",
        "tallyflow_busy_seconds": "counter",
        "tallyflow_leg_state": "gauge",
        "tallyflow_lag_offsets": "gauge",
        "tallyflow_lanes": "gauge",
        "tallyflow_healthy": "gauge",
        "tallyflow_stream_bytes": "gauge",
        "tallyflow_stream_limit_bytes": "gauge",
        "tallyflow_waiting_records": "gauge",
        "tallyflow_waiting_seconds": "gauge",
    }

    def value(family: str, **labels: str) -> float:
        (sample,) = [s for s in families[family].samples if s.labels == {"pipeline": case.pipeline, **labels}]
        return sample.value

    assert value("tallyflow_healthy") == 1
    assert value("tallyflow_lanes") == 1
    assert value("tallyflow_rows", leg="sink", outcome="rows_out") == 87
    assert value("tallyflow_rows", leg="process", outcome="rejected.parse.invalid_json") == 3
    assert value("tallyflow_leg_state", leg="process", state="running") == 1
    assert value("tallyflow_leg_state", leg="process", state="halted") == 0
    assert value("tallyflow_lag_offsets", partition="2") == 0
    assert value("tallyflow_batches", leg="sink") >= 1


# -- tally, delete ----------------------------------------------------------------------------------------------------------------


def test_tally_accounts_for_every_record_and_for_those_since(case: PipelineCase) -> None:
    case.create_topic()
    never_ran = tallyflow(case, "tally", str(case.file), "--json")
    assert (never_ran.exit_code, never_ran.stdout) == (1, "")
    assert f"pipeline {case.pipeline} was never started" in never_ran.stderr
    case.send_events(600, bad_every=100)
    case.warm_run()
    found = tallyflow(case, "tally", str(case.file), "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout) == {
        "pipeline": case.pipeline,
        "since": None,
        "residue": 0,
        "legs": [
            leg("ingest", 600, {"written to raw": 600, "offsets without a record": 0, "expired and skipped": 0}),
            leg("process", 600, {"written to out": 594, "duplicates dropped": 0, "dead letters": 6}),
            leg("sink", 594, {"confirmed by ClickHouse": 594, "dead letters": 0}),
        ],
        "dead_letters": leg("redrive", 6, {"entered again": 0, "discarded": 0, "still dead letters": 6}) | {"waiting": 6},
    }
    shown = tallyflow(case, "tally", str(case.file))
    assert shown.exit_code == 0
    assert "by the ledger, every event is accounted for; `tallyflow audit` proves it" in " ".join(shown.output.split())
    assert "dead letters" in shown.output
    # Since an instant: what was done since.
    between = datetime.now(UTC)
    case.send_events(200, bad_every=100)
    case.warm_run()
    found = json.loads(tallyflow(case, "tally", str(case.file), "--since", between.isoformat(), "--json").stdout)
    assert (found["since"], found["residue"]) == (between.isoformat(timespec="microseconds"), 0)
    assert found["legs"] == [
        leg("ingest", 200, {"written to raw": 200, "offsets without a record": 0, "expired and skipped": 0}),
        leg("process", 200, {"written to out": 198, "duplicates dropped": 0, "dead letters": 2}),
        leg("sink", 198, {"confirmed by ClickHouse": 198, "dead letters": 0}),
    ]
    dead_letters = leg("redrive", 2, {"entered again": 0, "discarded": 0, "still dead letters": 2}) | {"waiting": 8, "waiting_before": 6}
    assert found["dead_letters"] == dead_letters
    whole = json.loads(tallyflow(case, "tally", str(case.file), "--since", "1h", "--json").stdout)
    assert [one["rows_in"] for one in whole["legs"]] == [800, 800, 792]
    assert "must be an instant such as" in tallyflow(case, "tally", str(case.file), "--since", "yesterday").output


def leg(name: str, rows_in: int, outcomes: dict[str, int]) -> dict[str, Any]:
    upstream = {"process": ["ingest"], "sink": ["process"]}.get(name, [])
    counted = {"rows_in": rows_in, "made": 0, "outcomes": outcomes, "waiting": 0, "waiting_before": 0, "residue": 0}
    return {"leg": name, **counted, "has_open_plan": False, "upstream": upstream}


def test_delete_lists_what_goes_and_asks_first(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    directory = case.names.directory(case.home)
    refused = tallyflow(case, "delete", str(case.file), answer="n\n")
    assert refused.exit_code == 1
    for role in ROLES:
        assert f"stream {case.names.stream(role)} (" in refused.output
    assert f"directory {directory}" in refused.output
    assert f"table default.{case.table} with all its rows" in refused.output
    assert "Delete all of this permanently?" in refused.output
    case.check()
    assert directory.exists()
    deleted = tallyflow(case, "delete", str(case.file), "--keep-table", answer="y\n")
    assert (deleted.exit_code, "table default" in deleted.output, deleted.output.splitlines()[-1]) == (0, False, "deleted")
    log = case.log()
    assert [log.state(case.names.stream(role)) for role in ROLES] == [None] * len(ROLES)
    log.close()
    assert not directory.exists()
    assert case.count() == 30
    assert tallyflow(case, "delete", str(case.file), "--yes").exit_code == 0
    assert case.client().query("SELECT 1 FROM system.tables WHERE name = {t:String}", {"t": case.table}).result_rows == []


# -- validate, schema -------------------------------------------------------------------------------------------------------------


def test_validate_accepts_a_sound_file_and_lists_all_faults(case: PipelineCase) -> None:
    sound = tallyflow(case, "validate", str(case.file))
    assert (sound.exit_code, f"pipeline {case.pipeline} is valid" in sound.output) == (0, True)

    def spoil(document: dict[str, Any]) -> None:
        document["sources"][0]["schema_fields"][2]["type"] = "bool"
        document["sink"]["mapping"][0]["column_type"] = "Date"

    case.write_file(spoil)
    unfit = tallyflow(case, "validate", str(case.file))
    assert unfit.exit_code == 2
    assert "column 'id': int cannot become Date" in unfit.output
    assert "column 'amount': bool cannot become Nullable(Float64)" in unfit.output
    case.write_file(lambda document: document.pop("pipeline_id"))
    bad = tallyflow(case, "validate", str(case.file))
    assert bad.exit_code == 2
    assert "pipeline_id: is required" in bad.output
    assert tallyflow(case, "validate", "no-such-file.yaml").exit_code == 2


def test_schema_prints_the_json_schema_of_the_file(case: PipelineCase) -> None:
    printed = json.loads(tallyflow(case, "schema").stdout)
    assert printed == json_schema()
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    references = set(all_references(printed))
    assert references
    assert references <= {f"#/$defs/{name}" for name in printed["$defs"]}


def all_references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from all_references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from all_references(value)


# -- batches of the sink ------------------------------------------------------------------------------------------------------------


def sink_plans(case: PipelineCase) -> list[int]:
    """Rows of each chunk that was planned, in order; each has a `done`."""
    log = case.log()
    stream = case.names.stream("ledger")
    state = log.state(stream)
    assert state is not None
    entries = [SINK_CHAIN.decode(message) for message in log.fetch(stream, case.names.chain("sink"), 0, state.last_sequence)]
    log.close()
    plans = [entry for entry in entries if entry.kind == "plan"]
    done = [entry for entry in entries if entry.kind == "done"]
    assert [(entry.body.start, entry.body.to) for entry in done] == [(entry.body.start, entry.body.to) for entry in plans]
    return [entry.body.rows for entry in plans]


def inserts(case: PipelineCase) -> int:
    """Blocks that the table ever got: each takes a number, merges keep the numbers."""
    sql = "SELECT max(max_block_number) FROM system.parts WHERE table = {t:String} AND active"
    return int(case.client().query(sql, {"t": case.table}).result_rows[0][0])


def batches(rows: int, delay: str) -> Any:
    return lambda document: document["sink"].update(max_batch_size=rows, max_delay_time=delay)


def test_a_full_batch_is_inserted_at_once_a_smaller_waits(case: PipelineCase) -> None:
    case.create_topic()
    case.write_file(batches(500, "10m"))
    with running(case):
        # The first row after a quiet time waits for nothing.
        case.send_events(1)
        case.wait_count(1)
        case.send_events(300)
        wait_until(lambda: rows_out(case, "process") == 301, "the rows on the out stream")
        time.sleep(1)
        assert case.count() == 1
        case.send_events(300)
        # The batch is full with its 500th row: those that came with it are in it, those that came after wait.
        case.wait_count(501)
        full = case.count()
        case.send_events(100)
        wait_until(lambda: rows_out(case, "process") == 701, "the rows on the out stream")
        time.sleep(1)
        assert case.count() == full
    assert sink_plans(case) == [1, full - 1]
    assert inserts(case) == 2
    case.warm_run()
    assert sink_plans(case) == [1, full - 1, 701 - full]
    assert inserts(case) == 3
    case.check()


def test_a_small_batch_is_inserted_when_the_delay_has_passed(case: PipelineCase) -> None:
    case.create_topic()
    case.write_file(batches(1_000_000, "3s"))
    with running(case):
        case.send_events(1)
        case.wait_count(1)
        began = time.monotonic()
        case.send_events(30)
        case.send_events(30)
        case.wait_count(2)
        assert time.monotonic() - began > 2.5
        case.wait_count(61)
    assert sum(sink_plans(case)) == 61
    assert len(sink_plans(case)) == inserts(case) <= 3
    case.check()


def rows_out(case: PipelineCase, leg: str) -> int:
    now = case.ask()
    return int(now["legs"][leg]["totals"].get("rows_out", 0)) if now else 0


def test_a_backlog_is_inserted_in_chunks_of_one_block_each(case: PipelineCase) -> None:
    case.create_topic()
    case.send(b'{"id": 1, "name": "n"}' for _ in range(205_000))
    case.run_in_turn()
    plans = sink_plans(case)
    assert len(plans) == 2
    assert sum(plans) == 205_000
    assert max(plans) <= 200_000
    assert inserts(case) == 2
