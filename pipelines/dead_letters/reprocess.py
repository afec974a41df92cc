"""Takes dead letters by command: redriving, discarding, and editing by hand, at a running or a stopped pipeline.

It holds the lease of the `redrive` chain while it works, so two commands never take the same dead letter. The selection applies to the dead
letters at the beginning of the work; a record that is rejected again meanwhile is a new dead letter and is left alone.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.dead_letters.export_file import Edited, edited_frames
from pipelines.dead_letters.redrive import Redrive, taken
from pipelines.dead_letters.stream import frames_that_may_go, purge_taken, read_frames, stored_to, with_states
from pipelines.dead_letters.triage import ExactSelection, Selection
from pipelines.errors import ConfigurationError, Fault, FencedError, RetryableError
from pipelines.process.fingerprints import with_fingerprints
from pipelines.protocol.bodies import PROCESS_CHAIN, REDRIVE_CHAIN
from pipelines.protocol.existence import check_started
from pipelines.protocol.lease import Lease
from pipelines.protocol.ledger import Chain, read_chain
from pipelines.protocol.naming import REDRIVE, Names
from pipelines.protocol.purge import bytes_free_for_redrive, fold_redrive, purge_lease, redrive_entries_that_may_go
from pipelines.protocol.records import instant
from pipelines.protocol.redrive import WAITING, Rows, can_enter
from pipelines.protocol.stream_limits import LEAST_LIMIT_BYTES
from pipelines.types.vectors import to_mask


@dataclass(frozen=True)
class Outcome:
    """The number of dead letters taken, and the selected ones not taken, by reason: a state, or `oversize`."""

    taken: int
    left: dict[str, int]


class Reprocessing:
    """The work of one command, which holds the lease meanwhile: `reprocessing` makes it."""

    def __init__(self, config: PipelineConfig, names: Names, log: JetStream, redrive: Redrive) -> None:
        self._config, self._names, self._log, self._redrive = config, names, log, redrive

    def enter(self, selection: Selection) -> Outcome:
        """Redrive the selected dead letters; parked ones only if `selection` names positions.

        Raise RetryableError if NATS is away or the raw stream has no room; a plan that was begun is finished by the next command.
        """
        left: Counter[str] = Counter()
        frames = self._frames(selection.states_that_enter, selection, left, needs_whole=True)
        return Outcome(self._redrive.enter(_rows_by_frame(self._with_room(frames))), dict(left))

    def discard(self, selection: Selection, reason: str) -> Outcome:
        """Discard the selected dead letters, including parked ones."""
        left: Counter[str] = Counter()
        frames = self._frames(WAITING, selection, left, needs_whole=False)
        return Outcome(self._redrive.discard(_rows_by_frame(frames), reason), dict(left))

    def expire(self, before: datetime) -> Outcome:
        """Discard the dead letters that were rejected before the instant; delete their frames once all their dead letters were taken.

        Entries of the chain that no dead letter needed at the beginning of this call are purged after the retention of the streams.
        """
        fold_redrive(
            self._log, self._names, redrive_entries_that_may_go(self._log, self._names, self._config.resources.nats.stream.max_age)
        )
        outcome = self.discard(Selection(until=before), "older than dead_letters.max_age")
        # Read first: what is stored stays so.
        purge_taken(self._log, self._names, before, stored_to(self._log, self._names, self._config.topology))
        return outcome

    def enter_edited(self, edited: Edited) -> Outcome:
        """Redrive the dead letters of a file with their content there, except for dead letters taken since it was written."""
        left: Counter[str] = Counter()
        frames = list(self._frames(WAITING, ExactSelection(positions=edited.positions), left, needs_whole=False))
        unknown = len(edited.positions) - sum(dead_letters.num_rows for _, dead_letters in frames) - left.total()
        if unknown:
            raise ConfigurationError(
                f"reading {edited.name}",
                [Fault("", f"{unknown} of its {len(edited.positions)} positions hold no dead letter of this pipeline")],
            )
        count = 0
        for row_ranges, frame in edited_frames(edited, frames):
            self._check_room()
            count += self._redrive.enter_edited(row_ranges, frame)
        return Outcome(count, dict(left))

    def _with_room(self, frames: Iterator[tuple[int, pa.Table]]) -> Iterator[tuple[int, pa.Table]]:
        for frame in frames:
            self._check_room()
            yield frame

    def _frames(
        self, states: frozenset[str], selection: Selection, left: Counter[str], needs_whole: bool
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the selected dead letters that may be taken, by frame; count the others in `left`."""
        named_by_plans = taken(self._log, self._names)
        for sequence, frame in with_states(read_frames(self._log, self._names), named_by_plans, self._config.dead_letters.max_attempts):
            dead_letters = selection.of(with_fingerprints(frame))
            is_to_take = to_mask(pc.is_in(dead_letters.column("state"), value_set=pa.array(sorted(states))))
            left.update(dead_letters.filter(pa.array(~is_to_take)).column("state").to_pylist())
            if needs_whole:
                is_short = is_to_take & ~can_enter(dead_letters)
                left.update({"oversize": int(is_short.sum())} if is_short.any() else {})
                is_to_take &= ~is_short
            if is_to_take.any():
                yield sequence, dead_letters.filter(pa.array(is_to_take))

    def _check_room(self) -> None:
        """Raise RetryableError if the raw stream is so full that ingest needs the rest."""
        state = self._log.extent(self._names.stream("raw"))
        if state is not None and not bytes_free_for_redrive(state):
            way = "repeat the command when the pipeline has caught up, or raise the limit"
            if state.max_bytes < LEAST_LIMIT_BYTES:
                way = f"with this limit none may ever enter, raise it to {LEAST_LIMIT_BYTES} or more"
            raise RetryableError(
                f"taking dead letters: {state.name} holds {state.bytes:,} of {state.max_bytes:,} bytes, the rest is left to ingest; what "
                f"was taken so far is not undone: {way}: `nats stream edit {state.name} --max-bytes=...`"
            )


