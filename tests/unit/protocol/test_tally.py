"""The account of what was done since an instant, from the chains alone."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import HaltError
from pipelines.protocol.bodies import CHAINS, IngestDone, IngestPlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.tally import tally
from pipelines.testing import FIRST_INSTANT, LEGS, SINGLE, ManualClock, MemoryLog

NAMES = Names("orders")
STREAM = NAMES.stream("ledger")
Steps = list[tuple[str, int, int]]


def advance(log: MemoryLog, chain: Chain, leg: str, rows: int, bad: int) -> None:
    """One range of a leg: so many rows in, `bad` of them rejected (ingest: offsets without a record)."""
    kind, number = CHAINS[leg], chain.state.done.sequence if chain.state.done else 0
    start, to = ({"0": number}, {"0": number + 1}) if leg == "ingest" else (number, number + 1)
    more = {"process": {"config": "v"}, "sink": {"config": "v", "rows": rows, "digest": ""}}.get(leg, {})
    chain.plan(kind.plan(start=start, to=to, **more))
    log.clock.advance(timedelta(seconds=1))
    if leg == "ingest":
        counts = {"offsets": rows, "rows_in": rows - bad, "rows_out": rows - bad, "offsets_without_record": bad}
    else:
        counts = {"rows_in": rows, "rows_out": rows - bad, "rows_rejected": bad}
    chain.done(kind.done(start=start, to=to, counts=counts, **({"config": "v"} if leg == "process" else {})))
    log.clock.advance(timedelta(seconds=1))


def opened(log: MemoryLog) -> dict[str, Chain]:
    chains = {leg: Chain(log, NAMES, CHAINS[leg], 1) for leg in LEGS}
    for chain in chains.values():
        chain.open()
    return chains


def through(log: MemoryLog, chains: dict[str, Chain], rows: int, bad: int) -> None:
    """A range through all legs."""
    left = rows
    for leg, chain in chains.items():
        advance(log, chain, leg, left, bad)
        left -= bad


def seconds(count: float) -> datetime:
    return FIRST_INSTANT + timedelta(seconds=count)


def test_what_was_done_before_the_instant_is_left_out() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    through(log, chains, 10, 1)
    instant = log.clock.now
    through(log, chains, 7, 2)
    found = tally(log, NAMES, SINGLE, instant)
    assert [leg.rows_in for leg in found.legs] == [7, 5, 3]
    assert found.legs[1].outcomes == {"written to out": 3, "duplicates dropped": 0, "dead letters": 2}
    assert (found.residue, found.since) == (0, instant)


def test_an_instant_before_all_entries_means_all_after_all_none() -> None:
    log = MemoryLog(ManualClock())
    through(log, opened(log), 10, 1)
    whole, none = tally(log, NAMES, SINGLE, seconds(-1)), tally(log, NAMES, SINGLE, log.clock.now)
    assert whole.legs == tally(log, NAMES, SINGLE).legs
    assert [leg.rows_in for leg in none.legs] == [0, 0, 0]
    assert none.residue == 0


def test_the_last_folded_done_suffices_or_the_instant_is_refused() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    through(log, chains, 10, 1)
    done = {leg: chain.state.done.sequence for leg, chain in chains.items() if chain.state.done}
    instant = log.clock.now
    through(log, chains, 7, 2)
    for leg, sequence in done.items():
        log.purge(STREAM, NAMES.chain(leg), sequence)
    assert [leg.rows_in for leg in tally(log, NAMES, SINGLE, instant).legs] == [7, 5, 3]
    for leg, sequence in done.items():
        log.purge(STREAM, NAMES.chain(leg), sequence + 1)
    with pytest.raises(HaltError, match="are folded into totals; ask for a later instant"):
        tally(log, NAMES, SINGLE, instant)


def test_a_restated_done_is_no_range() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    through(log, chains, 10, 0)
    instant = log.clock.now
    chains["process"].restate(replace(chains["process"].state.done.body, clock_us=5))
    assert [leg.rows_in for leg in tally(log, NAMES, SINGLE, instant).legs] == [0, 0, 0]


def test_rows_read_before_their_done_are_no_residue() -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    plan = chains["ingest"].plan(IngestPlan(start={}, to={"0": 5})).body
    advance(log, chains["process"], "process", 5, 0)
    assert (tally(log, NAMES, SINGLE).legs[1].waiting, tally(log, NAMES, SINGLE).residue) == (-5, 0)
    chains["ingest"].done(IngestDone(start=plan.start, to=plan.to, counts={"offsets": 4, "rows_in": 4, "rows_out": 4}))
    assert tally(log, NAMES, SINGLE).residue == 1


@given(st.lists(st.tuples(st.sampled_from(LEGS), st.integers(0, 9), st.integers(0, 3)), max_size=12), st.floats(-1, 30))
def test_the_account_since_is_the_sum_of_the_ranges_done_since(steps: Steps, moment: float) -> None:
    log = MemoryLog(ManualClock())
    chains = opened(log)
    expected = dict.fromkeys(LEGS, 0)
    for leg, rows, bad in steps:
        done_at = log.clock.now + timedelta(seconds=1)
        advance(log, chains[leg], leg, rows, min(bad, rows))
        expected[leg] += rows if done_at >= seconds(moment) else 0
    found = tally(log, NAMES, SINGLE, seconds(moment))
    assert {leg.leg: leg.rows_in for leg in found.legs} == expected
    assert [leg.residue for leg in found.legs] == [0, 0, 0]
    for before, leg in zip(found.legs, found.legs[1:], strict=False):
        written = sum(count for name, count in before.outcomes.items() if name.startswith("written"))
        assert leg.waiting_before + written == leg.rows_in + leg.waiting
