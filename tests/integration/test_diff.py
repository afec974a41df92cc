"""`tallyflow diff` over the stored records of a real pipeline, and the memory of dedup before the range."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.computed_case import COMPUTE, DEDUP, FILTER, events, with_transforms
from support.dedup_case import copies, keyed_by
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
