"""Compaction of the stores of a join: beside a stopped pipeline and a running one, killed, and in the middle of what it joins."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from support.dagster_case import dagster_case, failure, metadata
from support.dedup_case import listed_files, run_files
from support.join_pipeline import JoinPipeline, processed
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

from pipelines.protocol.failpoints import VARIABLE

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]
STORES = {"join-right", "join-left", "dedup-left", "dedup-right"}


def answer(case: PipelineCase, command: str) -> Any:
    ended = case.invoke(command, str(case.file), "--json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def entries(case: PipelineCase) -> dict[str, int]:
    return {store["store"]: store["entries"] for store in answer(case, "state")["stores"]}


def both_sides(pipeline: JoinPipeline) -> None:
    """Events of 0 to 79 that wait, a copy among them; names of 0 to 49; names of 20 to 49 again: 50 to 79 wait on."""
    for source, ids, text in (("events", [*range(80), 3], "n"), ("names", range(50), "n"), ("names", range(20, 50), "later ")):
        pipeline.send(source, ids, text)
        pipeline.case.warm_run()


def assert_compacted(pipeline: JoinPipeline, keys: dict[str, int]) -> None:
    """What is joined or replaced is forgotten, and the join goes on."""
    case, rows = pipeline.case, pipeline.rows()
    assert entries(case) == {"join-left": 30, "join-right": 50, **keys}
    assert run_files(case) == listed_files(case)
    assert {one["outcome"] for one in answer(case, "compact")} == {"unchanged"}
    pipeline.send("names", [60, 61], "at last ")
    pipeline.send("events", [0, 79, 90])
    case.warm_run()
    joined = {(60, "at last 60", 60.5), (61, "at last 61", 61.5)} | (set() if keys else {(0, "n0", 0.5)})
    assert {*pipeline.rows()} == {*rows} | joined
    counts = pipeline.account()
    assert counts["waiting"] == processed(case).outcomes["waiting in the join"] == (29 if keys else 30)


@pytest.mark.crash
def test_a_compaction_forgets_what_is_joined_or_replaced(case: PipelineCase) -> None:
    """A killed one changes nothing."""
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    both_sides(pipeline)
    before = entries(case)
    assert (before["join-left"], before["join-right"]) == (80, 80)
    report = answer(case, "compact")
    assert {one["outcome"] for one in report} <= {"listed", "unchanged"}
    live = {store: sum(one["live_keys"] for one in report if one["store"] == store) for store in before}
    assert live == entries(case)
    assert_compacted(pipeline, {"dedup-left": 80, "dedup-right": 80})
    kill_a_compaction_and_a_range(pipeline)


def kill_a_compaction_and_a_range(pipeline: JoinPipeline) -> None:
    """The range lists segments of its own, is killed amid them, and is finished behind a compaction that ends."""
    case = pipeline.case
    before = listed_files(case)
    assert killed_compaction(case) == before < run_files(case)
    pipeline.send("names", range(45, 60), "at last ")
    assert case.run_plain(**{VARIABLE: "process.after-state:1"}).returncode == -9
    assert {one["outcome"] for one in answer(case, "compact")} <= {"listed", "unchanged"}
    case.warm_run()
    assert run_files(case) == listed_files(case)
    assert pipeline.account()["waiting"] == 19


def test_the_stores_of_a_join_are_compacted_by_an_asset(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    both_sides(pipeline)
    before = entries(case)
    assert (before["join-left"], before["join-right"]) == (81, 80)
    with dagster_case(case) as dagster:
        result = dagster.job("compact")
        assert result.success, failure(result)
        found = metadata(result)["join_compaction"]
        stored = metadata(dagster.materialize("join_stores"))["join_stores"]
    assert (found["keys_before"], found["keys_after"], found["live_keys_found"]) == (161, 80, 80)
    assert "| join-left |" in found["buckets"]
    assert (stored["entries"], stored["waiting_records"]) == (80, 30)
    assert_compacted(pipeline, {})


def test_entries_whose_window_has_ended_go(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, windows=("1s", "1s"), copies=("1s", "1s"))
    pipeline.send("names", range(20))
    pipeline.send("events", range(10, 30))
    case.warm_run()
    # A frame behind all windows: the log's clock has passed them.
    wait_until(lambda: "waiting in the join" not in drained(case), "the end of the windows")
    pipeline.send("names", [100])
    case.warm_run()
    answer(case, "compact")
    assert entries(case) == {"join-left": 0, "join-right": 1, "dedup-left": 0, "dedup-right": 1}
    assert run_files(case) == listed_files(case)
    pipeline.send("events", [5, 6])
    case.warm_run()
    assert pipeline.account()["joined"] == 10


def drained(case: PipelineCase) -> dict[str, int]:
    case.warm_run()
    return processed(case).outcomes


@pytest.mark.crash
def test_a_leg_lists_the_compaction_made_beside_it(case: PipelineCase) -> None:
    """One that was killed beside it before has changed nothing."""
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    both_sides(pipeline)
    before = listed_files(case)
    process = case.start_plain()
    case.wait_ready(process)
    assert killed_compaction(case) == before < run_files(case)
    pipeline.send("events", range(80, 100))
    wait_until(lambda: processed(case).rows_in == 181, "new segments")
    before = listed_files(case)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(case.fork("compact", str(case.file), "--json").communicate, PATIENCE_SECONDS)
        sent, pause_seconds = 100, 0.1
        # A compaction starts again if the leg has replaced segments while it read them: some pause is long enough for any machine.
        while not wait([asked], pause_seconds).done:
            pipeline.send("events", range(sent, sent + 20))
            pipeline.send("names", range(sent + 10, sent + 30))
            sent, pause_seconds = sent + 20, pause_seconds * 1.5
    said, failed = asked.result()
    report = json.loads(said)
    assert {one["store"] for one in report if one["outcome"] == "listed"} == STORES, failed
    read = 181 + (sent - 100) * 2
    wait_until(lambda: processed(case).rows_in == read, "the end of the backlog")
    process.terminate()
    assert process.wait() == 0
    # What it has replaced is gone; what a killed one, or one that started again, has written goes with the next start.
    assert run_files(case) & before <= listed_files(case)
    case.warm_run()
    assert run_files(case) == listed_files(case)
    assert pipeline.account()["waiting"] == processed(case).outcomes["waiting in the join"]


def killed_compaction(case: PipelineCase) -> set[str]:
    """The listed segments behind a compaction that was killed when it had written its own."""
    killed = case.fork("compact", str(case.file), **{VARIABLE: "compact.after-runs:1"})
    assert killed.wait(PATIENCE_SECONDS) == -9
    return listed_files(case)
