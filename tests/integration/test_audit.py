"""`tallyflow audit` on real servers: clean pipelines are clean, and each planted fault is named by its coordinates."""

import asyncio
import json
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from support.dedup_case import copies, event, keyed_by, timed_by
from support.pipeline_case import PipelineCase, wait_until
from support.purged_raw import note_purge
from support.refused_case import make_strict
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.protocol.records import decode_frame

pytestmark = pytest.mark.integration


def audit(case: PipelineCase, *arguments: str) -> tuple[int, dict[str, Any]]:
    """(exit code, what `--json` says)."""
    found = CliRunner().invoke(app, ["audit", str(case.file), "--json", *arguments], env=case.environment())
    assert found.stdout.startswith("{"), found.output
    return found.exit_code, json.loads(found.stdout)


def assert_clean(case: PipelineCase) -> dict[str, Any]:
    code, answer = audit(case)
    assert (code, answer["verdict"], answer["findings"], answer["not_proven"]) == (0, "clean", [], [])
    return answer


def not_proven(case: PipelineCase) -> dict[str, int]:
    """What nothing explains yet, by what it is; nothing is wrong, and the exit code says both."""
    code, answer = audit(case)
    assert (code, answer["verdict"], answer["findings"]) == (3, "not proven", [])
    return {gap["what"]: gap["count"] for gap in answer["not_proven"]}


