"""A purge of raw that ends before any frame: as one to make room does, or one that was killed before it has folded the chains."""

from contextlib import closing

from pipelines.protocol.purge import Purged, read_purged
from support.pipeline_case import PipelineCase


def purge_raw(case: PipelineCase, below: int) -> None:
    """Purge the raw frames below a sequence, but for the last one of every subject, as a purge does once it is decided."""
    stream, names = case.names.stream("raw"), case.names
    with closing(case.log()) as log:
        before = log.last(names.stream("ledger"), names.purged("raw"))
        log.publish(names.purged("raw"), Purged(below).encode(), {}, before.sequence if before else 0)
        for subject in log.subjects(stream, names.subjects("raw")):
            last = log.last(stream, subject)
            assert last
            log.purge(stream, subject, min(below, last.sequence))
        assert read_purged(log, names, "raw").below == below
