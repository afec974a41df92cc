"""Kafka through confluent-kafka: topic facts, offsets, and ranges of records as Arrow tables.

Offsets have gaps (compaction, transaction markers, aborted transactions), so a range ends where the consumer's position says, never
after a count. `read_committed` throughout: the end of a partition is its last stable offset.
"""

import contextlib
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from pipelines.config import KafkaSource
from pipelines.connectors.kafka.records import to_records
from pipelines.connectors.kafka.settings import client_settings
from pipelines.error_classes import ErrorClasses
from pipelines.errors import DataLossError, HaltError, RetryableError, TallyflowError
from pipelines.protocol.records import RAW_SCHEMA

REQUEST_TIMEOUT_SECONDS = 10.0
STALL_SECONDS = 2.0
GIVE_UP_SECONDS = 15.0
AHEAD_BYTES = 16 * 1024 * 1024
"""What may lie ready of a partition that is not asked for: then Kafka is not asked for more of it."""
CONSUME_MESSAGES = 5_000
FETCH_BYTES = 4 * 1024 * 1024
"""Of one answer of a broker, all partitions together: librdkafka unpacks the whole of it, and lz4 packs up to 255:1. With 4 MiB for each of
three partitions 2.4 GB of records were unpacked at once. With 1 MiB in all a backlog took 22 % more CPU per event, with 2 MiB
40 % (another day): ranges were short.
"""
CONSUME_BYTES = 16 * 1024 * 1024
"""What is taken at once, by the size of the records that were taken before."""
FIRST_MEAN_BYTES = 16 * 1024

Asked = Mapping[TopicPartition, "Future[ListOffsetsResultInfo]"]

_TABLE_CLASSES = ErrorClasses("kafka")
_NO_TOPIC_ID = "A" * 22
"""Of a zero, as the client writes it."""
_STALE = {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION}
_GONE = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}


def map_error(doing: str, error: BaseException | KafkaError, classes: ErrorClasses = _TABLE_CLASSES) -> TallyflowError:
    """The driver's error as one of ours. librdkafka reconnects by itself, so transport errors are waits; what is not known is a halt."""
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else error
    if not isinstance(cause, KafkaError):
        return HaltError(f"{doing}: {type(error).__name__}: {error}")
    text = f"{doing}: Kafka says {cause.name()}: {cause.str()}"
    row = classes.row(cause.code())
    if row is None:
        # A code of a newer broker: librdkafka knows those that pass.
        if cause.retriable():
            return RetryableError(text)
        return HaltError(f"{text}; nothing was dropped: look it up in Kafka's own list of errors")
    if cause.code() in _GONE:
        return DataLossError(f"{text}; {row.remedy}")
    if cause.fatal() or classes.of(row) == "halt":
        return HaltError(f"{text}; {row.remedy}")
    return RetryableError(f"{text}; {row.remedy}")


@dataclass(frozen=True)
class TopicFacts:
    """What the cluster says about a topic: its id (a topic made again has another one) and its partitions."""

    topic_id: str
    partitions: tuple[int, ...]

    @property
    def note(self) -> str:
        """What a start says of a broker whose topics have no ids (Kafka before 2.8, or one that only speaks its protocol); else empty."""
        if self.topic_id != _NO_TOPIC_ID:
            return ""
        return (
            "note: the broker gives topics no ids, so a topic that is deleted and made again is told only by its end, if that is before "
            "what was confirmed; never make a topic again under its name"
        )


