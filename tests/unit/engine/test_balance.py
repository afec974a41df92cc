"""How a plan is shared among processes: in the end all take as long, and nobody is left without a part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine.balance import LEAST_SECONDS, MOST_TIMES, NOISE, OWN_SHARES, Balance

ROWS = 1_000_000
FIRST = (OWN_SHARES, 1, 1)


def go_on(balance: Balance, rows_per_second: list[float], plans: int = 1) -> list[float]:
    """Cut plans by the weights, and note what they take; return the seconds of the last one by process."""
    seconds: list[float] = []
    for _ in range(plans):
        weights = balance.weights("stages", range(len(rows_per_second)))
        sizes = [int(ROWS * weight / sum(weights)) for weight in weights]
        seconds = [size / speed for size, speed in zip(sizes, rows_per_second, strict=True)]
        balance.note("stages", dict(enumerate(zip(sizes, seconds, strict=True))))
    return seconds


def test_the_leg_begins_with_two_shares_and_each_lane_with_one() -> None:
    assert Balance().weights("stages", [0, 2, 5]) == FIRST


def test_a_lane_that_is_half_as_fast_gets_half_as_much() -> None:
    balance = Balance()
    assert max(go_on(balance, [200_000, 100_000, 50_000])) == 5.0
    assert max(go_on(balance, [200_000, 100_000, 50_000], 10)) == pytest.approx(ROWS / 350_000, rel=NOISE)
    own, even, slow = balance.weights("stages", [0, 1, 2])
    assert (own / even, even / slow) == (pytest.approx(2, rel=2 * NOISE), pytest.approx(2, rel=2 * NOISE))


@given(st.lists(st.floats(0.6, 1.6), min_size=2, max_size=9))
def test_in_the_end_all_take_about_as_long(paces: list[float]) -> None:
    balance = Balance()
    speeds = [50_000 * pace * (OWN_SHARES if process == 0 else 1) for process, pace in enumerate(paces)]
    seconds = go_on(balance, speeds, 30)
    assert max(seconds) <= ROWS / sum(speeds) * (1 + 3 * NOISE)
    settled = balance.weights("stages", range(len(paces)))
    go_on(balance, speeds, 5)
    assert balance.weights("stages", range(len(paces))) == settled, "places of keys stay where they are"


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 10**9), st.floats(0, 10**6)), max_size=50))
def test_nobody_is_left_without_a_part(took: list[tuple[int, int, float]]) -> None:
    balance = Balance()
    for process, size, seconds in took:
        balance.note("stages", {0: (1000, 1.0), process: (size, seconds)})
    own, *lanes = balance.weights("stages", range(9))
    assert OWN_SHARES / MOST_TIMES <= own <= OWN_SHARES * MOST_TIMES
    assert all(1 / MOST_TIMES <= lane <= MOST_TIMES for lane in lanes)


def test_a_lane_that_recovers_gets_its_part_again() -> None:
    balance = Balance()
    go_on(balance, [100_000, 50_000, 100], 20)
    assert balance.weights("stages", [2]) < (0.5,)
    go_on(balance, [100_000, 50_000, 50_000], 20)
    assert balance.weights("stages", [0, 1, 2]) == pytest.approx(FIRST, rel=2 * NOISE)


@pytest.mark.parametrize(
    "took",
    [{0: (20, 1.0)}, {0: (20, 1.0), 1: (0, 1.0)}, {0: (20, 1.0), 1: (1, LEAST_SECONDS / 2)}, {0: (20, 1.0), 1: (9, 1.0)}, {}],
    ids=["alone", "nothing done", "too short", "noise", "nobody"],
)
def test_what_says_nothing_changes_nothing(took: dict[int, tuple[int, float]]) -> None:
    balance = Balance()
    balance.note("stages", took)
    assert balance.weights("stages", [0, 1, 2]) == FIRST


def test_each_kind_of_work_has_weights_of_its_own() -> None:
    balance = Balance()
    go_on(balance, [200_000, 10_000, 100_000])
    assert balance.weights("stages", [1]) < (1,)
    assert balance.weights("buckets", [0, 1, 2]) == FIRST