def faults(case: PipelineCase) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Examples by hop and kind; there is a fault, and the exit code says so."""
    code, answer = audit(case, "--examples", "1000")
    assert (code, answer["verdict"]) == (4, "differs")
    assert all(one["count"] == len(one["examples"]) for one in answer["findings"])
    return {(one["place"], one["kind"]): one["examples"] for one in answer["findings"]}


def places(examples: list[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(one["partition"], one["offset"]) for one in examples}


def remove(case: PipelineCase, role: str, sequence: int) -> list[dict[str, Any]]:
    """Deletes a message of a stream, as nobody should; what it held."""
    log = case.log()
    message = log.get(case.names.stream(role), sequence)
    assert message is not None
    asyncio.run_coroutine_threadsafe(log._js.delete_msg(case.names.stream(role), sequence), log._loop).result(10)
    log.close()
    return decode_frame(message.payload).to_pylist()


def frames(case: PipelineCase, role: str) -> list[tuple[int, int]]:
    """(sequence, rows) of the frames of a stream that hold rows."""
    log = case.log()
    state = log.state(case.names.stream(role))
    assert state is not None
    found = [(m.sequence, m.rows) for m in log.fetch(case.names.stream(role), case.names.subjects(role), 0, state.last_sequence) if m.rows]
    log.close()
    return found


def without_position_columns(case: PipelineCase) -> None:
    """The table of somebody who knows nothing of us."""
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64)) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )


def of_rows(case: PipelineCase, rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(row["_tf_partition"], row["_tf_offset"]) for row in rows}


# -- clean ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_positions", [True, False], ids=["positions", "rows"])
def test_a_sound_pipeline_is_clean(case: PipelineCase, has_positions: bool) -> None:
    case.create_topic()
    if not has_positions:
        without_position_columns(case)
    case.send_events(900, bad_every=100)
    case.warm_run()
    case.send_events(600, bad_every=100)
    case.warm_run()
    answer = assert_clean(case)
    assert answer["counts"] == {"raw": 1500, "out": 1485, "dead letters": 15, "entered again": 0, "duplicates kept": 0, "table": 1485}
    not_compared = [] if has_positions else ["the records of equal rows: without position columns equal rows cannot be distinguished"]
    assert [gap["what"] for gap in answer["not_compared"]] == not_compared
    assert answer["ranges"]["Kafka offsets in raw"] == {f"{case.topic}/{partition}": [0, 499] for partition in range(3)}
    shown = CliRunner().invoke(app, ["audit", str(case.file)], env=case.environment())
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "clean: every record that was compared is accounted for, once")
    assert_faults_are_named(case, has_positions)


def assert_faults_are_named(case: PipelineCase, has_positions: bool) -> None:
    """Of a missing, a doubled and foreign rows; a table without positions is compared by what its rows hold."""
    client = case.client()
    client.command(f"DELETE FROM {case.table} WHERE id = 7")
    client.command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 8")
    client.command(f"INSERT INTO {case.table} (id, name) VALUES (-1, 'foreign')")
    if has_positions:
        client.command(f"INSERT INTO {case.table} (id, name, _tf_sequence, _tf_offset) VALUES (-2, 'far', 999, 5)")
    found = faults(case)
    assert {*found} == {("out -> table", "missing"), ("out -> table", "doubled"), ("out -> table", "extra")}
    (missing,), (doubled,) = found["out -> table", "missing"], found["out -> table", "doubled"]
    assert places([missing]) == {(1, 2)}
    assert places([doubled]) == {(2, 2)}
    extra = found["out -> table", "extra"]
    if not has_positions:
        assert extra == [{"expected": "no row", "found": "id=-1, name=foreign, amount=NULL"}]
        return
    assert (missing["topic"], missing["found"], doubled["found"]) == (case.topic, "out 1", "out 1, table 2")
    assert [(one["topic"], one["offset"], one["position"], one["found"]) for one in extra] == [
        ("", 0, "0.0", "no raw record, table 1"),
        ("", 5, "999.0", "no raw record, table 1"),
    ]
    # Only so many are named, and all are counted.
    client.command(f"TRUNCATE TABLE {case.table}")
    code, answer = audit(case, "--examples", "3")
    assert code == 4
    assert [(one["place"], one["kind"], one["count"], len(one["examples"])) for one in answer["findings"]] == [
        ("out -> table", "missing", 1485, 3)
    ]


def test_copies_that_dedup_has_dropped_are_no_loss(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    for first in (0, 1500):
        case.send(copies(1500, first=first))
        case.warm_run()
    nothing = {"entered again": 0, "duplicates kept": 0}
    assert assert_clean(case)["counts"] == {"raw": 3000, "out": 701, "dead letters": 30, "duplicates dropped": 2269, "table": 701} | nothing


def test_copies_are_no_loss_whatever_file_dropped_them(case: PipelineCase) -> None:
    """The window changes, and copies are kept from some time on: one of those that is removed is missing."""
    case.create_topic()
    for first, window, keeps in ((0, "1h", False), (300, "2h", False), (600, "1h", True), (900, "1h", False)):
        case.write_file(keyed_by("id", window=window, keep_duplicates=keeps))
        case.send(copies(300, first=first, keys=101))
        case.warm_run()
    counts = assert_clean(case)["counts"]
    assert counts == {"raw": 1200, "out": 101, "dead letters": 12, "entered again": 0, "duplicates kept": 297, "table": 101} | {
        "duplicates dropped": 1200 - 12 - 101 - 297
    }
    rows = remove(case, "duplicates", 1)
    assert places(faults(case)["raw -> out", "missing"]) == of_rows(case, rows)
    # A partition gives each run a hundred offsets; the third one has kept them.
    assert {offset // 100 for _, offset in of_rows(case, rows)} == {2}


def test_copies_by_the_time_of_the_event_are_no_loss(case: PipelineCase) -> None:
    case.write_file(timed_by("at", "id", "10s", "5s"))
    case.create_topic()
    case.send([json.dumps({"id": n % 7, "name": "x", "at": 1_780_000_000 + n // 5}).encode() for n in range(400)])
    case.warm_run()
    answer = assert_clean(case)
    assert answer["counts"]["duplicates dropped"] > 100


def test_rows_that_clickhouse_refused_are_no_loss(case: PipelineCase) -> None:
    make_strict(case)
    case.send_events(300)
    case.warm_run()
    assert assert_clean(case)["counts"]["dead letters"] == 3


def test_a_pipeline_in_traffic_has_no_fault(case: PipelineCase) -> None:
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    with case.load(pause_seconds=0.4):
        for rows in (1, 900, 1800):
            case.wait_count(rows)
            code, answer = audit(case)
            assert (code, answer["verdict"], answer["findings"]) in [(0, "clean", []), (3, "not proven", [])]
            assert all(gap["count"] > 0 for gap in answer["not_proven"])


def test_what_waits_before_a_leg_is_not_proven_with_its_number(case: PipelineCase) -> None:
    """What is no longer on raw is missing against Kafka."""
    case.create_topic()
    case.send_events(60, bad_every=20)
    case.warm_run()
    case.send_events(50)
    assert not_proven(case) == {"records in Kafka that ingest has not read": 50}
    case.run_in_turn("ingest")
    assert not_proven(case) == {"records on raw that process has not read": 50}
    case.run_in_turn("process")
    case.send_events(20)
    assert not_proven(case) == {"rows on out that the sink has not confirmed": 50, "records in Kafka that ingest has not read": 20}
    shown = CliRunner().invoke(app, ["audit", str(case.file)], env=case.environment())
    assert (shown.exit_code, shown.stdout.splitlines()[-1].split(":")[0]) == (3, "NOT PROVEN")
    case.warm_run()
    assert_clean(case)
    rows = remove(case, "raw", frames(case, "raw")[0][0])
    found = faults(case)
    assert places(found["Kafka -> raw", "missing"]) == {(row["partition"], row["offset"]) for row in rows}
    assert len(found["streams", "missing"]) == 1
    assert {one["found"] for one in found["raw -> out", "extra"]} <= {"no raw record, out 1, table 1", "no raw record, dead letters 1"}


def test_records_expired_in_kafka_are_not_compared_with_it(case: PipelineCase) -> None:
    case.create_topic(partitions=1)
    case.send_events(100, partitions=1)
    case.warm_run()
    place = TopicPartition(case.topic, 0, 60)
    case.admin.delete_records([place])[place].result(30)
    assert assert_clean(case)["ranges"]["Kafka offsets in raw"] == {f"{case.topic}/0": [60, 99]}


def test_records_compacted_in_kafka_are_reported_as_no_fault(case: PipelineCase) -> None:
    quickly = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "200"}
    case.compact_soon()
    case.create_topic(1, **{"cleanup.policy": "compact", **quickly})
    case.send_events(100, partitions=1)
    case.warm_run()
    assert_clean(case)

    def has_compacted() -> bool:
        # The same keys again, which replace the first ones, in segments that are closed.
        case.send_events(100, partitions=1)
        return len(case.records()) < case.sent - 100

    wait_until(has_compacted, "a compaction")
    case.warm_run()
    reported = {gap["what"]: gap["count"] for gap in assert_clean(case)["not_compared"]}
    assert reported["records in raw that Kafka has compacted away since"] > 0


def purge(case: PipelineCase, role: str, frames_left: int) -> None:
    """As the purge does it: of each subject what is older, never the last message; and it is written down."""
    log = case.log()
    stream, below = case.names.stream(role), 0
    for subject in log.subjects(stream, case.names.subjects(role)):
        state = log.state(stream)
        assert state is not None
        sequences = [message.sequence for message in log.fetch(stream, subject, 0, state.last_sequence)]
        kept = sequences[-min(frames_left, len(sequences))]
        log.purge(stream, subject, kept)
        below = max(below, kept)
    note_purge(log, case.names, role, below)
    log.close()


@pytest.mark.parametrize("has_positions", [True, False], ids=["positions", "rows"])
def test_what_is_purged_is_told_and_the_rest_is_judged(case: PipelineCase, has_positions: bool) -> None:
    retention = {"nats": {"stream": {"max_age": "1ms"}}}

    def forgetful(document: dict[str, Any]) -> None:
        keyed_by("id", window="1h")(document)
        document["resources"] = retention

    case.write_file(forgetful)
    case.create_topic()
    if not has_positions:
        without_position_columns(case)
    for first in (0, 300, 600):
        case.send(copies(300, first=first, keys=401))
        case.warm_run()
    purge(case, "raw", 1)
    purge(case, "out", 1)
    code, answer = audit(case)
    unexplained = {gap["what"]: gap["count"] for gap in answer["not_proven"]}
    assert (code, answer["verdict"], answer["findings"]) == ((3, "not proven", []) if unexplained else (0, "clean", []))
    # How many depends on what the pipeline's own purge has taken before.
    unexplained.pop("records that may be copies of one that is purged", None)
    reported = {gap["what"]: gap["count"] for gap in answer["not_compared"]}
    assert [what for what in reported if what.startswith("records before raw sequence")]
    assert answer["ranges"]["Kafka offsets in raw"] == {f"{case.topic}/{partition}": [200, 299] for partition in range(3)}
    if not has_positions:
        assert [*unexplained] == ["rows of a table without position columns: a part of raw is purged"]
    else:
        assert unexplained == {}
        assert reported["rows of the table whose raw frames are purged"] > 200
        case.client().command(f"INSERT INTO {case.table} (id, name, _tf_sequence) VALUES (-2, 'far', 999)")
        assert {*faults(case)} == {("out -> table", "extra")}


def test_copies_by_event_time_behind_a_purge_are_not_proven(case: PipelineCase) -> None:
    case.write_file(timed_by("at", "id", "10s", "5s"))
    case.create_topic(partitions=1)
    for first in range(0, 240, 60):
        records = [{"id": n % 7, "name": "x", "at": 1_780_000_000 + n // 5} for n in range(first, first + 60)]
        case.send([json.dumps(record).encode() for record in records], 1)
        case.warm_run()
    purge(case, "raw", 2)
    assert {*not_proven(case)} == {"records that may be copies of one that is purged"}


# -- planted faults ---------------------------------------------------------------------------------------------------------------


def test_what_was_in_removed_frames_is_unexplained(case: PipelineCase) -> None:
    """Of frames of rows, the first and the last, and of dead letters, whose records are nowhere. Two runs: subjects have several frames."""
    case.create_topic()
    for _ in range(2):
        case.send_events(300, bad_every=100)
        case.warm_run()
    of_out = frames(case, "out")
    rows = of_rows(case, [*remove(case, "out", of_out[0][0]), *remove(case, "out", of_out[-1][0])])
    sequence, rows_of_frame = frames(case, "dlq")[0]
    dead_letters = remove(case, "dlq", sequence)
    assert len(dead_letters) == rows_of_frame
    found = faults(case)
    missing, extra = places(found["raw -> out", "missing"]), places(found["out -> table", "extra"])
    assert (missing - rows, (missing | extra) - of_rows(case, dead_letters)) == (of_rows(case, dead_letters), rows)
    assert {one["found"] for one in found["out -> table", "extra"]} == {"table 1"}


def test_a_removed_dead_letter_is_no_copy_whatever_its_key(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic(partitions=1)
    case.send([event(0, 5), b'{"id": 5, "name": 6}', event(1, 5)], partitions=1)
    case.warm_run()
    assert assert_clean(case)["counts"]["duplicates dropped"] == 1
    remove(case, "dlq", 1)
    assert places(faults(case)["raw -> out", "missing"]) == {(0, 1)}


def test_a_first_record_that_is_gone_is_no_copy(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic(partitions=1)
    case.send([event(n, n) for n in range(5)], partitions=1)
    case.warm_run()
    rows = remove(case, "out", frames(case, "out")[0][0])
    assert places(faults(case)["raw -> out", "missing"]) == of_rows(case, rows)


def test_a_pipeline_that_never_ran_has_nothing_to_audit(case: PipelineCase) -> None:
    case.create_topic()
    found = CliRunner().invoke(app, ["audit", str(case.file)], env=case.environment())
    assert (found.exit_code, found.stdout) == (1, "")
    assert "was never started" in found.stderr
