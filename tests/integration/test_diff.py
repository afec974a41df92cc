"""`tallyflow diff` over the stored records of a real pipeline, and the memory of dedup before the range."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from support.computed_case import COMPUTE, DEDUP, FILTER, events, with_transforms
from support.dedup_case import copies, keyed_by
from support.join_pipeline import JoinPipeline
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration

Change = Callable[[dict[str, Any]], None]


def compared(case: PipelineCase, edit: Change, span: str) -> dict[str, Any]:
    document = case.document()
    edit(document)
    edited = case.directory / "edited.yaml"
    edited.write_text(json.dumps(document))
    shown = case.invoke("diff", str(case.file), str(edited), "--from-raw", span, "--json")
    assert shown.exit_code in (0, 1), shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_the_difference_is_what_the_edited_pipeline_would_do(case: PipelineCase) -> None:
    case.write_file(with_transforms(FILTER, COMPUTE))
    case.create_topic()
    case.send(events(300))
    case.warm_run()
    found = compared(case, with_transforms(COMPUTE), "1h")
    lenient = json.loads(json.dumps(COMPUTE).replace("CAST(", "TRY_CAST("))

    def all_but_the_filter(document: dict[str, Any]) -> None:
        with_transforms(COMPUTE)(document)
        document["transforms"] = [lenient]

    of_all = compared(case, all_but_the_filter, "1h")
    rows, dropped = case.count(), 300 - case.count() - len(case.dead_letters())
    of_compute = sum(letter["stage"] == "compute" for letter in case.dead_letters())
    assert found["rows"]["old"] == of_all["rows"]["old"] == rows
    # Without the filter, the records that it dropped are rows, or fail in the expression behind it.
    assert found["rows"]["gained"] + found["rows"]["no row, otherwise"] == dropped
    assert of_all["rows"]["gained"] == dropped + of_compute


def test_dedup_knows_the_window_before_the_range(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic(1)
    for first in (0, 200):
        case.send(copies(200, first=first, keys=50), partitions=1)
        case.warm_run()
    log = case.log()
    last = log.state(case.names.stream("raw"))
    log.close()
    assert last is not None
    span = str(last.last_sequence)
    same = compared(case, keyed_by("id"), span)
    assert (same["is_same"], same["memory"], same["rows"]["old"]) == (True, "whole", 0)
    forgetful = compared(case, keyed_by("id", window="1us"), span)
    assert (forgetful["rows"]["gained"], forgetful["rows"]["new"]) == (50, 50)
    (change,) = forgetful["changes"]
    assert (change["old"]["outcome"], change["new"]["outcome"], change["records"]) == ("duplicate", "row", forgetful["rows"]["new"])


def test_dead_letters_are_compared_under_the_edited_file(case: PipelineCase) -> None:
    case.write_file(with_transforms(FILTER, COMPUTE, DEDUP))
    case.create_topic(1)
    case.send(events(100), partitions=1)
    case.warm_run()
    document = case.document()
    with_transforms(FILTER, COMPUTE, DEDUP)(document)
    edited = case.directory / "edited.yaml"
    edited.write_text(json.dumps(document).replace("CAST(", "TRY_CAST("))
    shown = case.invoke("diff", str(case.file), str(edited), "--from-dlq", "stage=compute", "--json")
    found = json.loads(shown.stdout)
    assert (shown.exit_code, found["rows"]["old"], found["rows"]["lost"]) == (1, 0, 0)
    assert found["rows"]["gained"] > 0


@pytest.fixture
def joined(case: PipelineCase) -> JoinPipeline:
    """50 left records met names that were there; 20 more waited for theirs; 10 wait; a record of each side is broken."""
    pipeline = JoinPipeline(case, case.addresses)
    for source, ids in (("names", [*range(50), -1]), ("events", [*range(80), -1]), ("names", range(50, 70))):
        pipeline.send(source, ids)
        case.warm_run()
    return pipeline


def test_a_join_is_compared_record_by_record(joined: JoinPipeline) -> None:
    case = joined.case

    def without_some(document: dict[str, Any]) -> None:
        joined._joined(document)
        filters = {"events": "id >= 5", "names": "name NOT IN ('n10', 'n55')"}
        document["transforms"] = [
            {"type": "filter", "source_id": source, "config": {"expression": expression}} for source, expression in filters.items()
        ]

    same = compared(case, joined._joined, "1h")
    assert (same["is_same"], same["records"], same["rows"]["old"], same["memory"]) == (True, 152, 70, "whole")
    found = compared(case, without_some, "1h")
    assert (found["rows"]["old"], found["rows"]["new"], found["rows"]["lost"]) == (70, 63, 7)
    ends = {(change["old"]["outcome"], change["new"]["outcome"]): change["records"] for change in found["changes"]}
    # Ids 0 to 4 and two names are dropped, and the left records of these names wait.
    assert ends == {("row", "dropped"): 5, ("row", "waiting"): 2, ("kept", "dropped"): 2}


def test_a_left_record_meets_a_right_one_before_the_range(joined: JoinPipeline) -> None:
    """The range holds the left records; names that came later are behind it, those before it are remembered."""
    case = joined.case
    with closing(case.log()) as log:
        stream, lefts = case.names.stream("raw"), case.names.raw("events", 0).rpartition(".")[0]
        frames = [message.sequence for message in log.fetch(stream, f"{lefts}.*", 0, 10**9) if message.rows]

    def renamed(document: dict[str, Any]) -> None:
        joined._joined(document)
        document["transforms"] = [{"type": "compute", "config": {"fields": [{"name": "name", "expression": "upper(name)"}]}}]

    found = compared(case, renamed, f"{min(frames)}..{max(frames)}")
    assert (found["records"], found["rows"]["old"], found["rows"]["changed"]) == (81, 50, 50)
    assert found["changed_columns"] == {"name": 50}


def test_a_file_with_a_join_is_not_compared_with_one_without(joined: JoinPipeline) -> None:
    document = joined.case.document()
    edited = joined.case.directory / "edited.yaml"
    edited.write_text(json.dumps(document))
    refused = joined.case.invoke("diff", str(joined.case.file), str(edited), "--from-raw", "1h")
    assert refused.exit_code == 2
    assert "a file with a join and one without is not supported" in " ".join(refused.output.split())