@contextmanager
def reprocessing(config: PipelineConfig, directory: Path) -> Iterator[Reprocessing]:
    """Hold the lease of the `redrive` chain for one command's work. `directory` is the pipeline's on this host.

    Raise FencedError if another command takes dead letters, HaltError for a pipeline that was never started.
    """
    names = Names(config.pipeline_id)
    with closing(JetStream.of(config).connect()) as log:
        check_started(log, names)
        lease = Lease(log, names, directory, REDRIVE)
        epoch = lease.acquire()
        try:
            purge_lease(log, names, REDRIVE)
            chain = Chain(log, names, REDRIVE_CHAIN, epoch)
            chain.open()
            yield Reprocessing(config, names, log, Redrive(log, names, chain))
        finally:
            lease.release()


def _rows_by_frame(frames: Iterator[tuple[int, pa.Table]]) -> Iterator[tuple[int, Rows]]:
    return ((sequence, dead_letters.column("row").to_numpy()) for sequence, dead_letters in frames)


def expire_dead_letters(config: PipelineConfig, directory: Path, log: JetStream) -> None:
    """Expire the dead letters of a pipeline by `dead_letters.max_age` and the arrival of the last processed record.

    It does nothing, and takes no lease, without that limit, before the first record, or if no dead letter is that old. While a command
    takes dead letters it does nothing either: the next call does the work.
    """
    names, max_age = Names(config.pipeline_id), config.dead_letters.max_age
    done = read_chain(log, names, PROCESS_CHAIN).done
    if max_age is None or done is None:
        return
    before = instant(done.body.clock_us) - max_age
    if not _is_anything_to_expire(config, names, log, before):
        return
    with suppress(FencedError), reprocessing(config, directory) as work:
        work.expire(before)


def _is_anything_to_expire(config: PipelineConfig, names: Names, log: JetStream, before: datetime) -> bool:
    named_by_plans = taken(log, names)
    old = Selection(until=before, states=WAITING)
    frames = with_states(read_frames(log, names), named_by_plans, config.dead_letters.max_attempts)
    return (
        any(old.of(dead_letters).num_rows for _, dead_letters in frames)
        or bool(frames_that_may_go(log, names, named_by_plans, before, stored_to(log, names, config.topology)))
        or redrive_entries_that_may_go(log, names, config.resources.nats.stream.max_age) > 0
    )
