"""An edited file is applied to the pipeline that runs: the table is altered, what waits is delivered as it was made, nothing is lost."""

import json
from typing import Any

import pytest
from support.dedup_case import check_first_of_keys, copies, keyed_by
from support.edited_case import alter, mapping, waiting_at_the_sink
from support.pipeline_case import PipelineCase

from pipelines.control.control import Desired, read_desired, write_desired

pytestmark = [pytest.mark.integration, pytest.mark.spark]

TITLES = "SELECT count(), countIf(title = concat('event ', toString(id))) FROM {}"
MORE = {"name": "name", "column_name": "more", "column_type": "String"}


def renamed(columns: list[dict[str, Any]]) -> None:
    columns[1].update(column_name="title")


def applied(case: PipelineCase) -> str:
    done = case.invoke("apply", str(case.file), "--yes", "--no-start")
    assert done.exit_code == 0, done.output
    return done.output


def test_a_column_is_added_under_load(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300)
    runner = case.start_plain()
    case.wait_count(300)
    with case.load(pause_seconds=0.4):
        case.write_file(mapping(lambda columns: columns.append(MORE)))
        said = applied(case)
    assert runner.wait(60) == 0
    assert f"1. ALTER TABLE default.{case.table} ADD COLUMN more String" in said
    assert "2. stop the runner" in said
    assert "deliver the rows" not in said
    case.warm_run()
    case.check()
    with_more, without = case.client().query(f"SELECT countIf(more = name), countIf(more = '') FROM {case.table}").result_rows[0]
    assert without >= 300
    assert with_more + without == case.count()
    assert case.invoke("diff", str(case.file)).exit_code == 0


def test_a_renamed_column_waits_for_the_rows_that_are_under_way(case: PipelineCase) -> None:
    case.write_file(mapping(lambda columns: columns[0].update(column_type="Int32")))
    waiting_at_the_sink(case)
    case.send_events(50)
    case.write_file(mapping(renamed))
    asked = case.invoke("diff", str(case.file), "--json")
    assert asked.exit_code == 1, asked.output
    document = json.loads(asked.stdout)
    assert document["need"] == "drain"
    assert [step.split(" -- ")[0].rstrip() for step in document["steps"]] == [
        "deliver the rows that wait, under the file as it ran",
        f"ALTER TABLE default.{case.table} MODIFY COLUMN id Int64",
        f"ALTER TABLE default.{case.table} RENAME COLUMN name TO title",
    ]
    assert case.count() == 0
    done = case.command("apply", str(case.file), "--yes", "--no-start")
    assert done.returncode == 0, done.stderr
    assert case.count() == 100
    case.warm_run()
    assert case.client().query(f"SELECT count(), countIf(title = concat('event ', toString(id))) FROM {case.table}").result_rows == [
        (150, 150)
    ]


def test_a_drain_reads_no_further_record(case: PipelineCase) -> None:
    waiting_at_the_sink(case)
    case.send_events(50)
    case.write_file(mapping(renamed))
    done = case.invoke("run", str(case.file), "--drain", "--as-started")
    assert done.exit_code == 0, done.output
    assert case.count() == 100
    case.write_file()
    case.warm_run()
    case.check()


def refused(case: PipelineCase, *options: str) -> str:
    """What `apply` says of an edit that it refuses; the table is as it was."""
    before = case.client().query(f"DESCRIBE {case.table}").result_rows
    ended = case.invoke("apply", str(case.file), "--yes", "--no-start", *options)
    assert ended.exit_code == 1, ended.output
    assert case.client().query(f"DESCRIBE {case.table}").result_rows == before
    return ended.stderr


