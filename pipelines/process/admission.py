"""Whether dead letters may be written: the circuit breaker, and `on_error.rejected: halt`. Asked before each write of letters.

Both only stop the leg: the plan stays open, and the next start that may go on finishes it with the very same rows and letters. So neither
belongs to the stage configuration of a plan; what counts is the file of this start. A plan that another configuration began must pass the
circuit breaker as well; `rejected: halt` lets it through, or there would be no way on: its records are rejected whatever is mended.
"""

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.connections import Connections
from pipelines.process.rejection_limit import PLANNED, PLANNED_BEFORE, Breaker, halt_at

STAGES, LATE = "stages", "late"


def admit(connections: Connections, version: str, stage: str, seen: tuple[int, str, int], rejected: pa.Table) -> None:
    """Raises HaltError when `rejected`, dead letters of a plan under the configuration `version`, must not be written.

    `stage`: STAGES, or LATE for what dedup rejects as late: that is judged behind the exchange, where other processes see other records.
    `seen`: how many records that come from Kafka, of which share, up to which raw sequence (`Breaker.judge`).
    """
    if version == connections.run.stage_config and connections.config.on_error.rejected == "halt":
        halt_at(rejected)
    records, share, to = seen
    # What was a dead letter before cannot flood anything: there are as many letters as somebody has asked for.
    fresh = rejected.filter(pc.equal(rejected.column("attempts"), 1)) if rejected.num_rows else rejected
    _breaker(connections, stage, version).judge(records, fresh, share, to)


def _breaker(connections: Connections, stage: str, version: str) -> Breaker:
    """Return what judges the dead letters of a stage, of plans of one configuration."""
    percent = 100 if version == connections.run.accepted_config else connections.config.on_error.max_rejected_percent
    ways = PLANNED if version == connections.run.stage_config else PLANNED_BEFORE
    return connections.keep(("breaker", stage, version), lambda: Breaker(percent, ways))
