"""The raw stream as the audit counts it: partitions of two sources with one number are apart."""

from typing import Any

from pipelines.proof.audit.raw import RawRange, read_raw
from pipelines.proof.readers.streams import Subjects
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import SourcePartition
from pipelines.protocol.records import encode_frame
from pipelines.testing import MemoryLog, records

NAMES = Names("orders")
ORDERS, CLICKS = SourcePartition("orders", 0), SourcePartition("web.clicks", 0)


def test_one_partition_of_two_sources_is_two_accounts() -> None:
    log: Any = MemoryLog()
    for key, offsets in ((ORDERS, [0, 1, 1]), (CLICKS, [5])):
        headers = {"Tf-First": str(offsets[0]), "Tf-Last": str(offsets[-1]), "Tf-Rows": str(len(offsets))}
        log.publish(NAMES.raw(*key), encode_frame(records(0, [b"{}"] * len(offsets), offsets=offsets)), headers, 0)
    found = read_raw(log, NAMES, Subjects(NAMES.stream("raw")), RawRange(2, {ORDERS: 3, CLICKS: 6}, {}))
    assert {key: (one.start, one.end) for key, one in found.offsets.items()} == {ORDERS: (0, 3), CLICKS: (5, 6)}
    assert {kind: faults.tolist() for kind, faults in found.offsets[ORDERS].faults(3).items()}["doubled"] == [1]
    assert {kind: faults.tolist() for kind, faults in found.offsets[CLICKS].faults(6).items()}["doubled"] == []
