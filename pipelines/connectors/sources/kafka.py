"""A Kafka topic as a source: its facts and offsets, its records, and the consumer group that shows the progress to lag tools."""

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from pipelines.config import KafkaSource, PipelineConfig
from pipelines.connectors.kafka.client import KafkaTopic, RangeReader
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.sources import REQUEST_TIMEOUT_SECONDS, Ahead, Block, Words
from pipelines.counts import count_of
from pipelines.errors import HaltError

_LAST_COMMIT_SECONDS = 5.0
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
        """Return the beginnings that the file names, for the others the present ends or the first offsets, as it says.

        Raise HaltError for a partition or an offset that the topic does not have, and for a consumer group that has none, or still reads.
        """
        usual = self.ends(partitions) if self._source.consumer_group_initial_offset == "latest" else self.starts(partitions)
        named = {int(partition): offset for partition, offset in self._source.start_offsets.items()}
        if self._source.start_group is not None:
            named = self._committed(self._source.start_group, partitions)
        if missing := sorted(named.keys() - {*partitions}):
            raise HaltError(f"starting: {self.words} has no partition {missing[0]}, which start_offsets names; correct the file")
        for partition, end in self.ends(sorted(named)).items():
            if named[partition] > end:
                raise HaltError(
                    f"starting: partition {partition} of {self.words} ends at offset {end}, so it cannot begin at {named[partition]}; the "
                    "topic may be another one, or made anew: correct start_offsets or start_group"
                )
        return usual | named

    def _committed(self, group: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the offsets that a consumer group without a member has committed; partitions without one are left out."""
        doing = f"asking for consumer group {group}"
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(self._topic, partition) for partition in partitions])]
        seconds = REQUEST_TIMEOUT_SECONDS
        (described,) = self._result(doing, self._admin.describe_consumer_groups([group], request_timeout=seconds)).values()
        if described.members:
            raise HaltError(
                f"starting: consumer group {group} of start_group still has {count_of(len(described.members), 'member')}, which would read "
                "the same records; stop the program, wait until Kafka has noticed, and start again"
            )
        (found,) = self._result(doing, self._admin.list_consumer_group_offsets(asked, request_timeout=seconds)).values()
        committed = {one.partition: one.offset for one in found.topic_partitions if one.offset >= 0}
        if not committed:
            raise HaltError(f"starting: consumer group {group} of start_group has committed no offset of {self.words}; correct its name")
        return committed

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
        """Close the readers, after a last commit: a short run ends before its group has a coordinator, and would lose its only commit.

        While Kafka is silent that commit is given up, so that a stop ends.
        """
        self.discard()
        if self._group is None:
            return
        # Neither a commit that is waited for nor the close behind it has a limit (librdkafka 2.16, its issue 3740).
        ending = threading.Thread(target=_end, args=(self._group, self._published), name="last commit", daemon=True)
        ending.start()
        ending.join(_LAST_COMMIT_SECONDS)
        self._group = None


def _end(group: Consumer, offsets: Sequence[TopicPartition]) -> None:
    """Commit `offsets`, wait for the answer, and close the consumer."""
    if offsets:
        with contextlib.suppress(KafkaException):
            group.commit(offsets=[*offsets], asynchronous=False)
    group.close()


SOURCE = TopicSource
