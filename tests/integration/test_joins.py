"""Two topics joined into one table: each left record has one row, is unmatched, or waits, whatever comes first."""

import json
from contextlib import closing
from datetime import timedelta

import pytest
from pyspark.sql import SparkSession
from support.join_pipeline import JoinPipeline, clean, has_decided_all, processed, rehearsed, run_until
from support.pipeline_case import PipelineCase, wait_until

from pipelines.protocol.positions import Position
from pipelines.protocol.records import HEADER_FIRST, HEADER_LAST
from pipelines.protocol.ticks import append_tick

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


def test_a_left_record_is_joined_whichever_side_comes_first(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    pipeline = JoinPipeline(case, case.addresses)
    pipeline.send("names", range(50))
    case.warm_run()
    pipeline.send("events", [*range(100), 0, -1])
    case.warm_run()
    assert pipeline.rows() == sorted((one, f"n{one}", one + 0.5) for one in [*range(50), 0])
    pipeline.send("names", [*range(40, 80), -1], "later ")
    case.warm_run()
    expected = [(one, f"n{one}", one + 0.5) for one in [*range(50), 0]] + [(one, f"later {one}", one + 0.5) for one in range(50, 80)]
    assert pipeline.rows() == sorted(expected)
    account = processed(case)
    assert account.outcomes == {
        "written to out": 81,
        "duplicates dropped": 0,
        "waiting in the join": 20,
        "kept for the join": 90,
        "dead letters": 2,
    }
    assert sorted(letter["source"] for letter in case.dead_letters()) == ["events", "names"]


def test_copies_of_either_side_are_dropped_before_the_join(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    pipeline.send("names", [*range(30), 3])
    case.warm_run()
    pipeline.send("events", [*range(40), *range(5), -1])
    case.warm_run()
    pipeline.send("events", [*range(10)])
    pipeline.send("names", [35, 35, 36], "later ")
    case.warm_run()
    expected = [(one, f"n{one}", one + 0.5) for one in range(30)] + [(one, f"later {one}", one + 0.5) for one in (35, 36)]
    assert pipeline.rows() == sorted(expected)
    assert processed(case).outcomes == {
        "written to out": 32,
        "duplicates dropped": 17,
        "waiting in the join": 8,
        "kept for the join": 32,
        "dead letters": 1,
    }
    assert pipeline.account()["copies"] == 17


def test_a_refused_row_redriven_is_no_copy_of_itself(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"), unmatched="dead_letter", windows=("2s", "1h"))
    pipeline.send("names", [1, 2])
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT small CHECK id < 2")
    pipeline.send("events", [1, 2, 1, 2])
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [1]
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT small")
    tried = rehearsed(case)
    assert (tried["letters"], tried["passed"], tried["duplicates"], tried["rejected"]) == (1, 1, 0, [])
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [1, 2]
    # What was accepted once is still known.
    pipeline.send("events", [2])
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [1, 2]
    assert processed(case).outcomes["duplicates dropped"] == 3


@pytest.mark.parametrize("unmatched", ["drop", "emit", "dead_letter"])
def test_a_window_ends_while_no_record_arrives_and_is_proven(case: PipelineCase, unmatched: str) -> None:
    pipeline = JoinPipeline(case, case.addresses, windows=("1s", "1h"), unmatched=unmatched)
    pipeline.send("names", [1])
    case.warm_run()
    pipeline.send("events", [1, 2, 3])
    rows = 3 if unmatched == "emit" else 1
    run_until(case, lambda: has_decided_all(processed(case), 4) and len(pipeline.rows()) == rows, "the rows of the ended windows")
    alone = [(2, None, 2.5), (3, None, 3.5)] if unmatched == "emit" else []
    assert pipeline.rows() == [(1, "n1", 1.5), *alone]
    letters = [(json.loads(letter["value"])["id"], letter["stage"], letter["code"]) for letter in case.dead_letters()]
    assert sorted(letters) == ([(2, "join", "unmatched"), (3, "join", "unmatched")] if unmatched == "dead_letter" else [])
    dropped = 2 if unmatched == "drop" else 0
    assert processed(case).outcomes.get("unmatched by the join", 0) == dropped
    with closing(case.log()) as log:
        assert log.last(case.names.stream("raw"), case.names.tick()) is not None
    verified, audited = clean(case, "verify"), clean(case, "audit")
    assert (verified["rows"], verified["rejected"], verified.get("unmatched by the join", 0)) == (rows, len(letters), dropped)
    assert (audited["out"], audited["dead letters"], audited.get("unmatched by the join", 0)) == (rows, len(letters), dropped)
    assert (verified["records"], audited["raw"], audited["kept for the join"]) == (4, 4, 1)
    if unmatched == "dead_letter":
        tried = rehearsed(case)
        assert (tried["letters"], tried["passed"], tried["dropped"]) == (2, 0, {"waiting in the join": 2})
        pipeline.send("names", [3])
        case.warm_run()
        tried = rehearsed(case)
        assert (tried["letters"], tried["passed"], tried["dropped"]) == (2, 1, {"waiting in the join": 1})


def test_a_tick_that_a_run_leaves_is_taken_by_the_next(case: PipelineCase) -> None:
    """A run ends when every record is confirmed, though the process leg may append a tick in its last moment."""
    pipeline = JoinPipeline(case, case.addresses, windows=("3s", "1h"), unmatched="emit")
    pipeline.send("names", [1])
    case.warm_run()
    pipeline.send("events", [1, 2, 3])
    case.warm_run()
    raw = case.names.stream("raw")
    with closing(case.log()) as log:
        newest = max(message.time for message in log.fetch(raw, case.names.subjects("raw"), 0, 2**60))
        wait_until(lambda: log.clock(raw) - newest > timedelta(seconds=3), "the end of the window")
        assert append_tick(log, case.names)
    assert pipeline.account()["records"] == clean(case, "verify")["records"] == clean(case, "audit")["raw"] == 4
    case.warm_run()
    assert pipeline.rows() == [(1, "n1", 1.5), (2, None, 2.5), (3, None, 3.5)]
    assert pipeline.account()["unmatched"] == 2


def test_a_refused_row_is_a_dead_letter_of_its_left_record(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT small CHECK id < 100")
    pipeline.send("events", [*range(90, 110)])
    case.warm_run()
    # Released in another order than they came.
    pipeline.send("names", [105, 91])
    pipeline.send("names", [101, 100, 92])
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [91, 92]
    letters = [(json.loads(letter["value"])["id"], letter["stage"], letter["source"]) for letter in case.dead_letters()]
    assert sorted(letters) == [(100, "sink", "events"), (101, "sink", "events"), (105, "sink", "events")]
    counts = clean(case, "verify")
    assert (counts["rows"], counts["refused"], counts["waiting in the join"]) == (2, 3, 15)
    assert clean(case, "audit")["dead letters"] == 3
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT small")
    tried = rehearsed(case)
    assert (tried["letters"], tried["passed"], tried["refused"], tried["dropped"], tried["released"]) == (3, 3, 3, {}, 0)
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [91, 92, 100, 101, 105]
    assert processed(case).outcomes["waiting in the join"] == 15
    assert clean(case, "verify")["rows"] == 5
    assert clean(case, "audit")["entered again"] == 3


def test_dead_letters_of_a_plan_are_in_the_order_of_causes(case: PipelineCase) -> None:
    fails = {"type": "compute", "config": {"fields": [{"name": "number", "expression": "CAST(name AS INTEGER)"}]}}
    pipeline = JoinPipeline(case, case.addresses, fails, windows=("2s", "1h"), unmatched="dead_letter")
    # Some share a bucket.
    pipeline.send("events", range(40))
    pipeline.send("names", range(0, 40, 2))
    case.run_in_turn("ingest")
    with closing(case.log()) as log:
        stream = case.names.stream("raw")
        last = log.state(stream).last_sequence
        ended = log.get(stream, last).time + timedelta(seconds=2)
        wait_until(lambda: log.clock(stream) > ended, "the end of the windows")
    # Its frame ends the windows of odd ones, behind the records that have released the even ones.
    pipeline.send("names", [99])
    case.run_in_turn("ingest", "process")
    letters = [(json.loads(letter["value"])["id"], letter["code"]) for letter in case.dead_letters()]
    assert sorted(letters) == [(one, "unmatched" if one % 2 else "expression_error") for one in range(40)]
    assert processed(case).outcomes["dead letters"] == 40
    tried = rehearsed(case)
    assert (tried["letters"], tried["passed"], tried["dropped"]) == (40, 0, {"waiting in the join": 20})
    assert [(cause["code"], cause["letters"]) for cause in tried["rejected"]] == [("expression_error", 20)]
    with closing(case.log()) as log:
        stream = case.names.stream("dlq")
        frames = list(log.fetch(stream, case.names.subjects("dlq"), 0, log.state(stream).last_sequence))
    covered = [tuple(Position.parse(frame.headers[name]) for name in (HEADER_FIRST, HEADER_LAST)) for frame in frames]
    assert covered and all(first <= last for first, last in covered)


def test_a_dry_run_tells_whom_a_right_record_would_release(case: PipelineCase) -> None:
    """The names fail in a step of their own, which an edit mends."""
    fails = {
        "type": "compute",
        "source_id": "names",
        "config": {"fields": [{"name": "number", "expression": "CAST(name AS INTEGER)"}]},
    }
    pipeline = JoinPipeline(case, case.addresses, fails)
    pipeline.send("events", [1, 2, 2, 3])
    pipeline.send("names", [1, 2, 9])
    case.warm_run()
    tried = rehearsed(case)
    assert (tried["letters"], tried["released"], [cause["letters"] for cause in tried["rejected"]]) == (3, 0, [3])
    case.file.write_text(case.file.read_text().replace("CAST(name AS INTEGER)", "length(name)"))
    tried = rehearsed(case)
    assert (tried["letters"], tried["passed"], tried["released"], tried["rejected"]) == (3, 0, 3, [])
    assert tried["dropped"] == {"kept for the join": 3}
    told = case.invoke("dlq", "reprocess", str(case.file), "--all", "--dry-run")
    assert "3 records waiting in the join would meet one of them" in told.output
    assert pipeline.rows() == []
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [1, 2, 2]
