"""A Kafka topic as a source: its facts and offsets, its records, and the consumer group that shows the progress to lag tools."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from pipelines.config import KafkaSource, PipelineConfig
from pipelines.connectors.kafka.client import KafkaTopic, RangeReader
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.sources import Ahead, Block, Words

_LOSSES = "an unclean leader election, a restore, a power loss of a single broker"


class TopicSource(KafkaTopic):
    """One topic of a pipeline, as `connectors.sources.Source` says. Its readers are made at first use."""

    def __init__(self, pipeline: PipelineConfig, source: KafkaSource, keep_partitions: bool) -> None:
        super().__init__(source, pipeline.on_error.classes("kafka"))
        self.words = Words("Kafka", "topic", source.topic, _LOSSES)
        self.skips_expired = source.on_data_loss == "skip"
        self._source, self._group_id, self._keep_partitions = source, pipeline.consumer_group(source), keep_partitions
        self._reader: RangeReader | None = None
        self._group: Consumer | None = None
        self._published: list[TopicPartition] = []

    def beginnings(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the present ends or the first offsets, as the source's `consumer_group_initial_offset` says."""
        return self.ends(partitions) if self._source.consumer_group_initial_offset == "latest" else self.starts(partitions)

    @property
    def _opened(self) -> RangeReader:
        if self._reader is None:
            self._reader = RangeReader(self._source, self._keep_partitions, self._classes)
        return self._reader

    def open(self) -> int:
        return self._opened.open()

    def ahead(self, starts: Mapping[int, int], seconds: float) -> Ahead:
        return self._opened.ahead(starts, seconds)

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Block]:
        return self._opened.read(ranges)

    def keep_only(self, partitions: Collection[int]) -> None:
        self._opened.keep_only(partitions)

    def discard(self) -> None:
        """Discard the reader: the next read starts with a fresh consumer."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def publish(self, next_offsets: Mapping[int, int]) -> None:
        """Commit the offsets of the consumer group without waiting; the next commit, or `close`, makes up for a lost one."""
        if self._group is None:
            settings = {"group.id": self._group_id, "enable.auto.commit": False, "log_level": 0}
            self._group = Consumer({**client_settings(self._source), **settings})
        self._published = [TopicPartition(self._topic, partition, offset) for partition, offset in next_offsets.items()]
        if self._published:
            with contextlib.suppress(KafkaException):
                self._group.commit(offsets=self._published, asynchronous=True)
            # Serves the commit's reply queue; the consumer subscribes to nothing, so it never returns a record.
            self._group.poll(0)

    def close(self) -> None:
        """Close the readers, after a last commit that is waited for.

        A short run ends before its group has a coordinator, and would lose its only commit.
        """
        self.discard()
        if self._group is None:
            return
        if self._published:
            with contextlib.suppress(KafkaException):
                self._group.commit(offsets=self._published, asynchronous=False)
        self._group.close()
        self._group = None


SOURCE = TopicSource
