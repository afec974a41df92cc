"""Kafka through confluent-kafka: topic facts, offsets, and ranges of records as Arrow tables.

Offsets have gaps (compaction, transaction markers, aborted transactions), so a range ends at the consumer's position, never after a count.
`read_committed` throughout: the end of a partition is its last stable offset.
"""

import contextlib
import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from pipelines.config import KafkaSource
from pipelines.connectors.kafka.consumers import MakeConsumer
from pipelines.connectors.kafka.native_consumer import cheapest_consumer
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.sources import REQUEST_TIMEOUT_SECONDS, Ahead, Asked, Block, SourceFacts
from pipelines.error_classes import ErrorClasses
from pipelines.errors import DataLossError, HaltError, RetryableError, TallyflowError
from pipelines.protocol.records import RAW_SCHEMA

STALL_SECONDS = 2.0
GIVE_UP_SECONDS = 15.0
AHEAD_BYTES = 16 * 1024 * 1024
"""Limit of prefetched records of a partition that is not being read: beyond it, fetching is paused."""
CONSUME_MESSAGES = 5_000
FETCH_BYTES = 4 * 1024 * 1024
"""Limit of one answer of a broker, all partitions together: librdkafka unpacks the whole answer, and lz4 packs up to 255:1.

With 4 MiB for each of three partitions 2.4 GB of records were unpacked at once. With 1 MiB in total a backlog took 22 % more CPU per event,
with 2 MiB 40 % (another day): ranges were short.
"""
CONSUME_BYTES = 16 * 1024 * 1024
"""Limit of one `consume`, estimated from the size of earlier records."""
FIRST_MEAN_BYTES = 16 * 1024

_TABLE_CLASSES = ErrorClasses("kafka")
_NO_TOPIC_ID = "A" * 22
"""A zero id in the client's notation."""
_NOTE = (
    "note: the broker gives topics no ids, so a deleted and recreated topic is noticed only by its end, if that is before "
    "what was confirmed; never recreate a topic under the same name"
)
_STALE = {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION}
_GONE = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}


def map_error(doing: str, error: BaseException | KafkaError, classes: ErrorClasses = _TABLE_CLASSES) -> TallyflowError:
    """Map the driver's error to our error.

    librdkafka reconnects by itself, so transport errors are waits; an unknown error is a halt.
    """
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


def topic_facts(topic_id: str, partitions: Iterable[int]) -> SourceFacts:
    """Return the cluster's facts on a topic; a recreated topic has another id, except at a broker before 2.8 or a compatible server."""
    return SourceFacts(topic_id, tuple(sorted(partitions)), _NOTE if topic_id == _NO_TOPIC_ID else "")


