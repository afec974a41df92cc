"""`tallyflow audit`: everything counted again, from Kafka, the streams and the table themselves. Reads only; may run beside the pipeline.

The ledger gives the confirmed position of each leg, downstream read first, and its configuration; none of its counts is used. Then raw, the
table, out, dead letters and duplicates are read, and Kafka last: records that arrive meanwhile are not compared.

It counts positions and reads no contents. Two questions need contents, and verification answers them: which records without a row are
copies that dedup has dropped, and which rows a table without position columns holds.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from pipelines.config import KafkaSource, PipelineConfig
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.nats.client import JetStream
from pipelines.process import stage_config
from pipelines.process.program import Program
from pipelines.progress import Progress, no_progress
from pipelines.proof.audit.account import KAFKA_TO_RAW, OUT_TO_TABLE, RAW_TO_OUT, Account, Limits, Numbers, Tallied, compare
from pipelines.proof.audit.raw import RawRange, RawRead, read_raw
from pipelines.proof.readers import streams
from pipelines.proof.readers.kafka import Settings, end_offsets, first_offsets, is_compacted, topic_batches
from pipelines.proof.readers.streams import Coordinates, Subjects
from pipelines.proof.readers.table import SEQUENCE_AND_ORDINAL, count_rows, position_batches, table_batches
from pipelines.proof.report import Kind, Report
from pipelines.proof.verification.dropped import find_dropped
from pipelines.proof.verification.loading import Source
from pipelines.proof.verification.result import WAITING
from pipelines.proof.verification.run import Request, Verifier
from pipelines.proof.verification.span import load_configs, read_history
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.outcomes import DUPLICATE
from pipelines.protocol.positions import RawPositions, SourcePartition, position_text, sequences_of, unpacked
from pipelines.protocol.purge import read_purged
from pipelines.protocol.topology import LegId

_COORDINATES = ("_tf_topic", "_tf_partition", "_tf_offset")
_POSITIONS_PER_QUERY = 1000


@dataclass
class AuditReport(Report):
    """The report of one audit. `counts`: the number of records in each place.

    `ranges`: the compared ranges, first and last, both inclusive; the last is below the first if nothing was compared.
    """

    clean_means: ClassVar[str] = "every record that was compared is accounted for, once"

    ranges: dict[str, Any] = field(default_factory=dict)

    def heading(self) -> Iterator[str]:
        yield from super().heading()
        for name, ends in self.ranges.items():
            parts = ends if isinstance(ends, dict) else {"": ends}
            yield f"compared: {name}: " + ", ".join(f"{part} {_range_text(*part_ends)}".strip() for part, part_ends in parts.items())


def _range_text(first: int, last: int) -> str:
    return f"{first}..{last}" if first <= last else "none"


class Audit:
    """One audit; use it once. Of each kind of fault, `examples` are named.

    Raise HaltError for a pipeline that was never started, RetryableError while a system is away.
    """

    def __init__(self, config: PipelineConfig, log: JetStream, examples: int, progress: Progress = no_progress) -> None:
        self._config, self._log, self._examples, self._progress = config, log, examples, progress
        self._names = Names(config.pipeline_id)
        self._sources: dict[str, KafkaSource] = {source.source_id: source for source in config.sources}
        self._streams = {role: Subjects(self._names.stream(role)) for role in ("raw", "out", "dlq", "duplicates")}
        self._report = AuditReport(config.pipeline_id)

    def run(self) -> AuditReport:
        check_started(self._log, self._names)
        topology = self._config.topology
        self._chains = {leg: read_chain(self._log, self._names, leg.chain) for leg in reversed(topology.legs)}
        ends = {
            SourcePartition(source_id, int(partition)): end
            for leg, source_id in topology.sources.items()
            for partition, end in (self._chains[leg].to or {}).items()
        }
        self._progress("reading the raw stream")
        read_to, self._out_read_to = self._last("raw"), self._last("out")
        self._kafka_ends = self._in_kafka(end_offsets)
        firsts = self._in_kafka(first_offsets)
        raw = read_raw(self._log, self._names, self._streams["raw"], RawRange(read_to, ends, firsts))
        account = self._read_account(raw)
        limits = Limits(self._floor(), self._to(topology.process), read_to, self._last("raw"))
        self._progress("comparing")
        with TemporaryDirectory(prefix="tallyflow-audit-") as directory:
            self._compare(account, limits, Path(directory))
            if self._stage_config is not None and not self._has_positions:
                self._verify_rows(Path(directory))
        self._note_ranges(raw, limits)
        self._progress("reading Kafka")
        self._compare_kafka(raw)
        removed = [str(gap) for subjects in self._streams.values() for gap in subjects.removed]
        self._report.find("streams", "missing", len(removed), [{"found": gap} for gap in removed[: self._examples]])
        return self._report

    def _floor(self) -> int:
        """Return the raw sequence up to which a purge may have been at work. Call it after all streams have been read."""
        below = {role: read_purged(self._log, self._names, role).below for role in self._streams}
        for role, subjects in self._streams.items():
            subjects.settle(self._log, sys.maxsize if role == "duplicates" else below[role])
        # Kept duplicates are purged with the raw ranges that they come from.
        duplicates = min(self._streams["duplicates"].purged_to, below["raw"] - 1)
        return max(duplicates, *(self._streams[role].purged_to for role in ("raw", "out", "dlq")))

    def _to(self, leg: LegId) -> int:
        return self._chains[leg].to or 0

    def _last(self, role: str) -> int:
        return streams.last_sequence(self._log, self._names.stream(role))

    # The places.

    @cached_property
    def _stage_config(self) -> Program | None:
        """The configuration of the last range that was done; None before the first."""
        done = self._chains[self._config.topology.process].done
        return stage_config.load(self._log, self._names, done.body.config) if done else None

    @property
    def _has_positions(self) -> bool:
        return self._stage_config is not None and {*SEQUENCE_AND_ORDINAL} <= {*self._stage_config.position_columns}

    def _read_account(self, raw: RawRead) -> Account:
        out, confirmed, dead_letters, duplicates, refused, entered = (Tallied(raw.frames) for _ in range(6))
        table = Tallied(raw.frames) if self._has_positions else None
        if table is not None:
            self._progress("reading the table")
            self._read_table(table, raw)
        self._progress("reading dead letters, out and duplicates")
        self._read_dead_letters(dead_letters, refused)
        waiting = 0
        for message in streams.read_frames(self._log, self._names, "out", self._streams["out"]):
            codes = streams.positions_of(message)
            out.add(codes)
            if message.sequence <= self._to(self._config.topology.sinks[0]):
                confirmed.add(codes)
            elif message.sequence <= self._out_read_to:
                waiting += len(codes)
        self._report.cannot_prove("rows on out that the sink has not confirmed", waiting)
        for message in streams.read_frames(self._log, self._names, "duplicates", self._streams["duplicates"]):
            duplicates.add(streams.positions_of(message))
        entered.add(raw.entered)
        return Account(raw.frames, out, confirmed, dead_letters, duplicates, refused, entered, table)

    def _read_table(self, table: Tallied, raw: RawRead) -> None:
        """Read the rows of raw frames that exist; rows of purged frames stay in ClickHouse and are only counted."""
        first = raw.frames.first_sequence
        for positions in position_batches(self._config.sink, f"_tf_sequence = 0 OR _tf_sequence >= {first}"):
            table.add(positions)
        older = count_rows(self._config.sink, f"_tf_sequence > 0 AND _tf_sequence < {first}")
        self._report.leave_out("rows of the table whose raw frames are purged", older)

    def _read_dead_letters(self, dead_letters: Tallied, refused: Tallied) -> None:
        abandoned = 0
        for batch in streams.read_dead_letters(self._log, self._names, ("stage", "code"), self._streams["dlq"]):
            is_refused = pc.equal(batch.column("stage"), "sink")
            dead_letters.add(batch.filter(pc.invert(is_refused)).column("position").to_numpy())
            of_sink = batch.filter(is_refused)
            refused.add(of_sink.column("position").to_numpy())
            abandoned += int(pc.sum(pc.equal(of_sink.column("code"), "abandoned")).as_py() or 0)
        if abandoned:
            self._report.counts["given up by `plan abandon` (of the dead letters)"] = abandoned

    # The comparison.

    def _compare(self, account: Account, limits: Limits, directory: Path) -> None:
        counts = {"raw": len(account.raw), "out": account.out.rows, "dead letters": account.dead_letters.rows + account.refused.rows}
        counts |= {"entered again": account.entered.rows, "duplicates kept": account.duplicates.rows}
        if account.table is not None:
            counts["table"] = account.table.rows
        self._report.counts |= counts
        unread = len(account.raw) - account.raw.up_to(limits.process_to)
        self._report.cannot_prove("records on raw that process has not read", unread)
        for fault in compare(account, limits):
            codes = fault.codes
            if (fault.hop, fault.kind) == (RAW_TO_OUT, "missing") and len(codes):
                codes = self._without_dropped(codes, account, limits, directory)
            self._report.find(fault.hop, fault.kind, len(codes), self._named(account, codes[: self._examples]))

    def _without_dropped(self, codes: RawPositions, account: Account, limits: Limits, directory: Path) -> RawPositions:
        """Return the unexplained positions that verification does not prove to be dropped."""
        history = read_history(self._log, self._names, None).after(limits.floor)
        self._progress(f"looking for {len(codes):,} records that may have been dropped")
        source = Source(self._log, self._names, history, load_configs(self._log, self._names, history))
        dropped = find_dropped(source, account.accepted, directory, self._progress)
        sequences, copies = sequences_of(codes), np.intersect1d(codes, dropped.copies)
        unread = [codes[(sequences >= first) & (sequences <= last)] for first, last in dropped.unread]
        unsure = np.unique(np.concatenate([np.intersect1d(codes, dropped.unsure), *unread]))
        self._report.cannot_prove("records that may be copies of one that is purged", len(unsure))
        if len(copies):
            self._report.counts[DUPLICATE.label] = len(copies)
        proven = [copies, unsure]
        for name, positions in dropped.by_steps.items():
            proven.append(np.intersect1d(codes, positions))
            if len(proven[-1]):
                self._report.counts[f"dropped by {name}"] = len(proven[-1])
        return np.setdiff1d(codes, np.concatenate(proven))

    def _verify_rows(self, directory: Path) -> None:
        """Compare a table without position columns by the contents of its rows: verification computes them again."""
        verifier = Verifier(self._config, self._log, Request(directory, examples=self._examples), self._progress)
        self._report.counts["table"] = rows = count_rows(self._config.sink, "true")
        subject = verifier.subject()
        if subject is None or not subject.history.is_whole:
            self._report.cannot_prove("rows of a table without position columns: a part of raw is purged", rows)
            return
        verifier.compare(subject)
        places = {"rows": OUT_TO_TABLE, "schema": "schema"}
        self._report.findings += [replace(one, place=places[one.place]) for one in verifier.report.findings if one.place in places]
        self._report.not_proven += [gap for gap in verifier.report.not_proven if gap.what not in WAITING]
        self._report.not_compared += verifier.report.not_compared

    def _named(self, account: Account, codes: RawPositions) -> list[dict[str, Any]]:
        """Return positions as examples, with their Kafka coordinates in raw, or else in the table."""
        positions = [unpacked(code) for code in codes]
        coordinates_of = streams.coordinates(self._log, self._names, positions)
        coordinates_of |= self._coordinates_in_table([position for position in positions if position not in coordinates_of])
        named = []
        for code, position in zip(codes, positions, strict=True):
            topic, partition, offset = coordinates_of.get(position, (None, None, None))
            where = {"topic": topic, "partition": partition, "offset": offset, "position": position_text(code)}
            named.append({**where, "found": account.describe(code)})
        return named

    def _coordinates_in_table(self, positions: list[tuple[int, int]]) -> dict[tuple[int, int], Coordinates]:
        columns = (*SEQUENCE_AND_ORDINAL, *_COORDINATES)
        by_position: dict[tuple[int, int], Coordinates] = {}
        if self._stage_config is None or not {*columns} <= {*self._stage_config.position_columns}:
            return by_position
        for start in range(0, len(positions), _POSITIONS_PER_QUERY):
            among = ", ".join(f"({sequence}, {ordinal})" for sequence, ordinal in positions[start : start + _POSITIONS_PER_QUERY])
            for batch in table_batches(self._config.sink, columns, f"(_tf_sequence, _tf_ordinal) IN ({among})"):
                rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
                by_position |= {(sequence, ordinal): (topic, partition, offset) for sequence, ordinal, topic, partition, offset in rows}
        return by_position

    # Kafka.

    def _compare_kafka(self, raw: RawRead) -> None:
        self._report.cannot_prove("records in Kafka that ingest has not read", self._read_kafka(raw))
        firsts = self._in_kafka(first_offsets)
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
            self._report.leave_out("records in raw that Kafka has compacted away since", compacted)
        for kind, count in counts.items():
            self._report.find(KAFKA_TO_RAW, kind, count, examples[kind])
        self._report.ranges["Kafka offsets in raw"] = {
            f"{self._sources[key.source].topic}/{key.partition}": [max(offsets.start, firsts.get(key, offsets.end)), offsets.end - 1]
            for key, offsets in sorted(raw.offsets.items())
        }

    def _in_kafka(self, look: Callable[[Settings, str], dict[int, int]]) -> dict[SourcePartition, int]:
        return {
            SourcePartition(source_id, partition): offset
            for source_id, source in self._sources.items()
            for partition, offset in look(client_settings(source), source.topic).items()
        }

    def _read_kafka(self, raw: RawRead) -> int:
        """Note Kafka's offsets; return how many records ingest had not read when the audit began."""
        waiting = 0
        for source_id, source in self._sources.items():
            for batch in topic_batches(client_settings(source), source.topic):
                partitions, all_offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
                for partition in np.unique(partitions).tolist():
                    waiting += self._note_kafka(raw, SourcePartition(source_id, partition), all_offsets[partitions == partition])
        return waiting

    def _note_kafka(self, raw: RawRead, key: SourcePartition, offsets: Numbers) -> int:
        in_raw = raw.offsets.get(key)
        if in_raw is not None:
            in_raw.add_kafka(offsets)
        is_unread = (offsets >= (in_raw.end if in_raw else 0)) & (offsets < self._kafka_ends.get(key, 0))
        return int(np.count_nonzero(is_unread))

    def _note_ranges(self, raw: RawRead, limits: Limits) -> None:
        first = max(limits.floor + 1, raw.frames.first_sequence)
        first_out = streams.first_sequence(self._log, self._names.stream("out"))
        self._report.ranges |= {
            "raw sequences in out": [first, limits.process_to],
            "out sequences in the table": [first_out, self._to(self._config.topology.sinks[0])],
        }
        self._report.leave_out(
            f"raw sequences up to {limits.floor}: what became of them is purged, or may be", raw.frames.up_to(limits.floor)
        )
        if raw.frames.first_sequence > 1:
            self._report.leave_out(f"records before raw sequence {raw.frames.first_sequence}: they are purged")
