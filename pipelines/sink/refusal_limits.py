"""Limits of what a sink may refuse: refused rows become dead letters one by one, until they point at the table or the mapping."""

from pipelines.engine.connections import Connections
from pipelines.errors import HaltError, RefusedError
from pipelines.process.fingerprints import fingerprint
from pipelines.process.rejection_limit import MEND, Cause, Sample, halt_for
from pipelines.protocol.bodies import SinkPlan
from pipelines.sink.chunks import Chunk, Pieces
from pipelines.sink.refused_rows import describe_row

MAX_REFUSED_ROWS = 1000
"""Limit of the refused rows of one chunk in one start, with or without the rejection limit.

Each costs inserts, and a ledger entry that names all refused rows before it.
"""
MAX_REFUSED_IN_PLAN = 20_000
"""Limit of the refused rows of one chunk in all starts: its plan names them all, and stays below 1 MiB."""
AMBIGUOUS_ATTEMPTS = 3
"""Refusals for a cause that may be the table's, or inserts that took too long, after which a piece is cut."""
MAX_AMBIGUOUS_ROWS = 3
"""Consecutive rows that may be refused for a cause that may be the table's before the leg halts."""


class RefusalLimits:
    """Counts the refused rows of one start of a sink leg."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._seen = Sample()
        """Rows of settled chunks that the rejection limit has not checked yet."""
        self._refused_here = Sample()
        """Rows of the chunk in work that this start has found refused."""
        self._ambiguous_rows = 0
        """Consecutive rows, of this chunk and earlier ones, that were refused for a cause that may be the table's."""

    @property
    def _max_rejected_percent(self) -> int:
        return 100 if self._connections.run.accepted_config else self._connections.config.on_error.max_rejected_percent

    def note_insert(self) -> None:
        """Note that the table has taken rows."""
        self._ambiguous_rows = 0

    def note_closed(self, chunk: Chunk) -> None:
        """Note that all rows of a chunk are settled."""
        self._seen = self._with_chunk(chunk).rest
        self._refused_here = Sample()

    def check(self, plan: SinkPlan, chunk: Chunk, pieces: Pieces, row: int, refusal: RefusedError) -> None:
        """Raise HaltError if a refused row of the next piece must not become a dead letter: the next start sends it again.

        `row`: its number in the chunk.
        """
        self._check_refused(plan, chunk, row, refusal)
        self._check_ambiguous(plan, chunk, pieces, refusal)

    def _check_refused(self, plan: SinkPlan, chunk: Chunk, row: int, refusal: RefusedError) -> None:
        name, reason = fingerprint("sink", "refused", "", refusal.of_one_row), f"sink: refused: {refusal.of_one_row}"
        known = self._refused_here.causes.get(name)
        cause = Cause(name, reason, known.example if known else describe_row(chunk, row), 1)
        if self._connections.config.on_error.rejected == "halt":
            raise halt_for(reason, cause.example) from refusal
        self._refused_here = self._refused_here.plus(0, [cause])
        self._with_chunk(chunk).check(self._max_rejected_percent, MEND)
        if sum(each.records for each in self._refused_here.causes.values()) > MAX_REFUSED_ROWS:
            raise HaltError(
                f"inserting chunk {chunk.first}-{chunk.last} into {plan.table}: more than {MAX_REFUSED_ROWS} of its rows are "
                f"refused, the last with: {refusal}. So many rows point at the table or the mapping: correct it and start again. "
                "Rows refused so far stay dead letters; the rest of the chunk is inserted"
            ) from refusal

    def _with_chunk(self, chunk: Chunk) -> Sample:
        return self._seen.plus(chunk.rows, self._refused_here.causes.values())

    def _check_ambiguous(self, plan: SinkPlan, chunk: Chunk, pieces: Pieces, refusal: RefusedError) -> None:
        """Raise HaltError if row after row is refused for a cause that may be the table's, and none is taken; or too many for a plan."""
        of_chunk = len(pieces.refused) if pieces.sent == len(pieces.refused) else 0
        if not refusal.is_known and max(self._ambiguous_rows, of_chunk) >= MAX_AMBIGUOUS_ROWS:
            raise HaltError(
                f"inserting chunk {chunk.first}-{chunk.last} into {plan.table}: the table refuses row after row and takes none, "
                f"with: {refusal}. Compare the table with the mapping, correct one of them and start again; the chunk waits"
            ) from refusal
        self._ambiguous_rows += not refusal.is_known
        if len(pieces.refused) >= MAX_REFUSED_IN_PLAN:
            raise HaltError(
                f"inserting chunk {chunk.first}-{chunk.last} into {plan.table}: {MAX_REFUSED_IN_PLAN} of its rows are refused, "
                f"more than its plan can name, the last with: {refusal}. Correct the table or the mapping and start again; the chunk waits"
            ) from refusal
