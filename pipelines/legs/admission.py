"""Whether dead letters may be written: the circuit breaker, and `on_error.rejected: halt`. Asked before each write of letters.

Both only stop the leg: the plan stays open, and the next start that may go on finishes it with the very same rows and letters. So neither
belongs to the stage configuration of a plan; what counts is the file of this start. A plan that another configuration began is let
through: its letters are decided, and whoever changed the file after a stop has looked at them.
"""

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.breaker import Breaker, halt_at
from pipelines.legs.connections import Connections
from pipelines.legs.execute import Item


def admit(connections: Connections, item: Item, breaker: Breaker, seen: tuple[int, str, int], rejected: pa.Table) -> None:
    """Raises HaltError when `rejected`, the dead letters of some records of the item, must not be written.

    `seen`: how many records that come from Kafka, of which share, up to which raw sequence (`Breaker.judge`).
    """
    if item["config"] != connections.run.stage_config:
        return
    if connections.config.on_error.rejected == "halt":
        halt_at(rejected)
    records, share, to = seen
    # What was a dead letter before cannot flood anything: there are as many letters as somebody has asked for.
    fresh = rejected.filter(pc.equal(rejected.column("attempts"), 1)) if rejected.num_rows else rejected
    breaker.judge(records, fresh, share, to)