class KafkaTopic:
    """Facts and offsets of one source's topic. Calls time out after 10 s with RetryableError."""

    def __init__(self, source: KafkaSource, classes: ErrorClasses = _TABLE_CLASSES) -> None:
        """Connects to nothing yet. Raises HaltError for settings that librdkafka refuses, such as a certificate that it cannot read."""
        self._topic, self._classes = source.topic, classes
        self._errors: list[KafkaError] = []
        try:
            self._admin = AdminClient({**client_settings(source), "error_cb": self._errors.append, "log_level": 0})
        except KafkaException as error:
            brokers = ",".join(source.connection_params.brokers)
            raise HaltError(f"connecting to Kafka at {brokers}: {error.args[0].str()}; check `connection_params` of the source") from error

    def facts(self, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> TopicFacts:
        """Raises HaltError when the topic does not exist."""
        doing = f"describing topic {self._topic}"
        found = self._result(doing, self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=timeout_seconds))
        description = found[self._topic]
        return TopicFacts(str(description.topic_id), tuple(sorted(p.id for p in description.partitions)))

    def starts(self, partitions: Sequence[int]) -> dict[int, int]:
        """First offset that still exists, per partition."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> dict[int, int]:
        """Last stable offset (exclusive end of what a read_committed reader sees), per partition. Raises while any has no leader."""
        ends, silent = self.known_ends(partitions, timeout_seconds)
        if silent:
            raise next(iter(silent.values()))
        return ends

    def known_ends(
        self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    ) -> tuple[dict[int, int], dict[int, RetryableError]]:
        """As `ends`, of the partitions that have a leader which answers; and why of the others. Raises when none answers."""
        return self.heard(self.ask_ends(partitions, timeout_seconds)) if partitions else ({}, {})

    def ask_ends(self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> Asked:
        """Asks what `known_ends` tells and does not wait; `heard` tells it."""
        return self._ask(partitions, OffsetSpec.latest(), timeout_seconds)

    def _ask(self, partitions: Sequence[int], spec: OffsetSpec, timeout_seconds: float) -> Asked:
        wanted = {TopicPartition(self._topic, p): spec for p in partitions}
        asked: Asked = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_seconds)
        return asked

    def heard(self, asked: Asked) -> tuple[dict[int, int], dict[int, RetryableError]]:
        """As `known_ends`, of what was asked before; waits for what was not answered yet."""
        ends: dict[int, int] = {}
        silent: dict[int, RetryableError] = {}
        for place, future in asked.items():
            try:
                ends |= self._answers({place: future})
            except RetryableError as error:
                silent[place.partition] = RetryableError(f"partition {place.partition} of {self._topic} is waited for: {error}")
        if not ends:
            raise next(iter(silent.values()))
        return ends, silent

    def first_since(self, partitions: Sequence[int], instant: datetime) -> dict[int, int]:
        """Offset of the first record whose own time is not before the instant, per partition; the end where there is none."""
        found = self._offsets(partitions, OffsetSpec.for_timestamp(int(instant.timestamp() * 1000)))
        ends = self.ends(partitions) if -1 in found.values() else {}
        return {partition: ends[partition] if offset == -1 else offset for partition, offset in found.items()}

    def _offsets(self, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        return self._answers(self._ask(partitions, spec, REQUEST_TIMEOUT_SECONDS)) if partitions else {}

    def _answers(self, asked: Asked) -> dict[int, int]:
        doing = f"listing offsets of {self._topic}"
        found = {place.partition: result.offset for place, result in self._result(doing, asked).items()}
        unknown = [partition for partition, offset in found.items() if offset == OFFSET_INVALID]
        if unknown:
            # What librdkafka 2.16 says, without an error, of a leader that refuses connections.
            raise RetryableError(
                f"{doing}: the leader of partition {unknown[0]} gave no answer; it is tried again, see whether the brokers run"
            )
        return found

    def _result(self, doing: str, futures: Mapping[Any, Any]) -> dict[Any, Any]:
        self._errors.clear()
        try:
            return {key: future.result(REQUEST_TIMEOUT_SECONDS + 1) for key, future in futures.items()}
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() in _STALE:
                self._refresh()
            # Why a broker cannot be reached, librdkafka tells only to those who poll.
            self._admin.poll(0)
            told = [halt for e in self._errors if isinstance(halt := map_error(doing, e, self._classes), HaltError)]
            if told:
                raise told[0] from error
            mapped = RetryableError(f"{doing}: no answer") if isinstance(error, TimeoutError) else map_error(doing, error, self._classes)
            reasons = [e.str() for e in self._errors if e.code() != KafkaError._ALL_BROKERS_DOWN]
            if isinstance(mapped, RetryableError) and reasons:
                text = f"{doing}: Kafka did not answer: {reasons[-1]}; it is tried again, see whether the brokers run"
                raise RetryableError(text) from error
            raise mapped from error

    def _refresh(self) -> None:
        """Asks for the topic's leaders again. The admin client itself goes on with those it knows: a broker that was restarted refused
        the old leader epoch for four minutes and more (measured, librdkafka 2.16)."""
        with contextlib.suppress(KafkaException):
            self._admin.list_topics(self._topic, timeout=REQUEST_TIMEOUT_SECONDS)


class GroupOffsets:
    """Commits the consumer group's offsets, so that ordinary lag tools tell the truth. Nothing resumes from them."""

    def __init__(self, source: KafkaSource, group: str) -> None:
        self._topic = source.topic
        self._consumer = Consumer({**client_settings(source), "group.id": group, "enable.auto.commit": False, "log_level": 0})
        self._positions: list[TopicPartition] = []

    def commit(self, next_offsets: Mapping[int, int]) -> None:
        """Sends the commit without waiting; the next one, or `close`, makes up for a lost one."""
        self._positions = [TopicPartition(self._topic, partition, offset) for partition, offset in next_offsets.items()]
        if self._positions:
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=self._positions, asynchronous=True)
            # Serves the commit's reply queue; the consumer subscribes to nothing, so it never returns a record.
            self._consumer.poll(0)

    def close(self) -> None:
        """Commits once more and waits for it: a short run ends before its group has a coordinator, and its only commit is lost."""
        if self._positions:
            with contextlib.suppress(KafkaException):
                self._consumer.commit(offsets=self._positions, asynchronous=False)
        self._consumer.close()


