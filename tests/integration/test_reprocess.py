"""`tallyflow dlq reprocess`, `discard`, `export` and `import`: each letter is taken once, and then counts where its record is."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.dedup_case import keyed_by
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.refused_case import BAD, make_strict, mend, refused

from pipelines.protocol.naming import REDRIVE
from pipelines.protocol.stream_limits import LEAST_LIMIT_BYTES

pytestmark = [pytest.mark.integration]


def dlq(case: PipelineCase, command: str, *arguments: str) -> Any:
    ended = case.invoke("dlq", command, str(case.file), *arguments, "--json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def with_id_type(name: str) -> Any:
    def change(document: dict[str, Any]) -> None:
        document["sink"]["mapping"][0]["column_type"] = name

    return change


def account(case: PipelineCase) -> dict[str, int]:
    ended = case.invoke("tally", str(case.file), "--json")
    assert ended.exit_code == 0, ended.stdout
    found: dict[str, int] = json.loads(ended.stdout)["dead_letters"]["outcomes"]
    return found


@pytest.fixture
def narrow(case: PipelineCase) -> PipelineCase:
    """A pipeline whose column holds ids up to 127 only, after 300 events and three that are no JSON."""
    case.write_file(with_id_type("Int8"))
    case.create_topic()
    case.send_events(300)
    case.send([b"{", b"}", b"nonsense"])
    case.warm_run()
    assert (case.count(), len(case.dead_letters())) == (128, 175)
    return case


def widen(case: PipelineCase) -> None:
    case.client().command(f"ALTER TABLE {case.table} MODIFY COLUMN id Int64")
    case.write_file(with_id_type("Int64"))


def test_letters_of_a_mended_cause_enter_again_once(narrow: PipelineCase) -> None:
    group = dlq(narrow, "groups")[0]
    assert (group["code"], group["letters"]) == ("out_of_range", 172)
    rehearsed = dlq(narrow, "reprocess", "--group", group["fingerprint"], "--dry-run")
    assert (rehearsed["letters"], rehearsed["passed"], rehearsed["rejected"][0]["letters"]) == (172, 0, 172)
    widen(narrow)
    rehearsed = dlq(narrow, "reprocess", "--all", "--dry-run")
    assert (rehearsed["letters"], rehearsed["passed"], sum(one["letters"] for one in rehearsed["rejected"])) == (175, 172, 3)
    assert len(narrow.dead_letters()) == 175, "a dry run changes nothing"
    assert dlq(narrow, "reprocess", "--group", group["fingerprint"]) == {"taken": 172, "left": {}}
    assert dlq(narrow, "reprocess", "--group", group["fingerprint"]) == {"taken": 0, "left": {"redriven": 172}}
    narrow.warm_run()
    assert narrow.count() == 300
    narrow.check()
    audited = narrow.invoke("audit", str(narrow.file), "--json")
    assert (audited.exit_code, json.loads(audited.stdout)["counts"]["entered again"]) == (0, 172), audited.stdout
    assert account(narrow) == {"entered again": 172, "discarded": 0, "still dead letters": 3}
    assert [group["letters"] for group in dlq(narrow, "groups", "--state", "redriven")] == [172]
    assert sum(group["letters"] for group in dlq(narrow, "groups")) == 3


@pytest.mark.parametrize(("partitions", "limit", "events"), [(3, "10MB", 8000), (1, LEAST_LIMIT_BYTES, 5000)])
def test_letters_too_many_for_raw_enter_as_room_is_made(case: PipelineCase, partitions: int, limit: int | str, events: int) -> None:
    def with_little_room(id_type: str) -> None:
        def change(document: dict[str, Any]) -> None:
            with_id_type(id_type)(document)
            document["resources"] = {"nats": {"stream": {"max_bytes": limit}}}
            document["on_error"] = {"max_rejected_percent": 100}

        case.write_file(change)

    with_little_room("Int8")
    case.create_topic(partitions)
    case.send_events(events, partitions, name_bytes=1000)
    case.warm_run()
    assert case.count() == 128
    case.client().command(f"ALTER TABLE {case.table} MODIFY COLUMN id Int64")
    with_little_room("Int64")

    def reprocess() -> Any:
        return case.invoke("dlq", "reprocess", str(case.file), "--all", "--json")

    assert reprocess().exit_code == 1, "letters beyond the limit, and nobody makes room"
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    wait_until(lambda: reprocess().exit_code == 0, "the end of the letters")
    case.wait_count(events)
    runner.request_stop()
    thread.join()
    assert sorted(row[1] for row in case.rows()) == list(range(events))
    assert account(case) == {"entered again": events - 128, "discarded": 0, "still dead letters": 0}
    audited = case.invoke("audit", str(case.file), "--json")
    assert json.loads(audited.stdout)["verdict"] == "clean", audited.stdout


def test_two_commands_beside_traffic_take_each_letter_once(narrow: PipelineCase) -> None:
    widen(narrow)
    runner = narrow.warm_runner(until_caught_up=False)
    thread = narrow.in_background(runner)
    with narrow.load(), ThreadPoolExecutor(3) as pool:
        begin = threading.Barrier(3)

        def reprocess(_: int) -> tuple[int, str]:
            begin.wait()
            command = narrow.fork("dlq", "reprocess", str(narrow.file), "--stage", "transform")
            _, reported = command.communicate(PATIENCE_SECONDS)
            return command.wait(), reported

        ended = list(pool.map(reprocess, range(3)))
    assert any(code == 0 for code, _ in ended)
    assert all("already holds leg redrive" in reported for code, reported in ended if code), ended
    narrow.wait_count(narrow.good)
    runner.request_stop()
    thread.join()
    narrow.warm_run()
    assert narrow.count() == narrow.good
    narrow.check()
    assert account(narrow)["entered again"] == 172


def test_an_accepted_record_passes_dedup_again_its_copies_not(case: PipelineCase) -> None:
    case.write_file(keyed_by("id", window="1h"))
    make_strict(case)
    case.send_events(400)
    case.warm_run()
    case.sent = 0
    case.send_events(400)
    case.warm_run()
    assert refused(case) == BAD
    (group,) = dlq(case, "groups")
    assert (group["letters"], group["copies_dropped"], group["copies_counted_from"]) == (4, 4, None)
    assert dlq(case, "show", group["position"])["copies_dropped"] == 1
    mend(case)
    assert dlq(case, "reprocess", "--all", "--dry-run") == {
        "letters": 4,
        "refused": 4,
        "passed": 4,
        "duplicates": 0,
        "late": 0,
        "rejected": [],
        "dropped": {},
        "released": 0,
    }
    assert dlq(case, "reprocess", "--stage", "sink")["taken"] == 4
    case.warm_run()
    assert sorted(row[1] for row in case.rows()) == list(range(400))
    assert account(case) == {"entered again": 4, "discarded": 0, "still dead letters": 0}
    why = json.loads(case.invoke("why", str(case.file), "7", "--json").stdout)
    assert (why["duplicates"], why["accepted"]["offset"]) == (1, 2), "a record that enters again is no copy, and starts no window"


def test_discarding_an_accepted_letter_tells_of_its_copies(case: PipelineCase) -> None:
    case.write_file(keyed_by("id", window="1h"))
    make_strict(case)
    for _ in range(3):
        case.sent = 0
        case.send_events(120)
        case.warm_run()
    assert refused(case) == BAD[:2]
    shown = case.invoke("dlq", "groups", str(case.file)).stdout
    assert "  dedup dropped 4 copies of these records in their favor" in shown.splitlines()
    reported = "dedup dropped 4 copies of these records in their favor: if these are discarded, their keys have no row in the table"
    assert reported in case.invoke("dlq", "discard", str(case.file), "--all", "--reason", "test data").stderr, "before it asks"
    assert dlq(case, "discard", "--all", "--reason", "test data", "--yes") == {"taken": 2, "left": {}, "copies_dropped": 4}
    assert dlq(case, "groups") == []


def test_what_is_discarded_is_counted_and_stays_where_it_is(narrow: PipelineCase) -> None:
    outcome = dlq(narrow, "discard", "--stage", "parse", "--reason", "test data", "--yes")
    assert outcome == {"taken": 3, "left": {}, "copies_dropped": 0}
    widen(narrow)
    assert dlq(narrow, "reprocess", "--all") == {"taken": 172, "left": {"discarded": 3}}
    narrow.warm_run()
    narrow.check()
    assert account(narrow) == {"entered again": 172, "discarded": 3, "still dead letters": 0}
    assert {dead_letter["code"] for dead_letter in dlq(narrow, "list", "--state", "discarded")["letters"]} == {"invalid_json"}
    shown = narrow.invoke("tally", str(narrow.file))
    assert "every event is accounted for" in " ".join(shown.stdout.split())


def test_a_record_that_is_rejected_again_and_again_is_parked(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update(dead_letters={"max_attempts": 2}))
    case.create_topic()
    case.send([b"{"])
    case.warm_run()
    assert dlq(case, "reprocess", "--all")["taken"] == 1
    case.warm_run()
    (dead_letter,) = dlq(case, "list")["letters"]
    assert (dead_letter["state"], dead_letter["attempts"]) == ("parked", 2)
    assert dlq(case, "show", dead_letter["origin"])["state"] == "redriven"
    assert dlq(case, "reprocess", "--all") == {"taken": 0, "left": {"redriven": 1, "parked": 1}}
    assert dlq(case, "reprocess", "--position", dead_letter["position"])["taken"] == 1
    case.warm_run()
    assert [dead_letter["attempts"] for dead_letter in dlq(case, "list")["letters"]] == [3]
    case.check()


def test_letters_may_be_edited_in_a_file_and_enter_again(case: PipelineCase) -> None:
    case.create_topic()
    case.send([b'{"id": 1, "name": "a"', b'{"id": "2", "name": "b"}', b"x" * 1_010_000])
    case.warm_run()
    target = case.directory / "letters.jsonl"
    assert case.invoke("dlq", "export", str(case.file), str(target)).exit_code == 0
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(line["code"] for line in lines) == ["invalid_json", "oversize", "wrong_type"]
    again = case.invoke("dlq", "export", str(case.file), str(target))
    assert again.exit_code != 0, "an export never overwrites"
    assert dlq(case, "reprocess", "--stage", "parse", "--until", "2020-01-01") == {"taken": 0, "left": {}}
    by_code = {line["code"]: line for line in lines}
    by_code["invalid_json"]["value"] += "}"
    by_code["oversize"]["value"] = '{"id": 3, "name": "short"}'
    edited = case.directory / "edited.jsonl"
    unknown = {**by_code["oversize"], "position": "999.0"}
    edited.write_text("\n".join(json.dumps(line) for line in (by_code["invalid_json"], by_code["oversize"], unknown)))
    refused_file = case.invoke("dlq", "import", str(case.file), str(edited))
    assert (refused_file.exit_code, "1 of its 3 positions hold no dead letter" in refused_file.stderr) == (2, True)
    edited.write_text("\n".join(json.dumps(line) for line in (by_code["invalid_json"], by_code["oversize"])))
    assert dlq(case, "import", str(edited)) == {"taken": 2, "left": {}}
    assert dlq(case, "import", str(edited)) == {"taken": 0, "left": {"redriven": 2}}
    case.warm_run()
    assert sorted(row[1:3] for row in case.rows()) == [(1, "a"), (3, "short")]
    assert account(case) == {"entered again": 2, "discarded": 0, "still dead letters": 1}


def test_letters_that_hold_only_a_head_are_left_and_told(case: PipelineCase) -> None:
    case.create_topic()
    case.send([b"x" * 1_010_000])
    case.warm_run()
    ended = case.invoke("dlq", "reprocess", str(case.file), "--all")
    assert "0 dead letters redriven" in ended.stdout
    assert "1 dead letter skipped: only the head of the record is kept" in ended.stderr


def test_a_selection_must_be_said(case: PipelineCase) -> None:
    unsaid = case.invoke("dlq", "reprocess", str(case.file))
    assert (unsaid.exit_code, "choose the dead letters" in unsaid.stderr) == (2, True)


def lease_entries(case: PipelineCase) -> int:
    """Entries of the lease that the takers of letters hold."""
    log = case.log()
    found = log.subjects(case.names.stream("ledger"), case.names.lease(REDRIVE)).get(case.names.lease(REDRIVE), 0)
    log.close()
    return found


def test_letters_beyond_retention_are_discarded_and_counted(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update(dead_letters={"max_age": "1ms"}))
    case.create_topic(1)
    for values in ([b"{"] * 5, [b"{"] * 5, [b'{"id": 1, "name": "a"}'], [b'{"id": 2, "name": "b"}']):
        case.send(values, partitions=1)
        case.warm_run()
    assert account(case) == {"entered again": 0, "discarded": 10, "still dead letters": 0}
    assert len(case.dead_letters()) == 5, "a subject keeps its last message"
    before = lease_entries(case)
    assert before in (1, 2), "folded by whoever takes it next"
    case.warm_run()
    assert lease_entries(case) == before, "nobody takes the lease where nothing is to be done"
    audited = json.loads(case.invoke("audit", str(case.file), "--json").stdout)
    assert audited["verdict"] == "clean", audited
