"""Refused and unanswered inserts on tables that may have stored some of their rows: the table is asked, and nothing is doubled."""

import pytest
from support.network_case import Proxied, stop, waits
from support.pipeline_case import PipelineCase, wait_until
from support.refused_case import PER_PART, event, make_parted, positions, refused

from pipelines.errors import HaltError
from pipelines.protocol.failpoints import VARIABLE

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.spark, pytest.mark.usefixtures("brief_inserts")]


@pytest.mark.parametrize("kind", list(PER_PART))
def test_a_refused_chunk_with_stored_partitions_doubles_nothing(case: PipelineCase, kind: str) -> None:
    """5,000 events over five days, one amount 'n/a': the table had 8,018 rows of 4,999 records."""
    make_parted(case, kind)
    case.send(event(number, "n/a" if number == 2503 else str(number % 1000)) for number in range(5000))
    case.warm_run()
    assert positions(case) == (4999, 4999)
    assert refused(case) == [2503]
    case.check()


def test_a_refused_chunk_half_stored_beside_a_view_is_a_halt(case: PipelineCase) -> None:
    """The view has not seen the partitions that were stored; the same token brings it what it lacks."""
    make_parted(case, "skip index")
    client, target = case.client(), f"{case.table}_target"
    client.command(f"CREATE TABLE {target} (id Int64) ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 10000")
    client.command(f"CREATE MATERIALIZED VIEW {case.table}_view TO {target} AS SELECT id FROM {case.table}")
    case.send((event(number, "n/a" if number == 3 else "1") for number in range(100)), partitions=1)
    with pytest.raises(HaltError, match=r"its materialized views \(default\.\w+_view\) may lack them.*with its token"):
        case.warm_run()
    assert case.count() > 0
    client.command(f"ALTER TABLE {case.table} DROP INDEX i")
    case.warm_run()
    assert (case.dead_letters(), case.count()) == ([], 100)
    case.check()
    assert client.query(f"SELECT count(), uniqExact(id) FROM {target}").result_rows[0] == (100, 100)


def test_a_table_without_positions_that_may_hold_rows_halts(case: PipelineCase) -> None:
    make_parted(case, "skip index")
    client = case.client()
    client.command(f"DROP TABLE {case.table}")
    client.command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64), INDEX i toDecimal64(name, 2) TYPE minmax) "
        "ENGINE = MergeTree PARTITION BY id % 5 ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
    )
    case.send((event(number, "n/a" if number == 3 else "1") for number in range(100)), partitions=1)
    with pytest.raises(HaltError, match=r"the table lacks one of the columns _tf_sequence.*the same chunk is sent with its token"):
        case.warm_run()
    assert case.dead_letters() == []
    client.command(f"ALTER TABLE {case.table} DROP INDEX i")
    case.warm_run()
    assert client.query(f"SELECT count(), uniqExact(id) FROM {case.table}").result_rows[0] == (100, 100)


def test_a_table_of_one_partition_without_positions_is_cut(case: PipelineCase) -> None:
    case.create_topic()
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64), INDEX i toDecimal64(name, 2) TYPE minmax) "
        "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
    )
    case.send((event(number, "n/a" if number == 3 else "1") for number in range(100)), partitions=1)
    case.warm_run()
    assert refused(case) == [3]
    assert case.client().query(f"SELECT count(), uniqExact(id) FROM {case.table}").result_rows[0] == (99, 99)


# -- refused behind an answer that was lost ---------------------------------------------------------------------------------


def worsen(case: PipelineCase) -> None:
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT seven CHECK id % 100 != 7")


def test_a_stored_chunk_refused_when_sent_again_is_confirmed(case: PipelineCase) -> None:
    """Killed behind the insert, and the table altered: constraints are looked at before tokens."""
    case.create_topic()
    case.warm_run()
    case.send_events(400)
    assert case.run_plain(**{VARIABLE: "sink.after-insert:1"}).returncode == -9
    stored = case.count()
    assert stored > 0
    worsen(case)
    case.warm_run()
    rows, unique = positions(case)
    assert rows == unique
    assert rows + len(case.dead_letters()) == 400
    case.check()


