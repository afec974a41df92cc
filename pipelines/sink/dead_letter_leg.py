"""The leg of a table of dead letters: frames of the dead-letter stream to the table, in chunks, as the sink leg does it.

It differs in three things. A frame of dead letters names no configuration, so the plan does: the chunk's rows are mapped under that of the
start that planned it. Each dead letter is a row, whatever becomes of it later. And a row that the table refuses cannot become a dead letter
once more: the leg halts, and the dead letter stays in its stream until the table takes it.
"""

from functools import partial

from pipelines.errors import HaltError, RefusedError
from pipelines.process.program import Program
from pipelines.process.stage_config import config_of
from pipelines.protocol.bodies import SinkPlan
from pipelines.sink.attempts import Attempts
from pipelines.sink.chunks import Chunk, Pieces
from pipelines.sink.dead_letter_rows import dead_letter_rows
from pipelines.sink.inserts import Decode
from pipelines.sink.leg import SinkLeg
from pipelines.sink.refusal_limits import RefusalLimits


class DeadLetterLeg(SinkLeg):
    """A sink leg over the dead-letter stream; its offset is {"sequence": last sequence of that stream}."""

    def _made_attempts(self) -> Attempts:
        limits = NoRefusals(self.connections)
        return Attempts(self.connections, self.chain, self.tenure, self.means.clock, lambda: self.begun, limits, self._decode)

    def _decode(self, config: Program) -> Decode:
        return partial(dead_letter_rows, table=config.mapping)

    def _config_of(self, chunk: Chunk) -> Program:
        """Return the configuration of this start, under which a new plan maps its rows."""
        return config_of(self.connections, self.connections.run.stage_config)

    def _may_be_in_parts(self) -> bool:
        """Return False: a lane reads rows as they are stored, and these are mapped here."""
        return False

    def _check_plan(self, plan: SinkPlan, chunk: Chunk) -> None:
        """Raise HaltError for a plan of an earlier start whose rows were made for another table."""
        if plan.table != self._table:
            raise HaltError(
                f"sending dead letters {chunk.first}-{chunk.last}: their plan is for table {plan.table}, the file of this run names "
                f"{self._table}; nothing was sent. Start once with the earlier table in the file, until the leg has caught up"
            )


class NoRefusals(RefusalLimits):
    """The limits of a table of dead letters: it may refuse none."""

    def check(self, plan: SinkPlan, chunk: Chunk, pieces: Pieces, row: int, refusal: RefusedError) -> None:
        """Raise HaltError for a refused row of the next piece; the next start sends it again."""
        frame, first = chunk.part(row, row + 1)
        raise HaltError(
            f"inserting dead letters into {plan.table}: the table refuses row {row - first} of sequence {frame.first} of the dead-letter "
            f"stream: {refusal.of_one_row}. It stays a dead letter, and is no second one: mend the table (drop the constraint, or correct "
            "the expression that refuses it; `tallyflow ddl` prints a table that takes every dead letter) and start again: the rest is "
            "sent with its tokens, and no row is doubled"
        ) from refusal
