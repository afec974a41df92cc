"""`tallyflow verify` on real servers: sound tables match, and each planted fault is named with its position."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.dedup_case import copies, event, keyed_by, timed_by
from support.edited_case import alter, mapping
from support.kept_table import caught_up_case, keep_table, remake_table
from support.pipeline_case import PipelineCase, wait_until
from support.refused_case import make_strict

from pipelines.config import load
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.nats.streams import StreamState
from pipelines.proof.verification.run import Request, Verifier
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration


def verify(case: PipelineCase, *arguments: str) -> tuple[int, dict[str, Any]]:
    """(exit code, what `--json` says)."""
    found = case.invoke("verify", str(case.file), "--json", *arguments)
    assert found.stdout.startswith("{"), found.output
    return found.exit_code, json.loads(found.stdout)


def assert_match(case: PipelineCase, *arguments: str) -> dict[str, Any]:
    code, answer = verify(case, *arguments)
    assert (answer["verdict"], answer["findings"], answer["not_proven"], code) == ("clean", [], [], 0)
    assert all(one["expected"] == one["found"] for one in answer["checksums"])
    return answer


def not_proven(case: PipelineCase, *arguments: str) -> dict[str, int]:
    """What nothing explains yet, by the begin of what it says; nothing differs, and the exit code says both."""
    code, answer = verify(case, *arguments)
    assert (code, answer["verdict"], answer["findings"]) == (3, "not proven", [])
    return {gap["what"].split(":")[0].split(",")[0]: gap["count"] for gap in answer["not_proven"]}


def findings(case: PipelineCase, *arguments: str) -> dict[tuple[str, str, str | None], dict[str, Any]]:
    """By place, kind and column; there is one, and the exit code says so."""
    code, answer = verify(case, *arguments)
    assert (code, answer["verdict"]) == (4, "differs")
    return {(one["place"], one["kind"], one["column"]): one for one in answer["findings"]}


def where(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(one["topic"], one["partition"], one["offset"]) for one in found["examples"]]


def prepared(case: PipelineCase, change: Callable[[dict[str, Any]], None] | None = None, partitions: int = 3) -> None:
    case.write_file(change)
    case.create_topic(partitions)
    for _ in range(2):
        case.send_events(300, partitions, bad_every=100)
        case.warm_run()


@pytest.fixture(scope="module")
def caught_up(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineCase]:
    """A pipeline that is prepared; what its table holds is kept."""
    with caught_up_case(stack, tmp_path_factory.mktemp("caught-up"), prepared) as made:
        yield made


@pytest.fixture
def done(caught_up: PipelineCase) -> Iterator[PipelineCase]:
    """That pipeline, for a test that changes nothing but its table and the file; both are put back."""
    yield caught_up
    remake_table(caught_up)
    caught_up.write_file()


def without_position_columns(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64)) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )


# -- sound tables ---------------------------------------------------------------------------------------------------------------------


def test_a_sound_table_matches(done: PipelineCase) -> None:
    answer = assert_sound(done)
    columns = ["id", "name", "amount", "_tf_topic", "_tf_partition", "_tf_offset", "_tf_arrival"]
    assert [one["column"] for one in answer["checksums"]] == columns
    assert answer["not_compared"] == []


def assert_sound(case: PipelineCase) -> dict[str, Any]:
    answer = assert_match(case)
    assert answer["counts"] == {"records": 600, "rows": 594, "copies": 0, "rejected": 6, "refused": 0, "found": 594}
    shown = case.invoke("verify", str(case.file))
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "clean: ClickHouse holds the rows that the records require")
    return answer


def test_a_table_without_positions_is_compared_by_its_rows(case: PipelineCase) -> None:
    """Faults are named as far as rows show; every row twice is told, with letters open and with letters that have entered again."""
    without_position_columns(case)
    prepared(case)
    client, twice = case.client(), f"INSERT INTO {case.table} SELECT * FROM {case.table}"
    assert_sound(case)
    keep_table(case)
    client.command(f"DELETE FROM {case.table} WHERE id = 7")
    client.command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 8")
    client.command(f"INSERT INTO {case.table} (id, name) VALUES (-1, 'foreign')")
    found = findings(case)
    assert where(found["rows", "missing", None]) == [(case.topic, 1, 2)]
    assert where(found["rows", "doubled", None]) == [(case.topic, 2, 2)]
    assert found["rows", "extra", None]["examples"] == [{"expected": "no row", "found": "id=-1, name=foreign, amount=NULL"}]
    remake_table(case)
    client.command(twice)
    assert findings(case)["rows", "doubled", None]["count"] == 594
    remake_table(case)
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    client.command(twice)
    code, answer = verify(case)
    over = "rows that no confirmed record explains, while the pipeline writes: verify again"
    assert (code, answer["verdict"], answer["findings"]) == (3, "not proven", [])
    assert {gap["what"]: gap["count"] for gap in answer["not_proven"]}[over] == 594
    case.warm_run()
    assert findings(case)["rows", "doubled", None]["count"] == 594


def test_copies_are_found_again(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    for first in (0, 1500):
        case.send(copies(1500, first=first))
        case.warm_run()
    counts = assert_match(case)["counts"]
    assert counts == {"records": 3000, "rows": 701, "copies": 2269, "rejected": 30, "refused": 0, "found": 701}


def test_copies_by_the_time_of_the_event_are_found_again(case: PipelineCase) -> None:
    case.write_file(timed_by("at", "id", "10s", "5s"))
    case.create_topic()
    for first in (0, 400):
        case.send(
            [json.dumps({"id": n % 7, "name": "x", "at": 1_780_000_000 + n // 5 - n % 4 * 4}).encode() for n in range(first, first + 400)]
        )
        case.warm_run()
    counts = assert_match(case)["counts"]
    assert counts["copies"] > 100
    assert counts["rejected"] > 0


def test_milliseconds_become_instants_and_the_time_of_a_window(case: PipelineCase) -> None:
    def change(document: dict[str, Any]) -> None:
        timed_by("at", "id", "10s", "5s")(document)
        document["sources"][0]["schema_fields"][-1]["unit"] = "ms"
        document["sources"][0]["schema_fields"].append({"name": "text", "type": "string", "unit": "ns"})
        document["sink"]["mapping"] += [
            {"name": "at", "column_name": "at", "column_type": "DateTime64(3, 'UTC')"},
            {"name": "at", "column_name": "at_ms", "column_type": "Int64"},
            {"name": "text", "column_name": "text", "column_type": "Nullable(DateTime64(9, 'UTC'))"},
        ]

    case.write_file(change)
    case.create_topic(1)
    first = 1_780_000_000_123
    events = [{"id": n % 7, "name": "x", "at": first + n * 1000, "text": f"{first + n * 1000}000001"} for n in range(100)]
    odd = [{"id": 8, "name": "x", "at": 2**62}, {"id": 9, "name": "x", "at": first, "text": "now"}, {"id": 10, "name": "x", "at": "1"}]
    case.send([json.dumps(one).encode() for one in [*events, *odd]], 1)
    case.warm_run()
    counts = assert_match(case)["counts"]
    rows = case.client().query(f"SELECT toString(at), at_ms, toString(text) FROM {case.table} ORDER BY at_ms LIMIT 1").result_rows
    assert rows == [("2026-05-28 20:26:40.123", first, "2026-05-28 20:26:40.123000001")]
    assert {(one["code"], one["field"]) for one in case.dead_letters()} == {
        ("invalid_time", "at"),
        ("invalid_value", "text"),
        ("wrong_type", "at"),
    }
    # Of each key every second record lies within ten seconds of the one before.
    assert (counts["rejected"], counts["copies"], counts["rows"]) == (3, 49, 51)


def test_rows_that_clickhouse_refused_are_told_and_no_fault(case: PipelineCase) -> None:
    make_strict(case)
    case.send_events(300)
    case.warm_run()
    assert assert_match(case)["counts"]["refused"] == 3


def test_a_pipeline_in_traffic_matches_as_far_as_confirmed(case: PipelineCase) -> None:
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    case.in_background(runner)
    with case.load(pause_seconds=0.4):
        for rows in (1, 900, 1800):
            case.wait_count(rows)
            code, answer = verify(case)
            assert (code, answer["verdict"], answer["findings"]) in [(0, "clean", []), (3, "not proven", [])]
            assert all(gap["count"] > 0 for gap in answer["not_proven"])


def test_a_default_that_the_table_gives_is_told(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String DEFAULT 'nobody', amount Nullable(Float64), "
        "_tf_sequence UInt64, _tf_ordinal UInt32) ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 100"
    )
    case.create_topic(partitions=1)
    case.send([b'{"id": 1}', b'{"id": 2, "name": "x"}'], partitions=1)
    case.warm_run()
    reported = {gap["what"]: gap["count"] for gap in assert_match(case)["not_compared"]}
    assert reported == {"values of column name that the table's DEFAULT filled in": 1}
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'y' WHERE id = 2 SETTINGS mutations_sync = 1")
    assert where(findings(case)["rows", "different", "name"]) == [(case.topic, 0, 1)]


# -- planted faults -------------------------------------------------------------------------------------------------------------------


def test_a_changed_value_is_named_with_its_column_and_position(done: PipelineCase) -> None:
    done.client().command(f"ALTER TABLE {done.table} UPDATE name = 'wrong' WHERE id = 7 SETTINGS mutations_sync = 1")
    found = findings(done)
    assert {*found} == {("rows", "different", "name")}
    (example,) = found["rows", "different", "name"]["examples"]
    assert (example["partition"], example["offset"], example["expected"], example["found"]) == (1, 2, "event 7", "wrong")
    shown = done.invoke("verify", str(done.file))
    assert shown.exit_code == 4
    assert "different rows, column name: 1" in " ".join(shown.stdout.split())
    assert "event 7" in shown.stdout


class Busy(JetStream):
    """Beside its first look at the raw stream records come and reach the table."""

    def __init__(self, case: PipelineCase) -> None:
        super().__init__(load(case.file, case.environment()).nats)
        self._case, self._raw, self.looks = case, case.names.stream("raw"), 0

    def state(self, stream: str) -> StreamState | None:
        found = super().state(stream)
        self.looks += stream == self._raw
        if stream == self._raw and self.looks == 1:
            self._case.send_events(30)
            self._case.warm_run()
        return found


def test_frames_arriving_during_the_search_are_no_fault(case: PipelineCase) -> None:
    prepared(case)
    with closing(Busy(case).connect()) as log:
        verifier = Verifier(load(case.file, case.environment()), log, Request(case.directory))
        verifier.find_strangers()
        assert (verifier.report.findings, log.looks) == ([], 2)
        case.client().command(f"INSERT INTO {case.table} (id, name, _tf_sequence) VALUES (-1, 'foreign', 0), (-2, 'foreign', 9999)")
        verifier.find_strangers()
    assert [(one.kind, one.count) for one in verifier.report.findings] == [("extra", 2)]
    case.client().command(f"DELETE FROM {case.table} WHERE id < 0")
    # A letter that is missing is named.
    log = case.log()
    (subject,) = set(log.subjects(case.names.stream("dlq"), case.names.subjects("dlq"))) & {case.names.dead_letters("process", 0)}
    log.purge(case.names.stream("dlq"), subject, 10_000)
    log.close()
    found = findings(case)
    assert {*found} == {("dead letters", "missing", None)}
    assert found["dead letters", "missing", None]["examples"][0]["expected"] == "a dead letter of parse"


def test_two_values_that_changed_places_are_two_faults(done: PipelineCase) -> None:
    done.client().command(f"ALTER TABLE {done.table} UPDATE amount = if(id = 7, 2, 1.75) WHERE id IN (7, 8) SETTINGS mutations_sync = 1")
    found = findings(done)
    assert {*found} == {("rows", "different", "amount")}
    assert where(found["rows", "different", "amount"]) == [(done.topic, 1, 2), (done.topic, 2, 2)]


def test_a_missing_a_doubled_and_a_foreign_row_are_each_named(done: PipelineCase) -> None:
    client = done.client()
    client.command(f"DELETE FROM {done.table} WHERE id = 7")
    client.command(f"INSERT INTO {done.table} SELECT * FROM {done.table} WHERE id = 8")
    client.command(
        f"INSERT INTO {done.table} (id, name, _tf_sequence, _tf_ordinal) SELECT -1, 'foreign', max(_tf_sequence), 1000000 FROM {done.table}"
    )
    client.command(f"INSERT INTO {done.table} (id, name) VALUES (-2, 'stranger')")
    code, answer = verify(done)
    found = {(one["place"], one["kind"]): one for one in answer["findings"] if one["examples"][0].get("position")}
    assert {*found} == {("rows", "missing"), ("rows", "doubled"), ("rows", "extra")}
    assert where(found["rows", "missing"]) == [(done.topic, 1, 2)]
    assert where(found["rows", "doubled"]) == [(done.topic, 2, 2)]
    assert found["rows", "extra"]["examples"][0]["expected"] == "no such raw record"
    assert [one["count"] for one in answer["findings"] if one["kind"] == "extra"] == [1, 1]
    assert code == 4


def test_rows_of_a_dropped_copy_and_a_rejected_record_are_extra(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic(partitions=1)
    case.send([event(0, 1), event(1, 1), b'{"id": 2, "name": 5}'], partitions=1)
    case.warm_run()
    client = case.client()
    for ordinal in (1, 2):
        client.command(f"INSERT INTO {case.table} SELECT * REPLACE ({ordinal} AS _tf_ordinal) FROM {case.table} LIMIT 1")
    found = findings(case)["rows", "extra", None]
    reported = [(one["offset"], one["expected"]) for one in found["examples"]]
    assert reported == [(1, "no row: a copy of an earlier record of its key"), (2, "no row: parse rejects the record")]
    client.command(f"DELETE FROM {case.table} WHERE _tf_ordinal > 0")
    # Letters that entered again are records of the range.
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert assert_match(case)["counts"] == {"records": 4, "rows": 1, "copies": 1, "rejected": 2, "refused": 0, "found": 1}


def test_a_column_of_another_type_is_named_others_compared(done: PipelineCase) -> None:
    client = done.client()
    client.command(f"ALTER TABLE {done.table} MODIFY COLUMN amount Nullable(String) SETTINGS mutations_sync = 1, alter_sync = 2")
    found = findings(done)
    assert {*found} == {("schema", "different", "amount")}
    assert found["schema", "different", "amount"]["examples"] == [{"expected": "Nullable(Float64)", "found": "Nullable(String)"}]
    client.command(f"ALTER TABLE {done.table} UPDATE name = 'wrong' WHERE id = 7 SETTINGS mutations_sync = 1")
    assert {*findings(done)} == {("schema", "different", "amount"), ("rows", "different", "name")}


def also(columns: list[dict[str, Any]]) -> None:
    """A column more, of the field of the first one."""
    columns.append({**columns[0], "column_name": "also"})


def title(columns: list[dict[str, Any]]) -> None:
    columns[1].update(column_name="title")


def test_rows_from_before_a_rename_and_an_added_column_compare(case: PipelineCase) -> None:
    """Those from before a column was added have its default."""
    prepared(case)
    alter(case, "RENAME COLUMN name TO title")
    assert {*findings(case)} == {("schema", "missing", "name")}, "while the file still maps it"
    case.write_file(mapping(title))
    assert_all_compared(case, "id", "title", "amount")
    send_more(case)
    assert_all_compared(case, "id", "title", "amount")
    alter(case, "ADD COLUMN also Int64")
    case.write_file(mapping(title, also))
    send_more(case)
    assert_all_compared(case, "id", "title", "amount", "also")
    alter(case, "UPDATE title = 'wrong' WHERE id = 7 SETTINGS mutations_sync = 1")
    assert not_proven(case) == {"values of column title": 1}
    alter(case, "UPDATE also = -1 WHERE id = 8 SETTINGS mutations_sync = 1")
    by_hand = {"values of column also that differ in rows made under a mapping without it": 1}
    assert not_proven(case) == {"values of column title": 1} | by_hand
    alter(case, "UPDATE title = 'wrong' WHERE id IN (701, 1002) SETTINGS mutations_sync = 1")
    alter(case, "UPDATE also = -1 WHERE id = 1000 SETTINGS mutations_sync = 1")
    found = findings(case)
    assert {place: one["count"] for place, one in found.items()} == {("rows", "different", "title"): 2, ("rows", "different", "also"): 1}


def assert_all_compared(case: PipelineCase, *columns: str) -> None:
    answer = assert_match(case)
    assert ([one["column"] for one in answer["checksums"]][: len(columns)], answer["not_compared"]) == ([*columns], [])


def send_more(case: PipelineCase) -> None:
    case.send_events(300, bad_every=100)
    case.warm_run()


def last_sequence(case: PipelineCase) -> int:
    """On raw, of the rows of the table."""
    return int(case.client().query(f"SELECT max(_tf_sequence) FROM {case.table}").result_rows[0][0])


def test_values_dropped_or_filled_by_a_default_are_not_proven(case: PipelineCase) -> None:
    """Wrong values must not hide behind a green word: those from before are counted, those behind are compared."""
    prepared(case)
    first = last_sequence(case)
    alter(case, "DROP COLUMN amount; ADD COLUMN title String; DROP COLUMN name")
    case.write_file(mapping(lambda columns: columns.pop(), title))
    unknown = {"the values of column amount": 594, "values of column title": 594}
    assert not_proven(case) == unknown
    send_more(case)
    assert not_proven(case) == unknown
    second = last_sequence(case)
    alter(case, "ADD COLUMN also Int64 DEFAULT id * 2")
    case.write_file(mapping(lambda columns: columns.pop(), title, also))
    send_more(case)
    assert not_proven(case) == unknown | {"the values of column also": 891}
    (gap,) = [gap["what"] for gap in verify(case)[1]["not_proven"] if "column also" in gap["what"]]
    assert gap.endswith(f"made under a mapping without it, and filled by its DEFAULT; rows of raw 1..{first}, {first + 1}..{second}")
    alter(case, "UPDATE also = -1 WHERE id IN (7, 1000) SETTINGS mutations_sync = 1")
    found = findings(case)
    assert ({*found}, found["rows", "different", "also"]["count"]) == ({("rows", "different", "also")}, 1)
    alter(case, "DELETE WHERE id = 7 SETTINGS mutations_sync = 1")
    assert findings(case)["rows", "missing", None]["count"] == 1


def test_rows_before_a_rename_without_positions_are_not_proven(case: PipelineCase) -> None:
    without_position_columns(case)
    prepared(case)
    alter(case, "RENAME COLUMN name TO title; DROP COLUMN amount")
    case.write_file(mapping(lambda columns: columns.pop(), title))
    case.send_events(300)
    case.warm_run()
    assert not_proven(case) == {"the values of column title": 594, "the values of column amount": 594}


def test_another_type_in_file_and_table_is_not_proven(done: PipelineCase) -> None:
    alter(done, "MODIFY COLUMN amount Nullable(Float32) SETTINGS mutations_sync = 1, alter_sync = 2")
    done.write_file(mapping(lambda columns: columns[2].update(column_type="Nullable(Float32)")))
    assert not_proven(done) == {"the values of column amount": 594}


def test_rows_from_before_a_column_became_wider_are_compared(case: PipelineCase) -> None:
    prepared(case, mapping(lambda columns: columns[2].update(column_type="Nullable(Float32)")))
    alter(case, "MODIFY COLUMN name Nullable(String), MODIFY COLUMN amount Nullable(Float64) SETTINGS mutations_sync = 1, alter_sync = 2")
    case.write_file(mapping(lambda columns: columns[1].update(column_type="Nullable(String)")))
    case.send_events(300)
    case.warm_run()
    assert assert_match(case)["not_compared"] == []
    alter(case, "UPDATE name = 'wrong' WHERE id IN (7, 700) SETTINGS mutations_sync = 1")
    found = findings(case)
    assert ({*found}, found["rows", "different", "name"]["count"]) == ({("rows", "different", "name")}, 2)


def test_raw_records_that_are_not_what_kafka_holds_are_named(case: PipelineCase) -> None:
    """The topic is made again, with other values at the same offsets."""
    prepared(case, partitions=1)
    assert assert_match(case, "--kafka")["counts"]["in Kafka"] == 600
    case.admin.delete_topics([case.topic])[case.topic].result(30)
    wait_until(lambda: case.topic not in case.admin.list_topics(timeout=10).topics, "a topic that is gone")
    case.create_topic(1)
    case.send([b"other", json.dumps({"id": 1, "name": "event 1", "amount": 0.25}).encode()], partitions=1)
    assert_match(case)
    found = findings(case, "--kafka")
    assert {*found} == {("streams", "different", "value")}
    assert where(found["streams", "different", "value"]) == [(case.topic, 0, 0)]


def test_the_cause_of_removed_rows_is_named_beside_them(done: PipelineCase) -> None:
    assert assert_match(done)["not_compared"] == []
    done.client().command(f"ALTER TABLE {done.table} MODIFY TTL toDateTime(_tf_arrival) - INTERVAL 1 DAY WHERE id < 7")
    done.client().command(f"OPTIMIZE TABLE {done.table} FINAL")
    code, answer = verify(done)
    assert (code, [(one["kind"], one["count"]) for one in answer["findings"]]) == (4, [("missing", 7)])
    assert [gap["what"] for gap in answer["not_compared"]] == ["rows that its TTL has removed: they are reported as missing"]


def test_only_so_many_faults_are_named_and_all_are_counted(done: PipelineCase) -> None:
    done.client().command(f"TRUNCATE TABLE {done.table}")
    (found,) = findings(done, "--examples", "3").values()
    assert (found["kind"], found["count"], len(found["examples"])) == ("missing", 594, 3)


# -- ranges ---------------------------------------------------------------------------------------------------------------------------


def arrivals(case: PipelineCase) -> list[datetime]:
    """Of the rows, ascending."""
    rows = case.client().query(f"SELECT DISTINCT _tf_arrival FROM {case.table} ORDER BY 1").result_rows
    return [found[0].replace(tzinfo=found[0].tzinfo or UTC) for found in rows]


def test_ranges_side_by_side_find_what_the_whole_finds(case: PipelineCase) -> None:
    """With dedup: the originals of the second range's copies lie in the first one."""
    case.write_file(keyed_by("id"))
    case.create_topic(partitions=1)
    for number in range(3):
        case.send([event(number, key) for key in range(50 + number)], partitions=1)
        case.warm_run()
    border = (arrivals(case)[-1]).isoformat()
    whole = assert_match(case)["counts"]
    parts = [assert_match(case, "--to", border)["counts"], assert_match(case, "--from", border)["counts"]]
    assert whole == {name: sum(part[name] for part in parts) for name in whole}
    assert (whole["copies"], parts[1]["copies"], parts[1]["rows"]) == (101, 51, 1)
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'wrong' WHERE id = 51 SETTINGS mutations_sync = 1")
    assert_match(case, "--to", border)
    assert where(findings(case, "--from", border)["rows", "different", "name"]) == [(case.topic, 0, 152)]


