"""Each check of a table on real servers: a clean pipeline passes all, a planted fault turns the right one red and is named."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions
from support.kept_table import caught_up_case, remake_table
from support.pipeline_case import PipelineCase, has_leaders, wait_until
from support.producer import make_producer

from pipelines.config import Checks, load
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sources import open_source
from pipelines.errors import HaltError
from pipelines.proof.checks.evaluate import CheckResult
from pipelines.proof.checks.facts import behind
from pipelines.proof.checks.run import Look
from pipelines.protocol.bodies import PROCESS_CHAIN, SinkDone, SinkPlan
from pipelines.protocol.failpoints import VARIABLE
from pipelines.protocol.ledger import Chain, Entry, read_chain
from pipelines.sink.chunks import chunks
from pipelines.sink.leg import SinkLeg
from pipelines.testing import SINGLE
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration
SQL_PASSING = [name for name in Checks.model_fields if name != "verification"]


def with_dedup(document: dict[str, Any]) -> None:
    document["transforms"] = [{"type": "dedup", "config": {"key": "id", "time_window": "1h"}}]


def look(case: PipelineCase, *names: str) -> dict[str, CheckResult]:
    with Look(load(case.file, case.environment())) as found:
        return {name: found.check(name) for name in names or SQL_PASSING}


def red(case: PipelineCase) -> dict[str, CheckResult]:
    """The checks that do not pass."""
    return {name: verdict for name, verdict in look(case).items() if not verdict.passed}


def prepared(case: PipelineCase) -> None:
    case.write_file(with_dedup)
    case.create_topic()
    case.send_events(60)
    case.warm_run()


@pytest.fixture(scope="module")
def caught_up(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineCase]:
    """A pipeline with dedup that has caught up with 60 events, and in `<table>_kept` what its table holds."""
    with caught_up_case(stack, tmp_path_factory.mktemp("caught-up"), prepared) as made:
        yield made


@pytest.fixture
def done(caught_up: PipelineCase) -> Iterator[PipelineCase]:
    """That pipeline, for a test that changes nothing but its table, views on it and the file; all of them are put back."""
    yield caught_up
    client, kept = caught_up.client(), f"{caught_up.table}_kept"
    sql = "SELECT name FROM system.tables WHERE database = 'default' AND startsWith(name, {t:String}) AND name != {kept:String}"
    views_first = f"{sql} ORDER BY engine != 'MaterializedView'"
    for (name,) in client.query(views_first, {"t": f"{caught_up.table}_", "kept": kept}).result_rows:
        client.command(f"DROP TABLE {name}")
    remake_table(caught_up)
    caught_up.write_file(with_dedup)


def test_a_clean_pipeline_passes_every_check(done: PipelineCase) -> None:
    found = look(done)
    assert {name: verdict.message for name, verdict in found.items() if not verdict.passed} == {}
    assert found["gaps"].facts == {"confirmed": 60, "found": 60, "rows of no record of the topic": 0}
    assert {verdict.not_evaluated for verdict in found.values()} == {""}


def test_a_row_that_was_inserted_again_is_a_duplicate_and_named(done: PipelineCase) -> None:
    done.client().command(f"INSERT INTO {done.table} SELECT * FROM {done.table} WHERE id = 17")
    found = red(done)
    assert {*found} == {"duplicates"}
    assert found["duplicates"].examples == [{"topic": done.topic, "partition": 17 % 3, "offset": 17 // 3, "rows": 2}]


def test_a_key_twice_within_its_window_is_a_named_duplicate(done: PipelineCase) -> None:
    done.client().command(f"ALTER TABLE {done.table} UPDATE id = 17 WHERE id = 18 SETTINGS mutations_sync = 2")
    found = look(done, "duplicates")["duplicates"]
    assert not found.passed
    assert found.facts["repeated keys"] == 1
    assert {found.examples[0]["offset"], found.examples[0]["offset before"]} == {17 // 3, 18 // 3}


def named(column: str, table: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        with_dedup(document)
        document["sink"]["mapping"][0]["column_name"] = column
        document["sink"]["table"] = table

    return change


def test_a_key_is_compared_whatever_its_column_is_called(done: PipelineCase) -> None:
    for name in ("place", "partition_before", "sequence_before", "arrival_before", "rows", "w"):
        table = f"{done.table}_{name}"
        select = f"SELECT * EXCEPT id, id AS {name} FROM {done.table}"
        done.client().command(f"CREATE TABLE {table} ENGINE = MergeTree ORDER BY tuple() AS {select}")
        done.write_file(named(name, table))
        assert look(done, "duplicates")["duplicates"].passed, name
        done.client().command(f"ALTER TABLE {table} UPDATE {name} = 17 WHERE {name} = 18 SETTINGS mutations_sync = 2")
        assert look(done, "duplicates")["duplicates"].facts["repeated keys"] == 1, name


def test_a_deleted_row_is_a_gap_and_named(done: PipelineCase) -> None:
    done.client().command(f"ALTER TABLE {done.table} DELETE WHERE id = 17 SETTINGS mutations_sync = 2")
    reds = red(done)
    assert {*reds} == {"gaps"}
    found = reds["gaps"]
    assert found.message == "1 of 60 confirmed rows are missing"
    assert (found.examples[0]["kind"], found.examples[0]["partition"], found.examples[0]["offset"]) == ("missing", 17 % 3, 17 // 3)


def test_an_open_chunks_row_never_replaces_a_missing_one(case: PipelineCase) -> None:
    case.write_file(with_dedup)
    case.create_topic()
    case.send_events(60)
    case.warm_run()
    case.send_events(30)
    case.run_in_turn("ingest", "process")
    killed = case.run_plain(**{VARIABLE: "sink.after-insert:1"})
    assert (killed.returncode, case.count()) == (-9, 90), "the chunk is in the table, and not confirmed"
    found = look(case, "gaps")["gaps"]
    assert (found.passed, found.message, found.facts["found"]) == (True, "60 positions, as confirmed", 90)
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id = 17 SETTINGS mutations_sync = 2")
    found = look(case, "gaps")["gaps"]
    assert (found.passed, found.message, found.facts["found"]) == (False, "1 of 60 confirmed rows are missing", 89)


def test_a_gap_is_found_with_the_sink_in_the_middle_of_a_range(case: PipelineCase) -> None:
    """The last confirmed chunk ends between two frames of one range of the process leg, and the next one is in the table."""
    case.create_topic()
    case.send_events(90)
    case.run_in_turn("ingest", "process")
    confirmed: list[int] = []

    class OneChunkMore(SinkLeg):
        def execute(self, plan: Entry[SinkPlan]) -> SinkDone:
            confirmed.extend(row[1] for row in case.rows())
            done = super().execute(plan)
            if confirmed:
                raise HaltError("stopped by the test")
            return done

    case.leg_classes["sink"] = partial(OneChunkMore, cut=partial(chunks, max_rows=20))
    with pytest.raises(Exception, match="stopped by the test"):
        case.run_in_turn("sink")
    assert 0 < len(confirmed) < case.count() < 90
    assert look(case, "gaps")["gaps"].message == f"{len(confirmed)} positions, as confirmed"
    (other,) = [row[1] for row in case.rows() if row[1] not in confirmed][:1]
    delete = f"ALTER TABLE {case.table} DELETE WHERE id = %d SETTINGS mutations_sync = 2"
    case.client().command(delete % other)
    assert look(case, "gaps")["gaps"].passed, "what is not confirmed may be there or not"
    case.client().command(delete % confirmed[0])
    assert look(case, "gaps")["gaps"].message == f"1 of {len(confirmed)} confirmed rows are missing"


def test_a_row_that_no_record_explains_is_found(done: PipelineCase) -> None:
    columns = "id, name, amount, _tf_sequence, _tf_ordinal, _tf_emit, _tf_topic, _tf_partition, _tf_offset, _tf_arrival"
    values = f"900, 'x', 1, 900, 0, 0, '{done.topic}', 0, 900, now64(6)"
    done.client().command(f"INSERT INTO {done.table} ({columns}) VALUES ({values})")
    found = red(done)
    assert {*found} == {"gaps"}
    assert "1 positions more" in found["gaps"].message


def test_rows_without_a_position_of_the_topic_are_extra(done: PipelineCase) -> None:
    """Also where they hide that a row is missing, and where only their topic is another one."""
    client = done.client()
    client.command(f"INSERT INTO {done.table} (id, name) VALUES (900, 'x')")
    reds = red(done)
    assert {*reds} == {"gaps"}
    found = reds["gaps"]
    assert found.message == "1 rows belong to no record of the topic: another writer inserted them"
    assert (found.examples[0]["kind"], found.examples[0]["position"]) == ("extra", "0.0")
    client.command(f"ALTER TABLE {done.table} DELETE WHERE id = 900 SETTINGS mutations_sync = 2")
    client.command(f"INSERT INTO {done.table} SELECT * REPLACE ('other' AS _tf_topic) FROM {done.table} WHERE id = 3")
    found = look(done, "gaps")["gaps"]
    assert (found.passed, found.facts["rows of no record of the topic"], found.examples[0]["kind"]) == (False, 1, "doubled")


POSITIONED = (
    "id Int64, name String, amount Nullable(Float64), _tf_sequence UInt64, _tf_ordinal UInt32, _tf_emit UInt32, "
    "_tf_topic LowCardinality(String), _tf_partition Int32, _tf_offset Int64, _tf_arrival DateTime64(6, 'UTC')"
)
WINDOW = "SETTINGS non_replicated_deduplication_window = 1000"


@pytest.mark.parametrize(
    ("engine", "missing", "removes"),
    [
        ("MergeTree PARTITION BY id % 7 ORDER BY id", 0, ""),
        ("ReplacingMergeTree ORDER BY intDiv(id, 2)", 30, "its engine ReplacingMergeTree"),
        ("MergeTree ORDER BY id TTL toDateTime(_tf_arrival) - INTERVAL 1 DAY WHERE id < 10", 10, "its TTL"),
    ],
    ids=["partitions", "replacing", "ttl"],
)
def test_rows_that_the_table_removes_are_missing_with_the_cause(done: PipelineCase, engine: str, missing: int, removes: str) -> None:
    remake_table(done, f"({POSITIONED}) ENGINE = {engine} {WINDOW}")
    done.client().command(f"OPTIMIZE TABLE {done.table} FINAL")
    found = red(done)
    assert {*found} == ({"gaps"} if missing else set())
    if missing:
        answer = f"{missing} of 60 confirmed rows are missing, and {removes} removes rows: disable this check if that is intended"
        assert found["gaps"].message == answer


def test_rows_of_a_detached_partition_are_missing_until_attached(done: PipelineCase) -> None:
    remake_table(done, f"({POSITIONED}) ENGINE = MergeTree PARTITION BY id % 7 ORDER BY id {WINDOW}")
    done.client().command(f"ALTER TABLE {done.table} DETACH PARTITION 3")
    assert look(done, "gaps")["gaps"].message == "9 of 60 confirmed rows are missing"
    done.client().command(f"ALTER TABLE {done.table} ATTACH PARTITION 3")
    assert red(done) == {}


@pytest.mark.parametrize(
    ("alteration", "word"),
    [
        ("MODIFY COLUMN name FixedString(20)", "'name' is FixedString(20)"),
        ("DROP COLUMN amount", "no column 'amount'"),
        ("RENAME COLUMN name TO title", "no column 'name'"),
    ],
)
def test_an_altered_column_is_schema_drift_and_named(done: PipelineCase, alteration: str, word: str) -> None:
    done.client().command(f"ALTER TABLE {done.table} {alteration} SETTINGS mutations_sync = 2")
    found = red(done)
    assert {*found} == {"schema_drift"}
    assert word in found["schema_drift"].message


def test_a_short_insert_window_is_found_at_a_views_target_too(done: PipelineCase) -> None:
    client, copy = done.client(), f"{done.table}_copy"
    client.command(f"CREATE TABLE {copy} (id Int64) ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 5")
    client.command(f"CREATE MATERIALIZED VIEW {done.table}_view TO {copy} AS SELECT id FROM {done.table}")
    client.command(f"INSERT INTO {copy} SELECT id FROM {done.table}")
    found = red(done)
    assert {*found} == {"insert_window"}
    assert f"{copy} remembers 5" in found["insert_window"].message


def more_rows(done: PipelineCase) -> None:
    """Inserts 20 rows, which views on the table get, too."""
    done.client().command(f"INSERT INTO {done.table} SELECT * FROM {done.table}_kept WHERE id < 20")


def test_views_are_added_up_and_a_lost_row_of_one_is_found(done: PipelineCase) -> None:
    client, rows, counts, states = done.client(), *(f"{done.table}_{name}" for name in ("rows", "counts", "states"))
    window = "SETTINGS non_replicated_deduplication_window = 1000"

    def with_totals(document: dict[str, Any]) -> None:
        totals = [{"table": counts, "count_column": "n"}, {"table": states, "count_column": "n"}]
        document["checks"] = {"views": {"totals": totals}}

    done.write_file(with_totals)
    client.command(f"CREATE TABLE {rows} (id Int64) ENGINE = MergeTree ORDER BY id {window}")
    client.command(f"CREATE TABLE {counts} (k Int64, n UInt64) ENGINE = SummingMergeTree ORDER BY k {window}")
    client.command(f"CREATE TABLE {states} (k Int64, n AggregateFunction(count)) ENGINE = AggregatingMergeTree ORDER BY k {window}")
    for target, select in (
        (rows, "SELECT id"),
        (counts, "SELECT id % 5 AS k, count() AS n"),
        (states, "SELECT id % 5 AS k, countState() AS n"),
    ):
        grouped = "" if target == rows else " GROUP BY k"
        client.command(f"CREATE MATERIALIZED VIEW {target}_view TO {target} AS {select} FROM {done.table}{grouped}")
        client.command(f"INSERT INTO {target} {select} FROM {done.table}{grouped}")
    more_rows(done)
    found = look(done, "views")["views"]
    assert found.passed, found.message
    assert found.facts == {"views": 3, **{f"total of default.{name}": 80 for name in (rows, counts, states)}}
    client.command(f"ALTER TABLE {counts} UPDATE n = n - 1 WHERE k = 3 SETTINGS mutations_sync = 2")
    found = look(done, "views")["views"]
    assert not found.passed
    assert f"{counts} adds up to" in found.message


def test_views_that_no_sum_can_judge_are_told_and_no_fault(done: PipelineCase) -> None:
    """One that aggregates by a function of its own, one whose rows expire, two that fill one table, one whose target is gone."""
    client, best, old, both = done.client(), *(f"{done.table}_{name}" for name in ("best", "old", "both"))
    client.command(f"CREATE TABLE {best} (name String) ENGINE = MergeTree ORDER BY name {WINDOW}")
    client.command(f"CREATE TABLE {old} (at DateTime) ENGINE = MergeTree ORDER BY at TTL at + INTERVAL 1 DAY {WINDOW}")
    client.command(f"CREATE TABLE {both} (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")
    selects = [(best, "argMax(name, id) AS name"), (old, "toDateTime(0) AS at"), (both, "id"), (both, "-id AS id")]
    for number, (target, select) in enumerate(selects):
        client.command(f"CREATE MATERIALIZED VIEW {done.table}_view_{number} TO {target} AS SELECT {select} FROM {done.table}")
    inner = f"ENGINE = MergeTree ORDER BY id {WINDOW} POPULATE AS SELECT id FROM {done.table}"
    client.command(f"CREATE MATERIALIZED VIEW {done.table}_inner {inner}")
    client.command(f"CREATE TABLE {done.table}_gone (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")
    client.command(f"CREATE MATERIALIZED VIEW {done.table}_into_gone TO {done.table}_gone AS SELECT id FROM {done.table}")
    more_rows(done)
    client.command(f"DROP TABLE {done.table}_gone")
    found = look(done, "views")["views"]
    assert found.passed, found.message
    reported = dict(one.split(": ", 1) for one in found.not_evaluated.split("; "))
    assert reported[f"default.{best}"].startswith("it does not hold a row for each row")
    assert reported[f"default.{old}"] == "its TTL removes rows"
    assert reported[f"default.{both}"] == "2 views fill it"
    assert reported[f"default.{done.table}_into_gone"] == "the table that it fills cannot be found"
    assert [value for name, value in found.facts.items() if name.startswith("total of default..inner_id.")] == [80]


def test_a_view_that_outlives_its_tables_rows_is_no_fault(done: PipelineCase) -> None:
    ttl = "TTL toDateTime(_tf_arrival) - INTERVAL 1 DAY WHERE id < 10"
    client, copy = done.client(), f"{done.table}_copy"
    client.command(f"DROP TABLE {done.table}")
    client.command(f"CREATE TABLE {done.table} ({POSITIONED}) ENGINE = MergeTree ORDER BY id {ttl} {WINDOW}")
    client.command(f"CREATE TABLE {copy} (id Int64) ENGINE = MergeTree ORDER BY id {WINDOW}")
    client.command(f"CREATE MATERIALIZED VIEW {copy}_view TO {copy} AS SELECT id FROM {done.table}")
    client.command(f"INSERT INTO {done.table} SELECT * FROM {done.table}_kept")
    client.command(f"OPTIMIZE TABLE {done.table} FINAL")
    found = look(done, "views")["views"]
    reported = f"default.{copy}: the table has fewer rows than it was given, its TTL removes some"
    assert (found.passed, found.message, found.not_evaluated) == (True, "0 of 1 views compared, all complete", reported)


def test_a_later_view_is_a_fault_until_older_rows_are_inserted(done: PipelineCase) -> None:
    """Its column of counts may hold NULL, and no row yet."""
    counts = f"{done.table}_counts"

    def with_total(document: dict[str, Any]) -> None:
        document["checks"] = {"views": {"totals": [{"table": counts, "count_column": "n"}]}}

    done.write_file(with_total)
    client, select = done.client(), f"SELECT id % 5 AS k, count() AS n FROM {done.table} GROUP BY k"
    client.command(f"CREATE TABLE {counts} (k Int64, n Nullable(UInt64)) ENGINE = SummingMergeTree ORDER BY k {WINDOW}")
    client.command(f"CREATE MATERIALIZED VIEW {counts}_view TO {counts} AS {select}")
    reported = "; a view lacks the rows that are older than itself until you insert them"
    assert look(done, "views")["views"].message == f"default.{counts} adds up to 0, the table has 60 rows{reported}"
    client.command(f"INSERT INTO {counts} {select}")
    assert look(done, "views")["views"].passed


def test_a_view_slower_than_its_table_is_no_fault_mid_insert(case: PipelineCase) -> None:
    """The table has the chunk two and a half seconds before the view's target has."""
    case.create_topic()
    client, copy = case.client(), f"{case.table}_copy"
    client.command(f"CREATE TABLE {case.table} ({POSITIONED}) ENGINE = MergeTree ORDER BY id {WINDOW}")
    client.command(f"CREATE TABLE {copy} (id Int64) ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 1000")
    select = f"SELECT id + sleepEachRow(0.01) AS id FROM {case.table}"
    client.command(f"CREATE MATERIALIZED VIEW {case.table}_view TO {copy} AS {select}")
    case.send_events(250)
    # One chunk: where it comes in several, the view is as late as the last of them only.
    case.run_in_turn("ingest", "process")
    running = case.in_background(case.warm_runner(legs=("sink",)))
    wait_until(lambda: case.count() == 250, "a table that has the chunk")
    found = look(case, "views")["views"]
    assert running.is_alive(), "the view's target has the chunk, too"
    running.join()
    assert found.passed, found.message
    assert "rows that are being inserted" in found.not_evaluated
    found = look(case, "views")["views"]
    assert (found.passed, found.not_evaluated) == (True, "")


