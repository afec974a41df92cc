"""`tallyflow audit`: everything counted again, from Kafka, the streams and the table themselves. Reads only; may run beside the pipeline.

The ledger says how far each leg has confirmed, downstream read first, and under which configuration; none of its counts is asked. Then
come raw, the table, out, dead letters and duplicates, and Kafka last: what came in meanwhile is not judged.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np

from pipelines.config import PipelineConfig
from pipelines.connectors.duckdb import open_engine, open_spilling_engine
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.key_store.index import Words
from pipelines.process import stage_config
from pipelines.process.arrivals import Arrived, arrivals, steps
from pipelines.process.frames import new_counts, stages
from pipelines.process.stage_config import StageConfig
from pipelines.proof.audit.account import DOUBLED, EXTRA, MISSING, RAW_TO_OUT, Account, Limits, Place, decoded, judge
from pipelines.proof.audit.copies import Copies, config_at
from pipelines.proof.audit.report import Audited
from pipelines.proof.audit.streams import (
    Coordinates,
    RawRead,
    RawWanted,
    Subjects,
    abandoned_in,
    codes_of,
    coordinates,
    read_frames,
    read_raw,
)
from pipelines.proof.audit.table import TableRows
from pipelines.proof.positions import count_rows, end_offsets, first_offsets, is_compacted, table_batches, topic_batches
from pipelines.protocol.bodies import CHAINS, PROCESS_CHAIN, ProcessDone
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import LEGS, Names
from pipelines.protocol.positions import position_keys
from pipelines.protocol.purge import read_purged

NO_POSITIONS: Words = np.zeros(0, dtype=np.uint64)
_PLACE = ("_tf_sequence", "_tf_ordinal")
_POSITIONS_PER_QUERY = 1000
_ABANDONED = "given up by `plan abandon` (of the dead letters)"
Tell = Callable[[str], None]


class Audit:
    """One audit; use it once. Of each kind of fault, `examples` are named.

    Raises HaltError for a pipeline that was never started, RetryableError while a system is away.
    """

    def __init__(self, config: PipelineConfig, log: JetStream, examples: int) -> None:
        self._config, self._log, self._examples = config, log, examples
        self._names = Names(config.pipeline_id)
        self._topic, self._settings = config.sources[0].topic, client_settings(config.sources[0])
        self._streams = {role: Subjects(self._names.stream(role)) for role in ("raw", "out", "dlq", "duplicates")}
        self._found = Audited(config.pipeline_id)

    def run(self, tell: Tell = lambda doing: None) -> Audited:
        check_started(self._log, self._names)
        self._chains = {leg: read_chain(self._log, self._names, CHAINS[leg]) for leg in reversed(LEGS)}
        tell("reading the raw stream")
        read_to, self._out_read_to = self._last("raw"), self._last("out")
        self._kafka_ends = end_offsets(self._settings, self._topic)
        ends = {int(partition): end for partition, end in (self._chains["ingest"].to or {}).items()}
        firsts = first_offsets(self._settings, self._topic)
        wanted = RawWanted(read_to, ends, firsts)
        raw = read_raw(self._log, self._names, self._streams["raw"], wanted)
        with TemporaryDirectory(prefix="tallyflow-audit-") as directory, open_spilling_engine(Path(directory)) as engine:
            rows = self._table_rows(engine)
            account = self._read_places(raw, rows, tell)
            limits = Limits(self._floor(), self._to("process"), read_to, self._last("raw"))
            tell("comparing")
            self._judge(account, limits, engine, tell)
            if rows is not None:
                self._judge_rows(rows, account)
        self._tell_ranges(raw, limits)
        tell("reading Kafka")
        self._compare_kafka(raw)
        removed = [str(one) for subjects in self._streams.values() for one in subjects.removed]
        self._found.find("streams", "removed", len(removed), [{"found": one} for one in removed[: self._examples]])
        return self._found

    def _floor(self) -> int:
        """Asked when all streams have been read: the purge may have been at work meanwhile."""
        below = {role: read_purged(self._log, self._names, role).below for role in self._streams}
        for role, subjects in self._streams.items():
            subjects.settle(self._log, sys.maxsize if role == "duplicates" else below[role])
        # Kept duplicates go with the raw ranges that they come from.
        duplicates = min(self._streams["duplicates"].purged_to, below["raw"] - 1)
        return max(duplicates, *(self._streams[role].purged_to for role in ("raw", "out", "dlq")))

    def _to(self, leg: str) -> int:
        return self._chains[leg].to or 0

    def _last(self, role: str) -> int:
        state = self._log.state(self._names.stream(role))
        return state.last_sequence if state else 0

    # -- the places ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _stage_config(self) -> StageConfig | None:
        """That of the last range that was done; None before the first."""
        done = self._chains["process"].done
        return stage_config.load(self._log, self._names, done.body.config) if done else None

    @property
    def _has_positions(self) -> bool:
        return self._stage_config is not None and {*_PLACE} <= {*self._stage_config.position_columns}

    def _table_rows(self, engine: duckdb.DuckDBPyConnection) -> TableRows | None:
        """The table's rows where they have no positions."""
        if self._stage_config is None or self._has_positions:
            return None
        return TableRows(engine, self._config.sink, self._stage_config)

    def _read_places(self, raw: RawRead, rows: TableRows | None, tell: Tell) -> Account:
        out, confirmed, letters, duplicates, refused, entered = (Place(raw.frames) for _ in range(6))
        table = Place(raw.frames) if self._has_positions else None
        if table is not None:
            tell("reading the table")
            self._read_table(table, raw)
        tell("reading dead letters, out and duplicates")
        of_sink = self._names.dead_letters("sink", 0).removesuffix("0")
        refused_codes = [NO_POSITIONS]
        for message in read_frames(self._log, self._names, "dlq", self._streams["dlq"]):
            codes = codes_of(message)
            is_refused = message.subject.startswith(of_sink)
            (refused if is_refused else letters).add(codes)
            if is_refused and (abandoned := abandoned_in(message)):
                of_these = self._found.records.get(_ABANDONED, 0)
                self._found.records[_ABANDONED] = of_these + abandoned
            refused_codes += [codes] if is_refused else []
        self._refused = np.sort(np.concatenate(refused_codes))
        waiting = 0
        for message in read_frames(self._log, self._names, "out", self._streams["out"]):
            codes = codes_of(message)
            out.add(codes)
            is_confirmed = message.sequence <= self._to("sink")
            if is_confirmed:
                confirmed.add(codes)
            elif message.sequence <= self._out_read_to:
                waiting += len(codes)
            if rows is not None:
                rows.add_out(message, is_confirmed, self._refused)
        self._found.cannot_prove("rows on out that the sink has not confirmed", waiting)
        for message in read_frames(self._log, self._names, "duplicates", self._streams["duplicates"]):
            duplicates.add(codes_of(message))
        entered.add(raw.entered)
        return Account(raw.frames, out, confirmed, letters, duplicates, refused, entered, table)

    def _read_table(self, table: Place, raw: RawRead) -> None:
        """Rows of raw frames that are purged are left in ClickHouse, however many there are: they are only counted."""
        first = raw.frames.first_sequence
        for batch in table_batches(self._config.sink, _PLACE, f"_tf_sequence = 0 OR _tf_sequence >= {first}"):
            table.add(position_keys(batch))
        older = count_rows(self._config.sink, f"_tf_sequence > 0 AND _tf_sequence < {first}")
        self._found.leaves_out("rows of the table whose raw frames are purged", older)

    # -- the verdict --------------------------------------------------------------------------------------------------------

    def _judge(self, account: Account, limits: Limits, engine: duckdb.DuckDBPyConnection, tell: Tell) -> None:
        letters = account.letters.rows + account.refused.rows
        self._found.records |= {"raw": len(account.raw), "out": account.out.rows, "dead letters": letters}
        self._found.records |= {"entered again": account.entered.rows, "duplicates kept": account.duplicates.rows}
        if account.table is not None:
            self._found.records["table"] = account.table.rows
        unread = len(account.raw) - account.raw.up_to(limits.process_to)
        self._found.cannot_prove("records on raw that process has not read", unread)
        for fault in judge(account, limits):
            codes = fault.codes
            if (fault.seam, fault.kind) == (RAW_TO_OUT, MISSING) and len(codes):
                codes = self._without_copies(codes, account, limits, engine, tell)
            self._found.find(fault.seam, fault.kind, len(codes), self._named(account, codes[: self._examples]))

    def _judge_rows(self, rows: TableRows, account: Account) -> None:
        self._found.records["table"] = rows.count
        if rows.not_compared:
            self._found.leaves_out(f"the contents of the columns {', '.join(rows.not_compared)}")
        frames = read_frames(self._log, self._names, "out", Subjects(self._names.stream("out")))
        rows.judge(self._found, frames, self._refused, self._examples, is_whole=not self._streams["out"].purged_to)

    def _named(self, account: Account, codes: Words) -> list[dict[str, Any]]:
        """Positions with their Kafka coordinates: those in raw, or else those that the table says."""
        positions = [decoded(code) for code in codes]
        known = coordinates(self._log, self._names, positions)
        known |= self._coordinates_in_table([position for position in positions if position not in known])
        named = []
        for code, position in zip(codes, positions, strict=True):
            topic, partition, offset = known.get(position, (None, None, None))
            where = {"topic": topic, "partition": partition, "offset": offset}
            named.append({**where, "position": f"{position[0]}.{position[1]}", "found": account.told(code)})
        return named

    def _coordinates_in_table(self, positions: list[tuple[int, int]]) -> dict[tuple[int, int], Coordinates]:
        columns = (*_PLACE, "_tf_topic", "_tf_partition", "_tf_offset")
        found: dict[tuple[int, int], Coordinates] = {}
        if self._stage_config is None or not {*columns} <= {*self._stage_config.position_columns}:
            return found
        for start in range(0, len(positions), _POSITIONS_PER_QUERY):
            among = ", ".join(f"({sequence}, {ordinal})" for sequence, ordinal in positions[start : start + _POSITIONS_PER_QUERY])
            for batch in table_batches(self._config.sink, columns, f"(_tf_sequence, _tf_ordinal) IN ({among})"):
                rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
                found |= {(sequence, ordinal): (topic, partition, offset) for sequence, ordinal, topic, partition, offset in rows}
        return found

    # -- copies that dedup has dropped --------------------------------------------------------------------------------------

    def _without_copies(self, codes: Words, account: Account, limits: Limits, engine: duckdb.DuckDBPyConnection, tell: Tell) -> Words:
        """Those of the unexplained positions that are no copies of an accepted record."""
        ranges = self._done_ranges()
        configs = {version: stage_config.load(self._log, self._names, version) for _, version in ranges}
        if not any(config.dedup_key and not config.dedup_keeps for config in configs.values()):
            return codes
        is_whole = account.raw.first_sequence == 1 and not limits.floor
        if not is_whole and any(config.dedup_time_field for config in configs.values()):
            self._found.cannot_prove("records that may be copies: the event times before what is left of raw are purged", len(codes))
            return NO_POSITIONS
        tell(f"looking for the originals of {len(codes):,} records that may be copies")
        copies = Copies(engine, codes)
        purged_us: int | None = None
        with open_engine() as stage_engine:
            for version, step in self._steps(ranges, limits.process_to):
                if not is_whole:
                    before = [frame.arrival_us for frame in step if frame.message.sequence <= limits.floor]
                    purged_us = before[-1] if before else purged_us or step[0].arrival_us
                if configs[version].dedup_key:
                    rows, _ = stages(stage_engine, configs[version], "", step, new_counts())
                    copies.add(rows, [frame.message for frame in step], configs[version], account.is_accepted)
        found, may_be = copies.verdict(purged_us)
        self._found.cannot_prove("records that may be copies of one that is purged", len(may_be))
        self._found.records["duplicates dropped"] = len(codes) - len(found) - len(may_be)
        return found

    def _steps(self, ranges: list[tuple[int, str]], to: int) -> Iterator[tuple[str, list[Arrived]]]:
        """The raw frames that process has done, in portions of one configuration."""
        done = self._chains["process"].done
        resets = done.body.clock_resets if done else ()
        messages = read_frames(self._log, self._names, "raw", Subjects(self._names.stream("raw")), to)
        for version, frames in groupby(arrivals(messages, 0, resets), lambda frame: config_at(ranges, frame.message.sequence)):
            yield from ((version, step) for step in steps(frames))

    def _done_ranges(self) -> list[tuple[int, str]]:
        """(end, version of the configuration) of what process has done, as far as the ledger keeps single entries."""
        chain, ledger = self._chains["process"], self._names.stream("ledger")
        entries = map(PROCESS_CHAIN.decode, fetch_whole(self._log, ledger, self._names.chain("process"), 0, chain.sequence))
        ends = [(entry.body.to, entry.body.config) for entry in entries if isinstance(entry.body, ProcessDone)]
        return [end for end, after in zip(ends, [*ends[1:], None], strict=True) if after is None or after[1] != end[1]]

    # -- Kafka --------------------------------------------------------------------------------------------------------------

    def _compare_kafka(self, raw: RawRead) -> None:
        waiting = 0
        for batch in topic_batches(self._settings, self._topic):
            partitions, found = (batch.column(name).to_numpy() for name in ("_tf_partition", "_tf_offset"))
            for partition in np.unique(partitions).tolist():
                offsets = found[partitions == partition]
                known = raw.offsets.get(partition)
                if known is not None:
                    known.add_kafka(offsets)
                # What has come in since the audit began is not asked about.
                is_unread = (offsets >= (known.end if known else 0)) & (offsets < self._kafka_ends.get(partition, 0))
                waiting += int(np.count_nonzero(is_unread))
        self._found.cannot_prove("records in Kafka that ingest has not read", waiting)
        firsts = first_offsets(self._settings, self._topic)
        counts = dict.fromkeys((MISSING, DOUBLED, EXTRA), 0)
        examples: dict[str, list[dict[str, Any]]] = {kind: [] for kind in counts}
        for partition, offsets in sorted(raw.offsets.items()):
            for kind, found in offsets.faults(firsts.get(partition, offsets.end)).items():
                counts[kind] += len(found)
                shown = found[: self._examples - len(examples[kind])].tolist()
                examples[kind] += [{"topic": self._topic, "partition": partition, "offset": offset} for offset in shown]
        if counts[EXTRA] and is_compacted(self._settings, self._topic):
            self._found.leaves_out("records in raw that Kafka has compacted away since", counts.pop(EXTRA))
        for kind, count in counts.items():
            self._found.find("Kafka -> raw", kind, count, examples[kind])
        self._found.ranges["Kafka offsets in raw"] = {
            f"{self._topic}/{partition}": [max(offsets.start, firsts.get(partition, offsets.end)), offsets.end - 1]
            for partition, offsets in sorted(raw.offsets.items())
        }

    def _tell_ranges(self, raw: RawRead, limits: Limits) -> None:
        first = max(limits.floor + 1, raw.frames.first_sequence)
        self._found.ranges |= {
            "raw sequences in out": [first, limits.process_to],
            "out sequences in the table": [self._first("out"), self._to("sink")],
        }
        self._found.leaves_out(
            f"raw sequences up to {limits.floor}: what became of them is purged, or may be", raw.frames.up_to(limits.floor)
        )
        if raw.frames.first_sequence > 1:
            self._found.leaves_out(f"records before raw sequence {raw.frames.first_sequence}: they are purged")

    def _first(self, role: str) -> int:
        state = self._log.state(self._names.stream(role))
        return state.first_sequence if state else 0
