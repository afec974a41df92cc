"""What Kafka does beside appending records: gaps, transactions, expiry, new partitions, topics made again."""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, OffsetSpec
from pyspark.sql import SparkSession
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.producer import make_producer

from pipelines.connectors.kafka.client import Block, KafkaTopic, RangeReader
from pipelines.engine.inputs import SourceInput
from pipelines.errors import DataLossError, HaltError, RetryableError
from pipelines.protocol.bodies import INGEST_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.tally import LegTally, tally
from pipelines.runner.runner import Runner
from pipelines.testing import SINGLE

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def event(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"event {number}", "amount": number / 4}).encode()


def ids(case: PipelineCase) -> list[int]:
    return sorted(row[1] for row in case.rows()) if case.count() else []


def ingested(case: PipelineCase) -> LegTally:
    log = case.log()
    found = tally(log, case.names, SINGLE)
    log.close()
    assert found.residue == 0
    return found.legs[0]


def positions(case: PipelineCase) -> dict[int, int]:
    """Where the ingest leg's chain stands."""
    log = case.log()
    to = read_chain(log, case.names, INGEST_CHAIN).to
    log.close()
    return {int(partition): offset for partition, offset in to.items()}


def skip(document: dict[str, Any]) -> None:
    document["sources"][0]["on_data_loss"] = "skip"


def latest(document: dict[str, Any]) -> None:
    document["sources"][0]["consumer_group_initial_offset"] = "latest"


@contextmanager
def running(case: PipelineCase, runner: Runner) -> Iterator[threading.Thread]:
    """The runner in a thread, until the block ends."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            runner.run()
        except HaltError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: runner.is_ready or not thread.is_alive(), "a ready runner")
    try:
        assert runner.is_ready, errors
        yield thread
    finally:
        runner.request_stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


# -- gaps -------------------------------------------------------------------------------------------------------------------


def test_every_record_left_in_a_compacted_topic_arrives(case: PipelineCase) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "200",
    }
    case.compact_soon()
    case.create_topic(1, **compacted)
    producer = make_producer(case.addresses.kafka_client)
    for number in range(500):
        key = number if number % 10 == 0 else number % 7
        producer.produce(case.topic, event(number), key=b"%d" % key)
        if number % 100 == 99:
            producer.flush()
            time.sleep(0.15)
    wait_until(lambda: len(case.records()) < 300, "a compaction")
    kept = sorted(offset for _, offset in case.records())
    assert any(after > before + 1 for before, after in pairwise(kept))
    case.warm_run()
    assert positions(case) == {0: 500}
    # Compaction goes on beside the run, so what it removed since is in the table and no longer in Kafka.
    found = ids(case)
    assert {offset for _, offset in case.records()} <= set(found) <= set(kept)
    account = ingested(case)
    assert account.rows_in == 500
    assert account.outcomes == {"written to raw": len(found), "offsets without a record": 500 - len(found), "expired and skipped": 0}


def transaction(case: PipelineCase, name: str, numbers: Iterable[int]) -> Producer:
    """A producer that has sent its events in a transaction that is still open."""
    producer = Producer({**case.addresses.kafka_client, "transactional.id": f"{case.topic}-{name}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in numbers:
        producer.produce(case.topic, event(number), partition=number % 2)
    assert producer.flush(30) == 0
    return producer


def wait_ends(case: PipelineCase, wanted: dict[int, int]) -> None:
    """Until a read_committed consumer sees the partitions end there: the broker writes a transaction's markers after it has answered."""
    asked = {TopicPartition(case.topic, partition): OffsetSpec.latest() for partition in wanted}

    def ends() -> dict[int, int]:
        found = case.admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        return {place.partition: listed.result(30).offset for place, listed in found.items()}

    wait_until(lambda: ends() == wanted, f"ends at {wanted}")


