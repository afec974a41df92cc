"""`tallyflow plan`: what is begun and not finished; rows of the sink that somebody gives up are counted dead letters and never inserted."""

import json
from typing import Any

import pytest
from support.edited_case import alter, mapping, stopped_at
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.errors import HaltError

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]


def abandon(case: PipelineCase, *arguments: str) -> dict[str, Any]:
    found = case.invoke("plan", "abandon", str(case.file), "--leg", "sink", "--reason", "the column is gone", "--json", *arguments)
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout))


def answered(case: PipelineCase, arguments: list[str], answer: str) -> int:
    """The exit code of a command whose question is answered."""
    return CliRunner().invoke(app, arguments, env=case.environment(), input=answer).exit_code


def sink_of_tally(case: PipelineCase) -> dict[str, int]:
    found = json.loads(case.invoke("tally", str(case.file), "--json").stdout)
    assert found["residue"] == 0
    return dict(found["legs"][2]["outcomes"])


def with_open_plan(case: PipelineCase, killed_at: str = "") -> None:
    """100 rows wait in an open plan of the sink, none of them inserted unless it is killed later."""
    if case.sent == 0:
        case.create_topic()
    case.send_events(100)
    case.warm_run(legs=("ingest", "process"))
    if killed_at:
        assert case.run_plain(TALLYFLOW_FAILPOINT=f"{killed_at}:1").returncode == -9
    else:
        assert stopped_at(case, "sink.before-insert")


def test_abandoned_rows_are_letters_and_enter_under_a_new_file(case: PipelineCase) -> None:
    with_open_plan(case)
    alter(case, "RENAME COLUMN name TO title")
    (plan,) = json.loads(case.invoke("plan", "show", str(case.file), "--json").stdout)
    assert (plan["leg"], plan["table"], plan["rows"], plan["settled"], plan["pieces"]) == ("sink", f"default.{case.table}", 100, 0, 1)
    assert "100" in case.invoke("plan", "show", str(case.file)).stdout
    case.write_file(mapping(lambda columns: columns[1].update(column_name="title")))
    with pytest.raises(HaltError, match="plan abandon"):
        case.warm_run()
    tried = abandon(case, "--dry-run")
    assert (tried["rows"], tried["stored"], tried["given_up"]) == (100, 0, 0)
    assert abandon(case, "--yes")["given_up"] == 100
    assert {(dead_letter["stage"], dead_letter["code"], dead_letter["message"]) for dead_letter in case.dead_letters()} == {
        ("sink", "abandoned", "the column is gone")
    }
    assert sink_of_tally(case) == {"confirmed by ClickHouse": 0, "dead letters": 0, "abandoned (dead letters)": 100}
    audited = case.invoke("audit", str(case.file), "--json")
    assert audited.exit_code == 0, audited.output
    assert json.loads(audited.stdout)["counts"]["given up by `plan abandon` (of the dead letters)"] == 100
    case.warm_run()
    assert case.invoke("dlq", "reprocess", str(case.file), "--stage", "sink").exit_code == 0
    case.warm_run()
    assert case.client().query(f"SELECT count(), uniqExact(id), uniqExact(title) FROM {case.table}").result_rows == [(100, 100, 100)]
    assert json.loads(case.invoke("audit", str(case.file), "--json").stdout)["verdict"] == "clean"


def test_rows_that_the_table_holds_are_not_given_up(case: PipelineCase) -> None:
    with_open_plan(case, killed_at="sink.after-insert")
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id % 4 = 0 SETTINGS mutations_sync = 2")
    found = abandon(case, "--yes")
    assert (found["stored"], found["given_up"]) == (75, 25)
    assert sink_of_tally(case) == {"confirmed by ClickHouse": 75, "dead letters": 0, "abandoned (dead letters)": 25}
    assert case.invoke("audit", str(case.file)).exit_code == 0
    verified = case.invoke("verify", str(case.file), "--json")
    assert verified.exit_code == 0, verified.output
    counts = json.loads(verified.stdout)["counts"]
    assert (counts["rows"], counts["refused"], counts["abandoned"]) == (75, 0, 25)
    case.warm_run()
    assert case.count() == 75


def test_rows_waiting_behind_the_plan_go_if_their_number_is_said(case: PipelineCase) -> None:
    with_open_plan(case)
    case.send_events(50)
    case.warm_run(legs=("ingest", "process"))
    assert abandon(case, "--dry-run")["rows"] == 100
    arguments = ["plan", "abandon", str(case.file), "--leg", "sink", "--waiting", "--reason", "x"]
    assert answered(case, arguments, "yes\n") == 1
    assert case.dead_letters() == []
    assert answered(case, arguments, "150\n") == 0
    case.warm_run()
    assert (case.count(), len(case.dead_letters())) == (0, 150)
    assert case.invoke("audit", str(case.file)).exit_code == 0


@pytest.mark.parametrize("failpoint", ["plan.after-amend", "plan.after-letters"])
def test_a_killed_abandonment_is_finished_as_decided(case: PipelineCase, failpoint: str) -> None:
    """By the command, and by the sink."""
    command = ["plan", "abandon", str(case.file), "--leg", "sink", "--reason", "first", "--yes"]
    for killed_before, who in enumerate(("command", "sink")):
        with_open_plan(case)
        killed = case.fork(*command, entry="main_with_brief_inserts", TALLYFLOW_FAILPOINT=f"{failpoint}:1:worker")
        assert killed.wait(PATIENCE_SECONDS) == -9
        if who == "command":
            assert abandon(case, "--yes")["given_up"] == 100
        case.warm_run()
        assert case.count() == 0
        given_up = 100 * (killed_before + 1)
        assert [dead_letter["message"] for dead_letter in case.dead_letters()] == ["first"] * given_up
        assert sink_of_tally(case) == {"confirmed by ClickHouse": 0, "dead letters": 0, "abandoned (dead letters)": given_up}


def test_a_table_without_positions_needs_a_human_look(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64)) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    with_open_plan(case, killed_at="sink.before-insert")
    refused = case.invoke("plan", "abandon", str(case.file), "--leg", "sink", "--reason", "x", "--yes")
    assert refused.exit_code == 1
    assert "say --not-stored" in " ".join(refused.stderr.split())
    assert abandon(case, "--yes", "--not-stored")["given_up"] == 100
    assert case.invoke("audit", str(case.file)).exit_code == 0


def test_a_running_sink_keeps_its_plans(case: PipelineCase) -> None:
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    refused = case.invoke("plan", "abandon", str(case.file), "--leg", "sink", "--reason", "x", "--yes")
    assert refused.exit_code == 1
    assert "already holds leg sink" in refused.stderr
    for leg in ("ingest", "process"):
        refused = case.invoke("plan", "abandon", str(case.file), "--leg", leg, "--reason", "x", "--yes")
        assert (refused.exit_code, "not supported" in refused.stderr) == (1, True)


def test_an_insert_goes_only_to_the_table_of_the_file(case: PipelineCase) -> None:
    """Who may write to the ledger decides no INSERT."""
    with_open_plan(case)
    log, chain = case.log(), case.names.chain("sink")
    for table, reported in (("FUNCTION file('written', 'CSV')", "no entry of a ledger"), ("default.another", "nothing was sent")):
        last = log.last(case.names.stream("ledger"), chain)
        assert last is not None
        forged = {**json.loads(last.payload), "table": table}
        log.publish(chain, json.dumps(forged).encode(), {}, last.sequence)
        with pytest.raises(HaltError, match=reported):
            case.warm_run()
    log.close()
    assert case.count() == 0