def test_records_that_wait_in_kafka_are_not_fresh(case: PipelineCase) -> None:
    """Also in a partition that was added since."""

    def short(document: dict[str, Any]) -> None:
        document["checks"] = {"freshness": {"warn_after": "1m", "fail_after": "10m"}}

    case.write_file(short)
    case.create_topic()
    for partition in range(2):
        send_aged(case, partition, timedelta(minutes=30))
    case.warm_run()
    assert look(case, "freshness")["freshness"].passed
    send_aged(case, 0, timedelta(minutes=5))
    found = look(case, "freshness")["freshness"]
    assert (found.passed, found.is_mild) == (False, True)
    send_aged(case, 1, timedelta(minutes=20))
    found = look(case, "freshness")["freshness"]
    assert (found.passed, found.is_mild, found.facts["offsets waiting in Kafka"]) == (False, False, 2)
    case.warm_run()
    case.admin.create_partitions([NewPartitions(case.topic, 4)])[case.topic].result(30)
    wait_until(lambda: has_leaders(case.admin, case.topic, 4), "a fourth partition")
    send_aged(case, 3, timedelta(minutes=20))
    found = look(case, "freshness")["freshness"]
    assert (found.passed, found.facts["offsets waiting in Kafka"]) == (False, 1)
    case.warm_run()
    assert look(case, "freshness")["freshness"].passed


