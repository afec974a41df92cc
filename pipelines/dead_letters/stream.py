"""The dead-letter stream of one pipeline, as commands read it: by cause, as a list, and one by one. Read only."""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.dead_letters.dropped_copies import dropped_copies
from pipelines.dead_letters.field_values import value_of
from pipelines.dead_letters.reasons import reason_of
from pipelines.dead_letters.redrive import taken
from pipelines.dead_letters.triage import Group, Selection, dead_letters_at, groups, listed
from pipelines.errors import HaltError
from pipelines.expressions.evaluate import EXPRESSION_ERROR
from pipelines.home import default_home
from pipelines.lookups.storage import Snapshots
from pipelines.maintenance.replay import snapshots_of_plans
from pipelines.process import stage_config
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.process.fingerprints import with_fingerprints
from pipelines.progress import Progress, no_progress
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import Log, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import Position
from pipelines.protocol.purge import PurgeLog, purge_dead_letters, read_purged
from pipelines.protocol.records import decode_frame, describe_frame
from pipelines.protocol.redrive import DISCARDED, REDRIVEN, Taken
from pipelines.protocol.topology import Topology
from pipelines.types.duckdb import open_engine


class DeadLetters:
    """The dead letters of a pipeline. Connects at first use.

    Methods raise HaltError for a pipeline that was never started, RetryableError if NATS is away, DataLossError for a gap in the stream.
    """

    def __init__(self, config: PipelineConfig, directory: Path | None = None) -> None:
        """Create without connecting. `directory`: the pipeline's, by default below this host's home."""
        self._names, self._max_attempts = Names(config.pipeline_id), config.dead_letters.max_attempts
        self._fields = {entry.column_name: entry.name for seen in config.by_sink for entry in seen.sink.mapping}
        self._log = JetStream.of(config)
        self._snapshots = Snapshots(self._names.state_storage(directory or self._names.directory(default_home()), config.state_uri))

    def close(self) -> None:
        self._log.close()

    def groups(self, selection: Selection, progress: Progress = no_progress) -> list[Group]:
        """Return the groups, with the copies that dedup dropped in favor of the dead letters; `progress` counts the raw frames."""
        return groups(self._with_copies(selection, progress), selection)

    def causes(self) -> "list[Group]":
        """Return every group, whatever the state of its dead letters, without the copies that dedup dropped in favor of them."""
        return groups(self._dead_letters(), Selection())

    def list(self, selection: Selection, limit: int) -> tuple[pa.Table, int]:
        return listed(self._dead_letters(), selection, limit)

    def at(self, position: Position, progress: Progress = no_progress) -> pa.Table:
        """Return the dead letters of a record, one for each sink that refused it, with the copies that dedup dropped in favor of it."""
        return dead_letters_at(self._with_copies(Selection(positions=frozenset({position})), progress), position)

    def value_at(self, dead_letter: Mapping[str, Any]) -> str | None:
        """Return the value of the field that a dead letter names; see `field_values.value_of`."""
        return value_of(dead_letter, self._fields)

    def reason(self, dead_letter: pa.Table) -> str:
        """Return DuckDB's reason for the dead letter of an expression, or why it is not known; empty for others."""
        if dead_letter.column("code")[0].as_py() != EXPRESSION_ERROR:
            return ""
        try:
            log = self._log.connect()
            program = stage_config.load(log, self._names, dead_letter.column("config_version")[0].as_py())
            of_plans = snapshots_of_plans(log, self._names, self._snapshots, program)
            program = of_plans.program(program, dead_letter.column("_tf_sequence")[0].as_py())
            with open_engine() as engine:
                return reason_of(engine, program, dead_letter.select(DEAD_LETTER_SCHEMA.names))
        except HaltError as error:
            return f"not known: {error}"

    def frames(self, selection: Selection) -> Iterator[pa.Table]:
        """Yield the selected dead letters, with `fingerprint` and `state`, one stored frame at a time."""
        return (dead_letters for frame in self._dead_letters() if (dead_letters := selection.of(with_fingerprints(frame))).num_rows)

    def _with_copies(self, selection: Selection, progress: Progress) -> Iterator[pa.Table]:
        counted = dropped_copies(self._log.connect(), self._names, self._dead_letters(), selection, progress, self._snapshots)
        return map(counted.of, self._dead_letters())

    def _dead_letters(self) -> Iterator[pa.Table]:
        log = self._log.connect()
        check_started(log, self._names)
        named_by_plans = taken(log, self._names)
        return (dead_letters for _, dead_letters in with_states(read_frames(log, self._names), named_by_plans, self._max_attempts))


