"""Two topics joined by the records' own times: what a left record meets does not depend on the order of arrival, or on idle topics."""

import json
import random
import shutil
from contextlib import closing
from typing import Any

import pytest
import yaml
from support.join_pipeline import JoinPipeline, processed, rehearsed, report
from support.pipeline_case import PipelineCase, wait_until
from support.purged_raw import purge_raw

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]
BEGIN_MS = 1_750_000_000_000
BY_TIME = ("0s", "1s")


def seconds(*times: float) -> Any:
    return lambda number: BEGIN_MS + int(times[number] * 1000)


def assert_proven(case: PipelineCase) -> dict[str, Any]:
    """The counts of `verify`; audit and verify say nothing else than that rows wait."""
    for command in ("audit", "verify"):
        answer = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert answer["findings"] == [], json.dumps(answer)[:4000]
        assert all("wait" in one["what"] for one in answer.get("not_proven", [])), json.dumps(answer)[:4000]
    counts: dict[str, Any] = answer["counts"]
    return counts


def go_past(pipeline: JoinPipeline, at: float) -> None:
    """A record of each partition of both sides at a time of its own: all before it are decided."""
    for source, one in (("events", 900), ("names", 901)):
        pipeline.send(source, [one] * pipeline.partitions, at_ms=seconds(*[at] * pipeline.partitions))
    pipeline.case.warm_run()


@pytest.mark.parametrize(("first", "way"), [("events", "in tasks"), ("names", "in the runner")], indirect=["way"])
def test_records_meet_by_their_own_times_whatever_comes_first(case: PipelineCase, way: None, first: str) -> None:
    pipeline = JoinPipeline(case, case.addresses, windows=("10s", "20s"), by_time=BY_TIME, unmatched="emit")
    of_both = {
        # Of the names of 1 the one of 5 is the newest at 6; that of 2 comes within the left window; that of 3 too late; 4 has none.
        "names": ([1, 1, 1, 2, 3], "n", (0, 5, 7, 14, 16)),
        "events": ([1, 2, 3, 4], "e", (6, 5, 6, 7)),
    }
    for source in sorted(of_both, key=lambda one: one != first):
        ids, text, times = of_both[source]
        for number, (one, time) in enumerate(zip(ids, times, strict=True)):
            pipeline.send(source, [one], f"{text}{number} ", seconds(time))
        case.warm_run()
    go_past(pipeline, 100)
    assert pipeline.rows()[:4] == [(1, "n1 1", 1.5), (2, "n3 2", 2.5), (3, None, 3.5), (4, None, 4.5)]
    counts = pipeline.account()
    assert (counts["joined"], counts["unmatched"], counts["late"]) == (2, 2, 0)
    assert_proven(case)


def test_a_late_record_of_either_side_is_a_dead_letter(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, windows=("10s", "10s"), by_time=BY_TIME)
    go_past(pipeline, 50)
    pipeline.send("names", [1], at_ms=seconds(49))
    pipeline.send("events", [1, 2], at_ms=seconds(49.9, 50))
    case.warm_run()
    letters = case.dead_letters()
    assert sorted((letter["source"], letter["stage"], letter["code"], letter["field"]) for letter in letters) == [
        ("events", "join", "late", "at"),
        ("names", "join", "late", "at"),
    ]
    assert processed(case).outcomes["dead letters"] == 2
    assert pipeline.account()["late"] == 2
    assert_proven(case)
    tried = rehearsed(case)
    assert (tried["letters"], tried["passed"], tried["late"], tried["rejected"]) == (2, 0, 2, [])
    # Redriven, they are as late as before.
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert sorted(letter["attempts"] for letter in case.dead_letters()) == [1, 1, 2, 2]
    assert_proven(case)


def test_a_quiet_topic_no_longer_holds_back_the_others(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, windows=("10s", "10s"), by_time=BY_TIME)
    pipeline.send("names", [1, 2], at_ms=seconds(0, 0))
    case.warm_run()
    running = case.warm_runner(until_caught_up=False)
    thread = case.in_background(running)
    try:
        pipeline.send("events", [1, 2], at_ms=seconds(1, 1))
        pipeline.send("events", [3, 3], at_ms=seconds(30, 30))
        wait_until(lambda: len(pipeline.rows()) == 2, "the rows of the quiet topic's names")
    finally:
        running.request_stop()
        thread.join()
    # The last mark may have come behind the last plan.
    case.warm_run()
    assert pipeline.rows() == [(1, "n1", 1.5), (2, "n2", 2.5)]
    counts = pipeline.account()
    assert (counts["joined"], counts["waiting"]) == (2, 2)
    assert counts["marks"] > 0
    assert_proven(case)


