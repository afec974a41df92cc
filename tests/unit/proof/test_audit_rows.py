"""Rows of out and of the table in one form: what is the same, and what is not."""

import duckdb
import pyarrow as pa
import pytest

from pipelines.process.mapping.step import TargetColumn
from pipelines.proof.audit.rows import Rows
from pipelines.types.columns import parse_type


def is_same(column: str, sent: tuple[int, str], found: tuple[int, str]) -> bool:
    """Of two instants, each as ticks of a unit since 1970."""
    with duckdb.connect(":memory:") as engine:
        rows = Rows(engine, [TargetColumn("c", "c", parse_type(column), has_default=False)])
        hashes = [rows.hashes(pa.table({"c": pa.array([ticks], pa.timestamp(unit, tz="UTC"))})) for ticks, unit in (sent, found)]
    return hashes[0].equals(hashes[1])


@pytest.mark.parametrize(
    ("column", "sent", "found", "wanted"),
    [
        ("DateTime64(9)", (1_000_000_001, "ns"), (1_000_000_001, "ns"), True),
        ("DateTime64(9)", (1_000_000_001, "ns"), (1_000_000_002, "ns"), False),
        ("DateTime64(0)", (-2_000, "ms"), (-2, "s"), True),
        ("DateTime64(1)", (-1_900, "ms"), (-1_800, "ms"), False),
        ("DateTime64(1)", (1_987, "ms"), (1_900, "ms"), True),
    ],
)
def test_an_instant_is_the_same_in_any_unit_and_other_by_one_tick(
    column: str, sent: tuple[int, str], found: tuple[int, str], wanted: bool
) -> None:
    assert is_same(column, sent, found) == wanted