class KafkaTopic:
    """Facts and offsets of one source's topic, as `connectors.sources.Source` says. Calls time out after 10 s with RetryableError."""

    def __init__(self, source: KafkaSource, classes: ErrorClasses = _TABLE_CLASSES) -> None:
        """Create the client without connecting. Raise HaltError for settings that librdkafka refuses, such as an unreadable certificate."""
        self._topic, self._classes = source.topic, classes
        self._errors: list[KafkaError] = []
        try:
            self._admin = AdminClient({**client_settings(source), "error_cb": self._errors.append, "log_level": 0})
        except KafkaException as error:
            brokers = ",".join(source.connection_params.brokers)
            raise HaltError(f"connecting to Kafka at {brokers}: {error.args[0].str()}; check `connection_params` of the source") from error

    def facts(self, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> SourceFacts:
        """Describe the topic. Raise HaltError if it does not exist."""
        doing = f"describing topic {self._topic}"
        found = self._result(doing, self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=timeout_seconds))
        description = found[self._topic]
        return topic_facts(str(description.topic_id), (partition.id for partition in description.partitions))

    def starts(self, partitions: Sequence[int]) -> dict[int, int]:
        return self._offsets(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> dict[int, int]:
        """Return the last stable offset (exclusive end of a read_committed reader), per partition. Raise while any has no leader."""
        ends, silent = self.known_ends(partitions, timeout_seconds)
        if silent:
            raise next(iter(silent.values()))
        return ends

    def known_ends(
        self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    ) -> tuple[dict[int, int], dict[int, RetryableError]]:
        """Return the ends of the partitions whose leader answers, and the errors of the others. Raise if none answers."""
        return self.heard(self.ask_ends(partitions, timeout_seconds)) if partitions else ({}, {})

    def ask_ends(self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> Asked:
        return self._ask(partitions, OffsetSpec.latest(), timeout_seconds)

    def _ask(self, partitions: Sequence[int], spec: OffsetSpec, timeout_seconds: float) -> Asked:
        wanted = {TopicPartition(self._topic, p): spec for p in partitions}
        asked: Asked = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_seconds)
        return asked

    def heard(self, asked: Asked) -> tuple[dict[int, int], dict[int, RetryableError]]:
        ends: dict[int, int] = {}
        silent: dict[int, RetryableError] = {}
        for asked_partition, future in asked.items():
            try:
                ends |= self._answers({asked_partition: future})
            except RetryableError as error:
                silent[asked_partition.partition] = RetryableError(
                    f"partition {asked_partition.partition} of {self._topic} does not answer: {error}"
                )
        if not ends:
            raise next(iter(silent.values()))
        return ends, silent

    def first_since(self, partitions: Sequence[int], instant: datetime) -> dict[int, int]:
        found = self._offsets(partitions, OffsetSpec.for_timestamp(int(instant.timestamp() * 1000)))
        ends = self.ends(partitions) if -1 in found.values() else {}
        return {partition: ends[partition] if offset == -1 else offset for partition, offset in found.items()}

    def _offsets(self, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        return self._answers(self._ask(partitions, spec, REQUEST_TIMEOUT_SECONDS)) if partitions else {}

    def _answers(self, asked: Asked) -> dict[int, int]:
        doing = f"listing offsets of {self._topic}"
        offsets = {asked_partition.partition: result.offset for asked_partition, result in self._result(doing, asked).items()}
        unknown = [partition for partition, offset in offsets.items() if offset == OFFSET_INVALID]
        if unknown:
            # librdkafka 2.16 returns this, without an error, for a leader that refuses connections.
            raise RetryableError(
                f"{doing}: the leader of partition {unknown[0]} gave no answer; retrying, check that the brokers are running"
            )
        return offsets

    def _result(self, doing: str, futures: Mapping[Any, Any]) -> dict[Any, Any]:
        self._errors.clear()
        try:
            return {key: future.result(REQUEST_TIMEOUT_SECONDS + 1) for key, future in futures.items()}
        except (KafkaException, TimeoutError) as error:
            if isinstance(error, KafkaException) and error.args[0].code() in _STALE:
                self._refresh()
            # librdkafka reports why a broker cannot be reached only to a poll.
            self._admin.poll(0)
            halts = [halt for e in self._errors if isinstance(halt := map_error(doing, e, self._classes), HaltError)]
            if halts:
                raise halts[0] from error
            mapped = (
                RetryableError(f"{doing}: Kafka gave no answer")
                if isinstance(error, TimeoutError)
                else map_error(doing, error, self._classes)
            )
            reasons = [e.str() for e in self._errors if e.code() != KafkaError._ALL_BROKERS_DOWN]
            if isinstance(mapped, RetryableError) and reasons:
                text = f"{doing}: Kafka did not answer: {reasons[-1]}; retrying, check that the brokers are running"
                raise RetryableError(text) from error
            raise mapped from error

    def _refresh(self) -> None:
        """Request the topic's leaders again.

        The admin client itself keeps those it knows: a restarted broker refused the old leader epoch for four minutes and more (measured,
        librdkafka 2.16).
        """
        with contextlib.suppress(KafkaException):
            self._admin.list_topics(self._topic, timeout=REQUEST_TIMEOUT_SECONDS)


class RangeReader:
    """Reads ranges of offsets of one topic. Keeps its consumer and prefetched records, so that contiguous ranges waste nothing.

    `keep_partitions`: stay assigned to partitions that a range does not name (a reader that serves all partitions in turn); otherwise only
    the partitions being read are fetched.
    """

    def __init__(
        self,
        source: KafkaSource,
        keep_partitions: bool = False,
        classes: ErrorClasses = _TABLE_CLASSES,
        consumer: MakeConsumer = cheapest_consumer,
    ) -> None:
        self._topic, self._classes = source.topic, classes
        self._keep_partitions = keep_partitions
        self._consumer = consumer(
            self._topic,
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
                # A full queue is empty long before the second that librdkafka waits by itself (measured: a fifth of a backlog's rate).
                "fetch.queue.backoff.ms": 10,
                "log_level": 0,
            },
        )
        self._next: dict[int, int] = {}
        self._ahead: dict[int, list[Block]] = {}
        self._paused: set[int] = set()
        self._mean_bytes = FIRST_MEAN_BYTES

    def open(self) -> int:
        """Connect to the cluster now; return the number of the topic's partitions."""
        try:
            return self._consumer.partitions(REQUEST_TIMEOUT_SECONDS)
        except KafkaException as error:
            raise map_error(f"reading the metadata of {self._topic}", error, self._classes) from error

    def ahead(self, starts: Mapping[int, int], seconds: float) -> Ahead:
        """Prefetch what Kafka has sent from `starts` on; wait at most `seconds` for a first record. Raise DataLossError like `read`."""
        self._position({p: (start, start) for p, start in starts.items()})
        self._resume(starts)
        deadline = time.monotonic() + seconds
        while (ends := self._ends_ahead(starts)) == starts and (left := deadline - time.monotonic()) > 0:
            # Waits for one message: `consume` would wait for all that it may return.
            self._poll(1, left)
        held_bytes = sum(block.records.nbytes for blocks in self._ahead.values() for block in blocks)
        if ends == starts or held_bytes >= CONSUME_BYTES:
            return Ahead(ends, ends == starts)
        _, is_all = self._poll(self._fitting, 0.0)
        return Ahead(self._ends_ahead(starts), is_all)

    def _ends_ahead(self, starts: Mapping[int, int]) -> dict[int, int]:
        held = {partition: blocks[-1].next_offset for partition, blocks in self._ahead.items() if blocks}
        return {partition: max(start, held.get(partition, 0)) for partition, start in starts.items()}

    @property
    def _fitting(self) -> int:
        return max(1, min(CONSUME_MESSAGES, CONSUME_BYTES // self._mean_bytes))

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Block]:
        """Yield blocks that cover every range {partition: (start, end)} (end exclusive), each partition's in offset order.

        The last block of a partition has `next_offset` == end, with or without rows. Raises DataLossError if `start` has expired, and
        RetryableError if Kafka sends nothing of a partition for 15 s, whatever it sends of others; time between blocks does not count.
        """
        open_ranges = {p: (start, end) for p, (start, end) in ranges.items() if start < end}
        self._position(open_ranges)
        self._resume(open_ranges)
        silent = dict.fromkeys(open_ranges, 0.0)
        repositioned, is_crowded = 0.0, False
        while open_ranges:
            for partition in list(open_ranges):
                yield from self._take_ahead(partition, open_ranges)
            if not open_ranges:
                return
            begun, wanted = time.monotonic(), min(self._fitting, sum(end - start for start, end in open_ranges.values()))
            # Records of others stand before the wanted ones: a few at a time would be a block each.
            heard, is_all = self._poll(self._fitting, 0.0) if is_crowded else self._poll(wanted, 0.05)
            is_crowded = not is_all and heard.isdisjoint(open_ranges)
            seconds = time.monotonic() - begun
            repositioned += seconds
            for partition in open_ranges:
                # A partition that others outrun in a full queue is not silent.
                is_outrun = not is_all and not heard.isdisjoint(open_ranges)
                silent[partition] = 0.0 if partition in heard else silent[partition] + (0.0 if is_outrun else seconds)
            self._hold_back(open_ranges)
            quiet = [partition for partition in open_ranges if silent[partition] > GIVE_UP_SECONDS]
            if quiet:
                quiet_from = ", ".join(f"partition {p} from offset {open_ranges[p][0]}" for p in quiet)
                raise RetryableError(
                    f"reading {self._topic}: Kafka gave nothing of {quiet_from} for {GIVE_UP_SECONDS:.0f} s; check that it has a leader"
                )
            if repositioned > STALL_SECONDS and any(silent[partition] > STALL_SECONDS for partition in open_ranges):
                # An end-of-partition event comes once; after a quiet spell only a new assignment repeats it.
                self._assign(open_ranges)
                repositioned = 0.0

    def _hold_back(self, asked_for: Container[int]) -> None:
        """Pause fetching of partitions that are not being read, once enough of them is prefetched."""
        full = [
            partition
            for partition, blocks in self._ahead.items()
            if partition not in asked_for
            and partition not in self._paused
            and sum(block.records.get_total_buffer_size() for block in blocks) > AHEAD_BYTES
        ]
        if full:
            self._consumer.pause(full)
            self._paused.update(full)

    def _resume(self, asked_for: Iterable[int]) -> None:
        """Resume fetching of these partitions."""
        paused = self._paused.intersection(asked_for)
        if paused:
            self._consumer.resume(paused)
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

    def keep_only(self, partitions: Collection[int]) -> None:
        """Stop fetching of all other partitions, which a full queue would hold instead of these."""
        if self._next.keys() - set(partitions):
            self._next = {partition: offset for partition, offset in self._next.items() if partition in partitions}
            self._assign({})

    def _position(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Keep the consumer's position if every range starts where reading stopped; else assign anew."""
        if any(self._next.get(p) != start for p, (start, _) in ranges.items()):
            self._assign(ranges)

    def _assign(self, ranges: Mapping[int, tuple[int, int]]) -> None:
        self._ahead.clear()
        # A partition that is assigned again stays paused.
        self._resume(self._paused)
        kept = self._next if self._keep_partitions else {}
        self._next = {**kept, **{p: start for p, (start, _) in ranges.items()}}
        try:
            self._consumer.assign(self._next)
        except KafkaException as error:
            raise map_error(f"assigning partitions of {self._topic}", error, self._classes) from error

    def _poll(self, most: int, seconds: float) -> tuple[set[int], bool]:
        """Move up to `most` messages into `_ahead`; return the partitions with an event, and whether the queue is empty now.

        `consume` waits for the requested number, `seconds` at most, so a request for the rest of the ranges returns without waiting.
        """
        try:
            polled = self._consumer.poll(most, seconds)
        except KafkaException as error:
            raise map_error(f"reading {self._topic}", error, self._classes) from error
        for problem in polled.errors:
            mapped = map_error(f"reading {self._topic}", problem, self._classes)
            if not isinstance(mapped, RetryableError):
                raise mapped
        ended = [Block(partition, RAW_SCHEMA.empty_table(), offset) for partition, offset in polled.ends.items()]
        for block in (*polled.blocks, *ended):
            self._ahead.setdefault(block.partition, []).append(block)
        if rows := sum(block.records.num_rows for block in polled.blocks):
            self._mean_bytes = max(1, sum(block.records.nbytes for block in polled.blocks) // rows)
        return {block.partition for block in (*polled.blocks, *ended)}, polled.count < most

    def close(self) -> None:
        self._consumer.close()


def _split(block: Block, at: int) -> tuple[Block, Block]:
    """Split a block into the part before offset `at`, and the rest."""
    offsets = block.records.column("offset").to_numpy()
    cut = int(np.searchsorted(offsets, at))
    return Block(block.partition, block.records.slice(0, cut), at), Block(block.partition, block.records.slice(cut), block.next_offset)
