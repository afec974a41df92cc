"""Counts in messages."""

import pytest

from pipelines.counts import count_of


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "position", "0 positions"),
        (1, "position", "1 position"),
        (1_204, "dead letter", "1,204 dead letters"),
        (2, "copy", "2 copies"),
        (2, "entry", "2 entries"),
        (2, "day", "2 days"),
    ],
)
def test_a_count_agrees_with_its_noun(count: int, noun: str, text: str) -> None:
    assert count_of(count, noun) == text