def of_three_partitions(case: PipelineCase, copies: tuple[str, str] | None) -> JoinPipeline:
    """Left records that have met a right one, that met none, that are late, and that wait, each partition in frames of its own."""
    pipeline = JoinPipeline(case, case.addresses, windows=("10s", "20s"), by_time=BY_TIME, unmatched="emit", copies=copies, partitions=3)
    for text, ids, time in (("a ", [1, 2, 3], 0), ("b ", [1, 2, 7], 1)):
        pipeline.send("names", ids, text, seconds(time, time, time))
        case.warm_run()
    pipeline.send("events", [1, 2, 3, 4, 5, 7], at_ms=seconds(*[2] * 6))
    case.warm_run()
    go_past(pipeline, 50)
    pipeline.send("events", [1, 2, 3, 4, 5, 7], at_ms=seconds(49, 52, 53, 52, 10, 54))
    case.warm_run()
    go_past(pipeline, 100)
    return pipeline


@pytest.mark.parametrize("copies", [None, ("1h", "1h")], ids=["join", "dedup and join"])
def test_a_purge_between_any_two_frames_accuses_nobody(case: PipelineCase, copies: tuple[str, str] | None) -> None:
    of_three_partitions(case, copies)
    with closing(case.log()) as log:
        raw = log.state(case.names.stream("raw"))
    assert raw
    for below in range(7, raw.last_sequence + 1, 4):
        purge_raw(case, below)
        for command in ("verify", "audit"):
            answer = report(case, command)
            assert (below, command, answer["findings"]) == (below, command, [])


def test_a_row_lost_behind_a_purge_is_named(case: PipelineCase) -> None:
    of_three_partitions(case, None)
    # Within the range of the first left records: those behind it are proven.
    purge_raw(case, 15)
    before = report(case, "verify")
    assert (before["verdict"], before["counts"]["rows"]) == ("clean", 7)
    assert "records of raw frames 15.." in str(before["not_compared"])
    lost = f"id = 4 AND _tf_sequence = (SELECT max(_tf_sequence) FROM {case.table} WHERE id = 4)"
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE {lost} SETTINGS mutations_sync = 2")
    for command in ("verify", "audit"):
        (finding,) = [one for one in report(case, command)["findings"] if one["place"] != "counts"]
        assert (finding["kind"], finding["count"]) == ("missing", 1)


@pytest.mark.parametrize("copies", [None, ("1h", "1h")], ids=["join", "dedup and join"])
def test_random_times_are_joined_proven_rebuilt_and_dealt_anew(case: PipelineCase, copies: tuple[str, str] | None) -> None:
    draw, pipeline = random.Random(11), JoinPipeline(case, case.addresses, windows=("4s", "6s"), by_time=("2s", "1h"), copies=copies)
    now = 0.0

    def send_some(rounds: int) -> None:
        nonlocal now
        for number in range(rounds):
            for source in draw.sample(["events", "names"], 2):
                times = [now + draw.uniform(-3, 3) for _ in range(40)]
                pipeline.send(source, [draw.randrange(12) for _ in times], f"{number} ", seconds(*times))
            now += 2
            case.warm_run()

    send_some(3)
    shutil.rmtree(case.names.directory(case.home) / "state")
    rebuilt = case.invoke("rebuild-state", str(case.file), "--json")
    assert rebuilt.exit_code == 0, rebuilt.output
    send_some(1)
    assert case.invoke("compact", str(case.file)).exit_code == 0
    send_some(1)
    document = yaml.safe_load(case.file.read_text())
    case.file.write_text(yaml.safe_dump({**document, "buckets": 3}, sort_keys=False))
    assert case.invoke("rebucket", str(case.file)).exit_code == 0
    send_some(1)
    pipeline.send("events", [50], at_ms=seconds(now))
    case.warm_run()
    counts = pipeline.account()
    assert min(counts["joined"], counts["late"], counts["waiting"]) > 0
    assert (counts["copies"] > 0) == (copies is not None)
    found = processed(case).outcomes
    assert found["waiting in the join"] == counts["waiting"]
    assert found["dead letters"] == counts["late"]
    assert assert_proven(case)["rows"] == counts["rows"]
    told = json.loads(case.invoke("why", str(case.file), "3", "--json").stdout)
    assert {"kept", "copy" if copies else "joined"} <= {record["outcome"] for record in told["records"]}
    shown = json.loads(case.invoke("state", str(case.file), "--json").stdout)
    assert shown["clock"] is not None
