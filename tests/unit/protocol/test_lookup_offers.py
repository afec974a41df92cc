"""The offers of snapshots on the ledger: the last one counts, and a runner that was overtaken makes none."""

from dataclasses import replace

import pytest

from pipelines.errors import ConflictError, HaltError
from pipelines.protocol.lookup_offers import LookupOffer, last_offer, offer
from pipelines.protocol.naming import Names
from pipelines.testing import MemoryLog

NAMES = Names("orders-demo")
FIRST = LookupOffer("a" * 64, "ab", 3, 100)
SECOND = replace(FIRST, digest="b" * 64, rows=4)


def test_the_last_offer_counts_and_is_the_only_one_left() -> None:
    log = MemoryLog()
    first = offer(log, NAMES, "countries", FIRST, 0)
    second = offer(log, NAMES, "countries", SECOND, first)
    found = last_offer(log, NAMES, "countries")
    assert found is not None
    assert (found.offer, found.sequence, found.fetched_at) == (SECOND, second, log.clock.now)
    assert log.get(NAMES.stream("ledger"), first) is None
    assert last_offer(log, NAMES, "prices") is None


def test_a_runner_that_was_overtaken_offers_nothing() -> None:
    log = MemoryLog()
    first = offer(log, NAMES, "countries", FIRST, 0)
    offer(log, NAMES, "countries", SECOND, first)
    with pytest.raises(ConflictError):
        offer(log, NAMES, "countries", FIRST, first)
    found = last_offer(log, NAMES, "countries")
    assert found is not None
    assert found.offer == SECOND


def test_a_message_that_is_no_offer_halts() -> None:
    log = MemoryLog()
    log.publish(NAMES.lookup("countries"), b'{"digest":"../../etc","shape":"","rows":1,"bytes":1}', {}, 0)
    with pytest.raises(HaltError, match="only Tallyflow may write"):
        last_offer(log, NAMES, "countries")