def test_ranges_side_by_side_find_the_whole_by_event_time(case: PipelineCase) -> None:
    case.write_file(timed_by("at", "id", "10s", "5s"))
    case.create_topic(partitions=1)
    for first in range(0, 90, 30):
        case.send(
            [json.dumps({"id": n % 7, "name": "x", "at": 1_780_000_000 + n - n % 3 * 6}).encode() for n in range(first, first + 30)], 1
        )
        case.warm_run()
    whole = assert_match(case)["counts"]
    assert min(whole["copies"], whole["rejected"]) > 0
    for border in (one.isoformat() for one in arrivals(case)[1:]):
        parts = [assert_match(case, "--to", border)["counts"], assert_match(case, "--from", border)["counts"]]
        assert whole == {name: sum(part[name] for part in parts) for name in whole}


def test_an_hour_is_a_range(done: PipelineCase) -> None:
    first = arrivals(done)[0]
    rows = sum(assert_match(done, "--hour", f"{first + timedelta(hours=one):%Y-%m-%dT%H}")["counts"].get("rows", 0) for one in (0, 1))
    assert rows == 594
    before = assert_match(done, "--hour", f"{first - timedelta(hours=5):%Y-%m-%dT%H}")
    assert (before["arrivals"], before["counts"]) == (None, {})
    assert done.invoke("verify", str(done.file), "--hour", "2026-01-31T12", "--from", "1h").exit_code == 2
    assert done.invoke("verify", str(done.file), "--hour", "yesterday").exit_code == 2


