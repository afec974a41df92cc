"""Another number of buckets for a stopped pipeline with a join: nothing is lost of what waits, and nothing is joined twice."""

import json
from contextlib import closing
from typing import Any

import pytest
from support.dedup_case import key_state, listed_files, run_files
from support.join_pipeline import JoinPipeline, processed
from support.pipeline_case import PipelineCase, wait_until

import pipelines.maintenance.rebucket
from pipelines.errors import HaltError
from pipelines.maintenance.rebucket import rebucket
from pipelines.protocol.records import HEADER_OLDEST

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


def answer(case: PipelineCase, *arguments: str) -> Any:
    ended = case.invoke(arguments[0], str(case.file), *arguments[1:], "--json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def entries(case: PipelineCase) -> dict[str, int]:
    return {store["store"]: store["entries"] for store in answer(case, "state")["stores"]}


def with_buckets(pipeline: JoinPipeline, buckets: int) -> None:
    def change(document: dict[str, Any]) -> None:
        pipeline._joined(document)
        document["buckets"] = buckets

    pipeline.case.write_file(change)


def both_sides(pipeline: JoinPipeline) -> None:
    """Events of 0 to 79 in two ranges, a copy among them; names of 0 to 49, 20 to 49 of them again: 50 to 79 wait."""
    steps = (("events", range(40)), ("events", [*range(40, 80), 3]), ("names", range(50)), ("names", range(20, 50)))
    for number, (source, ids) in enumerate(steps):
        pipeline.send(source, ids, f"n{number} ")
        pipeline.case.warm_run()


def rebucketed(pipeline: JoinPipeline, buckets: int) -> Any:
    """The answer of `rebucket`, without which the pipeline does not start."""
    with_buckets(pipeline, buckets)
    with pytest.raises(HaltError, match="tallyflow rebucket"):
        pipeline.case.warm_run()
    found = answer(pipeline.case, "rebucket")
    assert run_files(pipeline.case) == listed_files(pipeline.case)
    return found


def assert_waiting(pipeline: JoinPipeline, waiting: int) -> None:
    assert pipeline.account()["waiting"] == processed(pipeline.case).outcomes["waiting in the join"] == waiting


def assert_rebuilt_from_raw(pipeline: JoinPipeline) -> None:
    """The replay stores each left record that has ever waited: none has been merged away."""
    case, before = pipeline.case, entries(pipeline.case)
    answer(case, "rebuild-state")
    assert {store: max(count, before[store]) for store, count in entries(case).items()} == entries(case)
    pipeline.send("names", range(70, 75), "behind all ")
    pipeline.send("events", [0, 5])
    case.warm_run()


def test_a_join_goes_on_in_other_buckets(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    both_sides(pipeline)
    found = rebucketed(pipeline, 16)
    assert (found["buckets_before"], found["buckets"], found["entries"]) == (8, 16, 80)
    assert entries(case) == {"join-left": 30, "join-right": 50}
    pipeline.send("names", [*range(60, 70), 1], "at last ")
    pipeline.send("events", [0, 79, 90])
    case.warm_run()
    assert_waiting(pipeline, 22)
    assert_rebuilt_from_raw(pipeline)
    assert_waiting(pipeline, 17)
    assert [one["outcome"] for one in answer(case, "why", "79")["records"]] == ["waits", "waits"]
    with_buckets(pipeline, 3)
    said = case.invoke("apply", str(case.file), "--yes", "--no-start")
    assert said.exit_code == 0, said.output
    assert "rewrite the key store to 3 buckets" in said.stdout
    pipeline.send("names", range(50, 60), "last ")
    case.warm_run()
    assert_waiting(pipeline, 7)


def test_a_join_behind_dedups_goes_on_in_other_buckets(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was killed is finished by the next; then all into one bucket."""
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    both_sides(pipeline)
    with_buckets(pipeline, 3)
    for place in ("_mark", "change_buckets"):
        with monkeypatch.context() as patch, closing(key_state(case)) as state, pytest.raises(ZeroDivisionError):
            patch.setattr(pipelines.maintenance.rebucket, place, lambda *_: 1 / 0)
            rebucket(state)
        with pytest.raises(HaltError, match="tallyflow rebucket"):
            case.warm_run()
    found = answer(case, "rebucket")
    keys = {"dedup-left": 80, "dedup-right": 80}
    assert (found["buckets"], found["entries"]) == (3, 240)
    assert entries(case) == {"join-left": 30, "join-right": 50, **keys}
    pipeline.send("names", [*range(60, 70), 1], "at last ")
    pipeline.send("events", [0, 79, 90])
    case.warm_run()
    # The segments of the killed ones have gone.
    assert run_files(case) == listed_files(case)
    assert_waiting(pipeline, 21)
    found = rebucketed(pipeline, 1)
    assert (found["buckets_before"], found["buckets"], found["entries"]) == (3, 1, 21 + 60 + 81 + 91)
    assert_rebuilt_from_raw(pipeline)
    assert_waiting(pipeline, 16)
    assert [one["outcome"] for one in answer(case, "why", "79")["records"]] == ["waits", "copy"]


def test_a_window_that_ends_at_the_next_frame_has_its_row(case: PipelineCase) -> None:
    """Its cause lies between the last record before the change and the first one behind it."""
    pipeline = JoinPipeline(case, case.addresses, windows=("3s", "3s"), unmatched="emit")
    pipeline.send("events", range(40))
    case.warm_run()
    assert processed(case).outcomes["waiting in the join"] == 40
    with_buckets(pipeline, 3)
    answer(case, "rebucket")
    with closing(case.log()) as log, closing(key_state(case)) as state:
        done = state.last(state.chain())
        marks = log.fetch(case.names.stream("out"), case.names.subjects("out"), 0, 3)
        # Raw is kept for the rows behind a mark, too, as long as it is not confirmed.
        assert done.waiting is not None and {mark.headers[HEADER_OLDEST] for mark in marks} == {str(done.waiting.sequence)}

    def has_ended() -> bool:
        case.warm_run()
        return "waiting in the join" not in processed(case).outcomes

    wait_until(has_ended, "the end of the windows")
    assert pipeline.rows() == [(one, None, one + 0.5) for one in range(40)]
    assert pipeline.account()["unmatched"] == 40
