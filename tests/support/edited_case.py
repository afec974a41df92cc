"""Pipelines whose file is edited and whose table is altered while rows wait for the sink."""

from collections.abc import Callable
from typing import Any

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