def test_what_would_change_stored_values_is_asked_for(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(20)
    case.warm_run()
    case.write_file(mapping(lambda columns: columns.pop(), lambda columns: columns[0].update(column_type="Int16")))
    said = refused(case, "--drop-columns")
    assert "stored values would be changed: ALTER TABLE" in said
    assert "MODIFY COLUMN id Int16" in said
    case.write_file(mapping(lambda columns: columns[0].update(column_type="Int16")))
    said = refused(case)
    assert "stored values would be changed: ALTER TABLE" in said
    assert "MODIFY COLUMN id Int16" in said
    done = case.invoke("apply", str(case.file), "--yes", "--no-start", "--change-stored")
    assert done.exit_code == 0, done.output
    case.warm_run()
    case.check()
    case.write_file(mapping(lambda columns: columns.pop(), lambda columns: columns[0].update(column_type="Int16")))
    done = case.invoke("apply", str(case.file), "--yes", "--no-start", "--drop-columns")
    assert done.exit_code == 0, done.output
    assert case.client().query(f"SELECT * EXCEPT(_tf_arrival) FROM {case.table} LIMIT 1").column_names[:3] == ("id", "name", "_tf_sequence")


def test_what_apply_cannot_do_is_refused_with_the_way_on(case: PipelineCase) -> None:
    case.create_topic()
    never = case.invoke("apply", str(case.file), "--yes")
    assert never.exit_code == 1
    assert "no start on this host is known" in never.stderr
    case.send_events(20)
    case.warm_run()
    case.client().command(f"CREATE TABLE {case.table}_names (name String) ENGINE = MergeTree ORDER BY name")
    case.client().command(f"CREATE MATERIALIZED VIEW {case.table}_view TO {case.table}_names AS SELECT name FROM {case.table}")
    case.write_file(mapping(renamed))
    assert f"default.{case.table}_view read from it; alter all of them by hand" in refused(case)
    case.write_file(lambda document: document["sources"][0].update(topic="another"))
    shown = case.invoke("diff", str(case.file))
    assert shown.exit_code == 1
    assert "a new pipeline" in shown.stdout
    new = "may not change while the pipeline lives; restore them, or give the changed pipeline another pipeline_id"
    assert new in refused(case)


@pytest.mark.usefixtures("plain_commands")
def test_other_buckets_are_made_of_the_key_store(case: PipelineCase) -> None:
    def with_buckets(document: dict[str, Any]) -> None:
        keyed_by("id")(document)
        document["buckets"] = 3

    case.create_topic()
    case.send(copies(400, keys=150))
    case.write_file(keyed_by("id"))
    case.run_in_turn("ingest", "process")
    case.write_file(with_buckets)
    said = applied(case)
    assert "1. deliver the rows that wait" in said
    assert "2. rewrite the key store to 3 buckets" in said
    case.send(copies(400, first=400, keys=150))
    case.warm_run()
    check_first_of_keys(case)


def test_an_edit_of_checks_alone_holds_at_once(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(20)
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    case.wait_count(20)
    case.write_file(lambda document: document.update(checks={"freshness": {"warn_after": "5m"}}))
    done = case.invoke("apply", str(case.file), "--yes")
    assert done.exit_code == 0, done.output
    assert "holds at once" in done.stdout
    assert "stop the runner" not in done.stdout
    assert runner.is_ready


def test_a_pipeline_that_dagster_runs_is_wanted_again_or_not(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(20)
    case.warm_run()
    directory = case.names.directory(case.home)
    write_desired(directory, Desired("running", case.warm_runner().topology.legs))
    case.write_file(mapping(lambda columns: columns.append(MORE)))
    done = case.invoke("apply", str(case.file), "--yes")
    assert done.exit_code == 0, done.output
    wanted = read_desired(directory)
    assert wanted is not None
    assert wanted.state == "running"
    case.write_file(mapping(lambda columns: columns.extend([MORE, {**MORE, "column_name": "most"}])))
    done = case.invoke("apply", str(case.file), "--yes", "--no-start", COLUMNS="200")
    assert done.exit_code == 0, done.output
    assert "ADD COLUMN most" in done.stdout
    assert f"start {case.file}" not in done.stdout
    assert "not started, nor will Dagster's sensor" in done.stdout
    assert read_desired(directory) == Desired("stopped")


@pytest.mark.usefixtures("plain_commands")
def test_an_apply_that_failed_is_applied_again(case: PipelineCase) -> None:
    waiting_at_the_sink(case)
    case.write_file(mapping(renamed, lambda columns: columns.append(MORE)))
    alter(case, "ADD COLUMN title Int8 ALIAS id")
    failed = case.invoke("apply", str(case.file), "--yes", "--no-start")
    assert failed.exit_code != 0
    alter(case, "DROP COLUMN title")
    applied(case)
    assert case.count() == 100
    case.warm_run()
    assert case.count() == 100
