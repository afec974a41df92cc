"""Positions that Spark returns: some of those given, none twice, in order. Errors of Spark, in words that are the same in every run."""

import pytest

from pipelines.functions.child import DescribedError
from pipelines.functions.spark_child import check_positions
from pipelines.functions.spark_errors import NO_ACTION, described_spark


@pytest.mark.parametrize("returned", [[], [3], [3, 5, 9], [5, 9]])
def test_rows_that_are_left_out_lose_no_position(returned: list[int]) -> None:
    check_positions([3, 5, 9], returned)


@pytest.mark.parametrize("returned", [[4], [5, 3], [3, 3], [3, 5, 9, 10]])
def test_rows_at_other_positions_are_lost(returned: list[int]) -> None:
    with pytest.raises(DescribedError, match="has lost the positions of its records") as raised:
        check_positions([3, 5, 9], returned)
    assert raised.value.code == "lost"


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("[CAST_INVALID] 'x' cannot be cast. SQLSTATE: 22018\n== DataFrame ==\nf.py:3", "raises [CAST_INVALID] 'x' cannot be cast."),
        ("org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.", "raises [DIVIDE_BY_ZERO] Division by zero."),
        ("Traceback (most recent call last):\n  File \"own.py\", line 3\nX: <X at 0x7f0012345678>\n", "raises X: <X at 0x...>"),
    ],
)  # fmt: skip
def test_an_error_has_no_path_and_no_address(text: str, described: str) -> None:
    assert described_spark(ValueError(text)) == ("python_error", described)


def test_an_action_is_told_from_a_plan_that_shows_the_words() -> None:
    assert described_spark(ValueError(f"[USER_RAISED_EXCEPTION] {NO_ACTION}"))[0] == "python_rows"
    assert described_spark(ValueError(f"[UNRESOLVED_COLUMN] x\n'Project\n+- Filter {NO_ACTION}"))[0] == "python_error"


def test_a_udf_that_ends_its_process_is_named() -> None:
    text = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert described_spark(ValueError(text)) == ("python_died", "ends the process of a UDF")
