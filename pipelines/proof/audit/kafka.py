"""Kafka's side of an audit: the offsets of the sources' topics, compared with those on raw."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.config import KafkaSource
from pipelines.connectors.kafka.settings import client_settings
from pipelines.proof.audit.account import KAFKA_TO_RAW, Numbers
from pipelines.proof.audit.raw import RawRead
from pipelines.proof.audit.report import AuditReport
from pipelines.proof.readers.kafka import TopicReader, is_compacted, open_topic
from pipelines.proof.report import Kind
from pipelines.protocol.positions import SourcePartition


class KafkaSide:
    """The topics of `sources`, by their ids; their bounds are noted when it is made. Of each kind of fault, `examples` are named.

    Methods raise RetryableError while Kafka is away.
    """

    def __init__(self, sources: Mapping[str, KafkaSource], examples: int) -> None:
        self._sources, self._examples = sources, examples
        self.firsts: dict[SourcePartition, int] = {}
        """The first offset that each partition held then."""
        self._ends: dict[SourcePartition, int] = {}
        for source_id, source in self._sources.items():
            with open_topic(client_settings(source), source.topic) as reader:
                for partition, (first, end) in reader.bounds().items():
                    key = SourcePartition(source_id, partition)
                    self.firsts[key], self._ends[key] = first, end

    def compare(self, raw: RawRead, report: AuditReport) -> None:
        """Read the topics, and note in the report where their offsets differ from those on raw."""
        waiting, firsts = 0, dict[SourcePartition, int]()
        for source_id, source in self._sources.items():
            with open_topic(client_settings(source), source.topic) as reader:
                waiting += self._read(raw, source_id, reader)
                # What has expired meanwhile is not missing.
                firsts |= {SourcePartition(source_id, partition): first for partition, (first, _) in reader.bounds().items()}
        report.cannot_prove("records in Kafka that ingest has not read", waiting)
        counts: dict[Kind, int] = dict.fromkeys(("missing", "doubled", "extra"), 0)
        examples: dict[Kind, list[dict[str, Any]]] = {kind: [] for kind in counts}
        compacted = 0
        for source_id, source in self._sources.items():
            mine = {key: offsets for key, offsets in sorted(raw.offsets.items()) if key.source == source_id}
            faults_by_partition = [(key, offsets.faults(firsts.get(key, offsets.end))) for key, offsets in mine.items()]
            if sum(len(faults["extra"]) for _, faults in faults_by_partition) and is_compacted(client_settings(source), source.topic):
                compacted += sum(len(faults.pop("extra")) for _, faults in faults_by_partition)
            for key, faults in faults_by_partition:
                for kind, faulty in faults.items():
                    counts[kind] += len(faulty)
                    shown = faulty[: self._examples - len(examples[kind])].tolist()
                    examples[kind] += [{"topic": source.topic, "partition": key.partition, "offset": offset} for offset in shown]
        if compacted:
            report.leave_out("records in raw that Kafka has compacted away since", compacted)
        for kind, count in counts.items():
            report.find(KAFKA_TO_RAW, kind, count, examples[kind])
        report.ranges["Kafka offsets in raw"] = {
            f"{self._sources[key.source].topic}/{key.partition}": [max(offsets.start, firsts.get(key, offsets.end)), offsets.end - 1]
            for key, offsets in sorted(raw.offsets.items())
        }

    def _read(self, raw: RawRead, source_id: str, reader: TopicReader) -> int:
        """Note the offsets of a source; return how many records ingest had not read when the audit began."""
        waiting = 0
        for batch in reader.batches():
            partitions, all_offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
            for partition in np.unique(partitions).tolist():
                waiting += self._note(raw, SourcePartition(source_id, partition), all_offsets[partitions == partition])
        return waiting

    def _note(self, raw: RawRead, key: SourcePartition, offsets: Numbers) -> int:
        in_raw = raw.offsets.get(key)
        if in_raw is not None:
            in_raw.add_kafka(offsets)
        is_unread = (offsets >= (in_raw.end if in_raw else 0)) & (offsets < self._ends.get(key, 0))
        return int(np.count_nonzero(is_unread))
