"""How many insert tokens a table must remember, and for how long."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pipelines.connectors.sinks import Table
from pipelines.connectors.sinks.clickhouse import MIN_DEDUP_TIME, MOST_SHARERS, _check_window
from pipelines.errors import HaltError

TABLE = Table("db", "t", "MergeTree", "", (), 4)
REPLICATED = Table("db", "t", "ReplicatedMergeTree", "", (), 10_000, dedup_seconds=604_800)


def test_a_table_without_partitions_remembers_four() -> None:
    _check_window(TABLE, MIN_DEDUP_TIME)
    with pytest.raises(HaltError, match="it remembers 3 insert tokens, exactly-once needs at least 4; run ALTER TABLE"):
        _check_window(replace(TABLE, dedup_window=3), MIN_DEDUP_TIME)


def test_each_partition_of_an_insert_takes_a_token() -> None:
    """With a window of 10, a chunk of 20 partitions that was sent twice was there twice."""
    _check_window(replace(TABLE, is_partitioned=True, dedup_window=400), MIN_DEDUP_TIME)
    with pytest.raises(
        HaltError, match=r"needs at least 400 \(4 for each of 100 partitions .* non_replicated_deduplication_window = 10000"
    ):
        _check_window(replace(TABLE, is_partitioned=True, dedup_window=399), MIN_DEDUP_TIME)


def test_lanes_that_insert_at_once_take_a_token_each() -> None:
    """The pieces of one plan stay unconfirmed together: one that is sent again must find its token behind those of all others."""
    _check_window(replace(TABLE, dedup_window=64), MIN_DEDUP_TIME, lanes=16)
    with pytest.raises(
        HaltError, match=r"remembers 63 insert tokens, exactly-once needs at least 64 \(4 for each of 16 lanes at once\); run"
    ):
        _check_window(replace(TABLE, dedup_window=63), MIN_DEDUP_TIME, lanes=16)
    with pytest.raises(HaltError, match=r"at least 800 \(4 for each of 100 partitions of an insert and 2 lanes at once\)"):
        _check_window(replace(TABLE, is_partitioned=True, dedup_window=799), MIN_DEDUP_TIME, lanes=2)


def test_the_statement_that_is_named_is_enough() -> None:
    shared = replace(TABLE, is_partitioned=True, dedup_window=10_000)
    with pytest.raises(HaltError, match=r"at least 12800 .* non_replicated_deduplication_window = 12800, "):
        _check_window(shared, MIN_DEDUP_TIME, lanes=2 * MOST_SHARERS)
    _check_window(replace(shared, dedup_window=12_800), MIN_DEDUP_TIME, lanes=2 * MOST_SHARERS)


def test_a_replicated_table_remembers_a_whole_standstill() -> None:
    _check_window(REPLICATED, MIN_DEDUP_TIME)
    by_default = replace(REPLICATED, dedup_seconds=3600)
    with pytest.raises(
        HaltError, match=r"for 3600 s, .* at least 604800 s; .* replicated_deduplication_window_seconds = 604800, .*max_outage"
    ):
        _check_window(by_default, MIN_DEDUP_TIME)
    _check_window(by_default, timedelta(hours=1))
    with pytest.raises(HaltError, match="MODIFY SETTING replicated_deduplication_window = 10000"):
        _check_window(replace(REPLICATED, dedup_window=3), MIN_DEDUP_TIME)


@pytest.mark.parametrize("engine", ["Memory", "Null", "Distributed"])
def test_an_engine_that_does_not_deduplicate_is_refused(engine: str) -> None:
    with pytest.raises(HaltError, match="does not deduplicate inserts"):
        _check_window(replace(TABLE, engine=engine), MIN_DEDUP_TIME)
