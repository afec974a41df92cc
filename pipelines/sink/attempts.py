"""The inserts of a planned chunk, piece after piece, until each of its rows is in the table or refused.

If the sink refuses a piece for single rows, it is cut until these rows stand alone: they become dead letters, the others are inserted.
Before a cut or a refusal is decided, the table is asked which rows it has (`settling`). Every such decision is on the ledger before the
next insert (`chunks.Pieces`), so a restart continues with the same pieces.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipelines.engine.connections import Connections
from pipelines.engine.leg import Tenure
from pipelines.errors import HaltError, InsertTooLargeError, RefusedError, RetryableError
from pipelines.process.program import Program
from pipelines.process.stage_config import config_of
from pipelines.protocol.bodies import SinkDone, SinkPlan
from pipelines.protocol.failpoints import reach
from pipelines.protocol.lease import INSERT_MAX_EXECUTION_SECONDS
from pipelines.protocol.ledger import Chain, Entry
from pipelines.sink.chunks import Chunk, Pieces, Rows
from pipelines.sink.inserts import ChunkRows, Decode, block_for, insert, insert_columns, rows_of_frame, token_of, work_of
from pipelines.sink.parts import Parts
from pipelines.sink.refusal_limits import AMBIGUOUS_ATTEMPTS, RefusalLimits
from pipelines.sink.refused_rows import Refused
from pipelines.sink.settling import Sent, stored_rows


@dataclass(frozen=True)
class Turn:
    """The state before an attempt at the next of the `pieces` of a chunk."""

    plan: Entry[SinkPlan]
    chunk: Chunk
    rows: ChunkRows
    pieces: Pieces


@dataclass
class _Tries:
    """The attempts at one piece, under the plan of this sequence.

    `since`: when an insert of unknown outcome was last running (monotonic).
    """

    plan: int
    since: float | None
    too_large: InsertTooLargeError | None = None
    too_large_count: int = 0
    ambiguous: int = 0


class Attempts:
    """The attempts of one start of a sink leg. `begun`: returns when this process took the leg over.

    `limits`: of what the table may refuse. `decode`: how rows made under a configuration are read from a frame.
    """

    def __init__(
        self,
        connections: Connections,
        chain: Chain[SinkPlan, SinkDone],
        tenure: Tenure,
        clock: Callable[[], float],
        begun: Callable[[], float],
        limits: RefusalLimits | None = None,
        decode: Callable[[Program], Decode] = lambda _: rows_of_frame,
    ) -> None:
        self._connections, self._chain, self._tenure, self._clock, self._begun = connections, chain, tenure, clock, begun
        self._decode = decode
        self.limits = limits or RefusalLimits(connections)
        self._tries: _Tries | None = None
        """The attempts at the piece in work."""
        self._names_rows = False
        """Whether a row that the table named has stood alone in this start, and was refused: then the next one need not."""
        self._ambiguous_chunk = 0
        """The end of the last chunk that was refused AMBIGUOUS_ATTEMPTS times for a cause that may be the table's: it is cut at once."""
        self._decided: tuple[int, Pieces] | None = None
        """The decision after the last insert, and the sequence of the plan of that insert."""
        self._parts: tuple[int, Parts] | None = None
        """The end of the chunk whose pieces are sent at once, and these pieces."""
        self._in_order = 0
        """The end of the last chunk whose pieces were sent at once, and of which those that are left are sent one by one."""

    def settle(self, plan: Entry[SinkPlan], chunk: Chunk) -> Refused:
        """Insert the rows of the chunk that the sink takes; return the refused ones. Each decision is on the ledger before its effect."""
        pieces = Pieces.of(plan.body.pieces, chunk.rows)
        config = config_of(self._connections, plan.body.config)
        rows = ChunkRows(chunk, insert_columns(self._connections, config), self._decode(config))
        while pieces.ends:
            if self._decided is None or self._decided[0] != plan.sequence:
                self._decided = (plan.sequence, self._attempt(Turn(plan, chunk, rows, pieces)))
            # After an append of unknown outcome the same decision is appended again: another attempt at the insert might end otherwise.
            before, pieces = pieces, self._decided[1]
            if pieces.ends or pieces.refused != before.refused:
                plan = self._chain.amend(replace(plan.body, pieces=pieces.planned()))
                reach("sink.after-amend")
        return pieces.refused

    def _attempt(self, turn: Turn) -> Pieces:
        """Attempt one insert of the next piece, or of all pieces of a plan of several; return the progress after the outcome."""
        if self._is_for_all(turn):
            return self._attempt_all(turn)
        if self._tries is None or self._tries.plan != turn.plan.sequence:
            # An earlier runner may have sent the piece.
            is_of_another = turn.plan.epoch != self._chain.state.epoch
            self._tries = _Tries(turn.plan.sequence, self._begun() if is_of_another else None)
        tries = self._tries
        if tries.too_large is not None and tries.too_large_count >= AMBIGUOUS_ATTEMPTS:
            # Settle the piece before it is sent again; otherwise one of its inserts would always be on its way.
            return self._after_too_large(turn, tries, tries.too_large)
        try:
            self._insert(turn, tries)
        except RefusedError as refusal:
            return self._after_refusal(turn, tries, refusal)
        except InsertTooLargeError as error:
            if len(turn.pieces.to_send()) > 1:
                tries.too_large, tries.too_large_count = error, tries.too_large_count + 1
            raise
        self.limits.note_insert()
        return turn.pieces.inserted()

    def _is_for_all(self, turn: Turn) -> bool:
        """Return True if nothing was decided about the pieces of the plan, but their ends, which are those of frames."""
        return self._in_order != turn.chunk.last and turn.pieces.is_as_planned and {*turn.pieces.ends} <= {*turn.chunk.ends}

    def _attempt_all(self, turn: Turn) -> Pieces:
        """Send all pieces at once. Those that are refused are left, once the table was asked about each of them.

        Before it is asked the plan is appended as it is, so that no lane begins an insert any more. Without the answers a piece would be
        sent again behind all inserts that a cut of another one takes, and its token may be forgotten by then.
        """
        parts, is_exact = self._parts_of(turn), self._connections.config.sink.delivery == "exactly_once"
        if parts.open:
            self._check_right()
            parts.insert(self._chain.state.sequence, self._check_right)
            if parts.confirmed:
                self.limits.note_insert()
            if parts.refused and is_exact:
                return turn.pieces
        found = parts.confirmed_rows()
        if is_exact and parts.refused:
            found += self._stored_of_refused(turn, parts)
        self._parts, self._in_order = None, turn.chunk.last
        return turn.pieces.found(np.concatenate([np.zeros(0, np.int64), *found]))

    def _parts_of(self, turn: Turn) -> Parts:
        if self._parts is None or self._parts[0] != turn.chunk.last:
            # Lanes of an earlier process may have been asked.
            is_of_another = turn.plan.epoch != self._chain.state.epoch
            parts = Parts(self._connections, turn.plan.body, turn.chunk, turn.pieces.ends, is_of_another)
            self._parts = turn.chunk.last, parts
        return self._parts[1]

    def _stored_of_refused(self, turn: Turn, parts: Parts) -> list[Rows]:
        """Return the rows of refused pieces that are in the table."""
        parts.fenced_at = self._clock() if parts.fenced_at is None else parts.fenced_at
        since = parts.fenced_at if parts.is_doubtful else None
        found = []
        for number, why in sorted(parts.refused.items()):
            of_piece = replace(turn, pieces=parts.pieces[number])
            if number in parts.too_large:
                found.append(self._stored_of_too_large(of_piece, since, why, partial(parts.reopen, number)))
                continue
            found.append(self._stored(of_piece, since, why, is_certain=False))
            if len(found[-1]):
                self._check_no_view(turn.plan.body, why)
        return found

    def _after_refusal(self, turn: Turn, tries: _Tries, refusal: RefusedError) -> Pieces:
        chunk, pieces = turn.chunk, turn.pieces
        if not refusal.is_known and self._ambiguous_chunk != chunk.last:
            tries.ambiguous += 1
            if tries.ambiguous < AMBIGUOUS_ATTEMPTS:
                raise RetryableError(f"inserting a chunk: {refusal}; retrying the same chunk with its token before it is cut") from refusal
            self._ambiguous_chunk = chunk.last
        if self._connections.config.sink.delivery == "exactly_once":
            stored = self._stored(turn, tries.since, str(refusal), refusal.is_whole)
            if len(stored):
                self._check_no_view(turn.plan.body, str(refusal))
                return pieces.found(stored)
        sent = len(pieces.to_send())
        is_named = refusal.is_known and refusal.is_whole and refusal.row is not None and refusal.row < sent
        after = pieces.refuse(refusal.of_one_row, refusal.row, is_named and self._names_rows)
        for row in {row for row, _ in after.refused} - {row for row, _ in pieces.refused}:
            self.limits.check(turn.plan.body, chunk, pieces, row, refusal)
            self._names_rows |= is_named and sent == 1
        return after

    def _after_too_large(self, turn: Turn, tries: _Tries, error: InsertTooLargeError) -> Pieces:
        """Cut the piece, unless its rows are in the table."""
        if self._connections.config.sink.delivery == "at_least_once":
            return turn.pieces.cut()

        def send_again() -> None:
            tries.too_large_count = 0

        stored = self._stored_of_too_large(turn, tries.since, str(error), send_again)
        return turn.pieces.found(stored) if len(stored) else turn.pieces.cut()

    def _stored_of_too_large(self, turn: Turn, since: float | None, why: str, send_again: Callable[[], None]) -> Rows:
        """Return the rows of the next piece, whose inserts took too long, that are in the table.

        Raise RetryableError, and call `send_again`, if the table cannot tell, or if a view may lack the rows.
        """
        try:
            stored = self._stored(turn, since, why, is_certain=False)
        except HaltError as halt:
            send_again()
            raise RetryableError(f"{halt}. Or raise `max_insert_time` in the sink") from halt
        if len(stored) and self._connections.sink.views_on(*_database_and_name(turn.plan.body)):
            send_again()
            raise RetryableError(
                f"{why}. The chunk is not cut: the table holds rows of it that a materialized view may lack. "
                "Raise `max_insert_time` in the sink, or detach the view"
            )
        return stored

    def _stored(self, turn: Turn, since: float | None, outcome: str, is_certain: bool) -> Rows:
        """Return the rows of the next piece that are in the table, by their numbers in the chunk."""
        age = None if since is None else self._clock() - since
        work = work_of(self._connections, turn.chunk)
        sent = Sent(turn.plan.body.table, turn.rows.of(turn.pieces), work, age, outcome)
        most = self._connections.config.sink.max_insert_time
        found: Rows = turn.pieces.to_send()[stored_rows(self._connections.sink, sent, most, is_certain)]
        return found

    def _check_no_view(self, plan: SinkPlan, refusal: str) -> None:
        """Raise HaltError if the table that holds rows of a refused piece feeds views: these have not seen the rows (measured, 26.9)."""
        views = self._connections.sink.views_on(*_database_and_name(plan))
        if views:
            raise HaltError(
                f"inserting a chunk into {plan.table}: {refusal}. Rows of the chunk are in the table, and its materialized views "
                f"({', '.join(view.full_name for view in views)}) may lack them. Correct the table so that it takes the rows and start "
                "again: the same chunk is sent with its token, and the views get the missing rows. Or detach the views, start, and fill "
                "them from the table"
            )

    def _insert(self, turn: Turn, tries: _Tries) -> None:
        rows, plan = turn.rows.of(turn.pieces), turn.plan.body
        # First, because the table's answer may take long; the lease is checked after it.
        block = block_for(self._connections, config_of(self._connections, plan.config), rows)
        self._check_right()
        token = turn.pieces.token(token_of(self._connections, plan, turn.chunk), turn.chunk.rows)
        try:
            insert(self._connections, plan.table, block, token, work_of(self._connections, turn.chunk))
        except (RetryableError, HaltError):
            tries.since = self._clock()
            raise

    def _check_right(self) -> None:
        """Raise RetryableError if another runner may soon take over: a sink cannot fence a late insert, so none begins."""
        if self._tenure.remaining_seconds <= INSERT_MAX_EXECUTION_SECONDS:
            raise RetryableError("inserting a chunk: waiting for the lease to be renewed (NATS is slow or away)")


def _database_and_name(plan: SinkPlan) -> tuple[str, str]:
    database, _, name = plan.table.partition(".")
    return database, name
