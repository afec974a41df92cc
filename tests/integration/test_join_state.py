"""What the commands say of the stores of a join, and their rebuild after they were lost."""

import json
import shutil
from contextlib import closing
from typing import Any

import pytest
from support.dedup_case import key_state
from support.join_pipeline import JoinPipeline, processed
from support.pipeline_case import PipelineCase

from pipelines.maintenance.rebuild_join import JoinRebuilding
from pipelines.protocol.purge import Purged

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


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


@pytest.mark.parametrize("copies", [None, ("1h", "1h")], ids=["join", "dedup and join"])
def test_lost_stores_are_rebuilt_and_the_join_goes_on(case: PipelineCase, copies: tuple[str, str] | None) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=copies)
    both_sides(pipeline)
    before = {store["store"]: store["entries"] for store in answer(case, "state")["stores"]}
    lose_the_stores(case)
    rebuilt = answer(case, "rebuild-state")
    dropped = {"duplicates dropped": 4} if copies else {}
    # Without a dedup the two copies of 3 and 4 have rows of their own, and the later names of 1 and 2 replace those before.
    joined, kept = (70, 80) if copies else (72, 82)
    expected = {"joined": joined, "unmatched by the join": 0, "kept for the join": kept, "waiting in the join": 10, **dropped}
    assert (rebuilt["records"], rebuilt["outcomes"]) == (165, expected)
    after = {store["store"]: store["entries"] for store in answer(case, "state")["stores"]}
    # A merge at another moment leaves other entries, but never more than there were records.
    assert after.keys() == before.keys() and after["join-left"] >= 10
    pipeline.send("names", [75, 76], "at last ")
    pipeline.send("events", [0, 69, 79])
    case.warm_run()
    counts = pipeline.account()
    assert (counts["joined"], counts["waiting"]) == ((72, 8) if copies else (76, 9))
    assert processed(case).outcomes["waiting in the join"] == counts["waiting"]


def test_a_rebuild_that_counts_otherwise_lists_nothing(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    both_sides(JoinPipeline(case, case.addresses))
    before = answer(case, "state")["stores"]
    original = JoinRebuilding._replay

    def forgets(self: JoinRebuilding, frames: Any, config: Any) -> None:
        original(self, frames, config)
        self._found["dropped.kept"] -= 1

    monkeypatch.setattr(JoinRebuilding, "_replay", forgets)
    ended = case.invoke("rebuild-state", str(case.file))
    assert ended.exit_code != 0
    assert "counted otherwise than the ledger: dropped.kept" in " ".join(ended.output.split())
    assert answer(case, "state")["stores"] == before


@pytest.mark.parametrize(
    ("copies", "told"),
    [(None, "no longer holds all records of the left window"), (("1h", "1h"), "show what a dedup beside the join has accepted")],
    ids=["join", "dedup and join"],
)
def test_what_a_purge_has_taken_is_not_rebuilt(case: PipelineCase, copies: tuple[str, str] | None, told: str) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=copies)
    both_sides(pipeline)
    with closing(case.log()) as log:
        log.purge(case.names.stream("raw"), case.names.subjects("raw"), 2)
        log.publish(case.names.purged("raw"), Purged(2).encode(), {}, 0)
    lose_the_stores(case)
    ended = case.invoke("rebuild-state", str(case.file))
    assert ended.exit_code != 0
    assert told in " ".join(ended.output.split())


def test_the_history_of_a_join_key_is_told(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    both_sides(pipeline)
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


def test_a_key_of_another_form_is_refused(case: PipelineCase) -> None:
    both_sides(JoinPipeline(case, case.addresses))
    assert "the key has 1 field (id), 2 values were given" in " ".join(case.invoke("why", str(case.file), "1", "2").output.split())
    assert "'x' is no int" in case.invoke("why", str(case.file), "x").output


def test_the_stores_of_a_join_are_shown(case: PipelineCase) -> None:
    both_sides(JoinPipeline(case, case.addresses, copies=("1h", "1h")))
    shown = " ".join(case.invoke("state", str(case.file)).output.split())
    for text in ("id = who.id within 1:00:00 and 1:00:00", "right records", "left records", "keys of the left dedup"):
        assert text in shown
    with closing(key_state(case, "keys")) as state:
        assert state.joins
