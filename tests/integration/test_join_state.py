"""What the commands say of the stores of a join, and their rebuild after they were lost."""

import json
import shutil
from contextlib import closing
from typing import Any

import pytest
from support.dedup_case import key_state
from support.join_pipeline import JoinPipeline, processed
from support.pipeline_case import PipelineCase
from support.purged_raw import note_purge

from pipelines.maintenance.rebuild_join import JoinRebuilding

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]


def answer(case: PipelineCase, command: str, *arguments: str) -> Any:
    ended = case.invoke(command, str(case.file), *arguments, "--json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def both_sides(pipeline: JoinPipeline) -> None:
    """Names of 0 to 49, copies among them, and events of 0 to 79; then later names of 40 to 69: 70 to 79 wait."""
    pipeline.send("names", [*range(50), 1, 2])
    pipeline.case.warm_run()
    pipeline.send("events", [*range(80), 3, 4, -1])
    pipeline.case.warm_run()
    pipeline.send("names", range(40, 70), "later ")
    pipeline.case.warm_run()


def lose_the_stores(case: PipelineCase) -> None:
    shutil.rmtree(case.names.directory(case.home) / "state")


def purge_the_first_raw_message(case: PipelineCase) -> None:
    with closing(case.log()) as log:
        log.purge(case.names.stream("raw"), case.names.subjects("raw"), 2)
        note_purge(log, case.names, "raw", 2)


def refusal(case: PipelineCase, *arguments: str) -> str:
    ended = case.invoke(*arguments)
    assert ended.exit_code != 0, ended.output
    return " ".join(ended.output.split())


def assert_goes_on(pipeline: JoinPipeline, joined: int, waiting: int) -> None:
    case = pipeline.case
    pipeline.send("names", [75, 76], "at last ")
    pipeline.send("events", [0, 69, 79])
    case.warm_run()
    counts = pipeline.account()
    assert (counts["joined"], counts["waiting"]) == (joined, waiting)
    assert processed(case).outcomes["waiting in the join"] == waiting


def test_lost_stores_are_rebuilt_unless_counts_or_raw_differ(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    both_sides(pipeline)
    before = answer(case, "state")["stores"]
    assert "the key has 1 field (id), 2 values were given" in refusal(case, "why", str(case.file), "1", "2")
    assert "'x' is no int" in refusal(case, "why", str(case.file), "x")
    original = JoinRebuilding._replay

    def forgets(self: JoinRebuilding, frames: Any, config: Any) -> None:
        original(self, frames, config)
        self._found["dropped.kept"] -= 1

    with monkeypatch.context() as patch:
        patch.setattr(JoinRebuilding, "_replay", forgets)
        assert "counted otherwise than the ledger: dropped.kept" in refusal(case, "rebuild-state", str(case.file))
    assert answer(case, "state")["stores"] == before
    lose_the_stores(case)
    rebuilt = answer(case, "rebuild-state")
    # The two copies of 3 and 4 have rows of their own, and the later names of 1 and 2 replace those before.
    expected = {"joined": 72, "unmatched by the join": 0, "kept for the join": 82, "waiting in the join": 10}
    assert (rebuilt["records"], rebuilt["outcomes"]) == (165, expected)
    after = {store["store"]: store["entries"] for store in answer(case, "state")["stores"]}
    # A merge at another moment leaves other entries, but never more than there were records.
    assert after.keys() == {store["store"] for store in before} and after["join-left"] >= 10
    assert_goes_on(pipeline, joined=76, waiting=9)
    purge_the_first_raw_message(case)
    lose_the_stores(case)
    assert "no longer holds all records of the left window" in refusal(case, "rebuild-state", str(case.file))


def test_stores_behind_dedups_are_shown_and_rebuilt(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    both_sides(pipeline)
    shown = " ".join(case.invoke("state", str(case.file)).output.split())
    for text in ("id = who.id within 1:00:00 and 1:00:00", "right records", "left records", "keys of the left dedup"):
        assert text in shown
    with closing(key_state(case, "keys")) as state:
        assert state.joins
    assert_history_is_told(case)
    before = {store["store"] for store in answer(case, "state")["stores"]}
    lose_the_stores(case)
    rebuilt = answer(case, "rebuild-state")
    expected = {"joined": 70, "unmatched by the join": 0, "kept for the join": 80, "waiting in the join": 10, "duplicates dropped": 4}
    assert (rebuilt["records"], rebuilt["outcomes"]) == (165, expected)
    after = {store["store"]: store["entries"] for store in answer(case, "state")["stores"]}
    assert after.keys() == before and after["join-left"] >= 10
    assert_goes_on(pipeline, joined=72, waiting=8)
    purge_the_first_raw_message(case)
    lose_the_stores(case)
    assert "show what a dedup beside the join has accepted" in refusal(case, "rebuild-state", str(case.file))


def assert_history_is_told(case: PipelineCase) -> None:
    history = answer(case, "why", "3")
    assert (history["key"], history["since"]) == ({"id": 3}, 1)
    assert [(one["side"], one["outcome"], one["joined"]) for one in history["records"]] == [
        ("names", "newest", 1),
        ("events", "joined", 0),
        ("events", "copy", 0),
    ]
    assert history["records"][1]["met"] == history["records"][0]["seen"]["position"]
    assert [one["outcome"] for one in answer(case, "why", "45")["records"]] == ["replaced", "joined", "newest"]
    assert [one["outcome"] for one in answer(case, "why", "65")["records"]] == ["joined", "newest"]
    (waiting,) = answer(case, "why", "75")["records"]
    assert (waiting["side"], waiting["outcome"], waiting["met"]) == ("events", "waits", None)
    told = case.invoke("why", str(case.file), "75").output
    assert "id = 75: 1 record from raw 1 on" in told and ": waits until " in told
    assert "no record with this key" in case.invoke("why", str(case.file), "99").output
