"""Rows that are given up, as a plan says which."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.protocol.bodies import Abandoned
from pipelines.protocol.codec import from_text, to_text
from pipelines.sink.abandoned import abandoned_rows, abandonment

LEDGER_LIMIT_BYTES = 1024 * 1024


@given(st.integers(1, 300).flatmap(lambda rows: st.tuples(st.just(rows), st.sets(st.integers(0, rows - 1)))))
def test_the_rows_are_read_back_as_they_were_given_up(given_up: tuple[int, set[int]]) -> None:
    rows, wanted = given_up
    stored = from_text(Abandoned, to_text(abandonment(np.array(sorted(wanted), dtype=np.intp), rows, "gone")))
    assert stored.rows == len(wanted)
    assert abandoned_rows(stored, rows) == tuple((row, "gone") for row in sorted(wanted))


def test_a_plan_that_nobody_gave_up_has_no_such_rows() -> None:
    assert abandoned_rows(None, 3) is None


def test_the_largest_abandoned_chunk_fits_into_an_entry() -> None:
    rows = np.flatnonzero(np.random.default_rng(1).random(1 << 20) < 0.5)
    assert len(to_text(abandonment(rows, 1 << 20, "x" * 1000))) < LEDGER_LIMIT_BYTES / 4
