"""Pipelines whose file is edited and whose table is altered while rows wait for the sink."""

from collections.abc import Callable
from typing import Any

import pytest

import pipelines.engine.leg
import pipelines.sink.attempts
import pipelines.sink.inserts
from pipelines.errors import HaltError
from support.pipeline_case import PipelineCase

Document = dict[str, Any]


def mapping(*changes: Callable[[list[Document]], object]) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        for one in changes:
            one(document["sink"]["mapping"])

    return change


def waiting_at_the_sink(case: PipelineCase, count: int = 100) -> None:
    """`count` rows wait on out, the table is there."""
    case.create_topic()
    case.send_events(count)
    case.warm_run(legs=("ingest", "process"))
    assert case.count() == 0


def alter(case: PipelineCase, change: str) -> None:
    """`change`: one ALTER or more, parted by semicolons."""
    for one in change.split("; "):
        case.client().command(f"ALTER TABLE {case.table} {one}")


def stopped_at(case: PipelineCase, failpoint: str) -> bool:
    """Runs the sink until it ends at a failpoint of its own, in place of a kill: its plan stays open. Whether it came so far."""

    def reach(name: str) -> None:
        if name == failpoint:
            raise HaltError("stopped here")

    with pytest.MonkeyPatch.context() as patch:
        for module in (pipelines.engine.leg, pipelines.sink.attempts, pipelines.sink.inserts):
            patch.setattr(module, "reach", reach)
        try:
            case.warm_run(legs=("sink",))
        except HaltError as error:
            assert str(error) == "stopped here"
            return True
    return False