def test_aborted_transactions_leave_gaps_and_open_ones_block(case: PipelineCase, way: None) -> None:
    case.create_topic(2)
    transaction(case, "a", range(100)).commit_transaction(30)
    transaction(case, "b", range(100, 200)).abort_transaction(30)
    still_open = transaction(case, "c", range(200, 250))
    case.send([event(number) for number in range(300, 350)], partitions=2)
    # Per partition: 50 records and a marker, 50 aborted ones and a marker.
    wait_ends(case, {0: 102, 1: 102})
    case.warm_run()
    assert positions(case) == {0: 102, 1: 102}
    assert ids(case) == list(range(100))
    case.check()
    assert ingested(case).outcomes["offsets without a record"] == 104
    still_open.commit_transaction(30)
    wait_ends(case, {0: 153, 1: 153})
    case.warm_run()
    assert ids(case) == [*range(100), *range(200, 250), *range(300, 350)]
    case.check()


def test_a_partition_may_end_with_markers_or_hold_nothing_else(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic(2)
    transaction(case, "a", range(0, 40, 2)).abort_transaction(30)
    transaction(case, "b", range(1, 40, 2)).commit_transaction(30)
    wait_ends(case, {0: 21, 1: 21})
    case.warm_run()
    assert positions(case) == {0: 21, 1: 21}
    assert ids(case) == list(range(1, 40, 2))
    transaction(case, "c", range(40, 80)).abort_transaction(30)
    wait_ends(case, {0: 42, 1: 42})
    case.warm_run()
    assert positions(case) == {0: 42, 1: 42}
    assert ids(case) == list(range(1, 40, 2))
    case.check()


# -- expiry -----------------------------------------------------------------------------------------------------------------


def expire(case: PipelineCase, partition: int, before: int) -> None:
    case.admin.delete_records([TopicPartition(case.topic, partition, before)])[TopicPartition(case.topic, partition)].result(30)


@pytest.mark.crash
def test_expired_offsets_halt_and_skip_counts_them(case: PipelineCase, way: None) -> None:
    case.create_topic(1)
    case.send([event(number) for number in range(30)], partitions=1)
    case.warm_run()
    case.send([event(number) for number in range(30, 130)], partitions=1)
    expire(case, 0, 80)
    with pytest.raises(DataLossError, match="these records expired before they were read: see `on_data_loss` in the pipeline file"):
        case.warm_run()
    assert ids(case) == list(range(30))
    case.write_file(skip)
    case.warm_run()
    assert ids(case) == [*range(30), *range(80, 130)]
    assert ingested(case).outcomes == {"written to raw": 80, "offsets without a record": 0, "expired and skipped": 50}


@pytest.mark.crash
def test_all_that_was_not_read_may_have_expired(case: PipelineCase) -> None:
    case.create_topic(2)
    case.warm_run()
    case.send([event(number) for number in range(100)], partitions=2)
    expire(case, 0, 50)
    case.write_file(skip)
    case.warm_run()
    assert ids(case) == list(range(1, 100, 2))
    assert ingested(case).outcomes == {"written to raw": 50, "offsets without a record": 0, "expired and skipped": 50}
    case.check()


def test_a_first_start_begins_with_the_first_record_that_is_left(case: PipelineCase) -> None:
    case.create_topic(1)
    case.send([event(number) for number in range(100)], partitions=1)
    expire(case, 0, 60)
    case.warm_run()
    assert ids(case) == list(range(60, 100))
    assert ingested(case).outcomes == {"written to raw": 40, "offsets without a record": 0, "expired and skipped": 0}
    case.check()


# -- partitions and topics ----------------------------------------------------------------------------------------------------


def test_a_partition_added_while_running_is_read_from_its_start(case: PipelineCase) -> None:
    case.create_topic(1)
    case.write_file(latest)
    with running(case, case.warm_runner(until_caught_up=False)):
        case.send([event(number) for number in range(10)], partitions=1)
        case.wait_count(10)
        case.admin.create_partitions([NewPartitions(case.topic, 2)])[case.topic].result(30)
        wait_until(lambda: len(case.admin.list_topics(case.topic, 5).topics[case.topic].partitions) == 2, "the new partition")
        case.send([event(number) for number in range(10, 30)], partitions=2)
        case.wait_count(30)
    assert positions(case) == {0: 20, 1: 10}
    case.check()


@pytest.mark.crash
def test_a_partition_lost_in_an_open_plan_is_planned_again(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leg's input goes on hearing of the partition: so it is planned again and again, and left again and again."""
    silent: set[int] = {1}
    read, known_ends = RangeReader.read, KafkaTopic.known_ends

    def read_the_others(reader: RangeReader, ranges: dict[int, tuple[int, int]]) -> Iterator[Block]:
        yield from read(reader, {p: wanted for p, wanted in ranges.items() if p not in silent})
        if not silent.isdisjoint(ranges):
            raise RetryableError("Kafka gave nothing")

    def ends_of_others(topic: KafkaTopic, partitions: Iterable[int], *seconds: float) -> Any:
        ends, lost = known_ends(topic, partitions, *seconds)
        if not seconds:
            return ends, lost
        return {p: end for p, end in ends.items() if p not in silent}, {**lost, **dict.fromkeys(silent, RetryableError("no leader"))}

    case.create_topic(2)
    case.send([event(number) for number in range(100)], partitions=2)
    runner = case.warm_runner(until_caught_up=False)
    monkeypatch.setattr(RangeReader, "read", read_the_others)
    with running(case, runner):
        monkeypatch.setattr(KafkaTopic, "known_ends", ends_of_others)
        case.wait_count(50)
        case.send([event(number) for number in range(100, 150)], partitions=2)
        case.wait_count(75)
        wait_until(lambda: len(case.reported) >= 2, "a second amended plan")
        assert ids(case) == list(range(0, 150, 2))
        silent.clear()
        case.wait_count(150)
    assert all(f"no leader answered for partition 1 of {case.topic}, so the others go on without" in text for text in case.reported), (
        case.reported
    )
    assert positions(case) == {0: 75, 1: 75}
    case.check()


def remake_topic(case: PipelineCase, first: int, count: int) -> None:
    """The topic deleted and made again under its name, with other records at the same offsets."""
    case.admin.delete_topics([case.topic])[case.topic].result(30)

    def made() -> bool:
        try:
            case.create_topic()
        except Exception as error:
            assert "already exists" in str(error) or "marked for deletion" in str(error), error
            return False
        return True

    wait_until(made, "the topic to be made again")
    producer = make_producer(case.addresses.kafka_client)
    for number in range(first, first + count):
        producer.produce(case.topic, event(number), partition=number % 3)
    assert producer.flush(60) == 0


@pytest.mark.crash
def test_a_topic_that_was_made_again_while_stopped_is_refused(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    remake_topic(case, 1000, 60)
    with pytest.raises(DataLossError, match=f"topic {case.topic} was deleted and made again .* delete the pipeline and start it anew"):
        case.warm_run()
    assert ids(case) == list(range(30))


@pytest.mark.crash
def test_a_topic_made_again_while_it_is_read_halts_ingest(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    runner = case.warm_runner(until_caught_up=False)
    with running(case, runner):
        case.wait_count(30)
        remake_topic(case, 1000, 300)
        wait_until(lambda: runner.legs["ingest"].failure, "a halt of ingest")
        failure = runner.legs["ingest"].failure
        assert isinstance(failure, HaltError)
        assert case.topic in str(failure)
        assert runner.legs["process"].failure is None
        time.sleep(1)
        assert ids(case) == list(range(30))
    assert ids(case) == list(range(30))


# -- where reading begins, and what lag tools see -----------------------------------------------------------------------------


def test_latest_is_resolved_once_even_after_an_early_death(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.create_topic()
    case.write_file(latest)
    case.send_events(30)

    def die(*_: object) -> None:
        raise HaltError("died before its first plan")

    with monkeypatch.context() as patch:
        patch.setattr(SourceInput, "next", die)
        with pytest.raises(HaltError, match="died before its first plan"):
            case.warm_run(until_caught_up=False, legs=("ingest",))
    case.send_events(60)
    case.warm_run()
    assert ids(case) == list(range(30, 90))
    account = ingested(case)
    assert (account.rows_in, account.outcomes["written to raw"]) == (60, 60)


def test_the_consumer_group_shows_the_positions_reached(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(100)
    group = f"tallyflow-{case.pipeline}"

    def committed() -> dict[int, int]:
        listed = case.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        return {tp.partition: tp.offset for tp in listed.topic_partitions}

    case.warm_run()
    assert committed() == positions(case) == {0: 34, 1: 33, 2: 33}
    case.send_events(50)
    case.warm_run()
    assert committed() == positions(case)
