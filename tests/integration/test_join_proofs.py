"""The proofs of a join: sound tables are clean, whatever came first, and each planted fault is named by its position."""

import json
from typing import Any

import pytest
from support.join_pipeline import JoinPipeline
from support.pipeline_case import PipelineCase, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


def report(case: PipelineCase, command: str, *arguments: str) -> dict[str, Any]:
    found = case.invoke(command, str(case.file), "--json", *arguments)
    assert found.stdout.startswith("{"), found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def clean(case: PipelineCase, command: str, *arguments: str) -> dict[str, int]:
    """The counts of a report that is clean."""
    answer = report(case, command, *arguments)
    assert (answer["verdict"], answer["findings"], answer["not_proven"]) == ("clean", [], []), answer
    counts: dict[str, int] = answer["counts"]
    return counts


def faults(case: PipelineCase, command: str) -> dict[tuple[str, str, str | None], list[dict[str, Any]]]:
    """Examples by place, kind and column."""
    answer = report(case, command, "--examples", "1000")
    assert answer["verdict"] == "differs", answer
    assert all(one["count"] == len(one["examples"]) for one in answer["findings"])
    return {(one["place"], one["kind"], one["column"]): one["examples"] for one in answer["findings"]}


def both_orders(pipeline: JoinPipeline) -> None:
    """Of 100 left records 50 have met a right one that was there, 30 one that came later, 20 wait; a record of each side is broken."""
    case = pipeline.case
    pipeline.send("names", range(50))
    case.warm_run()
    pipeline.send("events", [*range(100), 0, -1])
    case.warm_run()
    pipeline.send("names", [*range(40, 80), -1], "later ")
    case.warm_run()


def test_both_orders_of_arrival_are_clean(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    counts = clean(case, "verify", "--kafka")
    assert counts == {
        "records": 193,
        "rows": 81,
        "copies": 0,
        "rejected": 2,
        "refused": 0,
        "kept for the join": 90,
        "waiting in the join": 20,
        "in Kafka": 193,
        "found": 81,
    }
    counts = clean(case, "audit")
    expected = {"raw": 193, "out": 81, "dead letters": 2, "table": 81, "kept for the join": 90, "waiting in the join": 20}
    assert counts == expected | {"entered again": 0, "duplicates kept": 0}
