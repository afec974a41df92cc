"""`tallyflow audit`: everything counted again, from Kafka, the streams and the table themselves. Reads only; may run beside the pipeline.

The ledger gives the confirmed position of each leg, downstream read first, and its configuration; none of its counts is used. Then raw, the
table, out, dead letters and duplicates are read, and Kafka last: records that arrive meanwhile are not compared.

It counts positions and reads no contents. Two questions need contents, and verification answers them: which records without a row are
copies that dedup has dropped, and which rows a table without position columns holds.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.home import default_home
from pipelines.process import stage_config
from pipelines.process.program import Program
from pipelines.progress import Progress, no_progress
from pipelines.proof.audit.account import (
    OUT_TO_TABLE,
    RAW_TO_OUT,
    Account,
    Fault,
    Limits,
    Tallied,
    compare,
    dead_letter_faults,
)
from pipelines.proof.audit.dead_letter_table import compare_dead_letter_table
from pipelines.proof.audit.kafka import KafkaSide
from pipelines.proof.audit.raw import RawRange, RawRead, read_raw
from pipelines.proof.audit.report import AuditReport
from pipelines.proof.audit.several_rows import ExpectedRows, row_faults, sink_row_faults
from pipelines.proof.purged_rows import is_there, note_rows_by_number
from pipelines.proof.readers import streams
from pipelines.proof.readers.streams import Coordinates, Subjects
from pipelines.proof.readers.table import count_rows, position_batches, row_batches, table_batches
from pipelines.proof.verification.dropped import find_dropped
from pipelines.proof.verification.loading import Source, snapshots_of
from pipelines.proof.verification.open_lefts import PURGED_DECIDES
from pipelines.proof.verification.result import WAITING
from pipelines.proof.verification.run import Request, Verifier
from pipelines.proof.verification.span import load_configs, read_history
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names, is_then_dropped
from pipelines.protocol.outcomes import DUPLICATE, MADE
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, RawPositions, SourcePartition, position_text, sequences_of, unpacked
from pipelines.protocol.purge import read_purged
from pipelines.protocol.tally import Tally, tally
from pipelines.protocol.topology import LegId

_COORDINATES = ("_tf_topic", "_tf_partition", "_tf_offset")
_POSITIONS_PER_QUERY = 1000


class Audit:
    """One audit; use it once. Of each kind of fault, `examples` are named. `directory`: the pipeline's, by default below this host's home.

    Raise HaltError for a pipeline that was never started, RetryableError while a system is away.
    """

    def __init__(
        self, config: PipelineConfig, log: JetStream, examples: int, progress: Progress = no_progress, directory: Path | None = None
    ) -> None:
        self._config, self._log, self._examples, self._progress = config, log, examples, progress
        self._names = Names(config.pipeline_id)
        self._topology = config.topology
        self._directory = directory or self._names.directory(default_home())
        self._streams = {role: Subjects(self._names.stream(role)) for role in ("raw", *self._topology.outs, "dlq", "duplicates")}
        self._report = AuditReport(config.pipeline_id)

    def run(self) -> AuditReport:
        check_started(self._log, self._names)
        topology = self._topology
        before = tally(self._log, self._names, topology)
        self._chains = {leg: read_chain(self._log, self._names, leg.chain) for leg in reversed(topology.legs)}
        ends = {
            SourcePartition(source_id, int(partition)): end
            for leg, source_id in topology.sources.items()
            for partition, end in (self._chains[leg].to or {}).items()
        }
        self._progress("reading the raw stream")
        read_to, self._out_read_to = self._last("raw"), {role: self._last(role) for role in topology.outs}
        kafka = KafkaSide({source.source_id: source for source in self._config.sources}, self._examples)
        raw = read_raw(self._log, self._names, self._streams["raw"], RawRange(read_to, ends, kafka.firsts))
        accounts = self._read_accounts(raw)
        limits = Limits(self._floor(), self._to(topology.process), read_to, self._last("raw"))
        self._progress("comparing")
        unread = len(raw.frames) - raw.frames.up_to(limits.process_to)
        self._report.cannot_prove("records on raw that process has not read", unread)
        for fault in dead_letter_faults([*accounts.values()], limits):
            named = self._named(self._config, accounts[topology.sinks[0]], fault.codes[: self._examples])
            self._report.find(fault.hop, fault.kind, len(fault.codes), named)
        with TemporaryDirectory(prefix="tallyflow-audit-") as directory:
            for seen in self._config.by_sink:
                self._compare(seen, accounts, limits, Path(directory))
                if self._stage_config is None:
                    self._note_rows_of_nobody(seen)
                elif not self._has_positions(seen.sink_leg):
                    self._verify_rows(seen, Path(directory))
        for seen in self._config.by_table[len(self._config.by_sink) :]:
            self._progress("reading the table of dead letters")
            compare_dead_letter_table(seen, self._log, self._chains[seen.sink_leg].to or 0, self._report, self._examples)
        self._note_ranges(raw, limits)
        self._progress("reading Kafka")
        kafka.compare(raw, self._report)
        removed = [str(gap) for subjects in self._streams.values() for gap in subjects.removed]
        self._report.find("streams", "missing", len(removed), [{"found": gap} for gap in removed[: self._examples]])
        of_records = [seen for seen in self._config.by_sink if self._has_positions(seen.sink_leg)]
        purged = of_records if raw.frames.first_sequence > 1 else []
        if read_purged(self._log, self._names, "dlq").below > 0:
            purged += self._config.by_table[len(self._config.by_sink) :]
        for seen in purged:
            self._count_behind_purge(seen, before)
        return self._report

    def _count_behind_purge(self, seen: PipelineConfig, before: Tally) -> None:
        """Compare the number of all rows of a table with the ledger's: what some were made of is purged."""
        found = count_rows(seen.sink, "_tf_sequence > 0")
        after = tally(self._log, self._names, self._topology)
        note_rows_by_number(self._report, seen.sink, seen.sink_leg, found, before, after)

    def _note_rows_of_nobody(self, seen: PipelineConfig) -> None:
        """Note the rows of a table for which process has done nothing yet."""
        if is_there(seen.sink):
            what = self._of("rows of the table, before process has done its first range", seen.sink_leg)
            self._report.cannot_prove(what, count_rows(seen.sink, "true"))

    def _floor(self) -> int:
        """Return the raw sequence up to which a purge may have been at work. Call it after all streams have been read."""
        below = {role: read_purged(self._log, self._names, role).below for role in self._streams}
        for role, subjects in self._streams.items():
            subjects.settle(self._log, sys.maxsize if role == "duplicates" else below[role])
        # Kept duplicates are purged with the raw ranges that they come from.
        duplicates = min(self._streams["duplicates"].purged_to, below["raw"] - 1)
        # Behind a purge of raw the last frame of a quiet subject may stand alone; the ledger no longer tells of it.
        return max(duplicates, below["raw"] - 1, *(one.purged_to for role, one in self._streams.items() if role != "duplicates"))

    def _to(self, leg: LegId) -> int:
        return self._chains[leg].to or 0

    def _last(self, role: str) -> int:
        return streams.last_sequence(self._log, self._names.stream(role))

    # The places.

    @cached_property
    def _has_several(self) -> bool:
        """Whether records may have several rows, or have had."""
        done = self._chains[self._config.topology.process].done
        return self._stage_config is not None and (self._stage_config.makes_several or bool(done and done.body.totals.get(MADE)))

    @staticmethod
    def _places(rows: pa.Table) -> tuple[RawPositions, npt.NDArray[np.uint32]]:
        """Return the positions of rows, and their numbers among those of their records."""
        return rows.column("position").to_numpy(), rows.column("emit").to_numpy()

    @cached_property
    def _stage_config(self) -> Program | None:
        """The configuration of the last range that was done; None before the first."""
        done = self._chains[self._config.topology.process].done
        return stage_config.load(self._log, self._names, done.body.config) if done else None

    def _has_positions(self, sink: LegId) -> bool:
        return self._stage_config is not None and {*SEQUENCE_AND_ORDINAL} <= {*self._stage_config.seen_from(sink).position_columns}

    def _read_accounts(self, raw: RawRead) -> dict[LegId, Account]:
        """Return the account of the records as each sink has them: the tables are read first, then what comes before them."""
        tables = {seen.sink_leg: self._read_table(seen, raw) for seen in self._config.by_sink}
        self._progress("reading dead letters, out and duplicates")
        dead_letters, then_dropped, entered = (Tallied(raw.frames) for _ in range(3))
        duplicates = Tallied(raw.frames, self._has_several)
        refused = {leg: Tallied(raw.frames, self._has_several) for leg in self._topology.sinks}
        self._read_dead_letters(dead_letters, refused)
        outs = {leg: self._read_out(leg, raw) for leg in self._topology.sinks}
        for message in streams.read_frames(self._log, self._names, "duplicates", self._streams["duplicates"]):
            (then_dropped if is_then_dropped(message.subject) else duplicates).add(streams.positions_of(message))
        entered.add(raw.entered)
        return {
            leg: Account(
                raw.frames,
                *outs[leg],
                dead_letters,
                duplicates,
                then_dropped,
                refused[leg],
                entered,
                tables[leg],
                self._diverted(leg, outs),
            )
            for leg in self._topology.sinks
        }

    def _diverted(self, leg: LegId, outs: Mapping[LegId, tuple[Tallied, Tallied]]) -> Tallied | None:
        """Return the rows of a sink that it has given to its fallback: those on the stream of that one."""
        fallback = self._topology.fallback_of(leg)
        return outs[fallback][0] if fallback else None

    def _read_out(self, leg: LegId, raw: RawRead) -> tuple[Tallied, Tallied]:
        """Return the rows on the stream of a sink, and those of them that it has confirmed."""
        out, confirmed = (Tallied(raw.frames, self._has_several) for _ in range(2))
        role, waiting = leg.input_role, 0
        for message in streams.read_frames(self._log, self._names, role, self._streams[role]):
            codes, emits = self._places(streams.rows_of(message)) if self._has_several else (streams.positions_of(message), None)
            out.add(codes, emits)
            if message.sequence <= self._to(leg):
                confirmed.add(codes, emits)
            elif message.sequence <= self._out_read_to[role]:
                waiting += len(codes)
        self._report.cannot_prove(self._of("rows on out that the sink has not confirmed", leg), waiting)
        return out, confirmed

    def _of(self, what: str, leg: LegId) -> str:
        """Return the name of something of a sink, told apart from that of others if there are some."""
        return what if len(self._topology.sinks) == 1 else f"{what} ({self._topology.file_id(leg)})"

    def _read_table(self, seen: PipelineConfig, raw: RawRead) -> Tallied | None:
        """Read the rows of raw frames that exist, None without position columns; rows of purged frames stay there and are only counted."""
        if not self._has_positions(seen.sink_leg):
            return None
        self._progress("reading the table")
        table, first = Tallied(raw.frames, self._has_several), raw.frames.first_sequence
        where = f"_tf_sequence = 0 OR _tf_sequence >= {first}"
        for positions in () if self._has_several else position_batches(seen.sink, where):
            table.add(positions)
        for rows in row_batches(seen.sink, where) if self._has_several else ():
            table.add(*self._places(rows))
        older = count_rows(seen.sink, f"_tf_sequence > 0 AND _tf_sequence < {first}")
        self._report.leave_out(self._of("rows of the table whose raw frames are purged", seen.sink_leg), older)
        return table

    def _read_dead_letters(self, dead_letters: Tallied, refused: Mapping[LegId, Tallied]) -> None:
        abandoned = 0
        for batch in streams.read_dead_letters(self._log, self._names, ("stage", "code", "sink", "refused_row"), self._streams["dlq"]):
            is_refused = pc.equal(batch.column("stage"), "sink")
            dead_letters.add(batch.filter(pc.invert(is_refused)).column("position").to_numpy())
            of_sinks = batch.filter(is_refused)
            for leg, tallied in refused.items():
                mine = of_sinks.filter(pc.equal(of_sinks.column("sink"), leg))
                tallied.add(mine.column("position").to_numpy(), pc.fill_null(mine.column("refused_row"), 0).to_numpy())
            abandoned += int(pc.sum(pc.equal(of_sinks.column("code"), "abandoned")).as_py() or 0)
        if abandoned:
            self._report.counts["given up by `plan abandon` (of the dead letters)"] = abandoned

    # The comparison.

    def _compare(self, seen: PipelineConfig, accounts: Mapping[LegId, Account], limits: Limits, directory: Path) -> None:
        leg = seen.sink_leg
        account, refused = accounts[leg], sum(one.refused.rows for one in accounts.values())
        counts = {"raw": len(account.raw), self._of("out", leg): account.out.rows, "dead letters": account.dead_letters.rows + refused}
        counts |= {"entered again": account.entered.rows, "duplicates kept": account.duplicates.rows}
        if account.table is not None:
            counts[self._of("table", leg)] = account.table.rows
        self._report.counts |= counts
        if account.diverted is not None:
            self._report.counts[self._of("refused into the fallback", leg)] = account.diverted.rows
        expected = ExpectedRows(account.raw) if self._has_several and not self._topology.refuser_of(leg) else None
        for fault in self._faults(account, limits):
            codes = fault.codes
            if (fault.hop, fault.kind) == (RAW_TO_OUT, "missing") and self._topology.refuser_of(leg):
                # A fallback takes refused rows only, and those are missing in the table of the other sink.
                continue
            if (fault.hop, fault.kind) == (RAW_TO_OUT, "missing") and (len(codes) or expected):
                codes = self._without_dropped(codes, leg, accounts, limits, directory, expected)
            self._find(seen, account, fault, codes)
        for fault in row_faults(account, expected, limits) if expected else ():
            self._find(seen, account, fault, fault.codes)

    def _faults(self, account: Account, limits: Limits) -> Iterator[Fault]:
        yield from compare(account, limits)
        if account.table is not None and self._has_several:
            yield from sink_row_faults(account, account.table, limits)

    def _find(self, seen: PipelineConfig, account: Account, fault: Fault, codes: RawPositions) -> None:
        place = self._of(fault.hop, seen.sink_leg)
        self._report.find(place, fault.kind, len(codes), self._named(seen, account, codes[: self._examples]))

    def _without_dropped(
        self,
        codes: RawPositions,
        leg: LegId,
        accounts: Mapping[LegId, Account],
        limits: Limits,
        directory: Path,
        expected: ExpectedRows | None,
    ) -> RawPositions:
        """Return the unexplained positions that verification does not prove to be dropped, or to be for other sinks.

        `expected` is given the rows that it finds.
        """
        history = read_history(self._log, self._names, self._topology, leg, None).up_to(limits.process_to).after(limits.floor)
        self._progress(f"looking for {len(codes):,} records that may have been dropped")
        snapshots = snapshots_of(self._config, self._directory)
        source = Source(self._log, self._names, leg, history, load_configs(self._log, self._names, leg, history), snapshots)

        def accepted(first: int, last: int) -> RawPositions:
            return np.unique(np.concatenate([account.accepted(first, last) for account in accounts.values()]))

        def see_rows(first: int, last: int, rows: Iterator[pa.Table]) -> None:
            if expected is not None:
                expected.ranges.append((first, last))
                for batch in rows:
                    expected.tallied.add(*self._places(batch))

        dropped = find_dropped(source, accepted, directory, self._progress, see_rows)
        sequences, copies = sequences_of(codes), np.intersect1d(codes, dropped.copies)
        unread = [codes[(sequences >= first) & (sequences <= last)] for first, last in dropped.unread]
        unsure = np.unique(np.concatenate([np.intersect1d(codes, dropped.unsure), *unread]))
        has_join = self._stage_config is not None and self._stage_config.join is not None
        self._report.cannot_prove(PURGED_DECIDES if has_join else "records that may be copies of one that is purged", len(unsure))
        if len(copies):
            self._report.counts[DUPLICATE.label] = len(copies)
        proven = [copies, unsure]
        for label, positions in (*dropped.by_outcome.items(), (self._of("for other sinks only", leg), dropped.elsewhere)):
            proven.append(np.intersect1d(codes, positions))
            if len(proven[-1]):
                self._report.counts[label] = len(proven[-1])
        return np.setdiff1d(codes, np.concatenate(proven))

    def _verify_rows(self, seen: PipelineConfig, directory: Path) -> None:
        """Compare a table without position columns by the contents of its rows: verification computes them again."""
        request = Request(directory, examples=self._examples, pipeline_directory=self._directory)
        verifier = Verifier(seen, self._log, request, self._progress)
        self._report.counts[self._of("table", seen.sink_leg)] = rows = count_rows(seen.sink, "true")
        subject = verifier.subject()
        if subject is None or not subject.history.is_whole:
            self._report.cannot_prove("rows of a table without position columns: a part of raw is purged", rows)
            return
        verifier.compare(subject)
        places = {"rows": self._of(OUT_TO_TABLE, seen.sink_leg), "schema": self._of("schema", seen.sink_leg)}
        self._report.findings += [replace(one, place=places[one.place]) for one in verifier.report.findings if one.place in places]
        self._report.not_proven += [gap for gap in verifier.report.not_proven if gap.what not in WAITING]
        self._report.not_compared += verifier.report.not_compared

    def _named(self, seen: PipelineConfig, account: Account, codes: RawPositions) -> list[dict[str, Any]]:
        """Return positions as examples, with their Kafka coordinates in raw, or else in the table."""
        positions = [unpacked(code) for code in codes]
        coordinates_of = streams.coordinates(self._log, self._names, positions)
        coordinates_of |= self._coordinates_in_table(seen, [position for position in positions if position not in coordinates_of])
        named = []
        for code, position in zip(codes, positions, strict=True):
            topic, partition, offset = coordinates_of.get(position, (None, None, None))
            where = {"topic": topic, "partition": partition, "offset": offset, "position": position_text(code)}
            named.append({**where, "found": account.describe(code)})
        return named

    def _coordinates_in_table(self, seen: PipelineConfig, positions: list[tuple[int, int]]) -> dict[tuple[int, int], Coordinates]:
        columns = (*SEQUENCE_AND_ORDINAL, *_COORDINATES)
        by_position: dict[tuple[int, int], Coordinates] = {}
        if self._stage_config is None or not {*columns} <= {*self._stage_config.seen_from(seen.sink_leg).position_columns}:
            return by_position
        for start in range(0, len(positions), _POSITIONS_PER_QUERY):
            among = ", ".join(f"({sequence}, {ordinal})" for sequence, ordinal in positions[start : start + _POSITIONS_PER_QUERY])
            for batch in table_batches(seen.sink, columns, f"(_tf_sequence, _tf_ordinal) IN ({among})"):
                rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
                by_position |= {(sequence, ordinal): (topic, partition, offset) for sequence, ordinal, topic, partition, offset in rows}
        return by_position

    def _note_ranges(self, raw: RawRead, limits: Limits) -> None:
        first = max(limits.floor + 1, raw.frames.first_sequence)
        self._report.ranges["raw sequences in out"] = [first, limits.process_to]
        for leg in self._topology.sinks:
            first_out = streams.first_sequence(self._log, self._names.stream(leg.input_role))
            self._report.ranges[self._of("out sequences in the table", leg)] = [first_out, self._to(leg)]
        self._report.leave_out(
            f"raw sequences up to {limits.floor}: what became of them is purged, or may be", raw.frames.up_to(limits.floor)
        )
        if raw.frames.first_sequence > 1:
            self._report.leave_out(f"records before raw sequence {raw.frames.first_sequence}: they are purged")