def test_what_is_unconfirmed_of_a_range_is_reported_until_then(case: PipelineCase) -> None:
    """A range of which nothing is confirmed is not whole, nor is one whose end waits before process or before the sink."""
    case.create_topic()
    case.send_events(30)
    case.run_in_turn("ingest")
    until = ("--to", f"{datetime.now(UTC) + timedelta(minutes=10):%Y-%m-%dT%H:%M:%S}Z")
    _, answer = verify(case, "--from", "1h", *until)
    assert [gap["what"].startswith("raw frames of the range") for gap in answer["not_proven"]] == [True]
    case.warm_run()
    case.send_events(30)
    frames = "raw frames of the range whose rows the sink has not confirmed yet"
    for leg, waiting in (
        ("ingest", "records on raw that process has not read"),
        ("process", "rows on out that the sink has not confirmed"),
    ):
        case.run_in_turn(leg)
        assert not_proven(case, *until) == {frames: 3}, "one frame per partition"
        assert not_proven(case) == {frames: 3, waiting: 30}
        shown = case.invoke("verify", str(case.file))
        assert (shown.exit_code, shown.stdout.splitlines()[-1].split(":")[0]) == (3, "NOT PROVEN")
    case.warm_run()
    assert_match(case, *until)
    assert_match(case)


