"""`tallyflow dlq`: what a person sees of the records that were rejected."""

import json
from typing import Any

import pytest
from support.dedup_case import event
from support.pipeline_case import PipelineCase

pytestmark = [pytest.mark.integration, pytest.mark.spark]

RECORDS: list[bytes | None] = [
    event(0, 0),
    b"{",
    b'{"id": "one", "name": "a", "amount": null}',
    event(3, 3),
    b'{"id": "two", "name": "b", "amount": null}',
    b"\xff\x00",
    None,
]


def dlq(case: PipelineCase, command: str, *arguments: str) -> Any:
    ended = case.invoke("dlq", command, str(case.file), *arguments, "--json")
    assert ended.exit_code == 0, ended.stderr
    return json.loads(ended.stdout)


def unboxed(text: str) -> str:
    """What a usage error says, without the box around it."""
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def filled(case: PipelineCase) -> PipelineCase:
    """A pipeline that has rejected five of RECORDS, in two frames."""
    case.create_topic(1)
    for records in (RECORDS[:3], RECORDS[3:]):
        case.send(records, partitions=1)
        case.warm_run()
    return case


def test_groups_account_for_every_letter_and_say_what_to_do(filled: PipelineCase) -> None:
    found = dlq(filled, "groups")
    assert [(group["code"], group["field"], group["letters"], group["offset"]) for group in found[:1]] == [("wrong_type", "id", 2, 2)]
    assert sorted((group["code"], group["letters"]) for group in found[1:]) == [("invalid_json", 1), ("invalid_json", 1), ("tombstone", 1)]
    assert all(group["remedy"] for group in found)
    shown = filled.invoke("dlq", "groups", str(filled.file))
    assert "2 dead letters  parse: wrong_type of id" in shown.stdout
    assert "likely fix: correct the type in `schema_fields` or `columns`, or the producer" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "5 dead letters in 4 groups"


def test_a_list_may_be_narrowed_to_a_group_a_time_and_a_number(filled: PipelineCase) -> None:
    everything = dlq(filled, "list")
    assert (everything["selected"], [dead_letter["offset"] for dead_letter in everything["letters"]]) == (5, [1, 2, 4, 5, 6])
    group = dlq(filled, "groups")[0]["fingerprint"]
    assert [dead_letter["offset"] for dead_letter in dlq(filled, "list", "--group", group)["letters"]] == [2, 4]
    limited = dlq(filled, "list", "--group", group, "--limit", "1")
    assert (limited["selected"], [dead_letter["offset"] for dead_letter in limited["letters"]]) == (2, [2])
    assert dlq(filled, "list", "--until", "2020-01-01")["selected"] == dlq(filled, "list", "--stage", "dedup")["selected"] == 0
    assert dlq(filled, "list", "--since", "2020-01-01")["selected"] == 5
    shown = filled.invoke("dlq", "list", str(filled.file), "--limit", "2")
    assert (shown.exit_code, "2 of 5 dead letters" in shown.stdout) == (0, True)


def test_a_letter_is_shown_whole(filled: PipelineCase) -> None:
    positions = {dead_letter["offset"]: dead_letter["position"] for dead_letter in dlq(filled, "list")["letters"]}
    assert {offset: dlq(filled, "show", position)["value"] for offset, position in positions.items()} == {
        1: "{",
        2: '{"id": "one", "name": "a", "amount": null}',
        4: '{"id": "two", "name": "b", "amount": null}',
        5: "hex:ff00",
        6: None,
    }
    shown = filled.invoke("dlq", "show", str(filled.file), positions[2])
    for line in (
        "offset: 2",
        "stage: parse",
        "code: wrong_type",
        "field: id",
        'field_value: "one"',
        'value: {"id": "one", "name": "a", "amount": null}',
    ):
        assert line in shown.stdout.splitlines()


def test_an_absent_letter_and_a_bad_position_are_reported(filled: PipelineCase) -> None:
    missing = filled.invoke("dlq", "show", str(filled.file), "9999.0")
    assert (missing.exit_code, missing.stderr.strip()) == (1, "no dead letter at position 9999.0")
    for position in ("nonsense", "17", "-1.0", "1.2.3.4", "99999999999999999999.0"):
        refused = filled.invoke("dlq", "show", str(filled.file), "--", position)
        assert (refused.exit_code, "is not a sequence and an ordinal" in unboxed(refused.stderr)) == (2, True), refused.output


