"""Taking dead letters: each is named by at most one plan, plans stay small, and a record keeps what it was."""

import itertools
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.connectors.nats.client import fetch_whole
from pipelines.dead_letters.redrive import shares, taken
from pipelines.errors import RetryableError
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.protocol.bodies import REDRIVE_CHAIN, RedriveDone, RedrivePlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import REDRIVE, Names
from pipelines.protocol.records import Message
from pipelines.protocol.redrive import DISCARD, ENTER, Taken, batches, can_enter, count, ranges_of, records_of_dead_letters, rows_of
from pipelines.testing import FIRST_INSTANT, MemoryLog

NAMES = Names("orders")

ascending_rows = st.sets(st.integers(0, 300)).map(sorted).map(lambda rows: np.array(rows, dtype=np.int64))


@given(ascending_rows)
def test_rows_become_ranges_and_rows_again(rows: np.ndarray) -> None:
    ranges = ranges_of(rows)
    assert rows_of(ranges).tolist() == rows.tolist()
    assert all(last + 1 < first for (_, last), (first, _) in itertools.pairwise(ranges)), "neighbours are one range"


@given(st.lists(ascending_rows, max_size=8), st.integers(1, 40), st.integers(1, 9))
def test_portions_hold_each_letter_once_and_are_minimal(rows: list, dead_letters: int, ranges: int) -> None:
    wanted = [(sequence, found) for sequence, found in enumerate(rows, start=5) if len(found)]
    portions = list(batches(wanted, dead_letters, ranges))
    found = [(sequence, row) for places in portions for sequence, listed in places for row in rows_of(listed).tolist()]
    assert found == [(sequence, row) for sequence, listed in wanted for row in listed.tolist()]
    for places in portions:
        # One frame's share of a plan is not cut again: it has at most as many rows as a plan may have ranges.
        assert count(places) <= max(dead_letters, ranges)
        assert sum(len(listed) for _, listed in places) <= ranges


def test_states_show_planned_and_repeatedly_rejected_letters() -> None:
    plans = [
        RedrivePlan(start=0, to=1, action=ENTER, letters=((7, ((0, 1), (4, 4))), (9, ((0, 0),)))),
        RedrivePlan(start=1, to=2, action=DISCARD, letters=((7, ((2, 2),)),)),
    ]
    taken = Taken.of(plans)
    attempts = np.array([1, 5, 1, 5, 1, 1], dtype=np.int32)
    assert taken.states(7, attempts, 5).tolist() == ["redriven", "redriven", "discarded", "parked", "redriven", "open"]
    assert taken.states(8, attempts[:2], 5).tolist() == ["open", "parked"]
    assert taken.states(8, attempts[:2], 6).tolist() == ["open", "open"]


def dead_letters() -> pa.Table:
    later = FIRST_INSTANT + timedelta(seconds=5)
    row = {
        "key": b"k",
        "value": b"v",
        "headers": [(b"h", None)],
        "timestamp": FIRST_INSTANT,
        "_tf_sequence": 17,
        "_tf_ordinal": 3,
        "_tf_topic": "orders",
        "_tf_partition": 2,
        "_tf_offset": 40,
        "_tf_arrival": later,
        "attempts": 2,
        "first_time": FIRST_INSTANT,
        "past_dedup": True,
        "origin": "4.1",
        "sink": "sink:audit",
        "refused_row": 2,
    }
    oversize = {**row, "_tf_ordinal": 4, "oversize": {"bytes": 10**7, "sha256": b"x"}}
    return pa.Table.from_pylist([row, oversize], schema=DEAD_LETTER_SCHEMA)


def test_letters_of_two_sources_enter_on_their_own_subjects() -> None:
    rows = [
        {**dead_letters().to_pylist()[0], "source": source, "_tf_partition": p} for source, p in [("a", 2), ("b", 2), ("a", 0), ("a", 2)]
    ]
    portion = pa.Table.from_pylist(rows, schema=DEAD_LETTER_SCHEMA).append_column("n", pa.array(range(4)))
    assert [(str(key), share["n"].to_pylist()) for key, share in shares(portion)] == [("a/2", [0, 3]), ("a/0", [2]), ("b/2", [1])]


def test_a_reentered_record_keeps_bytes_coordinates_and_history() -> None:
    record = records_of_dead_letters(dead_letters()).to_pylist()[0]
    assert record == {
        "key": b"k",
        "value": b"v",
        "headers": [(b"h", None)],
        "partition": 2,
        "offset": 40,
        "timestamp": FIRST_INSTANT,
        "oversize": None,
        "attempts": 2,
        "first_time": FIRST_INSTANT,
        "past_dedup": True,
        "origin": "17.3",
        "sink": "sink:audit",
        "refused_row": 2,
    }


def test_a_letter_with_only_the_head_of_a_record_cannot_enter() -> None:
    assert can_enter(dead_letters()).tolist() == [True, False]


class _LaggingLog(MemoryLog):
    """Ranges are served by a replica that lacks the end, as often as told; single messages by the leader."""

    def __init__(self, lag: int, reads: int) -> None:
        super().__init__()
        self.lag, self.stale_reads = lag, reads

    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        found = list(super().fetch(stream, subject, after, to))
        if self.stale_reads:
            self.stale_reads -= 1
            found = found[: -self.lag]
        return iter(found)


def with_two_plans(log: MemoryLog) -> MemoryLog:
    chain = Chain(log, NAMES, REDRIVE_CHAIN, 1)
    chain.open()
    for number, rows in enumerate([(0, 1), (2, 2)]):
        chain.plan(RedrivePlan(start=number, to=number + 1, action=ENTER, letters=((7, (rows,)),)))
        chain.done(RedriveDone(start=number, to=number + 1, counts={"redriven": 1}))
    return log


def test_planned_letters_are_known_although_a_replica_lags() -> None:
    """A plan that is missed would let its letters enter a second time."""
    attempts = np.ones(4, dtype=np.int32)
    for lag in (1, 2, 4):
        log = with_two_plans(_LaggingLog(lag, 3))
        assert taken(log, NAMES, 0.5).states(7, attempts, 5).tolist() == ["redriven", "redriven", "redriven", "open"]
    with pytest.raises(RetryableError, match="not served yet by the replica"):
        taken(with_two_plans(_LaggingLog(1, 10**9)), NAMES, 0.5)


def test_what_the_leader_does_not_have_is_not_waited_for() -> None:
    log = with_two_plans(MemoryLog())
    log.purge(NAMES.stream("ledger"), NAMES.chain(REDRIVE), 5)
    assert [message.sequence for message in fetch_whole(log, NAMES.stream("ledger"), NAMES.chain(REDRIVE), 0, 4)] == []
