"""The steps of an edit, by what it needs."""

from typing import Any

import pytest

from pipelines.edits.apply import Means, steps
from pipelines.edits.changes import Change, Need
from pipelines.edits.plan import Edit

_ONE: Any = None


def edit(*needs: Need, halted: tuple[str, ...] = ()) -> Edit:
    return Edit([Change(need.name, "1", "2", need) for need in needs], 0, waits=True, halted=[*halted])


def named(asked: Edit, is_running: bool) -> list[str]:
    means = Means(*(lambda: None,) * 5)
    return [step.what.partition(":")[0] for step in steps(asked, _ONE, means, is_running=is_running)]


def test_settings_alone_stop_nothing() -> None:
    assert named(edit(Need.RELOAD, Need.NOTHING), is_running=True) == ["reload"]


def test_settings_wait_for_the_start_where_nothing_runs() -> None:
    assert named(edit(Need.RELOAD), is_running=False) == []


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (edit(Need.RELOAD, Need.RESTART), ["stop the runner"]),
        (edit(Need.RELOAD, halted=("sink",)), ["stop the runner"]),
        (edit(Need.NOTHING, halted=("sink",)), []),
        (edit(Need.RELOAD, Need.DRAIN), ["stop the runner", "deliver the rows that wait, under the file as it ran"]),
    ],
    ids=["with another change", "of a leg that has halted", "nothing for the runner", "with another table"],
)
def test_settings_beside_more_come_with_the_start(asked: Edit, found: list[str]) -> None:
    assert named(asked, is_running=True) == found
