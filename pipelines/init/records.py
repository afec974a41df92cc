"""The sample: the newest records of a topic, or lines of JSON. Only reads; no consumer group is used."""

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from pipelines.config import KafkaSource
from pipelines.connectors.kafka.client import KafkaTopic, RangeReader
from pipelines.counts import count_of
from pipelines.errors import SampleError

PATIENCE_SECONDS = 10.0
_SHOWN_BYTES = 24


@dataclass
class Sample:
    """Records by what they are: `documents`, the JSON objects, with their bytes in `values`, and how many records are something else.

    `where`: the topic or the file, for messages.
    """

    where: str
    documents: list[dict[str, Any]] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    empty: int = 0
    unreadable: int = 0
    first_unreadable: bytes = b""

    @property
    def records(self) -> int:
        return len(self.documents) + self.empty + self.unreadable

    def add(self, value: bytes | None) -> None:
        """Add a record by its value."""
        if value is None:
            self.empty += 1
            return
        try:
            document = json.loads(value, object_pairs_hook=_distinct, parse_constant=_refuse)
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict):
            self.documents.append(document)
            self.values.append(value)
        else:
            self.first_unreadable = self.first_unreadable or value
            self.unreadable += 1

    def check(self) -> None:
        """Raise SampleError with one sentence for a sample from which no file can be made."""
        if self.documents:
            return
        doing = f"sampling {self.where}"
        if not self.records:
            raise SampleError(f"{doing}: it holds no records; send some, or give records of another place with --from-file")
        if not self.unreadable:
            found = count_of(self.empty, "record")
            raise SampleError(f"{doing}: {found}, none with a value: keys alone make no rows, which are made of values")
        begin = self.first_unreadable[:_SHOWN_BYTES]
        found = f"none of {count_of(self.records, 'record')} is a JSON object"
        raise SampleError(f"{doing}: {found}, and Tallyflow reads JSON; the first begins with {begin!r}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def of_lines(where: str, lines: Iterable[bytes], most: int) -> Sample:
    """Return the first records of a file with a JSON value per line; empty lines are none."""
    sample = Sample(where)
    for line in lines:
        if sample.records == most:
            break
        if value := line.strip():
            sample.add(value)
    return sample


def of_topic(source: KafkaSource, most: int) -> Sample:
    """Return the newest records of a topic, about as many of each partition.

    Raise RetryableError while Kafka is away, HaltError if the topic does not exist.
    """
    sample = Sample(f"topic {source.topic}")
    topic = KafkaTopic(source)
    partitions = topic.facts(PATIENCE_SECONDS).partitions
    starts, ends = topic.starts(partitions), topic.ends(partitions)
    of_each = -(-most // max(1, len(partitions)))
    ranges = {partition: (max(starts[partition], end - of_each), end) for partition, end in ends.items() if starts[partition] < end}
    if not ranges:
        return sample
    with closing(RangeReader(source)) as reader:
        for block in reader.read(ranges):
            for value, oversize in zip(*(block.records.column(name).to_pylist() for name in ("value", "oversize")), strict=True):
                if sample.records < most:
                    # The value of a record over the size limit is its head alone.
                    sample.add(value if oversize is None else (value or b"\xff"))
    return sample