def with_states(frames: Iterator[tuple[int, pa.Table]], known: Taken, max_attempts: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the frames, each with its dead letters' `state` and their `row` in it."""
    for sequence, dead_letters in frames:
        states = known.states(sequence, dead_letters.column("attempts").to_numpy(), max_attempts)
        rows = pa.array(np.arange(dead_letters.num_rows))
        yield sequence, dead_letters.append_column("state", pa.array(states, pa.string())).append_column("row", rows)


def read_frames(log: JetStream, names: Names) -> Iterator[tuple[int, pa.Table]]:
    """Yield every frame of dead letters with its sequence, up to the present end of the stream, in its order; none without a stream.

    Raise DataLossError for a gap after the purged part, and as the log does.
    """
    stream = names.stream("dlq")
    state = log.state(stream)
    if state is None or state.messages == 0:
        return
    purged_below = read_purged(log, names, "dlq").below
    sequence = state.first_sequence - 1
    for message in log.fetch(stream, names.subjects("dlq"), sequence, state.last_sequence):
        if message.sequence > sequence + 1:
            # It may have been purged while it is read.
            purged_below = read_purged(log, names, "dlq").below
        if message.sequence <= purged_below:
            # Of the purged part the last dead letters of quiet subjects are left.
            sequence = message.sequence - 1
        check_contiguous(stream, [message.sequence], sequence, message.sequence)
        sequence = message.sequence
        yield sequence, decode_frame(message.payload, describe_frame(message))
    check_contiguous(stream, [], sequence, state.last_sequence)


def stored_to(log: Log, names: Names, topology: Topology) -> int:
    """Return the sequence up to which all tables of dead letters hold them; sys.maxsize without such a table."""
    return min((read_chain(log, names, leg.chain).to or 0 for leg in topology.dead_letters), default=sys.maxsize)


def purge_taken(log: PurgeLog, names: Names, before: datetime, stored: int) -> None:
    """Purge the frames of which every dead letter was taken by a finished plan; `before` and `stored` as of `frames_that_may_go`.

    An open plan needs its frames: the caller may have lost the lease to the one that made the plan, and was killed.
    """
    purge_dead_letters(log, names, frames_that_may_go(log, names, taken(log, names, is_finished=True), before, stored))


def frames_that_may_go(log: PurgeLog, names: Names, known: Taken, before: datetime, stored: int) -> dict[str, int]:
    """Return, by subject, the sequence below which every dead letter was taken and was rejected before the instant.

    Frames behind `stored` stay: a table of dead letters does not hold them yet. Only subjects with a frame to purge are listed.
    """
    stream = names.stream("dlq")
    state = log.state(stream)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    below: dict[str, int] = {}
    ended: set[str] = set()
    for message in log.fetch(stream, names.subjects("dlq"), 0, state.last_sequence if state else 0):
        first.setdefault(message.subject, message.sequence)
        last[message.subject] = message.sequence
        if message.subject in ended:
            continue
        dead_letters = decode_frame(message.payload, describe_frame(message))
        is_taken = np.isin(known.states(message.sequence, dead_letters.column("attempts").to_numpy(), 1), (REDRIVEN, DISCARDED)).all()
        if is_taken and message.sequence <= stored and pc.max(dead_letters.column("_tf_arrival")).as_py() < before:
            below[message.subject] = message.sequence + 1
        else:
            ended.add(message.subject)
    # A subject keeps its last message.
    may_go = {subject: min(sequence, last[subject]) for subject, sequence in below.items()}
    return {subject: sequence for subject, sequence in may_go.items() if sequence > first[subject]}