@dataclass(frozen=True)
class Block:
    """Records of one partition in offset order (RAW_SCHEMA), and the offset after the last one passed, row or not.

    `is_expired`: the offsets before `next_offset` are gone from Kafka; such a block has no rows.
    """

    partition: int
    records: pa.Table
    next_offset: int
    is_expired: bool = False


class RangeReader:
    """Reads ranges of offsets of one topic. Keeps its consumer and what it read too far, so that contiguous ranges waste nothing.

    `keep_partitions`: stay assigned to partitions that a range does not name (a reader that serves all partitions in turn); otherwise
    only what is being read is fetched.
    """

    def __init__(self, source: KafkaSource, keep_partitions: bool = False, classes: ErrorClasses = _TABLE_CLASSES) -> None:
        self._topic, self._classes = source.topic, classes
        self._keep_partitions = keep_partitions
        self._consumer = Consumer(
            {
                **client_settings(source),
                "group.id": "tallyflow-reader",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 16 * 1024,
                "fetch.message.max.bytes": FETCH_BYTES,
                "fetch.max.bytes": FETCH_BYTES,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self._next: dict[int, int] = {}
        self._ahead: dict[int, list[Block]] = {}
        self._paused: set[int] = set()
        self._mean_bytes = FIRST_MEAN_BYTES

    def open(self) -> int:
        """Reaches the cluster now; returns how many partitions the topic has."""
        try:
            return len(self._consumer.list_topics(self._topic, timeout=REQUEST_TIMEOUT_SECONDS).topics[self._topic].partitions)
        except KafkaException as error:
            raise map_error(f"reading the metadata of {self._topic}", error, self._classes) from error

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Block]:
        """Blocks that cover every range {partition: (start, end)} (end exclusive), each partition's in offset order.

        The last block of a partition has `next_offset` == end, with or without rows. Raises DataLossError when `start` has expired,
        RetryableError when Kafka gives nothing of a partition for 15 s, whatever it gives of others; time between blocks does not count.
        """
        open_ranges = {p: (start, end) for p, (start, end) in ranges.items() if start < end}
        self._position(open_ranges)
        self._resume(open_ranges)
        silent = dict.fromkeys(open_ranges, 0.0)
        repositioned = 0.0
        while open_ranges:
            for partition in list(open_ranges):
                yield from self._take_ahead(partition, open_ranges)
            if not open_ranges:
                return
            fitting = max(1, CONSUME_BYTES // self._mean_bytes)
            begun, wanted = time.monotonic(), min(CONSUME_MESSAGES, fitting, sum(end - start for start, end in open_ranges.values()))
            heard, is_all = self._poll(wanted)
            seconds = time.monotonic() - begun
            repositioned += seconds
            for partition in open_ranges:
                # One that others outrun in a full queue is not silent.
                is_outrun = not is_all and not heard.isdisjoint(open_ranges)
                silent[partition] = 0.0 if partition in heard else silent[partition] + (0.0 if is_outrun else seconds)
            self._hold_back(open_ranges)
            quiet = [partition for partition in open_ranges if silent[partition] > GIVE_UP_SECONDS]
            if quiet:
                told = ", ".join(f"partition {p} from offset {open_ranges[p][0]}" for p in quiet)
                raise RetryableError(f"reading {self._topic}: Kafka gave nothing of {told} for {GIVE_UP_SECONDS:.0f} s; has it a leader?")
            if repositioned > STALL_SECONDS and any(silent[partition] > STALL_SECONDS for partition in open_ranges):
                # An end-of-partition event is told once; after a quiet spell only a new assignment tells it again.
                self._assign({**(self._next if self._keep_partitions else {}), **{p: start for p, (start, _) in open_ranges.items()}})
                repositioned = 0.0

    def _hold_back(self, asked_for: Container[int]) -> None:
        """Stops fetching partitions that nobody asks for, once enough of them lies ready."""
        full = [
            partition
            for partition, blocks in self._ahead.items()
            if partition not in asked_for
            and partition not in self._paused
            and sum(block.records.get_total_buffer_size() for block in blocks) > AHEAD_BYTES
        ]
        if full:
            self._consumer.pause([TopicPartition(self._topic, partition) for partition in full])
            self._paused.update(full)

    def _resume(self, asked_for: Iterable[int]) -> None:
        """Lets Kafka be asked for these partitions again."""
        paused = self._paused.intersection(asked_for)
        if paused:
            self._consumer.resume([TopicPartition(self._topic, partition) for partition in paused])
            self._paused -= paused

    def _take_ahead(self, partition: int, open_ranges: dict[int, tuple[int, int]]) -> Iterator[Block]:
        queue = self._ahead.get(partition, [])
        while queue and partition in open_ranges:
            start, end = open_ranges[partition]
            block = queue.pop(0)
            if block.next_offset > end:
                block, rest = _split(block, end)
                queue.insert(0, rest)
            if block.next_offset >= end:
                del open_ranges[partition]
            else:
                open_ranges[partition] = (block.next_offset, end)
            if block.next_offset > start:
                self._next[partition] = block.next_offset
                yield block

    def _position(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Leaves the consumer where it is if every range starts where reading stopped; else assigns anew."""
        if all(self._next.get(p) == start for p, (start, _) in ranges.items()):
            return
        kept = self._next if self._keep_partitions else {}
        self._assign({**kept, **{p: start for p, (start, _) in ranges.items()}})

    def _assign(self, starts: Mapping[int, int]) -> None:
        self._ahead.clear()
        # A partition that is assigned again stays paused.
        self._resume(self._paused)
        self._next = dict(starts)
        try:
            self._consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in starts.items()])
        except KafkaException as error:
            raise map_error(f"assigning partitions of {self._topic}", error, self._classes) from error

    def _poll(self, wanted: int) -> tuple[set[int], bool]:
        """Moves up to `wanted` messages into `_ahead`; the partitions that were heard of, and whether there are no more messages now.

        `consume` waits for as many as it is asked for, so asking for what is left of the ranges returns without waiting.
        """
        try:
            messages = self._consumer.consume(wanted, timeout=0.05)
        except KafkaException as error:
            raise map_error(f"reading {self._topic}", error, self._classes) from error
        is_all = len(messages) < wanted
        if not messages:
            return set(), is_all
        errors = list(map(Message.error, messages))
        if any(errors):
            told = [(m, e) for m, e in zip(messages, errors, strict=True) if e is not None]
            for _, problem in told:
                if problem.code() != KafkaError._PARTITION_EOF:
                    self._raise_unless_transient(problem)
            # A reader that keeps up is told of an end with every few messages: only the last one of a partition matters.
            ends = {m.partition(): m.offset() for m, problem in told if problem.code() == KafkaError._PARTITION_EOF}
            messages = list(compress(messages, [e is None for e in errors]))
        else:
            ends = {}
        blocks = [*_blocks(messages), *(Block(partition, RAW_SCHEMA.empty_table(), offset) for partition, offset in ends.items())]
        for block in blocks:
            self._ahead.setdefault(block.partition, []).append(block)
        if messages:
            self._mean_bytes = max(1, sum(block.records.nbytes for block in blocks) // len(messages))
        return {block.partition for block in blocks}, is_all

    def _raise_unless_transient(self, error: KafkaError) -> None:
        mapped = map_error(f"reading {self._topic}", error, self._classes)
        if not isinstance(mapped, RetryableError):
            raise mapped

    def close(self) -> None:
        self._consumer.close()


def _split(block: Block, at: int) -> tuple[Block, Block]:
    """The block before offset `at`, and the rest."""
    offsets = block.records.column("offset").to_numpy()
    cut = int(np.searchsorted(offsets, at))
    return Block(block.partition, block.records.slice(0, cut), at), Block(block.partition, block.records.slice(cut), block.next_offset)


def _blocks(messages: list[Message]) -> Iterator[Block]:
    """Messages as one block per partition."""
    if not messages:
        return
    partitions = np.fromiter(map(Message.partition, messages), dtype=np.int32, count=len(messages))
    for partition in np.unique(partitions):
        mine = partitions == partition
        own = messages if mine.all() else list(compress(messages, mine))
        records = to_records(own, int(partition))
        yield Block(int(partition), records, own[-1].offset() + 1)