def test_a_lost_answer_then_a_refusal_double_nothing(proxied: Proxied) -> None:
    """What the table takes may change between two attempts without an ALTER, too: a dictionary, `now()`, a profile's limits."""
    case, _, clickhouse = proxied
    case.create_topic()
    case.warm_run()
    case.send_events(300)
    clickhouse.cut(1_000_000, b"INSERT")
    runner = case.warm_runner()
    case.in_background(runner)
    case.wait_count(1)
    waits(runner, "sink", "did not answer")
    worsen(case)
    clickhouse.cut(0, b"INSERT")
    wait_until(lambda: runner.legs["sink"].status.totals.get("rows_in") == 300, "a settled chunk")
    stop(case, runner)
    rows, unique = positions(case)
    assert rows == unique
    case.check()


# -- what takes too long, and what nobody knows -----------------------------------------------------------------------------


def test_an_insert_that_takes_too_long_is_cut(case: PipelineCase) -> None:
    """It was sent again, unchanged, for ever."""
    case.write_file(lambda document: document["sink"].update(max_insert_time="1s"))
    case.create_topic()
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN slow UInt8 MATERIALIZED sleepEachRow(0.005)")
    case.send_events(300, partitions=1)
    case.warm_run()
    assert (positions(case), case.dead_letters()) == ((300, 300), [])
    case.check()


@pytest.mark.parametrize(
    ("code", "good", "expression"),
    [
        (36, "0123456789abcdef", "encrypt('aes-128-ecb', name, name)"),
        (454, "", "decrypt('aes-128-ecb', unhex(name), '0123456789abcdef')"),
        (376, "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "toUUID(name)"),
        (675, "10.0.0.1", "toIPv4(name)"),
        (117, '{\\"a\\": 1}', "CAST(name, 'JSON')"),
        (467, "true", "CAST(name, 'Bool')"),
        (130, "[1, 2]", "CAST(name, 'Array(Int64)')"),
    ],
)
def test_a_refused_row_is_a_letter_without_its_value_in_words(case: PipelineCase, code: int, good: str, expression: str) -> None:
    client = case.client()
    good = good or client.query("SELECT hex(encrypt('aes-128-ecb', 'words', '0123456789abcdef'))").result_rows[0][0]
    case.create_topic()
    case.warm_run()
    client.command(f"ALTER TABLE {case.table} ADD COLUMN told String MATERIALIZED toString({expression})")
    case.send((event(number, "DE00 VALUE" if number == 13 else good) for number in range(40)), partitions=1)
    case.warm_run()
    assert refused(case) == [13]
    assert positions(case) == (39, 39)
    (dead_letter,) = case.dead_letters()
    assert dead_letter["message"].startswith(f"ClickHouse error {code}")
    assert dead_letter["message"].endswith("this row failed alone") is (code in (36, 454))
    log = case.log()
    entries = log.fetch(case.names.stream("ledger"), case.names.chain("sink"), 0, log.state(case.names.stream("ledger")).last_sequence)
    reported = [dead_letter["message"], *case.reported, *(entry.payload.decode() for entry in entries)]
    log.close()
    assert not [words for words in reported if "DE00" in words or "VALUE" in words]
    case.check()


def test_a_table_that_refuses_every_row_halts_soon(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN told String MATERIALIZED encrypt('aes-128-ecb', name, 'short')")
    case.send_events(40, partitions=1)
    with pytest.raises(HaltError, match=r"the table refuses row after row and takes none, with: ClickHouse error 36 \(BAD_ARGUMENTS\)"):
        case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} DROP COLUMN told")
    case.warm_run()
    assert len(refused(case)) == 3
    case.check()
