"""A purge of raw that ends before any frame: as one to make room does, or one that was killed before it has folded the chains."""

from contextlib import closing

from pipelines.connectors.nats.client import JetStream
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import Purged
from support.pipeline_case import PipelineCase


def note_purge(log: JetStream, names: Names, role: str, below: int) -> None:
    """Write down the extent of a stream's purge, as a purge does."""
    before = log.last(names.stream("ledger"), names.purged(role))
    log.publish(names.purged(role), Purged(below).encode(), {}, before.sequence if before else 0)


def purge_raw(case: PipelineCase, below: int) -> None:
    """Purge the raw frames below a sequence, but for the last one of every subject, as a purge does once it is decided."""
    stream, names = case.names.stream("raw"), case.names
    with closing(case.log()) as log:
        note_purge(log, names, "raw", below)
        for subject in log.subjects(stream, names.subjects("raw")):
            last = log.last(stream, subject)
            assert last
            log.purge(stream, subject, min(below, last.sequence))
