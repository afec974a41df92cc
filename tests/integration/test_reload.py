"""Settings of an edited file are taken by the pipeline that runs: nothing stops, nothing is lost, and anything else is refused."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.join_pipeline import JoinPipeline
from support.pipeline_case import PipelineCase, wait_until

import tallyflow

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Document = dict[str, Any]


def batches_of(size: int, delay: str) -> Callable[[Document], None]:
    return lambda document: document["sink"].update(max_batch_size=size, max_delay_time=delay)


def legs(case: PipelineCase) -> dict[str, Any]:
    found = wait_until(case.ask, "a runner that answers")
    legs: dict[str, Any] = found["legs"]
    return legs


def epochs(case: PipelineCase) -> dict[str, int]:
    return {leg: facts["epoch"] for leg, facts in legs(case).items()}


def held_by_the_sink(case: PipelineCase) -> None:
    """The first rows are in the table; of 150 the last 50 at least wait for their batch, for an hour."""
    case.write_file(batches_of(1_000_000, "1h"))
    case.create_topic()
    case.send_events(100)
    case.start_plain()
    case.wait_count(1)
    case.send_events(50)
    wait_until(lambda: legs(case)["process"]["totals"].get("rows_out") == 150, "rows that wait at the sink")
    assert case.count() <= 100


def test_a_setting_is_taken_under_load_and_nothing_stops(case: PipelineCase) -> None:
    held_by_the_sink(case)
    before = epochs(case)
    workers = {leg: facts["worker"] for leg, facts in legs(case).items()}
    with case.load():
        case.write_file(batches_of(5000, "100ms"))
        shown = case.invoke("diff", str(case.file))
        applied = case.invoke("apply", str(case.file), "--yes")
        case.wait_count(600)
    assert (shown.exit_code, applied.exit_code) == (1, 0), applied.output
    assert shown.stdout.startswith(
        "without a restart:\n  sink.max_batch_size was 1000000, now 5000\n  sink.max_delay_time was 1h, now 100ms"
    )
    assert "1. reload: each leg takes the new settings behind its batch, and nothing stops" in shown.stdout
    assert "start " not in shown.stdout.partition("1. reload")[2]
    assert "every leg works under the new settings" in applied.stderr
    assert (epochs(case), {leg: facts["worker"] for leg, facts in legs(case).items()}) == (before, workers)
    assert case.invoke("diff", str(case.file)).exit_code == 0
    case.wait_count(case.good)
    case.invoke("stop", str(case.file))
    case.warm_run()
    case.check()


def test_what_needs_more_is_refused_and_nothing_changes(case: PipelineCase) -> None:
    held_by_the_sink(case)
    before, now = epochs(case), case.ask()
    case.write_file(lambda document: (batches_of(5000, "100ms")(document), document.update(buckets=4)))
    refused = case.invoke("reload", str(case.file))
    assert refused.exit_code == 1
    assert "buckets cannot change while it runs. It runs as before; `tallyflow diff FILE` shows" in refused.stderr.replace("\n", " ")
    after = case.ask()
    assert now is not None
    assert after is not None
    assert (epochs(case), after["settings"]) == (before, now["settings"])
    assert case.count() <= 100
    case.write_file(batches_of(5000, "100ms"))
    assert case.invoke("reload", str(case.file)).exit_code == 0
    case.wait_count(150)
    case.invoke("stop", str(case.file))
    case.check()


def test_a_faulty_file_is_refused(case: PipelineCase) -> None:
    held_by_the_sink(case)
    case.write_file(batches_of(0, "soon"))
    refused = case.invoke("reload", str(case.file))
    assert refused.exit_code == 2
    assert "sink.max_batch_size" in refused.stderr
    assert "sink.max_delay_time" in refused.stderr
    now = case.ask()
    assert now is not None
    assert now["settings"]["reloaded_at"] is None


@pytest.mark.crash
def test_a_leg_that_waits_for_a_server_takes_them_afterwards(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.cli.reload._PATIENCE", timedelta(seconds=1))
    case.create_topic()
    case.send_events(100)
    case.start_plain()
    case.wait_count(100)
    case.stack.server("clickhouse").kill()
    try:
        case.send_events(50)
        wait_until(lambda: legs(case)["sink"]["state"] == "waiting", "a sink that waits")
        case.write_file(batches_of(4000, "100ms"))
        asked = case.invoke("reload", str(case.file))
        assert "sink: when the batch is done" in case.invoke("status", str(case.file)).stdout.replace("\n", " ")
    finally:
        case.stack.up()
    assert asked.exit_code == 1
    assert "sink works under the earlier settings until its batch is done" in asked.stderr.replace("\n", " ")
    wait_until(lambda: len({leg["settings"] for leg in legs(case).values()}) == 1, "all legs under the new settings")
    case.wait_count(150)
    case.invoke("stop", str(case.file))
    case.check()


def test_where_nothing_runs_the_next_start_takes_the_file(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(20)
    case.warm_run()
    case.write_file(batches_of(1000, "50ms"))
    done = case.invoke("apply", str(case.file), "--yes")
    assert (done.exit_code, case.ask()) == (0, None), done.output
    assert "it does not run on this host: its next start takes the file" in done.stdout
    refused = case.invoke("reload", str(case.file))
    assert refused.exit_code == 1
    assert "no runner answers on this host; its next start takes the file as it is then" in refused.stderr.replace("\n", " ")
    case.warm_run()
    assert case.invoke("diff", str(case.file)).exit_code == 0


def test_status_shows_what_was_reloaded(case: PipelineCase) -> None:
    held_by_the_sink(case)
    assert "reloaded" not in case.invoke("status", str(case.file)).stdout
    case.write_file(batches_of(5000, "100ms"))
    case.invoke("reload", str(case.file))
    assert "settings reloaded at 20" in case.invoke("status", str(case.file)).stdout
    now = case.ask()
    assert now is not None
    assert {leg["settings"] for leg in now["legs"].values()} == {now["settings"]["digest"]}


def test_a_shorter_retention_purges_in_the_running_pipeline(case: PipelineCase) -> None:
    case.create_topic()
    case.start_plain()

    def purged_below() -> int:
        case.send_events(50)
        return int((case.ask() or {})["streams"]["raw"]["purged_below"])

    wait_until(lambda: (case.ask() or {}).get("streams", {}).get("raw"), "a look at the streams")
    for _ in range(3):
        assert purged_below() == 0
        case.wait_count(case.sent)
    case.write_file(lambda document: document.update(resources={"nats": {"stream": {"max_age": "1s"}}}))
    assert case.invoke("apply", str(case.file), "--yes").exit_code == 0
    wait_until(purged_below, "a purge of raw")
    case.wait_count(case.sent)
    case.invoke("stop", str(case.file))
    case.check()


def test_python_reloads_too(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in case.environment().items():
        monkeypatch.setenv(name, value)
    held_by_the_sink(case)
    pipeline = tallyflow.Pipeline.load(case.file)
    case.write_file(batches_of(5000, "100ms"))
    assert pipeline.reload() == {}
    case.wait_count(150)
    case.write_file(lambda document: document.update(buckets=4))
    with pytest.raises(tallyflow.HaltError, match="buckets cannot change"):
        pipeline.reload()


@pytest.mark.crash
def test_a_reloaded_runner_that_is_killed_leaves_the_new_file(case: PipelineCase) -> None:
    held_by_the_sink(case)
    (runner,) = case._processes
    case.write_file(batches_of(5000, "100ms"))
    assert case.invoke("reload", str(case.file)).exit_code == 0
    runner.kill()
    runner.wait(60)
    assert case.invoke("diff", str(case.file)).exit_code == 0
    case.send_events(50)
    case.warm_run()
    case.check()


def test_a_leg_that_has_halted_begins_again_with_the_settings(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update(on_error={"max_rejected_percent": 1}))
    case.create_topic()
    case.send_events(3000, bad_every=10)
    case.start_plain()
    wait_until(lambda: legs(case)["process"]["state"] == "halted", "a halt at the rejection limit")
    case.write_file(lambda document: document.update(on_error={"max_rejected_percent": 50}))
    shown = case.invoke("diff", str(case.file))
    assert "process has halted, so the pipeline is started again" in shown.stdout
    assert "stop the runner" in shown.stdout
    applied = case.invoke("apply", str(case.file), "--yes", "--no-start")
    assert applied.exit_code == 0, applied.output
    case.warm_run()
    case.check()


def test_a_limit_of_rejections_is_taken_by_a_running_leg(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(100)
    case.start_plain()
    case.wait_count(100)
    case.write_file(lambda document: document.update(on_error="halt"))
    assert case.invoke("apply", str(case.file), "--yes").exit_code == 0
    case.send_events(100, bad_every=10)
    wait_until(lambda: legs(case)["process"]["state"] == "halted", "a halt at a rejected record")
    assert "as `on_error.rejected: halt` requires" in legs(case)["process"]["message"]
    assert not case.dead_letters()
    case.invoke("stop", str(case.file))
    case.write_file()
    case.warm_run()
    case.check()


def test_a_join_is_reloaded_while_records_wait(case: PipelineCase) -> None:
    join = JoinPipeline(case, case.addresses)
    case.write_file(lambda document: (join._joined(document), batches_of(1_000_000, "1h")(document)))
    join.send("names", range(20))
    join.send("events", range(5))
    case.start_plain()
    case.wait_count(1)
    join.send("events", range(5, 20))
    wait_until(lambda: legs(case)["process"]["totals"].get("rows_in") == 40, "all records in process")
    before = epochs(case)
    case.write_file(lambda document: (join._joined(document), batches_of(100, "50ms")(document)))
    assert case.invoke("apply", str(case.file), "--yes").exit_code == 0
    case.wait_count(20)
    assert epochs(case) == before
    case.invoke("stop", str(case.file))
    assert join.rows() == [(number, f"n{number}", number + 0.5) for number in range(20)]
    join.account()