def send_aged(case: PipelineCase, partition: int, age: timedelta) -> None:
    """One good event whose own time is so long ago."""
    producer = make_producer(case.addresses.kafka_client)
    instant = datetime.now(UTC) - age
    producer.produce(case.topic, b'{"id": 1, "name": "aged"}', partition=partition, timestamp=int(instant.timestamp() * 1000))
    assert producer.flush(60) == 0


def test_rows_that_wait_for_the_sink_are_as_old_as_their_frame(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    case.warm_run(legs=("ingest", "process"), until_caught_up=True)
    log, config = case.log(), load(case.file, case.environment())
    sources = {"ingest": open_source(config, config.sources[0].source_id)}
    message = log.get(case.names.stream("out"), 1)
    assert message is not None
    # By the clock of NATS, whatever that of this host says.
    for apart in (timedelta(minutes=-7), timedelta(0), timedelta(minutes=7)):
        before = log.clock(case.names.stream("out"))
        found = behind(log, case.names, SINGLE, sources, 30, datetime.now(UTC) + apart, timedelta(minutes=1), timedelta(minutes=10))
        assert before - message.time <= found.oldest <= log.clock(case.names.stream("out")) - message.time
        assert (found.rows, found.offsets) == (30, 0)
    log.close()


def test_dead_letters_of_a_period_and_a_false_account_are_told(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.create_topic()
    case.send_events(60, bad_every=20)
    case.warm_run()
    found = red(case)
    assert {*found} == {"dead_letters"}
    assert "3 of 60 records are open dead letters (5.00 %)" in found["dead_letters"].message
    assert look(case, "verification")["verification"].passed
    # A period ends now by the clock of NATS: two hours later none of them is of the last hour, and the first hour was due to be verified.
    clock = JetStream.clock
    with monkeypatch.context() as later:
        later.setattr(JetStream, "clock", lambda log, stream: clock(log, stream) + timedelta(hours=2))
        assert look(case, "dead_letters")["dead_letters"].facts["dead letters"] == 0
        assert not look(case, "verification")["verification"].passed
    forge(case, lambda totals: {**totals, "rows_out": totals["rows_out"] - 1})
    assert "conservation" in red(case)


def forge(case: PipelineCase, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Appends a `done` of the process leg with other totals, as no runner would."""
    log = case.log()
    state = read_chain(log, case.names, PROCESS_CHAIN)
    assert state.done is not None
    chain = Chain(log, case.names, PROCESS_CHAIN, state.epoch + 1)
    chain.open()
    chain.restate(replace(state.done.body, totals=change(dict(state.totals))))
    log.close()


def test_a_table_without_positions_says_what_is_not_checked(done: PipelineCase) -> None:
    columns = "(id Int64, name String, amount Nullable(Float64))"
    remake_table(done, f"{columns} ENGINE = MergeTree ORDER BY id {WINDOW}", "id, name, amount")
    found = look(done)
    assert {name for name, verdict in found.items() if not verdict.passed} == set()
    assert {name for name, verdict in found.items() if verdict.not_evaluated} == {"duplicates", "gaps"}
    done.client().command(f"ALTER TABLE {done.table} DELETE WHERE id = 17 SETTINGS mutations_sync = 2")
    assert not look(done, "gaps")["gaps"].passed


def test_a_pipeline_that_was_never_started_is_told_and_not_green(case: PipelineCase) -> None:
    with pytest.raises(HaltError, match="was never started"):
        look(case, "conservation")