def test_empty_and_contradictory_selections_are_reported(filled: PipelineCase) -> None:
    nothing = "no dead letter matches; `tallyflow dlq groups FILE` and `tallyflow dlq list FILE` show all of them"
    for arguments in (["reprocess"], ["reprocess", "--dry-run"], ["discard", "--reason", "a test"]):
        reported = filled.invoke("dlq", arguments[0], str(filled.file), *arguments[1:], "--stage", "dedup")
        assert (reported.exit_code, reported.stderr.strip()) == (0, nothing), reported.output
    missing = filled.invoke("dlq", "reprocess", str(filled.file), "--position", "9999.0", "--position", "9999.1")
    assert missing.stderr.strip() == "no dead letter at 2 of 2 positions"
    for arguments in (["reprocess", "--all"], ["discard", "--all", "--reason", "a test", "--yes"]):
        refused = filled.invoke("dlq", arguments[0], str(filled.file), *arguments[1:], "--stage", "parse")
        assert (refused.exit_code, "use one or the other" in unboxed(refused.stderr)) == (2, True), refused.output
    refused = filled.invoke("dlq", "list", str(filled.file), "--stage", "nosuch")
    stages = "parse, compute, dedup, filter, join, lookup, pyspark, python, transform, sink"
    assert (refused.exit_code, stages in unboxed(refused.stderr)) == (2, True), refused.output
    assert dlq(filled, "list")["selected"] == 5


def test_an_unknown_group_is_answered_with_those_there_are(filled: PipelineCase) -> None:
    largest, *_ = dlq(filled, "groups")
    known = f"there is no group nope; the groups are {largest['fingerprint']} (2 dead letters, parse: wrong_type); "
    for arguments in (["list"], ["reprocess"], ["reprocess", "--dry-run"], ["discard", "--reason", "a test"]):
        reported = filled.invoke("dlq", arguments[0], str(filled.file), *arguments[1:], "--group", "nope")
        assert " ".join(reported.stderr.split()).startswith(known), reported.output
        assert reported.stderr.count("1 dead letter, parse: ") == 3
    by_another_stage = filled.invoke("dlq", "list", str(filled.file), "--group", largest["fingerprint"], "--stage", "dedup")
    assert (by_another_stage.exit_code, by_another_stage.stderr) == (0, "")


def test_instants_are_those_that_tally_takes(filled: PipelineCase) -> None:
    assert dlq(filled, "list", "--since", "1d", "--until", "2999-01-01T00:00:00+02:00")["selected"] == 5
    assert dlq(filled, "list", "--until", "1d")["selected"] == 0
    bad = filled.invoke("dlq", "list", str(filled.file), "--since", "yesterday")
    assert (bad.exit_code, "must be an instant such as" in unboxed(bad.stderr)) == (2, True), bad.output


def test_an_export_overwrites_nothing_and_leaves_no_half(filled: PipelineCase) -> None:
    target = filled.directory / "letters.jsonl"
    target.write_text("mine")
    cases = [(target, "the file exists and is left unchanged"), (filled.directory / "none" / "letters.jsonl", "No such file or directory")]
    for path, words in cases:
        refused = filled.invoke("dlq", "export", str(filled.file), str(path))
        assert (refused.exit_code, words in refused.stderr) == (2, True), refused.output
    assert target.read_text() == "mine"
    refused = filled.invoke("dlq", "export", str(filled.file), str(filled.directory))
    assert (refused.exit_code, "is a directory" in unboxed(refused.stderr)) == (2, True), refused.output
    new = filled.directory / "new.jsonl"
    assert filled.invoke("dlq", "export", str(filled.file), str(new), "--state", "nosuch").exit_code == 2
    assert not new.exists()
    assert filled.invoke("dlq", "export", str(filled.file), str(new)).exit_code == 0
    assert len(new.read_text().splitlines()) == 5