def test_what_is_purged_is_told_and_the_rest_is_compared(case: PipelineCase) -> None:
    def forgetful(document: dict[str, Any]) -> None:
        keyed_by("id", window="1h")(document)
        document["resources"] = {"nats": {"stream": {"max_age": "1ms"}}}

    case.write_file(forgetful)
    case.create_topic(partitions=1)
    for number in range(4):
        case.send([event(number, key) for key in range(10 * number, 10 * number + 20)], partitions=1)
        case.warm_run()
    log = case.log()
    wait_until(lambda: log.state(case.names.stream("raw")).first_sequence > 1, "a purge")
    log.close()
    code, answer = verify(case)
    assert (code, answer["verdict"], answer["findings"]) == (3, "not proven", [])
    assert [gap["what"].startswith("records that arrived before") for gap in answer["not_compared"]] == [True]
    (unsure,) = answer["not_proven"]
    assert unsure["what"].startswith("records without a row")
    assert unsure["count"] == answer["counts"]["records"] - answer["counts"]["rows"] > 0
    position = case.client().query(f"SELECT max(_tf_offset) FROM {case.table}").result_rows[0][0]
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'wrong' WHERE _tf_offset = {position} SETTINGS mutations_sync = 1")
    assert where(findings(case)["rows", "different", "name"]) == [(case.topic, 0, position)]


