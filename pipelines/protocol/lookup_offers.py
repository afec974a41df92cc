"""The snapshot of a look-up table that the next plans of the process leg name, offered on the ledger by the runner that fetches it.

An offer is written after its snapshot is durable, by compare-and-set, so a runner that was overtaken offers nothing. It decides nothing by
itself: the plan that names a snapshot does. Only the last offer of a table counts; the others go.
"""

from dataclasses import dataclass
from datetime import datetime

from pipelines.protocol.codec import Count, Digest, Form, SnapshotDigest, to_text
from pipelines.protocol.ledger import Log, stored_form
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import PurgeLog


@dataclass(frozen=True)
class LookupOffer(Form):
    """A snapshot by its `digest`, its size, and the digest of what was asked of the table: its key, and its columns with their types."""

    digest: SnapshotDigest
    shape: Digest
    rows: Count
    bytes: Count


@dataclass(frozen=True)
class Offered:
    """The last offer of a table. `sequence`: on the ledger; `fetched_at`: the time of the server when it was written."""

    offer: LookupOffer
    sequence: int
    fetched_at: datetime


def last_offer(log: Log, names: Names, table: str) -> Offered | None:
    """Return the last offer of a table, None before the first. Raise HaltError for a message that is none."""
    message = log.last(names.stream("ledger"), names.lookup(table))
    return Offered(stored_form(LookupOffer, message), message.sequence, message.time) if message else None


def offer(log: PurgeLog, names: Names, table: str, made: LookupOffer, after: int) -> int:
    """Offer a snapshot, which is durable, behind the offer at sequence `after` (0: none); return its sequence. Earlier offers go.

    Raise ConflictError if another runner has made an offer since.
    """
    sequence = log.publish(names.lookup(table), to_text(made).encode(), {}, after)
    log.purge(names.stream("ledger"), names.lookup(table), sequence)
    return sequence
