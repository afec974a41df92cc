"""Admission of dead letters: the rejection limit and `on_error.rejected: halt`, checked before each write of dead letters.

Both only stop the leg: the plan stays open, and the next start that is admitted finishes it with the same rows and dead letters. Neither
belongs to the stage configuration of a plan: the file counts as the leg has it when it begins the work, in lanes, too. If another
configuration began a plan, the plan must pass the rejection limit, too. `rejected: halt` admits such a plan: its records are rejected
whatever is repaired, so a halt would have no way out.
"""

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.engine.connections import Connections
from pipelines.process.items import Admission, ProcessItem
from pipelines.process.rejection_limit import PLANNED, PLANNED_BEFORE, RejectionLimit, halt_at

STAGES, LATE, JOINED = "stages", "late", "joined"


def admission_of(connections: Connections) -> Admission:
    """Return what the file of this run says now."""
    on_error = connections.config.on_error
    return Admission(on_error.rejected == "halt", on_error.max_rejected_percent)


def admit(connections: Connections, item: ProcessItem, stage: str, seen: tuple[int, str, int], rejected: pa.Table) -> None:
    """Raise HaltError if `rejected`, dead letters of a plan, must not be written.

    `stage`: STAGES; LATE for records that dedup rejects as late, and JOINED for those of a join: both are checked after the exchange, where
    other processes see other records. `seen`: the number of records that come from Kafka, their share, and the raw sequence up to which
    they were read (`RejectionLimit.check`).
    """
    if item.config == connections.run.stage_config and item.admission.halts:
        halt_at(rejected)
    records, share, to = seen
    # Records that were dead letters before cannot flood the stream: there are only as many as an operator has redriven.
    fresh = rejected.filter(pc.equal(rejected.column("attempts"), 1)) if rejected.num_rows else rejected
    _rejection_limit(connections, stage, item).check(records, fresh, share, to)


def _rejection_limit(connections: Connections, stage: str, item: ProcessItem) -> RejectionLimit:
    """Return the rejection limit of a stage, for plans of one configuration. Under another share it begins with an empty sample."""
    percent = 100 if item.config == connections.run.accepted_config else item.admission.percent
    ways = PLANNED if item.config == connections.run.stage_config else PLANNED_BEFORE
    return connections.keep(("rejection_limit", stage, item.config, percent), lambda: RejectionLimit(percent, ways))