def test_a_pipeline_that_never_ran_has_nothing_to_verify(case: PipelineCase) -> None:
    case.create_topic()
    found = case.invoke("verify", str(case.file))
    assert (found.exit_code, found.stdout) == (1, "")
    assert "was never started" in found.stderr


def test_columns_of_every_shape_match(case: PipelineCase) -> None:
    columns = {
        "at": ("array", "Nullable(Point)"),
        "area": ("array", "Polygon"),
        "pair": ("array", "Tuple(Int8, Nullable(String))"),
        "who": ("object", "Nullable(Tuple(id Int64, name String))"),
        "opens": ("string", "Time"),
        "spans": ("array", "Array(Time64(3))"),
        "hash": ("string", "UInt256"),
        "most": ("int", "SimpleAggregateFunction(max, Int64)"),
    }

    def change(document: dict[str, Any]) -> None:
        document["sources"][0]["schema_fields"] = [{"name": name, "type": source} for name, (source, _) in columns.items()]
        document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kind} for name, (_, kind) in columns.items()]

    case.write_file(change)
    case.create_topic(1)
    shared = {"area": [[[0, 0], [1.5, 0]]], "opens": "-00:00:05", "spans": ["1:02:03.4"], "hash": str(2**256 - 1), "most": 7}
    events = [{"at": [1, 2], "pair": [1, "x"], "who": {"id": 1, "name": "é"}, **shared}, {"at": None, "pair": [1, None], **shared}]
    case.send([json.dumps(event).encode() for event in (*events, {"pair": [1], **shared})], 1)
    case.warm_run()
    assert [(one["code"], one["field"]) for one in case.dead_letters()] == [("invalid_value", "pair")]
    answer = assert_match(case)
    assert (answer["not_compared"], answer["counts"]["rows"], {*columns} - {one["column"] for one in answer["checksums"]}) == ([], 2, set())
